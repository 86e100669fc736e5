//! The bitmap that the kernels read: one bit for each unit of four bytes, and the stored units packed.

use contract::sparse::{ALIGN, TILE_WORDS, mask_words, per_unit, place, place_of, tiles};

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

impl<T: Float> Bitmap<T> {
    /// Weights of a unit.
    const PER_UNIT: usize = per_unit(T::TYPE);

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
        Self::build(n, k, |f| {
            for (row, values) in dense.chunks_exact(k).enumerate() {
                values.iter().enumerate().for_each(|(column, &value)| f(row, column, value));
            }
        })
    }

    /// The same matrix as a checked [`Csr`]. Explicit zeros go, as they take no part in a product.
    ///
    /// # Errors
    /// Too many values to store.
    pub fn from_csr(csr: &Csr<T>) -> Result<Self, SparseError> {
        Self::build(csr.n(), csr.k(), |f| {
            for row in 0..csr.n() {
                csr.row(row).for_each(|(column, value)| f(row, column, value));
            }
        })
    }

    /// Packs the weights that `walk` calls its argument with, the same ones each time it is called.
    fn build(
        n: usize,
        k: usize,
        walk: impl Fn(&mut dyn FnMut(usize, usize, T)),
    ) -> Result<Self, SparseError> {
        let place = |row, column| place(row, column, k, Self::PER_UNIT);
        let mut masks = vec![0u32; mask_words(n, k, Self::PER_UNIT)];
        let mut stored = 0;
        walk(&mut |row, column, value| {
            if is_stored(value) {
                let (word, bit) = place(row, column);
                masks[word] |= 1 << bit;
                stored += 1;
            }
        });
        // Units in front of each word, and the starts of the tiles on the way.
        let (mut before, mut starts, mut units) = (Vec::with_capacity(masks.len()), vec![], 0usize);
        for masks in masks.chunks_exact(TILE_WORDS) {
            starts.push(start(units)?);
            for mask in masks {
                before.push(units);
                units += mask.count_ones() as usize;
            }
            units = units.next_multiple_of(ALIGN);
        }
        starts.push(start(units)?);
        let mut values = vec![T::zeroed(); units * Self::PER_UNIT];
        walk(&mut |row, column, value| {
            if is_stored(value) {
                let (word, bit) = place(row, column);
                // Those of the word that stand in higher bits.
                let above = masks[word].checked_shr(bit + 1).unwrap_or(0).count_ones() as usize;
                let unit = before[word] + above;
                values[unit * Self::PER_UNIT + column % Self::PER_UNIT] = value;
            }
        });
        Ok(Self { n, k, masks, starts, values, stored })
    }

    /// Takes the three parts of a bitmap that somebody else wrote.
    ///
    /// # Errors
    /// Sides out of range; parts of other lengths than the sides give; a tile whose units are not as
    /// many as its mask has bits, or whose padding is not +0; a weight outside of the matrix.
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
        count("words of the mask", masks.len(), mask_words(n, k, Self::PER_UNIT))?;
        count("starts of tiles", starts.len(), tiles(n, k, Self::PER_UNIT) + 1)?;
        let (mut units, mut padding) = (0, Vec::with_capacity(starts.len()));
        for (tile, masks) in masks.chunks_exact(TILE_WORDS).enumerate() {
            count("start of a tile", starts[tile] as usize, units / ALIGN)?;
            units += masks.iter().map(|mask| mask.count_ones() as usize).sum::<usize>();
            padding.push(units..units.next_multiple_of(ALIGN));
            units = units.next_multiple_of(ALIGN);
        }
        count("start of a tile", starts[starts.len() - 1] as usize, units / ALIGN)?;
        count("values with their padding", values.len(), units * Self::PER_UNIT)?;
        for units in padding {
            let values = &values[units.start * Self::PER_UNIT..units.end * Self::PER_UNIT];
            let found = values.iter().filter(|&&value| is_stored(value)).count();
            count("values behind the end of a tile", found, 0)?;
        }
        let mut bitmap = Self { n, k, masks, starts, values, stored: 0 };
        let (mut stored, mut outside) = (0, None);
        bitmap.for_each(|row, column, value| {
            stored += usize::from(is_stored(value));
            if row >= n || column >= k && (is_stored(value) || column % Self::PER_UNIT == 0) {
                outside = outside.or(Some((row, column)));
            }
        });
        if let Some((row, column)) = outside {
            return Err(SparseError::Outside { row, column, n, k });
        }
        bitmap.stored = stored;
        Ok(bitmap)
    }

    /// Calls `f(row, column, value)` for every weight of every stored unit, in the order of the values.
    fn for_each(&self, mut f: impl FnMut(usize, usize, T)) {
        for (tile, masks) in self.masks.chunks_exact(TILE_WORDS).enumerate() {
            let mut at = self.starts[tile] as usize * ALIGN * Self::PER_UNIT;
            for (i, &mask) in masks.iter().enumerate() {
                let mut left = mask;
                while left != 0 {
                    let bit = 31 - left.leading_zeros();
                    left ^= 1 << bit;
                    let (row, column) =
                        place_of(tile * TILE_WORDS + i, bit, self.k, Self::PER_UNIT);
                    for (e, &value) in self.values[at..at + Self::PER_UNIT].iter().enumerate() {
                        f(row, column + e, value);
                    }
                    at += Self::PER_UNIT;
                }
            }
        }
    }

    /// Calls `f(row, column, value)` for every stored weight.
    fn for_stored(&self, mut f: impl FnMut(usize, usize, T)) {
        self.for_each(|row, column, value| {
            if is_stored(value) {
                f(row, column, value);
            }
        });
    }

    /// The dense matrix, row after row: +0 where nothing is stored.
    pub fn to_dense(&self) -> Vec<T> {
        let mut dense = vec![T::zeroed(); self.n * self.k];
        self.for_stored(|row, column, value| dense[row * self.k + column] = value);
        dense
    }

    /// The same matrix in compressed sparse rows.
    ///
    /// # Errors
    /// More than 2^32 - 1 values.
    pub fn to_csr(&self) -> Result<Csr<T>, SparseError> {
        let mut entries: Vec<Vec<(u32, T)>> = vec![Vec::new(); self.n];
        self.for_stored(|row, column, value| entries[row].push((column as u32, value)));
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

    /// Weights other than +0.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// Share of the weights that are +0.
    pub fn sparsity(&self) -> f64 {
        1.0 - self.stored as f64 / (self.n as f64 * self.k as f64)
    }

    /// Bytes that a product reads: mask, starts, and units with their padding.
    pub fn bytes(&self) -> usize {
        4 * (self.masks.len() + self.starts.len()) + self.values.len() * size_of::<T>()
    }

    /// Words of the mask.
    pub fn masks(&self) -> &[u32] {
        &self.masks
    }

    /// Starts of the tiles, in units of [`ALIGN`].
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// Values of the stored units, with the padding of the tiles.
    pub fn values(&self) -> &[T] {
        &self.values
    }
}

