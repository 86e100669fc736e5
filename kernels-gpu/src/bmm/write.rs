//! From sums to `C`.

use contract::bmm::Args;

#[cfg(level_sm_90a)]
use super::source::Float;
use super::target::Target;
#[cfg(level_sm_90a)]
use crate::arch::mem::ld_u16_if;
use crate::arch::mem::prefetch_l2;
use crate::arch::shared::Shared;
use crate::arch::warp::{LANES, Register};

/// Rows that a thread has on their way at once where it writes element by element.
const AT_ONCE: usize = 4;

/// Writes the tile at `(row0, column0)` of matrix `batch` from its sums in shared memory:
/// `(rows, columns, words from one row to the next)`, by thread `t` of `threads`. Each takes every `threads`-th group of
/// four columns, or, where `C` is not in such groups, elements of a few rows, so that a warp writes neighbours. What is
/// outside of `m` by `n` is left out.
///
/// # Safety
///
/// `args` says the truth, the sums are written and a barrier has shown them, and no other block
/// accesses this tile.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a tile, and who writes it")]
pub(super) unsafe fn write<C: Target>(
    args: &Args,
    element: C,
    batch: u32,
    (row0, column0): (u32, u32),
    (m, n): (u32, u32),
    sums: Shared<C::Sum>,
    (rows, columns, ld): (u32, u32, u32),
    (t, threads): (u32, u32),
) {
    if args.c.unit >= 4 * element.width() {
        let shape = (rows, columns, ld);
        // SAFETY: the caller's promise.
        unsafe {
            write_fours(args, element, batch, (row0, column0), (m, n), sums, shape, (t, threads));
        }
        return;
    }
    let first = u64::from(batch) * args.c.stride;
    let at = |row: u32, column: u32| {
        let at = first + u64::from(row0 + row) * args.c.ld + u64::from(column0 + column);
        args.c.addr.as_ptr().wrapping_add((at * u64::from(element.width())) as usize)
    };
    let (reads, zero) = (C::reads(args.beta), C::Sum::from_word(0));
    let (rows_here, columns_here) =
        (rows.min(m.saturating_sub(row0)), columns.min(n.saturating_sub(column0)));
    let lanes = columns.min(LANES);
    let (beside, down, step) = (t % lanes, t / lanes, threads / lanes);
    let mut i = if down < step { down } else { rows_here };
    while i < rows_here {
        let mut j = beside;
        while j < columns_here {
            let row = |r: usize| i + r as u32 * step;
            let mut old = [zero; AT_ONCE];
            // SAFETY: elements that are inside; the caller's promise.
            unsafe {
                if reads {
                    old = core::array::from_fn(|r| {
                        element.load4(at(row(r), j), (row(r) < rows_here).into(), false)[0]
                    });
                }
                let mut r = 0;
                while r < AT_ONCE {
                    if row(r) < rows_here {
                        let sum = sums.add(row(r) * ld + j).read();
                        let out = C::finish(args.alpha, sum, args.beta, old[r]);
                        element.store4(at(row(r), j), 1, false, [out; 4]);
                    }
                    r += 1;
                }
            }
            j += lanes;
        }
        i += AT_ONCE as u32 * step;
    }
}

/// The same, by groups of four columns whatever `C` is in: for matrices that are a tile.
///
/// # Safety
///
/// As for [`write`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a tile, and who writes it")]
pub(super) unsafe fn write_fours<C: Target>(
    args: &Args,
    element: C,
    batch: u32,
    (row0, column0): (u32, u32),
    (m, n): (u32, u32),
    sums: Shared<C::Sum>,
    (rows, columns, ld): (u32, u32, u32),
    (t, threads): (u32, u32),
) {
    let groups = columns / 4;
    let fast = args.c.unit >= 4 * element.width();
    let base = args.c.addr.as_ptr();
    let first = u64::from(batch) * args.c.stride;
    let mut index = t;
    while index < rows * groups {
        let (i, j) = (index / groups, 4 * (index % groups));
        let (row, column) = (row0 + i, column0 + j);
        if row < m && column < n {
            let at = first + u64::from(row) * args.c.ld + u64::from(column);
            let p = base.wrapping_add((at * u64::from(element.width())) as usize);
            let count = (n - column) as i32;
            // SAFETY: the first of the four is inside, and `count` are; the caller's promise.
            unsafe {
                let mut out = sums.add(i * ld + j).read_x4();
                let mut old = [C::Sum::from_word(0); 4];
                if C::reads(args.beta) {
                    old = element.load4(p, count, fast);
                }
                let mut j = 0;
                while j < 4 {
                    out[j] = C::finish(args.alpha, out[j], args.beta, old[j]);
                    j += 1;
                }
                element.store4(p, count, fast, out);
            }
        }
        index += threads;
    }
}

