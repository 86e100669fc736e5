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

/// Whether every element of a row with this scale is ordinary for [`quantise_ordinary`]: the row is finite.
#[inline(always)]
pub const fn is_ordinary(scale: f32) -> bool {
    scale > 0.0
}

/// What [`quantise_ordinary`] gives for a value of 0.
pub const ORDINARY_ZERO: u32 = MAGIC.to_bits();

/// [`quantise`] of an element of the row that `scale` was made for, when [`is_ordinary`]: its low byte is
/// the value, and less [`ORDINARY_ZERO`] the word is. No magnitude is above the row's largest, whose
/// product with the scale is 127 with two roundings: nothing saturates.
#[inline(always)]
pub const fn quantise_ordinary(x: f32, scale: f32) -> u32 {
    (x * scale + MAGIC).to_bits()
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
    fn ordinary_rows_need_no_saturation() {
        let mut bits = 7u32;
        let tops = [f32::MIN_POSITIVE, 1e-40, 1e-5, 0.999e-5, 3.3, 1e30, f32::MAX];
        for i in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let top = tops.get(i).copied().unwrap_or(f32::from_bits(bits >> 1));
            if !top.is_finite() {
                continue;
            }
            let scale = act_scale(top);
            assert!(is_ordinary(scale));
            let x = f32::from_bits(bits.rotate_left(9));
            for x in [top, -top, top * 0.5, 0.0, -0.0, if x.abs() <= top { x } else { 0.0 }] {
                let (word, want) = (quantise_ordinary(x, scale), quantise(x, scale));
                assert_eq!(word as i8, want, "{x} of {top}");
                assert_eq!(word.wrapping_sub(ORDINARY_ZERO) as i32, i32::from(want), "{x}");
            }
        }
        for top in [f32::INFINITY, f32::NAN] {
            assert!(!is_ordinary(act_scale(top)));
        }
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
