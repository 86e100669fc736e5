//! Reference for [`contract::w2a8_gemm`]: [`super::w2a8_gemv`] row by row.

use super::w2a8_gemv::Case;

/// `(m, n, k)`: around the edges of tiles.
pub const TEST_SHAPES: &[(usize, usize, usize)] = &[
    (2, 1, 1),
    (524_289, 2, 3),
    (2, 3, 64),
    (3, 5, 65),
    (4, 4, 257),
    (5, 65, 511),
    (7, 64, 512),
    (8, 17, 640),
    (9, 33, 1000),
    (17, 66, 1792),
    (63, 9, 320),
    (65, 130, 130),
    (130, 7, 2560),
];

/// `(m, n, k)`: prefill of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize, usize)] = &[
    (16, 3840, 2560),
    (128, 3840, 2560),
    (128, 2560, 2560),
    (128, 13824, 2560),
    (128, 2560, 6912),
];

/// `y[m, n] = (sum_k q[m, k] t[n, k] / s[m]) * g[n]`, rows one after the other.
pub fn w2a8_gemm(case: &Case) -> Vec<f32> {
    (0..case.m).flat_map(|m| case.row(m)).collect()
}
