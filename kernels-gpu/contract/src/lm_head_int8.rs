//! The head by way of an int8 copy of its table: which rows can win, and the exact logits of those, as the sampler takes them.
//!
//! | tensor   | element        | shape            | layout                                            |
//! |----------|----------------|------------------|---------------------------------------------------|
//! | `x`      | `f32`          | `[K]`            | contiguous                                        |
//! | `w`      | bf16, f16, f32 | `[vocab, K]`     | rows of `stride` elements, 16-byte aligned        |
//! | `bytes`  | `i8`           | `[vocab, K]`     | rows of [`row_bytes`], zeros behind `K`           |
//! | `rows`   | `f32`          | `[vocab, 4]`     | scale, error, norm of each row, 0                 |
//! | `input`  | `u32`          | [`input_words`]  | [`input_stats`], then the high digits of `x` and the low ones, [`row_bytes`] of each; then scratch |
//! | `marks`, `params`, `state` | |                | those of [`crate::sample`]; no kernel writes `params` |
//! | `bounds` | `f32`          | `[vocab]`        | scratch; [`EVERY`] logit as it is, where that is asked for |
//! | `best`, `adjusted`, `tops` | |               | those of [`crate::sample`]: output                |
//!
//! Several inputs, each with a sampler, have a row of everything but the table: one behind the other
//! ([`Args::of_row`]). A row whose text has ended is left as it is.
//!
//! What `sample_prepare` makes of the logits of [`crate::lm_head`] is made of those of the rows that the sampler can pick or
//! that decide what it picks, from the same bits; of the others it is made as if they were minus infinity. So the token is the same,
//! always. What a token is drawn from has to be known: the best, the best `k`, or what weighs enough beside the best (min-p without top-p). Where more may be
//! drawn ([`Asked::wanted`] is 0) every logit is computed, of tokens that are forbidden ([`BARRED`]) else none. (Where none that may be picked has a logit above
//! minus infinity, it need not be the same token.) A bias ([`crate::sample::BIASED`]) is known where all of these lie in
//! `bounds` ([`EVERY`]), as they are. Where the best is all that is asked ([`Asked::alone`]), only `best` is written.
//!
//! # The bound
//!
//! Row `w` is `scale * q + d` with int8 `q`, the input `x` is `scale * p + r` with 16 bits of `p`.
//! `near` is the exact `sum p q` times both scales. With `S = <x, w>` over the reals:
//!
//! ```text
//! |S - scales * sum p q| = |<x, d> + <r, w> - <r, d>| <= |x| |d| + |r| (|w| + |d|)
//! |logit - S| <= n u / (1 - n u) * |x| |w|,  u = 2^-24, n = ceil(K / 256) + 8 roundings of a term
//! |near - scales * sum p q| <= 4 u * (|S| + ...),                 three roundings
//! ```
//!
//! by Cauchy and Schwarz. All norms are rounded up ([`WIDER`], [`SLACK`]), and the sum of the three is
//! widened by more than its own roundings, so that `near - reach < logit < near + reach` strictly,
//! unless all of the row is 0, where the logit is exactly 0. Rounding keeps the order, so the bounds hold for
//! the rounded ends too. Magnitudes outside of `2^-40 ..= 2^40`, where sums of squares could leave the
//! range of `f32`, infinities and NaN have no bound: such a row is always computed, such an input
//! has every row computed.
//!
//! Penalty and temperature are monotone, also when rounded: the adjusted bounds are bounds of the adjusted
//! logit. Of the lower bounds, lane `t` of 256 takes the largest key of groups `t`, `t + 256`, ...;
//! the `wanted`-th largest of these, without its low [`FLOOR_BITS`], is a key that `wanted` logits
//! reach. A row whose upper bound lies below it is not among the best, nor does it tie with them.
//!
//! # The scratch
//!
//! Of an input whose best is all that is asked, a list: the largest key of a lower bound so far, as 64 bits; how many rows are listed; a
//! word for nothing; then rows with the keys of their upper bounds, those that reach what was the largest lower bound when
//! they were looked at. What they reach only grows, so all that can win is listed, in any order. Where more are listed than there is room for,
//! every row is computed. Of other inputs, the largest key of a lower bound of each [`GROUP`] rows; of those that need every logit nothing but
//! [`EVERY`].

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::{abs_bits, fma, quantise, round_even_i32, sqrt};
use crate::sample::{SampleParams, StepState, adjusted_len};

