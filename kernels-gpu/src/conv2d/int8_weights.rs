//! The two kinds of weights of the integer kernels.

use contract::conv2d::int8::ternary_bytes;

use crate::arch::mem::ld_or_zero_x4;

/// Integer or ternary weights.
pub(super) trait Weights {
    /// Whether the scales, bias, residual and activation follow.
    const TERNARY: bool;

    /// 16 terms of a row from `term` on (a multiple of 16), as bytes; zeros when `enabled` does not
    /// hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: `row` starts a packed row that has those terms.
    unsafe fn load16(enabled: bool, row: *const u32, term: u32) -> [u32; 4];
}

/// int8 weights, `i32` outputs.
pub(super) enum Bytes {}
/// Ternary weights, `f32` outputs.
pub(super) enum Ternaries {}

impl Weights for Bytes {
    const TERNARY: bool = false;

    #[inline(always)]
    unsafe fn load16(enabled: bool, row: *const u32, term: u32) -> [u32; 4] {
        // SAFETY: the caller's promise; rows are multiples of 64 bytes.
        unsafe { ld_or_zero_x4(enabled, row.wrapping_add(term as usize / 4).cast()) }
    }
}

impl Weights for Ternaries {
    const TERNARY: bool = true;

    #[inline(always)]
    unsafe fn load16(enabled: bool, row: *const u32, term: u32) -> [u32; 4] {
        // SAFETY: the caller's promise; rows are multiples of 64 terms, 16 bytes.
        let words = unsafe { load64(enabled, row, term) };
        words.map(|word| ternary_bytes(word >> (2 * (term / 16 % 4))))
    }
}

/// The words of the 64 ternaries from a multiple of 64 on that hold `term`; zeros when `enabled` does not
/// hold.
///
/// # Safety
///
/// As for [`Weights::load16`], of 64 terms.
#[inline(always)]
pub(super) unsafe fn load64(enabled: bool, row: *const u32, term: u32) -> [u32; 4] {
    // SAFETY: the caller's promise.
    unsafe { ld_or_zero_x4(enabled, row.wrapping_add(term as usize / 64 * 4).cast()) }
}
