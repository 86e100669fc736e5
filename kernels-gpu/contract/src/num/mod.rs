//! The one arithmetic: what every floating-point number of this project *is*.
//!
//! The functions below are compiled into the PTX and into the CPU backend. Each rounds where its
//! body says and nowhere else, so both sides give the same bits. Three rules hold throughout:
//!
//! * `+ - * /` are IEEE binary32, rounded to nearest even, and are never contracted; a fused
//!   multiply-add stands only where [`fma`] is written. Subnormals are kept.
//! * Nothing here panics, allocates, or reads a table.
//! * A NaN result is a NaN on both sides, but its sign and payload are not part of the contract.
//!   Where a NaN leaves the world of `f32` (quantising, halves, order keys) the result is fixed.

mod activation;
mod attention;
mod exp;
mod half;
mod ln;
mod mxint8;
mod order;
mod philox;
mod quant;
mod reciprocal;
mod round;
mod sum;

pub use activation::{gelu, gelu_half, gelu_tanh, normal_cdf, relu, relu2, silu, upper_tail_half};
pub use attention::{
    BlockSum, KEY_BLOCK, Running, Weights, block_max, block_weights, score, weighted_value,
};
pub use exp::{exp, exp_half_nonpositive, exp_nonpositive, exp_number_nonpositive, one_plus_exp};
pub use half::{RowType, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use ln::ln;
pub use mxint8::{MX_BLOCK, MX_SCALE_MIN, MX_SCALE_NAN, mx_code, mx_scale, mx_value};
pub use order::{order_key, order_value};
pub use philox::{philox4x32, unit};
pub use quant::{
    ABSMAX_FLOOR, ORDINARY_ZERO, abs_bits, act_scale, is_ordinary, quantise, quantise_ordinary,
};
pub use reciprocal::{is_middling, quotient, recip_sqrt_middling, reciprocal};
pub use round::{round_even, round_even_i32};
pub use sum::{
    DOT_PARTIALS, PARTIALS, dot_into, partial, short_dot, strided_sum, sum_into, sum_squares,
    sum_squares_into, take_into, tree, tree8,
};

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    return core::intrinsics::fmaf32(a, b, c);
    #[cfg(not(target_arch = "nvptx64"))]
    a.mul_add(b, c)
}

/// The square root, rounded to nearest even; NaN below zero.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    return core::intrinsics::sqrtf32(x);
    #[cfg(not(target_arch = "nvptx64"))]
    x.sqrt()
}

/// The magnitude: clears the sign bit, of a NaN too.
#[inline(always)]
pub const fn abs(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0x7fff_ffff)
}

/// The larger of a running maximum and a candidate: `x` when `x > acc`, else `acc`.
///
/// A candidate NaN is ignored, so a maximum that starts from a number stays a number. Between zeros
/// of either sign the first stays; no use of `max` here can tell them apart.
#[inline(always)]
pub const fn max(acc: f32, x: f32) -> f32 {
    if x > acc { x } else { acc }
}

/// `1 / sqrt(x)`, the root and the quotient each rounded.
#[inline(always)]
pub fn recip_sqrt(x: f32) -> f32 {
    1.0 / sqrt(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fma_rounds_once() {
        let (a, b) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
        assert_eq!(a * b - 1.0, 0.0, "two roundings lose the tail");
        assert_eq!(fma(a, b, -1.0), -f32::EPSILON * f32::EPSILON);
    }

    #[test]
    fn max_ignores_nan_candidates() {
        assert_eq!(max(1.0, f32::NAN), 1.0);
        assert_eq!(max(1.0, 2.0), 2.0);
        assert_eq!(max(f32::NEG_INFINITY, -3.0), -3.0);
        assert_eq!(abs(-0.0).to_bits(), 0);
    }

    /// Vector H of the model's arithmetic: mean square 7.5, eps 1e-5.
    #[test]
    fn rms_of_the_known_vector() {
        let x = [1.0f32, -2.0, 3.0, -4.0];
        let r = recip_sqrt(sum_squares(&x) / 4.0 + 1e-5);
        assert_eq!(r, 0.365_148_13);
        let y: [f32; 4] = core::array::from_fn(|i| x[i] * r * [1.0, 0.5, 2.0, 1.0][i]);
        assert_eq!(y, [0.365_148_13, -0.365_148_13, 2.190_889, -1.460_592_5]);
        let small = recip_sqrt(sum_squares(&[1e-3; 4]) / 4.0 + 1e-5);
        assert!((small * 1e-3 - 0.301_511_38).abs() < 3e-8, "eps matters: {}", small * 1e-3);
    }
}
