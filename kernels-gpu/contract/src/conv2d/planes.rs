//! The depthwise kernels for images in planes (`[N, C, H, W]`): square windows of 3, 5 or 7 taps a side, steps
//! of 1 and 2, zero padding, any channel multiplier. And the one for channels last, `f32`, windows of 5.
//!
//! A thread walks down some rows of outputs of one plane, [`PLANES_FOUR`] neighbours of each, or one: it reads a
//! row of the input once and gives it to all rows of outputs that it meets.

use super::{Args, Divisor};
use crate::launch::{Kernel, LaunchSpec};
use crate::num::RowType;

/// Threads of a block.
pub const PLANES_THREADS: u32 = 128;
/// Neighbouring outputs of a thread, where rows start at multiples of as many and padding leaves it so.
pub const PLANES_FOUR: u32 = 4;
/// Threads that keep a large GPU busy: more rows for each only where there are as many.
const ENOUGH: u64 = 1 << 15;

/// The only parameter of the kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanesArgs {
    /// Tensors, shapes and the epilogue. What says how blocks share the work plays no part.
    pub conv: Args,
    /// Threads that have work: of a piece fastest, then pieces of a plane, then planes of `y`; channels last, channels
    /// fastest, then as before, then images.
    pub threads: u32,
    /// Not 0: channels last.
    pub last: u32,
    /// Neighbouring outputs of a thread: [`PLANES_FOUR`] or 1.
    pub outputs: u32,
    /// Rows of outputs of a thread.
    pub rows: u32,
    /// By the threads of a row of outputs.
    pub by_across: Divisor,
    /// By the pieces of a plane, of `rows` rows each.
    pub by_down: Divisor,
    /// By output channels.
    pub by_channels: Divisor,
    /// By output channels of an input channel.
    pub by_multiplier: Divisor,
}

/// How the kernels of this file compute a depthwise convolution; `None` where another one has to: images in planes, or
/// channels last, `f32` and windows of 5.
pub const fn planes(args: &Args) -> Option<PlanesArgs> {
    let g = &args.geometry;
    let [a, b] = g.stride;
    let [edge_h, edge_w] = g.edges;
    let zeros = edge_h.source(-1) == -1 && edge_h.source(edge_h.len) == -1;
    let square = (g.s == 3 || g.s == 5 || g.s == 7) && g.taps == g.s * g.s && g.terms == g.taps;
    let dense = g.dilation[0] == 1 && g.dilation[1] == 1 && a == b && (a == 1 || a == 2);
    // One of the steps is 1 where an image is a single pixel or has a single channel: either form takes that.
    let f32 = matches!(args.element, RowType::F32);
    let last = g.x_step[2] == 1 && g.y_step[1] == 1 && g.s == 5 && f32;
    let in_planes = g.x_step[1] == 1
        && g.y_step[0] == 1
        && g.y_step[1] == g.out[0] * g.out[1]
        && g.x_step[0] == edge_w.len as u32;
    if !square || !dense || !zeros || !(in_planes || last) {
        return None;
    }
    let four = PLANES_FOUR;
    let aligned = (edge_w.len as u32).is_multiple_of(four) && g.out[1].is_multiple_of(four) && g.pad[1] as u32 == g.s / 2;
    let outputs = if last || aligned { four } else { 1 };
    let across = g.out[1].div_ceil(outputs);
    let channels = g.k * g.groups;
    let columns = args.images as u64 * channels as u64 * across as u64;
    let most = most_rows(args, last, outputs);
    let mut pieces = g.out[0].div_ceil(most);
    while pieces < g.out[0] && columns * (pieces as u64) < ENOUGH {
        pieces *= 2;
    }
    let rows = g.out[0].div_ceil(pieces);
    let down = g.out[0].div_ceil(rows);
    let threads = match columns.checked_mul(down as u64) {
        Some(threads) if threads <= (1 << 31) - PLANES_THREADS as u64 => threads as u32,
        _ => return None,
    };
    Some(PlanesArgs {
        conv: *args,
        last: last as u32,
        threads,
        outputs,
        rows,
        by_across: Divisor::new(across),
        by_down: Divisor::new(down),
        by_channels: Divisor::new(channels),
        by_multiplier: Divisor::new(g.k),
    })
}

/// Most rows of outputs of a thread, fitted on an H100. The more of them share a row of the input, the longer it takes
/// until all do; and what is near in time should be near in memory.
const fn most_rows(args: &Args, last: bool, outputs: u32) -> u32 {
    let g = &args.geometry;
    let f32 = matches!(args.element, RowType::F32);
    match (g.s, g.stride[0]) {
        (3, 1) if outputs == 1 => if f32 { 7 } else { 16 },
        (3, 1) if f32 => 3,
        (3, 1) => {
            let eighth = g.out[0].div_ceil(8);
            if eighth < 16 { eighth } else { 16 }
        }
        (3, _) if outputs == 1 => if f32 { 3 } else { 16 },
        (3, _) => if f32 { 2 } else { 4 },
        (5, _) => if last { 28 } else if outputs == 1 { 16 } else { 10 },
        _ => 48,
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $blocks:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = PlanesArgs;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, PLANES_THREADS).with_min_blocks($blocks);
        }
    )* };
}

kernels! {
    /// Depthwise in planes, `f32`, 3 by 3.
    Conv2dPlanes3F32 "conv2d_planes3_f32" 6;
    /// Depthwise in planes, `f16`, 3 by 3.
    Conv2dPlanes3F16 "conv2d_planes3_f16" 6;
    /// Depthwise in planes, `bf16`, 3 by 3.
    Conv2dPlanes3Bf16 "conv2d_planes3_bf16" 6;
    /// Depthwise in planes, `f32`, 5 by 5.
    Conv2dPlanes5F32 "conv2d_planes5_f32" 4;
    /// Depthwise in planes, `f16`, 5 by 5.
    Conv2dPlanes5F16 "conv2d_planes5_f16" 4;
    /// Depthwise in planes, `bf16`, 5 by 5.
    Conv2dPlanes5Bf16 "conv2d_planes5_bf16" 4;
    /// Depthwise in planes, `f32`, 7 by 7.
    Conv2dPlanes7F32 "conv2d_planes7_f32" 3;
    /// Depthwise in planes, `f16`, 7 by 7.
    Conv2dPlanes7F16 "conv2d_planes7_f16" 3;
    /// Depthwise in planes, `bf16`, 7 by 7.
    Conv2dPlanes7Bf16 "conv2d_planes7_bf16" 3;
    /// Depthwise, channels last, `f32`, 5 by 5.
    Conv2dTaps5F32 "conv2d_taps5_f32" 4;
}
