//! Loads of what nobody reads again soon (sm_80), beside those of [`super::mem`].

use core::arch::asm;

use super::mem::X4;
use super::warp::Register;

macro_rules! stream_x4_if {
    ($(#[$doc:meta])* $name:ident, $before:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub unsafe fn $name<T: Register>(enabled: bool, p: *const X4<T>) -> X4<T> {
            let (a, b, c, d): (i32, i32, i32, i32);
            // SAFETY: the caller's promise; the load is not executed unless `enabled`.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred on;",
                    ".reg .b64 policy;",
                    "setp.ne.u32 on, {enabled}, 0;",
                    "createpolicy.fractional.L2::evict_first.b64 policy;",
                    $before,
                    "@on ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {{{a}, {b}, {c}, {d}}}, [{p}], policy;",
                    "}}",
                    a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                    enabled = in(reg32) u32::from(enabled), p = in(reg64) p,
                    options(pure, readonly, nostack),
                );
            }
            [T::from_word(a), T::from_word(b), T::from_word(c), T::from_word(d)]
        }
    };
}

stream_x4_if! {
    /// [`super::mem::ld_or_zero_x4`] of what nobody reads again soon: no place in L1, and the first to leave the second-level cache.
    /// `@enabled ld.global.L1::no_allocate.L2::cache_hint.v4.b32` (sm_80)
    ///
    /// # Safety
    ///
    /// When `enabled`: as for [`super::mem::ld_x4`].
    ld_or_zero_stream_x4, "mov.b32 {a}, 0; mov.b32 {b}, 0; mov.b32 {c}, 0; mov.b32 {d}, 0;"
}

stream_x4_if! {
    /// The same, with unspecified values when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// As there.
    ld_stream_x4_if, ""
}

/// The same of eight bytes. `@enabled ld.global.L1::no_allocate.L2::cache_hint.v2.b32` (sm_80)
///
/// # Safety
///
/// When `enabled`: as for [`super::mem::ld_x2`].
#[inline(always)]
pub unsafe fn ld_stream_x2_if<T: Register>(enabled: bool, p: *const [T; 2]) -> [T; 2] {
    let (a, b): (i32, i32);
    // SAFETY: the caller's promise; the load is not executed unless `enabled`.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            ".reg .b64 policy;",
            "setp.ne.u32 on, {enabled}, 0;",
            "createpolicy.fractional.L2::evict_first.b64 policy;",
            "@on ld.global.L1::no_allocate.L2::cache_hint.v2.b32 {{{a}, {b}}}, [{p}], policy;",
            "}}",
            a = out(reg32) a, b = out(reg32) b,
            enabled = in(reg32) u32::from(enabled), p = in(reg64) p,
            options(pure, readonly, nostack),
        );
    }
    [T::from_word(a), T::from_word(b)]
}
