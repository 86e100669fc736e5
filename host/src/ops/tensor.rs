//! The tensors that have more to them than a length.

use contract::embed::row_stride;
use contract::num::{RowType, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use contract::w2a8::{ActStats, MAX_K, MAX_ROWS, Segments, act_bytes, row_words};
use contract::w2a8_trits;

use super::error::{at_least, dimension, same};
use super::{Backend, Element, OpError};
use crate::pack::trits;

/// A buffer of some backend.
pub trait Tensor: Send {
    /// Elements.
    fn len(&self) -> usize;

    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An element of the general float families: `f32`, [`half::f16`] or [`half::bf16`].
///
/// Operations widen elements exactly, compute in `f32`, and round the result once.
pub trait Float: Element + Default + PartialEq + std::fmt::Debug + sealed::Sealed {
    /// Which of the three it is.
    const TYPE: RowType;

    /// The value, exactly.
    fn widen(self) -> f32;

    /// The element nearest to `x`, halves to even; every NaN becomes the one quiet NaN.
    fn round(x: f32) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl Float for f32 {
    const TYPE: RowType = RowType::F32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn round(x: f32) -> Self {
        x
    }
}

impl Float for half::f16 {
    const TYPE: RowType = RowType::F16;

    #[inline(always)]
    fn widen(self) -> f32 {
        f16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn round(x: f32) -> Self {
        Self::from_bits(f32_to_f16(x))
    }
}

impl Float for half::bf16 {
    const TYPE: RowType = RowType::Bf16;

    #[inline(always)]
    fn widen(self) -> f32 {
        bf16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn round(x: f32) -> Self {
        Self::from_bits(f32_to_bf16(x))
    }
}

/// How a product of float matrices is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Math {
    /// By the one arithmetic: the same bits on every backend, whatever runs it.
    #[default]
    Exact,
    /// On tensor cores where the device has them: `f32` factors are rounded to TF32, sums are in
    /// `f32` in an order of the hardware's. Within the bound that the operation states; never
    /// chosen unless asked for. The CPU backend computes as for [`Math::Exact`].
    TensorCore,
}

/// A word of each row, in a buffer of words.
pub struct RowWords<'a, B: Backend> {
    /// The buffer.
    pub words: &'a B::Buf<u32>,
    /// Where row 0 has its own.
    pub at: usize,
    /// Words from row to row.
    pub stride: usize,
}

impl<B: Backend> Clone for RowWords<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for RowWords<'_, B> {}

impl<B: Backend> RowWords<'_, B> {
    /// Refuses a buffer without `len` words from row `m - 1` on.
    pub(crate) fn check(
        &self,
        op: &'static str,
        tensor: &'static str,
        m: usize,
        len: usize,
    ) -> Result<(), OpError> {
        let last = (m - 1).checked_mul(self.stride).and_then(|at| at.checked_add(self.at));
        let end = last.and_then(|at| at.checked_add(len)).unwrap_or(usize::MAX);
        at_least(op, tensor, self.words.len(), end)
    }
}

/// A dense table `[rows, width]`: the embedding or the head. Rows are padded to
/// [`row_stride`] elements.
pub struct Dense<B: Backend> {
    data: B::Buf<u8>,
    element: RowType,
    rows: usize,
    width: usize,
}

impl<B: Backend> Dense<B> {
    /// Reserves a table; its rows are then written with [`Dense::write_rows`].
    ///
    /// # Errors
    /// A dimension of 0 or above 2^24; out of memory.
    pub fn alloc(
        backend: &B,
        label: &'static str,
        element: RowType,
        rows: usize,
        width: usize,
    ) -> Result<Self, OpError> {
        dimension("dense", "rows", rows, MAX_ROWS, "1 to 2^24 are allowed")?;
        dimension("dense", "width", width, MAX_K, "1 to 2^20 are allowed")?;
        let data = backend.alloc(label, rows * row_stride(width) * element.bytes())?;
        Ok(Self { data, element, rows, width })
    }

    /// Writes whole rows from `first` on; `bytes` holds rows of `width` elements without padding.
    ///
    /// # Errors
    /// Rows outside of the table; bytes that are not whole rows; a failed copy.
    pub fn write_rows(&mut self, backend: &B, first: usize, bytes: &[u8]) -> Result<(), OpError> {
        let (row, stride) = (self.width * self.element.bytes(), self.stride_bytes());
        let count = bytes.len() / row;
        same("dense", "bytes of whole rows", bytes.len(), count * row)?;
        if count > self.rows || first > self.rows - count {
            return Err(OpError::Range { op: "dense", at: first, count, len: self.rows });
        }
        if row == stride {
            return backend.write(&mut self.data, first * stride, bytes);
        }
        let mut padded = vec![0; count * stride];
        for (from, to) in bytes.chunks_exact(row).zip(padded.chunks_exact_mut(stride)) {
            to[..row].copy_from_slice(from);
        }
        backend.write(&mut self.data, first * stride, &padded)
    }

    /// The padded rows.
    pub fn data(&self) -> &B::Buf<u8> {
        &self.data
    }

    /// Element type.
    pub fn element(&self) -> RowType {
        self.element
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements between two rows.
    pub fn stride(&self) -> usize {
        row_stride(self.width)
    }

    fn stride_bytes(&self) -> usize {
        self.stride() * self.element.bytes()
    }
}

/// How the ternaries of a matrix lie on the device. The results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// 2 bits a weight, [`contract::w2a8`]: what every operation takes.
    #[default]
    Bits2,
    /// 1.6 bits a weight, [`contract::w2a8_trits`]: what [`super::w2a8_trits`] takes.
    Trits,
}

impl WeightLayout {
    /// Words of a row of `k` ternaries.
    pub const fn row_words(self, k: usize) -> usize {
        match self {
            Self::Bits2 => row_words(k),
            Self::Trits => w2a8_trits::row_words(k),
        }
    }

    /// Rows of `k` ternaries in this layout, from whole ones of the 2-bit layout.
    pub(crate) fn rows_of(self, words: &[u32], k: usize) -> Vec<u32> {
        if self == Self::Bits2 {
            return words.to_vec();
        }
        let mut packed = vec![0; words.len() / row_words(k) * self.row_words(k)];
        trits::rows_from_words(words, k, &mut packed);
        packed
    }

    /// Its name: `2bit` or `1.6bit`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bits2 => "2bit",
            Self::Trits => "1.6bit",
        }
    }
}

