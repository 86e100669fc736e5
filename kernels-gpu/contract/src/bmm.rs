//! Batched matrix product: `C[b] = alpha (A[b] x B[b]) + beta C[b]`.
//!
//! | tensor | shape (logical) | element `(b, row, column)` at |
//! |--------|-----------------|-------------------------------|
//! | `A` | `[batch, m, k]` | `at + b stride + row ld + column`, or `... column ld + row` transposed |
//! | `B` | `[batch, k, n]` | the same                                                               |
//! | `C` | `[batch, m, n]` | `at + b stride + row ld + column`                                      |
//!
//! A stride of 0 uses one matrix for the whole batch (not for `C`). Elements of `A` and `B`: f32,
//! f16, bf16, or i8; `C` has the same type, i32 for i8. Any `m`, `n`, `k` and batch, 0 included
//! (`k = 0`: a product of zeros), any offset, any leading dimension that is at least the row.
//!
//! Floats, exact (everywhere): elements widen to f32; per output, one chain of fused
//! multiply-adds over k ascending from 0 in each chunk of [`K_CHUNK`], the chunks' sums added first
//! to last ([`dot`]); then [`finish`]; then rounded to the type of `C` once. The bits depend on
//! nothing else. Integers: exact modulo 2^32.
//!
//! On tensor cores, by name: the factors as they are (f32 rounded to TF32), the products exact, sums
//! in f32 in an order that the hardware chooses. [`tensor_bound`] says how far such a result may be
//! from the exact value.

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::{RowType, fma};

/// Terms of one chain.
pub const K_CHUNK: usize = 1024;
/// Largest `m`, `n`, `k` and batch.
pub const MAX_DIM: usize = i32::MAX as usize;

/// The exact sum of `k` products: `step(acc, i)` takes term `i` into a chain.
#[inline(always)]
pub fn dot(k: usize, mut step: impl FnMut(f32, usize) -> f32) -> f32 {
    let mut total = 0.0;
    let mut start = 0;
    while start < k {
        let end = if k - start > K_CHUNK { start + K_CHUNK } else { k };
        let mut acc = 0.0;
        let mut i = start;
        while i < end {
            acc = step(acc, i);
            i += 1;
        }
        total = if start == 0 { acc } else { total + acc };
        start = end;
    }
    total
}

/// What is done with a sum before it is rounded and written. With `beta` 0, `c` plays no part (it
/// may be NaN); `alpha` 0 is a factor like any other.
#[inline(always)]
pub fn finish(alpha: f32, sum: f32, beta: f32, c: f32) -> f32 {
    let product = alpha * sum;
    if beta == 0.0 { product } else { fma(beta, c, product) }
}

/// [`finish`] of integers, modulo 2^32.
#[inline(always)]
pub const fn finish_i32(alpha: i32, sum: i32, beta: i32, c: i32) -> i32 {
    let product = alpha.wrapping_mul(sum);
    if beta == 0 { product } else { product.wrapping_add(beta.wrapping_mul(c)) }
}

/// How far a tensor-core result may be from [`finish`] over an exact sum, before the last rounding:
/// `|alpha| * magnitude * gamma`, where `magnitude` is the sum of `|a b|` over k.
///
/// `gamma = (k + 16) 2^-22`: the sum of `k` products in f32 in any order, each step with the
/// truncation of the hardware's adders (2^-23 and one more bit for their alignment); for f32 factors
/// `2^-10` more, which is twice the rounding to TF32.
pub fn tensor_bound(element: RowType, k: usize, alpha: f32, magnitude: f64) -> f64 {
    let rounding = if matches!(element, RowType::F32) { 1.0 / 1024.0 } else { 0.0 };
    let gamma = (k as f64 + 16.0) / 4_194_304.0 + rounding;
    f64::from(alpha).abs() * magnitude * gamma
}

/// The type of the elements of `A` and `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A float; `C` has the same type.
    Float(RowType),
    /// i8; `C` is i32.
    I8,
}