/// Writes elements of a column from their sums, where they are inside of `C`.
///
/// # Safety
///
/// `args` says the truth; no other thread accesses these elements.
#[cfg(level_sm_90a)]
#[inline(always)]
pub(super) unsafe fn write_column<const ROWS: usize>(
    args: &Args,
    element: Float<false>,
    batch: u32,
    (row, column): (u32, u32),
    sums: [f32; ROWS],
) {
    if row >= args.m || column >= args.n {
        return;
    }
    let at = u64::from(batch) * args.c.stride + u64::from(row) * args.c.ld + u64::from(column);
    let p = args.c.addr.cast::<u16>().as_ptr().wrapping_add(at as usize);
    let at = |r: usize| p.wrapping_add((r as u64 * args.c.ld) as usize);
    let there = |r: usize| r == 0 || row + (r as u32) < args.m;
    // SAFETY: elements that are inside; the caller's promise.
    unsafe {
        let mut old = [0.0; ROWS];
        if Float::<false>::reads(args.beta) {
            old[0] = element.load_half(p);
            let mut r = 1;
            while r < ROWS {
                old[r] = element.widen(ld_u16_if(there(r), at(r)));
                r += 1;
            }
        }
        let mut r = 0;
        while r < ROWS {
            if there(r) {
                let out = Float::<false>::finish(args.alpha, sums[r], args.beta, old[r]);
                element.store_half(at(r), out);
            }
            r += 1;
        }
    }
}

/// Asks for what `C` holds of a tile, elements of `width` bytes, so that it is in the cache when it is read.
///
/// # Safety
///
/// `args` says the truth.
#[inline(always)]
pub(super) unsafe fn prefetch_tile(
    args: &Args,
    width: u32,
    (batch, row0, column0): (u32, u32, u32),
    (m, n): (u32, u32),
    (rows, columns): (u32, u32),
    (t, threads): (u32, u32),
) {
    let line = 128 / width;
    let lines = columns.div_ceil(line);
    let (mut row, column) = (row0 + t / lines, column0 + t % lines * line);
    let end = if column < n { m.min(row0 + rows) } else { 0 };
    while row < end {
        let at = u64::from(batch) * args.c.stride + u64::from(row) * args.c.ld;
        let at = (at + u64::from(column)) * u64::from(width);
        // SAFETY: an element of C.
        unsafe { prefetch_l2(args.c.addr.as_ptr().wrapping_add(at as usize)) };
        row += threads / lines;
    }
}

/// Writes a thread's squares of 4 by 4 straight from its sums; the first stands at `(row0, column0)`,
/// the others `steps` apart. What is outside of `m` by `n` is left out.
///
/// # Safety
///
/// `args` says the truth: groups of four are whole and aligned, and `C` is not read. No other thread
/// accesses these elements.
#[inline(always)]
pub(super) unsafe fn write_squares<C: Target, const RM: usize, const RN: usize>(
    args: &Args,
    element: C,
    batch: u32,
    (row0, column0): (u32, u32),
    (m, n): (u32, u32),
    steps: (u32, u32),
    sums: [[[[C::Sum; 4]; RN]; 4]; RM],
) {
    let first = u64::from(batch) * args.c.stride + u64::from(column0);
    let mut r = 0;
    while r < 4 * RM {
        let row = row0 + r as u32 / 4 * steps.0 + r as u32 % 4;
        let line = (first + u64::from(row) * args.c.ld) * u64::from(element.width());
        let line = args.c.addr.as_ptr().wrapping_add(line as usize);
        let mut c = 0;
        while c < RN {
            let step = c as u32 * steps.1;
            if row < m && column0 + step < n {
                let zero = C::Sum::from_word(0);
                let out = sums[r / 4][r % 4][c].map(|sum| C::finish(args.alpha, sum, 0, zero));
                // SAFETY: all four are inside when the first is; the caller's promise.
                unsafe {
                    let p = line.wrapping_add((step * element.width()) as usize);
                    element.store4(p, 4, true, out);
                }
            }
            c += 1;
        }
        r += 1;
    }
}
