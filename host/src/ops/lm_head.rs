//! Host side of [`contract::lm_head`].

use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::{Backend, Dense, OpError, Tensor};

const OP: &str = "lm_head";

/// `logits[m, v] = dot(x[m], w[v])` for `m` rows.
pub struct LmHead<'a, B: Backend> {
    /// Rows `[x_at.., k]`.
    pub x: &'a B::Buf<f32>,
    /// First element of row 0 in `x`.
    pub x_at: usize,
    /// Table `[vocab, k]`.
    pub w: &'a Dense<B>,
    /// Output `[m, vocab]`.
    pub logits: &'a mut B::Buf<f32>,
    /// Rows.
    pub m: usize,
}

impl<B: Backend> LmHead<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        let len = self.m * self.w.width();
        at_least(OP, "x", self.x.len(), self.x_at.saturating_add(len))?;
        at_least(OP, "logits", self.logits.len(), self.m * self.w.rows())
    }
}