pub use crate::sample::{GROUP, groups};
pub use asked::*;
pub use many::*;
pub use pick::*;

mod asked;
mod many;
mod pick;

/// Threads of every block of this family.
pub const THREADS: u32 = 256;
/// Longest row: sums of `127 * 128` stay in `i32`.
pub const MAX_K: usize = 1 << 17;
/// Rows of a block of the scan.
pub const SCAN_ROWS: u32 = GROUP;
/// Rows that a block of the last kernel looks through at once, at most: see [`rescore_rows`].
pub const RESCORE_ROWS: u32 = 8 * THREADS;
/// Blocks that compute logits, at most for one input; each finds the floor for itself.
pub const RESCORE_BLOCKS: u32 = 256;
/// Most blocks of each of many inputs, and of all of them.
const RESCORE_BLOCKS_OF_MANY: [u32; 2] = [64, 1024];
/// Blocks that share out the lists of all inputs.
const LIST_BLOCKS: u32 = 384;
/// Most candidates that are looked for, and maxima that the floor is found among.
pub const MAX_WANTED: u32 = THREADS;
/// Low bits of a key that the floor leaves out.
pub const FLOOR_BITS: u32 = 12;
/// Shared memory of kernels that sum over a block: 256 words, and 16 for a maximum.
pub const SUM_SMEM_BYTES: u32 = 4 * (THREADS + 16);
/// Shared memory of the scan: two sums of each row.
pub const SCAN_SMEM_BYTES: u32 = 8 * SCAN_ROWS;
/// Shared memory of the last kernel: 256 maxima, then the rows, three counters, what the sampler takes, and what each warp found.
pub const RESCORE_SMEM_BYTES: u32 = 4 * (THREADS + 2 * RESCORE_ROWS + 4 + 2 * THREADS / 32);
/// Words in front of the digits of an input.
pub const STATS_WORDS: usize = 4;

/// Magnitudes that have a bound.
const LEAST: f32 = f32::from_bits((127 - 40) << 23);
const MOST: f32 = f32::from_bits((127 + 40) << 23);
/// More than what rounding takes from the root of a sum of at most 2^17 squares: `520 u` is below 2^-14.
pub const WIDER: f32 = 1.0 + 1.0 / 1024.0;
/// Of the largest magnitude: more than squares lose that are too small for `f32`.
pub const SLACK: f32 = 1.0 / 1_048_576.0;
/// Largest value of an input's 16 bits: 127 high digits of 256.
const MOST_INPUT: f32 = 32_512.0;
/// More than the roundings of [`bounds`] take from a reach.
const REACH: f32 = 1.0 + 1.0 / 65_536.0;

/// Bytes of a row of the copy: whole loads of 16.
pub const fn row_bytes(k: usize) -> usize {
    k.div_ceil(16) * 16
}

/// Words of the statistics and digits of an input of `k` values.
#[inline(always)]
pub const fn digit_words(k: usize) -> usize {
    STATS_WORDS + row_bytes(k) / 2
}

/// Rows that a list has room for.
pub const LIST_ROWS: u32 = 4096;
/// Words in front of its rows: a key as 64 bits, how many, nothing.
pub const LIST_HEAD: u32 = 4;

/// Word of the scratch of an input that needs every logit: 1 where all lie in `bounds`, as [`crate::lm_head`] makes them, 0 where the last kernel makes
/// them.
pub const EVERY: usize = 3;

/// Words of the scratch of an input for `vocab` rows, behind its digits: a list, or a word for each group.
#[inline(always)]
pub const fn scratch_words(vocab: u32) -> usize {
    let (list, tops) = (LIST_HEAD + 2 * LIST_ROWS, groups(vocab).next_multiple_of(4));
    if list > tops { list as usize } else { tops as usize }
}

/// Words of an input of `k` values for `vocab` rows.
#[inline(always)]
pub const fn input_words(k: usize, vocab: u32) -> usize {
    digit_words(k) + scratch_words(vocab)
}

