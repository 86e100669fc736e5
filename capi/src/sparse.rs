//! Pruned layers: linear ones of any sparse format, and convolutions.

use std::ptr::NonNull;

use bitnet_gpu::ops::act_quant::{ActQuant, Source};
use bitnet_gpu::ops::conv2d::{Activation, Layout, PadMode, Padding, Window};
use bitnet_gpu::ops::sparse::{
    self, Bitmap, Conv2d, ConvShape, Csr, Linear, LinearCsr, LinearTernary, SparseConv2d,
    SparseCsr, SparseLinear, SparseTernary, TernaryBitmap, bitmap_from_torch,
};
use bitnet_gpu::ops::{Backend, Float, Math, OpError, QuantActs};
use contract::w2a8::Segments;

use crate::conv2d::order;
use crate::layer::{Build, Layer, Lends, Operation, Output, Tensors, begin, make};
use crate::linear::Device;
use crate::options::{self, ConvOptions};
use crate::status::{Failure, Status, call};
use crate::tensor::{Dtype, FLOATS, Tensor, View, with_float};

/// `bitnet_sparse_format`.
const CSR: i32 = 0;
const BITMAP: i32 = 1;
const TERNARY_BITMAP: i32 = 2;

/// What a linear layer does with rows.
trait Product<B: Backend>: Send {
    /// Output and input features.
    fn sides(&self) -> [usize; 2];

    /// Refuses a dtype of the input.
    fn takes(&self, x: &View) -> Result<(), Failure>;

    /// Queues the product of `m` rows.
    ///
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        m: usize,
    ) -> Result<(), OpError>;
}

/// A pruned linear layer.
struct Pruned<P>(P);

struct OfBitmap<B: Backend, W: Float> {
    w: SparseLinear<B, W>,
    math: Math,
}

struct OfCsr<B: Backend, W: Float>(SparseCsr<B, W>);

struct OfTernary<B: Backend>(SparseTernary<B>);

/// Refuses tensor cores for other inputs than theirs.
fn takes(x: &View, math: Math) -> Result<(), Failure> {
    x.of(if math == Math::TensorCore { &[Dtype::Bf16] } else { &FLOATS }).map(drop)
}

impl<B: Lends, P: Product<B>> Operation<B> for Pruned<P> {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        let [n, k] = self.0.sides();
        self.0.takes(x)?;
        let mut sizes = x.sizes().to_vec();
        if sizes.last() != Some(&k) {
            let words = format!("{}: the last side has to be {k}", x.shown());
            return Err(Failure::argument(words));
        }
        x.contiguous()?;
        let (last, order) = (sizes.len() - 1, &[0, 1, 2, 3][..sizes.len()]);
        sizes[last] = n;
        Ok(Output { dtype: Dtype::F32, sizes, order })
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        no_residual(tensors)?;
        tensors.y.contiguous()
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        let (Tensors { x, y, .. }, [n, _]) = (tensors, self.0.sides());
        // SAFETY: by the caller.
        unsafe {
            let mut out = backend.result(y.what, y.data, y.len())?;
            self.0.run(backend, x, &mut out, y.len() / n)?;
            backend.give(&out, y.data, y.len())
        }
    }
}

fn no_residual(tensors: &Tensors) -> Result<(), Failure> {
    match tensors.residual {
        None => Ok(()),
        Some(_) => Err(Failure::argument("a pruned layer adds no residual; pass NULL")),
    }
}

/// The input of a product.
///
/// # Safety
/// As [`Operation::run`].
unsafe fn input<B: Lends, X: Float>(backend: &B, x: &View) -> Result<B::Buf<X>, OpError> {
    // SAFETY: by the caller.
    unsafe { backend.lent(x.what, x.data.cast_const(), x.len()) }
}

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
        x.of(&[Dtype::F32]).map(drop)
    }

    unsafe fn run(
        &self,
        backend: &B,
        x: &View,
        y: &mut B::Buf<f32>,
        m: usize,
    ) -> Result<(), OpError> {
        let (w, k) = (&self.0, self.0.k());
        // SAFETY: by the caller.
        let x = unsafe { input::<B, f32>(backend, x)? };
        let mut acts = QuantActs::alloc(backend, m, k)?;
        let source = Source::Plain { x: &x };
        backend.act_quant(ActQuant { source, out: &mut acts, m, k })?;
        backend.sparse_ternary(LinearTernary { w, acts: &acts, y, m })
    }
}

