//! CPU side of [`contract::attention`].
//!
//! A task takes one query row and the heads that share a kv head, four at a time, so that a key or
//! value is widened once for all of them. Scores keep their 8 partials in a vector; weighted values
//! keep 16 dimensions in registers and walk down the keys.

use contract::kv_append::kv_stride;
use contract::num::{
    BlockSum, KEY_BLOCK, RowType, Running, bf16_to_f32, block_weights, fma, max, score, tree8,
    weighted_value,
};

use super::{Simd, Threads};
use crate::ops::kv_append::Heads;

/// The two caches of a layer, `[kv_heads, capacity, kv_stride(head_dim)]` each.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a> {
    /// Keys.
    pub k: &'a [u8],
    /// Values.
    pub v: &'a [u8],
    /// bf16 or f32.
    pub element: RowType,
    /// Positions.
    pub capacity: usize,
}

/// Dimensions of the values that are carried at once.
const DIMS: usize = 16;

/// What one kv head holds, in its own element type.
#[derive(Clone, Copy)]
struct KvHead<'a, T> {
    k: &'a [T],
    v: &'a [T],
    stride: usize,
    head_dim: usize,
}

impl<T: Copy> KvHead<'_, T> {
    /// Scores of `keys` keys from `first` on for `G` queries.
    #[inline(always)]
    fn scores<const G: usize>(
        &self,
        widen: impl Fn(T) -> f32 + Copy,
        queries: [&[f32]; G],
        scale: f32,
        first: usize,
        keys: usize,
        scores: &mut [[f32; KEY_BLOCK]; G],
    ) {
        let queries = queries.map(|q| q.as_chunks::<8>());
        for t in 0..keys {
            let key = &self.k[(first + t) * self.stride..][..self.head_dim];
            let (chunks, rest) = key.as_chunks::<8>();
            let mut p = [[0.0; 8]; G];
            for (c, chunk) in chunks.iter().enumerate() {
                let chunk = chunk.map(widen);
                for (p, (q, _)) in p.iter_mut().zip(&queries) {
                    let q = &q[c];
                    for e in 0..8 {
                        p[e] = fma(q[e], chunk[e], p[e]);
                    }
                }
            }
            for (p, (_, q)) in p.iter_mut().zip(&queries) {
                for ((p, q), k) in p.iter_mut().zip(*q).zip(rest) {
                    *p = fma(*q, widen(*k), *p);
                }
            }
            for (scores, p) in scores.iter_mut().zip(p) {
                scores[t] = score(tree8(p), scale);
            }
        }
    }

    /// Weighted values of dimensions `at..at + D`.
    #[inline(always)]
    fn values<const G: usize, const D: usize>(
        &self,
        widen: impl Fn(T) -> f32 + Copy,
        weights: &[[f32; KEY_BLOCK]; G],
        first: usize,
        keys: usize,
        at: usize,
    ) -> [[f32; D]; G] {
        let mut sums = [[0.0; D]; G];
        for t in 0..keys {
            let Some(value) = self.v[(first + t) * self.stride + at..].first_chunk::<D>() else {
                break;
            };
            let value = value.map(widen);
            for (sums, weights) in sums.iter_mut().zip(weights) {
                for (sum, v) in sums.iter_mut().zip(value) {
                    *sum = weighted_value(*sum, weights[t], v);
                }
            }
        }
        sums
    }

    /// Attention of `G` queries over the first `visible` keys, into `G` heads of `out`.
    #[inline(always)]
    fn attend<const G: usize>(
        &self,
        widen: impl Fn(T) -> f32 + Copy,
        queries: [&[f32]; G],
        scale: f32,
        visible: usize,
        out: &mut [f32],
    ) {
        let dim = self.head_dim;
        let mut running = [Running::EMPTY; G];
        let mut scores = [[0.0; KEY_BLOCK]; G];
        out.fill(0.0);
        for first in (0..visible).step_by(KEY_BLOCK) {
            let keys = KEY_BLOCK.min(visible - first);
            self.scores(widen, queries, scale, first, keys, &mut scores);
            let mut weights = [None; G];
            for ((running, scores), weights) in
                running.iter_mut().zip(&mut scores).zip(&mut weights)
            {
                let top = top(scores, keys);
                let sum = block_weights(scores, keys, top);
                *weights = Some(running.take(BlockSum { max: top, sum }));
            }
            let mut take = |at: usize, g: usize, sums: &[f32]| {
                let Some(weights) = weights[g] else { return };
                for (out, sum) in out[g * dim + at..][..sums.len()].iter_mut().zip(sums) {
                    *out = weights.combine(*out, *sum);
                }
            };
            let mut at = 0;
            while at + DIMS <= dim {
                let sums = self.values::<G, DIMS>(widen, &scores, first, keys, at);
                (0..G).for_each(|g| take(at, g, &sums[g]));
                at += DIMS;
            }
            while at < dim {
                let sums = self.values::<G, 1>(widen, &scores, first, keys, at);
                (0..G).for_each(|g| take(at, g, &sums[g]));
                at += 1;
            }
        }
        for (running, out) in running.iter().zip(out.chunks_exact_mut(dim)) {
            for out in out {
                *out = running.finish(*out);
            }
        }
    }

    /// All queries of one row that belong to this kv head.
    #[inline(always)]
    fn attend_all(
        &self,
        widen: impl Fn(T) -> f32 + Copy,
        queries: &[f32],
        scale: f32,
        visible: usize,
        out: &mut [f32],
    ) {
        let dim = self.head_dim;
        let mut queries = queries.chunks_exact(4 * dim);
        let mut out = out.chunks_exact_mut(4 * dim);
        for (q, out) in queries.by_ref().zip(out.by_ref()) {
            let heads = std::array::from_fn(|g| &q[g * dim..][..dim]);
            self.attend::<4>(widen, heads, scale, visible, out);
        }
        let rest = queries.remainder().chunks_exact(dim);
        for (q, out) in rest.zip(out.into_remainder().chunks_exact_mut(dim)) {
            self.attend::<1>(widen, [q], scale, visible, out);
        }
    }
}

