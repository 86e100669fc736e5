//! Quantising one row of activations to int8 by its largest magnitude.
//!
//! ```text
//! s   = 127 / max(absmax, 1e-5)                 one quotient, one rounding
//! q_k = clamp(round_even(x_k * s), -128, 127)   the product rounded, then halves to even
//! ```
//!
//! Dequantising divides by `s`. A NaN is the largest magnitude of its row: s is NaN and every q is 0.
//! A row with an infinity has s = 0, and every q is 0. Both dequantise to NaN, so that a broken
//! row is seen downstream.

use super::round::MAGIC;

/// Smallest `absmax` that sets the scale.
pub const ABSMAX_FLOOR: f32 = 1e-5;

/// `|x|` as bits: the largest of these integers is the largest magnitude, and NaN wins.
#[inline(always)]
pub const fn abs_bits(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// The quantisation multiplier of a row whose largest magnitude is `absmax` (NaN, or at least 0).
#[inline(always)]
pub const fn act_scale(absmax: f32) -> f32 {
    127.0 / if absmax < ABSMAX_FLOOR { ABSMAX_FLOOR } else { absmax }
}

/// `x * scale` as int8: nearest, halves to even, saturated to -128 and 127; NaN gives 0.
#[inline(always)]
pub const fn quantise(x: f32, scale: f32) -> i8 {
    let v = x * scale;
    let v = if v > 127.0 { 127.0 } else { v };
    let v = if v < -128.0 { -128.0 } else { v };
    let v = if v.is_nan() { 0.0 } else { v };
    // The low bits of the shifted number are the integer in two's complement.
    (v + MAGIC).to_bits() as i8
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn row(x: &[f32]) -> (f32, Vec<i8>) {
        let absmax = f32::from_bits(x.iter().fold(0, |m, &v| m.max(abs_bits(v))));
        let s = act_scale(absmax);
        (s, x.iter().map(|&v| quantise(v, s)).collect())
    }

    /// Vector A of the model's arithmetic.
    #[test]
    fn known_rows() {
        assert_eq!(row(&[0.5, -1.0, 0.25, 2.0]), (63.5, [32, -64, 16, 127].into()));
        assert_eq!(row(&[0.0; 4]), (12_700_000.0, [0; 4].into()));
        let ties = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0];
        assert_eq!(row(&ties), (1.0, [127, 0, 2, 2, 0, -2, -2, -127].into()));
        assert_eq!(row(&[1e-6, -2e-6, 5e-6, 0.0]), (12_700_000.0, [13, -25, 64, 0].into()));
        let (s, q) = row(&[-3.0, 1.0, 2.9999, 0.01]);
        assert_eq!((s, q), (42.333_332, [-127, 42, 127, 0].into()));
        assert_eq!(super::super::f32_to_bf16(s), 0x4229);
    }

    #[test]
    fn what_is_not_finite_quantises_to_a_fixed_value() {
        assert_eq!(quantise(f32::NAN, 1.0), 0);
        assert_eq!(quantise(f32::INFINITY, 1.0), 127);
        assert_eq!(quantise(f32::NEG_INFINITY, 1.0), -128);
        assert_eq!(row(&[f32::INFINITY, 1.0, -1.0]), (0.0, [0, 0, 0].into()));
        let (s, q) = row(&[f32::NAN, 127.0, -1.0]);
        assert!(s.is_nan() && q == [0, 0, 0]);
        assert_eq!(quantise(-128.5, 1.0), -128);
        assert_eq!(quantise(-127.5, 1.0), -128);
        assert_eq!(quantise(126.5, 1.0), 126);
    }

    #[test]
    fn equals_the_plain_formula() {
        let mut bits = 1u32;
        for _ in 0..2_000_000 {
            bits = bits.wrapping_add(0x9e37_79b1);
            let x = f32::from_bits(bits);
            assert_eq!(quantise(x, 1.0), x.round_ties_even().clamp(-128.0, 127.0) as i8, "{x}");
        }
    }
}
