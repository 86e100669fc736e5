//! Gathers the short list: the tokens that reach a floor which k or a few more of them reach.
//!
//! Each thread takes the largest key of some groups. The k-th largest of these is not above the k-th
//! largest of all keys, and hardly below: the groups that reach it hold few more than k logits that
//! do, whatever the distribution. One warp finds it (but for the low bits); then only the groups that
//! reach it are read. Tokens that weigh nothing are left out too: none is drawn, and they stand below
//! all others in every filter.

use contract::num::order_key;
use contract::sample::{Args, GROUP, PICK_BINS, PICK_THREADS, SHORT_LIST, groups};

use super::scan::{WARPS, message};
use crate::arch::mem::ld_if;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id, warp_sum};

/// Loads of a thread that are in flight at once.
const IN_FLIGHT: usize = 8;
/// Bits of a key that [`kth_top`] leaves out.
const LOW_BITS: u32 = 12;

/// Column `i` of the list: 0 the keys, 1 the indices, 2 the weights; 3 the groups to be read, and in
/// their place before, the largest key of each thread.
#[inline(always)]
pub(crate) fn column(i: u32) -> Shared<u32> {
    dynamic_shared_mem::<u32>().add(i * SHORT_LIST)
}
const _: () = assert!(PICK_THREADS == SHORT_LIST && 4 * (4 * SHORT_LIST) <= 8 * PICK_BINS);

/// Counter of the groups to be read.
#[inline(always)]
fn group_count() -> Shared<u32> {
    message().cast()
}

/// Counter of the listed.
#[inline(always)]
fn listed_count() -> Shared<u32> {
    group_count().add(1)
}

/// The floor, then the token.
#[inline(always)]
pub(super) fn told() -> Shared<u32> {
    group_count().add(2)
}

/// Calls `visit(key, group)` for the groups of this thread. They lie apart: good tokens are often
/// neighbours.
///
/// # Safety
///
/// `tops` covers the contract's table.
#[inline(always)]
unsafe fn for_each_group(args: &Args, mut visit: impl FnMut(u32, u32)) {
    let end = groups(args.vocab);
    let mut group = thread_idx_x();
    while group < end {
        let tops: [u32; IN_FLIGHT] = core::array::from_fn(|j| {
            let at = group + PICK_THREADS * j as u32;
            // SAFETY: at < end.
            unsafe { ld_if(at < end, args.tops.as_ptr().cast_const().wrapping_add(at as usize)) }
        });
        let mut j = 0;
        while j < IN_FLIGHT {
            let at = group + PICK_THREADS * j as u32;
            if at < end {
                visit(tops[j], at);
            }
            j += 1;
        }
        group += PICK_THREADS * IN_FLIGHT as u32;
    }
}

/// A key that `wanted` of the threads' keys reach, and no more than have to: the `wanted`-th largest
/// but for the low bits. 0 when there are not so many. No key is above `best`.
///
/// *Convergence*: one warp calls it.
///
/// # Safety
///
/// The threads wrote their keys to column 3 before the last barrier.
#[inline(always)]
unsafe fn kth_top(wanted: u32, best: u32) -> u32 {
    let keys: [u32; WARPS as usize] = core::array::from_fn(|j| {
        // SAFETY: one of PICK_THREADS words.
        unsafe { column(3).add(lane_id() + LANES * j as u32).read() }
    });
    let (mut found, mut bit) = (0, (1u32 << 31).checked_shr(best.leading_zeros()).unwrap_or(0));
    while bit >> LOW_BITS != 0 {
        let mut count = 0;
        let mut j = 0;
        while j < WARPS {
            count += i32::from(keys[j as usize] >= found | bit);
            j += 1;
        }
        let count = warp_sum(count) as u32;
        if count >= wanted {
            found |= bit;
        }
        if count == wanted {
            break; // the whole warp
        }
        bit >>= 1;
    }
    found
}

/// A floor that at least `wanted` tokens reach, and few more; 0 when not known, or `wanted` is 0.
/// `best` is the largest key.
///
/// *Convergence*: every thread of the block calls it. It ends with a barrier, before which the
/// counters are set to 0.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table; no thread reads shared memory any more.
#[inline(always)]
pub(super) unsafe fn reached_by(args: &Args, wanted: u32, best: u32) -> u32 {
    let mut top = 0;
    // SAFETY: the caller's promise; a word of this thread; counters that nobody uses yet.
    unsafe {
        for_each_group(args, |key, _| top = key.max(top));
        column(3).add(thread_idx_x()).write(top);
        if thread_idx_x() < 2 {
            group_count().add(thread_idx_x()).write(0);
        }
    }
    sync_threads();
    if warp_id() == 0 {
        // SAFETY: column 3 was written before the barrier; one thread tells, the others read behind
        // the next.
        unsafe {
            let floor = if wanted != 0 { kth_top(wanted, best) } else { 0 };
            if lane_id() == 0 {
                told().write(floor);
            }
        }
    }
    sync_threads();
    // SAFETY: written before the barrier.
    unsafe { told().read() }
}

/// Lists the tokens at or above `floor`, and returns how many there are; `None` when too many.
///
/// *Convergence*: every thread of the block calls it, with both counters at 0 before the last
/// barrier. The columns are written, but for the weights, before the barrier it ends with.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table.
#[inline(always)]
pub(super) unsafe fn list(args: &Args, floor: u32) -> Option<u32> {
    let mut full = false;
    let visit = |top: u32, group: u32| {
        if top >= floor && !full {
            // SAFETY: a counter between two barriers; at < SHORT_LIST, for this thread alone.
            unsafe {
                let at = group_count().atomic_add(1);
                full = at >= SHORT_LIST;
                if !full {
                    column(3).add(at).write(group);
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { for_each_group(args, visit) };
    sync_threads();
    // SAFETY: counted before the barrier.
    let count = unsafe { group_count().read() };
    if count > SHORT_LIST {
        return None; // every thread: each of these groups has a token to list
    }
    let mut first = warp_id();
    while first < count {
        let at: [u32; IN_FLIGHT] = core::array::from_fn(|j| {
            let group = first + WARPS * j as u32;
            if group < count {
                // SAFETY: a group that was written before the barrier.
                GROUP * unsafe { column(3).add(group).read() } + lane_id()
            } else {
                u32::MAX
            }
        });
        let logits: [f32; IN_FLIGHT] = core::array::from_fn(|j| {
            // SAFETY: at < vocab.
            unsafe {
                ld_if(
                    at[j] < args.vocab,
                    args.adjusted.as_ptr().cast_const().wrapping_add(at[j] as usize),
                )
            }
        });
        let mut j = 0;
        while j < IN_FLIGHT {
            let key = order_key(logits[j]);
            if at[j] < args.vocab && key >= floor {
                // SAFETY: a counter between two barriers; entry < SHORT_LIST, for this thread alone.
                unsafe {
                    let entry = listed_count().atomic_add(1);
                    if entry < SHORT_LIST {
                        column(0).add(entry).write(key);
                        column(1).add(entry).write(at[j]);
                    }
                }
            }
            j += 1;
        }
        first += WARPS * IN_FLIGHT as u32;
    }
    sync_threads();
    // SAFETY: counted before the barrier.
    let listed = unsafe { listed_count().read() };
    if listed > SHORT_LIST { None } else { Some(listed) }
}
