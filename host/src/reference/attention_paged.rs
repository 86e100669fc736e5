//! Reference for [`contract::attention_paged`]: every sequence is brought together, row by row.

use contract::attention_paged::{ABSENT, PAGE};

use super::attention::attention;
use super::kv_append::{Cache, kv_append};
use crate::ops::RowType;
use crate::ops::kv_append::Heads;

/// `(heads, kv_heads, head_dim, positions of the rows)`, each row with a sequence of its own.
pub const TEST_SHAPES: &[(usize, usize, usize, &[u32])] = &[
    (1, 1, 2, &[0]),
    (2, 1, 4, &[2, 0]),
    (3, 3, 6, &[63, 64, 65]),
    (4, 2, 8, &[ABSENT, 62, ABSENT]),
    (4, 1, 16, &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
    (6, 2, 20, &[127, 128, 7]),
    (20, 5, 128, &[200, 64, ABSENT, 63, 130]),
    (8, 1, 80, &[127, 40]),
    (2, 2, 256, &[130, 5]),
    (6, 1, 130, &[700, 1]),
];

/// `(heads, kv_heads, head_dim, rows, position of each)` of the 2B-4T model.
pub const BENCH_SHAPES: &[(usize, usize, usize, usize, u32)] =
    &[(20, 5, 128, 8, 511), (20, 5, 128, 32, 511), (20, 5, 128, 64, 511)];

/// A row: where it stands in its sequence, and the pages of that.
#[derive(Clone, Debug)]
pub struct Row {
    /// Position.
    pub position: u32,
    /// Pages.
    pub table: Vec<u32>,
}

/// The values of a pool, `[pages, kv_heads, PAGE, head_dim]`: of [`Cache`] with one position per place
/// of a page, and as many heads as there are in all pages.
fn at(page: u32, kv_head: usize, place: usize, heads: Heads) -> usize {
    ((page as usize * heads.kv_heads + kv_head) * PAGE + place) * heads.head_dim
}

/// Positions `0..len` of a sequence.
fn gathered(pool: &Cache, table: &[u32], len: usize, heads: Heads) -> Cache {
    let mut cache = Cache::new(heads, len);
    for h in 0..heads.kv_heads {
        for p in 0..len {
            let from = at(table[p / PAGE], h, p % PAGE, heads);
            let to = (h * len + p) * heads.head_dim;
            for d in 0..heads.head_dim {
                cache.k[to + d] = pool.k[from + d];
                cache.v[to + d] = pool.v[from + d];
            }
        }
    }
    cache
}

/// What the rows of `qkv` give, `[rows, heads * head_dim]`; the pool of `pages` pages takes their keys and
/// values. A table covers `capacity` positions.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn attention_paged(
    qkv: &[f32],
    pool: &mut Cache,
    pages: usize,
    element: RowType,
    tables: (&[f32], &[f32]),
    rows: &[Row],
    capacity: usize,
    heads: Heads,
) -> Vec<f32> {
    let mut rotated = qkv.to_vec();
    let inside = |row: &Row| (row.position as usize) < capacity;
    for (row, qkv) in rows.iter().zip(rotated.chunks_mut(heads.qkv_len())) {
        if !inside(row) {
            continue;
        }
        let pos = row.position as usize;
        let mut own = Cache::new(heads, pos + 1);
        kv_append(qkv, &mut own, element, Some(tables), pos, heads);
        let page = row.table[pos / PAGE];
        if page as usize >= pages {
            continue;
        }
        for h in 0..heads.kv_heads {
            let (to, from) =
                (at(page, h, pos % PAGE, heads), (h * (pos + 1) + pos) * heads.head_dim);
            for d in 0..heads.head_dim {
                pool.k[to + d] = own.k[from + d];
                pool.v[to + d] = own.v[from + d];
            }
        }
    }
    let mut out = Vec::new();
    for (row, qkv) in rows.iter().zip(rotated.chunks(heads.qkv_len())) {
        let pos = row.position as usize;
        let there =
            inside(row) && row.table[..pos / PAGE + 1].iter().all(|&page| (page as usize) < pages);
        if row.position == ABSENT {
            out.extend(vec![0.0; heads.q_len()]);
        } else if !there {
            out.extend(vec![f32::NAN; heads.q_len()]);
        } else {
            let cache = gathered(pool, &row.table, pos + 1, heads);
            out.extend(attention(qkv, &cache, pos, 1, heads));
        }
    }
    out
}
