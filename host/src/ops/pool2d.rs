//! Host side of [`contract::pool2d`].

pub use contract::conv2d::Layout;
use contract::pool2d::{Axis, MAX_SIDE};

use super::error::{at_least, dimension, elements};
use super::{Backend, Float, OpError, Tensor};

const OP: &str = "pool2d";

/// What is taken of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The maximum; NaN where a tap is NaN.
    Max,
    /// The average. Its windows have dilation 1.
    Average {
        /// Whether taps in the padding count, as zeros.
        count_include_pad: bool,
    },
}

/// The windows; each pair is rows, then columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Windows {
    /// Windows over the image, by PyTorch's rules.
    Sliding {
        /// Taps.
        kernel: [usize; 2],
        /// From window to window.
        stride: [usize; 2],
        /// Around the image on each side; at most half of what a window covers.
        padding: [usize; 2],
        /// From tap to tap.
        dilation: [usize; 2],
        /// Whether a window that is only partly inside makes an output at the end.
        ceil_mode: bool,
    },
    /// One window: the whole image.
    Global,
}

/// Shape of a pooling: images, windows and what is taken of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// Images.
    pub n: usize,
    /// Channels.
    pub c: usize,
    /// Rows of an image.
    pub h: usize,
    /// Columns of an image.
    pub w: usize,
    /// How images lie in memory, input and output alike.
    pub layout: Layout,
    /// What is taken.
    pub kind: Kind,
    /// Of what.
    pub windows: Windows,
}

impl Pooling {
    /// Rows and columns of the output, and the axes of the contract.
    ///
    /// # Errors
    /// A dimension of 0 or too large; padding beyond half a window; no window that fits; an average with
    /// dilation.
    pub fn axes(&self) -> Result<[Axis; 2], OpError> {
        let side = |what, len| {
            dimension(OP, what, len, MAX_SIDE, "1 to 2^24 are allowed").map(|()| len as u32)
        };
        side("n", self.n)?;
        side("c", self.c)?;
        let lens = [side("h", self.h)?, side("w", self.w)?];
        let Windows::Sliding { kernel, stride, padding, dilation, ceil_mode } = self.windows else {
            let whole = |len| Axis { len, out: 1, kernel: len, stride: 1, padding: 0, dilation: 1 };
            return Ok(lens.map(whole));
        };
        let mut axes = [Axis { len: 1, out: 1, kernel: 1, stride: 1, padding: 0, dilation: 1 }; 2];
        for (i, axis) in axes.iter_mut().enumerate() {
            axis.len = lens[i];
            axis.kernel = side("kernel", kernel[i])?;
            axis.stride = side("stride", stride[i])?;
            axis.dilation = side("dilation", dilation[i])?;
            if dilation[i] != 1 && self.kind != Kind::Max {
                let allowed = "an average takes windows of dilation 1";
                return Err(OpError::Dimension {
                    op: OP,
                    what: "dilation",
                    found: dilation[i],
                    allowed,
                });
            }
            let reach = dilation[i].saturating_mul(kernel[i] - 1) + 1;
            if reach > MAX_SIDE {
                let allowed = "a window covers at most 2^24";
                return Err(OpError::Dimension { op: OP, what: "window", found: reach, allowed });
            }
            if padding[i] > reach / 2 {
                let allowed = "at most half of what a window covers is allowed";
                return Err(OpError::Dimension {
                    op: OP,
                    what: "padding",
                    found: padding[i],
                    allowed,
                });
            }
            axis.padding = padding[i] as u32;
            axis.out = axis.outputs(ceil_mode).ok_or(OpError::Dimension {
                op: OP,
                what: "window",
                found: reach,
                allowed: "a window may not be larger than the padded image; make it smaller",
            })?;
        }
        let [h, w] = axes;
        elements(OP, &[h.kernel as usize, w.kernel as usize]).and_then(|taps| {
            dimension(OP, "taps", taps, (1 << 31) - 8, "1 to 2^31 - 8 are allowed")
        })?;
        Ok(axes)
    }

    /// Elements of input and output.
    ///
    /// # Errors
    /// As [`Pooling::axes`].
    pub fn lens(&self) -> Result<[usize; 2], OpError> {
        let [h, w] = self.axes()?;
        Ok([
            elements(OP, &[self.n, self.c, self.h, self.w])?,
            elements(OP, &[self.n, self.c, h.out as usize, w.out as usize])?,
        ])
    }
}

