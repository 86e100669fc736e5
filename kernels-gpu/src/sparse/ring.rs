//! The values of one stream, on their way through shared memory.
//!
//! A warp keeps a ring of its own. Chunks of 512 bytes are asked for as soon as the ring has room, and
//! are waited for when a tile needs them; the first bytes of the ring stand behind its end once more,
//! so that a lane reads on where others wrap. Below sm_80 the copies are made by loads and stores.

use contract::sparse::{RING_BYTES, RING_MIRROR};

use crate::arch::shared::Shared;
use crate::arch::warp::{lane_id, sync_warp};

const CHUNK: u32 = 512;
const PIECE: u32 = 16;

const _: () = assert!(RING_BYTES.is_multiple_of(CHUNK));

pub(super) struct Ring {
    base: Shared<u8>,
    stream: *const u8,
    /// Bytes of the stream, a multiple of 16.
    len: u32,
    /// Bytes asked for, and where in the ring the next chunk goes.
    filled: u32,
    at: u32,
    /// The byte of the stream that stood, or will stand, at the start of the ring in this turn.
    turn: u32,
    /// `filled` after each of the last five steps, the newest first.
    history: [u32; 5],
}

impl Ring {
    /// # Safety
    ///
    /// `base` starts `RING_BYTES + RING_MIRROR` bytes of this warp's own, aligned to 128; `stream`
    /// is a global address, aligned to 16, of `len` bytes that nobody writes meanwhile.
    #[inline(always)]
    pub(super) unsafe fn new(base: Shared<u8>, stream: *const u8, len: u32) -> Self {
        Self { base, stream, len, filled: 0, at: 0, turn: 0, history: [0; 5] }
    }

    /// Asks for what fits, when everything before byte `used` of the stream is done with.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    pub(super) fn advance(&mut self, used: u32) {
        sync_warp();
        while self.filled < self.len && self.filled + CHUNK <= used + RING_BYTES {
            let from = self.filled + PIECE * lane_id();
            let inside = from < self.len;
            let source = self.stream.wrapping_add(from as usize);
            let to = self.at + PIECE * lane_id();
            // SAFETY: 16 bytes of the stream when `inside`; the chunk of the ring was used up.
            unsafe { copy(self.base.add(to), source, inside) };
            if self.at == 0 && lane_id() < RING_MIRROR / PIECE {
                // SAFETY: as above, behind the ring.
                unsafe { copy(self.base.add(RING_BYTES + to), source, inside) };
            }
            self.filled += CHUNK;
            self.at = if self.at + CHUNK == RING_BYTES { 0 } else { self.at + CHUNK };
        }
        commit();
        let h = self.history;
        self.history = [self.filled, h[0], h[1], h[2], h[3]];
    }

    /// Waits until the stream's bytes before `end` are there.
    ///
    /// *Convergence*: the whole warp.
    #[inline(always)]
    pub(super) fn wait(&self, end: u32) {
        if end <= self.history[4] {
            wait_but::<4>();
        } else if end <= self.history[1] {
            wait_but::<1>();
        } else {
            wait_but::<0>();
        }
        sync_warp();
    }

    /// The shared address of byte `offset` of the stream; from there on 128 bytes lie in a row.
    #[inline(always)]
    pub(super) fn address(&self, offset: u32) -> u32 {
        let at = offset - self.turn;
        self.base.addr() + if at >= RING_BYTES { at - RING_BYTES } else { at }
    }

    /// Goes on to the tile that starts at byte `used`.
    #[inline(always)]
    pub(super) fn pass(&mut self, used: u32) {
        if used - self.turn >= RING_BYTES {
            self.turn += RING_BYTES;
        }
    }
}

/// # Safety
///
/// As for `arch::async_copy::copy_x16`.
#[inline(always)]
unsafe fn copy(to: Shared<u8>, from: *const u8, inside: bool) {
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

#[inline(always)]
fn commit() {
    #[cfg(level_sm_80)]
    crate::arch::async_copy::commit_group();
}

/// Waits but for the newest `N` steps.
#[inline(always)]
fn wait_but<const N: u32>() {
    #[cfg(level_sm_80)]
    crate::arch::async_copy::wait_group::<N>();
}
