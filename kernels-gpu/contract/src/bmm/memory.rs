//! What kernels have in shared memory, and the launch rules that follow from it.

use super::{Args, Fed, K_CHUNK, Matrix, Tiling};
use crate::launch::LaunchSpec;

/// What a launch takes of its kernel's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All of it.
    All,
    /// A ring of slices of 64 terms by 64 rows and columns of 16 bits: no more than there are.
    Slices,
    /// Rings of slices of f32, one for each of `ways` chunks, in a tile of `side`: see [`ring_words`].
    Rings {
        /// Rows and columns.
        side: u32,
        /// Chunks.
        ways: u32,
        /// Places of a ring.
        stages: u32,
    },
    /// A ring of slices of f32, and sums of `area` outputs where there are several chunks: see [`STREAM_DEPTH`].
    Stream {
        /// Rows by columns of a tile.
        area: u32,
    },
    /// Rings of a warp each for the rows that there are: see [`thin_words`].
    Thin {
        /// Places of a ring.
        stages: u32,
    },
    /// A ring of slices that some warps fill for the others, and sums of chunks: see [`Fed`].
    Fed(Fed),
    /// Slices of f32 of all terms, of so many rows (columns) in all, or their sums.
    Whole {
        /// Rows.
        rows: u32,
    },
    /// Factors, or results, of a block's matrices: see [`Group`].
    Group {
        /// Words from one line to the next.
        pitch: u32,
    },
    /// Factors, or results, of a block's matrices: see [`Pack`].
    Pack,
    /// All terms of a tile: see [`QUICK_ROWS`].
    Quick,
    /// All of it, of warps that share out long sums.
    Long,
    /// All of it, of warps that make tiles of i8 by themselves.
    Alone,
    /// All of it, of blocks that make parts of small matrices.
    Parts,
    /// All of it, filled by the copy engine.
    Bulk,
}

impl Memory {
    /// Bytes of a launch of a kernel with these rules.
    pub(super) const fn bytes(self, spec: &LaunchSpec, args: &Args) -> u32 {
        match self {
            Self::All | Self::Long | Self::Alone | Self::Parts | Self::Bulk => spec.smem_bytes,
            Self::Slices => {
                let (slice, slices) = ((64 + 64) * 128, args.k.div_ceil(64));
                let bytes = if slices > 1 { slices } else { 1 } * slice + 1024;
                if bytes < spec.smem_bytes { bytes } else { spec.smem_bytes }
            }
            Self::Rings { side, ways, stages } => ring_bytes_of(args, side, ways, stages),
            Self::Stream { area } => stream_bytes(args, area),
            Self::Thin { stages } => thin_bytes(args.m, stages),
            Self::Fed(fed) => fed.bytes(args),
            Self::Whole { rows } => whole_f32_bytes(rows, args.k),
            Self::Group { pitch } => Group::of(args, pitch).bytes(args, pitch),
            Self::Pack => Pack::of(args).bytes(args),
            Self::Quick => quick_bytes(args.k),
        }
    }
}

/// Most rows of a product of few rows.
pub const THIN_ROWS: u32 = 16;
/// Terms that a warp of such a product asks for at a time.
pub const THIN_STAGE: u32 = 32;
/// Stages that a warp has places for, where four share out the chunks of k.
pub const THIN_LONG_STAGES: u32 = 4;
/// The same where each has columns of its own, and blocks are many.
pub const THIN_STAGES: u32 = 3;
/// Rows that a warp of such a product takes for `m` of them: 1, 4, 8 or all.
pub const fn thin_rows(m: u32) -> u32 {
    match m {
        0 | 1 => 1,
        2..=4 => 4,
        5..=8 => 8,
        _ => THIN_ROWS,
    }
}
/// Words of a stage of such a warp, of so many rows: its part of 32 columns, and that of the rows, of which a single one's
/// terms are neighbours.
pub const fn thin_words(rows: u32) -> u32 {
    THIN_STAGE * (33 + if rows == 1 { 1 } else { rows + 4 })
}
/// Shared memory of a block of four such warps.
const fn thin_bytes(m: u32, stages: u32) -> u32 {
    4 * stages * thin_words(thin_rows(m)) * 4
}

/// A kernel of products of few rows.
pub(super) const fn thin(symbol: &'static str, stages: u32) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, 128).with_smem(thin_bytes(THIN_ROWS, stages));
    spec.with_min_blocks(4).with_min_sm(80)
}

