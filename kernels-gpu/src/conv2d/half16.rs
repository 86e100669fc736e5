//! The 16-bit floats of the tensor-core kernels, and their epilogue: eight channels a thread.

use contract::conv2d::{ABSENT, Activation, Args, finish_cheap};
use contract::num::bf16_to_f32;

use super::epilogue::{Staging, finish_rows as finish_any};
use super::value::Half;
use crate::arch::half::{f16_to_f32, pack_bf16, pack_f16};
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_nc, ld_or_zero_x4, st_x4};
use crate::arch::mma::{mma_bf16, mma_f16};
#[cfg(level_sm_90a)]
use crate::arch::wgmma::{self, Descriptor};

/// A 16-bit float with its instructions.
pub(super) trait Half16 {
    /// `D += A B`, 64 by 64 by 16: see [`crate::arch::wgmma`].
    ///
    /// # Safety
    ///
    /// As there.
    #[cfg(level_sm_90a)]
    unsafe fn product_64(a: Descriptor, b: Descriptor);
    /// The same, 64 by 128 by 16.
    ///
    /// # Safety
    ///
    /// As there.
    #[cfg(level_sm_90a)]
    unsafe fn product_128(a: Descriptor, b: Descriptor);
    /// The same, 64 by 128 by 16, of an mn-major `a` and a k-major `b`; without `add`, `D` was empty.
    ///
    /// # Safety
    ///
    /// As there.
    #[cfg(level_sm_90a)]
    unsafe fn product_lines(a: Descriptor, b: Descriptor, add: bool);
    /// `D += A B`, 128 by 128 by 16, the rows from 64 on to the second half of the accumulators; without `add`, `D` was
    /// empty.
    ///
    /// # Safety
    ///
    /// As there.
    #[cfg(level_sm_90a)]
    unsafe fn product_square(a: [Descriptor; 2], b: Descriptor, add: bool);
    /// The same, 128 by 64 by 16.
    ///
    /// # Safety
    ///
    /// As there.
    #[cfg(level_sm_90a)]
    unsafe fn product_tall(a: [Descriptor; 2], b: Descriptor, add: bool);
    /// `a b + c` of one warp.
    fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
    /// Two numbers rounded into a word.
    fn pack(low: f32, high: f32) -> u32;
    /// The numbers of a word.
    fn unpack(word: u32) -> [f32; 2];
}

/// bfloat16.
pub(super) enum BFloat {}
/// IEEE binary16.
pub(super) enum IeeeHalf {}

impl Half16 for BFloat {
    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_64(a: Descriptor, b: Descriptor) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::bf16_n64::<0, 1>(a, b, true) }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_128(a: Descriptor, b: Descriptor) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::bf16_n128::<0, 1>(a, b, true) }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_lines(a: Descriptor, b: Descriptor, add: bool) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::bf16_n128::<1, 0>(a, b, add) }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_square([a, c]: [Descriptor; 2], b: Descriptor, add: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::bf16_n128::<0, 1>(a, b, add);
            wgmma::bf16_n128_second::<0, 1>(c, b, add);
        }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_tall([a, c]: [Descriptor; 2], b: Descriptor, add: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::bf16_n64::<0, 1>(a, b, add);
            wgmma::bf16_n64_second::<0, 1>(c, b, add);
        }
    }

    #[inline(always)]
    fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        mma_bf16(a, b, c)
    }

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        pack_bf16(low, high)
    }

    #[inline(always)]
    fn unpack(word: u32) -> [f32; 2] {
        [bf16_to_f32(word as u16), bf16_to_f32((word >> 16) as u16)]
    }
}

impl Half16 for IeeeHalf {
    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_64(a: Descriptor, b: Descriptor) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::f16_n64::<0, 1>(a, b, true) }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_128(a: Descriptor, b: Descriptor) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::f16_n128::<0, 1>(a, b, true) }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_lines(a: Descriptor, b: Descriptor, add: bool) {
        // SAFETY: the caller's promise.
        unsafe { wgmma::f16_n128::<1, 0>(a, b, add) }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_square([a, c]: [Descriptor; 2], b: Descriptor, add: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::f16_n128::<0, 1>(a, b, add);
            wgmma::f16_n128_second::<0, 1>(c, b, add);
        }
    }

    #[cfg(level_sm_90a)]
    #[inline(always)]
    unsafe fn product_tall([a, c]: [Descriptor; 2], b: Descriptor, add: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::f16_n64::<0, 1>(a, b, add);
            wgmma::f16_n64_second::<0, 1>(c, b, add);
        }
    }

    #[inline(always)]
    fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        mma_f16(a, b, c)
    }

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        pack_f16(low, high)
    }

    #[inline(always)]
    fn unpack(word: u32) -> [f32; 2] {
        [f16_to_f32(word as u16), f16_to_f32((word >> 16) as u16)]
    }
}

