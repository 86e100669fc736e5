//! Runs of [`crate::ops::w2a8_gemm`].

use super::w2a8_gemv::{Product, tensors};
use super::{Bed, Run, RunError};
use crate::ops::Backend;
use crate::ops::w2a8_gemm::W2a8Gemm;

/// All rows of activations, by a variant.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The product.
    pub case: &'a Product,
    /// Index into [`contract::w2a8_gemm::VARIANTS`].
    pub variant: Option<usize>,
}

impl Run for Inputs<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (m, n) = (self.case.m, self.case.n);
        let variant = self.variant;
        let (w, acts) = tensors(bed, self.case)?;
        let mut y = bed.output(m * n)?;
        bed.backend().w2a8_gemm(W2a8Gemm {
            // Of a variant that is asked for this changes the shared memory of its blocks alone.
            chained: variant.is_some(),
            lets_in: false,
            w: &w,
            acts: &acts,
            y: &mut y,
            m,
            variant,
        })?;
        bed.keep("y", &[m, n], &y)
    }
}
