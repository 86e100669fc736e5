//! Reference for [`contract::softmax`].

use contract::num::{exp, exp_half_nonpositive, ln};

use super::{Inputs, rounded, sum256};
use crate::ops::RowType;

/// `(m, k)`: around the edges of partials, of warps, and of what a block holds.
pub const TEST_SHAPES: &[(usize, usize)] = &[
    (1, 1),
    (3, 2),
    (17, 31),
    (9, 33),
    (2, 255),
    (5, 256),
    (3, 257),
    (8, 1000),
    (9, 1024),
    (3, 1025),
    (2, 2560),
    (2, 3073),
    (1, 8191),
    (2, 8193),
    (1, 20_001),
    (2, 24_576),
    (1, 40_008),
    (1, 70_001),
];

/// `(m, k)`, 128 MiB of `f32` and more each: attention, vocabulary, and one row of a million.
pub const BENCH_SHAPES: &[(usize, usize)] =
    &[(262_144, 128), (65_536, 1024), (16_384, 4096), (8192, 8192), (1024, 128_256), (64, 1 << 20)];

/// What is added to the scores.
#[derive(Clone, Debug)]
pub enum Mask {
    /// Nothing.
    None,
    /// Rows of `k`.
    Added(Vec<f32>),
    /// Queries of one matrix.
    Causal(usize),
}

/// The tensors of one softmax.
#[derive(Clone, Debug)]
pub struct Case {
    /// Element type; every number below is one of it.
    pub element: RowType,
    /// Rows.
    pub m: usize,
    /// Elements of a row.
    pub k: usize,
    /// Scores `[m, k]`.
    pub x: Vec<f32>,
    /// The mask.
    pub mask: Mask,
    /// Factor of the scores.
    pub scale: f32,
    /// Whether the logarithm is wanted.
    pub log: bool,
}

impl Case {
    /// A seeded case; every fourth score of the mask is minus infinity.
    pub fn new(element: RowType, m: usize, k: usize, kind: usize, seed: u64) -> Self {
        let mut inputs = Inputs::new(seed);
        let x = inputs.floats(m * k, 8.0).into_iter().map(|v| rounded(element, v)).collect();
        let mask = match kind % 3 {
            0 => Mask::None,
            1 => {
                let rows = 1 + inputs.below(m);
                let mask = inputs.floats(rows * k, 2.0).into_iter();
                let hole = |v| if inputs.below(4) == 0 { f32::NEG_INFINITY } else { v };
                Mask::Added(mask.map(hole).map(|v| rounded(element, v)).collect())
            }
            _ => Mask::Causal(1 + inputs.below(k.min(m))),
        };
        let scale = if kind.is_multiple_of(2) { 1.0 } else { 0.37 };
        Self { element, m, k, x, mask, scale, log: (kind / 3) % 2 == 1 }
    }
}

/// The rows, one after the other.
pub fn softmax(case: &Case) -> Vec<f32> {
    let k = case.k;
    let mut y = Vec::with_capacity(case.x.len());
    for i in 0..case.m {
        let mut v = Vec::with_capacity(k);
        for j in 0..k {
            let score = case.x[i * k + j] * case.scale;
            v.push(match &case.mask {
                Mask::None => score,
                Mask::Added(mask) => score + mask[(i * k + j) % mask.len()],
                Mask::Causal(queries) if j + queries > k + i % queries => f32::NEG_INFINITY,
                Mask::Causal(_) => score,
            });
        }
        let top = v.iter().copied().filter(|v| !v.is_nan()).fold(f32::NEG_INFINITY, f32::max);
        let top = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let term = |j: usize| {
            if case.element != RowType::F32 && !(v[j] - top).is_nan() {
                return exp_half_nonpositive(v[j] - top);
            }
            let e = exp(v[j] - top);
            if e < f32::MIN_POSITIVE { 0.0 } else { e }
        };
        let sum = sum256(k, |acc, j| acc + term(j));
        let (inverse, log) = if sum == 0.0 { (0.0, 0.0) } else { (1.0 / sum, ln(sum)) };
        for j in 0..k {
            let value = if case.log { (v[j] - top) - log } else { term(j) * inverse };
            y.push(rounded(case.element, value));
        }
    }
    y
}
