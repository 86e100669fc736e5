//! Ternary weights on a Hopper GPU, all that a tile reads asked for at once.
//!
//! The lines, entries and planes of [`super::bulk_lines`]; but the entries of a tile, of all channels and planes,
//! have places of their own in shared memory, so that nothing waits for a place to become free: what a layer
//! of few steps pays for is round trips. Warpgroups take 64 output channels each, or share the terms of 64: their sums
//! are integers, added in any order the same. The weights are factors in registers, decoded from codes that come
//! straight from memory.

use super::bulk_lines::{Lines, Walk};
use super::{Divisor, Geometry, int8};
use crate::launch::{Kernel, LaunchSpec, TensorMap};

pub use super::lines::{CHANNELS, ENTRY_BYTES, MOST_TERMS};

/// Most rounds: of 128 channels each.
pub const MOST_ROUNDS: u32 = 64;
/// Bytes for each output: what divides its sums, and its pixel.
pub const HEAD_BYTES: u32 = 16;
/// Words from an output's sums to the next one's.
pub const PITCH: u32 = CHANNELS + 4;

/// Warpgroups of a block.
pub const WARPGROUPS: u32 = 2;
/// Most bytes of shared memory of a block.
pub const MOST_BYTES: u32 = 227 * 1024;

/// What a block is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Positions of a tile.
    pub positions: u32,
}

impl Whole {
    /// Bytes of the tables: a barrier a round, what [`HEAD_BYTES`] are for, a multiplier for each output channel.
    pub const fn tables(self) -> u32 {
        8 * MOST_ROUNDS + HEAD_BYTES * self.positions + 4 * CHANNELS * WARPGROUPS
    }

    /// Bytes of shared memory of a block: tables; entries from a multiple of 1,024 on, where the sums stand later.
    pub const fn bytes(self, walk: &Walk) -> u32 {
        let entries = walk.stages * walk.entries * ENTRY_BYTES;
        let sums = WARPGROUPS * self.positions * PITCH * 4;
        self.tables() + 1024 + if entries > sums { entries } else { sums }
    }
}

/// Whether the steps of a sum are of 128 channels that follow one another: channels in 128s, or more of them in one group and
/// one tap, where the entries of the last step end in zeros.
pub const fn whole_steps(g: &Geometry) -> bool {
    let ends = g.taps == 1 && g.groups == 1 && g.c > ENTRY_BYTES;
    g.c.is_multiple_of(ENTRY_BYTES) || ends
}

/// The parameter of the kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WholeArgs {
    /// The images, by entries.
    pub entries: TensorMap,
    /// Tensors and shape.
    pub base: int8::Args,
    /// The way; `by_columns` counts the tiles of this kernel, and so does `tiles`.
    pub walk: Walk,
    /// By rounds.
    pub by_rounds: Divisor,
    /// Warpgroups that share the terms of 64 output channels: 1 or 2.
    pub parts: u32,
    /// Steps of each of those but the last: of 128 channels of a tap.
    pub share: u32,
}

impl WholeArgs {
    /// The launch for `images` images, where the kernel takes it: channels side by side (`vectors`) in [`whole_steps`],
    /// entries that fit.
    pub const fn new(
        base: int8::Args,
        images: u32,
        whole: Whole,
        parts: u32,
    ) -> Option<Self> {
        let g = &base.geometry;
        if base.vectors == 0 || !whole_steps(g) || g.terms > MOST_TERMS {
            return None;
        }
        let lines = Lines { positions: whole.positions, ring: 2 * MOST_BYTES };
        let Some(walk) = Walk::new(g, images, 16, lines) else {
            return None;
        };
        let stages = walk.rounds * walk.planes[0] * walk.planes[1];
        if walk.rounds > MOST_ROUNDS || stages > MOST_BYTES / (walk.entries * ENTRY_BYTES) {
            return None;
        }
        let columns = g.k.div_ceil(CHANNELS * (WARPGROUPS / parts));
        let positions = walk.tiles / g.groups / g.k.div_ceil(CHANNELS);
        let walk = Walk {
            by_columns: Divisor::new(columns),
            by_positions: Divisor::new(positions),
            tiles: columns * positions * g.groups,
            stages,
            ..walk
        };
        if whole.bytes(&walk) > MOST_BYTES {
            return None;
        }
        let share = (walk.rounds * g.taps).div_ceil(parts);
        let by_rounds = Divisor::new(walk.rounds);
        Some(Self { entries: TensorMap([0; 16]), base, walk, by_rounds, parts, share })
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $positions:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl $name {
            /// What a block is made of.
            pub const WHOLE: Whole =
                Whole { positions: $positions };
        }

        impl Kernel for $name {
            type Args = WholeArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, 128 * WARPGROUPS)
                .with_smem(MOST_BYTES)
                .with_min_blocks(2)
                .with_tensor_maps()
                .only_on(90);

            fn smem_bytes(args: &WholeArgs) -> u32 {
                $name::WHOLE.bytes(&args.walk)
            }
        }
    )* };
}

kernels! {
    /// Tiles of 32 positions.
    Conv2dTernaryWhole32 "conv2d_ternary_whole32" 32;
    /// Tiles of 48 positions.
    Conv2dTernaryWhole48 "conv2d_ternary_whole48" 48;
    /// Tiles of 64 positions.
    Conv2dTernaryWhole64 "conv2d_ternary_whole64" 64;
    /// Tiles of 96 positions.
    Conv2dTernaryWhole96 "conv2d_ternary_whole96" 96;
    /// Tiles of 128 positions.
    Conv2dTernaryWhole128 "conv2d_ternary_whole128" 128;
}
