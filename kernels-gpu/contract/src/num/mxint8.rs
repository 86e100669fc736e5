//! MXINT8: blocks of up to 32 numbers, a byte each, that share a power of two.
//!
//! The format of the OCP Microscaling Formats (MX) specification, version 1.0 (section 5.3.4 and 5.4): element `i` of a block is
//! `code[i] * 2^-6 * 2^(scale - 127)`, `code` a two's complement byte, `scale` an E8M0 byte, of which 255 makes every element NaN. Each such
//! number is a bf16, and an f32, exactly.
//!
//! A block is quantised by its largest magnitude `top`: `scale = max(127 + floor(log2(top)), `[`MX_SCALE_MIN`]`)`, and codes are
//! `v * 2^(6 + 127 - scale)`, rounded to the nearest, halves to even, then brought between -127 and 127, so that both signs are alike. A block with
//! a NaN or an infinity has scale 255 and codes of zero. So what is at most `2^-126` becomes 0, and no
//! number of a block is subnormal.

/// Elements that share a scale.
pub const MX_BLOCK: usize = 32;
/// The least scale: half a step of a block, `2^(scale - 134)`, is a normal number.
pub const MX_SCALE_MIN: u32 = 8;
/// The scale of a block without numbers.
pub const MX_SCALE_NAN: u32 = 255;

/// `1.5 * 2^23`: a sum with it has no place for a fraction.
const ROUND: f32 = 12_582_912.0;

/// The scale of a block whose largest magnitude has the bits `top`, which are compared as integers: NaN is above all.
#[inline(always)]
pub const fn mx_scale(top: u32) -> u32 {
    let exponent = top >> 23;
    if exponent > MX_SCALE_MIN { exponent } else { MX_SCALE_MIN }
}

/// The code of `v` in a block of scale `scale`, which [`mx_scale`] gave.
#[inline(always)]
pub const fn mx_code(v: f32, scale: u32) -> i32 {
    if scale == MX_SCALE_NAN {
        return 0;
    }
    // A power of two, normal from scale 6 on; the magnitude is below 128.
    let scaled = v * f32::from_bits((260 - scale) << 23);
    let rounded = (scaled + ROUND).to_bits() as i32 - ROUND.to_bits() as i32;
    if rounded > 127 {
        127
    } else if rounded < -127 {
        -127
    } else {
        rounded
    }
}

/// The number that `code` stands for in a block of scale `scale`.
#[inline(always)]
pub const fn mx_value(code: i8, scale: u8) -> f32 {
    if scale as u32 == MX_SCALE_NAN {
        return f32::NAN;
    }
    let whole = f32::from_bits(ROUND.to_bits().wrapping_add(code as i32 as u32)) - ROUND;
    (whole * (1.0 / 64.0)) * f32::from_bits((scale as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(v: f32, top: f32) -> f32 {
        let scale = mx_scale(top.abs().to_bits());
        mx_value(mx_code(v, scale) as i8, scale as u8)
    }

    #[test]
    fn codes_are_nearest_and_ties_go_to_even() {
        for (v, top, want) in [
            (1.0, 1.0, 1.0),
            (-1.0, 1.0, -1.0),
            (1.999, 1.999, 127.0 / 64.0),
            (-1.999, 1.999, -127.0 / 64.0),
            (0.5 / 64.0, 1.0, 0.0),
            (1.5 / 64.0, 1.0, 2.0 / 64.0),
            (-2.5 / 64.0, 1.0, -2.0 / 64.0),
            (2.6 / 64.0, 1.0, 3.0 / 64.0),
            (0.0, 0.0, 0.0),
            (1e-45, 1e-45, 0.0),
            (f32::MAX, f32::MAX, 127.0 / 64.0 * 2f32.powi(127)),
            (f32::MIN_POSITIVE, f32::MIN_POSITIVE, 0.0),
            (1.1 * f32::MIN_POSITIVE, f32::MIN_POSITIVE, 2.0 * f32::MIN_POSITIVE),
        ] {
            assert_eq!(kept(v, top), want, "{v} of {top}");
        }
        assert!(kept(1.0, f32::INFINITY).is_nan() && kept(0.0, f32::NAN).is_nan());
    }

    /// Also what is kept of what was kept, and that it is a normal bf16.
    #[test]
    fn every_number_is_within_half_a_step() {
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let top = f32::from_bits(bits & 0x7fff_ffff);
            let v = top
                * f32::from_bits(0x3f00_0000 | bits >> 9)
                * if bits & 1 == 0 { 1.0 } else { -0.3 };
            if !top.is_finite() {
                continue;
            }
            let (scale, k) = (mx_scale(top.to_bits()), kept(v, top));
            let step = 2f64.powi(scale as i32 - 133);
            let limit = 127.0 * step;
            let want = f64::from(v).clamp(-limit, limit);
            assert!((f64::from(k) - want).abs() <= step / 2.0, "{v} of {top}: {k}");
            assert_eq!(k, kept(k, top));
            assert_eq!(k.to_bits() & 0xffff, 0);
            assert!(k == 0.0 || k.is_normal());
        }
    }
}
