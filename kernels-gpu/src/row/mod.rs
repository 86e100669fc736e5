//! Rows over threads, as [`contract::row`] states it.
//!
//! A row goes in items: pieces of 16 bytes where every row of every tensor starts on such a boundary (`PIECES`), else
//! single elements. [`Line`] reads and writes one. [`lanes::Lanes`] has a row in the registers of 2 to 32 lanes;
//! [`block::Block`] has one in the shared memory of a block.

pub mod block;
#[cfg(level_sm_90)]
pub mod exchange;
pub mod lanes;
#[cfg(level_sm_90)]
mod post;
pub mod segment;
#[cfg(level_sm_80)]
pub mod small;
pub mod tree;
pub mod turned;
mod turns;
#[cfg(level_sm_90)]
pub mod walk;
mod wide;

use contract::launch::DevPtr;

use crate::arch::mem::{X4, ld_or_zero_x4, st, st_x4};
use crate::arch::shared::Shared;
use crate::float::{Float, Piece};

/// The bits of an element in shared memory.
///
/// # Safety
///
/// Nobody writes it meanwhile.
#[inline(always)]
pub unsafe fn take<E: Float>(at: Shared<u32>) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { if E::PIECE == 4 { at.read() } else { at.cast::<u16>().read_u16().into() } }
}

/// Puts an element down there, given its bits.
///
/// # Safety
///
/// Nobody else uses it meanwhile.
#[inline(always)]
pub unsafe fn put<E: Float>(at: Shared<u32>, bits: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        if E::PIECE == 4 {
            at.write(bits);
        } else {
            at.cast::<u16>().write_u16(bits as u16);
        }
    }
}

/// Whether rows of `k` elements of these tensors start on boundaries of 16 bytes; null where there is no tensor.
#[inline(always)]
pub fn in_pieces<E: Float>(k: u32, tensors: &[DevPtr<u8>]) -> bool {
    let mut bits = k * (16 / E::PIECE as u32);
    let mut i = 0;
    while i < tensors.len() {
        bits |= tensors[i].addr() as u32;
        i += 1;
    }
    bits.is_multiple_of(16)
}

/// Elements of an item.
#[inline(always)]
pub const fn width<E: Float, const PIECES: bool>() -> usize {
    if PIECES { E::PIECE } else { 1 }
}

/// A row.
#[derive(Clone, Copy)]
pub struct Line<const PIECES: bool> {
    /// Which one.
    pub m: u32,
    /// Elements; 0 where there is no such row.
    pub k: u32,
    /// Elements of its tensor in front of it.
    pub start: usize,
    /// Elements in front of the row in its first piece, if it may start anywhere ([`turned`]): `start` is where that piece starts then, and `k` counts
    /// them too.
    pub odd: Option<u32>,
    /// Whether its last piece ends in the tensor.
    pub whole: bool,
}

impl<const PIECES: bool> Line<PIECES> {
    /// Row `m` of `rows` of `k` elements.
    #[inline(always)]
    pub fn new([m, rows, k]: [u32; 3]) -> Self {
        let start = m as usize * k as usize;
        Self { m, k: if m < rows { k } else { 0 }, start, odd: None, whole: true }
    }

    /// The same one of so many `rows`, which may start anywhere, from the last place on that is a multiple of `boundary`.
    #[inline(always)]
    pub fn turned(self, boundary: u32, rows: u32) -> Self {
        let odd = self.start as u32 % boundary;
        let k = if self.k == 0 { 0 } else { self.k + odd };
        let start = self.start - odd as usize;
        Self { m: self.m, k, start, odd: Some(odd), whole: self.m + 1 < rows }
    }

    /// Whether the item from element `first` on is all of the row.
    #[inline(always)]
    pub fn inside<E: Float>(&self, first: u32) -> bool {
        self.odd.is_none_or(|odd| odd <= first && first + width::<E, PIECES>() as u32 <= self.k)
    }

    /// Whether element `i` is one of the row, given that it is not behind its end.
    #[inline(always)]
    pub fn begun(&self, i: u32) -> bool {
        self.odd.is_none_or(|odd| odd <= i)
    }

    /// The item from element `first` on, zeros unless `there`.
    ///
    /// # Safety
    ///
    /// When `there`: `row` is the start of a row of a tensor, `first` a multiple of the width and below `k`; nobody writes the
    /// item meanwhile.
    #[inline(always)]
    pub unsafe fn load<E: Float>(&self, there: bool, row: *const E, first: u32) -> X4<u32> {
        let p = row.wrapping_add(first as usize);
        // SAFETY: an item of the row.
        unsafe {
            if PIECES && self.odd.is_some() && !self.whole && first + E::PIECE as u32 > self.k {
                E::gather(p, if there { self.k - first } else { 0 })
            } else if PIECES {
                ld_or_zero_x4(there, p.cast())
            } else {
                [E::load_bits_if(there, p), 0, 0, 0]
            }
        }
    }

