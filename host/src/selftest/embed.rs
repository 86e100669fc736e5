//! Runs of [`crate::ops::embed`].

use super::{Bed, Output, Run, RunError};
use crate::ops::embed::Embed;
use crate::ops::{Backend, Dense, OpError};

pub use crate::reference::embed::Dense as Table;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Embedding table.
    pub table: Table,
    /// Token ids, some in front of those that are used.
    pub ids: Vec<u32>,
    /// First id that is used.
    pub ids_at: usize,
}

/// Puts a table on a backend.
pub(super) fn table_on<B: Backend>(backend: &B, table: &Table) -> Result<Dense<B>, OpError> {
    let mut dense = Dense::alloc(backend, "selftest", table.element, table.rows, table.width)?;
    dense.write_rows(backend, 0, &table.bytes())?;
    Ok(dense)
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let table = table_on(bed.backend(), &self.table)?;
        let ids = bed.input(&self.ids)?;
        let m = self.ids.len() - self.ids_at;
        let (width, first) = (self.table.width, m % 2);
        let mut out = bed.output((first + m) * width)?;
        let ids_at = self.ids_at;
        bed.backend().embed(Embed {
            ids: &ids,
            ids_at,
            ids_stride: 1,
            table: &table,
            out: &mut out,
            first,
            m,
        })?;
        let out = bed.read_behind("out", &out, first * width)?;
        bed.push(Output::floats("out", &[m, width], &out));
        Ok(())
    }
}
