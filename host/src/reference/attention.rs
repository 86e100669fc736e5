//! Reference for [`contract::attention`]: one query after the other, block after block.

use contract::attention::fast_bound;
use contract::num::exp;

use super::kv_append::Cache;
use crate::ops::kv_append::Heads;

/// `(m, heads, kv_heads, head_dim, start)`: around the edges of key blocks and vectors.
pub const TEST_SHAPES: &[(usize, usize, usize, usize, usize)] = &[
    (1, 1, 1, 1, 0),
    (1, 2, 1, 4, 2),
    (3, 3, 3, 7, 0),
    (2, 4, 2, 8, 62),
    (1, 4, 1, 16, 63),
    (4, 6, 2, 20, 61),
    (1, 5, 1, 33, 64),
    (70, 4, 2, 24, 0),
    (1, 20, 5, 128, 200),
    (2, 8, 1, 80, 127),
    (1, 2, 2, 256, 130),
    (65, 6, 3, 100, 3),
    (40, 20, 5, 128, 170),
    (33, 4, 1, 64, 0),
];

/// `(m, heads, kv_heads, head_dim, start)` of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize, usize, usize, usize)] =
    &[(2, 20, 5, 128, 510), (8, 20, 5, 128, 504), (512, 20, 5, 128, 0), (2048, 20, 5, 128, 0)];

/// `1 / sqrt(head_dim)`, rounded once.
pub fn scale(head_dim: usize) -> f32 {
    (1.0 / (head_dim as f64).sqrt()) as f32
}

/// A sum in a binary tree: the upper half onto the lower, until one is left.
fn tree(mut p: Vec<f32>) -> f32 {
    while p.len() > 1 {
        let half = p.len() / 2;
        p = (0..half).map(|i| p[i] + p[i + half]).collect();
    }
    p[0]
}

/// Attention of `m` rows of `qkv` at positions `start..start + m`: `[m, heads * head_dim]`.
pub fn attention(qkv: &[f32], cache: &Cache, start: usize, m: usize, heads: Heads) -> Vec<f32> {
    let mut out = Vec::new();
    for i in 0..m {
        for h in 0..heads.heads {
            let q = &qkv[i * heads.qkv_len() + h * heads.head_dim..][..heads.head_dim];
            out.extend(one_query(q, cache, h / (heads.heads / heads.kv_heads), start + i + 1));
        }
    }
    out
}

fn one_query(q: &[f32], cache: &Cache, kv_head: usize, visible: usize) -> Vec<f32> {
    let dim = q.len();
    let at = |t: usize| (kv_head * cache.capacity + t) * dim;
    let (mut top, mut sum, mut out) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; dim]);
    let mut first = 0;
    while first < visible {
        let keys = (visible - first).min(64);
        let mut scores = Vec::new();
        for t in first..first + keys {
            let mut p = vec![0.0f32; 8];
            for d in 0..dim {
                p[d % 8] = q[d].mul_add(cache.k[at(t) + d], p[d % 8]);
            }
            scores.push(tree(p) * scale(dim));
        }
        let block_top = scores.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        let mut weights: Vec<f32> = scores.iter().map(|s| exp(s - block_top)).collect();
        weights.resize(64, 0.0);
        let mut values = vec![0.0f32; dim];
        for t in 0..keys {
            for d in 0..dim {
                values[d] = weights[t].mul_add(cache.v[at(first + t) + d], values[d]);
            }
        }
        let new_top = if block_top > top { block_top } else { top };
        let (a, b) = (exp(top - new_top), exp(block_top - new_top));
        sum = sum.mul_add(a, tree(weights) * b);
        for d in 0..dim {
            out[d] = out[d].mul_add(a, values[d] * b);
        }
        top = new_top;
        first += 64;
    }
    out.iter().map(|o| o / sum).collect()
}

/// How far each output of attention on tensor cores may be from [`attention`], whose result is `exact`: as far as the exact
/// value for queries rounded to bf16 is, and [`fast_bound`].
pub fn fast_bounds(
    qkv: &[f32],
    cache: &Cache,
    start: usize,
    m: usize,
    heads: Heads,
    exact: &[f32],
) -> Vec<f32> {
    let dim = heads.head_dim;
    let mut all = Vec::new();
    for (row, exact) in exact.chunks_exact(dim).take(m * heads.heads).enumerate() {
        let (i, h) = (row / heads.heads, row % heads.heads);
        let q = &qkv[i * heads.qkv_len() + h * dim..][..dim];
        let q: Vec<f64> = q.iter().map(|q| f64::from(half::bf16::from_f32(*q).to_f32())).collect();
        let (visible, kv_head) = (start + i + 1, h / (heads.heads / heads.kv_heads));
        let of_head = bounds(&q, cache, kv_head, visible, dim);
        for ((value, magnitude), exact) in of_head.outputs.iter().zip(exact) {
            let moved = (value - f64::from(*exact)).abs();
            all.push((moved + fast_bound(visible, *magnitude, of_head.reach)) as f32);
        }
    }
    all
}

/// What bounds are made of, for one query.
pub(super) struct Bounds {
    /// The largest `scale * sum |q k|`.
    pub(super) reach: f64,
    /// Each output, and the weighted sum of `|v|` there.
    pub(super) outputs: Vec<(f64, f64)>,
}

/// Attention of query `q` over the first `visible` positions of a kv head, in f64.
pub(super) fn bounds(
    q: &[f64],
    cache: &Cache,
    kv_head: usize,
    visible: usize,
    dim: usize,
) -> Bounds {
    let of = |side: &[f32], t: usize, d: usize| {
        f64::from(side[(kv_head * cache.capacity + t) * dim + d])
    };
    let factor = f64::from(scale(dim));
    let dot = |t: usize, term: fn(f64) -> f64| -> f64 {
        (0..dim).map(|d| term(q[d] * of(&cache.k, t, d))).sum::<f64>() * factor
    };
    let scores: Vec<f64> = (0..visible).map(|t| dot(t, |x| x)).collect();
    let reach = (0..visible).map(|t| dot(t, f64::abs)).fold(0.0, f64::max);
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mean = |d: usize, term: fn(f64) -> f64| -> f64 {
        (0..visible).map(|t| weights[t] * term(of(&cache.v, t, d))).sum::<f64>() / sum
    };
    Bounds { reach, outputs: (0..dim).map(|d| (mean(d, |v| v), mean(d, f64::abs))).collect() }
}
