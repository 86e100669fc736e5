//! The products of a block's weights with all rows: a warp has some groups of 256 elements, of all rows of weights.

use core::array::from_fn;

use contract::bit_linear::SET_ROWS;
use contract::decode_layers::rows::{Args, NO_ACTS, TILE_ROWS, TILE_WORDS, Tiles, WORK_WARPS};

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
/// The activations of a group: of the lane's row of a tile, a chunk.
type Acts = [X4<u32>; 4];
/// By how many bits the sums are too large.
pub(super) const SHIFT: u32 = 6;

/// Bytes from unit to unit of a tile of a group, and from tile to tile.
const UNIT: u32 = TILE_WORDS;
const NEXT: u32 = 4 * UNIT;

/// The units of tile `tile` of a group at `from` that are missing.
///
/// # Safety
///
/// Words of the exchange.
#[inline(always)]
unsafe fn load_missing(missing: [u32; 4], from: *const u32, units: Acts, tile: usize) -> Acts {
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| (missing[i] != 0, units[i]));
    // SAFETY: the caller's promise.
    unsafe {
        if tile == 0 {
            [
                ld_relaxed_x4_if::<0>(a.0, a.1, from),
                ld_relaxed_x4_if::<UNIT>(b.0, b.1, from),
                ld_relaxed_x4_if::<{ 2 * UNIT }>(c.0, c.1, from),
                ld_relaxed_x4_if::<{ 3 * UNIT }>(d.0, d.1, from),
            ]
        } else {
            [
                ld_relaxed_x4_if::<NEXT>(a.0, a.1, from),
                ld_relaxed_x4_if::<{ NEXT + UNIT }>(b.0, b.1, from),
                ld_relaxed_x4_if::<{ NEXT + 2 * UNIT }>(c.0, c.1, from),
                ld_relaxed_x4_if::<{ NEXT + 3 * UNIT }>(d.0, d.1, from),
            ]
        }
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
pub(super) unsafe fn multiply<const T: usize, const SETS: usize>(
    args: &Args,
    memory: Memory<T>,
    slot: &Slot<T>,
    share: &Share,
    [layer, kind]: [u32; 2],
    sums: Shared<u32>,
    come: impl Fn(),
) {
    // Addresses that stay the same over all parts would stay in registers.
    let lane = opaque_here(lane_id());
    let there: [bool; T] = from_fn(|tile| lane / QUAD + TILE_ROWS * (tile as u32) < args.m);
    // The first four words of this lane's row of the first tile in a group.
    let at = |group: u32| {
        let words = const { Tiles(T as u32).group_words() };
        slot.acts(share.acts + group * words + 4 * lane)
    };
    let missing = |words: X4<u32>| {
        let [a, b, c, d] = words;
        // Else the conditions are packed for the next look.
        opaque_here(u32::from(a == NO_ACTS || b == NO_ACTS || c == NO_ACTS || d == NO_ACTS))
    };
    // SAFETY: words of the lane's row, of a group that there is.
    let ask = |group: u32, tile: usize| unsafe {
        let wanted = u32::from(there[tile] & (group < share.groups));
        load_missing([wanted; 4], at(group), [[0; 4]; 4], tile)
    };
    let mut group = warp_id();
    // SAFETY: the caller's promise.
    unsafe { wait(memory.full.add(kind), layer % 2) };
    let mut units: [Acts; T] = from_fn(|tile| ask(group, tile));
    let mut first = true;
    loop {
        rolled();
        loop {
            let missing = units.map(|units| units.map(missing));
            let mut found = 0;
            let mut tile = 0;
            while tile < T {
                let [a, b, c, d] = missing[tile];
                found |= a | b | c | d;
                tile += 1;
            }
            if !any(found != 0) {
                break;
            }
            let mut tile = 0;
            while tile < T {
                // SAFETY: as for `ask`: only what was asked for is missing.
                units[tile] = unsafe { load_missing(missing[tile], at(group), units[tile], tile) };
                tile += 1;
            }
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
        // There are no registers for more than a tile on its way.
        units[0] = ask(group, 0);
        // SAFETY: the weights and the sums are this block's; a group of a row, or what stands behind it, where activations are
        // zeros.
        unsafe { of_group::<T, SETS>(memory, share, here, lane, acts, sums, kind) };
        let mut tile = 1;
        while tile < T {
            units[tile] = ask(group, tile);
            tile += 1;
        }
    }
}

/// Where the sum of a row of weights and of column `column` of a tile is: lanes of a warp, which have even columns at first and then odd ones, do
/// not fall on the same banks.
#[inline(always)]
pub(super) fn sum_at(row: u32, column: u32) -> u32 {
    TILE_ROWS * row + column / 2 + QUAD * ((row / 4 + column) % 2)
}

/// Words between the sums of two tiles.
#[inline(always)]
pub(super) fn tile_words<const T: usize>(kind: u32) -> u32 {
    match kind {
        0 => const { TILE_ROWS * Tiles(T as u32).sum_rows(0) },
        2 => const { TILE_ROWS * Tiles(T as u32).sum_rows(2) },
        _ => const { TILE_ROWS * Tiles(T as u32).sum_rows(1) },
    }
}

/// Where the sums of the tile of row `row` are, and its column there.
#[inline(always)]
pub(super) fn tile_of<const T: usize>(kind: u32, row: u32) -> (u32, u32) {
    if T == 1 {
        return (0, row);
    }
    (row / TILE_ROWS * tile_words::<T>(kind), row % TILE_ROWS)
}

/// The products of a group with all rows of weights, `SETS` sets of them at a time: their chains of products, and those of tiles, run
/// side by side.
///
/// # Safety
///
/// As for [`multiply`].
#[inline(always)]
unsafe fn of_group<const T: usize, const SETS: usize>(
    memory: Memory<T>,
    share: &Share,
    group: u32,
    lane: u32,
    acts: [Acts; T],
    sums: Shared<u32>,
    kind: u32,
) {
    let step_rows = const { SETS as u32 * SET_ROWS };
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
    let of_tile = tile_words::<T>(kind);
    let mut left = opaque_here(share.rows.div_ceil(step_rows));
    loop {
        rolled();
        // At the end of the turn the assembler would make the first one apart, a kilobyte of it.
        if left == 0 {
            return;
        }
        left -= 1;
        let weights = from.map(|from| from.map(load));
        from = from.map(|from| from.map(|from| from + step_rows * share.stride));
        let mut products: [[Sums; T]; SETS] = from_fn(|_| from_fn(|_| Sums::new()));
        let mut set = 0;
        while set < SETS {
            Sums::take_all(&mut products[set], weights[set], &acts);
            set += 1;
        }
        let own = products.map(|products| products.map(|products| products.shifted()));
        let mut i = 0;
        while i < 4 * SETS * T {
            let (set, tile, of) = (i / 4 / T, i / 4 % T, i % 4);
            let at = TILE_ROWS * (SET_ROWS * set as u32 + 8 * (of as u32 / 2));
            let to = to[of % 2].wrapping_sub(sums.addr());
            // SAFETY: the sum of this row and column; between two barriers only this accesses it.
            unsafe {
                let sums = if tile == 0 { sums } else { sums.add(tile as u32 * of_tile) };
                sums.add(at).byte_add(to).atomic_add(own[set][tile][of] as u32);
            }
            i += 1;
        }
        to = to.map(|to| to + 4 * TILE_ROWS * step_rows);
    }
}
