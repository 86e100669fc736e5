//! Products with unstructured-pruned matrices: `y[m, n] = sum_k x[m, k] w[n, k]` over the *stored* `k`.
//!
//! | tensor   | element        | shape                    | layout                                   |
//! |----------|----------------|--------------------------|------------------------------------------|
//! | `masks`  | `u32`          | `[G, WAYS, steps, 32, 2]` | bitmap of units, see [`place`]; `G = N / 16` rounded up |
//! | `starts` | `u32`          | `[G * WAYS * steps + 1]` | first unit of each tile, in units of [`ALIGN`] |
//! | `values` | f32, f16, bf16 | packed                   | tiles of stored units, each padded to [`ALIGN`] with +0 |
//! | `x`      | f32, f16, bf16 | `[M, K]`                 | contiguous                               |
//! | `y`      | `f32`          | `[M, N]`                 | contiguous                               |
//!
//! A *unit* is four bytes: one f32, or two neighbours in k of a 16-bit type, of which the first stands
//! in an even column. It is stored when it holds anything but +0, and takes one bit of the mask. So a
//! 16-bit weight takes `0.5 + 16 (1 - s^2)` bits at a share `s` of zeros that lie at random: half a bit
//! less for the mask, and more for pairs with one zero, than with a bit for each weight. In return a
//! unit is one access wherever it goes: the kernels are as fast as they can expand, not as they can read.
//!
//! A *stream* is what one warp walks: 16 rows by one of four blocks of 256 columns of each 1,024. Its
//! tiles are 16 rows by 128 units. In a tile, lane `4 g + t` has two words of the mask, the 32 units of
//! rows `g` and `g + 8` in columns with `k % 32 / 8 == t`, the first in the **highest** bit. The units of
//! a tile stand lane after lane, in a lane word after word, in a word by k: a lane finds its units by a
//! prefix sum of bit counts.
//!
//! **Order of a sum.** 16 partials for each output: partial `p` is one chain of fused multiply-adds, in
//! ascending k, over the stored weights with [`partial`]`(k) == p`, from +0; then the binary tree over
//! the partials, distance 8 down to 1. It depends on neither grid, kernel, M, type nor format. Weights of
//! +0 take no part, stored or not: a NaN or infinity of `x` reaches only rows that have a weight there.

use crate::conv2d::Geometry;
use crate::conv2d::bulk_lines::{self as lines, LINES, Walk};
use crate::launch::{DevPtr, Kernel, LaunchSpec, TensorMap};
use crate::num::RowType;
use crate::w2a8::{ActStats, CHUNK, Segments};

mod held;
mod pad;

use held::ALONE;
pub use held::*;
pub use pad::*;

/// Rows of a group.
pub const ROWS: usize = 16;
/// Streams of a group of rows: warps of a block.
pub const WAYS: usize = 4;
/// Columns of a way, side by side.
pub const BLOCK: usize = 256;
/// Columns after which the ways repeat.
pub const PERIOD: usize = BLOCK * WAYS;
/// Units of one word of the mask.
pub const WORD: usize = 32;
/// Partials of an output.
pub const PARTIALS: usize = 16;
/// Words of the mask of a tile.
pub const TILE_WORDS: usize = 64;
/// Tiles start at multiples of this many units: 16 bytes.
pub const ALIGN: usize = 4;
/// Largest K and N.
pub const MAX_SIDE: usize = 1 << 24;
/// Threads of a block of the linear kernels.
pub const THREADS: u32 = 32 * WAYS as u32;

/// Weights of a unit.
pub const fn per_unit(element: RowType) -> usize {
    4 / element.bytes()
}

/// Columns of a tile.
pub const fn span(per_unit: usize) -> usize {
    128 * per_unit
}

/// Tiles of a stream: whole periods.
pub const fn steps(k: usize, per_unit: usize) -> usize {
    k.div_ceil(PERIOD) * (BLOCK / span(per_unit))
}

/// Groups of rows.
pub const fn groups(n: usize) -> usize {
    n.div_ceil(ROWS)
}

/// Tiles of the matrix.
pub const fn tiles(n: usize, k: usize, per_unit: usize) -> usize {
    groups(n) * WAYS * steps(k, per_unit)
}

/// Words of the mask.
pub const fn mask_words(n: usize, k: usize, per_unit: usize) -> usize {
    tiles(n, k, per_unit) * TILE_WORDS
}