/// Maximum or average pooling of images.
pub struct Pool2d<'a, B: Backend, T: Float> {
    /// The shape.
    pub pooling: Pooling,
    /// Images.
    pub x: &'a B::Buf<T>,
    /// Output, as large as [`Pooling::lens`] says.
    pub y: &'a mut B::Buf<T>,
}

impl<B: Backend, T: Float> Pool2d<'_, B, T> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let [x, y] = self.pooling.lens()?;
        at_least(OP, "x", self.x.len(), x)?;
        at_least(OP, "y", self.y.len(), y)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> Pool2d<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::launch::Kernel;
        use contract::num::RowType;
        use contract::pool2d::{
            Args, AxesBf16, AxesF16, AxesF32, AxesLastBf16, AxesLastF16, AxesLastF32, GlobalBf16,
            GlobalF16, GlobalF32, LinesBf16, LinesF16, LinesF32, PiecesBf16, PiecesF16, PiecesF32,
            PlanesArgs, PlanesMaxBf16, PlanesMaxF16, PlanesMaxF32, ROWS, SMALL, STREAMS,
            StripsAvgBf16, StripsAvgF16, StripsAvgF32, StripsMaxBf16, StripsMaxF16, StripsMaxF32,
            THREADS, TilesBf16, TilesF16, TilesF32, WHOLE_THREADS, WholeBf16, WholeF16, WholeF32,
            WindowBf16, WindowF16, WindowF32, axes, planes, strips, tiles,
        };
        self.check()?;
        let Self { pooling, x, y } = self;
        let [h, w] = pooling.axes()?;
        let stream = cuda.stream();
        let (x, y) = (x.dev_ptr(stream), y.dev_ptr(stream));
        let size = size_of::<T>();
        let last = pooling.layout == Layout::Nhwc;
        let fits = |bytes: usize| {
            let aligned = (x.addr() | y.addr()).is_multiple_of(bytes as u64);
            last && (pooling.c * size).is_multiple_of(bytes) && aligned
        };
        // Of maxima of a small image with channels last a thread has all taps, as of a window.
        let small = last && pooling.h * pooling.w <= SMALL && pooling.kind == Kind::Max;
        // One window over the whole image is as good as `Global`.
        let global = h.covered() && w.covered() && !small;
        let (average, include) = match pooling.kind {
            Kind::Max => (0, false),
            Kind::Average { count_include_pad } => (1, count_include_pad),
        };
        let mut args = Args {
            x: x.cast(),
            y: y.cast(),
            images: pooling.n as u32,
            channels: pooling.c as u32,
            h,
            w,
            average,
            count_include_pad: u32::from(include),
            channels_last: u32::from(last),
            piece: 1,
        };
        let tiled = tiles(&args, size as u32).filter(|_| !global);
        // The levels that have strips have no form for lines in steps of 1, also where strips do not take a shape or a device.
        let no_step = w.stride == 1 && cuda.cuda().module().has(StripsMaxF32::SPEC.symbol);
        let lines = !global && !no_step && args.lines(size as u32);
        let planar = |plan: fn(&Args, u32) -> Option<PlanesArgs>| {
            if global || tiled.is_some() { None } else { plan(&args, size as u32) }
        };
        let strip = planar(strips);
        let planar = if strip.is_none() && !lines { planar(planes) } else { None };
        let others = global || tiled.is_some() || strip.is_some() || lines || planar.is_some();
        let axis = if others { None } else { axes(&args, size as u32) };
        let (last_axes, planes_axes) = if last { (axis, None) } else { (None, axis) };
        // SAFETY: `check` compared `x` and `y` with the images and outputs of this shape; pieces of channels are whole and
        // aligned where there are tiles of them, words where there are tiles of planes; `y` is borrowed exclusively.
        unsafe {
            match (T::TYPE, tiled) {
                (RowType::F32, Some(tiled)) if cuda.has::<TilesF32>() => {
                    return cuda.launch::<TilesF32>([tiled.blocks, 1, 1], tiled);
                }
                (RowType::F16, Some(tiled)) if cuda.has::<TilesF16>() => {
                    return cuda.launch::<TilesF16>([tiled.blocks, 1, 1], tiled);
                }
                (RowType::Bf16, Some(tiled)) if cuda.has::<TilesBf16>() => {
                    return cuda.launch::<TilesBf16>([tiled.blocks, 1, 1], tiled);
                }
                _ => {}
            }
            macro_rules! planar {
                ($($plan:ident $kernel:ident $ty:ident $average:expr;)*) => {$(
                    if let Some(plan) = $plan
                        && (T::TYPE, average) == (RowType::$ty, $average)
                        && cuda.has::<$kernel>()
                    {
                        return cuda.launch::<$kernel>([plan.blocks, 1, 1], plan);
                    }
                )*};
            }
            planar! {
                strip StripsMaxF32 F32 0;
                strip StripsMaxF16 F16 0;
                strip StripsMaxBf16 Bf16 0;
                strip StripsAvgF32 F32 1;
                strip StripsAvgF16 F16 1;
                strip StripsAvgBf16 Bf16 1;
                planar PlanesMaxF32 F32 0;
                planar PlanesMaxF16 F16 0;
                planar PlanesMaxBf16 Bf16 0;
                planes_axes AxesF32 F32 average;
                planes_axes AxesF16 F16 average;
                planes_axes AxesBf16 Bf16 average;
                last_axes AxesLastF32 F32 average;
                last_axes AxesLastF16 F16 average;
                last_axes AxesLastBf16 Bf16 average;
            }
        }
        let sms = cuda.cuda().device().sm_count();
        let most = if global { args.whole_piece(size as u32, sms) as usize } else { 16 };
        let mut pieces = [16, 8, 4].into_iter().filter(|&bytes| match bytes {
            _ if bytes > most => false,
            // Eight channels of windows that are not square would fill the registers.
            16 => fits(16) && (size == 4 || global || args.square()),
            8 => size == 2 && fits(8),
            _ => fits(4) && global,
        });
        let piece = pieces.next().map_or(1, |bytes| bytes / size);
        let whole = piece * size == 16;
        args.piece = piece as u32;
        let channels = (pooling.n * pooling.c) as u64;
        let (streamed, staged) = (args.streamed(size as u32), args.staged(size as u32));
        let many = global && (last || streamed);
        let threads = match (global, last) {
            (true, false) if streamed => channels,
            // A warp so many images, or eight lanes several.
            (true, false) if staged == 0 => 32 * channels.div_ceil(u64::from(args.ringed())),
            (true, false) => (8 * channels).div_ceil(u64::from(staged)),
            // Eight threads a piece of channels.
            (true, true) => 8 * channels / piece as u64,
            (false, _) if lines => channels * args.lines_threads(size as u32),
            (false, _) => {
                let places = u64::from(h.out.div_ceil(ROWS)) * u64::from(w.out);
                channels / piece as u64 * places
            }
        };
        let mut blocks = threads.div_ceil(u64::from(if many { WHOLE_THREADS } else { THREADS }));
        // As many as run at a time: each asks for its next images while it works on some.
        let most = match (global && !last, streamed) {
            (true, true) => STREAMS,
            (true, false) if staged > 0 => GlobalF32::SPEC.min_blocks_per_sm,
            _ => 0,
        };
        if most > 0 {
            blocks = blocks.min(u64::from(most * sms));
        }
        let grid = super::cuda::blocks(OP, blocks)?;
        // SAFETY: `check` compared `x` and `y` with the images and outputs of this shape; pieces of
        // channels are whole and aligned where `piece` says so; `y` is borrowed exclusively.
        unsafe {
            match (T::TYPE, global, whole) {
                (RowType::F32, ..) if many => cuda.launch::<WholeF32>(grid, args),
                (RowType::F32, true, _) => cuda.launch::<GlobalF32>(grid, args),
                (RowType::F16, ..) if many => cuda.launch::<WholeF16>(grid, args),
                (RowType::F16, true, _) => cuda.launch::<GlobalF16>(grid, args),
                (RowType::Bf16, ..) if many => cuda.launch::<WholeBf16>(grid, args),
                (RowType::Bf16, true, _) => cuda.launch::<GlobalBf16>(grid, args),
                (RowType::F32, ..) if lines => cuda.launch::<LinesF32>(grid, args),
                (RowType::F16, ..) if lines => cuda.launch::<LinesF16>(grid, args),
                (RowType::Bf16, ..) if lines => cuda.launch::<LinesBf16>(grid, args),
                (RowType::F32, _, true) => cuda.launch::<PiecesF32>(grid, args),
                (RowType::F16, _, true) => cuda.launch::<PiecesF16>(grid, args),
                (RowType::Bf16, _, true) => cuda.launch::<PiecesBf16>(grid, args),
                (RowType::F32, ..) => cuda.launch::<WindowF32>(grid, args),
                (RowType::F16, ..) => cuda.launch::<WindowF16>(grid, args),
                (RowType::Bf16, ..) => cuda.launch::<WindowBf16>(grid, args),
            }
        }
    }
}
