//! Which kernel runs a convolution on a GPU, and its launches.
//!
//! A tile is chosen by how many blocks it gives: large tiles reuse more, small ones fill the device.
//! Where even small tiles leave multiprocessors idle and sums are long, blocks share the terms of a
//! tile (a chunk each, in exact kernels) and a second launch adds their sums in order.

use contract::conv2d::{
    Args, CHUNK, Conv2dF32, Conv2dF32Small, Conv2dHalf, Conv2dHopperBf16, Conv2dHopperF16,
    Conv2dHopperNarrowBf16, Conv2dHopperNarrowF16, Conv2dJoinF32, Conv2dJoinHalf, Conv2dMmaBf16,
    Conv2dMmaF16, Conv2dPlanes3Bf16, Conv2dPlanes3F16, Conv2dPlanes3F32, Conv2dPlanes5Bf16,
    Conv2dPlanes5F16, Conv2dPlanes5F32, Conv2dPlanes7Bf16, Conv2dPlanes7F16, Conv2dPlanes7F32,
    Conv2dTaps3Bf16, Conv2dTaps3F16, Conv2dTaps3F32, Conv2dTaps5F32, Conv2dTapsF32, Conv2dTapsHalf,
    Conv2dTiles3Bf16, Conv2dTiles3F16, Conv2dTiles3F32, Conv2dTiles5Bf16, Conv2dTiles5F16,
    Conv2dTiles5F32, Conv2dTiles7Bf16, Conv2dTiles7F16, Conv2dTiles7F32, Geometry, JOIN_THREADS,
    MMA_STEP, PLANES_THREADS, TAPS_FOUR, TAPS_SIDE, TAPS_THREADS, Tile, planes, taps_fours, taps3,
    tiles, tiles_pay,
};
use contract::launch::{DevPtr, Kernel};
use contract::num::RowType;

use super::{Activation, Conv2d, OP, Shape, bulk_lines, points, shape};
use crate::memory::DeviceBuffer;
use crate::ops::{Backend, CudaBackend, Float, Math, OpError};

/// How the terms of a tile are shared.
#[derive(Clone, Copy)]
struct Split {
    /// Blocks that share them.
    count: u32,
    /// Terms of each but the last.
    terms: u32,
}

impl Split {
    const NONE: Self = Self { count: 1, terms: u32::MAX / 2 };

    /// A split for each chunk, where `blocks` tiles leave the device idle and there are not too many
    /// outputs to write more than once: chunk sums are added in order, so bits do not depend on it.
    fn chunks(g: &Geometry, blocks: u64, sms: u64) -> Self {
        let count = g.terms.div_ceil(CHUNK as u32);
        if count == 1 || blocks >= 2 * sms || outputs(g) > MOST_SHARED {
            return Self::NONE;
        }
        Self { count, terms: CHUNK as u32 }
    }

    /// So many splits of whole steps that `blocks` tiles become `wanted` blocks, none shorter than
    /// `least` terms.
    fn fill(g: &Geometry, blocks: u64, wanted: u64, least: u32) -> Self {
        let splits = (wanted / blocks.max(1)).min(u64::from(g.terms / least));
        // Fewer splits, or shorter sums, do not pay for the second launch.
        if splits < 3 || g.terms < LEAST_SHARED || outputs(g) > MOST_SHARED {
            return Self::NONE;
        }
        let steps = u64::from(g.terms.div_ceil(MMA_STEP));
        let terms = steps.div_ceil(splits) as u32 * MMA_STEP;
        Self { count: g.terms.div_ceil(terms), terms }
    }
}

/// Fewest terms that blocks of a tensor-core kernel share.
const LEAST_SHARED: u32 = 1024;
/// Most outputs whose terms are shared among blocks.
const MOST_SHARED: u64 = 1 << 22;

fn outputs(g: &Geometry) -> u64 {
    u64::from(g.pixels) * u64::from(g.k * g.groups)
}

