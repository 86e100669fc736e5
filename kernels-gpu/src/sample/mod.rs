//! Device side of [`contract::sample`].
//!
//! `sample_prepare` runs over the whole GPU: it adjusts the logits and finds the best, of all and of
//! each group. `sample_pick` is one block a row: [`list`] draws from a short list of the best logits; when
//! they do not fit or do not decide, [`select`] narrows down the keys that top-k and top-p keep, and
//! [`draw`] takes one of the kept tokens. Thread 0 moves the sequence on. No step depends on the
//! order in which threads arrive: maxima, sums of integers, and a list read as a set. [`allow`] says between steps what may be picked.

mod allow;
pub(crate) mod draw;
pub(crate) mod gather;
pub(crate) mod list;
mod scan;
mod select;
pub(crate) mod team;

use contract::launch::Kernel;
use contract::num::order_key;
use contract::sample::{
    Args, GROUP, MAX_STOP_IDS, PREPARE_THREADS, PREPARE_TILE, RESTS, SEEN, SampleParams,
    SamplePick, SamplePrepare, StepState, given, has_bias, lowered, penalise, rank, rank_index,
    rank_of, temper,
};

use crate::arch::atomic::max_u64_relaxed;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_u8, ld_u8_if, ld_x2, st, st_u8, st_x2};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, shuffle_xor_u64, warp_id, warp_max};
use team::{Alone, Team};
#[cfg(level_sm_90)]
use {
    contract::sample::{SamplePickWide, WIDE_BLOCKS},
    team::Cluster,
};

/// Reads one field of what `args` points to.
macro_rules! field {
    ($args:ident . $pointer:ident -> $field:ident) => {
        // SAFETY: `params` and `state` hold one element each, by the contract.
        unsafe { ld(&raw const (*$args.$pointer.as_ptr()).$field) }
    };
}
use field;

/// Reads one field of 64 bits.
macro_rules! long_field {
    ($args:ident . $pointer:ident -> $field:ident) => {{
        // SAFETY: as for `field`; the element is aligned to 8.
        let [low, high]: [u32; 2] =
            unsafe { ld_x2((&raw const (*$args.$pointer.as_ptr()).$field).cast()) };
        u64::from(low) | u64::from(high) << 32
    }};
}
use long_field;

/// Logits of a thread of `sample_prepare`.
const OF_THREAD: usize = (PREPARE_TILE / PREPARE_THREADS) as usize;

/// The best [`rank`] that `sample_prepare` found.
///
/// # Safety
///
/// `best` covers the contract's table.
#[inline(always)]
unsafe fn best_rank(args: &Args) -> u64 {
    // SAFETY: one element, aligned to 8.
    let [low, high]: [u32; 2] = unsafe { ld_x2(args.best.as_ptr().cast_const().cast()) };
    u64::from(low) | u64::from(high) << 32
}

