//! Reference for [`contract::kv_append`]: caches as `f32` without padding.

use contract::num::RowType;

use super::rope::rotate;
use crate::ops::kv_append::Heads;

/// `(m, heads, kv_heads, head_dim, capacity, start)`: padded heads, rows across the capacity.
pub const TEST_SHAPES: &[(usize, usize, usize, usize, usize, usize)] = &[
    (1, 1, 1, 2, 1, 0),
    (2, 2, 1, 6, 5, 3),
    (3, 4, 2, 8, 7, 0),
    (4, 3, 3, 10, 9, 7),
    (5, 20, 5, 128, 33, 20),
    (9, 8, 2, 80, 64, 60),
    (2, 2, 1, 256, 4, 4),
    (3, 20, 5, 100, 9, 2),
    (65_537, 2, 1, 2, 65_540, 1),
];

/// `(m, heads, kv_heads, head_dim, capacity, start)` of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize, usize, usize, usize, usize)] =
    &[(1, 20, 5, 128, 4096, 500), (512, 20, 5, 128, 4096, 0)];

/// Keys and values `[kv_heads, capacity, head_dim]` of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
    /// Positions.
    pub capacity: usize,
}

impl Cache {
    /// A cache of zeros.
    pub fn new(heads: Heads, capacity: usize) -> Self {
        let len = heads.kv_heads * capacity * heads.head_dim;
        Self { k: vec![0.0; len], v: vec![0.0; len], capacity }
    }
}

/// What a cache of `element` keeps of a number.
pub fn kept(element: RowType, v: f32) -> f32 {
    match element {
        RowType::Bf16 => half::bf16::from_f32(v).to_f32(),
        RowType::F16 => half::f16::from_f32(v).to_f32(),
        RowType::F32 => v,
    }
}

/// Stores k and v of the rows of `qkv` from position `start` on; with tables, rotates q in place
/// and what is stored of k. Rows past the capacity are left alone.
pub fn kv_append(
    qkv: &mut [f32],
    cache: &mut Cache,
    element: RowType,
    tables: Option<(&[f32], &[f32])>,
    start: usize,
    heads: Heads,
) {
    let Heads { heads: q_heads, kv_heads, head_dim } = heads;
    for (i, row) in qkv.chunks_mut(heads.qkv_len()).enumerate() {
        let pos = start + i;
        if pos >= cache.capacity {
            continue;
        }
        for (h, head) in row.chunks_mut(head_dim).enumerate() {
            let mut stored = head.to_vec();
            if let Some((cos, sin)) = tables
                && h < q_heads + kv_heads
            {
                rotate(&mut stored, cos, sin, pos);
            }
            if h < q_heads {
                head.copy_from_slice(&stored);
                continue;
            }
            let key = h < q_heads + kv_heads;
            let kv_head = (h - q_heads) % kv_heads;
            let target = if key { &mut cache.k } else { &mut cache.v };
            for (d, v) in stored.iter().enumerate() {
                target[(kv_head * cache.capacity + pos) * head_dim + d] = kept(element, *v);
            }
        }
    }
}
