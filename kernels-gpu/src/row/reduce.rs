//! Sums and maxima over a row, from what lies in each of its threads.

use contract::num::{order_key, order_value, tree8};
use contract::row::{HELD, THREADS};

use super::WARP;
use crate::arch::block;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::warp::{warp_max, warp_tree};

/// The partials of a sum that lie in this thread: 256 / T of them.
#[derive(Clone, Copy)]
pub struct Partials<const T: u32>([f32; 8]);

impl<const T: u32> Partials<T> {
    /// Nothing summed.
    #[inline(always)]
    pub fn new() -> Self {
        Self([0.0; 8])
    }

    /// Takes an element into its chain: `turn` is what [`Row::walk`] and [`Row::far`] say.
    #[inline(always)]
    pub fn take(&mut self, turn: usize, step: impl Fn(f32) -> f32) {
        let slot = if T == WARP { turn } else { 0 };
        self.0[slot] = step(self.0[slot]);
    }

    /// The tree, in every thread of the row. `which` is 0 and 1 for the two sums of a kernel: each has
    /// its own part of the shared memory.
    ///
    /// *Convergence*: every thread of the warp or block calls it.
    ///
    /// # Safety
    ///
    /// The block has `contract::row::SMEM_BYTES` of shared memory; each `which` is used once.
    #[inline(always)]
    pub unsafe fn sum(self, which: u32) -> f32 {
        if T == WARP {
            return warp_tree(tree8(self.0));
        }
        let scratch: Shared<f32> = dynamic_shared_mem();
        // SAFETY: words HELD + 256 which on are for this call.
        unsafe { block::sum_partials(scratch.add(HELD + THREADS * which), self.0[0]) }
    }
}

/// The largest value of a row, in every thread of it.
///
/// *Convergence*: every thread of the warp or block calls it.
///
/// # Safety
///
/// The block has `contract::row::SMEM_BYTES` of shared memory; called once.
#[inline(always)]
pub unsafe fn max<const T: u32>(value: f32) -> f32 {
    let key = order_key(value);
    if T == WARP {
        return order_value(warp_max(key));
    }
    let scratch: Shared<u32> = dynamic_shared_mem();
    // SAFETY: words HELD + 512 on are for this call.
    order_value(unsafe { block::max(scratch.add(HELD + 2 * THREADS), key) })
}
