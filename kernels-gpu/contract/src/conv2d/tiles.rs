//! The depthwise kernels that make tiles of channels last: square windows of 3, 5 or 7 taps a side, steps of 1 and
//! 2, zero padding, channels in pieces of 16 bytes.
//!
//! All that a tile reads, weights too, is asked for at once and waits in shared memory: so each element comes once,
//! and few of its bytes to more than one block. A thread makes [`TILES_OUTPUTS`] neighbouring outputs of two
//! channels, of one row or of two that share the rows that they read.

use super::{Args, Divisor};
use crate::launch::{Kernel, LaunchSpec};
use crate::num::RowType;

/// Threads of a block.
pub const TILES_THREADS: u32 = 128;
/// Channels of a tile.
pub const TILES_CHANNELS: u32 = 32;
/// Neighbouring outputs of a thread.
pub const TILES_OUTPUTS: u32 = 7;
/// Blocks of a multiprocessor.
const BLOCKS: u32 = 4;
/// The same of windows of 3 by 3 on elements of 16 bits.
const BLOCKS_3: u32 = 5;
/// Most bytes of shared memory of a block.
pub const TILES_SMEM: u32 = 64 * 1024;

/// The only parameter of the kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TilesArgs {
    /// Tensors, shapes and the epilogue. What says how blocks share the work plays no part.
    pub conv: Args,
    /// Rows of outputs of a thread: 1 or 2.
    pub each: u32,
    /// Rows and columns of outputs of a tile: multiples of `each` and of [`TILES_OUTPUTS`].
    pub rows: u32,
    /// See `rows`.
    pub columns: u32,
    /// Pixels that a tile reads.
    pub pixels: u32,
    /// Bytes of shared memory from a row of them to the next.
    pub pitch: u32,
    /// Threads' worth of work of a tile: two channels fastest, then rows, then columns.
    pub tasks: u32,
    /// Tiles: [`TILES_CHANNELS`] channels fastest, then columns, then rows, then images.
    pub tiles: u32,
    /// Blocks. Where there are more tiles, each makes one after the other and asks for the next one ahead.
    pub blocks: u32,
    /// Bytes of shared memory of a tile.
    pub stage: u32,
    /// By the columns that a tile reads.
    pub by_line: Divisor,
    /// By the tasks of a column.
    pub by_rows: Divisor,
    /// By the tiles of channels.
    pub by_channels: Divisor,
    /// By the tiles of a row.
    pub by_columns: Divisor,
    /// By the tiles of a column.
    pub by_down: Divisor,
}

impl TilesArgs {
    /// Bytes of the weights of a tile, which are in front of its pixels.
    #[inline(always)]
    pub const fn weight_bytes(taps: u32, element: u32) -> u32 {
        taps * TILES_CHANNELS * element
    }

    /// Shared memory of a block.
    pub const fn smem_bytes(&self) -> u32 {
        if self.blocks < self.tiles { 2 * self.stage } else { self.stage }
    }
}

/// Tiles of `rows` by `columns` outputs, `each` rows a thread, by at most `most` blocks; `None` where these kernels do not
/// take the convolution or shared memory not the tile.
pub const fn tiles_of(args: &Args, rows: u32, columns: u32, each: u32, most: u32) -> Option<TilesArgs> {
    let g = &args.geometry;
    let [a, b] = g.stride;
    let edge = g.edges[0];
    let zeros = edge.source(-1) == -1 && edge.source(edge.len) == -1;
    let square = (g.s == 3 || g.s == 5 || g.s == 7) && g.taps == g.s * g.s && g.terms == g.taps;
    let dense = g.dilation[0] == 1 && g.dilation[1] == 1 && a == b && (a == 1 || a == 2);
    let element = args.element.bytes() as u32;
    let last = g.x_step[2] == 1 && g.y_step[1] == 1 && g.k == 1 && (g.groups * element).is_multiple_of(16);
    let all = args.x.addr() | args.w.addr() | args.residual.addr() | args.y.addr();
    if !square || !dense || !zeros || !last || !all.is_multiple_of(16) || (each == 2 && a == 2) {
        return None;
    }
    let step = a as u32;
    let (rows, columns) = (rows.next_multiple_of(each), columns.next_multiple_of(TILES_OUTPUTS));
    let lines = (rows - 1) * step + g.s;
    let line = (columns - 1) * step + g.s;
    // The next row is where the next words of this one would be, for all banks: half of a warp has it.
    let wide = TILES_CHANNELS * element;
    let mut pitch = line * wide;
    while pitch * step * each % 128 != wide % 128 {
        pitch += 16;
    }
    let channels = g.groups.div_ceil(TILES_CHANNELS);
    let (across, down) = (g.out[1].div_ceil(columns), g.out[0].div_ceil(rows));
    let count = channels as u64 * across as u64 * down as u64 * args.images as u64;
    if count >= 1 << 31 {
        return None;
    }
    let of_column = rows / each;
    let stage = TilesArgs::weight_bytes(g.taps, element) + lines * pitch;
    // Without room for two tiles each has a block.
    let several = count > most as u64 && 2 * stage <= TILES_SMEM;
    let tiles = TilesArgs {
        conv: *args,
        each,
        rows,
        columns,
        pixels: lines * line,
        pitch,
        tasks: TILES_CHANNELS / 2 * of_column * (columns / TILES_OUTPUTS),
        tiles: count as u32,
        blocks: if several { most } else { count as u32 },
        stage,
        by_line: Divisor::new(line),
        by_rows: Divisor::new(of_column),
        by_channels: Divisor::new(channels),
        by_columns: Divisor::new(across),
        by_down: Divisor::new(down),
    };
    if tiles.smem_bytes() > TILES_SMEM { None } else { Some(tiles) }
}

