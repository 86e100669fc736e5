//! A Hopper GPU's tensor cores, outputs in lines: see [`contract::conv2d::bulk_lines`].
//!
//! The weights of a step are the left factor, 64 channels; the right one is a stage of entries, swizzled as
//! [`crate::arch::wgmma`] wants it by its *address*: so the products of every tap read the same stage, at a
//! distance. Two warpgroups multiply, each for half of the positions. One thread more has the copy engine
//! bring entries: a stage is one copy, because the engine walks the pixels of an image as the lines do.
//! Weights come by the same engine, or are expanded by a warpgroup; then one thread shows them to the async
//! proxy by a fence, which waits for all that its thread has under way, so it is worth a thread that has
//! nothing. They meet at barriers of each place of a ring, so that the first steps of a tile come while
//! the sums of the one before it are written. What the weights are and how sums end is a [`Form`].

mod copy;
mod finish;
mod half;
mod room;
mod ternary;

use contract::conv2d::Geometry;
use contract::conv2d::bulk_lines::{
    CONSUMERS, ENTRY_BYTES, EXPANDERS, LINES, PITCH, WEIGHT_STAGES, Walk,
};

use self::copy::{copy_entries, show};
use self::finish::{add_parts, write_head};
pub(crate) use self::room::{Part, Room, Tile, Turn};
use crate::arch::cluster::{arrive_cluster_relaxed, sync_cluster, wait_cluster};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier;
use crate::arch::shared::Shared;
use crate::arch::tensor::prefetch_map;
use crate::arch::thread::{sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor};
use crate::tile::hopper::each_group;

/// Positions of a warpgroup.
pub(crate) const HALF: u32 = LINES.positions / 2;

/// What is multiplied.
pub(crate) trait Form {
    /// The parameter of its kernels; it starts with the map of the entries.
    type Args: Copy;
    /// Channels of an entry.
    const DEPTH: u32;
    /// Whether [`EXPANDERS`] threads make the weights; else one thread has them copied.
    const EXPANDED: bool;

    /// The way.
    fn walk(args: &Self::Args) -> &Walk;

    /// The shape.
    fn geometry(args: &Self::Args) -> &Geometry;

    /// Brings the weights of the block's steps: each of its threads arrives at [`Room::weights_full`] of
    /// every step. `map` is the address behind the map of the entries.
    ///
    /// # Safety
    ///
    /// The kernel's contract. What weights are made of never changes.
    unsafe fn weights(args: &Self::Args, map: u64, room: Room, part: Part, thread: u32);

    /// `D += A B` of quarter `k` of a step, 64 by [`HALF`], the first quarters given.
    ///
    /// # Safety
    ///
    /// As for [`wgmma::bf16_n128`].
    unsafe fn product(weights: Descriptor, entries: Descriptor, k: u32, add: bool);

    /// The sum of two parts of a sum.
    fn add(a: u32, b: u32) -> u32;

    /// What divides the sums of an image.
    ///
    /// # Safety
    ///
    /// It is an image; the kernel's contract.
    unsafe fn divisor(args: &Self::Args, image: u32) -> [u32; 3];

    /// Writes outputs `rows` of a warpgroup, in its 128 threads.
    ///
    /// # Safety
    ///
    /// `sums` and `head` are the warpgroup's, written and shown; the outputs are this block's.
    unsafe fn finish(
        args: &Self::Args,
        sums: Shared<u32>,
        head: Shared<u32>,
        tile: Tile,
        rows: [u32; 2],
    );
}

