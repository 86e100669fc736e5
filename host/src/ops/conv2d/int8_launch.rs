//! Which kernel runs a convolution of int8 activations on a GPU, and its launch.

use contract::conv2d::int8::Args;
use contract::conv2d::lines::{CLUSTER, LinesArgs};
use contract::conv2d::{
    Activation, Conv2dI8 as I8Dot, Conv2dI8Mma, Conv2dTernary as TernaryDot, Conv2dTernaryHopper,
    Conv2dTernaryHopperSplit, Conv2dTernaryMma, Conv2dTernaryPoints, Geometry, Tile,
};
use contract::launch::{DevPtr, Kernel};
use contract::w2a8::{MAX_SEGMENTS, Segments};

use super::int8::{I8, TERNARY, rows_of};
use super::{Conv2dI8, Conv2dTernary, Shape, bulk_lines, launch::no_kernel, shape, strips, whole};
use crate::ops::{CudaBackend, Float, OpError, RowType};

/// Launches the first of some kernels that is asked for, or good, and there.
macro_rules! first {
    ($launch:ident($cuda:ident, $op:expr, $asked:expr): $($kernel:ident($good:expr, $args:expr);)*) => { $(
        let wanted = $asked.map_or($good, |symbol: &str| symbol == $kernel::SPEC.symbol);
        if wanted && $cuda.has::<$kernel>() {
            // SAFETY: argued where the macro is used.
            return unsafe { $launch::<$kernel>($cuda, $op, $args) };
        }
    )* };
}

/// # Safety
/// As for the kernels, but for the grid.
unsafe fn tiled<K: Kernel<Args = Args>>(
    cuda: &CudaBackend,
    op: &'static str,
    (args, tile): (Args, Tile),
) -> Result<(), OpError> {
    let [column_tiles, pixel_tiles] = tile.tiles(&args.geometry);
    let grid = shape::grid(op, tiles(&args, tile))?;
    // SAFETY: the contract's grid; by the caller.
    unsafe { cuda.launch::<K>(grid, Args { column_tiles, pixel_tiles, ..args }) }
}

fn tiles(args: &Args, tile: Tile) -> u64 {
    let tiles: u64 = tile.tiles(&args.geometry).map(u64::from).iter().product();
    tiles.saturating_mul(u64::from(args.geometry.groups))
}

/// # Safety
/// As for the kernels, but for the grid.
unsafe fn in_lines<K: Kernel<Args = LinesArgs>>(
    cuda: &CudaBackend,
    op: &'static str,
    args: LinesArgs,
) -> Result<(), OpError> {
    let blocks = args.tiles().saturating_mul(u64::from(args.splits));
    let grid = shape::grid(op, blocks.next_multiple_of(u64::from(K::SPEC.cluster)))?;
    // SAFETY: whole clusters of the contract's blocks; by the caller.
    unsafe { cuda.launch::<K>(grid, args) }
}

impl Shape {
    /// What does not depend on the kind of weights.
    fn int8_args(&self, geometry: Geometry) -> Args {
        Args {
            x: DevPtr::NULL,
            w: DevPtr::NULL,
            scales: DevPtr::NULL,
            bias: DevPtr::NULL,
            residual: DevPtr::NULL,
            y: DevPtr::NULL,
            geometry,
            row_words: 0,
            activation: Activation::None,
            vectors: u32::from(self.pieces(16) && !self.weights.depthwise()),
            element: RowType::F32,
            column_tiles: 0,
            pixel_tiles: 0,
            segments: Segments { end: [0; MAX_SEGMENTS], scale: [1.0; MAX_SEGMENTS] },
        }
    }
}

