//! One stream of a bitmap: its tiles in order, with what each lane owns of them.

use contract::sparse::{ALIGN, LinearArgs, ROWS, WARP_BYTES, WAYS, stream_bytes};

use super::ring::{Ring, close_group};
use crate::arch::mem::ld_nc;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, shuffle_up, sync_warp};

/// Bytes of a unit.
const UNIT: u32 = 4;

/// Walks the tiles of the warp's stream.
pub(super) struct Stream {
    ring: Ring,
    /// Bytes of the stream in front of the tile.
    used: u32,
}

/// What a lane owns of a tile.
pub(super) struct Tile {
    /// Words of rows `g` and `g + 8`, the first unit in the highest bit.
    pub(super) masks: [u32; 2],
    /// The shared addresses of their first units.
    pub(super) at: [u32; 2],
}

/// The first row of a block that has one group.
#[inline(always)]
pub(super) fn first_row() -> u32 {
    block_idx_x() * ROWS as u32
}

/// Shared memory of the stream `index` of a block whose streams have rings of `ring` bytes, and that.
#[inline(always)]
pub(super) fn stream_memory(index: u32, ring: u32) -> (Shared<u8>, u32) {
    (dynamic_shared_mem::<u8>().add(index * stream_bytes(ring)), ring)
}

/// Shared memory behind that of the streams.
#[inline(always)]
pub(super) fn behind_streams() -> Shared<u8> {
    dynamic_shared_mem::<u8>().add(WAYS as u32 * WARP_BYTES)
}

impl Stream {
    /// Asks for the first masks of `count` tiles from tile `first` of the matrix on.
    ///
    /// # Safety
    ///
    /// The tensors of `args` obey the contract and have these tiles, which the ring holds; `memory` is of
    /// [`stream_memory`], and nothing else uses it.
    #[inline(always)]
    pub(super) unsafe fn new(
        args: &LinearArgs,
        first: usize,
        count: u32,
        memory: (Shared<u8>, u32),
    ) -> Self {
        let masks = args.masks.cast::<u8>().as_ptr().cast_const().wrapping_add(first * 256);
        let starts = args.starts.as_ptr().cast_const().wrapping_add(first);
        // SAFETY: the entries of the first tile and of the one behind the last.
        let (from, end) = unsafe { (ld_nc(starts), ld_nc(starts.wrapping_add(count as usize))) };
        let bytes = |aligned: u32| aligned as usize * ALIGN * UNIT as usize;
        let units = args.values.as_ptr().cast_const().wrapping_add(bytes(from));
        // SAFETY: the tiles' units and masks; the caller's shared memory.
        let ring = unsafe { Ring::new(memory, units, bytes(end - from) as u32, masks, count) };
        Self { ring, used: 0 }
    }

    /// The next tile, its units readable until the next call.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    pub(super) fn tile(&mut self) -> Tile {
        let [tile] = Self::tiles(core::array::from_mut(self));
        tile
    }

    /// The next tile of each of `R` streams, one or two, that end together.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    pub(super) fn tiles<const R: usize>(streams: &mut [Self; R]) -> [Tile; R] {
        const { assert!(R <= 2) };
        sync_warp();
        let mut r = 0;
        while r < R {
            streams[r].ring.request(streams[r].used);
            r += 1;
        }
        close_group();
        let masks: [[u32; 2]; R] = core::array::from_fn(|r| streams[r].ring.masks());
        // One prefix sum for both: a tile has 2,048 units at most.
        let (mut own, mut r) = (0, 0);
        while r < R {
            own += (masks[r][0].count_ones() + masks[r][1].count_ones()) << (16 * r);
            r += 1;
        }
        let (mut sum, mut distance) = (own, 1);
        while distance < LANES {
            let lower = shuffle_up(sum, distance);
            sum += if lane_id() >= distance { lower } else { 0 };
            distance *= 2;
        }
        let (before, all) = (sum - own, shuffle_idx(sum, LANES - 1));
        let tiles = core::array::from_fn(|r| {
            let Self { ring, used } = &mut streams[r];
            let of = |packed: u32| UNIT * if R == 1 { packed } else { packed >> (16 * r) & 0xffff };
            let at = ring.address(*used + of(before));
            *used += of(all);
            ring.wait(*used);
            // Past the padding.
            *used = used.next_multiple_of(ALIGN as u32 * UNIT);
            Tile { masks: masks[r], at: [at, at + UNIT * masks[r][0].count_ones()] }
        });
        sync_warp();
        tiles
    }
}
