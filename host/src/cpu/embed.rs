//! CPU side of [`contract::embed`].

use super::dense::{RowReader, Table};
use super::simd::vectorised;
use super::{Simd, Threads};

struct WidenInto<'a>(&'a mut [f32]);

impl RowReader for WidenInto<'_> {
    type Output = ();

    #[inline(always)]
    fn read<T: Copy>(self, row: &[T], widen: impl Fn(T) -> f32 + Copy) {
        for (out, v) in self.0.iter_mut().zip(row) {
            *out = widen(*v);
        }
    }
}

vectorised! {
    /// Widens row `row` of a table.
    fn widen_row(table: Table<'_>, row: usize, out: &mut [f32]) {
        table.read(row, WidenInto(out));
    }
}

/// `out[m] = table[ids[m]]`, widened; NaN for an id past the table. `out` holds a row per id.
pub fn embed(threads: &Threads, simd: Simd, ids: &[u32], table: Table<'_>, out: &mut [f32]) {
    threads.run_pieces(&mut out[..ids.len() * table.width], table.width, |m, out| {
        let id = ids[m] as usize;
        if id < table.rows {
            widen_row(simd, table, id, out);
        } else {
            out.fill(f32::NAN);
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::cpu::tests::{bits, every_backend, upload};
    use crate::ops::{Backend, Dense, embed::Embed};
    use crate::reference::embed::{self as reference, ELEMENTS, TEST_SHAPES};
    use proptest::prelude::*;

    fn check(m: usize, rows: usize, width: usize, seed: u64) {
        let ids = reference::ids(m, rows, seed);
        for element in ELEMENTS {
            let table = reference::Dense::new(element, rows, width, seed);
            let want = reference::embed(&table, &ids);
            every_backend(|backend| {
                let mut dense = Dense::alloc(backend, "test", element, rows, width).expect("alloc");
                dense.write_rows(backend, 0, &table.bytes()).expect("rows");
                let ids = upload(backend, &[&[u32::MAX], &ids[..]].concat());
                let first = m % 3;
                let mut out = upload(backend, &vec![7.0; first * width + want.len() + 1]);
                let (ids_at, ids_stride, table) = (1, 1, &dense);
                let op = Embed { ids: &ids, ids_at, ids_stride, table, out: &mut out, first, m };
                backend.embed(op).expect("shapes fit");
                let (before, out) = out.as_slice().split_at(first * width);
                let (out, rest) = out.split_at(want.len());
                assert_eq!(bits(out), bits(&want), "{m} {rows} {width} {element:?}");
                assert!(before.iter().chain(rest).all(|&v| v == 7.0));
            });
        }
    }

    #[test]
    fn equals_the_reference_on_listed_shapes() {
        TEST_SHAPES.iter().for_each(|&(m, rows, width)| check(m, rows, width, 3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn equals_the_reference_on_any_shape(m in 1usize..9, rows in 1usize..40, width in 1usize..300, seed: u64) {
            check(m, rows, width, seed);
        }
    }
}
