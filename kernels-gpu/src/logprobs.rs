//! Device side of [`contract::logprobs`]: a block a row.
//!
//! Warps go through the logits once for the best of each group, and for how many are above the token; then the first warp lists the
//! most likely ones, by the best of the groups, while the others go through all of them for the sum.

use contract::launch::Kernel;
use contract::logprobs::{
    Args, ENTRY_WORDS, LIST, LOGPROB, Logprobs, MAX_GROUPS, MAX_TOP, RANK, STEP, THREADS, TILE,
    TOKEN, ln_sum, log_probability, span, weight,
};
use contract::num::{order_key, order_value};
use contract::sample::{rank_index, rank_of};

use crate::arch::fence::system_fence;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, st, st_x2};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads};
use crate::arch::warp::{LANES, lane_id, shuffle_xor_u64, sync_warp, warp_id};

/// Warps of the block.
const WARPS: u32 = THREADS / LANES;
/// Logits of a lane in a tile.
const OF_LANE: usize = (TILE / LANES) as usize;

/// The logits of one row.
#[derive(Clone, Copy)]
struct Row {
    logits: *const f32,
    vocab: u32,
    /// Logits of a group.
    span: u32,
    groups: u32,
}

impl Row {
    /// Calls `each(logit, index)` with this lane's logits of `group`.
    ///
    /// # Safety
    ///
    /// The row has `vocab` logits.
    #[inline(always)]
    unsafe fn for_each(&self, group: u32, mut each: impl FnMut(f32, u32)) {
        let mut first = group * self.span;
        let end = first + self.span;
        while first < end {
            let index = |j: usize| first + j as u32 * LANES + lane_id();
            // All at once.
            let loaded: [f32; OF_LANE] = core::array::from_fn(|j| {
                let i = index(j);
                // SAFETY: i < vocab.
                unsafe { ld_if(i < self.vocab, self.logits.wrapping_add(i as usize)) }
            });
            let mut j = 0;
            while j < OF_LANE {
                if index(j) < self.vocab {
                    each(loaded[j], index(j));
                }
                j += 1;
            }
            first += TILE;
        }
    }

    /// The best logit of all groups as a rank.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The best of each group stands in shared memory, and nobody changes it.
    #[inline(always)]
    unsafe fn best(&self) -> u64 {
        let mut best = 0;
        let mut group = lane_id();
        while group < self.groups {
            // SAFETY: the caller's promise.
            best = best.max(unsafe { bests().add(group).read_u64() });
            group += LANES;
        }
        over_lanes(best, u64::max)
    }
}

/// The best rank of each group.
#[inline(always)]
fn bests() -> Shared<u64> {
    dynamic_shared_mem()
}

/// Of each warp its part of the sum, and behind them of each its tokens above.
#[inline(always)]
fn of_warps() -> Shared<u64> {
    bests().add(MAX_GROUPS)
}

/// `join` over the lanes, in every lane.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
fn over_lanes(value: u64, join: impl Fn(u64, u64) -> u64) -> u64 {
    let (mut value, mut distance) = (value, LANES / 2);
    while distance > 0 {
        value = join(value, shuffle_xor_u64(value, distance));
        distance /= 2;
    }
    value
}

/// The rank of the most likely token `lane_id()`, for lanes below `count`; 0 for the others.
///
/// *Convergence*: every lane of one warp calls it.
///
/// # Safety
///
/// As for [`Row::best`], but for this warp, which takes out what it finds.
#[inline(always)]
unsafe fn list(row: &Row, count: u32) -> u64 {
    let (mut own, mut j) = (0, 0);
    while j < count {
        // SAFETY: the caller's promise; what the first lane wrote stands before a barrier of the warp.
        unsafe {
            let best = row.best();
            own = if lane_id() == j { best } else { own };
            // Its group's next one.
            let group = rank_index(best) / row.span;
            let mut next = 0;
            row.for_each(group, |x, i| {
                let rank = rank_of(order_key(x), i);
                next = if rank < best { rank.max(next) } else { next };
            });
            next = over_lanes(next, u64::max);
            sync_warp();
            if lane_id() == 0 {
                bests().add(group).write_u64(next);
            }
            sync_warp();
        }
        j += 1;
    }
    own
}

