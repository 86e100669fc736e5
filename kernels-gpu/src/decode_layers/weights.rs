//! The weights of a block: asked for a linear layer, or more, before they are used.
//!
//! Once a linear layer is through, its place is filled for the same one of the next layer: by one thread and the bulk engine,
//! since the rows of a block stand together. It is asked for when a row has come, not while one is waited for, which would
//! come behind all the weights.

use contract::bit_linear::LANES;
use contract::decode_layers::{
    Args, LINEARS, Linear, SHARE_WORDS, Shape, THREADS, WARPS, row_bytes,
};

use super::Memory;
use super::product::Sums;
use crate::arch::mbarrier::{arrive_expecting, copy_bulk, wait};
use crate::arch::mem::ld_x2;
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::proxy_fence;
use crate::bit_linear::product::{GROUP_BYTES, PIECE_BYTES};
use crate::bit_linear::{ROWS, Tile, row_of_lane};

/// The thread that asks.
const ASKS: u32 = THREADS - 32;

/// What a block makes of a linear layer, and the steps of this warp in it.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) tile: Tile,
    /// Elements of the row, where it stands among the words of its layer (the first one's, of the layer before), and where the
    /// outputs go.
    pub(super) k: u32,
    pub(super) input: u32,
    pub(super) output: u32,
    /// Bytes from row to row of the weights, and where the first one stands.
    stride: u32,
    area: u32,
    /// The first step, of which set and group, and the end.
    step: u32,
    set: u32,
    group: u32,
    end: u32,
}

impl Share {
    #[inline(always)]
    pub(super) fn new(shape: &Shape, kind: usize, area: u32) -> Self {
        let [n, k, rows] = shape.linear(kind);
        let tile = Tile::of(n, k, rows);
        let input = shape.input(if kind == 0 { LINEARS } else { kind });
        let output = if kind == 0 { 0 } else { shape.input(kind + 1) };
        let (step, end) = tile.steps_of(WARPS);
        let (set, group) = (step / tile.groups, step % tile.groups);
        Self { tile, k, input, output, stride: row_bytes(k), area, step, set, group, end }
    }

    /// Leaves it at `to`.
    ///
    /// # Safety
    ///
    /// `to` starts `SHARE_WORDS` words that nobody reads yet; every thread of the block calls it.
    #[inline(always)]
    pub(super) unsafe fn leave(&self, to: Shared<u32>) {
        let Tile { n, first, outputs, rows, chunks, groups } = self.tile;
        // SAFETY: the caller's promise: one thread writes the first words, one of each warp its own.
        unsafe {
            if thread_idx_x() == 0 {
                to.write_x4([n, first, outputs, rows]);
                to.add(4).write_x4([chunks, groups, self.stride, self.area]);
                to.add(8).write_x4([self.k, self.input, self.output, 0]);
            }
            if lane_id() == 0 {
                to.add(12 + 4 * warp_id()).write_x4([self.step, self.set, self.group, self.end]);
            }
        }
    }

    /// What [`Share::leave`] left.
    ///
    /// # Safety
    ///
    /// There is a barrier between the two.
    #[inline(always)]
    pub(super) unsafe fn find(memory: Memory, kind: u32) -> Self {
        let at = memory.shares.add(SHARE_WORDS * kind);
        // SAFETY: the caller's promise.
        unsafe {
            let [n, first, outputs, rows] = at.read_x4();
            let [chunks, groups, stride, area] = at.add(4).read_x4();
            let [k, input, output, _] = at.add(8).read_x4();
            let [step, set, group, end] = at.add(12 + 4 * warp_id()).read_x4();
            let tile = Tile { n, first, outputs, rows, chunks, groups };
            Self { tile, k, input, output, stride, area, step, set, group, end }
        }
    }
}

