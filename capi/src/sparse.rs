//! Pruned layers: linear ones of any sparse format, and convolutions.

use std::ptr::NonNull;

use bitnet_gpu::ops::conv2d::{Activation, Images, Layout, PadMode, Padding, Window};
use bitnet_gpu::ops::sparse::{
    self, Bitmap, Conv2d, ConvShape, Csr, Linear, LinearCsr, LinearTernary, SparseConv2d,
    SparseCsr, SparseLinear, SparseTernary, TernaryBitmap, bitmap_from_torch,
};
use bitnet_gpu::ops::{Backend, Float, Math, OpError, QuantActs};
use contract::sparse::MAX_SIDE;
use contract::w2a8::Segments;

use crate::conv2d::{bias_of, order};
use crate::layer::{Build, Layer, Lends, Operation, Output, Tensors, begin, make};
use crate::linear::Device;
use crate::options::{self, ConvOptions, SparseOptions};
use crate::product::{Epilogue, LinearLayer, Product, input, quantise, takes};
use crate::status::{Failure, Status, call};
use crate::tensor::{Dtype, FLOATS, Tensor, View, with_float};

/// `bitnet_sparse_format`.
const CSR: i32 = 0;
const BITMAP: i32 = 1;
const TERNARY_BITMAP: i32 = 2;

struct OfBitmap<B: Backend, W: Float> {
    w: SparseLinear<B, W>,
    math: Math,
}

struct OfCsr<B: Backend, W: Float>(SparseCsr<B, W>);

struct OfTernary<B: Backend>(SparseTernary<B>);

impl<B: Lends, W: Float> Product<B> for OfBitmap<B, W> {
    fn sides(&self) -> [usize; 2] {
        [self.w.n(), self.w.k()]
    }

    fn takes(&self, x: &View) -> Result<(), Failure> {
        takes(x, self.math)
    }

    unsafe fn run(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        m: usize,
    ) -> Result<(), OpError> {
        with_float!(x.dtype, X => {
            // SAFETY: by the caller.
            let x = unsafe { input::<B, X>(backend, x)? };
            let (w, math) = (&self.w, self.math);
            backend.sparse_linear(Linear { w, x: &x, y, m, math, kernel: None })
        })
    }
}

impl<B: Lends, W: Float> Product<B> for OfCsr<B, W> {
    fn sides(&self) -> [usize; 2] {
        [self.0.n(), self.0.k()]
    }

    fn takes(&self, x: &View) -> Result<(), Failure> {
        takes(x, Math::Exact)
    }

    unsafe fn run(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        m: usize,
    ) -> Result<(), OpError> {
        with_float!(x.dtype, X => {
            // SAFETY: by the caller.
            let x = unsafe { input::<B, X>(backend, x)? };
            backend.sparse_csr(LinearCsr { w: &self.0, x: &x, y, m })
        })
    }
}

impl<B: Lends> Product<B> for OfTernary<B> {
    fn sides(&self) -> [usize; 2] {
        [self.0.n(), self.0.k()]
    }

    fn takes(&self, x: &View) -> Result<(), Failure> {
        takes(x, Math::Exact)
    }

    unsafe fn run(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        m: usize,
    ) -> Result<(), OpError> {
        let (w, k) = (&self.0, self.0.k());
        let mut acts = QuantActs::alloc(backend, m, k)?;
        // SAFETY: by the caller.
        unsafe { quantise(backend, (x.data.cast_const(), x.dtype), &mut acts, [m, k])? };
        backend.sparse_ternary(LinearTernary { w, acts: &acts, y, m })
    }
}

/// A pruned convolution.
struct PrunedConv<B: Backend, W: Float> {
    w: SparseConv2d<B, W>,
    epilogue: Epilogue<B>,
    channels: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    math: Math,
}

impl<B: Lends, W: Float> PrunedConv<B, W> {
    fn shape(&self, x: &View) -> Result<ConvShape, Failure> {
        let [batch, channels, height, width] = x.images()?;
        if channels != self.channels {
            let (all, found) = (self.channels, x.shown());
            let words = format!("{found} has {channels} channels; the layer has {all}");
            return Err(Failure::argument(words));
        }
        let Self { kernel, stride, padding, dilation, .. } = *self;
        Ok(ConvShape { batch, height, width, channels, kernel, stride, padding, dilation })
    }

    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_of<X: Float>(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        shape: ConvShape,
    ) -> Result<(), OpError> {
        // SAFETY: by the caller.
        let x = unsafe { input::<B, X>(backend, x)? };
        let (w, math) = (&self.w, self.math);
        backend.sparse_conv2d(Conv2d { w, x: &x, y, shape, math, kernel: None })
    }
}

