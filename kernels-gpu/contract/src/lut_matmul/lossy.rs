//! The bit-serial form for weights of 1 to 4 bits: lossy, as published (T-MAC, arXiv 2407.00088).
//!
//! A weight is `w = u - 2^(b-1)` for its unsigned code `u` of `b` bits. Bit `i` of four neighbouring
//! columns makes an index, `sum_j bit_i(u[4 c + j]) << j`, into a table of the 16 sums
//! `+-x0 +-x1 +-x2 +-x3` of their activations, kept as int8 with one scale for each *activation group*
//! of columns: that is where exactness is lost. In this order, each step rounded once:
//!
//! ```text
//! L[c][i]     = (((+-x0) +- x1) +- x2) +- x3                       bit j of i set: +
//! top[a]      = largest ((|x0| + |x1|) + |x2|) + |x3| of group a; a NaN is the largest
//! scale[a]    = top[a] / 127
//! table[c][i] = int8(round_even(L[c][i] / scale[a])), saturated; 0 for NaN
//! bias[a]     = sum over c in a of L[c][0], by num::strided_sum    that is -sum x
//! Z[n, a]     = sum over c in a, i < b of 2^i table[c][index_i[n, c]]             exact, i32
//! p[n, a]     = fma(scale[a], f32(Z[n, a]), bias[a])               twice the product of a
//! P[n, G]     = p of the activation groups of weight group G, added first to last
//! B[G]        = bias of the same, added first to last
//! y[m, n]     = over G first to last, from 0: y = fma(0.5 P[n, G], s[n, G], y);
//!               then, where there are zero points, y = fma(B[G], z[n, G], y)
//! ```
//!
//! so the real weight is `w s - z`. The order fixes the bits, on every backend. A NaN or an infinity
//! in an activation group makes the row's outputs NaN.
//!
//! | tensor   | element | shape | layout |
//! |----------|---------|-------|--------|
//! | `x`      | `f32`   | `[M, K]` | contiguous |
//! | `tables` | `i8`    | `[M, 8 steps, 16]` | one table for four columns; zeros past K |
//! | `heads`  | [`Head`] | `[M, groups]` | scale and bias of each activation group |
//! | `w`      | bytes   | tiles of [`super::TILE`] rows | step of 32 columns: for each pair of tables, for each bit, a vector with the index of the first in the low nibble |
//! | `s`, `z` | `f32`   | `[N, weight groups]` | `z` is optional |
//! | `y`      | `f32`   | `[M, N]` | contiguous |

use super::TILE;
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::{abs, quantise};

/// Columns of a table.
pub const GROUP: usize = 4;
/// Entries of a table.
pub const ENTRIES: usize = 16;
/// Columns of a step; activation groups hold a multiple of it.
pub const STEP_COLUMNS: usize = 32;
/// Tables of a step.
pub const STEP_TABLES: usize = STEP_COLUMNS / GROUP;
/// Most bits of a weight.
pub const MAX_BITS: usize = 4;
/// The published size of an activation group.
pub const ACT_GROUP: usize = 64;

/// Steps of a row of `k` columns.
pub const fn steps(k: usize) -> usize {
    k.div_ceil(STEP_COLUMNS)
}

/// Bytes of a step of a tile of weights of `bits` bits.
pub const fn step_bytes(bits: usize) -> usize {
    STEP_TABLES / 2 * bits * TILE
}

/// Bytes of an `n` by `k` matrix of weights of `bits` bits.
pub const fn packed_bytes(bits: usize, n: usize, k: usize) -> usize {
    n.div_ceil(TILE) * steps(k) * step_bytes(bits)
}

/// Entry `index` of the table of four activations, before it is quantised.
#[inline(always)]
pub const fn entry(index: usize, x: [f32; GROUP]) -> f32 {
    let mut sum = if index & 1 == 1 { x[0] } else { -x[0] };
    let mut j = 1;
    while j < GROUP {
        sum += if index >> j & 1 == 1 { x[j] } else { -x[j] };
        j += 1;
    }
    sum
}

/// The largest magnitude of a table's entries.
#[inline(always)]
pub const fn reach(x: [f32; GROUP]) -> f32 {
    ((abs(x[0]) + abs(x[1])) + abs(x[2])) + abs(x[3])
}

/// The scale of an activation group whose largest [`reach`] is `top`.
#[inline(always)]
pub const fn scale_of(top: f32) -> f32 {
    top / 127.0
}

/// A table entry as int8.
#[inline(always)]
pub const fn quantised(entry: f32, scale: f32) -> i8 {
    quantise(entry / scale, 1.0)
}

/// What the table builder leaves for each activation group.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Head {
    /// Real value of one unit of the tables.
    pub scale: f32,
    /// Minus the sum of the activations.
    pub bias: f32,
}

/// Threads of the block that builds the tables of one activation group.
pub const BUILD_THREADS: u32 = 256;
/// Its shared memory: partial sums, then eight words.
pub const BUILD_SMEM_BYTES: u32 = 4 * (BUILD_THREADS + 8);

/// The only parameter of the table builder; grid is `(groups, M)`, rows folded into what y holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BuildArgs {
    /// Activations.
    pub x: DevPtr<f32>,
    /// Tables.
    pub tables: DevPtr<u32>,
    /// Scales and biases.
    pub heads: DevPtr<Head>,
    /// Columns.
    pub k: u32,
    /// Rows.
    pub m: u32,
    /// Columns of an activation group.
    pub act_group: u32,
}

/// Kernel `lut_matmul_lossy_tables`.
pub enum LossyTables {}

