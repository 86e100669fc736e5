//! Host side of [`contract::rmsnorm`].

use contract::w2a8::{MAX_K, MAX_ROWS};

use super::error::{at_least, dimension};
use super::{Backend, OpError, Tensor};

const OP: &str = "rmsnorm";

/// `y = rmsnorm(x + delta) * weight` for `m` rows of `k`; `x` keeps the sum.
pub struct RmsNorm<'a, B: Backend> {
    /// Rows `[m, k]`; updated when `delta` is given.
    pub x: &'a mut B::Buf<f32>,
    /// Rows added to `x` first.
    pub delta: Option<&'a B::Buf<f32>>,
    /// Gain `[k]`.
    pub weight: &'a B::Buf<f32>,
    /// Output `[m, k]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows.
    pub m: usize,
    /// Elements of a row.
    pub k: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: Backend> RmsNorm<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "k", self.k, MAX_K, "1 to 2^20 elements are allowed")?;
        at_least(OP, "x", self.x.len(), self.m * self.k)?;
        if let Some(delta) = self.delta {
            at_least(OP, "delta", delta.len(), self.m * self.k)?;
        }
        at_least(OP, "weight", self.weight.len(), self.k)?;
        at_least(OP, "y", self.y.len(), self.m * self.k)
    }
}

#[cfg(feature = "cuda")]
impl RmsNorm<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::launch::DevPtr;
        self.check()?;
        let Self { x, delta, weight, y, m, k, eps } = self;
        let stream = cuda.stream();
        let args = contract::rmsnorm::Args {
            x: x.dev_ptr(stream),
            delta: delta.map_or(DevPtr::NULL, |delta| delta.dev_ptr(stream)),
            weight: weight.dev_ptr(stream),
            y: y.dev_ptr(stream),
            k: k as u32,
            eps,
        };
        // SAFETY: `check` compared every tensor with `m` rows of `k`; `x` and `y` are borrowed
        // exclusively, so nothing overlaps.
        unsafe { cuda.launch::<contract::rmsnorm::RmsNorm>([m as u32, 1, 1], args)? };
        Ok(())
    }
}
