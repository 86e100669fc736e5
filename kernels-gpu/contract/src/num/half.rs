//! The 16-bit floats: to `f32` exactly, from `f32` rounded to nearest even.
//!
//! Every NaN becomes the one quiet NaN `0x7fff`, which is what GPUs make of it. Subnormals are kept both
//! ways. All is integer work or an exact multiplication, so a GPU without conversion instructions
//! gives the same bits as one with.

/// Element type of a float matrix whose rows are read as `f32` (embedding, head).
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowType {
    /// bfloat16: the upper half of an `f32`.
    Bf16 = 0,
    /// IEEE binary16.
    F16 = 1,
    /// IEEE binary32.
    F32 = 2,
}

impl RowType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The field's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }
}

/// The value of the bfloat16 with bits `h`.
#[inline(always)]
pub const fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits((h as u32) << 16)
}

/// The bfloat16 nearest to `x`, halves to even; beyond the range, infinity.
#[inline(always)]
pub const fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if x.is_nan() { 0x7fff } else { rounded as u16 }
}

/// The value of the binary16 with bits `h`.
#[inline(always)]
pub const fn f16_to_f32(h: u16) -> f32 {
    // The exponents differ by 112; the product is exact and also lifts subnormals.
    let magnitude = f32::from_bits(((h & 0x7fff) as u32) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | ((h & 0x8000) as u32) << 16)
}

/// The binary16 nearest to `x`, halves to even; from 65,520 up, infinity.
#[inline(always)]
pub const fn f32_to_f16(x: f32) -> u16 {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let sign = (x.to_bits() >> 16) & 0x8000;
    // Around 0.5 the f32 are 2^-24 apart, the step of binary16 subnormals: the sum rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal =
        magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let number = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    if x.is_nan() { 0x7fff } else { (number | sign) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_a_round_trip() {
        for h in 0..=u16::MAX {
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            let ours = f16_to_f32(h);
            assert!(same(ours, half::f16::from_bits(h).to_f32()), "{h}");
            assert!(same(bf16_to_f32(h), half::bf16::from_bits(h).to_f32()), "{h}");
            if ours.is_nan() {
                assert_eq!(f32_to_f16(ours), 0x7fff);
            } else {
                assert_eq!(f32_to_f16(ours), h);
            }
            if bf16_to_f32(h).is_nan() {
                assert_eq!(f32_to_bf16(bf16_to_f32(h)), 0x7fff);
            } else {
                assert_eq!(f32_to_bf16(bf16_to_f32(h)), h);
            }
        }
    }

    #[test]
    fn rounding_agrees_with_half() {
        // A stride prime to 2^32 visits every exponent and every kind of tail.
        let mut bits = 0u32;
        for _ in 0..4_000_000 {
            bits = bits.wrapping_add(0x9e37_79b1);
            for b in [bits, bits & 0xffff_8000, bits & 0xffff_f000] {
                let x = f32::from_bits(b);
                if !x.is_nan() {
                    assert_eq!(f32_to_bf16(x), half::bf16::from_f32(x).to_bits(), "{b:#x}");
                    assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{b:#x}");
                }
            }
        }
        assert_eq!(f32_to_f16(65_519.996), 0x7bff);
        assert_eq!(f32_to_f16(65_520.0), 0x7c00);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
        assert_eq!(f32_to_bf16(-f32::NAN), 0x7fff);
    }
}
