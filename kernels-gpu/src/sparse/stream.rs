//! One stream of a bitmap: its tiles in order, with what each lane owns of them.

use contract::sparse::{ALIGN, LinearArgs, ROWS, WARP_BYTES, WAYS, stream_bytes};

use super::ring::{Ring, close_group, drain};
use crate::arch::mem::ld_nc;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::block_idx_x;
#[cfg(all(level_sm_80, not(level_sm_90a)))]
use crate::arch::warp::warp_id;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, shuffle_up, sync_warp};

/// Bytes of a unit.
pub(super) const UNIT: u32 = 4;

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

/// The tiles of `R` streams side by side, as many of each.
#[cfg(level_sm_80)]
pub(super) trait Source<const R: usize> {
    /// `count` tiles, at most `most`, of each stream from the tile of the matrix that `first` names on.
    ///
    /// # Safety
    ///
    /// The tensors of `args` obey the contract and have these tiles, each of which `args.ring` holds; the
    /// warp's part of the block's shared memory is used by nothing else.
    unsafe fn new(args: &LinearArgs, first: [usize; R], count: u32, most: u32) -> Self;

    /// The next tiles, their units readable until the next call.
    ///
    /// *Convergence*: the whole warp.
    fn tiles(&mut self) -> [Tile; R];

    /// Gives the shared memory back, behind the last tile.
    ///
    /// *Convergence*: the whole warp.
    fn end(self);

    /// Before the block makes another one where it has kept something else since.
    ///
    /// *Convergence*: the whole block.
    fn again();
}

/// Through rings.
#[cfg(all(level_sm_80, not(level_sm_90a)))]
pub(super) struct Rings<const R: usize>([Stream; R]);

#[cfg(all(level_sm_80, not(level_sm_90a)))]
impl<const R: usize> Source<R> for Rings<R> {
    #[inline(always)]
    unsafe fn new(args: &LinearArgs, first: [usize; R], count: u32, _: u32) -> Self {
        Self(core::array::from_fn(|r| {
            let memory = stream_memory(warp_id() * R as u32 + r as u32, args.ring);
            // SAFETY: the caller's promise; memory of this stream alone.
            unsafe { Stream::new(args, first[r], count, memory) }
        }))
    }

    #[inline(always)]
    fn tiles(&mut self) -> [Tile; R] {
        Stream::tiles(&mut self.0)
    }

    #[inline(always)]
    fn end(self) {
        drain();
    }

    #[inline(always)]
    fn again() {}
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

    /// Gives the shared memory back, behind the last tile: what another lane has of it, behind a barrier.
    #[inline(always)]
    pub(super) fn end(self) {
        drain();
    }

    /// The next tile of each of `R` streams that end together.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    pub(super) fn tiles<const R: usize>(streams: &mut [Self; R]) -> [Tile; R] {
        sync_warp();
        let mut r = 0;
        while r < R {
            streams[r].ring.request(streams[r].used);
            r += 1;
        }
        close_group();
        let masks: [[u32; 2]; R] = core::array::from_fn(|r| streams[r].ring.masks());
        let (before, all) = prefix(masks);
        let tiles = core::array::from_fn(|r| {
            let Self { ring, used } = &mut streams[r];
            let at = ring.address(*used + UNIT * before[r]);
            *used += UNIT * all[r];
            ring.wait(*used);
            // Past the padding.
            *used = used.next_multiple_of(ALIGN as u32 * UNIT);
            Tile { masks: masks[r], at: [at, at + UNIT * masks[r][0].count_ones()] }
        });
        sync_warp();
        tiles
    }
}

/// The units of a tile in front of this lane's, and all of them, for each of the streams.
///
/// *Convergence*: the whole warp.
#[inline(always)]
pub(super) fn prefix<const R: usize>(masks: [[u32; 2]; R]) -> ([u32; R], [u32; R]) {
    // One sum for two streams: a tile has 2,048 units at most.
    let mut own = [0; R];
    let mut r = 0;
    while r < R {
        let units = masks[r][0].count_ones() + masks[r][1].count_ones();
        own[r / 2] += units << (16 * (r % 2));
        r += 1;
    }
    let (mut sum, mut distance) = (own, 1);
    while distance < LANES {
        let mut pair = 0;
        while pair < R.div_ceil(2) {
            let lower = shuffle_up(sum[pair], distance);
            sum[pair] += if lane_id() >= distance { lower } else { 0 };
            pair += 1;
        }
        distance *= 2;
    }
    let of = |packed: u32, r: usize| {
        if R == 1 { packed } else { packed >> (16 * (r % 2)) & 0xffff }
    };
    let before = core::array::from_fn(|r| of(sum[r / 2] - own[r / 2], r));
    let last: [u32; R] =
        core::array::from_fn(
            |pair| {
                if 2 * pair < R { shuffle_idx(sum[pair], LANES - 1) } else { 0 }
            },
        );
    (before, core::array::from_fn(|r| of(last[r / 2], r)))
}
