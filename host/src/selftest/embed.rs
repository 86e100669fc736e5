//! Runs of [`crate::ops::embed`].

use contract::num::{f32_to_bf16, f32_to_f16};

use super::{Bed, Run, RunError};
use crate::ops::embed::Embed;
use crate::ops::{Backend, Dense, OpError, RowType};
use crate::reference::Inputs as Seeded;

/// A dense table without padding.
#[derive(Clone, Debug)]
pub struct Table {
    /// Type of the elements.
    pub element: RowType,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements, little-endian.
    pub bytes: Vec<u8>,
}

impl Table {
    /// A table of seeded numbers in `(-1, 1)`.
    pub fn random(element: RowType, rows: usize, width: usize, seeded: &mut Seeded) -> Self {
        let bytes = to_bytes(element, &seeded.floats(rows * width, 1.0));
        Self { element, rows, width, bytes }
    }

    pub(super) fn on<B: Backend>(&self, backend: &B) -> Result<Dense<B>, OpError> {
        let mut table = Dense::alloc(backend, "selftest", self.element, self.rows, self.width)?;
        table.write_rows(backend, 0, &self.bytes)?;
        Ok(table)
    }
}

/// `values` as elements of a table or a cache, little-endian.
pub fn to_bytes(element: RowType, values: &[f32]) -> Vec<u8> {
    match element {
        RowType::Bf16 => values.iter().flat_map(|&v| f32_to_bf16(v).to_le_bytes()).collect(),
        RowType::F16 => values.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes()).collect(),
        RowType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

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

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let table = self.table.on(bed.backend())?;
        let ids = bed.input(&self.ids)?;
        let m = self.ids.len() - self.ids_at;
        let mut out = bed.output(m * self.table.width)?;
        let ids_at = self.ids_at;
        bed.backend().embed(Embed { ids: &ids, ids_at, table: &table, out: &mut out, m })?;
        bed.keep("out", &[m, self.table.width], &out)
    }
}
