//! CPU side of [`contract::bmm`]: panels of 16 columns, packed once per chunk of k, four rows at a
//! time. Sixteen outputs stand in a vector, so each keeps its own chain.

use contract::bmm::K_CHUNK;
use contract::num::fma;

use super::simd::vectorised;
use super::{Simd, Threads};
use crate::ops::OpError;
use crate::ops::bmm::{Layout, Operand};

/// Rows and columns of the sums that stay in registers.
const ROWS: usize = 4;
const COLUMNS: usize = 16;
/// Rows of a task.
const TASK_ROWS: usize = 32;
/// Sums that are held at once, about.
const HELD: usize = 1 << 20;

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

/// Makes the product. The shapes were checked.
///
/// # Errors
/// No memory for a block of sums.
pub fn bmm<T: Operand>(
    threads: &Threads,
    simd: Simd,
    product: Product<'_, T>,
) -> Result<(), OpError>
where
    T::Sum: Block,
{
    let Product { a, b, c: (c, layout), shape: [m, n, k], batch, alpha, beta } = product;
    if m == 0 || n == 0 {
        return Ok(());
    }
    // Rows of all matrices, one behind the other; a block of them at a time.
    let rows = m * batch;
    let held = (HELD / n).next_multiple_of(TASK_ROWS).clamp(TASK_ROWS, rows.max(TASK_ROWS));
    let held = held.min(rows);
    let mut sums: Vec<T::Sum> = Vec::new();
    let len = held.saturating_mul(n);
    let bytes = len.saturating_mul(size_of::<T::Sum>());
    let refused = |_| OpError::HostMemory { label: "bmm", bytes };
    sums.try_reserve_exact(len).map_err(refused)?;
    sums.resize(len, T::ZERO);
    for start in (0..rows).step_by(held.max(1)) {
        let count = held.min(rows - start);
        threads.run_pieces(&mut sums[..count * n], TASK_ROWS * n, |task, sums| {
            let first = start + task * TASK_ROWS;
            let mut done = 0;
            while done * n < sums.len() {
                // Up to the end of a matrix.
                let (index, row) = ((first + done) / m, (first + done) % m);
                let rows = (m - row).min(sums.len() / n - done);
                let sums = &mut sums[done * n..][..rows * n];
                part::<T>(simd, (a.0, a.1, b.0, b.1), index, row, [rows, n, k], sums);
                done += rows;
            }
        });
        for (i, sums) in sums[..count * n].chunks_exact(n).enumerate() {
            let (index, row) = ((start + i) / m, (start + i) % m);
            let c = &mut c[layout.index(index, row, 0)..][..n];
            for (c, sum) in c.iter_mut().zip(sums) {
                *c = T::finish(alpha, *sum, beta, *c);
            }
        }
    }
    Ok(())
}

/// The sums of `rows` rows from `row0` on of matrix `index`, `[rows, n]`.
fn part<T: Operand>(
    simd: Simd,
    (a, a_layout, b, b_layout): (&[T], Layout, &[T], Layout),
    index: usize,
    row0: usize,
    [rows, n, k]: [usize; 3],
    sums: &mut [T::Sum],
) where
    T::Sum: Block,
{
    sums.fill(T::ZERO);
    let depth = k.min(K_CHUNK);
    let mut right = vec![[T::ZERO; COLUMNS]; depth];
    let mut left = vec![[T::ZERO; ROWS]; depth];
    for start in (0..k).step_by(K_CHUNK) {
        let len = K_CHUNK.min(k - start);
        for column0 in (0..n).step_by(COLUMNS) {
            let columns = COLUMNS.min(n - column0);
            for (i, right) in right[..len].iter_mut().enumerate() {
                for (j, right) in right[..columns].iter_mut().enumerate() {
                    *right = b[b_layout.index(index, start + i, column0 + j)].widen();
                }
            }
            for first in (0..rows).step_by(ROWS) {
                let height = ROWS.min(rows - first);
                for (i, left) in left[..len].iter_mut().enumerate() {
                    for (r, left) in left[..height].iter_mut().enumerate() {
                        *left = a[a_layout.index(index, row0 + first + r, start + i)].widen();
                    }
                }
                let mut block = [[T::ZERO; COLUMNS]; ROWS];
                T::Sum::block(simd, &left[..len], &right[..len], &mut block);
                for (r, block) in block[..height].iter().enumerate() {
                    let sums = &mut sums[(first + r) * n + column0..][..columns];
                    for (sum, block) in sums.iter_mut().zip(block) {
                        *sum = if start == 0 { *block } else { T::add(*sum, *block) };
                    }
                }
            }
        }
    }
}
