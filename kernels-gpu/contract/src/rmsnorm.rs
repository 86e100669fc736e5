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
use crate::row::{SMEM_BYTES, THREADS};

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

macro_rules! kernels {
    ($($name:ident $symbol:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS).with_smem(SMEM_BYTES).with_min_blocks(4);
        }
    )*};
}

kernels! {
    RmsNormF32 "rmsnorm_f32" "Rows of `f32`.";
    RmsNormF16 "rmsnorm_f16" "Rows of f16.";
    RmsNormBf16 "rmsnorm_bf16" "Rows of bf16.";
}
