//! A Hopper GPU's tensor cores, output pixels by lines, so that a tap is a distance.
//!
//! The lines, entries, planes and stages of [`super::lines`], brought by the copy engine: of 16-bit floats in
//! tiles of 256 positions, and, for windows of one tap, of int8 activations for ternary weights too, of 128.
//!
//! An entry is 128 bytes of channels: 64 of 16 bits, 128 of 8. A *step* is one tap of an entry, for 64 output
//! channels. A *stage* is what shared memory takes at a time: the entries of one plane, for all of its
//! taps. A *round* is the stages of the same channels. A block makes one tile after the other; where tiles
//! are few, the blocks of a cluster share the steps of one and add their sums in the order of the blocks.

use super::lines::{Numbering, taps_on};
pub use super::lines::{CHANNELS, CLUSTER, ENTRY_BYTES, Lines, MOST_STEPS, MOST_TERMS};
use super::{Args, Divisor, Geometry, int8};
use crate::launch::{Kernel, LaunchSpec, TensorMap};

/// Threads that multiply: two warpgroups, each for half of the positions.
pub const CONSUMERS: u32 = 256;
/// Threads of a block that brings weights as they are: one of a warp does, one of another brings entries.
pub const THREADS: u32 = CONSUMERS + 64;
/// Threads that expand weights, in a block that has them expanded.
pub const EXPANDERS: u32 = 128;
/// Threads of such a block; one of a warp more shows their work to the async proxy.
pub const EXPANDING_THREADS: u32 = CONSUMERS + EXPANDERS + 64;
/// Steps of weights in shared memory.
pub const WEIGHT_STAGES: u32 = 6;
/// Bytes of those of a step.
pub const WEIGHT_BYTES: u32 = CHANNELS * ENTRY_BYTES;
/// Most stages of entries in shared memory.
pub const MOST_STAGES: u32 = 6;
/// Bytes for each step of a round.
pub const STEP_BYTES: u32 = 8;
/// Bytes for each output: what divides its sums, and its pixel.
pub const HEAD_BYTES: u32 = 16;
/// Bytes of the barriers.
pub const BARRIER_BYTES: u32 = 8 * (3 * WEIGHT_STAGES + 2 * MOST_STAGES + 2);
/// Words from an output's sums to the next one's: four more than channels, so that lanes touch every bank.
pub const PITCH: u32 = CHANNELS + 4;

/// What every kernel here has.
pub const LINES: Lines = Lines { positions: 256, ring: 100 * 1024 };
/// The same where each warpgroup has tiles of its own: windows of one tap, whose sums are short, so that one
/// writes its outputs while the other multiplies.
pub const POINTS: Lines = Lines { positions: LINES.positions / 2, ..LINES };

/// Bytes of the tables.
pub const TABLE_BYTES: u32 =
    BARRIER_BYTES + MOST_STEPS * STEP_BYTES + LINES.positions * HEAD_BYTES;

/// Bytes of shared memory: tables, rings that start at a multiple of 1,024, sums.
const SMEM_BYTES: u32 = TABLE_BYTES
    + 1024
    + LINES.ring
    + WEIGHT_STAGES * WEIGHT_BYTES
    + LINES.positions * PITCH * 4;

/// The way of a block through its tiles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// By tiles of channels.
    pub by_columns: Divisor,
    /// By tiles of positions.
    pub by_positions: Divisor,
    /// By entries of a line.
    pub by_line: Divisor,
    /// By lines of an image.
    pub by_lines: Divisor,
    /// Positions of a tile.
    pub positions: u32,
    /// Entries of a line, and lines of an image.
    pub line: u32,
    /// See `line`.
    pub of_image: u32,
    /// Images.
    pub images: u32,
    /// Tiles of all groups.
    pub tiles: u32,
    /// Entries of a stage.
    pub entries: u32,
    /// Stages in shared memory, 2 to [`MOST_STAGES`].
    pub stages: u32,
    /// Planes of rows and columns.
    pub planes: [u32; 2],
    /// Steps of a round: taps.
    pub round: u32,
    /// Rounds.
    pub rounds: u32,
    /// Blocks that share a tile: a power of two up to [`CLUSTER`].
    pub splits: u32,
    /// Steps of each of those but the last.
    pub share: u32,
}

impl Walk {
    /// For `images` images with `elements` channels in 16 bytes, side by side and aligned, and zeros for
    /// padding: steps of 1, or of 2 without dilation; windows that two stages hold.
    pub const fn new(g: &Geometry, images: u32, elements: u32, lines: Lines) -> Option<Self> {
        let Some(numbering) = Numbering::new(g, images, lines) else {
            return None;
        };
        let Numbering { line, of_image, planes, entries, pixel_tiles: positions } = numbering;
        // Pieces of 16 bytes are counted in 32 bits.
        let pieces = images as u64 * (g.x_image / elements as u64);
        if g.taps > MOST_STEPS || pieces > u32::MAX as u64 {
            return None;
        }
        let columns = g.k.div_ceil(CHANNELS);
        let tiles = columns as u64 * positions as u64 * g.groups as u64;
        if tiles >= 1 << 31 {
            return None;
        }
        let fit = lines.ring / (entries * ENTRY_BYTES);
        let rounds = g.c.div_ceil(8 * elements);
        Some(Self {
            by_columns: Divisor::new(columns),
            by_positions: Divisor::new(positions),
            by_line: Divisor::new(line),
            by_lines: Divisor::new(of_image),
            positions: lines.positions,
            line,
            of_image,
            images,
            tiles: tiles as u32,
            entries,
            stages: if fit < MOST_STAGES { fit } else { MOST_STAGES },
            planes,
            round: g.taps,
            rounds,
            splits: 1,
            share: g.taps * rounds,
        })
    }

