//! Runs of [`crate::ops::w2a8_trits`].

use super::w2a8_gemv::Product;
use super::{Bed, Run, RunError};
use crate::ops::w2a8_trits::{W2a8Trits, unpacked_len};
use crate::ops::{Backend, PackedLinear, QuantActs, WeightLayout};

/// All rows of activations of a product, by a variant where there is one row.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The product.
    pub case: &'a Product,
    /// Index into [`contract::w2a8_trits::VARIANTS`].
    pub variant: Option<usize>,
}

impl Run for Inputs<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Product { m, n, k, segments, .. } = self.case;
        let layout = WeightLayout::Trits;
        let mut w = PackedLinear::alloc_in(bed.backend(), "selftest", k, segments, layout)?;
        w.write_rows(bed.backend(), 0, &self.case.words())?;
        let (acts, stats) = (bed.input(&self.case.acts())?, bed.input(&self.case.stats())?);
        let acts = QuantActs { acts, stats };
        let mut unpacked = bed.output(unpacked_len(m, n, k))?;
        let mut y = bed.output(m * n)?;
        bed.backend().w2a8_trits(W2a8Trits {
            w: &w,
            acts: &acts,
            y: &mut y,
            m,
            unpacked: &mut unpacked,
            variant: self.variant,
        })?;
        bed.keep("y", &[m, n], &y)
    }
}

/// Kernel, what it is asked, the product and the variant, for the doctor.
pub(super) fn cases() -> Vec<(&'static str, String, Product, Option<usize>)> {
    let mut cases = Vec::new();
    for (index, variant) in contract::w2a8_trits::VARIANTS.iter().enumerate() {
        for (n, k) in [(1, 1), (7, 65), (33, 513), (131, 3000)] {
            let case = Product::new(1, n, k, 8);
            cases.push((variant.spec.symbol, format!("n={n} k={k}"), case, Some(index)));
        }
    }
    for (m, n, k) in [(2, 7, 65), (17, 70, 1000), (3, 132, 2100)] {
        let case = Product::new(m, n, k, 9);
        cases.push(("w2a8_trits_unpack", format!("m={m} n={n} k={k}"), case, None));
    }
    cases
}
