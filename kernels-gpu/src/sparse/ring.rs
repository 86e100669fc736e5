//! The units and masks of one stream, on their way through shared memory.
//!
//! A warp keeps a ring of its own. Chunks of 512 bytes are asked for as soon as the ring has room, and
//! are waited for when a tile needs them; the first bytes of the ring stand behind its end once more,
//! so that a lane reads on where others wrap. Masks are asked for three tiles ahead, each lane its own.
//! A step closes one group of copies. Below sm_80 the copies are made by loads and stores.

use contract::sparse::{MASK_TILES, RING_BYTES, RING_MIRROR};

use crate::arch::shared::Shared;
use crate::arch::warp::lane_id;

const CHUNK: u32 = 512;
const PIECE: u32 = 16;
/// Bytes of the masks of a tile.
const MASKS: u32 = 256;
/// Tiles that masks are ahead.
const AHEAD: u32 = MASK_TILES - 1;

const _: () = assert!(RING_BYTES.is_multiple_of(CHUNK));

pub(super) struct Ring {
    base: Shared<u8>,
    /// Bytes of the ring: those of a full tile and a chunk more at least.
    size: u32,
    stream: *const u8,
    /// Bytes of the stream, a multiple of 16, and the address behind it.
    len: u32,
    end: usize,
    /// Bytes asked for, and where in the ring the next chunk goes.
    filled: u32,
    at: u32,
    /// The byte of the stream that stood, or will stand, at the start of the ring in this turn.
    turn: u32,
    /// `filled` after each of the last five steps, the newest first.
    history: [u32; 5],
    /// The lane's masks of the first tile; tiles; tile whose masks are asked for next.
    masks: *const u8,
    tiles: u32,
    asked: u32,
}

impl Ring {
    /// # Safety
    ///
    /// `base` starts `stream_bytes(size)` of this warp's own, aligned to 128; `size` is a multiple of 512. Nobody writes meanwhile: at
    /// `stream`, a global address aligned to 16, `len` bytes; at `masks`, `tiles` times 256 bytes.
    #[inline(always)]
    pub(super) unsafe fn new(
        (base, size): (Shared<u8>, u32),
        stream: *const u8,
        len: u32,
        masks: *const u8,
        tiles: u32,
    ) -> Self {
        let masks = masks.wrapping_add(8 * lane_id() as usize);
        let (end, filled, at) = (stream.addr() + len as usize, 0, 0);
        let (turn, history) = (0, [0; 5]);
        let mut ring = Self {
            base,
            size,
            stream,
            len,
            end,
            filled,
            at,
            turn,
            history,
            masks,
            tiles,
            asked: 0,
        };
        while ring.asked < AHEAD {
            ring.ask();
            commit();
        }
        ring
    }

    /// Where the lane's masks of a tile go.
    #[inline(always)]
    fn slot(&self, tile: u32) -> Shared<u32> {
        let at = self.size + RING_MIRROR + tile % MASK_TILES * MASKS + 8 * lane_id();
        self.base.add(at).cast()
    }

    #[inline(always)]
    fn ask(&mut self) {
        let from = self.masks.wrapping_add(self.asked as usize * MASKS as usize);
        // SAFETY: eight bytes of the masks, below `tiles`; the slot was used three steps ago, by
        // this lane alone.
        unsafe { copy8(self.slot(self.asked), from, self.asked < self.tiles) };
        self.asked += 1;
    }

