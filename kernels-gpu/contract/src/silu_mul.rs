//! Gated activation: `f[m, k] = silu(gate) * up`.
//!
//! | tensor    | element | shape        | layout                                    |
//! |-----------|---------|--------------|-------------------------------------------|
//! | `gate_up` | `f32`   | `[M, 2 * K]` | each row the gate, then the up projection |
//! | `f`       | `f32`   | `[M, K]`     | contiguous                                |
//!
//! One rounding per multiplication; the activation is `num::silu`.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;

/// Threads of a block; grid is `(K / THREADS, M)`.
pub const THREADS: u32 = 256;

/// One element.
#[inline(always)]
pub fn gated(gate: f32, up: f32) -> f32 {
    num::silu(gate) * up
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Fused projections.
    pub gate_up: DevPtr<f32>,
    /// Output.
    pub f: DevPtr<f32>,
    /// Elements of an output row.
    pub k: u32,
}

/// Names this kernel in `KernelHandle<SiluMul>`.
pub enum SiluMul {}

impl Kernel for SiluMul {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("silu_mul", THREADS);
}
