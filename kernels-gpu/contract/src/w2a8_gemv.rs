//! W2A8 GEMV, `M = 1`: `y[n] = dequantise(sum_k q[k] * t[n, k])`.
//!
//! Layout, tensors and formula: [`crate::w2a8`]. The integer sum is exact, so every variant gives
//! the same bits. A variant is `LANES` lanes to a row, `ROWS` rows at once per lane group, and
//! `UNROLL` chunks whose loads are all in flight before the first is used; each takes any N and K.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::{ActStats, Segments};

/// Threads of a block.
pub const THREADS: u32 = 128;

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Packed weights `[n, 4 * chunks]`.
    pub w: DevPtr<u32>,
    /// One row of quantised activations.
    pub acts: DevPtr<u32>,
    /// Its scale and sum.
    pub stats: DevPtr<ActStats>,
    /// Output `[n]`.
    pub y: DevPtr<f32>,
    /// Output rows.
    pub n: u32,
    /// 16-byte chunks of a weight row: `K / 64`, rounded up.
    pub chunks: u32,
    /// Weight scales.
    pub segments: Segments,
}

/// A compiled variant, as data for the choice and for the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its launch rules.
    pub spec: LaunchSpec,
    /// Lanes that share one row.
    pub lanes: u32,
    /// Rows of one lane group.
    pub rows: u32,
    /// Chunks in flight per lane and row.
    pub unroll: u32,
}

impl Variant {
    /// Output rows of one block.
    pub const fn rows_per_block(&self) -> u32 {
        THREADS / self.lanes * self.rows
    }

    /// Blocks for `n` output rows.
    pub const fn grid(&self, n: u32) -> [u32; 3] {
        [n.div_ceil(self.rows_per_block()), 1, 1]
    }
}

macro_rules! variants {
    ($($name:ident $symbol:literal $lanes:literal $rows:literal $unroll:literal;)*) => {
        $(
            #[doc = concat!("Kernel `", $symbol, "`.")]
            pub enum $name {}

            impl Kernel for $name {
                type Args = Args;
                const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS);
            }
        )*

        /// Every compiled variant.
        pub const VARIANTS: &[Variant] = &[
            $(Variant { spec: $name::SPEC, lanes: $lanes, rows: $rows, unroll: $unroll }),*
        ];

        /// Calls `$mac! { Name "symbol" lanes rows unroll; ... }` with every variant.
        #[macro_export]
        macro_rules! for_each_w2a8_gemv {
            ($mac:ident) => { $mac! { $($name $symbol $lanes $rows $unroll;)* } };
        }
    };
}

variants! {
    L16R1U4 "w2a8_gemv_l16r1u4" 16 1 4;
    L16R4U1 "w2a8_gemv_l16r4u1" 16 4 1;
    L32R2U2 "w2a8_gemv_l32r2u2" 32 2 2;
    L32R2U4 "w2a8_gemv_l32r2u4" 32 2 4;
    L32R4U1 "w2a8_gemv_l32r4u1" 32 4 1;
    L32R4U2 "w2a8_gemv_l32r4u2" 32 4 2;
}
