//! CPU side of [`contract::attention`].
//!
//! A task takes one query row and the heads that share a kv head, four at a time, so that a key or
//! value is widened once for all of them. Scores keep their 8 partials in a vector; weighted values
//! keep 16 dimensions in registers and walk down the keys.
#![allow(clippy::needless_range_loop, reason = "lanes are indexed")]

use contract::kv_append::kv_stride;
use contract::num::{
    BlockSum, KEY_BLOCK, RowType, Running, Weights, bf16_to_f32, block_weights, fma, max, score,
    tree8, weighted_value,
};

use super::simd::vectorised;
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

/// Where the key blocks of a sequence stand in a cache.
#[derive(Clone, Copy)]
pub(super) enum Blocks<'a> {
    /// One behind the other.
    InOrder,
    /// Block `b` in page `table[b]`.
    Pages {
        /// The sequence's pages.
        table: &'a [u32],
        /// Elements from page to page.
        page_len: usize,
    },
}

impl Blocks<'_> {
    /// The element at which the block of position `first` starts.
    #[inline(always)]
    fn start(&self, first: usize, stride: usize) -> usize {
        match self {
            Self::InOrder => first * stride,
            Self::Pages { table, page_len } => table[first / KEY_BLOCK] as usize * page_len,
        }
    }
}

/// What one kv head holds, in its own element type.
#[derive(Clone, Copy)]
struct KvHead<'a, T> {
    k: &'a [T],
    v: &'a [T],
    blocks: Blocks<'a>,
    stride: usize,
    head_dim: usize,
}

