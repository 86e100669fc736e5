//! A word that the compiler knows nothing about.
//!
//! With the unroll threshold that keeps small arrays in registers, LLVM also unrolls loops that
//! should stay loops, and splits them on conditions that do not change: several copies of an
//! epilogue. A trip count or a condition that comes from here stops both.

use core::arch::asm;

/// `word`, by an instruction that is neither moved nor merged. `mov.b32`
#[inline(always)]
pub fn opaque(word: u32) -> u32 {
    let out: u32;
    // SAFETY: copies a register. Not `pure`: each call gives a value of its own.
    unsafe {
        asm!("mov.b32 {out}, {word};", out = out(reg32) out, word = in(reg32) word, options(nomem, nostack));
    }
    out
}