impl Conv2dI8<'_, CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        self.check()?;
        let (shape, geometry, stream) = (self.shape(), self.geometry()?, cuda.stream());
        if geometry.pixels == 0 {
            return Ok(());
        }
        let args = Args {
            x: self.x.dev_ptr(stream).cast(),
            w: self.w.words().dev_ptr(stream),
            y: self.y.dev_ptr(stream).cast(),
            row_words: rows_of(self.w.packed()).words_i8() as u32,
            ..shape.int8_args(geometry)
        };
        // SAFETY: `check` compared `x` and `y` with the shape; the weights hold `k` rows by
        // construction; `y` is borrowed exclusively.
        first!(tiled(cuda, I8, self.kernel):
            Conv2dI8Mma(true, (args, Conv2dI8Mma::TILE));
            I8Dot(true, (args, I8Dot::TILE));
        );
        Err(no_kernel(I8))
    }
}

impl<T: Float> Conv2dTernary<'_, CudaBackend, T> {
    pub(in crate::ops) fn launch(self, cuda: &CudaBackend) -> Result<(), OpError> {
        self.check()?;
        let (shape, geometry, stream) = (self.shape(), self.geometry()?, cuda.stream());
        if geometry.pixels == 0 {
            return Ok(());
        }
        let args = Args {
            x: self.x.dev_ptr(stream).cast(),
            w: self.w.words().dev_ptr(stream),
            scales: self.scales.dev_ptr(stream),
            bias: self.bias.map_or(DevPtr::NULL, |bias| bias.dev_ptr(stream)),
            residual: self.residual.map_or(DevPtr::NULL, |r| r.dev_ptr(stream).cast()),
            y: self.y.dev_ptr(stream).cast(),
            row_words: rows_of(self.w.packed()).words_ternary() as u32,
            activation: self.activation,
            element: T::TYPE,
            segments: *self.w.segments(),
            ..shape.int8_args(geometry)
        };
        let images = shape.images.n as u32;
        if let Some(strips) = strips::ternary(cuda, args, images, self.kernel) {
            // SAFETY: as below.
            return unsafe { strips.launch(cuda) };
        }
        if let Some(args) = bulk_lines::ternary(cuda, args, images, self.kernel) {
            let walk = &args.walk;
            // SAFETY: as below.
            return unsafe { bulk_lines::apart::<Conv2dTernaryPoints>(cuda, TERNARY, args, walk) };
        }
        if let Some(whole) = whole::ternary(cuda, args, images, self.kernel) {
            // SAFETY: as below.
            return unsafe { whole.launch(cuda) };
        }
        let sms = u64::from(cuda.cuda().device().info().sm_count);
        let lines = |lines| LinesArgs::new(args, images, lines);
        let (many, few) =
            (lines(Conv2dTernaryHopper::LINES), lines(Conv2dTernaryHopperSplit::LINES));
        // SAFETY, for every launch below: `check` compared the tensors with the shape; the weights hold
        // `k` rows by construction; `y` is borrowed exclusively.
        if let Some(few) = few {
            let few = few.shared_by(splits(&few, sms));
            // A few steps by small tiles that all run at once: its start is shorter.
            let small =
                few.round * few.rounds <= 4 && tiles(&args, Conv2dTernaryMma::TILE) <= 3 * sms;
            if let Some(many) = many {
                let good = !small && few.splits == 1 && 4 * many.tiles() >= 3 * sms;
                first!(in_lines(cuda, TERNARY, self.kernel): Conv2dTernaryHopper(good, many););
            }
            first!(in_lines(cuda, TERNARY, self.kernel): Conv2dTernaryHopperSplit(!small, few););
        }
        first!(tiled(cuda, TERNARY, self.kernel):
            Conv2dTernaryMma(true, (args, Conv2dTernaryMma::TILE));
            TernaryDot(true, (args, TernaryDot::TILE));
        );
        Err(no_kernel(TERNARY))
    }
}

/// How many blocks share a tile: as many as there are multiprocessors for; where they have many steps
/// still, twice as many, of which two run at once.
fn splits(args: &LinesArgs, sms: u64) -> u32 {
    let steps = args.round * args.rounds;
    let mut splits = 1;
    while splits < CLUSTER && 2 * splits <= steps {
        let blocks = args.tiles() * u64::from(2 * splits);
        if blocks > sms && (blocks > 2 * sms || steps / splits < 16) {
            break;
        }
        splits *= 2;
    }
    splits
}
