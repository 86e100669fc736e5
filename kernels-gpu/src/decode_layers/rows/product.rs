//! The products of a block's weights with all rows: a warp has some groups of 256 elements, of all rows of weights.

use contract::bit_linear::SET_ROWS;
use contract::decode_layers::EMPTY;
use contract::decode_layers::rows::{
    Args, GROUP_WORDS, MAX_ROWS, MAX_WEIGHT_ROWS, NO_ACTS, WORK_WARPS,
};

use super::super::product::Sums;
use super::exchange::Slot;
use super::memory::{Memory, Share};
use crate::arch::atomic::{ld_relaxed_x2, ld_relaxed_x4_if};
use crate::arch::hint::{opaque_here, rolled};
use crate::arch::mbarrier::wait;
use crate::arch::mem::X4;
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{any, lane_id, warp_id};

/// Lanes of a row of a product.
const QUAD: u32 = 4;
/// Bytes of a group of a row of weights.
const GROUP_BYTES: u32 = 64;
/// The activations of a group: of the lane's row, a chunk.
type Acts = [X4<u32>; 4];
/// By how many bits the sums are too large.
pub(super) const SHIFT: u32 = 6;

/// Bytes from unit to unit of a group.
const UNIT: u32 = GROUP_WORDS;

/// The units of a group at `from` that are missing.
///
/// # Safety
///
/// Words of the exchange.
#[inline(always)]
unsafe fn load_missing(missing: [bool; 4], from: *const u32, units: Acts) -> Acts {
    // SAFETY: the caller's promise.
    unsafe {
        [
            ld_relaxed_x4_if::<0>(missing[0], units[0], from),
            ld_relaxed_x4_if::<UNIT>(missing[1], units[1], from),
            ld_relaxed_x4_if::<{ 2 * UNIT }>(missing[2], units[2], from),
            ld_relaxed_x4_if::<{ 3 * UNIT }>(missing[3], units[3], from),
        ]
    }
}

/// Adds the products of this warp's groups to the sums of the rows of weights; calls `come` as soon as they are there. What was there
/// then of the scale and the sum of this thread's row.
///
/// *Convergence*: every thread that makes products calls it.
///
/// # Safety
///
/// The launch contract; the weights are asked for; `sums` are zeros.
#[inline(always)]
pub(super) unsafe fn multiply(
    args: &Args,
    memory: Memory,
    slot: &Slot,
    share: &Share,
    [layer, kind]: [u32; 2],
    sums: Shared<u32>,
    come: impl Fn(),
) -> [u32; 2] {
    // Addresses that stay the same over all parts would stay in registers.
    let lane = opaque_here(lane_id());
    let there = lane / QUAD < args.m;
    // The first four words of this lane's row in a group.
    let at = |group: u32| slot.acts(share.acts + group * GROUP_WORDS + 4 * lane);
    let missing = |words: X4<u32>| {
        let [a, b, c, d] = words;
        a == NO_ACTS || b == NO_ACTS || c == NO_ACTS || d == NO_ACTS
    };
    // SAFETY: words of the lane's row, of a group that there is.
    let ask = |group: u32| unsafe {
        load_missing([there & (group < share.groups); 4], at(group), [[0; 4]; 4])
    };
    let mut group = warp_id();
    // SAFETY: the caller's promise.
    unsafe { wait(memory.full.add(kind), layer % 2) };
    let mut units = ask(group);
    let mut stats = [EMPTY; 2];
    let mut first = true;
    loop {
        rolled();
        loop {
            let missing = units.map(missing);
            if !any(missing[0] || missing[1] || missing[2] || missing[3]) {
                break;
            }
            // SAFETY: as for `ask`: only what was asked for is missing.
            units = unsafe { load_missing(missing, at(group), units) };
        }
        if first {
            first = false;
            come();
            let of_output = thread_idx_x() % MAX_ROWS;
            if of_output < args.m {
                // SAFETY: words of a row's scale and sum.
                stats = unsafe { ld_relaxed_x2(slot.stats_of(kind, of_output)) };
            }
        }
        if group >= share.groups {
            return stats;
        }
        let (here, acts) = (group, units);
        group += WORK_WARPS;
        units = ask(group);
        // SAFETY: the weights and the sums are this block's; a group of a row, or what stands behind it, where activations are
        // zeros.
        unsafe { of_group(memory, share, here, lane, acts, sums) };
    }
}

/// Where the sum of a row of weights and of column `column` is: lanes of a warp, which have even columns at first and then odd ones, do
/// not fall on the same banks.
#[inline(always)]
pub(super) fn sum_at(row: u32, column: u32) -> u32 {
    QUAD * row + column / 2 + column % 2 * (QUAD * MAX_WEIGHT_ROWS)
}

/// The products of a group.
///
/// # Safety
///
/// As for [`multiply`].
#[inline(always)]
unsafe fn of_group(
    memory: Memory,
    share: &Share,
    group: u32,
    lane: u32,
    acts: Acts,
    sums: Shared<u32>,
) {
    let (row, quad) = (lane / QUAD, lane % QUAD);
    // The rows of a lane are all even or all odd.
    let at = GROUP_BYTES * group + share.turn * (row % 2);
    let at = if share.turn != 0 && at == share.stride { 0 } else { at };
    let area = memory.areas.add(share.area + 16 * quad + at);
    // A row that is not there is the last one again, and nobody takes its sum.
    let end = area.add((share.rows - 1) * share.stride).addr();
    let load = |rows: [u32; 2]| {
        rows.map(|at| {
            let at = at.min(end).wrapping_sub(area.addr());
            // SAFETY: four chunks of a row.
            unsafe { area.add(at).cast::<u32>().read_x4() }
        })
    };
    let mut from = [0, 8].map(|r| area.add((row + r) * share.stride).addr());
    let mut weights = load(from);
    let mut to = sums.add(sum_at(row, 2 * quad));
    let mut left = share.rows;
    loop {
        rolled();
        let mut products = Sums::new();
        let here = weights;
        from = from.map(|from| from + SET_ROWS * share.stride);
        weights = load(from);
        products.take((here, acts));
        let own = products.shifted();
        let mut i = 0;
        while i < 4 {
            if row + 8 * (i / 2) < left {
                // SAFETY: the sum of this row and column; between two barriers only this accesses it.
                unsafe { to.add(sum_at(8 * (i / 2), i % 2)).atomic_add(own[i as usize] as u32) };
            }
            i += 1;
        }
        if left <= SET_ROWS {
            return;
        }
        left -= SET_ROWS;
        to = to.add(QUAD * SET_ROWS);
    }
}
