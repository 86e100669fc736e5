//! One stream of a bitmap: its tiles in order, with what each lane owns of them.

use contract::sparse::{ALIGN, LinearArgs, ROWS, WARP_BYTES, WAYS, steps};

use super::ring::Ring;
use crate::arch::mem::ld_nc;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, shuffle_up, warp_id};

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

/// The first row of the block.
#[inline(always)]
pub(super) fn first_row() -> u32 {
    block_idx_x() * ROWS as u32
}

/// Shared memory behind that of the streams.
#[inline(always)]
pub(super) fn behind_streams() -> Shared<u8> {
    dynamic_shared_mem::<u8>().add(WAYS as u32 * WARP_BYTES)
}

impl Stream {
    /// Asks for the first masks.
    ///
    /// # Safety
    ///
    /// The tensors of `args` obey the contract with `per_unit` values in a unit; the block has
    /// `contract::sparse::linear_smem` of shared memory, whose first part is used here alone.
    #[inline(always)]
    pub(super) unsafe fn new(args: &LinearArgs, per_unit: usize) -> Self {
        let id = block_idx_x() * WAYS as u32 + warp_id();
        let tiles = steps(args.k as usize, per_unit) as u32;
        let masks = args.masks.cast::<u8>().as_ptr().cast_const();
        let masks = masks.wrapping_add(id as usize * tiles as usize * 256);
        let starts = args.starts.as_ptr().cast_const().wrapping_add(id as usize);
        // SAFETY: entries `id` and `id + 1` of `starts`.
        let (first, end) = unsafe { (ld_nc(starts), ld_nc(starts.wrapping_add(1))) };
        let bytes = |aligned: u32| aligned as usize * ALIGN * UNIT as usize;
        let units = args.values.as_ptr().cast_const().wrapping_add(bytes(first));
        let base = dynamic_shared_mem::<u8>().add(warp_id() * WARP_BYTES);
        // SAFETY: the stream's units and masks; shared memory of this warp's own.
        let ring = unsafe { Ring::new(base, units, bytes(end - first) as u32, masks, tiles) };
        Self { ring, used: 0 }
    }

    /// The next tile, its units readable until the next call.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    pub(super) fn tile(&mut self) -> Tile {
        let masks = self.ring.next(self.used);
        let [low, high] = [masks[0].count_ones(), masks[1].count_ones()];
        let mut sum = low + high;
        let mut distance = 1;
        while distance < LANES {
            let lower = shuffle_up(sum, distance);
            sum += if lane_id() >= distance { lower } else { 0 };
            distance *= 2;
        }
        let at = self.ring.address(self.used + UNIT * (sum - low - high));
        self.used += UNIT * shuffle_idx(sum, LANES - 1);
        self.ring.wait(self.used);
        Tile { masks, at: [at, at + UNIT * low] }
    }
}
