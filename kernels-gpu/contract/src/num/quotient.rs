//! Division without branches, for denominators that are neither tiny nor huge.

/// `a / b`, rounded to nearest even, for `b` from 1 to 2^126 and finite `a`. NaN gives NaN; of no
/// meaning for other `b` and for infinite `a`.
///
/// A GPU has no division instruction. What compilers emit for `/` branches on the range of its operands,
/// once for each division, which keeps a thread from working on several at a time; here the range is
/// known. An estimate of `1 / b`, right to 1 ulp, is refined by Newton's step, and the quotient by its
/// exact remainder, twice: the steps that compilers emit, so the result is the rounded one (Markstein,
/// 1990) whatever the estimate was.
#[inline(always)]
pub fn quotient(a: f32, b: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        use super::fma;
        let y = reciprocal_estimate(b);
        let y = fma(y, fma(-b, y, 1.0), y);
        let q = a * y;
        let q = fma(fma(-b, q, a), y, q);
        let q = fma(fma(-b, q, a), y, q);
        // A remainder of plus zero takes the sign from a quotient of minus zero.
        f32::from_bits(q.to_bits() & 0x7fff_ffff | a.to_bits() & 0x8000_0000)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        a / b
    }
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
