//! The elements of the general float families, one at a time and in pieces of 16 bytes.
//!
//! A piece is [`Float::PIECE`] neighbours: four f32 or eight 16-bit floats. Its values travel in
//! arrays of eight, of which f32 uses the first four; loops up to the constant leave nothing of the rest.
//! Widening is exact; rounding has the bits of `contract::num`, every NaN being the one quiet NaN.

#[cfg(not(level_sm_80))]
use contract::num::f32_to_bf16;

use crate::arch::float::maximum;
use crate::arch::half::pack_f16;
use crate::arch::mem::{X4, ld_if, ld_u16_if, ld_word_or_half_if, st, st_u16};
use crate::element::{Bf16, Element, F16};

/// The values of a piece.
pub type Piece = [f32; 8];

/// An element that is read as `f32` and rounded from it.
pub trait Float: Element {
    /// Elements of 16 bytes.
    const PIECE: usize;

    /// A word of minus infinities.
    const LOWEST: u32;

    /// The bits of a word that are one element.
    const ONE: u32 = if Self::PIECE == 4 { u32::MAX } else { 0xffff };

    /// One element, or 0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: as for [`Element::load`].
    unsafe fn load_if(enabled: bool, p: *const Self) -> f32;

    /// Rounds to the nearest, halves to even, and writes.
    ///
    /// # Safety
    ///
    /// `p` is a global address of a writable element that no other thread accesses meanwhile.
    unsafe fn store(p: *mut Self, value: f32);

    /// The first `len` elements of a piece, one by one; zeros behind them.
    ///
    /// # Safety
    ///
    /// As for [`Element::load`], of `len` elements.
    unsafe fn gather(p: *const Self, len: u32) -> X4<u32>;

    /// Writes the first `len` elements of a piece, one by one.
    ///
    /// # Safety
    ///
    /// As for [`Float::store`], of `len` elements.
    unsafe fn scatter(p: *mut Self, len: u32, raw: X4<u32>);

    /// The bits of an element, or 0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// As for [`Float::load_if`].
    unsafe fn load_bits_if(enabled: bool, p: *const Self) -> u32;

    /// Writes an element, given its bits.
    ///
    /// # Safety
    ///
    /// As for [`Float::store`].
    unsafe fn store_bits(p: *mut Self, bits: u32);

    /// The larger of each two elements, by IEEE 754's `maximum`.
    fn max_raw(a: X4<u32>, b: X4<u32>) -> X4<u32>;

    /// The value once rounded to this element.
    fn rounded(value: f32) -> f32;

    /// The values of a piece.
    fn widen(raw: X4<u32>) -> Piece;

    /// The piece nearest to these values.
    fn narrow(values: Piece) -> X4<u32>;
}

/// The nearest two bf16 in a word, NaN as in `contract::num`.
#[inline(always)]
fn bf16_pair(low: f32, high: f32) -> u32 {
    #[cfg(level_sm_80)]
    return crate::arch::half::pack_bf16(low, high);
    #[cfg(not(level_sm_80))]
    return u32::from(f32_to_bf16(low)) | u32::from(f32_to_bf16(high)) << 16;
}

impl Float for f32 {
    const PIECE: usize = 4;
    const LOWEST: u32 = 0xff80_0000;

