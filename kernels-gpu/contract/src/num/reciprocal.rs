//! Reciprocals without branches, of numbers that are neither tiny nor huge.
//!
//! A GPU has no division instruction. What compilers emit for `/` branches on the range of its operands,
//! once for each division, which keeps a thread from working on several at a time; here the range is
//! known.

/// `1 / b`, rounded to nearest even, for `b` from 2^-64 to 2^126; of no meaning for others.
///
/// One step of Newton's from an estimate that is right to 1 ulp, as compilers have it for `1 / b` (Markstein, 1990).
#[inline(always)]
pub fn reciprocal(b: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        use super::fma;
        let y = reciprocal_estimate(b);
        fma(y, fma(-b, y, 1.0), y)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        1.0 / b
    }
}

/// From [`LOW`] to [`HIGH`] no step of the functions below leaves the normal numbers.
const LOW: f32 = 1.0 / (1u128 << 64) as f32;
const HIGH: f32 = (1u128 << 64) as f32;

/// Whether `x` is at least 2^-64 and less than 2^64.
#[inline(always)]
pub const fn is_middling(x: f32) -> bool {
    x.to_bits().wrapping_sub(LOW.to_bits()) < HIGH.to_bits() - LOW.to_bits()
}

/// `a / b`, rounded, with `reciprocal(b)`: one correction of the product. [`is_middling`] says yes to `b`, and to `a` or `-a` if that
/// is not 0; the quotient is not below 2^-100.
///
/// It is right for every such pair. With significands in `[1, 2)` the reciprocal is within 2^-25 of `1 / b`, the product within 1.5
/// units in its last place of the quotient, the remainder within half a unit of its own; so what the last step rounds is within
/// `5 * 2^-48 / b`, or twice that where `a >= b`. The middle between two numbers is `k * 2^-48 / b` from a quotient, or twice that, with
/// a whole `k` that is not 0. So only pairs with `|k| < 6` could come out wrong, and a test divides them all.
#[inline(always)]
pub fn quotient(a: f32, b: f32, reciprocal: f32) -> f32 {
    use super::fma;
    let q = a * reciprocal;
    fma(fma(-b, q, a), reciprocal, q)
}

/// `1 / sqrt(x)`, root and quotient each rounded, where [`is_middling`] says yes to `x`: the steps of compilers without their
/// branches. Compared with theirs for every such `x` on an H200.
#[inline(always)]
pub fn recip_sqrt_middling(x: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        use super::fma;
        let y = recip_sqrt_estimate(x);
        let root = x * y;
        let root = fma(fma(-root, root, x), y * 0.5, root);
        reciprocal(root)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        super::recip_sqrt(x)
    }
}

#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn recip_sqrt_estimate(x: f32) -> f32 {
    unsafe extern "C" {
        #[link_name = "llvm.nvvm.rsqrt.approx.ftz.f"]
        fn rsqrt_approx(x: f32) -> f32;
    }
    // SAFETY: arithmetic on registers.
    unsafe { rsqrt_approx(x) }
}

#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn reciprocal_estimate(b: f32) -> f32 {
    unsafe extern "C" {
        #[link_name = "llvm.nvvm.rcp.approx.ftz.f"]
        fn rcp_approx(b: f32) -> f32;
    }
    // SAFETY: arithmetic on registers.
    unsafe { rcp_approx(b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_those_of_a_division() {
        let mut bits = 1u32;
        let mut next = || {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(LOW.to_bits() + (bits >> 2))
        };
        for i in 0..500_000u32 {
            let (x, k) = (next(), (i % 7168 + 1) as f32);
            assert!(is_middling(x) && is_middling(k));
            assert_eq!(quotient(x, k, reciprocal(k)).to_bits(), (x / k).to_bits(), "{x} {k}");
            assert_eq!(quotient(127.0, x, reciprocal(x)).to_bits(), (127.0 / x).to_bits(), "{x}");
        }
        for x in [0.0, f32::MIN_POSITIVE, -1.0, HIGH, f32::INFINITY, f32::NAN] {
            assert!(!is_middling(x), "{x}");
        }
    }

    /// For every significand `b` those `a` with `a 2^s - b M = k`, `M` whole, for the `k` that the bound leaves, and more.
    #[test]
    fn quotients_near_the_middle_are_rounded_correctly() {
        let inverse_of_power = |s: u32, odd: u64| {
            let (mut result, mut base, mut left) = (1 % odd, odd.div_ceil(2) % odd, s);
            while left > 0 {
                if left % 2 == 1 {
                    result = result * base % odd;
                }
                (base, left) = (base * base % odd, left / 2);
            }
            result
        };
        let mut compared = 0;
        for b in 1u64 << 23..1 << 24 {
            let (y, twos) = (reciprocal(b as f32), b.trailing_zeros());
            // `k` is a multiple of the power of two in `b`.
            if twos > 2 {
                continue;
            }
            let odd = b >> twos;
            // Quotients from 1 on, and below.
            for s in [24, 25] {
                let inverse = inverse_of_power(s - twos, odd);
                for k in (-6i64..=6).filter(|&k| k != 0 && k.trailing_zeros() >= twos) {
                    let mut a = (k >> twos).rem_euclid(odd as i64) as u64 * inverse % odd;
                    a += (1u64 << 23).saturating_sub(a).div_ceil(odd) * odd;
                    while a < 1 << 24 {
                        let (x, z) = (a as f32, b as f32);
                        assert_eq!(quotient(x, z, y).to_bits(), (x / z).to_bits(), "{a} {b}");
                        compared += 1;
                        a += odd;
                    }
                }
            }
        }
        assert!(compared > 100_000_000);
    }
}
