//! Device side of [`contract::conv2d`].

mod epilogue;
pub mod exact;
mod exact_gather;
mod exact_product;
#[cfg(level_sm_80)]
mod gather;
#[cfg(level_sm_80)]
mod half16;
#[cfg(level_sm_90a)]
pub mod hopper;
pub mod int8;
mod int8_finish;
mod int8_value;
#[cfg(level_sm_80)]
pub mod int8_mma;
mod int8_weights;
pub mod join;
#[cfg(level_sm_90a)]
pub(crate) mod bulk_lines;
#[cfg(level_sm_90a)]
pub mod lines;
#[cfg(level_sm_90a)]
mod lines_tables;
#[cfg(level_sm_80)]
pub mod mma;
pub mod planes;
#[cfg(level_sm_90a)]
pub mod points;
#[cfg(level_sm_90a)]
pub mod points_whole;
#[cfg(level_sm_80)]
pub mod runs;
#[cfg(level_sm_90a)]
pub mod strips;
pub mod taps;
pub mod taps3;
mod taps3_queue;
#[cfg(level_sm_80)]
pub mod tiles;
#[cfg(level_sm_90a)]
mod ternary_finish;
#[cfg(level_sm_80)]
pub mod turn;
mod value;
#[cfg(level_sm_90a)]
pub mod whole;
#[cfg(level_sm_90a)]
mod whole_finish;

use contract::conv2d::Geometry;

use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_or_zero_x4, ld_u8_if};

/// 16 terms of one output pixel whose corner is (`h`, `w`), from `term` on, as bytes of four words:
/// zeros in the padding and past the last term.
///
/// # Safety
///
/// `image` is an image of the contract's table at channel 0 of the group; `vectors` tells the truth.
#[inline(always)]
unsafe fn tap_words(
    g: &Geometry,
    vectors: u32,
    image: *const u8,
    (h, w): (i32, i32),
    term: u32,
) -> [u32; 4] {
    if vectors != 0 {
        let (r, s, c) = g.tap(term);
        let pixel = if term < g.terms { g.pixel(h, w, r, s) } else { None };
        let at = image.wrapping_add((pixel.unwrap_or(0) + c) as usize);
        // SAFETY: 16 channels of one pixel, side by side and aligned.
        return unsafe { ld_or_zero_x4(pixel.is_some(), at.cast()) };
    }
    let mut words = [0u32; 4];
    // Counts that the compiler does not know: one copy of the body.
    let (count, mut e) = (opaque_here(16), 0);
    while e < count {
        let (r, s, c) = g.tap(term + e);
        let inside = term + e < g.terms && c < g.c;
        let pixel = if inside { g.pixel(h, w, r, s) } else { None };
        let offset = pixel.unwrap_or(0).wrapping_add(c.wrapping_mul(g.x_step[2]));
        // SAFETY: channel c of a pixel of the image.
        let byte = unsafe { ld_u8_if(pixel.is_some(), image.wrapping_add(offset as usize)) };
        let bits = u32::from(byte) << (e % 4 * 8);
        let mut i = 0;
        while i < 4 {
            words[i as usize] |= if e / 4 == i { bits } else { 0 };
            i += 1;
        }
        e += 1;
    }
    words
}
