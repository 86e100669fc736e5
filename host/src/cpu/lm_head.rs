//! CPU side of [`contract::lm_head`].

use contract::num::{PARTIALS, dot_into, tree};

use super::dense::{RowReader, Table};
use super::simd::vectorised;
use super::{Simd, Threads};

/// Rows of the table that a task takes.
const TASK_ROWS: usize = 64;

struct Dot<'a>(&'a [f32]);

impl RowReader for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn read<T: Copy>(self, row: &[T], widen: impl Fn(T) -> f32 + Copy) -> f32 {
        let mut partials = [0.0; PARTIALS];
        dot_into(&mut partials, self.0, row, widen);
        tree(&mut partials)
    }
}

vectorised! {
    /// The dot of `x` and row `row` of a table.
    pub(super) fn dot(w: Table<'_>, row: usize, x: &[f32]) -> f32 {
        w.read(row, Dot(x))
    }
}

/// `logits[m, v] = dot(x[m], w[v])` for the `m` rows of `x`.
pub fn lm_head(
    threads: &Threads,
    simd: Simd,
    x: &[f32],
    w: Table<'_>,
    logits: &mut [f32],
    m: usize,
) {
    threads.run_tiles(logits, [m, w.rows], [m.max(1), TASK_ROWS], |mut tile| {
        for v in tile.columns() {
            for row in tile.rows() {
                let x = &x[row * w.width..][..w.width];
                tile.set(row, v, dot(simd, w, v, x));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::ops::{Backend, Dense, lm_head::LmHead};
    use crate::reference::embed::{self, ELEMENTS};
    use crate::reference::{Inputs, lm_head as reference};
    use proptest::prelude::*;

    fn check(m: usize, vocab: usize, k: usize, seed: u64) {
        let x = Inputs::new(seed).floats(m * k, 1.5);
        for element in ELEMENTS {
            let table = embed::Dense::new(element, vocab, k, seed);
            let want = reference::lm_head(&table, &x, m);
            every_backend(|backend| {
                let mut w = Dense::alloc(backend, "test", element, vocab, k).expect("alloc");
                w.write_rows(backend, 0, &table.bytes()).expect("rows");
                let x = upload(backend, &[&[f32::NAN; 3], &x[..]].concat());
                let mut logits = upload(backend, &vec![f32::NAN; want.len()]);
                let op = LmHead { x: &x, x_at: 3, w: &w, logits: &mut logits, m };
                backend.lm_head(op).expect("shapes fit");
                assert_eq!(bits(logits.as_slice()), bits(&want), "{m} {vocab} {k} {element:?}");
            });
        }
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        reference::TEST_SHAPES.iter().for_each(|&(m, vocab, k)| check(m, vocab, k, 5));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn equals_the_reference_on_any_shape(m in 1usize..4, vocab in 1usize..150, k in 1usize..900, seed: u64) {
            check(m, vocab, k, seed);
        }
    }
}