#[inline(always)]
fn in_range(top: f32) -> bool {
    (LEAST..=MOST).contains(&top)
}

/// Scale and its inverse of values up to `top`, which become integers up to `most`; zeros where there
/// is no bound.
#[inline(always)]
fn scales(top: f32, most: f32) -> (f32, f32) {
    if in_range(top) { (top / most, most / top) } else { (0.0, 0.0) }
}

/// `|v|` as an integer of the same order; see [`abs_bits`].
#[inline(always)]
pub fn magnitude(v: f32) -> u32 {
    abs_bits(v)
}

/// Scale of a row whose largest magnitude is `top`, and the factor for [`row_value`].
#[inline(always)]
pub fn row_scales(top: f32) -> (f32, f32) {
    scales(top, 127.0)
}

/// An element as int8.
#[inline(always)]
pub const fn row_value(w: f32, inverse: f32) -> i8 {
    quantise(w, inverse)
}

/// Scale of an input whose largest magnitude is `top`, and the factor for [`input_value`].
#[inline(always)]
pub fn input_scales(top: f32) -> (f32, f32) {
    scales(top, MOST_INPUT)
}

/// An input value as 16 bits; 0 where there is no bound.
#[inline(always)]
pub fn input_value(x: f32, inverse: f32) -> i32 {
    if inverse == 0.0 { 0 } else { round_even_i32(x * inverse) }
}

/// High and low digit: `256 * high + low`.
#[inline(always)]
pub const fn digits(p: i32) -> [i8; 2] {
    let high = (p + 128) >> 8;
    [high as i8, (p - 256 * high) as i8]
}

/// What quantising left of a value.
#[inline(always)]
pub fn rest(v: f32, scale: f32, q: i32) -> f32 {
    fma(-scale, q as f32, v)
}

/// An upper bound of a norm, from the sum of squares and the largest magnitude.
#[inline(always)]
fn norm_bound(squares: f32, top: f32) -> f32 {
    fma(sqrt(squares), WIDER, top * SLACK)
}

/// What is kept of a row: scale, bounds of `|d|` and `|w|`, 0. `rests` and `squares` are sums in the
/// order of `num::sum`.
#[inline(always)]
pub fn row_stats(top: f32, rests: f32, squares: f32) -> [f32; 4] {
    let (scale, _) = row_scales(top);
    if in_range(top) {
        [scale, norm_bound(rests, top), norm_bound(squares, top), 0.0]
    } else if top == 0.0 {
        [0.0; 4]
    } else {
        [0.0, f32::INFINITY, f32::INFINITY, 0.0]
    }
}

/// What is kept of an input of `k` values: scale, what a row's error counts, what its norm counts, 0.
#[inline(always)]
pub fn input_stats(top: f32, rests: f32, squares: f32, k: u32) -> [f32; 4] {
    if !in_range(top) {
        return [0.0, f32::INFINITY, f32::INFINITY, 0.0];
    }
    let (scale, _) = input_scales(top);
    let (rest, norm) = (norm_bound(rests, top), norm_bound(squares, top));
    // n roundings, 4 of `near`, and 12 more than the quadratic terms and subnormal results come to.
    let roundings = (k.div_ceil(256) + 24) as f32 / 16_777_216.0;
    [scale, norm + rest, fma(roundings, norm, rest), 0.0]
}

/// Whether an input has bounds at all.
#[inline(always)]
pub fn has_bounds(input: [f32; 4]) -> bool {
    input[1] < f32::INFINITY
}

/// Bounds of a logit whose exact sum of products is `sum`; NaN, the smallest of all, and infinity where there
/// are none.
#[inline(always)]
pub fn bounds(sum: i64, row: [f32; 4], input: [f32; 4]) -> [f32; 2] {
    let near = sum as f32 * input[0] * row[0];
    let reach = fma(row[1], input[1], row[2] * input[2]) * REACH;
    if reach < f32::INFINITY { [near - reach, near + reach] } else { [f32::NAN, f32::INFINITY] }
}

