//! Arguments, launch rules and tiles of the float kernels.
//!
//! | kernels            | for                                    | a block computes                  |
//! |--------------------|----------------------------------------|-----------------------------------|
//! | `conv2d_*_TILE`    | exact, more than one channel a group   | pixels by channels of the tile    |
//! | `conv2d_taps*`     | exact, one channel a group (depthwise) | see [`TAPS_PIXELS`]               |
//!
//! | `conv2d_mma_*`      | tensor cores from sm_80, f16 and bf16  | pixels by channels of the tile    |
//! | `conv2d_hopper_*`   | tensor cores of sm_90a, f16 and bf16   | 128 pixels by channels            |
//! | `conv2d_join_*`     | the sums of splits, and the epilogue   | [`JOIN_THREADS`] outputs          |
//! | `conv2d_turn`       | images in planes, for tensor cores     | a square; see [`super::turn`]     |
//! | `conv2d_runs`       | channels in no eights, for tensor cores | see [`super::runs`]              |
//!
//! Grids have one axis: tiles of output channels fastest (they share their input), then tiles of
//! pixels, then groups, then splits of the terms.

use super::{Activation, Divisor, Geometry};
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::RowType;

/// The only parameter of every float kernel, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Images.
    pub x: DevPtr<u8>,
    /// Packed weights, see [`super::weights`].
    pub w: DevPtr<u8>,
    /// One number for each output channel, or null.
    pub bias: DevPtr<f32>,
    /// Added before the activation, in the layout of `y`; or null.
    pub residual: DevPtr<u8>,
    /// Output.
    pub y: DevPtr<u8>,
    /// Shapes.
    pub geometry: Geometry,
    /// Images.
    pub images: u32,
    /// Rows of a matrix of `w`.
    pub rows: u32,
    /// Columns of a matrix of `w`.
    pub columns: u32,
    /// Element of `x`, `w`, `residual` and `y`, for kernels that take more than one.
    pub element: RowType,
    /// Last step.
    pub activation: Activation,
    /// Whether groups of four channels stand side by side in `x`, aligned to their size; on tensor
    /// cores: groups of eight, and padding is zeros.
    pub vectors: u32,
    /// Sums of the splits, `[splits, pixels, channels of all groups]`, where there is more than one.
    pub partial: DevPtr<f32>,
    /// Blocks that share the terms of one tile.
    pub splits: u32,
    /// Terms of a split: whole steps of the kernel, whole chunks of an exact one.
    pub split_terms: u32,
    /// Tiles of output channels of a group.
    pub column_tiles: u32,
    /// Tiles of output pixels; in a general depthwise kernel those of a
    /// row where [`taps_fours`] holds, else 0.
    pub pixel_tiles: u32,
}

/// Pixels and output channels of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Output pixels.
    pub pixels: u32,
    /// Output channels of one group.
    pub channels: u32,
}

impl Tile {
    /// Tiles of output channels, tiles of pixels.
    pub const fn tiles(&self, geometry: &Geometry) -> [u32; 2] {
        [geometry.k.div_ceil(self.channels), geometry.pixels.div_ceil(self.pixels)]
    }
}

/// Terms of a step of the exact kernels of 128 pixels.
pub const STEP_128: u32 = 8;
/// Terms of a step of the exact kernels of 64 pixels.
pub const STEP_64: u32 = 16;
/// Bytes of shared memory of an exact kernel: two stages of a step, or a staging area of `staged`
/// pixels for the epilogue, whichever is larger.
pub const fn exact_smem(tile: Tile, step: u32, staged: u32) -> u32 {
    let stages = 2 * step * (tile.pixels + 4 + tile.channels) * 4;
    let staging = staged * (tile.channels + 4) * 4;
    if stages > staging { stages } else { staging }
}

macro_rules! exact {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $pixels:literal $channels:literal $threads:literal $step:ident $staged:literal $blocks:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl $name {
            /// What a block computes.
            pub const TILE: Tile = Tile { pixels: $pixels, channels: $channels };
            /// Pixels of one pass of the epilogue.
            pub const STAGED: u32 = $staged;
        }

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, $threads)
                .with_smem(exact_smem($name::TILE, $step, $staged))
                .with_min_blocks($blocks);
        }
    )* };
}

exact! {
    /// `f32`. Sums of more than one chunk pass through `y`.
    Conv2dF32 "conv2d_f32" 128 64 128 STEP_128 128 3;
    /// `f32`, small tile.
    Conv2dF32Small "conv2d_f32_small" 64 64 256 STEP_64 64 2;
    /// `f16` and `bf16`.
    Conv2dHalf "conv2d_half" 64 64 256 STEP_64 64 2;
}

