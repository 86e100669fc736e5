//! Element types of dense matrices and caches: how they are read as `f32` and written from it.

use contract::num::{bf16_to_f32, f32_to_bf16};

use crate::arch::half::f16_to_f32;
#[cfg(level_sm_90)]
use crate::arch::mem::ld_x2;
use crate::arch::mem::{
    X4, ld, ld_if, ld_nc_stream_x4_if, ld_nc_x4, ld_u16, ld_u16_if, ld_x2_if, ld_x4_if, st, st_u16,
    st_x2, st_x4,
};

/// A bfloat16, by its bits.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Bf16(u16);

/// A binary16, by its bits.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct F16(u16);

/// An element that widens to `f32` exactly.
pub trait Element: Copy {
    /// Eight elements as they come from memory.
    type Raw8: Copy;

    /// One element.
    ///
    /// # Safety
    ///
    /// `p` is a global address of a readable element that no other thread writes meanwhile.
    unsafe fn load(p: *const Self) -> f32;

    /// Eight weights, read once; any values when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: as for `arch::mem::ld_nc_stream_x4_if`, of all eight, aligned to 16.
    unsafe fn stream8(enabled: bool, p: *const Self) -> Self::Raw8;

    /// Eight weights that this block reads again.
    ///
    /// # Safety
    ///
    /// As for [`Element::stream8`], enabled.
    unsafe fn near8(p: *const Self) -> Self::Raw8;

    /// The values of eight elements.
    fn widen8(raw: Self::Raw8) -> [f32; 8];
}

/// An element that comes in pairs.
#[cfg(level_sm_90)]
pub trait Pairs: Element {
    /// Two elements as they come from memory.
    type Raw2: Copy;
    /// Any two elements.
    const NOTHING: Self::Raw2;
    /// Pairs of a row that a thread has registers for while they are on their way: 1 or 2.
    const AHEAD: usize;
    /// Two elements, asked for where this is called: in front of a wait too.
    ///
    /// # Safety
    ///
    /// As for [`Element::load`], of two, aligned to their size.
    unsafe fn load2(p: *const Self) -> Self::Raw2;

    /// The values of two elements.
    fn widen2(raw: Self::Raw2) -> [f32; 2];
}

#[cfg(level_sm_90)]
macro_rules! pairs {
    ($($name:ident $widen:ident;)*) => { $(
        impl Pairs for $name {
            type Raw2 = u32;
            const NOTHING: u32 = 0;
            const AHEAD: usize = 2;

            #[inline(always)]
            unsafe fn load2(p: *const Self) -> u32 {
                // SAFETY: the caller's promise.
                unsafe { ld(p.cast()) }
            }

            #[inline(always)]
            fn widen2(raw: u32) -> [f32; 2] {
                halves(raw).map($widen)
            }
        }
    )* };
}

#[cfg(level_sm_90)]
pairs! {
    Bf16 bf16_to_f32;
    F16 f16_to_f32;
}

#[cfg(level_sm_90)]
impl Pairs for f32 {
    type Raw2 = [f32; 2];
    const NOTHING: [f32; 2] = [0.0; 2];
    const AHEAD: usize = 1;

    #[inline(always)]
    unsafe fn load2(p: *const Self) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe { ld_x2(p.cast()) }
    }

    #[inline(always)]
    fn widen2(raw: [f32; 2]) -> [f32; 2] {
        raw
    }
}

/// An element of the key and value caches.
pub trait CacheElement: Element {
    /// One element, or 0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: as for [`Element::load`].
    unsafe fn load_if(enabled: bool, p: *const Self) -> f32;

    /// Four elements; any values when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: as for [`Element::load`], of four, aligned to their size.
    unsafe fn load4_if(enabled: bool, p: *const Self) -> [f32; 4];

    /// What is left of a number in the cache: rounds to the nearest, halves to even.
    fn kept(value: f32) -> f32;

    /// Rounds to the nearest, halves to even, and writes.
    ///
    /// # Safety
    ///
    /// `p` is a global address of a writable element that no other thread accesses meanwhile.
    unsafe fn store(p: *mut Self, value: f32);

    /// The same with four neighbours.
    ///
    /// # Safety
    ///
    /// As for [`CacheElement::store`], of all four, aligned to their size.
    unsafe fn store4(p: *mut Self, values: [f32; 4]);
}

/// The two halves of a word, lower address first.
#[inline(always)]
fn halves(word: u32) -> [u16; 2] {
    [word as u16, (word >> 16) as u16]
}