/// # Safety
///
/// The launch obeys `SamplePrepare::SPEC` with at most a block for each tile of a row, by rows; the
/// pointers of `args` cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sample_prepare(args: Args) {
    let args = args.of_row(block_idx_y());
    launch_dependents();
    dependency_wait();
    // With a condition the assembler leaves the loads beside each other.
    let beside = args.vocab != 0;
    // SAFETY: `params` and `state` hold one element each.
    let (done, temperature, penalty) = unsafe {
        (
            ld(&raw const (*args.state.as_ptr()).done),
            ld_if(beside, &raw const (*args.params.as_ptr()).temperature),
            ld_if(beside, &raw const (*args.params.as_ptr()).repetition_penalty),
        )
    };
    if done != 0 {
        return; // every thread of the row
    }
    // Only a draw looks at the others; with a penalty of 1 no marks count.
    let (draws, looks) = (temperature > 0.0, penalty != 1.0);
    let mut best = 0;
    let mut first = block_idx_x() * PREPARE_TILE;
    if !draws && !looks {
        // The logits themselves: keys alone decide, and the first of equals stays.
        let (mut top, mut at) = (0, first + thread_idx_x());
        let any = at < args.vocab;
        while first < args.vocab {
            let index = |j: usize| first + j as u32 * PREPARE_THREADS + thread_idx_x();
            let keys: [u32; OF_THREAD] = core::array::from_fn(|j| {
                let i = index(j);
                let from = args.logits.as_ptr().cast_const().wrapping_add(i as usize);
                // SAFETY: i < vocab.
                let x = unsafe { ld_if(i < args.vocab, from) };
                if i < args.vocab { order_key(x) } else { 0 }
            });
            let mut j = 0;
            while j < OF_THREAD {
                (top, at) = if keys[j] > top { (keys[j], index(j)) } else { (top, at) };
                j += 1;
            }
            first += grid_dim_x() * PREPARE_TILE;
        }
        best = if any { rank_of(top, at) } else { 0 };
    }
    while first < args.vocab {
        let index = |j: usize| first + j as u32 * PREPARE_THREADS + thread_idx_x();
        // All at once.
        let loaded: [(f32, u8); OF_THREAD] = core::array::from_fn(|j| {
            let i = index(j);
            // SAFETY: i < vocab.
            unsafe {
                (
                    ld_if(
                        i < args.vocab,
                        args.logits.as_ptr().cast_const().wrapping_add(i as usize),
                    ),
                    ld_u8_if(
                        looks && i < args.vocab,
                        args.marks.as_ptr().cast_const().wrapping_add(i as usize),
                    ),
                )
            }
        });
        let mut j = 0;
        while j < OF_THREAD {
            let (i, (x, marks)) = (index(j), loaded[j]);
            let inside = i < args.vocab;
            let mut x = penalise(x, marks, penalty);
            if has_bias(marks, penalty) && !args.bias.is_null() {
                // SAFETY: i < vocab, as marks beyond are 0.
                x += unsafe { ld(args.bias.as_ptr().cast_const().wrapping_add(i as usize)) };
            }
            let x = temper(x, temperature);
            let own = if inside { rank(x, i) } else { 0 };
            best = own.max(best);
            if draws {
                let top = warp_max((own >> 32) as u32);
                if inside {
                    // SAFETY: i < vocab; adjusted[i] belongs to this thread.
                    unsafe { st(args.adjusted.as_ptr().wrapping_add(i as usize), x) };
                }
                if inside && lane_id() == 0 {
                    // SAFETY: i starts a group, which belongs to this warp.
                    unsafe { st(args.tops.as_ptr().wrapping_add((i / GROUP) as usize), top) };
                }
            }
            j += 1;
        }
        first += grid_dim_x() * PREPARE_TILE;
    }
    let mut distance = LANES / 2;
    while distance > 0 {
        best = best.max(shuffle_xor_u64(best, distance));
        distance /= 2;
    }
    let of_warps: Shared<u64> = dynamic_shared_mem();
    if lane_id() == 0 {
        // SAFETY: warp_id() < 8.
        unsafe { of_warps.add(warp_id()).write_u64(best) };
    }
    sync_threads();
    if thread_idx_x() == 0 {
        let mut warp = 0;
        while warp < PREPARE_THREADS / LANES {
            // SAFETY: written before the barrier.
            best = best.max(unsafe { of_warps.add(warp).read_u64() });
            warp += 1;
        }
        // SAFETY: `best` is one element, changed by this instruction alone.
        unsafe { max_u64_relaxed(args.best.as_ptr(), best) };
    }
}

/// # Safety
///
/// The launch obeys `SamplePick::SPEC` with one block a row, behind `sample_prepare` with the same
/// arguments; the pointers of `args` cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sample_pick(args: Args) {
    let args = args.of_row(block_idx_y());
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    unsafe { pick(Alone, &args) }
}

/// # Safety
///
/// The launch obeys `SamplePickWide::SPEC` with one cluster a row, behind `sample_prepare` with the same
/// arguments; the pointers of `args` cover the contract's table.
#[cfg(level_sm_90)]
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sample_pick_wide(args: Args) {
    let args = args.of_row(block_idx_y());
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    unsafe { pick(Cluster(WIDE_BLOCKS), &args) }
}

