//! Conversions of 16-bit floats, held as their bits, where one instruction does them.
//!
//! bf16 needs none: see `contract::num`.

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
