//! CPU side of [`contract::attention_paged`].

use contract::attention_paged::{ABSENT, PAGE, page_len};
use contract::kv_append::kv_stride;

use super::attention::{Blocks, Cache, attend_head};
use super::kv_append::{CacheMut, store_as};
use super::rope::{Angles, rotate_head};
use super::{Simd, Threads};
use crate::ops::kv_append::Heads;

/// A row: where it stands in its sequence, and the pages of that.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Position; [`ABSENT`] when the row is not there.
    pub position: u32,
    /// Pages of the sequence.
    pub table: &'a [u32],
}

impl Row<'_> {
    /// The pages that the row sees, when all of them are there.
    fn seen(&self, capacity: usize, pages: usize) -> Option<&[u32]> {
        let position = Some(self.position as usize).filter(|&pos| pos < capacity)?;
        let seen = self.table.get(..position / PAGE + 1)?;
        seen.iter().all(|&page| (page as usize) < pages).then_some(seen)
    }
}

/// Stores k (rotated) and v of the rows of `qkv` in `pages` pages of `cache`, then attends, each row to
/// its own sequence. `cache.capacity` counts the positions of a table. `queries` keeps its memory
/// between calls.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn attention_paged(
    threads: &Threads,
    simd: Simd,
    qkv: &[f32],
    cache: CacheMut<'_>,
    pages: usize,
    angles: Angles<'_>,
    out: &mut [f32],
    rows: &[Row<'_>],
    layer: Heads,
    scale: f32,
    queries: &mut Vec<f32>,
) {
    let Heads { heads, kv_heads, head_dim } = layer;
    let CacheMut { k, v, element, capacity } = cache;
    let (stride, page_len) = (kv_stride(head_dim), page_len(kv_heads, head_dim));
    let q_len = layer.q_len();
    queries.clear();
    for (row, qkv) in rows.iter().zip(qkv.chunks_exact(layer.qkv_len())) {
        let (q, kv) = qkv.split_at(q_len);
        queries.extend_from_slice(q);
        let pos = row.position as usize;
        // A key is stored where its own page is there; which others are does not matter.
        let page = row.table.get(pos / PAGE).map(|&page| page as usize);
        let Some((at, page)) = angles.at(pos).zip(page).filter(|_| pos < capacity) else {
            continue;
        };
        let end = queries.len();
        for head in queries[end - q_len..].chunks_exact_mut(head_dim) {
            rotate_head(head, at);
        }
        if page >= pages {
            continue;
        }
        for h in 0..kv_heads {
            let place = page * page_len + (h * PAGE + pos % PAGE) * stride;
            let place = place * element.bytes()..(place + stride) * element.bytes();
            let key = &kv[h * head_dim..][..head_dim];
            let value = &kv[(kv_heads + h) * head_dim..][..head_dim];
            store_as(simd, element, &mut k[place.clone()], key, Some(at));
            store_as(simd, element, &mut v[place], value, None);
        }
    }

    let cache = Cache { k, v, element, capacity };
    let group = heads / kv_heads;
    threads.run_pieces(&mut out[..rows.len() * q_len], group * head_dim, |task, out| {
        let (row, kv_head) = (&rows[task / kv_heads], task % kv_heads);
        let Some(table) = row.seen(capacity, pages) else {
            out.fill(if row.position == ABSENT { 0.0 } else { f32::NAN });
            return;
        };
        let queries = &queries[task * group * head_dim..][..group * head_dim];
        let blocks = Blocks::Pages { table, page_len };
        let (at, visible) = (kv_head * PAGE * stride, row.position as usize + 1);
        attend_head(simd, cache, at, blocks, head_dim, queries, scale, visible, out);
    });
}
