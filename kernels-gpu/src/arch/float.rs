//! Instructions of one thread on `f32` that neither Rust nor LLVM's target has a name for.

/// The larger of two numbers, plus zero above minus zero; NaN if either is NaN.
/// `max.NaN.f32` (sm_80; compared below)
#[inline(always)]
pub fn maximum(a: f32, b: f32) -> f32 {
    #[cfg(level_sm_80)]
    {
        let larger: f32;
        // SAFETY: arithmetic on registers.
        unsafe {
            core::arch::asm!(
                "max.NaN.f32 {larger}, {a}, {b};",
                larger = out(reg32) larger, a = in(reg32) a, b = in(reg32) b,
                options(pure, nomem, nostack),
            );
        }
        larger
    }
    #[cfg(not(level_sm_80))]
    contract::pool2d::max(a, b)
}
