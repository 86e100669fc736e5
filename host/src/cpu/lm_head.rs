//! CPU side of [`contract::lm_head`].

use contract::num::{PARTIALS, dot_into, tree};

use super::dense::{RowReader, Table};
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
                tile.set(row, v, simd.with(|| w.read(v, Dot(x))));
            }
        }
    });
}
