//! Host side of [`contract::w2a8_trits`].

use contract::w2a8::{MAX_ROWS, row_words};
use contract::w2a8_trits::{VARIANTS, Variant, vectors};

use super::error::{at_least, dimension};
use super::{Backend, OpError, PackedLinear, QuantActs, Tensor, WeightLayout};

const OP: &str = "w2a8_trits";

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]` with weights of 1.6 bits.
///
/// One row takes a kernel that reads them as they are. For more rows a GPU first unpacks the matrix into `unpacked`,
/// then runs [`super::w2a8_gemm`] on that. The bits are those of [`super::w2a8_gemv`] and [`super::w2a8_gemm`].
pub struct W2a8Trits<'a, B: Backend> {
    /// Ternary weights, [`WeightLayout::Trits`].
    pub w: &'a PackedLinear<B>,
    /// Quantised activations of `m` rows.
    pub acts: &'a QuantActs<B>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows of activations.
    pub m: usize,
    /// Scratch of [`unpacked_len`] words.
    pub unpacked: &'a mut B::Buf<u32>,
    /// Which of [`VARIANTS`] runs on a GPU for one row; `None`: what was measured ([`super::choices`]), else
    /// [`choose_index`]. All give the same bits. More rows have none.
    pub variant: Option<usize>,
}

/// Words of scratch for `m` rows by an `n` by `k` matrix.
pub const fn unpacked_len(m: usize, n: usize, k: usize) -> usize {
    if m > 1 { n * row_words(k) } else { 0 }
}

impl<B: Backend> W2a8Trits<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor, dimension, layout or variant that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let variants = if self.m == 1 { VARIANTS.len() } else { 0 };
        if let Some(found) = self.variant.filter(|&v| v >= variants) {
            let allowed = "an index into contract::w2a8_trits::VARIANTS is allowed, for one row";
            return Err(OpError::Dimension { op: OP, what: "variant", found, allowed });
        }
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        let (m, n, k) = (self.m, self.w.n(), self.w.k());
        self.w.check_layout(OP, WeightLayout::Trits)?;
        self.acts.check(OP, m, k)?;
        at_least(OP, "unpacked", self.unpacked.len(), unpacked_len(m, n, k))?;
        at_least(OP, "y", self.y.len(), m * n)
    }
}

/// The variant for one row by an `n` by `k` matrix when none was asked for: an index into [`VARIANTS`]. Measured on
/// an H200 with programmatic dependent launch; `bitnet tune` measures elsewhere.
pub fn choose_index(n: usize, k: usize) -> usize {
    let (lanes, rows, unroll) = match () {
        () if n >= 12_288 => (16, 4, 2),
        () if n >= 8_192 => (32, 4, 2),
        () if vectors(k) > 64 => (32, 2, 3),
        () => (32, 2, 1),
    };
    let is_it = |v: &Variant| (v.lanes, v.rows, v.unroll) == (lanes, rows, unroll);
    VARIANTS.iter().position(is_it).unwrap_or(0)
}

#[cfg(feature = "cuda")]
type Launch =
    unsafe fn(&super::CudaBackend, [u32; 3], contract::w2a8_trits::Args) -> Result<(), OpError>;

#[cfg(feature = "cuda")]
macro_rules! launches {
    ($($name:ident $symbol:literal $lanes:literal $rows:literal $unroll:literal;)*) => {
        /// In the order of [`VARIANTS`].
        const LAUNCHES: &[Launch] =
            &[$(super::CudaBackend::launch::<contract::w2a8_trits::$name>),*];
    };
}
#[cfg(feature = "cuda")]
contract::for_each_w2a8_trits!(launches);

#[cfg(feature = "cuda")]
impl W2a8Trits<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::w2a8_trits::{Args, UnpackArgs, W2a8TritsUnpack, pieces, unpack_grid};
        self.check()?;
        let Self { w, acts, y, m, unpacked, variant } = self;
        let (stream, n, k) = (cuda.stream(), w.n(), w.k());
        if m == 1 {
            let chosen = || cuda.choices().get(super::choices::Family::W2a8Trits, 1, n, k);
            let index = variant.or_else(chosen).unwrap_or_else(|| choose_index(n, k));
            let args = Args {
                w: w.words().dev_ptr(stream),
                acts: acts.acts.dev_ptr(stream),
                stats: acts.stats.dev_ptr(stream).cast(),
                y: y.dev_ptr(stream),
                n: n as u32,
                vectors: vectors(k) as u32,
                pieces: pieces(k) as u32,
                segments: *w.segments(),
            };
            // SAFETY: `PackedLinear` holds `n` rows of `vectors` by construction; `check` compared the layout, the
            // activations with one row of `k` and `y` with `n`; `y` is borrowed exclusively.
            return unsafe { LAUNCHES[index](cuda, VARIANTS[index].grid(args.n), args) };
        }
        let args = UnpackArgs {
            w: w.words().dev_ptr(stream),
            out: unpacked.dev_ptr(stream),
            n: n as u32,
            vectors: vectors(k) as u32,
            words: row_words(k) as u32,
        };
        // SAFETY: as above; `check` compared `unpacked` with `n` rows of `words`, and it is borrowed exclusively.
        unsafe { cuda.launch::<W2a8TritsUnpack>(unpack_grid(args.n), args)? };
        let product = super::w2a8_gemm::Product {
            words: args.out,
            n,
            k,
            segments: w.segments(),
            acts,
            m,
            y: y.dev_ptr(stream),
        };
        // Products ask for their weights before they wait, as constants; here the launch before makes them.
        // SAFETY: the launch before it writes the words, and has ended; `check` compared the rest.
        stream.in_full_order(|| unsafe { product.launch(cuda, None, false, Default::default()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_names_variants_that_exist() {
        let shapes = [(1, 1), (13_824, 2560), (8192, 28_672)];
        let chosen = shapes.map(|(n, k)| choose_index(n, k));
        assert!(chosen[0] != chosen[1] && chosen[1] != chosen[2] && chosen[0] != chosen[2]);
    }
}
