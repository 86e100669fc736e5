//! Streaming access to one projection: rows of ternaries in the device layout, whatever the file holds.
//!
//! Rows always come in Hugging Face order, in which rotary pairs are half-split; files of the `llama`
//! GGUF architecture keep the rows of q and k interleaved, and are put back here. Nothing larger than
//! [`PIECE`] bytes (or one row) is held. Pages of a mapped file are given back when the view is
//! dropped.

use std::ops::Range;

use contract::w2a8::row_words;
use half::f16;

use super::{
    CheckpointError, FloatType, StoredType, TensorEntry, bytes::FileBytes, resolve::LinearEntry,
};
use crate::pack::tq::{Blocks, TQ1_0, TQ2_0};
use crate::pack::{self, PackError, TernarySource, ternary::AbsMean};

/// Bytes read at once from a file that is not mapped.
const PIECE: usize = 1 << 20;

/// How a projection is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LinearKind {
    /// Packed as Hugging Face checkpoints do.
    HfPacked,
    /// I2_S blocks.
    I2S,
    /// TQ1_0 blocks.
    Tq1_0,
    /// TQ2_0 blocks.
    Tq2_0,
    /// The published int2 tiles, of a fused matrix.
    Int2,
    /// Float masters, ternarised while reading.
    Master(FloatType),
}

impl LinearKind {
    pub(crate) fn of(stored: &StoredType) -> Option<Self> {
        Some(match stored {
            StoredType::U8 => Self::HfPacked,
            StoredType::I2S => Self::I2S,
            StoredType::Tq1_0 => Self::Tq1_0,
            StoredType::Tq2_0 => Self::Tq2_0,
            StoredType::I8 => Self::Int2,
            other => Self::Master(other.float()?),
        })
    }

    /// The layout of blocks with a scale each.
    pub(crate) fn blocks(self) -> Option<&'static Blocks> {
        match self {
            Self::Tq1_0 => Some(&TQ1_0),
            Self::Tq2_0 => Some(&TQ2_0),
            _ => None,
        }
    }
}

/// Where the rows of a projection stand in its tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowPlace {
    /// First row of this projection inside a fused tensor.
    pub(crate) first: usize,
    /// Head size, when rotary pairs are stored interleaved.
    pub(crate) interleaved: Option<usize>,
}

impl RowPlace {
    /// Stored row of logical row `row`.
    pub(crate) fn stored(self, row: usize) -> usize {
        self.first
            + match self.interleaved {
                None => row,
                Some(head) => {
                    let (base, r) = (row / head * head, row % head);
                    base + 2 * (r % (head / 2)) + r / (head / 2)
                }
            }
    }

    /// Logical row of stored row `stored`, the inverse.
    pub(crate) fn logical(self, stored: usize) -> usize {
        let row = stored - self.first;
        match self.interleaved {
            None => row,
            Some(head) => {
                let (base, r) = (row / head * head, row % head);
                base + r % 2 * (head / 2) + r / 2
            }
        }
    }
}

/// One projection's ternaries, readable by ranges of rows.
#[derive(Debug)]
pub struct TernaryRows<'a> {
    pub(crate) file: &'a FileBytes,
    pub(crate) tensor: &'a TensorEntry,
    pub(crate) kind: LinearKind,
    pub(crate) place: RowPlace,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) scale: f32,
    /// f16 scale that every TQ block must have.
    block_scale: Option<f16>,
}

impl Drop for TernaryRows<'_> {
    fn drop(&mut self) {
        self.file.release(self.tensor.offset, self.tensor.bytes);
    }
}

impl<'a> TernaryRows<'a> {
    /// Finds the scale: known for packed forms, the blocks' for TQ, the mean of masters.
    pub(crate) fn new(
        file: &'a FileBytes,
        entry: &'a LinearEntry,
        (n, k): (usize, usize),
    ) -> Result<Self, CheckpointError> {
        let LinearEntry { tensor, kind, place, factor, absmean } = entry;
        let (kind, place, block_scale) = (*kind, *place, None);
        let mut rows = Self { file, tensor, kind, place, n, k, scale: *factor, block_scale };
        match (kind, absmean.get()) {
            (LinearKind::Master(_), Some(&known)) => rows.scale = known,
            (LinearKind::Master(float), None) => {
                rows.scale = rows.absmean(float)?;
                // Another thread may have been first, with the same value.
                let _ = absmean.set(rows.scale);
            }
            _ => {}
        }
        if let Some(blocks) = kind.blocks() {
            let found = rows.first_block_scale(blocks)?;
            rows.block_scale = found;
            rows.scale = factor * found.map_or(pack::ternary::MIN_SCALE, f16::to_f32);
        }
        pack::w2::check_scales(&[(n, rows.scale)]).map_err(rows.named())?;
        Ok(rows)
    }

    /// Rows, N.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns, K.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Dequantisation multiplier g: the real weight is `t * g`.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The tensor's name in the file.
    pub fn name(&self) -> &str {
        &self.tensor.name
    }

    /// How the projection is stored.
    pub fn kind(&self) -> LinearKind {
        self.kind
    }

    /// Device words of a row, `contract::w2a8::row_words(K)`.
    pub fn words_per_row(&self) -> usize {
        row_words(self.k)
    }

