//! `exp` by range reduction and a polynomial.
//!
//! `x = k ln 2 + r` with `|r| <= ln 2 / 2`; `e^r = 1 + r + r^2 q(r)` with `q` of degree 4
//! (minimax, 0.05 units of 2^-24); `2^k` in two factors, so that a subnormal result rounds once at
//! the end. Within 1 ulp of the correctly rounded result over the whole range, monotone at the ends:
//! 0 from -104 down, infinity from 89 up, `exp(0) = 1`, NaN for NaN.

use super::{fma, round::MAGIC};

const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
// ln 2 = LN2_HI + LN2_LO; x - k * LN2_HI is exact in one fma, since both are multiples of 2^-25.
pub(super) const LN2_HI: f32 = f32::from_bits(0x3f31_7218);
pub(super) const LN2_LO: f32 = -1.904_654_2e-9;

// q(r) = (e^r - 1 - r) / r^2, degree 4, from the highest power down.
const Q4: f32 = f32::from_bits(0x3ab6_da13);
const Q3: f32 = f32::from_bits(0x3c09_1dab);
const Q2: f32 = f32::from_bits(0x3d2a_aa2f);
const Q1: f32 = f32::from_bits(0x3e2a_aa47);
const Q0: f32 = 0.5;

/// `e^x`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Past these bounds the result is 0 or infinity anyway; NaN passes through both tests.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = fma(x, LOG2_E, MAGIC);
    let kf = shifted - MAGIC;
    let k = shifted.to_bits().wrapping_sub(MAGIC.to_bits()) as i32;

    let r = fma(-kf, LN2_LO, fma(-kf, LN2_HI, x));
    let q = fma(fma(fma(fma(Q4, r, Q3), r, Q2), r, Q1), r, Q0);
    let e = 1.0 + fma(r * r, q, r);

    let half = k >> 1;
    let scale = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    e * scale(half) * scale(k.wrapping_sub(half))
}

/// Below this [`exp_nonpositive`] is zero: the last number whose exponential is normal.
const SMALLEST: f32 = f32::from_bits(0xc2ae_ac4f);

/// `e^x` in two factors: what the polynomial gives, from 0.7 to 1.42, and `k` in the low bits of a word.
#[inline(always)]
fn factors(x: f32) -> (f32, u32) {
    let shifted = fma(x, LOG2_E, MAGIC);
    let kf = shifted - MAGIC;
    let r = fma(-kf, LN2_LO, fma(-kf, LN2_HI, x));
    let q = fma(fma(fma(fma(Q4, r, Q3), r, Q2), r, Q1), r, Q0);
    // The bits of MAGIC vanish when this is shifted into the exponent.
    (1.0 + fma(r * r, q, r), shifted.to_bits())
}

/// `e^x` with the bits of [`exp`], from -87 to 88; NaN stays NaN, other results mean nothing.
#[inline(always)]
pub(super) fn exp_normal(x: f32) -> f32 {
    let (e, k) = factors(x);
    e * f32::from_bits((k << 23).wrapping_add(0x3f80_0000))
}

/// `1 + e^x`, the sum rounded once, for `x` from -60 to 87; other results mean nothing.
#[inline(always)]
pub fn one_plus_exp(x: f32) -> f32 {
    let (e, k) = factors(x);
    fma(e, f32::from_bits((k << 23).wrapping_add(0x3f80_0000)), 1.0)
}

