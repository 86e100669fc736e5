//! Host side of [`contract::w2a8_gemv`].

use contract::w2a8::CHUNK;
use contract::w2a8_gemv::{VARIANTS, Variant};

use super::error::at_least;
use super::{Backend, OpError, PackedLinear, QuantActs, Tensor, WeightLayout};

const OP: &str = "w2a8_gemv";

/// `y[n] = (sum_k q[k] t[n, k] / s) * g[n]` for one row of activations.
pub struct W2a8Gemv<'a, B: Backend> {
    /// Ternary weights.
    pub w: &'a PackedLinear<B>,
    /// Quantised activations: row 0 is used.
    pub acts: &'a QuantActs<B>,
    /// Output `[n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Which of [`VARIANTS`] runs on a GPU; `None`: what was
    /// measured ([`super::choices`]), else [`choose_index`]. All give the same bits.
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
        self.w.check_layout(OP, WeightLayout::Bits2)?;
        self.acts.check(OP, 1, self.w.k())?;
        at_least(OP, "y", self.y.len(), self.w.n())
    }
}

/// The variant for an `n` by `k` matrix when none was asked for: an index into [`VARIANTS`].
///
/// Measured on an H200 over model shapes, alone and in a chain (`benches/results`). Many short rows
/// want many rows in flight per warp and one step. Long rows want as many loads in flight as there
/// are registers for, on each of its 132 multiprocessors, unless the last round of
/// blocks leaves many without one; rows of two steps want a step for each of two warps. Few rows of any length want two of
/// them in flight, each with the next step asked for, as long as all blocks find a place at once; short ones that begin beside the kernel in front
/// (`overlaps`) four, in blocks that are kept apart ([`contract::w2a8_gemv::room`]). Where blocks of eight rows are a few more than have a place at
/// once, a fifth for a multiprocessor is better than a second round.
pub fn choose_index(n: usize, k: usize, overlaps: bool) -> usize {
    const SMS: usize = 132;
    const PLACES: usize = 4 * SMS;
    let chunks = k.div_ceil(CHUNK);
    // Whether blocks of so many rows for each 128 threads fill the places of their last round.
    let fills = |rows: usize| {
        let blocks = n.div_ceil(rows).max(1);
        blocks <= PLACES || 4 * (blocks % PLACES) > 3 * PLACES
    };
    // What all multiprocessors have of blocks of so many rows, in tenths of as much as the fullest has.
    let evenly = |rows: usize| {
        let blocks = n.div_ceil(rows).max(1);
        10 * blocks / (SMS * blocks.div_ceil(SMS))
    };
    let (lanes, rows, unroll, parts) = match () {
        // A step of 16 lanes: of 32 half would be idle.
        () if n < 8_192 && chunks <= 16 => (16, 4, 1, 1),
        () if (8_192..=16 * PLACES).contains(&n) && chunks >= 96 => (32, 4, 2, 1),
        () if n > 8 * PLACES && n <= 8 * SMS * 5 && !(25..=64).contains(&chunks) => (32, 2, 2, 1),
        // Of so many rows what no lane is idle for wins however blocks lie.
        () if n >= 14_336 && chunks <= 80 && (chunks.is_multiple_of(16) || evenly(32) >= 9) => {
            (16, 4, 1, 1)
        }
        () if n >= 14_336 && chunks <= 64 => (32, 4, 2, 1),
        () if n >= 8_192 && chunks >= 128 && fills(16) => (32, 4, 2, 1),
        () if n >= 8_192 => (32, 4, 1, 1),
        () if chunks > 64 && chunks <= 192 && fills(8) => (32, 4, 2, 2),
        () if chunks > 64 && chunks <= 256 && fills(8) => (32, 2, 4, 1),
        () if chunks > 256 && n <= 8 * PLACES => (32, 4, 2, 2),
        () if chunks <= 64 && n <= 8 * PLACES && !overlaps => (32, 2, 2, 1),
        // Three blocks for each multiprocessor and a few more.
        () if chunks <= 64 && n > 8 * SMS * 3 && n <= 8 * PLACES && evenly(8) < 8 => (32, 2, 2, 1),
        () => (32, 4, 2, 1),
    };
    let is_it = |v: &Variant| (v.lanes, v.rows, v.unroll, v.parts) == (lanes, rows, unroll, parts);
    VARIANTS.iter().position(is_it).unwrap_or(0)
}

