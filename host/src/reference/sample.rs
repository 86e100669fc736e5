//! Reference for [`contract::sample`]: sorts everything, in the words of the contract's steps.

use contract::num::order_key;
use contract::sample::{
    FORBIDDEN, RESTS, SEEN, SampleParams, StepState, counted, given, has_bias, lowered, penalise,
    random, scale_random, temper, top_p_target, weight,
};

use super::Inputs;

/// Vocabulary sizes: around the edges of tiles and of the block.
pub const TEST_SHAPES: &[usize] = &[1, 2, 31, 33, 255, 1000, 1024, 1025, 4097, 33_000];

/// The vocabulary of the 2B-4T model.
pub const BENCH_SHAPES: &[usize] = &[128_256];

/// Everything off: the best token.
pub const GREEDY: SampleParams = SampleParams {
    seed: 0,
    top_p_q32: 1 << 32,
    temperature: 0.0,
    repetition_penalty: 1.0,
    top_k: 0,
    min_weight: 0,
    max_steps: u32::MAX,
    stop_len: 0,
    stop_ids: [0; 16],
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    rests: 0,
    every: 0,
};

/// Parameters that use each filter alone, all together, and none.
pub fn params(seed: u64) -> Vec<SampleParams> {
    let half = 1 << 31;
    let warm = SampleParams { temperature: 0.8, seed, ..GREEDY };
    vec![
        GREEDY,
        SampleParams { repetition_penalty: 1.3, ..GREEDY },
        SampleParams { repetition_penalty: -1.0, ..GREEDY },
        SampleParams { repetition_penalty: -1.3, top_k: 40, ..warm },
        SampleParams {
            repetition_penalty: -1.1,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            top_k: 40,
            ..warm
        },
        warm,
        SampleParams { temperature: 30.0, ..warm },
        SampleParams { top_k: 1, ..warm },
        SampleParams { top_k: 40, ..warm },
        SampleParams { top_p_q32: half, ..warm },
        SampleParams { top_p_q32: 0, ..warm },
        SampleParams { min_weight: half as u32 / 20, ..warm },
        SampleParams {
            top_k: 50,
            top_p_q32: half + half / 2,
            min_weight: half as u32 / 50,
            repetition_penalty: 1.1,
            ..warm
        },
    ]
}

/// Seeded logits; every fourth time with ties, infinities and NaN among them.
pub fn logits(vocab: usize, seed: u64) -> Vec<f32> {
    let mut inputs = Inputs::new(seed);
    let mut logits = inputs.floats(vocab, 12.0);
    if seed.is_multiple_of(4) {
        for _ in 0..vocab / 3 {
            let (a, b) = (inputs.below(vocab), inputs.below(vocab));
            logits[a] = logits[b];
        }
        for odd in [f32::NAN, f32::NEG_INFINITY, -0.0, 0.0] {
            let at = inputs.below(vocab);
            logits[at] = odd;
        }
    }
    logits
}

/// The token that the contract's steps give; an empty `bias` is none.
pub fn pick(logits: &[f32], marks: &[u8], bias: &[f32], params: &SampleParams, step: u32) -> u32 {
    let x: Vec<f32> = (0..logits.len())
        .map(|i| {
            let marks = counted(marks[i], params.repetition_penalty);
            let x = penalise(logits[i], marks, params.repetition_penalty);
            let bias = bias.get(i).filter(|_| has_bias(marks, params.repetition_penalty));
            let x = bias.map_or(x, |bias| x + bias);
            temper(x, params.temperature)
        })
        .collect();
    let keys: Vec<u32> = x.iter().map(|&x| order_key(x)).collect();
    let mut best = 0;
    for i in 0..x.len() {
        if keys[i] > keys[best] {
            best = i;
        }
    }
    let draws = params.temperature > 0.0; // not when it is not a number
    if !draws {
        return best as u32;
    }
    let weights: Vec<u64> = x.iter().map(|&v| u64::from(weight(v, x[best]))).collect();

    let mut descending = keys.clone();
    descending.sort_unstable();
    descending.reverse();
    let mut kept: Vec<bool> = vec![true; x.len()];
    if params.top_k > 0 {
        let last = descending[(params.top_k as usize).min(x.len()) - 1];
        for i in 0..x.len() {
            kept[i] = keys[i] >= last;
        }
    }
    if params.top_p_q32 < 1 << 32 {
        let weigh = |least: u32| -> u64 {
            (0..x.len()).filter(|&i| kept[i] && keys[i] >= least).map(|i| weights[i]).sum()
        };
        let target = top_p_target(weigh(0), params.top_p_q32);
        // The weight grows as the bar falls: the first key, from the top, that is enough.
        let enough = descending.partition_point(|&key| weigh(key) < target);
        if let Some(&least) = descending.get(enough) {
            for i in 0..x.len() {
                kept[i] &= keys[i] >= least;
            }
        }
    }
    for i in 0..x.len() {
        kept[i] &= weights[i] >= u64::from(params.min_weight);
    }
    let total: u64 = (0..x.len()).filter(|&i| kept[i]).map(|i| weights[i]).sum();
    if total == 0 {
        return best as u32;
    }
    let point = scale_random(random(params.seed, step), total);
    let mut running = 0;
    for i in 0..x.len() {
        if kept[i] {
            running += weights[i];
        }
        if running > point {
            return i as u32;
        }
    }
    best as u32
}

/// One whole step; does nothing when the state is done.
pub fn sample(
    logits: &[f32],
    params: &SampleParams,
    marks: &mut [u8],
    bias: &mut [f32],
    state: &mut StepState,
    out: &mut [u32],
) {
    if state.done != 0 {
        return;
    }
    let token = pick(logits, marks, bias, params, state.step);
    if (state.step as usize) < out.len() {
        out[state.step as usize] = token;
    }
    let mark = &mut marks[token as usize];
    if let Some(bias) = bias.get_mut(token as usize) {
        let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
        if params.lowers() {
            *bias = lowered(*mark, *bias, presence, frequency);
        }
        *mark = given(*mark, params.lowers());
    } else {
        *mark = SEEN;
    }
    state.token = token;
    state.pos += 1;
    state.step += 1;
    let stopped = params.stop_ids[..params.stop_len as usize].contains(&token);
    let rests = if params.rests != 0 { RESTS } else { 0 };
    state.done = if stopped || state.step >= params.max_steps { 1 } else { rests };
}

/// Marks that a token may be picked next where its bit is set, and lets a text that rests go on.
pub fn allow(allowed: &[u32], marks: &mut [u8], state: &mut StepState) {
    for (i, mark) in marks.iter_mut().enumerate() {
        let may = allowed[i / 32] >> (i % 32) & 1 == 1;
        *mark = if may { *mark & !FORBIDDEN } else { *mark | FORBIDDEN };
    }
    if state.done == RESTS {
        state.done = 0;
    }
}