/// The partial that column `k` belongs to.
pub const fn partial(k: usize) -> usize {
    k % PERIOD / BLOCK * 4 + k % 32 / 8
}

/// Word of the mask, and bit, of the unit that holds the weight `(row, column)`.
pub const fn place(row: usize, column: usize, k: usize, per_unit: usize) -> (usize, u32) {
    let stream = row / ROWS * WAYS + column % PERIOD / BLOCK;
    let tiles = BLOCK / span(per_unit);
    let tile = column / PERIOD * tiles + column % BLOCK / span(per_unit);
    let (g, half, t) = (row % 8, row % ROWS / 8, column % 32 / 8);
    let word = (stream * steps(k, per_unit) + tile) * TILE_WORDS + (4 * g + t) * 2 + half;
    let unit = column % span(per_unit) / 32 * (8 / per_unit) + column % 8 / per_unit;
    (word, 31 - unit as u32)
}

/// Columns from the first unit of a word to its unit `unit`.
pub const fn unit_column(unit: usize, per_unit: usize) -> usize {
    let in_eight = 8 / per_unit;
    unit / in_eight * 32 + unit % in_eight * per_unit
}

/// The row and first column of a unit: what [`place`] came from. Both may lie outside of the matrix.
pub const fn place_of(word: usize, bit: u32, k: usize, per_unit: usize) -> (usize, usize) {
    let tiles = BLOCK / span(per_unit);
    let (stream, tile) = (word / TILE_WORDS / steps(k, per_unit), word / TILE_WORDS % steps(k, per_unit));
    let (lane, half, unit) = (word % TILE_WORDS / 2, word % 2, 31 - bit as usize);
    let row = stream / WAYS * ROWS + lane / 4 + 8 * half;
    let tile = tile / tiles * PERIOD + stream % WAYS * BLOCK + tile % tiles * span(per_unit);
    (row, tile + lane % 4 * 8 + unit_column(unit, per_unit))
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
    /// Starts of the tiles.
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
    /// Bytes that the tensor-core kernels for rows bring a stream's units through: [`RING_BYTES`], those of
    /// [`SparseBf16Few8`] and [`SparseBf16Few16`] [`ring_bytes`] of the matrix, those by the copy engine
    /// [`place_bytes`].
    pub ring: u32,
}

/// Bytes of the ring that a warp streams units through: those of a full tile and a chunk more.
pub const RING_BYTES: u32 = 8704;

/// Bytes of a ring for tiles of at most `units` units: a chunk more than one at least. The less it is, the
/// more warps a multiprocessor has at once, which is worth more than units that are asked for sooner.
pub const fn ring_bytes(units: usize) -> u32 {
    let bytes = (4 * units as u32).next_multiple_of(512) + 512;
    if bytes < RING_BYTES { bytes } else { RING_BYTES }
}

/// Bytes of the place of a tile of at most `units` units that the copy engine brings.
pub const fn place_bytes(units: usize) -> u32 {
    4 * units.next_multiple_of(ALIGN) as u32
}

/// Most places of a stream: one for the tile that is worked on, and one for the next.
pub const PLACES: u32 = 2;

/// Bytes of a warp of `streams` streams of at most `tiles` tiles: two barriers, and the places.
pub const fn bulk_bytes(streams: u32, tiles: u32, place: u32) -> u32 {
    16 + streams * if tiles < PLACES { tiles } else { PLACES } * place
}

/// Most units of a tile for the kernels that put more warps on a multiprocessor instead of larger rings.
pub const FEW_UNITS: usize = 896;
/// Warps of a way in those: each has half of its tiles.
pub const WAY_WARPS: usize = 2;
/// Threads of their blocks.
pub const FEW_THREADS: u32 = THREADS * WAY_WARPS as u32;
/// Groups of rows of a block of [`SparseBf16Few16`].
pub const FEW16_GROUPS: u32 = 2;

/// Shared memory of a warp that streams one group of rows through a ring of `ring` bytes.
pub const fn stream_bytes(ring: u32) -> u32 {
    ring + RING_MIRROR + MASK_TILES * 256
}

