//! Runs of [`crate::ops::w2a8_gemv`] and [`crate::ops::w2a8_gemm`].

use super::{Bed, Run, RunError};
use crate::ops::w2a8_gemm::W2a8Gemm;
use crate::ops::w2a8_gemv::W2a8Gemv;
use crate::ops::{Backend, OpError, PackedLinear, QuantActs};
use crate::reference::w2a8_gemv::Case;

/// One row of activations, by a variant.
#[derive(Clone, Debug)]
pub struct Gemv<'a> {
    /// The product.
    pub case: &'a Case,
    /// Index into [`contract::w2a8_gemv::VARIANTS`].
    pub variant: Option<usize>,
}

/// All rows of activations.
#[derive(Clone, Debug)]
pub struct Gemm<'a> {
    /// The product.
    pub case: &'a Case,
}

fn tensors<B: Backend>(
    bed: &Bed<'_, B>,
    case: &Case,
) -> Result<(PackedLinear<B>, QuantActs<B>), OpError> {
    let mut w = PackedLinear::alloc(bed.backend(), "selftest", case.k, case.segments)?;
    w.write_rows(bed.backend(), 0, &case.words())?;
    let acts = QuantActs { acts: bed.input(&case.acts())?, stats: bed.input(&case.stats())? };
    Ok((w, acts))
}

impl Run for Gemv<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (w, acts) = tensors(bed, self.case)?;
        let mut y = bed.output(self.case.n)?;
        let variant = self.variant;
        bed.backend().w2a8_gemv(W2a8Gemv { w: &w, acts: &acts, y: &mut y, variant })?;
        bed.keep("y", &[self.case.n], &y)
    }
}

impl Run for Gemm<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (m, n) = (self.case.m, self.case.n);
        let (w, acts) = tensors(bed, self.case)?;
        let mut y = bed.output(m * n)?;
        bed.backend().w2a8_gemm(W2a8Gemm { w: &w, acts: &acts, y: &mut y, m })?;
        bed.keep("y", &[m, n], &y)
    }
}
