//! Convolution with pruned weights.

#[cfg(feature = "cuda")]
use contract::num::RowType;
use contract::sparse::{MAX_PIXELS, MAX_SIDE, Patches};

use super::{Bitmap, OP, SparseError, SparseLinear};
#[cfg(feature = "cuda")]
use crate::ops::conv2d::bulk_lines as lines;
use crate::ops::error::{at_least, dimension};
use crate::ops::{Backend, Float, Math, OpError, Tensor};

/// Sides of a convolution: input `[batch, height, width, channels]`, kernel of `kernel` rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Images; with none, nothing happens.
    pub batch: usize,
    /// Rows of an input image.
    pub height: usize,
    /// Columns of an input image.
    pub width: usize,
    /// Input channels.
    pub channels: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Input rows and columns from one output to the next.
    pub stride: [usize; 2],
    /// Rows and columns of zeros on each side.
    pub padding: [usize; 2],
    /// Input rows and columns from one element of the kernel to the next.
    pub dilation: [usize; 2],
}

impl ConvShape {
    /// Rows and columns of an output image; 0 where the kernel does not fit.
    pub fn out(&self) -> [usize; 2] {
        let side = |input: usize, axis: usize| {
            let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            let padded = input + 2 * self.padding[axis];
            padded.checked_sub(reach).map_or(0, |rest| rest / self.stride[axis] + 1)
        };
        [side(self.height, 0), side(self.width, 1)]
    }

    /// Columns of the weights as a matrix: kernel row, kernel column, channel, the channel fastest.
    pub fn k(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.channels
    }

    /// Output pixels of all images.
    pub fn pixels(&self) -> usize {
        let [height, width] = self.out();
        self.batch * height * width
    }

    fn check(&self) -> Result<(), OpError> {
        let allowed = "1 to 2^24 are allowed";
        let side = |what, found| dimension(OP, what, found, MAX_SIDE, allowed);
        side("height", self.height)?;
        side("width", self.width)?;
        side("channels", self.channels)?;
        for axis in 0..2 {
            side("kernel", self.kernel[axis])?;
            side("stride", self.stride[axis])?;
            side("dilation", self.dilation[axis])?;
            if self.padding[axis] > MAX_SIDE {
                let (what, found) = ("padding", self.padding[axis]);
                let allowed = "0 to 2^24 are allowed";
                return Err(OpError::Dimension { op: OP, what, found, allowed });
            }
            // So that no position of the kernel passes 2^31.
            let reach = self.dilation[axis].saturating_mul(self.kernel[axis] - 1);
            let allowed = "dilation * (kernel - 1) up to 2^24 is allowed";
            dimension(OP, "reach of the kernel", reach.max(1), MAX_SIDE, allowed)?;
        }
        let k = self.kernel[0].saturating_mul(self.kernel[1]).saturating_mul(self.channels);
        dimension(OP, "k", k, MAX_SIDE, "kernel * channels up to 2^24 is allowed")?;
        let [height, width] = self.out();
        let pixels = self.batch.saturating_mul(height).saturating_mul(width);
        let allowed = "up to 2^30 output pixels are allowed; split the batch";
        dimension(OP, "output pixels", pixels.max(1), MAX_PIXELS, allowed)
    }

    /// What the kernels take.
    pub(crate) fn patches(&self) -> Patches {
        let [out_height, out_width] = self.out().map(|side| side as u32);
        Patches {
            height: self.height as u32,
            width: self.width as u32,
            channels: self.channels as u32,
            out_height,
            out_width,
            kernel_width: self.kernel[1] as u32,
            stride: self.stride.map(|side| side as u32),
            padding: self.padding.map(|side| side as u32),
            dilation: self.dilation.map(|side| side as u32),
        }
    }
}

/// Pruned convolution weights `[out_channels, kernel rows, kernel columns, channels]` on a backend, as the
/// bitmap of a matrix of `out_channels` rows.
pub struct SparseConv2d<B: Backend, T: Float> {
    matrix: SparseLinear<B, T>,
    kernel: [usize; 2],
    channels: usize,
}

impl<B: Backend, T: Float> SparseConv2d<B, T> {
    /// Copies the weights to the backend.
    ///
    /// # Errors
    /// A matrix of other columns than `kernel` and `channels` give; out of memory; a failed copy.
    pub fn upload(
        backend: &B,
        label: &'static str,
        w: &Bitmap<T>,
        kernel: [usize; 2],
        channels: usize,
    ) -> Result<Self, OpError> {
        let found = kernel[0].saturating_mul(kernel[1]).saturating_mul(channels);
        crate::ops::error::same(OP, "kernel * channels", found, w.k())?;
        Ok(Self { matrix: SparseLinear::upload(backend, label, w)?, kernel, channels })
    }