/// A kernel in lines, whose warpgroups share each tile, or have tiles `APART`; `map` is the address of its parameter, which starts with the map of the entries.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with at most a block for each tile (a block for each split of each
/// tile, in whole clusters, where there are clusters), the pointers of `args` cover the contract's table, and the maps
/// are the contract's.
#[inline(always)]
pub(crate) unsafe fn run<F: Form, const CLUSTER: u32, const APART: bool>(args: &F::Args, map: u64) {
    const { assert!(HALF == 128) };
    wgmma::declare();
    let fillers = if F::EXPANDED { EXPANDERS } else { 1 };
    let (room, walk) = (Room::new(), F::walk(args));
    let thread = thread_idx_x();
    if let Some(step) = walk.step(F::geometry(args), thread) {
        // SAFETY: a step of the table.
        unsafe { room.steps.add(2 * thread).write_x2(step) };
    }
    if thread == 0 {
        // SAFETY: this thread alone, before the barrier.
        unsafe { room.init(fillers, if APART { CONSUMERS / 64 } else { CONSUMERS / 32 }) };
    }
    if thread == CONSUMERS + fillers.next_multiple_of(32) {
        // SAFETY: the map of the entries.
        unsafe { prefetch_map(map) };
    }
    sync_threads();
    let part = Part::new::<CLUSTER>(walk);
    if thread < CONSUMERS {
        dependency_wait();
        // SAFETY: the caller's promise, in all of the consumers.
        unsafe { consume::<F, CLUSTER, APART>(args, room, part) };
        return;
    }
    let thread = thread - CONSUMERS;
    if thread < fillers {
        // SAFETY: the caller's promise; weights never change.
        unsafe { F::weights(args, map + 128, room, part, thread) };
        launch_dependents();
    }
    dependency_wait();
    let copier = fillers.next_multiple_of(32);
    if thread == copier {
        // SAFETY: the caller's promise, in one thread.
        unsafe { copy_entries::<F>(args, map, room, part) };
    }
    if F::EXPANDED && thread == copier + 32 {
        // SAFETY: the caller's promise, in one thread.
        unsafe { show(room, part) };
    }
    if CLUSTER > 1 {
        sync_cluster();
        arrive_cluster_relaxed();
        wait_cluster();
    }
}

