//! Loads and stores of global memory with their width and cache policy.
//!
//! | form             | for                                                        |
//! |------------------|------------------------------------------------------------|
//! | `ld_nc_stream*`  | weights: read once by the whole grid, no place in L1       |
//! | `ld_nc*`         | constants of the run (norm weights, tables): kept in L1    |
//! | `ld*`, `st*`     | what another kernel wrote before, or will read after       |
//! | `ld_acquire` ... | words that other blocks change while this kernel runs      |
//!
//! The `nc` (non-coherent) forms are for memory that no running kernel writes, the kernel before
//! this one included when they overlap (see [`super::grid`]).
//!
//! Reads promise the compiler that the same address gives the same value until something writes
//! memory or waits, so they may be merged and moved between such points.

#[cfg(level_sm_80)]
pub use super::stream::{ld_or_zero_stream_x4, ld_stream_x2_if, ld_stream_x4_if};
use core::arch::asm;

use super::warp::Register;

/// Four words side by side, aligned to 16 bytes.
pub type X4<T> = [T; 4];

macro_rules! load_x4 {
    ($p:expr, $ptx:literal) => {{
        let (a, b, c, d): (i32, i32, i32, i32);
        asm!(
            concat!($ptx, " {{{a}, {b}, {c}, {d}}}, [{p}];"),
            a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
            p = in(reg64) $p,
            options(pure, readonly, nostack),
        );
        [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
    }};
}

/// A masked load of four words: `@on` before the instruction keeps a step free of branches.
macro_rules! load_x4_if {
    ($enabled:expr, $p:expr, $init:literal, $ptx:literal) => {{
        let (a, b, c, d): (i32, i32, i32, i32);
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            $init,
            concat!("@on ", $ptx, " {{{a}, {b}, {c}, {d}}}, [{p}];"),
            "}}",
            a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
            enabled = in(reg32) u32::from($enabled), p = in(reg64) $p,
            options(pure, readonly, nostack),
        );
        [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
    }};
}

/// The same of two words.
macro_rules! load_x2_if {
    ($enabled:expr, $p:expr, $init:literal, $ptx:literal) => {{
        let (a, b): (i32, i32);
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            $init,
            concat!("@on ", $ptx, " {{{a}, {b}}}, [{p}];"),
            "}}",
            a = out(reg32) a, b = out(reg32) b,
            enabled = in(reg32) u32::from($enabled), p = in(reg64) $p,
            options(pure, readonly, nostack),
        );
        [T::from_word(a), T::from_word(b)]
    }};
}

macro_rules! load_if {
    ($enabled:expr, $p:expr, $ptx:literal) => {{
        let word: i32;
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "mov.b32 {word}, 0;",
            concat!("@on ", $ptx, " {word}, [{p}];"),
            "}}",
            word = out(reg32) word,
            enabled = in(reg32) u32::from($enabled), p = in(reg64) $p,
            options(pure, readonly, nostack),
        );
        T::from_word(word)
    }};
}

macro_rules! load_u8_if {
    ($enabled:expr, $p:expr, $ptx:literal) => {{
        let byte: u32;
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "mov.b32 {byte}, 0;",
            concat!("@on ", $ptx, " {byte}, [{p}];"),
            "}}",
            byte = out(reg32) byte,
            enabled = in(reg32) u32::from($enabled), p = in(reg64) $p,
            options(pure, readonly, nostack),
        );
        byte
    }};
}

macro_rules! load {
    ($p:expr, $ptx:literal) => {{
        let word: i32;
        asm!(
            concat!($ptx, " {word}, [{p}];"),
            word = out(reg32) word, p = in(reg64) $p,
            options(pure, readonly, nostack),
        );
        T::from_word(word)
    }};
}

/// Sixteen bytes that nobody will read again soon, or zeros when `enabled` does not hold.
/// `@enabled ld.global.nc.L1::no_allocate.v4.b32` (sm_80; `ld.global.nc.v4.b32` below)
///
/// The predicate is inside, so that a masked load costs no branch and the loads of a step stay
/// together.
///
/// # Safety
///
/// When `enabled`: `p` is a global address aligned to 16 of 16 readable bytes that nobody writes
/// while this kernel, or the one before it, runs.
#[inline(always)]
pub unsafe fn ld_nc_stream_x4_if<T: Register>(enabled: bool, p: *const X4<T>) -> X4<T> {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        #[cfg(level_sm_80)]
        return load_x4_if!(
            enabled,
            p,
            "mov.b32 {a}, 0; mov.b32 {b}, 0; mov.b32 {c}, 0; mov.b32 {d}, 0;",
            "ld.global.nc.L1::no_allocate.v4.b32"
        );
        #[cfg(not(level_sm_80))]
        return load_x4_if!(
            enabled,
            p,
            "mov.b32 {a}, 0; mov.b32 {b}, 0; mov.b32 {c}, 0; mov.b32 {d}, 0;",
            "ld.global.nc.v4.b32"
        );
    }
}