    /// Output channels.
    pub fn out_channels(&self) -> usize {
        self.matrix.n()
    }

    /// The weights as a matrix.
    pub fn matrix(&self) -> &SparseLinear<B, T> {
        &self.matrix
    }
}

/// `y[image, row, column, n]`: the product of [`super::Linear`] with patches of the input, in its order.
///
/// Outside of the image the input is +0. [`Math::TensorCore`] and its bound
/// are those of [`super::Linear`].
pub struct Conv2d<'a, B: Backend, W: Float, X: Float> {
    /// Weights.
    pub w: &'a SparseConv2d<B, W>,
    /// Input `[batch, height, width, channels]`.
    pub x: &'a B::Buf<X>,
    /// Output `[batch, out height, out width, out_channels]`.
    pub y: &'a mut B::Buf<f32>,
    /// Sides.
    pub shape: ConvShape,
    /// How.
    pub math: Math,
    /// Symbol of the kernel to run, for tests and measurements; `None`: the shape chooses. The CPU
    /// has one way and takes any.
    pub kernel: Option<&'static str>,
}

impl<B: Backend, W: Float, X: Float> Conv2d<'_, B, W, X> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit; tensor cores with other types than bf16.
    pub fn check(&self) -> Result<(), OpError> {
        self.shape.check()?;
        for axis in 0..2 {
            let (found, expected) = (self.shape.kernel[axis], self.w.kernel[axis]);
            crate::ops::error::same(OP, "kernel", found, expected)?;
        }
        crate::ops::error::same(OP, "channels", self.shape.channels, self.w.channels)?;
        let ConvShape { batch, height, width, channels, .. } = self.shape;
        let sides = height.saturating_mul(width).saturating_mul(channels);
        at_least(OP, "x", self.x.len(), batch.saturating_mul(sides))?;
        at_least(OP, "y", self.y.len(), self.shape.pixels().saturating_mul(self.w.out_channels()))?;
        super::linear::check_math(self.math, W::TYPE, X::TYPE)
    }
}

#[cfg(feature = "cuda")]
impl<W: Float, X: Float> Conv2d<'_, crate::ops::CudaBackend, W, X> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::sparse as kernels;
        self.check()?;
        let Self { w, x, y, shape, math, kernel } = self;
        if shape.pixels() == 0 {
            return Ok(());
        }
        let stream = cuda.stream();
        let linear = w.matrix.args(cuda, x.dev_ptr(stream).cast(), X::TYPE, y, shape.pixels());
        let args = kernels::Conv2dArgs { linear, patches: shape.patches() };
        let grid = |mb| kernels::linear_grid(linear.n, linear.m, mb);
        // Where there is no such kernel the exact one keeps its bound.
        let tensor = math == Math::TensorCore && shape.channels.is_multiple_of(8);
        let tensor = tensor && cuda.has::<kernels::SparseConv2dMma>();
        if tensor && let Some((args, expand, _dense)) = in_lines(cuda, &linear, &shape, kernel)? {
            use kernels::{SparseConv2dLines, SparseConv2dLinesPair, SparseConv2dLinesSplit};
            type Pair = SparseConv2dLinesPair;
            type Split = SparseConv2dLinesSplit;
            let warps = kernels::THREADS / 32;
            // SAFETY: as below; the dense weights have a place for each, and the launches are in order.
            return unsafe {
                let grid = [(expand.tiles * kernels::EXPAND_WARPS).div_ceil(warps), 1, 1];
                cuda.launch::<kernels::SparseExpand>(grid, expand)?;
                stream.close_behind(|| {
                    lines::launch::<SparseConv2dLines, Pair, Split>(cuda, OP, args, &args.walk)
                })
            };
        }
        // SAFETY: `SparseConv2d` holds a checked bitmap of the kernel's columns; `check` compared `x` and
        // `y` with the shape; allocations are 256-byte aligned; `y` is borrowed exclusively.
        unsafe {
            match W::TYPE {
                _ if tensor => cuda.launch::<kernels::SparseConv2dMma>(grid(32), args),
                RowType::Bf16 => cuda.launch::<kernels::SparseConv2dBf16>(grid(4), args),
                RowType::F16 => cuda.launch::<kernels::SparseConv2dF16>(grid(4), args),
                RowType::F32 => cuda.launch::<kernels::SparseConv2dF32>(grid(4), args),
            }
        }
    }
}

