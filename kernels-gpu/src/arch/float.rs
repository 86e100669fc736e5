//! Instructions of one thread on `f32` that neither Rust nor LLVM's target has a name for.

/// The larger of two numbers, plus zero above minus zero; NaN if either is NaN.
/// `max.NaN.f32` (sm_80; `max.f32`, `setp.nan.f32` and `selp.b32` below)
#[inline(always)]
pub fn maximum(a: f32, b: f32) -> f32 {
    let larger: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        #[cfg(level_sm_80)]
        core::arch::asm!(
            "max.NaN.f32 {larger}, {a}, {b};",
            larger = out(reg32) larger, a = in(reg32) a, b = in(reg32) b,
            options(pure, nomem, nostack),
        );
        #[cfg(not(level_sm_80))]
        core::arch::asm!(
            "{{",
            ".reg .pred nan;",
            ".reg .b32 number;",
            "setp.nan.f32 nan, {a}, {b};",
            "max.f32 number, {a}, {b};",
            "selp.b32 {larger}, 0x7fffffff, number, nan;",
            "}}",
            larger = out(reg32) larger, a = in(reg32) a, b = in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    larger
}

/// `2^x` to 22 bits, for what has a bound and not fixed bits: results below 2^-126 are 0.
/// `ex2.approx.ftz.f32`
#[inline(always)]
pub fn exp2_approx(x: f32) -> f32 {
    let power: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        core::arch::asm!(
            "ex2.approx.ftz.f32 {power}, {x};",
            power = out(reg32) power, x = in(reg32) x,
            options(pure, nomem, nostack),
        );
    }
    power
}
