//! How blocks go through the parts of rows.

use contract::parts::Parts;

use crate::arch::thread::{block_idx_x, grid_dim_x};

/// A part of a row, as a block comes to it.
#[derive(Clone, Copy)]
pub struct Turn {
    /// The row, among those of the launch; where each is gone through twice, two numbers, the second one for writing.
    pub pass: u32,
    /// Which part of it.
    pub part: u32,
}

/// How a block goes through the rows.
#[derive(Clone, Copy)]
pub struct Walk {
    /// The parts of a row.
    pub parts: Parts,
    /// Passes of the launch.
    passes: u32,
    /// Parts and passes from one turn to the next.
    step: [u32; 2],
    /// 1 where each row is gone through twice.
    twice: u32,
    /// The part that a pass begins with, all ones where it goes on from the one before.
    again: u32,
    /// Rows begin in the same place of a piece as those so many behind them.
    places: u32,
}

impl Walk {
    /// Through so many `rows` of `k` elements. Of `places` in which rows begin (a power of two), those that begin in the same one come one after the
    /// other, unless each is gone through twice.
    #[inline(always)]
    pub fn new(k: u32, rows: u32, places: u32) -> Self {
        let parts = Parts::new(k);
        let blocks = grid_dim_x();
        if parts.count <= blocks {
            let step = [blocks % parts.count, blocks / parts.count * places];
            return Self { parts, passes: rows, step, twice: 0, again: u32::MAX, places };
        }
        let step = [blocks, 0];
        Self { parts, passes: 2 * rows, step, twice: 1, again: block_idx_x(), places: 1 }
    }

    /// The first turn of this block.
    #[inline(always)]
    pub fn first(&self) -> Turn {
        let block = block_idx_x();
        let pass = self.passed(block / self.parts.count * self.places);
        Turn { pass, part: block % self.parts.count }
    }

    /// The turn behind one.
    #[inline(always)]
    pub fn next(&self, turn: Turn) -> Turn {
        let (pass, part) = (turn.pass + self.step[1], turn.part + self.step[0]);
        if part < self.parts.count {
            return Turn { pass: self.passed(pass), part };
        }
        let again = if self.again == u32::MAX { part - self.parts.count } else { self.again };
        Turn { pass: self.passed(pass + self.places), part: again }
    }

    /// A pass, which behind the last one of its place is among those of the next.
    #[inline(always)]
    fn passed(&self, pass: u32) -> u32 {
        let last = self.places - 1;
        let mut pass = pass;
        while pass >= self.passes && pass & last < last {
            let place = pass & last;
            pass = pass - self.passes - (place.wrapping_sub(self.passes) & last) + place + 1;
        }
        pass
    }

    /// Whether there is such a turn.
    #[inline(always)]
    pub fn there(&self, turn: Turn) -> bool {
        turn.pass < self.passes
    }

    /// The row of a turn.
    #[inline(always)]
    pub fn row(&self, turn: Turn) -> u32 {
        turn.pass >> self.twice
    }

    /// Whether the part is written this time.
    #[inline(always)]
    pub fn last(&self, turn: Turn) -> bool {
        turn.pass & self.twice == self.twice
    }

    /// Whether this is the first time that the block comes to the part.
    #[inline(always)]
    pub fn begins(&self, turn: Turn) -> bool {
        turn.pass & self.twice == 0
    }

    /// The segment of a warp of the block: all ones where it has none.
    #[inline(always)]
    pub fn segment(&self, turn: Turn, warp: u32) -> u32 {
        let (first, len) = self.parts.segments(turn.part);
        if self.there(turn) && warp < len { first + warp } else { u32::MAX }
    }
}
