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

mod bulk;
mod copied;
mod cost;
mod fed;
mod lines;
mod memory;
mod spread;
mod tiling;

pub use bulk::*;
pub use copied::*;
pub use fed::*;
pub use lines::*;
pub use memory::*;
pub use spread::*;
pub use tiling::*;
use bulk::{bulk, mapped};
use memory::{
    FLOW_BYTES, direct, exact, group, int8, long, pack, quick, quick_half, ring, stream, thin,
    wgmma, whole, whole_f32_bytes,
};

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
    /// A [`RowType`] of floats; [`INTEGERS`].
    pub element: u32,
    /// Binary logarithm of the blocks, a cluster, that share out the sums of a tile: see [`Variant::args`].
    pub split: u32,
}

/// [`Args::element`] of integers.
pub const INTEGERS: u32 = 3;

/// [`Args::split`] from here on: sums are spread, in as many parts as it is more, each a block's, which writes sums
/// to matrices of `C` one behind the other, all of the batch of a part before the next.
pub const SPREAD: u32 = 256;

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
    /// For [`Variant::cost`], and a product that it takes all of: what a tile takes beside its sums, in steps of k.
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
            && (self.memory != Memory::Bulk || args.k > 0 && mapped(&args.a) && mapped(&args.b))
            && (!matches!(self.memory, Memory::Quick) || args.k <= QUICK_DEPTH)
            && (self.most_k == 0 || self.holds(args))
    }

    /// Whether matrices are no larger than [`Self::most_k`] says; rows of 16-bit floats in smaller units than 16 neither.
    fn holds(&self, args: &Args) -> bool {
        let side = self.most_side();
        let any = !self.tensor || args.a.unit.min(args.b.unit) >= 16;
        let fits = |matrix: &Matrix, along: bool| {
            any || matrix.ld <= u64::from(if along { self.most_k } else { side })
        };
        let rows = fits(&args.a, args.a.transposed == 0) && fits(&args.b, args.b.transposed != 0);
        args.m.max(args.n) <= side && args.k <= self.most_k && rows
    }

    /// Sides, at most, where [`Self::most_k`] is not 0.
    pub const fn most_side(&self) -> u32 {
        if matches!(self.memory, Memory::Parts) { WHOLE_DEPTH } else { self.tiling.rows }
    }

    /// Whether it takes i8.
    const fn is_bytes(&self) -> bool {
        matches!(self.kinds, [Kind::I8])
    }

    /// Whether its tiles are few rows by many columns, for products with few of either.
    pub const fn is_thin(&self) -> bool {
        self.tiling.rows == THIN_ROWS
            && self.tiling.columns > THIN_ROWS
            && !matches!(self.memory, Memory::Quick)
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
        while self.part > 0 && clusters && args.k > 3 * 64 && args.split < 3 {
            let split = args.split;
            // Those of i8 read more than they multiply: half a block a multiprocessor is enough.
            let half = u32::from(self.is_bytes() && self.memory == Memory::Long);
            let fits = |part: u32, full: u32| {
                blocks << (split + 1 + 2 * half) <= u64::from(full * sms)
                    && args.k.div_ceil(part) > 1 << split
            };
            // Where there is a cluster anyway, shorter parts are worth it as long as multiprocessors are free.
            let more = self.memory == Memory::Slices && split > 0 && fits(self.part / 4, 1);
            let short = self.part < K_CHUNK as u32 && args.k.div_ceil(64) < 2 << split;
            if short || !(more || fits(self.part, self.full_blocks())) {
                break;
            }
            args.split += 1;
        }
        args
    }

    /// Blocks of a multiprocessor, on average, up to which sums are shared out.
    const fn full_blocks(&self) -> u32 {
        match self.memory {
            Memory::Fed(fed) => fed.resident(),
            Memory::Slices => 2,
            _ if self.tensor && self.tiling.rows == ONE_32.rows => 2,
            _ if self.part == 2 * K_CHUNK as u32 => 4,
            _ => 3,
        }
    }

    /// Blocks that share out no sums among them.
    const fn blocks(&self, args: &Args) -> u64 {
        match self.memory {
            Memory::Group { pitch } => args.batch.div_ceil(Group::of(args, pitch).group) as u64,
            Memory::Pack => args.batch.div_ceil(Pack::of(args).group) as u64,
            Memory::Fed(fed) => fed.tiles(args.m, args.n) * args.batch as u64,
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

/// The one that a kernel has, if it has one.
const fn memory(memory: &[Memory]) -> Memory {
    if memory.is_empty() { Memory::All } else { memory[0] }
}

/// The type of a kernel's parameter.
macro_rules! parameter {
    () => { Args };
    ($parameter:ident) => { $parameter };
}

macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident: $spec:expr, $tiling:ident, $kinds:expr, $tensor:literal,
       $units:expr, $c_unit:literal, $resident:literal, $part:literal,
       [$overhead_k:literal, $fs_per_term:literal, $ps_per_k:literal]
       $(of $parameter:ident)? $(, $most_k:ident)? $(=> $memory:expr)?;)*) => {
        $(
            $(#[$doc])*
            pub enum $name {}

            impl Kernel for $name {
                type Args = parameter!($($parameter)?);
                const SPEC: LaunchSpec = $spec;

                fn smem_bytes(args: &Self::Args) -> u32 {
                    memory(&[$($memory)?]).bytes(&Self::SPEC, args.product())
                }

                fn cluster(args: &Self::Args) -> u32 {
                    let args = args.product();
                    if args.split < SPREAD { 1 << args.split } else { 1 }
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
        false, [1, 1], 0, 0, 0, [4, 16000, 48000];
    /// i8: on tensor cores from sm_80, by dp4a before.
    BmmI8Side64: exact("bmm_i8_64", SIDE_64, 128, 8).with_min_blocks(4), SIDE_64, I8,
        false, [1, 1], 0, 0, 512, [240, 1000, 16000];
    /// i8 on tensor cores: large.
    BmmI8Side128: int8("bmm_i8_128", 256, 32768), SIDE_128, I8,
        false, [1, 1], 0, 0, 0, [270, 640, 17000];
    /// i8 by `mma.sync`: few tiles and long sums, shared out among the warps of a block.
    BmmI8Long32: long("bmm_i8_long32"), ONE_32, I8,
        false, [1, 1], 0, 0, 320, [720, 2400, 2600] => Memory::Long;
    /// i8 by `mma.sync`, any shape: a tile a warp.
    BmmI8Mma32: direct("bmm_i8_mma32").only_on(90), SIDE_32, I8,
        false, [1, 1], 0, 0, 0, [45, 3700, 16500] => Memory::Alone;
    /// i8 by wgmma: large.
    BmmI8Wgmma128: wgmma("bmm_i8_wgmma128", SIDE_128, 3, 2), SIDE_128, I8,
        false, [16, 16], 0, 0, 0, [150, 190, 5000];
    /// f32 in groups of four, exact: large.
    BmmF32Side128: exact("bmm_f32_128", SIDE_128, 256, 8).with_min_blocks(2).with_min_sm(80), SIDE_128, F32,
        false, [16, 16], 0, 0, 0, [16, 5770, 175000];
    /// f32 in groups of four, exact: middle.
    BmmF32Side64: exact("bmm_f32_64", SIDE_64, 128, 8).with_min_blocks(4), SIDE_64, F32,
        false, [16, 16], 0, 0, 0, [16, 7000, 74000];
    /// The same with five blocks on a multiprocessor, where that costs no spill.
    BmmF32Side64Hopper: exact("bmm_f32_64_hopper", SIDE_64, 128, 8).with_min_blocks(5).only_on(90),
        SIDE_64, F32, false, [16, 16], 0, 0, 0, [16, 6530, 78000];
    /// f32 of any alignment, exact: slices some steps ahead, chunks shared out.
    BmmF32Ring64: ring("bmm_f32_ring64", 128, [64, 1, RING_STAGES]).with_min_blocks(3), SIDE_64, F32,
        false, [1, 1], 0, 0, 1024, [72, 7600, 41000] => Memory::Rings { side: 64, ways: 1, stages: RING_STAGES };
    /// f32 of any alignment, exact: sides up to 64, a matrix a block.
    BmmF32Whole64: whole("bmm_f32_whole64", whole_f32_bytes(64, WHOLE_DEPTH), 4), SIDE_64, F32,
        false, [1, 1], 0, 0, 0, [16, 8000, 41000], WHOLE_DEPTH => Memory::Whole { rows: 64 };
    /// f32 of any alignment, exact: sides and terms up to 32, as many matrices a block as it has threads for.
    BmmF32Group32: group("bmm_f32_group32", 32), SIDE_32, F32,
        false, [1, 1], 0, 0, 0, [60, 5500, 35000], GROUP_DEPTH_32 => Memory::Group { pitch: group_pitch(32) };
    /// The same, up to 64.
    BmmF32Group64: group("bmm_f32_group64", 64), SIDE_64, F32,
        false, [1, 1], 0, 0, 0, [46, 6350, 58000], GROUP_DEPTH_64 => Memory::Group { pitch: group_pitch(64) };
    /// f32 of any alignment, exact: sides and terms up to 64, as many matrices a block as it has threads for, 8 by 8
    /// outputs each.
    BmmF32Pack: pack("bmm_f32_pack"), SIDE_64, F32,
        false, [1, 1], 0, 0, 0, [0, 0, 0], WHOLE_DEPTH => Memory::Pack;
    /// f32 of any alignment, exact: few tiles and few terms.
    BmmF32Quick: quick("bmm_f32_quick"), QUICK, F32,
        false, [1, 1], 0, 0, 0, [16, 19500, 18000] => Memory::Quick;
    /// f32 in groups of four, exact: sides and terms up to 32, all of a matrix asked for at once, a matrix a warp.
    BmmF32Flow32: whole("bmm_f32_flow32", FLOW_BYTES, 5), SIDE_32, F32,
        false, [16, 16], 16, 0, 0, [16, 6300, 38000], GROUP_DEPTH_32;
    /// The same up to 64, a matrix a block.
    BmmF32Flow64: whole("bmm_f32_flow64", FLOW_BYTES, 5), SIDE_64, F32,
        false, [16, 16], 16, 0, 0, [32, 4600, 33000], GROUP_DEPTH_64;
    /// f32 of any alignment, exact: sides that are a little more than 64, or a multiple of it.
    BmmF32Stream80: stream("bmm_f32_stream80", 128, WIDE_96).with_min_blocks(3), WIDE_96, F32,
        false, [1, 1], 0, 0, 0, [60, 6500, 80000] => Memory::Stream { area: 80 * 96 };
    /// f32 of any alignment, exact: few tiles and long sums, two chunks a block.
    BmmF32Ring32: ring("bmm_f32_ring32", 128, [32, 2, RING_STAGES]).with_min_blocks(4), ONE_32, F32,
        false, [1, 1], 0, 0, 2048, [60, 8900, 29000] => Memory::Rings { side: 32, ways: 2, stages: RING_STAGES };
    /// f32 of any alignment, exact: few tiles, a chunk a block.
    BmmF32Chain32: ring("bmm_f32_chain32", 128, [32, 1, CHAIN_STAGES]).with_min_blocks(3), ONE_32, F32,
        false, [1, 1], 0, 0, 1024, [64, 10500, 15500] => Memory::Rings { side: 32, ways: 1, stages: CHAIN_STAGES };
    /// f32 of any alignment, exact: few rows or columns, long sums, warps that copy for the others.
    BmmF32Fed: FED_FEW.spec("bmm_f32_fed", 4), THIN_32, F32,
        false, [1, 1], 0, 0, 1024, [350, 9000, 4700] => Memory::Fed(FED_FEW);
    /// The same, any number of rows: few tiles of 16 by 16.
    BmmF32Fed16: FED_16.spec("bmm_f32_fed16", 4), ONE_16, F32,
        false, [1, 1], 0, 0, 1024, [350, 16500, 5500] => Memory::Fed(FED_16);
    /// The same, tiles of 32 by 32.
    BmmF32Fed32: FED_32.spec("bmm_f32_fed32", 2), ONE_32, F32,
        false, [1, 1], 0, 0, 1024, [200, 9500, 15600] => Memory::Fed(FED_32);
    /// The same, tiles of 8 by 8 and eight chunks at a time: few outputs of very long sums.
    BmmF32Fed8: FED_8.spec("bmm_f32_fed8", 8), ONE_8, F32,
        false, [1, 1], 0, 0, 8192, [350, 33000, 12000] => Memory::Fed(FED_8);
    /// f32 in groups of four, exact: sides up to 32.
    BmmF32Side32: exact("bmm_f32_32", SIDE_32, 128, 8).with_min_blocks(4), SIDE_32, F32,
        false, [16, 16], 0, 0, 0, [16, 8160, 76000];
    /// f32 in groups of four, exact: sides up to 16, single rows.
    BmmF32Side16: exact("bmm_f32_16", SIDE_16, 64, 16).with_min_blocks(4), SIDE_16, F32,
        false, [16, 16], 0, 0, 0, [16, 15700, 60000];
    /// f32 of any alignment, exact: few rows or columns, long sums.
    BmmF32ThinLong: thin("bmm_f32_thin_long", THIN_LONG_STAGES), THIN_32, F32,
        false, [1, 1], 0, 0, 0, [64, 17500, 20000] => Memory::Thin { stages: THIN_LONG_STAGES };
    /// f32 of any alignment, exact: few rows or columns.
    BmmF32Thin: thin("bmm_f32_thin", THIN_STAGES), THIN_128, F32,
        false, [1, 1], 0, 0, 0, [24, 14600, 22500] => Memory::Thin { stages: THIN_STAGES };
    /// bf16 by `mma.sync`, any shape.
    BmmBf16Mma32: direct("bmm_bf16_mma32"), SIDE_32, BF16,
        true, [1, 1], 0, 0, 0, [36, 10000, 150000];
    /// f16 by `mma.sync`, any shape.
    BmmF16Mma32: direct("bmm_f16_mma32"), SIDE_32, F16,
        true, [1, 1], 0, 0, 0, [36, 10000, 150000];
    /// f32 as TF32 by `mma.sync`, any shape.
    BmmTf32Mma32: direct("bmm_tf32_mma32"), SIDE_32, F32,
        true, [1, 1], 0, 0, 0, [16, 6540, 55000];
    /// bf16 by `mma.sync`, any shape: few tiles and long sums, shared out among the warps of a block.
    BmmBf16Long32: long("bmm_bf16_long32"), ONE_32, BF16,
        true, [1, 1], 0, 0, 384, [550, 3700, 4300] => Memory::Long;
    /// bf16 by `mma.sync`: sides up to 32, a matrix a warp.
    BmmBf16Whole32: whole("bmm_bf16_whole32", 4 * whole_half_bytes(32), 5), SIDE_32, BF16,
        true, [1, 1], 0, 0, 0, [120, 1700, 8000], WHOLE_DEPTH;
    /// bf16 by `mma.sync`: sides up to 64, a matrix a block.
    BmmBf16Whole64: whole("bmm_bf16_whole64", whole_half_bytes(64), 5), SIDE_64, BF16,
        true, [1, 1], 0, 0, 0, [57, 2100, 16500], WHOLE_DEPTH;
    /// bf16 by `mma.sync`: sides up to 64, a block for each 32 by 32 of them: few matrices.
    BmmBf16Quick: quick_half("bmm_bf16_quick"), ONE_32, BF16,
        true, [1, 1], 0, 0, 0, [45, 5300, 9000], WHOLE_DEPTH => Memory::Parts;
    /// bf16 by wgmma: rows that start anywhere.
    BmmBf16Gather64: wgmma("bmm_bf16_gather64", SIDE_64, 2, 3), SIDE_64, BF16,
        true, [1, 1], 0, 0, 64, [150, 2100, 14000];
    /// f16 by `mma.sync`, any shape: few tiles and long sums, shared out among the warps of a block.
    BmmF16Long32: long("bmm_f16_long32"), ONE_32, F16,
        true, [1, 1], 0, 0, 384, [550, 3700, 4300] => Memory::Long;
    /// f16 by `mma.sync`: sides up to 32, a matrix a warp.
    BmmF16Whole32: whole("bmm_f16_whole32", 4 * whole_half_bytes(32), 5), SIDE_32, F16,
        true, [1, 1], 0, 0, 0, [120, 1700, 8000], WHOLE_DEPTH;
    /// f16 by `mma.sync`: sides up to 64, a matrix a block.
    BmmF16Whole64: whole("bmm_f16_whole64", whole_half_bytes(64), 5), SIDE_64, F16,
        true, [1, 1], 0, 0, 0, [57, 2100, 16500], WHOLE_DEPTH;
    /// f16 by `mma.sync`: sides up to 64, a block for each 32 by 32 of them: few matrices.
    BmmF16Quick: quick_half("bmm_f16_quick"), ONE_32, F16,
        true, [1, 1], 0, 0, 0, [45, 5300, 9000], WHOLE_DEPTH => Memory::Parts;
    /// f16 by wgmma: rows that start anywhere.
    BmmF16Gather64: wgmma("bmm_f16_gather64", SIDE_64, 2, 3), SIDE_64, F16,
        true, [1, 1], 0, 0, 64, [150, 2100, 14000];
    /// bf16 by wgmma: rows that start anywhere, large.
    BmmBf16Gather128: wgmma("bmm_bf16_gather128", SIDE_128, 2, 1), SIDE_128, BF16,
        true, [1, 1], 0, 0, 0, [170, 1700, 16000];
    /// bf16 by wgmma: small.
    BmmBf16Wgmma64: wgmma("bmm_bf16_wgmma64", SIDE_64, 4, 4), SIDE_64, BF16,
        true, [16, 16], 0, 0, 512, [120, 1100, 5000] => Memory::Slices;
    /// bf16 by wgmma: middle.
    BmmBf16Wgmma128: wgmma("bmm_bf16_wgmma128", SIDE_128, 3, 2), SIDE_128, BF16,
        true, [16, 16], 16, 2, 0, [170, 488, 9500];
    /// bf16 by wgmma: large, where tiles of 256 columns leave multiprocessors without one.
    BmmBf16Wgmma192: wgmma("bmm_bf16_wgmma192", WIDE_192, 4, 1), WIDE_192, BF16,
        true, [16, 16], 0, 1, 0, [250, 374, 9200];
    /// bf16 by wgmma: large.
    BmmBf16Wgmma256: wgmma("bmm_bf16_wgmma256", WIDE_256, 4, 1), WIDE_256, BF16,
        true, [16, 16], 0, 1, 0, [250, 361, 11800];
    /// f16 by wgmma: rows that start anywhere, large.
    BmmF16Gather128: wgmma("bmm_f16_gather128", SIDE_128, 2, 1), SIDE_128, F16,
        true, [1, 1], 0, 0, 0, [170, 1700, 16000];
    /// f16 by wgmma: small.
    BmmF16Wgmma64: wgmma("bmm_f16_wgmma64", SIDE_64, 4, 4), SIDE_64, F16,
        true, [16, 16], 0, 0, 512, [120, 1100, 5000] => Memory::Slices;
    /// f16 by wgmma: middle.
    BmmF16Wgmma128: wgmma("bmm_f16_wgmma128", SIDE_128, 3, 2), SIDE_128, F16,
        true, [16, 16], 16, 2, 0, [170, 488, 9500];
    /// f16 by wgmma: large, where tiles of 256 columns leave multiprocessors without one.
    BmmF16Wgmma192: wgmma("bmm_f16_wgmma192", WIDE_192, 4, 1), WIDE_192, F16,
        true, [16, 16], 0, 1, 0, [250, 374, 9200];
    /// f16 by wgmma: large.
    BmmF16Wgmma256: wgmma("bmm_f16_wgmma256", WIDE_256, 4, 1), WIDE_256, F16,
        true, [16, 16], 0, 1, 0, [250, 361, 11800];
    /// bf16 by wgmma, slices by the copy engine: tiles of 128 by 192.
    BmmBf16Bulk192: bulk("bmm_bf16_bulk192", WIDE_192, 5, 0), WIDE_192, BF16,
        true, [16, 16], 0, 1, 0, [300, 316, 7600] of BulkArgs => Memory::Bulk;
    /// bf16 by wgmma, slices by the copy engine: tiles of 128 by 256.
    BmmBf16Bulk256: bulk("bmm_bf16_bulk256", WIDE_256, 4, BULK_WIDE[0]), WIDE_256, BF16,
        true, [16, 16], 0, 1, 0, [300, 308, 10000] of BulkArgs => Memory::Bulk;
    /// bf16 by wgmma, slices by the copy engine: tiles of 192 by 192.
    BmmBf16BulkSquare: bulk("bmm_bf16_bulk_square", SIDE_192, 4, BULK_SQUARE[0]), SIDE_192, BF16,
        true, [16, 16], 0, 1, 0, [300, 309, 11300] of BulkArgs => Memory::Bulk;
    /// f16 by wgmma, slices by the copy engine: tiles of 128 by 192.
    BmmF16Bulk192: bulk("bmm_f16_bulk192", WIDE_192, 5, 0), WIDE_192, F16,
        true, [16, 16], 0, 1, 0, [300, 316, 7600] of BulkArgs => Memory::Bulk;
    /// f16 by wgmma, slices by the copy engine: tiles of 128 by 256.
    BmmF16Bulk256: bulk("bmm_f16_bulk256", WIDE_256, 4, BULK_WIDE[0]), WIDE_256, F16,
        true, [16, 16], 0, 1, 0, [300, 308, 10000] of BulkArgs => Memory::Bulk;
    /// f16 by wgmma, slices by the copy engine: tiles of 192 by 192.
    BmmF16BulkSquare: bulk("bmm_f16_bulk_square", SIDE_192, 4, BULK_SQUARE[0]), SIDE_192, F16,
        true, [16, 16], 0, 1, 0, [300, 309, 11300] of BulkArgs => Memory::Bulk;
}
