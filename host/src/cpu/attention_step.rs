//! CPU side of [`contract::attention_step`]: the operations it stands for, one after the other.

use super::attention::{Cache, attention};
use super::kv_append::{CacheMut, kv_append};
use super::rope::Angles;
use super::{Simd, Threads};
use crate::ops::kv_append::Heads;

/// One row `qkv` at position `start`: rotated, stored and answered in `out`. `row` keeps its memory
/// between calls.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn attention_step(
    threads: &Threads,
    simd: Simd,
    qkv: &[f32],
    cache: CacheMut<'_>,
    angles: Angles<'_>,
    out: &mut [f32],
    start: u32,
    heads: Heads,
    scale: f32,
    row: &mut Vec<f32>,
) {
    row.clear();
    row.extend_from_slice(&qkv[..heads.qkv_len()]);
    let CacheMut { k, v, element, capacity } = cache;
    let stored = CacheMut { k: &mut *k, v: &mut *v, element, capacity };
    kv_append(threads, simd, row, stored, Some(angles), start, 1, heads);
    let cache = Cache { k, v, element, capacity };
    attention(threads, simd, row, cache, out, start, 1, heads, scale);
}
