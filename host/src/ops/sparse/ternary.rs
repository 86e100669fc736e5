//! Ternary matrices as mask and signs: `1 + (1 - s)` bits for a weight at a share `s` of zeros.

use contract::sparse::{MAX_SIDE, ternary_words};
use contract::w2a8::{MAX_K, Segments};

use super::{OP, SparseError};
use crate::ops::error::{at_least, dimension};
use crate::ops::{Backend, OpError, QuantActs, Tensor};

/// A ternary matrix `[n, k]` as mask and signs, checked, with its scales.
#[derive(Clone, Debug, PartialEq)]
pub struct TernaryBitmap {
    k: usize,
    masks: Vec<u32>,
    starts: Vec<u32>,
    signs: Vec<u32>,
    segments: Segments,
}

impl TernaryBitmap {
    /// Packs rows of `k` weights -1, 0 and 1; `segments` says how many rows there are.
    ///
    /// # Errors
    /// Sides out of range (k up to 2^20, so that sums stay exact); another number of weights than
    /// sides; a weight that is not ternary; too many to store.
    pub fn new(k: usize, weights: &[i8], segments: Segments) -> Result<Self, SparseError> {
        let n = segments.rows();
        if !(1..=MAX_K).contains(&k) || n == 0 {
            return Err(SparseError::Sides { n, k });
        }
        if weights.len() != n * k {
            let what = "ternary weights";
            return Err(SparseError::Count { what, found: weights.len(), expected: n * k });
        }
        if let Some(at) = weights.iter().position(|w| !(-1..=1).contains(w)) {
            let (row, column) = (at / k, at % k);
            return Err(SparseError::NotTernary { row, column, found: weights[at] });
        }
        let (mut masks, mut signs) = (vec![0; n * ternary_words(k)], Vec::new());
        let mut starts = vec![0];
        for (row, mask) in weights.chunks_exact(k).zip(masks.chunks_exact_mut(ternary_words(k))) {
            let own = row.iter().enumerate().filter(|(_, weight)| **weight != 0);
            for (stored, (column, &weight)) in own.enumerate() {
                mask[column / 32] |= 0x8000_0000 >> (column % 32);
                if stored % 32 == 0 {
                    signs.push(0);
                }
                if let Some(last) = signs.last_mut() {
                    *last |= u32::from(weight < 0) << (31 - stored % 32);
                }
            }
            let words = signs.len();
            starts.push(u32::try_from(words).map_err(|_| SparseError::TooMany { stored: words })?);
        }
        // The kernels read a word ahead.
        signs.push(0);
        Ok(Self { k, masks, starts, signs, segments })
    }

    /// The weights, row after row.
    pub fn to_ternary(&self) -> Vec<i8> {
        let words = ternary_words(self.k);
        let mut weights = vec![0; self.n() * self.k];
        for (row, out) in weights.chunks_exact_mut(self.k).enumerate() {
            let mut at = 32 * self.starts[row] as usize;
            for (column, weight) in out.iter_mut().enumerate() {
                if self.masks[row * words + column / 32] << (column % 32) >> 31 != 0 {
                    *weight = 1 - 2 * (self.signs[at / 32] << (at % 32) >> 31) as i8;
                    at += 1;
                }
            }
        }
        weights
    }

    /// Rows: output features.
    pub fn n(&self) -> usize {
        self.segments.rows()
    }

    /// Columns: input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of mask, starts and signs.
    pub fn bytes(&self) -> usize {
        4 * (self.masks.len() + self.starts.len() + self.signs.len())
    }
}

/// A [`TernaryBitmap`] on a backend.
pub struct SparseTernary<B: Backend> {
    masks: B::Buf<u32>,
    starts: B::Buf<u32>,
    signs: B::Buf<u32>,
    k: usize,
    segments: Segments,
}

