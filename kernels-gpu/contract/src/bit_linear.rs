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
//! Every block quantises the row for itself, into shared memory, and makes `outputs` outputs. The weights
//! of a block are asked for before the row is waited for. The integer sums are exact, so it does not
//! matter how a block's warps share its rows and its K.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::{CHUNK, Segments};

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
/// Most rows of weights of a block.
pub const MAX_ROWS_OF_BLOCK: u32 = 512;

/// Bytes of shared memory before the weights: the activations, the partials of the norm, one word of
/// each warp for the maximum and for the sum, the sums of the rows.
pub const FIXED_BYTES: u32 = MAX_K as u32 + 4 * (THREADS + 2 * WARPS + MAX_ROWS_OF_BLOCK);

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
    /// Outputs of a block; with [`Finish::rows`] at most [`MAX_ROWS_OF_BLOCK`] rows of weights.
    pub outputs: u32,
    /// [`Finish`] as a number.
    pub finish: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Weight scales.
    pub segments: Segments,
}

/// Outputs of a block such that `n` of them, of `rows` rows of weights each, fill `multiprocessors` once.
pub const fn outputs_of_block(n: u32, rows: u32, multiprocessors: u32) -> u32 {
    let even = n.div_ceil(if multiprocessors == 0 { 1 } else { multiprocessors });
    let most = MAX_ROWS_OF_BLOCK / rows;
    if even > most { most } else { even }
}

/// Steps of a warp at most, in a block of `rows` rows: [`LANES`] chunks of a set of rows each.
pub const fn steps_of_warp(rows: u32, k: u32) -> u32 {
    (rows.div_ceil(SET_ROWS) * k.div_ceil(LANES * CHUNK as u32)).div_ceil(WARPS)
}

/// A compiled variant, as data for the choice and for the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its launch rules.
    pub spec: LaunchSpec,
    /// Steps whose weights are on their way at once.
    pub depth: u32,
}

const fn smem_bytes(depth: u32) -> u32 {
    FIXED_BYTES + 2 * 16 * THREADS * depth
}

macro_rules! variants {
    ($($name:ident $symbol:literal $depth:literal;)*) => {
        $(
            #[doc = concat!("Kernel `", $symbol, "`.")]
            pub enum $name {}

            impl Kernel for $name {
                type Args = Args;
                const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS)
                    .with_smem(smem_bytes($depth))
                    .with_min_blocks(2);
            }
        )*

        /// Every compiled variant.
        pub const VARIANTS: &[Variant] =
            &[$(Variant { spec: $name::SPEC, depth: $depth }),*];

        /// Calls `$mac! { Name "symbol" depth; ... }` with every variant.
        #[macro_export]
        macro_rules! for_each_bit_linear {
            ($mac:ident) => { $mac! { $($name $symbol $depth;)* } };
        }
    };
}

variants! {
    D4 "bit_linear_d4" 4;
    D9 "bit_linear_d9" 9;
}