impl Kind {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Float(element) => element.bytes(),
            Self::I8 => 1,
        }
    }

    /// The field's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(element) => element.name(),
            Self::I8 => "i8",
        }
    }
}

/// One matrix of a product, as a kernel finds it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Its first element.
    pub addr: DevPtr<u8>,
    /// Elements from one matrix of the batch to the next.
    pub stride: u64,
    /// Elements from one row (transposed: column) to the next.
    pub ld: u64,
    /// 1 where neighbours in memory are neighbours in a column.
    pub transposed: u32,
    /// Bytes that may be read or written at once anywhere in a row of memory: their number divides
    /// the address, the strides and the length of a row, all in bytes. 16, 8, 4, 2 or 1.
    pub unit: u32,
}

/// The only parameter of every kernel here, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Left factor.
    pub a: Matrix,
    /// Right factor.
    pub b: Matrix,
    /// Result.
    pub c: Matrix,
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Terms of a sum.
    pub k: u32,
    /// Matrices.
    pub batch: u32,
    /// Factor of the product: the bits of an f32, or an i32.
    pub alpha: u32,
    /// Factor of what `C` held.
    pub beta: u32,
    /// A [`RowType`] of floats; 0 for integers.
    pub element: u32,
    /// Binary logarithm of the blocks, a cluster, that share out the sums of a tile: see [`Variant::args`].
    pub split: u32,
}

/// How a kernel cuts the result: a block makes `tiles` tiles of `rows` by `columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Rows of a tile.
    pub rows: u32,
    /// Columns of a tile.
    pub columns: u32,
    /// Tiles of a block, of one matrix or of several.
    pub tiles: u32,
}

/// What a launch takes in [`Variant::cost`].
const LAUNCH_NS: u64 = 1500;

/// What an element of such a result takes beside: see [`Variant::cost`].
const SLOW_RESULT_FS: u64 = 270_000;

/// One kernel of the family, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its launch rules.
    pub spec: LaunchSpec,
    /// How it cuts the result.
    pub tiling: Tiling,
    /// The types it takes.
    pub kinds: &'static [Kind],
    /// Whether its sums are a tensor core's: of floats, only for who asks by name.
    pub tensor: bool,
    /// [`Matrix::unit`] that `A` and `B` must have: where neighbours in memory are neighbours in k,
    /// and where they are not.
    pub units: [u32; 2],
    /// [`Matrix::unit`] that `C` must have.
    pub c_unit: u32,
    /// Blocks of a multiprocessor that take tile after tile; 0: a block for each tile.
    pub resident: u32,
    /// Terms, at least, of a block of a cluster that shares out the sums of a tile, in the PTX level `sm_90a`: for exact
    /// sums of floats those of a round of whole chunks. 0: none does.
    pub part: u32,
    /// For [`Variant::cost`]: what a tile takes beside its sums, in steps of k.
    pub overhead_k: u64,
    /// What a term of an output takes on a full multiprocessor, in femtoseconds.
    pub fs_per_term: u64,
    /// What a step in k takes a block that is alone, in picoseconds.
    pub ps_per_k: u64,
    /// Terms, at most, where a tile is a whole matrix; 0: tiles of any matrix.
    pub most_k: u32,
    /// What a launch takes of the shared memory that the rules allow.
    pub memory: Memory,
}

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
    },
    /// Rings of a warp each for the rows that there are: see [`thin_words`].
    Thin {
        /// Places of a ring.
        stages: u32,
    },
    /// Factors, or results, of a block's matrices: see [`Whole`].
    Whole {
        /// Words from one line to the next.
        pitch: u32,
    },
}

