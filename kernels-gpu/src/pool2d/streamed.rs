//! Whole images, channels first, many: a lane has one, which comes through the shared memory of its warp.

use contract::num::tree8;
use contract::pool2d::{Args, DEPTH, SLICE, STAGE, WHOLE_THREADS};

use crate::arch::float::maximum;
use crate::arch::mem::X4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, opaque};
use crate::arch::warp::{LANES, lane_id, sync_warp, warp_id};
use crate::float::{Float, Piece};

/// Pieces of 16 bytes that a lane copies, and has, of a slice.
const PIECES: u32 = SLICE / 16;

/// A slice of 32 images that lie side by side.
#[derive(Clone, Copy)]
struct Step {
    /// Which 32.
    images: u64,
    /// Which slice of each.
    slice: u32,
}

/// The images of a warp, 32 at a time, and the way through its shared memory.
struct Stream<E> {
    x: *const E,
    /// Bytes of an image.
    bytes: u32,
    /// Pieces of 16 bytes that an image touches.
    pieces: u32,
    /// Images of the tensor.
    all: u64,
    /// This warp's memory.
    held: Shared<u32>,
}

impl<E: Float> Stream<E> {
    /// The slice behind this one.
    #[inline(always)]
    fn after(&self, step: Step) -> Step {
        if (step.slice + 1) * PIECES < self.pieces {
            return Step { images: step.images, slice: step.slice + 1 };
        }
        let warps = u64::from(grid_dim_x()) * u64::from(WHOLE_THREADS / LANES);
        Step { images: step.images + warps, slice: 0 }
    }

    /// Where piece `j` of a slice of image `plane` of the 32 waits in `stage`: the neighbours of a piece are in other banks.
    #[inline(always)]
    fn place(&self, stage: u32, plane: u32, j: u32) -> Shared<u32> {
        self.held.byte_add(stage + plane * SLICE + (j ^ plane % 8) * 16)
    }

    /// Copies `bytes` of 16, and zeros behind them.
    ///
    /// # Safety
    ///
    /// So many bytes of the tensor are at `from`, and nobody uses the place.
    #[inline(always)]
    unsafe fn copy(to: Shared<u32>, from: *const u8, bytes: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            #[cfg(level_sm_80)]
            crate::arch::async_copy::copy_x16_part(to, from, bytes);
            #[cfg(not(level_sm_80))]
            to.write_x4(if bytes == 16 {
                crate::arch::mem::ld_x4(from.cast())
            } else {
                E::gather(from.cast(), bytes / (16 / E::PIECE as u32))
            });
        }
    }

    /// Asks for a stage; behind the last image are zeros, or what was there.
    ///
    /// # Safety
    ///
    /// Nobody uses the stage.
    #[inline(always)]
    unsafe fn ask(&self, step: Step, stage: u32) {
        let first = step.images * u64::from(LANES);
        if first >= self.all {
            return;
        }
        let left =
            if self.all - first < u64::from(LANES) { (self.all - first) as u32 } else { LANES };
        let x = self.x.cast::<u8>().wrapping_add((first * u64::from(self.bytes)) as usize);
        let j = lane_id() % 8;
        let piece = step.slice * PIECES + j;
        if piece >= self.pieces {
            return;
        }
        let mut q = 0;
        while q < 8 {
            let plane = lane_id() / 8 + 4 * q;
            let start = plane * self.bytes;
            let at = (start & !15) + 16 * piece;
            let rest = (start + self.bytes) as i32 - at as i32;
            let rest = if plane < left { rest.max(0).min(16) } else { 0 };
            // SAFETY: as many bytes of an image; the place belongs to this piece.
            unsafe {
                Self::copy(self.place(stage, plane, j), x.wrapping_add(at as usize), rest as u32)
            };
            q += 1;
        }
    }

    /// Piece `j` of what a stage has of this lane's image.
    ///
    /// # Safety
    ///
    /// It has come.
    #[inline(always)]
    unsafe fn piece(&self, stage: u32, j: u32) -> X4<u32> {
        // SAFETY: the caller's promise.
        unsafe { self.place(stage, lane_id(), j).read_x4() }
    }
}

/// The elements `from..to` of a piece, words of `nothing` elsewhere.
#[inline(always)]
fn clip<E: Float>(raw: X4<u32>, from: u32, to: u32, nothing: u32) -> X4<u32> {
    let keep = |i: usize| i as u32 >= from && (i as u32) < to;
    core::array::from_fn(|w| {
        let mask = if E::PIECE == 4 {
            if keep(w) { u32::MAX } else { 0 }
        } else {
            (if keep(2 * w) { 0xffff } else { 0 }) | (if keep(2 * w + 1) { 0xffff_0000 } else { 0 })
        };
        raw[w] & mask | nothing & !mask
    })
}

