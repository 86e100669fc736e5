//! The natural logarithm, for log-softmax.
//!
//! `x = 2^e m` with `m` in `[sqrt(1/2), sqrt 2)`, `f = m - 1`, and
//! `ln x = e ln 2 + f - f^2 / 2 + f^3 p(f)` with `p` of degree 7 (minimax, 0.1 units of 2^-24 of `f`).
//! Within 1 ulp of the correctly rounded result over the whole range, subnormals included:
//! `ln 1 = 0`, `ln 0` (of either sign) is minus infinity, below zero and for NaN the result is NaN.

use super::exp::{LN2_HI, LN2_LO};
use super::fma;

// p(f), from the highest power down.
const P: [f32; 8] = [
    f32::from_bits(0xbda0_f670),
    f32::from_bits(0x3e03_e850),
    f32::from_bits(0xbe06_704b),
    f32::from_bits(0x3e11_372d),
    f32::from_bits(0xbe2a_3c45),
    f32::from_bits(0x3e4c_d2cb),
    f32::from_bits(0xbe80_0110),
    f32::from_bits(0x3eaa_aaa5),
];

/// Bits of sqrt(1/2): where a mantissa goes to the exponent below.
const SQRT_HALF: u32 = 0x3f35_04f3;

/// `ln x`.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // Subnormals are lifted by 2^24, exactly.
    let tiny = x < f32::MIN_POSITIVE;
    let lifted = if tiny { x * 16_777_216.0 } else { x };
    let shifted = lifted.to_bits().wrapping_sub(SQRT_HALF);
    let e = (shifted as i32) >> 23;
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(SQRT_HALF));
    let e = (e - if tiny { 24 } else { 0 }) as f32;

    let f = m - 1.0;
    let mut p = P[0];
    let mut i = 1;
    while i < P.len() {
        p = fma(p, f, P[i]);
        i += 1;
    }
    let square = f * f;
    // f^3 p - f^2 / 2, then what ln 2 leaves over, then the two large terms: smallest first.
    let tail = fma(square, fma(f, p, -0.5), e * LN2_LO);
    let number = fma(e, LN2_HI, f + tail);

    let number = if x == f32::INFINITY { x } else { number };
    let number = if x == 0.0 { f32::NEG_INFINITY } else { number };
    if x < 0.0 || x.is_nan() { f32::NAN } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in representable numbers to the rounded `f64` result.
    fn ulps(x: f32) -> u32 {
        let want = f64::from(x).ln() as f32;
        let line = |v: f32| {
            let bits = v.to_bits() as i32;
            if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits }
        };
        line(ln(x)).abs_diff(line(want))
    }

    fn worst(step: usize) -> u32 {
        (1..f32::INFINITY.to_bits())
            .step_by(step)
            .map(|bits| ulps(f32::from_bits(bits)))
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn at_most_one_ulp_on_a_dense_stride() {
        assert!(worst(499) <= 1);
        // Around 1, where the result vanishes, and through all mantissas of the sums that
        // softmax makes.
        let near = 0.7f32.to_bits()..1.5f32.to_bits();
        assert!(near.step_by(5).all(|bits| ulps(f32::from_bits(bits)) <= 1));
        let sums = 1.0f32.to_bits()..4.0f32.to_bits();
        assert!(sums.step_by(7).all(|bits| ulps(f32::from_bits(bits)) <= 1));
    }

    #[test]
    #[ignore = "two thousand million values: minutes in release, hours in debug"]
    fn at_most_one_ulp_everywhere() {
        assert_eq!(worst(1), 1);
    }

    #[test]
    fn the_ends() {
        assert_eq!(ln(1.0).to_bits(), 0);
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(-0.0), f32::NEG_INFINITY);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        for bad in [-1.0, -1e-45, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
            assert!(ln(bad).is_nan(), "{bad}");
        }
        assert!((ln(f32::from_bits(1)) + 103.278_93).abs() < 1e-4);
        assert_eq!(ln(2.0), core::f32::consts::LN_2);
    }
}