/// Threads of a block of the depthwise kernels.
pub const TAPS_THREADS: u32 = 128;
/// Output pixels of a row that one thread of a 3 by 3 kernel computes, for four channels.
pub const TAPS_PIXELS: u32 = 2;
/// Threads that keep a large GPU busy: more rows for each only where there are as many.
const TAPS_ENOUGH: u64 = 3 << 13;
/// Most outputs, of four channels, of which a thread of a 3 by 3 kernel has one.
const TAPS3_FEW: u64 = 3 << 14;
/// The same of `f32`.
const TAPS3_FEW_F32: u64 = 5 << 14;
/// Output channels, and output pixels, of a block of the general kernels.
pub const TAPS_SIDE: u32 = 32;

/// The parameter of the 3 by 3 depthwise kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Taps3Args {
    /// Tensors, shapes and the epilogue.
    pub conv: Args,
    /// Threads that have work: four channels fastest, then outputs of a row, rows or pieces of them, images.
    pub threads: u32,
    /// Rows of outputs of a thread: as many in each piece of an image.
    pub rows: u32,
    /// Not 0: a thread has one output.
    pub few: u32,
    /// By groups of four channels.
    pub by_quads: Divisor,
    /// By the threads of a row of outputs.
    pub by_across: Divisor,
    /// By the pieces of an image.
    pub by_down: Divisor,
}

/// How a 3 by 3 depthwise kernel computes a convolution; `None` where the general one has to run: another window,
/// step, dilation or padding, channels that are not groups of four side by side, or more threads than a
/// `u32` counts.
pub const fn taps3(args: &Args) -> Option<Taps3Args> {
    let g = &args.geometry;
    let [a, b] = g.stride;
    let zeros = g.edges[0].source(-1) == -1 && g.edges[0].source(g.edges[0].len) == -1;
    let three = g.s == 3 && g.terms == 9 && a == b && (a == 1 || a == 2) && zeros;
    if !three || g.dilation[0] != 1 || g.dilation[1] != 1 || args.vectors == 0 || g.k != 1 {
        return None;
    }
    let most = if matches!(args.element, RowType::F32) { TAPS3_FEW_F32 } else { TAPS3_FEW };
    let few = match taps3_threads(args, 1, 1) {
        Some(threads) => threads <= most,
        None => false,
    };
    let (pixels, rows) = if few { (1, 1) } else { (TAPS_PIXELS, taps3_rows(args)) };
    let threads = match taps3_threads(args, rows, pixels) {
        Some(threads) if threads < 1 << 31 => threads as u32,
        _ => return None,
    };
    Some(Taps3Args {
        conv: *args,
        threads,
        rows,
        few: few as u32,
        by_quads: Divisor::new(g.groups / 4),
        by_across: Divisor::new(g.out[1].div_ceil(pixels)),
        by_down: Divisor::new(g.out[0].div_ceil(rows)),
    })
}

/// Output pixels of a row that one thread of the general depthwise kernels computes, for four channels, where
/// [`taps_fours`] says so.
pub const TAPS_FOUR: u32 = 4;
/// Blocks of a general depthwise kernel whose threads take four channels of [`TAPS_FOUR`] outputs each, for
/// `pixel_tiles` of that many in a row: windows 3, 5 or 7 wide, steps of 1 and 2 along a row, channels that are
/// groups of four side by side, one output channel each. `None`: a thread takes an output at a time.
pub const fn taps_fours(args: &Args) -> Option<u32> {
    let g = &args.geometry;
    let odd = g.s == 3 || g.s == 5 || g.s == 7;
    let form = odd && (g.stride[1] == 1 || g.stride[1] == 2);
    if !form || g.dilation[1] != 1 || g.terms > 1024 || args.vectors == 0 || g.k != 1 {
        return None;
    }
    let rows = args.images as u64 * g.out[0] as u64;
    let threads = (rows * g.out[1].div_ceil(TAPS_FOUR) as u64).checked_mul(g.groups as u64 / 4);
    match threads {
        Some(threads) if threads < 1 << 31 => Some(threads.div_ceil(TAPS_THREADS as u64) as u32),
        _ => None,
    }
}

/// Threads of a 3 by 3 depthwise kernel with so many rows of so many outputs each.
const fn taps3_threads(args: &Args, rows: u32, pixels: u32) -> Option<u64> {
    let g = &args.geometry;
    let outputs = g.out[0].div_ceil(rows) as u64 * g.out[1].div_ceil(pixels) as u64;
    outputs.checked_mul(args.images as u64 * (g.groups as u64 / 4))
}

/// Rows of outputs of a thread of a 3 by 3 depthwise kernel: as many in each piece of an image.
const fn taps3_rows(args: &Args) -> u32 {
    let (out, f32) = (args.geometry.out[0], matches!(args.element, RowType::F32));
    // Fitted on an H100; a step of 2 shares one line of three.
    let most = match args.geometry.stride[0] {
        1 if f32 => 5,
        1 => 14,
        _ => 3,
    };
    let mut pieces = out.div_ceil(most);
    while pieces < out {
        match taps3_threads(args, out.div_ceil(pieces), TAPS_PIXELS) {
            Some(threads) if threads < TAPS_ENOUGH => pieces *= 2,
            _ => break,
        }
    }
    out.div_ceil(pieces)
}

