//! f16 and bf16 on a Hopper GPU by square tiles: each step a product of pixels and weights as the copy engine brings
//! them, whose outputs leave by the copy engine too.
//!
//! A tile is [`POSITIONS`] output pixels by one or two blocks of [`BLOCK`] output channels, a *step* 64 input channels of
//! one tap. Two warpgroups multiply, each a tile of its own, so that one writes its outputs while the other multiplies.
//! Or, where tiles are few (*whole*), a tile is a block of either, all that it reads has places of its own in shared
//! memory, and the blocks of a cluster may share its steps.
//!
//! | map         | tensor                                             | box                       |
//! |-------------|----------------------------------------------------|---------------------------|
//! | `entries`   | the images, by output pixels                       | 64 channels, the pixels of a tile |
//! | `weights`   | `[group][tap][channel][output channel]`            | 64 output channels by 64  |
//! | `outputs`   | `y` as `[1][pixel][group][output channel]`         | 64 channels, [`POSITIONS`] pixels |
//! | `residuals` | the residual likewise, or `y` where there is none  | the same                  |

use super::{Activation, Args, Divisor};
use crate::launch::{Kernel, LaunchSpec, TensorMap};

/// Output pixels of a tile.
pub const POSITIONS: u32 = 128;
/// Output channels of a block.
pub const BLOCK: u32 = 64;
/// Threads that multiply.
pub const CONSUMERS: u32 = 256;
/// Threads of a block: one of a warp more brings weights, one of another pixels.
pub const THREADS: u32 = CONSUMERS + 64;
/// Bytes of the pixels of a step.
pub const PIXEL_BYTES: u32 = POSITIONS * 128;
/// Bytes of the weights of a step, of a block of output channels.
pub const WEIGHT_BYTES: u32 = BLOCK * 128;
/// Bytes of barriers.
pub const BARRIER_BYTES: u32 = 256;
/// Bytes of the tables: barriers, a bias for each output channel of either warpgroup.
pub const TABLE_BYTES: u32 = BARRIER_BYTES + 2 * 2 * BLOCK * 4;

/// What a block of threads makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Square {
    /// Blocks of output channels of a tile: 1 or 2.
    pub blocks: u32,
    /// Steps in shared memory.
    pub stages: u32,
}

impl Square {
    /// Of so many blocks.
    #[inline(always)]
    pub const fn of(blocks: u32) -> Self {
        Self { blocks, stages: if blocks == 1 { 7 } else { 5 } }
    }

    /// Bytes of a step.
    #[inline(always)]
    pub const fn step_bytes(self) -> u32 {
        PIXEL_BYTES + self.blocks * WEIGHT_BYTES
    }

    /// Bytes of the outputs of a tile.
    #[inline(always)]
    pub const fn output_bytes(self) -> u32 {
        POSITIONS * BLOCK * self.blocks * 2
    }

    /// Bytes of shared memory: tables; from a multiple of 1,024 on steps, and the outputs of either warpgroup.
    const fn bytes(self) -> u32 {
        TABLE_BYTES + 1024 + self.stages * self.step_bytes() + 2 * self.output_bytes()
    }
}

/// The tiles of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// By tiles of output channels.
    pub by_columns: Divisor,
    /// By tiles of output pixels.
    pub by_positions: Divisor,
    /// By output pixels of a line.
    pub by_line: Divisor,
    /// By output lines of an image.
    pub by_lines: Divisor,
    /// Tiles of all groups.
    pub tiles: u32,
    /// Steps of a tile.
    pub steps: u32,
    /// Blocks that share the steps of a tile: a power of two.
    pub splits: u32,
    /// Steps of each of those but the last.
    pub share: u32,
}

/// The parameter of the kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PointsArgs {
    /// The images.
    pub entries: TensorMap,
    /// The weights.
    pub weights: TensorMap,
    /// Where outputs go.
    pub outputs: TensorMap,
    /// What is added to them.
    pub residuals: TensorMap,
    /// Tensors and shape.
    pub base: Args,
    /// The tiles.
    pub walk: Tiles,
}

