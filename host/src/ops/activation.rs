//! Host side of [`contract::activation`].

use contract::stream::{MAX_LEN, MAX_ROW};

use super::error::{at_least, dimension, elements};
use super::{Backend, Float, OpError, Tensor};

pub use contract::activation::Activation as Kind;

const OP: &str = "activation";

/// What the function is applied to.
pub enum Source<'a, B: Backend, T: Float> {
    /// `act(x)`.
    Plain {
        /// Rows `[m, k]`.
        x: &'a B::Buf<T>,
    },
    /// `act(gate) * up`.
    Gated {
        /// Rows `[m, k]`.
        gate: &'a B::Buf<T>,
        /// Rows `[m, k]`.
        up: &'a B::Buf<T>,
    },
    /// `act(gate) * up` of fused projections.
    Fused {
        /// Rows `[m, 2 k]`: gate, then up.
        gate_up: &'a B::Buf<T>,
    },
}

/// An activation of `m` rows of `k` elements, alone or as a gate.
pub struct Activation<'a, B: Backend, T: Float> {
    /// Which function.
    pub kind: Kind,
    /// What it is applied to.
    pub source: Source<'a, B, T>,
    /// Output `[m, k]`.
    pub y: &'a mut B::Buf<T>,
    /// Rows; 1 for a tensor without rows.
    pub m: usize,
    /// Elements of an output row: up to 2^31 - 1, or 2^40 of a single row. All elements: up to 2^40.
    pub k: usize,
}

/// Refuses dimensions beyond those of [`contract::stream`]; gives the number of elements.
pub(super) fn rows_of(op: &'static str, m: usize, k: usize) -> Result<usize, OpError> {
    dimension(op, "m", m, MAX_LEN, "1 to 2^40 rows are allowed")?;
    let (most, words) = match m {
        1 => (MAX_LEN, "1 to 2^40 elements are allowed in a single row"),
        _ => (MAX_ROW, "1 to 2^31 - 1 elements are allowed in each of several rows"),
    };
    dimension(op, "k", k, most, words)?;
    let len = elements(op, &[m, k])?;
    dimension(op, "m * k", len, MAX_LEN, "1 to 2^40 elements are allowed")?;
    Ok(len)
}

impl<B: Backend, T: Float> Activation<'_, B, T> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let len = rows_of(OP, self.m, self.k)?;
        match &self.source {
            Source::Plain { x } => at_least(OP, "x", x.len(), len)?,
            Source::Gated { gate, up } => {
                at_least(OP, "gate", gate.len(), len)?;
                at_least(OP, "up", up.len(), len)?;
            }
            Source::Fused { gate_up } => at_least(OP, "gate_up", gate_up.len(), 2 * len)?,
        }
        at_least(OP, "y", self.y.len(), len)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> Activation<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::activation::{ActivationBf16, ActivationF16, ActivationF32, Args};
        use contract::launch::DevPtr;
        use contract::num::RowType;
        use contract::stream;
        self.check()?;
        let Self { kind, source, y, m, k } = self;
        let device = cuda.stream();
        let ptr = |tensor: &super::cuda::Buf<T>| tensor.dev_ptr(device);
        let y = y.dev_ptr(device);
        let (len, width) = ((m * k) as u64, k as u64);
        let (x, up, rows, k, stride) = match source {
            Source::Plain { x } => (ptr(x), DevPtr::NULL, 1, len, len),
            Source::Gated { gate, up } => (ptr(gate), ptr(up), 1, len, len),
            Source::Fused { gate_up } => {
                let gate = ptr(gate_up);
                (gate, super::cuda::at(gate, k), m as u64, width, 2 * width)
            }
        };
        let bytes = size_of::<T>() as u64;
        let addresses = [x.addr(), up.addr(), y.addr()];
        let aligned = stream::aligned(bytes, rows, addresses, [stride, stride, k]);
        let (x, up, y) = (x.cast(), up.cast(), y.cast());
        let (aligned, kind) = (u32::from(aligned), kind as u32);
        let args = Args { x, up, y, rows, k, x_stride: stride, up_stride: stride, aligned, kind };
        let grid = super::cuda::blocks(OP, stream::grid(bytes, rows, k))?;
        // SAFETY: `check` compared the tensors with `m` rows of `k` elements of this type (the fused one
        // with `2 k`); `y` is borrowed exclusively.
        unsafe {
            match T::TYPE {
                RowType::F32 => cuda.launch::<ActivationF32>(grid, args),
                RowType::F16 => cuda.launch::<ActivationF16>(grid, args),
                RowType::Bf16 => cuda.launch::<ActivationBf16>(grid, args),
            }
        }
    }
}
