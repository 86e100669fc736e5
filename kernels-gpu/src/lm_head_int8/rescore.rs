//! Logits of the rows that can win, by [`lm_head`](crate::lm_head)'s own dot; minus infinity for the
//! others.
//!
//! Each block finds the floor for itself, lists the rows of its tile that reach it, and shares them out
//! among its warps, two at a time. When every logit is wanted, the list is the tile.

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Args, FLOOR_BITS, MAX_WANTED, RESCORE_ROWS, RESCORE_SMEM_BYTES, RescoreBf16, RescoreF16,
    RescoreF32, THREADS, floor_of, groups, rescore_rows,
};
use contract::num::{PARTIALS, order_key};

use super::{asked, ended, input_stats, wanted};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_idx, warp_id, warp_max, warp_sum};
use crate::element::{Bf16, Element, F16};
use crate::lm_head::{OWN, ROWS, Steps, dots, load_steps};

/// Keys of a lane.
const KEYS: u32 = THREADS / LANES;
/// Groups of a thread in flight.
const IN_FLIGHT: usize = 16;

/// Rows of the largest tile that a thread looks at.
const OF_THREAD: usize = (RESCORE_ROWS / THREADS) as usize;

const _: () =
    assert!(MAX_WANTED == THREADS && RESCORE_SMEM_BYTES == 4 * (THREADS + RESCORE_ROWS + 4));

/// The keys of the threads.
#[inline(always)]
fn maxima() -> Shared<u32> {
    dynamic_shared_mem()
}

/// The rows whose logits are computed.
#[inline(always)]
fn list() -> Shared<u32> {
    maxima().add(THREADS)
}

/// How many: tile after tile takes the next of three counters. While one counts, the next is set to 0, and the
/// one before may still be read.
#[inline(always)]
fn count(tile: u32) -> Shared<u32> {
    list().add(RESCORE_ROWS + tile % 3)
}

/// The largest key of this thread's groups.
///
/// # Safety
///
/// `tops` covers the contract's table.
#[inline(always)]
unsafe fn own_top(args: &Args) -> u32 {
    let (end, mut top) = (groups(args.vocab), 0u32);
    let mut group = thread_idx_x();
    while group < end {
        let keys: [u32; IN_FLIGHT] = core::array::from_fn(|j| {
            let at = group + THREADS * j as u32;
            // SAFETY: at < end.
            unsafe { ld_if(at < end, args.tops.as_ptr().cast_const().wrapping_add(at as usize)) }
        });
        let mut j = 0;
        while j < IN_FLIGHT {
            top = top.max(keys[j]);
            j += 1;
        }
        group += THREADS * IN_FLIGHT as u32;
    }
    top
}

/// A key that `wanted` adjusted logits reach, from the threads' keys; 0 when there are not so many.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// Nobody uses the first 256 words of shared memory.
#[inline(always)]
unsafe fn floor(top: u32, wanted: u32) -> u32 {
    // SAFETY: a word of this thread; then words written before the barrier.
    let keys: [u32; KEYS as usize] = unsafe {
        maxima().add(thread_idx_x()).write(top);
        sync_threads();
        core::array::from_fn(|j| maxima().add(lane_id() + LANES * j as u32).read())
    };
    if wanted == 1 {
        return floor_of(warp_max(keys.into_iter().fold(0, u32::max))); // the whole block
    }
    let (mut found, mut bit) = (0, 1u32 << 31);
    while bit >> FLOOR_BITS != 0 {
        let mut reach = 0;
        let mut j = 0;
        while j < KEYS {
            reach += i32::from(keys[j as usize] >= found | bit);
            j += 1;
        }
        if warp_sum(reach) as u32 >= wanted {
            found |= bit;
        }
        bit >>= 1;
    }
    floor_of(found)
}

/// The bounds of this thread's rows of the tile from `first` to `end`.
///
/// # Safety
///
/// `logits` covers the contract's table, and `end` is at most the vocabulary.
#[inline(always)]
unsafe fn uppers(args: &Args, first: u32, end: u32) -> [f32; OF_THREAD] {
    core::array::from_fn(|j| {
        let row = first + THREADS * j as u32 + thread_idx_x();
        // SAFETY: row < vocab.
        unsafe { ld_if(row < end, args.logits.as_ptr().cast_const().wrapping_add(row as usize)) }
    })
}

