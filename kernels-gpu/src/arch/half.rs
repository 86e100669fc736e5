//! Conversions of 16-bit floats, held as their bits, where one instruction does them.
//!
//! To `f32` bf16 needs none, and for one value at a time `contract::num` is as good. The packed
//! forms and TF32 are for tensor cores, whose results have a bound and not fixed bits.

use core::arch::asm;

/// The value of an f16. `cvt.f32.f16`
///
/// The bits of `contract::num::f16_to_f32`, but for the payload of a NaN.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let value: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.f32.f16 {value}, {bits};",
            value = out(reg32) value, bits = in(reg16) bits,
            options(pure, nomem, nostack),
        );
    }
    value
}

/// Rounds two values to f16 and puts them in a word, `low` in its lower half; NaN gives `0x7fff`, as in
/// `contract::num`.
/// `cvt.rn.f16x2.f32` (sm_80; two `cvt.rn.f16.f32` below)
#[inline(always)]
pub fn pack_f16(low: f32, high: f32) -> u32 {
    let word: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        #[cfg(level_sm_80)]
        asm!(
            "cvt.rn.f16x2.f32 {word}, {high}, {low};",
            word = out(reg32) word, high = in(reg32) high, low = in(reg32) low,
            options(pure, nomem, nostack),
        );
        #[cfg(not(level_sm_80))]
        asm!(
            "{{",
            ".reg .b16 l, h;",
            "cvt.rn.f16.f32 l, {low};",
            "cvt.rn.f16.f32 h, {high};",
            "mov.b32 {word}, {{l, h}};",
            "}}",
            word = out(reg32) word, high = in(reg32) high, low = in(reg32) low,
            options(pure, nomem, nostack),
        );
    }
    word
}

/// The same for bf16. `cvt.rn.bf16x2.f32`
#[cfg(level_sm_80)]
#[inline(always)]
pub fn pack_bf16(low: f32, high: f32) -> u32 {
    let word: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rn.bf16x2.f32 {word}, {high}, {low};",
            word = out(reg32) word, high = in(reg32) high, low = in(reg32) low,
            options(pure, nomem, nostack),
        );
    }
    word
}

macro_rules! fma {
    ($(#[$doc:meta])* $name:ident, $ptx:literal) => {
        $(#[$doc])*
        #[cfg(level_sm_80)]
        #[inline(always)]
        pub fn $name(a: u32, b: u32, c: u32) -> u32 {
            let d: u32;
            // SAFETY: arithmetic on registers.
            unsafe {
                core::arch::asm!(
                    concat!($ptx, " {d}, {a}, {b}, {c};"),
                    d = out(reg32) d, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c,
                    options(pure, nomem, nostack),
                );
            }
            d
        }
    };
}

fma! {
    /// `a * b + c` of each two bf16, rounded once. `fma.rn.bf16x2` (sm_80)
    fma_bf16x2, "fma.rn.bf16x2"
}
fma! {
    /// The same, and zero below zero; NaN is `0x7fff`. `fma.rn.relu.bf16x2` (sm_80)
    fma_relu_bf16x2, "fma.rn.relu.bf16x2"
}

/// `x` with the 10 fraction bits of TF32, halves away from zero, as the bits of an `f32`.
/// `cvt.rna.tf32.f32` (sm_80)
#[cfg(level_sm_80)]
#[inline(always)]
pub fn round_tf32(x: f32) -> u32 {
    let bits: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "cvt.rna.tf32.f32 {bits}, {x};",
            bits = out(reg32) bits, x = in(reg32) x,
            options(pure, nomem, nostack),
        );
    }
    bits
}

macro_rules! max {
    ($(#[$doc:meta])* $name:ident, $ptx:literal) => {
        $(#[$doc])*
        #[cfg(level_sm_80)]
        #[inline(always)]
        pub fn $name(a: u32, b: u32) -> u32 {
            let larger: u32;
            // SAFETY: arithmetic on registers.
            unsafe {
                core::arch::asm!(
                    concat!($ptx, " {larger}, {a}, {b};"),
                    larger = out(reg32) larger, a = in(reg32) a, b = in(reg32) b,
                    options(pure, nomem, nostack),
                );
            }
            larger
        }
    };
}

max! {
    /// The larger of each two f16, as `arch::float::maximum`; NaN is `0x7fff`. `max.NaN.f16x2` (sm_80)
    max_f16, "max.NaN.f16x2"
}
max! {
    /// The same for bf16. `max.NaN.bf16x2` (sm_80)
    max_bf16, "max.NaN.bf16x2"
}