    #[inline(always)]
    unsafe fn load_if(enabled: bool, p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { ld_if(enabled, p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut Self, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { st(p, value) }
    }

    #[inline(always)]
    unsafe fn gather(p: *const Self, len: u32) -> X4<u32> {
        // SAFETY: element i < len.
        core::array::from_fn(|i| unsafe { ld_if((i as u32) < len, p.wrapping_add(i).cast()) })
    }

    #[inline(always)]
    unsafe fn scatter(p: *mut Self, len: u32, raw: X4<u32>) {
        let mut i = 0;
        while i < Self::PIECE {
            if (i as u32) < len {
                // SAFETY: element i < len.
                unsafe { st(p.wrapping_add(i).cast(), raw[i]) };
            }
            i += 1;
        }
    }

    #[inline(always)]
    unsafe fn load_bits_if(enabled: bool, p: *const Self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ld_if(enabled, p.cast()) }
    }

    #[inline(always)]
    unsafe fn store_bits(p: *mut Self, bits: u32) {
        // SAFETY: the caller's promise.
        unsafe { st(p.cast(), bits) }
    }

    #[inline(always)]
    fn max_raw(a: X4<u32>, b: X4<u32>) -> X4<u32> {
        core::array::from_fn(|i| maximum(f32::from_bits(a[i]), f32::from_bits(b[i])).to_bits())
    }

    #[inline(always)]
    fn rounded(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn widen(raw: X4<u32>) -> Piece {
        let [a, b, c, d] = raw.map(f32::from_bits);
        [a, b, c, d, 0.0, 0.0, 0.0, 0.0]
    }

    #[inline(always)]
    fn narrow(values: Piece) -> X4<u32> {
        [values[0].to_bits(), values[1].to_bits(), values[2].to_bits(), values[3].to_bits()]
    }
}

macro_rules! sixteen_bits {
    ($element:ty, $lowest:literal, $pair:path, $widen:path, $max:path) => {
        impl Float for $element {
            const PIECE: usize = 8;
            const LOWEST: u32 = $lowest;

            #[inline(always)]
            unsafe fn load_if(enabled: bool, p: *const Self) -> f32 {
                // SAFETY: the caller's promise.
                $widen(unsafe { ld_u16_if(enabled, p.cast()) })
            }

            #[inline(always)]
            unsafe fn store(p: *mut Self, value: f32) {
                // SAFETY: the caller's promise.
                unsafe { st_u16(p.cast(), $pair(value, 0.0) as u16) }
            }

            #[inline(always)]
            unsafe fn gather(p: *const Self, len: u32) -> X4<u32> {
                core::array::from_fn(|word| {
                    let half = |i: usize| {
                        let p = p.wrapping_add(2 * word + i).cast();
                        // SAFETY: element 2 word + i < len.
                        u32::from(unsafe { ld_u16_if(((2 * word + i) as u32) < len, p) })
                    };
                    half(0) | half(1) << 16
                })
            }

            #[inline(always)]
            unsafe fn scatter(p: *mut Self, len: u32, raw: X4<u32>) {
                let mut i = 0;
                while i < Self::PIECE {
                    if (i as u32) < len {
                        let bits = (raw[i / 2] >> (16 * (i % 2))) as u16;
                        // SAFETY: element i < len.
                        unsafe { st_u16(p.wrapping_add(i).cast(), bits) };
                    }
                    i += 1;
                }
            }

            #[inline(always)]
            unsafe fn load_bits_if(enabled: bool, p: *const Self) -> u32 {
                // SAFETY: the caller's promise.
                // Into a word at once: what would widen it later waits for it first.
                unsafe { ld_word_or_half_if(enabled, true, p.cast()) }
            }

            #[inline(always)]
            unsafe fn store_bits(p: *mut Self, bits: u32) {
                // SAFETY: the caller's promise.
                unsafe { st_u16(p.cast(), bits as u16) }
            }

            #[inline(always)]
            fn max_raw(a: X4<u32>, b: X4<u32>) -> X4<u32> {
                #[cfg(level_sm_80)]
                return core::array::from_fn(|i| $max(a[i], b[i]));
                #[cfg(not(level_sm_80))]
                {
                    let (a, b) = (Self::widen(a), Self::widen(b));
                    Self::narrow(core::array::from_fn(|i| maximum(a[i], b[i])))
                }
            }

            #[inline(always)]
            fn rounded(value: f32) -> f32 {
                $widen($pair(value, 0.0) as u16)
            }

            #[inline(always)]
            fn widen(raw: X4<u32>) -> Piece {
                <Self as Element>::widen8(raw)
            }

            #[inline(always)]
            fn narrow(values: Piece) -> X4<u32> {
                core::array::from_fn(|word| $pair(values[2 * word], values[2 * word + 1]))
            }
        }
    };
}

sixteen_bits!(
    F16,
    0xfc00_fc00,
    pack_f16,
    crate::arch::half::f16_to_f32,
    crate::arch::half::max_f16
);
sixteen_bits!(
    Bf16,
    0xff80_ff80,
    bf16_pair,
    contract::num::bf16_to_f32,
    crate::arch::half::max_bf16
);

/// Sixteen bytes of two pieces, from one of the first one on.
#[inline(always)]
pub fn window(a: X4<u32>, b: X4<u32>, from: u32) -> X4<u32> {
    let mut w = [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]];
    let mut words = 2;
    while words > 0 {
        let mut i = 0;
        while i + words < 8 {
            w[i] = if from / 4 & words as u32 != 0 { w[i + words] } else { w[i] };
            i += 1;
        }
        words /= 2;
    }
    let bits = 8 * (from % 4);
    core::array::from_fn(|i| ((u64::from(w[i + 1]) << 32 | u64::from(w[i])) >> bits) as u32)
}
