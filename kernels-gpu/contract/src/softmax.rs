//! Softmax and log-softmax of rows, scaled and masked.
//!
//! | tensor | element          | shape            | meaning                                        |
//! |--------|------------------|------------------|------------------------------------------------|
//! | `x`    | f32, f16 or bf16 | `[M, K]`         | scores                                         |
//! | `mask` | the same         | `[MASK_ROWS, K]` | added; row `m` takes row `m % MASK_ROWS`; absent when null |
//! | `y`    | the same         | `[M, K]`         | output; may not overlap the inputs             |
//!
//! ```text
//! v[k] = x[k] * scale, + mask[k] where there is a mask       each rounded
//! v[k] = -inf                                                where k > K - Q + m % Q (causal, Q queries)
//! t    = max_k v[k]; 0 when that is -inf
//! s    = 256-partial sum of e^(v[k] - t)                     num::exp_number_nonpositive, num::sum;
//!                                                            16-bit types: num::exp_half_nonpositive
//! y[k] = e^(v[k] - t) * (1 / s)                              softmax
//! y[k] = (v[k] - t) - ln s                                   log-softmax, num::ln
//! ```
//! `1 / s` and `ln s` are 0 where `s` is: a row with every score at minus infinity gives zeros
//! (log-softmax: minus infinity). NaN or plus infinity in a row, unless masked by `causal`, makes the
//! whole row NaN. Terms below 2^-126 count as zero.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Scores.
    pub x: DevPtr<u8>,
    /// What is added to them, or null.
    pub mask: DevPtr<u8>,
    /// Output.
    pub y: DevPtr<u8>,
    /// Rows.
    pub m: u32,
    /// Elements of a row.
    pub k: u32,
    /// Rows of `mask`; at least 1.
    pub mask_rows: u32,
    /// Queries of one matrix when the mask is causal (1 to K), else 0.
    pub queries: u32,
    /// Factor of the scores.
    pub scale: f32,
    /// 1 for log-softmax, else 0.
    pub log: u32,
}

/// The score that softmax sees; `mask` is -0.0 where there is none.
#[inline(always)]
pub fn score(x: f32, scale: f32, mask: f32) -> f32 {
    x * scale + mask
}

/// Elements of row `m` that a causal mask leaves: all when `queries` is 0.
#[inline(always)]
pub const fn visible(m: u32, k: u32, queries: u32) -> u32 {
    if queries == 0 { k } else { k - queries + m % queries + 1 }
}

/// The larger of a running maximum and a score, NaN once there was one. Which of two zeros it is does not matter.
#[inline(always)]
pub const fn larger(acc: f32, v: f32) -> f32 {
    if v > acc || v.is_nan() { v } else { acc }
}

/// What is taken from every score, given their maximum.
#[inline(always)]
pub const fn shift(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// A term of the sum; of no meaning in rows with NaN or plus infinity.
#[inline(always)]
pub fn term(v: f32, shift: f32) -> f32 {
    num::exp_number_nonpositive(v - shift)
}

/// [`term`] where the output has 16 bits.
#[inline(always)]
pub fn term_half(v: f32, shift: f32) -> f32 {
    num::exp_half_nonpositive(v - shift)
}

/// What the terms are multiplied with (softmax), or what is taken from the shifted scores, given the maximum
/// of the row.
#[inline(always)]
pub fn closing(sum: f32, max: f32, log: bool) -> f32 {
    // The largest term is 1, unless there is none.
    let number = if log { num::ln(sum) } else { num::reciprocal(sum) };
    let number = if sum == 0.0 { 0.0 } else { number };
    if max < f32::INFINITY { number } else { f32::NAN }
}

/// Whether rows of several warps go one after the other: instructions, not memory, are the limit.
pub const IN_TURN: bool = true;

/// Most elements of a lane of rows of up to 64, as of longer ones: what is done to each row is more than fewer would save.
pub const LANE: u32 = 32;

crate::row::kernels! {
    ShortF32 MiddleF32 LongF32 ["softmax_short_f32", "softmax_f32", "softmax_long_f32"], 4, 3, "`f32`";
    ShortF16 MiddleF16 LongF16 ["softmax_short_f16", "softmax_f16", "softmax_long_f16"], 4, 3, "f16";
    ShortBf16 MiddleBf16 LongBf16 ["softmax_short_bf16", "softmax_bf16", "softmax_long_bf16"], 4, 3, "bf16";
}
