//! RMSNorm of rows, with an optional residual add in front.
//!
//! | tensor   | element          | shape    | meaning                                     |
//! |----------|------------------|----------|---------------------------------------------|
//! | `x`      | f32, f16 or bf16 | `[M, K]` | input; with `delta`, the residual stream, updated in place |
//! | `delta`  | the same         | `[M, K]` | added to `x` first; absent when null        |
//! | `weight` | the same         | `[K]`    | gain                                        |
//! | `y`      | the same         | `[M, K]` | output; may not overlap the inputs          |
//!
//! ```text
//! x[k]  = x[k] + delta[k]                       (when delta is given; rounded to the element, written back)
//! ss    = 256-partial sum of x[k]^2             (num::sum)
//! r     = 1 / sqrt(ss / K + eps)
//! y[k]  = (x[k] * r) * weight[k]
//! ```
//! Everything in `f32`; `y` is rounded once. [`crate::act_quant`] has the form that also quantises.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;
use crate::row::Small;

/// The factor every element of a row is multiplied with.
#[inline(always)]
pub fn inv_rms(sum_squares: f32, k: u32, eps: f32) -> f32 {
    1.0 / num::sqrt(sum_squares / k as f32 + eps)
}

/// One normalised element.
#[inline(always)]
pub fn normalise(x: f32, inv_rms: f32, weight: f32) -> f32 {
    (x * inv_rms) * weight
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Input rows; updated in place when `delta` is given.
    pub x: DevPtr<u8>,
    /// Rows added to `x`, or null.
    pub delta: DevPtr<u8>,
    /// Gain.
    pub weight: DevPtr<u8>,
    /// Output rows.
    pub y: DevPtr<u8>,
    /// Rows.
    pub m: u32,
    /// Elements of a row.
    pub k: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Most elements of a row whose sums are each of all of it; of longer ones [`crate::norm`] has the sums. Blocks and clusters are faster up to there.
pub const WHOLE: u32 = 1 << 16;

/// Whether rows of several warps go one after the other: more of them beside each other are faster.
pub const IN_TURN: bool = false;

/// Most elements of a lane of rows of up to 64: fewer, so that more lanes read side by side.
pub const LANE: u32 = 16;

/// How short rows come together.
pub const SMALL: Small = Small::of_norm(8, false);

/// The same of these.
#[inline(always)]
pub const fn small(args: &Args) -> Small {
    Small::of_norm(8, adds(args))
}

/// Whether something comes with them.
const fn more(args: &Args) -> bool {
    !args.delta.is_null()
}

/// Which of them do, as [`crate::row::Family::together`] has it: all that are in no pieces of 16 bytes, or of 32 up to 128 elements, what is short, and with
/// a residual, which comes with them, most.
const fn together(args: &Args, bytes: u32) -> bool {
    let (k, len) = (args.k, args.k * bytes);
    let odd = !len.is_multiple_of(if k <= 128 { 32 } else { 16 });
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
pub enum RmsNorm {}

crate::row::kernels! { RmsNorm, true, [2, 4], 1, [SmallF16 SmallBf16],
    [RingF32 RingF16 RingBf16], [LongTurnedF32 LongTurnedF16 LongTurnedBf16];
    ShortF32 MiddleF32 LongF32
        ["rmsnorm_short_f32", "rmsnorm_f32", "rmsnorm_long_f32"], 4, [4, 4], "`f32`";
    ShortF16 MiddleF16 LongF16
        ["rmsnorm_short_f16", "rmsnorm_f16", "rmsnorm_long_f16"], 2, [4, 4], "f16";
    ShortBf16 MiddleBf16 LongBf16
        ["rmsnorm_short_bf16", "rmsnorm_bf16", "rmsnorm_long_bf16"], 2, [4, 4], "bf16";
}

crate::row::small! {
    SmallF32 "rmsnorm_small_f32" 4 5 "`f32`";
    SmallF16 "rmsnorm_small_f16" 2 5 "f16";
    SmallBf16 "rmsnorm_small_bf16" 2 5 "bf16";
}

crate::row::long_turned! {
    LongTurnedF32 "rmsnorm_long_turned_f32", 4, 4, "`f32`";
    LongTurnedF16 "rmsnorm_long_turned_f16", 2, 4, "f16";
    LongTurnedBf16 "rmsnorm_long_turned_bf16", 2, 4, "bf16";
}

crate::norm::parts! {
    PartsF32 "rmsnorm_parts_f32" 4 "`f32`";
    PartsF16 "rmsnorm_parts_f16" 2 "f16";
    PartsBf16 "rmsnorm_parts_bf16" 2 "bf16";
}

crate::ring::kernels! { 1;
    RingF32 "rmsnorm_ring_f32" 4 "`f32`";
    RingF16 "rmsnorm_ring_f16" 2 "f16";
    RingBf16 "rmsnorm_ring_bf16" 2 "bf16";
}