/// A ternary matrix `[n, k]` in a device layout, with its scales.
pub struct PackedLinear<B: Backend> {
    words: B::Buf<u32>,
    n: usize,
    k: usize,
    segments: Segments,
    layout: WeightLayout,
}

impl<B: Backend> PackedLinear<B> {
    /// Reserves a matrix of `segments.rows()` rows at 2 bits a weight; its words are then written with
    /// [`PackedLinear::write_rows`].
    ///
    /// # Errors
    /// A dimension of 0 or above the contract's limits; out of memory.
    pub fn alloc(
        backend: &B,
        label: &'static str,
        k: usize,
        segments: Segments,
    ) -> Result<Self, OpError> {
        Self::alloc_in(backend, label, k, segments, WeightLayout::Bits2)
    }

    /// The same in `layout`.
    ///
    /// # Errors
    /// As [`PackedLinear::alloc`].
    pub fn alloc_in(
        backend: &B,
        label: &'static str,
        k: usize,
        segments: Segments,
        layout: WeightLayout,
    ) -> Result<Self, OpError> {
        let n = segments.rows();
        dimension("w2a8", "n", n, MAX_ROWS, "1 to 2^24 are allowed")?;
        dimension("w2a8", "k", k, MAX_K, "1 to 2^20 are allowed")?;
        let words = backend.alloc(label, n * layout.row_words(k))?;
        Ok(Self { words, n, k, segments, layout })
    }

