//! CPU side of [`contract::sparse`].
//!
//! For a bitmap, a task is a group of 16 rows. It walks the tiles of the group in the order of their values,
//! with the chains of all its outputs in the first-level cache, for up to eight input rows at once.

use contract::num::{RowType, fma};
use contract::sparse::{
    ALIGN, PARTIALS, ROWS, TILE_WORDS, WAYS, partial, per_unit, place_of, steps, ternary_words,
    tree, unit_column,
};
use contract::w2a8::{Segments, act_bytes, act_index, dequantise};

use super::simd::vectorised;
use super::{CpuBackend, Simd, Threads};
use crate::ops::sparse::SparseLinear;
use crate::ops::{Float, OpError};

/// Input rows of one walk.
const BLOCK: usize = 8;

/// A bitmap: mask, starts and values.
#[derive(Clone, Copy)]
pub struct Parts<'a, T> {
    /// Words of the mask.
    pub masks: &'a [u32],
    /// Starts of the tiles.
    pub starts: &'a [u32],
    /// Values.
    pub values: &'a [T],
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
}

impl<'a, T: Float> Parts<'a, T> {
    /// Those of a matrix.
    pub fn of(w: &'a SparseLinear<CpuBackend, T>) -> Self {
        let (masks, starts) = (w.masks().as_slice(), w.starts().as_slice());
        Self { masks, starts, values: w.values().as_slice(), n: w.n(), k: w.k() }
    }
}

/// Chains of the outputs of a group.
type Chains<const MB: usize> = [[[f32; MB]; PARTIALS]; ROWS];

macro_rules! walks {
    ($($name:ident $element:ty, $mb:ident;)*) => { $( vectorised! {
        /// Takes the stored weights of group `group` into the chains, `x` being `[k][inputs]`.
        fn $name(w: Parts<'_, $element>, group: usize, x: &[[f32; $mb]], acc: &mut Chains<$mb>) {
            let per_unit = per_unit(<$element>::TYPE);
            let tiles = WAYS * steps(w.k, per_unit);
            for tile in group * tiles..(group + 1) * tiles {
                let mut at = w.starts[tile] as usize * ALIGN * per_unit;
                let first = tile * TILE_WORDS;
                for (i, &mask) in w.masks[first..first + TILE_WORDS].iter().enumerate() {
                    if mask == 0 {
                        continue;
                    }
                    let (row, column) = place_of(first + i, 31, w.k, per_unit);
                    let chain = &mut acc[row % ROWS][partial(column)];
                    let (mut sums, mut left) = (*chain, mask);
                    let len = mask.count_ones() as usize * per_unit;
                    for unit in w.values[at..at + len].chunks_exact(per_unit) {
                        let unit_at = left.leading_zeros();
                        left ^= 0x8000_0000 >> unit_at;
                        let column = column + unit_column(unit_at as usize, per_unit);
                        for (e, value) in unit.iter().enumerate() {
                            let value = value.widen();
                            if value.to_bits() != 0 {
                                for (sum, x) in sums.iter_mut().zip(x[column + e]) {
                                    *sum = fma(value, x, *sum);
                                }
                            }
                        }
                    }
                    *chain = sums;
                    at += len;
                }
            }
        }
    } )* };
}

const ONE: usize = 1;

walks! {
    walk_f32 f32, BLOCK;
    walk_f16 half::f16, BLOCK;
    walk_bf16 half::bf16, BLOCK;
    walk_f32_one f32, ONE;
    walk_f16_one half::f16, ONE;
    walk_bf16_one half::bf16, ONE;
}

/// Input rows `first ..` as `[k][MB]`, zeros past the last row. `place` says where an element of a row
/// is in `x`; it is +0 where it is nowhere.
fn turned<X: Float, const MB: usize>(
    x: &[X],
    place: &impl Fn(usize, usize) -> Option<usize>,
    inputs: [usize; 2],
    k: usize,
) -> Result<Vec<[f32; MB]>, OpError> {
    let [first, m] = inputs;
    let mut turned = Vec::new();
    let bytes = k * size_of::<[f32; MB]>();
    let refused = |_| OpError::HostMemory { label: "sparse inputs", bytes };
    turned.try_reserve_exact(k).map_err(refused)?;
    turned.resize(k, [0.0; MB]);
    for row in first..m.min(first + MB) {
        for (column, to) in turned.iter_mut().enumerate() {
            to[row - first] = place(row, column).map_or(0.0, |at| x[at].widen());
        }
    }
    Ok(turned)
}

