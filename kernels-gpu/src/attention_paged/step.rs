//! A step of rows with a sequence each: a warp takes one page for up to four heads of one kv head, a block
//! neighbouring pages; the last block of the heads to finish combines.
//!
//! The keys of a page come into shared memory by asynchronous copies; its values, which every lane reads once,
//! go from the second-level cache into registers. No block reads what another one stores: the row's own key
//! goes into shared memory beside the page's, its value into registers.

use contract::attention_paged::{ABSENT, Args, STEP_HEADS, STEP_WARPS, step_parts};

use super::step_row::Step;
use super::tile::{KEYS, Values, make_scores, make_weights, note};
use super::{page, position};
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::atomic;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st;
use crate::arch::thread::{
    block_idx_x, block_idx_y, block_idx_z, grid_dim_x, sync_threads, thread_idx_x,
};
use crate::arch::warp::{sync_warp, warp_id};

/// Block `(m, kv head, part of its heads, pages)`: a warp takes one page; the last block of the heads combines.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of bf16, `counters` is zero, every row has
/// pages of its own; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn step(args: &Args) {
    let Args { heads, kv_heads, head_dim, .. } = *args;
    let (group, parts) = (heads / kv_heads, step_parts(heads, kv_heads));
    let (first, of_row, m) = (block_idx_x() * STEP_WARPS, block_idx_y(), block_idx_z());
    let (kv_head, part) = (of_row / parts, of_row % parts);
    let head = kv_head * group + part * STEP_HEADS;
    let count = (group - part * STEP_HEADS).min(STEP_HEADS);
    let block = first + warp_id();
    let mut step = Step { args, m, kv_head, head, count, pos: 0, page: 0, stores: part == 0 };
    dependency_wait();
    // All at once: none of them waits for another.
    // SAFETY: the grid has blocks for M rows; the last page of a table is below the capacity.
    let raw = unsafe {
        step.pos = position(args, m);
        step.page = page(args, m, block.min((args.capacity - 1) / KEYS));
        step.raw_queries()
    };
    let pos = step.pos;
    let blocks = pos / KEYS + 1;
    if pos >= args.capacity || blocks > grid_dim_x() * STEP_WARPS {
        if first == 0 {
            // SAFETY: no other block writes these heads.
            unsafe { step.fill(if pos == ABSENT { 0.0 } else { f32::NAN }) };
        }
        return; // the whole block
    }
    if first >= blocks {
        return; // the whole block: the grid is made for a longer sequence
    }
    let has_new = block == blocks - 1;
    let there = block < blocks && step.page < args.pages;
    // No key behind the last page.
    let visible = if there { (pos + 1 - block * KEYS).min(KEYS) } else { 0 };
    let stored = visible - u32::from(there && has_new);
    let mut own = [0; 2];
    // SAFETY: the page is there, with all positions in front of the row's own.
    unsafe {
        if there {
            step.copy(stored);
        }
        commit_group();
        step.load_queries(raw);
        if there && has_new {
            own = step.make_new();
        }
    }
    // Not earlier: blocks of the next kernel would take the places of this one's unevenly.
    launch_dependents();
    wait_group::<0>();
    sync_threads();
    if there {
        sync_warp();
        let values = Values { from: step.values(), stride: head_dim / 2, stored, own };
        // SAFETY: keys and queries are there, then exponentials; the page is this warp's.
        unsafe {
            let scores = make_scores(head_dim, args.scale);
            let ring = values.start();
            let sums = make_weights(scores, visible);
            step.leave(sums, values.weighted(ring, has_new));
        }
    }
    // The barrier puts the block's writes before the release of its first thread, whose ticket
    // says whether all others have done the same.
    sync_threads();
    if blocks > STEP_WARPS {
        let counter = m as usize * (kv_heads * parts) as usize + of_row as usize;
        let counter = args.counters.as_ptr().wrapping_add(counter);
        if thread_idx_x() == 0 {
            // SAFETY: counters[m, of_row]; nobody else uses the note.
            unsafe { note().write(atomic::add_acq_rel(counter, 1)) };
        }
        sync_threads();
        // SAFETY: written before the barrier.
        if unsafe { note().read() } + 1 < blocks.div_ceil(STEP_WARPS) {
            return; // the whole block
        }
        if thread_idx_x() == 0 {
            // SAFETY: every block of these heads has passed the counter.
            unsafe { st(counter, 0) };
        }
    }
    // SAFETY: every warp of these heads has left its result, where its page is there.
    unsafe { step.combine(blocks) };
}
