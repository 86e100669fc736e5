//! How elements of `A`, `B` and `C` are read and written, four words of a slice at a time.
//!
//! The float types share their kernels: which one it is costs a uniform branch where a group of four
//! is read, and nothing where it is multiplied.

use contract::num::{RowType, bf16_to_f32, f32_to_bf16, f32_to_f16};

use crate::arch::half::f16_to_f32;
use crate::arch::mem::{ld_if, ld_u8, ld_word_or_half_if, ld_x2_if, ld_x4_if};
use crate::arch::mem::{st, st_u16, st_x2, st_x4};
use crate::arch::warp::Register;
use crate::tile::simt::{Dot4, Fma, Term};

/// The type of the elements of `A` and `B`.
pub(super) trait Source: Copy {
    /// What a sum is made of.
    type Term: Term;
    /// Elements of a word of a slice.
    const PER_WORD: u32;
    /// The factor that, times zero, changes no sum.
    const MINUS_ZERO: Word<Self>;

    /// Bytes of an element.
    fn bytes(self) -> u32;

    /// Four words along a row of memory, from `p` on; the first `count` elements are there. What is
    /// beyond is `pad`. `fast`: all or nothing is there, and `p` is aligned to its size.
    ///
    /// # Safety
    ///
    /// `p` is a global address of `count` readable elements that no thread writes meanwhile.
    unsafe fn along(self, p: *const u8, count: i32, fast: bool, pad: Word<Self>)
    -> [Word<Self>; 4];

    /// Four words side by side, each of `PER_WORD` elements across `rows` rows of memory, `ld` bytes
    /// apart; the first `count` elements of each row are there, zeros beyond. Only where a word has
    /// several elements.
    ///
    /// # Safety
    ///
    /// As for [`Source::along`], for `rows` rows.
    unsafe fn across(self, p: *const u8, ld: u64, rows: i32, count: i32) -> [Word<Self>; 4];
}

/// A word of a slice.
pub(super) type Word<E> = <<E as Source>::Term as Term>::Word;
/// A sum.
pub(super) type Sum<E> = <<E as Source>::Term as Term>::Sum;

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

/// A float type, one of [`RowType`]. `WHOLE`: groups of four are whole and aligned, in every row of
/// memory of `A` and `B`.
#[derive(Clone, Copy)]
pub(super) struct Float<const WHOLE: bool>(pub(super) u32);

impl<const WHOLE: bool> Float<WHOLE> {
    pub(super) const BF16: Self = Self(RowType::Bf16 as u32);
    pub(super) const F16: Self = Self(RowType::F16 as u32);
    const F32: u32 = RowType::F32 as u32;

    #[inline(always)]
    fn widen(self, bits: u16) -> f32 {
        if self.0 == Self::F16.0 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
    }

    #[inline(always)]
    fn narrow(self, value: f32) -> u16 {
        if self.0 == Self::F16.0 { f32_to_f16(value) } else { f32_to_bf16(value) }
    }
}

impl Float<false> {
    /// An element, and the next one where it is `there`.
    ///
    /// # Safety
    ///
    /// A readable global address of them; no other thread writes them.
    #[inline(always)]
    pub(super) unsafe fn load2(self, p: *const u8, there: bool) -> [f32; 2] {
        // SAFETY: the caller's promise.
        let [a, b, ..] = unsafe { self.along(p, if there { 2 } else { 1 }, false, 0.0) };
        [a, b]
    }

    /// Writes an element, and the next one where it is `there`; `fast`: it is, and both are one
    /// aligned piece.
    ///
    /// # Safety
    ///
    /// A writable global address of them; no other thread accesses them.
    #[inline(always)]
    pub(super) unsafe fn store2(self, p: *mut u8, there: bool, fast: bool, v: [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.0 == Self::F32 {
                if fast {
                    return st_x2(p.cast(), v);
                }
                st(p.cast(), v[0]);
                if there {
                    st(p.cast::<f32>().wrapping_add(1), v[1]);
                }
                return;
            }
            let [low, high] = v.map(|value| self.narrow(value));
            if fast {
                return st(p.cast(), u32::from(low) | u32::from(high) << 16);
            }
            st_u16(p.cast(), low);
            if there {
                st_u16(p.cast::<u16>().wrapping_add(1), high);
            }
        }
    }
}

