//! Copies factors of i8 to lines of terms in whole pieces of 16 bytes: a block 64 terms of 128 rows (columns of `B`).
//!
//! Where rows are neighbours in memory, squares of four by four are turned in registers, and lines put together in shared
//! memory: word `w` of row `r` stands at `16 r + (w ^ r / 4 % 16)`.

use contract::bmm::{LINES_SIDES, LINES_TERMS, Lined, LinesArgs};

use super::source::{transpose, window};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st_x4;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};

/// Warps of a block.
const WARPS: u32 = 8;
/// Words of a line.
const WORDS: u32 = LINES_TERMS / 4;
/// Squares, and pieces, of a thread.
const EACH: u32 = 2;
const _: () = assert!(LINES_SIDES == 4 * LANES && WORDS == EACH * WARPS);

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with [`LinesArgs::blocks`]; factors and copies cover what `args` says, and no copy
/// overlaps anything.
#[inline(always)]
pub(super) unsafe fn lines(args: &LinesArgs) {
    let (block, first) = (u64::from(block_idx_x()), args.a.blocks());
    dependency_wait();
    // SAFETY: the caller's promise.
    unsafe {
        if block < first {
            copy(&args.a, block as u32);
        } else {
            copy(&args.b, (block - first) as u32);
        }
    }
    // Not before: the blocks of the product would crowd where there is room already.
    launch_dependents();
}

/// # Safety
///
/// As for [`lines`]; a block of the factor.
#[inline(always)]
unsafe fn copy(factor: &Lined, block: u32) {
    let (down, beside) = (factor.sides.div_ceil(LINES_SIDES), factor.to_len.div_ceil(LINES_TERMS));
    let (matrix, tile) = (block / (down * beside), block % (down * beside));
    let (side0, k0) = (tile / beside * LINES_SIDES, tile % beside * LINES_TERMS);
    let from = factor.from.as_ptr().cast_const();
    let from = from.wrapping_add((u64::from(matrix) * factor.stride) as usize);
    let lines = u64::from(matrix) * u64::from(factor.sides);
    let turned = dynamic_shared_mem::<u32>();
    if factor.along == 0 {
        let side = side0 + 4 * lane_id();
        let mut squares = [[0; 4]; EACH as usize];
        let mut i = 0;
        // SAFETY: what is counted is there; the caller's promise.
        unsafe {
            while i < EACH {
                let k = k0 + 4 * (warp_id() + WARPS * i);
                let mut row = 0;
                while row < 4 {
                    let count =
                        if k + row < factor.k { factor.sides as i32 - side as i32 } else { 0 };
                    let at = u64::from(k + row) * factor.ld + u64::from(side);
                    [squares[i as usize][row as usize]] =
                        window::<1, 2>(from.wrapping_add(at as usize), count);
                    row += 1;
                }
                i += 1;
            }
            let mut i = 0;
            while i < EACH {
                let words = transpose(squares[i as usize]);
                let w = warp_id() + WARPS * i;
                let mut row = 0;
                while row < 4 {
                    let at = (4 * lane_id() + row) * WORDS + (w ^ lane_id() % WORDS);
                    turned.add(at).write(words[row as usize]);
                    row += 1;
                }
                i += 1;
            }
        }
        sync_threads();
    }
    let (row, piece) = (thread_idx_x() / (WORDS / 4), thread_idx_x() % (WORDS / 4));
    let mut i = 0;
    while i < EACH {
        let row = row + i * (LINES_SIDES / EACH);
        let (side, k) = (side0 + row, k0 + 16 * piece);
        if side < factor.sides && k < factor.to_len {
            // SAFETY: terms that are there, a piece of the copy that is; words that were written before the barrier.
            unsafe {
                let words = if factor.along != 0 {
                    let at = u64::from(side) * factor.ld + u64::from(k);
                    window::<4, 5>(from.wrapping_add(at as usize), factor.k as i32 - k as i32)
                } else {
                    core::array::from_fn(|j| {
                        let w = 4 * piece + j as u32;
                        turned.add(row * WORDS + (w ^ row / 4 % WORDS)).read()
                    })
                };
                let at = (lines + u64::from(side)) * u64::from(factor.to_len) + u64::from(k);
                st_x4(factor.to.as_ptr().wrapping_add(at as usize).cast(), words);
            }
        }
        i += 1;
    }
}
