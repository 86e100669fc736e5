//! Atomic updates of words in global memory, at the scope of the device.

use core::arch::asm;

use super::fence::device_fence;
#[cfg(level_sm_70)]
use super::mem::X4;

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

/// Writes a word that other blocks read while this kernel runs; orders nothing.
/// `st.relaxed.gpu.global.b32` (sm_70; `st.volatile.global.b32` below)
///
/// # Safety
///
/// `p` is a global address of a word, aligned to 4, that only this thread writes.
#[inline(always)]
pub unsafe fn st_relaxed(p: *mut u32, value: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(level_sm_70)]
        asm!(
            "st.relaxed.gpu.global.b32 [{p}], {value};",
            p = in(reg64) p, value = in(reg32) value,
            options(nostack),
        );
        #[cfg(not(level_sm_70))]
        asm!(
            "st.volatile.global.b32 [{p}], {value};",
            p = in(reg64) p, value = in(reg32) value,
            options(nostack),
        );
    }
}

/// A word that other blocks change while this kernel runs, when `word` is all ones, else `word`; orders nothing.
/// `@p ld.relaxed.gpu.global.b32`
///
/// # Safety
///
/// When `word` is all ones: `p` is a global address of a word, aligned to 4, that others write only as a whole.
#[cfg(level_sm_70)]
#[inline(always)]
pub unsafe fn ld_relaxed_if_ones(mut word: u32, p: *const u32) -> u32 {
    // SAFETY: the caller's promise. Neither `pure` nor `readonly`: each call is a load.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.eq.u32 on, {word}, 0xffffffff;",
            "@on ld.relaxed.gpu.global.b32 {word}, [{p}];",
            "}}",
            word = inout(reg32) word, p = in(reg64) p,
            options(nostack),
        );
    }
    word
}

/// Four words that other blocks change while this kernel runs, each as a whole; orders nothing. The four are one access of a sector, so that
/// halves that others write with one instruction come as wholes too (as NCCL's messages with flags rely on). `ld.relaxed.gpu.global.v4.b32`
///
/// # Safety
///
/// `p` is a global address, aligned to 16, of words that others write only as wholes.
#[cfg(level_sm_70)]
#[inline(always)]
pub unsafe fn ld_relaxed_x4(p: *const u32) -> X4<u32> {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's promise. Neither `pure` nor `readonly`: each call is a load.
    unsafe {
        asm!(
            "ld.relaxed.gpu.global.v4.b32 {{{a}, {b}, {c}, {d}}}, [{p}];",
            a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d, p = in(reg64) p,
            options(nostack),
        );
    }
    [a, b, c, d]
}

/// Writes two neighbours of eight bytes, each of them at once, that other blocks read while this kernel runs; orders nothing.
/// `st.relaxed.gpu.global.v2.b64`
///
/// # Safety
///
/// As for [`st_relaxed`], aligned to 16.
#[cfg(level_sm_70)]
#[inline(always)]
pub unsafe fn st_relaxed_u64_x2(p: *mut u64, [a, b]: [u64; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.relaxed.gpu.global.v2.b64 [{p}], {{{a}, {b}}};",
            p = in(reg64) p, a = in(reg64) a, b = in(reg64) b,
            options(nostack),
        );
    }
}

/// Writes four neighbours, each of them at once, that other blocks read while this kernel runs; orders nothing.
/// `st.relaxed.gpu.global.v4.b32`
///
/// # Safety
///
/// As for [`st_relaxed`], aligned to 16.
#[cfg(level_sm_70)]
#[inline(always)]
pub unsafe fn st_relaxed_x4(p: *mut u32, [a, b, c, d]: X4<u32>) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.relaxed.gpu.global.v4.b32 [{p}], {{{a}, {b}, {c}, {d}}};",
            p = in(reg64) p, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, d = in(reg32) d,
            options(nostack),
        );
    }
}

/// The words `AT` bytes behind `p` when `enabled`, as [`ld_relaxed_x4`], else `words`. `@p ld.relaxed.gpu.global.v4.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld_relaxed_x4`].
#[cfg(level_sm_70)]
#[inline(always)]
pub unsafe fn ld_relaxed_x4_if<const AT: u32>(
    enabled: bool,
    words: X4<u32>,
    p: *const u32,
) -> X4<u32> {
    let [mut a, mut b, mut c, mut d] = words;
    // SAFETY: the caller's promise. Neither `pure` nor `readonly`: each call is a load.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "@on ld.relaxed.gpu.global.v4.b32 {{{a}, {b}, {c}, {d}}}, [{p}+{at}];",
            "}}",
            at = const AT,
            a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d,
            p = in(reg64) p, enabled = in(reg32) u32::from(enabled),
            options(nostack),
        );
    }
    [a, b, c, d]
}

/// Two words at `p` when `enabled`, as [`ld_relaxed_x4`], else `words`. `@p ld.relaxed.gpu.global.v2.b32`
///
/// # Safety
///
/// When `enabled`: as for [`ld_relaxed_x4`], aligned to 8.
#[cfg(level_sm_70)]
#[inline(always)]
pub unsafe fn ld_relaxed_x2_if(enabled: bool, [mut a, mut b]: [u32; 2], p: *const u32) -> [u32; 2] {
    // SAFETY: the caller's promise. Neither `pure` nor `readonly`: each call is a load.
    unsafe {
        asm!(
            "{{",
            ".reg .pred on;",
            "setp.ne.u32 on, {enabled}, 0;",
            "@on ld.relaxed.gpu.global.v2.b32 {{{a}, {b}}}, [{p}];",
            "}}",
            a = inout(reg32) a, b = inout(reg32) b,
            p = in(reg64) p, enabled = in(reg32) u32::from(enabled),
            options(nostack),
        );
    }
    [a, b]
}
