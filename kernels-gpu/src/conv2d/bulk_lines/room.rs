//! Shared memory of a block, its rings, and the tiles that it makes.

use contract::conv2d::bulk_lines::{
    BARRIER_BYTES, CHANNELS, ENTRY_BYTES, LINES, MOST_STAGES, MOST_STEPS, STEP_BYTES, TABLE_BYTES,
    WEIGHT_BYTES, WEIGHT_STAGES, Walk,
};

use crate::arch::mbarrier::{self, Barrier};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x};
use crate::arch::wgmma::ATOM_BYTES;

/// A place of a ring, and the parity of its barriers' phase.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    place: u32,
    /// Of the phase that ends next.
    pub(crate) parity: u32,
}

impl Turn {
    /// The first one.
    pub(crate) const FIRST: Self = Self { place: 0, parity: 0 };

    /// The next of `places`.
    #[inline(always)]
    pub(crate) fn next(self, places: u32) -> Self {
        let last = self.place + 1 == places;
        let place = if last { 0 } else { self.place + 1 };
        Self { place, parity: self.parity ^ u32::from(last) }
    }

    /// The turn so many later.
    #[inline(always)]
    pub(super) fn skip(self, turns: u32, places: u32) -> Self {
        let (mut place, mut parity) = (self.place + turns, self.parity);
        while place >= places {
            (place, parity) = (place - places, parity ^ 1);
        }
        Self { place, parity }
    }
}

/// Shared memory of a block.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    barriers: Barrier,
    /// [`Walk::step`] of each step.
    pub(super) steps: Shared<u32>,
    /// What divides the sums of each position, and its pixel.
    pub(super) head: Shared<u32>,
    weights: Shared<u8>,
    entries: Shared<u8>,
    /// Sums of each position.
    pub(super) sums: Shared<u32>,
}

