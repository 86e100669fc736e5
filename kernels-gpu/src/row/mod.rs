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
pub mod tree;
pub mod turned;
mod turns;
#[cfg(level_sm_90)]
pub mod walk;

use contract::launch::DevPtr;

use crate::arch::mem::{X4, ld_or_zero_x4, st_x4};
use crate::float::{Float, Piece};

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
}

impl<const PIECES: bool> Line<PIECES> {
    /// Row `m` of `rows` of `k` elements.
    #[inline(always)]
    pub fn new([m, rows, k]: [u32; 3]) -> Self {
        let start = m as usize * k as usize;
        Self { m, k: if m < rows { k } else { 0 }, start }
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
            if PIECES {
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
        unsafe { if PIECES { st_x4(p.cast(), raw) } else { E::store_bits(p, raw[0]) } }
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