impl Memory {
    /// Bytes of a launch of a kernel with these rules.
    const fn bytes(self, spec: &LaunchSpec, args: &Args) -> u32 {
        match self {
            Self::All => spec.smem_bytes,
            Self::Slices => {
                let (slice, slices) = ((64 + 64) * 128, args.k.div_ceil(64));
                let bytes = if slices > 1 { slices } else { 1 } * slice + 1024;
                if bytes < spec.smem_bytes { bytes } else { spec.smem_bytes }
            }
            Self::Rings { side, ways } => ring_bytes_of(args, side, ways),
            Self::Thin { stages } => thin_bytes(args.m, stages),
            Self::Whole { pitch } => Whole::of(args, pitch).bytes(args, pitch),
        }
    }
}

impl Variant {
    /// Whether it can make this product; the device is another question. `tensor`: whether the order
    /// of float sums may be the hardware's.
    pub fn takes(&self, kind: Kind, tensor: bool, args: &Args) -> bool {
        let args = &self.turned(args);
        let fits = |matrix: &Matrix, along: bool| matrix.unit >= self.units[usize::from(!along)];
        self.kinds.contains(&kind)
            && (tensor || !self.tensor)
            && fits(&args.a, args.a.transposed == 0)
            && fits(&args.b, args.b.transposed != 0)
            && (!self.is_thin() || args.m <= THIN_ROWS)
            && args.c.unit >= self.c_unit
            && (self.most_k == 0 || self.holds(args))
    }

    /// Whether matrices are no larger than [`Self::most_k`] says; rows of 16-bit floats in smaller units than 16 neither.
    fn holds(&self, args: &Args) -> bool {
        let (side, any) = (self.tiling.rows, !self.tensor || args.a.unit.min(args.b.unit) >= 16);
        let fits = |matrix: &Matrix, along: bool| {
            any || matrix.ld <= u64::from(if along { self.most_k } else { side })
        };
        let rows = fits(&args.a, args.a.transposed == 0) && fits(&args.b, args.b.transposed != 0);
        args.m.max(args.n) <= side && args.k <= self.most_k && rows
    }

    /// Whether its tiles are few rows by many columns, for products with few of either.
    pub const fn is_thin(&self) -> bool {
        self.tiling.rows == THIN_ROWS && self.tiling.columns > THIN_ROWS
    }

    /// The product with few rows where the kernel asks for that, so perhaps the transpose, `C` too.
    fn turned(&self, args: &Args) -> Args {
        let flip = |matrix: Matrix| Matrix { transposed: 1 - matrix.transposed, ..matrix };
        let Args { a, b, c, m, n, .. } = *args;
        if !self.is_thin() || n >= m {
            return *args;
        }
        Args { a: flip(b), b: flip(a), c: flip(c), m: n, n: m, ..*args }
    }

    /// The product as this kernel is launched for it on a GPU of `sms` multiprocessors: where it has few tiles and long
    /// sums, clusters share these out. `clusters`: whether the PTX level is `sm_90a`.
    pub fn args(&self, args: &Args, sms: u32, clusters: bool) -> Args {
        let mut args = self.turned(args);
        let blocks = self.blocks(&args);
        args.split = 0;
        while self.part > 0
            && clusters
            && args.split < 3
            && blocks << (args.split + 1) <= u64::from(self.full_blocks() * sms)
            && args.k.div_ceil(self.part) > 1 << args.split
        {
            args.split += 1;
        }
        args
    }

    /// Blocks of a multiprocessor, on average, up to which sums are shared out.
    const fn full_blocks(&self) -> u32 {
        if self.part == 2 * K_CHUNK as u32 { 4 } else { 3 }
    }

    /// Terms that each chain of a block takes of a sum, and all of its chains side by side.
    fn terms(&self, args: &Args) -> [u64; 2] {
        let chunk = K_CHUNK as u32;
        let (k, ways) = (args.k, self.part / chunk);
        if ways == 0 {
            return [u64::from(k.div_ceil(1 << args.split)); 2];
        }
        let chunks = k.div_ceil(chunk);
        let terms = k.min(chunks.div_ceil(ways << args.split) * chunk);
        [u64::from(terms), u64::from(terms) * u64::from(ways)]
    }

