//! Host side of [`contract::lut_matmul`].

mod lossy;

use contract::lut_matmul::{VARIANTS, Variant};
use contract::w2a8::{MAX_ROWS, Segments};

use crate::ops::error::{at_least, dimension};
use crate::ops::{Backend, OpError, QuantActs, Tensor};
use crate::pack::PackedTl;

pub use contract::lut_matmul::Form;
pub use lossy::{LossyLinear, LossyTables, LutBuildLossy, LutMatmulLossy};

const OP: &str = "lut_matmul";

/// A ternary matrix in tiles of [`contract::lut_matmul`], with its scales.
pub struct LutLinear<B: Backend> {
    tiles: B::Buf<u8>,
    form: Form,
    n: usize,
    k: usize,
    segments: Segments,
}

impl<B: Backend> LutLinear<B> {
    /// Uploads a matrix. Its codes were checked when it was packed.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn new(backend: &B, label: &'static str, packed: &PackedTl) -> Result<Self, OpError> {
        use crate::pack::TernarySource;
        let mut tiles = backend.alloc(label, packed.bytes().len())?;
        backend.write(&mut tiles, 0, packed.bytes())?;
        let (form, segments) = (packed.form(), *packed.segments());
        Ok(Self { tiles, form, n: packed.n(), k: packed.k(), segments })
    }

    /// The tiles.
    pub fn tiles(&self) -> &B::Buf<u8> {
        &self.tiles
    }

    /// How the ternaries are grouped.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Scales by rows.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }
}

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]` by tables: the bits of
/// [`super::w2a8_gemv::W2a8Gemv`] and [`super::w2a8_gemm::W2a8Gemm`].
pub struct LutMatmul<'a, B: Backend> {
    /// Ternary weights.
    pub w: &'a LutLinear<B>,
    /// Quantised activations of `m` rows.
    pub acts: &'a QuantActs<B>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows of activations.
    pub m: usize,
    /// Which of [`VARIANTS`] runs on a GPU; `None` lets [`choose_index`] decide. All of a form give
    /// the same bits.
    pub variant: Option<usize>,
}

impl<B: Backend> LutMatmul<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        let of_form = |&v: &usize| VARIANTS.get(v).is_some_and(|v| v.form == self.w.form);
        if let Some(found) = self.variant.filter(|v| !of_form(v)) {
            let allowed =
                "an index into contract::lut_matmul::VARIANTS of the weights' form is allowed";
            return Err(OpError::Dimension { op: OP, what: "variant", found, allowed });
        }
        self.acts.check(OP, self.m, self.w.k())?;
        at_least(OP, "y", self.y.len(), self.m.saturating_mul(self.w.n()))
    }
}

/// The kernel for a matrix of `n` rows when none was asked for: an index into [`VARIANTS`].
///
/// Measured on an H200: many tiles fill the machine with small blocks; with few, the warps of a larger
/// block hide each other's latency.
pub fn choose_index(form: Form, n: usize) -> usize {
    let warps = if n >= 8192 { 8 } else { 16 };
    VARIANTS.iter().position(|v: &Variant| (v.form, v.warps) == (form, warps)).unwrap_or(0)
}

#[cfg(feature = "cuda")]
type Launch = unsafe fn(
    &crate::ops::CudaBackend,
    [u32; 3],
    contract::lut_matmul::Args,
) -> Result<(), OpError>;

#[cfg(feature = "cuda")]
macro_rules! launches {
    ($($name:ident $symbol:literal $form:ident $warps:literal;)*) => {
        /// In the order of [`VARIANTS`].
        const LAUNCHES: &[Launch] =
            &[$(crate::ops::CudaBackend::launch::<contract::lut_matmul::$name>),*];
    };
}
#[cfg(feature = "cuda")]
contract::for_each_lut_matmul!(launches);

#[cfg(feature = "cuda")]
impl LutMatmul<'_, crate::ops::CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        self.check()?;
        let Self { w, acts, y, m, variant } = self;
        let stream = cuda.stream();
        let index = variant.unwrap_or_else(|| choose_index(w.form, w.n));
        let args = contract::lut_matmul::Args {
            w: w.tiles.dev_ptr(stream),
            acts: acts.acts.dev_ptr(stream),
            stats: acts.stats.dev_ptr(stream).cast(),
            y: y.dev_ptr(stream),
            n: w.n as u32,
            k: w.k as u32,
            m: m as u32,
            segments: w.segments,
        };
        let grid = VARIANTS[index].grid(args.n, args.m);
        // SAFETY: `LutLinear` holds `n` rows of `k` valid codes by construction; `check` compared the
        // activations with `m` rows of `k` and `y` with `m * n`; `y` is borrowed exclusively.
        unsafe { LAUNCHES[index](cuda, grid, args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_names_kernels_of_the_form() {
        for form in Form::ALL {
            for n in [1, 2560, 13_824, 1 << 24] {
                assert_eq!(VARIANTS[choose_index(form, n)].form, form);
            }
        }
    }
}
