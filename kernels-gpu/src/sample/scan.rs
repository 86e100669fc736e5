//! Running sums of 64-bit numbers over the threads of `sample_pick`.

use contract::sample::{PICK_BINS, PICK_THREADS};

use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::sync_threads;
use crate::arch::warp::{LANES, lane_id, running_sum_u64, shuffle_idx_u64, warp_id};

/// Warps of the block: at most the lanes of a warp, so that one warp can scan them all.
pub(super) const WARPS: u32 = PICK_THREADS / LANES;
const _: () = assert!(WARPS <= LANES);

/// One word of 64 bits for each warp, behind the histogram.
#[inline(always)]
fn of_warps() -> Shared<u64> {
    dynamic_shared_mem().add(PICK_BINS)
}

/// What one thread tells the others, behind the words of the warps.
#[inline(always)]
pub(super) fn message() -> Shared<u64> {
    of_warps().add(WARPS)
}

/// Running sums over the warps, in every warp: lane `w` holds the sum of warps `0 ..= w`, the same
/// without `w`, and the whole sum, from the sum `of_warp` that all lanes of a warp agree on. Lanes
/// without a warp hold the whole sum.
///
/// *Convergence*: every thread of the block calls it, and a barrier stands between two calls.
#[inline(always)]
pub(super) fn over_warps(of_warp: u64) -> (u64, u64, u64) {
    if lane_id() == 0 {
        // SAFETY: one word of each warp; they are read between the barrier below and the next.
        unsafe { of_warps().add(warp_id()).write_u64(of_warp) };
    }
    sync_threads();
    // SAFETY: one word of each warp, written before the barrier.
    let own = if lane_id() < WARPS { unsafe { of_warps().add(lane_id()).read_u64() } } else { 0 };
    let through = running_sum_u64(own);
    (through, through - own, shuffle_idx_u64(through, LANES - 1))
}

/// The sum over the threads before this one, and over all.
///
/// *Convergence*: every thread of the block calls it, and a barrier stands between two calls.
#[inline(always)]
pub(super) fn over_threads(value: u64) -> (u64, u64) {
    let through = running_sum_u64(value);
    let (_, before_warp, total) = over_warps(shuffle_idx_u64(through, LANES - 1));
    (shuffle_idx_u64(before_warp, warp_id()) + through - value, total)
}