/// Shared memory of a block of [`SparseBf16Few8`] and [`SparseBf16Few16`] that has `groups` groups of rows.
pub const fn few_smem(groups: u32, ring: u32) -> u32 {
    let (streams, sums) = (groups * stream_bytes(ring), groups * 512);
    FEW_THREADS / 32 * if streams > sums { streams } else { sums }
}

/// Bytes behind the ring that repeat its start, so that no lane wraps inside a tile.
pub const RING_MIRROR: u32 = 256;
/// Tiles whose masks a warp holds.
pub const MASK_TILES: u32 = 4;
/// Shared memory of a warp for units and masks.
pub const WARP_BYTES: u32 = stream_bytes(RING_BYTES);
/// Floats of a warp's staged columns of one input row: 64 for each `t`, and a shift of banks.
pub const X_FLOATS: u32 = 4 * X_PITCH;
/// Floats from the columns of one `t` to those of the next.
pub const X_PITCH: u32 = 72;

/// Shared memory of a linear kernel that stages `mb` rows of `x`.
pub const fn linear_smem(mb: u32) -> u32 {
    WAYS as u32 * (WARP_BYTES + mb * X_FLOATS * 4)
}

/// Blocks for `n` rows and `m` inputs, `mb` of them at a time; a block walks further inputs in steps
/// of the grid's height.
pub const fn linear_grid(n: u32, m: u32, mb: u32) -> [u32; 3] {
    let down = m.div_ceil(mb);
    [n.div_ceil(ROWS as u32), if down < 65_535 { down } else { 65_535 }, 1]
}

/// The parameter of the kernels for compressed sparse rows, passed by value.
///
/// Row `r` has values `rows[r] .. rows[r + 1]`, their columns ascending.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CsrArgs {
    /// Offsets `[n + 1]`.
    pub rows: DevPtr<u32>,
    /// Columns of the values.
    pub columns: DevPtr<u32>,
    /// Values, in the kernel's element type.
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

/// How the columns of a convolution's matrix meet its input: row `m` of the implied `[M, K]` is the
/// patch of output pixel `m`, column `(r * kernel_width + s) * channels + c` its element at kernel row
/// `r`, kernel column `s` and channel `c`; +0 outside of the image.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patches {
    /// Rows of the input image.
    pub height: u32,
    /// Columns of the input image.
    pub width: u32,
    /// Channels of the input, side by side.
    pub channels: u32,
    /// Rows of the output image.
    pub out_height: u32,
    /// Columns of the output image.
    pub out_width: u32,
    /// Columns of the kernel.
    pub kernel_width: u32,
    /// Input rows and columns from one output to the next.
    pub stride: [u32; 2],
    /// Rows and columns of zeros in front of the image.
    pub padding: [u32; 2],
    /// Input rows and columns from one element of the kernel to the next.
    pub dilation: [u32; 2],
}

impl Patches {
    /// Image, and input row and column of the kernel's first element, of output pixel `m`; these two
    /// wrap where they are negative.
    #[inline(always)]
    pub const fn corner(&self, m: u32) -> (u32, u32, u32) {
        let (line, column) = (m / self.out_width, m % self.out_width);
        let (image, row) = (line / self.out_height, line % self.out_height);
        let row = (row * self.stride[0]).wrapping_sub(self.padding[0]);
        (image, row, (column * self.stride[1]).wrapping_sub(self.padding[1]))
    }

    /// Where column `k` of the patch at `corner` stands in the input; `None` outside of the image.
    #[inline(always)]
    pub const fn element(&self, corner: (u32, u32, u32), k: u32) -> Option<usize> {
        let (tap, channel) = (k / self.channels, k % self.channels);
        let (r, s) = (tap / self.kernel_width, tap % self.kernel_width);
        let row = corner.1.wrapping_add(r * self.dilation[0]);
        let column = corner.2.wrapping_add(s * self.dilation[1]);
        if row >= self.height || column >= self.width {
            return None;
        }
        let line = corner.0 as usize * self.height as usize + row as usize;
        let pixel = line * self.width as usize + column as usize;
        Some(pixel * self.channels as usize + channel as usize)
    }
}

/// The parameter of the convolution kernels, passed by value: the product of the matrix `[N, K]` with
/// the implied rows of patches, in the same order; `n` output channels, `m` output pixels, `y`
/// `[image, row, column, channel]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Conv2dArgs {
    /// The product; its `x` is the input `[image, row, column, channel]`.
    pub linear: LinearArgs,
    /// Where its rows are.
    pub patches: Patches,
}

