//! Those who fill the rings.

use contract::w2a8_gemm::{Args, GROUP_BYTES};

use super::super::tile::Tile;
use super::ring::{Place, Ring};
use crate::arch::mbarrier;
use crate::arch::tensor::copy_tile;

/// Which tiles a block makes: one after the other, those that are `step` apart, and which part of their k,
/// of how many.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) first: u32,
    pub(super) step: u32,
    pub(super) end: u32,
    pub(super) part: [u32; 2],
}

/// Copies the codes of the block's tiles, or their activations: boxes of [`GROUP_BYTES`] of the rows of a
/// tile, of which `map` knows. What is outside of a tensor becomes zeros, which add nothing to a sum,
/// whatever the other factor has.
///
/// # Safety
///
/// As for [`super::gemm`], in one thread. Codes never change; activations only after the wait for the
/// kernel in front.
#[inline(always)]
pub(super) unsafe fn copy<
    const CODES: bool,
    const ROWS: u32,
    const TOKENS: u32,
    const STAGES: u32,
    const BYTES: u32,
>(
    args: &Args,
    tiles: Tiles,
    map: u64,
    ring: Ring<STAGES, BYTES>,
) {
    let mut place = Place::<STAGES>::FIRST;
    let mut index = tiles.first;
    while index < tiles.end {
        let tile = Tile::<ROWS, TOKENS>::of(args, index, tiles.part);
        let (line, boxes) = if CODES { (tile.row0, 1) } else { (tile.token0, 4) };
        // A chunk has 16 bytes of codes, and 64 of activations.
        let mut at = tile.chunk0 * 16 * boxes;
        let end = at + tile.chunks.div_ceil(8) * GROUP_BYTES * boxes;
        while at < end {
            // SAFETY: once for each phase of the place, which is free; the contract's table.
            unsafe {
                mbarrier::wait(ring.empty(place), place.parity ^ 1);
                mbarrier::arrive_expecting(ring.full(place), BYTES);
                copy_tile(ring.place(place), map, [at, line, 0, 0], ring.full(place));
            }
            place = place.next();
            at += GROUP_BYTES;
        }
        index += tiles.step;
    }
}