impl<B: Lends, W: Float> Operation<B> for PrunedConv<B, W> {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        takes(x, self.math)?;
        let shape = self.shape(x)?;
        if !x.lies_in(Layout::Nhwc) {
            let words = "is not channels last, as a pruned convolution takes images; copy it";
            return Err(Failure::argument(format!("{} {words}", x.shown())));
        }
        let [height, width] = shape.out();
        if height == 0 || width == 0 {
            let Self { kernel, stride, padding, dilation, .. } = self;
            return Err(Failure::argument(format!(
                "no output for {}: window {kernel:?}, stride {stride:?}, padding {padding:?}, dilation {dilation:?}",
                x.shown()
            )));
        }
        let sizes = vec![shape.batch, self.w.out_channels(), height, width];
        Ok(Output { dtype: x.dtype, sizes, order: order(Layout::Nhwc) })
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        let mut others = [&tensors.y].into_iter().chain(&tensors.other);
        match others.find(|view| !view.lies_in(Layout::Nhwc)) {
            None => Ok(()),
            Some(view) => Err(Failure::argument(format!("{} is not channels last", view.shown()))),
        }
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        let x = &tensors.x;
        // `output` found one.
        let Ok(shape) = self.shape(x) else { unreachable!("checked before") };
        let ([h, w], channels) = (shape.out(), self.w.out_channels());
        let images = Images { n: shape.batch, h, w, layout: Layout::Nhwc };
        // SAFETY: by the caller.
        unsafe {
            let sums =
                |y: &mut _| with_float!(x.dtype, X => self.run_of::<X>(backend, x, y, shape));
            self.epilogue.run(backend, tensors, (images, channels), sums)
        }
    }
}

/// A linear layer that is to be made.
struct NewLinear<'a> {
    weights: View,
    bias: Option<&'a [f32]>,
    format: i32,
    math: Math,
    activation: Activation,
    scale: f32,
}

/// A sparse matrix that cannot be is the caller's argument.
fn cannot(error: sparse::SparseError) -> Failure {
    Failure::argument(error.to_string())
}

const LABEL: &str = "sparse weights";

impl Build for NewLinear<'_> {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { weights, bias, format, math, activation, scale } = self;
        let epilogue = Epilogue::new(backend, bias, activation)?;
        let &[n, k] = weights.sizes() else {
            return Err(Failure::argument(format!("{} is no [n, k]", weights.shown())));
        };
        if format == TERNARY_BITMAP {
            weights.of(&[Dtype::I8])?;
            // SAFETY: by who passed the weights.
            let values = unsafe { weights.host::<i8>()? };
            if !(scale.is_finite() && scale > 0.0) {
                let words = format!("scale = {scale} has to be positive and finite");
                return Err(Failure::argument(words));
            }
            let segments = Segments::new(&[(n, scale)])
                .ok_or_else(|| Failure::argument(format!("{} has no rows", weights.shown())))?;
            let bitmap = TernaryBitmap::new(k, values, segments).map_err(cannot)?;
            let w = SparseTernary::upload(backend, LABEL, &bitmap)?;
            return Ok(Box::new(LinearLayer { product: OfTernary(w), epilogue }));
        }
        weights.of(&FLOATS)?;
        with_float!(weights.dtype, W => {
            // SAFETY: by who passed the weights.
            let values = unsafe { weights.host::<W>()? };
            if format == CSR {
                let csr = Csr::from_dense(n, k, values).map_err(cannot)?;
                let w = SparseCsr::upload(backend, LABEL, &csr)?;
                return Ok(Box::new(LinearLayer { product: OfCsr(w), epilogue }));
            }
            let bitmap = Bitmap::from_dense(n, k, values).map_err(cannot)?;
            let w = SparseLinear::upload(backend, LABEL, &bitmap)?;
            Ok(Box::new(LinearLayer { product: OfBitmap { w, math }, epilogue }))
        })
    }
}

/// A convolution that is to be made.
struct NewConv<'a> {
    weights: View,
    bias: Option<&'a [f32]>,
    activation: Activation,
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    math: Math,
}

impl Build for NewConv<'_> {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { weights, bias, activation, stride, padding, dilation, math } = self;
        let epilogue = Epilogue::new(backend, bias, activation)?;
        let [o, channels, r, s] = weights.images()?;
        with_float!(weights.dtype, W => {
            // SAFETY: by who passed the weights.
            let values = unsafe { weights.host::<W>()? };
            if values.is_empty() {
                return Err(Failure::argument(format!("{} is empty", weights.shown())));
            }
            let kernel = [r, s];
            let bitmap = bitmap_from_torch(o, channels, kernel, values).map_err(cannot)?;
            let w = SparseConv2d::upload(backend, LABEL, &bitmap, kernel, channels)?;
            let conv = PrunedConv { w, epilogue, channels, kernel, stride, padding, dilation, math };
            Ok(Box::new(conv))
        })
    }
}

fn within(what: &str, found: usize, least: usize, most: usize) -> Result<(), Failure> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(Failure::argument(format!("{what} = {found} is out of range; allowed: {least} to {most}")))
}

/// Refuses tensor cores for other weights than theirs.
fn cores_take(weights: &View, math: Math) -> Result<(), Failure> {
    if math == Math::TensorCore && weights.dtype != Dtype::Bf16 {
        let found = weights.dtype;
        let words = "tensor cores take pruned weights of Bf16; use BITNET_EXACT";
        return Err(Failure::argument(format!("weights are of {found:?}: {words}")));
    }
    Ok(())
}

