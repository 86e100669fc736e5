//! Logits of the rows that can win, by [`lm_head`](crate::lm_head)'s own dot, for the sampler; minus infinity for
//! the others.
//!
//! Where the best is all that is asked, the scan has listed few rows: the warps of all blocks share them out. Else
//! each block finds the floor for itself, lists the rows of its tile that reach it, and shares them out
//! among its warps, two at a time. When every logit is wanted, the list is the tile, or all rows; where
//! [`lm_head`](crate::lm_head) has made them all (`EVERY`), they are only taken over.

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Args, Asked, BARRED, EVERY, FLOOR_BITS, GROUP, LIST_HEAD, LIST_ROWS, MAX_WANTED, RESCORE_ROWS,
    RESCORE_SMEM_BYTES, RescoreBf16, RescoreF16, RescoreF32, THREADS, floor_of, groups, has_bounds,
    list_blocks, rescore_rows,
};
use contract::num::{PARTIALS, order_key};
use contract::sample::{has_bias, penalise, rank, temper};

use super::{asked, ended, input_stats, wanted};
use crate::arch::atomic::max_u64_relaxed;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld, ld_if, ld_u8_if, ld_x2_if, ld_x4, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads, thread_idx_x};
use crate::arch::warp::{
    LANES, ballot, lane_id, shuffle_idx, shuffle_xor_u64, warp_id, warp_max, warp_sum,
};
use crate::element::{Bf16, Element, F16};
use crate::lm_head::{OWN, ROWS, Steps, dots, load_steps};

/// Keys of a lane.
const KEYS: u32 = THREADS / LANES;
/// Groups of a thread in flight.
const IN_FLIGHT: usize = 16;

/// Rows of the largest tile that a thread looks at.
const OF_THREAD: usize = (RESCORE_ROWS / THREADS) as usize;

const _: () = assert!(
    MAX_WANTED == THREADS
        && RESCORE_SMEM_BYTES == 4 * (THREADS + 2 * RESCORE_ROWS + 4 + 2 * THREADS / LANES)
);
const _: () = assert!(GROUP == LANES);

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

/// What the sampler takes of the rows of a tile.
#[inline(always)]
fn values() -> Shared<f32> {
    list().add(RESCORE_ROWS + 4).cast()
}

