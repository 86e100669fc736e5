//! W2A8 GEMM, `M > 1`: `y[m, n] = dequantise(sum_k q[m, k] * t[n, k])`.
//!
//! Layout, tensors and formula: [`crate::w2a8`]; `acts` has one row of `act_bytes(K)` per token and
//! `y` is `[M, N]`, contiguous. Integer sums: the bits equal those of [`crate::w2a8_gemv`] on each
//! row. A block computes [`ROWS_PER_BLOCK`] output features for [`TOKENS`] tokens.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::{ActStats, Segments};

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Tokens of a block.
pub const TOKENS: u32 = 8;
/// Lanes that share one output feature.
pub const LANES: u32 = 8;
/// Output features of one lane group.
pub const ROWS: u32 = 2;
/// Output features of a block.
pub const ROWS_PER_BLOCK: u32 = THREADS / LANES * ROWS;

/// Blocks along y; what is more goes along z. Either has 65,535 at most, and y times z covers every
/// `n` without a division in the kernel.
pub const GRID_Y: u32 = 1 << 15;

/// Blocks for an `m` by `n` output: tokens along x.
pub const fn grid(m: u32, n: u32) -> [u32; 3] {
    let blocks = n.div_ceil(ROWS_PER_BLOCK);
    let y = if blocks < GRID_Y { blocks } else { GRID_Y };
    [m.div_ceil(TOKENS), y, blocks.div_ceil(GRID_Y)]
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Packed weights `[n, 4 * chunks]`.
    pub w: DevPtr<u32>,
    /// Quantised activations, `m` rows.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Output `[m, n]`.
    pub y: DevPtr<f32>,
    /// Output features.
    pub n: u32,
    /// 16-byte chunks of a weight row.
    pub chunks: u32,
    /// Tokens.
    pub m: u32,
    /// 16-byte pieces of an activation row: `act_bytes(K) / 16`.
    pub act_pieces: u32,
    /// Weight scales.
    pub segments: Segments,
}

/// Names this kernel in `KernelHandle<W2a8Gemm>`.
pub enum W2a8Gemm {}

impl Kernel for W2a8Gemm {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("w2a8_gemm", THREADS);
}
