//! Log probabilities of picked tokens, and the most likely ones of each place.
//!
//! | tensor   | element | shape                        | meaning                                                    |
//! |----------|---------|------------------------------|------------------------------------------------------------|
//! | `logits` | `f32`   | `[rows, vocab]`              | input                                                      |
//! | `ids`    | `u32`   | `[rows]`                     | the token of each row, `ids_stride` apart                  |
//! | `steps`  | `u32`   | `[rows]`                     | its number in its text, from 1 on; 0: none                 |
//! | `wanted` | `u32`   | `[rows]`                     | 0: nothing; else 1 and the number of likely tokens to list |
//! | `last`   | `u32`   | `[rows]`                     | number of the last token that was told; updated            |
//! | `out`    | `u32`   | `[rows, ring, ENTRY_WORDS]`  | entries                                                    |
//! | `bests`  | `u64`   | `[rows, groups(vocab)]`      | scratch: the best [`rank`](crate::sample::rank) of each group |
//! | `parts`  | `u64`   | `[rows, blocks(vocab), 2]`   | scratch: of each block its part of the sum, and its tokens above |
//! | `tickets`| `u32`   | `[rows]`                     | scratch, 0 before and after                                |
//!
//! A row that wants nothing, has no token or has been told this one is left alone. Any other gets entry `(step - 1) % ring`:
//!
//! | word            | holds                                                                  |
//! |-----------------|------------------------------------------------------------------------|
//! | [`STEP`]        | the token's number: written last, behind a fence of the system         |
//! | [`TOKEN`]       | the token                                                              |
//! | [`LOGPROB`]     | its log probability, the bits of an `f32`                              |
//! | [`RANK`]        | 1 and the number of tokens with a larger [`order_key`](num::order_key) |
//! | [`LIST`]` + 2 j` | the `j`-th of the most likely tokens, by the sampler's [`rank`](crate::sample::rank), and behind it its log probability |
//!
//! as many as are wanted and there are; words behind them are left alone. With `m` the largest logit,
//!
//! ```text
//! ln p[i] = (x[i] - m) - ln S,   S = sum trunc(exp(x[i] - m) * 2^39) / 2^39
//! ```
//!
//! The sum is of integers, so that any order gives the same bits; what it drops is less than `vocab * 2^-39` of `S`. `ln p` of a logit that
//! equals the largest is `-ln S`, infinities too. A NaN weighs nothing and has NaN, and so has every token where all are NaN, and one past the vocabulary, whose
//! rank is 0. Probabilities are those of the model: no penalty, temperature or filter.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;

/// Most tokens that an entry lists.
pub const MAX_TOP: u32 = 20;
/// Word of an entry with the number of its token.
pub const STEP: usize = 0;
/// Word of an entry with its token.
pub const TOKEN: usize = 1;
/// Word of an entry with the log probability of its token.
pub const LOGPROB: usize = 2;
/// Word of an entry with the rank of its token.
pub const RANK: usize = 3;
/// The first word of an entry's list.
pub const LIST: usize = 4;
/// Words of an entry: a multiple of 16 bytes.
pub const ENTRY_WORDS: usize = LIST + 2 * MAX_TOP as usize;

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Logits that a warp loads together.
pub const TILE: u32 = 512;
/// Blocks of a row at most: a warp of each has a group, or several.
pub const MAX_BLOCKS: u32 = 32;
/// Groups of a row at most, whose best logits a block keeps.
pub const MAX_GROUPS: u32 = 2048;
/// Most rows of a launch.
pub const MAX_ENTRIES: usize = 65_535;
/// Shared memory of the second kernel: the best of each group, and of each warp a part of the sum.
pub const SMEM_BYTES: u32 = 8 * (MAX_GROUPS + THREADS / 32);
/// The weight of the largest logit.
pub const ONE: u64 = 1 << 39;

/// Groups of a row.
#[inline(always)]
pub const fn groups(vocab: u32) -> u32 {
    vocab.div_ceil(span(vocab))
}

/// Blocks of a row.
#[inline(always)]
pub const fn blocks(vocab: u32) -> u32 {
    let all = groups(vocab).div_ceil(THREADS / 32);
    if all < MAX_BLOCKS { all } else { MAX_BLOCKS }
}

/// Logits of a group.
#[inline(always)]
pub const fn span(vocab: u32) -> u32 {
    TILE * vocab.div_ceil(TILE * MAX_GROUPS)
}

/// The weight of a logit beside the largest one.
#[inline(always)]
pub fn weight(x: f32, max: f32) -> u64 {
    // The difference of equal infinities is NaN.
    if x == max {
        return ONE;
    }
    let e = num::exp(x - max) * ONE as f32;
    // NaN compares false and weighs nothing.
    if e > 0.0 { e as u64 } else { 0 }
}

/// `ln S` of a row whose weights add up to `total`.
#[inline(always)]
pub fn ln_sum(total: u64) -> f32 {
    num::ln(total as f32 * (1.0 / ONE as f32))
}

/// The log probability of a logit.
#[inline(always)]
pub fn log_probability(x: f32, max: f32, ln_sum: f32) -> f32 {
    let below = if x == max { 0.0 } else { x - max };
    let y = below - ln_sum;
    if y.is_nan() { f32::NAN } else { y }
}

/// The only parameter of both kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Logits.
    pub logits: DevPtr<f32>,
    /// Tokens.
    pub ids: DevPtr<u32>,
    /// Their numbers.
    pub steps: DevPtr<u32>,
    /// What is wanted.
    pub wanted: DevPtr<u32>,
    /// What was told.
    pub last: DevPtr<u32>,
    /// Entries; may be host memory mapped into the device.
    pub out: DevPtr<u32>,
    /// Scratch: the best of each group.
    pub bests: DevPtr<u64>,
    /// Scratch: of each block a sum and a count.
    pub parts: DevPtr<u64>,
    /// Scratch: blocks of each row that are done.
    pub tickets: DevPtr<u32>,
    /// Words from token to token.
    pub ids_stride: u32,
    /// Words from number to number.
    pub steps_stride: u32,
    /// Words from wish to wish.
    pub wanted_stride: u32,
    /// Entries of a row.
    pub ring: u32,
    /// Number of logits.
    pub vocab: u32,
}

/// The best of each group, and the tokens above; grid `[blocks(vocab), rows, 1]`.
pub enum Groups {}
/// The sum, and by the last block of a row its entry; the same grid, behind it with the same arguments.
pub enum Tell {}

impl Kernel for Groups {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("logprobs_groups", THREADS).with_smem(8 * THREADS / 32);
}

impl Kernel for Tell {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("logprobs_tell", THREADS).with_smem(SMEM_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_fit_and_cover_every_vocabulary() {
        for vocab in (1..5000).chain([128_256, 1 << 20, (1 << 20) + 1, (1 << 24) - 1, 1 << 24]) {
            let span = span(vocab);
            assert!(span.is_multiple_of(TILE) && groups(vocab) <= MAX_GROUPS, "{vocab}");
            assert!((1..=MAX_BLOCKS).contains(&blocks(vocab)), "{vocab}");
        }
        assert_eq!(span(128_256), TILE);
    }

    #[test]
    fn the_sum_of_the_largest_vocabulary_fits() {
        assert!(ONE.checked_mul(1 << 24).is_some());
    }
}
