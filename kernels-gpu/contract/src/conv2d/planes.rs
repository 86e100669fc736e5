//! The depthwise kernels for images in planes (`[N, C, H, W]`): square windows of 3, 5 or 7 taps a side, steps
//! of 1 and 2, zero padding, any channel multiplier.
//!
//! A thread walks down some rows of outputs of one plane, [`PLANES_FOUR`] neighbours of each, or one: it reads a
//! row of the input once and gives it to all rows of outputs that it meets.

use super::{Args, Divisor};
use crate::launch::{Kernel, LaunchSpec};

/// Threads of a block.
pub const PLANES_THREADS: u32 = 128;
/// Neighbouring outputs of a thread, where rows start at multiples of as many and padding leaves it so.
pub const PLANES_FOUR: u32 = 4;
/// Threads that keep a large GPU busy: more rows for each only where there are as many.
const ENOUGH: u64 = 3 << 13;

/// The only parameter of the kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanesArgs {
    /// Tensors, shapes and the epilogue. What says how blocks share the work plays no part.
    pub conv: Args,
    /// Threads that have work: of a piece fastest, then pieces of a plane, then planes of `y`.
    pub threads: u32,
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

/// How the kernels of this file compute a depthwise convolution; `None` where another one has to.
pub const fn planes(args: &Args) -> Option<PlanesArgs> {
    let g = &args.geometry;
    let [a, b] = g.stride;
    let [edge_h, edge_w] = g.edges;
    let zeros = edge_h.source(-1) == -1 && edge_h.source(edge_h.len) == -1;
    let square = (g.s == 3 || g.s == 5 || g.s == 7) && g.taps == g.s * g.s && g.terms == g.taps;
    let dense = g.dilation[0] == 1 && g.dilation[1] == 1 && a == b && (a == 1 || a == 2);
    let in_planes = g.x_step[1] == 1 && g.y_step[0] == 1 && g.y_step[1] == g.out[0] * g.out[1];
    if !square || !dense || !in_planes || !zeros || g.x_step[0] != edge_w.len as u32 {
        return None;
    }
    let four = PLANES_FOUR;
    let aligned = (edge_w.len as u32).is_multiple_of(four) && g.out[1].is_multiple_of(four) && g.pad[1] as u32 == g.s / 2;
    let outputs = if aligned { four } else { 1 };
    let across = g.out[1] / outputs;
    let channels = g.k * g.groups;
    let columns = args.images as u64 * channels as u64 * across as u64;
    // The more rows of outputs share a row of the input, the longer it takes until all do.
    let most = 8 * (g.s - 1);
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
        threads,
        outputs,
        rows,
        by_across: Divisor::new(across),
        by_down: Divisor::new(down),
        by_channels: Divisor::new(channels),
        by_multiplier: Divisor::new(g.k),
    })
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
}
