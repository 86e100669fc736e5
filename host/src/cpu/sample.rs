//! CPU side of [`contract::sample`].

use std::sync::atomic::{AtomicU64, Ordering};

use contract::num::order_key;
use contract::sample::{
    SampleParams, StepState, penalise, random, rank, rank_index, scale_random, temper,
    top_p_target, weight,
};

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
    /// Tokens of prompt and text: one byte for each logit.
    pub seen: &'a mut [u8],
    /// As long as the logits: they, after penalty and temperature.
    pub adjusted: &'a mut [f32],
    /// Lists.
    pub scratch: &'a mut Scratch,
    /// Receives the token at the step's number.
    pub out: &'a mut [u32],
}

/// Picks the next token and moves the sequence on; nothing at all once it is done.
pub fn sample(threads: &Threads, simd: Simd, logits: &[f32], sampler: Sampler<'_>) {
    let Sampler { params, state, seen, adjusted, scratch, out } = sampler;
    if state.done != 0 {
        return;
    }
    let best = adjust(threads, simd, logits, params, seen, adjusted);
    let token = if params.temperature > 0.0 {
        draw(threads, simd, adjusted, best, params, state.step, scratch)
    } else {
        best
    };
    if let Some(out) = out.get_mut(state.step as usize) {
        *out = token;
    }
    seen[token as usize] = 1;
    let stops = params.stop_ids.iter().take(params.stop_len as usize);
    let step = state.step.wrapping_add(1);
    let done = step >= params.max_steps || stops.into_iter().any(|&id| id == token);
    let pos = state.pos.wrapping_add(1);
    *state = StepState { pos, token, step, done: u32::from(done) };
}

/// Step 1: penalty, temperature, and the best token.
fn adjust(
    threads: &Threads,
    simd: Simd,
    logits: &[f32],
    params: &SampleParams,
    seen: &[u8],
    adjusted: &mut [f32],
) -> u32 {
    let SampleParams { temperature, repetition_penalty: penalty, .. } = *params;
    let best = AtomicU64::new(0);
    threads.run_pieces(adjusted, TASK, |i, adjusted| {
        let first = i * TASK;
        let part = first..first + adjusted.len();
        let (logits, seen) = (&logits[part.clone()], &seen[part]);
        simd.with(|| {
            for ((x, logit), seen) in adjusted.iter_mut().zip(logits).zip(seen) {
                *x = temper(penalise(*logit, *seen != 0, penalty), temperature);
            }
            let top = adjusted.iter().fold(0, |top, x| order_key(*x).max(top));
            if let Some(at) = adjusted.iter().position(|x| order_key(*x) == top) {
                best.fetch_max(rank(adjusted[at], (first + at) as u32), Ordering::Relaxed);
            }
        });
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
        let adjusted = &adjusted[i * TASK..][..weights.len()];
        simd.with(|| {
            for ((u, key), x) in weights.iter_mut().zip(keys.iter_mut()).zip(adjusted) {
                (*u, *key) = (weight(*x, top), order_key(*x));
            }
        });
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
