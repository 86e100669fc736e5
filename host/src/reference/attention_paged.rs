//! Reference for [`contract::attention_paged`]: every sequence is brought together, row by row.

use contract::attention_paged::{ABSENT, PAGE, fast_bound};
use contract::rope::rotate;

use super::attention::{attention, bounds};
use super::kv_append::{Cache, kv_append};
use crate::ops::RowType;
use crate::ops::attention_paged::PageType;
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

/// A block of up to 32 numbers as MXINT8: the shared scale, the codes, and the numbers that are kept.
pub fn mxint8(block: &[f32]) -> (u8, Vec<i8>, Vec<f32>) {
    if block.iter().any(|v| !v.is_finite()) {
        return (255, vec![0; block.len()], vec![f32::NAN; block.len()]);
    }
    let largest = block.iter().fold(0.0f64, |top, &v| top.max(f64::from(v).abs()));
    // 2^-119 is the least power of two that is shared.
    let mut power = -119;
    while 2f64.powi(power + 1) <= largest {
        power += 1;
    }
    let step = 2f64.powi(power - 6);
    let codes: Vec<i8> = block
        .iter()
        .map(|&v| (f64::from(v) / step).round_ties_even().clamp(-127.0, 127.0) as i8)
        .collect();
    let kept = codes.iter().map(|&code| (f64::from(code) * step) as f32).collect();
    ((power + 127) as u8, codes, kept)
}

/// A head as pages keep it.
pub fn kept(element: PageType, head: &[f32]) -> Vec<f32> {
    match element {
        PageType::Float(element) => {
            head.iter().map(|&v| super::kv_append::kept(element, v)).collect()
        }
        PageType::Int8 => head.chunks(32).flat_map(|block| mxint8(block).2).collect(),
    }
}

/// What the rows of `qkv` give, `[rows, heads * head_dim]`; the pool of `pages` pages takes their keys and
/// values. A table covers `capacity` positions.
#[allow(clippy::too_many_arguments, reason = "the tensors of the contract, in its order")]
pub fn attention_paged(
    qkv: &[f32],
    pool: &mut Cache,
    pages: usize,
    element: impl Into<PageType>,
    tables: (&[f32], &[f32]),
    rows: &[Row],
    capacity: usize,
    heads: Heads,
) -> Vec<f32> {
    let element = element.into();
    let mut rotated = qkv.to_vec();
    let inside = |row: &Row| (row.position as usize) < capacity;
    for (row, qkv) in rows.iter().zip(rotated.chunks_mut(heads.qkv_len())) {
        if !inside(row) {
            continue;
        }
        let pos = row.position as usize;
        let mut own = Cache::new(heads, pos + 1);
        // As it stands; then as pages keep it.
        kv_append(qkv, &mut own, RowType::F32, Some(tables), pos, heads);
        let page = row.table[pos / PAGE];
        if page as usize >= pages {
            continue;
        }
        for h in 0..heads.kv_heads {
            let (to, from) =
                (at(page, h, pos % PAGE, heads), (h * (pos + 1) + pos) * heads.head_dim);
            let dim = heads.head_dim;
            pool.k[to..to + dim].copy_from_slice(&kept(element, &own.k[from..from + dim]));
            pool.v[to..to + dim].copy_from_slice(&kept(element, &own.v[from..from + dim]));
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

/// How far each output of a step on tensor cores may be from [`attention_paged`]: [`fast_bound`]; 0 of a row that does not attend. `pool` has
/// taken the keys and values of all rows.
#[allow(clippy::too_many_arguments, reason = "as above")]
pub fn fast_bounds(
    qkv: &[f32],
    pool: &Cache,
    pages: usize,
    element: impl Into<PageType>,
    (cos, sin): (&[f32], &[f32]),
    rows: &[Row],
    capacity: usize,
    heads: Heads,
) -> Vec<f32> {
    let (dim, element) = (heads.head_dim, element.into());
    let mut all = Vec::new();
    for (row, qkv) in rows.iter().zip(qkv.chunks(heads.qkv_len())) {
        let pos = row.position as usize;
        let there =
            |row: &Row| row.table[..pos / PAGE + 1].iter().all(|&page| (page as usize) < pages);
        if pos >= capacity || !there(row) {
            all.extend(vec![0.0; heads.q_len()]);
            continue;
        }
        let cache = gathered(pool, &row.table, pos + 1, heads);
        let rotated = rotated(qkv, pos, (cos, sin), heads);
        for h in 0..heads.heads {
            let q: Vec<f64> = rotated[h * dim..][..dim].iter().map(|&q| f64::from(q)).collect();
            let kv_head = h / (heads.heads / heads.kv_heads);
            let of_head = bounds(&q, &cache, kv_head, pos + 1, dim);
            let reach = if element == PageType::Int8 {
                // Queries in fixed point: of each element a part of the largest besides.
                let part = q.iter().fold(0.0f64, |top, q| top.max(q.abs())) / 1024.0;
                let more: Vec<f64> = q.iter().map(|q| q.abs() + part).collect();
                bounds(&more, &cache, kv_head, pos + 1, dim).reach
            } else {
                of_head.reach
            };
            let bound = |(_, magnitude): &(f64, f64)| fast_bound(pos + 1, *magnitude, reach) as f32;
            all.extend(of_head.outputs.iter().map(bound));
        }
    }
    all
}

/// The queries of a row at position `pos`, rotated, and what is behind them.
fn rotated(qkv: &[f32], pos: usize, (cos, sin): (&[f32], &[f32]), heads: Heads) -> Vec<f32> {
    let half = heads.head_dim / 2;
    let mut all = qkv.to_vec();
    for head in all[..heads.q_len()].chunks_exact_mut(heads.head_dim) {
        for d in 0..half {
            let angle = pos * half + d;
            (head[d], head[half + d]) = rotate(head[d], head[half + d], cos[angle], sin[angle]);
        }
    }
    all
}

/// The same of a run, whose rows are neighbours of one sequence: the bounds of [`super::attention::fast_bounds`], of which `exact` is the exact
/// result. All pages are there.
pub fn run_bounds(
    qkv: &[f32],
    pool: &Cache,
    tables: (&[f32], &[f32]),
    rows: &[Row],
    heads: Heads,
    exact: &[f32],
) -> Vec<f32> {
    let Some(first) = rows.first() else { return Vec::new() };
    let start = first.position as usize;
    let cache = gathered(pool, &first.table, start + rows.len(), heads);
    let rows = qkv.chunks(heads.qkv_len()).enumerate();
    let turned: Vec<f32> =
        rows.flat_map(|(m, qkv)| rotated(qkv, start + m, tables, heads)).collect();
    super::attention::fast_bounds(
        &turned,
        &cache,
        start,
        turned.len() / heads.qkv_len(),
        heads,
        exact,
    )
}