    /// Nanoseconds that it takes on a GPU of `sms` multiprocessors, about: on one H200 the estimate
    /// is good enough to choose by. The fullest multiprocessor decides, and a single block does not
    /// get faster than its chain of slices.
    pub fn cost(&self, args: &Args, sms: u32, clusters: bool) -> u64 {
        let args = &self.args(args, sms, clusters);
        let Tiling { rows, columns, tiles } = self.tiling;
        let blocks = self.blocks(args);
        // A part's sums are then read by another block.
        let blocks = blocks << args.split;
        let more = self.overhead_k + if args.split > 0 { 64 } else { 0 };
        let [chain, all] = self.terms(args).map(|terms| terms + more);
        // A result that is not in pieces of 16 bytes goes by way of shared memory.
        let slow = self.tensor && self.units[0] == 16 && args.c.unit < 16;
        let per_element = all * self.fs_per_term + if slow { SLOW_RESULT_FS } else { 0 };
        let work = u64::from(rows * columns * tiles) * per_element / 1_000_000;
        let busy = blocks.div_ceil(u64::from(sms.max(1))).saturating_mul(work);
        let time = busy.max(chain * self.ps_per_k / 1000);
        // Bytes for wgmma are turned on the way where neighbours in memory are not neighbours in k.
        let turned = args.a.transposed + (1 - args.b.transposed);
        let turned = if self.c_unit == 8 { u64::from(turned) } else { 0 };
        LAUNCH_NS + time.saturating_mul(2 + 3 * turned) / 2
    }

    /// Blocks that share out no sums among them.
    const fn blocks(&self, args: &Args) -> u64 {
        match self.memory {
            Memory::Whole { pitch } => args.batch.div_ceil(Whole::of(args, pitch).group) as u64,
            _ => self.tiling.blocks(args.m, args.n, args.batch),
        }
    }

    /// Blocks of a launch on a GPU of `sms` multiprocessors; `args` as [`Variant::args`] has them.
    pub fn grid(&self, args: &Args, sms: u32) -> u64 {
        let blocks = self.blocks(args) << args.split;
        match self.resident {
            0 => blocks,
            resident => blocks.min(u64::from(resident * sms.max(1))),
        }
    }
}

impl Tiling {
    /// Tiles of one matrix.
    pub const fn per_matrix(&self, m: u32, n: u32) -> u64 {
        m.div_ceil(self.rows) as u64 * n.div_ceil(self.columns) as u64
    }

    /// Blocks of a launch; more than a grid holds is the caller's to refuse.
    pub const fn blocks(&self, m: u32, n: u32, batch: u32) -> u64 {
        (self.per_matrix(m, n) * batch as u64).div_ceil(self.tiles as u64)
    }
}

/// 128 by 128.
pub const SIDE_128: Tiling = Tiling { rows: 128, columns: 128, tiles: 1 };
/// 64 by 64.
pub const SIDE_64: Tiling = Tiling { rows: 64, columns: 64, tiles: 1 };
/// Four tiles of 32 by 32, a warp each.
pub const SIDE_32: Tiling = Tiling { rows: 32, columns: 32, tiles: 4 };
/// Four tiles of 16 by 16, half a warp each.
pub const SIDE_16: Tiling = Tiling { rows: 16, columns: 16, tiles: 4 };
/// 32 by 32.
pub const ONE_32: Tiling = Tiling { rows: 32, columns: 32, tiles: 1 };
/// 128 by 256.
pub const WIDE_256: Tiling = Tiling { rows: 128, columns: 256, tiles: 1 };

/// Few rows by 32 columns, of which four warps share out the chunks of k.
pub const THIN_32: Tiling = Tiling { rows: THIN_ROWS, columns: 32, tiles: 1 };
/// Few rows by 128 columns, 32 of each warp.
pub const THIN_128: Tiling = Tiling { rows: THIN_ROWS, columns: 128, tiles: 1 };

