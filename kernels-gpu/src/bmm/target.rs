//! How elements of `C` are read and written, four or eight at a time.

use contract::num::{f32_to_bf16, f32_to_f16};

#[cfg(level_sm_90a)]
use crate::arch::mem::ld_u16;
use crate::arch::mem::{ld_if, st, st_u16, st_x2, st_x4};
use crate::arch::warp::Register;

use super::source::{Float, Source};

/// The type of the elements of `C`.
pub(super) trait Target: Copy {
    /// The sum that it is made from.
    type Sum: Register;

    /// Bytes of an element.
    fn width(self) -> u32;

    /// What is written for `sum`, where `C` holds `c`; `alpha` and `beta` are bits of the sum's type.
    fn finish(alpha: u32, sum: Self::Sum, beta: u32, c: Self::Sum) -> Self::Sum;

    /// Whether `C` is read.
    fn reads(beta: u32) -> bool;

    /// The first `count` of four elements; `fast` as for [`Source::along`].
    ///
    /// # Safety
    ///
    /// `p` is a readable global address of them; no other thread writes them.
    unsafe fn load4(self, p: *const u8, count: i32, fast: bool) -> [Self::Sum; 4];

    /// Writes the first `count` of four, rounded.
    ///
    /// # Safety
    ///
    /// `p` is a writable global address of them; no other thread accesses them.
    unsafe fn store4(self, p: *mut u8, count: i32, fast: bool, values: [Self::Sum; 4]);
}

impl<const SINGLE: bool> Float<SINGLE> {
    #[inline(always)]
    fn narrow(self, value: f32) -> u16 {
        if self.0 == Self::F16.0 { f32_to_f16(value) } else { f32_to_bf16(value) }
    }
}

impl<const SINGLE: bool> Target for Float<SINGLE> {
    type Sum = f32;

    #[inline(always)]
    fn width(self) -> u32 {
        self.bytes()
    }

    #[inline(always)]
    fn finish(alpha: u32, sum: f32, beta: u32, c: f32) -> f32 {
        contract::bmm::finish(f32::from_bits(alpha), sum, f32::from_bits(beta), c)
    }

    #[inline(always)]
    fn reads(beta: u32) -> bool {
        f32::from_bits(beta) != 0.0
    }

    #[inline(always)]
    unsafe fn load4(self, p: *const u8, count: i32, fast: bool) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { Float::<false>(self.0).along(p, count, fast, 0.0) }
    }

    #[inline(always)]
    unsafe fn store4(self, p: *mut u8, count: i32, fast: bool, v: [f32; 4]) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.0 == Self::F32 {
                return store_words(p, count, fast, v);
            }
            let h = v.map(|value| self.narrow(value));
            if fast {
                let pair = |low, high| u32::from(low) | u32::from(high) << 16;
                st_x2(p.cast(), [pair(h[0], h[1]), pair(h[2], h[3])]);
                return;
            }
            let mut i = 0;
            while i < 4 {
                if (i as i32) < count {
                    st_u16(p.cast::<u16>().wrapping_add(i), h[i]);
                }
                i += 1;
            }
        }
    }
}

/// [`Target::store4`] of words.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn store_words<T: Register>(p: *mut u8, count: i32, fast: bool, v: [T; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        if fast {
            return st_x4(p.cast(), v);
        }
        let mut i = 0;
        while i < 4 {
            if (i as i32) < count {
                st(p.cast::<T>().wrapping_add(i), v[i]);
            }
            i += 1;
        }
    }
}

#[cfg(level_sm_90a)]
impl Float<false> {
    /// An element, where the type has 16 bits.
    ///
    /// # Safety
    ///
    /// As for [`Target::load4`].
    #[inline(always)]
    pub(super) unsafe fn load_half(self, p: *const u16) -> f32 {
        // SAFETY: the caller's promise.
        self.widen(unsafe { ld_u16(p) })
    }

    /// Writes it, rounded.
    ///
    /// # Safety
    ///
    /// As for [`Target::store4`].
    #[inline(always)]
    pub(super) unsafe fn store_half(self, p: *mut u16, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { st_u16(p, self.narrow(value)) }
    }
}

/// i32, the sums of [`Int8`].
#[derive(Clone, Copy)]
pub(super) struct Int32;

impl Target for Int32 {
    type Sum = i32;

    #[inline(always)]
    fn width(self) -> u32 {
        4
    }

    #[inline(always)]
    fn finish(alpha: u32, sum: i32, beta: u32, c: i32) -> i32 {
        contract::bmm::finish_i32(alpha as i32, sum, beta as i32, c)
    }

    #[inline(always)]
    fn reads(beta: u32) -> bool {
        beta != 0
    }

    #[inline(always)]
    unsafe fn load4(self, p: *const u8, count: i32, _: bool) -> [i32; 4] {
        let mut out = [0; 4];
        let mut i = 0;
        while i < 4 {
            // SAFETY: the caller's promise.
            out[i] = unsafe { ld_if((i as i32) < count, p.cast::<i32>().wrapping_add(i)) };
            i += 1;
        }
        out
    }

    #[inline(always)]
    unsafe fn store4(self, p: *mut u8, count: i32, fast: bool, v: [i32; 4]) {
        // SAFETY: the caller's promise.
        unsafe { store_words(p, count, fast, v) }
    }
}
