//! How elements of `A` and `B` are read, four words of a slice at a time.
//!
//! The float types share their kernels: which one it is costs a uniform branch where a group of four
//! is read, and nothing where it is multiplied.

use contract::num::{RowType, bf16_to_f32};

use crate::arch::dot::permute;
use crate::arch::half::f16_to_f32;
use crate::arch::mem::{ld_if, ld_word_or_half_if, ld_x2_if, ld_x4_if};
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

/// A float type, one of [`RowType`]. `SINGLE`: it is f32, which the compiler then knows.
#[derive(Clone, Copy)]
pub(super) struct Float<const SINGLE: bool>(pub(super) u32);

impl<const SINGLE: bool> Float<SINGLE> {
    #[cfg(level_sm_80)]
    pub(super) const BF16: Self = Self(RowType::Bf16 as u32);
    pub(super) const F16: Self = Self(RowType::F16 as u32);
    pub(super) const F32: u32 = RowType::F32 as u32;

    #[inline(always)]
    pub(super) fn widen(self, bits: u16) -> f32 {
        if self.0 == Self::F16.0 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
    }
}

impl<const SINGLE: bool> Source for Float<SINGLE> {
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
        if !fast {
            let mut i = 0;
            while i < 4 {
                let there = (i as i32) < count;
                let p = p.wrapping_add(i * self.bytes() as usize);
                // SAFETY: the caller's promise.
                let value = unsafe {
                    if SINGLE {
                        ld_if(there, p.cast())
                    } else if half {
                        self.widen(ld_word_or_half_if(there, true, p) as u16)
                    } else {
                        f32::from_bits(ld_word_or_half_if(there, false, p))
                    }
                };
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

/// i8. Rows of memory may start anywhere.
#[derive(Clone, Copy)]
pub(super) struct Int8;

impl Source for Int8 {
    type Term = Dot4;
    const PER_WORD: u32 = 4;
    const MINUS_ZERO: u32 = 0;

    #[inline(always)]
    fn bytes(self) -> u32 {
        1
    }

    #[inline(always)]
    unsafe fn along(self, p: *const u8, count: i32, _: bool, _: u32) -> [u32; 4] {
        // SAFETY: the caller's promise.
        unsafe { window::<4, 5>(p, count) }
    }

    #[inline(always)]
    unsafe fn across(self, p: *const u8, ld: u64, rows: i32, count: i32) -> [u32; 4] {
        let mut lines = [0u32; 4]; // lines[row]: four neighbours of one k
        let mut row = 0;
        while row < 4 {
            let line = p.wrapping_add(row * ld as usize);
            let rest = if (row as i32) < rows { count } else { 0 };
            // SAFETY: the caller's promise.
            [lines[row]] = unsafe { window::<1, 2>(line, rest) };
            row += 1;
        }
        transpose(lines)
    }
}

/// `4 * WORDS` bytes from `p` on, wherever that is, of which `count` are there; zeros beyond. They are cut from
/// `MORE = WORDS + 1` aligned words.
///
/// # Safety
///
/// `p` is a global address of `count` readable bytes that no thread writes meanwhile. The words that hold them are read
/// whole: memory is allocated in words.
#[inline(always)]
pub(super) unsafe fn window<const WORDS: usize, const MORE: usize>(
    p: *const u8,
    count: i32,
) -> [u32; WORDS] {
    let count = count.clamp(0, 4 * WORDS as i32);
    let over = p as u64 as u32 % 4;
    let p = p.wrapping_sub(over as usize).cast::<u32>();
    let end = if count > 0 { over as i32 + count } else { 0 };
    let mut words = [0; MORE];
    let mut i = 0;
    while i < MORE {
        // SAFETY: one of its bytes is there.
        words[i] = unsafe { ld_if(4 * (i as i32) < end, p.wrapping_add(i)) };
        i += 1;
    }
    let mut out = [0; WORDS];
    let mut i = 0;
    while i < WORDS {
        let word = permute(words[i], words[i + 1], 0x3210 + 0x1111 * over);
        let bytes = (count - 4 * i as i32).clamp(0, 4);
        out[i] = word & (!0u32).checked_shr(8 * (4 - bytes as u32)).unwrap_or(0);
        i += 1;
    }
    out
}

/// A square of four by four bytes: word `i` of the result holds byte `i` of each word.
#[inline(always)]
pub(super) fn transpose(rows: [u32; 4]) -> [u32; 4] {
    let low = [permute(rows[0], rows[1], 0x5140), permute(rows[2], rows[3], 0x5140)];
    let high = [permute(rows[0], rows[1], 0x7362), permute(rows[2], rows[3], 0x7362)];
    [
        permute(low[0], low[1], 0x5410),
        permute(low[0], low[1], 0x7632),
        permute(high[0], high[1], 0x5410),
        permute(high[0], high[1], 0x7632),
    ]
}
