//! CPU side of [`contract::sample`].

use std::sync::atomic::{AtomicU64, Ordering};

use contract::num::order_key;
use contract::sample::{
    FORBIDDEN, RESTS, SEEN, SampleParams, StepState, counted, given, has_bias, lowered, penalise,
    random, rank, rank_index, scale_random, temper, top_p_target, weight,
};

use super::simd::vectorised;
use super::threads::RowsMut;
use super::{Simd, Threads};

/// Logits of a task.
const TASK: usize = 4096;

/// Lists that keep their memory between steps.
#[derive(Debug, Default)]
pub struct Scratch {
    weights: Vec<u32>,
    keys: Vec<u32>,
    /// Key above, weight below.
    ranked: Vec<u64>,
}

/// What the sampler of one sequence works on.
pub struct Sampler<'a> {
    /// What was asked for.
    pub params: &'a SampleParams,
    /// Where the sequence stands.
    pub state: &'a mut StepState,
    /// What is known of each token.
    pub marks: &'a mut [u8],
    /// What is added to the logits of tokens that are marked so; empty: none are.
    pub bias: &'a mut [f32],
    /// As long as the logits: they, after penalty and temperature.
    pub adjusted: &'a mut [f32],
    /// Lists.
    pub scratch: &'a mut Scratch,
    /// Receives the token at the step's number.
    pub out: &'a mut [u32],
}

/// Picks the next token and moves the sequence on; nothing at all once it is done.
pub fn sample(threads: &Threads, simd: Simd, logits: &[f32], sampler: Sampler<'_>) {
    let Sampler { params, state, marks, bias, adjusted, scratch, out } = sampler;
    if state.done != 0 {
        return;
    }
    let best = adjust(threads, simd, logits, params, (marks, bias), adjusted);
    let token = if params.temperature > 0.0 {
        draw(threads, simd, adjusted, best, params, state.step, scratch)
    } else {
        best
    };
    if let Some(out) = out.get_mut(state.step as usize) {
        *out = token;
    }
    let mark = &mut marks[token as usize];
    *mark = match bias.get_mut(token as usize) {
        None => SEEN,
        Some(bias) => {
            if params.lowers() {
                let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
                *bias = lowered(*mark, *bias, presence, frequency);
            }
            given(*mark, params.lowers())
        }
    };
    let stops = params.stop_ids.iter().take(params.stop_len as usize);
    let step = state.step.wrapping_add(1);
    let done = step >= params.max_steps || stops.into_iter().any(|&id| id == token);
    let pos = state.pos.wrapping_add(1);
    let rests = if params.rests != 0 { RESTS } else { 0 };
    *state = StepState { pos, token, step, done: if done { 1 } else { rests } };
}

/// Marks what may not be picked next, by bits of what may, and lets a text that rests go on.
pub fn allow(words: &[u32], marks: &mut [u8], done: &mut u32) {
    for (marks, word) in marks.chunks_mut(32).zip(words) {
        for (i, mark) in marks.iter_mut().enumerate() {
            *mark = *mark & !FORBIDDEN | if word >> i & 1 == 0 { FORBIDDEN } else { 0 };
        }
    }
    if *done == RESTS {
        *done = 0;
    }
}

vectorised! {
    /// Adjusts some logits and returns their largest key.
    fn adjust_part(params: &SampleParams, logits: &[f32], marks: &[u8], bias: &[f32], adjusted: &mut [f32]) -> u32 {
        let mut top = 0;
        for (i, ((x, logit), marks)) in adjusted.iter_mut().zip(logits).zip(marks).enumerate() {
            let marks = counted(*marks, params.repetition_penalty);
            let mut penalised = penalise(*logit, marks, params.repetition_penalty);
            if let Some(bias) = bias.get(i).filter(|_| has_bias(marks, params.repetition_penalty)) {
                penalised += bias;
            }
            *x = temper(penalised, params.temperature);
            top = order_key(*x).max(top);
        }
        top
    }
}