/// A pruned convolution.
struct PrunedConv<B: Backend, W: Float> {
    w: SparseConv2d<B, W>,
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
        let fits = (0..2).all(|i| self.stride[i] > 0 && self.dilation[i] > 0);
        let [height, width] = if fits { shape.out() } else { [0; 2] };
        if height == 0 || width == 0 {
            let Self { kernel, stride, padding, dilation, .. } = self;
            return Err(Failure::argument(format!(
                "no output for {}: window {kernel:?}, stride {stride:?}, padding {padding:?}, dilation {dilation:?}",
                x.shown()
            )));
        }
        let sizes = vec![shape.batch, self.w.out_channels(), height, width];
        Ok(Output { dtype: Dtype::F32, sizes, order: order(Layout::Nhwc) })
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        no_residual(tensors)?;
        if tensors.y.lies_in(Layout::Nhwc) {
            return Ok(());
        }
        Err(Failure::argument(format!("{} is not channels last", tensors.y.shown())))
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        let Tensors { x, y, .. } = tensors;
        // `output` found one.
        let Ok(shape) = self.shape(x) else { unreachable!("checked before") };
        // SAFETY: by the caller.
        unsafe {
            let mut out = backend.result(y.what, y.data, y.len())?;
            with_float!(x.dtype, X => self.run_of::<X>(backend, x, &mut out, shape))?;
            backend.give(&out, y.data, y.len())
        }
    }
}

/// A linear layer that is to be made.
struct NewLinear {
    weights: View,
    format: i32,
    math: Math,
    scale: f32,
}

/// A sparse matrix that cannot be is the caller's argument.
fn cannot(error: sparse::SparseError) -> Failure {
    Failure::argument(error.to_string())
}

const LABEL: &str = "sparse weights";

impl Build for NewLinear {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { weights, format, math, scale } = self;
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
            return Ok(Box::new(Pruned(OfTernary(w))));
        }
        weights.of(&FLOATS)?;
        with_float!(weights.dtype, W => {
            // SAFETY: by who passed the weights.
            let values = unsafe { weights.host::<W>()? };
            if format == CSR {
                let csr = Csr::from_dense(n, k, values).map_err(cannot)?;
                let w = SparseCsr::upload(backend, LABEL, &csr)?;
                return Ok(Box::new(Pruned(OfCsr(w))));
            }
            let bitmap = Bitmap::from_dense(n, k, values).map_err(cannot)?;
            let w = SparseLinear::upload(backend, LABEL, &bitmap)?;
            Ok(Box::new(Pruned(OfBitmap { w, math })))
        })
    }
}

/// A convolution that is to be made.
struct NewConv {
    weights: View,
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    math: Math,
}

impl Build for NewConv {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { weights, stride, padding, dilation, math } = self;
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
            Ok(Box::new(PrunedConv { w, channels, kernel, stride, padding, dilation, math }))
        })
    }
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
/// An open backend; `weights` is a `bitnet_tensor` in host memory, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_sparse_linear_new(
    backend: *const Device,
    weights: *const Tensor,
    format: i32,
    math: i32,
    scale: f32,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        let weights = unsafe { View::new("weights", weights)? };
        if ![CSR, BITMAP, TERNARY_BITMAP].contains(&format) {
            return Err(Failure::argument(format!("format = {format} is out of range")));
        }
        let math = options::math(math)?;
        if format != BITMAP && math != Math::Exact {
            return Err(Failure::argument("tensor cores take the bitmap; use BITNET_BITMAP"));
        }
        cores_take(&weights, math)?;
        make(place, out, NewLinear { weights, format, math, scale })
    })
}

/// Packs the weights of a pruned convolution and puts them on the device.
///
/// # Safety
/// As [`bitnet_sparse_linear_new`]; `options` is null or begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_sparse_conv2d_new(
    backend: *const Device,
    weights: *const Tensor,
    options: *const ConvOptions,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        let (weights, options) =
            unsafe { (View::new("weights", weights)?.of(&FLOATS)?, ConvOptions::given(options)?) };
        let [_, _, r, s] = weights.images()?;
        let math = options.math()?;
        cores_take(&weights, math)?;
        let Window { stride, dilation, padding, mode } = options.window()?;
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
            (options.activation()? != Activation::None, "an activation"),
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
        make(place, out, NewConv { weights, stride, padding, dilation, math })
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