impl Room {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let base = dynamic_shared_mem::<u8>();
        let steps = base.add(BARRIER_BYTES);
        let head = steps.add(MOST_STEPS * STEP_BYTES);
        let rings = base.add(TABLE_BYTES);
        let weights = rings.add(rings.addr().wrapping_neg() % ATOM_BYTES);
        let entries = weights.add(WEIGHT_STAGES * WEIGHT_BYTES);
        Self {
            barriers: base.cast(),
            steps: steps.cast(),
            head: head.cast(),
            weights,
            entries,
            sums: entries.add(LINES.ring).cast(),
        }
    }

    /// A step of the table.
    ///
    /// # Safety
    ///
    /// It is written and shown.
    #[inline(always)]
    pub(crate) unsafe fn step(&self, step: u32) -> [u32; 2] {
        // SAFETY: the caller's promise.
        unsafe { self.steps.add(2 * step).read_x2() }
    }

    /// Weights of a step.
    #[inline(always)]
    pub(crate) fn weights(&self, turn: Turn) -> Shared<u8> {
        self.weights.add(turn.place * WEIGHT_BYTES)
    }

    /// Entries of a stage.
    #[inline(always)]
    pub(super) fn entries(&self, walk: &Walk, turn: Turn) -> Shared<u8> {
        self.entries.add(turn.place * walk.entries * ENTRY_BYTES)
    }

    /// Ends a phase when the weights of a step are there.
    #[inline(always)]
    pub(crate) fn weights_full(&self, turn: Turn) -> Barrier {
        self.barriers.add(turn.place)
    }

    /// Ends a phase when weights that were expanded are shown to the async proxy.
    #[inline(always)]
    pub(super) fn weights_shown(&self, turn: Turn) -> Barrier {
        self.barriers.add(2 * WEIGHT_STAGES + turn.place)
    }

    /// Ends a phase when every warp that multiplies has used the weights of a step.
    #[inline(always)]
    pub(crate) fn weights_empty(&self, turn: Turn) -> Barrier {
        self.barriers.add(WEIGHT_STAGES + turn.place)
    }

    /// Ends a phase when a stage is there.
    #[inline(always)]
    pub(super) fn entries_full(&self, turn: Turn) -> Barrier {
        self.barriers.add(3 * WEIGHT_STAGES + turn.place)
    }

    /// Ends a phase when every warp that multiplies has used a stage.
    #[inline(always)]
    pub(super) fn entries_empty(&self, turn: Turn) -> Barrier {
        self.barriers.add(3 * WEIGHT_STAGES + MOST_STAGES + turn.place)
    }

    /// Ends a phase when a warpgroup that has tiles of its own may multiply: the other one has waited for all
    /// that its tile before takes, so that neither is more than a phase away from a barrier that it waits for.
    #[inline(always)]
    pub(super) fn may_multiply(&self, warpgroup: u32) -> Barrier {
        self.barriers.add(3 * WEIGHT_STAGES + 2 * MOST_STAGES + warpgroup)
    }

    /// Makes the barriers; `fillers` threads bring weights, `users` warps multiply them.
    ///
    /// # Safety
    ///
    /// One thread calls it, before a barrier of the block.
    #[inline(always)]
    pub(super) unsafe fn init(&self, fillers: u32, users: u32) {
        let at = |place| Turn { place, parity: 0 };
        let mut place = 0;
        while place < WEIGHT_STAGES {
            // SAFETY: the caller's promise.
            unsafe {
                mbarrier::init(self.weights_full(at(place)), fillers);
                mbarrier::init(self.weights_shown(at(place)), 1);
                mbarrier::init(self.weights_empty(at(place)), users);
            }
            place += 1;
        }
        let mut place = 0;
        while place < MOST_STAGES {
            // SAFETY: the caller's promise.
            unsafe {
                mbarrier::init(self.entries_full(at(place)), 1);
                mbarrier::init(self.entries_empty(at(place)), users);
            }
            place += 1;
        }
        // SAFETY: the caller's promise.
        unsafe {
            mbarrier::init(self.may_multiply(0), 128);
            mbarrier::init(self.may_multiply(1), 128);
        }
        mbarrier::show_new();
    }
}

/// The tiles of a block: one after the other, or its part of the steps of one.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// First tile, distance to the next one, and end of all.
    pub(crate) first: u32,
    pub(crate) step: u32,
    pub(crate) end: u32,
    /// Which part of them.
    pub(crate) part: u32,
    /// Its steps of each tile.
    pub(crate) begins: u32,
    pub(crate) ends: u32,
}

impl Part {
    #[inline(always)]
    pub(super) fn new<const CLUSTER: u32>(walk: &Walk) -> Self {
        let all = walk.round * walk.rounds;
        if CLUSTER == 1 {
            let (first, step) = (block_idx_x(), grid_dim_x());
            return Self { first, step, end: walk.tiles, part: 0, begins: 0, ends: all };
        }
        // A power of two.
        let (first, part) =
            (block_idx_x() >> walk.splits.trailing_zeros(), block_idx_x() & (walk.splits - 1));
        let begins = (part * walk.share).min(all);
        let ends = (begins + walk.share).min(all);
        // One tile, where there is one.
        Self { first, step: walk.tiles, end: walk.tiles, part, begins, ends }
    }
}

/// What a block, or a warpgroup, makes of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// First output channel in the group.
    pub(crate) column0: u32,
    /// First position.
    pub(crate) first: u32,
    /// Group.
    pub(crate) group: u32,
}

impl Tile {
    /// From position `from` of the tile on.
    #[inline(always)]
    pub(crate) fn of(walk: &Walk, index: u32, from: u32) -> Self {
        let (rest, column_tile) = walk.by_columns.div_rem(index);
        let (group, position_tile) = walk.by_positions.div_rem(rest);
        let first = position_tile * walk.positions + from;
        Self { column0: column_tile * CHANNELS, first, group }
    }
}