impl<T: Float> Conv2d<'_, CudaBackend, T> {
    pub(in crate::ops) fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        self.check()?;
        let shape = self.shape();
        if shape.geometry(OP)?.pixels == 0 {
            return Ok(());
        }
        if self.turns(cuda) {
            return self.turned(cuda);
        }
        if let Some(runs) = self.runs(cuda) {
            return self.by_runs(cuda, runs);
        }
        let stream = cuda.stream();
        let tensors = Tensors {
            x: self.x.dev_ptr(stream).cast(),
            w: self.w.data().dev_ptr(stream).cast(),
            bias: self.bias.map_or(DevPtr::NULL, |bias| bias.dev_ptr(stream)),
            residual: self.residual.map_or(DevPtr::NULL, |r| r.dev_ptr(stream).cast()),
            y: self.y.dev_ptr(stream).cast(),
        };
        let args = tensors.args(&shape, T::TYPE, self.activation)?;
        // SAFETY: `check` compared `x`, `bias`, `residual` and `y` with the shape; `Conv2dWeights` holds `Packed::len` elements
        // by construction; `y` is borrowed exclusively; the element is that of the tensors.
        unsafe { run(cuda, args, &shape, self.math, self.kernel) }
    }
}

/// Where the tensors of a convolution are.
pub(super) struct Tensors {
    pub(super) x: DevPtr<u8>,
    pub(super) w: DevPtr<u8>,
    pub(super) bias: DevPtr<f32>,
    pub(super) residual: DevPtr<u8>,
    pub(super) y: DevPtr<u8>,
}

impl Tensors {
    /// The parameter of the kernels for `shape`.
    pub(super) fn args(
        self,
        shape: &Shape,
        element: RowType,
        activation: Activation,
    ) -> Result<Args, OpError> {
        let Self { x, w, bias, residual, y } = self;
        Ok(Args {
            x,
            w,
            bias,
            residual,
            y,
            geometry: shape.geometry(OP)?,
            images: shape.images.n as u32,
            rows: shape.weights.rows() as u32,
            columns: shape.weights.columns() as u32,
            element,
            activation,
            vectors: u32::from(shape.channels_together(4)),
            partial: DevPtr::NULL,
            splits: Split::NONE.count,
            split_terms: Split::NONE.terms,
            column_tiles: 0,
            pixel_tiles: 0,
        })
    }
}

/// Runs a convolution by the kernel that is asked for, or else by the first that its rule is for.
///
/// # Safety
/// `args` are those of tensors of `shape`, which cover the contract's table; `y` is borrowed exclusively.
pub(super) unsafe fn run(
    cuda: &CudaBackend,
    args: Args,
    shape: &Shape,
    math: Math,
    asked: Option<&'static str>,
) -> Result<(), OpError> {
    let (geometry, packed) = (args.geometry, shape.weights);
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let blocks = |tile: Tile| -> u64 {
        let tiles: u64 = tile.tiles(&geometry).map(u64::from).iter().product();
        tiles * u64::from(geometry.groups)
    };
    let eight = Args { vectors: u32::from(shape.pieces(8)), ..args };
    let (f32, bf16) = (args.element == RowType::F32, args.element == RowType::Bf16);
    let tensor_cores = math == Math::TensorCore && !f32 && !packed.depthwise();
    // SAFETY, for every launch below: by the caller; the element is that of the kernel.
    macro_rules! first {
        ($($kernel:ident($can:expr, $good:expr, $args:expr, $split:expr);)*) => { $(
            let wanted = asked.map_or($good, |symbol| symbol == $kernel::SPEC.symbol);
            if wanted && $can && cuda.has::<$kernel>() {
                // SAFETY: as above.
                return unsafe { tiled::<$kernel>(cuda, $args, $kernel::TILE, $split) };
            }
        )* };
    }
    if packed.depthwise() {
        // SAFETY: as above.
        return unsafe { depthwise(cuda, args, packed.k as u32, asked) };
    }
    if tensor_cores {
        // A wide tile takes 5/3 of the time of a narrow one: what counts is the busiest
        // multiprocessor. Short sums leave it to the narrow tiles, of which two run at once.
        let [wide, narrow] = [Conv2dHopperBf16::TILE, Conv2dHopperNarrowBf16::TILE].map(blocks);
        let wide = geometry.k > 64
            && geometry.terms >= 4 * MMA_STEP
            && 5 * wide.div_ceil(sms) < 3 * narrow.div_ceil(sms);
        let narrow = Split::fill(&geometry, narrow, 2 * sms, 2 * MMA_STEP);
        let small = Split::fill(&geometry, blocks(Conv2dMmaBf16::TILE), 3 * sms, 2 * MMA_STEP);
        if let Some(points) = points::halves(cuda, eight, asked) {
            // SAFETY: as above.
            return unsafe { points.launch(cuda) };
        }
        if let Some(lines) = bulk_lines::halves(cuda, eight, asked) {
            // SAFETY: as above.
            return unsafe { lines.launch(cuda) };
        }
        first! {
            Conv2dHopperBf16(bf16, wide, eight, Split::NONE);
            Conv2dHopperF16(!bf16, wide, eight, Split::NONE);
            Conv2dHopperNarrowBf16(bf16, true, eight, narrow);
            Conv2dHopperNarrowF16(!bf16, true, eight, narrow);
            Conv2dMmaBf16(bf16, true, eight, small);
            Conv2dMmaF16(!bf16, true, eight, small);
        }
    }
    // A large tile takes as long as two small ones: what counts is the busiest multiprocessor.
    let (few, many) = (blocks(Conv2dF32::TILE), blocks(Conv2dF32Small::TILE));
    let large = few >= 2 * sms && 2 * few.div_ceil(sms) <= many.div_ceil(sms);
    // Long sums in a middling number of large tiles: a block for each chunk of each, unless the tiles all run
    // at once and leave little room: then the second launch costs more than it evens out.
    let shared = Split::chunks(&geometry, few, 2 * sms);
    let room = u64::from(Conv2dF32::SPEC.min_blocks_per_sm) * sms;
    let full = few <= room && 9 * few >= 8 * room;
    let shares = few >= sms && shared.count > 1 && !full;
    let small = Split::chunks(&geometry, many, 2 * sms);
    first! {
        Conv2dF32(f32, shares, args, shared);
        Conv2dF32(f32, large, args, Split::NONE);
        Conv2dF32Small(f32, true, args, small);
        Conv2dHalf(!f32, true, args, small);
    }
    Err(no_kernel(OP))
}