/// Packs the weights of a pruned linear layer and puts them on the device.
///
/// # Safety
/// An open backend; `weights` and `bias` (unless it is null) are `bitnet_tensor`s in host memory, `options` is null or begins
/// with its size, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_sparse_linear_new(
    backend: *const Device,
    weights: *const Tensor,
    bias: *const Tensor,
    options: *const SparseOptions,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        let (weights, options) =
            unsafe { (View::new("weights", weights)?, SparseOptions::given(options)?) };
        // SAFETY: by the caller.
        let bias = unsafe { bias_of(bias, weights.sizes()[0])? };
        let SparseOptions { format, scale, .. } = options;
        let (math, activation) =
            (options::math(options.math)?, options::activation(options.activation)?);
        if ![CSR, BITMAP, TERNARY_BITMAP].contains(&format) {
            let words = format!("format = {format} is out of range; allowed: 0..3");
            return Err(Failure::argument(words));
        }
        if format != BITMAP && math != Math::Exact {
            return Err(Failure::argument("tensor cores take the bitmap; use BITNET_BITMAP"));
        }
        cores_take(&weights, math)?;
        make(place, out, NewLinear { weights, bias, format, math, activation, scale })
    })
}

/// Packs the weights of a pruned convolution and puts them on the device.
///
/// # Safety
/// As [`bitnet_sparse_linear_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_sparse_conv2d_new(
    backend: *const Device,
    weights: *const Tensor,
    bias: *const Tensor,
    options: *const ConvOptions,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        let (weights, options) =
            unsafe { (View::new("weights", weights)?.of(&FLOATS)?, ConvOptions::given(options)?) };
        let [k, _, r, s] = weights.images()?;
        // SAFETY: by the caller.
        let bias = unsafe { bias_of(bias, k)? };
        let (math, activation) = (options.math()?, options.activation()?);
        cores_take(&weights, math)?;
        let Window { stride, dilation, padding, mode } = options.window()?;
        for (what, sides) in [("stride", stride), ("dilation", dilation)] {
            sides.into_iter().try_for_each(|side| within(what, side, 1, MAX_SIDE))?;
        }
        let padding = match padding {
            Padding::Sides { top, bottom, left, right } => [(top, bottom), (left, right)],
            // What keeps the size at steps of 1.
            Padding::Same => {
                let all = |i: usize| dilation[i].saturating_mul([r, s][i].max(1) - 1);
                [0, 1].map(|i| (all(i) / 2, all(i) - all(i) / 2))
            }
        };
        let uneven = padding.iter().any(|(before, after)| before != after);
        let other = [
            (options.groups() != 1, "groups"),
            (mode != PadMode::Zeros, "a pad_mode"),
            (uneven, "padding of more pixels on one side than on the other"),
            (
                padding != [(0, 0); 2] && options.is_same() && stride != [1; 2],
                "`same` with a stride",
            ),
        ];
        if let Some((_, what)) = other.iter().find(|(asked, _)| *asked) {
            let words = format!("a pruned convolution takes no {what}; use bitnet_conv2d_new");
            return Err(Failure::argument(words));
        }
        let padding = padding.map(|(before, _)| before);
        padding.into_iter().try_for_each(|side| within("padding", side, 0, MAX_SIDE))?;
        make(place, out, NewConv { weights, bias, activation, stride, padding, dilation, math })
    })
}

/// Sets the smallest weights to +0.
///
/// # Safety
/// `weights` is null or a `bitnet_tensor` in host memory that nobody else touches; `pruned` is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_prune(
    weights: *const Tensor,
    sparsity: f64,
    pruned: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let weights = unsafe { View::new("weights", weights)? }.of(&FLOATS)?;
        weights.contiguous()?;
        weights.there(weights.dtype.bytes())?;
        let count = with_float!(weights.dtype, W => {
            let all: &mut [W] = match weights.len() {
                0 => &mut [],
                // SAFETY: by the caller; aligned and there, as was checked.
                len => unsafe { std::slice::from_raw_parts_mut(weights.data.cast(), len) },
            };
            sparse::prune(all, sparsity).map_err(cannot)?
        });
        if let Some(out) = NonNull::new(pruned) {
            // SAFETY: by the caller.
            unsafe { out.write(count) };
        }
        Ok(())
    })
}

/// Whether a pruned linear layer is expected to beat a dense one on a GPU.
///
/// # Safety
/// `out` is null or can hold a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_sparse_pays_off(
    n: usize,
    k: usize,
    m: usize,
    sparsity: f64,
    math: i32,
    out: *mut i32,
) -> Status {
    call(|| {
        let out = NonNull::new(out).ok_or_else(|| Failure::null("out"))?;
        let pays = sparse::pays_off([n, k], m, sparsity, options::math(math)?);
        // SAFETY: by the caller.
        unsafe { out.write(pays.into()) };
        Ok(())
    })
}
