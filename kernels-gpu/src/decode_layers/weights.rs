//! The weights of a block: asked for a linear layer, or more, before they are used.
//!
//! Once a linear layer is through, its place is filled for the same one of the next layer: by one thread and the bulk engine,
//! since the rows of a block stand together. They are the first to leave the second-level cache, where they would drive out keys,
//! values and rows. It is asked for when a row has come, not while one is waited for, which would
//! come behind all the weights.

use contract::bit_linear::{LANES, SET_ROWS};
use contract::decode_layers::{
    ACT_GROUP_BYTES, Args, LINEARS, Linear, SHARE_WORDS, Shape, THREADS, WARPS, row_bytes,
};
use contract::w2a8::CHUNK;

use super::Memory;
use super::product::{Sums, UNIT_BYTES};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mbarrier::{arrive_expecting, copy_bulk_stream, wait};
use crate::arch::mem::{X4, ld_x2};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::proxy_fence;
use crate::bit_linear::{ROWS, Tile, row_of_lane};

/// Most parts of a row: two of eight columns of a product are for each.
const MAX_PARTS: u32 = 4;

/// The thread that asks.
pub(super) const ASKS: u32 = THREADS;

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
    /// Rows are so many parts of so many groups: each is a row of a set of its own.
    parts: u32,
    run: u32,
    /// `2^20 / rows`, rounded up.
    of_part: u32,
    /// The first step, of which set and group, and the end.
    step: u32,
    set: u32,
    group: u32,
    end: u32,
}

impl Share {
    #[inline(always)]
    /// That of linear layer `kind`, with the steps of warp `warp`.
    pub(super) fn new(shape: &Shape, kind: usize, area: u32, warp: u32) -> Self {
        let [n, k, rows] = shape.linear(kind);
        let tile = tile(n, k, rows);
        let input = shape.input(if kind == 0 { LINEARS } else { kind });
        let output = if kind == 0 { 0 } else { shape.input(kind + 1) };
        let (parts, run) = parts(tile.rows, tile.groups);
        let steps = steps(tile.rows, tile.groups, parts);
        let (step, end) = (warp * steps / WARPS, (warp + 1) * steps / WARPS);
        let (set, group) = (step / run, step % run);
        let stride = row_bytes(k);
        let of_part = (1u32 << 20).div_ceil(tile.rows.max(1));
        Self { tile, k, input, output, stride, area, parts, run, of_part, step, set, group, end }
    }

    /// Leaves it at `to`: each lane has the steps of the warp of its number.
    ///
    /// # Safety
    ///
    /// `to` starts `SHARE_WORDS` words that nobody reads yet; every lane of one warp calls it.
    #[inline(always)]
    pub(super) unsafe fn leave(&self, to: Shared<u32>) {
        let Tile { n, first, outputs, rows, .. } = self.tile;
        // SAFETY: the caller's promise: one lane writes the first words, and one for each warp those of the warp.
        unsafe {
            if lane_id() == 0 {
                to.write_x4([n, first, outputs, rows]);
                to.add(4).write_x4([self.parts, self.run, self.stride, self.area]);
                to.add(8).write_x4([self.k, self.input, self.output, self.of_part]);
            }
            if lane_id() < WARPS {
                to.add(12 + 4 * lane_id()).write_x4([self.step, self.set, self.group, self.end]);
            }
        }
    }

    /// Elements of the row, of what [`Share::leave`] left.
    ///
    /// # Safety
    ///
    /// There is a barrier between the two.
    #[inline(always)]
    pub(super) unsafe fn row_len(memory: Memory, kind: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { memory.shares.add(SHARE_WORDS * kind + 8).read() }
    }

    /// What [`Share::leave`] left; of a warp without steps, with those of another.
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
            let [parts, run, stride, area] = at.add(4).read_x4();
            let [k, input, output, of_part] = at.add(8).read_x4();
            let [step, set, group, end] = at.add(12 + 4 * (warp_id() % WARPS)).read_x4();
            let tile = Tile { n, first, outputs, rows, chunks: 0, groups: parts * run };
            Self {
                tile,
                k,
                input,
                output,
                stride,
                area,
                parts,
                run,
                of_part,
                step,
                set,
                group,
                end,
            }
        }
    }
}

