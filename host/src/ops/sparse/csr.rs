//! Compressed sparse rows: the format that other tools write.

use super::{SparseError, is_stored, sides};
use crate::ops::Float;

/// A matrix `[n, k]` in compressed sparse rows, checked.
///
/// Row `r` holds values `rows[r] .. rows[r + 1]`; its columns ascend strictly.
#[derive(Clone, Debug, PartialEq)]
pub struct Csr<T> {
    n: usize,
    k: usize,
    rows: Vec<u32>,
    columns: Vec<u32>,
    values: Vec<T>,
}

impl<T: Float> Csr<T> {
    /// Takes a matrix that somebody else wrote.
    ///
    /// # Errors
    /// Sides out of range; offsets that are not `n + 1`, do not start at 0, descend or do not end at
    /// the number of values; columns that are not in ascending order, stand twice, or are not below
    /// `k`; another number of columns than of values.
    pub fn new(
        n: usize,
        k: usize,
        rows: Vec<u32>,
        columns: Vec<u32>,
        values: Vec<T>,
    ) -> Result<Self, SparseError> {
        sides(n, k)?;
        let count = |what, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(SparseError::Count { what, found, expected }),
        };
        count("row offsets", rows.len(), n + 1)?;
        count("columns", columns.len(), values.len())?;
        count("first row offset", rows[0] as usize, 0)?;
        count("last row offset", rows[n] as usize, values.len())?;
        for (row, pair) in rows.windows(2).enumerate() {
            let (from, to) = (pair[0] as usize, pair[1] as usize);
            if from > to || to > columns.len() {
                return Err(SparseError::Offsets { row, from, to, stored: columns.len() });
            }
            let own = &columns[from..to];
            if let Some(at) = own.iter().position(|&column| column as usize >= k) {
                let column = own[at] as usize;
                return Err(SparseError::Column { row, at: from + at, column, k });
            }
            if let Some(at) = own.windows(2).position(|pair| pair[0] >= pair[1]) {
                let (before, column) = (own[at] as usize, own[at + 1] as usize);
                return Err(SparseError::Order { row, at: from + at + 1, before, column });
            }
        }
        Ok(Self { n, k, rows, columns, values })
    }

    /// [`Csr::new`] from 16-bit columns, as files of narrow matrices have them.
    ///
    /// # Errors
    /// As there.
    pub fn from_u16_columns(
        n: usize,
        k: usize,
        rows: Vec<u32>,
        columns: &[u16],
        values: Vec<T>,
    ) -> Result<Self, SparseError> {
        Self::new(n, k, rows, columns.iter().map(|&column| column.into()).collect(), values)
    }

    /// Keeps every element of a dense `[n, k]` but +0: so [`Csr::to_dense`] gives the same bits.
    ///
    /// # Errors
    /// Sides out of range; another number of elements than `n * k`; more than 2^32 - 1 to store.
    pub fn from_dense(n: usize, k: usize, dense: &[T]) -> Result<Self, SparseError> {
        sides(n, k)?;
        if dense.len() != n * k {
            let what = "elements of the dense matrix";
            return Err(SparseError::Count { what, found: dense.len(), expected: n * k });
        }
        let (mut rows, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in dense.chunks_exact(k) {
            for (column, &value) in row.iter().enumerate().filter(|(_, value)| is_stored(**value)) {
                columns.push(column as u32);
                values.push(value);
            }
            let stored = values.len();
            rows.push(u32::try_from(stored).map_err(|_| SparseError::TooMany { stored })?);
        }
        Ok(Self { n, k, rows, columns, values })
    }

    /// The dense matrix, row after row: +0 where nothing is stored.
    pub fn to_dense(&self) -> Vec<T> {
        let mut dense = vec![T::zeroed(); self.n * self.k];
        for (row, dense) in dense.chunks_exact_mut(self.k).enumerate() {
            self.row(row).for_each(|(column, value)| dense[column] = value);
        }
        dense
    }

    /// Columns and values of one row, in order.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (usize, T)> {
        let own = self.rows[row] as usize..self.rows[row + 1] as usize;
        let columns = self.columns[own.clone()].iter().map(|&column| column as usize);
        columns.zip(self.values[own].iter().copied())
    }

    /// Rows: output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns: input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Offsets of the rows, `n + 1` of them.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Columns of the stored values.
    pub fn columns(&self) -> &[u32] {
        &self.columns
    }

    /// Stored values.
    pub fn values(&self) -> &[T] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Inputs;
    use half::f16;

    fn good() -> (Vec<u32>, Vec<u32>, Vec<f32>) {
        (vec![0, 2, 2, 3], vec![1, 4, 0], vec![1.0, 2.0, 3.0])
    }

    #[test]
    fn hostile_matrices_are_refused() {
        let (rows, columns, values) = good();
        let csr = Csr::new(3, 5, rows.clone(), columns.clone(), values.clone()).unwrap();
        assert_eq!(csr.to_dense()[4], 2.0);
        let refuse = |n, k, rows: &[u32], columns: &[u32], values: &[f32]| {
            Csr::new(n, k, rows.into(), columns.into(), values.into()).expect_err("hostile")
        };
        refuse(0, 5, &[0], &[], &[]);
        refuse(3, 0, &rows, &columns, &values);
        refuse(2, 5, &rows, &columns, &values);
        refuse(3, 5, &rows, &columns[..2], &values);
        refuse(3, 5, &[1, 2, 2, 3], &columns, &values);
        refuse(3, 5, &[0, 2, 2, 4], &columns, &values);
        refuse(3, 5, &[0, 3, 2, 3], &columns, &values);
        refuse(3, 5, &[0, u32::MAX, 2, 3], &columns, &values);
        refuse(3, 4, &rows, &columns, &values);
        let twice = refuse(3, 5, &rows, &[1, 1, 0], &values);
        assert!(matches!(twice, SparseError::Order { row: 0, at: 1, .. }), "{twice}");
        refuse(3, 5, &rows, &[4, 1, 0], &values);
        let narrow = Csr::from_u16_columns(3, 5, rows, &[1, 4, 0], values).unwrap();
        assert_eq!(narrow, csr);
    }

    #[test]
    fn dense_comes_back_bit_for_bit() {
        for (n, k) in [(1, 1), (3, 5), (17, 129)] {
            let mut inputs = Inputs::new(n as u64);
            let mut dense: Vec<f16> =
                inputs.floats(n * k, 1.0).into_iter().map(f16::from_f32).collect();
            dense.iter_mut().step_by(2).for_each(|w| *w = f16::ZERO);
            dense[n * k / 2] = f16::NEG_ZERO;
            dense[n * k / 3] = f16::NAN;
            let csr = Csr::from_dense(n, k, &dense).unwrap();
            let bits = |v: &[f16]| v.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&csr.to_dense()), bits(&dense));
            let again =
                Csr::new(n, k, csr.rows.clone(), csr.columns.clone(), csr.values.clone()).unwrap();
            assert_eq!(again.rows, csr.rows);
        }
        assert!(Csr::from_dense(2, 2, &[0.0f32; 3]).is_err());
    }
}
