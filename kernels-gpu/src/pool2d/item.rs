//! Items: so many channels side by side, of a piece of 16 bytes or less, down to one.

use crate::arch::mem::{X4, st, st_x2, st_x4};
use crate::arch::mem_or::{ld_or, ld_or_x2, ld_or_x4};
use crate::float::{Float, Piece};

/// One function for each element of an item of `LEN`.
#[inline(always)]
pub(super) fn map<const LEN: usize>(values: Piece, mut f: impl FnMut(usize, f32) -> f32) -> Piece {
    let mut out = [0.0; 8];
    let mut i = 0;
    while i < LEN {
        out[i] = f(i, values[i]);
        i += 1;
    }
    out
}

/// The sum of each two.
#[cfg(level_sm_80)]
#[inline(always)]
pub(super) fn plus(a: Piece, b: Piece) -> Piece {
    core::array::from_fn(|i| a[i] + b[i])
}

/// The item of `LEN` elements at `p`, words of `nothing` unless `there`.
///
/// # Safety
///
/// When `there`: an item of a tensor that nobody writes meanwhile, aligned to its size.
#[inline(always)]
pub(super) unsafe fn load_item<E: Float, const LEN: usize>(
    there: bool,
    p: *const E,
    nothing: u32,
) -> X4<u32> {
    // SAFETY: the caller's promise.
    unsafe {
        match 16 / E::PIECE * LEN {
            16 => ld_or_x4(there, p.cast(), nothing),
            8 => {
                let [a, b] = ld_or_x2(there, p.cast(), nothing);
                [a, b, nothing, nothing]
            }
            4 => [ld_or(there, p.cast(), nothing), nothing, nothing, nothing],
            _ => {
                let bits = E::load_bits_if(there, p);
                // One element, and nothing above it.
                let other = if there { nothing & 0xffff_0000 } else { nothing };
                [bits | other, nothing, nothing, nothing]
            }
        }
    }
}

/// Writes an item of `LEN` elements.
///
/// # Safety
///
/// The item belongs to this thread, and is aligned to its size.
#[inline(always)]
pub(super) unsafe fn store_item<E: Float, const LEN: usize>(p: *mut E, raw: X4<u32>) {
    // SAFETY: the caller's promise.
    unsafe {
        match 16 / E::PIECE * LEN {
            16 => st_x4(p.cast(), raw),
            8 => st_x2(p.cast(), [raw[0], raw[1]]),
            4 => st(p.cast(), raw[0]),
            _ => E::store_bits(p, raw[0]),
        }
    }
}
