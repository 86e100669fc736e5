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
//! A row of more than [`WHOLE`] elements has `t` and `s` for each [`SEGMENT`], which [`Parts`] combine:
//!
//! ```text
//! t_j, s_j                                                   maximum and sum of segment j, as above
//! t_p  = max t_j,   s_p = sum of s_j * factor(t_j, t_p)      for each part p, num::tree8
//! t    = max t_p,   s   = sum of s_p * factor(t_p, t)        num::strided_sum, fused
//! y[k] = e^(v[k] - t_j) * (factor(t_j, t) * (1 / s))         softmax; log-softmax as above
//! ```
//!
//! `1 / s` and `ln s` are 0 where `s` is: a row with every score at minus infinity gives zeros
//! (log-softmax: minus infinity). NaN or plus infinity in a row, unless masked by `causal`, makes the
//! whole row NaN. Terms below 2^-126 count as zero.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;
use crate::row::{SMALL_WORD_BYTES, SMALL_WORDS, Small};
pub use crate::parts::{
    EXCHANGE_HEAD, EXCHANGE_SLOTS, LINE_BYTES, PART, PART_THREADS, Parts, SEGMENT, parts, scratch_bytes, segments,
};

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

/// Most elements of a row with one sum.
pub const WHOLE: u32 = 16_384;

/// What the sum, or the terms, of a segment or a part with such a maximum are multiplied with in a whole with the larger one
/// `of_all`; of no meaning where that is NaN or plus infinity.
#[inline(always)]
pub fn factor(max: f32, of_all: f32) -> f32 {
    num::exp_number_nonpositive(max - shift(of_all))
}

/// Parts on their way to a block, and parts that wait for the sum of their row, of elements of so many bytes, of rows in pieces or not (`odd`).
pub const fn on_way(bytes: u32, odd: bool) -> [u32; 2] {
    match bytes {
        4 => [1, 2],
        _ if odd => [2, 2],
        _ => [1, 3],
    }
}

/// Bytes of a segment on its way: up to a piece more than it has, where rows are in none.
pub const fn stage_bytes(bytes: u32, odd: bool) -> u32 {
    SEGMENT * bytes + if bytes == 4 || odd { LINE_BYTES } else { 0 }
}

/// Bytes of a warp's segments, on their way or waiting as terms.
const fn warp_bytes_of(bytes: u32, odd: bool) -> u32 {
    let [ahead, behind] = on_way(bytes, odd);
    ahead * stage_bytes(bytes, odd) + behind * 4 * SEGMENT
}

/// The same however rows lie.
pub const fn warp_bytes(bytes: u32) -> u32 {
    let [odd, other] = [warp_bytes_of(bytes, true), warp_bytes_of(bytes, false)];
    if odd > other { odd } else { other }
}

/// Parts of which the warps of a block may tell each other something at once: two more than can wait, and a power of two.
pub const SETS: u32 = 8;

/// Bytes in front: maximum and sum of each segment, maximum and closing of the row, and a barrier of each, of so many parts.
pub const PART_SCRATCH_BYTES: u32 = scratch_bytes(SETS);

/// Shared memory of a block of a part.
pub const fn part_smem_bytes(bytes: u32) -> u32 {
    PART_SCRATCH_BYTES + PART * warp_bytes(bytes)
}

/// The only parameter of kernels of parts. Scores and output start on boundaries of 16 bytes.
pub type PartArgs = crate::parts::PartArgs<Args>;

macro_rules! of_parts {
    ($($name:ident $symbol:literal $bytes:literal $doc:literal;)*) => {$(
        #[doc = concat!("Parts of long rows of ", $doc, ".")]
        pub enum $name {}

        impl Kernel for $name {
            type Args = PartArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, PART_THREADS)
                .with_smem(part_smem_bytes($bytes))
                .with_min_sm(90)
                .with_min_blocks(2)
                .all_at_once();
        }
    )*};
}

of_parts! {
    PartsF32 "softmax_parts_f32" 4 "`f32`";
    PartsF16 "softmax_parts_f16" 2 "f16";
    PartsBf16 "softmax_parts_bf16" 2 "bf16";
}