/// Words from one k to the next of a tile in shared memory.
pub const fn row_words(side: u32) -> u32 {
    side + 4
}
/// Words from one row of sums to the next where 32 columns of them wait in shared memory.
pub const PARKED_ROW: u32 = 40;
/// Shared memory of a tile: two slices of each factor, and the sums of the chunks before.
pub const fn tile_bytes(side: u32, slice: u32) -> u32 {
    (4 * slice * row_words(side) + side * side) * 4
}
/// A kernel whose tile of `side` is made in slices of `slice` words of k.
pub(super) const fn exact(symbol: &'static str, tiling: Tiling, threads: u32, slice: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, threads).with_smem(tiling.tiles * tile_bytes(tiling.rows, slice))
}

/// Terms of a slice of a product of f32 of any alignment, and slices in its ring.
pub const RING_DEPTH: u32 = 32;
/// See [`RING_DEPTH`].
pub const RING_STAGES: u32 = 3;
/// Slices in the ring where tiles are few and what a block waits for is memory.
pub const CHAIN_STAGES: u32 = 6;
/// Words of the rings of a block, one for each of `ways` chunks; their sums then take less.
pub const fn ring_words(side: u32, ways: u32, stages: u32) -> u32 {
    ways * stages * 2 * RING_DEPTH * side
}
/// The rings, and the sums of the rounds before.
const fn ring_bytes(side: u32, ways: u32, stages: u32) -> u32 {
    (ring_words(side, ways, stages) + side * side) * 4
}
/// What a launch needs of that.
const fn ring_bytes_of(args: &Args, side: u32, ways: u32, stages: u32) -> u32 {
    let (slices, chunks) = (args.k.div_ceil(RING_DEPTH), args.k.div_ceil(K_CHUNK as u32));
    if chunks > ways << args.split {
        return ring_bytes(side, ways, stages);
    }
    let parked = ways * side * row_words(side) * 4;
    let rings = ring_words(side, ways, 1) * 4;
    let rings = if slices < stages { slices } else { stages } * rings;
    if rings > parked { rings } else { parked }
}
/// A kernel with such rings.
pub(super) const fn ring(
    symbol: &'static str,
    threads: u32,
    [side, ways, stages]: [u32; 3],
) -> LaunchSpec {
    LaunchSpec::new(symbol, threads).with_smem(ring_bytes(side, ways, stages)).only_on(90)
}
/// Terms of a slice of a stream of f32 in pieces, its places, and most rows and columns of a tile.
pub const STREAM_DEPTH: u32 = 16;
/// See [`STREAM_DEPTH`].
pub const STREAM_STAGES: u32 = 4;
/// See [`STREAM_DEPTH`].
pub const STREAM_SIDE: u32 = 128;
/// Words of its ring.
const STREAM_WORDS: u32 = STREAM_STAGES * 2 * STREAM_DEPTH * STREAM_SIDE;
/// Shared memory of such a stream: the ring, and behind it the sums of the chunks before.
const fn stream_bytes(args: &Args, area: u32) -> u32 {
    let totals = if args.k > K_CHUNK as u32 { area } else { 0 };
    (STREAM_WORDS + totals) * 4
}
/// A kernel of such a stream.
pub(super) const fn stream(symbol: &'static str, threads: u32, tiling: Tiling) -> LaunchSpec {
    let area = tiling.rows * tiling.columns;
    LaunchSpec::new(symbol, threads).with_smem((STREAM_WORDS + area) * 4).only_on(90)
}
/// Terms of a slice of an i8 product on tensor cores.
pub const INT8_DEPTH: u32 = 64;
/// A kernel whose tile of i8 is made on tensor cores: two slices of each factor.
pub(super) const fn int8(symbol: &'static str, threads: u32, smem: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, threads).with_smem(smem).with_min_blocks(2).with_min_sm(80)
}

/// Terms, at most, of a product whose factors are in shared memory whole.
pub const WHOLE_DEPTH: u32 = 64;
/// Terms of a slice of f32 of such a product.
pub const WHOLE_SLICE: u32 = 16;
/// Shared memory of such a factor: as it lies in memory, from 16 bytes on that it may start in.
pub const fn whole_bytes(side: u32) -> u32 {
    side * WHOLE_DEPTH * 2 + 32
}
/// Shared memory of a matrix of 16-bit floats: both factors, and the results as they lie in memory.
pub const fn whole_half_bytes(side: u32) -> u32 {
    2 * whole_bytes(side) + side * side * 2 + 32
}
/// A kernel of parts of such matrices: both factors, and what a lane reads behind the last term.
pub(super) const fn quick_half(symbol: &'static str) -> LaunchSpec {
    LaunchSpec::new(symbol, 128).with_smem(2 * whole_bytes(64) + 32).only_on(90)
}
/// Shared memory of products of f32 with so many rows in all: slices of both factors, or the sums.
pub(super) const fn whole_f32_bytes(rows: u32, k: u32) -> u32 {
    let slices = k.div_ceil(WHOLE_SLICE) * 2 * WHOLE_SLICE * rows * 4;
    if slices > 16384 { slices } else { 16384 }
}
/// A kernel of such products: with the factors, or the sums of its warps, in shared memory.
pub(super) const fn whole(symbol: &'static str, smem: u32, resident: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, 128).with_smem(smem).with_min_blocks(resident).only_on(90)
}