/// Sixteen bytes of a constant of the run. `ld.global.nc.v4.b32`
///
/// # Safety
///
/// `p` is a global address aligned to 16 of 16 readable bytes that nobody writes while this
/// kernel, or the one before it, runs.
#[inline(always)]
pub unsafe fn ld_nc_x4<T: Register>(p: *const X4<T>) -> X4<T> {
    // SAFETY: the caller's promise.
    unsafe { load_x4!(p, "ld.global.nc.v4.b32") }
}

/// A word of a constant of the run. `ld.global.nc.b32`
///
/// # Safety
///
/// As for [`ld_nc_x4`], of 4 bytes.
#[inline(always)]
pub unsafe fn ld_nc<T: Register>(p: *const T) -> T {
    // SAFETY: the caller's promise.
    unsafe { load!(p, "ld.global.nc.b32") }
}

/// Sixteen bytes. `ld.global.v4.b32`
///
/// # Safety
///
/// `p` is a global address aligned to 16 of 16 readable bytes that no other thread writes
/// meanwhile.
#[inline(always)]
pub unsafe fn ld_x4<T: Register>(p: *const X4<T>) -> X4<T> {
    // SAFETY: the caller's promise.
    unsafe { load_x4!(p, "ld.global.v4.b32") }
}

/// Sixteen bytes, or unspecified values when `enabled` does not hold.
/// `@enabled ld.global.v4.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld_x4`].
#[inline(always)]
pub unsafe fn ld_x4_if<T: Register>(enabled: bool, p: *const X4<T>) -> X4<T> {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe { load_x4_if!(enabled, p, "", "ld.global.v4.b32") }
}

/// Sixteen bytes, or zeros when `enabled` does not hold. `@enabled ld.global.v4.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld_x4`].
#[inline(always)]
pub unsafe fn ld_or_zero_x4<T: Register>(enabled: bool, p: *const X4<T>) -> X4<T> {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        load_x4_if!(
            enabled,
            p,
            "mov.b32 {a}, 0; mov.b32 {b}, 0; mov.b32 {c}, 0; mov.b32 {d}, 0;",
            "ld.global.v4.b32"
        )
    }
}

/// Eight bytes, or zeros when `enabled` does not hold. `@enabled ld.global.v2.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld_x2`].
#[inline(always)]
pub unsafe fn ld_or_zero_x2<T: Register>(enabled: bool, p: *const [T; 2]) -> [T; 2] {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe { load_x2_if!(enabled, p, "mov.b32 {a}, 0; mov.b32 {b}, 0;", "ld.global.v2.b32") }
}

/// A word, or 0 when `enabled` does not hold. `@enabled ld.global.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld`].
#[inline(always)]
pub unsafe fn ld_if<T: Register>(enabled: bool, p: *const T) -> T {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe { load_if!(enabled, p, "ld.global.b32") }
}

/// A word of a constant of the run, or 0 when `enabled` does not hold.
/// `@enabled ld.global.nc.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld_nc`].
#[inline(always)]
pub unsafe fn ld_nc_if<T: Register>(enabled: bool, p: *const T) -> T {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe { load_if!(enabled, p, "ld.global.nc.b32") }
}

/// Two bytes, or 0 when `enabled` does not hold. `@enabled ld.global.b16`
///
/// # Safety
///
/// When `enabled`: as for [`ld_u16`].
#[inline(always)]
pub unsafe fn ld_u16_if(enabled: bool, p: *const u16) -> u16 {
    let bits: u16;
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "mov.b16 {bits}, 0;",
            "@on ld.global.b16 {bits}, [{p}];",
            "}}",
            bits = out(reg16) bits, enabled = in(reg32) u32::from(enabled), p = in(reg64) p,
            options(pure, readonly, nostack),
        );
    }
    bits
}

