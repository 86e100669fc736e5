//! Activations and sums of elements.

use bitnet_gpu::ops::activation::{Activation, Kind, Source};
use bitnet_gpu::ops::elementwise::{Elementwise, Function, Operand};
use bitnet_gpu::ops::{Float, OpError};

use crate::layer::{Build, Layer, Lends, Operation, Output, Tensors, begin, make};
use crate::linear::Device;
use crate::options::{defaults, finite, named};
use crate::product::input;
use crate::rows::{contiguous, like, repeats};
use crate::status::{Failure, Status, call};
use crate::tensor::{FLOATS, View, with_float};

/// `bitnet_elementwise_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ElementwiseOptions {
    struct_bytes: usize,
    multiply: i32,
    alpha: f32,
    beta: f32,
    relu: i32,
}

defaults!(ElementwiseOptions, bitnet_elementwise_options_default, {
    multiply: 0,
    alpha: 1.0,
    beta: 1.0,
    relu: 0,
});

impl<B: Lends> Operation<B> for ElementwiseOptions {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        like(&x.of(&FLOATS)?)
    }

    fn other(&self) -> Option<&'static str> {
        Some("other")
    }

    fn beside(&self, x: &View, other: &View, _: &Output) -> Result<(), Failure> {
        repeats(x, other)
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        if self.multiply != 0 && tensors.other.is_none() {
            return Err(Failure::null("other, by which x is multiplied,"));
        }
        contiguous(tensors)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // SAFETY: by the caller.
        unsafe { with_float!(tensors.x.dtype, T => self.run_of::<B, T>(backend, tensors)) }
    }
}

impl ElementwiseOptions {
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_of<B: Lends, T: Float>(
        &self,
        backend: &B,
        tensors: &Tensors,
    ) -> Result<(), OpError> {
        let Tensors { x, other, y } = tensors;
        let &Self { multiply, alpha, beta, relu, .. } = self;
        // SAFETY: by the caller.
        unsafe {
            let a = input::<B, T>(backend, x)?;
            let b = other.as_ref().map(|other| input::<B, T>(backend, other)).transpose()?;
            let mut out = backend.result(y.what, y.data, y.len())?;
            // One row of `other` serves all where it is shorter.
            let k = other.map_or(x.len(), |other| other.len());
            let b = b.as_ref().map(|b| match k == x.len() {
                true => Operand::Rows(b),
                false => Operand::Row(b),
            });
            let function = match b {
                None => Function::Affine { alpha, beta },
                Some(b) if multiply != 0 => Function::Mul(b),
                Some(b) => Function::Axpby { alpha, beta, b },
            };
            let (m, relu) = (x.len() / k, relu != 0);
            backend.elementwise(Elementwise { a: &a, function, relu, y: &mut out, m, k })?;
            backend.give(&out, y.data, y.len())
        }
    }
}

impl Build for ElementwiseOptions {
    fn build<B: Lends>(self, _: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        let Self { multiply, alpha, beta, .. } = self;
        let (alpha, beta) = (finite("alpha", alpha)?, finite("beta", beta)?);
        if multiply != 0 && [alpha, beta] != [1.0; 2] {
            let words = format!("alpha = {alpha} and beta = {beta} of a product have to stay 1");
            return Err(Failure::argument(words));
        }
        Ok(Box::new(self))
    }
}

/// An activation, alone or as a gate.
#[derive(Clone, Copy)]
struct Act {
    kind: Kind,
    fused: bool,
}

impl<B: Lends> Operation<B> for Act {
    fn output(&self, x: &View) -> Result<Output, Failure> {
        let mut output = like(&x.of(&FLOATS)?)?;
        if let (true, Some(last)) = (self.fused, output.sizes.last_mut()) {
            if *last % 2 == 1 {
                let words = "the last side holds a gate and its factor, so it has to be even";
                return Err(Failure::argument(format!("{}: {words}", x.shown())));
            }
            *last /= 2;
        }
        Ok(output)
    }

    fn other(&self) -> Option<&'static str> {
        (!self.fused).then_some("factor")
    }

    fn check(&self, tensors: &Tensors) -> Result<(), Failure> {
        contiguous(tensors)
    }

    unsafe fn run(&self, backend: &B, tensors: &Tensors) -> Result<(), OpError> {
        // SAFETY: by the caller.
        unsafe { with_float!(tensors.x.dtype, T => self.run_of::<B, T>(backend, tensors)) }
    }
}

impl Act {
    /// # Safety
    /// As [`Operation::run`].
    unsafe fn run_of<B: Lends, T: Float>(
        &self,
        backend: &B,
        tensors: &Tensors,
    ) -> Result<(), OpError> {
        let Tensors { x, other, y } = tensors;
        // SAFETY: by the caller.
        unsafe {
            let x = input::<B, T>(backend, x)?;
            let up = other.as_ref().map(|up| input::<B, T>(backend, up)).transpose()?;
            let mut out = backend.result(y.what, y.data, y.len())?;
            let (source, k) = match &up {
                _ if self.fused => (Source::Fused { gate_up: &x }, *y.sizes().last().unwrap_or(&1)),
                Some(up) => (Source::Gated { gate: &x, up }, y.len()),
                None => (Source::Plain { x: &x }, y.len()),
            };
            let (kind, m) = (self.kind, y.len() / k);
            backend.activation(Activation { kind, source, y: &mut out, m, k })?;
            backend.give(&out, y.data, y.len())
        }
    }
}

impl Build for Act {
    fn build<B: Lends>(self, _: &B) -> Result<Box<dyn Operation<B>>, Failure> {
        Ok(Box::new(self))
    }
}

/// Makes an activation.
///
/// # Safety
/// An open backend; `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_activation_new(
    backend: *const Device,
    activation: i32,
    fused: i32,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // `bitnet_activation` begins with none.
        let kind = named("activation", &Kind::ALL, activation, |kind| kind as i32 + 1)?;
        make(place, out, Act { kind, fused: fused != 0 })
    })
}

/// Makes a sum or product of elements.
///
/// # Safety
/// An open backend; `options` is null or begins with its size, `out` is null or can hold a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bitnet_elementwise_new(
    backend: *const Device,
    options: *const ElementwiseOptions,
    out: *mut *mut Layer,
) -> Status {
    call(|| {
        // SAFETY: by the caller.
        let (place, out) = unsafe { begin(backend, out)? };
        // SAFETY: by the caller.
        make(place, out, unsafe { ElementwiseOptions::given(options)? })
    })
}