/// The parameter of the kernel that makes dense bf16 weights of a bitmap, passed by value: `[N, K]`, +0 where
/// nothing is stored. [`EXPAND_WARPS`] warps for each tile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpandArgs {
    /// The bitmap; `x`, `y` and `m` play no part.
    pub linear: LinearArgs,
    /// Dense weights, `K` a multiple of 8.
    pub dense: DevPtr<u16>,
    /// Tiles.
    pub tiles: u32,
}

/// Warps that a tile is expanded by, 32 columns each.
pub const EXPAND_WARPS: u32 = 8;

/// The parameter of the convolution kernels in lines ([`crate::conv2d::bulk_lines`]), passed by value: dense
/// tensor-core products of weights that were expanded.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinesArgs {
    /// The images, by entries.
    pub entries: TensorMap,
    /// The dense weights, by 64 columns of 64 rows.
    pub weights: TensorMap,
    /// Sides and output.
    pub linear: LinearArgs,
    /// Shape.
    pub geometry: Geometry,
    /// The way.
    pub walk: Walk,
}

impl LinesArgs {
    /// The launch for `images` images, where the kernel takes it: channels in 64s.
    pub const fn new(linear: LinearArgs, geometry: Geometry, images: u32) -> Option<Self> {
        if !geometry.c.is_multiple_of(64) {
            return None;
        }
        match Walk::new(&geometry, images, 8, LINES) {
            Some(walk) => {
                let none = TensorMap([0; 16]);
                Some(Self { entries: none, weights: none, linear, geometry, walk })
            }
            None => None,
        }
    }
}

/// Most output pixels of a convolution.
pub const MAX_PIXELS: usize = 1 << 30;

/// Shared memory of a block of the kernels for compressed sparse rows: the partials of its warps.
pub const CSR_SMEM: u32 = THREADS / 32 * PARTIALS as u32 * 4;

/// Blocks for `n` rows, a warp each, and `m` inputs; a block walks further inputs in steps of the
/// grid's height.
pub const fn row_grid(n: u32, m: u32) -> [u32; 3] {
    [n.div_ceil(WAYS as u32), if m < 65_535 { m } else { 65_535 }, 1]
}

/// The parameter of the ternary kernel, passed by value.
///
/// | tensor   | element | shape                    | layout                                        |
/// |----------|---------|--------------------------|-----------------------------------------------|
/// | `masks`  | `u32`   | `[N, ternary_words(K)]`  | bit `31 - k % 32` of word `k / 32`: not zero  |
/// | `starts` | `u32`   | `[N + 1]`                | first word of each row's signs                |
/// | `signs`  | `u32`   | packed                   | a bit for each weight of a row, first highest: negative |
///
/// Activations, statistics, scales and formula are those of [`crate::w2a8`]; the sum is exact.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TernaryArgs {
    /// Bitmap.
    pub masks: DevPtr<u32>,
    /// Starts of the rows' signs.
    pub starts: DevPtr<u32>,
    /// Signs; a word more than the rows have.
    pub signs: DevPtr<u32>,
    /// Quantised activations.
    pub acts: DevPtr<u32>,
    /// Their scales and sums.
    pub stats: DevPtr<ActStats>,
    /// Output `[m, n]`.
    pub y: DevPtr<f32>,
    /// Rows of the matrix.
    pub n: u32,
    /// Columns of the matrix.
    pub k: u32,
    /// Input rows.
    pub m: u32,
    /// Weight scales.
    pub segments: Segments,
}

/// Inputs that the ternary kernel takes at a time.
pub const TERNARY_INPUTS: u32 = 4;

/// Words of the ternary mask of a row: whole chunks of 64 columns.
pub const fn ternary_words(k: usize) -> usize {
    k.div_ceil(CHUNK) * 2
}

const fn mma(symbol: &'static str) -> LaunchSpec {
    LaunchSpec::new(symbol, THREADS).with_smem(linear_smem(0)).with_min_sm(80)
}

const fn conv2d(symbol: &'static str) -> LaunchSpec {
    LaunchSpec::new(symbol, THREADS).with_smem(linear_smem(4)).with_min_sm(75).with_min_blocks(1)
}

