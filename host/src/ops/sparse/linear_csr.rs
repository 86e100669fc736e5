//! The product with compressed sparse rows, as they came.

use contract::sparse::MAX_SIDE;

use super::{Csr, OP};
use crate::ops::error::{at_least, dimension};
use crate::ops::{Backend, Float, OpError, Tensor};

/// A [`Csr`] on a backend.
pub struct SparseCsr<B: Backend, T: Float> {
    rows: B::Buf<u32>,
    columns: B::Buf<u32>,
    values: B::Buf<T>,
    n: usize,
    k: usize,
}

impl<B: Backend, T: Float> SparseCsr<B, T> {
    /// Copies a matrix to the backend.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn upload(backend: &B, label: &'static str, w: &Csr<T>) -> Result<Self, OpError> {
        let mut rows = backend.alloc(label, w.rows().len())?;
        backend.write(&mut rows, 0, w.rows())?;
        // Never empty: a matrix of nothing but zeros has no values.
        let stored = w.values().len().max(1);
        let mut columns = backend.alloc(label, stored)?;
        backend.write(&mut columns, 0, w.columns())?;
        let mut values = backend.alloc(label, stored)?;
        backend.write(&mut values, 0, w.values())?;
        Ok(Self { rows, columns, values, n: w.n(), k: w.k() })
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Offsets of the rows.
    pub fn rows(&self) -> &B::Buf<u32> {
        &self.rows
    }

    /// Columns of the values.
    pub fn columns(&self) -> &B::Buf<u32> {
        &self.columns
    }

    /// Values.
    pub fn values(&self) -> &B::Buf<T> {
        &self.values
    }
}

/// `y[m, n] = sum_k x[m, k] w[n, k]` over the stored weights: the bits of [`super::Linear`].
///
/// For matrices that are used once, or nearly empty; a [`super::Bitmap`] is read faster.
pub struct LinearCsr<'a, B: Backend, W: Float, X: Float> {
    /// Weights.
    pub w: &'a SparseCsr<B, W>,
    /// Rows `[m, k]`.
    pub x: &'a B::Buf<X>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows; with none, nothing happens.
    pub m: usize,
}

impl<B: Backend, W: Float, X: Float> LinearCsr<'_, B, W, X> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        if self.m != 0 {
            dimension(OP, "m", self.m, MAX_SIDE, "0 to 2^24 rows are allowed")?;
        }
        at_least(OP, "x", self.x.len(), self.m * self.w.k)?;
        at_least(OP, "y", self.y.len(), self.m * self.w.n)
    }
}

#[cfg(feature = "cuda")]
impl<W: Float, X: Float> LinearCsr<'_, crate::ops::CudaBackend, W, X> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::num::RowType;
        use contract::sparse::{self as kernels, CsrArgs};
        self.check()?;
        let Self { w, x, y, m } = self;
        if m == 0 {
            return Ok(());
        }
        let stream = cuda.stream();
        let args = CsrArgs {
            rows: w.rows.dev_ptr(stream),
            columns: w.columns.dev_ptr(stream),
            values: w.values.dev_ptr(stream).cast(),
            x: x.dev_ptr(stream).cast(),
            y: y.dev_ptr(stream),
            n: w.n as u32,
            k: w.k as u32,
            m: m as u32,
            x_type: X::TYPE as u32,
        };
        let grid = kernels::row_grid(args.n, args.m);
        // SAFETY: `SparseCsr` holds a checked matrix of `n` by `k`; `check` compared `x` and `y` with
        // `m` rows; `y` is borrowed exclusively.
        unsafe {
            match W::TYPE {
                RowType::Bf16 => cuda.launch::<kernels::SparseCsrBf16>(grid, args),
                RowType::F16 => cuda.launch::<kernels::SparseCsrF16>(grid, args),
                RowType::F32 => cuda.launch::<kernels::SparseCsrF32>(grid, args),
            }
        }
    }
}
