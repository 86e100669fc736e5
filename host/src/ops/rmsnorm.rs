//! Host side of [`contract::rmsnorm`].

use contract::row::{MAX_LEN, MAX_ROWS};

use super::error::{at_least, dimension, elements};
use super::{Backend, Float, OpError, Tensor};

const OP: &str = "rmsnorm";

/// `y = rmsnorm(x + delta) * weight` for `m` rows of `k`; `x` keeps the sum.
///
/// The sum is rounded to `T` before it is normed. [`super::act_quant`] has the form that quantises.
pub struct RmsNorm<'a, B: Backend, T: Float = f32> {
    /// Rows `[m, k]`; updated when `delta` is given.
    pub x: &'a mut B::Buf<T>,
    /// Rows added to `x` first.
    pub delta: Option<&'a B::Buf<T>>,
    /// Gain `[k]`.
    pub weight: &'a B::Buf<T>,
    /// Output `[m, k]`.
    pub y: &'a mut B::Buf<T>,
    /// Rows, 1 to 2^31 - 1.
    pub m: usize,
    /// Elements of a row, 1 to 2^30.
    pub k: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: Backend, T: Float> RmsNorm<'_, B, T> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^31 - 1 rows are allowed")?;
        dimension(OP, "k", self.k, MAX_LEN, "1 to 2^30 elements are allowed")?;
        let len = elements(OP, &[self.m, self.k])?;
        at_least(OP, "x", self.x.len(), len)?;
        if let Some(delta) = self.delta {
            at_least(OP, "delta", delta.len(), len)?;
        }
        at_least(OP, "weight", self.weight.len(), self.k)?;
        at_least(OP, "y", self.y.len(), len)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> RmsNorm<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::launch::DevPtr;
        use contract::rmsnorm::Args;
        self.check()?;
        let Self { x, delta, weight, y, m, k, eps } = self;
        let stream = cuda.stream();
        let (m, k) = (m as u32, k as u32);
        let args = Args {
            x: x.dev_ptr(stream).cast(),
            delta: delta.map_or(DevPtr::NULL, |delta| delta.dev_ptr(stream).cast()),
            weight: weight.dev_ptr(stream).cast(),
            y: y.dev_ptr(stream).cast(),
            m,
            k,
            eps,
        };
        // SAFETY: `check` compared every tensor with `m` rows of `k` elements of this type; `x` and `y`
        // are borrowed exclusively, so nothing overlaps.
        unsafe { cuda.launch_rows::<contract::rmsnorm::RmsNorm>(T::TYPE, [m, k], args) }
    }
}