impl<B: Backend> SparseTernary<B> {
    /// Copies a matrix to the backend.
    ///
    /// # Errors
    /// Out of memory; a failed copy.
    pub fn upload(backend: &B, label: &'static str, w: &TernaryBitmap) -> Result<Self, OpError> {
        let copy = |words: &[u32]| -> Result<B::Buf<u32>, OpError> {
            let mut to = backend.alloc(label, words.len())?;
            backend.write(&mut to, 0, words)?;
            Ok(to)
        };
        let (masks, starts, signs) = (copy(&w.masks)?, copy(&w.starts)?, copy(&w.signs)?);
        Ok(Self { masks, starts, signs, k: w.k, segments: w.segments })
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.segments.rows()
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Scales by rows.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Words of the mask.
    pub fn masks(&self) -> &B::Buf<u32> {
        &self.masks
    }

    /// Starts of the rows' signs.
    pub fn starts(&self) -> &B::Buf<u32> {
        &self.starts
    }

    /// Signs.
    pub fn signs(&self) -> &B::Buf<u32> {
        &self.signs
    }
}

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]`, the sum exact: the bits of
/// [`crate::ops::w2a8_gemm`].
pub struct LinearTernary<'a, B: Backend> {
    /// Weights.
    pub w: &'a SparseTernary<B>,
    /// Quantised activations of `m` rows.
    pub acts: &'a QuantActs<B>,
    /// Output `[m, n]`.
    pub y: &'a mut B::Buf<f32>,
    /// Rows; with none, nothing happens.
    pub m: usize,
}

impl<B: Backend> LinearTernary<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        if self.m != 0 {
            dimension(OP, "m", self.m, MAX_SIDE, "0 to 2^24 rows are allowed")?;
        }
        self.acts.check(OP, self.m, self.w.k)?;
        at_least(OP, "y", self.y.len(), self.m * self.w.n())
    }
}

#[cfg(feature = "cuda")]
impl LinearTernary<'_, crate::ops::CudaBackend> {
    pub(in crate::ops) fn launch(self, cuda: &crate::ops::CudaBackend) -> Result<(), OpError> {
        use contract::sparse::{self as kernels, TernaryArgs};
        self.check()?;
        let Self { w, acts, y, m } = self;
        if m == 0 {
            return Ok(());
        }
        let stream = cuda.stream();
        let args = TernaryArgs {
            masks: w.masks.dev_ptr(stream),
            starts: w.starts.dev_ptr(stream),
            signs: w.signs.dev_ptr(stream),
            acts: acts.acts.dev_ptr(stream),
            stats: acts.stats.dev_ptr(stream).cast(),
            y: y.dev_ptr(stream),
            n: w.n() as u32,
            k: w.k as u32,
            m: m as u32,
            segments: w.segments,
        };
        let grid = kernels::row_grid(args.n, args.m.div_ceil(kernels::TERNARY_INPUTS));
        // SAFETY: `SparseTernary` holds a checked matrix of `n` by `k`; `check` compared the activations
        // and `y` with `m` rows; `y` is borrowed exclusively.
        unsafe { cuda.launch::<kernels::SparseTernary>(grid, args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Inputs;

    #[test]
    fn weights_come_back() {
        for (n, k) in [(1, 1), (3, 31), (5, 64), (7, 1000)] {
            let weights = Inputs::new(k as u64).ternaries(n * k);
            let segments = Segments::new(&[(n, 1.0)]).unwrap();
            let bitmap = TernaryBitmap::new(k, &weights, segments).unwrap();
            assert_eq!(bitmap.to_ternary(), weights);
        }
        let segments = Segments::new(&[(2, 1.0)]).unwrap();
        assert!(TernaryBitmap::new(2, &[0, 1, -1], segments).is_err());
        let error = TernaryBitmap::new(2, &[0, 1, 2, -1], segments).unwrap_err();
        assert!(matches!(error, SparseError::NotTernary { row: 1, column: 0, found: 2 }));
    }
}
