//! Copies from global to shared memory that run beside the thread that asked for them.
//!
//! A copy belongs to the group that the thread commits next; groups complete in order. After
//! [`wait_group`] the thread sees its own copies; a barrier after it shows them to the block. From
//! sm_80.

use core::arch::asm;

use super::shared::Shared;

macro_rules! copy {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $cache:literal) => {
        $(#[$doc])*
        ///
        /// Without `enabled` nothing is read and the destination becomes zero.
        ///
        /// # Safety
        ///
        /// `to` starts that many bytes of the block's shared memory, aligned to their number, that
        /// no thread accesses until the copy is waited for. When `enabled`: `from` is a global
        /// address, equally aligned, of as many readable bytes that nobody writes meanwhile.
        #[inline(always)]
        pub unsafe fn $name<T, U>(to: Shared<T>, from: *const U, enabled: bool) {
            let bytes = if enabled { $bytes } else { 0u32 };
            // SAFETY: the caller's promise; a source size of 0 reads nothing.
            unsafe {
                asm!(
                    concat!("cp.async.", $cache, ".shared.global [{to}], [{from}], ", $bytes, ", {bytes};"),
                    to = in(reg32) to.addr(), from = in(reg64) from, bytes = in(reg32) bytes,
                    options(nostack),
                );
            }
        }
    };
}

macro_rules! copy_if {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $cache:literal) => {
        $(#[$doc])*
        ///
        /// Without `enabled` nothing happens.
        ///
        /// # Safety
        ///
        /// When `enabled`: as for the copy of as many bytes that is always made.
        #[inline(always)]
        pub unsafe fn $name<T, U>(to: Shared<T>, from: *const U, enabled: bool) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred on;",
                    "setp.ne.b32 on, {enabled}, 0;",
                    concat!("@on cp.async.", $cache, ".shared.global [{to}], [{from}], ", $bytes, ";"),
                    "}}",
                    to = in(reg32) to.addr(), from = in(reg64) from, enabled = in(reg32) u32::from(enabled),
                    options(nostack),
                );
            }
        }
    };
}

copy_if! {
    /// 16 bytes, past L1. `@enabled cp.async.cg.shared.global [to], [from], 16`
    copy_x16_if, 16, "cg"
}
copy_if! {
    /// 4 bytes. `@enabled cp.async.ca.shared.global [to], [from], 4`
    copy_x4_if, 4, "ca"
}
copy! {
    /// 16 bytes, past L1. `cp.async.cg.shared.global [to], [from], 16, bytes`
    copy_x16, 16, "cg"
}
copy! {
    /// 16 bytes, kept in L1. `cp.async.ca.shared.global [to], [from], 16, bytes`
    copy_x16_l1, 16, "ca"
}
copy! {
    /// 8 bytes. `cp.async.ca.shared.global [to], [from], 8, bytes`
    copy_x8, 8, "ca"
}
copy! {
    /// 4 bytes. `cp.async.ca.shared.global [to], [from], 4, bytes`
    copy_x4, 4, "ca"
}

/// [`copy_x16`] of what is there and nobody reads again soon: the first to leave the second-level cache.
/// `cp.async.cg.shared.global.L2::cache_hint [to], [from], 16, policy`
///
/// # Safety
///
/// As for [`copy_x16`], enabled.
#[inline(always)]
pub unsafe fn copy_x16_stream<T, U>(to: Shared<T>, from: *const U) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b64 policy;",
            "createpolicy.fractional.L2::evict_first.b64 policy;",
            "cp.async.cg.shared.global.L2::cache_hint [{to}], [{from}], 16, policy;",
            "}}",
            to = in(reg32) to.addr(), from = in(reg64) from,
            options(nostack),
        );
    }
}

/// The first `bytes` of 16, zeros after them, past L1.
/// `cp.async.cg.shared.global [to], [from], 16, bytes`
///
/// # Safety
///
/// As for [`copy_x16`], with `bytes` (at most 16) readable bytes at `from`.
#[inline(always)]
pub unsafe fn copy_x16_part<T, U>(to: Shared<T>, from: *const U, bytes: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.cg.shared.global [{to}], [{from}], 16, {bytes};",
            to = in(reg32) to.addr(), from = in(reg64) from, bytes = in(reg32) bytes,
            options(nostack),
        );
    }
}

/// Closes the group of the copies so far; a group may be empty. `cp.async.commit_group`
#[inline(always)]
pub fn commit_group() {
    // SAFETY: counts copies; touches no memory.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// Waits until at most the `N` newest groups of this thread are still under way.
/// `cp.async.wait_group N`
#[inline(always)]
pub fn wait_group<const N: u32>() {
    // SAFETY: only waits. Without `nomem`, no access moves across it.
    unsafe { asm!("cp.async.wait_group {n};", n = const N, options(nostack)) }
}
