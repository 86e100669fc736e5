//! CPU side of [`contract::attention_paged`].

use contract::attention_paged::{
    ABSENT, PAGE, int8_part_bytes, int8_scales, int8_stride, page_len,
};
use contract::kv_append::kv_stride;
use contract::num::{MX_BLOCK, RowType, abs_bits, f32_to_bf16, mx_code, mx_scale, mx_value};

use super::attention::{Blocks, Cache, attend_head};
use super::kv_append::{At, store_as};
use super::rope::{Angles, rotate_head};
use super::{Simd, Threads};
use crate::ops::attention_paged::PageType;
use crate::ops::kv_append::Heads;

/// Pages of a layer.
pub struct PagesMut<'a> {
    /// Keys.
    pub k: &'a mut [u8],
    /// Values.
    pub v: &'a mut [u8],
    /// What they keep of a number.
    pub element: PageType,
    /// Pages that there are.
    pub pages: usize,
    /// Positions of a table.
    pub capacity: usize,
}

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

/// Codes and scales of a head, rotated if there are angles, at row `row` of a part of a page.
fn store_int8(part: &mut [u8], row: usize, head: &[f32], at: At<'_>) {
    let (stride, count) = (int8_stride(head.len()), int8_scales(head.len()));
    let mut head = head.to_vec();
    if let Some(at) = at {
        rotate_head(&mut head, at);
    }
    let (codes, scales) = part.split_at_mut(PAGE * stride);
    let codes = &mut codes[row * stride..][..stride];
    codes[head.len()..].fill(0);
    let scales = &mut scales[row * count..][..count];
    let blocks = head.chunks(MX_BLOCK).zip(codes.chunks_mut(MX_BLOCK));
    for (scale, (block, codes)) in scales.iter_mut().zip(blocks) {
        let shared = mx_scale(block.iter().map(|&v| abs_bits(v)).max().unwrap_or(0));
        *scale = shared as u8;
        for (code, &v) in codes.iter_mut().zip(block) {
            *code = mx_code(v, shared) as u8;
        }
    }
}

/// The first `visible` rows of a kv head over the pages of `table`, as bf16, one behind the other.
fn decoded(
    pages: &[u8],
    (kv_head, layer): (usize, Heads),
    table: &[u32],
    visible: usize,
) -> Vec<u16> {
    let Heads { kv_heads, head_dim, .. } = layer;
    let (stride, count, part) =
        (int8_stride(head_dim), int8_scales(head_dim), int8_part_bytes(head_dim));
    let to = kv_stride(head_dim);
    let mut out = vec![0u16; visible * to];
    for (position, out) in out.chunks_exact_mut(to).enumerate() {
        let page = table[position / PAGE] as usize * kv_heads + kv_head;
        let (codes, scales) = pages[page * part..][..part].split_at(PAGE * stride);
        let codes = &codes[position % PAGE * stride..][..head_dim];
        let scales = &scales[position % PAGE * count..][..count];
        for (d, (out, &code)) in out.iter_mut().zip(codes).enumerate() {
            *out = f32_to_bf16(mx_value(code as i8, scales[d / MX_BLOCK]));
        }
    }
    out
}

/// Stores k (rotated) and v of the rows of `qkv` in the pages of `cache`, then attends, each row to
/// its own sequence. `queries` keeps its memory between calls.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn attention_paged(
    threads: &Threads,
    simd: Simd,
    qkv: &[f32],
    cache: PagesMut<'_>,
    angles: Angles<'_>,
    out: &mut [f32],
    rows: &[Row<'_>],
    layer: Heads,
    scale: f32,
    queries: &mut Vec<f32>,
) {
    let Heads { heads, kv_heads, head_dim } = layer;
    let PagesMut { k, v, element, pages, capacity } = cache;
    let (stride, part) = (kv_stride(head_dim), element.part_bytes(head_dim));
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
            let place = (page * kv_heads + h) * part..(page * kv_heads + h + 1) * part;
            let key = &kv[h * head_dim..][..head_dim];
            let value = &kv[(kv_heads + h) * head_dim..][..head_dim];
            for (pages, head, at) in [(&mut *k, key, Some(at)), (&mut *v, value, None)] {
                let part = &mut pages[place.clone()];
                match element {
                    PageType::Int8 => store_int8(part, pos % PAGE, head, at),
                    PageType::Float(element) => {
                        let bytes = stride * element.bytes();
                        let place = &mut part[pos % PAGE * bytes..][..bytes];
                        store_as(simd, element, place, head, at);
                    }
                }
            }
        }
    }

    let group = heads / kv_heads;
    threads.run_pieces(&mut out[..rows.len() * q_len], group * head_dim, |task, out| {
        let (row, kv_head) = (&rows[task / kv_heads], task % kv_heads);
        let Some(table) = row.seen(capacity, pages) else {
            out.fill(if row.position == ABSENT { 0.0 } else { f32::NAN });
            return;
        };
        let queries = &queries[task * group * head_dim..][..group * head_dim];
        let visible = row.position as usize + 1;
        match element {
            PageType::Float(element) => {
                let cache = Cache { k, v, element, capacity };
                let page_len = page_len(kv_heads, head_dim);
                let (at, blocks) = (kv_head * PAGE * stride, Blocks::Pages { table, page_len });
                attend_head(simd, cache, at, blocks, head_dim, queries, scale, visible, out);
            }
            PageType::Int8 => {
                let [k, v] = [&*k, &*v].map(|side| decoded(side, (kv_head, layer), table, visible));
                let (k, v) = (bytemuck::cast_slice(&k), bytemuck::cast_slice(&v));
                let cache = Cache { k, v, element: RowType::Bf16, capacity: visible };
                let blocks = Blocks::InOrder;
                attend_head(simd, cache, 0, blocks, head_dim, queries, scale, visible, out);
            }
        }
    });
}
