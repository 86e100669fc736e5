//! The products of a block's weights with all rows: a warp has some groups of 256 elements, of all rows of weights.

use core::array::from_fn;

use contract::bit_linear::SET_ROWS;
use contract::decode_layers::rows::{Args, GROUP_WORDS, MAX_ROWS, NO_ACTS, WORK_WARPS};

use super::super::product::Sums;
use super::exchange::Slot;
use super::memory::{Memory, Share};
use crate::arch::atomic::ld_relaxed_x4_if;
use crate::arch::hint::{opaque_here, rolled};
use crate::arch::mbarrier::wait;
use crate::arch::mem::X4;
use crate::arch::shared::Shared;
use crate::arch::warp::{any, lane_id, warp_id};

/// Lanes of a row of a product.
const QUAD: u32 = 4;
/// Bytes of a group of a row of weights.
const GROUP_BYTES: u32 = 64;
/// The activations of a group: of the lane's row, a chunk.
type Acts = [X4<u32>; 4];
/// Sets of rows of weights that a warp takes together: their chains of products run side by side.
const SETS: usize = 2;
const STEP_ROWS: u32 = SETS as u32 * SET_ROWS;
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
unsafe fn load_missing(missing: [u32; 4], from: *const u32, units: Acts) -> Acts {
    // SAFETY: the caller's promise.
    unsafe {
        [
            ld_relaxed_x4_if::<0>(missing[0] != 0, units[0], from),
            ld_relaxed_x4_if::<UNIT>(missing[1] != 0, units[1], from),
            ld_relaxed_x4_if::<{ 2 * UNIT }>(missing[2] != 0, units[2], from),
            ld_relaxed_x4_if::<{ 3 * UNIT }>(missing[3] != 0, units[3], from),
        ]
    }
}

/// Adds the products of this warp's groups to the sums of the rows of weights; calls `come` as soon as they are there.
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
) {
    // Addresses that stay the same over all parts would stay in registers.
    let lane = opaque_here(lane_id());
    let there = lane / QUAD < args.m;
    // The first four words of this lane's row in a group.
    let at = |group: u32| slot.acts(share.acts + group * GROUP_WORDS + 4 * lane);
    let missing = |words: X4<u32>| {
        let [a, b, c, d] = words;
        // Else the conditions are packed for the next look.
        opaque_here(u32::from(a == NO_ACTS || b == NO_ACTS || c == NO_ACTS || d == NO_ACTS))
    };
    // SAFETY: words of the lane's row, of a group that there is.
    let ask = |group: u32| unsafe {
        load_missing([u32::from(there & (group < share.groups)); 4], at(group), [[0; 4]; 4])
    };
    let mut group = warp_id();
    // SAFETY: the caller's promise.
    unsafe { wait(memory.full.add(kind), layer % 2) };
    let mut units = ask(group);
    let mut first = true;
    loop {
        rolled();
        loop {
            let missing = units.map(missing);
            if !any(missing[0] | missing[1] | missing[2] | missing[3] != 0) {
                break;
            }
            // SAFETY: as for `ask`: only what was asked for is missing.
            units = unsafe { load_missing(missing, at(group), units) };
        }
        if first {
            first = false;
            come();
        }
        if group >= share.groups {
            return;
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
    MAX_ROWS * row + column / 2 + QUAD * ((row / 4 + column) % 2)
}

/// The products of a group with all rows of weights, [`SETS`] sets of them at a time.
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
    let load = |at: u32| {
        let at = at.min(end).wrapping_sub(area.addr());
        // SAFETY: four chunks of a row.
        unsafe { area.add(at).cast::<u32>().read_x4() }
    };
    let mut from: [[u32; 2]; SETS] = from_fn(|set| {
        let row = row + SET_ROWS * set as u32;
        [row, row + 8].map(|row| area.add(row * share.stride).addr())
    });
    // Of its even columns and of its odd ones. Rows that are not there have sums too.
    let to = [0, 1].map(|odd| sums.add(sum_at(row, 2 * quad + odd)));
    let mut to = to.map(|to| to.addr());
    let mut left = opaque_here(share.rows.div_ceil(STEP_ROWS));
    loop {
        rolled();
        // At the end of the turn the assembler would make the first one apart, a kilobyte of it.
        if left == 0 {
            return;
        }
        left -= 1;
        let weights = from.map(|from| from.map(load));
        from = from.map(|from| from.map(|from| from + STEP_ROWS * share.stride));
        let own = weights.map(|weights| {
            let mut products = Sums::new();
            products.take((weights, acts));
            products.shifted()
        });
        let mut i = 0;
        while i < 4 * SETS {
            let (set, of) = (i / 4, i % 4);
            let at = MAX_ROWS * (SET_ROWS * set as u32 + 8 * (of as u32 / 2));
            let to = to[of % 2].wrapping_sub(sums.addr());
            // SAFETY: the sum of this row and column; between two barriers only this accesses it.
            unsafe { sums.add(at).byte_add(to).atomic_add(own[set][of] as u32) };
            i += 1;
        }
        to = to.map(|to| to + 4 * MAX_ROWS * STEP_ROWS);
    }
}
