//! Host side of [`contract::embed`].

use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::tensor::RowWords;
use super::{Backend, Dense, OpError, Tensor};

const OP: &str = "embed";

/// `out[first + m] = table[ids[ids_at + m * ids_stride]]`, widened to `f32`, for `m` rows.
pub struct Embed<'a, B: Backend> {
    /// Token ids. Not read by the check: an id past the table gives a row of NaN.
    pub ids: &'a B::Buf<u32>,
    /// First id.
    pub ids_at: usize,
    /// Words from id to id.
    pub ids_stride: usize,
    /// Table `[vocab, width]`.
    pub table: &'a Dense<B>,
    /// Output `[first + m, width]`.
    pub out: &'a mut B::Buf<f32>,
    /// First row of the output that is written.
    pub first: usize,
    /// Rows.
    pub m: usize,
}

impl<B: Backend> Embed<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        let end = self.first.saturating_add(self.m);
        dimension(OP, "first + m", end, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        let Self { ids, ids_at, ids_stride, .. } = *self;
        RowWords::<B> { words: ids, at: ids_at, stride: ids_stride }.check(OP, "ids", self.m, 1)?;
        at_least(OP, "out", self.out.len(), end * self.table.width())
    }
}

#[cfg(feature = "cuda")]
impl Embed<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::embed::{Args, THREADS};
        use contract::num::RowType;
        self.check()?;
        let Self { ids, ids_at, ids_stride, table, out, first, m } = self;
        let stream = cuda.stream();
        let args = Args {
            ids: super::cuda::at(ids.dev_ptr(stream), ids_at),
            table: table.data().dev_ptr(stream),
            out: super::cuda::at(out.dev_ptr(stream), first * table.width()),
            ids_stride: ids_stride as u32,
            vocab: table.rows() as u32,
            width: table.width() as u32,
            stride: table.stride() as u32,
        };
        let grid = [m as u32, args.width.div_ceil(THREADS), 1];
        // SAFETY: `check` compared `ids` and `out` with `m` rows; `Dense` holds `vocab` rows of
        // `stride` elements of its type by construction; `out` is borrowed exclusively.
        unsafe {
            match table.element() {
                RowType::Bf16 => cuda.launch::<contract::embed::EmbedBf16>(grid, args)?,
                RowType::F16 => cuda.launch::<contract::embed::EmbedF16>(grid, args)?,
                RowType::F32 => cuda.launch::<contract::embed::EmbedF32>(grid, args)?,
            }
        }
        Ok(())
    }
}
