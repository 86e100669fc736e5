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
    /// Parts and passes from one turn to the next. Where rows begin in several places: no parts, and those that begin in the same place.
    step: [u32; 2],
    /// 1 where each row is gone through twice.
    twice: u32,
    /// Where rows begin in several places: the row that other blocks begin with, behind the last one of this. [`Walk::ONE`] where they do not.
    stop: u32,
}

impl Walk {
    /// For the row that other blocks begin with, where rows begin in one place.
    const ONE: u32 = u32::MAX;
    /// No row.
    const NONE: u32 = u32::MAX - 1;

    /// Whether rows begin in several places.
    #[inline(always)]
    fn several(&self) -> bool {
        self.stop != Self::ONE
    }

    /// Through so many `rows` of `k` elements. Where rows begin in several `places` (a power of two), a block has neighbours among those that begin in
    /// the same one, unless each is gone through twice; all blocks then have the same part of every row.
    #[inline(always)]
    pub fn new(k: u32, rows: u32, places: u32) -> Self {
        let parts = Parts::new(k);
        let blocks = grid_dim_x();
        let all = Self {
            parts,
            passes: rows,
            step: [blocks % parts.count, blocks / parts.count],
            twice: 0,
            stop: Self::ONE,
        };
        if parts.count > blocks {
            return Self { passes: 2 * rows, step: [blocks, 0], twice: 1, ..all };
        }
        if places == 1 {
            return all;
        }
        let own = Self { step: [0, places], stop: Self::NONE, ..all };
        Self { stop: own.row_of(block_idx_x() / parts.count + 1), ..own }
    }

    /// The first row of those blocks that are number `own` of all that have the same part, where rows begin in several places.
    #[inline(always)]
    fn row_of(&self, own: u32) -> u32 {
        let all = grid_dim_x() / self.parts.count;
        let mut rank = self.passes / all * own + self.passes % all * own / all;
        let mut place = 0;
        while place < self.step[1] {
            let rows = (self.passes + self.step[1] - 1 - place) / self.step[1];
            if rank < rows {
                return place + rank * self.step[1];
            }
            (rank, place) = (rank - rows, place + 1);
        }
        Self::NONE
    }

    /// The first turn of this block.
    #[inline(always)]
    pub fn first(&self) -> Turn {
        let (block, count) = (block_idx_x(), self.parts.count);
        let own = block / count;
        Turn { pass: if self.several() { self.row_of(own) } else { own }, part: block % count }
    }

    /// The turn behind one.
    #[inline(always)]
    pub fn next(&self, turn: Turn) -> Turn {
        if self.several() {
            let mut pass = turn.pass + if self.there(turn) { self.step[1] } else { 0 };
            let last = self.step[1] - 1;
            if self.there(turn) && pass >= self.passes {
                pass = (pass & last) + 1;
                // Behind the last place there is none.
                pass = if pass > last { Self::NONE } else { pass };
            }
            return Turn { pass, part: turn.part };
        }
        let (pass, part) = (turn.pass + self.step[1], turn.part + self.step[0]);
        if part < self.parts.count {
            return Turn { pass, part };
        }
        // Where it goes on, or begins again.
        let part = if self.twice == 0 { part - self.parts.count } else { block_idx_x() };
        Turn { pass: pass + 1, part }
    }

    /// Whether there is such a turn.
    #[inline(always)]
    pub fn there(&self, turn: Turn) -> bool {
        turn.pass < self.passes && turn.pass != self.stop
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
