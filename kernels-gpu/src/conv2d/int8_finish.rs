//! The epilogue of the integer kernels: exact sums from shared memory to `y`.

use contract::conv2d::int8::Args;
use contract::conv2d::{ABSENT, Activation, finish, finish_cheap};
use contract::w2a8::dequantise;

use super::int8_value::{residual, residual4, store, store4};
use super::int8_weights::Weights;
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_nc, ld_nc_if, st};
use crate::arch::shared::Shared;

/// Writes a tile of sums from shared memory (`[pixel][channel]`, rows of `pitch`), where outputs
/// exist.
///
/// # Safety
///
/// The staging area is written and a barrier passed; the outputs belong to this block.
#[inline(always)]
pub(super) unsafe fn finish_rows<W: Weights, const PIXELS: u32, const CHANNELS: u32>(
    args: &Args,
    smem: Shared<u32>,
    pitch: u32,
    (pixel0, column0, group): (u32, u32, u32),
    thread: u32,
    threads: u32,
) {
    let g = &args.geometry;
    let channels_first = g.y_step[1] == 1;
    if W::TERNARY && channels_first && g.k % 4 == 0 && args.activation.is_cheap() {
        // SAFETY: the caller's promise.
        return unsafe {
            finish_fours::<PIXELS, CHANNELS>(
                args,
                smem,
                pitch,
                (pixel0, column0, group),
                thread,
                threads,
            );
        };
    }
    let mut i = thread;
    while i < PIXELS * CHANNELS {
        let (row, column) =
            if channels_first { (i / CHANNELS, i % CHANNELS) } else { (i % PIXELS, i / PIXELS) };
        let (pixel, of_group) = (pixel0 + row, column0 + column);
        if pixel < g.pixels && of_group < g.k {
            // SAFETY: inside the staging area.
            let sum = unsafe { smem.add(row * pitch + column).read() };
            let channel = group * g.k + of_group;
            let at = g.output(pixel, channel) as usize;
            if W::TERNARY {
                let (image, _) = g.by_image.div_rem(pixel);
                let scales = args.scales.as_ptr().cast_const();
                let bias = args.bias.as_ptr().cast_const().wrapping_add(channel as usize);
                let has_bias = opaque_here(u32::from(!args.bias.is_null())) != 0;
                let has_residual = opaque_here(u32::from(!args.residual.is_null())) != 0;
                // SAFETY: a number for each image and each output channel; as large as y.
                let (scale, b, r) = unsafe {
                    (
                        ld_nc(scales.wrapping_add(image as usize)),
                        ld_nc_if(has_bias, bias),
                        residual(args, has_residual, at),
                    )
                };
                let value = dequantise(sum as i32, scale, args.segments.scale_of(channel));
                let b = if has_bias { b } else { ABSENT };
                let r = if has_residual { r } else { ABSENT };
                let activation = Activation::from_u32(opaque_here(args.activation as u32));
                // SAFETY: y[pixel, channel] belongs to this thread.
                unsafe { store(args, at, finish(value, b, r, activation)) };
            } else {
                // SAFETY: as above.
                unsafe { st(args.y.as_ptr().cast::<u32>().wrapping_add(at), sum) };
            }
        }
        i += threads;
    }
}

/// [`finish_rows`] for ternary weights and channels side by side: four channels a thread.
///
/// # Safety
///
/// As for [`finish_rows`]; `k` is a multiple of 4.
#[inline(always)]
unsafe fn finish_fours<const PIXELS: u32, const CHANNELS: u32>(
    args: &Args,
    smem: Shared<u32>,
    pitch: u32,
    (pixel0, column0, group): (u32, u32, u32),
    thread: u32,
    threads: u32,
) {
    let g = &args.geometry;
    // A thread keeps to its four channels.
    let column = thread % (CHANNELS / 4) * 4;
    let of_group = column0 + column;
    if of_group >= g.k {
        return;
    }
    let channel = group * g.k + of_group;
    let (mut weight_scales, mut biases) = ([0.0; 4], [ABSENT; 4]);
    let mut c = 0;
    while c < 4 {
        weight_scales[c] = args.segments.scale_of(channel + c as u32);
        if !args.bias.is_null() {
            let bias = args.bias.as_ptr().cast_const().wrapping_add(channel as usize + c);
            // SAFETY: one number for each output channel.
            biases[c] = unsafe { ld_nc(bias) };
        }
        c += 1;
    }
    // Two rows at a time, so that their loads are under way together.
    const ROWS: usize = 2;
    let apart = threads / (CHANNELS / 4);
    let mut row = thread / (CHANNELS / 4);
    while row < PIXELS && pixel0 + row < g.pixels {
        let has = opaque_here(u32::from(!args.residual.is_null())) != 0;
        let activation = Activation::from_u32(opaque_here(args.activation as u32));
        let (mut sums, mut extra) = ([[0u32; 4]; ROWS], [[0.0f32; 4]; ROWS]);
        let (mut scales, mut at) = ([1.0f32; ROWS], [0usize; ROWS]);
        let mut i = 0;
        while i < ROWS {
            // Rows past the last one read the last and are not written.
            let of_tile = (row + i as u32 * apart).min(PIXELS - 1);
            let pixel = (pixel0 + of_tile).min(g.pixels - 1);
            at[i] = (u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel)) as usize;
            let (image, _) = g.by_image.div_rem(pixel);
            let scale = args.scales.as_ptr().cast_const().wrapping_add(image as usize);
            // SAFETY: the staging area; a number for each image; four channels of a pixel, aligned.
            unsafe {
                sums[i] = smem.add(of_tile * pitch + column).read_x4();
                scales[i] = ld_nc(scale);
                extra[i] = residual4(args, has, at[i]);
            }
            i += 1;
        }
        let mut i = 0;
        while i < ROWS {
            let of_tile = row + i as u32 * apart;
            if of_tile < PIXELS && pixel0 + of_tile < g.pixels {
                let mut out = [0.0f32; 4];
                let mut c = 0;
                while c < 4 {
                    let value = dequantise(sums[i][c] as i32, scales[i], weight_scales[c]);
                    let r = if has { extra[i][c] } else { ABSENT };
                    out[c] = finish_cheap(value, biases[c], r, activation);
                    c += 1;
                }
                // SAFETY: four outputs that belong to this thread.
                unsafe { store4(args, at[i], out) };
            }
            i += 1;
        }
        row += ROWS as u32 * apart;
    }
}
