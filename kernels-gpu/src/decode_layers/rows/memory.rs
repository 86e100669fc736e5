//! The shared memory of a block.

use contract::decode_layers::rows::{
    ASK_THREADS, GROUP_THREADS, GROUPS, KV_SLOT_BYTES, KV_SLOTS, SHARE_WORDS, Tiles, UNIT_WORDS,
    WORK_THREADS,
};
use contract::decode_layers::{
    KEY_BYTES, LINEARS, MAX_HEAD_DIM, Shape, THREADS, UNIT_HEADS, WARPS, row_bytes,
};

use contract::w2a8::MAX_SEGMENTS;

use super::super::attention::KEYS;
use super::super::{Memory as OfRow, attention};
use super::exchange;
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier::{Barrier, init};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::thread_idx_x;
use crate::bit_linear::Tile;

/// What a group of warps has of the unit that it is at.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// Two elements of every head, then the next two.
    pub(super) q: Shared<f32>,
    /// Of each head 64 scores, 64 weights, and the maximum.
    pub(super) scores: Shared<f32>,
    pub(super) weights: Shared<f32>,
    pub(super) tops: Shared<f32>,
}

/// The shared memory of a block, part by part.
#[derive(Clone, Copy)]
pub(super) struct Memory<const T: usize> {
    /// What the norm of one row takes.
    pub(super) row: OfRow,
    /// Keys and values of all groups but the last.
    kv: Shared<u8>,
    /// Of each group.
    units: Shared<f32>,
    /// The sums of the linear layers: a word of each row of weights and row; zeros between. Those of gate and up may stand in `units`.
    sums: Shared<u32>,
    /// The block's share of each linear layer.
    shares: Shared<u32>,
    /// For each area: whether its weights are there.
    pub(super) full: Barrier,
    /// For each linear layer: whether its rows are there; behind those, whether the queries are.
    pub(super) come: Barrier,
    /// For each group: whether its keys are there, and its values, and whether nobody uses them.
    pub(super) filled: [Barrier; 2],
    pub(super) empty: [Barrier; 2],
    /// The position of each row.
    pub(super) positions: Shared<u32>,
    /// The page of each group.
    pub(super) pages: Shared<u32>,
    /// Scales of the segments of each linear layer: they come with its weights.
    pub(super) scales: Shared<f32>,
    /// A byte of each output: the segments of its rows of weights, three bits each.
    pub(super) segments: Shared<u8>,
    /// The first unit of each group.
    pub(super) first: Shared<u32>,
    /// The scales and sums of the quantised rows of a linear layer and, in turn, of the next one.
    pub(super) stats: Shared<u32>,
    /// Sizes of the exchange.
    pub(super) sizes: Shared<u32>,
    /// Weights.
    pub(super) areas: Shared<u8>,
}

impl<const T: usize> Memory<T> {
    const TILES: Tiles = Tiles(T as u32);
    /// Words of the sums that are zeros at first.
    const SUMS: u32 = Self::TILES.own_sum_words();

    #[inline(always)]
    pub(super) fn new() -> Self {
        Self::at(dynamic_shared_mem())
    }

    /// The same, of which the optimiser does not know it.
    #[inline(always)]
    pub(super) fn again(self) -> Self {
        Self::at(dynamic_shared_mem::<u8>().add(opaque_here(0)))
    }

