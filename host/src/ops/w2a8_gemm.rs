//! Host side of [`contract::w2a8_gemm`].

use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::{Backend, OpError, PackedLinear, QuantActs, Tensor};

const OP: &str = "w2a8_gemm";

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]`.
pub struct W2a8Gemm<'a, B: Backend> {
    /// Ternary weights.
    pub w: &'a PackedLinear<B>,
    /// Quantised activations of `m` rows.
    pub acts: &'a QuantActs<B>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows of activations.
    pub m: usize,
}

impl<B: Backend> W2a8Gemm<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        self.acts.check(OP, self.m, self.w.k())?;
        at_least(OP, "y", self.y.len(), self.m * self.w.n())
    }
}