/// No kernel of that name takes this operation.
pub(super) fn no_kernel(op: &'static str) -> OpError {
    let allowed = "the kernel that is asked for does not take this operation on this device";
    OpError::Dimension { op, what: "kernel", found: 0, allowed }
}

/// # Safety
/// As for the kernels, but for the grid.
unsafe fn depthwise(
    cuda: &CudaBackend,
    args: Args,
    channels: u32,
    asked: Option<&'static str>,
) -> Result<(), OpError> {
    macro_rules! run {
        ($kernel:ident, $grid:expr, $args:expr) => {
            if asked.is_none_or(|symbol| symbol == $kernel::SPEC.symbol) {
                // SAFETY: the contract's grid; by the caller.
                return unsafe { cuda.launch::<$kernel>($grid, $args) };
            }
        };
    }
    let f32 = args.element == RowType::F32;
    macro_rules! run_if_there {
        ($kernel:ident, $blocks:expr, $args:expr) => {
            if asked.is_none_or(|symbol| symbol == $kernel::SPEC.symbol) && cuda.has::<$kernel>() {
                // SAFETY: the contract's grid; by the caller.
                return unsafe { cuda.launch::<$kernel>([$blocks, 1, 1], $args) };
            }
        };
    }
    let sms = cuda.cuda().device().info().sm_count;
    let pay = tiles_pay(&args) || asked.is_some();
    if let Some(tiles) = tiles(&args, sms).filter(|_| pay) {
        match (args.geometry.s, args.element) {
            (3, RowType::F32) => run_if_there!(Conv2dTiles3F32, tiles.blocks, tiles),
            (3, RowType::F16) => run_if_there!(Conv2dTiles3F16, tiles.blocks, tiles),
            (3, RowType::Bf16) => run_if_there!(Conv2dTiles3Bf16, tiles.blocks, tiles),
            (5, RowType::F32) => run_if_there!(Conv2dTiles5F32, tiles.blocks, tiles),
            (5, RowType::F16) => run_if_there!(Conv2dTiles5F16, tiles.blocks, tiles),
            (5, RowType::Bf16) => run_if_there!(Conv2dTiles5Bf16, tiles.blocks, tiles),
            (_, RowType::F32) => run_if_there!(Conv2dTiles7F32, tiles.blocks, tiles),
            (_, RowType::F16) => run_if_there!(Conv2dTiles7F16, tiles.blocks, tiles),
            (_, RowType::Bf16) => run_if_there!(Conv2dTiles7Bf16, tiles.blocks, tiles),
        }
    }
    if let Some(planes) = planes(&args) {
        let grid = [planes.threads.div_ceil(PLANES_THREADS), 1, 1];
        match (args.geometry.s, args.element) {
            _ if planes.last != 0 => run!(Conv2dTaps5F32, grid, planes),
            (3, RowType::F32) => run!(Conv2dPlanes3F32, grid, planes),
            (3, RowType::F16) => run!(Conv2dPlanes3F16, grid, planes),
            (3, RowType::Bf16) => run!(Conv2dPlanes3Bf16, grid, planes),
            (5, RowType::F32) => run!(Conv2dPlanes5F32, grid, planes),
            (5, RowType::F16) => run!(Conv2dPlanes5F16, grid, planes),
            (5, RowType::Bf16) => run!(Conv2dPlanes5Bf16, grid, planes),
            (_, RowType::F32) => run!(Conv2dPlanes7F32, grid, planes),
            (_, RowType::F16) => run!(Conv2dPlanes7F16, grid, planes),
            (_, RowType::Bf16) => run!(Conv2dPlanes7Bf16, grid, planes),
        }
    }
    if let Some(taps3) = taps3(&args) {
        let grid = [taps3.threads.div_ceil(TAPS_THREADS), 1, 1];
        match args.element {
            RowType::F32 => run!(Conv2dTaps3F32, grid, taps3),
            RowType::F16 => run!(Conv2dTaps3F16, grid, taps3),
            RowType::Bf16 => run!(Conv2dTaps3Bf16, grid, taps3),
        }
    }
    if let Some(blocks) = taps_fours(&args) {
        let args = Args { pixel_tiles: args.geometry.out[1].div_ceil(TAPS_FOUR), ..args };
        if f32 {
            run!(Conv2dTapsF32, [blocks, 1, 1], args);
        } else {
            run!(Conv2dTapsHalf, [blocks, 1, 1], args);
        }
    }
    let column_tiles = channels.div_ceil(TAPS_SIDE);
    let blocks = u64::from(column_tiles) * u64::from(args.geometry.pixels.div_ceil(TAPS_SIDE));
    let (args, grid) = (Args { column_tiles, ..args }, shape::grid(OP, blocks)?);
    if f32 {
        run!(Conv2dTapsF32, grid, args);
    } else {
        run!(Conv2dTapsHalf, grid, args);
    }
    Err(no_kernel(OP))
}