/// Terms, at most, of products of matrices that share a block, with sides up to 32.
pub const GROUP_DEPTH_32: u32 = 32;
/// The same with sides up to 64.
pub const GROUP_DEPTH_64: u32 = 64;
/// Slices in which their factors are asked for.
pub const GROUP_SLICES: u32 = 2;
/// Shared memory of both factors of a matrix with sides of 64, or of four with sides of 32.
pub(super) const FLOW_BYTES: u32 = 2 * 64 * 64 * 4;
/// Words of shared memory, at most, of the factors of more than one matrix of a block.
const GROUP_WORDS: u32 = 14400;
/// Words from one line to the next there.
pub const fn group_pitch(side: u32) -> u32 {
    side + 4
}
/// A kernel of such products.
pub(super) const fn group(symbol: &'static str, side: u32) -> LaunchSpec {
    let bytes = 16 + (GROUP_WORDS + 16 * group_pitch(side)) * 4;
    LaunchSpec::new(symbol, 128).with_smem(bytes).with_min_blocks(5).only_on(90)
}

/// How a block makes some small matrices of f32 whose factors are in shared memory whole: a thread has 8 by 4 outputs of one.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Matrices of a block.
    pub group: u32,
    /// Threads above each other, and beside each other, in a matrix: even numbers.
    pub tall: u32,
    /// See [`Self::tall`].
    pub wide: u32,
    /// Words of `A`.
    pub a: u32,
    /// Words of `B`.
    pub b: u32,
}

#[allow(clippy::manual_div_ceil, reason = "no sum overflows here, and kernels compute these")]
impl Group {
    /// Of this product, with `pitch` words from one line to the next.
    #[inline(always)]
    pub const fn of(args: &Args, pitch: u32) -> Self {
        let (tall, wide) = ((args.m + 15) / 16 * 2, (args.n + 7) / 8 * 2);
        let a = Self::words(args.a.transposed == 0, args.m, args.k, pitch);
        let b = Self::words(args.b.transposed != 0, args.n, args.k, pitch);
        let (threads, words) = (128 / (tall * wide), GROUP_WORDS / (a + b + 1));
        let group = if threads < words { threads } else { words };
        Self { group: if group > 1 { group } else { 1 }, tall, wide, a, b }
    }

    /// Words of a factor: a line for each row (column of `B`) or, not `along`, for each term, in fours.
    #[inline(always)]
    pub const fn words(along: bool, sides: u32, k: u32, pitch: u32) -> u32 {
        (if along { sides } else { (k + 3) / 4 * 4 }) * pitch
    }

    /// Bytes of shared memory of a block: a barrier, and factors, behind which threads read more rows than there are, or
    /// results.
    pub const fn bytes(&self, args: &Args, pitch: u32) -> u32 {
        let (factors, results) = (self.a + self.b, args.m * args.n);
        let (factors, results) = (self.group * factors + 16 * pitch, self.group * results + 4);
        16 + if factors > results { factors } else { results } * 4
    }
}
/// A kernel of warps that make a tile each.
pub(super) const fn direct(symbol: &'static str) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, 128).with_smem(4 * 32 * PARKED_ROW * 4);
    spec.with_min_blocks(4).with_min_sm(80)
}

/// A wgmma kernel with a ring of `stages` slices of 64 terms, aligned to 1,024 bytes.
pub(super) const fn wgmma(symbol: &'static str, tiling: Tiling, stages: u32, resident: u32) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, 2 * tiling.rows).with_min_blocks(resident);
    spec.with_smem(stages * (tiling.rows + tiling.columns) * 128 + 1024).only_on(90)
}

/// A kernel of long sums on tensor cores: the sums of eight warps in shared memory.
pub(super) const fn long(symbol: &'static str) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, 256).with_smem(8 * 32 * PARKED_ROW * 4);
    spec.with_min_blocks(2).only_on(90)
}