/// A word, or two bytes in its low half where `half` holds, or 0 when `enabled` does not.
/// `@enabled ld.global.b32`, `@enabled ld.global.u16`
///
/// # Safety
///
/// When `enabled`: as for [`ld`], or [`ld_u16`].
#[inline(always)]
pub unsafe fn ld_word_or_half_if(enabled: bool, half: bool, p: *const u8) -> u32 {
    let bits: u32;
    let (word, half) = (enabled && !half, enabled && half);
    // SAFETY: the caller's promise; neither load is executed unless `enabled`.
    unsafe {
        asm!(
            "{{",
            ".reg .pred w, h;",
            "setp.ne.u32 w, {word}, 0; setp.ne.u32 h, {half}, 0;",
            "mov.b32 {bits}, 0;",
            "@w ld.global.b32 {bits}, [{p}];",
            "@h ld.global.u16 {bits}, [{p}];",
            "}}",
            bits = out(reg32) bits, p = in(reg64) p,
            word = in(reg32) u32::from(word), half = in(reg32) u32::from(half),
            options(pure, readonly, nostack),
        );
    }
    bits
}

/// One byte, or 0 when `enabled` does not hold. `@enabled ld.global.u8`
///
/// # Safety
///
/// When `enabled`: as for [`ld_u8`].
#[inline(always)]
pub unsafe fn ld_u8_if(enabled: bool, p: *const u8) -> u8 {
    let byte: u32;
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "mov.b32 {byte}, 0;",
            "@on ld.global.u8 {byte}, [{p}];",
            "}}",
            byte = out(reg32) byte, enabled = in(reg32) u32::from(enabled), p = in(reg64) p,
            options(pure, readonly, nostack),
        );
    }
    byte as u8
}

/// Eight bytes. `ld.global.v2.b32`
///
/// # Safety
///
/// As for [`ld_x4`], of 8 bytes aligned to 8.
#[inline(always)]
pub unsafe fn ld_x2<T: Register>(p: *const [T; 2]) -> [T; 2] {
    let (a, b): (i32, i32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.global.v2.b32 {{{a}, {b}}}, [{p}];",
            a = out(reg32) a, b = out(reg32) b, p = in(reg64) p,
            options(pure, readonly, nostack),
        );
    }
    [T::from_word(a), T::from_word(b)]
}

/// Eight bytes, or unspecified values when `enabled` does not hold.
/// `@enabled ld.global.v2.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld_x2`].
#[inline(always)]
pub unsafe fn ld_x2_if<T: Register>(enabled: bool, p: *const [T; 2]) -> [T; 2] {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe { load_x2_if!(enabled, p, "", "ld.global.v2.b32") }
}

/// One byte. `ld.global.u8`
///
/// # Safety
///
/// As for [`ld_x4`], of 1 byte.
#[inline(always)]
pub unsafe fn ld_u8(p: *const u8) -> u8 {
    let byte: u32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.global.u8 {byte}, [{p}];",
            byte = out(reg32) byte, p = in(reg64) p,
            options(pure, readonly, nostack),
        );
    }
    byte as u8
}

/// A byte of the weights, or 0 when `enabled` does not hold.
/// `@enabled ld.global.nc.L1::no_allocate.u8` (sm_80; `ld.global.nc.u8` below)
///
/// # Safety
///
/// When `enabled`: as for [`ld_nc_stream_x4_if`], of 1 byte.
#[inline(always)]
pub unsafe fn ld_nc_stream_u8_if(enabled: bool, p: *const u8) -> u32 {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        #[cfg(level_sm_80)]
        return load_u8_if!(enabled, p, "ld.global.nc.L1::no_allocate.u8");
        #[cfg(not(level_sm_80))]
        return load_u8_if!(enabled, p, "ld.global.nc.u8");
    }
}

/// A word. `ld.global.b32`
///
/// # Safety
///
/// As for [`ld_x4`], of 4 bytes.
#[inline(always)]
pub unsafe fn ld<T: Register>(p: *const T) -> T {
    // SAFETY: the caller's promise.
    unsafe { load!(p, "ld.global.b32") }
}

/// Two bytes. `ld.global.b16`
///
/// # Safety
///
/// As for [`ld_x4`], of 2 bytes.
#[inline(always)]
pub unsafe fn ld_u16(p: *const u16) -> u16 {
    let bits: u16;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.global.b16 {bits}, [{p}];",
            bits = out(reg16) bits, p = in(reg64) p,
            options(pure, readonly, nostack),
        );
    }
    bits
}