    /// Writes whole rows from `first` on. `words` are of the 2-bit layout, whatever the matrix has: it packs them.
    ///
    /// # Errors
    /// Rows outside of the matrix; words that are not whole rows; a failed copy.
    pub fn write_rows(&mut self, backend: &B, first: usize, words: &[u32]) -> Result<(), OpError> {
        let row = row_words(self.k);
        let whole = words.len() / row * row;
        same("w2a8", "words of whole rows", words.len(), whole)?;
        match self.layout {
            WeightLayout::Bits2 => self.write_packed_rows(backend, first, words),
            layout => self.write_packed_rows(backend, first, &layout.rows_of(words, self.k)),
        }
    }

    /// Writes whole rows from `first` on, which are in the layout of the matrix already.
    pub(crate) fn write_packed_rows(
        &mut self,
        backend: &B,
        first: usize,
        words: &[u32],
    ) -> Result<(), OpError> {
        let row = self.layout.row_words(self.k);
        let count = words.len() / row;
        same("w2a8", "words of whole rows", words.len(), count * row)?;
        if count > self.n || first > self.n - count {
            return Err(OpError::Range { op: "w2a8", at: first, count, len: self.n });
        }
        backend.write(&mut self.words, first * row, words)
    }

    /// Writes all rows, which are in the layout of the matrix already.
    #[cfg(feature = "cuda")]
    pub(crate) fn write_packed(&mut self, backend: &B, words: &[u32]) -> Result<(), OpError> {
        same("w2a8", "words of all rows", words.len(), self.n * self.layout.row_words(self.k))?;
        backend.write(&mut self.words, 0, words)
    }

    /// How the ternaries lie in [`PackedLinear::words`].
    pub fn layout(&self) -> WeightLayout {
        self.layout
    }

    /// Refuses a matrix of another layout than `layout`.
    pub(crate) fn check_layout(
        &self,
        op: &'static str,
        layout: WeightLayout,
    ) -> Result<(), OpError> {
        if self.layout != layout {
            return Err(OpError::Layout { op, found: self.layout.name(), takes: layout.name() });
        }
        Ok(())
    }

    /// Packed words.
    pub fn words(&self) -> &B::Buf<u32> {
        &self.words
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Scales by rows.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }
}

/// Quantised activations: up to `rows` rows of up to `max_k` values.
pub struct QuantActs<B: Backend> {
    /// Values, four to a word, in the order of [`contract::w2a8::act_index`].
    pub acts: B::Buf<u32>,
    /// Scale and sum of each row.
    pub stats: B::Buf<ActStatsWords>,
}

/// [`ActStats`] as plain bytes: scale bits, then the sum.
pub type ActStatsWords = [u32; 2];

const _: () = assert!(size_of::<ActStats>() == size_of::<ActStatsWords>());

impl<B: Backend> QuantActs<B> {
    /// Reserves room for `rows` rows of `k` values.
    ///
    /// # Errors
    /// A dimension of 0 or above the contract's limits; out of memory.
    pub fn alloc(backend: &B, rows: usize, k: usize) -> Result<Self, OpError> {
        dimension("acts", "rows", rows, MAX_ROWS, "1 to 2^24 are allowed")?;
        dimension("acts", "k", k, MAX_K, "1 to 2^20 are allowed")?;
        Ok(Self {
            acts: backend.alloc("activations", rows * act_bytes(k) / 4)?,
            stats: backend.alloc("activations", rows)?,
        })
    }

    /// Refuses fewer than `rows` rows of `k` values.
    pub(crate) fn check(&self, op: &'static str, rows: usize, k: usize) -> Result<(), OpError> {
        at_least(op, "acts", self.acts.len(), rows * act_bytes(k) / 4)?;
        at_least(op, "stats", self.stats.len(), rows)
    }
}
