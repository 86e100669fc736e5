//! What the optimiser must not know.

use core::arch::asm;

/// `value`, of which LLVM knows nothing: a loop from or to it stays one loop. `mov.b32`
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let out: u32;
    // SAFETY: copies a register.
    unsafe {
        asm!(
            "mov.b32 {out}, {value};",
            out = out(reg32) out, value = in(reg32) value,
            options(pure, nomem, nostack),
        );
    }
    out
}

/// The same, and each call gives a value of its own: a condition on it stays inside of its loop, which
/// LLVM would otherwise copy for every outcome.
#[inline(always)]
pub fn opaque_here(value: u32) -> u32 {
    let out: u32;
    // SAFETY: copies a register. Not `pure`, so that no two calls are one.
    unsafe {
        asm!(
            "mov.b32 {out}, {value};",
            out = out(reg32) out, value = in(reg32) value,
            options(nomem, nostack),
        );
    }
    out
}

/// The loop that begins with this stays as it is, where the assembler would make several turns one. `.pragma "nounroll"`
#[inline(always)]
pub fn rolled() {
    // SAFETY: no instruction.
    unsafe { asm!(".pragma \"nounroll\";", options(nomem, nostack)) };
}
