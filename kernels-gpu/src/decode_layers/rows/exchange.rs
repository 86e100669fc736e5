//! Rows between blocks, and quantised rows: word by word, each its own flag.

use contract::decode_layers::rows::{
    ACT_GROUP_BYTES, ASK_THREADS, Args, NO_ACTS, RING, SUM_BIAS, TILE_ROWS, TILE_WORDS, Tiles,
    WORK_THREADS, groups,
};
use contract::decode_layers::{EMPTY, LINEARS, Shape, THREADS, word};

use super::super::product::UNIT_BYTES;
use super::super::{Memory as OfRow, row};
use super::memory::Memory;
use super::workers;
use crate::arch::atomic::{ld_relaxed_if_ones, st_relaxed, st_relaxed_x4};
use crate::arch::hint::opaque_here;
use crate::arch::mem::st_x4;
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::warp::{any, lane_id};

/// Places of 16 activations of a group.
const CHUNKS: u32 = 16;

/// The sets of words.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'a, const T: usize> {
    args: &'a Args,
    /// Launches before this one.
    epoch: u32,
}

/// The words of a layer.
pub(super) struct Slot<const T: usize> {
    rows: *mut u32,
    acts: *mut u32,
    row_words: u32,
    stats_at: u32,
}

/// Sizes, which would stay in registers over all layers: words of both sets, of a row, and where the scales and sums are.
pub(super) fn sizes(shape: &Shape, tiles: Tiles) -> [u32; 4] {
    let acts = shape.acts_at(tiles, LINEARS as u32);
    [shape.slot_words(tiles), acts, shape.exchange_len(), shape.stats_at(tiles, 0)]
}

impl<'a, const T: usize> Exchange<'a, T> {
    #[inline(always)]
    pub(super) fn new(args: &'a Args, epoch: u32) -> Self {
        Self { args, epoch }
    }

    /// Those of layer `layer` of this launch.
    #[inline(always)]
    pub(super) fn slot(&self, memory: Memory<T>, layer: u32) -> Slot<T> {
        let slot = self.epoch.wrapping_mul(self.args.shape.layers).wrapping_add(layer) % RING;
        // SAFETY: written before a barrier.
        let [slot_words, act_words, row_words, stats_at] = unsafe { memory.sizes.read_x4() };
        Slot {
            rows: self.args.exchange.as_ptr().wrapping_add((slot * slot_words) as usize),
            acts: self.args.acts.as_ptr().wrapping_add((slot * act_words) as usize),
            row_words,
            stats_at,
        }
    }

    /// Empties this block's share of a quarter, that of part `kind`, of the words that the layer two before `layer` used, for the one two
    /// behind it. By the threads that ask.
    ///
    /// # Safety
    ///
    /// All blocks have the rows of the layer before it.
    #[inline(always)]
    pub(super) unsafe fn empty_before(&self, memory: Memory<T>, layer: u32, kind: u32) {
        let blocks = workers::<T>(self.args);
        let slot = self.slot(memory, layer.wrapping_add(2));
        // SAFETY: written before a barrier.
        let [slot_words, act_words, ..] = unsafe { memory.sizes.read_x4() };
        let own = block_idx_x() * ASK_THREADS + thread_idx_x() % ASK_THREADS;
        let first = 4 * (own + kind * blocks * ASK_THREADS);
        let step = 4 * LINEARS as u32 * blocks * ASK_THREADS;
        // SAFETY: whole sets, of multiples of four words; each four are of one thread.
        unsafe {
            let mut i = first;
            while i < slot_words + act_words {
                // The quantised rows behind the others.
                let (to, empty) = if i < slot_words {
                    (slot.rows.wrapping_add(i as usize), EMPTY)
                } else {
                    (slot.acts.wrapping_add((i - slot_words) as usize), NO_ACTS)
                };
                st_x4(to.cast(), [empty; 4]);
                i += step;
            }
        }
    }
}

impl<const T: usize> Slot<T> {
    /// The word at `at` of row `m`.
    #[inline(always)]
    pub(super) fn row(&self, m: u32, at: u32) -> *const u32 {
        self.rows.cast_const().wrapping_add((m * self.row_words + at) as usize)
    }

    /// The quantised rows at word `at` of a set.
    #[inline(always)]
    pub(super) fn acts(&self, at: u32) -> *const u32 {
        self.acts.cast_const().wrapping_add(at as usize)
    }

