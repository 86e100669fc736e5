//! Convolutions, dense and of ternary weights.

use bitnet_gpu::ops::conv2d::{
    Activation, Conv2d, Conv2dTernary, Conv2dTernaryWeights, Conv2dWeights, Images, Layout, Shape,
    Window,
};
use bitnet_gpu::ops::image_quant::ImageQuant;
use bitnet_gpu::ops::{Backend, Element, Float, Math, OpError, Tensor as _};
use contract::conv2d::weights::Packed;

use crate::layer::{Build, Layer, Lends, Operation, Output, Tensors, begin, make};
use crate::linear::Device;
use crate::options::ConvOptions;
use crate::status::{Failure, Status, call};
use crate::tensor::{Dtype, FLOATS, Tensor, Typed, View, refused, with_float};

/// What both kinds of weights have.
struct Form<B: Backend> {
    bias: Option<B::Buf<f32>>,
    packed: Packed,
    window: Window,
    activation: Activation,
    math: Math,
}

/// Weights of `T`.
struct Dense<B: Backend, T: Float> {
    w: Conv2dWeights<B, T>,
    form: Form<B>,
}

/// Ternary weights.
struct Ternary<B: Backend> {
    w: Conv2dTernaryWeights<B>,
    form: Form<B>,
}

/// A layer that is to be made.
struct New<'a> {
    weights: View,
    bias: Option<&'a [f32]>,
    options: ConvOptions,
}

/// The order in memory of an image's dimensions.
pub(crate) fn order(layout: Layout) -> &'static [usize] {
    match layout {
        Layout::Nchw => &[0, 1, 2, 3],
        Layout::Nhwc => &[0, 2, 3, 1],
    }
}

/// The layout of an input's output. As PyTorch: in planes where the input can be read so.
pub(crate) fn layout_of(x: &View) -> Result<Layout, Failure> {
    let found = [Layout::Nchw, Layout::Nhwc].into_iter().find(|&layout| x.lies_in(layout));
    found.ok_or_else(|| {
        let words = "is neither contiguous nor channels last; copy it";
        Failure::argument(format!("{} {words}", x.shown()))
    })
}

/// The layout of all tensors: the fast one where they lie in both.
pub(crate) fn layout_of_all(tensors: &Tensors) -> Result<Layout, Failure> {
    let all = || [&tensors.x, &tensors.y].into_iter().chain(&tensors.other);
    let fits = |layout: &Layout| all().all(|tensor| tensor.lies_in(*layout));
    [Layout::Nhwc, Layout::Nchw].into_iter().find(fits).ok_or_else(|| {
        let shown: Vec<_> = all().map(View::shown).collect();
        let words = "they have to be contiguous, or all of them channels last";
        Failure::argument(format!("{}: {words}", shown.join("; ")))
    })
}

impl<B: Backend> Form<B> {
    /// The images of `x`, which may lie in several layouts: the fast one first.
    fn images(&self, x: &View, layout: Layout) -> Result<Images, Failure> {
        let [n, c, h, w] = x.images()?;
        let channels = self.packed.c * self.packed.groups;
        if c != channels {
            let words = format!("{} has {c} channels; the layer has {channels}", x.shown());
            return Err(Failure::argument(words));
        }
        Ok(Images { n, h, w, layout })
    }

    fn shape(&self, x: &View, layout: Layout) -> Result<Shape, Failure> {
        Ok(Shape { images: self.images(x, layout)?, weights: self.packed, window: self.window })
    }

    fn output(&self, x: &View, dtypes: &[Dtype]) -> Result<Output, Failure> {
        x.of(dtypes)?;
        let layout = layout_of(x)?;
        let sizes = self.shape(x, layout)?.output().map_err(refused)?;
        Ok(Output { dtype: x.dtype, sizes: sizes.to_vec(), order: order(layout) })
    }

    fn window_of(&self, tensors: &Tensors) -> (Images, Window) {
        // `check` found one.
        let layout = layout_of_all(tensors).unwrap_or(Layout::Nchw);
        let [n, _, h, w] = tensors.x.images().unwrap_or_default();
        (Images { n, h, w, layout }, self.window)
    }
}

/// The tensors of a convolution as buffers.
struct Buffers<B: Backend, T: Element> {
    x: B::Buf<T>,
    residual: Option<B::Buf<T>>,
    y: B::Buf<T>,
}

impl<B: Lends, T: Element> Buffers<B, T> {
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn new(backend: &B, tensors: &Tensors) -> Result<Self, OpError> {
        let Tensors { x, other, y } = tensors;
        // SAFETY: by the caller.
        unsafe {
            let of = |view: &View| backend.lent(view.what, view.data.cast_const(), view.len());
            Ok(Self {
                x: of(x)?,
                residual: other.as_ref().map(of).transpose()?,
                y: backend.result(y.what, y.data, y.len())?,
            })
        }
    }
}