/// # Safety
///
/// The launch obeys `Logprobs::SPEC` with a block for each row; the pointers of `args` cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn logprobs(args: Args) {
    launch_dependents();
    dependency_wait();
    let at = block_idx_x() as usize;
    let word = |words: *const u32, stride: u32| words.wrapping_add(at * stride as usize);
    // SAFETY: a word of each row.
    let (id, step, wanted, last) = unsafe {
        (
            ld(word(args.ids.as_ptr(), args.ids_stride)),
            ld(word(args.steps.as_ptr(), args.steps_stride)),
            ld(word(args.wanted.as_ptr(), args.wanted_stride)),
            ld(word(args.last.as_ptr(), 1)),
        )
    };
    if wanted == 0 || step == 0 || step == last {
        return; // the whole block
    }
    let (vocab, span) = (args.vocab, span(args.vocab));
    let logits = args.logits.as_ptr().cast_const().wrapping_add(at * vocab as usize);
    let row = Row { logits, vocab, span, groups: vocab.div_ceil(span) };
    let has_token = id < vocab;
    // SAFETY: id < vocab.
    let x = unsafe { ld_if(has_token, logits.wrapping_add(id as usize)) };
    let of_token = if has_token { order_key(x) } else { u32::MAX };

    let mut above = 0;
    let mut group = warp_id();
    while group < row.groups {
        let mut best = 0;
        // SAFETY: the row is the contract's; a warp writes for its group alone.
        unsafe {
            row.for_each(group, |x, i| {
                let key = order_key(x);
                above += u64::from(key > of_token);
                best = rank_of(key, i).max(best);
            });
            best = over_lanes(best, u64::max);
            if lane_id() == 0 {
                bests().add(group).write_u64(best);
            }
        }
        group += WARPS;
    }
    sync_threads();
    // SAFETY: written before the barrier, and not changed before the next.
    let max = order_value((unsafe { row.best() } >> 32) as u32);
    sync_threads();

    let count = (wanted - 1).min(MAX_TOP).min(vocab);
    let (mut sum, mut listed) = (0, 0);
    if warp_id() == 0 {
        // SAFETY: the other warps have read what it changes.
        listed = unsafe { list(&row, count) };
    } else {
        let mut group = warp_id() - 1;
        while group < row.groups {
            // SAFETY: the row is the contract's.
            unsafe { row.for_each(group, |x, _| sum += weight(x, max)) };
            group += WARPS - 1;
        }
    }
    let (sum, above) = (over_lanes(sum, u64::wrapping_add), over_lanes(above, u64::wrapping_add));
    if lane_id() == 0 {
        // SAFETY: two words of the warp.
        unsafe {
            of_warps().add(warp_id()).write_u64(sum);
            of_warps().add(WARPS + warp_id()).write_u64(above);
        }
    }
    sync_threads();
    if warp_id() != 0 {
        return;
    }
    let of_warp = |first: u32| {
        // SAFETY: written before the barrier.
        let own = unsafe { of_warps().add(first + lane_id() % WARPS).read_u64() };
        over_lanes(if lane_id() < WARPS { own } else { 0 }, u64::wrapping_add)
    };
    let (ln_sum, above) = (ln_sum(of_warp(0)), of_warp(WARPS) as u32);
    let entry = at * args.ring as usize + ((step - 1) % args.ring) as usize;
    let entry = args.out.as_ptr().wrapping_add(entry * ENTRY_WORDS);
    // SAFETY: the entry has so many words, which this warp alone writes; lists stand on 8 bytes.
    unsafe {
        if lane_id() < count {
            let logprob = log_probability(order_value((listed >> 32) as u32), max, ln_sum);
            let pair = entry.wrapping_add(LIST + 2 * lane_id() as usize);
            st_x2(pair.cast(), [rank_index(listed), logprob.to_bits()]);
        }
        if lane_id() == 0 {
            let logprob = if has_token { log_probability(x, max, ln_sum) } else { f32::NAN };
            st(entry.wrapping_add(TOKEN), id);
            st(entry.wrapping_add(LOGPROB), logprob.to_bits());
            st(entry.wrapping_add(RANK), if has_token { above + 1 } else { 0 });
            st(args.last.as_ptr().wrapping_add(at), step);
        }
        sync_warp();
        if lane_id() == 0 {
            system_fence();
            st(entry.wrapping_add(STEP), step);
        }
    }
}

const _: unsafe extern "ptx-kernel" fn(<Logprobs as Kernel>::Args) = logprobs;
// A lane holds one of the listed; the entries of the warps are read by one warp.
const _: () = assert!(MAX_TOP <= LANES && WARPS <= LANES && ENTRY_WORDS.is_multiple_of(4));
