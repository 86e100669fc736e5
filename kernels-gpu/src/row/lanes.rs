//! Short rows: one in the registers of 8, 16 or 32 lanes of a warp.
//!
//! Piece `n` of a lane is number `lane + lanes n` of the row. A piece of eight elements is eight neighbouring partials of
//! the sum; two pieces of four are four and four. Where rows take no more than these eight elements of a lane, there are
//! registers for [`ROWS`] of them: all are loaded before the first is summed. Rows that are not in pieces belong to a warp
//! each ([`Lanes::warp_rows`]).

use contract::row::{Owner, SHORT, THREADS, owner, turns};

use super::Line;
use crate::arch::float::maximum;
use crate::arch::thread::{block_idx_x, opaque, thread_idx_x};
use crate::arch::warp::{lane_id, shuffle_xor, warp_id};
use crate::float::{Float, Piece};

/// The most elements of a lane.
pub const WIDE: usize = SHORT as usize / 32;
/// The most pieces of a lane.
pub const MOST: usize = WIDE / 4;
/// Elements of a lane where it has several rows.
pub const NARROW: usize = 8;

/// Rows of eight elements a lane that are worked on together.
pub const ROWS: usize = 4;

/// The lanes of a row.
#[derive(Clone, Copy)]
pub struct Lanes {
    /// How many.
    count: u32,
    /// Which of them this is.
    own: u32,
    /// Rows of these lanes.
    turns: u32,
}

impl Lanes {
    /// Those of `m` rows of `k` elements.
    #[inline(always)]
    pub fn new(m: u32, k: u32) -> Self {
        let count = match owner(k, 4) {
            Owner::Lanes(lanes) => lanes,
            _ => 32,
        };
        Self { count, own: lane_id() % count, turns: turns(m, k, count) }
    }

    /// The first row of these lanes, and from one to the next.
    #[inline(always)]
    pub fn first_row(&self) -> (u32, u32) {
        let rows = THREADS / self.count;
        (block_idx_x() * rows * self.turns + thread_idx_x() / self.count, rows)
    }

    /// Whether these lanes have [`ROWS`] rows and more of `k` elements, eight a lane.
    #[inline(always)]
    pub fn narrow(&self, k: u32) -> bool {
        k <= NARROW as u32 * self.count && self.turns >= ROWS as u32
    }

    /// Row number `turn` of these lanes, given the first and the step: no row of any tensor where they have none.
    #[inline(always)]
    pub fn row(&self, first: u32, step: u32, turn: u32) -> u32 {
        if self.more(turn) { first + step * turn } else { u32::MAX }
    }

    /// Whether these lanes have a row number `turn`.
    #[inline(always)]
    pub fn more(&self, turn: u32) -> bool {
        turn < self.turns
    }

    /// Where rows belong to warps: the first of this warp, and where those of the block end. The warps of a block take turns.
    #[inline(always)]
    pub fn warp_rows(&self, m: u32) -> (u32, u32) {
        let rows = THREADS / self.count * self.turns;
        let end = block_idx_x() * rows + rows;
        (end - rows + warp_id(), if end < m { end } else { m })
    }

    /// Runs `body(n, first)` on each piece that a lane can have of a row with `LEN` elements a lane.
    #[inline(always)]
    pub fn each<E: Float, const LEN: usize>(&self, mut body: impl FnMut(usize, u32)) {
        let piece = E::PIECE as u32;
        // Anew in each pass: the addresses of all pieces would take more registers than there are.
        let own = opaque(self.own * piece);
        let mut n = 0;
        while n < LEN / E::PIECE {
            body(n, own + self.count * piece * n as u32);
            n += 1;
        }
    }

    /// Runs `body(n, first)` on each piece of the row that this lane has.
    #[inline(always)]
    pub fn own<E: Float, const LEN: usize>(
        &self,
        line: &Line<true>,
        mut body: impl FnMut(usize, u32),
    ) {
        self.each::<E, LEN>(|n, first| {
            if first < line.k {
                body(n, first);
            }
        });
    }

    /// The largest value of the row, NaN if one is NaN, in every lane of it.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn max(&self, value: f32) -> f32 {
        let mut top = value;
        let mut distance = self.count / 2;
        while distance > 0 {
            top = maximum(top, shuffle_xor(top, distance));
            distance /= 2;
        }
        top
    }

    /// The tree over the partials, in every lane of the row.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn tree<E: Float>(&self, Partials(mut p): Partials) -> f32 {
        let mut len = E::PIECE;
        if len == 4 {
            // The largest distance, 128: two pieces of one lane.
            let mut i = 0;
            while i < 4 {
                p[i] += p[i + 4];
                i += 1;
            }
        }
        // The next distances are between lanes. Two lanes share the sums of their values in halves, until
        // each has one.
        let mut distance = self.count / 2;
        while len > 1 {
            len /= 2;
            let upper = lane_id() & distance != 0;
            let mut i = 0;
            while i < len {
                let (keep, give) = if upper { (p[i + len], p[i]) } else { (p[i], p[i + len]) };
                p[i] = keep + shuffle_xor(give, distance);
                i += 1;
            }
            distance /= 2;
        }
        let mut sum = p[0];
        while distance > 0 {
            sum += shuffle_xor(sum, distance);
            distance /= 2;
        }
        // The last ones are within a piece: where its values went above.
        let mut distance = self.count / 2;
        let mut left = E::PIECE;
        while left > 1 {
            sum += shuffle_xor(sum, distance);
            distance /= 2;
            left /= 2;
        }
        sum
    }
}

/// The partials of a sum that lie in a lane.
#[derive(Clone, Copy)]
pub struct Partials([f32; 8]);

impl Partials {
    /// Nothing summed.
    #[inline(always)]
    pub fn new() -> Self {
        Self([0.0; 8])
    }

    /// Takes the lane's piece `n`.
    #[inline(always)]
    pub fn take<E: Float>(&mut self, n: usize, values: Piece, step: impl Fn(f32, f32) -> f32) {
        let at = n * E::PIECE % 8;
        let mut i = 0;
        while i < E::PIECE {
            self.0[at + i] = step(self.0[at + i], values[i]);
            i += 1;
        }
    }
}