impl Kernel for LossyTables {
    type Args = BuildArgs;
    const SPEC: LaunchSpec =
        LaunchSpec::new("lut_matmul_lossy_tables", BUILD_THREADS).with_smem(BUILD_SMEM_BYTES);
}

/// Warps of a block of the lookup kernels; it owns one tile.
pub const WARPS: u32 = 8;

/// Most steps whose tables and sums are in shared memory together.
pub const STRETCH: u32 = 128;

/// Steps of a stretch when an activation group has `of_group`: whole groups where they fit.
#[inline(always)]
pub const fn stretch(of_group: u32) -> u32 {
    if of_group > STRETCH { STRETCH } else { STRETCH - STRETCH % of_group }
}

/// Bytes of a step's tables.
pub const STEP_TABLE_BYTES: u32 = (STEP_TABLES * ENTRIES) as u32;
/// Shared memory: the tables, one sum for each row and activation group, and the groups' heads.
pub const SMEM_BYTES: u32 = STRETCH * (STEP_TABLE_BYTES + 4 * TILE as u32 + 8);

/// The only parameter of a lookup kernel; grid is `(tiles, M)`, rows folded into what y holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Tiles of weights.
    pub w: DevPtr<u8>,
    /// Tables.
    pub tables: DevPtr<u32>,
    /// Scales and biases of the tables.
    pub heads: DevPtr<Head>,
    /// Weight scales.
    pub s: DevPtr<f32>,
    /// Weight zero points, or NULL.
    pub z: DevPtr<f32>,
    /// Output.
    pub y: DevPtr<f32>,
    /// Rows of weights.
    pub n: u32,
    /// Columns.
    pub k: u32,
    /// Rows of activations.
    pub m: u32,
    /// Columns of an activation group.
    pub act_group: u32,
    /// Activation groups of a weight group.
    pub per_weight_group: u32,
}

macro_rules! lookups {
    ($($name:ident $symbol:literal $bits:literal;)*) => {
        $(
            #[doc = concat!("Kernel `", $symbol, "`.")]
            pub enum $name {}

            impl Kernel for $name {
                type Args = Args;
                const SPEC: LaunchSpec =
                    LaunchSpec::new($symbol, 32 * WARPS).with_smem(SMEM_BYTES);
            }
        )*

        /// Calls `$mac! { Name "symbol" bits; ... }` with every lookup kernel.
        #[macro_export]
        macro_rules! for_each_lut_matmul_lossy {
            ($mac:ident) => { $mac! { $($name $symbol $bits;)* } };
        }
    };
}

lookups! {
    LossyB1 "lut_matmul_lossy_b1" 1;
    LossyB2 "lut_matmul_lossy_b2" 2;
    LossyB3 "lut_matmul_lossy_b3" 3;
    LossyB4 "lut_matmul_lossy_b4" 4;
}

/// The sums of one output on the way along its groups.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain {
    /// Output so far.
    pub y: f32,
    /// Sum of the current weight group.
    pub product: f32,
    /// Bias of the current weight group.
    pub bias: f32,
}

/// Twice the product of an activation group whose lookups add up to `z`.
#[inline(always)]
pub fn product(head: Head, z: i32) -> f32 {
    crate::num::fma(head.scale, z as f32, head.bias)
}

impl Chain {
    /// Takes the [`product`] of the next activation group, and its bias.
    #[inline(always)]
    pub fn add(&mut self, product: f32, bias: f32) {
        self.product += product;
        self.bias += bias;
    }

    /// Ends a weight group.
    #[inline(always)]
    pub fn end(&mut self, scale: f32, zero: Option<f32>) {
        self.y = crate::num::fma(0.5 * self.product, scale, self.y);
        if let Some(zero) = zero {
            self.y = crate::num::fma(self.bias, zero, self.y);
        }
        *self = Self { y: self.y, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published example: tables, scale, int8 entries, and one product.
    #[test]
    fn the_known_table() {
        let x = [1.0, -2.0, 0.5, 4.0];
        let table: [f32; ENTRIES] = core::array::from_fn(|i| entry(i, x));
        let want = [
            -3.5, -1.5, -7.5, -5.5, -2.5, -0.5, -6.5, -4.5, 4.5, 6.5, 0.5, 2.5, 5.5, 7.5, 1.5, 3.5,
        ];
        assert_eq!(table, want);
        let scale = scale_of(reach(x));
        assert_eq!(scale, 7.5 / 127.0);
        let q = table.map(|v| quantised(v, scale));
        let want = [-59, -25, -127, -93, -42, -8, -110, -76, 76, 110, 8, 42, 93, 127, 25, 59];
        assert_eq!(q, want);
        // w = [1, -1, 0, 1], u = [3, 1, 2, 3]: bits 0 make index 11, bits 1 index 13.
        assert_eq!(0.5 * (table[11] + table[0]) + table[13], 7.0);
        let mut chain = Chain::default();
        let z = i32::from(q[11]) + 2 * i32::from(q[13]);
        chain.add(product(Head { scale, bias: table[0] }, z), table[0]);
        chain.end(1.0, None);
        assert!((chain.y - 6.990_158).abs() < 1e-6, "{}", chain.y);
    }

    #[test]
    fn mirrored_indices_have_mirrored_entries() {
        let x = [0.1, 3.7, -2.2, 1e-3];
        for i in 0..ENTRIES {
            assert_eq!(entry(i, x).to_bits(), (-entry(ENTRIES - 1 - i, x)).to_bits());
        }
        assert_eq!(quantised(0.0, 0.0), 0, "a group of zeros");
        assert_eq!(quantised(f32::NAN, f32::NAN), 0);
    }
}