/// Multiplies the block's tiles and writes them.
///
/// # Safety
///
/// As for [`run`], in all of the [`CONSUMERS`], after the wait for the kernel in front.
#[inline(always)]
unsafe fn consume<F: Form, const CLUSTER: u32, const APART: bool>(
    args: &F::Args,
    room: Room,
    part: Part,
) {
    let shared = CLUSTER > 1;
    let walk = F::walk(args);
    let (warpgroup, lane) = (thread_idx_x() / 128, lane_id());
    let (mut weights, mut stage) = (Turn::FIRST, Turn::FIRST);
    let (mut before, mut stage_before, mut ended) = (weights, stage, false);
    let sums = room.sums.add(warpgroup * HALF * PITCH);
    let head = room.head.add(warpgroup * HALF * 4);
    let mut index = part.first;
    // The warpgroup's half of every tile, or every other tile.
    let half = if APART { 0 } else { warpgroup * HALF };
    let mut own = 0;
    if APART && warpgroup != 0 {
        index += part.step;
        (weights, stage) = other_tile(walk, weights, stage);
    }
    // Clusters may have a block without a tile: it still meets the others.
    while shared || index < part.end {
        let there = index < part.end;
        let tile = Tile::of(walk, if there { index } else { 0 }, half);
        if shared || APART {
            // A part may have no step; and registers of sums that are not added to are free meanwhile.
            each_group!(HALF, J => { wgmma::clear::<J>() });
        }
        if !shared {
            // Nobody reads the head and the sums of the tile before any more.
            sync_some(1 + warpgroup, 128);
        }
        // SAFETY: this warpgroup's own head.
        unsafe { write_head::<F>(args, tile, head) };
        let ends = if there { part.ends } else { part.begins };
        let mut step = if shared { part.begins % walk.round } else { 0 };
        let mut at = part.begins;
        if APART {
            // SAFETY: the barriers were made; the warpgroups take turns, the first one begins.
            unsafe { mbarrier::wait(room.may_multiply(warpgroup), own ^ warpgroup ^ 1) };
            own ^= 1;
        }
        while at < ends {
            // SAFETY: a step of the table.
            let [distance, _] = if APART { [2, 0] } else { unsafe { room.step(step) } };
            let ready =
                if F::EXPANDED { room.weights_shown(weights) } else { room.weights_full(weights) };
            // SAFETY: the barriers were made; every warp takes part in every phase.
            unsafe {
                mbarrier::wait(ready, weights.parity);
                mbarrier::wait(room.entries_full(stage), stage.parity);
            }
            let b = room.entries(walk, stage);
            let b = b.add((distance & !127) + half * ENTRY_BYTES);
            let a = Descriptor::new(room.weights(weights), 0, ATOM_BYTES);
            let b = Descriptor::new(b, 0, ATOM_BYTES);
            wgmma::fence();
            let mut k = 0;
            while k < 4 {
                // SAFETY: both are there until this warp gives them back.
                unsafe { F::product(a, b, k, shared || APART || at > part.begins || k > 0) };
                k += 1;
            }
            wgmma::commit();
            wgmma::wait::<1>();
            // The products of the step before this one are done.
            if at > part.begins && lane == 0 {
                // SAFETY: once for each phase of the places.
                unsafe {
                    mbarrier::arrive(room.weights_empty(before));
                    if ended {
                        mbarrier::arrive(room.entries_empty(stage_before));
                    }
                }
            }
            at += 1;
            ended = distance & 2 != 0 || at == ends;
            (before, stage_before) = (weights, stage);
            weights = weights.next(WEIGHT_STAGES);
            if ended {
                stage = stage.next(walk.stages);
            }
            step = if APART || step + 1 == walk.round { 0 } else { step + 1 };
        }
        if APART {
            // SAFETY: once for each phase.
            unsafe { mbarrier::arrive(room.may_multiply(1 - warpgroup)) };
        }
        wgmma::wait::<0>();
        if ends > part.begins && lane == 0 {
            // SAFETY: as above.
            unsafe {
                mbarrier::arrive(room.weights_empty(before));
                mbarrier::arrive(room.entries_empty(stage_before));
            }
        }
        // SAFETY: this warpgroup's own sums.
        unsafe { park(sums.add(2 * (lane % 4) * PITCH + 16 * (warp_id() % 4) + lane / 4)) };
        let mut rows = [0, HALF];
        if shared {
            sync_cluster();
            rows = [part.part, part.part + 1].map(|part| HALF * part / walk.splits);
            // SAFETY: the sums of every part are written and shown.
            unsafe { add_parts::<F, CLUSTER>(walk, sums, part.part, rows) };
            // This block has read what it needs of the others; what it writes is for nobody here.
            arrive_cluster_relaxed();
        }
        sync_some(1 + warpgroup, 128);
        if there {
            // SAFETY: the sums are written and shown.
            unsafe { F::finish(args, sums, head, tile, rows) };
        }
        if shared {
            // The other blocks may still read from this one.
            wait_cluster();
            return;
        }
        index += part.step;
        if APART {
            index += part.step;
            (weights, stage) = other_tile(walk, weights, stage);
        }
    }
}

/// Past a tile of the other warpgroup's, of one tap.
#[inline(always)]
fn other_tile(walk: &Walk, weights: Turn, stage: Turn) -> (Turn, Turn) {
    (weights.skip(walk.rounds, WEIGHT_STAGES), stage.skip(walk.rounds, walk.stages))
}

/// Puts the sums of a warpgroup to `mine`, the lane's first place.
///
/// # Safety
///
/// The place is the lane's; the products are done.
#[inline(always)]
unsafe fn park(mine: Shared<u32>) {
    each_group!(HALF, J => {
        let sums = wgmma::read::<J>();
        let mut i = 0;
        while i < 8 {
            let position = 16 * J + 8 * (i as u32 / 4) + i as u32 % 2;
            let at = mine.add(position * PITCH + 8 * (i as u32 / 2 % 2));
            // SAFETY: this lane's own sum.
            unsafe { at.write(sums[i].to_bits()) };
            i += 1;
        }
    });
}
