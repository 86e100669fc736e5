//! Steps over a bitmap and the values it stands for, each guarded by bits of a mask without a branch.
//!
//! A lane walks the words of its own mask and its own values; lanes differ in which bits are set.
//! A guard inside the instruction keeps the warp together where `if` would send it both ways.

use core::arch::asm;

use super::shared::Shared;

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

/// `guard & bits != 0`: `a * b + acc`, rounded once; else `acc`. `@p fma.rn.f32`
#[inline(always)]
pub fn fma_if(guard: u32, bits: u32, a: f32, b: f32, acc: f32) -> f32 {
    let mut sum = acc;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            ".reg .b32 set;",
            "and.b32 set, {guard}, {bits};",
            "setp.ne.b32 p, set, 0;",
            "@p fma.rn.f32 {sum}, {a}, {b}, {sum};",
            "}}",
            sum = inout(reg32) sum, a = in(reg32) a, b = in(reg32) b,
            guard = in(reg32) guard, bits = in(reg32) bits,
            options(pure, nomem, nostack),
        );
    }
    sum
}

/// A word of shared memory when `guard` is not 0; else unspecified. `@p ld.shared.b32`
///
/// # Safety
///
/// When `guard` is not 0: as for [`Shared::read`].
#[inline(always)]
pub unsafe fn read_if(guard: u32, from: Shared<f32>) -> f32 {
    let value: f32;
    // SAFETY: the caller's promise; nothing is read otherwise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {guard}, 0;",
            "@p ld.shared.b32 {value}, [{from}];",
            "}}",
            value = out(reg32) value, guard = in(reg32) guard, from = in(reg32) from.addr(),
            options(pure, readonly, nostack),
        );
    }
    value
}

macro_rules! take {
    ($(#[$doc:meta])* $name:ident, $place:ty, $reg:ident, $bytes:literal, $add:literal, $($ptx:literal)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// When `guard & bits` is not 0: `at` is the address of a value that no other thread writes
        /// without a barrier between.
        #[inline(always)]
        pub unsafe fn $name(guard: u32, bits: u32, at: &mut $place) -> f32 {
            let value: f32;
            // SAFETY: the caller's promise; nothing is read otherwise.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred p;",
                    ".reg .b32 set;",
                    ".reg .b16 half;",
                    "and.b32 set, {guard}, {bits};",
                    "setp.ne.b32 p, set, 0;",
                    $($ptx,)*
                    concat!("@p ", $add, " {at}, {at}, ", $bytes, ";"),
                    "}}",
                    value = out(reg32) value, at = inout($reg) *at,
                    guard = in(reg32) guard, bits = in(reg32) bits,
                    options(readonly, nostack),
                );
            }
            value
        }
    };
}

take! {
    /// `guard & bits != 0`: the bf16 at the shared address `at`, and `at` moves on; else unspecified.
    take_bf16, u32, reg32, "2", "add.u32",
    "@p ld.shared.u16 set, [{at}];" "shl.b32 {value}, set, 16;"
}
take! {
    /// The same for f16.
    take_f16, u32, reg32, "2", "add.u32",
    "@p ld.shared.b16 half, [{at}];" "cvt.f32.f16 {value}, half;"
}
take! {
    /// The same for f32 at a global address, through L1. `@p ld.global.nc.b32`
    take_f32, u64, reg64, "4", "add.u64",
    "@p ld.global.nc.b32 {value}, [{at}];"
}

/// Two 16-bit values side by side, the first in the low half: each is the next one at the shared
/// address `at`, which moves on, where its bit of `guard` is set, and 0 where it is not.
///
/// # Safety
///
/// As for [`take_bf16`], for each of the two.
#[inline(always)]
pub unsafe fn take_pair(guard: u32, first: u32, second: u32, at: &mut u32) -> u32 {
    let pair: u32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p, q;",
            ".reg .b32 set, low, high;",
            "and.b32 set, {guard}, {first};",
            "setp.ne.b32 p, set, 0;",
            "and.b32 set, {guard}, {second};",
            "setp.ne.b32 q, set, 0;",
            "mov.b32 low, 0;",
            "mov.b32 high, 0;",
            "@p ld.shared.u16 low, [{at}];",
            "@p add.u32 {at}, {at}, 2;",
            "@q ld.shared.u16 high, [{at}];",
            "@q add.u32 {at}, {at}, 2;",
            "prmt.b32 {pair}, low, high, 0x5410;",
            "}}",
            pair = out(reg32) pair, at = inout(reg32) *at,
            guard = in(reg32) guard, first = in(reg32) first, second = in(reg32) second,
            options(readonly, nostack),
        );
    }
    pair
}
