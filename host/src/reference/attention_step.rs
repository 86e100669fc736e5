//! Reference for [`contract::attention_step`]: append with rotation, then attention.

use super::attention::attention;
use super::kv_append::{Cache, kv_append};
use crate::ops::RowType;
use crate::ops::kv_append::Heads;

/// `(heads, kv_heads, head_dim, start)`: around the edges of key blocks and vectors.
pub const TEST_SHAPES: &[(usize, usize, usize, usize)] = &[
    (1, 1, 2, 0),
    (2, 1, 4, 2),
    (3, 3, 6, 1),
    (4, 2, 8, 62),
    (4, 1, 16, 63),
    (6, 2, 20, 64),
    (5, 1, 34, 65),
    (20, 5, 128, 200),
    (8, 1, 80, 127),
    (2, 2, 256, 130),
    (3, 1, 130, 700),
];

/// `(heads, kv_heads, head_dim, start)` of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize, usize, usize)] =
    &[(20, 5, 128, 63), (20, 5, 128, 511), (20, 5, 128, 4095)];

/// The answer to the row `qkv` at position `start`; the cache takes its key and value.
pub fn attention_step(
    qkv: &[f32],
    cache: &mut Cache,
    element: RowType,
    tables: (&[f32], &[f32]),
    start: usize,
    heads: Heads,
) -> Vec<f32> {
    let mut row = qkv.to_vec();
    kv_append(&mut row, cache, element, Some(tables), start, heads);
    // A row that found no room sees the whole cache.
    attention(&row, cache, start.min(cache.capacity - 1), 1, heads)
}
