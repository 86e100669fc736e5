//! Draws from the short list that [`gather`](super::gather) makes, without looking at the rest.
//!
//! The list lies in shared memory in the order of arrival, so it is only ever read as a set: thread
//! `t` compares entry `t` with every other. It takes the place of the histogram.

use contract::num::{order_key, order_value};
use contract::sample::{Args, TOP_P_LIST, scale_random, top_p_target, weight, weight_floor};

use super::draw::Asked;
use super::gather::{column, list, reached_by, told};
use super::scan::over_threads;
use super::select::for_each_of;
use super::team::Team;
use crate::arch::thread::{sync_threads, thread_idx_x};

/// The weight of all tokens. Ends with a barrier.
///
/// # Safety
///
/// As for [`draw`]; a barrier stands between this and other sums over threads.
#[inline(always)]
unsafe fn weigh_all(team: impl Team, args: &Args, best: f32, floor: u32) -> u64 {
    let mut sum = 0;
    let add = |x| sum += if order_key(x) >= floor { u64::from(weight(x, best)) } else { 0 };
    let adjusted = args.adjusted.as_ptr().cast_const();
    // SAFETY: the caller's promise.
    unsafe { for_each_of(team, adjusted, args.vocab, add) };
    let (_, total) = over_threads(sum);
    sync_threads();
    team.sums(total).1
}

/// Calls `visit(a, b)` with columns `i` and `j` of all entries.
///
/// # Safety
///
/// Both columns were written, to a multiple of 4 entries, before the last barrier.
#[inline(always)]
unsafe fn for_each_entry(listed: u32, i: u32, j: u32, mut visit: impl FnMut(u32, u32)) {
    let mut entry = 0;
    while entry < listed {
        // SAFETY: the caller's promise; columns are aligned to 16.
        let (a, b) = unsafe { (column(i).add(entry).read_x4(), column(j).add(entry).read_x4()) };
        let mut part = 0;
        while part < 4 {
            visit(a[part], b[part]);
            part += 1;
        }
        entry += 4;
    }
}

/// Steps 3 to 6 of the contract on the short list; `None`, for every thread of the block, when it is
/// too short to decide. Ends with a barrier.
///
/// *Convergence*: every thread of the team calls it, and all blocks find the same.
///
/// # Safety
///
/// As for `super::draw::draw`.
#[inline(always)]
pub(super) unsafe fn draw(
    team: impl Team,
    args: &Args,
    best_index: u32,
    asked: &Asked,
) -> Option<u32> {
    let wanted = match asked.top_k {
        0 if asked.has_top_p() => TOP_P_LIST,
        k => k,
    };
    let weightless = weight_floor(asked.best);
    // SAFETY: the caller's promise; nothing is in shared memory yet.
    let reached = unsafe { reached_by(args, wanted, order_key(asked.best)) };
    // For top-p alone the list may end above tokens that weigh something.
    let complete = asked.top_k != 0 || reached <= weightless;
    // SAFETY: the caller's promise; the counters are 0.
    let listed = unsafe { list(args, reached.max(weightless)) }?;
    // SAFETY: the same; the columns were written before the last barrier.
    unsafe { of_listed(team, args, best_index, asked, (listed, complete)) }
}

/// [`draw`] from the `listed` tokens whose keys and indices are in the columns; `complete` says that they are all that weigh something and that
/// top-k leaves.
///
/// *Convergence*: every thread of the team calls it, behind a barrier.
///
/// # Safety
///
/// As for [`draw`]; without `complete`, the logits are adjusted.
#[inline(always)]
pub(crate) unsafe fn of_listed(
    team: impl Team,
    args: &Args,
    best_index: u32,
    asked: &Asked,
    (listed, complete): (u32, bool),
) -> Option<u32> {
    let (thread, weightless) = (thread_idx_x(), weight_floor(asked.best));
    let (mut key, mut index, mut own) = (0, 0, 0);
    // SAFETY: entry `thread` is this thread's; it was written before the barrier.
    unsafe {
        if thread < listed {
            (key, index) = (column(0).add(thread).read(), column(1).add(thread).read());
            own = weight(order_value(key), asked.best);
        } else {
            column(0).add(thread).write(0); // fills the last four
            column(1).add(thread).write(0);
        }
        column(2).add(thread).write(own);
    }
    sync_threads();
    // An entry is kept by top-k when fewer than k are above it, and by top-p when those above it, of
    // which top-k keeps all if it keeps this one, weigh less than the target.
    let (mut above, mut heavier) = (0, 0u64);
    let compare = |other, weight| {
        if other > key {
            above += 1;
            heavier += u64::from(weight);
        }
    };
    if thread < listed {
        // SAFETY: keys and weights were written before the barrier.
        unsafe { for_each_entry(listed, 0, 2, compare) };
    }
    if asked.top_k != 0 && above >= asked.top_k {
        own = 0;
    }
    if asked.has_top_p() {
        let (_, mut total) = over_threads(u64::from(own));
        let of_list = total;
        sync_threads();
        if !complete {
            // SAFETY: the caller's promise; behind a barrier.
            total = unsafe { weigh_all(team, args, asked.best, weightless) };
        }
        let target = top_p_target(total, asked.top_p);
        if !complete && of_list < target {
            return None; // every thread: top-p keeps tokens that are not listed
        }
        own = if heavier < target { own } else { 0 };
    } else {
        sync_threads(); // all have compared
    }
    own = if own >= asked.min_weight { own } else { 0 };
    // SAFETY: this thread's entry; all have read the weights before the barrier above.
    unsafe { column(2).add(thread).write(own) };
    sync_threads();
    let (mut before, mut total) = (0u64, 0u64);
    let add = |other, weight| {
        total += u64::from(weight);
        before += if other < index { u64::from(weight) } else { 0 };
    };
    // SAFETY: indices and weights were written before the barrier; fillers weigh 0.
    unsafe { for_each_entry(listed, 1, 2, add) };
    if total == 0 {
        return Some(best_index); // every thread; only when each logit is NaN
    }
    let point = scale_random(asked.random, total);
    if before <= point && point < before + u64::from(own) {
        // SAFETY: one thread gets here; the others read behind the barrier.
        unsafe { told().write(index) };
    }
    sync_threads();
    // SAFETY: written before the barrier: the kept weigh more than `point`.
    Some(unsafe { told().read() })
}