    /// The same by `splits` blocks a tile.
    pub const fn shared_by(self, splits: u32) -> Self {
        Self { splits, share: (self.round * self.rounds).div_ceil(splits), ..self }
    }

    /// What a step of a round reads: bytes from the start of its stage to the first entry, a multiple of
    /// 128, with whether it is the first (1) and the last (2) of the stage and four times the plane
    /// beside it; and its tap. `None` past the last one.
    pub const fn step(&self, g: &Geometry, step: u32) -> Option<[u32; 2]> {
        let [planes_down, planes_across] = self.planes;
        let (mut plane, mut before) = (0, 0);
        while plane < planes_down * planes_across {
            let (a, b) = (plane / planes_across, plane % planes_across);
            let down = taps_on(g.taps / g.s, g.stride[0] as u32, a);
            let across = taps_on(g.s, g.stride[1] as u32, b);
            if step - before < down * across {
                let (r, s) = ((step - before) / across, (step - before) % across);
                let distance = r * g.dilation[0] as u32 * self.line + s * g.dilation[1] as u32;
                let tap = (r * g.stride[0] as u32 + a) * g.s + s * g.stride[1] as u32 + b;
                let (first, last) = (step == before, step + 1 == before + down * across);
                let flags = (4 * plane) | (2 * last as u32) | first as u32;
                return Some([(distance * ENTRY_BYTES) | flags, tap]);
            }
            before += down * across;
            plane += 1;
        }
        None
    }
}

/// The parameter of the kernels for f16 and bf16, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HalfLines {
    /// The images, by entries.
    pub entries: TensorMap,
    /// The weights, `[group][tap][channel][output channel]`, by 64 channels by 64.
    pub weights: TensorMap,
    /// Tensors and shape.
    pub base: Args,
    /// The way.
    pub walk: Walk,
}

/// The parameter of the kernels for ternary weights, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TernaryLines {
    /// The images, by entries.
    pub entries: TensorMap,
    /// Tensors and shape.
    pub base: int8::Args,
    /// The way.
    pub walk: Walk,
}

impl TernaryLines {
    /// The launch for `images` images, where the kernel takes it: channels of a group in 64s (in 128s where
    /// there are several groups), side by side (`vectors`).
    pub const fn new(base: int8::Args, images: u32, lines: Lines) -> Option<Self> {
        let g = &base.geometry;
        let whole = g.c.is_multiple_of(if g.groups > 1 { 128 } else { 64 });
        if base.vectors == 0 || !whole || g.terms > MOST_TERMS {
            return None;
        }
        match Walk::new(g, images, 16, lines) {
            Some(walk) => Some(Self { entries: TensorMap([0; 16]), base, walk }),
            None => None,
        }
    }
}

impl HalfLines {
    /// The launch, where the kernel takes it: channels of a group in 8s, side by side (`vectors`).
    pub const fn new(base: Args, lines: Lines) -> Option<Self> {
        let g = &base.geometry;
        if base.vectors == 0 || g.groups > 1 && !g.c.is_multiple_of(64) {
            return None;
        }
        let none = TensorMap([0; 16]);
        match Walk::new(g, base.images, 8, lines) {
            Some(walk) => Some(Self { entries: none, weights: none, base, walk }),
            None => None,
        }
    }
}

/// The launch rules of a kernel in lines.
pub const fn spec(symbol: &'static str, threads: u32, cluster: u32) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, threads).with_smem(SMEM_BYTES).with_min_blocks(1);
    spec.in_clusters(cluster).with_tensor_maps().only_on(90)
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $args:ident $symbol:literal $threads:ident $cluster:expr;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = $args;
            const SPEC: LaunchSpec = spec($symbol, $threads, $cluster);
        }
    )* };
}

kernels! {
    /// `bf16`, a Hopper GPU's tensor cores.
    Conv2dLinesBf16: HalfLines "conv2d_lines_bf16" THREADS 1;
    /// The same where two blocks share the steps of a tile.
    Conv2dLinesPairBf16: HalfLines "conv2d_lines_pair_bf16" THREADS 2;
    /// The same for few tiles, whose steps blocks of a cluster share.
    Conv2dLinesSplitBf16: HalfLines "conv2d_lines_split_bf16" THREADS CLUSTER;
    /// `f16`.
    Conv2dLinesF16: HalfLines "conv2d_lines_f16" THREADS 1;
    /// `f16`, two blocks a tile.
    Conv2dLinesPairF16: HalfLines "conv2d_lines_pair_f16" THREADS 2;
    /// `f16`, few tiles.
    Conv2dLinesSplitF16: HalfLines "conv2d_lines_split_f16" THREADS CLUSTER;
    /// Ternary weights, one tap, tiles of [`POINTS`].
    Conv2dTernaryPoints: TernaryLines "conv2d_ternary_points" EXPANDING_THREADS 1;
}

const _: () = assert!(SMEM_BYTES <= 227 * 1024);
