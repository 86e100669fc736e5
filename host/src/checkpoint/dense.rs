//! Streaming access to a dense matrix (embedding, head), in the type it is stored in; quantised blocks
//! are decoded to `f32`.

use std::{borrow::Cow, ops::Range};

use super::{CheckpointError, FloatType, StoredType, TensorEntry, bytes::FileBytes};
use crate::pack;

/// Pieces from this size on, in bytes, are taken to be part of a walk through the matrix.
const LARGE: usize = 1 << 18;

/// A dense matrix `[rows, cols]`, row-major, little-endian.
#[derive(Debug)]
pub struct DenseView<'a> {
    pub(crate) file: &'a FileBytes,
    pub(crate) tensor: &'a TensorEntry,
    /// Element type; `f32` for quantised blocks.
    pub dtype: FloatType,
    /// Rows: the vocabulary.
    pub rows: usize,
    /// Columns: the hidden size.
    pub cols: usize,
}

impl Drop for DenseView<'_> {
    fn drop(&mut self) {
        self.file.release(self.tensor.offset, self.tensor.bytes);
    }
}

impl<'a> DenseView<'a> {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols * self.dtype.bytes()
    }

    /// The tensor's name in the file.
    pub fn name(&self) -> &str {
        &self.tensor.name
    }

    /// Bytes of a row in the file.
    fn stored_row_bytes(&self) -> usize {
        match self.tensor.stored {
            // Rows are whole blocks; the reader saw to it.
            StoredType::Blocks(blocks) => self.cols / blocks.values() * blocks.bytes(),
            _ => self.row_bytes(),
        }
    }

    /// The bytes of rows `rows`: the stored ones, borrowed when the file is mapped, else read into a
    /// buffer of that size; of quantised blocks, their values as little-endian `f32`. The bytes need
    /// not be aligned to the element.
    ///
    /// Read a large matrix in pieces, in order: pages of the pieces before are given back, so that a
    /// mapped matrix and its copy are never in memory together.
    pub fn bytes(&self, rows: Range<usize>) -> Result<Cow<'a, [u8]>, CheckpointError> {
        pack::w2::check_rows(&rows, self.rows)?;
        let before = rows.start as u64 * self.stored_row_bytes() as u64;
        let len = rows.len() * self.stored_row_bytes();
        if len >= LARGE {
            // A little more than the piece before: its edges shared pages with its neighbours.
            let behind = before.min((len + LARGE) as u64);
            self.file.release(self.tensor.offset + before - behind, behind);
        }
        let stored = self.file.read(self.tensor.offset + before, len)?;
        let StoredType::Blocks(blocks) = self.tensor.stored else { return Ok(stored) };
        let mut values = vec![0.0; rows.len() * self.cols];
        blocks.decode(&stored, &mut values);
        Ok(Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect()))
    }

    /// Rows `rows` as f32 (exact for every stored type); `out` holds `rows.len() * cols`.
    pub fn rows_f32(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), CheckpointError> {
        pack::check_len("rows", out.len(), rows.len() * self.cols)?;
        self.dtype.decode(&self.bytes(rows)?, out);
        Ok(())
    }
}