const fn few(symbol: &'static str, groups: u32, blocks: u32) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, FEW_THREADS);
    let spec = spec.with_smem(few_smem(groups, ring_bytes(FEW_UNITS))).with_min_sm(80);
    spec.with_min_blocks(blocks).not_in_sm_90a()
}

/// Groups of rows of a block of [`SparseBf16Bulk16`] and its kind.
pub const BULK16_GROUPS: u32 = 2;
/// Shared memory of a block that has `warps` warps a way, each with `eights` groups of rows and of eight inputs.
const fn bulk_smem(warps: u32, eights: u32, k: u32, place: u32) -> u32 {
    let tiles = (steps(k as usize, 2) as u32).div_ceil(warps);
    let (streams, sums) = (bulk_bytes(eights, tiles, place), eights * 512);
    WAYS as u32 * warps * if streams > sums { streams } else { sums }
}

/// The same for any matrix, with all of a way in a warp.
const fn full_smem(eights: u32) -> u32 {
    bulk_smem(1, eights, PLACES * PERIOD as u32, 4 * (ROWS * BLOCK / 2) as u32)
}

const fn bulk(symbol: &'static str, warps: u32, smem: u32, blocks: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, THREADS * warps).with_min_blocks(blocks).only_on(90).with_smem(smem)
}

macro_rules! by_the_matrix {
    ($($(#[$doc:meta])* $name:ident = $spec:expr, $smem:expr;)*) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = LinearArgs;
            const SPEC: LaunchSpec = $spec;

            fn smem_bytes(args: &LinearArgs) -> u32 {
                ($smem)(args.k, args.ring)
            }
        }
    )*};
}

