//! Ternary weights on a Hopper GPU: output pixels by lines, so that a tap is a distance.
//!
//! Output pixels are numbered along *lines*, one for each row of outputs, each as long as an output row
//! and what its windows read beyond it; the lines of an image follow one another, and the images. Entry
//! `e` of that numbering also names a pixel of the padded input, of every `stride`-th row and column.
//! Then tap (r, s) of output `e` reads entry `e + r * dilation * line + s * dilation`: a block brings the
//! entries of its outputs to shared memory once, and the tensor cores read every tap at a distance. A
//! few entries are no outputs, and their sums are dropped. Neighbouring lines, and images, share the
//! zeros between them where the stride is 1.
//!
//! With a stride of 2 there are *planes*: the rows and columns of the input of either parity, each of
//! which serves the taps that fall on it.
//!
//! A *pair* is 64 channels of one tap, two products of depth 32; a *step* is two pairs. A *stage* is what
//! shared memory takes at a time: one or two pairs of channels of one plane, for all of its taps, in
//! whole steps. A *round* is the stages of the same channels. The blocks of a cluster may share the steps
//! of a tile; their `i32` sums are added, in any order the same.

use super::{Divisor, Geometry, int8};
use crate::launch::{Kernel, LaunchSpec};

/// Output channels of a block.
pub const CHANNELS: u32 = 64;
/// Threads of a block: a warpgroup.
pub const THREADS: u32 = 128;
/// Channels of a pair.
pub const PAIR: u32 = 64;
/// Bytes of an entry in shared memory: two pairs.
pub const ENTRY_BYTES: u32 = 128;
/// Most stages in shared memory.
pub const MOST_STAGES: u32 = 5;
/// Most terms of a sum: 64 times as much fits `i32`.
pub const MOST_TERMS: u32 = (1 << 18) - 1;
/// Most steps of a round.
pub const MOST_STEPS: u32 = 64;
/// Bytes for each step of a round: distance and word of either pair.
pub const STEP_BYTES: u32 = 16;
/// Bytes for each output of what its epilogue wants: scale, its divisor, and pixel.
pub const HEAD_BYTES: u32 = 16;
/// Bytes for each entry: where it is in the input, and which planes have it.
pub const ROW_BYTES: u32 = 8;
/// Blocks of a cluster that share tiles.
pub const CLUSTER: u32 = 8;

/// Shared memory of a kernel, and how much of the numbering it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Entries of a block that may be outputs.
    pub positions: u32,
    /// Bytes of the stages.
    pub ring: u32,
}

impl Lines {
    /// Most entries of a stage: there are two stages.
    pub const fn most_entries(self) -> u32 {
        self.ring / 2 / ENTRY_BYTES
    }

    /// Bytes of shared memory: tables, and stages that start at a multiple of 1,024.
    pub const fn smem(self) -> u32 {
        let tables = self.positions * HEAD_BYTES + self.most_entries() * ROW_BYTES;
        tables + MOST_STEPS * STEP_BYTES + self.ring + 1024
    }
}

/// The lines of a convolution, and the tiles that they are cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbering {
    /// Entries of a line.
    pub(super) line: u32,
    /// Lines of an image.
    pub(super) of_image: u32,
    /// Planes of rows and columns.
    pub(super) planes: [u32; 2],
    /// Entries of a stage.
    pub(super) entries: u32,
    /// Tiles of outputs.
    pub(super) pixel_tiles: u32,
}

impl Numbering {
    /// Steps of 1, or of 2 without dilation; windows that two stages hold.
    pub(super) const fn new(g: &Geometry, images: u32, lines: Lines) -> Option<Self> {
        let window = [g.taps / g.s, g.s];
        let mut size = [0u32; 2]; // lines of an image, entries of a line
        let mut reach = [0u32; 2]; // of the last tap
        let mut planes = [0u32; 2];
        let mut axis = 0;
        while axis < 2 {
            let (step, dilation) = (g.stride[axis] as u32, g.dilation[axis] as u32);
            if step > 2 || step == 2 && dilation > 1 || dilation > 256 || window[axis] > 64 {
                return None;
            }
            reach[axis] = (window[axis] - 1) * dilation / step;
            planes[axis] = if step < window[axis] { step } else { window[axis] };
            let before = g.pad[axis] as u32;
            // What the last window reads beyond the image: zeros.
            let read = g.out[axis] + reach[axis];
            let after = read.saturating_sub(before + g.edges[axis].len as u32);
            let shared = if before < after { before } else { after };
            // Outputs have entries of their own.
            let shared = if shared < reach[axis] { shared } else { reach[axis] };
            size[axis] = if step == 1 { read - shared } else { read };
            axis += 1;
        }
        let (of_image, line) = (size[0], size[1]);
        let room = lines.most_entries() - lines.positions;
        if line > 1 << 20 || reach[0] > room || reach[0] * line + reach[1] > room {
            return None;
        }
        let entries = (lines.positions + reach[0] * line + reach[1]).next_multiple_of(8);
        let all = images as u64 * of_image as u64 * line as u64;
        if entries > lines.most_entries() || all >= (1 << 31) - 2 * entries as u64 {
            return None;
        }
        // The last image needs no lines behind its outputs.
        let behind = (of_image - g.out[0]) * line;
        let pixel_tiles = ((all - behind as u64) as u32).div_ceil(lines.positions);
        Some(Self { line, of_image, planes, entries, pixel_tiles })
    }
}

