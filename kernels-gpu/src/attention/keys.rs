//! One key block per block of threads; the last to finish combines. For decode.
//!
//! Each block leaves its result in `partial` and draws a ticket from the counter of its query and
//! head. Whoever draws the last one takes the results first to last, so that the order of arrival
//! does not show, and sets the counter back.

use contract::attention::{Args, THREADS, partial_len};
use contract::num::{BlockSum, Running};

use super::query::{DIMS, Query, write_out};
use crate::arch::atomic;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_relaxed, st};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::element::CacheElement;

/// Results in flight at once when they are combined.
const COMBINE: usize = 8;

/// Block `(key block, head, m)` takes one key block; the last of `(head, m)` combines.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for caches of `E`, `counters` is zero; block
/// and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn attention_split<E: CacheElement>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let (lane, block) = (block_idx_x() / args.key_blocks, block_idx_x() % args.key_blocks);
    let (head, m) = (lane % args.heads, lane / args.heads);
    // SAFETY: the grid has key_blocks * heads * M blocks.
    let query = unsafe { Query::<E>::new(args, m, head) };
    // A grid made for fewer positions than there are gives NaN, not an answer to half the keys.
    let (blocks, whole) = (query.blocks().min(args.key_blocks), query.blocks() <= args.key_blocks);
    if block >= blocks {
        return; // the whole block: the grid is made for a longer sequence
    }
    // SAFETY: block < blocks().
    let (sums, values) = unsafe { query.key_block::<16, 64>(block) };
    if blocks == 1 && whole {
        let mut running = Running::EMPTY;
        let weights = running.take(sums);
        // SAFETY: the grid has key_blocks * heads * M blocks, and no other block has work for (head, m).
        unsafe { write_out(args, m, head, running, values.map(|v| weights.combine(0.0, v))) };
        return; // the whole block
    }

    let lane = lane as usize; // (m, head)
    let len = partial_len(args.head_dim as usize);
    let partial = args.partial.as_ptr().wrapping_add(lane * args.key_blocks as usize * len);
    let own = partial.wrapping_add(block as usize * len);
    // SAFETY: partial[m, head, block] belongs to this block; dimensions to one thread each.
    unsafe {
        if thread_idx_x() == 0 {
            st(own, sums.max);
            st(own.wrapping_add(1), sums.sum);
        }
        let mut i = 0;
        while i < DIMS {
            let d = thread_idx_x() + THREADS * i as u32;
            if d < args.head_dim {
                st(own.wrapping_add(2 + d as usize), values[i]);
            }
            i += 1;
        }
    }

    // The barrier puts the block's writes before the release of its first thread, whose ticket
    // says whether all others have done the same.
    sync_threads();
    let ticket: Shared<u32> = query.shared_scores.cast();
    if thread_idx_x() == 0 {
        let counter = args.counters.as_ptr().wrapping_add(lane);
        // SAFETY: counters[m, head]; the scores were last read before the barrier.
        unsafe { ticket.write(atomic::add_acq_rel(counter, 1)) };
    }
    sync_threads();
    // SAFETY: written before the barrier.
    if unsafe { ticket.read() } + 1 < blocks {
        return; // the whole block
    }
    if thread_idx_x() == 0 {
        // SAFETY: every block of (m, head) has passed the counter.
        unsafe { st(args.counters.as_ptr().wrapping_add(lane), 0) };
    }

    let mut running = Running::EMPTY;
    let mut values = [0.0; DIMS];
    let mut first = 0;
    while first < blocks {
        let mut sums = [BlockSum { max: 0.0, sum: 0.0 }; COMBINE];
        let mut news = [[0.0; DIMS]; COMBINE];
        let mut b = 0;
        while b < COMBINE {
            // Past the last block it is read again and not used: no branch between the loads.
            let from = partial.wrapping_add((first + b as u32).min(blocks - 1) as usize * len);
            // SAFETY: partial[m, head, < blocks], written before the counter; d < head_dim.
            unsafe {
                sums[b] = BlockSum { max: ld_relaxed(from), sum: ld_relaxed(from.wrapping_add(1)) };
                let mut i = 0;
                while i < DIMS {
                    let d = (thread_idx_x() + THREADS * i as u32).min(args.head_dim - 1);
                    news[b][i] = ld_relaxed(from.wrapping_add(2 + d as usize));
                    i += 1;
                }
            }
            b += 1;
        }
        let mut b = 0;
        while b < COMBINE {
            if first + (b as u32) < blocks {
                let weights = running.take(sums[b]);
                let mut i = 0;
                while i < DIMS {
                    values[i] = weights.combine(values[i], news[b][i]);
                    i += 1;
                }
            }
            b += 1;
        }
        first += COMBINE as u32;
    }
    if !whole {
        values = [f32::NAN; DIMS];
    }
    // SAFETY: the grid is (key blocks, heads, M).
    unsafe { write_out(args, m, head, running, values) };
}
