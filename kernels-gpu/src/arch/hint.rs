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