/// Rows and columns of a tile whose factors are asked for at once, and terms at most.
pub const QUICK_ROWS: u32 = 16;
/// See [`QUICK_ROWS`].
pub const QUICK_COLUMNS: u32 = 32;
/// See [`QUICK_ROWS`].
pub const QUICK_DEPTH: u32 = 256;
/// Words from one line of terms to the next there, an odd number of fours: pieces of lines side by side are in different
/// banks.
#[inline(always)]
#[allow(clippy::manual_div_ceil, reason = "no sum overflows here, and kernels compute it")]
pub const fn quick_pitch(k: u32) -> u32 {
    4 * (((k + 3) / 4) | 1)
}
/// Its shared memory.
pub(super) const fn quick_bytes(k: u32) -> u32 {
    (QUICK_ROWS + QUICK_COLUMNS) * quick_pitch(k) * 4
}
/// A kernel of such tiles.
pub(super) const fn quick(symbol: &'static str) -> LaunchSpec {
    LaunchSpec::new(symbol, 128).with_smem(quick_bytes(QUICK_DEPTH)).only_on(90)
}

/// Threads of a block that makes small matrices of f32, 8 by 8 outputs each.
pub const PACK_THREADS: u32 = 64;
/// Words from one line to the next where a factor does not stand as it lies in memory.
pub const PACK_PITCH: u32 = 68;
/// Words of shared memory, at most, of the factors of more than one matrix of a block.
const PACK_WORDS: u32 = 8192;

/// How a block makes some small matrices of f32 whose factors are in shared memory whole.
#[derive(Clone, Copy, Debug)]
pub struct Pack {
    /// Matrices of a block.
    pub group: u32,
    /// Threads above each other in a matrix.
    pub tall: u32,
    /// Threads beside each other.
    pub wide: u32,
    /// Whether `A`, and `B`, stand as they lie in memory.
    pub flat: [bool; 2],
    /// Their words, of one matrix.
    pub each: [u32; 2],
}

#[allow(clippy::manual_div_ceil, reason = "no sum overflows here, and kernels compute these")]
impl Pack {
    /// Of this product.
    #[inline(always)]
    pub const fn of(args: &Args) -> Self {
        let (tall, wide) = ((args.m + 7) / 8, (args.n + 7) / 8);
        let (a, flat_a) = Self::factor(&args.a, args.a.transposed == 0, args.m, args.k, args.batch);
        let (b, flat_b) = Self::factor(&args.b, args.b.transposed != 0, args.n, args.k, args.batch);
        let (threads, words) = (PACK_THREADS / (tall * wide), PACK_WORDS / (a + b + 1));
        let group = if threads < words { threads } else { words };
        let group = if group > 1 { group } else { 1 };
        Self { group, tall, wide, flat: [flat_a, flat_b], each: [a, b] }
    }

    /// Words of a matrix, and whether it is one piece of memory with all others, and not of rows that start in few banks.
    #[inline(always)]
    const fn factor(matrix: &Matrix, along: bool, sides: u32, k: u32, batch: u32) -> (u32, bool) {
        let (lines, len) = if along { (sides, k) } else { (k, sides) };
        let dense = (lines <= 1 || matrix.ld == len as u64)
            && (batch <= 1 || matrix.stride == 0 || matrix.stride == (lines * len) as u64);
        let flat = k > 0 && dense && !(along && len % 8 == 0 && matrix.unit >= 16);
        (lines * if flat { len } else { PACK_PITCH }, flat)
    }

    /// Words of a factor of a block, from 16 bytes on that it may start in.
    #[inline(always)]
    pub const fn words(&self, factor: usize) -> u32 {
        (self.group * self.each[factor] + 3 + 3) / 4 * 4
    }

    /// Bytes of shared memory of a block: a barrier, and factors, behind which threads read more rows than there are, or
    /// results.
    pub const fn bytes(&self, args: &Args) -> u32 {
        // The term behind the last is read, too.
        let rows = if (args.m | args.n) & 7 != 0 { 8 } else { 1 };
        let behind = (rows + 1) * PACK_PITCH;
        let (factors, results) =
            (self.words(0) + self.words(1) + behind, self.group * args.m * args.n + 8);
        16 + if factors > results { factors } else { results } * 4
    }
}
/// A kernel of such products.
pub(super) const fn pack(symbol: &'static str) -> LaunchSpec {
    let words = 2 * 64 * PACK_PITCH + 9 * PACK_PITCH + 16;
    LaunchSpec::new(symbol, PACK_THREADS).with_smem(16 + words * 4).with_min_blocks(6).only_on(90)
}