/// Products (output pixels by output channels by columns, zeros and all) from which dense ones in lines
/// are faster than sparse ones at 90 % zeros: measured on one H200, see the page of the family.
#[cfg(feature = "cuda")]
const LINES_PRODUCTS: u64 = 400_000_000;

/// A launch in lines, the one that makes its dense weights, and those.
#[cfg(feature = "cuda")]
type Expanded = (
    contract::sparse::LinesArgs,
    contract::sparse::ExpandArgs,
    crate::memory::DeviceBuffer<half::bf16>,
);

/// The launch in lines, where the kernels take it and are expected to be the fastest, or are asked for.
#[cfg(feature = "cuda")]
fn in_lines(
    cuda: &crate::ops::CudaBackend,
    linear: &contract::sparse::LinearArgs,
    shape: &ConvShape,
    asked: Option<&'static str>,
) -> Result<Option<Expanded>, OpError> {
    use contract::conv2d::weights::Packed;
    use contract::conv2d::{Layout, PadMode};
    use contract::sparse::{
        ExpandArgs, LinesArgs, SparseConv2dLines, SparseConv2dLinesPair, SparseConv2dLinesSplit,
    };

    use crate::driver::{MapElement, Mapped};
    use crate::ops::conv2d::{Images, Padding, Shape, Window};

    let products = [linear.m, linear.n, linear.k].map(u64::from).iter().product::<u64>();
    if !cuda.has::<SparseConv2dLines>() || asked.is_none() && products < LINES_PRODUCTS {
        return Ok(None);
    }
    let dense = Shape {
        images: Images { n: shape.batch, h: shape.height, w: shape.width, layout: Layout::Nhwc },
        weights: Packed {
            k: linear.n as usize,
            c: shape.channels,
            window: shape.kernel,
            groups: 1,
        },
        window: Window {
            stride: shape.stride,
            dilation: shape.dilation,
            padding: Padding::both(shape.padding[0], shape.padding[1]),
            mode: PadMode::Zeros,
        },
    };
    // Larger than the dense operation allows: not in lines.
    let Ok(geometry) = dense.geometry(OP) else { return Ok(None) };
    let Some(args) = LinesArgs::new(*linear, geometry, shape.batch as u32) else { return Ok(None) };
    let sms = u64::from(cuda.cuda().device().info().sm_count);
    let forms =
        lines::Forms::of::<SparseConv2dLines, SparseConv2dLinesPair, SparseConv2dLinesSplit>();
    let Some(splits) = forms.splits(asked, &args.walk, sms) else { return Ok(None) };
    let element = (MapElement::Bf16, 2);
    let entries = lines::entries(&geometry, &args.walk, linear.x.addr(), element);
    let Some(entries) = entries else { return Ok(None) };
    let (n, k) = (linear.n as usize, linear.k as usize);
    let dense: crate::memory::DeviceBuffer<half::bf16> = cuda.alloc("sparse conv2d", n * k)?;
    let at = dense.dev_ptr(cuda.stream());
    let all = (2 * n * k) as u64;
    let weights = Mapped {
        element: MapElement::Bf16,
        address: at.addr(),
        sizes: [k as u64, n as u64, 1, 1],
        strides: [2 * k as u64, all, all],
    };
    let weights = weights.tiles([64, 64, 1, 1]);
    let Some(weights) = weights else { return Ok(None) };
    let walk = args.walk.shared_by(splits);
    let tiles = contract::sparse::tiles(n, k, 2) as u32;
    let expand = ExpandArgs { linear: *linear, dense: at.cast(), tiles };
    Ok(Some((LinesArgs { entries, weights, walk, ..args }, expand, dense)))
}

/// The bitmap of weights `[out_channels, channels, kernel rows, kernel columns]`, as torch has them.
///
/// # Errors
/// As [`Bitmap::from_dense`].
pub fn bitmap_from_torch<T: Float>(
    out_channels: usize,
    channels: usize,
    kernel: [usize; 2],
    weights: &[T],
) -> Result<Bitmap<T>, SparseError> {
    let (taps, k) = (kernel[0] * kernel[1], kernel[0] * kernel[1] * channels);
    if weights.len() != out_channels * k {
        let what = "convolution weights";
        let (found, expected) = (weights.len(), out_channels * k);
        return Err(SparseError::Count { what, found, expected });
    }
    let at = |i: usize| i / k * k + i % channels * taps + i % k / channels;
    let ours: Vec<T> = (0..weights.len()).map(|i| weights[at(i)]).collect();
    Bitmap::from_dense(out_channels, k, &ours)
}
