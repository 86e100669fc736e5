//! CPU side of [`contract::bmm`]. A task makes a tile of a result: for each piece of k it packs its
//! rows once, in sixes, and then its columns in sixteens, which meet all of the rows. Sixteen
//! outputs stand in a vector, so each keeps its own chain, from piece to piece of a chunk.

use std::ops::Range;

use contract::bmm::K_CHUNK;
use contract::num::fma;

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::OpError;
use crate::ops::bmm::{Layout, Operand};

/// Rows and columns of the sums that stay in registers.
const ROWS: usize = 6;
const COLUMNS: usize = 16;
/// Rows and columns of a task: multiples of those.
const TASK_ROWS: usize = 48;
const TASK_COLUMNS: usize = 512;
/// Results that are copied at once where they do not lie one behind the other, about.
const COPIED: usize = 1 << 20;
/// Terms that are packed at once: so many of a block of columns, and of a block of rows beside
/// them, stay in the first-level cache.
const PIECE: usize = 256;
/// Columns that are packed at once.
const TOGETHER: usize = 64;

/// A product, with its tensors as slices.
pub struct Product<'a, T: Operand> {
    /// Left factors.
    pub a: (&'a [T], Layout),
    /// Right factors.
    pub b: (&'a [T], Layout),
    /// Results.
    pub c: (&'a mut [T::Out], Layout),
    /// `m`, `n`, `k`.
    pub shape: [usize; 3],
    /// Matrices.
    pub batch: usize,
    /// Factor of the product.
    pub alpha: T::Sum,
    /// Factor of what `C` held.
    pub beta: T::Sum,
}

vectorised! {
    /// Takes the terms of packed rows and columns into their sums.
    fn float_block(a: &[[f32; ROWS]], b: &[[f32; COLUMNS]], sums: &mut [[f32; COLUMNS]; ROWS]) {
        let mut acc = *sums;
        for (a, b) in a.iter().zip(b) {
            for (acc, a) in acc.iter_mut().zip(a) {
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc = fma(*a, *b, *acc);
                }
            }
        }
        *sums = acc;
    }
}

vectorised! {
    /// The same in integers modulo 2^32.
    fn int_block(a: &[[i32; ROWS]], b: &[[i32; COLUMNS]], sums: &mut [[i32; COLUMNS]; ROWS]) {
        let mut acc = *sums;
        for (a, b) in a.iter().zip(b) {
            for (acc, a) in acc.iter_mut().zip(a) {
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc = acc.wrapping_add(a.wrapping_mul(*b));
                }
            }
        }
        *sums = acc;
    }
}

vectorised! {
    /// Results of the sums of a row of a block.
    fn finish_row<T: Operand>(
        alpha: T::Sum,
        sums: &[T::Sum; COLUMNS],
        beta: T::Sum,
        c: &mut [T::Out],
    ) {
        for (c, sum) in c.iter_mut().zip(sums) {
            *c = T::finish(alpha, *sum, beta, *c);
        }
    }
}

/// A type that sums are made in.
pub trait Block: Copy + Sized {
    /// Takes the terms of packed rows and columns into their sums.
    fn block(
        simd: Simd,
        a: &[[Self; ROWS]],
        b: &[[Self; COLUMNS]],
        sums: &mut [[Self; COLUMNS]; ROWS],
    );
}

impl Block for f32 {
    fn block(
        simd: Simd,
        a: &[[f32; ROWS]],
        b: &[[f32; COLUMNS]],
        sums: &mut [[f32; COLUMNS]; ROWS],
    ) {
        float_block(simd, a, b, sums);
    }
}

impl Block for i32 {
    fn block(
        simd: Simd,
        a: &[[i32; ROWS]],
        b: &[[i32; COLUMNS]],
        sums: &mut [[i32; COLUMNS]; ROWS],
    ) {
        int_block(simd, a, b, sums);
    }
}

