//! The bitmap that the kernels read: one bit for each weight, and the stored values packed.

use contract::sparse::{ALIGN, PERIOD, ROWS, SPAN, WAYS, WORD, groups, mask_words, place, steps};

use super::{Csr, SparseError, is_stored, sides};
use crate::ops::Float;

/// A matrix `[n, k]` in the layout of [`contract::sparse`], checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Bitmap<T> {
    n: usize,
    k: usize,
    masks: Vec<u32>,
    starts: Vec<u32>,
    values: Vec<T>,
    stored: usize,
}

/// Row and first column of a word of the mask.
pub(crate) fn word_place(word: usize, k: usize) -> (usize, usize) {
    let (stream, tile) = (word / 64 / steps(k), word / 64 % steps(k));
    let (lane, half) = (word % 64 / 2, word % 2);
    let row = stream / WAYS * ROWS + lane / 4 + 8 * half;
    (row, tile * PERIOD + stream % WAYS * SPAN + lane % 4 * WORD)
}

impl<T: Float> Bitmap<T> {
    /// Keeps every element of a dense `[n, k]` but +0: so [`Bitmap::to_dense`] gives the same bits.
    ///
    /// # Errors
    /// Sides out of range; another number of elements than `n * k`; too many to store.
    pub fn from_dense(n: usize, k: usize, dense: &[T]) -> Result<Self, SparseError> {
        sides(n, k)?;
        if dense.len() != n * k {
            let what = "elements of the dense matrix";
            return Err(SparseError::Count { what, found: dense.len(), expected: n * k });
        }
        let mut masks = vec![0u32; mask_words(n, k)];
        for (word, mask) in masks.iter_mut().enumerate() {
            let (row, column) = word_place(word, k);
            if row < n && column < k {
                let own = &dense[row * k + column..row * k + k.min(column + WORD)];
                for (bit, &value) in own.iter().enumerate() {
                    *mask |= u32::from(is_stored(value)) << (31 - bit);
                }
            }
        }
        Self::fill(n, k, masks, |row, column| dense[row * k + column])
    }

    /// The same matrix as a checked [`Csr`], explicit zeros among its values.
    ///
    /// # Errors
    /// Too many values to store.
    pub fn from_csr(csr: &Csr<T>) -> Result<Self, SparseError> {
        let (n, k) = (csr.n(), csr.k());
        let mut masks = vec![0u32; mask_words(n, k)];
        for row in 0..n {
            for (column, _) in csr.row(row) {
                let (_, word, bit) = place(row, column, k);
                masks[word] |= 1 << bit;
            }
        }
        // Where each way of each row stands: columns of a way are asked for in ascending order.
        let mut next: Vec<[usize; WAYS]> = (0..n)
            .map(|row| {
                let from = csr.rows()[row] as usize;
                let own = &csr.columns()[from..csr.rows()[row + 1] as usize];
                std::array::from_fn(|way| {
                    from + own.partition_point(|&column| (column as usize) < way * SPAN)
                })
            })
            .collect();
        Self::fill(n, k, masks, |row, column| {
            let at = &mut next[row][column % PERIOD / SPAN];
            // Past the other ways' columns in between.
            while (csr.columns()[*at] as usize) < column {
                *at += 1;
            }
            csr.values()[*at]
        })
    }

    /// Packs the values of a mask.
    fn fill(
        n: usize,
        k: usize,
        masks: Vec<u32>,
        mut value: impl FnMut(usize, usize) -> T,
    ) -> Result<Self, SparseError> {
        let stored = masks.iter().map(|mask| mask.count_ones() as usize).sum();
        let streams = groups(n) * WAYS;
        let mut values = Vec::with_capacity(stored + streams * ALIGN);
        let mut starts = Vec::with_capacity(streams + 1);
        let words = steps(k) * 64;
        for (stream, masks) in masks.chunks_exact(words).enumerate() {
            starts.push(start(values.len())?);
            for (i, &mask) in masks.iter().enumerate() {
                let (row, column) = word_place(stream * words + i, k);
                let mut left = mask;
                while left != 0 {
                    let bit = left.leading_zeros();
                    left ^= 0x8000_0000 >> bit;
                    values.push(value(row, column + bit as usize));
                }
            }
            values.resize(values.len().next_multiple_of(ALIGN), T::zeroed());
        }
        starts.push(start(values.len())?);
        Ok(Self { n, k, masks, starts, values, stored })
    }

