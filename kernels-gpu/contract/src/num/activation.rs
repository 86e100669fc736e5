//! The activation functions of one number.
//!
//! * `relu(x) = max(x, 0)`, `relu2(x) = relu(x)^2`: exact, one rounding.
//! * `silu(x) = x / (1 + e^-x)`.
//! * `gelu(x) = x P(X <= x)` for a standard normal `X` (Hendrycks and Gimpel, 2016), from
//!   [`normal_cdf`]: at most 6 ulp, also far below zero, where `1 + erf` would have lost all digits. [`gelu_half`]
//!   is the same to 2^-14.5, for what is rounded to 16 bits: it takes two thirds of the time.
//! * `gelu_tanh(x) = x / 2 (1 + tanh u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is
//!   `x / (1 + e^-2u)` and is computed so.
//!
//! NaN gives NaN; what is not positive gives plus zero in `relu` and `relu2`. Minus infinity gives minus
//! zero in the others, which is their limit.

use super::exp::{exp_minus_half, half_minus_half, one_plus_exp};
use super::{abs, fma, reciprocal};

/// `max(x, 0)`; plus zero for both zeros, NaN for NaN.
#[inline(always)]
pub const fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// `max(x, 0)^2`, the activation of the 2B-4T family. NaN gives NaN.
#[inline(always)]
pub const fn relu2(x: f32) -> f32 {
    let r = relu(x);
    r * r
}

/// `x / (1 + e^y)` for `y` of the other sign: `x` itself where `y` is below -20, minus zero where it is
/// above 87.
#[inline(always)]
fn logistic(x: f32, y: f32) -> f32 {
    // Below, the sum is 1 already. The product with a NaN is one, whatever the other factor.
    let product = x * reciprocal(one_plus_exp(y.max(-60.0)));
    if y > 87.0 { -0.0 } else { product }
}

/// `x / (1 + exp(-x))`, the activation of SiLU models.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    logistic(x, -x)
}

// -2 sqrt(2 / pi) and that times 0.044715.
const TANH_1: f32 = -1.595_769_2;
const TANH_3: f32 = -0.071_354_814;

/// Gelu in its tanh form: `x / (1 + exp(-2u))`.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    let y = x * fma(x * x, TANH_3, TANH_1);
    logistic(x, y)
}

/// `e^(a^2 / 2) Phi(-a) / t` in `t = 1 / (1 + 3 a / 8)`, for `0 <= a <= 14`, from the highest power down
/// (minimax, relative, 0.19 units of 2^-24).
const TAIL: [f32; 10] = [
    f32::from_bits(0x3cae_23a5),
    f32::from_bits(0xbe0b_2331),
    f32::from_bits(0x3eb2_b927),
    f32::from_bits(0xbedb_d9a8),
    f32::from_bits(0x3e61_1514),
    f32::from_bits(0xbd6e_ca3b),
    f32::from_bits(0x3dde_d18a),
    f32::from_bits(0x3e00_269c),
    f32::from_bits(0x3e19_7f18),
    f32::from_bits(0x3e19_2ebf),
];

/// What bounds the distance from zero: `e^(-a^2 / 2)` is zero from here on.
const FAR: f32 = 13.27;

/// `Phi(-a)` for `0 <= a <= FAR`, `e^(-a^2 / 2) t TAIL(t)`: zero at its end.
#[inline(always)]
fn upper_tail(a: f32) -> f32 {
    let t = reciprocal(fma(0.375, a, 1.0));
    let mut p = TAIL[0];
    let mut i = 1;
    while i < TAIL.len() {
        p = fma(p, t, TAIL[i]);
        i += 1;
    }
    // a^2 = square + rest exactly, so that the exponential loses nothing.
    let square = a * a;
    exp_minus_half(square, fma(a, a, -square), t * p)
}

/// `Phi(x)`, the probability that a standard normal variable is at most `x`, that is
/// `(1 + erf(x / sqrt 2)) / 2`: at most 5 ulp, zero from -13.25 down. NaN gives 1.
#[inline(always)]
pub fn normal_cdf(x: f32) -> f32 {
    let tail = upper_tail(abs(x).min(FAR));
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Gelu, exact form: `x Phi(x)`; minus zero where `Phi` is zero, at minus infinity too.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let a = abs(x).min(FAR);
    // x - x Phi(-x) above zero; the product that is taken away is that of the bounded number, which is zero where
    // it is not `x` itself.
    let above = if x < 0.0 { -0.0 } else { x };
    fma(-a, upper_tail(a), above)
}

/// `TAIL` of degree 4 (minimax, relative, 2^-15.1).
const TAIL_HALF: [f32; 5] = [
    f32::from_bits(0xbdba_a0fc),
    f32::from_bits(0x3e4e_3128),
    f32::from_bits(0x3da9_6dc4),
    f32::from_bits(0x3e21_ca22),
    f32::from_bits(0x3e18_9c0d),
];

/// `Phi(-a)` for `0 <= a <= FAR`, right to 2^-14.5: zero at its end.
#[inline(always)]
pub fn upper_tail_half(a: f32) -> f32 {
    let t = reciprocal(fma(0.375, a, 1.0));
    let mut p = TAIL_HALF[0];
    let mut i = 1;
    while i < TAIL_HALF.len() {
        p = fma(p, t, TAIL_HALF[i]);
        i += 1;
    }
    let (e, scale) = half_minus_half(a * a);
    t * p * e * scale
}

