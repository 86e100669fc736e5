//! LayerNorm of rows, with an optional residual add in front.
//!
//! | tensor   | element          | shape    | meaning                                     |
//! |----------|------------------|----------|---------------------------------------------|
//! | `x`      | f32, f16 or bf16 | `[M, K]` | input; with `delta`, the residual stream, updated in place |
//! | `delta`  | the same         | `[M, K]` | added to `x` first; absent when null        |
//! | `weight` | the same         | `[K]`    | gain; 1 when null                           |
//! | `bias`   | the same         | `[K]`    | offset; none when null                      |
//! | `y`      | the same         | `[M, K]` | output; may not overlap the inputs          |
//!
//! ```text
//! x[k] = x[k] + delta[k]                          (when delta is given; rounded to the element, written back)
//! u    = (256-partial sum of x[k]) / K            num::sum
//! d[k] = x[k] - u
//! v    = (256-partial sum of d[k]^2) / K
//! r    = 1 / sqrt(v + eps)
//! y[k] = fma(d[k] * r, weight[k], bias[k])        weight 1 and bias -0.0 where absent
//! ```
//! Everything in `f32`; `y` is rounded once. A row that holds NaN or an infinity gives NaN throughout.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;
use crate::row::Small;

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Input rows; updated in place when `delta` is given.
    pub x: DevPtr<u8>,
    /// Rows added to `x`, or null.
    pub delta: DevPtr<u8>,
    /// Gain, or null.
    pub weight: DevPtr<u8>,
    /// Offset, or null.
    pub bias: DevPtr<u8>,
    /// Output rows.
    pub y: DevPtr<u8>,
    /// Rows.
    pub m: u32,
    /// Elements of a row.
    pub k: u32,
    /// Added to the variance.
    pub eps: f32,
}

/// The factor of the centred elements, from the sum of their squares.
#[inline(always)]
pub fn inv_deviation(sum_squares: f32, k: u32, eps: f32) -> f32 {
    num::recip_sqrt(sum_squares / k as f32 + eps)
}

/// One normalised element, from the centred one.
#[inline(always)]
pub fn normalise(centred: f32, inv_deviation: f32, weight: f32, bias: f32) -> f32 {
    num::fma(centred * inv_deviation, weight, bias)
}

/// Most elements of a row whose sums are each of all of it; of longer ones [`crate::norm`] has the sums. No model has longer ones.
pub const WHOLE: u32 = 28_672;

/// Whether rows of several warps go one after the other: more of them beside each other are faster.
pub const IN_TURN: bool = false;

/// Most elements of a lane of rows of up to 64, as of longer ones: what is done to each row is more than fewer would save.
pub const LANE: u32 = 32;

/// How short rows come together.
pub const SMALL: Small = Small::of_norm(1, false);

/// The same of these.
#[inline(always)]
pub const fn small(args: &Args) -> Small {
    Small::of_norm(1, adds(args))
}

/// Whether something comes with them.
const fn more(args: &Args) -> bool {
    !args.delta.is_null()
}

/// Which of them do, as [`crate::row::Family::together`] has it: all that are in no pieces of 16 bytes, or of 32 up to 256 elements, what is short, and with
/// a residual, which comes with them, most.
const fn together(args: &Args, bytes: u32) -> bool {
    let (k, len) = (args.k, args.k * bytes);
    let odd = !len.is_multiple_of(if k <= 256 { 32 } else { 16 });
    odd || len <= 32 || bytes == 4 && len <= 128 || adds(args) && len >= 128
}

/// Where rows are, as [`crate::row::Family::rows`] has it.
const fn rows(args: &Args) -> u64 {
    args.x.addr() | args.delta.addr() | args.y.addr()
}

/// Whether there is a residual, as [`crate::row::Family::adds`] has it.
const fn adds(args: &Args) -> bool {
    !args.delta.is_null()
}

/// As [`crate::row::Family`] has it. Blocks have the same part of every row, whose gain they then have near.
/// Rows of 16 bits that start anywhere all go through rings.
pub enum LayerNorm {}

crate::row::kernels! { LayerNorm, true, [2, 4], 2, [SmallF16 SmallBf16],
    [RingF32 RingF16 RingBf16], [LongTurnedF32 LongF16 LongBf16];
    ShortF32 MiddleF32 LongF32
        ["layernorm_short_f32", "layernorm_f32", "layernorm_long_f32"], 4, [3, 4], "`f32`";
    ShortF16 MiddleF16 LongF16
        ["layernorm_short_f16", "layernorm_f16", "layernorm_long_f16"], 2, [3, 4], "f16";
    ShortBf16 MiddleBf16 LongBf16
        ["layernorm_short_bf16", "layernorm_bf16", "layernorm_long_bf16"], 2, [3, 4], "bf16";
}

crate::row::small! {
    SmallF32 "layernorm_small_f32" 4 5 "`f32`";
    SmallF16 "layernorm_small_f16" 2 5 "f16";
    SmallBf16 "layernorm_small_bf16" 2 5 "bf16";
}

crate::row::long_turned! {
    LongTurnedF32 "layernorm_long_turned_f32", 4, 4, "`f32`";
}

crate::norm::parts! {
    PartsF32 "layernorm_parts_f32" 4 "`f32`";
    PartsF16 "layernorm_parts_f16" 2 "f16";
    PartsBf16 "layernorm_parts_bf16" 2 "bf16";
}

crate::ring::kernels! { 2;
    RingF32 "layernorm_ring_f32" 4 "`f32`";
    RingF16 "layernorm_ring_f16" 2 "f16";
    RingBf16 "layernorm_ring_bf16" 2 "bf16";
}
