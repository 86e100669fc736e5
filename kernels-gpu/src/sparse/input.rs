//! Element types of the weights, and input rows of any of the three.
#![cfg_attr(not(level_sm_75), allow(dead_code))]

use contract::launch::DevPtr;
use contract::num::{RowType, bf16_to_f32};
use contract::sparse::{Conv2dArgs, LinearArgs};

use crate::arch::bitmap::opaque;
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

/// One element of type `x_type`.
///
/// # Safety
///
/// Element `at` of `x` is there to read.
#[inline(always)]
pub(super) unsafe fn load1(x: DevPtr<u8>, x_type: u32, at: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        if x_type == RowType::F32 as u32 {
            return ld(x.cast::<f32>().as_ptr().cast_const().wrapping_add(at));
        }
        let bits = ld_u16(x.cast::<u16>().as_ptr().cast_const().wrapping_add(at));
        if x_type == RowType::F16 as u32 { f16_to_f32(bits) } else { bf16_to_f32(bits) }
    }
}

/// Four neighbours of type `x_type`, when they are aligned to their size.
///
/// # Safety
///
/// As for [`load1`], of all four.
#[inline(always)]
unsafe fn load_vector(x: DevPtr<u8>, x_type: u32, at: usize) -> Option<[f32; 4]> {
    // SAFETY: the caller's promise; the addresses are looked at.
    unsafe {
        if x_type == RowType::F32 as u32 {
            let p = x.cast::<f32>().as_ptr().cast_const().wrapping_add(at);
            return if p.addr().is_multiple_of(16) { Some(ld_x4(p.cast())) } else { None };
        }
        let p = x.cast::<u16>().as_ptr().cast_const().wrapping_add(at);
        let half = x_type == RowType::F16 as u32;
        let widen = |h: u16| if half { f16_to_f32(h) } else { bf16_to_f32(h) };
        if !p.addr().is_multiple_of(8) {
            return None;
        }
        let [a, b]: [u32; 2] = ld_x2(p.cast());
        Some([a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16].map(widen))
    }
}

/// Where the rows `[m, k]` of a product come from.
pub(super) trait Input {
    /// The product.
    fn linear(&self) -> &LinearArgs;

    /// Columns `column .. column + 4` of row `row`, zeros from K on.
    ///
    /// # Safety
    ///
    /// The arguments obey the contract, and `row < m`.
    unsafe fn load4(&self, row: u32, column: u32) -> [f32; 4];
}

impl Input for LinearArgs {
    #[inline(always)]
    fn linear(&self) -> &LinearArgs {
        self
    }

    #[inline(always)]
    unsafe fn load4(&self, row: u32, column: u32) -> [f32; 4] {
        let at = row as usize * self.k as usize + column as usize;
        if column + 4 <= self.k {
            // SAFETY: four elements of the row.
            if let Some(four) = unsafe { load_vector(self.x, self.x_type, at) } {
                return four;
            }
        }
        let mut four = [0.0; 4];
        let mut i = 0;
        while i < 4 {
            if column + (i as u32) < self.k {
                // SAFETY: an element of the row.
                four[i] = unsafe { load1(self.x, self.x_type, at + i) };
            }
            i += 1;
        }
        four
    }
}

impl Input for Conv2dArgs {
    #[inline(always)]
    fn linear(&self) -> &LinearArgs {
        &self.linear
    }

    #[inline(always)]
    unsafe fn load4(&self, row: u32, column: u32) -> [f32; 4] {
        let LinearArgs { x, x_type, k, .. } = self.linear;
        let corner = self.patches.corner(row);
        if self.patches.channels.is_multiple_of(4) {
            if column >= k {
                return [0.0; 4];
            }
            // Four channels of one tap, all of them inside or none.
            let Some(at) = self.patches.element(corner, column) else { return [0.0; 4] };
            // SAFETY: four elements of the input.
            if let Some(four) = unsafe { load_vector(x, x_type, at) } {
                return four;
            }
        }
        let mut four = [0.0; 4];
        let (mut i, end) = (0, opaque(4) as usize);
        while i < end {
            let column = column + i as u32;
            let at = if column < k { self.patches.element(corner, column) } else { None };
            if let Some(at) = at {
                // SAFETY: an element of the input.
                let value = unsafe { load1(x, x_type, at) };
                let mut j = 0;
                while j < 4 {
                    four[j] = if i == j { value } else { four[j] };
                    j += 1;
                }
            }
            i += 1;
        }
        four
    }
}

/// Columns `column .. column + 4` of row `row` as two words, as they are; zeros from K on.
///
/// # Safety
///
/// The arguments obey the contract with `x` of a 16-bit type, and `row < m`.
#[inline(always)]
pub(super) unsafe fn load2(args: &LinearArgs, row: u32, column: u32) -> [u32; 2] {
    let at = row as usize * args.k as usize + column as usize;
    let p = args.x.cast::<u16>().as_ptr().cast_const().wrapping_add(at);
    if column + 4 <= args.k && p.addr().is_multiple_of(8) {
        // SAFETY: four elements of the row, aligned.
        return unsafe { ld_x2(p.cast()) };
    }
    let mut words = [0; 2];
    let mut i = 0;
    while i < 4 {
        if column + (i as u32) < args.k {
            // SAFETY: an element of the row.
            words[i / 2] |= u32::from(unsafe { ld_u16(p.wrapping_add(i)) }) << (16 * (i % 2));
        }
        i += 1;
    }
    words
}