/// Lists the rows from `first` to `end` whose bound reaches `floor`, and gives the others minus infinity.
/// Returns how many are listed. A floor of 0 is reached by all.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// `logits` covers the contract's table; nobody uses the list; a barrier stands behind the zero of the
/// counter of `tile`.
#[inline(always)]
unsafe fn listed(
    args: &Args,
    (tile, first, end): (u32, u32, u32),
    uppers: [f32; OF_THREAD],
    floor: u32,
) -> u32 {
    if thread_idx_x() == 0 {
        // SAFETY: nobody reads or counts with it before the barrier.
        unsafe { count(tile + 1).write(0) };
    }
    let mut j = 0;
    // The tiles of few inputs are smaller.
    while j < OF_THREAD && first + THREADS * (j as u32) < end {
        let row = first + THREADS * j as u32 + thread_idx_x();
        let inside = row < end;
        let reaches = inside && order_key(uppers[j]) >= floor;
        if inside && !reaches {
            // SAFETY: row < vocab, of this thread.
            unsafe { st(args.logits.as_ptr().wrapping_add(row as usize), f32::NEG_INFINITY) };
        }
        let lanes = ballot(reaches);
        // Most tiles have none.
        if lanes != 0 {
            let mut from = 0;
            if lane_id() == 0 {
                // SAFETY: the counter, between two barriers.
                from = unsafe { count(tile).atomic_add(lanes.count_ones()) };
            }
            from = shuffle_idx(from, 0);
            if reaches {
                let below = lanes & ((1 << lane_id()) - 1);
                // SAFETY: an entry of this row alone: the list has one for each.
                unsafe { list().add(from + below.count_ones()).write(row) };
            }
        }
        j += 1;
    }
    sync_threads();
    // SAFETY: counted before the barrier.
    unsafe { count(tile).read() }
}

/// `STEPS` steps of 256 weights of each row are in flight: few rows are wanted, so their latency counts.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; block and grid are the
/// contract's, behind `lm_head_int8_scan`.
#[inline(always)]
unsafe fn rescore<E: Element, const STEPS: usize>(args: &Args) {
    let args = &args.of_row(block_idx_y());
    launch_dependents();
    dependency_wait();
    let rows = rescore_rows(args.m);
    let mut first = block_idx_x() * rows;
    let end = |first: u32| (first + rows).min(args.vocab);
    // All loads at once. What the scan did not write, because every logit is wanted, does not count.
    // SAFETY: the launch contract, handed on.
    let (ended, asked, stats, mut bounds) =
        unsafe { (ended(args), asked(args), input_stats(args), uppers(args, first, end(first))) };
    if ended {
        return; // every thread of the row
    }
    // SAFETY: as above; nobody uses shared memory yet.
    let floor = unsafe {
        if thread_idx_x() == 0 {
            count(0).write(0);
        }
        let top = own_top(args);
        let wanted = wanted(&asked, stats, args.vocab);
        if wanted != 0 { floor(top, wanted) } else { 0 }
    };
    let (k, own) = (args.k as usize, OWN * lane_id() as usize);
    let (x, table) = (args.x.as_ptr().cast_const(), args.w.cast::<E>().as_ptr().cast_const());
    sync_threads();
    let mut tile = 0;
    while first < args.vocab {
        let next = first + rows * grid_dim_x();
        // SAFETY: as above; the list was read before the last barrier. The next tile's bounds are on their way.
        let (ahead, count) = unsafe {
            let ahead = uppers(args, next, end(next));
            (ahead, listed(args, (tile, first, end(first)), bounds, floor))
        };
        let mut entry = ROWS as u32 * warp_id();
        while entry < count {
            let ids: [u32; ROWS] = core::array::from_fn(|r| {
                // SAFETY: an entry below `count`; the last one again for lanes without a row.
                unsafe { list().add((entry + r as u32).min(count - 1)).read() }
            });
            let rows = ids.map(|id| table.wrapping_add(id as usize * args.stride as usize + own));
            // SAFETY: rows of K elements, from element 8 lane; x has K.
            let sum = unsafe {
                let steps: Steps<E, STEPS> = load_steps(rows, 0, (k / PARTIALS) as u32);
                dots(rows, steps, x, k)
            };
            let r = lane_id() / 16;
            if lane_id() % 16 == 0 && entry + r < count {
                let id = if r == 0 { ids[0] } else { ids[1] };
                // SAFETY: the listed row's logit belongs to this lane.
                unsafe { st(args.logits.as_ptr().wrapping_add(id as usize), sum) };
            }
            entry += ROWS as u32 * (THREADS / LANES);
        }
        if count > 0 {
            sync_threads(); // all have read the list
        }
        (first, tile, bounds) = (next, tile + 1, ahead);
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty, $steps:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { rescore::<$element, $steps>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    lm_head_int8_rescore_bf16 RescoreBf16 Bf16, 2;
    lm_head_int8_rescore_f16 RescoreF16 F16, 2;
    lm_head_int8_rescore_f32 RescoreF32 f32, 2;
}