by_the_matrix! {
    /// bf16 values on tensor cores, bf16 inputs, eight of them at a time, tiles of at most [`FEW_UNITS`] units.
    SparseBf16Few8 = few("sparse_bf16_few8", 1, 4), |_, ring| few_smem(1, ring);
    /// The same for sixteen inputs at a time and [`FEW16_GROUPS`] groups of rows.
    SparseBf16Few16 = few("sparse_bf16_few16", FEW16_GROUPS, 2), |_, ring| few_smem(FEW16_GROUPS, ring);
    /// On a Hopper GPU, eight inputs at a time, tiles by the copy engine.
    SparseBf16Bulk8 = bulk("sparse_bf16_bulk8", 1, full_smem(1), 6), |k, place| bulk_smem(1, 1, k, place);
    /// The same by many warps, each with few tiles, where two blocks fit: tiles of at most [`FEW_UNITS`] units do.
    SparseBf16Bulk8Short = bulk("sparse_bf16_bulk8_short", 4, ONE_OF_TWO, 2), |k, place| bulk_smem(4, 1, k, place);
    /// The same for sixteen inputs at a time and [`BULK16_GROUPS`] groups of rows.
    SparseBf16Bulk16 = bulk("sparse_bf16_bulk16", 1, full_smem(2), 2), |k, place| bulk_smem(1, 2, k, place);
    /// The same with more warps, where they fit.
    SparseBf16Bulk16Wide = bulk("sparse_bf16_bulk16_wide", 2, ALONE, 2), |k, place| bulk_smem(2, 2, k, place);
    /// The same with as many as one block can have, for tiles of at most [`FEW_UNITS`] units.
    SparseBf16Bulk16Short = bulk("sparse_bf16_bulk16_short", 4, ALONE, 1), |k, place| bulk_smem(4, 2, k, place);
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
    SparseBf16M1: LinearArgs =
        LaunchSpec::new("sparse_bf16_m1", THREADS).with_smem(linear_smem(1)).with_min_sm(75);
    /// f16 values, one input row at a time.
    SparseF16M1: LinearArgs =
        LaunchSpec::new("sparse_f16_m1", THREADS).with_smem(linear_smem(1)).with_min_sm(75);
    /// f32 values, one input row at a time.
    SparseF32M1: LinearArgs =
        LaunchSpec::new("sparse_f32_m1", THREADS)
            .with_smem(linear_smem(1))
            .with_min_sm(75)
            .with_min_blocks(1);
    /// bf16 values, four input rows at a time.
    SparseBf16M4: LinearArgs =
        LaunchSpec::new("sparse_bf16_m4", THREADS)
            .with_smem(linear_smem(4))
            .with_min_sm(75)
            .with_min_blocks(1);
    /// f16 values, four input rows at a time.
    SparseF16M4: LinearArgs =
        LaunchSpec::new("sparse_f16_m4", THREADS)
            .with_smem(linear_smem(4))
            .with_min_sm(75)
            .with_min_blocks(1);
    /// f32 values, four input rows at a time.
    SparseF32M4: LinearArgs =
        LaunchSpec::new("sparse_f32_m4", THREADS).with_smem(linear_smem(4)).with_min_sm(75).with_min_blocks(1);
    /// bf16 values on tensor cores, bf16 inputs, eight of them at a time.
    SparseBf16Mma8: LinearArgs = mma("sparse_bf16_mma8").with_min_blocks(5).not_in_sm_90a();
    /// bf16 values on tensor cores, bf16 inputs, sixteen of them at a time.
    SparseBf16Mma16: LinearArgs =
        mma("sparse_bf16_mma16").with_min_blocks(4).not_in_sm_90a();
    /// Compressed sparse rows of bf16.
    SparseCsrBf16: CsrArgs = LaunchSpec::new("sparse_csr_bf16", THREADS).with_smem(CSR_SMEM);
    /// Compressed sparse rows of f16.
    SparseCsrF16: CsrArgs = LaunchSpec::new("sparse_csr_f16", THREADS).with_smem(CSR_SMEM);
    /// Compressed sparse rows of f32.
    SparseCsrF32: CsrArgs = LaunchSpec::new("sparse_csr_f32", THREADS).with_smem(CSR_SMEM);
    /// Convolution by bf16 values, four output pixels at a time.
    SparseConv2dBf16: Conv2dArgs = conv2d("sparse_conv2d_bf16");
    /// Convolution by f16 values, four output pixels at a time.
    SparseConv2dF16: Conv2dArgs = conv2d("sparse_conv2d_f16");
    /// Convolution by f32 values, four output pixels at a time.
    SparseConv2dF32: Conv2dArgs = conv2d("sparse_conv2d_f32");
    /// Convolution by bf16 values on tensor cores, bf16 inputs, 32 output pixels at a time.
    SparseConv2dMma: Conv2dArgs = mma("sparse_conv2d_mma");
    /// Dense bf16 weights of a bitmap.
    SparseExpand: ExpandArgs = LaunchSpec::new("sparse_expand", THREADS).only_on(90);
    /// The same as [`SparseConv2dMma`] on a Hopper GPU, dense products in lines.
    SparseConv2dLines: LinesArgs = lines::spec("sparse_conv2d_lines", lines::THREADS, 1);
    /// The same, two blocks a tile.
    SparseConv2dLinesPair: LinesArgs = lines::spec("sparse_conv2d_lines_pair", lines::THREADS, 2);
    /// The same, few tiles.
    SparseConv2dLinesSplit: LinesArgs =
        lines::spec("sparse_conv2d_lines_split", lines::THREADS, lines::CLUSTER);
    /// Ternary weights as mask and signs, int8 activations.
    SparseTernary: TernaryArgs = LaunchSpec::new("sparse_ternary", THREADS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_weight_has_a_place_of_its_own() {
        for per_unit in [1, 2] {
            for (n, k) in [(1, 1), (17, 33), (33, 1025), (5, 2300)] {
                let mut taken = BTreeSet::new();
                for row in 0..n {
                    for column in (0..k).step_by(per_unit) {
                        let (word, bit) = place(row, column, k, per_unit);
                        assert!(word < mask_words(n, k, per_unit) && bit < 32);
                        assert!(taken.insert((word, bit)), "{row} {column}");
                        assert_eq!(place_of(word, bit, k, per_unit), (row, column));
                        let last = (k - 1).min(column + per_unit - 1);
                        assert_eq!(place(row, last, k, per_unit), (word, bit));
                    }
                }
            }
        }
    }

    #[test]
    fn a_word_keeps_to_one_partial_and_ascends() {
        for per_unit in [1, 2] {
            for word in 0..mask_words(16, 3000, per_unit) {
                let of = |bit| place_of(word, bit, 3000, per_unit);
                for bit in 0..31 {
                    assert!(of(bit + 1).1 < of(bit).1 && of(bit + 1).0 == of(bit).0);
                    assert_eq!(partial(of(bit).1), partial(of(31).1));
                }
            }
        }
    }
}
