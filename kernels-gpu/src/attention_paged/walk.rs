//! A step of rows with a sequence each, several pages for the heads of one kv head per block; the last block of the heads to finish combines.
//!
//! When the scores are made, the keys of the next page are asked for in their place; when the values are taken, the next values in theirs. So
//! a block loads and computes at the same time. Everything else is as in [`super::step`].

use contract::attention_paged::{
    ABSENT, Args, STEP_HEAD_DIM, STEP_HEADS, STEP_KEY_BYTES, STEP_THREADS, STEP_VALUE_BYTES,
    step_parts, walk_pages, walk_share,
};
use contract::launch::DevPtr;
use contract::num::Running;
use contract::rope::rotate;

use super::step_row::{COPY_LANES, Step, word};
use super::tile::{KEYS, OWN, block_sum, keys, make_scores, make_weights, note, values, weighted};
use super::{page, position};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::atomic;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_x2, st, st_x2};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, block_idx_y, block_idx_z, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, ballot, lane_id};
use crate::element::Bf16;

/// Block `(part of a row's pages, m, kv head, part of its heads)` walks over [`walk_share`] pages; the last one of the heads combines.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of bf16, `counters` is zero, every row has
/// pages of its own; block and grid are the contract's. When `settled`: no kernel that may still run writes positions, tables or keys
/// in front of a row's own.
#[inline(always)]
pub(super) unsafe fn walk(args: &Args) {
    let Args { kv_heads, group, head_dim, .. } = *args;
    let share = walk_share(args);
    let parts = step_parts(group);
    let (of_row, m) = (block_idx_x(), block_idx_y());
    let first_page = block_idx_z() * share;
    // Most models have no more heads than a block takes, and then nothing is divided.
    let (kv_head, part) = if parts == 1 { (of_row, 0) } else { (of_row / parts, of_row % parts) };
    let head = kv_head * group + part * STEP_HEADS;
    let count = (group - part * STEP_HEADS).min(STEP_HEADS);
    // This thread's dimensions, of heads `first`, `first + 1` of the block's.
    let (dims, first) =
        (thread_idx_x() % (STEP_HEAD_DIM / 2), thread_idx_x() / (STEP_HEAD_DIM / 2) * OWN as u32);
    let inside = 2 * dims < head_dim;
    let mut step = Step { args, m, kv_head, head, count, pos: 0, page: 0, stores: part == 0 };
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
        if first_page == 0 && inside {
            let v = if pos == ABSENT { 0.0 } else { f32::NAN };
            let mut h = first;
            while h < (first + OWN as u32).min(count) {
                // SAFETY: no other block writes these heads.
                unsafe { step.write(head + h, dims, [v; 2]) };
                h += 1;
            }
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
        step.load_queries(step.raw_queries(), angle);
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
                step.put_new(new);
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
    // SAFETY: share < blocks, whose pages lie below the capacity.
    let (pages, there) = unsafe { (step.of_lanes::<true>(0, results), step.share_there()) };
    // The barrier puts the block's writes before the release of its first thread, whose ticket
    // says whether all others have done the same.
    sync_threads();
    let counter = m as usize * (kv_heads * parts) as usize + of_row as usize;
    let counter = args.counters.as_ptr().wrapping_add(counter);
    if thread_idx_x() == 0 {
        // SAFETY: counters[m, of_row]; nobody else uses the note.
        unsafe { note().write(atomic::add_acq_rel(counter, 1)) };
    }
    sync_threads();
    // SAFETY: written before the barrier.
    if unsafe { note().read() } + 1 < blocks.div_ceil(share) {
        return; // the whole block
    }
    if thread_idx_x() == 0 {
        // SAFETY: every block of these heads has passed the counter.
        unsafe { st(counter, 0) };
    }
    // SAFETY: every block of these heads has left its result, where its page is there.
    unsafe { step.combine::<true>(results, pages, there, [first, dims], inside) };
}

impl Step<'_> {
    /// Asks for the first `stored` keys of the page: a group.
    ///
    /// # Safety
    ///
    /// The page is there and has so many, when they are more than 0; nobody uses the place of the keys.
    #[inline(always)]
    pub(super) unsafe fn copy_keys(&self, stored: u32) {
        // SAFETY: handed on.
        unsafe { self.ask::<STEP_KEY_BYTES>(self.args.k_pages, keys(), stored) };
    }

    /// [`Step::copy_keys`] for the values.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn copy_values(&self, stored: u32) {
        // SAFETY: handed on.
        unsafe { self.ask::<STEP_VALUE_BYTES>(self.args.v_pages, values(), stored) };
    }

    /// Asks for `stored` keys or values, `BYTES` apart in `tile`: a group.
    ///
    /// # Safety
    ///
    /// As for [`Step::copy_keys`].
    #[inline(always)]
    unsafe fn ask<const BYTES: u32>(&self, pages: DevPtr<u8>, tile: Shared<u8>, stored: u32) {
        let head_dim = self.args.head_dim;
        let (lane, first) = (thread_idx_x() % COPY_LANES, thread_idx_x() / COPY_LANES);
        let from = pages.cast::<Bf16>().as_ptr().cast_const().wrapping_add(self.part());
        let copy = |key: u32| {
            let at = (key * head_dim + 8 * lane) as usize;
            // SAFETY: 16 bytes of a key of the page, which is written before this launch.
            unsafe { copy_x16(tile.add(key * BYTES + 16 * lane), from.wrapping_add(at), true) };
        };
        if 8 * lane < head_dim {
            if stored == KEYS {
                // Most pages are whole: no look at the end, and no loop.
                let mut i = 0;
                while i < KEYS {
                    copy(first + i);
                    i += STEP_THREADS / COPY_LANES;
                }
            } else {
                let mut key = first;
                while key < stored {
                    copy(key);
                    key += STEP_THREADS / COPY_LANES;
                }
            }
        }
        commit_group();
    }

    /// This thread's words of the row's own key and value: two neighbours of each half of the key, two of the value.
    ///
    /// # Safety
    ///
    /// `pos` is below the capacity.
    #[inline(always)]
    pub(super) unsafe fn new_words(&self) -> [u32; 3] {
        let Args { heads, kv_heads, head_dim, .. } = *self.args;
        let half = head_dim / 2;
        let i = thread_idx_x();
        let mut words = [0; 3];
        if 2 * i < half {
            let from = self.source(heads + self.kv_head).wrapping_add(2 * i as usize);
            // SAFETY: two pairs of the key.
            unsafe {
                let (a, b) = (self.angle(2 * i), self.angle(2 * i + 1));
                let [lo, hi] = [from, from.wrapping_add(half as usize)].map(|p| ld_x2(p.cast()));
                let (a, b) = (rotate(lo[0], hi[0], a.0, a.1), rotate(lo[1], hi[1], b.0, b.1));
                (words[0], words[1]) = (word(a.0, b.0), word(a.1, b.1));
            }
        }
        if i < half {
            let from = self.source(heads + kv_heads + self.kv_head).wrapping_add(2 * i as usize);
            // SAFETY: two elements of the value.
            let [a, b]: [f32; 2] = unsafe { ld_x2(from.cast()) };
            words[2] = word(a, b);
        }
        words
    }

    /// Puts [`Step::new_words`] behind the stored keys and values, and stores them.
    ///
    /// # Safety
    ///
    /// The row's place is in this page, which is there; nobody uses that place in shared memory.
    #[inline(always)]
    pub(super) unsafe fn put_new(&self, [low, high, value]: [u32; 3]) {
        let Args { head_dim, k_pages, v_pages, .. } = *self.args;
        let place = self.pos % KEYS;
        let at = self.part() + (place * head_dim) as usize;
        let half = head_dim / 2;
        let i = thread_idx_x();
        if 2 * i < half {
            let tile = keys().add(place * STEP_KEY_BYTES).cast::<u32>();
            let page = k_pages.cast::<Bf16>().as_ptr().wrapping_add(at).cast::<u32>();
            // SAFETY: words i and half / 2 + i of the key, in both places this thread's.
            unsafe {
                tile.add(i).write(low);
                tile.add(half / 2 + i).write(high);
                if self.stores {
                    st(page.wrapping_add(i as usize), low);
                    st(page.wrapping_add((half / 2 + i) as usize), high);
                }
            }
        }
        if i < half {
            let tile = values().add(place * STEP_VALUE_BYTES).cast::<u32>();
            let page = v_pages.cast::<Bf16>().as_ptr().wrapping_add(at).cast::<u32>();
            // SAFETY: word i of the value, in both places this thread's.
            unsafe {
                tile.add(i).write(value);
                if self.stores {
                    st(page.wrapping_add(i as usize), value);
                }
            }
        }
    }

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