/// The tiles that a convolution is made in on `sms` multiprocessors; `None` where these kernels do not take it. Fitted on
/// an H100: the largest of which there are enough to keep it busy.
pub const fn tiles(args: &Args, sms: u32) -> Option<TilesArgs> {
    let g = &args.geometry;
    let most = sms * if g.s == 3 && args.element.bytes() == 2 { BLOCKS_3 } else { BLOCKS };
    let (f32, small) = (matches!(args.element, RowType::F32), g.out[0] <= 14 && g.out[1] <= 14);
    let across = if g.stride[0] == 2 { 7 } else { 14 };
    let first = match (g.stride[0], g.s) {
        (2, _) => (if f32 { 4 } else { 7 }, 1),
        (_, 3) => (7, 1),
        (_, 5) if f32 => (7, 1),
        _ => (if small { 14 } else { 8 }, 2),
    };
    let sizes = [(first.0, across, first.1), (4, across, 1), (4, 7, 1), (2, 7, 1)];
    let enough = if g.s == 3 { 400 } else { 300 };
    let mut i = 0;
    while i < sizes.len() {
        let (rows, columns, each) = sizes[i];
        let rows = if rows < g.out[0] { rows } else { g.out[0] };
        let columns = if columns < g.out[1] { columns } else { g.out[1] };
        match tiles_of(args, rows, columns, each, most) {
            Some(tiles) if tiles.tiles >= enough || i + 1 == sizes.len() => return Some(tiles),
            _ => i += 1,
        }
    }
    None
}

/// Whether they are the fastest that take it, fitted on an H100.
pub const fn tiles_pay(args: &Args) -> bool {
    let g = &args.geometry;
    let outputs = g.pixels as u64 * (g.groups as u64 / 4);
    let (few, many) =
        if matches!(args.element, RowType::F32) { (5 << 14, 1 << 19) } else { (3 << 14, 1 << 20) };
    g.s > 3 || g.stride[0] == 1 && outputs > few && outputs <= many
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $blocks:ident;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = TilesArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, TILES_THREADS)
                .with_smem(TILES_SMEM)
                .with_min_blocks($blocks)
                .with_min_sm(80);

            fn smem_bytes(args: &TilesArgs) -> u32 {
                args.smem_bytes()
            }
        }
    )* };
}

kernels! {
    /// Depthwise by tiles, `f32`, 3 by 3.
    Conv2dTiles3F32 "conv2d_tiles3_f32" BLOCKS;
    /// Depthwise by tiles, `f16`, 3 by 3.
    Conv2dTiles3F16 "conv2d_tiles3_f16" BLOCKS_3;
    /// Depthwise by tiles, `bf16`, 3 by 3.
    Conv2dTiles3Bf16 "conv2d_tiles3_bf16" BLOCKS_3;
    /// Depthwise by tiles, `f32`, 5 by 5.
    Conv2dTiles5F32 "conv2d_tiles5_f32" BLOCKS;
    /// Depthwise by tiles, `f16`, 5 by 5.
    Conv2dTiles5F16 "conv2d_tiles5_f16" BLOCKS;
    /// Depthwise by tiles, `bf16`, 5 by 5.
    Conv2dTiles5Bf16 "conv2d_tiles5_bf16" BLOCKS;
    /// Depthwise by tiles, `f32`, 7 by 7.
    Conv2dTiles7F32 "conv2d_tiles7_f32" BLOCKS;
    /// Depthwise by tiles, `f16`, 7 by 7.
    Conv2dTiles7F16 "conv2d_tiles7_f16" BLOCKS;
    /// Depthwise by tiles, `bf16`, 7 by 7.
    Conv2dTiles7Bf16 "conv2d_tiles7_bf16" BLOCKS;
}
