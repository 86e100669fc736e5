//! CPU side of [`contract::embed`].

use super::dense::{RowReader, Table};
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

/// `out[m] = table[ids[m]]`, widened; NaN for an id past the table. `out` holds a row per id.
pub fn embed(threads: &Threads, simd: Simd, ids: &[u32], table: Table<'_>, out: &mut [f32]) {
    threads.run_pieces(&mut out[..ids.len() * table.width], table.width, |m, out| {
        let id = ids[m] as usize;
        if id < table.rows {
            simd.with(|| table.read(id, WidenInto(out)));
        } else {
            out.fill(f32::NAN);
        }
    });
}
