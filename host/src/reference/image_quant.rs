//! Reference for [`contract::image_quant`].

use super::{Inputs, rounded};
use crate::ops::RowType;

/// `(n, len)`: around the edges of pieces, blocks and parts.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (3, 15),
    (2, 16),
    (5, 17),
    (4, 4096),
    (2, 8191),
    (3, 8192),
    (2, 8193),
    (1, 8208),
    (2, 40_000),
    (1, 2_100_000),
    (1, 2_200_003),
    (70_001, 3),
];

/// `(n, len)` of images of ResNet-50: 56x56 of 256 channels, 14x14 of 256.
pub const BENCH_SHAPES: &[(usize, usize)] =
    &[(1, 56 * 56 * 256), (32, 56 * 56 * 256), (1, 14 * 14 * 256), (32, 14 * 14 * 256)];

/// The images of one call.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type; every number of `x` is one of it.
    pub element: RowType,
    /// Images.
    pub n: usize,
    /// Elements of an image.
    pub len: usize,
    /// The images `[n, len]`.
    pub x: Vec<f32>,
}

impl Case {
    /// A seeded case, images of different reach.
    pub fn new(element: RowType, n: usize, len: usize, seed: u64) -> Self {
        let x = Inputs::new(seed).floats(n * len, 3.0);
        let reach = |i: usize| [1.0, 0.01, 40.0, 1e-7][i / len % 4];
        let x = x.into_iter().enumerate().map(|(i, v)| rounded(element, v * reach(i))).collect();
        Self { element, n, len, x }
    }
}

/// Numbers and multipliers.
pub fn image_quant(case: &Case) -> (Vec<i8>, Vec<f32>) {
    let (mut q, mut scales) = (Vec::new(), Vec::new());
    for image in case.x.chunks_exact(case.len) {
        let broken = image.iter().any(|v| v.is_nan());
        let top = image.iter().fold(0.0f32, |top, v| top.max(v.abs()));
        let scale = if broken { f32::NAN } else { 127.0 / top.max(1e-5) };
        for &v in image {
            let v = (v * scale).round_ties_even().clamp(-128.0, 127.0);
            q.push(v as i8); // NaN becomes 0
        }
        scales.push(scale);
    }
    (q, scales)
}
