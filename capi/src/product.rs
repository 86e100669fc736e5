//! Linear layers by some product of rows, and what stands behind their sums: bias, residual and activation.

use std::ffi::c_void;

use bitnet_gpu::ops::act_quant::{ActQuant, Source};
use bitnet_gpu::ops::conv2d::{Activation, Finish, Images, Layout};
use bitnet_gpu::ops::{Backend, Float, Math, OpError, QuantActs};

use crate::layer::{Lends, Operation, Output, Tensors};
use crate::status::Failure;
use crate::tensor::{Dtype, FLOATS, View, with_float};

/// What a linear layer does with rows.
pub(crate) trait Product<B: Backend>: Send {
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

/// A linear layer.
pub(crate) struct LinearLayer<B: Backend, P> {
    pub(crate) product: P,
    pub(crate) epilogue: Epilogue<B>,
}

/// What stands behind the sums.
pub(crate) struct Epilogue<B: Backend> {
    bias: Option<B::Buf<f32>>,
    activation: Activation,
}

impl<B: Lends> Epilogue<B> {
    pub(crate) fn new(
        backend: &B,
        bias: Option<&[f32]>,
        activation: Activation,
    ) -> Result<Self, OpError> {
        let bias = bias.map(|bias| upload(backend, bias)).transpose()?;
        Ok(Self { bias, activation })
    }

    /// Queues `sums` and what stands behind them, of outputs `[n, h, w, channels]`.
    ///
    /// # Safety
    /// As [`Operation::run`].
    pub(crate) unsafe fn run(
        &self,
        backend: &B,
        tensors: &Tensors,
        (images, channels): (Images, usize),
        sums: impl FnOnce(&mut B::Buf<f32>) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let y = &tensors.y;
        let nothing = self.bias.is_none() && self.activation == Activation::None;
        if nothing && tensors.other.is_none() && y.dtype == Dtype::F32 {
            // SAFETY: by the caller.
            return unsafe {
                let mut out = backend.result(y.what, y.data, y.len())?;
                sums(&mut out)?;
                backend.give(&out, y.data, y.len())
            };
        }
        let mut all = backend.alloc("sums", y.len())?;
        sums(&mut all)?;
        with_float!(y.dtype, T => {
            // SAFETY: by the caller.
            unsafe { self.finish::<T>(backend, tensors, &all, images, channels) }
        })
    }

    /// # Safety
    /// As [`Operation::run`].
    unsafe fn finish<T: Float>(
        &self,
        backend: &B,
        tensors: &Tensors,
        sums: &B::Buf<f32>,
        images: Images,
        channels: usize,
    ) -> Result<(), OpError> {
        let Tensors { other, y, .. } = tensors;
        // SAFETY: by the caller.
        unsafe {
            let residual = other.as_ref().map(|view| input::<B, T>(backend, view)).transpose()?;
            let mut out = backend.result(y.what, y.data, y.len())?;
            backend.conv2d_finish(Finish {
                sums,
                bias: self.bias.as_ref(),
                residual: residual.as_ref(),
                y: &mut out,
                images,
                channels,
                activation: self.activation,
            })?;
            backend.give(&out, y.data, y.len())
        }
    }
}

impl<B: Lends, P: Product<B>> Operation<B> for LinearLayer<B, P> {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        let [n, k] = self.product.sides();
        self.product.takes(x)?;
        let mut sizes = x.sizes().to_vec();
        if sizes.last() != Some(&k) {
            let words = format!("{}: the last side has to be {k}", x.shown());
            return Err(Failure::argument(words));
        }
        x.contiguous()?;
        let (last, order) = (sizes.len() - 1, &[0, 1, 2, 3][..sizes.len()]);
        sizes[last] = n;
        Ok(Output { dtype: x.dtype, sizes, order })
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        [&tensors.y].into_iter().chain(&tensors.other).try_for_each(View::contiguous)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        let [n, _] = self.product.sides();
        let m = tensors.y.len() / n;
        let images = Images { n: m, h: 1, w: 1, layout: Layout::Nhwc };
        // SAFETY: by the caller.
        unsafe {
            let sums = |y: &mut _| self.product.run(backend, &tensors.x, y, m);
            self.epilogue.run(backend, tensors, (images, n), sums)
        }
    }
}

/// The input of a product.
///
/// # Safety
/// As [`Operation::run`].
pub(crate) unsafe fn input<B: Lends, X: Float>(
    backend: &B,
    x: &View,
) -> Result<B::Buf<X>, OpError> {
    // SAFETY: by the caller.
    unsafe { backend.lent(x.what, x.data.cast_const(), x.len()) }
}

/// Refuses tensor cores for other inputs than theirs.
pub(crate) fn takes(x: &View, math: Math) -> Result<(), Failure> {
    x.of(if math == Math::TensorCore { &[Dtype::Bf16] } else { &FLOATS }).map(drop)
}

/// Queues the quantiser of `m` rows of `k` floats.
///
/// # Safety
/// As [`Lends::lent`].
pub(crate) unsafe fn quantise<B: Lends>(
    backend: &B,
    (x, dtype): (*const c_void, Dtype),
    out: &mut QuantActs<B>,
    [m, k]: [usize; 2],
) -> Result<(), OpError> {
    let len = m * k;
    // SAFETY: by the caller.
    unsafe {
        match dtype {
            Dtype::F16 => {
                let source = Source::F16 { x: &backend.lent("x", x, len)? };
                backend.act_quant(ActQuant { source, out, m, k })
            }
            Dtype::Bf16 => {
                let source = Source::Bf16 { x: &backend.lent("x", x, len)? };
                backend.act_quant(ActQuant { source, out, m, k })
            }
            _ => {
                let source = Source::Plain { x: &backend.lent("x", x, len)? };
                backend.act_quant(ActQuant { source, out, m, k })
            }
        }
    }
}

/// Copies numbers to the backend.
fn upload<B: Backend>(backend: &B, numbers: &[f32]) -> Result<B::Buf<f32>, OpError> {
    let mut buffer = backend.alloc("bias", numbers.len())?;
    backend.write(&mut buffer, 0, numbers)?;
    Ok(buffer)
}