impl<B: Lends, T: Float + Typed> Operation<B> for Dense<B, T> {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        self.form.output(x, &[T::DTYPE])
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        layout_of_all(tensors).map(drop)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // SAFETY: by the caller.
        let Buffers { x, residual, mut y } = unsafe { Buffers::<B, T>::new(backend, tensors)? };
        let (images, window) = self.form.window_of(tensors);
        backend.conv2d(Conv2d {
            x: &x,
            w: &self.w,
            bias: self.form.bias.as_ref(),
            residual: residual.as_ref(),
            y: &mut y,
            images,
            window,
            activation: self.form.activation,
            math: self.form.math,
            kernel: None,
        })?;
        // SAFETY: by the caller.
        unsafe { backend.give(&y, tensors.y.data, tensors.y.len()) }
    }
}

impl<B: Lends> Operation<B> for Ternary<B> {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        self.form.output(x, &FLOATS)
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        layout_of_all(tensors).map(drop)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // SAFETY: by the caller.
        unsafe { with_float!(tensors.x.dtype, T => self.run_of::<T>(backend, tensors)) }
    }
}

impl<B: Lends> Ternary<B> {
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_of<T: Float>(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // SAFETY: by the caller.
        let Buffers { x, residual, mut y } = unsafe { Buffers::<B, T>::new(backend, tensors)? };
        let (images, window) = self.form.window_of(tensors);
        let n = images.n;
        let mut q = backend.alloc("int8 images", x.len())?;
        let mut scales = backend.alloc("int8 images", n)?;
        let (q, scales) = (&mut q, &mut scales);
        backend.image_quant(ImageQuant { x: &x, q, scales, n, len: x.len() / n })?;
        backend.conv2d_ternary(Conv2dTernary {
            x: q,
            scales,
            w: &self.w,
            bias: self.form.bias.as_ref(),
            residual: residual.as_ref(),
            y: &mut y,
            images,
            window,
            activation: self.form.activation,
            kernel: None,
        })?;
        // SAFETY: by the caller.
        unsafe { backend.give(&y, tensors.y.data, tensors.y.len()) }
    }
}

impl Build for New<'_> {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { weights, bias, options } = self;
        let oihw @ [k, c, r, s] = weights.images()?;
        let groups = options.groups();
        let bias = bias.map(|bias| -> Result<_, OpError> {
            let mut buffer = backend.alloc("bias", bias.len())?;
            backend.write(&mut buffer, 0, bias)?;
            Ok(buffer)
        });
        let form = Form {
            bias: bias.transpose()?,
            packed: Packed { k, c, window: [r, s], groups },
            window: options.window()?,
            activation: options.activation()?,
            math: options.math()?,
        };
        if weights.dtype == Dtype::I8 {
            // SAFETY: by who passed the weights.
            let values = unsafe { weights.host::<i8>()? };
            let segments = [(k, options.scale())];
            let label = "conv2d weights";
            let w =
                Conv2dTernaryWeights::from_oihw(backend, label, values, oihw, groups, &segments);
            return Ok(Box::new(Ternary { w: w.map_err(refused)?, form }));
        }
        with_float!(weights.dtype, T => {
            // SAFETY: by who passed the weights.
            let values = unsafe { weights.host::<T>()? };
            let w = Conv2dWeights::from_oihw(backend, "conv2d weights", values, oihw, groups);
            Ok(Box::new(Dense { w: w.map_err(refused)?, form }))
        })
    }
}

/// A bias of `k` numbers in host memory.
///
/// # Safety
/// `bias` is null or a `bitnet_tensor` in host memory, which lives for `'a`.
pub(crate) unsafe fn bias_of<'a>(
    bias: *const Tensor,
    k: usize,
) -> Result<Option<&'a [f32]>, Failure> {
    // SAFETY: by the caller.
    let Some(bias) = (unsafe { View::given("bias", bias)? }) else { return Ok(None) };
    bias.of(&[Dtype::F32])?.shaped(&[k])?;
    // SAFETY: by the caller.
    Ok(Some(unsafe { bias.host::<f32>()? }))
}

/// Packs the weights of a convolution and puts them on the device.
///
/// # Safety
/// An open backend; `weights` and `bias` (unless it is null) are `bitnet_tensor`s in host memory, `options` is null or begins
/// with its size, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_conv2d_new(
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
            unsafe { (View::new("weights", weights)?, ConvOptions::given(options)?) };
        weights.of(&[Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I8])?;
        let [k, ..] = weights.images()?;
        // SAFETY: by the caller.
        let bias = unsafe { bias_of(bias, k)? };
        make(place, out, New { weights, bias, options })
    })
}
