//! Outputs and residuals of ternary weights, in one of three types that the arguments say.
//!
//! A thread asks for the type where it reads or writes: the branch is the same for all.

use contract::conv2d::int8::Args;
use contract::num::RowType;

use super::value::{Half, Value};
use crate::arch::hint::opaque_here;

/// Whether outputs are `f32`. Opaque, because LLVM would copy what is around for either answer.
#[inline(always)]
pub(super) fn is_f32(args: &Args) -> bool {
    opaque_here(args.element as u32) == RowType::F32 as u32
}

/// The residual of an output, or 0 when `has` does not hold.
///
/// # Safety
///
/// When `has`: it has that element.
#[inline(always)]
pub(super) unsafe fn residual(args: &Args, has: bool, at: usize) -> f32 {
    let p = args.residual.as_ptr().cast_const();
    // SAFETY: the caller's promise.
    unsafe {
        if is_f32(args) {
            f32::load(RowType::F32, has, p.cast::<f32>().wrapping_add(at))
        } else {
            Half::load(args.element, has, p.cast::<Half>().wrapping_add(at))
        }
    }
}

/// The same of four neighbours.
///
/// # Safety
///
/// As for [`residual`], of four; `at` is a multiple of 4.
#[inline(always)]
pub(super) unsafe fn residual4(args: &Args, has: bool, at: usize) -> [f32; 4] {
    let p = args.residual.as_ptr().cast_const();
    // SAFETY: the caller's promise.
    unsafe {
        if is_f32(args) {
            f32::load4(RowType::F32, has, p.cast::<f32>().wrapping_add(at))
        } else {
            Half::load4(args.element, has, p.cast::<Half>().wrapping_add(at))
        }
    }
}

/// Rounds and writes an output.
///
/// # Safety
///
/// It belongs to this thread.
#[inline(always)]
pub(super) unsafe fn store(args: &Args, at: usize, value: f32) {
    let p = args.y.as_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if is_f32(args) {
            f32::store(RowType::F32, p.cast::<f32>().wrapping_add(at), value);
        } else {
            Half::store(args.element, p.cast::<Half>().wrapping_add(at), value);
        }
    }
}

/// Rounds and writes four neighbours.
///
/// # Safety
///
/// They belong to this thread; `at` is a multiple of 4.
#[inline(always)]
pub(super) unsafe fn store4(args: &Args, at: usize, values: [f32; 4]) {
    let p = args.y.as_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if is_f32(args) {
            f32::store4(RowType::F32, p.cast::<f32>().wrapping_add(at), values);
        } else {
            Half::store4(args.element, p.cast::<Half>().wrapping_add(at), values);
        }
    }
}
