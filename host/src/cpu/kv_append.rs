//! CPU side of [`contract::kv_append`].

use contract::kv_append::kv_stride;
use contract::num::{RowType, f32_to_bf16};
use contract::rope::rotate;

use super::rope::Angles;
use super::threads::RowsMut;
use super::{Simd, Threads};
use crate::ops::kv_append::Heads;

/// The two caches of a layer, `[kv_heads, capacity, kv_stride(head_dim)]` each.
pub struct CacheMut<'a> {
    /// Keys.
    pub k: &'a mut [u8],
    /// Values.
    pub v: &'a mut [u8],
    /// bf16 or f32.
    pub element: RowType,
    /// Positions.
    pub capacity: usize,
}

/// Cosines and sines of one position.
type At<'a> = Option<(&'a [f32], &'a [f32])>;

/// Writes a head, rotated if there are angles, at its place in a cache; zeros up to the stride.
#[inline(always)]
fn store<T: Copy>(place: &mut [T], head: &[f32], at: At<'_>, narrow: impl Fn(f32) -> T) {
    let (values, padding) = place.split_at_mut(head.len());
    padding.fill(narrow(0.0));
    let Some((cos, sin)) = at else {
        for (out, v) in values.iter_mut().zip(head) {
            *out = narrow(*v);
        }
        return;
    };
    let (low, high) = head.split_at(cos.len());
    let (out_low, out_high) = values.split_at_mut(cos.len());
    let pairs = low.iter().zip(high).zip(cos.iter().zip(sin));
    for ((out_lo, out_hi), ((lo, hi), (c, s))) in out_low.iter_mut().zip(out_high).zip(pairs) {
        let (lo, hi) = rotate(*lo, *hi, *c, *s);
        (*out_lo, *out_hi) = (narrow(lo), narrow(hi));
    }
}

#[inline(always)]
fn store_as(element: RowType, place: &mut [u8], head: &[f32], at: At<'_>) {
    if element == RowType::F32 {
        store(bytemuck::cast_slice_mut::<u8, f32>(place), head, at, |v| v);
    } else {
        store(bytemuck::cast_slice_mut::<u8, u16>(place), head, at, f32_to_bf16);
    }
}

/// Stores k and v of `m` rows of `qkv` at positions `start..start + m`; with angles, rotates q in
/// place and what is stored of k. Rows past the capacity are left alone.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn kv_append(
    threads: &Threads,
    simd: Simd,
    qkv: &mut [f32],
    cache: CacheMut<'_>,
    angles: Option<Angles<'_>>,
    start: u32,
    m: usize,
    layer: Heads,
) {
    let Heads { heads, kv_heads, head_dim } = layer;
    let CacheMut { k, v, element, capacity } = cache;
    let first = start as usize;
    let m = m.min(capacity.saturating_sub(first));
    let place = kv_stride(head_dim) * element.bytes();

    let rows = &*qkv;
    let caches = (RowsMut::new(k, capacity * place), RowsMut::new(v, capacity * place));
    threads.run_rows(kv_heads, caches, |h, (keys, values)| {
        simd.with(|| {
            for i in 0..m {
                let (pos, row) = (first + i, &rows[i * layer.qkv_len()..][..layer.qkv_len()]);
                let (_, kv) = row.split_at(heads * head_dim);
                let (keys, values) = (&mut keys[pos * place..], &mut values[pos * place..]);
                let key = &kv[h * head_dim..][..head_dim];
                let value = &kv[(kv_heads + h) * head_dim..][..head_dim];
                store_as(element, &mut keys[..place], key, angles.and_then(|a| a.at(pos)));
                store_as(element, &mut values[..place], value, None);
            }
        });
    });
    if let Some(angles) = angles {
        super::rope::rope(threads, simd, qkv, angles, start, m, heads, layer.qkv_len());
    }
}
