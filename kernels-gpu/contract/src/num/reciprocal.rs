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

/// `a / b`, rounded, with `reciprocal(b)`, where [`is_middling`] says yes to both: one correction of the product, as compilers
/// have it.
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
}