/// Rows that a block of the last kernel looks through at once for `m` inputs: few, where the blocks of
/// one input have to fill a GPU.
#[inline(always)]
pub const fn rescore_rows(m: u32) -> u32 {
    if m < 4 { RESCORE_ROWS / 4 } else { RESCORE_ROWS }
}

/// Blocks of the last kernel: fewer for each of many inputs, as each finds the floor for itself. The first of all inputs
/// come first: those that share out a list.
pub const fn rescore_grid(vocab: u32, m: u32) -> [u32; 3] {
    let tiles = vocab.div_ceil(rescore_rows(m));
    let [of_each, of_all] = RESCORE_BLOCKS_OF_MANY;
    let blocks = match m {
        0..4 => RESCORE_BLOCKS,
        _ if m < of_all / of_each => of_each,
        _ if m < of_all / 4 => of_all / m,
        _ => 4,
    };
    [m, if tiles < blocks { tiles } else { blocks }, 1]
}

/// Blocks of it that share out the list of an input, at most: of many inputs as many as run at once, or a few more.
#[inline(always)]
pub const fn list_blocks(m: u32) -> u32 {
    if m < LIST_BLOCKS { LIST_BLOCKS / m } else { 1 }
}

/// Parameter of the kernels that make the copy: a block makes a row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PackArgs {
    /// Table in the kernel's element type.
    pub w: DevPtr<u8>,
    /// The copy.
    pub bytes: DevPtr<u8>,
    /// What is kept of each row.
    pub rows: DevPtr<f32>,
    /// Elements of a row.
    pub k: u32,
    /// Elements between two rows of the table.
    pub stride: u32,
}

/// Parameter of the kernel that splits an input into digits: one block, which norms it first as [`crate::rmsnorm`] does
/// (up to [`crate::rmsnorm::WHOLE`] values).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InputArgs {
    /// What is normed, or null: then `x` is given.
    pub h: DevPtr<f32>,
    /// Added to it, or null.
    pub delta: DevPtr<f32>,
    /// Gain.
    pub weight: DevPtr<f32>,
    /// The input.
    pub x: DevPtr<f32>,
    /// Statistics, digits and scratch.
    pub input: DevPtr<u32>,
    /// Values.
    pub k: u32,
    /// Rows of the table.
    pub vocab: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Parameter of the scan and of the kernels that compute logits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// The input.
    pub x: DevPtr<f32>,
    /// Table in the kernel's element type.
    pub w: DevPtr<u8>,
    /// Its copy.
    pub bytes: DevPtr<u8>,
    /// What is kept of each row.
    pub rows: DevPtr<f32>,
    /// Statistics, digits and scratch of the input.
    pub input: DevPtr<u32>,
    /// Tokens of prompt and text.
    pub marks: DevPtr<u8>,
    /// What is added to logits that lie in `bounds`; or null.
    pub bias: DevPtr<f32>,
    /// What was asked for.
    pub params: DevPtr<SampleParams>,
    /// Where the sequence stands.
    pub state: DevPtr<StepState>,
    /// Adjusted upper bounds.
    pub bounds: DevPtr<f32>,
    /// The sampler's logits after penalty and temperature.
    pub adjusted: DevPtr<f32>,
    /// The largest key of each of its groups.
    pub tops: DevPtr<u32>,
    /// The best [`crate::sample::rank`].
    pub best: DevPtr<u64>,
    /// Rows of the table.
    pub vocab: u32,
    /// Elements of a row.
    pub k: u32,
    /// Elements between two rows of the table.
    pub stride: u32,
    /// Inputs.
    pub m: u32,
}

/// `first` and `count` elements further.
#[inline(always)]
const fn past<T>(first: DevPtr<T>, count: u64) -> DevPtr<T> {
    DevPtr::from_addr(first.addr() + count * size_of::<T>() as u64)
}

impl InputArgs {
    /// Input `row`, given input 0.
    #[inline(always)]
    pub fn of_row(&self, row: u32) -> Self {
        let (row, k) = (row as u64, self.k as u64);
        let further = |p: DevPtr<f32>| if p.is_null() { p } else { past(p, row * k) };
        Self {
            h: further(self.h),
            delta: further(self.delta),
            x: past(self.x, row * k),
            input: past(self.input, row * input_words(self.k as usize, self.vocab) as u64),
            ..*self
        }
    }
}

