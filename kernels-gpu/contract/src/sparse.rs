//! Products with unstructured-pruned matrices: `y[m, n] = sum_k x[m, k] w[n, k]` over the *stored* `k`.
//!
//! | tensor   | element        | shape                    | layout                                   |
//! |----------|----------------|--------------------------|------------------------------------------|
//! | `masks`  | `u32`          | `[G, WAYS, steps, 32, 2]` | bitmap, see [`place`]; `G = N / 16` rounded up |
//! | `starts` | `u32`          | `[G * WAYS + 1]`         | first value of each stream, in units of [`ALIGN`] values |
//! | `values` | f32, f16, bf16 | packed                   | streams of stored values, each padded to [`ALIGN`] |
//! | `x`      | f32, f16, bf16 | `[M, K]`                 | contiguous                               |
//! | `y`      | `f32`          | `[M, N]`                 | contiguous                               |
//!
//! A *stream* is what one warp walks: 16 rows by every fourth tile of 128 columns. A word of the mask
//! holds 32 neighbours in k of one row, the first in its **highest** bit; lane `4 g + t` of a tile has
//! two words, columns `32 t ..` of rows `g` and `g + 8`. The values of a tile stand lane after lane, in
//! a lane word after word, in a word by k. So a lane finds its values by a prefix sum of bit counts.
//!
//! **Order of a sum.** 16 partials for each output: partial `p` is one chain of fused multiply-adds, in
//! ascending k, over the stored `k` with `k % 512 / 32 == p`, from +0; then the binary tree over the
//! partials, distance 8 down to 1. It depends on neither grid, kernel, M nor format. What is not
//! stored takes no part: a NaN or infinity of `x` reaches only rows that have a weight there.

use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Rows of a group.
pub const ROWS: usize = 16;
/// Columns of a tile.
pub const SPAN: usize = 128;
/// Streams of a group of rows: warps of a block.
pub const WAYS: usize = 4;
/// Columns after which the ways repeat.
pub const PERIOD: usize = SPAN * WAYS;
/// Columns of one word of the mask, and of one link of a partial's chain.
pub const WORD: usize = 32;
/// Partials of an output.
pub const PARTIALS: usize = PERIOD / WORD;
/// Streams start at multiples of this many values.
pub const ALIGN: usize = 8;
/// Largest K and N.
pub const MAX_SIDE: usize = 1 << 24;
/// Threads of a block of the linear kernels.
pub const THREADS: u32 = 32 * WAYS as u32;

/// Tiles of a stream.
pub const fn steps(k: usize) -> usize {
    k.div_ceil(PERIOD)
}

/// Groups of rows.
pub const fn groups(n: usize) -> usize {
    n.div_ceil(ROWS)
}

/// Words of the mask.
pub const fn mask_words(n: usize, k: usize) -> usize {
    groups(n) * WAYS * steps(k) * 64
}

/// Stream, word inside the mask, and bit of the weight `(row, column)`.
///
/// Positions of a stream in ascending order of `(word, highest bit first)` are in the order of its
/// values.
pub const fn place(row: usize, column: usize, k: usize) -> (usize, usize, u32) {
    let stream = row / ROWS * WAYS + column % PERIOD / SPAN;
    let (g, half, t) = (row % 8, row % ROWS / 8, column % SPAN / WORD);
    let word = (stream * steps(k) + column / PERIOD) * 64 + (4 * g + t) * 2 + half;
    (stream, word, 31 - (column % WORD) as u32)
}

/// The tree over the partials of one output.
#[inline(always)]
pub fn tree(mut p: [f32; PARTIALS]) -> f32 {
    let mut distance = PARTIALS / 2;
    while distance > 0 {
        let mut i = 0;
        while i < distance {
            p[i] += p[i + distance];
            i += 1;
        }
        distance /= 2;
    }
    p[0]
}

/// The parameter of the linear bitmap kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinearArgs {
    /// Bitmap.
    pub masks: DevPtr<u32>,
    /// Starts of the streams.
    pub starts: DevPtr<u32>,
    /// Stored values, in the kernel's element type.
    pub values: DevPtr<u8>,
    /// Input rows, of type `x_type`.
    pub x: DevPtr<u8>,
    /// Output.
    pub y: DevPtr<f32>,
    /// Rows of the matrix.
    pub n: u32,
    /// Columns of the matrix.
    pub k: u32,
    /// Input rows.
    pub m: u32,
    /// Element type of `x`, as `num::RowType`.
    pub x_type: u32,
}

/// Bytes of the ring that a warp of a 16-bit kernel streams values through: the values of a full
/// tile and a chunk of 512 bytes more.
pub const RING_BYTES: u32 = 9216;
/// Bytes behind the ring that repeat its start, so that no lane wraps inside a tile.
pub const RING_MIRROR: u32 = 128;
/// Floats from one lane column `t` of staged `x` to the next: 32 and a shift of banks.
pub const X_PITCH: u32 = 36;

/// Shared memory of a 16-bit linear kernel with `mb` rows of `x` at a time.
pub const fn linear_smem(mb: u32) -> u32 {
    WAYS as u32 * (RING_BYTES + RING_MIRROR + mb * 4 * X_PITCH * 4)
}

/// Blocks for `n` rows and `m` inputs, `mb` of them at a time; a block walks further inputs in steps
/// of the grid's height.
pub const fn linear_grid(n: u32, m: u32, mb: u32) -> [u32; 3] {
    let down = m.div_ceil(mb);
    [n.div_ceil(ROWS as u32), if down < 65_535 { down } else { 65_535 }, 1]
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $args:ident = $spec:expr;)*) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = $args;
            const SPEC: LaunchSpec = $spec;
        }
    )*};
}

kernels! {
    /// bf16 values, one input row at a time.
    SparseBf16M1: LinearArgs = LaunchSpec::new("sparse_bf16_m1", THREADS).with_smem(linear_smem(1));
    /// f16 values, one input row at a time.
    SparseF16M1: LinearArgs = LaunchSpec::new("sparse_f16_m1", THREADS).with_smem(linear_smem(1));
    /// bf16 values, four input rows at a time.
    SparseBf16M4: LinearArgs = LaunchSpec::new("sparse_bf16_m4", THREADS).with_smem(linear_smem(4));
    /// f16 values, four input rows at a time.
    SparseF16M4: LinearArgs = LaunchSpec::new("sparse_f16_m4", THREADS).with_smem(linear_smem(4));
    /// f32 values, one input row at a time.
    SparseF32M1: LinearArgs = LaunchSpec::new("sparse_f32_m1", THREADS).with_smem(linear_smem(1));
    /// f32 values, four input rows at a time.
    SparseF32M4: LinearArgs = LaunchSpec::new("sparse_f32_m4", THREADS).with_smem(linear_smem(4));
    /// bf16 values on tensor cores, bf16 inputs, eight of them at a time.
    SparseBf16Mma8: LinearArgs =
        LaunchSpec::new("sparse_bf16_mma8", THREADS).with_smem(linear_smem(0)).with_min_sm(80);
    /// bf16 values on tensor cores, bf16 inputs, sixteen of them at a time.
    SparseBf16Mma16: LinearArgs =
        LaunchSpec::new("sparse_bf16_mma16", THREADS).with_smem(linear_smem(0)).with_min_sm(80);
}
