//! Element types of the weights, and input rows of any of the three.

use contract::launch::DevPtr;
use contract::num::{RowType, bf16_to_f32};

use crate::arch::half::f16_to_f32;
use crate::arch::mem::{ld, ld_u16, ld_x2, ld_x4};

/// Type of the stored values: `PER_UNIT` of them in a word.
pub(super) trait Value {
    const PER_UNIT: usize;
    /// The first and, where there is one, the second.
    fn widen(unit: u32) -> [f32; 2];
}

pub(super) enum Bf16 {}
pub(super) enum F16 {}

impl Value for Bf16 {
    const PER_UNIT: usize = 2;

    #[inline(always)]
    fn widen(unit: u32) -> [f32; 2] {
        [f32::from_bits(unit << 16), f32::from_bits(unit & 0xffff_0000)]
    }
}

impl Value for F16 {
    const PER_UNIT: usize = 2;

    #[inline(always)]
    fn widen(unit: u32) -> [f32; 2] {
        [f16_to_f32(unit as u16), f16_to_f32((unit >> 16) as u16)]
    }
}

impl Value for f32 {
    const PER_UNIT: usize = 1;

    #[inline(always)]
    fn widen(unit: u32) -> [f32; 2] {
        [f32::from_bits(unit), 0.0]
    }
}

/// Column `column` of input row `row`.
///
/// # Safety
///
/// `x` is `[m, k]` of type `x_type`; `row < m` and `column < k`.
#[inline(always)]
pub(super) unsafe fn load1(x: DevPtr<u8>, x_type: u32, row: u32, k: u32, column: u32) -> f32 {
    let at = row as usize * k as usize + column as usize;
    // SAFETY: an element of the row.
    unsafe {
        if x_type == RowType::F32 as u32 {
            return ld(x.cast::<f32>().as_ptr().cast_const().wrapping_add(at));
        }
        let bits = ld_u16(x.cast::<u16>().as_ptr().cast_const().wrapping_add(at));
        if x_type == RowType::F16 as u32 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
    }
}

/// Columns `column .. column + 4` of input row `row`, zeros from `k` on.
///
/// # Safety
///
/// `x` is `[m, k]` of type `x_type`, and `row < m`.
#[inline(always)]
pub(super) unsafe fn load4(x: DevPtr<u8>, x_type: u32, row: u32, k: u32, column: u32) -> [f32; 4] {
    let at = row as usize * k as usize + column as usize;
    let whole = column + 4 <= k;
    // SAFETY: elements below K of the row; vectors only where they fit and are aligned.
    unsafe {
        if x_type == RowType::F32 as u32 {
            let p = x.cast::<f32>().as_ptr().cast_const().wrapping_add(at);
            if whole && p.addr().is_multiple_of(16) {
                return ld_x4(p.cast());
            }
        } else {
            let p = x.cast::<u16>().as_ptr().cast_const().wrapping_add(at);
            let half = x_type == RowType::F16 as u32;
            let widen = |h: u16| if half { f16_to_f32(h) } else { bf16_to_f32(h) };
            if whole && p.addr().is_multiple_of(8) {
                let [a, b]: [u32; 2] = ld_x2(p.cast());
                return [a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16].map(widen);
            }
        }
    }
    let mut four = [0.0; 4];
    let mut i = 0;
    while i < 4 {
        if column + (i as u32) < k {
            // SAFETY: an element of the row.
            four[i] = unsafe { load1(x, x_type, row, k, column + i as u32) };
        }
        i += 1;
    }
    four
}

/// [`load4`] of a 16-bit type, as two words as they are.
///
/// # Safety
///
/// `x` is `[m, k]` of a 16-bit type, and `row < m`.
#[inline(always)]
pub(super) unsafe fn load2(x: DevPtr<u8>, row: u32, k: u32, column: u32) -> [u32; 2] {
    let at = row as usize * k as usize + column as usize;
    let p = x.cast::<u16>().as_ptr().cast_const().wrapping_add(at);
    if column + 4 <= k && p.addr().is_multiple_of(8) {
        // SAFETY: four elements of the row, aligned.
        return unsafe { ld_x2(p.cast()) };
    }
    let mut words = [0; 2];
    let mut i = 0;
    while i < 4 {
        if column + (i as u32) < k {
            // SAFETY: an element of the row.
            words[i / 2] |= u32::from(unsafe { ld_u16(p.wrapping_add(i)) }) << (16 * (i % 2));
        }
        i += 1;
    }
    words
}