/// `factor * e^(-(square + rest) / 2)` for a `square` of at most 176.1 and a small `rest`: rounded four times, and zero
/// where the exponential is below 2^-126.5.
#[inline(always)]
pub(super) fn exp_minus_half(square: f32, rest: f32, factor: f32) -> f32 {
    let shifted = fma(square, -0.5 * LOG2_E, MAGIC);
    let kf = shifted - MAGIC;
    // -2 r, so that nothing has to be halved: the coefficients are.
    let u = fma(kf, 2.0 * LN2_LO, fma(kf, 2.0 * LN2_HI, square)) + rest;
    let q = fma(fma(fma(fma(Q4 / 64.0, u, Q3 / -32.0), u, Q2 / 16.0), u, Q1 / -8.0), u, Q0 / 4.0);
    let e = fma(fma(q, u, -0.5), u, 1.0);
    // 2^k; the exponent of 2^-127 is that of zero.
    factor * e * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// [`exp_nonpositive`] of a number or minus infinity: one addition to the exponent. The result for NaN means
/// nothing.
#[inline(always)]
pub fn exp_number_nonpositive(x: f32) -> f32 {
    let (e, k) = factors(x);
    let e = f32::from_bits(e.to_bits().wrapping_add(k << 23));
    if x < SMALLEST { 0.0 } else { e }
}

/// `e^x` for `x <= 0`: [`exp`], but zero where that is subnormal. NaN gives NaN.
///
/// What softmax takes: beside the largest term, which is 1, nothing of 2^-126 counts.
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    let e = exp_normal(x);
    if x < SMALLEST { 0.0 } else { e }
}

// (2^f - 1) / f for |f| <= 1 / 2, degree 3, from the highest power down (minimax, relative to 2^f, 2^-18.4).
const H3: f32 = f32::from_bits(0x3c1d_0162);
const H2: f32 = f32::from_bits(0x3d64_fe23);
const H1: f32 = f32::from_bits(0x3e76_01bc);
const H0: f32 = f32::from_bits(0x3f31_7096);

/// `2^(x rate)` in two factors, right to 2^-17: a number from 0.7 to 1.42, and a power of two, which is zero instead
/// of 2^-127. For `x rate` from -127.4 to 127.
#[inline(always)]
pub(super) fn half_factors(x: f32, rate: f32) -> (f32, f32) {
    let shifted = fma(x, rate, MAGIC);
    let f = fma(x, rate, MAGIC - shifted);
    let e = fma(fma(fma(fma(H3, f, H2), f, H1), f, H0), f, 1.0);
    (e, f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000)))
}

/// `e^x` for `x <= 0`, right to 2^-17 and 1 at 0: for sums and quotients that are rounded to 16 bits. Zero below
/// 2^-126.5. NaN gives 0.
#[inline(always)]
pub fn exp_half_nonpositive(x: f32) -> f32 {
    let (e, scale) = half_factors(x.max(-88.0), LOG2_E);
    e * scale
}