/// The largest of the first `keys` scores; which of two zeros it is cannot show.
#[inline(always)]
fn top(scores: &[f32; KEY_BLOCK], keys: usize) -> f32 {
    let mut tops = [f32::NEG_INFINITY; 8];
    let (chunks, rest) = scores[..keys].as_chunks::<8>();
    for chunk in chunks {
        for (top, s) in tops.iter_mut().zip(chunk) {
            *top = max(*top, *s);
        }
    }
    tops.iter().chain(rest).fold(f32::NEG_INFINITY, |m, s| max(m, *s))
}

/// Causal attention of `m` rows of `qkv` (q rotated) at positions `start..start + m`, over a cache
/// that holds their keys and values; `out` is `[m, heads * head_dim]`.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn attention(
    threads: &Threads,
    simd: Simd,
    qkv: &[f32],
    cache: Cache<'_>,
    out: &mut [f32],
    start: u32,
    m: usize,
    layer: Heads,
    scale: f32,
) {
    let Heads { heads, kv_heads, head_dim } = layer;
    let (stride, group) = (kv_stride(head_dim), heads / kv_heads);
    // Few rows: a head each, so that there is something for every thread.
    let together = if m * kv_heads >= 2 * threads.count() { group } else { 1 };
    let per_row = heads / together;
    let (out, len) = (&mut out[..m * heads * head_dim], together * head_dim);
    threads.run_pieces(out, len, |task, out| {
        let (row, head) = (task / per_row, task % per_row * together);
        let queries = &qkv[row * layer.qkv_len() + head * head_dim..][..len];
        let visible = (start as usize + row + 1).min(cache.capacity);
        let at = head / group * cache.capacity * stride;
        let end = at + cache.capacity * stride;
        simd.with(|| {
            if cache.element == RowType::F32 {
                let k = &bytemuck::cast_slice::<u8, f32>(cache.k)[at..end];
                let v = &bytemuck::cast_slice::<u8, f32>(cache.v)[at..end];
                let kv = KvHead { k, v, stride, head_dim };
                kv.attend_all(|v| v, queries, scale, visible, out);
            } else {
                let k = &bytemuck::cast_slice::<u8, u16>(cache.k)[at..end];
                let v = &bytemuck::cast_slice::<u8, u16>(cache.v)[at..end];
                let kv = KvHead { k, v, stride, head_dim };
                kv.attend_all(bf16_to_f32, queries, scale, visible, out);
            }
        });
    });
}
