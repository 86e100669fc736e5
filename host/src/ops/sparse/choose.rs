//! When a pruned matrix is worth its format: measured, as data.

use crate::ops::Math;

/// Time of a dense bf16 product (cuBLAS) over ours, of one matrix at one share of zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// How ours was computed.
    pub math: Math,
    /// Output and input features.
    pub shape: [usize; 2],
    /// Input rows.
    pub m: usize,
    /// Share of weights that are zero, at random places.
    pub sparsity: f64,
    /// Their time over ours.
    pub ratio: f64,
}

/// Shares of zeros that were measured.
const SPARSITIES: [f64; 3] = [0.5, 0.7, 0.9];

/// Ratios at [`SPARSITIES`] of one matrix, for so many input rows.
type Row = (Math, [usize; 2], usize, [f64; 3]);

/// bf16 weights and inputs, weights not in the cache, CUDA graphs, PyTorch 2.11 for CUDA 13.0 in the same run. 4096 by 4096
/// and 8192 by 28672: `benches/sparse.rs --peers` on one H200 (`benches/results/nvidia-h200-2026-11-22-sparse.md`), before
/// the kernels that hold inputs. The others: the loader script on one H100, whose memory is slower, which is worth more to
/// ours than to them; of 14336 by 4096, and at 8 and 16 rows of 11008 by 4096, 4096 by 11008, 5120 by 5120 and 2560 by 6912, the
/// worse of that and of development runs on an H200.
const ROWS: &[Row] = &[
    (Math::Exact, [4096, 4096], 1, [1.09, 1.27, 1.58]),
    (Math::Exact, [4096, 4096], 8, [0.21, 0.23, 0.28]),
    (Math::Exact, [8192, 28_672], 1, [1.16, 1.45, 2.02]),
    (Math::Exact, [8192, 28_672], 8, [0.17, 0.18, 0.24]),
    (Math::TensorCore, [4096, 4096], 1, [1.33, 1.58, 2.46]),
    (Math::TensorCore, [4096, 4096], 8, [1.25, 1.51, 2.10]),
    (Math::TensorCore, [4096, 4096], 16, [1.09, 1.27, 1.90]),
    (Math::TensorCore, [8192, 28_672], 1, [1.22, 1.69, 3.12]),
    (Math::TensorCore, [8192, 28_672], 8, [1.22, 1.61, 2.52]),
    (Math::TensorCore, [8192, 28_672], 16, [1.17, 1.50, 2.26]),
    (Math::TensorCore, [8192, 8192], 1, [1.16, 1.53, 3.35]),
    (Math::TensorCore, [8192, 8192], 8, [1.09, 1.43, 2.97]),
    (Math::TensorCore, [8192, 8192], 16, [1.11, 1.49, 2.49]),
    (Math::TensorCore, [11_008, 4096], 1, [1.28, 1.67, 3.31]),
    (Math::TensorCore, [11_008, 4096], 8, [1.06, 1.41, 2.15]),
    (Math::TensorCore, [11_008, 4096], 16, [0.99, 1.27, 1.75]),
    (Math::TensorCore, [4096, 14_336], 1, [1.22, 1.68, 3.20]),
    (Math::TensorCore, [4096, 14_336], 8, [1.22, 1.64, 2.70]),
    (Math::TensorCore, [4096, 14_336], 16, [1.16, 1.52, 2.38]),
    (Math::TensorCore, [4096, 11_008], 1, [1.24, 1.67, 3.03]),
    (Math::TensorCore, [4096, 11_008], 8, [1.19, 1.55, 2.08]),
    (Math::TensorCore, [4096, 11_008], 16, [1.17, 1.44, 1.95]),
    (Math::TensorCore, [5120, 5120], 1, [1.09, 1.45, 2.33]),
    (Math::TensorCore, [5120, 5120], 8, [1.05, 1.20, 1.67]),
    (Math::TensorCore, [5120, 5120], 16, [0.98, 1.17, 1.45]),
    (Math::TensorCore, [2560, 6912], 1, [1.23, 1.49, 2.14]),
    (Math::TensorCore, [2560, 6912], 8, [1.16, 1.42, 1.60]),
    (Math::TensorCore, [2560, 6912], 16, [1.04, 1.21, 1.51]),
    (Math::TensorCore, [1024, 4096], 1, [1.41, 1.58, 2.03]),
    (Math::TensorCore, [1024, 4096], 8, [1.24, 1.31, 1.83]),
    (Math::TensorCore, [1024, 4096], 16, [0.93, 1.00, 1.30]),
    (Math::TensorCore, [2048, 2048], 1, [1.16, 1.33, 1.58]),
    (Math::TensorCore, [2048, 2048], 8, [1.09, 1.22, 1.39]),
    (Math::TensorCore, [2048, 2048], 16, [0.92, 0.99, 1.24]),
    (Math::TensorCore, [14_336, 4096], 1, [1.11, 1.33, 2.48]),
    (Math::TensorCore, [14_336, 4096], 8, [0.98, 1.22, 2.87]),
    (Math::TensorCore, [14_336, 4096], 16, [0.96, 1.48, 2.47]),
];

