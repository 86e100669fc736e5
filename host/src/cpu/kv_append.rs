//! CPU side of [`contract::kv_append`].

use contract::kv_append::kv_stride;
use contract::num::{RowType, f32_to_bf16};
use contract::rope::rotate;

use super::rope::Angles;
use super::simd::vectorised;
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
pub(super) type At<'a> = Option<(&'a [f32], &'a [f32])>;

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

vectorised! {
    /// [`store`] in a cache's element type.
    pub(super) fn store_as(element: RowType, place: &mut [u8], head: &[f32], at: At<'_>) {
        if element == RowType::F32 {
            store(bytemuck::cast_slice_mut::<u8, f32>(place), head, at, |v| v);
        } else {
            store(bytemuck::cast_slice_mut::<u8, u16>(place), head, at, f32_to_bf16);
        }
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
        for i in 0..m {
            let (pos, row) = (first + i, &rows[i * layer.qkv_len()..][..layer.qkv_len()]);
            let (_, kv) = row.split_at(heads * head_dim);
            let (keys, values) = (&mut keys[pos * place..], &mut values[pos * place..]);
            let key = &kv[h * head_dim..][..head_dim];
            let value = &kv[(kv_heads + h) * head_dim..][..head_dim];
            store_as(simd, element, &mut keys[..place], key, angles.and_then(|a| a.at(pos)));
            store_as(simd, element, &mut values[..place], value, None);
        }
    });
    if let Some(angles) = angles {
        super::rope::rope(threads, simd, qkv, angles, start, m, heads, layer.qkv_len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::ops::Backend;
    use crate::ops::kv_append::{KvAppend, KvCache};
    use crate::ops::rope::RopeTable;
    use crate::reference::kv_append::{self as reference, TEST_SHAPES};
    use crate::reference::{Inputs, rope};
    use proptest::prelude::*;

    /// The elements of a padded cache, whose padding must be zero where rows were stored.
    fn natural(bytes: &[u8], element: RowType, head_dim: usize) -> Vec<f32> {
        let values: Vec<f32> = match element {
            RowType::F32 => bytemuck::cast_slice(bytes).to_vec(),
            _ => bytemuck::cast_slice::<u8, u16>(bytes)
                .iter()
                .map(|&b| half::bf16::from_bits(b).to_f32())
                .collect(),
        };
        let rows = values.chunks(kv_stride(head_dim));
        rows.flat_map(|row| {
            assert!(row[head_dim..].iter().all(|&v| v.to_bits() == 0), "padding");
            row[..head_dim].to_vec()
        })
        .collect()
    }

    fn check(m: usize, heads: Heads, capacity: usize, start: usize, seed: u64) {
        let qkv = Inputs::new(seed).floats(m * heads.qkv_len(), 2.0);
        let even = heads.head_dim.is_multiple_of(2);
        for element in [RowType::Bf16, RowType::F32] {
            for rotated in [false, true] {
                if rotated && !even {
                    continue;
                }
                let mut want_qkv = qkv.clone();
                let mut want = reference::Cache::new(heads, capacity);
                let tables = rotated.then(|| rope::table(capacity, heads.head_dim, 1e4));
                let tables = tables.as_ref().map(|(cos, sin)| (&cos[..], &sin[..]));
                reference::kv_append(&mut want_qkv, &mut want, element, tables, start, heads);
                every_backend(|backend| {
                    let mut cache =
                        KvCache::alloc(backend, heads, capacity, element).expect("alloc");
                    let mut qkv = upload(backend, &qkv);
                    let table = rotated.then(|| {
                        RopeTable::new(backend, capacity, heads.head_dim, 1e4).expect("alloc")
                    });
                    let start = upload(backend, &[start as u32]);
                    let op = KvAppend {
                        qkv: &mut qkv,
                        cache: &mut cache,
                        rope: table.as_ref(),
                        start: &start,
                        start_at: 0,
                        m,
                        heads,
                    };
                    backend.kv_append(op).expect("shapes fit");
                    let what = format!("{m} {heads:?} {element:?} {rotated}");
                    assert_eq!(bits(qkv.as_slice()), bits(&want_qkv), "{what}");
                    let k = natural(cache.k.as_slice(), element, heads.head_dim);
                    let v = natural(cache.v.as_slice(), element, heads.head_dim);
                    assert_eq!(bits(&k), bits(&want.k), "{what}");
                    assert_eq!(bits(&v), bits(&want.v), "{what}");
                });
            }
        }
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        for &(m, heads, kv_heads, head_dim, capacity, start) in TEST_SHAPES {
            check(m, Heads { heads, kv_heads, head_dim }, capacity, start, 1);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(15))]
        #[test]
        fn equals_the_reference_on_any_shape(
            m in 1usize..6, group in 1usize..4, kv_heads in 1usize..4, head_dim in 1usize..90,
            capacity in 1usize..20, start in 0usize..24, seed: u64,
        ) {
            check(m, Heads { heads: group * kv_heads, kv_heads, head_dim }, capacity, start, seed);
        }
    }
}