    #[inline(always)]
    fn at(start: Shared<u8>) -> Self {
        let units = start.add(KV_SLOTS * KV_SLOT_BYTES).cast::<f32>();
        let sums = units.add(GROUPS * UNIT_WORDS).cast::<u32>();
        let shares = sums.add(Self::SUMS);
        let full = shares.add(LINEARS as u32 * SHARE_WORDS).cast::<u64>();
        let come = full.add(LINEARS as u32);
        let filled = come.add(LINEARS as u32 + 2);
        let empty = filled.add(2 * GROUPS);
        let positions = empty.add(2 * GROUPS).cast::<u32>();
        let (filled, empty) = ([filled, filled.add(GROUPS)], [empty, empty.add(GROUPS)]);
        let pages = positions.add(Self::TILES.rows());
        let sizes = pages.add(4);
        let first = sizes.add(4);
        let stats = first.add(4 * GROUPS);
        let scales = stats.add(2 * Self::TILES.stat_words()).cast::<f32>();
        let segments = scales.add(LINEARS as u32 * MAX_SEGMENTS as u32).cast::<u8>();
        let areas = start.add(KV_SLOTS * KV_SLOT_BYTES + Self::TILES.fixed_bytes());
        // Blocks that quantise have no keys and values.
        let scratch = start.cast::<f32>();
        let acts = scratch.add(THREADS + 2 * WARPS).cast::<u8>();
        let attention = attention::Memory::at(start);
        let row = OfRow { attention, scratch, sums, shares, full, come, acts, areas };
        Self {
            row,
            kv: start,
            units,
            sums,
            shares,
            full,
            come,
            filled,
            empty,
            positions,
            pages,
            scales,
            segments,
            first,
            stats,
            sizes,
            areas,
        }
    }

    /// The same, with what the norm of a row takes of team `team`.
    #[inline(always)]
    pub(super) fn team(mut self, team: u32) -> Self {
        if T > 1 {
            self.row.scratch = self.row.scratch.byte_add(team * KV_SLOT_BYTES);
            self.row.acts = self.row.acts.add(team * KV_SLOT_BYTES);
        }
        self
    }

    /// Zeros, shares and barriers.
    ///
    /// # Safety
    ///
    /// Nobody uses the memory before the next barrier of the block.
    #[inline(always)]
    pub(super) unsafe fn init(self, shape: &Shape, block: [u32; 2]) {
        let areas = shape.row_areas(block[1]);
        // SAFETY: the caller's promise.
        unsafe {
            let mut i = thread_idx_x();
            while i < Self::SUMS {
                self.sums.add(i).write(0);
                i += WORK_THREADS + ASK_THREADS;
            }
            if T > 1 {
                let mut i = thread_idx_x();
                while i < Self::TILES.sum_words(2) {
                    self.units.cast::<u32>().add(i).write(0);
                    i += WORK_THREADS + ASK_THREADS;
                }
            }
            let own = thread_idx_x();
            if own == 0 {
                self.sizes.write_x4(exchange::sizes(shape, Self::TILES));
            }
            if own < LINEARS as u32 {
                let kind = own as usize;
                let area = match kind {
                    0 => areas[0],
                    1 => areas[1],
                    2 => areas[2],
                    _ => areas[3],
                };
                Share::new(shape, Self::TILES, kind, area, block)
                    .leave(self.shares.add(SHARE_WORDS * own));
                init(self.full.add(own), 1);
                init(self.come.add(own), WORK_THREADS);
            }
            if own == LINEARS as u32 {
                init(self.come.add(own), WORK_THREADS);
            }
            if own < GROUPS {
                init(self.filled[0].add(own), ASK_THREADS + 1);
                init(self.empty[0].add(own), GROUP_THREADS);
                if T > 1 {
                    init(self.filled[1].add(own), 1);
                    init(self.empty[1].add(own), GROUP_THREADS);
                }
            }
        }
    }

    /// The sums of linear layer `kind`: not those of the one before it.
    #[inline(always)]
    pub(super) fn sums(self, kind: u32) -> Shared<u32> {
        let of = |kind: u32| Self::TILES.sum_words(kind);
        match kind {
            0 => self.sums,
            2 if T > 1 => self.units.cast(),
            2 => self.sums.add(of(0) + of(1)),
            _ => self.sums.add(of(0)),
        }
    }

    /// Makes sums of gate and up again of what group `group` had of its units, where they stand there.
    ///
    /// *Convergence*: every thread of the group calls it.
    ///
    /// # Safety
    ///
    /// Nobody uses the units of the group.
    #[inline(always)]
    pub(super) unsafe fn forget_unit(self, group: u32) {
        let mut i = 4 * (thread_idx_x() % GROUP_THREADS);
        while i < UNIT_WORDS {
            // SAFETY: the caller's promise; a multiple of four words.
            unsafe { self.units.cast::<u32>().add(UNIT_WORDS * group + i).write_x4([0; 4]) };
            i += 4 * GROUP_THREADS;
        }
    }

