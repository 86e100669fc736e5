//! Reference for [`contract::sparse`]: dense weights, and beside each whether it is stored.

use super::Inputs;
use crate::ops::sparse::ConvShape;

/// `(m, n, k)`: around the edges of words, tiles, groups and the period.
pub const TEST_SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 16, 32),
    (2, 17, 31),
    (3, 15, 127),
    (4, 33, 128),
    (5, 16, 129),
    (1, 48, 511),
    (8, 7, 512),
    (9, 20, 513),
    (16, 40, 640),
    (17, 31, 1100),
    (3, 16, 1024),
    (2, 5, 2311),
];

/// `(n, k)` of the benchmark: a projection, and the widest layer of a 70B model.
pub const BENCH_SHAPES: &[(usize, usize)] = &[(4096, 4096), (8192, 28_672)];

/// Percentages of zeros of the benchmark.
pub const BENCH_SPARSITIES: &[usize] = &[50, 70, 90];

/// `(batch, side)` of the benchmark's images of 256 channels.
pub const BENCH_IMAGES: &[(usize, usize)] = &[(1, 14), (1, 28), (8, 14)];

/// A matrix `[n, k]` whose elements other than +0 are stored.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Elements; +0 where nothing is stored.
    pub dense: Vec<f32>,
}

impl Matrix {
    /// A seeded matrix of about this share of zeros. Its values are exact in every type.
    pub fn new(n: usize, k: usize, sparsity: f32, inputs: &mut Inputs) -> Self {
        let dense = (0..n * k)
            .map(|_| {
                let [keep, value] = [0; 2].map(|_| (inputs.bits() >> 40) as f32 / (1 << 24) as f32);
                if keep < sparsity { 0.0 } else { ((value - 0.5) * 256.0).round() / 32.0 }
            })
            .collect();
        Self { n, k, dense }
    }

    /// Whether the element is stored.
    pub fn stored(&self, row: usize, column: usize) -> bool {
        self.dense[row * self.k + column].to_bits() != 0
    }
}

/// `y[m, n]`, each a sum of 16 partials over what is stored.
pub fn linear(w: &Matrix, x: &[f32], m: usize) -> Vec<f32> {
    let k = w.k;
    let mut y = Vec::with_capacity(m * w.n);
    for input in 0..m {
        for row in 0..w.n {
            let mut partials = [0.0f32; 16];
            for column in 0..k {
                if w.stored(row, column) {
                    let p = &mut partials[column % 1024 / 256 * 4 + column % 32 / 8];
                    *p = w.dense[row * k + column].mul_add(x[input * k + column], *p);
                }
            }
            for distance in [8, 4, 2, 1] {
                for p in 0..distance {
                    partials[p] += partials[p + distance];
                }
            }
            y.push(partials[0]);
        }
    }
    y
}

/// Patches of `x` `[batch, height, width, channels]` as rows `[pixels, k]`: kernel row, kernel column,
/// channel.
pub fn unfold(x: &[f32], shape: &ConvShape) -> Vec<f32> {
    let ConvShape { height, width, channels, .. } = *shape;
    let [out_height, out_width] = shape.out();
    let mut rows = Vec::with_capacity(shape.pixels() * shape.k());
    for image in 0..shape.batch {
        for row in 0..out_height {
            for column in 0..out_width {
                for r in 0..shape.kernel[0] {
                    for s in 0..shape.kernel[1] {
                        for channel in 0..channels {
                            let y = row * shape.stride[0] + r * shape.dilation[0];
                            let x_at = column * shape.stride[1] + s * shape.dilation[1];
                            let inside = y >= shape.padding[0]
                                && y - shape.padding[0] < height
                                && x_at >= shape.padding[1]
                                && x_at - shape.padding[1] < width;
                            rows.push(if inside {
                                let (y, x_at) = (y - shape.padding[0], x_at - shape.padding[1]);
                                x[((image * height + y) * width + x_at) * channels + channel]
                            } else {
                                0.0
                            });
                        }
                    }
                }
            }
        }
    }
    rows
}

/// `y[pixels, out channels]` of the weights `[out channels, k]`.
pub fn conv2d(w: &Matrix, x: &[f32], shape: &ConvShape) -> Vec<f32> {
    linear(w, &unfold(x, shape), shape.pixels())
}
