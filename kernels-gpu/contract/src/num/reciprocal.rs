//! Reciprocals without branches, of numbers that are neither tiny nor huge.
//!
//! A GPU has no division instruction. What compilers emit for `/` branches on the range of its operands,
//! once for each division, which keeps a thread from working on several at a time; here the range is
//! known.

/// `1 / b`, rounded to nearest even, for `b` from 1 to 2^126; of no meaning for others.
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