macro_rules! taps {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $args:ident $smem:expr, $blocks:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = $args;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, TAPS_THREADS).with_smem($smem).with_min_blocks($blocks);
        }
    )* };
}

/// Bytes of a block's slots: four numbers for each output of each thread.
pub const TAPS3_SLOTS: u32 = TAPS_THREADS * TAPS_PIXELS * 16;

/// Bytes of a thread for the lines that are under way, of elements of `bytes` bytes.
pub const fn taps3_queue_bytes(bytes: u32) -> u32 {
    // Four or five lines of four columns, four channels each; three or four of five columns.
    if bytes == 4 { 16 * 4 * 4 } else { 20 * 4 * 2 }
}

/// Shared memory of a block: slots, and lines under way.
const fn taps3_smem(bytes: u32) -> u32 {
    TAPS3_SLOTS + TAPS_THREADS * taps3_queue_bytes(bytes)
}

taps! {
    /// Depthwise, `f32`, any window.
    Conv2dTapsF32 "conv2d_taps_f32" Args 0, 4;
    /// Depthwise, `f16` and `bf16`, any window.
    Conv2dTapsHalf "conv2d_taps_half" Args 0, 2;
    /// Depthwise, `f32`, 3 by 3.
    Conv2dTaps3F32 "conv2d_taps3_f32" Taps3Args taps3_smem(4), 4;
    /// Depthwise, `f16`, 3 by 3.
    Conv2dTaps3F16 "conv2d_taps3_f16" Taps3Args taps3_smem(2), 4;
    /// Depthwise, `bf16`, 3 by 3.
    Conv2dTaps3Bf16 "conv2d_taps3_bf16" Taps3Args taps3_smem(2), 4;
}

/// Terms of a step of the tensor-core kernels.
pub const MMA_STEP: u32 = 64;

macro_rules! mma {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $pixels:literal $channels:literal $threads:literal $stages:literal $blocks:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl $name {
            /// What a block computes.
            pub const TILE: Tile = Tile { pixels: $pixels, channels: $channels };
            /// Steps in shared memory.
            pub const STAGES: u32 = $stages;
        }

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, $threads)
                .with_smem($stages * MMA_STEP * 2 * ($pixels + $channels))
                .with_min_blocks($blocks)
                .with_min_sm(80);
        }
    )* };
}

mma! {
    /// `bf16` on tensor cores.
    Conv2dMmaBf16 "conv2d_mma_bf16" 64 64 128 3 3;
    /// `f16` on tensor cores.
    Conv2dMmaF16 "conv2d_mma_f16" 64 64 128 3 3;
}

/// Threads of a block of the Hopper kernels: two warpgroups.
pub const HOPPER_THREADS: u32 = 256;

macro_rules! hopper {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $channels:literal $stages:literal $blocks:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl $name {
            /// What a block computes.
            pub const TILE: Tile = Tile { pixels: 128, channels: $channels };
            /// Steps in shared memory.
            pub const STAGES: u32 = $stages;
        }

        impl Kernel for $name {
            type Args = Args;
            // The steps start at a multiple of 1,024.
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, HOPPER_THREADS)
                .with_smem($stages * MMA_STEP * 2 * (128 + $channels) + 1024)
                .with_min_blocks($blocks)
                .only_on(90);
        }
    )* };
}

hopper! {
    /// `bf16` on a Hopper GPU's tensor cores.
    Conv2dHopperBf16 "conv2d_hopper_bf16" 128 6 1;
    /// `bf16` on a Hopper GPU's tensor cores, fewer channels.
    Conv2dHopperNarrowBf16 "conv2d_hopper_narrow_bf16" 64 4 2;
    /// `f16` on a Hopper GPU's tensor cores.
    Conv2dHopperF16 "conv2d_hopper_f16" 128 6 1;
    /// `f16` on a Hopper GPU's tensor cores, fewer channels.
    Conv2dHopperNarrowF16 "conv2d_hopper_narrow_f16" 64 4 2;
}

/// Threads of a block of the joining kernels; each makes one output.
pub const JOIN_THREADS: u32 = 256;

/// Joins the splits of an `f32` convolution.
pub enum Conv2dJoinF32 {}
/// Joins the splits of an `f16` or `bf16` convolution.
pub enum Conv2dJoinHalf {}

impl Kernel for Conv2dJoinF32 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("conv2d_join_f32", JOIN_THREADS).with_min_blocks(4);
}

impl Kernel for Conv2dJoinHalf {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("conv2d_join_half", JOIN_THREADS).with_min_blocks(4);
}
