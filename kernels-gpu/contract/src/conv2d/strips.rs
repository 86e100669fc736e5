//! Ternary weights on a Hopper GPU, windows of one tap, outputs of 16 bits: strips of 64 output channels.
//!
//! The positions and entries of [`super::bulk_lines`]. A block takes some strips of one tile of positions after the
//! other; the pixels of a tile come once, and those of later tiles while it is multiplied. Its warpgroups take strips in
//! turn, or, where a block has one, tiles. The sums of a strip are finished as the tensor cores leave them, rounded, and
//! turned round in shared memory, so that 64 channels of a pixel, 128 bytes, are written together.

use super::bulk_lines::{Lines, Walk};
use super::{Divisor, int8};
use crate::launch::{Kernel, LaunchSpec, TensorMap};
use crate::num::RowType;

pub use super::lines::{CHANNELS, ENTRY_BYTES, MOST_TERMS};
use super::whole::whole_steps;
pub use super::whole::{MOST_BYTES, WARPGROUPS};

/// Most rounds of 128 channels of all tiles in shared memory.
pub const MOST_STAGES: u32 = 64;
/// Most tiles in shared memory.
pub const MOST_PLACES: u32 = 8;
/// Most strips of a block.
pub const MOST_STRIPS: u32 = 32;
/// Bytes of the barriers: of each stage, and of each tile.
pub const BARRIER_BYTES: u32 = 8 * (MOST_STAGES + MOST_PLACES);
/// Bytes for each output channel: its multiplier and its bias.
pub const CHANNEL_BYTES: u32 = 8;
/// Bytes for each position: scale and its reciprocal, pixel.
pub const HEAD_BYTES: u32 = 12;
/// Bytes for what each warp saw.
pub const RARE_BYTES: u32 = 4 * 4 * WARPGROUPS;
/// Most images.
pub const MOST_IMAGES: u32 = 1024;

/// Bytes of the table of images: scale and its reciprocal.
pub const fn images_bytes(images: u32) -> u32 {
    (8 * images).next_multiple_of(16)
}

/// Bytes of the rounded outputs of a warpgroup.
pub const fn staging_bytes(positions: u32) -> u32 {
    2 * CHANNELS * positions
}

/// Bytes of the tables of a block: barriers, channels, images, two tables of positions a warpgroup.
pub const fn tables_bytes(positions: u32, strips: u32, images: u32) -> u32 {
    let channels = strips * CHANNELS * CHANNEL_BYTES;
    let heads = 2 * WARPGROUPS * HEAD_BYTES * positions;
    BARRIER_BYTES + channels + images_bytes(images) + RARE_BYTES + heads
}

/// The parameter of the kernel, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StripsArgs {
    /// The images, by entries.
    pub entries: TensorMap,
    /// Tensors and shape.
    pub base: int8::Args,
    /// The way; `by_columns` counts the blocks of a tile, and `tiles` tiles of positions.
    pub walk: Walk,
    /// Positions of a tile: those of the kernel.
    pub positions: u32,
    /// Strips of a block.
    pub strips: u32,
    /// Blocks that share the tiles of the same strips.
    pub step: u32,
    /// Tiles that have a place in shared memory.
    pub places: u32,
    /// By rounds.
    pub by_rounds: Divisor,
}

impl StripsArgs {
    /// The launch for `images` images, where the kernel takes it: one group, channels side by side
    /// (`vectors`) in [`whole_steps`], one tap, outputs of 16 bits in eights, no residual, a cheap activation. By tiles of `positions` and blocks of
    /// `strips` strips, `resident` blocks or as few as there is work for, each with up to `places` tiles in shared memory.
    pub const fn new(
        base: int8::Args,
        images: u32,
        positions: u32,
        strips: u32,
        resident: u32,
        places: u32,
    ) -> Option<Self> {
        let g = &base.geometry;
        let fits = base.vectors != 0
            && g.taps == 1
            && g.groups == 1
            && whole_steps(g)
            && g.k.is_multiple_of(8)
            && g.y_step[1] == 1
            && images <= MOST_IMAGES
            && g.terms <= MOST_TERMS;
        let plain = base.residual.is_null() && base.activation.is_cheap();
        if !fits || !plain || matches!(base.element, RowType::F32) || strips == 0 || strips > MOST_STRIPS {
            return None;
        }
        let lines = Lines { positions, ring: 2 * MOST_BYTES };
        let Some(walk) = Walk::new(g, images, 16, lines) else {
            return None;
        };
        let columns = g.k.div_ceil(CHANNELS * strips);
        let tiles = walk.tiles / g.k.div_ceil(CHANNELS);
        let wanted = if resident > columns { resident / columns } else { 1 };
        // A warpgroup has tiles of its own where a block has one strip.
        let most = if strips == 1 { tiles.div_ceil(WARPGROUPS) } else { tiles };
        let step = if wanted < most { wanted } else { most };
        let own = most.div_ceil(step);
        let mut places = if own < places { own } else { places };
        if strips == 1 {
            places *= WARPGROUPS;
        }
        if places == 0 || places > MOST_PLACES || places * walk.rounds > MOST_STAGES {
            return None;
        }
        let walk = Walk { by_columns: Divisor::new(columns), tiles, ..walk };
        let by_rounds = Divisor::new(walk.rounds);
        let entries = TensorMap([0; 16]);
        let args = Self { entries, base, walk, positions, strips, step, places, by_rounds };
        if args.bytes() > MOST_BYTES { None } else { Some(args) }
    }

    /// Bytes of shared memory of a block: tables; outputs; entries from a multiple of 1,024 on.
    pub const fn bytes(&self) -> u32 {
        let stages = self.places * self.walk.rounds * self.positions * ENTRY_BYTES;
        let tables = tables_bytes(self.positions, self.strips, self.walk.images);
        tables + 1024 + WARPGROUPS * staging_bytes(self.positions) + stages
    }

    /// Blocks of the launch.
    pub const fn blocks(&self) -> u32 {
        self.step * self.base.geometry.k.div_ceil(CHANNELS * self.strips)
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $positions:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl $name {
            /// Positions of a tile.
            pub const POSITIONS: u32 = $positions;
        }

        impl Kernel for $name {
            type Args = StripsArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, 128 * WARPGROUPS)
                .with_smem(MOST_BYTES)
                .with_min_blocks(2)
                .with_tensor_maps()
                .only_on(90);

            fn smem_bytes(args: &StripsArgs) -> u32 {
                args.bytes()
            }
        }
    )* };
}

kernels! {
    /// Ternary weights, one tap, outputs of 16 bits, by strips of 64 output channels.
    Conv2dTernaryStrips "conv2d_ternary_strips" 128;
    /// The same by smaller tiles.
    Conv2dTernaryStrips96 "conv2d_ternary_strips96" 96;
}