/// Writes `PIXELS` by `CHANNELS` outputs, where they exist.
///
/// # Safety
///
/// As for [`finish_any`].
#[inline(always)]
pub(super) unsafe fn finish_rows<H: Half16, const PIXELS: u32, const CHANNELS: u32>(
    args: &Args,
    part: &Staging,
    thread: u32,
    threads: u32,
) {
    let g = &args.geometry;
    let cheap = args.activation.is_cheap();
    if args.splits > 1 || g.y_step[1] != 1 || g.k % 8 != 0 || !cheap {
        // SAFETY: the caller's promise.
        return unsafe { finish_any::<Half, PIXELS, CHANNELS>(args, part, thread, threads) };
    }
    // A thread keeps to its eight channels: whole rows of threads stand under each other.
    const { assert!(128 % (CHANNELS / 8) == 0) };
    let column = thread % (CHANNELS / 8) * 8;
    let of_group = part.column0 + column;
    if of_group >= g.k {
        return;
    }
    let channel = part.group * g.k + of_group;
    // SAFETY: eight output channels, since k is a multiple of 8.
    let biases = unsafe { eight_biases(args, channel) };
    let mut row = thread / (CHANNELS / 8);
    while row < PIXELS {
        let pixel = part.pixel0 + row;
        if pixel >= g.pixels {
            return;
        }
        let from = part.smem.add(row * part.pitch + column);
        // SAFETY: eight channels of the staging area, 16-byte aligned.
        let sums = unsafe { [from.read_x4(), from.add(4).read_x4()] };
        let at = u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel);
        // SAFETY: eight outputs that belong to this thread, aligned since k is a multiple of 8.
        unsafe { eight::<H>(args, at as usize, sums, &biases) };
        row += threads / (CHANNELS / 8);
    }
}

/// Finishes and writes eight channels of an output, `at` elements from the first.
///
/// # Safety
///
/// `y` and `residual`, if there is one, have them, aligned; they are this thread's.
#[inline(always)]
pub(super) unsafe fn eight<H: Half16>(
    base: &Args,
    at: usize,
    sums: [[f32; 4]; 2],
    biases: &[f32; 8],
) {
    let residual = base.residual.as_ptr().cast::<u16>().wrapping_add(at);
    let has = opaque_here(u32::from(!base.residual.is_null())) != 0;
    // SAFETY: the caller's promise.
    let residual: [u32; 4] = unsafe { ld_or_zero_x4(has, residual.cast_const().cast()) };
    let activation = Activation::from_u32(opaque_here(base.activation as u32));
    let mut words = [0u32; 4];
    let mut j = 0;
    while j < 4 {
        let extra = H::unpack(residual[j]);
        let mut pair = [0.0; 2];
        let mut e = 0;
        while e < 2 {
            let c = 2 * j + e;
            let r = if has { extra[e] } else { ABSENT };
            pair[e] = finish_cheap(sums[c / 4][c % 4], biases[c], r, activation);
            e += 1;
        }
        words[j] = H::pack(pair[0], pair[1]);
        j += 1;
    }
    let y = base.y.as_ptr().cast::<u16>().wrapping_add(at);
    // SAFETY: the caller's promise.
    unsafe { st_x4(y.cast(), words) };
}

/// The biases of eight output channels from `channel` on, or what stands for none.
///
/// # Safety
///
/// They are output channels.
#[inline(always)]
pub(super) unsafe fn eight_biases(base: &Args, channel: u32) -> [f32; 8] {
    let mut biases = [ABSENT; 8];
    if !base.bias.is_null() {
        let bias = base.bias.as_ptr().cast_const().wrapping_add(channel as usize);
        let mut c = 0;
        while c < 8 {
            // SAFETY: one number for each output channel.
            biases[c] = unsafe { ld_nc(bias.wrapping_add(c)) };
            c += 1;
        }
    }
    biases
}
