//! The weights of a warp's steps on their way to it, over all linear layers of a model.
//!
//! As in `crate::bit_linear` a lane multiplies what it has asked for itself. Where the steps of one linear layer end those
//! of the next begin, so that there are always [`DEPTH`] on their way.

use contract::bit_linear::{LANES, WARPS};
use contract::decode_layers::{Args, DEPTH, LINEARS, Linear, SHARE_WORDS, THREADS};

use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::hint::opaque;
use crate::arch::mem::{X4, ld_x2};
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{lane_id, warp_id};
use crate::bit_linear::product::{Start, Steps};
use crate::bit_linear::{ROWS, Tile, row_of_lane};

/// What a block makes of a linear layer, and the steps of this warp in it.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) tile: Tile,
    pub(super) start: Start,
    pub(super) end: u32,
}

impl Share {
    #[inline(always)]
    pub(super) fn new(tile: Tile) -> Self {
        let (first, end) = tile.steps();
        Self { tile, start: Start::of(tile, first), end }
    }

    /// Leaves it at `to`.
    ///
    /// # Safety
    ///
    /// `to` starts `SHARE_WORDS` words that nobody reads yet; every thread of the block calls it.
    #[inline(always)]
    pub(super) unsafe fn leave(&self, to: Shared<u32>) {
        let Tile { n, first, outputs, rows, chunks, groups } = self.tile;
        let Start { step, set, group } = self.start;
        // SAFETY: the caller's promise: one thread writes the first words, one of each warp its own.
        unsafe {
            if thread_idx_x() == 0 {
                to.write_x4([n, first, outputs, rows]);
                to.add(4).write_x2([chunks, groups]);
            }
            if lane_id() == 0 {
                to.add(8 + 4 * warp_id()).write_x4([step, set, group, self.end]);
            }
        }
    }

    /// What [`Share::leave`] left.
    ///
    /// # Safety
    ///
    /// There is a barrier between the two.
    #[inline(always)]
    pub(super) unsafe fn find(at: Shared<u32>) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let [n, first, outputs, rows] = at.read_x4();
            let [chunks, groups] = at.add(4).read_x2();
            let [step, set, group, end] = at.add(8 + 4 * warp_id()).read_x4();
            let tile = Tile { n, first, outputs, rows, chunks, groups };
            Self { tile, start: Start { step, set, group }, end }
        }
    }
}

/// A thread's queue of steps.
pub(super) struct Queue {
    shares: Shared<u32>,
    /// Slot 0 of this thread.
    slots: Shared<u32>,
    /// The slot that is taken, and filled, next.
    slot: u32,
    /// Linear layers of the model, and the one that steps are asked for of.
    linears: u32,
    linear: u32,
    share: Share,
    /// Its weights, and those of the one after it.
    w: *const X4<u32>,
    w_next: *const X4<u32>,
    entries: *const Linear,
    /// This lane's chunk of the first step of each row of the set, and whether there is such a row.
    rows: [(*const X4<u32>, bool); ROWS],
}

impl Queue {
    /// An empty queue.
    ///
    /// # Safety
    ///
    /// The launch contract; the shares are at `shares`; `slots` starts `QUEUE_BYTES` that nothing else uses.
    #[inline(always)]
    pub(super) unsafe fn new(args: &Args, slots: Shared<u32>, shares: Shared<u32>) -> Self {
        let entries = args.linears.as_ptr().cast_const();
        let linears = args.shape.layers * LINEARS as u32;
        // SAFETY: the caller's promise.
        unsafe {
            let w = weights(entries);
            let mut queue = Self {
                shares,
                slots: slots.add(4 * thread_idx_x()),
                slot: 0,
                linears,
                linear: 0,
                share: Share::find(shares),
                w,
                w_next: weights(entries.wrapping_add(1)),
                entries,
                rows: [(w, false); ROWS],
            };
            queue.settle();
            queue
        }
    }

    /// Points at the rows of the set.
    #[inline(always)]
    fn find_rows(&mut self) {
        let tile = self.share.tile;
        let mut r = 0;
        while r < ROWS {
            let row = row_of_lane(self.share.start.set, r);
            let inside = row < tile.rows;
            let row = tile.row_of_matrix(if inside { row } else { 0 });
            let at = row as usize * tile.chunks as usize + (lane_id() % LANES) as usize;
            self.rows[r] = (self.w.wrapping_add(at), inside);
            r += 1;
        }
    }

    /// Goes on to the next linear layer in which this warp has steps, if it is through with this one.
    #[inline(always)]
    fn settle(&mut self) {
        while self.share.start.step == self.share.end && self.linear < self.linears {
            self.linear += 1;
            self.w = self.w_next;
            let after = (self.linear + 1).min(self.linears - 1);
            // SAFETY: an entry of the model; the shares are in shared memory.
            unsafe {
                self.w_next = weights(self.entries.wrapping_add(after as usize));
                let kind = self.linear % LINEARS as u32;
                self.share = Share::find(self.shares.add(SHARE_WORDS * kind));
            }
        }
        self.find_rows();
    }

    /// Asks for the first `DEPTH` steps.
    #[inline(always)]
    pub(super) fn fill(&mut self) {
        let mut i = 0;
        while i < DEPTH {
            self.push();
            i = opaque(i + 1); // one loop
        }
    }

    #[inline(always)]
    fn slot_of(&self, r: usize) -> Shared<u32> {
        self.slots.add(4 * THREADS * (self.slot * ROWS as u32 + r as u32))
    }
}

impl Steps for Queue {
    #[inline(always)]
    fn push(&mut self) {
        if self.linear < self.linears {
            let Start { group, .. } = self.share.start;
            let chunk = group * LANES + lane_id() % LANES;
            let mut r = 0;
            while r < ROWS {
                let (row, inside) = self.rows[r];
                let there = inside && chunk < self.share.tile.chunks;
                // SAFETY: w[row, chunk] with both inside; weights never change. The slot was last read by
                // this thread, before this call.
                unsafe {
                    copy_x16(self.slot_of(r), row.wrapping_add((group * LANES) as usize), there);
                }
                r += 1;
            }
            self.share.start.step += 1;
            self.share.start.group += 1;
            if self.share.start.step == self.share.end {
                self.settle();
            } else if self.share.start.group == self.share.tile.groups {
                self.share.start.set += 1;
                self.share.start.group = 0;
                self.find_rows();
            }
        }
        commit_group();
        self.slot = if self.slot + 1 == DEPTH { 0 } else { self.slot + 1 };
    }

    #[inline(always)]
    fn pop(&mut self) -> [X4<u32>; ROWS] {
        wait_group::<{ DEPTH - 1 }>();
        let mut step = [[0; 4]; ROWS];
        let mut r = 0;
        while r < ROWS {
            // SAFETY: a slot of this thread, whose copy was waited for.
            step[r] = unsafe { self.slot_of(r).read_x4() };
            r += 1;
        }
        step
    }
}

/// The weights of an entry.
///
/// # Safety
///
/// `entry` is an element of `args.linears`.
#[inline(always)]
unsafe fn weights(entry: *const Linear) -> *const X4<u32> {
    // SAFETY: an entry that nobody writes.
    let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*entry).w).cast()) };
    (u64::from(low) | u64::from(high) << 32) as *const X4<u32>
}

const _: () = assert!(WARPS == THREADS / 32);