/// [`Tile::of`], with products that fit 32 bits: there are at most 256 outputs a block.
#[inline(always)]
fn tile(n: u32, k: u32, rows_of_output: u32) -> Tile {
    let at = |block: u32| n * block / grid_dim_x();
    let first = at(block_idx_x());
    let outputs = at(block_idx_x() + 1) - first;
    let chunks = k.div_ceil(CHUNK as u32);
    Tile {
        n,
        first,
        outputs,
        rows: rows_of_output * outputs,
        chunks,
        groups: chunks.div_ceil(LANES),
    }
}

/// Steps of `rows` rows of `groups` groups, each in so many parts.
#[inline(always)]
const fn steps(rows: u32, groups: u32, parts: u32) -> u32 {
    (rows * parts).div_ceil(SET_ROWS) * (groups / parts)
}

/// Into how many parts rows go, and the groups of a part: with fewer rows than fill their sets, parts of a row fill them too.
#[inline(always)]
fn parts(rows: u32, groups: u32) -> (u32, u32) {
    let of_warp = |parts| steps(rows, groups, parts).div_ceil(WARPS);
    let (mut best, mut least) = ((1, groups), of_warp(1));
    let mut parts = 2;
    // Several loops: to divide by a number that is known takes a tenth of the time.
    while parts <= MAX_PARTS {
        if groups.is_multiple_of(parts) && of_warp(parts) + 1 < least {
            (best, least) = ((parts, groups / parts), of_warp(parts));
        }
        parts += 1;
    }
    best
}

/// Asks for linear layer `kind`, whose weights are at `from`: the rows of its outputs, the rows of their factors, or both. By one
/// thread.
///
/// # Safety
///
/// The launch contract; shares and barriers are in shared memory; nobody uses the place of the weights since the last barrier. The
/// rows of the outputs come first, or at once.
#[inline(always)]
pub(super) unsafe fn ask(
    memory: Memory,
    kind: u32,
    from: *const u8,
    [outputs, factors]: [bool; 2],
) {
    // SAFETY: rows of the weights, which nobody writes, and their place.
    unsafe {
        let Share { tile, stride: bytes, area: to, .. } = Share::find(memory, kind);
        let barrier = memory.full.add(kind);
        // The rows of the outputs stand together, and those of the factors.
        let rows = tile.outputs * bytes;
        let from = from.wrapping_add(tile.first as usize * bytes as usize);
        if outputs {
            arrive_expecting(barrier, bytes * tile.rows);
        }
        proxy_fence();
        if outputs {
            copy_bulk_stream(memory.areas.add(to), from, rows, barrier);
        }
        if factors && tile.rows > tile.outputs {
            let from = from.wrapping_add(tile.n as usize * bytes as usize);
            copy_bulk_stream(memory.areas.add(to + rows), from, rows, barrier);
        }
    }
}

/// Asks for what no part of a launch asks for: the weights of the first qkv and output projection.
///
/// # Safety
///
/// The launch contract; shares and barriers are in shared memory.
#[inline(always)]
pub(super) unsafe fn ask_first(args: &Args, memory: Memory) {
    if thread_idx_x() == ASKS {
        // SAFETY: the caller's promise.
        unsafe {
            ask(memory, 0, pointer(args, 0), [true; 2]);
            ask(memory, 1, pointer(args, 1), [true; 2]);
        }
    }
}

/// Which linear layers, of all, are asked for in part `part`: each part asks for as much as the others, so that nothing is on its way
/// any more when the next row is. Down, for qkv and output projection; output projection, for down; the others for gate and up,
/// a half each; the first one for both halves, since there was none before it.
#[inline(always)]
fn targets(part: u32) -> [u32; 2] {
    let kind = part % LINEARS as u32;
    let first = part + if kind == 3 { 3 } else { 2 };
    if part == 0 { [2; 2] } else { [first, if kind == 2 { part + 3 } else { first }] }
}

