//! What the outputs of a block cover of images with rows innermost, in shared memory: it lies side by side, whatever
//! the length of a row, so that it is read 16 bytes at a time and once.

use contract::pool2d::{Args, BAND_BYTES, THREADS};

use super::windows::outputs;
use crate::arch::mem::{X4, ld_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, sync_threads, thread_idx_x};
use crate::float::Float;

/// Elements of the input, side by side in shared memory.
pub(super) struct Band<E> {
    /// The first, at the start of 16 bytes.
    start: *const E,
}

impl<E: Float> Band<E> {
    /// Elements of 16 bytes.
    const PIECE: usize = E::PIECE;

    /// Elements `first .. end` of the input, unless they are too many.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The elements are there, and nobody writes them; the block has `BAND_BYTES` of shared memory, behind a barrier.
    #[inline(always)]
    pub(super) unsafe fn of(x: *const E, first: usize, end: usize) -> Option<Self> {
        let (from, to) = (x.wrapping_add(first), x.wrapping_add(end));
        let start = (from.addr() & !15) as *const E;
        if to.addr() - start.addr() > BAND_BYTES as usize {
            return None;
        }
        let band = Self { start };
        let mut own = start.wrapping_add(thread_idx_x() as usize * Self::PIECE);
        while own < to {
            let place = |i: usize| own.wrapping_add(i * THREADS as usize * Self::PIECE);
            let mut raw = [[0; 4]; 4];
            let mut i = 0;
            while i < 4 {
                let p = place(i);
                // SAFETY: pieces that lie between the ends; others have some elements of theirs.
                unsafe {
                    if p >= from && p.wrapping_add(Self::PIECE) <= to {
                        raw[i] = ld_x4(p.cast());
                    } else if p < to {
                        raw[i] = part(p, from, to);
                    }
                }
                i += 1;
            }
            let mut i = 0;
            while i < 4 {
                if place(i) < to {
                    // SAFETY: inside the shared memory; this piece is the thread's.
                    unsafe { band.at(place(i)).cast().write_x4(raw[i]) };
                }
                i += 1;
            }
            own = opaque_pointer(place(4));
        }
        sync_threads();
        Some(band)
    }

    /// What the outputs of this block cover, unless that is too much, or channels are innermost.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's; the block has
    /// `BAND_BYTES` of shared memory.
    #[inline(always)]
    pub(super) unsafe fn stage(args: &Args) -> Option<Self> {
        if args.channels_last == 1 {
            return None;
        }
        let (h, w) = (&args.h, &args.w);
        let block = u64::from(block_idx_x()) * u64::from(THREADS);
        let top = outputs(args, block)?;
        let planes = args.images as usize * args.channels as usize;
        let line = |plane: usize, row: i32| {
            let row = row.max(0).min(h.len as i32);
            (plane * h.len as usize + row as usize) * w.len as usize
        };
        let first = line(top.plane, h.at(top.rows.start, 0));
        let end = match outputs(args, block + u64::from(THREADS - 1)) {
            // Windows of an image that is padded behind its end may not begin in it.
            Some(last) => line(last.plane, h.at(last.rows.end - 1, h.kernel - 1) + 1),
            None => line(planes, 0),
        };
        // SAFETY: whole rows of the input.
        unsafe { Self::of(args.x.cast::<E>().as_ptr(), first, end) }
    }

    #[inline(always)]
    fn at(&self, p: *const E) -> Shared<u8> {
        dynamic_shared_mem::<u8>().byte_add((p.addr() - self.start.addr()) as u32)
    }

    /// The bits of the element at `p`, or 0 unless `enabled`.
    ///
    /// # Safety
    ///
    /// When `enabled`: `p` points into the band.
    #[inline(always)]
    pub(super) unsafe fn read(&self, enabled: bool, p: *const E) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::PIECE == 4 {
                self.at(p).cast::<u32>().read_if(enabled)
            } else {
                self.at(p).cast::<u16>().read_u16_if(enabled)
            }
        }
    }
}

/// The elements of a piece at `p` from `from` on and below `to`; zeros for the others.
///
/// # Safety
///
/// Those are there to read.
#[inline(always)]
unsafe fn part<E: Float>(p: *const E, from: *const E, to: *const E) -> X4<u32> {
    let mut words = [0; 4];
    let mut i = 0;
    while i < E::PIECE {
        let own = p.wrapping_add(i);
        // SAFETY: the caller's promise.
        let bits = unsafe { E::load_bits_if(own >= from && own < to, own) };
        words[i * 4 / E::PIECE] |= bits << (i % (E::PIECE / 4) * 16);
        i += 1;
    }
    words
}

/// The same, unknown to LLVM: a loop that ends there stays a loop.
#[inline(always)]
fn opaque_pointer<T>(p: *const T) -> *const T {
    crate::arch::thread::opaque_u64(p.addr() as u64) as *const T
}