    #[inline(always)]
    pub(super) fn stats_of(&self, kind: u32, m: u32) -> *mut u32 {
        let rows = const { Tiles(T as u32).rows() };
        self.rows.wrapping_add((self.stats_at + 2 * (rows * kind + m)) as usize)
    }

    /// Where the quantised row `m` for linear layer `kind` goes, in the order of the threads that quantise; rows stand at `at`.
    #[inline(always)]
    pub(super) fn way(&self, [kind, at]: [u32; 2], m: u32) -> Way<T> {
        let own = opaque_here(row::own::<T>());
        let words = const { Tiles(T as u32).group_words() };
        let (tile, m_of) = (m / TILE_ROWS, m % TILE_ROWS);
        let to = own / CHUNKS * words
            + tile * TILE_WORDS
            + own / 4 % 4 * (TILE_WORDS / 4)
            + 4 * (4 * m_of + own % 4);
        Way { acts: self.acts.wrapping_add((at + to) as usize), stats: self.stats_of(kind, m) }
    }

    /// Leaves the scales and the sums of the first `m` quantised rows for linear layer `kind` at `to`, as soon as they are there.
    ///
    /// *Convergence*: one warp calls it.
    ///
    /// # Safety
    ///
    /// Somebody writes them; nobody reads what is at `to` before the next barrier.
    #[inline(always)]
    pub(super) unsafe fn fetch_stats(&self, kind: u32, m: u32, to: Shared<u32>) {
        let own = lane_id();
        let from = self.stats_of(kind, 0).cast_const().wrapping_add(own as usize);
        let mut word = if own < 2 * m { EMPTY } else { 0 };
        // SAFETY: the caller's promise: a word of each lane.
        unsafe {
            loop {
                word = ld_relaxed_if_ones(word, from);
                if !any(word == EMPTY) {
                    break;
                }
            }
            if own < const { Tiles(T as u32).stat_words() } {
                to.add(own).write(word);
            }
        }
    }
}

/// The scale and the sum of a quantised row, of words that [`Slot::fetch_stats`] left.
///
/// # Safety
///
/// There is a barrier between it and this.
#[inline(always)]
pub(super) unsafe fn stats(words: Shared<u32>, row: u32) -> (f32, i32) {
    // SAFETY: the caller's promise.
    let [scale, sum] = unsafe { words.add(2 * row).read_x2() };
    (f32::from_bits(scale), sum.wrapping_sub(SUM_BIAS) as i32)
}

/// Where a quantised row goes.
#[derive(Clone, Copy)]
pub(super) struct Way<const T: usize> {
    acts: *mut u32,
    stats: *mut u32,
}

impl<const T: usize> Way<T> {
    /// Hands the quantised row of `k` on, with its `scale`. By the threads that quantised it.
    ///
    /// # Safety
    ///
    /// It was quantised just now; the words are of this block.
    #[inline(always)]
    pub(super) unsafe fn publish(self, memory: OfRow, k: u32, scale: f32) {
        let own = row::own::<T>();
        let words = const { Tiles(T as u32).group_words() };
        let (group, unit, chunk) = (own / CHUNKS, own / 4 % 4, own % 4);
        let mut from = memory.acts.add(group * ACT_GROUP_BYTES + unit * UNIT_BYTES + 16 * chunk);
        let mut to = self.acts;
        // SAFETY: 16 bytes of the row in each place; words of this row.
        unsafe {
            let mut i = own;
            while i < CHUNKS * groups(k) {
                st_relaxed_x4(to, from.cast::<u32>().read_x4());
                from = from.add(THREADS / CHUNKS * ACT_GROUP_BYTES);
                to = to.wrapping_add((THREADS / CHUNKS * words) as usize);
                i += THREADS;
            }
            // A thread that has the fewest places.
            if own == THREADS - 1 {
                st_relaxed(self.stats, word(scale));
                let sum = (row::sum(memory) as u32).wrapping_add(SUM_BIAS);
                st_relaxed(self.stats.wrapping_add(1), sum);
            }
        }
    }
}

const _: () = assert!(THREADS.is_multiple_of(CHUNKS));
const _: () = assert!(ASK_THREADS.is_power_of_two() && WORK_THREADS.is_multiple_of(ASK_THREADS));
