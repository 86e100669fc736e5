//! Softmax and norms: each works on the rows of a tensor, which are its last dimension.

use bitnet_gpu::ops::layernorm::LayerNorm;
use bitnet_gpu::ops::rmsnorm::RmsNorm;
use bitnet_gpu::ops::softmax::{Mask, Softmax};
use bitnet_gpu::ops::{Backend, Float, OpError};

use crate::layer::{Build, Layer, Lends, Operation, Output, Tensors, begin, make};
use crate::linear::Device;
use crate::options::{defaults, finite};
use crate::product::input;
use crate::status::{Failure, Status, call};
use crate::tensor::{FLOATS, Tensor, Typed, View, with_float};

/// `bitnet_softmax_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SoftmaxOptions {
    struct_bytes: usize,
    scale: f32,
    log: i32,
    causal: i32,
}

defaults!(SoftmaxOptions, bitnet_softmax_options_default, { scale: 1.0, log: 0, causal: 0, });

/// How many rows a tensor has, and how long they are.
fn rows(x: &View) -> [usize; 2] {
    let k = x.sizes().last().copied().unwrap_or(0);
    [x.len().checked_div(k).unwrap_or(0), k]
}

/// An output like the input, which is contiguous.
pub(crate) fn like(x: &View) -> Result<Output, Failure> {
    x.contiguous()?;
    let sizes = x.sizes().to_vec();
    let order = &[0, 1, 2, 3][..sizes.len()];
    Ok(Output { dtype: x.dtype, sizes, order })
}

/// Refuses what is not contiguous beside the input.
pub(crate) fn contiguous(tensors: &Tensors) -> Result<(), Failure> {
    [&tensors.y].into_iter().chain(&tensors.other).try_for_each(View::contiguous)
}

/// Refuses a tensor that does not serve all of `x` by being repeated: its sizes, but for ones in front, are the last of `x`.
pub(crate) fn repeats(x: &View, other: &View) -> Result<(), Failure> {
    other.of(&[x.dtype])?;
    let ones = other.sizes().iter().take_while(|&&size| size == 1).count();
    if x.sizes().ends_with(&other.sizes()[ones..]) {
        return Ok(());
    }
    let words = format!("the last sizes of {:?} are allowed, with ones in front", x.sizes());
    Err(Failure::argument(format!("{}: {words}", other.shown())))
}

impl<B: Lends> Operation<B> for SoftmaxOptions {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        x.of(&FLOATS)?;
        if self.causal != 0 {
            match x.sizes() {
                [.., queries, keys] if queries <= keys => {}
                _ => {
                    let words = "causal rows are [..., queries, keys], as many keys or more";
                    return Err(Failure::argument(format!("{}: {words}", x.shown())));
                }
            }
        }
        like(x)
    }

    fn other(&self) -> Option<&'static str> {
        (self.causal == 0).then_some("mask")
    }

    fn beside(&self, x: &View, mask: &View, _: &Output) -> Result<(), Failure> {
        repeats(x, mask)
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        contiguous(tensors)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // SAFETY: by the caller.
        unsafe { with_float!(tensors.x.dtype, T => self.run_of::<B, T>(backend, tensors)) }
    }
}

impl SoftmaxOptions {
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_of<B: Lends, T: Float>(
        &self,
        backend: &B,
        tensors: &Tensors,
    ) -> Result<(), OpError> {
        let Tensors { x, other, y } = tensors;
        let [m, k] = rows(x);
        // SAFETY: by the caller.
        unsafe {
            let scores = input::<B, T>(backend, x)?;
            let added = other.as_ref().map(|mask| input::<B, T>(backend, mask)).transpose()?;
            let mut out = backend.result(y.what, y.data, y.len())?;
            let mask = match (&added, other) {
                (Some(mask), Some(view)) => Mask::Added { mask, rows: view.len() / k },
                _ if self.causal != 0 => Mask::Causal { queries: x.sizes()[x.sizes().len() - 2] },
                _ => Mask::None,
            };
            let (scale, log) = (self.scale, self.log != 0);
            backend.softmax(Softmax { x: &scores, mask, y: &mut out, m, k, scale, log })?;
            backend.give(&out, y.data, y.len())
        }
    }
}

impl Build for SoftmaxOptions {
    fn build<B: Lends>(self, _: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        finite("scale", self.scale)?;
        Ok(Box::new(self))
    }
}

/// What a norm is made of.
#[derive(Clone, Copy)]
struct Form {
    centred: bool,
    eps: f32,
}

/// A norm with gains or offsets of `T`.
struct Norm<B: Backend, T: Float> {
    form: Form,
    k: usize,
    weight: Option<B::Buf<T>>,
    bias: Option<B::Buf<T>>,
}

/// A LayerNorm without either.
struct Bare(Form);

