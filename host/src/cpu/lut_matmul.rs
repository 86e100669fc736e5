//! CPU side of [`contract::lut_matmul`].
//!
//! Each row of activations becomes tables of 32 bytes, one for each lookup. A task is a band of tiles,
//! read from end to end: the tables of a stretch stay in the first cache for all of its tiles.
//! What a table holds is the level's own affair: 16-bit sums where entries are read one by one, two
//! planes of digits where a byte shuffle reads 32 of them (`lut_x86`, `lut_neon`). The sums are exact
//! either way, so they leave no trace in the result.

use contract::lut_matmul::{BAND, Form, STEP_LOOKUPS, STRETCH, TILE, pair_entry, triple_entry};
use contract::w2a8::{Segments, act_bytes, act_index, dequantise};

use super::buffer::Buffer;
use super::simd::{Level, Simd, vectorised};
use super::threads::Threads;
use super::w2a8::stats_of;
use crate::ops::{OpError, Tensor};

/// Bytes of a table.
pub(super) const TABLE: usize = 32;
/// Tables of a stretch: 8 KiB.
const STRETCH_TABLES: usize = STRETCH * STEP_LOOKUPS;
/// Rows of activations whose tables are there at once.
const TASK_TOKENS: usize = 16;

/// The tables of a row: 16 entries of 2 bytes, in the form of the level.
pub(super) type Table = [u8; TABLE];
/// Sums of the rows of a tile.
pub(super) type Sums = [i32; TILE];

/// What a level of [`Simd`] provides for a form.
pub(super) struct Lookups {
    /// Makes tables of activations in their natural order.
    pub(super) build: fn(q: &[i8], tables: &mut [Table]),
    /// Adds the lookups of neighbouring steps of a tile to the sums of its rows.
    pub(super) add: fn(steps: &[u8], tables: &[Table], sums: &mut Sums),
}

fn lookups(simd: Simd, form: Form) -> &'static Lookups {
    match (simd.level(), form) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2 | Level::AvxVnni | Level::Avx512Vnni, Form::Tl1) => &super::lut_x86::AVX2_TL1,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2 | Level::AvxVnni | Level::Avx512Vnni, Form::Tl2) => &super::lut_x86::AVX2_TL2,
        #[cfg(target_arch = "aarch64")]
        (Level::Neon, Form::Tl1) => &super::lut_neon::NEON_TL1,
        #[cfg(target_arch = "aarch64")]
        (Level::Neon, Form::Tl2) => &super::lut_neon::NEON_TL2,
        (_, Form::Tl1) => &SCALAR_TL1,
        (_, Form::Tl2) => &SCALAR_TL2,
    }
}

/// One product, borrowed from its tensors.
pub struct Product<'a> {
    /// Tiles of weights, with valid codes.
    pub tiles: &'a [u8],
    /// How they are grouped.
    pub form: Form,
    /// Elements of a row.
    pub k: usize,
    /// Scales; their end is the number of rows.
    pub segments: &'a Segments,
    /// Rows of activations in the order of [`contract::w2a8`].
    pub acts: &'a [u32],
    /// Their scales and sums: one for each row.
    pub stats: &'a [[u32; 2]],
}

/// Scratch for tables; keeps its memory between products.
#[derive(Default)]
pub struct Tables(Option<Buffer<u8>>);

impl Tables {
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<&mut [u8], OpError> {
        if self.0.as_ref().is_none_or(|buffer| buffer.len() < bytes) {
            self.0 = None;
        }
        let buffer = match self.0.take() {
            Some(buffer) => buffer,
            None => Buffer::zeroed("lookup tables", bytes)?,
        };
        Ok(&mut self.0.insert(buffer).as_mut_slice()[..bytes])
    }
}