/// The body of `sample_pick`, for a row.
///
/// *Convergence*: every thread of the row's team calls it, whose blocks have `PICK_THREADS` of them.
///
/// # Safety
///
/// As for `sample_pick`, behind its wait; the blocks have `PICK_SMEM_BYTES` of shared memory, which nobody uses.
#[inline(always)]
pub(crate) unsafe fn pick(team: impl Team, args: &Args) {
    let draws = field!(args.params -> temperature) > 0.0;
    if !draws && team.rank() != 0 {
        return; // the whole block: what the first one reads and changes is its alone
    }
    // SAFETY: the caller's promise.
    let best = rank_index(unsafe { best_rank(args) });
    if field!(args.state -> done) != 0 {
        return; // every thread; `sample_prepare` left `best` at zero
    }
    let token = if draws {
        // SAFETY: the launch contract, handed on; best < vocab.
        unsafe { draw::draw(team, args, best) }
    } else {
        sync_threads(); // all have read `best` and `state`
        Some(best)
    };
    if let (0, Some(token)) = (thread_idx_x(), token) {
        // SAFETY: token < vocab, and the other threads of the row have read what changes.
        unsafe { advance(args, token) };
    }
}

/// Writes the token and moves the sequence on.
///
/// # Safety
///
/// Called by one thread of the row, after all others have read `best` and `state`;
/// `token < args.vocab`.
#[inline(always)]
pub(crate) unsafe fn advance(args: &Args, token: u32) {
    let (pos, step) = (field!(args.state -> pos), field!(args.state -> step));
    let mut done = step + 1 >= field!(args.params -> max_steps);
    let rests = if field!(args.params -> rests) != 0 { RESTS } else { 0 };
    let presence = field!(args.params -> presence_penalty);
    let frequency = field!(args.params -> frequency_penalty);
    let stops = field!(args.params -> stop_len).min(MAX_STOP_IDS as u32);
    // SAFETY: takes an address inside the one element of `params`.
    let ids = unsafe { &raw const (*args.params.as_ptr()).stop_ids }.cast::<u32>();
    let mut i = 0;
    while i < stops {
        // SAFETY: i < MAX_STOP_IDS.
        done |= unsafe { ld(ids.wrapping_add(i as usize)) } == token;
        i += 1;
    }
    let state = args.state.as_ptr();
    // SAFETY: step < out_len; token < vocab; `state` and `best` hold one element.
    unsafe {
        if step < args.out_len {
            st(args.out.as_ptr().wrapping_add(step as usize), token);
        }
        let marks = args.marks.as_ptr().wrapping_add(token as usize);
        if args.bias.is_null() {
            st_u8(marks, SEEN);
        } else {
            let before = ld_u8(marks);
            let lowers = presence != 0.0 || frequency != 0.0;
            if lowers {
                let bias = args.bias.as_ptr().wrapping_add(token as usize);
                st(bias, lowered(before, ld(bias), presence, frequency));
            }
            st_u8(marks, given(before, lowers));
        }
        st(&raw mut (*state).pos, pos + 1);
        st(&raw mut (*state).token, token);
        st(&raw mut (*state).step, step + 1);
        st(&raw mut (*state).done, if done { 1 } else { rests });
        st_x2(args.best.as_ptr().cast(), [0u32, 0]);
    }
}

const _: unsafe extern "ptx-kernel" fn(<SamplePrepare as Kernel>::Args) = sample_prepare;
const _: unsafe extern "ptx-kernel" fn(<SamplePick as Kernel>::Args) = sample_pick;
#[cfg(level_sm_90)]
const _: unsafe extern "ptx-kernel" fn(<SamplePickWide as Kernel>::Args) = sample_pick_wide;
// A warp of `sample_prepare` has a group.
const _: () = assert!(GROUP == LANES && PREPARE_TILE.is_multiple_of(PREPARE_THREADS));
// Fields are read as words.
const _: () = assert!(align_of::<SampleParams>() == 8 && size_of::<StepState>() == 16);
