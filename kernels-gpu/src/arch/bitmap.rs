//! Steps over a bitmap and the values it stands for, each guarded by bits of a mask without a branch.
//!
//! A lane walks the words of its own mask and its own values; lanes differ in which bits are set.
//! A guard inside the instruction keeps the warp together where `if` would send it both ways.

use core::arch::asm;

/// Offset of the highest set bit from the top, 0 to 31; all ones when `word` is 0.
/// `bfind.shiftamt.u32`
#[inline(always)]
pub fn first_set(word: u32) -> u32 {
    let offset: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "bfind.shiftamt.u32 {offset}, {word};",
            offset = out(reg32) offset, word = in(reg32) word,
            options(pure, nomem, nostack),
        );
    }
    offset
}

/// `value`, unknown to LLVM: a loop that ends there stays a loop. `mov.b32`
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let same: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "mov.b32 {same}, {value};",
            same = out(reg32) same, value = in(reg32) value,
            options(pure, nomem, nostack),
        );
    }
    same
}

/// `word` with nothing but its lowest `31 - offset` bits: without its highest set bit when `offset` is
/// what [`first_set`] gave. `shr.u32`, which shifts everything out from 32 on.
#[inline(always)]
pub fn below(word: u32, offset: u32) -> u32 {
    let rest: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "shr.u32 {rest}, 0x7fffffff, {offset};",
            "and.b32 {rest}, {rest}, {word};",
            rest = out(reg32) rest, offset = in(reg32) offset, word = in(reg32) word,
            options(pure, nomem, nostack),
        );
    }
    rest
}

/// `a * b + acc`, rounded once, unless the bits of `a` are 0; then `acc`. `@p fma.rn.f32`
#[inline(always)]
pub fn fma_stored(a: f32, b: f32, acc: f32) -> f32 {
    let mut sum = acc;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {a}, 0;",
            "@p fma.rn.f32 {sum}, {a}, {b}, {sum};",
            "}}",
            sum = inout(reg32) sum, a = in(reg32) a, b = in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    sum
}

/// The word at the shared address `at`, which moves on, where `guard & bits` is not 0; else 0.
/// `@p ld.shared.b32`
///
/// # Safety
///
/// When `guard & bits` is not 0: as for [`super::shared::Shared::read`].
#[inline(always)]
pub unsafe fn take(guard: u32, bits: u32, at: &mut u32) -> u32 {
    let word: u32;
    // SAFETY: the caller's promise; nothing is read otherwise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            ".reg .b32 set;",
            "and.b32 set, {guard}, {bits};",
            "setp.ne.b32 p, set, 0;",
            "mov.b32 {word}, 0;",
            "@p ld.shared.b32 {word}, [{at}];",
            "@p add.u32 {at}, {at}, 4;",
            "}}",
            word = out(reg32) word, at = inout(reg32) *at,
            guard = in(reg32) guard, bits = in(reg32) bits,
            options(readonly, nostack),
        );
    }
    word
}