/// A word that other blocks change while this kernel runs; orders nothing.
/// `ld.relaxed.gpu.global.b32` (sm_70; `ld.volatile.global.b32` below)
///
/// # Safety
///
/// `p` is a global address of a word, aligned to 4, that others write only as a whole.
#[inline(always)]
pub unsafe fn ld_relaxed<T: Register>(p: *const T) -> T {
    let word: i32;
    // SAFETY: the caller's promise. Neither `pure` nor `readonly`: each call is a load.
    unsafe {
        #[cfg(level_sm_70)]
        asm!(
            "ld.relaxed.gpu.global.b32 {word}, [{p}];",
            word = out(reg32) word, p = in(reg64) p,
            options(nostack),
        );
        #[cfg(not(level_sm_70))]
        asm!(
            "ld.volatile.global.b32 {word}, [{p}];",
            word = out(reg32) word, p = in(reg64) p,
            options(nostack),
        );
    }
    T::from_word(word)
}

/// Writes a word. `st.global.b32`
///
/// # Safety
///
/// `p` is a global address of a writable word, aligned to 4, that no other thread accesses
/// meanwhile.
#[inline(always)]
pub unsafe fn st<T: Register>(p: *mut T, value: T) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.global.b32 [{p}], {word};",
            p = in(reg64) p, word = in(reg32) value.to_word(),
            options(nostack),
        );
    }
}

/// Writes sixteen bytes. `st.global.v4.b32`
///
/// # Safety
///
/// As for [`st`], of 16 bytes aligned to 16.
#[inline(always)]
pub unsafe fn st_x4<T: Register>(p: *mut X4<T>, value: X4<T>) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.global.v4.b32 [{p}], {{{a}, {b}, {c}, {d}}};",
            p = in(reg64) p,
            a = in(reg32) value[0].to_word(), b = in(reg32) value[1].to_word(),
            c = in(reg32) value[2].to_word(), d = in(reg32) value[3].to_word(),
            options(nostack),
        );
    }
}

/// Writes two bytes. `st.global.b16`
///
/// # Safety
///
/// As for [`st`], of 2 bytes aligned to 2.
#[inline(always)]
pub unsafe fn st_u16(p: *mut u16, bits: u16) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.global.b16 [{p}], {bits};",
            p = in(reg64) p, bits = in(reg16) bits,
            options(nostack),
        );
    }
}

/// Writes eight bytes. `st.global.v2.b32`
///
/// # Safety
///
/// As for [`st`], of 8 bytes aligned to 8.
#[inline(always)]
pub unsafe fn st_x2<T: Register>(p: *mut [T; 2], value: [T; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.global.v2.b32 [{p}], {{{a}, {b}}};",
            p = in(reg64) p, a = in(reg32) value[0].to_word(), b = in(reg32) value[1].to_word(),
            options(nostack),
        );
    }
}

/// Writes one byte. `st.global.u8`
///
/// # Safety
///
/// As for [`st`], of 1 byte.
#[inline(always)]
pub unsafe fn st_u8(p: *mut u8, byte: u8) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.global.u8 [{p}], {byte};",
            p = in(reg64) p, byte = in(reg32) u32::from(byte),
            options(nostack),
        );
    }
}

/// Brings the line of an address into the second-level cache. `prefetch.global.L2`
///
/// # Safety
///
/// `p` is a global address inside of an allocation.
#[inline(always)]
pub unsafe fn prefetch_l2<T>(p: *const T) {
    // SAFETY: the caller's promise; changes no value.
    unsafe { asm!("prefetch.global.L2 [{p}];", p = in(reg64) p, options(nostack)) }
}

/// Brings `bytes` from `p` on into the second-level cache. `cp.async.bulk.prefetch.L2.global`, of a later PTX ISA than
/// that of sm_90 alone: nothing there.
///
/// # Safety
///
/// `p` starts so many bytes of an allocation; both are multiples of 16.
#[cfg(all(level_sm_90, not(level_sm_90a)))]
#[inline(always)]
pub unsafe fn prefetch_l2_bulk(_: *const u8, _: u32) {}

/// Brings `bytes` from `p` on into the second-level cache. `cp.async.bulk.prefetch.L2.global`
///
/// # Safety
///
/// `p` starts so many bytes of an allocation; both are multiples of 16.
#[cfg(level_sm_90a)]
#[inline(always)]
pub unsafe fn prefetch_l2_bulk(p: *const u8, bytes: u32) {
    // SAFETY: the caller's promise; changes no value.
    unsafe {
        asm!(
            "cp.async.bulk.prefetch.L2.global [{p}], {bytes};",
            p = in(reg64) p, bytes = in(reg32) bytes,
            options(nostack),
        );
    }
}
