//! When a pruned matrix is worth its format: measured, as data.

use crate::ops::Math;

/// Time of a dense bf16 product (cuBLAS) over ours, at one share of zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// How ours was computed.
    pub math: Math,
    /// Input rows.
    pub m: usize,
    /// Share of weights that are zero, at random places.
    pub sparsity: f64,
    /// Their time over ours.
    pub ratio: f64,
}

/// One H200, PyTorch 2.11 for CUDA 13.0: bf16 weights and inputs, weights not in the cache, CUDA graphs,
/// both in the same run; of 4096 by 4096 and 8192 by 28672 the worse (exact with more than one row: the
/// former alone). `benches/sparse.rs --peers` repeats it.
pub const MEASURED: &[Measured] = &[
    row(Math::Exact, 1, 0.5, 1.03),
    row(Math::Exact, 1, 0.7, 1.19),
    row(Math::Exact, 1, 0.9, 1.50),
    row(Math::Exact, 8, 0.5, 0.24),
    row(Math::Exact, 8, 0.7, 0.25),
    row(Math::Exact, 8, 0.9, 0.32),
    row(Math::TensorCore, 1, 0.5, 1.18),
    row(Math::TensorCore, 1, 0.7, 1.52),
    row(Math::TensorCore, 1, 0.9, 2.28),
    row(Math::TensorCore, 8, 0.5, 1.18),
    row(Math::TensorCore, 8, 0.7, 1.42),
    row(Math::TensorCore, 8, 0.9, 1.95),
    row(Math::TensorCore, 16, 0.5, 1.02),
    row(Math::TensorCore, 16, 0.7, 1.23),
    row(Math::TensorCore, 16, 0.9, 1.81),
];

const fn row(math: Math, m: usize, sparsity: f64, ratio: f64) -> Measured {
    Measured { math, m, sparsity, ratio }
}

/// Whether [`super::Linear`] is expected to beat a dense bf16 product on a GPU: the ratio of
/// [`MEASURED`] at the next larger `m`, between the measured shares of zeros on a straight line, is above
/// 1. Fewer zeros or more rows than were measured do not pay off.
pub fn pays_off(m: usize, sparsity: f64, math: Math) -> bool {
    let of_math = MEASURED.iter().filter(|row| row.math == math);
    let Some(m) = of_math.clone().map(|row| row.m).filter(|&of| of >= m).min() else {
        return false;
    };
    let rows: Vec<&Measured> = of_math.filter(|row| row.m == m).collect();
    let last = rows.last().is_some_and(|row| sparsity >= row.sparsity && row.ratio > 1.0);
    last || rows.windows(2).any(|pair| {
        let (low, high) = (pair[0], pair[1]);
        let part = (sparsity - low.sparsity) / (high.sparsity - low.sparsity);
        (0.0..1.0).contains(&part) && low.ratio + part * (high.ratio - low.ratio) > 1.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_follows_the_table() {
        for row in MEASURED {
            assert_eq!(pays_off(row.m, row.sparsity, row.math), row.ratio > 1.0, "{row:?}");
        }
        assert!(pays_off(1, 1.0, Math::Exact) && pays_off(3, 0.8, Math::TensorCore));
        assert!(!pays_off(1, 0.2, Math::TensorCore) && !pays_off(17, 0.9, Math::TensorCore));
        assert!(!pays_off(1, f64::NAN, Math::Exact));
    }

    #[test]
    fn rows_of_a_kind_stand_together_in_order() {
        for pair in MEASURED.windows(2) {
            let key = |row: &Measured| (row.math == Math::TensorCore, row.m);
            assert!(key(&pair[0]) <= key(&pair[1]));
            assert!(key(&pair[0]) != key(&pair[1]) || pair[0].sparsity < pair[1].sparsity);
        }
    }
}
