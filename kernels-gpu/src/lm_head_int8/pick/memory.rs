//! Shared memory of [`pick`](super), and what a block finds by it.

use contract::lm_head_int8::CANDIDATES;
use contract::sample::{PICK_SMEM_BYTES, SHORT_LIST};

use super::WARPS;
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::sync_threads;
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_idx, shuffle_xor_u64, warp_id, warp_sum};

/// Low bits of a key that a floor leaves out.
const LOW_BITS: u32 = 12;

/// Parts of shared memory, behind what the sampler takes.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    /// Rows that reach the floor, `u32::MAX` once they are computed, and the keys of their upper bounds.
    pub(super) rows: Shared<u32>,
    pub(super) keys: Shared<u32>,
    /// Rows that are computed now.
    pub(super) now: Shared<u32>,
    /// A key of each of those, or of each thread.
    pub(super) made: Shared<u32>,
    /// Those of all blocks.
    pub(super) all: Shared<u32>,
    /// Keys and rows of what this block has for the draw.
    pub(super) short: Shared<u32>,
    /// Candidates, rows of now, the rest of the rows, the short list; from the eighth on the best rank of each warp.
    pub(super) counts: Shared<u32>,
    /// How many keys reach what each warp looks for, twice.
    pub(super) reach: Shared<u32>,
    /// The input.
    pub(super) x: Shared<f32>,
}

impl Memory {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let rows: Shared<u32> = dynamic_shared_mem::<u32>().add(PICK_SMEM_BYTES / 4);
        let made = rows.add(3 * CANDIDATES);
        Self {
            rows,
            keys: rows.add(CANDIDATES),
            now: rows.add(2 * CANDIDATES),
            made,
            all: made.add(SHORT_LIST),
            short: made.add(2 * SHORT_LIST),
            counts: made.add(4 * SHORT_LIST),
            reach: made.add(4 * SHORT_LIST + 8 + 2 * WARPS),
            x: made.add(4 * SHORT_LIST + 80).cast(),
        }
    }

    /// Takes the next of count `i`.
    ///
    /// # Safety
    ///
    /// Nobody reads the count before a barrier.
    #[inline(always)]
    pub(super) unsafe fn next(self, i: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.counts.add(i).atomic_add(1) }
    }

    /// A count, behind a barrier.
    ///
    /// # Safety
    ///
    /// Nobody counts before the next barrier.
    #[inline(always)]
    pub(super) unsafe fn count(self, i: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.counts.add(i).read() }
    }

    /// Lists a row whose logit has this key, if it reaches the floor.
    ///
    /// # Safety
    ///
    /// As for [`Memory::next`].
    #[inline(always)]
    pub(super) unsafe fn list(self, key: u32, row: u32, floor: u32) {
        if key >= floor {
            // SAFETY: a place for this row alone.
            unsafe {
                let place = self.next(3);
                if place < SHORT_LIST {
                    self.short.add(2 * place).write(key);
                    self.short.add(2 * place + 1).write(row);
                }
            }
        }
    }

    /// The best rank of warp `warp`.
    #[inline(always)]
    pub(super) fn best(self, warp: u32) -> Shared<u64> {
        self.counts.cast::<u64>().add(4 + warp)
    }
}

/// A key that `wanted` of the threads' keys reach, and few more; 0 when there are not so many. Ends behind a barrier.
///
/// Four bits at a time: each warp counts for one value of them.
///
/// *Convergence*: every thread of the block calls it, which has written its key.
///
/// # Safety
///
/// Nobody else uses `keys`, nor what warps count.
#[inline(always)]
pub(super) unsafe fn kth(memory: Memory, keys: Shared<u32>, wanted: u32) -> u32 {
    sync_threads();
    let keys: [u32; WARPS as usize] = core::array::from_fn(|j| {
        // SAFETY: a word of each thread, written before the barrier.
        unsafe { keys.add(lane_id() + LANES * j as u32).read() }
    });
    let (mut found, mut shift) = (0, opaque(u32::BITS));
    while shift > LOW_BITS {
        shift -= 4;
        let value = found | warp_id() << shift;
        let (mut sums, mut j) = ([0; 4], 0);
        while j < WARPS as usize {
            sums[j % 4] += i32::from(keys[j] >= value);
            j += 1;
        }
        let reach = warp_sum(sums[0] + sums[1] + (sums[2] + sums[3]));
        // Those of the turn before may still be read.
        let counts = memory.reach.add(4 * (shift & 4));
        // SAFETY: a word of this warp; then words written before the barrier.
        let reach = unsafe {
            if lane_id() == 0 {
                counts.add(warp_id()).write(reach as u32);
            }
            sync_threads();
            counts.add(lane_id() % WARPS).read()
        };
        let digit = WARPS - 1 - (ballot(reach >= wanted) << WARPS).leading_zeros();
        found |= digit << shift;
        if shuffle_idx(reach, digit) == wanted {
            break; // the whole block
        }
    }
    found
}

/// The largest of the warps' best ranks, in every thread. Ends behind a barrier.
///
/// *Convergence*: every thread of the block calls it; lanes hold ranks that they have found.
///
/// # Safety
///
/// Nobody else uses the words of the warps.
#[inline(always)]
pub(super) unsafe fn best_of_block(memory: Memory, mut own: u64) -> u64 {
    let mut distance = LANES / 2;
    while distance > 0 {
        own = own.max(shuffle_xor_u64(own, distance));
        distance /= 2;
    }
    if lane_id() == 0 {
        // SAFETY: a word of this warp.
        unsafe { memory.best(warp_id()).write_u64(own) };
    }
    sync_threads();
    let mut warp = 0;
    while warp < WARPS {
        // SAFETY: written before the barrier.
        own = own.max(unsafe { memory.best(warp).read_u64() });
        warp += 1;
    }
    sync_threads();
    own
}
