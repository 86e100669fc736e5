//! Elements of activations, as the convolution kernels read and write them.

use core::marker::PhantomData;

use contract::num::{RowType, bf16_to_f32, f32_to_bf16, f32_to_f16};

use crate::arch::half::f16_to_f32;
#[cfg(level_sm_80)]
use crate::arch::half::{pack_bf16, pack_f16};
use crate::arch::mem::{ld_if, ld_or_zero_x2, ld_or_zero_x4, ld_u16_if, st, st_u16, st_x2, st_x4};
#[cfg(level_sm_80)]
use crate::arch::shared::Shared;

/// An element that is widened to `f32` exactly and rounded from it once. `kind` is its type.
pub(super) trait Value: Copy {
    /// One element as it lies in memory.
    type Raw: Copy;

    /// One element, +0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: `p` is a global address of a readable element that no other thread writes
    /// meanwhile.
    unsafe fn load_raw(enabled: bool, p: *const Self) -> Self::Raw;

    /// Its value.
    fn widen_raw(kind: RowType, raw: Self::Raw) -> f32;

    /// [`Value::load_raw`] and [`Value::widen_raw`].
    ///
    /// # Safety
    ///
    /// As for [`Value::load_raw`].
    #[inline(always)]
    unsafe fn load(kind: RowType, enabled: bool, p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        Self::widen_raw(kind, unsafe { Self::load_raw(enabled, p) })
    }

    /// Four elements as they lie in memory: few registers while a load is under way.
    type Four: Copy;

    /// Four elements, +0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// As for [`Value::load`], of four, aligned to their size.
    unsafe fn load_four(enabled: bool, p: *const Self) -> Self::Four;

    /// Their values.
    fn widen_four(kind: RowType, four: Self::Four) -> [f32; 4];

    /// Four elements of shared memory.
    ///
    /// # Safety
    ///
    /// `at` is four of the block's, aligned to their size, that nobody writes meanwhile.
    #[cfg(level_sm_80)]
    unsafe fn read_four(kind: RowType, at: Shared<Self>) -> [f32; 4];

    /// Two elements as they lie in memory.
    #[cfg(level_sm_80)]
    type Two: Copy;

    /// Two elements of shared memory.
    ///
    /// # Safety
    ///
    /// `at` is two of the block's, aligned to their size, that nobody writes meanwhile.
    #[cfg(level_sm_80)]
    unsafe fn read_two(at: Shared<Self>) -> Self::Two;

    /// Two elements, +0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// As for [`Value::load`], of two, aligned to their size.
    #[cfg(level_sm_80)]
    unsafe fn load_two(enabled: bool, p: *const Self) -> Self::Two;

    /// Their values.
    #[cfg(level_sm_80)]
    fn widen_two(kind: RowType, two: Self::Two) -> [f32; 2];

    /// Rounds and writes two neighbours.
    ///
    /// # Safety
    ///
    /// As for [`Value::store`], of two, aligned to their size.
    #[cfg(level_sm_80)]
    unsafe fn store2(kind: RowType, p: *mut Self, values: [f32; 2]);

    /// [`Value::load_four`] and [`Value::widen_four`].
    ///
    /// # Safety
    ///
    /// As for [`Value::load_four`].
    #[inline(always)]
    unsafe fn load4(kind: RowType, enabled: bool, p: *const Self) -> [f32; 4] {
        // SAFETY: the caller's promise.
        Self::widen_four(kind, unsafe { Self::load_four(enabled, p) })
    }

    /// Rounds and writes.
    ///
    /// # Safety
    ///
    /// `p` is a global address of a writable element that no other thread accesses meanwhile.
    unsafe fn store(kind: RowType, p: *mut Self, value: f32);

    /// Rounds and writes four neighbours.
    ///
    /// # Safety
    ///
    /// As for [`Value::store`], of four, aligned to their size.
    unsafe fn store4(kind: RowType, p: *mut Self, values: [f32; 4]);
}

impl Value for f32 {
    type Raw = f32;

    #[inline(always)]
    unsafe fn load_raw(enabled: bool, p: *const Self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { ld_if(enabled, p) }
    }

    #[inline(always)]
    fn widen_raw(_: RowType, raw: f32) -> f32 {
        raw
    }

    type Four = [f32; 4];