fn start(units: usize) -> Result<u32, SparseError> {
    u32::try_from(units / ALIGN).map_err(|_| SparseError::TooMany { stored: units })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Inputs;
    use half::bf16;

    fn matrix(n: usize, k: usize, seed: u64) -> Vec<bf16> {
        let mut inputs = Inputs::new(seed);
        let mut dense: Vec<bf16> =
            inputs.floats(n * k, 1.0).into_iter().map(bf16::from_f32).collect();
        for value in &mut dense {
            if inputs.below(3) > 0 {
                *value = bf16::ZERO;
            }
        }
        dense[n * k / 2] = bf16::NEG_ZERO;
        dense[n * k / 3] = bf16::NAN;
        dense
    }

    #[test]
    fn dense_and_csr_come_back_bit_for_bit() {
        for (n, k) in [(1, 1), (3, 33), (17, 1025), (40, 257)] {
            let dense = matrix(n, k, k as u64);
            let bits = |v: &[bf16]| v.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
            let bitmap = Bitmap::from_dense(n, k, &dense).unwrap();
            assert_eq!(bits(&bitmap.to_dense()), bits(&dense));
            let csr = Csr::from_dense(n, k, &dense).unwrap();
            assert_eq!(bits(&bitmap.to_csr().unwrap().to_dense()), bits(&dense));
            let again = Bitmap::from_csr(&csr).unwrap();
            assert_eq!((again.masks, bits(&again.values)), (bitmap.masks, bits(&bitmap.values)));
            let nonzero = dense.iter().filter(|w| w.to_bits() != 0).count();
            assert_eq!(bitmap.stored, nonzero);
            let wide: Vec<f32> = dense.iter().map(|w| w.to_f32()).collect();
            let bits = |v: &[f32]| v.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&Bitmap::from_dense(n, k, &wide).unwrap().to_dense()), bits(&wide));
        }
    }

    #[test]
    fn hostile_parts_are_refused() {
        let dense: Vec<f32> = Inputs::new(1).floats(20 * 100, 1.0);
        let good = Bitmap::from_dense(20, 100, &dense).unwrap();
        let parts = || (good.masks.clone(), good.starts.clone(), good.values.clone());
        let refuse = |(masks, starts, values): (Vec<u32>, Vec<u32>, Vec<f32>)| {
            let result = Bitmap::from_parts(20, 100, masks, starts, values);
            result.map(|bitmap| bitmap.stored).expect_err("hostile")
        };
        let (masks, starts, values) = parts();
        assert_eq!(Bitmap::from_parts(20, 100, masks, starts, values).unwrap(), good);
        let mut bad = parts();
        bad.0[0] ^= 1 << 7;
        refuse(bad);
        let mut bad = parts();
        bad.1[2] += 1;
        refuse(bad);
        let mut bad = parts();
        bad.2.pop();
        refuse(bad);
        let mut bad = parts();
        bad.0.pop();
        refuse(bad);
        // As many bits, one of them outside of the matrix.
        let mut bad = parts();
        let (last, bit) = place(16, 99, 100, 1);
        let outside = (0..32).find(|&b| place_of(last, b, 100, 1).1 >= 100).unwrap();
        bad.0[last] ^= 1 << bit | 1 << outside;
        let error = refuse(bad);
        assert!(matches!(error, SparseError::Outside { row: 16, .. }), "{error}");
        assert!(Bitmap::from_dense(20, 99, &dense).is_err());
    }
}