/// The largest key of this thread's groups.
///
/// # Safety
///
/// `input` covers the contract's table.
#[inline(always)]
unsafe fn own_top(args: &Args) -> u32 {
    let (end, mut top) = (groups(args.vocab), 0u32);
    let mut group = thread_idx_x();
    while group < end {
        let keys: [u32; IN_FLIGHT] = core::array::from_fn(|j| {
            let at = group + THREADS * j as u32;
            // SAFETY: at < end.
            unsafe {
                ld_if(at < end, args.scratch().as_ptr().cast_const().wrapping_add(at as usize))
            }
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

/// A key that `wanted` adjusted logits reach, or what weighs enough beside the best, from the threads' keys; 0 when there are not so many.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// Nobody uses the first 256 words of shared memory.
#[inline(always)]
unsafe fn floor(asked: &Asked, vocab: u32, top: u32, wanted: u32) -> u32 {
    // SAFETY: a word of this thread; then words written before the barrier.
    let keys: [u32; KEYS as usize] = unsafe {
        maxima().add(thread_idx_x()).write(top);
        sync_threads();
        core::array::from_fn(|j| maxima().add(lane_id() + LANES * j as u32).read())
    };
    if wanted == 1 {
        return asked.floor(warp_max(keys.into_iter().fold(0, u32::max)), vocab); // the whole block
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
/// `bounds` covers the contract's table, and `end` is at most the vocabulary.
#[inline(always)]
unsafe fn uppers(args: &Args, first: u32, end: u32) -> [f32; OF_THREAD] {
    core::array::from_fn(|j| {
        let row = first + THREADS * j as u32 + thread_idx_x();
        // SAFETY: row < vocab.
        unsafe { ld_if(row < end, args.bounds.as_ptr().cast_const().wrapping_add(row as usize)) }
    })
}

/// Lists the rows from `first` to `end` whose bound reaches `floor`, and gives all of them minus infinity.
/// Returns how many are listed. A floor of 0 is reached by all.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// Nobody uses the list, nor the values; a barrier stands behind the zero of the
/// counter of `tile`.
#[inline(always)]
unsafe fn listed((tile, first, end): (u32, u32, u32), uppers: [f32; OF_THREAD], floor: u32) -> u32 {
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
        // SAFETY: a word of this thread.
        unsafe { values().add(row - first).write(f32::NEG_INFINITY) };
        if floor == BARRED + 1 {
            // Too few are left: one that is forbidden stands where none is.
            let barred = ballot(inside && !reaches);
            if lane_id() == 0 && barred != 0 {
                // SAFETY: a word of this lane.
                unsafe {
                    found().write_u64(
                        found()
                            .read_u64()
                            .max(rank(f32::NEG_INFINITY, row + barred.trailing_zeros())),
                    )
                };
            }
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

/// The logits of two rows, as the sampler takes them: of the first in lanes 0 to 15, of the second in the others.
///
/// `STEPS` steps of 256 weights of each row are in flight: few rows are wanted, so their latency counts.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; `ids` are rows of it.
#[inline(always)]
unsafe fn logits<E: Element, const STEPS: usize>(
    args: &Args,
    asked: &Asked,
    ids: [u32; ROWS],
) -> f32 {
    let (k, own) = (args.k as usize, OWN * lane_id() as usize);
    let (x, table) = (args.x.as_ptr().cast_const(), args.w.cast::<E>().as_ptr().cast_const());
    let rows = ids.map(|id| table.wrapping_add(id as usize * args.stride as usize + own));
    let id = if lane_id() < 16 { ids[0] } else { ids[1] };
    // SAFETY: rows of K elements, from element 8 lane; x has K; the row is one of the vocabulary.
    unsafe {
        let steps: Steps<E, STEPS> = load_steps(rows, 0, (k / PARTIALS) as u32);
        // With a penalty of 1 no marks count.
        let marks = args.marks.as_ptr().cast_const().wrapping_add(id as usize);
        let marks = ld_u8_if(asked.penalty != 1.0, marks);
        asked.adjust(dots(rows, steps, x, k), marks)
    }
}

/// What the sampler takes of rows whose logits, this thread's, are there.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// `args` covers the contract's table, and `end` is at most the vocabulary; nobody uses the values.
#[inline(always)]
unsafe fn take_over(
    args: &Args,
    asked: &Asked,
    (first, end): (u32, u32),
    logits: [f32; OF_THREAD],
) {
    let mut best = 0;
    let mut j = 0;
    while j < OF_THREAD && first + THREADS * (j as u32) < end {
        let row = first + THREADS * j as u32 + thread_idx_x();
        let marks = args.marks.as_ptr().cast_const().wrapping_add(row as usize);
        // SAFETY: a row of the vocabulary; a word of this thread.
        unsafe {
            let marks = ld_u8_if(row < end && asked.penalty != 1.0, marks);
            let mut x = penalise(logits[j], marks, asked.penalty);
            if has_bias(marks, asked.penalty) && !args.bias.is_null() {
                x += ld(args.bias.as_ptr().cast_const().wrapping_add(row as usize));
            }
            let x = temper(x, asked.temperature);
            values().add(row - first).write(x);
            best = best.max(if row < end { rank(x, row) } else { 0 });
        }
        j += 1;
    }
    let mut distance = 8;
    while distance > 0 {
        best = best.max(shuffle_xor_u64(best, distance));
        distance /= 2;
    }
    // SAFETY: the word of this warp.
    unsafe { find(best) };
}

/// The best that this warp has found.
#[inline(always)]
fn found() -> Shared<u64> {
    values().add(RESCORE_ROWS).cast().add(warp_id())
}

/// Takes what both halves of the warp have found.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The word of this warp is there.
#[inline(always)]
unsafe fn find(own: u64) {
    let best = own.max(shuffle_xor_u64(own, 16));
    if lane_id() == 0 {
        // SAFETY: a word of this lane.
        unsafe { found().write_u64(found().read_u64().max(best)) };
    }
}

/// Makes `best` the best of what was found.
///
/// # Safety
///
/// `best` covers the contract's table.
#[inline(always)]
unsafe fn tell(args: &Args) {
    if lane_id() != 0 {
        return;
    }
    // SAFETY: a word of this lane.
    let best = unsafe { found().read_u64() };
    if best != 0 {
        // SAFETY: one element, changed by this instruction alone.
        unsafe { max_u64_relaxed(args.best.as_ptr(), best) };
    }
}

/// The best of the listed rows, or of all where the list is not all that can win.
///
/// *Convergence*: every thread of the row's blocks calls it.
///
/// # Safety
///
/// As for [`rescore`].
#[inline(always)]
unsafe fn best_of_list<E: Element, const STEPS: usize>(
    args: &Args,
    asked: &Asked,
    known: bool,
    [floor, _, count, _]: [u32; 4],
) {
    let whole = !known || count == 0 || count > LIST_ROWS;
    let total = if whole { args.vocab } else { count };
    // Of more blocks the others have nothing to do.
    let blocks = grid_dim_y().min(list_blocks(args.m));
    if block_idx_y() >= blocks {
        return;
    }
    let warps = blocks * (THREADS / LANES);
    let mut first = block_idx_y() + blocks * warp_id();
    while first < total {
        let entry = first + warps * lane_id();
        let listed = args.scratch().as_ptr().cast_const().wrapping_add(LIST_HEAD as usize);
        let listed = listed.wrapping_add(2 * entry as usize).cast();
        // SAFETY: an entry of the list.
        let [row, key] = unsafe { ld_x2_if(entry < total && !whole, listed) };
        let reaches = entry < total && (whole || key >= floor);
        let row = if whole { entry } else { row };
        let mut lanes = ballot(reaches);
        while lanes != 0 {
            let one = lanes.trailing_zeros();
            lanes &= lanes - 1;
            let two = if lanes != 0 { lanes.trailing_zeros() } else { one };
            lanes &= lanes.wrapping_sub(1);
            let ids = [shuffle_idx(row, one), shuffle_idx(row, two)];
            // SAFETY: rows of the table.
            let x = unsafe { logits::<E, STEPS>(args, asked, ids) };
            // SAFETY: by the caller.
            unsafe { find(rank(x, if lane_id() < 16 { ids[0] } else { ids[1] })) };
        }
        first += warps * LANES;
    }
    // SAFETY: the launch contract, handed on.
    unsafe { tell(args) };
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; block and grid are the
/// contract's, behind `lm_head_int8_scan`.
#[inline(always)]
unsafe fn rescore<E: Element, const STEPS: usize, const OF_LIST: usize>(all: &Args) {
    // Worked out where they are used: so many addresses would stay in registers.
    let of_row = || all.of_row(opaque_here(block_idx_x()));
    let args = &of_row();
    // SAFETY: the launch contract, handed on; no kernel writes `params`, so they can be read at once.
    let asked = unsafe { asked(args.params.as_ptr()) };
    let alone = asked.alone(args.vocab);
    launch_dependents();
    dependency_wait();
    let rows = rescore_rows(args.m);
    let mut first = block_idx_y() * rows;
    let end = |first: u32| if alone { 0 } else { (first + rows).min(args.vocab) };
    // All loads at once. What the scan did not write, because every logit is wanted, does not count.
    // SAFETY: the launch contract, handed on.
    let (ended, stats, head, mut bounds) = unsafe {
        (
            ended(args.state.as_ptr()),
            input_stats(args.input.as_ptr()),
            ld_x4(args.scratch().as_ptr().cast_const().cast()),
            uppers(args, first, end(first)),
        )
    };
    if ended {
        return; // every thread of the row
    }
    #[cfg(level_sm_90)]
    if super::listed(args, &asked, wanted(&asked, stats, args.vocab), head) {
        return; // every thread of the row
    }
    if lane_id() == 0 {
        // SAFETY: a word of this lane.
        unsafe { found().write_u64(0) };
    }
    if alone {
        // SAFETY: as above.
        unsafe { best_of_list::<E, OF_LIST>(args, &asked, has_bounds(stats), head) };
        return; // every thread of the row
    }
    // SAFETY: as above; nobody uses shared memory yet.
    let floor = unsafe {
        if thread_idx_x() == 0 {
            count(0).write(0);
        }
        let top = own_top(args);
        let wanted = wanted(&asked, stats, args.vocab);
        // What is forbidden is not computed.
        if wanted != 0 { floor(&asked, args.vocab, top, wanted).max(BARRED + 1) } else { 0 }
    };
    let made = asked.every(stats, args.vocab) && head[EVERY] != 0;
    sync_threads();
    let mut tile = 0;
    while first < args.vocab {
        let next = first + rows * grid_dim_y();
        // SAFETY: as above; the list was read before the last barrier.
        let count = unsafe {
            if made {
                take_over(&of_row(), &asked, (first, end(first)), bounds);
                0
            } else {
                listed((tile, first, end(first)), bounds, floor)
            }
        };
        let mut entry = ROWS as u32 * warp_id();
        while entry < count {
            let ids: [u32; ROWS] = core::array::from_fn(|r| {
                // SAFETY: an entry below `count`; the last one again for lanes without a row.
                unsafe { list().add((entry + r as u32).min(count - 1)).read() }
            });
            // SAFETY: rows of the table.
            let x = unsafe { logits::<E, STEPS>(&of_row(), &asked, ids) };
            let id = if lane_id() < 16 { ids[0] } else { ids[1] };
            // SAFETY: the word of this warp; the listed row belongs to this lane. The last one again is the same once more.
            unsafe {
                find(rank(x, id));
                if lane_id() % 16 == 0 && entry + lane_id() / 16 < count {
                    values().add(id - first).write(x);
                }
            }
            entry += ROWS as u32 * (THREADS / LANES);
        }
        if count > 0 {
            sync_threads(); // all have read the list
        }
        let args = &of_row();
        // On their way while the rows of this tile are written.
        // SAFETY: the launch contract, handed on.
        bounds = unsafe { uppers(args, next, end(next)) };
        let mut j = 0;
        while j < OF_THREAD && first + THREADS * (j as u32) < end(first) {
            let at = THREADS * j as u32 + thread_idx_x();
            let (row, inside) = (first + at, first + at < end(first));
            // SAFETY: written by this thread, or before the barrier.
            let x = unsafe { values().add(at).read() };
            let top = warp_max(if inside { order_key(x) } else { 0 });
            // SAFETY: row < vocab, of this thread; a group of this warp.
            unsafe {
                if inside {
                    st(args.adjusted.as_ptr().wrapping_add(row as usize), x);
                    if lane_id() == 0 {
                        st(args.tops.as_ptr().wrapping_add((row / GROUP) as usize), top);
                    }
                }
            }
            j += 1;
        }
        (first, tile) = (next, tile + 1);
    }
    // SAFETY: the launch contract, handed on.
    unsafe { tell(&of_row()) };
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty, $steps:literal, $of_list:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { rescore::<$element, $steps, $of_list>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    lm_head_int8_rescore_bf16 RescoreBf16 Bf16, 2, 4;
    lm_head_int8_rescore_f16 RescoreF16 F16, 2, 4;
    lm_head_int8_rescore_f32 RescoreF32 f32, 2, 2;
}
