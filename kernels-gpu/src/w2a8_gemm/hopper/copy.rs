//! Those who fill the rings.

use core::ops::Range;

use contract::w2a8_gemm::{Args, GROUP_BYTES};

use super::super::tile::Tile;
use super::ring::{Place, Ring};
use crate::arch::mbarrier;
use crate::arch::tensor::{copy_tile, copy_tile_stream};

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
/// kernel in front. Calls go on where the one before them ended, in number of copies: `part` of them.
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
    part: Range<u32>,
) {
    // Boxes of a copy: one of codes, of activations a step's slices.
    let boxes = if CODES { 1 } else { BYTES / (TOKENS * GROUP_BYTES) };
    let mut number = 0;
    let mut place = Place::<STAGES>::FIRST;
    let mut index = tiles.first;
    while index < tiles.end && number < part.end {
        let tile = Tile::<ROWS, TOKENS>::of(args, index, tiles.part);
        let (line, of_chunk) = if CODES { (tile.row0, 1) } else { (tile.token0, 4) };
        // A chunk has 16 bytes of codes, and 64 of activations.
        let mut at = tile.chunk0 * 16 * of_chunk;
        let end = at + tile.chunks.div_ceil(8) * GROUP_BYTES * of_chunk;
        while at < end && number < part.end {
            if number >= part.start {
                // SAFETY: once for each phase of the place, which is free; the contract's table.
                unsafe {
                    mbarrier::wait(ring.empty(place), place.parity ^ 1);
                    mbarrier::arrive_expecting(ring.full(place), BYTES);
                    let mut i = 0;
                    while i < boxes {
                        let to = ring.place(place).add(i * (BYTES / boxes));
                        let at = [at + i * GROUP_BYTES, line, 0, 0];
                        if CODES && args.m <= TOKENS {
                            // No other tile reads them.
                            copy_tile_stream(to, map, at, ring.full(place));
                        } else {
                            copy_tile(to, map, at, ring.full(place));
                        }
                        i += 1;
                    }
                }
            }
            place = place.next();
            number += 1;
            at += boxes * GROUP_BYTES;
        }
        index += tiles.step;
    }
}
