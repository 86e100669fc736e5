//! CPU side of [`contract::sparse`].
//!
//! A task is a group of 16 rows. It walks the four streams of the group in the order of their values,
//! with the chains of all its outputs in the first-level cache, for up to eight input rows at once.

use contract::num::{RowType, fma};
use contract::sparse::{
    ALIGN, PARTIALS, ROWS, WAYS, partial, per_unit, place_of, steps, tree, unit_column,
};

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::Float;

/// Input rows of one walk.
const BLOCK: usize = 8;

/// A bitmap: mask, starts and values.
#[derive(Clone, Copy)]
pub struct Parts<'a, T> {
    /// Words of the mask.
    pub masks: &'a [u32],
    /// Starts of the streams.
    pub starts: &'a [u32],
    /// Values.
    pub values: &'a [T],
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
}

/// Chains of the outputs of a group.
type Chains<const MB: usize> = [[[f32; MB]; PARTIALS]; ROWS];

macro_rules! walks {
    ($($name:ident $element:ty, $mb:ident;)*) => { $( vectorised! {
        /// Takes the stored weights of group `group` into the chains, `x` being `[k][inputs]`.
        fn $name(w: Parts<'_, $element>, group: usize, x: &[[f32; $mb]], acc: &mut Chains<$mb>) {
            let per_unit = per_unit(<$element>::TYPE);
            let words = steps(w.k, per_unit) * 64;
            for way in 0..WAYS {
                let stream = group * WAYS + way;
                let mut at = w.starts[stream] as usize * ALIGN * per_unit;
                for (i, &mask) in w.masks[stream * words..][..words].iter().enumerate() {
                    if mask == 0 {
                        continue;
                    }
                    let (row, column) = place_of(stream * words + i, 31, w.k, per_unit);
                    let chain = &mut acc[row % ROWS][partial(column)];
                    let (mut sums, mut left) = (*chain, mask);
                    let len = mask.count_ones() as usize * per_unit;
                    for unit in w.values[at..at + len].chunks_exact(per_unit) {
                        let first = left.leading_zeros();
                        left ^= 0x8000_0000 >> first;
                        let first = column + unit_column(first as usize, per_unit);
                        for (e, value) in unit.iter().enumerate() {
                            let value = value.widen();
                            if value.to_bits() != 0 {
                                for (sum, x) in sums.iter_mut().zip(x[first + e]) {
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

/// Input rows `first ..` as `[k][MB]`, zeros past the last row.
fn turned<X: Float, const MB: usize>(x: &[X], first: usize, m: usize, k: usize) -> Vec<[f32; MB]> {
    let mut turned = vec![[0.0; MB]; k];
    for row in first..m.min(first + MB) {
        for (to, from) in turned.iter_mut().zip(&x[row * k..][..k]) {
            to[row - first] = from.widen();
        }
    }
    turned
}

/// Casts the values of a bitmap to the type that `T` is.
fn cast<T: Float, U: Float>(w: Parts<'_, T>) -> Parts<'_, U> {
    let Parts { masks, starts, values, n, k } = w;
    Parts { masks, starts, values: bytemuck::cast_slice(values), n, k }
}

fn block<W: Float, X: Float, const MB: usize>(
    threads: &Threads,
    w: Parts<'_, W>,
    x: &[X],
    y: &mut [f32],
    inputs: [usize; 2],
    walk: impl Fn(usize, &[[f32; MB]], &mut Chains<MB>) + Sync,
) {
    let [first, m] = inputs;
    let x: Vec<[f32; MB]> = turned(x, first, m, w.k);
    let out = &mut y[first * w.n..];
    let rows = (m - first).min(MB);
    threads.run_tiles(out, [rows, w.n], [rows, ROWS], |mut tile| {
        let columns = tile.columns();
        let mut acc = [[[0.0; MB]; PARTIALS]; ROWS];
        walk(columns.start / ROWS, &x, &mut acc);
        for n in columns {
            for input in tile.rows() {
                let chains = &acc[n % ROWS];
                tile.set(input, n, tree(std::array::from_fn(|p| chains[p][input])));
            }
        }
    });
}

/// `y[m, n] = sum_k x[m, k] w[n, k]` for the `m` rows of `x`.
pub fn linear<W: Float, X: Float>(
    threads: &Threads,
    simd: Simd,
    w: Parts<'_, W>,
    x: &[X],
    y: &mut [f32],
    m: usize,
) {
    let mut first = 0;
    while first < m {
        let inputs = [first, m];
        if m - first == 1 {
            block::<W, X, 1>(threads, w, x, y, inputs, |group, x, acc| match W::TYPE {
                RowType::F32 => walk_f32_one(simd, cast(w), group, x, acc),
                RowType::F16 => walk_f16_one(simd, cast(w), group, x, acc),
                RowType::Bf16 => walk_bf16_one(simd, cast(w), group, x, acc),
            });
        } else {
            block::<W, X, BLOCK>(threads, w, x, y, inputs, |group, x, acc| match W::TYPE {
                RowType::F32 => walk_f32(simd, cast(w), group, x, acc),
                RowType::F16 => walk_f16(simd, cast(w), group, x, acc),
                RowType::Bf16 => walk_bf16(simd, cast(w), group, x, acc),
            });
        }
        first += BLOCK;
    }
}