    #[inline(always)]
    unsafe fn load_four(enabled: bool, p: *const Self) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { ld_or_zero_x4(enabled, p.cast()) }
    }

    #[inline(always)]
    fn widen_four(_: RowType, four: [f32; 4]) -> [f32; 4] {
        four
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn read_four(_: RowType, at: Shared<Self>) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { at.read_x4() }
    }

    #[cfg(level_sm_80)]
    type Two = [f32; 2];

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn read_two(at: Shared<Self>) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe { at.read_x2() }
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn load_two(enabled: bool, p: *const Self) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe { ld_or_zero_x2(enabled, p.cast()) }
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    fn widen_two(_: RowType, two: [f32; 2]) -> [f32; 2] {
        two
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn store2(_: RowType, p: *mut Self, values: [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { st_x2(p.cast(), values) }
    }

    #[inline(always)]
    unsafe fn store(_: RowType, p: *mut Self, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { st(p, value) }
    }

    #[inline(always)]
    unsafe fn store4(_: RowType, p: *mut Self, values: [f32; 4]) {
        // SAFETY: the caller's promise.
        unsafe { st_x4(p.cast(), values) }
    }
}

/// Which 16-bit float a [`Sixteen`] is.
pub(super) trait Format: Copy {
    /// The number that `bits` are.
    fn widen(kind: RowType, bits: u16) -> f32;

    /// The bits of a number, rounded.
    fn round(kind: RowType, value: f32) -> u16;

    /// Two numbers rounded into a word.
    #[inline(always)]
    fn pair(kind: RowType, low: f32, high: f32) -> u32 {
        u32::from(Self::round(kind, low)) | u32::from(Self::round(kind, high)) << 16
    }
}

/// The one that `kind` says: one kernel serves both.
#[derive(Clone, Copy)]
pub(super) enum OfKind {}

impl OfKind {
    /// All ones for f16, zeros for bf16: chooses without a branch, which would double unrolled code.
    #[inline(always)]
    fn mask(kind: RowType) -> u32 {
        0u32.wrapping_sub(kind as u32)
    }
}

impl Format for OfKind {
    #[inline(always)]
    fn widen(kind: RowType, bits: u16) -> f32 {
        let (f16, bf16) = (f16_to_f32(bits).to_bits(), bf16_to_f32(bits).to_bits());
        f32::from_bits(f16 & Self::mask(kind) | bf16 & !Self::mask(kind))
    }

    #[inline(always)]
    fn round(kind: RowType, value: f32) -> u16 {
        let (f16, bf16) = (f32_to_f16(value), f32_to_bf16(value));
        f16 & Self::mask(kind) as u16 | bf16 & !Self::mask(kind) as u16
    }
}

/// One of them, for kernels whose code would be twice as long otherwise. `kind` plays no part.
#[derive(Clone, Copy)]
pub(super) enum Only<const F16: bool> {}

impl<const F16: bool> Format for Only<F16> {
    #[inline(always)]
    fn widen(_: RowType, bits: u16) -> f32 {
        if F16 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
    }

    #[inline(always)]
    fn round(_: RowType, value: f32) -> u16 {
        if F16 { f32_to_f16(value) } else { f32_to_bf16(value) }
    }

    /// By one instruction.
    #[cfg(level_sm_80)]
    #[inline(always)]
    fn pair(_: RowType, low: f32, high: f32) -> u32 {
        if F16 { pack_f16(low, high) } else { pack_bf16(low, high) }
    }
}

/// A 16-bit float.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Sixteen<F>(u16, PhantomData<F>);

/// A 16-bit float, which `kind` says.
pub(super) type Half = Sixteen<OfKind>;

/// A 16-bit float of one type.
pub(super) type One<const F16: bool> = Sixteen<Only<F16>>;

impl<F: Format> Value for Sixteen<F> {
    type Raw = u16;

    #[inline(always)]
    unsafe fn load_raw(enabled: bool, p: *const Self) -> u16 {
        // SAFETY: the caller's promise.
        unsafe { ld_u16_if(enabled, p.cast()) }
    }

    #[inline(always)]
    fn widen_raw(kind: RowType, raw: u16) -> f32 {
        F::widen(kind, raw)
    }

    type Four = [u32; 2];

    #[inline(always)]
    unsafe fn load_four(enabled: bool, p: *const Self) -> [u32; 2] {
        // SAFETY: the caller's promise.
        unsafe { ld_or_zero_x2(enabled, p.cast()) }
    }

    #[inline(always)]
    fn widen_four(kind: RowType, [a, b]: [u32; 2]) -> [f32; 4] {
        [a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16].map(|bits| F::widen(kind, bits))
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn read_four(kind: RowType, at: Shared<Self>) -> [f32; 4] {
        // SAFETY: the caller's promise.
        Self::widen_four(kind, unsafe { at.cast::<u32>().read_x2() })
    }

    #[cfg(level_sm_80)]
    type Two = u32;

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn read_two(at: Shared<Self>) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<u32>().read() }
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn load_two(enabled: bool, p: *const Self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { ld_if(enabled, p.cast()) }
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    fn widen_two(kind: RowType, two: u32) -> [f32; 2] {
        [two as u16, (two >> 16) as u16].map(|bits| F::widen(kind, bits))
    }

    #[cfg(level_sm_80)]
    #[inline(always)]
    unsafe fn store2(kind: RowType, p: *mut Self, [low, high]: [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { st(p.cast(), F::pair(kind, low, high)) }
    }

    #[inline(always)]
    unsafe fn store(kind: RowType, p: *mut Self, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { st_u16(p.cast(), F::round(kind, value)) }
    }

    #[inline(always)]
    unsafe fn store4(kind: RowType, p: *mut Self, values: [f32; 4]) {
        let [a, b, c, d] = values;
        // SAFETY: the caller's promise.
        unsafe { st_x2(p.cast(), [F::pair(kind, a, b), F::pair(kind, c, d)]) }
    }
}