impl PointsArgs {
    /// The launch by tiles of so many positions and output channels, where the kernels take it: channels of a group in 8s
    /// (in 64s where there are several groups) and output channels too, side by side (`vectors`), zeros for padding; no
    /// activation but ReLU; steps of 8 at most.
    pub const fn new(base: Args, positions: u32, channels: u32) -> Option<Self> {
        let g = &base.geometry;
        let whole = g.groups == 1 || g.c.is_multiple_of(64);
        let plain = matches!(base.activation, Activation::None | Activation::Relu);
        if base.vectors == 0 || !whole || !plain || !g.k.is_multiple_of(8) {
            return None;
        }
        // Numbers that a map or a copy has places for.
        let reach = [g.taps / g.s - 1, g.s - 1];
        let mut axis = 0;
        while axis < 2 {
            if g.stride[axis] > 8 || reach[axis] as u64 * g.dilation[axis] as u64 > 255 {
                return None;
            }
            axis += 1;
        }
        let (columns, position_tiles) = (g.k.div_ceil(channels), g.pixels.div_ceil(positions));
        let tiles = columns as u64 * position_tiles as u64 * g.groups as u64;
        if tiles >= 1 << 31 || g.pixels >= (1 << 31) - positions {
            return None;
        }
        let steps = g.c.div_ceil(64) * g.taps;
        let walk = Tiles {
            by_columns: Divisor::new(columns),
            by_positions: Divisor::new(position_tiles),
            by_line: Divisor::new(g.out[1]),
            by_lines: Divisor::new(g.out[0]),
            tiles: tiles as u32,
            steps,
            splits: 1,
            share: steps,
        };
        let none = TensorMap([0; 16]);
        Some(Self { entries: none, weights: none, outputs: none, residuals: none, base, walk })
    }

    /// The same by `splits` blocks a tile.
    pub const fn shared_by(self, splits: u32) -> Self {
        let walk = Tiles { splits, share: self.walk.steps.div_ceil(splits), ..self.walk };
        Self { walk, ..self }
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $blocks:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = PointsArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS)
                .with_smem(Square::of($blocks).bytes())
                .with_min_blocks(1)
                .with_tensor_maps()
                .only_on(90);
        }

        const _: () = assert!(Square::of($blocks).bytes() <= 227 * 1024);
        const _: () = assert!(8 * (2 * Square::of($blocks).stages + 4) <= BARRIER_BYTES);
    )* };
}

kernels! {
    /// `bf16`, tiles of 128 output channels.
    Conv2dPointsBf16 "conv2d_points_bf16" 2;
    /// `bf16`, tiles of 64.
    Conv2dPointsNarrowBf16 "conv2d_points_narrow_bf16" 1;
    /// `f16`, tiles of 128 output channels.
    Conv2dPointsF16 "conv2d_points_f16" 2;
    /// `f16`, tiles of 64.
    Conv2dPointsNarrowF16 "conv2d_points_narrow_f16" 1;
}

/// Output pixels of a tile of the kernels that ask for all of a tile at once.
pub const WHOLE_SIDE: u32 = BLOCK;
/// Bytes of a step of such a tile: pixels, then weights.
pub const WHOLE_STEP: u32 = WHOLE_SIDE * 128 + WEIGHT_BYTES;
/// Most steps of a block.
pub const WHOLE_STEPS: u32 = 13;
/// Blocks of a cluster that share the steps of a tile, at most.
pub const WHOLE_SPLITS: u32 = 8;
/// Threads of a block.
pub const WHOLE_THREADS: u32 = 128;
/// Words from a position's sums to the next one's.
pub const WHOLE_PITCH: u32 = BLOCK + 8;

/// Bytes of shared memory of a block that takes so many steps: barriers; from a multiple of 1,024 on steps, where the
/// sums stand later.
const fn whole_bytes(steps: u32) -> u32 {
    let (steps, sums) = (steps * WHOLE_STEP, WHOLE_SIDE * WHOLE_PITCH * 4);
    BARRIER_BYTES + 1024 + if steps > sums { steps } else { sums }
}

macro_rules! whole_kernels {
    ($($(#[$doc:meta])* $name:ident $symbol:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = PointsArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, WHOLE_THREADS)
                .with_smem(whole_bytes(WHOLE_STEPS))
                .with_min_blocks(4)
                .with_tensor_maps()
                .only_on(90);

            fn smem_bytes(args: &PointsArgs) -> u32 {
                whole_bytes(args.walk.share)
            }

            fn cluster(args: &PointsArgs) -> u32 {
                args.walk.splits
            }
        }
    )* };
}

whole_kernels! {
    /// `bf16`, all that a tile reads asked for at once, the steps of a tile shared by the blocks of a cluster.
    Conv2dPointsWholeBf16 "conv2d_points_whole_bf16";
    /// `f16`.
    Conv2dPointsWholeF16 "conv2d_points_whole_f16";
}