/// The only parameter of these kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinesArgs {
    /// Tensors and shape; `column_tiles` and `pixel_tiles` count tiles of this kernel.
    pub base: int8::Args,
    /// By tiles of channels.
    pub by_columns: Divisor,
    /// By tiles of positions.
    pub by_positions: Divisor,
    /// By entries of a line.
    pub by_line: Divisor,
    /// By lines of an image.
    pub by_lines: Divisor,
    /// Entries of a line.
    pub line: u32,
    /// Images.
    pub images: u32,
    /// Entries of a stage.
    pub entries: u32,
    /// Stages in shared memory, 2 to [`MOST_STAGES`].
    pub stages: u32,
    /// Pairs of channels of a stage: 1 or 2.
    pub pairs: u32,
    /// Planes of rows and columns.
    pub planes: [u32; 2],
    /// Steps of a round.
    pub round: u32,
    /// Rounds.
    pub rounds: u32,
    /// Blocks that share a tile: a power of two up to [`CLUSTER`].
    pub splits: u32,
    /// Steps of each of those but the last.
    pub share: u32,
}

/// Taps of an axis on the plane `parity` of `step`.
#[inline(always)]
pub const fn taps_on(taps: u32, step: u32, parity: u32) -> u32 {
    (taps + step - 1 - parity) / step
}

impl LinesArgs {
    /// The launch for `images` images, where the kernel takes it: channels of a group in whole pairs,
    /// side by side (`vectors`); steps of 1, or of 2 without dilation; windows that two stages hold.
    pub const fn new(base: int8::Args, images: u32, lines: Lines) -> Option<Self> {
        let g = &base.geometry;
        if base.vectors == 0 || !g.c.is_multiple_of(PAIR) || g.terms > MOST_TERMS {
            return None;
        }
        let Some(numbering) = Numbering::new(g, images, lines) else {
            return None;
        };
        let Numbering { line, of_image, planes, entries, pixel_tiles } = numbering;
        let window = [g.taps / g.s, g.s];
        let pairs = if g.c.is_multiple_of(2 * PAIR) { 2 } else { 1 };
        let (mut round, mut plane) = (0, 0);
        while plane < planes[0] * planes[1] {
            let down = taps_on(window[0], g.stride[0] as u32, plane / planes[1]);
            let across = taps_on(window[1], g.stride[1] as u32, plane % planes[1]);
            round += (down * across * pairs).div_ceil(2);
            plane += 1;
        }
        if round > MOST_STEPS {
            return None;
        }
        let fit = lines.ring / (entries * ENTRY_BYTES);
        let rounds = g.c / (PAIR * pairs);
        let column_tiles = g.k.div_ceil(CHANNELS);
        Some(Self {
            base: int8::Args { column_tiles, pixel_tiles, ..base },
            by_columns: Divisor::new(column_tiles),
            by_positions: Divisor::new(pixel_tiles),
            by_line: Divisor::new(line),
            by_lines: Divisor::new(of_image),
            line,
            images,
            entries,
            stages: if fit < MOST_STAGES { fit } else { MOST_STAGES },
            pairs,
            planes,
            round,
            rounds,
            splits: 1,
            share: round * rounds,
        })
    }

    /// Tiles of all groups.
    pub const fn tiles(&self) -> u64 {
        let g = &self.base.geometry;
        self.base.column_tiles as u64 * self.base.pixel_tiles as u64 * g.groups as u64
    }

    /// The same by `splits` blocks a tile.
    pub const fn shared_by(self, splits: u32) -> Self {
        Self { splits, share: (self.round * self.rounds).div_ceil(splits), ..self }
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $symbol:literal $positions:literal $ring:expr, $blocks:literal, $cluster:expr;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl $name {
            /// What a block takes.
            pub const LINES: Lines = Lines { positions: $positions, ring: $ring };
        }

        impl Kernel for $name {
            type Args = LinesArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS)
                .with_smem($name::LINES.smem())
                .with_min_blocks($blocks)
                .in_clusters($cluster)
                .only_on(90);
        }

        // The sums of a tile, where the stages were.
        const _: () = assert!($name::LINES.ring >= $positions * (CHANNELS + 4) * 4);
    )* };
}

kernels! {
    /// Ternary weights, a Hopper GPU's tensor cores.
    Conv2dTernaryHopper "conv2d_ternary_hopper" 256 102 * 1024, 2, 1;
    /// The same for few tiles, whose steps blocks of a cluster share.
    Conv2dTernaryHopperSplit "conv2d_ternary_hopper_split" 128 66 * 1024, 3, CLUSTER;
}