    /// Takes the three parts of a bitmap that somebody else wrote.
    ///
    /// # Errors
    /// Sides out of range; parts of other lengths than the sides give; a stream whose values are not
    /// as many as its mask has bits; a bit outside of the matrix.
    pub fn from_parts(
        n: usize,
        k: usize,
        masks: Vec<u32>,
        starts: Vec<u32>,
        values: Vec<T>,
    ) -> Result<Self, SparseError> {
        sides(n, k)?;
        let count = |what, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(SparseError::Count { what, found, expected }),
        };
        count("words of the mask", masks.len(), mask_words(n, k))?;
        count("starts of streams", starts.len(), groups(n) * WAYS + 1)?;
        let (mut stored, mut at) = (0, 0usize);
        for (stream, masks) in masks.chunks_exact(steps(k) * 64).enumerate() {
            count("start of a stream", starts[stream] as usize, at / ALIGN)?;
            let own: usize = masks.iter().map(|mask| mask.count_ones() as usize).sum();
            stored += own;
            at += own.next_multiple_of(ALIGN);
        }
        count("start of a stream", starts[starts.len() - 1] as usize, at / ALIGN)?;
        count("values with their padding", values.len(), at)?;
        for (word, &mask) in masks.iter().enumerate() {
            let (row, column) = word_place(word, k);
            let inside = if row < n { k.saturating_sub(column).min(WORD) } else { 0 };
            // Bits from `inside` on, counted from the highest.
            let outside = if inside == WORD { 0 } else { mask << inside };
            if outside != 0 {
                let column = column + inside + outside.leading_zeros() as usize;
                return Err(SparseError::Outside { row, column, n, k });
            }
        }
        Ok(Self { n, k, masks, starts, values, stored })
    }

    /// Calls `f(row, column, value)` for every stored weight, in the order of the values.
    pub fn for_each(&self, mut f: impl FnMut(usize, usize, T)) {
        let words = steps(self.k) * 64;
        for (stream, masks) in self.masks.chunks_exact(words).enumerate() {
            let mut at = self.starts[stream] as usize * ALIGN;
            for (i, &mask) in masks.iter().enumerate() {
                let (row, column) = word_place(stream * words + i, self.k);
                let mut left = mask;
                while left != 0 {
                    let bit = left.leading_zeros();
                    left ^= 0x8000_0000 >> bit;
                    f(row, column + bit as usize, self.values[at]);
                    at += 1;
                }
            }
        }
    }

    /// The dense matrix, row after row: +0 where nothing is stored.
    pub fn to_dense(&self) -> Vec<T> {
        let mut dense = vec![T::zeroed(); self.n * self.k];
        self.for_each(|row, column, value| dense[row * self.k + column] = value);
        dense
    }

    /// The same matrix in compressed sparse rows.
    ///
    /// # Errors
    /// More than 2^32 - 1 values.
    pub fn to_csr(&self) -> Result<Csr<T>, SparseError> {
        let mut entries: Vec<Vec<(u32, T)>> = vec![Vec::new(); self.n];
        self.for_each(|row, column, value| entries[row].push((column as u32, value)));
        let (mut rows, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
        for mut row in entries {
            row.sort_by_key(|entry| entry.0);
            columns.extend(row.iter().map(|entry| entry.0));
            values.extend(row.iter().map(|entry| entry.1));
            let stored = values.len();
            rows.push(u32::try_from(stored).map_err(|_| SparseError::TooMany { stored })?);
        }
        Csr::new(self.n, self.k, rows, columns, values)
    }

    /// Rows: output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns: input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Stored weights.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// Share of the weights that are not stored.
    pub fn sparsity(&self) -> f64 {
        1.0 - self.stored as f64 / (self.n as f64 * self.k as f64)
    }

    /// Bytes that a product reads: mask, starts and values with their padding.
    pub fn bytes(&self) -> usize {
        4 * (self.masks.len() + self.starts.len()) + self.values.len() * size_of::<T>()
    }

    /// Words of the mask.
    pub fn masks(&self) -> &[u32] {
        &self.masks
    }

    /// Starts of the streams, in units of [`ALIGN`] values.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// Values with their padding.
    pub fn values(&self) -> &[T] {
        &self.values
    }
}

fn start(at: usize) -> Result<u32, SparseError> {
    u32::try_from(at / ALIGN).map_err(|_| SparseError::TooMany { stored: at })
}