/// Makes the product, which has at least one element. The shapes were checked.
///
/// # Errors
/// No memory for a copy of results that do not lie one behind the other.
pub fn bmm<T: Operand>(
    threads: &Threads,
    simd: Simd,
    product: Product<'_, T>,
) -> Result<(), OpError> {
    let Product { a, b, c: (c, layout), shape, batch, alpha, beta } = product;
    let job = Job { simd, a, b, shape, alpha, beta };
    let [m, n, _] = shape;
    // Rows of all matrices, one behind the other.
    let rows = m * batch;
    if (m == 1 || layout.ld == n) && (batch == 1 || layout.stride == m * n) {
        job.run(threads, 0, &mut c[layout.at..][..rows * n]);
        return Ok(());
    }
    let held = (COPIED / n).next_multiple_of(TASK_ROWS).clamp(1, rows);
    let mut block: Vec<T::Out> = Vec::new();
    let len = held.saturating_mul(n);
    let bytes = len.saturating_mul(size_of::<T::Out>());
    let refused = |_| OpError::HostMemory { label: "bmm", bytes };
    block.try_reserve_exact(len).map_err(refused)?;
    block.resize(len, T::Out::default());
    for first in (0..rows).step_by(held) {
        let block = &mut block[..held.min(rows - first) * n];
        let place = |i: usize| layout.index((first + i) / m, (first + i) % m, 0);
        for (i, row) in block.chunks_exact_mut(n).enumerate() {
            row.copy_from_slice(&c[place(i)..][..n]);
        }
        job.run(threads, first, block);
        for (i, row) in block.chunks_exact(n).enumerate() {
            c[place(i)..][..n].copy_from_slice(row);
        }
    }
    Ok(())
}

struct Job<'a, T: Operand> {
    simd: Simd,
    a: (&'a [T], Layout),
    b: (&'a [T], Layout),
    shape: [usize; 3],
    alpha: T::Sum,
    beta: T::Sum,
}

/// Sums of a block.
type Sums<S> = [[S; COLUMNS]; ROWS];

/// What a task packs and sums in.
struct Room<S> {
    /// Rows in [`ROWS`], the terms of a piece each.
    left: Vec<[S; ROWS]>,
    /// Columns in [`COLUMNS`], the same.
    right: Vec<[S; COLUMNS]>,
    /// Chains of the chunk: blocks of rows for each block of columns.
    sums: Vec<Sums<S>>,
    /// Sums of the chunks before it, where there are several.
    total: Vec<Sums<S>>,
}

impl<T: Operand> Job<'_, T> {
    /// Results from row `first` of all on, one behind the other.
    fn run(&self, threads: &Threads, first: usize, c: &mut [T::Out]) {
        let [m, n, k] = self.shape;
        let shape = [c.len() / n, n];
        threads.run_tiles(c, shape, [TASK_ROWS, TASK_COLUMNS], |mut tile| {
            let (rows, columns) = (tile.rows(), tile.columns());
            let blocks = rows.len().min(m).div_ceil(ROWS);
            let depth = k.min(PIECE);
            let sums = blocks * columns.len().div_ceil(COLUMNS);
            let mut room = Room {
                left: vec![[T::ZERO; ROWS]; blocks * depth],
                right: vec![[T::ZERO; COLUMNS]; TOGETHER / COLUMNS * depth],
                sums: vec![[[T::ZERO; COLUMNS]; ROWS]; sums],
                total: vec![[[T::ZERO; COLUMNS]; ROWS]; if k > K_CHUNK { sums } else { 0 }],
            };
            let mut row = rows.start;
            while row < rows.end {
                // Up to the end of a matrix.
                let (index, of_matrix) = ((first + row) / m, (first + row) % m);
                let height = (m - of_matrix).min(rows.end - row);
                self.sums(index, of_matrix, height, columns.clone(), &mut room);
                let blocks = height.div_ceil(ROWS);
                for i in 0..height {
                    let sums = room.sums[i / ROWS..].iter().step_by(blocks);
                    for (c, sums) in tile.row(row + i).chunks_mut(COLUMNS).zip(sums) {
                        finish_row::<T>(self.simd, self.alpha, &sums[i % ROWS], self.beta, c);
                    }
                }
                row += height;
            }
        });
    }

    /// The sums of `height` rows from `row` on of matrix `index`, some columns.
    fn sums(
        &self,
        index: usize,
        row: usize,
        height: usize,
        columns: Range<usize>,
        room: &mut Room<T::Sum>,
    ) {
        let ((a, a_layout), (b, b_layout), k) = (self.a, self.b, self.shape[2]);
        let a_steps = steps(!a_layout.transposed, a_layout);
        let b_steps = steps(b_layout.transposed, b_layout);
        let (blocks, depth) = (height.div_ceil(ROWS), k.min(PIECE));
        let Room { left, right, sums, total } = room;
        sums.fill([[T::ZERO; COLUMNS]; ROWS]);
        for start in (0..k).step_by(PIECE) {
            let len = PIECE.min(k - start);
            if start > 0 && start % K_CHUNK == 0 {
                for (total, sums) in elements(total).zip(elements(sums)) {
                    *total = if start == K_CHUNK { *sums } else { T::add(*total, *sums) };
                    *sums = T::ZERO;
                }
            }
            let at = a_layout.index(index, row, start);
            pack(a, at, a_steps, height, [len, depth], left);
            for first in columns.clone().step_by(TOGETHER) {
                let at = b_layout.index(index, start, first);
                let lanes = TOGETHER.min(columns.end - first);
                pack(b, at, b_steps, lanes, [len, depth], right);
                let sums = sums[(first - columns.start) / COLUMNS * blocks..].chunks_mut(blocks);
                let right = right.chunks_exact(depth).take(lanes.div_ceil(COLUMNS));
                for (right, sums) in right.zip(sums) {
                    for (left, sums) in left.chunks_exact(depth).zip(sums) {
                        T::Sum::block(self.simd, &left[..len], &right[..len], sums);
                    }
                }
            }
        }
        if k > K_CHUNK {
            for (total, sums) in elements(total).zip(elements(sums)) {
                *sums = T::add(*total, *sums);
            }
        }
    }
}

