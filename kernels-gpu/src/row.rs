//! Rows over threads, as [`contract::row`] states it: by warps (`T` = 32) or by blocks (`T` = 256).
//!
//! Element `j` of a thread is `t + T j` of its row: the first `HELD` stay in registers, those behind
//! (`far`) are read again in every pass, eight loads at a time.

use contract::num::{order_key, order_value, tree8};
use contract::row::{SMEM_BYTES, THREADS};

use crate::arch::block;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id, warp_max, warp_tree};

const _: () = assert!(THREADS == block::THREADS && SMEM_BYTES >= 4 * (2 * block::THREADS + 8));

/// A row that belongs to a warp.
pub const WARP: u32 = 32;
/// A row that belongs to a block.
pub const BLOCK: u32 = THREADS;
/// Elements that a thread of a warp holds: all of a row up to [`contract::row::SHORT`].
pub const HELD_BY_WARP: usize = 32;
/// Elements that a thread of a block holds, of rows up to 3,072.
pub const HELD_FEW: usize = 12;
/// The same of longer rows: those up to 8,192 are read once.
pub const HELD_MANY: usize = 32;
/// Loads of far elements in flight.
const FAR: usize = 8;

const _: () = assert!(contract::row::SHORT as usize == WARP as usize * HELD_BY_WARP);

/// Whether a thread of a block holds all of a row with few registers.
#[inline(always)]
pub fn is_few(k: u32) -> bool {
    k <= BLOCK * HELD_FEW as u32
}

/// The row of this warp or block; past the last one for warps without work.
#[inline(always)]
pub fn row<const T: u32>() -> u32 {
    if T == WARP { block_idx_x() * (THREADS / WARP) + warp_id() } else { block_idx_x() }
}

/// Index in its row of element `j` of this thread.
#[inline(always)]
pub fn element<const T: u32>(j: usize) -> u32 {
    (if T == WARP { lane_id() } else { thread_idx_x() }) + T * j as u32
}

/// The partials of a sum that lie in this thread: 256 / T of them.
#[derive(Clone, Copy)]
pub struct Partials<const T: u32>([f32; 8]);

impl<const T: u32> Partials<T> {
    /// Nothing summed.
    #[inline(always)]
    pub fn new() -> Self {
        Self([0.0; 8])
    }

    /// Takes element `j` of this thread into its chain.
    #[inline(always)]
    pub fn take(&mut self, j: usize, step: impl Fn(f32) -> f32) {
        let slot = if T == WARP { j % 8 } else { 0 };
        self.0[slot] = step(self.0[slot]);
    }

    /// The tree, in every thread of the row. `turn` is 0 and 1 for the two sums of a kernel: each
    /// has its own half of the shared memory.
    ///
    /// *Convergence*: every thread of the warp or block calls it.
    ///
    /// # Safety
    ///
    /// The block has `contract::row::SMEM_BYTES` of shared memory, of which words `256 turn` on are for this
    /// call.
    #[inline(always)]
    pub unsafe fn sum(self, turn: u32) -> f32 {
        if T == WARP {
            return warp_tree(tree8(self.0));
        }
        let scratch: Shared<f32> = dynamic_shared_mem();
        // SAFETY: handed on.
        unsafe { block::sum_partials(scratch.add(THREADS * turn), self.0[0]) }
    }
}

/// The largest value of a row, in every thread of it.
///
/// *Convergence*: every thread of the warp or block calls it.
///
/// # Safety
///
/// The block has `contract::row::SMEM_BYTES` of shared memory, of which words 512 on are for this call.
#[inline(always)]
pub unsafe fn max<const T: u32>(value: f32) -> f32 {
    let key = order_key(value);
    if T == WARP {
        return order_value(warp_max(key));
    }
    let scratch: Shared<u32> = dynamic_shared_mem();
    // SAFETY: handed on.
    order_value(unsafe { block::max(scratch.add(2 * THREADS), key) })
}

/// Walks over the elements of this thread from `held` on, below `k`: `load(i)` for eight of them, then
/// `each(j, i, value)`. `load` is told whether the element is inside.
#[inline(always)]
pub fn far<const T: u32>(
    held: usize,
    k: u32,
    load: impl Fn(bool, u32) -> f32,
    mut each: impl FnMut(usize, u32, f32),
) {
    let mut first = element::<T>(held);
    while first < k {
        let mut values = [0.0; FAR];
        let mut u = 0;
        while u < FAR {
            let i = first + T * u as u32;
            values[u] = load(i < k, i);
            u += 1;
        }
        let mut u = 0;
        while u < FAR {
            let i = first + T * u as u32;
            if i < k {
                // Far elements belong to blocks, whose threads have one partial.
                each(u, i, values[u]);
            }
            u += 1;
        }
        first = opaque(first + T * FAR as u32);
    }
}