impl<T: Copy> KvHead<'_, T> {
    /// Scores of `keys` keys from element `start` on for `G` queries.
    #[inline(always)]
    fn scores<const G: usize>(
        &self,
        widen: impl Fn(T) -> f32 + Copy,
        queries: [&[f32]; G],
        scale: f32,
        start: usize,
        keys: usize,
        scores: &mut [[f32; KEY_BLOCK]; G],
    ) {
        let mut chunked = [(&[][..], &[][..]); G];
        for g in 0..G {
            chunked[g] = queries[g].as_chunks::<8>();
        }
        let queries = chunked;
        for t in 0..keys {
            let key = &self.k[start + t * self.stride..][..self.head_dim];
            let (chunks, rest) = key.as_chunks::<8>();
            let mut p = [[0.0; 8]; G];
            for (c, chunk) in chunks.iter().enumerate() {
                let mut wide = [0.0; 8];
                for e in 0..8 {
                    wide[e] = widen(chunk[e]);
                }
                for g in 0..G {
                    let q = &queries[g].0[c];
                    for e in 0..8 {
                        p[g][e] = fma(q[e], wide[e], p[g][e]);
                    }
                }
            }
            for g in 0..G {
                for ((p, q), k) in p[g].iter_mut().zip(queries[g].1).zip(rest) {
                    *p = fma(*q, widen(*k), *p);
                }
                scores[g][t] = score(tree8(p[g]), scale);
            }
        }
    }

    /// Weighted values of dimensions `at..at + D`.
    #[inline(always)]
    fn values<const G: usize, const D: usize>(
        &self,
        widen: impl Fn(T) -> f32 + Copy,
        weights: &[[f32; KEY_BLOCK]; G],
        start: usize,
        keys: usize,
        at: usize,
    ) -> [[f32; D]; G] {
        let mut sums = [[0.0; D]; G];
        for t in 0..keys {
            let Some(value) = self.v[start + t * self.stride + at..].first_chunk::<D>() else {
                break;
            };
            let mut wide = [0.0; D];
            for d in 0..D {
                wide[d] = widen(value[d]);
            }
            for g in 0..G {
                for d in 0..D {
                    sums[g][d] = weighted_value(sums[g][d], weights[g][t], wide[d]);
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
            let start = self.blocks.start(first, self.stride);
            self.scores(widen, queries, scale, start, keys, &mut scores);
            let mut weights = [Weights { running: 0.0, block: 0.0 }; G];
            for g in 0..G {
                let max = top(&scores[g], keys);
                let sum = block_weights(&mut scores[g], keys, max);
                weights[g] = running[g].take(BlockSum { max, sum });
            }
            let mut at = 0;
            while at + DIMS <= dim {
                let sums = self.values::<G, DIMS>(widen, &scores, start, keys, at);
                for g in 0..G {
                    combine(weights[g], &mut out[g * dim + at..], &sums[g]);
                }
                at += DIMS;
            }
            while at < dim {
                let sums = self.values::<G, 1>(widen, &scores, start, keys, at);
                for g in 0..G {
                    combine(weights[g], &mut out[g * dim + at..], &sums[g]);
                }
                at += 1;
            }
        }
        for g in 0..G {
            for out in &mut out[g * dim..][..dim] {
                *out = running[g].finish(*out);
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
            let heads = [&q[..dim], &q[dim..2 * dim], &q[2 * dim..3 * dim], &q[3 * dim..]];
            self.attend::<4>(widen, heads, scale, visible, out);
        }
        let rest = queries.remainder().chunks_exact(dim);
        for (q, out) in rest.zip(out.into_remainder().chunks_exact_mut(dim)) {
            self.attend::<1>(widen, [q], scale, visible, out);
        }
    }
}

/// Takes the block's values of some dimensions into the running ones.
#[inline(always)]
fn combine(weights: Weights, out: &mut [f32], sums: &[f32]) {
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = weights.combine(*out, *sum);
    }
}

/// The largest of the first `keys` scores; which of two zeros it is cannot show.
#[inline(always)]
fn top(scores: &[f32; KEY_BLOCK], keys: usize) -> f32 {
    let mut tops = [f32::NEG_INFINITY; 8];
    let (chunks, rest) = scores[..keys].as_chunks::<8>();
    for chunk in chunks {
        for e in 0..8 {
            tops[e] = max(tops[e], chunk[e]);
        }
    }
    let mut top = f32::NEG_INFINITY;
    for s in tops.iter().chain(rest) {
        top = max(top, *s);
    }
    top
}

vectorised! {
    /// The queries of one row that belong to the kv head at element `at` of the caches.
    pub(super) fn attend_head(
        cache: Cache<'_>,
        at: usize,
        blocks: Blocks<'_>,
        head_dim: usize,
        queries: &[f32],
        scale: f32,
        visible: usize,
        out: &mut [f32],
    ) {
        let stride = kv_stride(head_dim);
        if cache.element == RowType::F32 {
            let k = &bytemuck::cast_slice::<u8, f32>(cache.k)[at..];
            let v = &bytemuck::cast_slice::<u8, f32>(cache.v)[at..];
            let kv = KvHead { k, v, blocks, stride, head_dim };
            kv.attend_all(|v| v, queries, scale, visible, out);
        } else {
            let k = &bytemuck::cast_slice::<u8, u16>(cache.k)[at..];
            let v = &bytemuck::cast_slice::<u8, u16>(cache.v)[at..];
            let kv = KvHead { k, v, blocks, stride, head_dim };
            kv.attend_all(bf16_to_f32, queries, scale, visible, out);
        }
    }
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
        attend_head(simd, cache, at, Blocks::InOrder, head_dim, queries, scale, visible, out);
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::ops::attention::Attention;
    use crate::ops::kv_append::{Heads, KvAppend, KvCache};
    use crate::ops::{Backend, Math, RowType};
    use crate::reference::kv_append::{self, Cache};
    use crate::reference::{Inputs, attention as reference};
    use proptest::prelude::*;

    fn check(m: usize, heads: Heads, start: usize, seed: u64) {
        let (capacity, end) = (start + m + 3, start + m);
        let qkv = Inputs::new(seed).floats(end * heads.qkv_len(), 2.0);
        let rows = &qkv[start * heads.qkv_len()..];
        for element in [RowType::Bf16, RowType::F32] {
            let mut natural = Cache::new(heads, capacity);
            kv_append::kv_append(&mut qkv.clone(), &mut natural, element, None, 0, heads);
            let want = reference::attention(rows, &natural, start, m, heads);
            every_backend(|backend| {
                let mut cache = KvCache::alloc(backend, heads, capacity, element).expect("alloc");
                // Positions that nobody may see are poisoned.
                backend.fill(&mut cache.k, 0xff).expect("fill");
                backend.fill(&mut cache.v, 0xff).expect("fill");
                let mut all = upload(backend, &qkv);
                let starts = upload(backend, &[0, start as u32]);
                let op = KvAppend {
                    qkv: &mut all,
                    cache: &mut cache,
                    rope: None,
                    start: &starts,
                    start_at: 0,
                    m: end,
                    heads,
                };
                backend.kv_append(op).expect("shapes fit");
                let rows = upload(backend, rows);
                let mut out = upload(backend, &vec![f32::NAN; m * heads.q_len()]);
                let op = Attention {
                    qkv: &rows,
                    cache: &cache,
                    out: &mut out,
                    start: &starts,
                    start_at: 1,
                    m,
                    heads,
                    math: [Math::Exact, Math::TensorCore][usize::from(element == RowType::Bf16)],
                    tiled: None,
                };
                backend.attention(op).expect("shapes fit");
                assert_eq!(bits(out.as_slice()), bits(&want), "{m} {heads:?} {start} {element:?}");
            });
        }
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(m, heads, kv_heads, head_dim, start) in reference::TEST_SHAPES {
            check(m, Heads { heads, kv_heads, head_dim }, start, 1);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn equals_the_reference_on_any_shape(
            m in 1usize..5, group in 1usize..7, kv_heads in 1usize..3, head_dim in 1usize..70,
            start in 0usize..140, seed: u64,
        ) {
            check(m, Heads { heads: group * kv_heads, kv_heads, head_dim }, start, seed);
        }
    }
}
