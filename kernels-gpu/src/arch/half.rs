//! Conversions of 16-bit floats, held as their bits.

use core::arch::asm;

/// The value of a bf16: its bits are the upper half of the f32's.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The value of an f16. `cvt.f32.f16`
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