/// The sums of all blocks.
fn elements<S>(sums: &mut [Sums<S>]) -> impl Iterator<Item = &mut S> {
    sums.as_flattened_mut().as_flattened_mut().iter_mut()
}

/// Elements from term to term and from lane to lane, where the terms of a lane are neighbours or
/// the lanes of a term.
const fn steps(terms_are_neighbours: bool, layout: Layout) -> [usize; 2] {
    if terms_are_neighbours { [1, layout.ld] } else { [layout.ld, 1] }
}

/// Puts `len` terms of `lanes` rows or columns side by side, from element `at` on: `depth` for each
/// block of `W` lanes.
fn pack<T: Operand, const W: usize>(
    x: &[T],
    at: usize,
    [term, lane]: [usize; 2],
    lanes: usize,
    [len, depth]: [usize; 2],
    out: &mut [[T::Sum; W]],
) {
    if lane == 1 {
        for i in 0..len {
            let parts = x[at + i * term..][..lanes].chunks(W);
            for (out, part) in out[i..].iter_mut().step_by(depth).zip(parts) {
                for (out, x) in out.iter_mut().zip(part) {
                    *out = x.widen();
                }
            }
        }
    } else {
        for j in 0..lanes {
            let out = &mut out[j / W * depth..][..len];
            for (out, x) in out.iter_mut().zip(&x[at + j * lane..][..len]) {
                out[j % W] = x.widen();
            }
        }
    }
}

const _: () = assert!(K_CHUNK.is_multiple_of(PIECE) && TASK_COLUMNS.is_multiple_of(TOGETHER));
const _: () = assert!(TOGETHER.is_multiple_of(COLUMNS) && TASK_ROWS.is_multiple_of(ROWS));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::tests::{bits, every_way};
    use crate::reference::{Inputs, bmm as reference};

    /// `C = 2 A B + C / 2` with rows of `C` that are `apart` elements longer than they need.
    fn check([m, n, k]: [usize; 3], batch: usize, transposed: bool, apart: usize) {
        let mut inputs = Inputs::new(7);
        let (a, b) = (inputs.floats(batch * m * k, 1.0), inputs.floats(batch * k * n, 1.0));
        let (mut a_layout, mut b_layout) = (Layout::rows(m, k), Layout::rows(k, n));
        if transposed {
            (a_layout, b_layout) = (Layout::columns(m, k), Layout::columns(k, n));
        }
        let layout = Layout { ld: n + apart, stride: m * (n + apart), ..Layout::rows(m, n) };
        let old = inputs.floats(batch * m * (n + apart), 1.0);
        let mut want = old.clone();
        let sums = reference::sums((&a, a_layout), (&b, b_layout), [m, n, k], batch);
        for (i, sum) in sums.into_iter().enumerate() {
            let at = layout.index(i / n / m, i / n % m, i % n);
            want[at] = <f32 as Operand>::finish(2.0, sum, 0.5, old[at]);
        }
        every_way(|threads, simd| {
            let mut c = old.clone();
            let product = Product {
                a: (&a, a_layout),
                b: (&b, b_layout),
                c: (&mut c, layout),
                shape: [m, n, k],
                batch,
                alpha: 2.0,
                beta: 0.5,
            };
            bmm(threads, simd, product).expect("memory");
            assert_eq!(bits(&c), bits(&want), "{m}x{n}x{k} {transposed} {apart} {simd:?}");
        });
    }

    #[test]
    fn several_tiles_pieces_and_chunks() {
        for transposed in [false, true] {
            for apart in [0, 3] {
                check([50, 530, 300], 1, transposed, apart);
                check([7, 65, 1030], 3, transposed, apart);
                check([13, 17, 2049], 5, transposed, apart);
            }
        }
    }

    #[test]
    fn rows_longer_than_what_is_copied_at_once() {
        check([2, COPIED + 1, 1], 1, false, 1);
    }
}