/// `e^(-square / 2)` in two factors, as [`half_factors`], for a `square` of 0 to 176.5.
#[inline(always)]
pub(super) fn half_minus_half(square: f32) -> (f32, f32) {
    half_factors(square, -0.5 * LOG2_E)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::max;

    #[test]
    fn the_half_exponential_is_right_to_seventeen_bits() {
        for bits in ((-0.0f32).to_bits()..=(-87.6f32).to_bits()).step_by(997) {
            let x = f32::from_bits(bits);
            let (found, want) = (f64::from(exp_half_nonpositive(x)), f64::from(x).exp());
            assert!((found / want - 1.0).abs() < 1.0 / 131_072.0, "{x}: {found} {want}");
        }
        assert_eq!(exp_half_nonpositive(0.0), 1.0);
        assert_eq!(exp_half_nonpositive(-0.0), 1.0);
        for x in [-87.7, -88.5, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp_half_nonpositive(x).to_bits(), 0, "{x}");
        }
    }

    /// Distance in representable numbers between `exp(x)` and the rounded `f64` result.
    fn ulps(x: f32) -> u32 {
        let want = f64::from(x).exp() as f32;
        exp(x).to_bits().abs_diff(want.to_bits())
    }

    fn worst(step: usize) -> u32 {
        let negative = (-0.0f32).to_bits()..=(-104.0f32).to_bits();
        let positive = 0..=89.0f32.to_bits();
        let all = negative.step_by(step).chain(positive.step_by(step));
        all.map(|bits| ulps(f32::from_bits(bits))).max().unwrap_or(0)
    }

    #[test]
    fn at_most_one_ulp_on_a_dense_stride() {
        assert!(worst(997) <= 1);
        // All of the subnormal results and all around the overflow.
        let tail = 87.0f32.to_bits()..=89.0f32.to_bits();
        assert!(tail.clone().step_by(3).all(|b| ulps(f32::from_bits(b)) <= 1));
        let under = (-87.0f32).to_bits()..=(-104.0f32).to_bits();
        assert!(under.step_by(7).all(|b| ulps(f32::from_bits(b)) <= 1));
    }

    #[test]
    #[ignore = "two thousand million values: a minute in release, an hour in debug"]
    fn at_most_one_ulp_everywhere() {
        assert_eq!(worst(1), 1);
    }

    #[test]
    fn the_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(-104.0).to_bits(), 0);
        assert_eq!(exp(-1e30).to_bits(), 0);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(-103.5).to_bits(), 1, "the smallest subnormal");
    }

    /// Vector I of the model's arithmetic.
    #[test]
    fn softmax_of_known_rows() {
        let soft = |x: [f32; 4]| {
            let m = x.iter().fold(f32::NEG_INFINITY, |m, &v| max(m, v));
            let e = x.map(|v| exp(v - m));
            let l = e.iter().sum::<f32>();
            e.map(|v| v / l)
        };
        let close = |a: [f32; 4], b: [f32; 4]| a.iter().zip(b).all(|(x, y)| (x - y).abs() < 6e-8);
        let want = [0.032_058_604, 0.087_144_32, 0.236_882_8, 0.643_914_3];
        assert!(close(soft([1.0, 2.0, 3.0, 4.0]), want));
        let masked = soft([1000.0, 1001.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
        assert!(close(masked, [0.268_941_4, 0.731_058_6, 0.0, 0.0]));
        assert_eq!(masked[2].to_bits(), 0);
    }

    /// Vector J of the model's arithmetic, up to the sub-norm and its quantisation.
    #[test]
    fn gated_unit_of_the_known_row() {
        use crate::num::{abs, act_scale, quantise, recip_sqrt, relu2, sum_squares};
        let gate = [1.5f32, -0.5, 2.0, 0.25];
        let up = [2.0f32, 3.0, -1.0, 4.0];
        let f: [f32; 4] = core::array::from_fn(|i| relu2(gate[i]) * up[i]);
        assert_eq!(f, [4.5, 0.0, -4.0, 0.25]);
        let r = recip_sqrt(sum_squares(&f) / 4.0 + 1e-5);
        let y = f.map(|v| v * r);
        let want = [1.493_530_9f32, 0.0, -1.327_583, 0.082_973_94];
        assert!(y.iter().zip(want).all(|(a, b)| a.to_bits().abs_diff(b.to_bits()) <= 1), "{y:?}");
        let s = act_scale(y.iter().fold(0.0, |m, &v| max(m, abs(v))));
        assert_eq!(s, 85.033_394);
        assert_eq!(y.map(|v| quantise(v, s)), [127, 0, -113, 7]);
    }

    #[test]
    fn exp_nonpositive_is_exp_down_to_the_smallest_normal_number() {
        let normal = |bits: &u32| exp(f32::from_bits(*bits)) >= f32::MIN_POSITIVE;
        for bits in ((-0.0f32).to_bits()..=(-104.0f32).to_bits()).step_by(997) {
            let x = f32::from_bits(bits);
            let want = if normal(&bits) { exp(x) } else { 0.0 };
            assert_eq!(exp_nonpositive(x).to_bits(), want.to_bits(), "{x}");
            assert_eq!(exp_number_nonpositive(x).to_bits(), want.to_bits(), "{x}");
        }
        let edge = SMALLEST.to_bits();
        assert!(normal(&edge) && !normal(&(edge + 1)));
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp_number_nonpositive(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp_nonpositive(f32::MIN).to_bits(), 0);
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert!(exp_nonpositive(f32::NAN).is_nan() && exp_nonpositive(-f32::NAN).is_nan());
    }
}
