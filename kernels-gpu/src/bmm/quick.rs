//! The one arithmetic ([`super::exact`]) of f32 products of few tiles and terms, any alignment: a block asks for all terms of
//! a tile of 16 by 32 at once and makes it, 2 by 2 outputs a thread. Short loops: what a launch of microseconds waits for is
//! also its text.
//!
//! A factor stands in shared memory in the lines that it has in memory.

use contract::bmm::{Args, Matrix, QUICK_COLUMNS, QUICK_ROWS, quick_pitch};
use contract::num::fma;

use super::source::Float;
use super::target::Target;
use crate::arch::async_copy::{commit_group, copy_x4_if, copy_x16_if, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, rolled};
use crate::arch::mem::{ld_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque_u64, sync_threads, thread_idx_x};
use crate::arch::warp::LANES;

/// Threads of a block.
const THREADS: u32 = 128;
/// Rows and columns of threads.
const TALL: u32 = QUICK_ROWS / 2;
const WIDE: u32 = QUICK_COLUMNS / 2;

/// Asks for all terms of `SIDES` rows (columns of `B`) from `first` on, of which `here` are there, `WIDTH` elements a copy.
///
/// # Safety
///
/// The matrix covers what its contract says, has pieces of as many elements, and no thread writes it; nobody accesses `to`.
#[inline(always)]
unsafe fn ask<const SIDES: u32, const WIDTH: u32>(
    to: Shared<f32>,
    matrix: &Matrix,
    along: bool,
    batch: u32,
    (first, here): (u32, u32),
    k: u32,
) {
    let p = matrix.addr.cast::<f32>().as_ptr().cast_const();
    let p = p.wrapping_add((u64::from(batch) * matrix.stride) as usize);
    let copy = |to: Shared<f32>, p: *const f32, there: bool| {
        // SAFETY: elements of the matrix, all of a piece when the first is; the caller's promise.
        unsafe { if WIDTH == 4 { copy_x16_if(to, p, there) } else { copy_x4_if(to, p, there) } }
    };
    let t = thread_idx_x();
    if along {
        let lanes = if WIDTH == 4 { 16 } else { LANES };
        let (line, mut x) = (t / lanes, opaque(t % lanes * WIDTH));
        let mut at = p.wrapping_add((u64::from(first + line) * matrix.ld + u64::from(x)) as usize);
        let next = opaque_u64(u64::from(THREADS / lanes) * matrix.ld * 4) as usize;
        let mut to = to.add(line * quick_pitch(k) + x);
        let down = opaque(THREADS / lanes * quick_pitch(k));
        while x < k {
            let (mut p, mut i) = (at, 0);
            while i < SIDES / (THREADS / lanes) {
                copy(to.add(i * down), p, line + i * (THREADS / lanes) < here);
                (p, i) = (p.wrapping_byte_add(next), i + 1);
            }
            x = opaque(x + lanes * WIDTH);
            (at, to) = (at.wrapping_add((lanes * WIDTH) as usize), to.add(lanes * WIDTH));
        }
    } else {
        let lanes = SIDES / WIDTH;
        let (mut line, side) = (opaque(t / lanes), t % lanes * WIDTH);
        let mut p =
            p.wrapping_add((u64::from(line) * matrix.ld + u64::from(first + side)) as usize);
        let next = opaque_u64(u64::from(THREADS / lanes) * matrix.ld * 4) as usize;
        let mut to = to.add(line * SIDES + side);
        let end = if side < here { k } else { 0 };
        while line < end {
            let mut i = 0;
            while i < 4 {
                let lines = i * (THREADS / lanes);
                copy(to.add(lines * SIDES), p, line + lines < end);
                (p, i) = (p.wrapping_byte_add(next), i + 1);
            }
            line = opaque(line + 4 * (THREADS / lanes));
            to = to.add(4 * (THREADS / lanes) * SIDES);
        }
    }
}

