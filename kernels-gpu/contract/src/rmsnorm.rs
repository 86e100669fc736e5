//! RMSNorm of rows, with an optional residual add in front.
//!
//! | tensor   | element | shape    | meaning                                     |
//! |----------|---------|----------|---------------------------------------------|
//! | `x`      | `f32`   | `[M, K]` | input; with `delta`, the residual stream, updated in place |
//! | `delta`  | `f32`   | `[M, K]` | added to `x` first; absent when null        |
//! | `weight` | `f32`   | `[K]`    | gain                                        |
//! | `y`      | `f32`   | `[M, K]` | output; may not overlap the inputs          |
//!
//! ```text
//! x[k]  = x[k] + delta[k]                       (when delta is given; written back)
//! ss    = 256-partial sum of x[k]^2             (num::sum)
//! r     = 1 / sqrt(ss / K + eps)
//! y[k]  = (x[k] * r) * weight[k]
//! ```
//! One block per row; partial `p` belongs to thread `p`.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;

/// Threads of a block: one per partial sum.
pub const THREADS: u32 = 256;

/// Shared memory in bytes: the 256 partials.
pub const SMEM_BYTES: u32 = 4 * THREADS;

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
    pub x: DevPtr<f32>,
    /// Rows added to `x`, or null.
    pub delta: DevPtr<f32>,
    /// Gain.
    pub weight: DevPtr<f32>,
    /// Output rows.
    pub y: DevPtr<f32>,
    /// Elements of a row.
    pub k: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Names this kernel in `KernelHandle<RmsNorm>`.
pub enum RmsNorm {}

impl Kernel for RmsNorm {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("rmsnorm", THREADS).with_smem(SMEM_BYTES);
}