/// Most rows of a product of few rows.
pub const THIN_ROWS: u32 = 16;
/// Terms that a warp of such a product asks for at a time.
pub const THIN_STAGE: u32 = 32;
/// Rows that a warp of such a product takes for `m` of them: 1, 4 or all.
pub const fn thin_rows(m: u32) -> u32 {
    match m {
        0 | 1 => 1,
        2..=4 => 4,
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
const fn thin(symbol: &'static str, stages: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, 128).with_smem(thin_bytes(THIN_ROWS, stages)).with_min_sm(80)
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
const fn exact(symbol: &'static str, tiling: Tiling, threads: u32, slice: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, threads).with_smem(tiling.tiles * tile_bytes(tiling.rows, slice))
}

/// Terms of a slice of a product of f32 of any alignment, and slices in its ring.
pub const RING_DEPTH: u32 = 32;
/// See [`RING_DEPTH`].
pub const RING_STAGES: u32 = 3;
/// Words of the rings of a block, one for each of `ways` chunks; their sums then take less.
pub const fn ring_words(side: u32, ways: u32) -> u32 {
    ways * RING_STAGES * 2 * RING_DEPTH * side
}
/// The rings, and the sums of the rounds before.
const fn ring_bytes(side: u32, ways: u32) -> u32 {
    (ring_words(side, ways) + side * side) * 4
}
/// What a launch needs of that.
const fn ring_bytes_of(args: &Args, side: u32, ways: u32) -> u32 {
    let (slices, chunks) = (args.k.div_ceil(RING_DEPTH), args.k.div_ceil(K_CHUNK as u32));
    if chunks > ways << args.split {
        return ring_bytes(side, ways);
    }
    let parked = ways * side * row_words(side) * 4;
    let rings = ring_words(side, ways) / RING_STAGES * 4;
    let rings = if slices < RING_STAGES { slices } else { RING_STAGES } * rings;
    if rings > parked { rings } else { parked }
}
/// A kernel with such rings.
const fn ring(symbol: &'static str, threads: u32, side: u32, ways: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, threads).with_smem(ring_bytes(side, ways)).only_on(90)
}
/// Terms of a slice of an i8 product on tensor cores.
pub const INT8_DEPTH: u32 = 64;
/// A kernel whose tile of i8 is made on tensor cores: two slices of each factor.
const fn int8(symbol: &'static str, threads: u32, smem: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, threads).with_smem(smem).with_min_blocks(2).with_min_sm(80)
}

/// Terms, at most, of a product whose factors are in shared memory whole.
pub const WHOLE_DEPTH: u32 = 64;
/// The same of f32 with sides up to 32.
pub const WHOLE_DEPTH_32: u32 = 32;
/// Shared memory of such a factor: as it lies in memory, from 16 bytes on that it may start in.
pub const fn whole_bytes(side: u32) -> u32 {
    side * WHOLE_DEPTH * 2 + 32
}
/// Words from one line of f32 to the next there.
pub const fn whole_pitch(side: u32) -> u32 {
    side + 4
}
/// A kernel of such products: with the factors, or the sums of its warps, in shared memory.
const fn whole(symbol: &'static str, smem: u32, resident: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, 128).with_smem(smem).with_min_blocks(resident).only_on(90)
}
/// Words of shared memory, at most, of the factors of more than one matrix of its block.
const WHOLE_WORDS: u32 = 9216;

/// How a block of products of f32 whose factors are in shared memory whole makes some matrices: a thread has 8 by 4 outputs
/// of one.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
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

impl Whole {
    /// Of this product, with `pitch` words from one line to the next.
    #[inline(always)]
    pub const fn of(args: &Args, pitch: u32) -> Self {
        let (tall, wide) = ((args.m + 15) / 16 * 2, (args.n + 7) / 8 * 2);
        let a = Self::words(args.a.transposed == 0, args.m, args.k, pitch);
        let b = Self::words(args.b.transposed != 0, args.n, args.k, pitch);
        let (threads, words) = (128 / (tall * wide), WHOLE_WORDS / (a + b + 1));
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
const fn direct(symbol: &'static str) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, 128).with_smem(4 * 32 * PARKED_ROW * 4);
    spec.with_min_blocks(4).with_min_sm(80)
}

/// A wgmma kernel with a ring of `stages` slices of 64 terms, aligned to 1,024 bytes.
const fn wgmma(symbol: &'static str, tiling: Tiling, stages: u32, resident: u32) -> LaunchSpec {
    let spec = LaunchSpec::new(symbol, 2 * tiling.rows).with_min_blocks(resident);
    spec.with_smem(stages * (tiling.rows + tiling.columns) * 128 + 1024).only_on(90)
}

/// The one that a kernel has, if it has one.
const fn memory(memory: &[Memory]) -> Memory {
    if memory.is_empty() { Memory::All } else { memory[0] }
}

macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident: $spec:expr, $tiling:ident, $kinds:expr, $tensor:literal,
       $units:expr, $c_unit:literal, $resident:literal, $part:literal,
       [$overhead_k:literal, $fs_per_term:literal, $ps_per_k:literal]
       $(, $most_k:ident)? $(=> $memory:expr)?;)*) => {
        $(
            $(#[$doc])*
            pub enum $name {}

            impl Kernel for $name {
                type Args = Args;
                const SPEC: LaunchSpec = $spec;

                fn smem_bytes(args: &Args) -> u32 {
                    memory(&[$($memory)?]).bytes(&Self::SPEC, args)
                }

                fn cluster(args: &Args) -> u32 {
                    1 << args.split
                }
            }
        )*

        /// Every kernel of the family, the general ones first.
        pub const VARIANTS: &[Variant] = &[$(Variant {
            spec: $spec,
            tiling: $tiling,
            kinds: $kinds,
            tensor: $tensor,
            units: $units,
            c_unit: $c_unit,
            resident: $resident,
            part: $part,
            overhead_k: $overhead_k,
            fs_per_term: $fs_per_term,
            ps_per_k: $ps_per_k,
            most_k: 0 $(+ $most_k)?,
            memory: memory(&[$($memory)?]),
        }),*];

        /// Calls a macro with the name of every kernel, in the order of [`VARIANTS`].
        #[macro_export]
        macro_rules! for_each_bmm {
            ($mac:ident) => { $mac! { $($name;)* } };
        }
    };
}

const F32: &[Kind] = &[Kind::Float(RowType::F32)];
const F16: &[Kind] = &[Kind::Float(RowType::F16)];
const BF16: &[Kind] = &[Kind::Float(RowType::Bf16)];
const FLOAT: &[Kind] =
    &[Kind::Float(RowType::F32), Kind::Float(RowType::F16), Kind::Float(RowType::Bf16)];
const I8: &[Kind] = &[Kind::I8];

variants! {
    /// Floats of any type and shape, exact.
    BmmFloatAny: exact("bmm_float_any", SIDE_64, 128, 8).with_min_blocks(3), SIDE_64, FLOAT,
        false, [1, 1], 0, 0, 0, [16, 10500, 106000];
    /// i8 of any shape, by dp4a.
    BmmI8Side16: exact("bmm_i8_16", SIDE_16, 64, 4), SIDE_16, I8,
        false, [1, 1], 0, 0, 0, [16, 13000, 80000];
    /// i8: on tensor cores from sm_80, by dp4a before.
    BmmI8Side64: exact("bmm_i8_64", SIDE_64, 128, 8).with_min_blocks(4), SIDE_64, I8,
        false, [1, 1], 0, 0, 512, [240, 1000, 16000];
    /// i8 on tensor cores: large.
    BmmI8Side128: int8("bmm_i8_128", 256, 32768), SIDE_128, I8,
        false, [1, 1], 0, 0, 0, [200, 640, 19000];
    /// i8 by wgmma: large.
    BmmI8Wgmma128: wgmma("bmm_i8_wgmma128", SIDE_128, 3, 2), SIDE_128, I8,
        false, [16, 16], 8, 0, 0, [300, 215, 4300];
    /// f32 in groups of four, exact: large.
    BmmF32Side128: exact("bmm_f32_128", SIDE_128, 256, 8).with_min_blocks(2).with_min_sm(80), SIDE_128, F32,
        false, [16, 16], 0, 0, 0, [16, 5770, 175000];
    /// f32 in groups of four, exact: middle.
    BmmF32Side64: exact("bmm_f32_64", SIDE_64, 128, 8).with_min_blocks(4), SIDE_64, F32,
        false, [16, 16], 0, 0, 0, [16, 7000, 71000];
    /// The same with five blocks on a multiprocessor, where that costs no spill.
    BmmF32Side64Hopper: exact("bmm_f32_64_hopper", SIDE_64, 128, 8).with_min_blocks(5).only_on(90),
        SIDE_64, F32, false, [16, 16], 0, 0, 0, [16, 6530, 78000];
    /// f32 of any alignment, exact: slices some steps ahead, chunks shared out.
    BmmF32Ring64: ring("bmm_f32_ring64", 128, 64, 1).with_min_blocks(3), SIDE_64, F32,
        false, [1, 1], 0, 0, 1024, [16, 9000, 41000] => Memory::Rings { side: 64, ways: 1 };
    /// f32 of any alignment, exact: sides and terms up to 32, as many matrices a block as it has threads for.
    BmmF32Whole32: whole("bmm_f32_whole32", 40000, 5), SIDE_32, F32,
        false, [1, 1], 0, 0, 0, [16, 7900, 40000], WHOLE_DEPTH_32 => Memory::Whole { pitch: whole_pitch(32) };
    /// The same, up to 64.
    BmmF32Whole64: whole("bmm_f32_whole64", 42000, 5), SIDE_64, F32,
        false, [1, 1], 0, 0, 0, [16, 8000, 41000], WHOLE_DEPTH => Memory::Whole { pitch: whole_pitch(64) };
    /// The same for few tiles and long sums: two chunks a block.
    BmmF32Ring32: ring("bmm_f32_ring32", 128, 32, 2).with_min_blocks(4), ONE_32, F32,
        false, [1, 1], 0, 0, 2048, [16, 8900, 27000] => Memory::Rings { side: 32, ways: 2 };
    /// f32 in groups of four, exact: sides up to 32.
    BmmF32Side32: exact("bmm_f32_32", SIDE_32, 128, 8).with_min_blocks(4), SIDE_32, F32,
        false, [16, 16], 0, 0, 0, [16, 8160, 76000];
    /// f32 in groups of four, exact: sides up to 16, single rows.
    BmmF32Side16: exact("bmm_f32_16", SIDE_16, 64, 16).with_min_blocks(4), SIDE_16, F32,
        false, [16, 16], 0, 0, 0, [16, 15700, 60000];
    /// f32 of any alignment, exact: few rows or columns, long sums.
    BmmF32ThinLong: thin("bmm_f32_thin_long", 4), THIN_32, F32,
        false, [1, 1], 0, 0, 0, [16, 10500, 5500] => Memory::Thin { stages: 4 };
    /// f32 of any alignment, exact: few rows or columns.
    BmmF32Thin: thin("bmm_f32_thin", 3), THIN_128, F32,
        false, [1, 1], 0, 0, 0, [16, 11000, 19000] => Memory::Thin { stages: 3 };
    /// bf16 by `mma.sync`, any shape.
    BmmBf16Mma32: direct("bmm_bf16_mma32"), SIDE_32, BF16,
        true, [1, 1], 0, 0, 0, [16, 7140, 150000];
    /// f16 by `mma.sync`, any shape.
    BmmF16Mma32: direct("bmm_f16_mma32"), SIDE_32, F16,
        true, [1, 1], 0, 0, 0, [16, 7140, 150000];
    /// f32 as TF32 by `mma.sync`, any shape.
    BmmTf32Mma32: direct("bmm_tf32_mma32"), SIDE_32, F32,
        true, [1, 1], 0, 0, 0, [16, 6540, 55000];
    /// bf16 by `mma.sync`: sides up to 32, a matrix a warp.
    BmmBf16Whole32: whole("bmm_bf16_whole32", 8 * whole_bytes(32), 5), SIDE_32, BF16,
        true, [1, 1], 0, 0, 0, [16, 1000, 5000], WHOLE_DEPTH;
    /// bf16 by `mma.sync`: sides up to 64, a matrix a block.
    BmmBf16Whole64: whole("bmm_bf16_whole64", 4 * 32 * PARKED_ROW * 4, 5), SIDE_64, BF16,
        true, [1, 1], 0, 0, 0, [16, 1000, 5000], WHOLE_DEPTH;
    /// bf16 by wgmma: rows that start anywhere.
    BmmBf16Gather64: wgmma("bmm_bf16_gather64", SIDE_64, 2, 3), SIDE_64, BF16,
        true, [1, 1], 0, 0, 512, [120, 2100, 14000];
    /// f16 by `mma.sync`: sides up to 32, a matrix a warp.
    BmmF16Whole32: whole("bmm_f16_whole32", 8 * whole_bytes(32), 5), SIDE_32, F16,
        true, [1, 1], 0, 0, 0, [16, 1000, 5000], WHOLE_DEPTH;
    /// f16 by `mma.sync`: sides up to 64, a matrix a block.
    BmmF16Whole64: whole("bmm_f16_whole64", 4 * 32 * PARKED_ROW * 4, 5), SIDE_64, F16,
        true, [1, 1], 0, 0, 0, [16, 1000, 5000], WHOLE_DEPTH;
    /// f16 by wgmma: rows that start anywhere.
    BmmF16Gather64: wgmma("bmm_f16_gather64", SIDE_64, 2, 3), SIDE_64, F16,
        true, [1, 1], 0, 0, 512, [120, 2100, 14000];
    /// bf16 by wgmma: rows that start anywhere, large.
    BmmBf16Gather128: wgmma("bmm_bf16_gather128", SIDE_128, 2, 1), SIDE_128, BF16,
        true, [1, 1], 0, 0, 0, [200, 1700, 16000];
    /// bf16 by wgmma: small.
    BmmBf16Wgmma64: wgmma("bmm_bf16_wgmma64", SIDE_64, 4, 4), SIDE_64, BF16,
        true, [16, 16], 0, 0, 512, [120, 1100, 5000] => Memory::Slices;
    /// bf16 by wgmma: middle.
    BmmBf16Wgmma128: wgmma("bmm_bf16_wgmma128", SIDE_128, 3, 2), SIDE_128, BF16,
        true, [16, 16], 16, 2, 0, [170, 488, 8000];
    /// bf16 by wgmma: large.
    BmmBf16Wgmma256: wgmma("bmm_bf16_wgmma256", WIDE_256, 4, 1), WIDE_256, BF16,
        true, [16, 16], 0, 1, 0, [250, 361, 11800];
    /// f16 by wgmma: rows that start anywhere, large.
    BmmF16Gather128: wgmma("bmm_f16_gather128", SIDE_128, 2, 1), SIDE_128, F16,
        true, [1, 1], 0, 0, 0, [200, 1700, 16000];
    /// f16 by wgmma: small.
    BmmF16Wgmma64: wgmma("bmm_f16_wgmma64", SIDE_64, 4, 4), SIDE_64, F16,
        true, [16, 16], 0, 0, 512, [120, 1100, 5000] => Memory::Slices;
    /// f16 by wgmma: middle.
    BmmF16Wgmma128: wgmma("bmm_f16_wgmma128", SIDE_128, 3, 2), SIDE_128, F16,
        true, [16, 16], 16, 2, 0, [170, 488, 8000];
    /// f16 by wgmma: large.
    BmmF16Wgmma256: wgmma("bmm_f16_wgmma256", WIDE_256, 4, 1), WIDE_256, F16,
        true, [16, 16], 0, 1, 0, [250, 361, 11800];
}
