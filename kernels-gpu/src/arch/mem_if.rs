//! Stores to global memory with a condition: see [`super::mem`].

use core::arch::asm;

use super::mem::X4;
use super::warp::Register;

/// Writes sixteen bytes where `enabled` holds. `@enabled st.global.v4.b32`
///
/// # Safety
///
/// When `enabled`: as for [`super::mem::st_x4`].
#[inline(always)]
pub unsafe fn st_x4_if<T: Register>(enabled: bool, p: *mut X4<T>, value: X4<T>) {
    // SAFETY: the caller's promise; the store is not executed unless `enabled`.
    unsafe {
        asm!(
            "{{ .reg .pred enabled; setp.ne.u32 enabled, {enabled}, 0;",
            "@enabled st.global.v4.b32 [{p}], {{{a}, {b}, {c}, {d}}}; }}",
            enabled = in(reg32) u32::from(enabled), p = in(reg64) p,
            a = in(reg32) value[0].to_word(), b = in(reg32) value[1].to_word(),
            c = in(reg32) value[2].to_word(), d = in(reg32) value[3].to_word(),
            options(nostack),
        );
    }
}

/// Writes eight bytes where `enabled` holds. `@enabled st.global.v2.b32`
///
/// # Safety
///
/// When `enabled`: as for [`super::mem::st_x2`].
#[inline(always)]
pub unsafe fn st_x2_if<T: Register>(enabled: bool, p: *mut [T; 2], value: [T; 2]) {
    // SAFETY: the caller's promise; the store is not executed unless `enabled`.
    unsafe {
        asm!(
            "{{ .reg .pred enabled; setp.ne.u32 enabled, {enabled}, 0;",
            "@enabled st.global.v2.b32 [{p}], {{{a}, {b}}}; }}",
            enabled = in(reg32) u32::from(enabled), p = in(reg64) p,
            a = in(reg32) value[0].to_word(), b = in(reg32) value[1].to_word(),
            options(nostack),
        );
    }
}

/// Writes a word when `enabled`: no branch, so that what is around it stays together. `@enabled st.global.b32`
///
/// # Safety
///
/// When `enabled`: as for [`super::mem::st`].
#[inline(always)]
pub unsafe fn st_if<T: Register>(enabled: bool, p: *mut T, value: T) {
    // SAFETY: the caller's promise; the store is not executed unless `enabled`.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "@on st.global.b32 [{p}], {v};",
            "}}",
            enabled = in(reg32) u32::from(enabled), p = in(reg64) p, v = in(reg32) value.to_word(),
            options(nostack),
        );
    }
}

/// Writes the low byte of a word when `enabled`. `@enabled st.global.u8`
///
/// # Safety
///
/// When `enabled`: as for [`super::mem::st`], of 1 byte.
#[inline(always)]
pub unsafe fn st_u8_if(enabled: bool, p: *mut u8, word: u32) {
    // SAFETY: the caller's promise; the store is not executed unless `enabled`.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "@on st.global.u8 [{p}], {word};",
            "}}",
            enabled = in(reg32) u32::from(enabled), p = in(reg64) p, word = in(reg32) word,
            options(nostack),
        );
    }
}
