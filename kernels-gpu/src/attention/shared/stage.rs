//! From memory to shared memory.

use contract::attention::TILE_THREADS;

use crate::arch::hint::opaque;
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::element::CacheElement;

/// Pieces of 8 elements that a thread loads at once.
const AT_ONCE: usize = 2;

/// Elements `first..first + 64` of `count` rows into shared memory by way of `put`, `AT_ONCE` pieces in flight.
#[inline(always)]
pub(super) fn stage<const D: u32>(
    count: u32,
    load: impl Fn(u32, u32) -> [f32; 8],
    put: impl Fn(u32, u32, [f32; 8]),
) {
    let (pieces, across) = (D / 8, TILE_THREADS / (D / 8));
    let piece = thread_idx_x() % pieces;
    let mut row = opaque(thread_idx_x() / pieces);
    while row < count {
        let values: [[f32; 8]; AT_ONCE] =
            core::array::from_fn(|i| load(row + across * i as u32, piece));
        let mut i = 0;
        while i < AT_ONCE {
            put(row + across * i as u32, piece, values[i]);
            i += 1;
        }
        row += across * AT_ONCE as u32;
    }
}

/// Eight neighbours, sorted by partial.
///
/// # Safety
///
/// `row` starts `D` words of shared memory that no other thread accesses.
#[inline(always)]
pub(super) unsafe fn put_sorted<const D: u32>(row: Shared<f32>, piece: u32, values: [f32; 8]) {
    let mut p = 0;
    while p < 8 {
        // SAFETY: one of the row's words.
        unsafe { row.add(p * (D / 8) + piece).write(values[p as usize]) };
        p += 1;
    }
}

/// Eight elements of position `at` of a cache from `piece` on; without `there`, or behind the head, anything.
///
/// # Safety
///
/// With `there`, `at` is an address of a position.
#[inline(always)]
pub(super) unsafe fn load_piece<E: CacheElement>(
    there: bool,
    at: *const E,
    piece: u32,
    head_dim: u32,
) -> [f32; 8] {
    let at = at.wrapping_add(8 * piece as usize);
    let there = there && 8 * piece < head_dim;
    // SAFETY: rows of a cache are padded to 8 elements.
    let [low, high] = unsafe { [E::load4_if(there, at), E::load4_if(there, at.wrapping_add(4))] };
    [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
}
