//! Gathers taps for the tensor-core kernels: 16-byte pieces, from global to shared memory.
//!
//! A tile row is an output pixel, its columns are terms. A row of a step is 128 bytes, eight pieces,
//! and piece `p` of row `r` stands at piece `p ^ (r % 8)`, so that eight rows of one piece touch
//! every bank once. Neighbouring taps read mostly the same pixels, so pieces of images stay in L1.

use contract::conv2d::Geometry;

use crate::arch::async_copy::{copy_x16, copy_x16_l1};
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_u8_if, ld_u16_if};
use crate::arch::shared::Shared;

/// Bytes of a row of a step.
pub(super) const ROW_BYTES: u32 = 128;

/// What an image holds.
pub(super) trait Unit: Copy {
    /// Bits.
    const BITS: u32;

    /// One unit, 0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: `p` is a global address of a readable unit that no other thread writes
    /// meanwhile.
    unsafe fn load(enabled: bool, p: *const Self) -> u32;
}

impl Unit for u16 {
    const BITS: u32 = 16;

    #[inline(always)]
    unsafe fn load(enabled: bool, p: *const Self) -> u32 {
        // SAFETY: the caller's promise.
        u32::from(unsafe { ld_u16_if(enabled, p) })
    }
}

impl Unit for u8 {
    const BITS: u32 = 8;

    #[inline(always)]
    unsafe fn load(enabled: bool, p: *const Self) -> u32 {
        // SAFETY: the caller's promise.
        u32::from(unsafe { ld_u8_if(enabled, p) })
    }
}

/// Byte offset of a piece of a row.
#[inline(always)]
pub(super) const fn swizzled(row: u32, piece: u32) -> u32 {
    row * ROW_BYTES + (piece ^ (row % 8)) * 16
}

/// Rows `first`, `first + apart`, ... of a tile, as one thread gathers them: a piece of each, step
/// by step.
pub(super) struct Rows<T, const N: usize> {
    /// Its image, at channel 0 of the group.
    image: [*const T; N],
    /// Where tap (0, 0) would stand in it, modulo 2^32.
    corner: [u32; N],
    h: [i32; N],
    w: [i32; N],
    /// Bit `i`: the tap of the step has a pixel in row `i`.
    inside: u32,
    /// Row and column of the step's tap in the window, and its channel.
    r: u32,
    s: u32,
    c: u32,
}

impl<T: Unit, const N: usize> Rows<T, N> {
    /// The rows from output pixel `pixel` on, of one group, before the step that starts at `term`.
    /// Pixels past the last one read the last.
    #[inline(always)]
    pub(super) fn new(
        g: &Geometry,
        x: *const T,
        group: u32,
        (pixel, apart): (u32, u32),
        term: u32,
    ) -> Self {
        let (r, s, c) = g.tap(term);
        let mut rows =
            Self { image: [x; N], corner: [0; N], h: [0; N], w: [0; N], inside: 0, r, s, c };
        let mut i = 0;
        while i < N {
            let (image, h, w) = g.corner((pixel + i as u32 * apart).min(g.pixels - 1));
            let at = u64::from(image) * g.x_image + u64::from(group * g.c * g.x_step[2]);
            rows.image[i] = x.wrapping_add(at as usize);
            rows.corner[i] = within(g, h, w);
            (rows.h[i], rows.w[i]) = (h, w);
            i += 1;
        }
        rows.look(g);
        rows
    }

    /// Works out which rows have a pixel under the step's tap, where padding is zeros.
    #[inline(always)]
    fn look(&mut self, g: &Geometry) {
        let (down, right) = (self.r as i32 * g.dilation[0], self.s as i32 * g.dilation[1]);
        // Past the last term: no pixel.
        let there = self.r * g.s + self.s < g.taps;
        self.inside = 0;
        let mut i = 0;
        while i < N {
            let h = ((self.h[i] + down) as u32) < g.edges[0].len as u32;
            let w = ((self.w[i] + right) as u32) < g.edges[1].len as u32;
            self.inside |= u32::from(h & w & there) << i;
            i += 1;
        }
    }

