//! Host side of [`contract::w2a8_gemv`].

use contract::w2a8_gemv::{VARIANTS, Variant};

use super::error::at_least;
use super::{Backend, OpError, PackedLinear, QuantActs, Tensor};

const OP: &str = "w2a8_gemv";

/// `y[n] = (sum_k q[k] t[n, k] / s) * g[n]` for one row of activations.
pub struct W2a8Gemv<'a, B: Backend> {
    /// Ternary weights.
    pub w: &'a PackedLinear<B>,
    /// Quantised activations: row 0 is used.
    pub acts: &'a QuantActs<B>,
    /// Output `[n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Which of [`VARIANTS`] runs on a GPU; `None` lets [`choose`] decide. All give the same bits.
    pub variant: Option<usize>,
}

impl<B: Backend> W2a8Gemv<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or variant that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        if let Some(found) = self.variant.filter(|&v| v >= VARIANTS.len()) {
            let allowed = "an index into contract::w2a8_gemv::VARIANTS is allowed";
            return Err(OpError::Dimension { op: OP, what: "variant", found, allowed });
        }
        self.acts.check(OP, 1, self.w.k())?;
        at_least(OP, "y", self.y.len(), self.w.n())
    }
}

/// The variant for an `n` by `k` matrix when none was measured.
pub fn choose(n: usize, k: usize) -> &'static Variant {
    &VARIANTS[choose_index(n, k)]
}

/// Position of [`choose`]'s answer in [`VARIANTS`].
pub fn choose_index(n: usize, k: usize) -> usize {
    let _ = (n, k);
    0
}

#[cfg(feature = "cuda")]
impl W2a8Gemv<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::w2a8::CHUNK;
        self.check()?;
        let Self { w, acts, y, variant } = self;
        let stream = cuda.stream();
        let index = variant.unwrap_or_else(|| choose_index(w.n(), w.k()));
        let args = contract::w2a8_gemv::Args {
            w: w.words().dev_ptr(stream),
            acts: acts.acts.dev_ptr(stream),
            stats: acts.stats.dev_ptr(stream).cast(),
            y: y.dev_ptr(stream),
            n: w.n() as u32,
            chunks: w.k().div_ceil(CHUNK) as u32,
            segments: *w.segments(),
        };
        let grid = VARIANTS[index].grid(args.n);
        // SAFETY: `PackedLinear` holds `n` rows of `chunks` by construction; `check` compared the
        // activations with one row of `k` and `y` with `n`; `y` is borrowed exclusively.
        unsafe { cuda.kernels().w2a8_gemv[index].launch(stream, grid, args)? };
        Ok(())
    }
}