/// Channels first, many images: a lane has one, in pieces of 16 bytes that are aligned in memory. Where in a piece the image starts does not
/// matter to the sum: slot `s` of eight has partial `(s - start) % 8`, and the tree over the slots is the tree over the partials, for its
/// additions pair the same ones whichever of them is first.
///
/// # Safety
///
/// As for [`super::last::last`], where [`Args::streamed`] holds; the grid may have fewer warps than that takes.
#[inline(always)]
pub(super) unsafe fn streamed<E: Float, const AVG: bool>(args: &Args) {
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let y = args.y.cast::<E>().as_ptr();
    let (image, size) = (args.h.len * args.w.len, 16 / E::PIECE as u32);
    let bytes = image * size;
    // An image may start behind the start of a piece.
    let before = if bytes.is_multiple_of(16) { 0 } else { 16 - size };
    let pieces = (bytes + before).div_ceil(16);
    let stream = Stream {
        x,
        bytes,
        pieces,
        all: u64::from(args.images) * u64::from(args.channels),
        held: dynamic_shared_mem::<u32>().byte_add(warp_id() * DEPTH * STAGE),
    };
    let warp = block_idx_x() * (WHOLE_THREADS / LANES) + warp_id();
    let mut here = Step { images: u64::from(warp), slice: 0 };
    let mut next = here;
    let mut stage = 0;
    let skip = lane_id() * bytes % 16 / size;
    let end = skip + image;
    let mut sums: Piece = [0.0; 8];
    let mut top = [E::LOWEST; 4];
    // Takes piece `j` of a stage, number `piece` of the image; `slot` of its first element.
    let take = |sums: &mut Piece, top: &mut X4<u32>, mut raw: X4<u32>, piece: u32, slot: usize| {
        let first = piece * E::PIECE as u32;
        if piece == 0 || first + E::PIECE as u32 > end {
            let from = if piece == 0 { skip } else { 0 };
            let nothing = if AVG { 0 } else { E::LOWEST };
            raw = clip::<E>(raw, from, end.saturating_sub(first), nothing);
        }
        if AVG {
            let values = E::widen(raw);
            let mut i = 0;
            while i < E::PIECE {
                sums[(slot + i) % 8] += values[i];
                i += 1;
            }
        } else {
            *top = E::max_raw(*top, raw);
        }
    };
    // SAFETY: a stage is asked for where all lanes have done with what was there; waits and barriers stand in front of the reads.
    unsafe {
        let mut ahead = 0;
        while ahead < DEPTH - 1 {
            stream.ask(next, ahead * STAGE);
            commit();
            next = stream.after(next);
            ahead += 1;
        }
        while here.images * u64::from(LANES) < stream.all {
            came();
            sync_warp();
            let free = if stage == 0 { DEPTH - 1 } else { stage - 1 };
            stream.ask(next, free * STAGE);
            commit();
            next = stream.after(next);
            if here.slice == 0 {
                (sums, top) = ([0.0; 8], [E::LOWEST; 4]);
            }
            let mut j = 0;
            while j < PIECES && here.slice * PIECES + j < stream.pieces {
                let piece = here.slice * PIECES + j;
                // Two pieces of `f32` have all slots.
                let raw = stream.piece(stage * STAGE, j);
                take(&mut sums, &mut top, raw, piece, 0);
                if piece + 1 < stream.pieces && j + 1 < PIECES {
                    let raw = stream.piece(stage * STAGE, j + 1);
                    take(&mut sums, &mut top, raw, piece + 1, E::PIECE);
                }
                j = opaque(j + 2);
            }
            let plane = here.images * u64::from(LANES) + u64::from(lane_id());
            if (here.slice + 1) * PIECES >= stream.pieces && plane < stream.all {
                let value = if AVG { tree8(sums) / image as f32 } else { largest::<E>(top) };
                E::store(y.wrapping_add(plane as usize), value);
            }
            here = stream.after(here);
            stage = opaque(if stage == DEPTH - 1 { 0 } else { stage + 1 });
        }
    }
}

/// Closes the copies that were asked for.
#[inline(always)]
fn commit() {
    #[cfg(level_sm_80)]
    crate::arch::async_copy::commit_group();
}

/// Waits for all copies but the last ones that were closed.
#[inline(always)]
fn came() {
    #[cfg(level_sm_80)]
    crate::arch::async_copy::wait_group::<{ DEPTH - 2 }>();
}

/// The largest element of a piece.
#[inline(always)]
fn largest<E: Float>(raw: X4<u32>) -> f32 {
    let values = E::widen(raw);
    let mut top = values[0];
    let mut i = 1;
    while i < E::PIECE {
        top = maximum(top, values[i]);
        i += 1;
    }
    top
}
