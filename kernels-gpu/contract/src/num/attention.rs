//! The arithmetic of one query over its keys.
//!
//! ```text
//! score[t] = short_dot(q, k_t) * scale
//! keys in blocks of 64 by position; in a block, over the keys that the query may see:
//!   m    = max score                                   order cannot matter
//!   p[t] = exp(score[t] - m)                           absent keys: exactly 0
//!   l    = tree over the 64 p, distance 32 down to 1
//!   o[d] = chain over t ascending: o = fma(p[t], v_t[d], o), from 0; absent keys are skipped
//! blocks first to last, from (M, L, O) = (-inf, 0, 0):
//!   M' = max(M, m)   a = exp(M - M')   b = exp(m - M')
//!   L' = fma(L, a, l * b)   O'[d] = fma(O[d], a, o[d] * b)
//! out[d] = O[d] / L
//! ```
//!
//! A block without a visible key is left out. The result depends neither on how blocks are spread
//! over threads nor on how many queries run at once.

use super::{exp, fma, max};

/// Keys of one block.
pub const KEY_BLOCK: usize = 64;

/// Scales the [`short_dot`](super::short_dot) of a query and a key.
#[inline(always)]
pub const fn score(dot: f32, scale: f32) -> f32 {
    dot * scale
}

/// Takes one key into the weighted value of a dimension.
#[inline(always)]
pub fn weighted_value(acc: f32, p: f32, v: f32) -> f32 {
    fma(p, v, acc)
}

/// The maximum `m` and the sum `l` of one block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSum {
    /// Largest score.
    pub max: f32,
    /// Sum of the exponentials relative to `max`.
    pub sum: f32,
}

/// Factors by which the running and the new value of each dimension are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Factor of the running value.
    pub running: f32,
    /// Factor of the block's value.
    pub block: f32,
}

impl Weights {
    /// The new running value of one dimension, from the old one and the block's.
    #[inline(always)]
    pub fn combine(self, running: f32, block: f32) -> f32 {
        fma(running, self.running, block * self.block)
    }
}

/// The running maximum and sum over the blocks seen so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// Largest score so far.
    pub max: f32,
    /// Sum relative to `max`.
    pub sum: f32,
}

impl Running {
    /// Before the first block. Running values start from 0.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Takes the next block and says how to combine the values.
    #[inline(always)]
    pub fn take(&mut self, block: BlockSum) -> Weights {
        let top = max(self.max, block.max);
        let weights = Weights { running: exp(self.max - top), block: exp(block.max - top) };
        self.sum = weights.combine(self.sum, block.sum);
        self.max = top;
        weights
    }

    /// The attention output of one dimension from its running value.
    #[inline(always)]
    pub fn finish(self, running: f32) -> f32 {
        running / self.sum
    }
}

/// The largest of the first `keys` scores (at most 64).
#[inline(always)]
pub fn block_max(scores: &[f32; KEY_BLOCK], keys: usize) -> f32 {
    scores.iter().take(keys).fold(f32::NEG_INFINITY, |m, &s| max(m, s))
}

/// Turns the first `keys` scores into exponentials relative to `m`, the others into 0, and returns
/// their sum.
#[inline(always)]
pub fn block_weights(scores: &mut [f32; KEY_BLOCK], keys: usize, m: f32) -> f32 {
    for (t, s) in scores.iter_mut().enumerate() {
        let e = exp(*s - m);
        *s = if t < keys { e } else { 0.0 };
    }
    let mut sums = *scores;
    let mut distance = KEY_BLOCK / 2;
    while distance > 0 {
        let (low, high) = sums.split_at_mut(distance);
        for (a, b) in low.iter_mut().zip(high.iter()) {
            *a += *b;
        }
        distance /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::short_dot;
    use std::vec;
    use std::vec::Vec;

    /// One query of one head over `keys`, as the header says it.
    fn attend(q: &[f32], k: &[Vec<f32>], v: &[Vec<f32>], scale: f32) -> Vec<f32> {
        let dim = v[0].len();
        let (mut run, mut out) = (Running::EMPTY, vec![0.0; dim]);
        for (ks, vs) in k.chunks(KEY_BLOCK).zip(v.chunks(KEY_BLOCK)) {
            let mut s = [0.0; KEY_BLOCK];
            for (s, key) in s.iter_mut().zip(ks) {
                *s = score(short_dot(q.len(), |acc, i| fma(q[i], key[i], acc)), scale);
            }
            let m = block_max(&s, ks.len());
            let l = block_weights(&mut s, ks.len(), m);
            let w = run.take(BlockSum { max: m, sum: l });
            for (d, out) in out.iter_mut().enumerate() {
                let mut o = 0.0;
                for (t, value) in vs.iter().enumerate() {
                    o = weighted_value(o, s[t], value[d]);
                }
                *out = w.combine(*out, o);
            }
        }
        out.iter().map(|&o| run.finish(o)).collect()
    }

    /// Vector L of the model's arithmetic.
    #[test]
    fn known_row() {
        let k = [vec![1.0, 0.0, 0.0, 0.0], vec![0.0, 1.0, 1.0, 0.0], vec![1.0; 4]];
        let v = [vec![1.0, 2.0], vec![3.0, 4.0], vec![5.0, 6.0]];
        let out = attend(&[1.0, 0.0, 1.0, 0.0], &k, &v, 0.5);
        assert!((out[0] - 3.355_588_3).abs() < 5e-7, "{out:?}");
        assert!((out[1] - 4.355_588_4).abs() < 5e-7, "{out:?}");
    }

    #[test]
    fn many_blocks_agree_with_f64() {
        let mut state = 9u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        };
        for keys in [1usize, 63, 64, 65, 128, 300] {
            let mut rows = |n: usize, d: usize| -> Vec<Vec<f32>> {
                (0..n).map(|_| (0..d).map(|_| next()).collect()).collect()
            };
            let (q, k, v) = (rows(1, 24).remove(0), rows(keys, 24), rows(keys, 3));
            let got = attend(&q, &k, &v, 0.25);
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>()
            };
            let e: Vec<f64> = k.iter().map(|k| (dot(&q, k) * 0.25).exp()).collect();
            let l: f64 = e.iter().sum();
            for d in 0..3 {
                let want = e.iter().zip(&v).map(|(p, v)| p * f64::from(v[d])).sum::<f64>() / l;
                assert!((f64::from(got[d]) - want).abs() < 1e-5, "{keys}: {} {want}", got[d]);
            }
        }
    }

    #[test]
    fn absent_keys_weigh_nothing() {
        let mut s = [f32::NAN; KEY_BLOCK];
        s[0] = 2.0;
        s[1] = 2.0;
        assert_eq!(block_max(&s, 2), 2.0);
        assert_eq!(block_weights(&mut s, 2, 2.0), 2.0);
        assert!(s[2..].iter().all(|v| v.to_bits() == 0));
    }
}