    /// Writes rows `rows` into `out`, [`Self::words_per_row`] words each; `out` must fit exactly.
    ///
    /// Errors: a range outside the matrix, a wrong length of `out`, codes that stand for nothing or
    /// block scales that differ (named by row and column), and failed reads.
    pub fn rows_into(&self, rows: Range<usize>, out: &mut [u32]) -> Result<(), CheckpointError> {
        pack::w2::check_rows(&rows, self.n)?;
        pack::check_len("rows", out.len(), rows.len() * self.words_per_row())?;
        if rows.is_empty() {
            return Ok(());
        }
        let width = self.words_per_row();
        if self.place.interleaved.is_some() || self.kind == LinearKind::Int2 {
            for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
                self.stored_rows(self.place.stored(row), 1, out)?;
            }
            return Ok(());
        }
        // A range of Hugging Face rows is contiguous only inside one quarter of the matrix.
        let quarter = match self.kind {
            LinearKind::HfPacked => pack::hf::packed_rows(self.n),
            _ => usize::MAX,
        };
        let step = (PIECE / self.row_bytes()).max(1);
        let mut out = out;
        let mut row = rows.start;
        while row < rows.end {
            let left = quarter - row % quarter;
            let count = (rows.end - row).min(step).min(left);
            let (piece, rest) = std::mem::take(&mut out).split_at_mut(count * width);
            self.stored_rows(self.place.stored(row), count, piece)?;
            out = rest;
            row += count;
        }
        Ok(())
    }

    fn named(&self) -> impl FnOnce(PackError) -> CheckpointError + '_ {
        CheckpointError::tensor(&self.tensor.name)
    }

    /// Bytes of one stored row (for Hugging Face: of one byte row).
    fn row_bytes(&self) -> usize {
        match self.kind {
            LinearKind::HfPacked => self.k,
            LinearKind::I2S => pack::i2_s::row_bytes(self.k),
            LinearKind::Tq1_0 => TQ1_0.row_bytes(self.k),
            LinearKind::Tq2_0 => TQ2_0.row_bytes(self.k),
            LinearKind::Int2 => self.k / 4,
            LinearKind::Master(float) => self.k * float.bytes(),
        }
    }

    fn bytes(
        &self,
        first: usize,
        count: usize,
    ) -> Result<std::borrow::Cow<'a, [u8]>, CheckpointError> {
        let width = self.row_bytes();
        self.file.read(self.tensor.offset + first as u64 * width as u64, count * width)
    }

    /// Decodes `count` rows that stand together in the file.
    fn stored_rows(
        &self,
        row: usize,
        count: usize,
        out: &mut [u32],
    ) -> Result<(), CheckpointError> {
        let k = self.k;
        match self.kind {
            LinearKind::HfPacked => {
                let quarter = pack::hf::packed_rows(self.n);
                let bytes = self.bytes(row % quarter, count)?;
                pack::hf::decode_rows(&bytes, k, row / quarter, row, out)
            }
            LinearKind::I2S => pack::i2_s::decode_rows(&self.bytes(row, count)?, k, row, out),
            LinearKind::Tq1_0 => return self.block_rows(&TQ1_0, row, count, out),
            LinearKind::Tq2_0 => return self.block_rows(&TQ2_0, row, count, out),
            LinearKind::Int2 => {
                let first = row / pack::int2::BAND * pack::int2::BAND;
                let bytes = self.bytes(first, pack::int2::BAND)?;
                let band: Vec<u32> =
                    bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
                pack::int2::decode_row(&band, row, k, out)
            }
            LinearKind::Master(float) => {
                let inv_scale = 1.0 / self.scale;
                let bytes = self.bytes(row, count)?;
                let mut values = vec![0.0; k];
                let lines = bytes.chunks_exact(self.row_bytes());
                for (line, out) in lines.zip(out.chunks_exact_mut(self.words_per_row())) {
                    float.decode(line, &mut values);
                    pack::ternary::row_into(&values, inv_scale, out);
                }
                Ok(())
            }
        }
        .map_err(self.named())
    }

    /// The same, of a layout of blocks.
    fn block_rows(
        &self,
        blocks: &Blocks,
        row: usize,
        count: usize,
        out: &mut [u32],
    ) -> Result<(), CheckpointError> {
        let (bytes, mut scale) = (self.bytes(row, count)?, self.block_scale);
        blocks.decode_rows(&bytes, self.k, row, &mut scale, out).map_err(self.named())
    }

    fn absmean(&self, float: FloatType) -> Result<f32, CheckpointError> {
        let mut mean = AbsMean::default();
        let mut values = vec![0.0; self.k];
        let step = (PIECE / self.row_bytes()).max(1);
        for first in (0..self.n).step_by(step) {
            let bytes = self.bytes(first, step.min(self.n - first))?;
            for (i, line) in bytes.chunks_exact(self.row_bytes()).enumerate() {
                float.decode(line, &mut values);
                mean.push_row(&values, first + i).map_err(self.named())?;
            }
        }
        Ok(mean.scale())
    }

    /// The first scale that is not zero; that all others agree is checked as rows are read.
    fn first_block_scale(&self, blocks: &Blocks) -> Result<Option<f16>, CheckpointError> {
        let block = blocks.block_bytes();
        let step = (PIECE / self.row_bytes()).max(1);
        for first in (0..self.n).step_by(step) {
            let bytes = self.bytes(first, step.min(self.n - first))?;
            let scales = bytes.chunks_exact(block).map(|b| [b[block - 2], b[block - 1]]);
            if let Some(scale) = scales.map(f16::from_le_bytes).find(|s| *s != f16::ZERO) {
                return Ok(Some(scale));
            }
        }
        Ok(None)
    }
}

impl TernarySource for TernaryRows<'_> {
    type Error = CheckpointError;

    fn n(&self) -> usize {
        self.n
    }

    fn k(&self) -> usize {
        self.k
    }

    fn scale(&self) -> f32 {
        self.scale
    }

    fn rows_into(&self, rows: Range<usize>, out: &mut [u32]) -> Result<(), CheckpointError> {
        TernaryRows::rows_into(self, rows, out)
    }
}
