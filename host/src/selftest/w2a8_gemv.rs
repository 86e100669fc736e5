//! Runs of [`crate::ops::w2a8_gemv`], and the tensors of a product.

use super::{Bed, Run, RunError};
use crate::ops::w2a8_gemv::W2a8Gemv;
use crate::ops::{Backend, OpError, PackedLinear, QuantActs};

pub use crate::reference::w2a8_gemv::Case as Product;

/// One row of activations, by a variant.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The product.
    pub case: &'a Product,
    /// Index into [`contract::w2a8_gemv::VARIANTS`].
    pub variant: Option<usize>,
}

pub(super) fn tensors<B: Backend>(
    bed: &Bed<'_, B>,
    case: &Product,
) -> Result<(PackedLinear<B>, QuantActs<B>), OpError> {
    let mut w = PackedLinear::alloc(bed.backend(), "selftest", case.k, case.segments)?;
    w.write_rows(bed.backend(), 0, &case.words())?;
    let acts = QuantActs { acts: bed.input(&case.acts())?, stats: bed.input(&case.stats())? };
    Ok((w, acts))
}

impl Run for Inputs<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (w, acts) = tensors(bed, self.case)?;
        let mut y = bed.output(self.case.n)?;
        let variant = self.variant;
        bed.backend().w2a8_gemv(W2a8Gemv { w: &w, acts: &acts, y: &mut y, variant })?;
        bed.keep("y", &[self.case.n], &y)
    }
}
