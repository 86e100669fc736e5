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

#[cfg(feature = "cuda")]
impl W2a8Gemm<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::w2a8::{CHUNK, act_bytes};
        self.check()?;
        let Self { w, acts, y, m } = self;
        let stream = cuda.stream();
        let args = contract::w2a8_gemm::Args {
            w: w.words().dev_ptr(stream),
            acts: acts.acts.dev_ptr(stream),
            stats: acts.stats.dev_ptr(stream).cast(),
            y: y.dev_ptr(stream),
            n: w.n() as u32,
            chunks: w.k().div_ceil(CHUNK) as u32,
            m: m as u32,
            act_pieces: (act_bytes(w.k()) / 16) as u32,
            segments: *w.segments(),
        };
        let grid = contract::w2a8_gemm::grid(args.m, args.n);
        // SAFETY: `PackedLinear` holds `n` rows of `chunks` by construction; `check` compared the
        // activations with `m` rows of `k` and `y` with `m * n`; `y` is borrowed exclusively.
        unsafe { cuda.launch::<contract::w2a8_gemm::W2a8Gemm>(grid, args)? };
        Ok(())
    }
}