/// # Safety
/// As for the kernels, but for the grid and `partial`; `tile` is that of `K`, `split` of its steps.
unsafe fn tiled<K: Kernel<Args = Args>>(
    cuda: &CudaBackend,
    args: Args,
    tile: Tile,
    split: Split,
) -> Result<(), OpError> {
    let g = &args.geometry;
    let [column_tiles, pixel_tiles] = tile.tiles(g);
    let blocks = u64::from(column_tiles) * u64::from(pixel_tiles) * u64::from(g.groups);
    let grid = shape::grid(OP, blocks.saturating_mul(u64::from(split.count)))?;
    let mut args = Args { column_tiles, pixel_tiles, ..args };
    if split.count == 1 {
        // SAFETY: the contract's grid; by the caller.
        return unsafe { cuda.launch::<K>(grid, args) };
    }
    let outputs = g.pixels as usize * (g.k * g.groups) as usize;
    let partial: DeviceBuffer<f32> = cuda.alloc("conv2d splits", outputs * split.count as usize)?;
    args.partial = partial.dev_ptr(cuda.stream());
    (args.splits, args.split_terms) = (split.count, split.terms);
    let join = shape::grid(OP, (outputs as u64).div_ceil(u64::from(JOIN_THREADS)))?;
    // SAFETY: the contract's grids; `partial` has a place for every output of every split, and the
    // launches are in order; by the caller.
    unsafe {
        cuda.launch::<K>(grid, args)?;
        cuda.stream().close_behind(|| match args.element {
            RowType::F32 => cuda.launch::<Conv2dJoinF32>(join, args),
            _ => cuda.launch::<Conv2dJoinHalf>(join, args),
        })
    }
}
