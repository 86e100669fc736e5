//! From global to shared memory, 16 bytes a copy: codes and activations are lines of such pieces.

use crate::arch::async_copy::copy_x16;
use crate::arch::mem::X4;
use crate::arch::shared::Shared;

/// `COUNT` lines of an operand: what a thread copies of each `WIDTH` neighbouring pieces of 16 bytes,
/// one piece of every `THREADS / WIDTH`-th line.
#[derive(Clone, Copy)]
pub(super) struct Lines<const COUNT: u32, const WIDTH: u32, const THREADS: u32> {
    /// This thread's first line, and its piece of each.
    pub(super) line: u32,
    pub(super) piece: u32,
    p: *const X4<u32>,
    /// Pieces from one line of this thread to the next.
    step: u64,
    /// Lines, and pieces of a line, that are there from the thread's first on.
    lines: u32,
    pieces: u32,
}

impl<const COUNT: u32, const WIDTH: u32, const THREADS: u32> Lines<COUNT, WIDTH, THREADS> {
    /// Lines between two of a thread.
    const STRIDE: u32 = THREADS / WIDTH;

    /// Lines of `ld` pieces behind one another at `base`; the block's first is `line0` of `lines`, and
    /// has `pieces` pieces for it. `thread` of `THREADS` asks.
    #[inline(always)]
    pub(super) fn new(
        thread: u32,
        (base, ld): (*const X4<u32>, u32),
        (line0, lines): (u32, u32),
        pieces: u32,
    ) -> Self {
        const { assert!(THREADS.is_multiple_of(WIDTH)) };
        let (line, piece) = (thread / WIDTH, thread % WIDTH);
        let first = u64::from(line0 + line) * u64::from(ld) + u64::from(piece);
        Self {
            line,
            piece,
            p: base.wrapping_add(first as usize),
            step: u64::from(Self::STRIDE) * u64::from(ld),
            lines: lines.saturating_sub(line0 + line),
            pieces: pieces.saturating_sub(piece),
        }
    }

    /// Asks for pieces `first` to `first + WIDTH` of each line. The thread's first goes to `to`, each
    /// next one `pitch` times [`Self::STRIDE`] bytes further. What is not there becomes zeros, which
    /// add nothing to a sum, whatever the other operand has.
    ///
    /// # Safety
    ///
    /// The operand covers what its lines say; the places are this copy's alone.
    #[inline(always)]
    pub(super) unsafe fn copy(&self, first: u32, to: Shared<u8>, pitch: u32) {
        // The swizzles that places follow repeat every eight lines, or every two.
        let p = self.p.wrapping_add(first as usize);
        let inside = first < self.pieces;
        let mut i = 0;
        while i < COUNT.div_ceil(Self::STRIDE) {
            let line = i * Self::STRIDE;
            if COUNT.is_multiple_of(Self::STRIDE) || self.line + line < COUNT {
                let p = p.wrapping_add((u64::from(i) * self.step) as usize);
                // SAFETY: the caller's promise.
                unsafe { copy_x16(to.add(line * pitch), p, inside && line < self.lines) };
            }
            i += 1;
        }
    }
}
