//! Loads of global memory with something else where they are not enabled: see [`super::mem`].

use core::arch::asm;

use super::mem::X4;
use super::warp::Register;

macro_rules! load_or {
    ($enabled:expr, $p:expr, $nothing:expr, $($word:ident)*; $init:literal, $ptx:literal) => {{
        $(let $word: i32;)*
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            $init,
            concat!("@on ", $ptx, ", [{p}];"),
            "}}",
            $($word = out(reg32) $word,)*
            enabled = in(reg32) u32::from($enabled), p = in(reg64) $p,
            nothing = in(reg32) $nothing.to_word(),
            options(pure, readonly, nostack),
        );
        ($(T::from_word($word)),*)
    }};
}

/// Sixteen bytes, or four times `nothing` when `enabled` does not hold. `@enabled ld.global.v4.b32`
///
/// # Safety
///
/// When `enabled`: as for [`super::mem::ld_x4`].
#[inline(always)]
pub unsafe fn ld_or_x4<T: Register>(enabled: bool, p: *const X4<T>, nothing: T) -> X4<T> {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        load_or!(
            enabled, p, nothing, a b c d;
            "mov.b32 {a}, {nothing}; mov.b32 {b}, {nothing}; mov.b32 {c}, {nothing}; mov.b32 {d}, {nothing};",
            "ld.global.v4.b32 {{{a}, {b}, {c}, {d}}}"
        )
        .into()
    }
}

/// Eight bytes, or two times `nothing` when `enabled` does not hold. `@enabled ld.global.v2.b32`
///
/// # Safety
///
/// As for [`ld_or_x4`], of 8 bytes.
#[inline(always)]
pub unsafe fn ld_or_x2<T: Register>(enabled: bool, p: *const [T; 2], nothing: T) -> [T; 2] {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        load_or!(
            enabled, p, nothing, a b;
            "mov.b32 {a}, {nothing}; mov.b32 {b}, {nothing};",
            "ld.global.v2.b32 {{{a}, {b}}}"
        )
        .into()
    }
}

/// A word, or `nothing` when `enabled` does not hold. `@enabled ld.global.b32`
///
/// # Safety
///
/// As for [`ld_or_x4`], of 4 bytes.
#[inline(always)]
pub unsafe fn ld_or<T: Register>(enabled: bool, p: *const T, nothing: T) -> T {
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe { load_or!(enabled, p, nothing, a; "mov.b32 {a}, {nothing};", "ld.global.b32 {a}") }
}
