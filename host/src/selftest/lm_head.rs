//! Runs of [`crate::ops::lm_head`].

use super::embed::{Table, table_on};
use super::{Bed, Run, RunError};
use crate::ops::Backend;
use crate::ops::lm_head::LmHead;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The head `[vocab, k]`.
    pub table: Table,
    /// Rows `[m, k]`, with `x_at` elements in front.
    pub x: Vec<f32>,
    /// First element that is used.
    pub x_at: usize,
}

impl Inputs {
    /// Rows.
    pub fn m(&self) -> usize {
        (self.x.len() - self.x_at) / self.table.width
    }
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let w = table_on(bed.backend(), &self.table)?;
        let (x, x_at, m) = (bed.input(&self.x)?, self.x_at, self.m());
        let mut logits = bed.output(m * self.table.rows)?;
        bed.backend().lm_head(LmHead { x: &x, x_at, w: &w, logits: &mut logits, m })?;
        bed.keep("logits", &[m, self.table.rows], &logits)
    }
}