vectorised! {
    /// Weights and keys of some logits.
    fn weigh_part(adjusted: &[f32], best: f32, weights: &mut [u32], keys: &mut [u32]) {
        for ((u, key), x) in weights.iter_mut().zip(keys).zip(adjusted) {
            (*u, *key) = (weight(*x, best), order_key(*x));
        }
    }
}

/// Step 1: penalty, temperature, and the best token.
fn adjust(
    threads: &Threads,
    simd: Simd,
    logits: &[f32],
    params: &SampleParams,
    (marks, bias): (&[u8], &[f32]),
    adjusted: &mut [f32],
) -> u32 {
    let best = AtomicU64::new(0);
    threads.run_pieces(adjusted, TASK, |i, adjusted| {
        let first = i * TASK;
        let part = first..first + adjusted.len();
        let (logits, marks, bias) = (&logits[part.clone()], &marks[part], bias.get(first..));
        let top = adjust_part(simd, params, logits, marks, bias.unwrap_or(&[]), adjusted);
        if let Some(at) = adjusted.iter().position(|x| order_key(*x) == top) {
            best.fetch_max(rank(adjusted[at], (first + at) as u32), Ordering::Relaxed);
        }
    });
    rank_index(best.into_inner())
}

/// Steps 2 to 6: a token by its weight, among those that the filters keep.
fn draw(
    threads: &Threads,
    simd: Simd,
    adjusted: &[f32],
    best: u32,
    params: &SampleParams,
    step: u32,
    scratch: &mut Scratch,
) -> u32 {
    let Scratch { weights, keys, ranked } = scratch;
    let top = adjusted[best as usize];
    weights.resize(adjusted.len(), 0);
    keys.resize(adjusted.len(), 0);
    let lists = (RowsMut::new(weights, TASK), RowsMut::new(keys, TASK));
    threads.run_rows(lists.0.rows(), lists, |i, (weights, keys)| {
        weigh_part(simd, &adjusted[i * TASK..][..weights.len()], top, weights, keys);
    });

    let mut floor = 0;
    let top_k = params.top_k as usize;
    if top_k != 0 && top_k < keys.len() {
        ranked.clear();
        ranked.extend(keys.iter().map(|&key| u64::from(key)));
        floor = *ranked.select_nth_unstable_by(top_k - 1, |a, b| b.cmp(a)).1 as u32;
    }
    if params.top_p_q32 >> 32 == 0 {
        let candidates =
            weights.iter().zip(keys.iter()).filter(|(u, key)| **u > 0 && **key >= floor);
        ranked.clear();
        ranked.extend(candidates.map(|(u, key)| u64::from(*key) << 32 | u64::from(*u)));
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let weight_of = |entry: &u64| entry & u64::from(u32::MAX);
        let target = top_p_target(ranked.iter().map(weight_of).sum(), params.top_p_q32);
        let mut running = 0;
        for entry in ranked.iter() {
            running += weight_of(entry);
            if running >= target {
                floor = floor.max((entry >> 32) as u32);
                break;
            }
        }
    }
    let kept = |u: u32, key: u32| {
        if key >= floor && u >= params.min_weight { u64::from(u) } else { 0 }
    };
    let total = weights.iter().zip(keys.iter()).map(|(u, key)| kept(*u, *key)).sum();
    if total == 0 {
        return best;
    }
    let point = scale_random(random(params.seed, step), total);
    let mut running = 0;
    for (i, (u, key)) in weights.iter().zip(keys.iter()).enumerate() {
        running += kept(*u, *key);
        if running > point {
            return i as u32;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::every_way;
    use crate::reference::{Inputs as Seeded, sample as reference};
    use proptest::prelude::*;

    /// A few steps of one sequence, ours and the reference's side by side.
    fn check(vocab: usize, params: &SampleParams, seed: u64) {
        every_way(|threads, simd| {
            let mut marks = Seeded::new(seed).marks(vocab);
            let mut want_marks = marks.clone();
            let mut bias = Seeded::new(seed + 1).floats(vocab, 4.0);
            let mut want_bias = bias.clone();
            let (mut state, mut want_state) = (StepState::default(), StepState::default());
            let (mut out, mut want_out) = ([u32::MAX; 3], [u32::MAX; 3]);
            let (mut adjusted, mut scratch) = (vec![0.0; vocab], Scratch::default());
            for step in 0..4 {
                let logits = reference::logits(vocab, seed + step);
                let sampler = Sampler {
                    params,
                    state: &mut state,
                    marks: &mut marks,
                    bias: &mut bias,
                    adjusted: &mut adjusted,
                    scratch: &mut scratch,
                    out: &mut out,
                };
                sample(threads, simd, &logits, sampler);
                reference::sample(
                    &logits,
                    params,
                    &mut want_marks,
                    &mut want_bias,
                    &mut want_state,
                    &mut want_out,
                );
                assert_eq!(state, want_state, "{vocab} {params:?}");
            }
            assert_eq!((out, &marks), (want_out, &want_marks), "{vocab} {params:?}");
            assert_eq!(bias, want_bias, "{vocab} {params:?}");
        });
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &vocab in reference::TEST_SHAPES {
            for (seed, params) in reference::params(vocab as u64).iter().enumerate() {
                check(vocab, params, seed as u64);
            }
        }
    }

    #[test]
    fn stops_at_a_stop_id_or_the_last_step_and_then_changes_nothing() {
        let mut stop = reference::GREEDY;
        (stop.stop_ids[1], stop.stop_len) =
            (reference::pick(&reference::logits(50, 9), &[0; 50], &[], &stop, 0), 2);
        check(50, &stop, 9);
        check(50, &SampleParams { max_steps: 2, ..reference::GREEDY }, 9);
    }

    #[test]
    fn logits_of_nothing_but_nan_pick_the_first() {
        let (mut state, mut scratch) = (StepState::default(), Scratch::default());
        let params = SampleParams { temperature: 1.0, ..reference::GREEDY };
        every_way(|threads, simd| {
            state.done = 0;
            let (mut marks, mut adjusted, mut out) = ([0; 9], [0.0; 9], [5; 9]);
            let sampler = Sampler {
                params: &params,
                state: &mut state,
                marks: &mut marks,
                bias: &mut [],
                adjusted: &mut adjusted,
                scratch: &mut scratch,
                out: &mut out,
            };
            sample(threads, simd, &[f32::NAN; 9], sampler);
            assert_eq!(state.token, 0);
        });
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_weigh() {
        let threads = Threads::new(std::num::NonZeroUsize::MIN).expect("threads");
        let params = SampleParams { temperature: 1.0, seed: 11, ..reference::GREEDY };
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln(), f32::NEG_INFINITY];
        let mut counts = [0u32; 4];
        for step in 0..20_000 {
            let (adjusted, mut scratch) = (logits, Scratch::default());
            let token = draw(&threads, Simd::SCALAR, &adjusted, 0, &params, step, &mut scratch);
            counts[token as usize] += 1;
        }
        for (count, share) in counts.iter().zip([0.5, 0.3, 0.2, 0.0]) {
            assert!((f64::from(*count) / 20_000.0 - share).abs() < 0.012, "{counts:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_the_reference_with_any_filters(
            vocab in 1usize..600, top_k in 0u32..700, top_p in 0u64..(1 << 32) + 1,
            min_weight in 0u32..1 << 31, filters in 0u8..8, temperature in 0.0f32..3.0,
            penalty in 0.7f32..1.5, seed in 0u64..1 << 40,
        ) {
            let on = |bit: u8| filters >> bit & 1 == 1;
            check(vocab, &SampleParams {
                seed,
                top_k: if on(0) { top_k } else { 0 },
                top_p_q32: if on(1) { top_p } else { 1 << 32 },
                min_weight: if on(2) { min_weight } else { 0 },
                temperature,
                repetition_penalty: penalty,
                ..reference::GREEDY
            }, seed);
        }
    }
}
