//! Rows in the registers of a warp, or of some of its lanes, that start anywhere.
//!
//! Lanes have the pieces of 16 bytes that a row lies in. So all partials of a sum are turned by the place where the row begins in its first piece,
//! which the tree over them does not see, as long as pieces are in order. What is not of the row in the first and the last piece is cut out of
//! what is loaded, and not written.

use contract::row::SHORT;

use super::lanes::{At, Lanes, Raw};
use super::turns::holds;
use super::wide;
use crate::float::Float;

/// Most elements of the pieces that a row of `k` elements lies in.
#[inline(always)]
pub(super) fn turned_len<E: Float>(k: u32) -> u32 {
    k + E::PIECE as u32 - 1
}

/// Whether the registers of so many warps hold a row of `k` elements wherever it starts.
#[inline(always)]
pub fn fits_turned<E: Float, const WARPS: u32>(k: u32) -> bool {
    if WARPS > 1 {
        holds::<E, WARPS>() && wide::fits(WARPS, k)
    } else {
        turned_len::<E>(k) <= SHORT
    }
}

impl<const WARPS: u32> Lanes<WARPS> {
    /// Those of rows of `k` elements that start anywhere, of which [`Lanes::turned`] makes those of one.
    #[inline(always)]
    pub fn of_turned<E: Float>(k: u32, lane: u32) -> Self {
        Self::new::<E>(turned_len::<E>(k), lane)
    }

    /// Elements from one place to the next that rows of `k` elements lie from.
    #[inline(always)]
    pub fn boundary<E: Float>(k: u32) -> u32 {
        if WARPS > 1 { wide::boundary(WARPS, k) } else { E::PIECE as u32 }
    }

    /// Those of a row of `k` elements that begins `odd` elements behind such a place.
    #[inline(always)]
    pub fn turned<E: Float>(self, k: u32, odd: u32) -> Self {
        let mut turned = if WARPS > 1 { Self::new::<E>(odd + k, 32) } else { self };
        if WARPS == 1 {
            turned.end = odd + k;
        }
        turned.odd = Some(odd);
        turned
    }

    /// As far as what is loaded of a row whose elements are seen up to `seen` goes, given whether its last piece ends in the tensor.
    #[inline(always)]
    pub fn loaded<E: Float>(&self, seen: u32, whole: bool) -> u32 {
        let piece = if WARPS > 1 { wide::part(WARPS) } else { E::PIECE as u32 };
        if whole { seen } else { seen - seen % piece }
    }

    /// What came of a row, with bits of `nothing` for what is not of it or behind `seen`. Where the last piece was not loaded, because it does not
    /// end in the tensor, its elements are.
    ///
    /// # Safety
    ///
    /// As for [`Lanes::piece`] of `row`, its first piece.
    #[inline(always)]
    pub unsafe fn cut<E: Float>(
        &self,
        row: *const E,
        seen: u32,
        loaded: bool,
        nothing: u32,
        mut raw: Raw,
    ) -> Raw {
        if WARPS > 1 {
            // SAFETY: handed on.
            return unsafe { self.cut_parts(row, seen, loaded, nothing, raw) };
        }
        let odd = self.odd.unwrap_or(0);
        self.each::<E>(|n, at| {
            let first = at.first();
            if (first < odd || first + E::PIECE as u32 > seen) && first < seen {
                if !loaded && first >= odd {
                    // SAFETY: elements of the row.
                    raw[n] = unsafe { E::gather(row.wrapping_add(first as usize), seen - first) };
                }
                let (bits, end) = (128 / E::PIECE as u32, seen - first);
                let mut word = 0;
                while word < 4 {
                    let below = |element: u32| {
                        let bits = (bits * element).saturating_sub(32 * word as u32);
                        if bits < 32 { (1 << bits) - 1 } else { u32::MAX }
                    };
                    let own = below(end) & !below(odd.saturating_sub(first));
                    raw[n][word] = raw[n][word] & own | nothing & !own;
                    word += 1;
                }
            }
        });
        raw
    }

    /// Whether the piece at `at` is all of the row.
    #[inline(always)]
    pub(super) fn inside<E: Float>(&self, at: At) -> bool {
        self.odd.unwrap_or(0) <= at.first() && at.first() + E::PIECE as u32 <= self.end
    }

    /// Writes what is of the row of the piece at `at`, which is at `p`.
    ///
    /// # Safety
    ///
    /// As for [`Lanes::write`].
    #[inline(always)]
    pub(super) unsafe fn write_some<E: Float>(&self, p: *mut E, at: At, raw: [u32; 4]) {
        let mut i = 0;
        while i < E::PIECE {
            let place = at.first() + i as u32;
            if self.odd.unwrap_or(0) <= place && place < self.end {
                let bits = if E::PIECE == 4 { raw[i] } else { raw[i / 2] >> (16 * (i % 2)) };
                // SAFETY: an element of the row.
                unsafe { E::store_bits(p.wrapping_add(i), bits) };
            }
            i += 1;
        }
    }
}