/// What was measured, row by row.
pub fn measured() -> impl Iterator<Item = Measured> {
    ROWS.iter().flat_map(|&(math, shape, m, ratios)| {
        let of = move |(sparsity, ratio)| Measured { math, shape, m, sparsity, ratio };
        SPARSITIES.into_iter().zip(ratios).map(of)
    })
}

/// How unlike two matrices are: by what factors their sides differ, on a logarithmic scale.
fn distance(a: [usize; 2], b: [usize; 2]) -> f64 {
    let side = |i: usize| (a[i].max(1) as f64 / b[i] as f64).log2().abs();
    side(0) + side(1)
}

/// Whether [`super::Linear`] with `[n, k]` weights is expected to beat a dense bf16 product on a GPU: the ratio that was
/// [`measured`] with the most similar matrix (the worst of those that are as similar) at the next larger `m`, between the
/// measured shares of zeros on a straight line, is above 1. Fewer zeros or more rows than were measured do not pay off.
pub fn pays_off(shape: [usize; 2], m: usize, sparsity: f64, math: Math) -> bool {
    let rows = || ROWS.iter().filter(|row| row.0 == math);
    let Some(m) = rows().map(|row| row.2).filter(|&of| of >= m).min() else {
        return false;
    };
    let rows = || rows().filter(|row| row.2 == m);
    let nearest = rows().map(|row| distance(shape, row.1)).fold(f64::INFINITY, f64::min);
    let mut like = rows().filter(|row| distance(shape, row.1) <= nearest);
    like.all(|row| ratio(&row.3, sparsity) > 1.0)
}

/// Between the measured ratios; 0 below them.
fn ratio(ratios: &[f64; 3], sparsity: f64) -> f64 {
    let [.., most] = SPARSITIES;
    if sparsity >= most {
        return ratios[2];
    }
    let between = |i: usize| {
        let part = (sparsity - SPARSITIES[i]) / (SPARSITIES[i + 1] - SPARSITIES[i]);
        (0.0..1.0).contains(&part).then(|| ratios[i] + part * (ratios[i + 1] - ratios[i]))
    };
    between(0).or_else(|| between(1)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_follows_the_table() {
        for row in measured() {
            let found = pays_off(row.shape, row.m, row.sparsity, row.math);
            assert_eq!(found, row.ratio > 1.0, "{row:?}");
            // A matrix like it, too.
            let like = row.shape.map(|side| side + side / 64);
            assert_eq!(pays_off(like, row.m, row.sparsity, row.math), found, "{row:?}");
        }
    }

    #[test]
    fn what_was_not_measured() {
        let shape = [4096, 4096];
        assert!(pays_off(shape, 1, 1.0, Math::Exact) && pays_off(shape, 3, 0.8, Math::TensorCore));
        assert!(!pays_off(shape, 1, 0.2, Math::TensorCore));
        assert!(!pays_off(shape, 17, 0.9, Math::TensorCore));
        assert!(!pays_off(shape, 1, f64::NAN, Math::Exact));
        assert!(!pays_off(shape, 2, 0.9, Math::Exact));
        // No side at all is a small matrix.
        pays_off([0, 0], 1, 0.9, Math::TensorCore);
    }

    #[test]
    fn ratios_rise_with_zeros() {
        for &(math, shape, m, ratios) in ROWS {
            assert!(ratios.is_sorted(), "{math:?} {shape:?} {m}");
        }
    }
}
