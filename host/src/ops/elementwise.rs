//! Host side of [`contract::elementwise`].

use super::activation::rows_of;
use super::error::at_least;
use super::{Backend, Float, OpError, Tensor};

const OP: &str = "elementwise";

/// The second operand of a sum or product.
pub enum Operand<'a, B: Backend, T: Float> {
    /// Rows `[m, k]`.
    Rows(&'a B::Buf<T>),
    /// One row `[k]` that serves all.
    Row(&'a B::Buf<T>),
}

impl<B: Backend, T: Float> Clone for Operand<'_, B, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend, T: Float> Copy for Operand<'_, B, T> {}

/// What is computed of `a`, and of `b` where there is one.
pub enum Function<'a, B: Backend, T: Float> {
    /// `a + b`.
    Add(Operand<'a, B, T>),
    /// `a * b`.
    Mul(Operand<'a, B, T>),
    /// `alpha a + beta b`: the second product is rounded, the rest fused.
    Axpby {
        /// Factor of `a`.
        alpha: f32,
        /// Factor of `b`.
        beta: f32,
        /// The second operand.
        b: Operand<'a, B, T>,
    },
    /// `alpha a + beta`, fused.
    Affine {
        /// Factor.
        alpha: f32,
        /// What is added.
        beta: f32,
    },
}

impl<'a, B: Backend, T: Float> Function<'a, B, T> {
    /// Its form in the contract, the second operand, and the factors.
    pub(crate) fn parts(
        &self,
    ) -> (contract::elementwise::Function, Option<Operand<'a, B, T>>, f32, f32) {
        use contract::elementwise::Function as Form;
        match *self {
            Self::Add(b) => (Form::Add, Some(b), 1.0, 1.0),
            Self::Mul(b) => (Form::Mul, Some(b), 1.0, 1.0),
            Self::Axpby { alpha, beta, b } => (Form::Axpby, Some(b), alpha, beta),
            Self::Affine { alpha, beta } => (Form::Affine, None, alpha, beta),
        }
    }
}

/// A function of the elements of one or two tensors of `m` rows of `k`, with a relu behind it if wanted.
pub struct Elementwise<'a, B: Backend, T: Float> {
    /// First operand, rows `[m, k]`.
    pub a: &'a B::Buf<T>,
    /// What is computed.
    pub function: Function<'a, B, T>,
    /// Whether `max(., 0)` follows, before the result is rounded.
    pub relu: bool,
    /// Output `[m, k]`.
    pub y: &'a mut B::Buf<T>,
    /// Rows; 1 for tensors without rows.
    pub m: usize,
    /// Elements of a row: up to 2^31 - 1, or 2^40 of a single row. All elements: up to 2^40.
    pub k: usize,
}

impl<B: Backend, T: Float> Elementwise<'_, B, T> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let len = rows_of(OP, self.m, self.k)?;
        at_least(OP, "a", self.a.len(), len)?;
        match self.function.parts().1 {
            Some(Operand::Rows(b)) => at_least(OP, "b", b.len(), len)?,
            Some(Operand::Row(b)) => at_least(OP, "b", b.len(), self.k)?,
            None => {}
        }
        at_least(OP, "y", self.y.len(), len)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> Elementwise<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::elementwise::{Args, ElementwiseBf16, ElementwiseF16, ElementwiseF32};
        use contract::launch::DevPtr;
        use contract::num::RowType;
        use contract::stream;
        self.check()?;
        let Self { a, function, relu, y, m, k } = self;
        let device = cuda.stream();
        let (a, y) = (a.dev_ptr(device), y.dev_ptr(device));
        let (function, b, alpha, beta) = function.parts();
        let len = (m * k) as u64;
        let (b, rows, k, b_stride) = match b {
            None => (DevPtr::NULL, 1, len, len),
            Some(Operand::Rows(b)) => (b.dev_ptr(device), 1, len, len),
            Some(Operand::Row(b)) => (b.dev_ptr(device), m as u64, k as u64, 0),
        };
        let bytes = size_of::<T>() as u64;
        let addresses = [a.addr(), b.addr(), y.addr()];
        let aligned = stream::aligned(bytes, rows, addresses, [k, b_stride, k]);
        let args = Args {
            a: a.cast(),
            b: b.cast(),
            y: y.cast(),
            rows,
            k,
            b_stride,
            alpha,
            beta,
            aligned: u32::from(aligned),
            function: function as u32,
            relu: u32::from(relu),
        };
        let grid = super::cuda::blocks(OP, stream::grid(bytes, rows, k))?;
        // SAFETY: `check` compared the tensors with `m` rows of `k` elements of this type (a single row
        // of `b` with `k`); `y` is borrowed exclusively.
        unsafe {
            match T::TYPE {
                RowType::F32 => cuda.launch::<ElementwiseF32>(grid, args),
                RowType::F16 => cuda.launch::<ElementwiseF16>(grid, args),
                RowType::Bf16 => cuda.launch::<ElementwiseBf16>(grid, args),
            }
        }
    }
}