/// Where the weights are that [`ask_next`] asks for.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
pub(super) unsafe fn next(args: &Args, part: u32) -> [*const u8; 2] {
    // SAFETY: the caller's promise.
    targets(part).map(|target| unsafe { pointer(args, target) })
}

/// Asks for the weights of later parts, which are at `from`.
///
/// # Safety
///
/// As for [`ask`]; the row of part `part` has come.
#[inline(always)]
pub(super) unsafe fn ask_next(args: &Args, memory: Memory, part: u32, from: [*const u8; 2]) {
    if thread_idx_x() != ASKS {
        return;
    }
    let (all, kind) = (LINEARS as u32, part % LINEARS as u32);
    let [first, last] = targets(part);
    let mut from = from;
    let mut target = first;
    while target <= last && target < all * args.shape.layers {
        // SAFETY: the caller's promise.
        unsafe { ask(memory, target % all, from[0], [kind != 0 || part == 0, kind != 3]) };
        from[0] = from[1];
        target = opaque(target + 1); // one loop
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

/// What a warp multiplies without a pause: groups of the rows of a set, that follow each other.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    /// Where the weights of this lane's rows begin, and the activations of its column.
    weights: [Shared<u8>; 2],
    acts: Shared<u8>,
    count: u32,
    /// The rows whose sums this lane has, or `NONE`.
    sums: [u32; 2],
    /// Where the first of two groups stands for this lane.
    ///
    /// Lanes read two rows at once, 64 bytes of each. Where both fall on the same banks, odd rows take the groups of a pair the
    /// other way round: the second column of the products is theirs, with the activations of that group.
    swap: u32,
}

/// No row.
const NONE: u32 = u32::MAX;
/// Bytes of a group of a row of weights.
const GROUP_BYTES: u32 = 64;

impl Turn {
    /// Up to `most` groups of set `set`, from `group` on.
    #[inline(always)]
    fn new(memory: Memory, share: &Share, set: u32, group: u32, most: u32) -> Self {
        let lane = 16 * (lane_id() % LANES);
        let area = memory.areas.add(share.area + lane + GROUP_BYTES * group);
        let last = share.tile.rows * share.parts - 1;
        let found = [0, 1].map(|r| {
            let row = row_of_lane(set, r);
            // A row that is not there is the last one again, and nobody takes its sum.
            let at = row.min(last);
            // Exact: less than 2^11 rows, and what the factor is too much by gives less than 1 / rows.
            let part = at * share.of_part >> 20;
            let at = at - part * share.tile.rows;
            let own = lane_id() % LANES == part && row <= last;
            let weights = area.add(at * share.stride + GROUP_BYTES * part * share.run);
            (weights, if own { at } else { NONE })
        });
        // Two columns for each part of the rows.
        let column = group + lane_id() / (2 * LANES) * share.run;
        Self {
            weights: found.map(|(weights, _)| weights),
            acts: memory.acts.add(lane + ACT_GROUP_BYTES * column),
            count: most.min(share.run - group),
            sums: found.map(|(_, row)| row),
            swap: if share.stride % 128 == 0 { lane_id() / LANES % 2 * GROUP_BYTES } else { 0 },
        }
    }

    /// Where the first group stands for this lane.
    #[inline(always)]
    fn place(&self) -> u32 {
        if self.count >= 2 { self.swap } else { 0 }
    }

    /// The weights `at` bytes further on, if they are needed.
    ///
    /// # Safety
    ///
    /// The weights are in shared memory; there is such a group.
    #[inline(always)]
    unsafe fn weights(&self, at: u32, needed: bool) -> [X4<u32>; 2] {
        // SAFETY: four chunks of a row, or what stands behind it, where activations are zeros.
        self.weights.map(|row| unsafe { row.add(at).cast::<u32>().read_x4_or_any(needed) })
    }

    /// The activations of the same place.
    ///
    /// # Safety
    ///
    /// The quantised row is in shared memory; there is such a group.
    #[inline(always)]
    unsafe fn factors(&self, at: u32, needed: bool) -> [X4<u32>; 4] {
        // SAFETY: the caller's promise.
        unsafe { factors(self.acts.add(at * (ACT_GROUP_BYTES / GROUP_BYTES)), needed) }
    }

    /// Where the activations of the first group stand.
    #[inline(always)]
    fn first_factors(&self) -> Shared<u8> {
        self.acts.add(self.place() * (ACT_GROUP_BYTES / GROUP_BYTES))
    }
}

/// The activations at `acts` for a lane.
///
/// # Safety
///
/// As for [`Turn::factors`].
#[inline(always)]
unsafe fn factors(acts: Shared<u8>, needed: bool) -> [X4<u32>; 4] {
    let acts = acts.cast::<u32>();
    // SAFETY: a unit of a chunk; a row has whole groups. Columns after those of the parts are not used.
    [0, 1, 2, 3].map(|unit| unsafe { acts.byte_add(unit * UNIT_BYTES).read_x4_or_any(needed) })
}

/// What a warp has ready before the row comes.
#[derive(Clone, Copy)]
pub(super) struct First {
    turn: Turn,
    weights: [X4<u32>; 2],
    /// Where its first activations will stand, and whether this lane needs them.
    acts: u32,
    enabled: u32,
}

/// The first turn of this warp in linear layer `kind` of `layer`, and its weights.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// The share is in shared memory; the weights were asked for.
#[inline(always)]
pub(super) unsafe fn first(memory: Memory, share: &Share, layer: u32, kind: u32) -> First {
    let turn = Turn::new(memory, share, share.set, share.group, share.end - share.step);
    let barrier = memory.full.add(kind);
    // SAFETY: made before the launch's first barrier; parts use it one after the other.
    unsafe { wait(barrier, layer % 2) };
    // Worked out here: behind the row it would be on its way.
    let acts = opaque_here(turn.first_factors().addr());
    let enabled = opaque_here(u32::from(lane_id() / (2 * LANES) < share.parts));
    // SAFETY: the weights are there.
    First { turn, weights: unsafe { turn.weights(turn.place(), turn.count > 0) }, acts, enabled }
}

/// Adds the products of this warp's steps to the sums of their rows.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// The quantised row is in shared memory; `first` is of this share.
#[inline(always)]
pub(super) unsafe fn multiply(memory: Memory, share: &Share, first: First) {
    let First { mut turn, mut weights, acts, enabled } = first;
    let enabled = enabled != 0;
    let mut acts = memory.acts.byte_add(acts.wrapping_sub(memory.acts.addr()));
    let (mut left, mut set) = (share.end - share.step, share.set);
    while left > 0 {
        left -= turn.count;
        let mut sums = Sums::new();
        // SAFETY: the caller's promise.
        unsafe {
            let mut factors = factors(acts, enabled);
            // Groups by pairs: one is on its way during the products of the other.
            let mut base = 0;
            while turn.count >= 2 {
                rolled();
                let at = base + (GROUP_BYTES - turn.swap);
                let others = turn.weights(at, true);
                let other_factors = turn.factors(at, enabled);
                sums.take((weights, factors));
                turn.count -= 2;
                base += 2 * GROUP_BYTES;
                let at = base + turn.place();
                weights = turn.weights(at, turn.count > 0);
                factors = turn.factors(at, enabled & (turn.count > 0));
                sums.take((others, other_factors));
            }
            if turn.count > 0 {
                sums.take((weights, factors));
            }
            let sums = sums.finish(lane_id() / LANES % 2 == 1);
            let mut r = 0;
            while r < ROWS {
                if turn.sums[r] != NONE {
                    // Between two barriers only this accesses it.
                    memory.sums.add(turn.sums[r]).atomic_add(sums[r] as u32);
                }
                r += 1;
            }
            if left > 0 {
                set += 1;
                turn = Turn::new(memory, share, set, 0, left);
                weights = turn.weights(turn.place(), true);
                acts = turn.first_factors();
            }
        }
    }
}