/// `y[m, n] = dequantise(acc[m, n])` for the rows of `stats`.
///
/// `tiles` holds `segments.rows()` rows of `k` codes in whole tiles, `acts` and `stats` the rows of
/// activations; `y` takes `segments.rows()` values for each. `tables` is scratch that grows to sixteen
/// rows' worth. Lengths are the caller's to check.
///
/// # Errors
/// No memory for `tables`.
pub fn lut_matmul(
    threads: &Threads,
    simd: Simd,
    product: &Product<'_>,
    tables: &mut Tables,
    y: &mut [f32],
) -> Result<(), OpError> {
    let &Product { tiles, form, k, segments, acts, stats } = product;
    let (n, steps) = (segments.rows(), form.steps(k));
    let row_tables = steps * STEP_LOOKUPS;
    let lookups = lookups(simd, form);
    let tables = tables.reserve(stats.len().min(TASK_TOKENS) * row_tables * TABLE)?;
    let act_words = act_bytes(k) / 4;
    let rows = acts.chunks(TASK_TOKENS * act_words).zip(stats.chunks(TASK_TOKENS));
    for ((acts, stats), y) in rows.zip(y.chunks_mut(TASK_TOKENS * n)) {
        let m = stats.len();
        let tables = &mut tables.as_chunks_mut().0[..m * row_tables];
        build_rows(threads, lookups, form, k, acts, row_tables, tables);
        let tables = &*tables;
        threads.run_tiles(y, [m, n], [TASK_TOKENS, BAND * TILE], |mut out| {
            let (tokens, columns) = (out.rows(), out.columns());
            let (first, in_band) = (columns.start / TILE, columns.len().div_ceil(TILE));
            let tile_bytes = form.tile_bytes(k);
            let band = &tiles[first * tile_bytes..][..in_band * tile_bytes];
            let mut segment = 0;
            let scales: [[f32; TILE]; BAND] = std::array::from_fn(|t| {
                std::array::from_fn(|r| {
                    let row = (columns.start + t * TILE + r) as u32;
                    while segment + 1 < segments.end.len() && row >= segments.end[segment] {
                        segment += 1;
                    }
                    segments.scale[segment]
                })
            });
            for token in tokens {
                let tables = &tables[token * row_tables..][..row_tables];
                let mut sums = [[0; TILE]; BAND];
                let mut rest = band;
                for tables in tables.chunks(STRETCH_TABLES) {
                    let bytes = tables.len() / STEP_LOOKUPS * form.step_bytes();
                    let (stretch, behind) = rest.split_at(bytes * in_band);
                    for (steps, sums) in stretch.chunks_exact(bytes).zip(&mut sums) {
                        (lookups.add)(steps, tables, sums);
                    }
                    rest = behind;
                }
                let act_scale = stats_of(stats[token]).scale;
                let rows = columns.clone().step_by(TILE).zip(&sums).zip(&scales);
                for ((row, sums), scales) in rows {
                    let y = finish(simd, sums, act_scale, scales);
                    for (row, y) in (row..columns.end).zip(y) {
                        out.set(token, row, y);
                    }
                }
            }
        });
    }
    Ok(())
}

/// Builds the tables of rows of activations, `row_tables` for each.
fn build_rows(
    threads: &Threads,
    lookups: &Lookups,
    form: Form,
    k: usize,
    acts: &[u32],
    row_tables: usize,
    tables: &mut [Table],
) {
    let acts: &[i8] = bytemuck::cast_slice(acts);
    let group = form.ternaries();
    // Whole rows when there are many, parts of the only one otherwise.
    let piece = if tables.len() > row_tables { row_tables } else { STRETCH_TABLES };
    threads.run_pieces(tables, piece, |i, tables| {
        let (row, first) = (i * piece / row_tables, i * piece % row_tables);
        let acts = &acts[row * act_bytes(k)..][..act_bytes(k)];
        for (i, tables) in tables.chunks_mut(STRETCH_TABLES).enumerate() {
            // The columns of a stretch in their natural order; a stretch begins with a piece.
            let begin = (first + i * STRETCH_TABLES) * group;
            let mut q = [0; 3 * STRETCH_TABLES];
            for (to, column) in q.as_chunks_mut::<16>().0.iter_mut().zip((begin..).step_by(16)) {
                if column < acts.len() {
                    to.copy_from_slice(&acts[act_index(column)..][..16]);
                }
            }
            (lookups.build)(&q, tables);
        }
    });
}

