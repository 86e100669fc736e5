//! Reference for [`contract::bmm`].

use contract::bmm::tensor_bound;
use contract::num::RowType;

use crate::ops::bmm::{Layout, Operand};

/// `(batch, m, n, k)`: around the edges of tiles, slices and chunks.
pub const TEST_SHAPES: &[(usize, usize, usize, usize)] = &[
    (1, 1, 1, 1),
    (2, 3, 5, 7),
    (3, 16, 16, 16),
    (5, 15, 17, 33),
    (2, 32, 32, 32),
    (2, 64, 64, 64),
    (1, 65, 63, 100),
    (1, 128, 128, 40),
    (1, 136, 264, 72),
    (1, 1, 200, 1030),
    (2, 20, 1, 2050),
    (2, 3, 130, 5000),
    (1, 200, 13, 70),
    (2, 67, 131, 65),
    (1, 33, 34, 1024),
    (1, 40, 36, 3072),
    (1, 20, 21, 17001),
    (4, 7, 9, 0),
    (0, 4, 4, 4),
    (3, 0, 4, 4),
    (3, 4, 0, 4),
];

/// `(batch, m, n, k)`: large, all sides at most 64 and 128, thin, sides that no power of two divides; few tiles and up to
/// 256 terms, many small ones, very long sums of few outputs; small sides in batches of 1, 16, 256 and 4,096.
pub const BENCH_SHAPES: &[(usize, usize, usize, usize)] = &[
    (1, 4096, 4096, 4096),
    (8, 4096, 4096, 128),
    (32, 1024, 1024, 64),
    (640, 64, 64, 64),
    (2048, 32, 32, 32),
    (2048, 16, 16, 16),
    (100, 128, 128, 128),
    (20, 1, 4096, 128),
    (20, 1, 128, 4096),
    (1, 1023, 1021, 1019),
    (64, 197, 197, 64),
    (64, 197, 64, 197),
    (12, 577, 577, 64),
    (8, 501, 499, 503),
    (1, 257, 257, 257),
    (1, 32, 1000, 2048),
    (1, 16, 1000, 1024),
    (1, 72, 24, 1340),
    (1, 18, 17, 5689),
    (1, 8, 8, 65_536),
    (300, 65, 65, 65),
    (640, 63, 63, 63),
    (1000, 50, 50, 50),
    (2048, 31, 31, 31),
    (1, 144, 129, 82),
    (16, 45, 45, 45),
    (4096, 42, 42, 42),
    (4096, 50, 23, 64),
    (1, 1, 15, 38_964),
    (1, 9, 5, 49_582),
    (1, 44, 6, 23_852),
    (1, 97, 45, 67_051),
    (1, 16, 16, 16),
    (16, 16, 16, 16),
    (256, 16, 16, 16),
    (4096, 16, 16, 16),
    (1, 36, 36, 36),
    (16, 36, 36, 36),
    (256, 36, 36, 36),
    (4096, 36, 36, 36),
    (1, 64, 64, 64),
    (16, 64, 64, 64),
    (256, 64, 64, 64),
    (4096, 64, 64, 64),
];

/// The sums `[batch, m, n]`: for each output one chain over k in each chunk of 1,024, the chunks
/// added first to last.
pub fn sums<T: Operand>(
    a: (&[T], Layout),
    b: (&[T], Layout),
    [m, n, k]: [usize; 3],
    batch: usize,
) -> Vec<T::Sum> {
    let mut out = Vec::with_capacity(batch * m * n);
    for index in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let mut total = T::ZERO;
                let mut chain = T::ZERO;
                for i in 0..k {
                    let left = a.0[a.1.index(index, row, i)].widen();
                    let right = b.0[b.1.index(index, i, column)].widen();
                    chain = T::step(left, right, chain);
                    if (i + 1) % 1024 == 0 || i + 1 == k {
                        total = if i < 1024 { chain } else { T::add(total, chain) };
                        chain = T::ZERO;
                    }
                }
                out.push(total);
            }
        }
    }
    out
}

/// How far a rounded tensor-core result may be from the rounded exact one, `value`, when their sums
/// are at most `bound` apart.
pub fn tolerance(element: RowType, bound: f64, value: f32) -> f32 {
    let value = f64::from(value).abs() + bound;
    // Twice half a step of a number of this size; the smallest steps are absolute.
    let (relative, least, most) = match element {
        RowType::F32 => (2f64.powi(-23), 2f64.powi(-149), f64::from(f32::MAX)),
        RowType::F16 => (2f64.powi(-10), 2f64.powi(-24), 65_504.0),
        RowType::Bf16 => (2f64.powi(-7), 2f64.powi(-133), f64::from(f32::MAX)),
    };
    // Where one of the two may have left the range of the type, nothing is promised.
    let inside = value * (1.0 + relative) < most;
    if inside { (bound + value * relative + least) as f32 } else { f32::INFINITY }
}

/// [`tolerance`] of each element `[batch, m, n]` of a result, by the contract's bound.
pub fn bounds(
    element: RowType,
    a: (&[f32], Layout),
    b: (&[f32], Layout),
    [m, n, k]: [usize; 3],
    batch: usize,
    alpha: f32,
    results: &[f32],
) -> Vec<f32> {
    let mut out = Vec::with_capacity(batch * m * n);
    for index in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let term = |i| {
                    let left = a.0[a.1.index(index, row, i)];
                    f64::from(left) * f64::from(b.0[b.1.index(index, i, column)])
                };
                let magnitude: f64 = (0..k).map(|i| term(i).abs()).sum();
                // A sum that may leave the range of f32 on its way has no bound.
                let inside = magnitude < f64::from(f32::MAX);
                let bound = tensor_bound(element, k, alpha, magnitude);
                let bound = if inside { bound } else { f64::INFINITY };
                out.push(tolerance(element, bound, results[out.len()]));
            }
        }
    }
    out
}