    /// Whether the queries of the first units are there.
    #[inline(always)]
    pub(super) fn turned(self) -> Barrier {
        self.come.add(LINEARS as u32)
    }

    /// The activation of the gate. A parameter that is read once a layer is in no cache.
    #[inline(always)]
    pub(super) fn gate(self) -> Shared<u32> {
        self.pages.add(GROUPS)
    }

    /// What group `group` has.
    #[inline(always)]
    pub(super) fn unit(self, group: u32) -> Unit {
        let q = self.units.add(UNIT_WORDS * group);
        let scores = q.add(UNIT_HEADS * MAX_HEAD_DIM as u32);
        let weights = scores.add(UNIT_HEADS * KEYS);
        Unit { q, scores, weights, tops: weights.add(UNIT_HEADS * KEYS) }
    }

    /// The keys and the values of group `group`: those of the last one are where the weights of down are in other parts.
    ///
    /// # Safety
    ///
    /// The shares are in shared memory.
    #[inline(always)]
    pub(super) unsafe fn slot(self, group: u32) -> (Shared<u8>, Shared<u8>) {
        let mut keys = self.kv.add(group * KV_SLOT_BYTES);
        if group == KV_SLOTS {
            // SAFETY: the caller's promise.
            keys = self.areas.add(unsafe { Share::find(self, LINEARS as u32 - 1) }.area);
        }
        (keys, keys.add(KEYS * KEY_BYTES))
    }
}

/// What a block makes of a linear layer.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Outputs of the whole product, the block's first, and how many it has.
    pub(super) n: u32,
    pub(super) first: u32,
    pub(super) outputs: u32,
    /// Its rows of weights: those of the outputs, then those of the factors of a gated product.
    pub(super) rows: u32,
    /// Elements of a row, where it stands among the words of a row (the first one's, of the layer before), and where the outputs go.
    pub(super) k: u32,
    pub(super) input: u32,
    pub(super) output: u32,
    /// Bytes from row to row of the weights, where the first one stands, and by how many bytes odd rows are turned there: what would
    /// stand behind their end stands in front.
    pub(super) stride: u32,
    pub(super) area: u32,
    pub(super) turn: u32,
    /// Steps of a row.
    pub(super) groups: u32,
    /// Where the quantised rows are in a set of words.
    pub(super) acts: u32,
}

impl Share {
    #[inline(always)]
    fn new(shape: &Shape, tiles: Tiles, kind: usize, area: u32, block: [u32; 2]) -> Self {
        let [n, k, rows] = shape.linear(kind);
        let Tile { first, outputs, rows, groups, .. } = Tile::of_block(n, k, rows, block);
        let input = shape.input(if kind == 0 { LINEARS } else { kind });
        let output = if kind == 0 { 0 } else { shape.input(kind + 1) };
        let (stride, turn) = (row_bytes(k), shape.row_turn(kind));
        let acts = shape.acts_at(tiles, kind as u32);
        Self { n, first, outputs, rows, k, input, output, stride, area, turn, groups, acts }
    }

    /// # Safety
    ///
    /// `to` starts [`SHARE_WORDS`] words that nobody reads yet.
    #[inline(always)]
    unsafe fn leave(&self, to: Shared<u32>) {
        // SAFETY: the caller's promise.
        unsafe {
            to.write_x4([self.n, self.first, self.outputs, self.rows]);
            to.add(4).write_x4([self.k, self.input, self.output, self.stride]);
            to.add(8).write_x4([self.area, self.groups, self.acts, self.turn]);
        }
    }

    /// That of linear layer `kind`.
    ///
    /// # Safety
    ///
    /// There is a barrier between [`Memory::init`] and this.
    #[inline(always)]
    pub(super) unsafe fn find<const T: usize>(memory: Memory<T>, kind: u32) -> Self {
        let at = memory.shares.add(SHARE_WORDS * kind);
        // SAFETY: the caller's promise.
        unsafe {
            let [n, first, outputs, rows] = at.read_x4();
            let [k, input, output, stride] = at.add(4).read_x4();
            let [area, groups, acts, turn] = at.add(8).read_x4();
            Self { n, first, outputs, rows, k, input, output, stride, area, turn, groups, acts }
        }
    }
}
