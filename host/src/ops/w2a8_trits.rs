//! Host side of [`contract::w2a8_trits`].

use contract::w2a8::{MAX_ROWS, row_words};
use contract::w2a8_trits::{VARIANTS, vectors};

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

/// The variant for one row by an `n` by `k` matrix when none was asked for: the index into [`VARIANTS`] of the least
/// estimated time. `bitnet tune` measures.
pub fn choose_index(n: usize, k: usize) -> usize {
    (0..VARIANTS.len()).min_by_key(|&index| cost(index, n, k)).unwrap_or(0)
}

/// Multiprocessors of the GPUs that [`COSTS`] were fitted to.
const SMS: usize = 132;

/// Nanoseconds of a launch, of a block of the fullest multiprocessor, of a step of a block, of the two together, and of 2^22
/// codes: one row for each of [`VARIANTS`]. Fitted on 2026-11-28 to what each takes cold, with programmatic dependent launch: 63 shapes from 1,024x1,024 to
/// 57,344x8,192 on an H200, 31 of them on an H100 too. The choice is 1.7 % from the best variant on average (10.5 % by a rule of
/// three sizes before), 20 % at most (61 %).
const COSTS: &[[usize; 5]] = &[
    [254, 242, 619, 29, 82],   // l16r2u1
    [397, 193, 1195, 331, 0],  // l16r4u2
    [1198, 0, 214, 118, 78],   // l32r2u1
    [552, 82, 604, 173, 177],  // l32r2u3
    [1370, 40, 409, 210, 20],  // l32r4u1
    [381, 240, 1269, 141, 81], // l32r4u2
];

const _: () = assert!(COSTS.len() == VARIANTS.len());

/// Estimated nanoseconds of a variant.
fn cost(index: usize, n: usize, k: usize) -> usize {
    let (variant, cost) = (&VARIANTS[index], COSTS[index]);
    let fullest = n.div_ceil(variant.rows_per_block() as usize).div_ceil(SMS);
    let steps = vectors(k).div_ceil((variant.lanes * variant.unroll) as usize);
    cost[0]
        + cost[1] * fullest
        + cost[2] * steps
        + cost[3] * fullest * steps
        + ((cost[4] * n * k) >> 22)
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

    fn chosen(n: usize, k: usize) -> &'static str {
        VARIANTS[choose_index(n, k)].spec.symbol.trim_start_matches("w2a8_trits_")
    }

    /// What was the fastest by far on an H200.
    #[test]
    fn the_rule_knows_what_was_measured() {
        for (n, k, wanted) in [
            (1536, 1024, "l16r2u1"),
            (5632, 1024, "l16r2u1"),
            (1024, 2816, "l32r2u3"),
            (3328, 2816, "l32r2u3"),
            (3584, 9472, "l32r2u1"),
            (5632, 4608, "l32r4u2"),
            (6144, 16_384, "l32r4u1"),
            (27_648, 5120, "l16r4u2"),
        ] {
            assert_eq!(chosen(n, k), wanted, "{n} {k}");
        }
    }

    #[test]
    fn more_work_never_costs_less() {
        for index in 0..VARIANTS.len() {
            for (n, k) in [(1, 1), (2560, 2560), (57_344, 8192), (1 << 24, 1 << 20)] {
                let least = cost(index, n, k);
                assert!(least <= cost(index, n + 4096, k) && least <= cost(index, n, k + 4096));
            }
        }
    }
}