impl Args {
    /// The tensors of input `row`, given those of input 0.
    #[inline(always)]
    pub const fn of_row(&self, row: u32) -> Self {
        let (row, vocab) = (row as u64, self.vocab as u64);
        Self {
            x: past(self.x, row * self.k as u64),
            input: past(self.input, row * input_words(self.k as usize, self.vocab) as u64),
            marks: past(self.marks, row * vocab),
            bias: if self.bias.is_null() { self.bias } else { past(self.bias, row * vocab) },
            params: past(self.params, row),
            state: past(self.state, row),
            bounds: past(self.bounds, row * vocab),
            adjusted: past(self.adjusted, row * adjusted_len(self.vocab) as u64),
            tops: past(self.tops, row * groups(self.vocab) as u64),
            best: past(self.best, row),
            ..*self
        }
    }

    /// The scratch of this input.
    #[inline(always)]
    pub const fn scratch(&self) -> DevPtr<u32> {
        past(self.input, digit_words(self.k as usize) as u64)
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal, $args:ident, $smem:expr, $blocks:literal $(, $from:literal $more:literal)?;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = $args;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, THREADS).with_smem($smem)
                .with_min_blocks($blocks)$(.with_min_blocks_from($from, $more))?;
        }
    )* };
}

kernels! {
    /// Copies a bf16 table; grid `[vocab, 1, 1]`.
    PackBf16: "lm_head_int8_pack_bf16", PackArgs, SUM_SMEM_BYTES, 1;
    /// Copies an f16 table.
    PackF16: "lm_head_int8_pack_f16", PackArgs, SUM_SMEM_BYTES, 1;
    /// Copies an f32 table.
    PackF32: "lm_head_int8_pack_f32", PackArgs, SUM_SMEM_BYTES, 1;
    /// Norms the inputs and splits them into digits; grid `[m, 1, 1]`.
    Input: "lm_head_int8_input", InputArgs, SUM_SMEM_BYTES, 1;
    /// Bounds of every row; grid `[groups(vocab), m, 1]`.
    Scan: "lm_head_int8_scan", Args, SCAN_SMEM_BYTES, 2, 750 3;
    /// Logits of the rows that can win, from a bf16 table; grid [`rescore_grid`].
    RescoreBf16: "lm_head_int8_rescore_bf16", Args, RESCORE_SMEM_BYTES, 2, 900 3;
    /// The same from an f16 table.
    RescoreF16: "lm_head_int8_rescore_f16", Args, RESCORE_SMEM_BYTES, 2, 900 3;
    /// The same from an f32 table. Before sm_70 it fits 128 registers, but not where they are asked for.
    RescoreF32: "lm_head_int8_rescore_f32", Args, RESCORE_SMEM_BYTES, 0, 750 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_bytes_and_come_back() {
        for p in -32_512..=32_512 {
            let [high, low] = digits(p);
            assert_eq!(256 * i32::from(high) + i32::from(low), p);
            assert!(high > -128, "{p}");
        }
        assert_eq!(input_value(3.0, input_scales(3.0).1), 32_512);
        assert_eq!(input_value(-0.7, input_scales(0.7).1), -32_512);
    }

    #[test]
    fn what_has_no_bound_has_infinite_ones() {
        for top in [f32::NAN, f32::INFINITY, 1e-30, 1e30] {
            assert_eq!(row_scales(top), (0.0, 0.0));
            assert!(!has_bounds(input_stats(top, 1.0, 1.0, 9)));
            let [low, high] = bounds(0, row_stats(top, 1.0, 1.0), input_stats(1.0, 0.1, 1.0, 9));
            assert!(low.is_nan() && high == f32::INFINITY, "{top}");
        }
        assert!(!has_bounds(input_stats(0.0, 0.0, 0.0, 9)));
        let zeros = bounds(0, row_stats(0.0, 0.0, 0.0), input_stats(1.0, 0.1, 1.0, 9));
        assert_eq!(zeros.map(f32::to_bits), [0, 0], "a row of zeros is known");
    }
}