    /// Goes on to the tile whose units start at byte `used` of the stream, everything before which
    /// is done with: asks for what fits, and for the masks of a later tile. One group of copies is to be
    /// closed then, for all rings of the warp.
    ///
    /// *Convergence*: the whole warp, which met since it last read the ring.
    #[inline(always)]
    pub(super) fn request(&mut self, used: u32) {
        if used - self.turn >= self.size {
            self.turn += self.size;
        }
        let room = used + self.size - self.filled;
        let left = self.len - self.filled.min(self.len);
        let mut chunks = (room / CHUNK).min(left.div_ceil(CHUNK));
        let mut source = self.stream.wrapping_add((self.filled + PIECE * lane_id()) as usize);
        self.filled += chunks * CHUNK;
        while chunks > 0 {
            // The last chunk may be shorter than what the lanes would read.
            let inside = source.addr() < self.end;
            let to = self.base.add(self.at + PIECE * lane_id());
            // SAFETY: 16 bytes of the stream when `inside`; the chunk of the ring was used up.
            unsafe { copy16(to, source, inside) };
            if self.at == 0 && lane_id() < RING_MIRROR / PIECE {
                // SAFETY: as above, behind the ring.
                unsafe { copy16(to.add(self.size), source, inside) };
            }
            source = source.wrapping_add(CHUNK as usize);
            self.at = if self.at + CHUNK == self.size { 0 } else { self.at + CHUNK };
            chunks -= 1;
        }
        self.ask();
        let h = self.history;
        self.history = [self.filled, h[0], h[1], h[2], h[3]];
    }

    /// The lane's masks of the tile that [`Ring::request`] went on to, behind [`close_group`].
    #[inline(always)]
    pub(super) fn masks(&self) -> [u32; 2] {
        let slot = self.slot(self.asked - MASK_TILES);
        // SAFETY: this lane's own copy.
        unsafe { [slot.read(), slot.add(1).read()] }
    }

    /// Waits until the lane's copies of the stream's bytes before `end` are there; the other lanes' are
    /// behind a barrier of the warp.
    #[inline(always)]
    pub(super) fn wait(&self, end: u32) {
        if end > self.history[3] {
            if end > self.history[1] {
                wait_but::<0>();
            } else {
                wait_but::<1>();
            }
        }
    }

    /// The shared address of byte `offset` of the stream; from there on 256 bytes lie in a row.
    #[inline(always)]
    pub(super) fn address(&self, offset: u32) -> u32 {
        let at = offset - self.turn;
        self.base.addr() + if at >= self.size { at - self.size } else { at }
    }
}

/// # Safety
///
/// As for `arch::async_copy::copy_x16`.
#[inline(always)]
unsafe fn copy16(to: Shared<u8>, from: *const u8, inside: bool) {
    #[cfg(level_sm_80)]
    // SAFETY: the caller's promise.
    unsafe {
        crate::arch::async_copy::copy_x16(to, from, inside);
    }
    #[cfg(not(level_sm_80))]
    // SAFETY: the caller's promise.
    unsafe {
        let piece = crate::arch::mem::ld_nc_stream_x4_if::<u32>(inside, from.cast());
        to.cast::<u32>().write_x4(piece);
    }
}

/// # Safety
///
/// As for `arch::async_copy::copy_x8`.
#[inline(always)]
unsafe fn copy8(to: Shared<u32>, from: *const u8, inside: bool) {
    #[cfg(level_sm_80)]
    // SAFETY: the caller's promise.
    unsafe {
        crate::arch::async_copy::copy_x8(to, from, inside);
    }
    #[cfg(not(level_sm_80))]
    // SAFETY: the caller's promise.
    unsafe {
        let from = from.cast::<u32>();
        to.write(crate::arch::mem::ld_nc_if(inside, from));
        to.add(1).write(crate::arch::mem::ld_nc_if(inside, from.wrapping_add(1)));
    }
}

/// Closes the group of copies of a step. The masks that were asked for three groups ago are there.
#[inline(always)]
pub(super) fn close_group() {
    commit();
    wait_but::<AHEAD>();
}

#[inline(always)]
fn commit() {
    #[cfg(level_sm_80)]
    crate::arch::async_copy::commit_group();
}

/// Behind the last tile: waits for masks that were asked for past it, zeros that would come into memory that is used again.
#[inline(always)]
pub(super) fn drain() {
    wait_but::<0>();
}

/// Waits but for the newest `N` groups.
#[inline(always)]
fn wait_but<const N: u32>() {
    #[cfg(level_sm_80)]
    crate::arch::async_copy::wait_group::<N>();
}
