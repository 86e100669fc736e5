//! Reference for [`contract::logprobs`]: sorts everything, in the words of the contract.

use contract::logprobs::{
    ENTRY_WORDS, LIST, LOGPROB, MAX_TOP, RANK, STEP, TOKEN, ln_sum, log_probability, weight,
};
use contract::num::order_key;
use contract::sample::rank;

/// Vocabulary sizes: around the edges of tiles, of groups and of the list.
pub const TEST_SHAPES: &[usize] =
    &[1, 2, 19, 20, 21, 31, 33, 255, 256, 257, 1000, 4095, 4097, 33_000];

/// The vocabulary of the 2B-4T model.
pub const BENCH_SHAPES: &[usize] = &[128_256];

/// Writes the entry of token `id`, number `step` of its text, unless nothing is wanted or it is the one of `last`.
pub fn tell(logits: &[f32], (id, step, wanted): (u32, u32, u32), last: &mut u32, row: &mut [u32]) {
    if wanted == 0 || step == 0 || step == *last {
        return;
    }
    *last = step;
    let ring = row.len() / ENTRY_WORDS;
    let entry = &mut row[(step - 1) as usize % ring * ENTRY_WORDS..][..ENTRY_WORDS];

    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by_key(|&i| u64::MAX - rank(logits[i], i as u32));
    let max = logits[order[0]];
    let ln_sum = ln_sum(logits.iter().map(|&x| weight(x, max)).sum());
    let logprob = |i: usize| log_probability(logits[i], max, ln_sum).to_bits();

    entry[STEP] = step;
    entry[TOKEN] = id;
    entry[LOGPROB] = f32::NAN.to_bits();
    entry[RANK] = 0;
    if let Some(&x) = logits.get(id as usize) {
        entry[LOGPROB] = logprob(id as usize);
        entry[RANK] = 1 + logits.iter().filter(|&&v| order_key(v) > order_key(x)).count() as u32;
    }
    for (j, &i) in order.iter().take((wanted - 1).min(MAX_TOP) as usize).enumerate() {
        entry[LIST + 2 * j] = i as u32;
        entry[LIST + 2 * j + 1] = logprob(i);
    }
}
