//! Host side of [`contract::layernorm`].

use contract::row::{MAX_LEN, MAX_ROWS};

use super::error::{at_least, dimension, elements};
use super::{Backend, Float, OpError, Tensor};

const OP: &str = "layernorm";

/// `y = layernorm(x + delta) * weight + bias` for `m` rows of `k`; `x` keeps the sum.
///
/// The sum is rounded to `T` before it is normed. A row that holds NaN or an infinity gives NaN.
pub struct LayerNorm<'a, B: Backend, T: Float> {
    /// Rows `[m, k]`; updated when `delta` is given.
    pub x: &'a mut B::Buf<T>,
    /// Rows added to `x` first.
    pub delta: Option<&'a B::Buf<T>>,
    /// Gain `[k]`.
    pub weight: Option<&'a B::Buf<T>>,
    /// Offset `[k]`.
    pub bias: Option<&'a B::Buf<T>>,
    /// Output `[m, k]`.
    pub y: &'a mut B::Buf<T>,
    /// Rows, 1 to 2^31 - 1.
    pub m: usize,
    /// Elements of a row, 1 to 2^30.
    pub k: usize,
    /// Added to the variance.
    pub eps: f32,
}

impl<B: Backend, T: Float> LayerNorm<'_, B, T> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let &Self { m, k, .. } = self;
        dimension(OP, "m", m, MAX_ROWS, "1 to 2^31 - 1 rows are allowed")?;
        dimension(OP, "k", k, MAX_LEN, "1 to 2^30 elements are allowed")?;
        let len = elements(OP, &[m, k])?;
        at_least(OP, "x", self.x.len(), len)?;
        for (name, tensor, needed) in
            [("delta", self.delta, len), ("weight", self.weight, k), ("bias", self.bias, k)]
        {
            if let Some(tensor) = tensor {
                at_least(OP, name, tensor.len(), needed)?;
            }
        }
        at_least(OP, "y", self.y.len(), len)
    }
}

#[cfg(feature = "cuda")]
impl<T: Float> LayerNorm<'_, super::CudaBackend, T> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::launch::DevPtr;
        use contract::layernorm::Args;
        self.check()?;
        let Self { x, delta, weight, bias, y, m, k, eps } = self;
        let stream = cuda.stream();
        let or_null = |tensor: Option<&super::cuda::Buf<T>>| {
            tensor.map_or(DevPtr::NULL, |tensor| tensor.dev_ptr(stream).cast())
        };
        let (m, k) = (m as u32, k as u32);
        let args = Args {
            x: x.dev_ptr(stream).cast(),
            delta: or_null(delta),
            weight: or_null(weight),
            bias: or_null(bias),
            y: y.dev_ptr(stream).cast(),
            m,
            k,
            eps,
        };
        // SAFETY: `check` compared every tensor with `m` rows of `k` elements of this type; `x` and `y`
        // are borrowed exclusively, so nothing overlaps.
        unsafe { cuda.launch_rows::<contract::layernorm::LayerNorm>(T::TYPE, [m, k], args) }
    }
}