vectorised! {
    /// The outputs of a tile.
    fn finish(sums: &Sums, act_scale: f32, scales: &[f32; TILE]) -> [f32; TILE] {
        let mut y = [0.0; TILE];
        for ((y, sum), scale) in y.iter_mut().zip(sums).zip(scales) {
            *y = dequantise(*sum, act_scale, *scale);
        }
        y
    }
}

static SCALAR_TL1: Lookups = Lookups { build: plain_tl1, add: scalar::<false> };
static SCALAR_TL2: Lookups = Lookups { build: plain_tl2, add: scalar::<true> };

fn plain_tl1(q: &[i8], tables: &mut [Table]) {
    for (x, table) in q.as_chunks::<2>().0.iter().zip(tables) {
        let x = x.map(i32::from);
        fill(table, 9, |code| pair_entry(code, x));
    }
}

fn plain_tl2(q: &[i8], tables: &mut [Table]) {
    for (x, table) in q.as_chunks::<3>().0.iter().zip(tables) {
        let x = x.map(i32::from);
        fill(table, 14, |code| triple_entry(code, x));
    }
}

fn fill(table: &mut Table, codes: u8, entry: impl Fn(u8) -> i32) {
    for (bytes, code) in table.as_chunks_mut::<2>().0.iter_mut().zip(0..codes) {
        *bytes = (entry(code) as i16).to_le_bytes();
    }
}

fn scalar<const TL2: bool>(steps: &[u8], tables: &[Table], sums: &mut Sums) {
    let vectors = if TL2 { 5 } else { 4 };
    let steps = steps.as_chunks::<TILE>().0.chunks_exact(vectors);
    for (step, tables) in steps.zip(tables.as_chunks::<STEP_LOOKUPS>().0) {
        for (j, table) in tables.iter().enumerate() {
            for (r, sum) in sums.iter_mut().enumerate() {
                let code = usize::from(step[j / 2][r] >> (4 * (j % 2)) & 15);
                let entry = i16::from_le_bytes([table[2 * code], table[2 * code + 1]]);
                let negative = TL2 && step[vectors - 1][r] >> (7 - j) & 1 == 1;
                *sum += i32::from(if negative { -entry } else { entry });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::every_way;
    use crate::pack::{PackedTl, PackedW2};
    use crate::reference::w2a8_gemv::{Case, TEST_SHAPES};
    use proptest::prelude::*;

    fn check(case: &Case) {
        let (n, k) = (case.n, case.k);
        let (acts, stats) = (case.acts(), case.stats());
        let want: Vec<u32> = (0..case.m).flat_map(|m| case.row(m)).map(f32::to_bits).collect();
        let w2 = PackedW2 { n, k, words: case.words(), segments: case.segments };
        for form in Form::ALL {
            let packed = PackedTl::from_w2(form, &w2).expect("a matrix");
            every_way(|threads, simd| {
                let mut y = vec![f32::NAN; case.m * n];
                let product = Product {
                    tiles: packed.bytes(),
                    form,
                    k,
                    segments: &case.segments,
                    acts: &acts,
                    stats: &stats,
                };
                let mut tables = Tables::default();
                lut_matmul(threads, simd, &product, &mut tables, &mut y).expect("memory");
                let got: Vec<u32> = y.iter().map(|v| v.to_bits()).collect();
                assert_eq!(got, want, "{form:?} m={} n={n} k={k} {simd:?}", case.m);
            });
        }
    }

    #[test]
    fn equals_the_product_on_listed_shapes() {
        for &(n, k) in TEST_SHAPES {
            check(&Case::new(1, n, k, 7));
        }
    }

    #[test]
    fn extreme_sums_do_not_wrap() {
        for k in [48, 2560, 20_000] {
            let mut case = Case::new(1, 3, k, 1);
            case.q.fill(-128);
            case.t[..k].fill(-1);
            case.t[k..2 * k].fill(1);
            check(&case);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_the_product_on_any_shape(m in 1usize..20, n in 1usize..150, k in 1usize..700, seed: u64) {
            check(&Case::new(m, n, k, seed));
        }
    }
}
