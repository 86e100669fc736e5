//! Finds the key above which tokens weigh enough: top-k with weight 1, top-p with their own.
//!
//! A radix search from the highest bits down. Each of three passes over the logits adds the weights
//! of the tokens that share the bits found so far to a histogram of the next 11 (last: 10) bits;
//! a running sum from the top bin down says in which bin the target is reached. The first digit
//! is sign, exponent and two bits of the fraction, so that logits of like size spread over bins.

use contract::num::order_key;
use contract::sample::{PICK_BINS, PICK_THREADS};

use super::scan::{message, over_threads};
use super::team::Team;
use crate::arch::mem::{X4, ld_x4_if};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};

/// Vectors of four logits of a thread that are in flight at once; the code of sm_80 has no registers for more.
const IN_FLIGHT: usize = if cfg!(level_sm_90) || !cfg!(level_sm_80) { 4 } else { 3 };
/// Bins of one thread.
pub(super) const BINS: u32 = PICK_BINS / PICK_THREADS;

/// Calls `visit(x)` for logits `first .. first + 4`, `first + step .. first + step + 4`, ... of
/// `end`. `first` and `step` are multiples of 4.
///
/// # Safety
///
/// `adjusted` starts `adjusted_len(end)` readable elements, aligned to 16.
#[inline(always)]
pub(super) unsafe fn for_each(
    adjusted: *const f32,
    first: u32,
    step: u32,
    end: u32,
    mut visit: impl FnMut(f32),
) {
    let mut i = first;
    while i < end {
        let x: [X4<f32>; IN_FLIGHT] = core::array::from_fn(|j| {
            let at = i + step * j as u32;
            // SAFETY: at < end, a multiple of 4: all four lie below adjusted_len(end).
            unsafe { ld_x4_if(at < end, adjusted.wrapping_add(at as usize).cast()) }
        });
        let mut j = 0;
        while j < 4 * IN_FLIGHT {
            if i + step * (j / 4) as u32 + ((j % 4) as u32) < end {
                visit(x[j / 4][j % 4]);
            }
            j += 1;
        }
        i += step * IN_FLIGHT as u32;
    }
}

/// [`for_each`] of what this thread of a team has of `end` logits.
///
/// # Safety
///
/// As for [`for_each`].
#[inline(always)]
pub(super) unsafe fn for_each_of(
    team: impl Team,
    adjusted: *const f32,
    end: u32,
    visit: impl FnMut(f32),
) {
    let first = PICK_THREADS * team.rank() + thread_idx_x();
    // SAFETY: the caller's promise.
    unsafe { for_each(adjusted, 4 * first, 4 * PICK_THREADS * team.blocks(), end, visit) };
}

/// The largest key such that the logits at or above it, and at or above `floor`, weigh at least
/// `target(weight of all at or above floor)`; 0 when all of them weigh less.
///
/// *Convergence*: every thread of the team calls it. It ends with a barrier.
///
/// # Safety
///
/// `adjusted` starts `adjusted_len(vocab)` readable elements, aligned to 16; the block has `PICK_SMEM_BYTES` of shared memory,
/// which no thread reads after the barrier before this call.
#[inline(always)]
pub(super) unsafe fn select(
    team: impl Team,
    (adjusted, vocab): (*const f32, u32),
    floor: u32,
    weight: impl Fn(f32) -> u32,
    target: impl Fn(u64) -> u64,
) -> u32 {
    let histogram: Shared<u64> = dynamic_shared_mem();
    let own = BINS * thread_idx_x();
    let mut missing = 0; // what the tokens of the bin in question still have to weigh
    let mut found = 0; // the bits found so far
    let mut bits_left = 32;
    while bits_left > 0 {
        let bits = if bits_left > 11 { 11 } else { bits_left };
        let shift = bits_left - bits;
        let mut bin = 0;
        while bin < BINS {
            // SAFETY: own + bin < PICK_BINS.
            unsafe { histogram.add(own + bin).write_u64(0) };
            bin += 1;
        }
        sync_threads();
        let count = |x: f32| {
            let key = order_key(x);
            // In the first pass nothing has been found: all bits lie at or below the digit.
            let shares = u64::from(key) >> bits_left == u64::from(found);
            if shares && key >= floor {
                let weight = weight(x);
                if weight != 0 {
                    // SAFETY: the digit is below PICK_BINS; only counted between the barriers.
                    unsafe { histogram.add((key >> shift) & ((1 << bits) - 1)).count(weight) };
                }
            }
        };
        // SAFETY: the caller's promise.
        unsafe { for_each_of(team, adjusted, vocab, count) };
        team.sync();

        // From the top bin down: thread t has bins 2047 - BINS t and those below.
        let high = PICK_BINS - 1 - own;
        // SAFETY: bins below PICK_BINS, counted before the barrier.
        let bins = unsafe { team.bins(histogram, high) };
        let (mut above, total) = over_threads(bins.iter().sum());
        if bits_left == 32 {
            missing = target(total);
            if total < missing {
                sync_threads();
                team.part();
                return 0; // every thread of the team
            }
        }
        let mut i = 0;
        while i < BINS {
            let through = above + bins[i as usize];
            if above < missing && missing <= through {
                // SAFETY: one bin of one thread gets here; the others read behind the barrier.
                unsafe {
                    message().write_u64(u64::from(high - i));
                    message().add(1).write_u64(above);
                }
            }
            above = through;
            i += 1;
        }
        sync_threads();
        // SAFETY: written before the barrier.
        let (bin, above) = unsafe { (message().read_u64(), message().add(1).read_u64()) };
        found = (found << bits) | bin as u32;
        missing -= above;
        bits_left = shift;
        team.part(); // all have read the bins
    }
    sync_threads();
    found
}
