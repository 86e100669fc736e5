//! Reference for [`contract::layernorm`].

use super::rmsnorm::sums;
use super::{Inputs, rounded};
use crate::ops::RowType;

/// `(m, k)`: as for softmax.
pub const TEST_SHAPES: &[(usize, usize)] = super::softmax::TEST_SHAPES;

/// `(m, k)`, 64 MiB of `f32` and more each.
pub const BENCH_SHAPES: &[(usize, usize)] =
    &[(65_536, 768), (16_384, 4096), (8192, 8192), (4096, 16_384)];

/// `(m, k)` beside those, 64 MiB of `f32`, and twice the rows of 16 bits: rows that start anywhere, and the longest.
pub const MORE_BENCH_SHAPES: &[(usize, usize)] = &[
    (508_400, 33),
    (316_551, 53),
    (202_135, 83),
    (85_164, 197),
    (65_280, 257),
    (16_384, 1023),
    (4096, 4095),
    (2048, 8191),
    (334, 50_257),
    (128, 131_072),
    (16, 1 << 20),
];

/// The tensors of one norm.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type; every number below is one of it.
    pub element: RowType,
    /// Rows.
    pub m: usize,
    /// Elements of a row.
    pub k: usize,
    /// Rows `[m, k]`.
    pub x: Vec<f32>,
    /// What is added to them, or nothing.
    pub delta: Option<Vec<f32>>,
    /// Gain `[k]`, or nothing.
    pub weight: Option<Vec<f32>>,
    /// Offset `[k]`, or nothing.
    pub bias: Option<Vec<f32>>,
    /// Added to the variance.
    pub eps: f32,
}

impl Case {
    /// A seeded case; the bits of `kind` say which tensors are there.
    pub fn new(element: RowType, m: usize, k: usize, kind: usize, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        let mut tensor = |len: usize, reach: f32| -> Vec<f32> {
            inputs.floats(len, reach).into_iter().map(|v| rounded(element, v)).collect()
        };
        let x = tensor(m * k, 3.0);
        let delta = (kind & 1 != 0).then(|| tensor(m * k, 1.0));
        let weight = (kind & 2 != 0).then(|| tensor(k, 2.0));
        let bias = (kind & 4 != 0).then(|| tensor(k, 1.0));
        Self { element, m, k, x, delta, weight, bias, eps: 1e-5 }
    }
}

/// `x + delta` and its norm, row by row.
pub fn layernorm(case: &Case) -> (Vec<f32>, Vec<f32>) {
    let k = case.k;
    let mut sum = case.x.clone();
    if let Some(delta) = &case.delta {
        for i in 0..sum.len() {
            sum[i] = rounded(case.element, sum[i] + delta[i]);
        }
    }
    let mut y = Vec::with_capacity(sum.len());
    for row in sum.chunks(k) {
        let [sum, squares] = sums(row, true);
        let mean = sum / k as f32;
        let r = 1.0 / (squares / k as f32 + case.eps).sqrt();
        for i in 0..k {
            let weight = case.weight.as_ref().map_or(1.0, |w| w[i]);
            let bias = case.bias.as_ref().map_or(-0.0, |b| b[i]);
            y.push(rounded(case.element, ((row[i] - mean) * r).mul_add(weight, bias)));
        }
    }
    (sum, y)
}
