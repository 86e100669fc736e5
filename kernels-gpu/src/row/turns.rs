//! The rows that some lanes, or warps, have one after the other.

use contract::row::{LONG_THREADS, Owner, SHORT, THREADS, owner, turns};

use super::lanes::Lanes;
use super::turned::turned_len;
use crate::arch::thread::{block_idx_x, grid_dim_x, opaque, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, warp_id};
use crate::float::Float;

/// The rows of some lanes, one after the other.
#[derive(Clone, Copy)]
pub struct Turns {
    /// The first.
    first: u32,
    /// From one to the next.
    step: u32,
    /// How many.
    count: u32,
}

impl Turns {
    /// Those of these lanes, of `m` rows of `k` elements, of a family with such a `LANE`.
    #[inline(always)]
    pub fn new<E: Float>(m: u32, k: u32, lane: u32) -> Self {
        let (lanes, bytes) = (lanes_of::<E>(k, lane), 16 / E::PIECE as u32);
        let (step, count) = (THREADS / lanes, turns(m, k, lanes, bytes));
        Self { first: block_idx_x() * step * count + thread_idx_x() / lanes, step, count }
    }

    /// The same rows where they lie in pieces anyhow, with as many more elements as that takes: so may do the lanes.
    #[inline(always)]
    pub fn of_turned<E: Float>(m: u32, k: u32, lane: u32) -> Self {
        let own = Self::new::<E>(m, k, lane);
        let (all, lanes) = (own.step * own.count, lanes_of::<E>(turned_len::<E>(k), lane));
        let step = THREADS / lanes;
        Self { first: block_idx_x() * all + thread_idx_x() / lanes, step, count: all / step }
    }

    /// Those of `WARPS` warps of a block of middle rows, of `m` rows.
    #[inline(always)]
    pub fn of_block<const WARPS: u32>(m: u32) -> Self {
        let (first, step) = (Lanes::<WARPS>::row(), grid_dim_x() * Lanes::<WARPS>::BESIDE);
        Self { first, step, count: m.saturating_sub(first).div_ceil(step) }
    }

    /// Row number `turn` of these lanes: no row of any tensor where they have none.
    #[inline(always)]
    pub fn row(&self, turn: u32) -> u32 {
        if self.more(turn) { self.first + self.step * turn } else { u32::MAX }
    }

    /// Whether these lanes have a row number `turn`.
    #[inline(always)]
    pub fn more(&self, turn: u32) -> bool {
        turn < self.count
    }

    /// Where rows belong to warps: the first of this warp, and where those of the block end. The warps of a block take turns.
    #[inline(always)]
    pub fn warp_rows(&self, m: u32) -> (u32, u32) {
        let rows = self.step * self.count;
        let end = block_idx_x() * rows + rows;
        (end - rows + warp_id(), if end < m { end } else { m })
    }
}

/// The rows of a block of `T` threads, one after the other, those of a launch spread over its blocks.
pub struct Rows<const T: u32> {
    /// The present one; none of any tensor behind the last.
    pub m: u32,
    step: u32,
    end: u32,
}

impl<const T: u32> Rows<T> {
    /// Those of `m`, each of which so many `blocks` of [`LONG_THREADS`] share, or one of fewer.
    #[inline(always)]
    pub fn new(blocks: u32, m: u32) -> Self {
        let bits = if T == LONG_THREADS { blocks.trailing_zeros() } else { 0 };
        Self { m: block_idx_x() >> bits, step: grid_dim_x() >> bits, end: m }
    }

    /// Goes to the next one, unless there is none.
    ///
    /// *Convergence*: every thread of the block calls it.
    #[inline(always)]
    pub fn next(&mut self) -> bool {
        if self.end - self.m <= self.step {
            return false;
        }
        // Before the next row takes the shared memory.
        sync_threads();
        self.m = opaque(self.m + self.step);
        true
    }
}

/// Whether rows wait in the registers of `WARPS` warps: where these have as many as that takes. Those of `f32` are faster in shared memory.
#[inline(always)]
pub(super) fn holds<E: Float, const WARPS: u32>() -> bool {
    (cfg!(level_sm_90a) || cfg!(level_sm_80) && WARPS < 8) && E::PIECE == 8
}

/// Whether such rows of `k` elements that start on boundaries of 16 bytes do.
#[inline(always)]
pub fn near<E: Float, const WARPS: u32>(k: u32) -> bool {
    holds::<E, WARPS>() && k <= WARPS * SHORT
}

/// Lanes of a short row of a family with such a `LANE`.
#[inline(always)]
pub(super) fn lanes_of<E: Float>(k: u32, lane: u32) -> u32 {
    match owner(k, 16 / E::PIECE as u32, lane) {
        Owner::Lanes(lanes) => lanes,
        _ => LANES,
    }
}
