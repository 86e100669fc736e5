//! The weights of a warp's steps on their way to it.
//!
//! A lane multiplies the chunks that it has asked for itself, so a queue is one thread's: its copies go to
//! slots of its own in shared memory, and no barrier stands between a copy and its use. Below sm_80, which
//! has no such copies, a step is loaded when it is taken.

#[cfg(level_sm_80)]
use contract::bit_linear::THREADS;
use contract::bit_linear::{Args, DEPTH, LANES};

#[cfg(level_sm_80)]
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::hint::opaque;
use crate::arch::mem::X4;
#[cfg(not(level_sm_80))]
use crate::arch::mem::ld_nc_stream_x4_if;
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::lane_id;

use super::{ROWS, Tile, row_of_lane};

/// A thread's queue of steps.
pub(super) struct Queue {
    tile: Tile,
    w: *const X4<u32>,
    /// Slot 0 of this thread.
    #[cfg_attr(not(level_sm_80), allow(dead_code))]
    slots: Shared<u32>,
    /// Slots that are taken next and filled next.
    #[cfg_attr(not(level_sm_80), allow(dead_code))]
    slot: u32,
    /// The step that is asked for next, and the end.
    step: u32,
    #[cfg_attr(not(level_sm_80), allow(dead_code))]
    end: u32,
    set: u32,
    group: u32,
    /// This lane's chunk of the first step of each row of the set, and whether there is such a row.
    rows: [(*const X4<u32>, bool); ROWS],
}

impl Queue {
    /// An empty queue of the steps `step .. end`.
    ///
    /// # Safety
    ///
    /// The weights of `args` hold the rows of `tile`, aligned to 16 bytes; `slots` starts
    /// `16 THREADS ROWS DEPTH` bytes of shared memory that nothing else uses.
    #[inline(always)]
    pub(super) unsafe fn new(
        args: &Args,
        slots: Shared<u32>,
        tile: Tile,
        step: u32,
        end: u32,
    ) -> Self {
        let (set, group) = (step / tile.groups, step % tile.groups);
        let w = args.w.as_ptr().cast::<X4<u32>>().cast_const();
        let slots = slots.add(4 * thread_idx_x());
        let mut queue =
            Self { tile, w, slots, slot: 0, step, end, set, group, rows: [(w, false); ROWS] };
        queue.find_rows();
        queue
    }

    /// Points at the rows of the set.
    #[inline(always)]
    fn find_rows(&mut self) {
        let mut r = 0;
        while r < ROWS {
            let row = row_of_lane(self.set, r);
            let inside = row < self.tile.rows;
            let row = self.tile.row_of_matrix(if inside { row } else { 0 });
            let at = row as usize * self.tile.chunks as usize + (lane_id() % LANES) as usize;
            self.rows[r] = (self.w.wrapping_add(at), inside);
            r += 1;
        }
    }

    /// This lane's chunk of row `r`, and whether there is one.
    #[inline(always)]
    fn chunk(&self, r: usize) -> (*const X4<u32>, bool) {
        let (row, inside) = self.rows[r];
        let chunk = self.group * LANES + lane_id() % LANES;
        (row.wrapping_add((self.group * LANES) as usize), inside && chunk < self.tile.chunks)
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.step += 1;
        self.group += 1;
        if self.group == self.tile.groups {
            (self.set, self.group) = (self.set + 1, 0);
            self.find_rows();
        }
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

    /// Asks for the next step, if there is one.
    #[cfg(level_sm_80)]
    #[inline(always)]
    pub(super) fn push(&mut self) {
        if self.step < self.end {
            let mut r = 0;
            while r < ROWS {
                let (from, there) = self.chunk(r);
                // SAFETY: w[row, chunk] with both inside, by `new`; weights never change. The slot was
                // last read by this thread, before this call.
                unsafe { copy_x16(self.slot_of(r), from, there) };
                r += 1;
            }
            self.advance();
        }
        commit_group();
        self.slot = if self.slot + 1 == DEPTH { 0 } else { self.slot + 1 };
    }

    /// Waits for the oldest step that was asked for.
    #[cfg(level_sm_80)]
    #[inline(always)]
    pub(super) fn pop(&mut self) -> [X4<u32>; ROWS] {
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

    #[cfg(level_sm_80)]
    #[inline(always)]
    fn slot_of(&self, r: usize) -> Shared<u32> {
        self.slots.add(4 * THREADS * (self.slot * ROWS as u32 + r as u32))
    }

    /// Nothing: a step is loaded when it is taken.
    #[cfg(not(level_sm_80))]
    #[inline(always)]
    pub(super) fn push(&mut self) {}

    /// Loads the next step.
    #[cfg(not(level_sm_80))]
    #[inline(always)]
    pub(super) fn pop(&mut self) -> [X4<u32>; ROWS] {
        let mut step = [[0; 4]; ROWS];
        let mut r = 0;
        while r < ROWS {
            let (from, there) = self.chunk(r);
            // SAFETY: w[row, chunk] with both inside, by `new`; weights never change.
            step[r] = unsafe { ld_nc_stream_x4_if(there, from) };
            r += 1;
        }
        self.advance();
        step
    }
}
