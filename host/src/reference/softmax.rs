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
    (2, 12_345),
    (3, 16_384),
    (2, 16_385),
    (1, 20_001),
    (2, 24_576),
    (1, 40_008),
    (1, 65_537),
    (1, 70_001),
    (1, 131_071),
];

/// `(m, k)`, 128 MiB of `f32` each: attention, vocabulary, and rows of a million.
pub const BENCH_SHAPES: &[(usize, usize)] =
    &[(262_144, 128), (32_768, 1024), (8192, 4096), (4096, 8192), (262, 128_256), (32, 1 << 20)];

/// `(m, k)` beside those, 64 MiB of `f32`, and twice the rows of 16 bits: rows that start anywhere.
pub const ODD_BENCH_SHAPES: &[(usize, usize)] = &[
    (508_400, 33),
    (316_551, 53),
    (202_135, 83),
    (85_164, 197),
    (65_280, 257),
    (16_384, 1023),
    (4096, 4095),
    (2048, 8191),
    (334, 50_257),
];

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
        if k > 16_384 {
            long(case, &v, &mut y);
            continue;
        }
        let top = largest(&v);
        let term = |j: usize| term(case, v[j] - top);
        let sum = sum256(k, |acc, j| acc + term(j));
        let (inverse, log) = if sum == 0.0 { (0.0, 0.0) } else { (1.0 / sum, ln(sum)) };
        for j in 0..k {
            let value = if case.log { (v[j] - top) - log } else { term(j) * inverse };
            y.push(rounded(case.element, value));
        }
    }
    y
}

/// The largest number, 0 where that is minus infinity.
fn largest(v: &[f32]) -> f32 {
    let top = v.iter().copied().filter(|v| !v.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY { 0.0 } else { top }
}

/// The term of a score, of which the largest was taken.
fn term(case: &Case, v: f32) -> f32 {
    if case.element != RowType::F32 && !v.is_nan() { exp_half_nonpositive(v) } else { flushed(v) }
}

/// The exponential, 0 where it is not a normal number.
fn flushed(v: f32) -> f32 {
    let e = exp(v);
    if e < f32::MIN_POSITIVE { 0.0 } else { e }
}

/// A maximum, minus infinity of nothing, and a sum of terms without it.
#[derive(Clone, Copy)]
struct Sum {
    top: f32,
    sum: f32,
}

impl Sum {
    /// What the terms of a part are multiplied with where the largest is `top`.
    fn times(self, top: f32) -> f32 {
        flushed(self.top - top)
    }
}

/// A row with a sum for each 1,024 elements. These come together in parts of up to eight of them, and the parts in the row.
fn long(case: &Case, v: &[f32], y: &mut Vec<f32>) {
    let broken = v.iter().any(|v| v.is_nan() || *v == f32::INFINITY);
    if broken {
        y.extend(std::iter::repeat_n(f32::NAN, v.len()));
        return;
    }
    let top_of = |v: &[f32]| v.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let segments: Vec<Sum> = v
        .chunks(1024)
        .map(|v| {
            let shift = largest(v);
            Sum { top: top_of(v), sum: sum256(v.len(), |acc, j| acc + term(case, v[j] - shift)) }
        })
        .collect();
    let count = segments.len().div_ceil(8);
    let mut left = &segments[..];
    let mut parts = Vec::new();
    for part in 0..count {
        // The first ones have one more, where they cannot all have as many.
        let len = segments.len() / count + usize::from(part < segments.len() % count);
        let (own, rest) = left.split_at(len);
        left = rest;
        let top = own.iter().fold(f32::NEG_INFINITY, |top, sum| top.max(sum.top));
        let shift = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let mut p = [0.0; 8];
        for (p, sum) in p.iter_mut().zip(own) {
            *p = sum.sum * sum.times(shift);
        }
        let sum = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
        parts.push(Sum { top, sum });
    }
    let top = largest(v);
    let sum = sum256(count, |acc, i| parts[i].sum.mul_add(parts[i].times(top), acc));
    let (inverse, log) = if sum == 0.0 { (0.0, 0.0) } else { (1.0 / sum, ln(sum)) };
    for (v, segment) in v.chunks(1024).zip(&segments) {
        let times = segment.times(top) * inverse;
        let shift = largest(v);
        for &v in v {
            let value = if case.log { (v - top) - log } else { term(case, v - shift) * times };
            y.push(rounded(case.element, value));
        }
    }
}