/// Asks for part `part`, a linear layer of all, whose weights are at `from`, if there is one.
///
/// # Safety
///
/// The launch contract; shares and barriers are in shared memory; nobody uses the place of the part since the last barrier.
#[inline(always)]
pub(super) unsafe fn ask(args: &Args, memory: Memory, part: u32, from: *const u8) {
    let parts = args.shape.layers * LINEARS as u32;
    if thread_idx_x() != ASKS || part >= parts {
        return;
    }
    let kind = part % LINEARS as u32;
    // SAFETY: rows of the weights of the part, which nobody writes, and their place.
    unsafe {
        let Share { tile, stride: bytes, area: to, .. } = Share::find(memory, kind);
        let barrier = memory.full.add(kind);
        arrive_expecting(barrier, bytes * tile.rows);
        proxy_fence();
        // The rows of the outputs stand together, and those of the factors.
        let rows = tile.outputs * bytes;
        let from = from.wrapping_add(tile.first as usize * bytes as usize);
        copy_bulk(memory.areas.add(to), from, rows, barrier);
        if tile.rows > tile.outputs {
            let from = from.wrapping_add(tile.n as usize * bytes as usize);
            copy_bulk(memory.areas.add(to + rows), from, rows, barrier);
        }
    }
}

/// Where the weights of part `part` are, or of the last one.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
pub(super) unsafe fn pointer(args: &Args, part: u32) -> *const u8 {
    let part = part.min(args.shape.layers * LINEARS as u32 - 1);
    let entry: *const Linear = args.linears.as_ptr().cast_const().wrapping_add(part as usize);
    // SAFETY: an entry that nobody writes.
    let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*entry).w).cast()) };
    (u64::from(low) | u64::from(high) << 32) as *const u8
}

/// Adds the products of this warp's steps of linear layer `kind` of `layer` to the sums of their rows.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The quantised row and the share are in shared memory; the weights were asked for.
#[inline(always)]
pub(super) unsafe fn multiply(memory: Memory, share: &Share, layer: u32, kind: u32) {
    let barrier = memory.full.add(kind);
    // SAFETY: made before the launch's first barrier; parts use it one after the other.
    unsafe { wait(barrier, layer % 2) };
    let chunk = 16 * (lane_id() % LANES);
    let acts: Shared<u32> = memory.acts.byte_add(chunk).cast();
    let area = memory.areas.add(share.area + chunk);
    // Lanes read two rows at once, 64 bytes of each. Where both fall on the same banks, odd rows take the groups of a pair the
    // other way round: the second column of the products is theirs, with the activations of that group.
    let swap = if share.stride % 128 == 0 { lane_id() / LANES % 2 } else { 0 };
    let (mut step, mut set, mut group) = (share.step, share.set, share.group);
    while step < share.end {
        // A row that is not there is the last one again, and nobody takes its sum.
        let last = share.tile.rows - 1;
        let row = |r: usize| area.add(row_of_lane(set, r).min(last) * share.stride);
        let rows = [row(0), row(1)];
        let until = share.tile.groups.min(group + share.end - step);
        step += until - group;
        let mut sums = Sums::new();
        let step_of = |group: u32| {
            let weights = rows.map(|row| {
                // SAFETY: four chunks of a row, or what stands behind it, where activations are zeros.
                unsafe { row.add(64 * group).cast::<u32>().read_x4() }
            });
            // Two steps of four chunks to a group of eight.
            let acts = acts.byte_add(group / 2 * GROUP_BYTES + group % 2 * PIECE_BYTES / 2);
            let factors = [0, 1, 2, 3].map(|unit| {
                // SAFETY: a unit of a chunk; a row has whole groups. Columns after the second are not used.
                unsafe { acts.byte_add(unit * PIECE_BYTES).read_x4_or_any(lane_id() < 2 * LANES) }
            });
            (weights, factors)
        };
        while group + 2 <= until {
            // Both on their way before the first is needed.
            let both = [step_of(group + swap), step_of(group + (1 - swap))];
            sums.take(both[0]);
            sums.take(both[1]);
            group += 2;
        }
        if group < until {
            sums.take(step_of(group));
        }
        let found = sums.finish(lane_id() / LANES % 2 == 1);
        let mut r = 0;
        while r < ROWS {
            let row = row_of_lane(set, r);
            if lane_id() % LANES == 0 && row < share.tile.rows {
                // SAFETY: row < rows; between two barriers only this accesses it.
                unsafe { memory.sums.add(row).atomic_add(found[r] as u32) };
            }
            r += 1;
        }
        (set, group) = (set + 1, 0);
    }
}