#[cfg(feature = "cuda")]
type Launch =
    unsafe fn(&super::CudaBackend, [u32; 3], contract::w2a8_gemv::Args) -> Result<(), OpError>;

#[cfg(feature = "cuda")]
macro_rules! launches {
    ($($name:ident $symbol:literal $threads:literal $lanes:literal $rows:literal $unroll:literal $parts:literal;)*) => {
        /// In the order of [`VARIANTS`].
        const LAUNCHES: &[Launch] =
            &[$(super::CudaBackend::launch::<contract::w2a8_gemv::$name>),*];
    };
}
#[cfg(feature = "cuda")]
contract::for_each_w2a8_gemv!(launches);

#[cfg(feature = "cuda")]
impl W2a8Gemv<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        self.check()?;
        let Self { w, acts, y, variant } = self;
        let stream = cuda.stream();
        let chosen = || cuda.choices().get(super::choices::Family::W2a8Gemv, 1, w.n(), w.k());
        let overlaps = stream.pdl();
        let index = variant.or_else(chosen).unwrap_or_else(|| choose_index(w.n(), w.k(), overlaps));
        let mut args = contract::w2a8_gemv::Args {
            w: w.words().dev_ptr(stream),
            acts: acts.acts.dev_ptr(stream),
            stats: acts.stats.dev_ptr(stream).cast(),
            y: y.dev_ptr(stream),
            n: w.n() as u32,
            chunks: w.k().div_ceil(CHUNK) as u32,
            segments: *w.segments(),
            room: 0,
        };
        let device = cuda.cuda().device();
        let grid = VARIANTS[index].grid(args.n);
        // Where a block may have 227 KB, a multiprocessor has 228.
        if overlaps && device.limits().smem_optin_bytes >= 227 * 1024 {
            args.room =
                contract::w2a8_gemv::room(&VARIANTS[index].spec, grid[0], device.sm_count());
        }
        // SAFETY: `PackedLinear` holds `n` rows of `chunks` by construction; `check` compared the
        // activations with one row of `k` and `y` with `n`; `y` is borrowed exclusively.
        unsafe { LAUNCHES[index](cuda, grid, args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_names_variants_that_exist() {
        let mut chosen: Vec<_> = [
            (3200, 3200),
            (2560, 6912),
            (4096, 14336),
            (5120, 27648),
            (13824, 2560),
            (55296, 5120),
        ]
        .map(|(n, k)| VARIANTS[choose_index(n, k, true)].spec.symbol)
        .into();
        chosen.dedup();
        assert_eq!(chosen.len(), 6, "{chosen:?}");
        let rows = |n, k, overlaps| VARIANTS[choose_index(n, k, overlaps)].rows;
        assert_eq!([rows(2560, 2560, false), rows(2560, 2560, true)], [2, 4]);
        assert_eq!([rows(3200, 3200, true), rows(1536, 4096, true), rows(0, 0, true)], [2, 4, 4]);
        // Measured on an H200 and an H100: the faster ones of both.
        let lanes = |n, k| VARIANTS[choose_index(n, k, true)].lanes;
        assert_eq!([lanes(17_280, 3200), lanes(18_432, 2048), lanes(20_480, 3200)], [32, 16, 16]);
        let name =
            |n, k| VARIANTS[choose_index(n, k, true)].spec.symbol.trim_start_matches("w2a8_gemv_");
        assert_eq!(
            [name(1024, 1024), name(5632, 1024), name(1024, 1088)],
            ["l16r4u1", "l16r4u1", "l32r4u2"]
        );
        assert_eq!([name(8192, 6144), name(10_240, 8192)], ["l32r4u2", "l32r4u1"]);
        assert_eq!(
            [name(4608, 1536), name(4608, 3584), name(5120, 13_824)],
            ["l32r2u2", "l32r4u2", "l32r2u2"]
        );
        assert_eq!([name(3072, 23_040), name(5632, 4608)], ["l32r4u2p2", "l32r4u2"]);
    }
}
