//! Per-token int8 quantisation of activations, alone or fused behind what produces them.
//!
//! | tensor    | element      | shape               | layout                          |
//! |-----------|--------------|---------------------|---------------------------------|
//! | source    | `f32`        | `[M, K]`            | see the kernels                 |
//! | `acts`    | `i8`         | `[M, act_bytes(K)]` | permuted by [`crate::w2a8::act_index`], zero padded |
//! | `stats`   | [`ActStats`] | `[M]`               | scale and sum                   |
//!
//! ```text
//! m     = max_k |v[k]|                             num::abs_bits: NaN is the largest
//! scale = 127 / max(m, 1e-5)                     num::act_scale
//! q[k]  = clamp(round_even(v[k] * scale), -128, 127)   num::quantise
//! sum   = sum_k q[k]
//! ```
//! where `v` is, by kernel:
//!
//! * `act_quant`: the source itself.
//! * `act_quant_rmsnorm`: RMSNorm of the source, with its optional residual add
//!   ([`crate::rmsnorm`], same arithmetic, same in-place update).
//! * `act_quant_layernorm`: LayerNorm of the source, the same way ([`crate::layernorm`]).
//! * `act_quant_relu2`, `act_quant_silu`: the gated product `f` of [`crate::activation`], which
//!   is also written out, normalised when a weight is given.
//!
//! One block of 256 threads per row.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::ActStats;

/// Threads of a block: one per partial sum.
pub const THREADS: u32 = 256;

/// Shared memory in bytes: the 256 partials, then a word of each warp for the maximum and one for
/// the sum.
pub const SMEM_BYTES: u32 = 4 * (THREADS + 8 + 8);

/// Parameter of `act_quant`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Input rows `[M, K]`.
    pub x: DevPtr<f32>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row.
    pub k: u32,
}

/// Parameter of `act_quant_rmsnorm`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmsNormArgs {
    /// Input rows `[M, K]`; updated in place when `delta` is given.
    pub x: DevPtr<f32>,
    /// Rows added to `x`, or null.
    pub delta: DevPtr<f32>,
    /// Gain `[K]`.
    pub weight: DevPtr<f32>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row.
    pub k: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Parameter of `act_quant_layernorm`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LayerNormArgs {
    /// Input rows `[M, K]`; updated in place when `delta` is given.
    pub x: DevPtr<f32>,
    /// Rows added to `x`, or null.
    pub delta: DevPtr<f32>,
    /// Gain `[K]`, or null.
    pub weight: DevPtr<f32>,
    /// Offset `[K]`, or null.
    pub bias: DevPtr<f32>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row.
    pub k: u32,
    /// Added to the variance.
    pub eps: f32,
}

/// Parameter of `act_quant_relu2` and `act_quant_silu`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatedArgs {
    /// Rows of `2 * K`: the gate, then the up projection.
    pub gate_up: DevPtr<f32>,
    /// The gated product `[M, K]`, before the norm: an output.
    pub f: DevPtr<f32>,
    /// Gain `[K]`; null when there is no norm.
    pub weight: DevPtr<f32>,
    /// Quantised rows, four values a word.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Elements of a row of `f`.
    pub k: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Quantises rows as they are.
pub enum ActQuant {}
/// Residual add, RMSNorm, quantise.
pub enum ActQuantRmsNorm {}
/// Residual add, LayerNorm, quantise.
pub enum ActQuantLayerNorm {}
/// `relu(gate)^2 * up`, optional RMSNorm, quantise.
pub enum ActQuantRelu2 {}
/// `silu(gate) * up`, optional RMSNorm, quantise.
pub enum ActQuantSilu {}

impl Kernel for ActQuant {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantRmsNorm {
    type Args = RmsNormArgs;
    // As attention over pages has it: a multiprocessor that changes the division waits until it is empty.
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_rmsnorm", THREADS)
        .with_smem(SMEM_BYTES)
        .with_all_shared();
}

impl Kernel for ActQuantLayerNorm {
    type Args = LayerNormArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_layernorm", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantRelu2 {
    type Args = GatedArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_relu2", THREADS).with_smem(SMEM_BYTES);
}

impl Kernel for ActQuantSilu {
    type Args = GatedArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("act_quant_silu", THREADS).with_smem(SMEM_BYTES);
}