    /// Writes the item from element `first` on.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`], and the item belongs to this thread.
    #[inline(always)]
    pub unsafe fn store<E: Float>(&self, row: *mut E, first: u32, raw: X4<u32>) {
        let p = row.wrapping_add(first as usize);
        // SAFETY: an item of the row.
        unsafe {
            if PIECES && self.inside::<E>(first) {
                st_x4(p.cast(), raw);
            } else if !PIECES {
                E::store_bits(p, raw[0]);
            } else {
                let mut i = 0;
                while i < E::PIECE {
                    if self.begun(first + i as u32) && first + (i as u32) < self.k {
                        let bits =
                            if E::PIECE == 4 { raw[i] } else { raw[i / 2] >> (16 * (i % 2)) };
                        E::store_bits(p.wrapping_add(i), bits);
                    }
                    i += 1;
                }
            }
        }
    }

    /// What is of the row of the piece from element `first` on, zeros beside it.
    #[inline(always)]
    pub fn own<E: Float>(&self, first: u32, raw: X4<u32>) -> X4<u32> {
        core::array::from_fn(|word| {
            let mut own = 0;
            let mut i = 0;
            while i < E::PIECE as u32 / 4 {
                let place = first + E::PIECE as u32 / 4 * word as u32 + i;
                if self.begun(place) && place < self.k {
                    own |= E::ONE << (16 * i);
                }
                i += 1;
            }
            raw[word] & own
        })
    }

    /// The elements that stand beside those of a word of the row, at `first`, of a tensor that has one for each, from `p` on.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`], of `p`.
    #[inline(always)]
    pub unsafe fn word_beside<E: Float>(&self, p: *const E, first: u32) -> X4<u32> {
        let odd = self.odd.unwrap_or(0);
        let one = |at: u32| {
            let there = odd <= at && at < self.k;
            // SAFETY: an element of it.
            unsafe { E::load_bits_if(there, p.wrapping_add(at.wrapping_sub(odd) as usize)) }
        };
        [if E::PIECE == 4 { one(first) } else { one(first) | one(first + 1) << 16 }, 0, 0, 0]
    }

    /// Writes what is of the row of its word at `first`.
    ///
    /// # Safety
    ///
    /// As for [`Line::store`].
    #[inline(always)]
    pub unsafe fn store_word<E: Float>(&self, row: *mut E, first: u32, word: u32) {
        let p = row.wrapping_add(first as usize);
        let own = |at: u32| self.begun(at) && at < self.k;
        // SAFETY: elements of the row.
        unsafe {
            if E::PIECE == 4 {
                if own(first) {
                    st(p.cast(), word);
                }
            } else if own(first) && own(first + 1) {
                st(p.cast(), word);
            } else if own(first) {
                E::store_bits(p, word);
            } else if own(first + 1) {
                E::store_bits(p.wrapping_add(1), word >> 16);
            }
        }
    }

    /// The item of a tensor that has one element, from `p` on, for each of the row: that beside the row's from `first` on.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`], of `p`.
    #[inline(always)]
    pub unsafe fn beside<E: Float>(&self, there: bool, p: *const E, first: u32) -> X4<u32> {
        let Some(odd) = self.odd else {
            // SAFETY: handed on.
            return unsafe { self.load(there, p, first) };
        };
        let one = |i: usize| {
            let at = first + i as u32;
            let there = there && odd <= at && at < self.k;
            // SAFETY: an element of it.
            unsafe { E::load_bits_if(there, p.wrapping_add(at.wrapping_sub(odd) as usize)) }
        };
        core::array::from_fn(|i| match width::<E, PIECES>() {
            8 => one(2 * i) | one(2 * i + 1) << 16,
            4 => one(i),
            _ if i == 0 => one(0),
            _ => 0,
        })
    }
}

/// One function for each element of an item.
#[inline(always)]
pub fn map<E: Float, const PIECES: bool>(
    values: Piece,
    mut f: impl FnMut(usize, f32) -> f32,
) -> Piece {
    let mut out = [0.0; 8];
    let mut i = 0;
    while i < width::<E, PIECES>() {
        out[i] = f(i, values[i]);
        i += 1;
    }
    out
}