/// Casts the values of a bitmap to the type that `T` is.
fn cast<T: Float, U: Float>(w: Parts<'_, T>) -> Parts<'_, U> {
    let Parts { masks, starts, values, n, k } = w;
    Parts { masks, starts, values: bytemuck::cast_slice(values), n, k }
}

fn block<const MB: usize>(
    threads: &Threads,
    n: usize,
    x: &[[f32; MB]],
    y: &mut [f32],
    rows: usize,
    walk: impl Fn(usize, &[[f32; MB]], &mut Chains<MB>) + Sync,
) {
    threads.run_tiles(y, [rows, n], [rows, ROWS], |mut tile| {
        let columns = tile.columns();
        let mut acc = [[[0.0; MB]; PARTIALS]; ROWS];
        walk(columns.start / ROWS, x, &mut acc);
        for n in columns {
            for input in tile.rows() {
                let chains = &acc[n % ROWS];
                tile.set(input, n, tree(std::array::from_fn(|p| chains[p][input])));
            }
        }
    });
}

/// `y[m, n] = sum_k x[m, k] w[n, k]` for `m` rows; `place(m, k)` says where in `x` an element is, if it
/// is not +0.
///
/// # Errors
/// No memory for the inputs as they are walked.
pub fn linear<W: Float, X: Float>(
    threads: &Threads,
    simd: Simd,
    w: Parts<'_, W>,
    x: &[X],
    place: impl Fn(usize, usize) -> Option<usize>,
    y: &mut [f32],
    m: usize,
) -> Result<(), OpError> {
    let mut first = 0;
    while first < m {
        let (inputs, y) = ([first, m], &mut y[first * w.n..]);
        if m - first == 1 {
            let x = turned(x, &place, inputs, w.k)?;
            block(threads, w.n, &x, y, 1, |group, x, acc| match W::TYPE {
                RowType::F32 => walk_f32_one(simd, cast(w), group, x, acc),
                RowType::F16 => walk_f16_one(simd, cast(w), group, x, acc),
                RowType::Bf16 => walk_bf16_one(simd, cast(w), group, x, acc),
            });
        } else {
            let x = turned(x, &place, inputs, w.k)?;
            block(threads, w.n, &x, y, BLOCK.min(m - first), |group, x, acc| match W::TYPE {
                RowType::F32 => walk_f32(simd, cast(w), group, x, acc),
                RowType::F16 => walk_f16(simd, cast(w), group, x, acc),
                RowType::Bf16 => walk_bf16(simd, cast(w), group, x, acc),
            });
        }
        first += BLOCK;
    }
    Ok(())
}

/// Compressed sparse rows: offsets, columns and values.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    /// Offsets of the rows.
    pub rows: &'a [u32],
    /// Columns.
    pub columns: &'a [u32],
    /// Values.
    pub values: &'a [T],
    /// Columns of the matrix.
    pub k: usize,
}

vectorised! {
    /// The dot of a row, of which `values` stand in `columns`, and an input.
    fn csr_dot<W: Float, X: Float>(columns: &[u32], values: &[W], x: &[X]) -> f32 {
        let mut chains = [0.0; PARTIALS];
        for (&column, value) in columns.iter().zip(values) {
            let (column, value) = (column as usize, value.widen());
            if value.to_bits() != 0 {
                let chain = &mut chains[partial(column)];
                *chain = fma(value, x[column].widen(), *chain);
            }
        }
        tree(chains)
    }
}

/// [`linear`] from compressed sparse rows.
pub fn csr<W: Float, X: Float>(
    threads: &Threads,
    simd: Simd,
    w: Rows<'_, W>,
    x: &[X],
    y: &mut [f32],
    m: usize,
) {
    let n = w.rows.len() - 1;
    threads.run_tiles(y, [m, n], [m.max(1), ROWS], |mut tile| {
        for row in tile.columns() {
            let own = w.rows[row] as usize..w.rows[row + 1] as usize;
            let (columns, values) = (&w.columns[own.clone()], &w.values[own]);
            for input in tile.rows() {
                let x = &x[input * w.k..][..w.k];
                tile.set(input, row, csr_dot(simd, columns, values, x));
            }
        }
    });
}

/// A ternary matrix as mask and signs.
#[derive(Clone, Copy)]
pub struct Ternary<'a> {
    /// Words of the mask.
    pub masks: &'a [u32],
    /// Starts of the rows' signs.
    pub starts: &'a [u32],
    /// Signs.
    pub signs: &'a [u32],
    /// Columns.
    pub k: usize,
    /// Scales by rows.
    pub segments: &'a Segments,
}

/// `y[m, n] = dequantise(sum_k q[m, k] t[n, k])` for as many inputs as `stats` has.
pub fn ternary(threads: &Threads, w: Ternary<'_>, acts: &[u32], stats: &[[u32; 2]], y: &mut [f32]) {
    let (n, m, words) = (w.segments.rows(), stats.len(), ternary_words(w.k));
    let acts: &[i8] = bytemuck::cast_slice(acts);
    threads.run_tiles(y, [m, n], [m.max(1), ROWS], |mut tile| {
        // Where a row's weights are, in the order of the activations, by sign.
        let mut places: [Vec<u32>; 2] = [Vec::new(), Vec::new()];
        for row in tile.columns() {
            places.iter_mut().for_each(Vec::clear);
            let mut at = 32 * w.starts[row] as usize;
            for (word, &mask) in w.masks[row * words..][..words].iter().enumerate() {
                let mut left = mask;
                while left != 0 {
                    let bit = left.leading_zeros();
                    left ^= 0x8000_0000 >> bit;
                    let negative = w.signs[at / 32] << (at % 32) >> 31;
                    places[negative as usize].push(act_index(32 * word + bit as usize) as u32);
                    at += 1;
                }
            }
            let scale = w.segments.scale_of(row as u32);
            for input in tile.rows() {
                let acts = &acts[input * act_bytes(w.k)..][..act_bytes(w.k)];
                let sum = |places: &[u32]| -> i32 {
                    places.iter().map(|&at| i32::from(acts[at as usize])).sum()
                };
                let acc = sum(&places[0]) - sum(&places[1]);
                tile.set(input, row, dequantise(acc, f32::from_bits(stats[input][0]), scale));
            }
        }
    });
}
