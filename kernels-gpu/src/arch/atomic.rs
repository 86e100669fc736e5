//! Atomic updates of words in global memory, at the scope of the device.

use core::arch::asm;

use super::fence::device_fence;

/// Adds and returns the value before; orders nothing. `atom.global.add.u32`
///
/// # Safety
///
/// `p` is a global address, aligned to 4, of a word that is only accessed atomically meanwhile.
#[inline(always)]
pub unsafe fn add_relaxed(p: *mut u32, value: u32) -> u32 {
    let old: u32;
    // SAFETY: the caller's promise. The default ordering of `atom` is relaxed.
    unsafe {
        asm!(
            "atom.global.add.u32 {old}, [{p}], {value};",
            old = out(reg32) old, p = in(reg64) p, value = in(reg32) value,
            options(nostack),
        );
    }
    old
}

/// Adds and returns the value before. Writes made before it are visible to whoever sees the new
/// value through another such call, and the other way round.
/// `fence.acq_rel.gpu; atom.global.add.u32; fence.acq_rel.gpu` (`membar.gl` below sm_70)
///
/// # Safety
///
/// As for [`add_relaxed`].
#[inline(always)]
pub unsafe fn add_acq_rel(p: *mut u32, value: u32) -> u32 {
    device_fence();
    // SAFETY: the caller's promise.
    let old = unsafe { add_relaxed(p, value) };
    device_fence();
    old
}

/// Replaces the word by the larger of it and `value`; orders nothing. `red.global.max.u64`
///
/// # Safety
///
/// As for [`add_relaxed`], aligned to 8.
#[inline(always)]
pub unsafe fn max_u64_relaxed(p: *mut u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "red.global.max.u64 [{p}], {value};",
            p = in(reg64) p, value = in(reg64) value,
            options(nostack),
        );
    }
}
