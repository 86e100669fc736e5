//! Host side of [`contract::silu_mul`].

use contract::w2a8::{MAX_K, MAX_ROWS};

use super::error::{at_least, dimension};
use super::{Backend, OpError, Tensor};

const OP: &str = "silu_mul";

/// `f[m, k] = silu(gate) * up` for `m` rows.
pub struct SiluMul<'a, B: Backend> {
    /// Rows `[m, 2 k]`: gate, then up.
    pub gate_up: &'a B::Buf<f32>,
    /// Output `[m, k]`.
    pub f: &'a mut B::Buf<f32>,
    /// Rows.
    pub m: usize,
    /// Elements of an output row.
    pub k: usize,
}

impl<B: Backend> SiluMul<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "k", self.k, MAX_K, "1 to 2^20 elements are allowed")?;
        at_least(OP, "gate_up", self.gate_up.len(), 2 * self.m * self.k)?;
        at_least(OP, "f", self.f.len(), self.m * self.k)
    }
}

#[cfg(feature = "cuda")]
impl SiluMul<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::silu_mul::{Args, THREADS};
        self.check()?;
        let stream = cuda.stream();
        let k = self.k as u32;
        let args = Args { gate_up: self.gate_up.dev_ptr(stream), f: self.f.dev_ptr(stream), k };
        let grid = [k.div_ceil(THREADS), self.m as u32, 1];
        // SAFETY: `check` compared `gate_up` with `m` rows of `2 k` and `f` with `m` rows of `k`;
        // `f` is borrowed exclusively.
        unsafe { cuda.launch::<contract::silu_mul::SiluMul>(grid, args)? };
        Ok(())
    }
}
