//! A step of rows with a sequence each: one page for the heads of one kv head per block; the last block of
//! the heads to finish combines.
//!
//! The page comes into shared memory by asynchronous copies, keys first, so that scores are made while the
//! values arrive. No block reads what another one stores: the row's own key and value go into shared memory
//! beside the pages.
//!
//! Where positions, tables and stored keys are settled, a block asks for its page while the kernel in front still runs, and waits
//! for that only before it reads the row's projections.

use contract::attention_paged::Args;
use contract::num::Running;

use super::position;
use super::step_row::{Own, Step};
use super::tile::{KEYS, OWN, block_sum, make_scores, make_weights, note, queries, weighted};
use crate::arch::async_copy::wait_group;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st_x2;
use crate::arch::thread::{block_idx_z, grid_dim_z, sync_threads};

/// Whether a kernel can start before the one in front has ended. What is read ahead takes registers, which sm_86 has not.
const OVERLAPS: bool = cfg!(level_sm_90);

/// Block `(page, m, kv head, part of its heads)` takes one page; the last one of the heads combines.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of bf16, `counters` is zero, every row has
/// pages of its own or they are a `SPLIT` of rows whose keys and values are stored; block and grid are the contract's. When `settled`: no kernel that may still run writes positions, tables or keys
/// in front of a row's own.
#[inline(always)]
pub(super) unsafe fn step<const SPLIT: bool>(args: &Args) {
    let head_dim = args.head_dim;
    let (mut step, own) = Step::<SPLIT>::of_block(args);
    let (Own { dims, first, inside }, block) = (own, block_idx_z());
    let (head, count, m) = (step.head, step.count, step.m);
    if args.settled == 0 {
        dependency_wait();
    }
    // At once: neither waits for the other.
    // SAFETY: the grid has blocks for M rows and for pages below the capacity.
    unsafe {
        step.page = step.page_beside(block);
        step.pos = position(args, m);
    }
    let pos = step.pos;
    let blocks = pos / KEYS + 1;
    if pos >= args.capacity || blocks > grid_dim_z() {
        dependency_wait();
        if block == 0 {
            // SAFETY: no other block writes these heads.
            unsafe { step.refuse(own) };
        }
        return; // the whole block
    }
    if block >= blocks {
        return; // the whole block: the grid is made for a longer sequence
    }
    let has_new = !SPLIT && block == blocks - 1;
    let there = step.page < args.pages;
    let visible = (pos + 1 - block * KEYS).min(KEYS);
    // SAFETY: the page, when it is there, has all positions in front of the row's own, which is below the capacity.
    let angle = unsafe {
        if there {
            let stored = if has_new { visible - 1 } else { visible };
            step.copy_keys(stored);
            step.copy_values(stored);
        }
        if OVERLAPS { step.angle_of_thread() } else { (0.0, 0.0) }
    };
    dependency_wait();
    if there {
        // SAFETY: nobody reads the queries yet; the page is there.
        unsafe {
            let angle = if OVERLAPS { angle } else { step.angle_of_thread() };
            step.load_queries(queries(), step.raw_queries(), angle);
            if has_new {
                step.put_new(step.new_words(), step.places());
            }
        }
    }
    // Not earlier: blocks of the next kernel would take the places of this one's unevenly. And behind the wait: what is settled for
    // the next step counts on it.
    launch_dependents();
    let mut out = [[0.0; 2]; OWN];
    if there {
        wait_group::<1>();
        sync_threads();
        // SAFETY: keys and queries are there; then scores; then exponentials and values.
        unsafe {
            make_scores(head_dim, args.scale, visible);
            sync_threads();
            make_weights(visible);
            wait_group::<0>();
            sync_threads();
            if inside {
                out = weighted(dims, first, visible);
            }
        }
    }
    let mut h = 0;
    while h < OWN {
        let of_block = first + h as u32;
        if there && inside && of_block < count {
            // SAFETY: the sums are there; output and partial result belong to this thread, the sums
            // to that of the first dimensions.
            unsafe {
                let sums = block_sum(of_block);
                if blocks == 1 {
                    let mut running = Running::EMPTY;
                    let weights = running.take(sums);
                    let values = out[h].map(|v| running.finish(weights.combine(0.0, v)));
                    step.write(head + of_block, dims, values);
                } else {
                    let to = step.partial(step.place(block, step.page), head + of_block);
                    st_x2(to.wrapping_add(2 + 2 * dims as usize).cast(), out[h]);
                    if dims == 0 {
                        st_x2(to.cast(), [sums.max, sums.sum]);
                    }
                }
            }
        }
        h += 1;
    }
    if blocks == 1 && there {
        return; // the whole block
    }

    // Where the others left theirs: on the way while the ticket is drawn.
    // SAFETY: 0 < blocks, whose pages lie below the capacity; each block comes here once, and then every block of these heads has left
    // its result, where its page is there.
    unsafe {
        let pages = step.of_lanes::<false>(0, blocks);
        if step.is_last(blocks, note()) {
            step.combine::<false>(blocks, pages, true, own);
        }
    }
}