    /// Starts the copies of a piece of each row to `to + i * apart` bytes, zeros in the padding and
    /// past the last term, and goes `step` terms on. The channels of a piece stand side by side,
    /// aligned; padding is zeros.
    ///
    /// # Safety
    ///
    /// The rows are images of the contract's table; the destinations are 16 bytes of shared memory
    /// that nobody else accesses until the copies are waited for.
    #[inline(always)]
    pub(super) unsafe fn copy(&mut self, g: &Geometry, step: u32, to: Shared<u8>, apart: u32) {
        let tap = within(g, self.r as i32 * g.dilation[0], self.s as i32 * g.dilation[1]);
        let tap = tap.wrapping_add(self.c);
        let mut i = 0;
        while i < N {
            let from = self.image[i].wrapping_add(self.corner[i].wrapping_add(tap) as usize);
            // SAFETY: the channels of one pixel of the image; the caller's promise.
            unsafe { copy_x16_l1(to.add(i as u32 * apart), from, self.inside >> i & 1 != 0) };
            i += 1;
        }
        self.c += step;
        if self.c >= g.c {
            while self.c >= g.c {
                self.c -= g.c;
                self.s += 1;
                if self.s == g.s {
                    (self.r, self.s) = (self.r + 1, 0);
                }
            }
            self.look(g);
        }
    }

    /// The terms from `term` on, for channels anywhere and any padding: an element at a time, done when
    /// it returns.
    ///
    /// # Safety
    ///
    /// As for [`Rows::copy`].
    #[inline(always)]
    pub(super) unsafe fn copy_each(&self, g: &Geometry, term: u32, to: Shared<u8>, apart: u32) {
        // A count that the compiler does not know: the loop stays one.
        let words = opaque_here(4);
        let each = 32 / T::BITS;
        let mut word = 0;
        while word < words {
            let mut gathered = [0u32; N];
            let mut e = 0;
            while e < each {
                let term = term + each * word + e;
                let (r, s, c) = g.tap(term);
                let mut i = 0;
                while i < N {
                    // Integer taps are padded with channels that no image has.
                    let inside = term < g.terms && c < g.c;
                    let pixel = if inside { g.pixel(self.h[i], self.w[i], r, s) } else { None };
                    let at = pixel.unwrap_or(0).wrapping_add(c.wrapping_mul(g.x_step[2]));
                    let at = self.image[i].wrapping_add(at as usize);
                    // SAFETY: channel c of a pixel of the image.
                    gathered[i] |= unsafe { T::load(pixel.is_some(), at) } << (T::BITS * e);
                    i += 1;
                }
                e += 1;
            }
            let mut i = 0;
            while i < N {
                // SAFETY: the caller's promise.
                unsafe { to.add(i as u32 * apart + 4 * word).cast::<u32>().write(gathered[i]) };
                i += 1;
            }
            word += 1;
        }
    }
}

/// Elements from the first pixel of an image to row `h`, column `w`, modulo 2^32: a sum of such
/// distances is right where it ends at a pixel, because images have fewer than 2^31 elements.
#[inline(always)]
fn within(g: &Geometry, h: i32, w: i32) -> u32 {
    (h as u32).wrapping_mul(g.x_step[0]).wrapping_add((w as u32).wrapping_mul(g.x_step[1]))
}

/// Starts the copies of weight rows `row`, `row + apart`, ... (`N` of them), eight channels from
/// `w` on; zeros past the last packed row, or column when `in_matrix` does not hold. Piece `piece`
/// of row `r` goes to piece `piece ^ (r % 8)` of its `pitch` bytes.
///
/// # Safety
///
/// `w` is those channels of row 0 of a packed matrix; `to` starts the step in shared memory, which
/// nobody accesses until the copies are waited for.
#[inline(always)]
pub(super) unsafe fn copy_weights<const N: usize>(
    (w, in_matrix): (*const u16, bool),
    (rows, columns): (u32, u32),
    (term, row, apart): (u32, u32, u32),
    to: Shared<u8>,
    (piece, pitch): (u32, u32),
) {
    let mut i = 0;
    while i < N {
        let r = row + i as u32 * apart;
        let from = w.wrapping_add((term + r) as usize * columns as usize);
        let at = to.add(r * pitch + (piece ^ (r % 8)) * 16);
        // SAFETY: inside the packed matrix when enabled; the caller's promise.
        unsafe { copy_x16(at, from, in_matrix && term + r < rows) };
        i += 1;
    }
}

/// Keeps the compiler from specialising code on whether channels stand side by side.
#[inline(always)]
pub(super) fn together(vectors: u32) -> bool {
    opaque_here(vectors) != 0
}