/// `N` terms of two rows (columns of `B`), `[term][row]`: from `at` on, the second `next` words behind the first.
///
/// # Safety
///
/// Shared memory that was waited for; where lines are rows, `N` is 1 or `at` and `next` are multiples of four.
#[inline(always)]
unsafe fn terms<const ALONG: bool, const SIDES: u32, const N: usize>(
    at: Shared<f32>,
    next: u32,
) -> [[f32; 2]; N] {
    let mut out = [[0.0; 2]; N];
    let mut row = 0;
    while row < 2 {
        // SAFETY: the caller's promise.
        unsafe {
            if ALONG && N == 4 {
                let values = at.add(row as u32 * next).read_x4();
                let mut i = 0;
                while i < N {
                    out[i][row] = values[i];
                    i += 1;
                }
            } else {
                let mut i = 0;
                while i < N {
                    let place = if ALONG { i as u32 } else { i as u32 * SIDES };
                    out[i][row] = at.add(row as u32 * next + place).read();
                    i += 1;
                }
            }
        }
        row += 1;
    }
    out
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, and is what
/// [`contract::bmm::Variant::takes`] allows; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn quick(args: &Args) {
    launch_dependents();
    let (m, n, k) = (args.m, args.n, args.k);
    let across = n.div_ceil(QUICK_COLUMNS);
    let tiles = m.div_ceil(QUICK_ROWS) * across;
    let index = block_idx_x();
    let (batch, tile) = if tiles == 1 { (index, 0) } else { (index / tiles, index % tiles) };
    let (down, beside) = if across == 1 { (tile, 0) } else { (tile / across, tile % across) };
    let (row0, column0) = (down * QUICK_ROWS, beside * QUICK_COLUMNS);
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let a = dynamic_shared_mem::<f32>();
    let b = a.add(QUICK_ROWS * quick_pitch(k));
    dependency_wait();
    // SAFETY: the caller's promise; what is asked for is read after it was waited for, and behind a barrier.
    unsafe {
        let rows = (row0, (m - row0).min(QUICK_ROWS));
        let columns = (column0, (n - column0).min(QUICK_COLUMNS));
        if args.a.unit >= 16 {
            ask::<QUICK_ROWS, 4>(a, &args.a, along.0, batch, rows, k);
        } else {
            ask::<QUICK_ROWS, 1>(a, &args.a, along.0, batch, rows, k);
        }
        if args.b.unit >= 16 {
            ask::<QUICK_COLUMNS, 4>(b, &args.b, along.1, batch, columns, k);
        } else {
            ask::<QUICK_COLUMNS, 1>(b, &args.b, along.1, batch, columns, k);
        }
        commit_group();
    }
    let (ty, tx) = (thread_idx_x() / WIDE, thread_idx_x() % WIDE);
    // The outputs of this thread, and what they hold.
    let reads = Float::<true>::reads(args.beta);
    let c = args.c.addr.cast::<f32>().as_ptr();
    let place = |y: usize, x: usize| {
        let (row, column) = (row0 + ty + y as u32 * TALL, column0 + tx + x as u32 * WIDE);
        let at = u64::from(batch) * args.c.stride + u64::from(row) * args.c.ld;
        (c.wrapping_add((at + u64::from(column)) as usize), row < m && column < n)
    };
    let mut old = [[0.0; 2]; 2];
    // SAFETY: elements of `C`, this thread's; copies as above.
    unsafe {
        if reads {
            old = core::array::from_fn(|y| {
                core::array::from_fn(|x| {
                    let (p, there) = place(y, x);
                    ld_if(there, p.cast_const())
                })
            });
        }
        wait_group::<0>();
        sync_threads();
    }
    let mut sums = [[0.0f32; 2]; 2];
    let pitch = quick_pitch(k);
    macro_rules! product {
        ($a:literal, $b:literal) => {{
            let (mut left, left_next) =
                if $a { (a.add(ty * pitch), TALL * pitch) } else { (a.add(ty), TALL) };
            let (mut right, right_next) =
                if $b { (b.add(tx * pitch), WIDE * pitch) } else { (b.add(tx), WIDE) };
            macro_rules! take {
                ($n:literal) => {{
                    // SAFETY: terms that are there.
                    let (l, r) = unsafe {
                        (
                            terms::<$a, QUICK_ROWS, $n>(left, left_next),
                            terms::<$b, QUICK_COLUMNS, $n>(right, right_next),
                        )
                    };
                    let mut i = 0;
                    while i < $n {
                        let mut y = 0;
                        while y < 2 {
                            let mut x = 0;
                            while x < 2 {
                                sums[y][x] = fma(l[i][y], r[i][x], sums[y][x]);
                                x += 1;
                            }
                            y += 1;
                        }
                        i += 1;
                    }
                    left = left.add(if $a { $n } else { $n * QUICK_ROWS });
                    right = right.add(if $b { $n } else { $n * QUICK_COLUMNS });
                }};
            }
            let mut i = opaque(0);
            while i + 8 <= k {
                rolled();
                take!(4);
                take!(4);
                i = opaque(i + 8);
            }
            if i + 4 <= k {
                take!(4);
                i = opaque(i + 4);
            }
            while i < k {
                take!(1);
                i = opaque(i + 1);
            }
        }};
    }
    match along {
        (true, false) => product!(true, false),
        (true, true) => product!(true, true),
        (false, false) => product!(false, false),
        (false, true) => product!(false, true),
    }
    let mut y = 0;
    while y < 2 {
        let mut x = 0;
        while x < 2 {
            let (p, there) = place(y, x);
            if there {
                let out = Float::<true>::finish(args.alpha, sums[y][x], args.beta, old[y][x]);
                // SAFETY: an element of `C`, this thread's.
                unsafe { st(p, out) };
            }
            x += 1;
        }
        y += 1;
    }
}
