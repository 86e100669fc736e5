//! A step of rows with a sequence each, several pages for the heads of one kv head per block; the last block of the heads to finish combines.
//!
//! When the scores are made, the keys of the next page are asked for in their place; when the values are taken, the next values in theirs. So
//! a block loads and computes at the same time. Everything else is as in [`super::step`].

use contract::attention_paged::{Args, walk_pages, walk_share};
use contract::num::Running;

use super::step_row::{Own, Step};
use super::tile::{KEYS, OWN, block_sum, make_scores, make_weights, note, queries, weighted};
use super::{page, position};
use crate::arch::async_copy::wait_group;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st_x2;
use crate::arch::thread::{block_idx_z, sync_threads};
use crate::arch::warp::{LANES, ballot, lane_id};

/// Block `(part of a row's pages, m, kv head, part of its heads)` walks over [`walk_share`] pages; the last one of the heads combines.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of bf16, `counters` is zero, every row has
/// pages of its own; block and grid are the contract's. When `settled`: no kernel that may still run writes positions, tables or keys
/// in front of a row's own.
#[inline(always)]
pub(super) unsafe fn walk(args: &Args) {
    let head_dim = args.head_dim;
    let share = walk_share(args);
    let first_page = block_idx_z() * share;
    let (mut step, own) = Step::<false>::of_block(args);
    let Own { dims, first, inside } = own;
    let (head, count, m) = (step.head, step.count, step.m);
    if args.settled == 0 {
        dependency_wait();
    }
    // At once: none waits for another.
    // SAFETY: the grid has blocks for M rows and for pages below the capacity.
    let mut next = unsafe {
        step.page = step.page_beside(first_page);
        step.pos = position(args, m);
        step.page_beside(first_page + 1)
    };
    let pos = step.pos;
    let blocks = pos / KEYS + 1;
    if pos >= args.capacity || blocks > walk_pages(args) {
        dependency_wait();
        if first_page == 0 {
            // SAFETY: no other block writes these heads.
            unsafe { step.refuse(own) };
        }
        return; // the whole block
    }
    if first_page >= blocks {
        return; // the whole block: the grid is made for a longer sequence
    }
    let end = (first_page + share).min(blocks);
    let has_new = end == blocks;
    // Keys in front of the row's own that page `block` has.
    let stored = |block: u32| (pos - block * KEYS).min(KEYS);
    // SAFETY: the page, when it is there, has all positions in front of the row's own, which is below the capacity.
    let angle = unsafe {
        let there = step.page < args.pages;
        step.copy_keys(if there { stored(first_page) } else { 0 });
        step.copy_values(if there { stored(first_page) } else { 0 });
        step.angle_of_thread()
    };
    dependency_wait();
    // SAFETY: nobody reads the queries yet; the row's position is below the capacity.
    let new = unsafe {
        step.load_queries(queries(), step.raw_queries(), angle);
        if has_new { step.new_words() } else { [0; 3] }
    };
    // Not earlier: blocks of the next kernel would take the places of this one's unevenly. And behind the wait: what is settled for
    // the next step counts on it.
    launch_dependents();
    let mut running = [Running::EMPTY; OWN];
    let mut sum = [[0.0; 2]; OWN];
    let mut all = true;
    let (mut block, home) = (first_page, step.page);
    loop {
        let there = step.page < args.pages;
        let more = block + 1 < end;
        let visible = (pos + 1 - block * KEYS).min(KEYS);
        // SAFETY: keys and queries are there; then scores; then exponentials and values. Places of the next page are asked for when
        // nobody reads those of this one any more.
        unsafe {
            if there && !more && has_new {
                step.put_new(new, step.places());
            }
            wait_group::<1>();
            sync_threads();
            if there {
                make_scores(head_dim, args.scale, visible);
            }
            sync_threads();
            let page = step.page;
            step.page = next;
            let ahead = if more && next < args.pages { stored(block + 1) } else { 0 };
            step.copy_keys(ahead);
            if more {
                next = step.page_beside(block + 2);
            }
            if there {
                make_weights(visible);
            }
            wait_group::<1>();
            sync_threads();
            if there && inside {
                let out = weighted(dims, first, visible);
                let mut h = 0;
                while h < OWN {
                    let of_block = first + h as u32;
                    let sums = block_sum(of_block);
                    if first_page == 0 {
                        let weights = running[h].take(sums);
                        sum[h][0] = weights.combine(sum[h][0], out[h][0]);
                        sum[h][1] = weights.combine(sum[h][1], out[h][1]);
                    } else if of_block < count {
                        // The output and partial result belong to this thread, the sums to that of the first dimensions.
                        let to = step.partial(page, head + of_block);
                        st_x2(to.wrapping_add(2 + 2 * dims as usize).cast(), out[h]);
                        if dims == 0 {
                            st_x2(to.cast(), [sums.max, sums.sum]);
                        }
                    }
                    h += 1;
                }
            }
            all &= there;
            if !more {
                break;
            }
            sync_threads();
            step.copy_values(ahead);
        }
        block += 1;
    }
    if first_page == 0 {
        let mut h = 0;
        while h < OWN {
            let of_block = first + h as u32;
            if inside && of_block < count && (has_new || all) {
                // SAFETY: as above; the page is there.
                unsafe {
                    if has_new {
                        let values =
                            if all { sum[h].map(|v| running[h].finish(v)) } else { [f32::NAN; 2] };
                        step.write(head + of_block, dims, values);
                    } else {
                        let to = step.partial(home, head + of_block);
                        st_x2(to.wrapping_add(2 + 2 * dims as usize).cast(), sum[h]);
                        if dims == 0 {
                            st_x2(to.cast(), [running[h].max, running[h].sum]);
                        }
                    }
                }
            }
            h += 1;
        }
        if has_new {
            return; // the whole block
        }
    }

    // Where the others left theirs: on the way while the ticket is drawn.
    let results = blocks - share + 1;
    // SAFETY: share < blocks, whose pages lie below the capacity; each block comes here once, and then every block of these heads has left
    // its results, where its pages are there.
    unsafe {
        let (pages, there) = (step.of_lanes::<true>(0, results), step.share_there());
        if step.is_last(blocks.div_ceil(share), note()) {
            step.combine::<true>(results, pages, there, own);
        }
    }
}

impl Step<'_> {
    /// Whether the first [`walk_share`] pages are there.
    ///
    /// *Convergence*: every lane calls it.
    ///
    /// # Safety
    ///
    /// They lie below the capacity.
    #[inline(always)]
    pub(super) unsafe fn share_there(&self) -> bool {
        let (share, pages) = (walk_share(self.args), self.args.pages);
        let (mut i, mut there) = (0, true);
        while i < share {
            let of_lane = (i + lane_id()).min(share - 1);
            // SAFETY: below the capacity.
            there &= ballot(unsafe { page(self.args, self.m, of_lane) } >= pages) == 0;
            i += LANES;
        }
        there
    }
}
