//! Those who fill the rings.

use contract::w2a8_gemm::{Args, GROUP_BYTES};

use super::super::tile::Tile;
use super::ring::{Place, Ring};
use crate::arch::hint::opaque;
use crate::arch::mbarrier;
use crate::arch::wgmma::{self, swizzle};

/// Which tiles a block makes: one after the other, those that are `step` apart.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) first: u32,
    pub(super) step: u32,
    pub(super) end: u32,
    pub(super) part: u32,
}

/// Copies the codes of the block's tiles. They never change: it may begin before the kernel in front
/// of this one has ended.
///
/// # Safety
///
/// As for [`gemm`]; `thread` is one of `COPIERS`.
#[inline(always)]
pub(super) unsafe fn copy_codes<
    const ROWS: u32,
    const TOKENS: u32,
    const SPLIT: u32,
    const COPIERS: u32,
    const STAGES: u32,
    const BYTES: u32,
>(
    args: &Args,
    tiles: Tiles,
    thread: u32,
    ring: Ring<STAGES, BYTES>,
) {
    let mut place = Place::<STAGES>::FIRST;
    let mut index = tiles.first;
    while index < tiles.end {
        let tile = Tile::<ROWS, TOKENS, SPLIT>::of(args, index, tiles.part);
        let lines = tile.codes::<8, COPIERS>(args, thread);
        let at = swizzle(lines.line, lines.piece);
        let mut chunk = 0;
        while chunk < tile.chunks {
            // SAFETY: the place is free, and becomes full; the contract's table.
            unsafe {
                mbarrier::wait(ring.empty(place), place.parity ^ 1);
                lines.copy(chunk, ring.place(place).add(at), GROUP_BYTES);
                mbarrier::arrive_after_copies(ring.full(place));
            }
            place = place.next();
            chunk += 8;
        }
        index += tiles.step;
    }
}

/// Copies the activations of the block's tiles.
///
/// # Safety
///
/// As for [`gemm`], after the wait for the kernel in front; `thread` is one of `COPIERS`.
#[inline(always)]
pub(super) unsafe fn copy_acts<
    const ROWS: u32,
    const TOKENS: u32,
    const SPLIT: u32,
    const COPIERS: u32,
    const STAGES: u32,
    const BYTES: u32,
>(
    args: &Args,
    tiles: Tiles,
    thread: u32,
    ring: Ring<STAGES, BYTES>,
) {
    let mut place = Place::<STAGES>::FIRST;
    let mut index = tiles.first;
    while index < tiles.end {
        let tile = Tile::<ROWS, TOKENS, SPLIT>::of(args, index, tiles.part);
        let lines = tile.acts::<8, COPIERS>(args, thread);
        let at = swizzle(lines.line, lines.piece);
        let pieces = tile.chunks.div_ceil(8) * 32;
        let mut piece = 0;
        while piece < pieces {
            // SAFETY: as in `copy_codes`.
            unsafe {
                mbarrier::wait(ring.empty(place), place.parity ^ 1);
                lines.copy(piece, ring.place(place).add(at), GROUP_BYTES);
                mbarrier::arrive_after_copies(ring.full(place));
            }
            place = place.next();
            piece += 8;
        }
        index += tiles.step;
    }
}

/// Shows the activations of the block's tiles to the async proxy.
///
/// # Safety
///
/// As for [`gemm`], in one thread.
#[inline(always)]
pub(super) unsafe fn show_acts<
    const ROWS: u32,
    const TOKENS: u32,
    const SPLIT: u32,
    const STAGES: u32,
    const BYTES: u32,
>(
    args: &Args,
    tiles: Tiles,
    ring: Ring<STAGES, BYTES>,
) {
    let mut place = Place::<STAGES>::FIRST;
    let mut index = tiles.first;
    while index < tiles.end {
        let tile = Tile::<ROWS, TOKENS, SPLIT>::of(args, index, tiles.part);
        let mut slices = opaque(4 * tile.chunks.div_ceil(8));
        while slices > 0 {
            // SAFETY: once for each phase of the place.
            unsafe {
                mbarrier::wait(ring.full(place), place.parity);
                wgmma::proxy_fence();
                mbarrier::arrive(ring.shown(place));
            }
            place = place.next();
            slices -= 1;
        }
        index += tiles.step;
    }
}