/// [`gelu`] for what is rounded to 16 bits: right to 2^-14.5, with the same ends.
#[inline(always)]
pub fn gelu_half(x: f32) -> f32 {
    let a = abs(x).min(FAR);
    let above = if x < 0.0 { -0.0 } else { x };
    fma(-a, upper_tail_half(a), above)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Phi(x)` in `f64`: the series of Kendall around zero, the continued fraction of the tail.
    fn phi(x: f64) -> f64 {
        let a = x.abs();
        let density = (-0.5 * a * a).exp() / (2.0 * core::f64::consts::PI).sqrt();
        let tail = if a < 3.0 {
            let (mut term, mut sum, mut k) = (a, a, 1.0);
            while term > sum * 1e-18 {
                k += 2.0;
                term *= a * a / k;
                sum += term;
            }
            0.5 - density * sum
        } else {
            density / (1..200).rev().fold(a, |below, k| a + f64::from(k) / below)
        };
        if x < 0.0 { tail } else { 1.0 - tail }
    }

    fn ulps(found: f32, want: f64) -> u32 {
        found.to_bits().abs_diff((want as f32).to_bits())
    }

    /// Every `step`th number from 2^-40 to 15 and down to -13, where gelu is still a normal number.
    fn worst(step: usize, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> (u32, f32) {
        let low = f32::from_bits((127 - 40) << 23).to_bits();
        let all = (low..15.0f32.to_bits()).chain((low | 1 << 31)..(-13.0f32).to_bits());
        let of = |bits: u32| {
            let x = f32::from_bits(bits);
            (ulps(f(x), exact(f64::from(x))), x)
        };
        all.step_by(step).map(of).max_by_key(|(ulps, _)| *ulps).unwrap_or_default()
    }

    #[test]
    fn the_distribution_is_right_to_five_ulp_and_gelu_to_six() {
        let cdf = worst(997, normal_cdf, phi);
        assert!(cdf.0 <= 5, "{cdf:?}");
        let gelu = worst(997, gelu, |x| x * phi(x));
        assert!(gelu.0 <= 6, "{gelu:?}");
    }

    #[test]
    fn gelu_half_is_right_where_sixteen_bits_see_it() {
        let low = f32::from_bits((127 - 40) << 23).to_bits();
        let all = (low..15.0f32.to_bits()).chain((low | 1 << 31)..(-13.0f32).to_bits());
        for x in all.step_by(9973).map(f32::from_bits) {
            let (found, want) = (f64::from(gelu_half(x)), f64::from(x) * phi(f64::from(x)));
            assert!((found / want - 1.0).abs() < 2f64.powf(-14.5), "{x}: {found} {want}");
        }
    }

    #[test]
    fn gelu_tanh_is_right_to_four_ulp_where_tanh_is_not_at_its_end() {
        let exact = |x: f64| {
            let u = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        };
        // The exponential magnifies the rounding of its argument: by 2u below zero.
        let small = |f: fn(f32) -> f32| move |x: f32| if x < -1.0 { 0.0 } else { f(x) };
        let found = worst(997, small(gelu_tanh), |x| if x < -1.0 { 0.0 } else { exact(x) });
        assert!(found.0 <= 4, "{found:?}");
        for x in [-1.5f32, -2.0, -3.0, -5.0, -8.0] {
            let (got, want) = (f64::from(gelu_tanh(x)), exact(f64::from(x)));
            assert!(((got - want) / want).abs() < 1e-5, "{x}: {got} {want}");
        }
    }

    #[test]
    fn known_values_and_ends() {
        assert_eq!(silu(0.0), 0.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 6e-8);
        assert_eq!(silu(-200.0), -0.0);
        assert_eq!(silu(100.0), 100.0);
        assert_eq!((relu(-3.0), relu(3.0), relu2(-3.0), relu2(3.0)), (0.0, 3.0, 0.0, 9.0));
        assert_eq!(relu(-0.0).to_bits(), 0);
        assert!((gelu(1.0) - 0.841_344_7).abs() < 6e-8);
        assert!((gelu_tanh(1.0) - 0.841_192).abs() < 1e-6);
        assert_eq!(normal_cdf(0.0), 0.5);
        let all: [fn(f32) -> f32; 6] = [relu, relu2, silu, gelu, gelu_half, gelu_tanh];
        for f in all {
            assert!(f(f32::NAN).is_nan() && f(-f32::NAN).is_nan());
            assert_eq!(f(f32::INFINITY), f32::INFINITY);
            assert_eq!((f(0.0), f(1e20)), (0.0, if f(3.0) == 9.0 { f32::INFINITY } else { 1e20 }));
            assert_eq!(f(-1e20), 0.0);
        }
        assert_eq!([relu(f32::NEG_INFINITY), relu2(f32::NEG_INFINITY)], [0.0; 2]);
        for f in [silu, gelu, gelu_half, gelu_tanh] {
            assert_eq!(f(f32::NEG_INFINITY).to_bits(), (-0.0f32).to_bits());
            assert_eq!(f(-1e20).to_bits(), (-0.0f32).to_bits());
        }
    }

    #[test]
    fn silu_is_right_to_two_ulp() {
        let exact = |x: f64| x / (1.0 + (-x).exp());
        let found = worst(499, silu, exact);
        assert!(found.0 <= 2, "{found:?}");
        for x in [-86.9f32, -50.0, -20.1, -1.0, -1e-30, -1e-45, 1e-45, 0.3, 19.0, 21.0, 80.0] {
            assert!(ulps(silu(x), exact(f64::from(x))) <= 2, "{x}");
        }
    }
}
