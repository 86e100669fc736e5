//! A ternary linear layer on one row, `M = 1`: norm, quantising, product and what follows, in one kernel.
//!
//! | tensor   | element | shape              | meaning                                         |
//! |----------|---------|--------------------|-------------------------------------------------|
//! | `x`      | `f32`   | `[K]`              | input                                           |
//! | `norm`   | `f32`   | `[K]`              | gain of an RMSNorm in front; absent when null   |
//! | `w`      | `u32`   | `[N', row_words(K)]` | packed weights, see [`crate::w2a8`]           |
//! | `y`      | `f32`   | `[N]`              | output; the residual stream, where it is added  |
//!
//! ```text
//! v     = x, or normalise(x, inv_rms(x), norm)           crate::rmsnorm
//! q, s  = quantised v                                    crate::act_quant
//! p[n]  = dequantise(sum_k q[k] t[n, k], s, g)           crate::w2a8
//! y[n]  = p[n]  |  y[n] + p[n]  |  act(p[n]) * p[N + n]  by Finish
//! ```
//! `N' = N`, or `2 N` for a gated product: the gates, then the ups. So it is [`crate::act_quant`],
//! [`crate::w2a8_gemv`] and a residual add or the gate of [`crate::activation`] without their passes
//! through memory, and gives their bits.
//!
//! Every block quantises the row for itself, into shared memory, and makes a share of the outputs
//! ([`first_output`]). The weights of a block are asked for before the row is waited for. The integer sums are exact, so it does not
//! matter how a block's warps share its rows and its K.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::Segments;

/// Threads of a block: one per partial sum.
pub const THREADS: u32 = 256;
/// Lanes that share a row: with their chunks, one step of it.
pub const LANES: u32 = 4;
/// Rows of a set: what a warp works on at once, two to a lane.
pub const SET_ROWS: u32 = 2 * 32 / LANES;
/// Warps of a block.
pub const WARPS: u32 = THREADS / 32;
/// Longest row: its activations stay in shared memory.
pub const MAX_K: usize = 28_672;
/// Longest row of `bit_linear_short`: a thread holds ten elements.
pub const SHORT_K: usize = 2_560;
/// Most rows of weights of a block.
pub const MAX_ROWS_OF_BLOCK: u32 = 512;
/// Steps of a warp whose weights are on their way at once: all of those of a block of the 2B-4T model.
pub const DEPTH: u32 = 9;

/// Bytes of shared memory before the activations: the partials of the norm, one word of each warp for the
/// maximum and for the sum, the sums of the rows, two chunks of every thread for each step under way.
pub const FIXED_BYTES: u32 =
    4 * (THREADS + 2 * WARPS + MAX_ROWS_OF_BLOCK) + 2 * 16 * THREADS * DEPTH;

/// What becomes of a product.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// It is the output.
    Store = 0,
    /// It is added to the output.
    Add = 1,
    /// `relu(gate)^2 * up`.
    Relu2 = 2,
    /// `silu(gate) * up`.
    Silu = 3,
}

impl Finish {
    /// Rows of weights for one output.
    pub const fn rows(self) -> u32 {
        match self {
            Self::Store | Self::Add => 1,
            Self::Relu2 | Self::Silu => 2,
        }
    }
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Input row.
    pub x: DevPtr<f32>,
    /// Gain, or null.
    pub norm: DevPtr<f32>,
    /// Packed weights.
    pub w: DevPtr<u32>,
    /// Output.
    pub y: DevPtr<f32>,
    /// Outputs.
    pub n: u32,
    /// Elements of the input row.
    pub k: u32,
    /// [`Finish`] as a number.
    pub finish: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Weight scales.
    pub segments: Segments,
}

/// Blocks for `n` outputs of `rows` rows of weights each: one for every multiprocessor, or as many times
/// that as it takes for [`MAX_ROWS_OF_BLOCK`]. With exactly one, kernels that start while their
/// predecessors run find one free place everywhere, and no multiprocessor gets two blocks of a kernel.
pub const fn blocks(n: u32, rows: u32, multiprocessors: u32) -> u32 {
    let waves = (n * rows).div_ceil(MAX_ROWS_OF_BLOCK).div_ceil(multiprocessors);
    let blocks = waves * multiprocessors;
    if blocks < n { blocks } else { n }
}

/// The first output of block `block` of `blocks`; those of the last end at `first_output(n, blocks, blocks)`.
#[inline(always)]
pub const fn first_output(n: u32, block: u32, blocks: u32) -> u32 {
    (n as u64 * block as u64 / blocks as u64) as u32
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $k:ident $blocks:literal $doc:literal;)*) => { $(
        #[doc = $doc]
        ///
        /// Two blocks fit a multiprocessor of 227 KB, so that the weights of the next kernel come in during
        /// this one, and never three: where one ends there is room for one.
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS)
                .with_smem(FIXED_BYTES + $k as u32)
                .with_min_blocks($blocks)
                .with_all_shared();
        }
    )* };
}

kernels! {
    BitLinearShort "bit_linear_short" SHORT_K 3 "Rows up to [`SHORT_K`].";
    BitLinearLong "bit_linear_long" MAX_K 2 "Rows up to [`MAX_K`].";
}