/// How short rows come together.
pub const SMALL: Small = Small {
    most: 640,
    lane: 20,
    most_in_words: 640,
    least_words: 1,
    words: SMALL_WORDS,
    bytes_in_words: SMALL_WORD_BYTES,
};

/// The same of these: rows in words are neither masked nor scaled.
#[inline(always)]
pub const fn small(args: &Args) -> Small {
    let plain = args.mask.is_null() && args.queries == 0 && args.scale == 1.0;
    Small { most_in_words: if plain { SMALL.most_in_words } else { 0 }, ..SMALL }
}

/// Whether something comes with them.
const fn more(args: &Args) -> bool {
    !args.mask.is_null()
}

/// Which of them do, as [`crate::row::Family::together`] has it: all that are in no pieces of 16 bytes, and what is short. Behind a mask that is added
/// more, as it comes with them; behind a causal mask fewer, as what it hides is made too.
const fn together(args: &Args, bytes: u32) -> bool {
    let (k, len) = (args.k, args.k * bytes);
    let odd = !len.is_multiple_of(16);
    if args.queries > 0 {
        return if odd { k <= 128 } else { len <= 32 || bytes == 4 && len <= 128 };
    }
    odd || len <= 48 || bytes == 4 && len <= 128 || !args.mask.is_null() && (bytes == 4 || k.is_power_of_two())
}

/// Where rows are, as [`crate::row::Family::rows`] has it.
const fn rows(args: &Args) -> u64 {
    args.x.addr() | args.mask.addr() | args.y.addr()
}

/// Whether there is a residual, as [`crate::row::Family::adds`] has it.
const fn adds(_args: &Args) -> bool {
    false
}

/// As [`crate::row::Family`] has it. Blocks have all parts there are: they keep nothing of one.
pub enum Softmax {}

crate::row::kernels! { Softmax, false, [4, 4], 0, [WordsF16 WordsBf16],
    [TurnedF32 TurnedF16 TurnedBf16], [LongTurnedF32 LongTurnedF16 LongTurnedBf16];
    ShortF32 MiddleF32 LongF32
        ["softmax_short_f32", "softmax_f32", "softmax_long_f32"], 4, [4, 3], "`f32`";
    ShortF16 MiddleF16 LongF16
        ["softmax_short_f16", "softmax_f16", "softmax_long_f16"], 4, [4, 3], "f16";
    ShortBf16 MiddleBf16 LongBf16
        ["softmax_short_bf16", "softmax_bf16", "softmax_long_bf16"], 4, [4, 3], "bf16";
}

crate::row::small! {
    SmallF32 "softmax_small_f32" 4 5 "`f32`";
    SmallF16 "softmax_small_f16" 2 4 "f16";
    SmallBf16 "softmax_small_bf16" 2 4 "bf16";
    WordsF16 "softmax_words_f16" 2 4 "f16 in words,";
    WordsBf16 "softmax_words_bf16" 2 4 "bf16 in words,";
}

crate::row::long_turned! {
    LongTurnedF32 "softmax_long_turned_f32", 4, 4, "`f32`";
    LongTurnedF16 "softmax_long_turned_f16", 4, 3, "f16";
    LongTurnedBf16 "softmax_long_turned_bf16", 4, 3, "bf16";
}

crate::row::turned! {
    TurnedF32 "softmax_turned_f32", 8, "`f32`";
    TurnedF16 "softmax_turned_f16", 6, "f16";
    TurnedBf16 "softmax_turned_bf16", 6, "bf16";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_fit_on_a_multiprocessor() {
        for bytes in [2, 4] {
            assert!(on_way(bytes, false)[1] + 2 <= SETS && warp_bytes(bytes).is_multiple_of(LINE_BYTES));
            assert!(PART_SCRATCH_BYTES.is_multiple_of(LINE_BYTES));
            assert!(2 * (part_smem_bytes(bytes) + 1024) <= 228 * 1024);
        }
    }
}