impl Form {
    /// Queues a norm; `residual` becomes its sum with `x` first, if there is one.
    ///
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run<B: Lends, T: Float>(
        self,
        backend: &B,
        tensors: &Tensors,
        weight: Option<&B::Buf<T>>,
        bias: Option<&B::Buf<T>>,
    ) -> Result<(), OpError> {
        let Tensors { x: given, other, y } = tensors;
        let ([m, k], eps) = (rows(given), self.eps);
        // SAFETY: by the caller.
        unsafe {
            let given = input::<B, T>(backend, given)?;
            let sum = other.as_ref().map(|sum| input::<B, T>(backend, sum)).transpose()?;
            let mut out = backend.result(y.what, y.data, y.len())?;
            let (mut x, delta) = match sum {
                None => (given, None),
                Some(sum) => (sum, Some(given)),
            };
            let (x, delta, y_of) = (&mut x, delta.as_ref(), &mut out);
            match weight {
                Some(weight) if !self.centred => {
                    backend.rmsnorm(RmsNorm { x, delta, weight, y: y_of, m, k, eps })?;
                }
                _ => backend.layernorm(LayerNorm { x, delta, weight, bias, y: y_of, m, k, eps })?,
            }
            if let Some(sum) = other {
                backend.give(x, sum.data, sum.len())?;
            }
            backend.give(&out, y.data, y.len())
        }
    }
}

impl<B: Lends, T: Float + Typed> Operation<B> for Norm<B, T> {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        x.of(&[T::DTYPE])?;
        if x.sizes().last() != Some(&self.k) {
            let words = format!("{}: the last side has to be {}", x.shown(), self.k);
            return Err(Failure::argument(words));
        }
        like(x)
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        contiguous(tensors)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        let (weight, bias) = (self.weight.as_ref(), self.bias.as_ref());
        // SAFETY: by the caller.
        unsafe { self.form.run::<B, T>(backend, tensors, weight, bias) }
    }
}

impl<B: Lends> Operation<B> for Bare {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        like(&x.of(&FLOATS)?)
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        contiguous(tensors)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // SAFETY: by the caller.
        unsafe {
            with_float!(tensors.x.dtype, T => self.0.run::<B, T>(backend, tensors, None, None))
        }
    }
}

/// A norm that is to be made.
struct NewNorm {
    form: Form,
    weight: Option<View>,
    bias: Option<View>,
}

impl Build for NewNorm {
    fn build<B: Lends>(self, backend: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { form, weight, bias } = self;
        let Some(first) = weight.or(bias) else {
            return Ok(Box::new(Bare(form)));
        };
        let &[k] = first.of(&FLOATS)?.sizes() else {
            return Err(Failure::argument(format!("{} is no [k]", first.shown())));
        };
        if let Some(bias) = bias {
            bias.of(&[first.dtype])?.shaped(&[k])?;
        }
        with_float!(first.dtype, T => {
            let upload = |view: View| -> Result<_, Failure> {
                // SAFETY: by who passed it.
                let numbers = unsafe { view.host::<T>()? };
                let mut buffer = backend.alloc("gains", numbers.len())?;
                backend.write(&mut buffer, 0, numbers)?;
                Ok(buffer)
            };
            let [weight, bias] = [weight, bias].map(|view| view.map(upload).transpose());
            Ok(Box::new(Norm::<B, T> { form, k, weight: weight?, bias: bias? }))
        })
    }
}

/// Makes a norm of a caller's gains and offsets.
///
/// # Safety
/// As [`bitnet_layernorm_new`].
unsafe fn norm(
    backend: *const Device,
    [weight, bias]: [*const Tensor; 2],
    form: Form,
    out: *mut *mut Layer,
) -> Result<(), Failure> {
    // SAFETY: by the caller.
    let (place, out) = unsafe { begin(backend, out)? };
    if !form.centred && weight.is_null() {
        return Err(Failure::null("weight"));
    }
    if finite("eps", form.eps)? < 0.0 {
        let words = format!("eps = {} has to be 0 or more", form.eps);
        return Err(Failure::argument(words));
    }
    // SAFETY: by the caller.
    let (weight, bias) = unsafe { (View::given("weight", weight)?, View::given("bias", bias)?) };
    make(place, out, NewNorm { form, weight, bias })
}

/// Makes a softmax.
///
/// # Safety
/// An open backend; `options` is null or begins with its size, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_softmax_new(
    backend: *const Device,
    options: *const SoftmaxOptions,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        make(place, out, unsafe { SoftmaxOptions::given(options)? })
    })
}

/// Makes an RMSNorm.
///
/// # Safety
/// As [`bitnet_layernorm_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_rmsnorm_new(
    backend: *const Device,
    weight: *const Tensor,
    eps: f32,
    out: *mut *mut Layer,
) -> Status {
    let tensors = [weight, std::ptr::null()];
    // SAFETY: by the caller.
    call(|| unsafe { norm(backend, tensors, Form { centred: false, eps }, out) })
}

/// Makes a LayerNorm.
///
/// # Safety
/// An open backend; `weight` and `bias` are null or `bitnet_tensor`s in host memory, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_layernorm_new(
    backend: *const Device,
    weight: *const Tensor,
    bias: *const Tensor,
    eps: f32,
    out: *mut *mut Layer,
) -> Status {
    // SAFETY: by the caller.
    call(|| unsafe { norm(backend, [weight, bias], Form { centred: true, eps }, out) })
}