/// The eight 16-bit elements of four words.
#[inline(always)]
fn halves8(raw: X4<u32>, widen: impl Fn(u16) -> f32) -> [f32; 8] {
    let mut out = [0.0; 8];
    let mut i = 0;
    while i < 4 {
        let [low, high] = halves(raw[i]);
        out[2 * i] = widen(low);
        out[2 * i + 1] = widen(high);
        i += 1;
    }
    out
}

impl Element for Bf16 {
    type Raw8 = X4<u32>;

    #[inline(always)]
    unsafe fn load(p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        bf16_to_f32(unsafe { ld_u16(p.cast()) })
    }

    #[inline(always)]
    unsafe fn stream8(enabled: bool, p: *const Self) -> X4<u32> {
        // SAFETY: the caller's promise.
        unsafe { ld_nc_stream_x4_if(enabled, p.cast()) }
    }

    #[inline(always)]
    unsafe fn near8(p: *const Self) -> X4<u32> {
        // SAFETY: the caller's promise.
        unsafe { ld_nc_x4(p.cast()) }
    }

    #[inline(always)]
    fn widen8(raw: X4<u32>) -> [f32; 8] {
        halves8(raw, bf16_to_f32)
    }
}

impl Element for F16 {
    type Raw8 = X4<u32>;

    #[inline(always)]
    unsafe fn load(p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        f16_to_f32(unsafe { ld_u16(p.cast()) })
    }

    #[inline(always)]
    unsafe fn stream8(enabled: bool, p: *const Self) -> X4<u32> {
        // SAFETY: the caller's promise.
        unsafe { ld_nc_stream_x4_if(enabled, p.cast()) }
    }

    #[inline(always)]
    unsafe fn near8(p: *const Self) -> X4<u32> {
        // SAFETY: the caller's promise.
        unsafe { ld_nc_x4(p.cast()) }
    }

    #[inline(always)]
    fn widen8(raw: X4<u32>) -> [f32; 8] {
        halves8(raw, f16_to_f32)
    }
}

impl Element for f32 {
    type Raw8 = [X4<f32>; 2];

    #[inline(always)]
    unsafe fn load(p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { ld(p) }
    }

    #[inline(always)]
    unsafe fn stream8(enabled: bool, p: *const Self) -> [X4<f32>; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                ld_nc_stream_x4_if(enabled, p.cast()),
                ld_nc_stream_x4_if(enabled, p.wrapping_add(4).cast()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn near8(p: *const Self) -> [X4<f32>; 2] {
        // SAFETY: the caller's promise.
        unsafe { [ld_nc_x4(p.cast()), ld_nc_x4(p.wrapping_add(4).cast())] }
    }

    #[inline(always)]
    fn widen8([a, b]: [X4<f32>; 2]) -> [f32; 8] {
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    }
}

impl CacheElement for Bf16 {
    #[inline(always)]
    unsafe fn load_if(enabled: bool, p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        bf16_to_f32(unsafe { ld_u16_if(enabled, p.cast()) })
    }

    #[inline(always)]
    unsafe fn load4_if(enabled: bool, p: *const Self) -> [f32; 4] {
        // SAFETY: the caller's promise.
        let [low, high]: [u32; 2] = unsafe { ld_x2_if(enabled, p.cast()) };
        let ([a, b], [c, d]) = (halves(low), halves(high));
        [bf16_to_f32(a), bf16_to_f32(b), bf16_to_f32(c), bf16_to_f32(d)]
    }

    #[inline(always)]
    fn kept(value: f32) -> f32 {
        bf16_to_f32(f32_to_bf16(value))
    }

    #[inline(always)]
    unsafe fn store(p: *mut Self, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { st_u16(p.cast(), f32_to_bf16(value)) }
    }

    #[inline(always)]
    unsafe fn store4(p: *mut Self, values: [f32; 4]) {
        let [a, b, c, d] = values.map(|value| u32::from(f32_to_bf16(value)));
        // SAFETY: the caller's promise.
        unsafe { st_x2(p.cast(), [a | b << 16, c | d << 16]) }
    }
}

impl CacheElement for f32 {
    #[inline(always)]
    unsafe fn load_if(enabled: bool, p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { ld_if(enabled, p) }
    }

    #[inline(always)]
    unsafe fn load4_if(enabled: bool, p: *const Self) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ld_x4_if(enabled, p.cast()) }
    }

    #[inline(always)]
    fn kept(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    unsafe fn store(p: *mut Self, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { st(p, value) }
    }

    #[inline(always)]
    unsafe fn store4(p: *mut Self, values: [f32; 4]) {
        // SAFETY: the caller's promise.
        unsafe { st_x4(p.cast(), values) }
    }
}
