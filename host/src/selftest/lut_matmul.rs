//! Runs of [`crate::ops::lut_matmul`].

use contract::lut_matmul::Form;

use super::{Bed, Run, RunError};
use crate::ops::lut_matmul::{
    LossyLinear, LossyTables, LutBuildLossy, LutLinear, LutMatmul, LutMatmulLossy,
};
use crate::ops::{Backend, QuantActs};
use crate::reference::lut_matmul::tiles;

pub use crate::reference::lut_matmul::LossyCase;
pub use crate::reference::w2a8_gemv::Case as Product;

/// Every row of activations, in one of the exact forms.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The product.
    pub case: &'a Product,
    /// How its weights are grouped.
    pub form: Form,
    /// Index into [`contract::lut_matmul::VARIANTS`].
    pub variant: Option<usize>,
}

impl Run for Inputs<'_> {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let Self { case, form, variant } = *self;
        let packed = tiles(case, form)?;
        let w = LutLinear::new(bed.backend(), "selftest", &packed)?;
        let acts =
            QuantActs::<B> { acts: bed.input(&case.acts())?, stats: bed.input(&case.stats())? };
        let mut y = bed.output(case.m * case.n)?;
        let m = case.m;
        bed.backend().lut_matmul(LutMatmul { w: &w, acts: &acts, y: &mut y, m, variant })?;
        bed.keep("y", &[m, case.n], &y)
    }
}

/// A product of the bit-serial form: its tables are built and looked up.
impl Run for LossyCase {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let &Self { m, n, k, act_group, .. } = self;
        let w = LossyLinear::new(bed.backend(), "selftest", &self.packed()?)?;
        let x = bed.input(&self.x)?;
        let tables = LossyTables::alloc(bed.backend(), m, k, act_group)?;
        let (words, heads) = (tables.words(m), tables.groups(m));
        let mut tables = tables.with_buffers(bed.output(words)?, bed.output(heads)?);
        let mut y = bed.output(m * n)?;
        bed.backend().lut_build_lossy(LutBuildLossy { x: &x, tables: &mut tables, m })?;
        let op = LutMatmulLossy { w: &w, tables: &tables, y: &mut y, m };
        bed.backend().lut_matmul_lossy(op)?;
        bed.keep("y", &[m, n], &y)?;
        bed.read("tables", &tables.tables)?;
        bed.read("heads", &tables.heads)?;
        Ok(())
    }
}
