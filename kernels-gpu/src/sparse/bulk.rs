//! Tiles of a bitmap by the copy engine of a Hopper GPU.
//!
//! A warp keeps two tiles of each of its streams: one that it works on, and one on its way, which a single
//! instruction asks for. Masks and the tiles' starts come a step ahead, through registers. A lane that copies
//! pieces by itself, as in `ring.rs`, spends as many instructions on that as on the units.

use contract::sparse::{ALIGN, LinearArgs, PLACES, bulk_bytes};

use super::stream::{Source, Tile, UNIT, prefix};
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::{ld_nc, ld_nc_if, ld_x2_if};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::sync_threads;
use crate::arch::warp::{lane_id, sync_warp, warp_id};
use crate::arch::wgmma::proxy_fence;

/// The tiles of a warp's streams, `R` of them side by side.
pub(super) struct Bulk<const R: usize> {
    memory: Shared<u8>,
    /// Bytes of a tile's place.
    slot: u32,
    units: *const u8,
    /// The masks of the lane, and the starts, of the matrix.
    masks: *const u8,
    starts: *const u32,
    /// The tile of each stream that is next, and how many there are from it on.
    tile: [u32; R],
    left: u32,
    /// The masks of the next tile.
    words: [[u32; 2]; R],
    /// Start and end of the tile that is asked for next, in units of [`ALIGN`].
    range: [[u32; 2]; R],
    index: u32,
}

impl<const R: usize> Bulk<R> {
    #[inline(always)]
    fn barrier(&self, slot: u32) -> Barrier {
        self.memory.add(8 * slot).cast()
    }

    /// The place of stream `r`.
    #[inline(always)]
    fn place(&self, r: usize, slot: u32) -> Shared<u8> {
        self.memory.add(16 + (R as u32 * slot + r as u32) * self.slot)
    }

    /// Asks for the tiles of `range`.
    #[inline(always)]
    fn ask(&self, slot: u32) {
        const PIECE: u32 = ALIGN as u32 * UNIT;
        if lane_id() == 0 {
            let bytes = self.range.map(|[begin, end]| (end - begin) * PIECE);
            proxy_fence();
            // SAFETY: the barrier was made; stored units; the place is free, and what the warp read there is read.
            unsafe {
                mbarrier::arrive_expecting(self.barrier(slot), bytes.iter().sum());
                let mut r = 0;
                while r < R {
                    let to = self.place(r, slot);
                    let from = self.units.wrapping_add(self.range[r][0] as usize * PIECE as usize);
                    if bytes[r] > 0 {
                        mbarrier::copy_bulk(to, from, bytes[r], self.barrier(slot));
                    }
                    r += 1;
                }
            }
        }
    }
}

impl<const R: usize> Source<R> for Bulk<R> {
    #[inline(always)]
    unsafe fn new(args: &LinearArgs, first: [usize; R], count: u32, most: u32) -> Self {
        let masks = args.masks.cast::<u8>().as_ptr().cast_const();
        let masks = masks.wrapping_add(8 * lane_id() as usize);
        let starts = args.starts.as_ptr().cast_const();
        let tile = first.map(|first| first as u32);
        let memory = dynamic_shared_mem::<u8>();
        let memory = memory.add(warp_id() * bulk_bytes(R as u32, most, args.ring));
        let slot = args.ring;
        let units = args.values.as_ptr().cast::<u8>().cast_const();
        // SAFETY: the first tile of each, if there is one.
        let words = first
            .map(|first| unsafe { ld_x2_if(count > 0, masks.wrapping_add(256 * first).cast()) });
        let ends: [[u32; 3]; R] = core::array::from_fn(|r| {
            // SAFETY: starts of the first tiles, and the end behind the last one.
            [0, count.min(1), count.min(2)]
                .map(|i| unsafe { ld_nc(starts.wrapping_add(first[r] + i as usize)) })
        });
        let range = ends.map(|[first, second, _]| [first, second]);
        let mut bulk =
            Self { memory, slot, units, masks, starts, tile, left: count, words, range, index: 0 };
        if lane_id() == 0 {
            // SAFETY: the warp's own; a lane uses them, or a barrier of the warp comes before.
            unsafe {
                mbarrier::init(bulk.barrier(0), 1);
                mbarrier::init(bulk.barrier(1), 1);
            }
            mbarrier::show_new();
        }
        bulk.ask(0);
        bulk.range = ends.map(|[_, second, third]| [second, third]);
        sync_warp();
        bulk
    }

    #[inline(always)]
    fn tiles(&mut self) -> [Tile; R] {
        let slot = self.index % PLACES;
        let masks = self.words;
        self.left -= 1;
        // Every lane is done with the tile before.
        sync_warp();
        if self.left > 0 {
            self.ask(1 - slot);
        }
        let mut r = 0;
        while r < R {
            self.tile[r] += 1;
            let tile = self.tile[r] as usize;
            // SAFETY: the tile behind this one; the end of the one after that.
            unsafe {
                let masks = self.masks.wrapping_add(256 * tile);
                self.words[r] = ld_x2_if(self.left > 0, masks.cast());
                let end = ld_nc_if(self.left > 1, self.starts.wrapping_add(tile + 2));
                self.range[r] = [self.range[r][1], end];
            }
            r += 1;
        }
        let (before, _) = prefix(masks);
        let (barrier, parity) = (self.barrier(slot), self.index / PLACES % 2);
        self.index += 1;
        // SAFETY: the barrier was made, and nobody is two tiles ahead.
        unsafe { mbarrier::wait(barrier, parity) };
        core::array::from_fn(|r| {
            let at = self.place(r, slot).addr() + UNIT * before[r];
            Tile { masks: masks[r], at: [at, at + UNIT * masks[r][0].count_ones()] }
        })
    }

    #[inline(always)]
    fn end(self) {
        sync_warp();
        if lane_id() == 0 {
            // SAFETY: made, and not used from here on.
            unsafe {
                mbarrier::end(self.barrier(0));
                mbarrier::end(self.barrier(1));
            }
        }
    }

    #[inline(always)]
    fn again() {
        proxy_fence();
        sync_threads();
    }
}
