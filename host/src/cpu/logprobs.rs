//! CPU side of [`contract::logprobs`]: a row a task.

use contract::logprobs::{
    LIST, LOGPROB, MAX_TOP, RANK, STEP, TOKEN, ln_sum, log_probability, weight,
};
use contract::num::{order_key, order_value};
use contract::sample::{rank, rank_index};

use super::Simd;
use super::simd::vectorised;

/// Logits whose largest key is kept.
const GROUP: usize = 256;

vectorised! {
    /// The largest key of each group, and how many keys are above that of the token.
    fn keys(logits: &[f32], of_token: u32, tops: &mut Vec<u32>) -> u32 {
        let mut above = 0;
        tops.clear();
        for group in logits.chunks(GROUP) {
            let mut top = 0;
            for &x in group {
                let key = order_key(x);
                top = key.max(top);
                above += u32::from(key > of_token);
            }
            tops.push(top);
        }
        above
    }
}

vectorised! {
    /// The sum of the weights.
    fn sum(logits: &[f32], max: f32) -> u64 {
        logits.iter().map(|&x| weight(x, max)).sum()
    }
}

/// The entry of token `id`, number `step` of its text; `wanted` is 1 and the number of likely tokens.
pub fn entry(simd: Simd, logits: &[f32], id: u32, step: u32, wanted: u32, entry: &mut [u32]) {
    let x = logits.get(id as usize).copied();
    let mut tops = Vec::new();
    let above = keys(simd, logits, x.map_or(u32::MAX, order_key), &mut tops);
    let max = order_value(tops.iter().copied().max().unwrap_or(0));
    let ln_sum = ln_sum(sum(simd, logits, max));
    let count = ((wanted - 1).min(MAX_TOP) as usize).min(logits.len());
    for (pair, best) in entry[LIST..].chunks_mut(2).zip(list(logits, tops, count)) {
        let (token, x) = (rank_index(best), order_value((best >> 32) as u32));
        pair.copy_from_slice(&[token, log_probability(x, max, ln_sum).to_bits()]);
    }
    entry[TOKEN] = id;
    entry[LOGPROB] = x.map_or(f32::NAN, |x| log_probability(x, max, ln_sum)).to_bits();
    entry[RANK] = x.map_or(0, |_| above + 1);
    entry[STEP] = step;
}

/// The ranks of the best `count`: they stand in the groups with the largest keys.
fn list(logits: &[f32], tops: Vec<u32>, count: usize) -> Vec<u64> {
    if count == 0 {
        return Vec::new();
    }
    let mut groups: Vec<usize> = (0..tops.len()).collect();
    // Of equal keys the group in front has the better tokens.
    groups.sort_unstable_by_key(|&group| (u32::MAX - tops[group], group));
    let ranks = groups.into_iter().take(count).flat_map(|group| {
        let first = group * GROUP;
        let group = logits[first..].iter().take(GROUP).enumerate();
        group.map(move |(i, &x)| rank(x, (first + i) as u32))
    });
    let mut ranks: Vec<u64> = ranks.collect();
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    ranks.truncate(count);
    ranks
}