impl<const WHOLE: bool> Source for Float<WHOLE> {
    type Term = Fma;
    const PER_WORD: u32 = 1;
    const MINUS_ZERO: f32 = -0.0;

    #[inline(always)]
    fn bytes(self) -> u32 {
        if self.0 == Self::F32 { 4 } else { 2 }
    }

    #[inline(always)]
    unsafe fn along(self, p: *const u8, count: i32, fast: bool, pad: f32) -> [f32; 4] {
        let mut out = [pad; 4];
        let half = self.0 != Self::F32;
        if !(WHOLE || fast) {
            let mut i = 0;
            while i < 4 {
                let there = (i as i32) < count;
                let p = p.wrapping_add(i * self.bytes() as usize);
                // SAFETY: the caller's promise.
                let bits = unsafe { ld_word_or_half_if(there, half, p) };
                let value = if half { self.widen(bits as u16) } else { f32::from_bits(bits) };
                out[i] = if there { value } else { pad };
                i += 1;
            }
            return out;
        }
        let there = count > 0;
        // SAFETY: the caller's promise.
        let quad = unsafe {
            if half {
                let [a, b]: [u32; 2] = ld_x2_if(there, p.cast());
                [a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16].map(|h| self.widen(h))
            } else {
                ld_x4_if(there, p.cast())
            }
        };
        if there { quad } else { out }
    }

    #[inline(always)]
    unsafe fn across(self, p: *const u8, _: u64, _: i32, count: i32) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { self.along(p, count, false, 0.0) }
    }
}

impl<const WHOLE: bool> Target for Float<WHOLE> {
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

/// i8. `WHOLE`: every row of memory has a length and a place that 16 (along k) or 4 (across)
/// divides, and is read in such pieces; else byte by byte.
#[derive(Clone, Copy)]
pub(super) struct Int8<const WHOLE: bool>;

impl<const WHOLE: bool> Source for Int8<WHOLE> {
    type Term = Dot4;
    const PER_WORD: u32 = 4;
    const MINUS_ZERO: u32 = 0;

    #[inline(always)]
    fn bytes(self) -> u32 {
        1
    }

    #[inline(always)]
    unsafe fn along(self, p: *const u8, count: i32, _: bool, _: u32) -> [u32; 4] {
        let mut words = [0; 4];
        if WHOLE {
            // SAFETY: the caller's promise.
            let quad = unsafe { ld_x4_if(count > 0, p.cast()) };
            return if count > 0 { quad } else { words };
        }
        let mut i = 0;
        while i < 16 {
            let there = (i as i32) < count;
            // SAFETY: the caller's promise.
            words[i / 4] |= unsafe { byte(there, p.wrapping_add(i)) } << (8 * (i % 4));
            i += 1;
        }
        words
    }

    #[inline(always)]
    unsafe fn across(self, p: *const u8, ld: u64, rows: i32, count: i32) -> [u32; 4] {
        let mut lines = [0u32; 4]; // lines[row]: four neighbours of one k
        let mut row = 0;
        while row < 4 {
            let line = p.wrapping_add(row * ld as usize);
            let rest = if (row as i32) < rows { count } else { 0 };
            if WHOLE {
                // SAFETY: the caller's promise.
                lines[row] = unsafe { ld_if(rest > 0, line.cast()) };
            } else {
                let mut i = 0;
                while i < 4 {
                    let there = (i as i32) < rest;
                    // SAFETY: the caller's promise.
                    lines[row] |= unsafe { byte(there, line.wrapping_add(i)) } << (8 * i);
                    i += 1;
                }
            }
            row += 1;
        }
        transpose(lines)
    }
}

/// The byte at `p`, or 0 when `there` does not hold.
///
/// # Safety
///
/// When `there`: a readable global byte.
#[inline(always)]
unsafe fn byte(there: bool, p: *const u8) -> u32 {
    if there {
        // SAFETY: the caller's promise.
        u32::from(unsafe { ld_u8(p) })
    } else {
        0
    }
}

/// A square of four by four bytes: word `i` of the result holds byte `i` of each word.
#[inline(always)]
fn transpose(rows: [u32; 4]) -> [u32; 4] {
    let mut out = [0; 4];
    let mut i = 0;
    while i < 4 {
        let mut j = 0;
        while j < 4 {
            out[i] |= (rows[j] >> (8 * i) & 0xff) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    out
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
