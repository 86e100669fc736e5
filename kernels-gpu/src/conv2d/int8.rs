//! Integer kernels without tensor cores, and the epilogue of both kinds.
//!
//! A step is 64 terms in 16 words: `a[word][pixel]` and `b[word][channel]` in shared memory, four
//! terms a word, for dp4a. Sums are exact, so the order of the terms does not matter.

use contract::conv2d::int8::{Args, DOT_PITCH, DOT_STEP, ternary_bytes};
use contract::conv2d::{ABSENT, Activation, Conv2dI8, Conv2dTernary, finish, finish_cheap};
use contract::launch::Kernel;
use contract::w2a8::dequantise;

use super::tap_words;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_if, ld_nc, ld_nc_if, ld_or_zero_x4, st, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::tile::simt::{Dot4, multiply, zeros};

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
        // SAFETY: the caller's promise.
        let word: u32 = unsafe { ld_if(enabled, row.wrapping_add(term as usize / 16)) };
        // The word of a row that is not there has the code of -1; nobody writes what it gives.
        [0, 2, 4, 6].map(|shift| ternary_bytes(word >> shift))
    }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, and the pointers of
/// `args` cover the contract's table.
#[inline(always)]
unsafe fn run<W: Weights>(args: &Args) {
    const SIDE: u32 = 64;
    let g = &args.geometry;
    let (thread, block) = (thread_idx_x(), block_idx_x());
    let (column_tile, rest) = (block % args.column_tiles, block / args.column_tiles);
    let (pixel_tile, group) = (rest % args.pixel_tiles, rest / args.pixel_tiles);
    let (pixel0, column0) = (pixel_tile * SIDE, column_tile * SIDE);

    // A thread carries 16 terms of one pixel and of one channel.
    let (row, quad) = (thread / 4, thread % 4);
    let (image, h, w) = g.corner((pixel0 + row).min(g.pixels - 1));
    let at = u64::from(image) * g.x_image + u64::from(group * g.c * g.x_step[2]);
    let image = args.x.as_ptr().cast_const().wrapping_add(at as usize);
    let column = column0 + row;
    let channel = group * g.k + column.min(g.k - 1);
    let weights = args.w.as_ptr().cast_const();
    let weights = weights.wrapping_add(channel as usize * args.row_words as usize);

    let (warp, lane) = (thread / 32, thread % 32);
    let tm = (warp / 2 * 4 + (lane >> 1 & 1 | lane >> 3 & 2)) * 4;
    let tn = (warp % 2 * 8 + (lane & 1 | lane >> 1 & 6)) * 4;
    let smem = dynamic_shared_mem::<u32>();
    let half = DOT_STEP / 4 * DOT_PITCH;
    launch_dependents();
    dependency_wait();

    let mut sums = zeros::<Dot4, 1, 1>();
    let mut turn = 0;
    // Each turn gathers one step, uses the one before it, and stores what it gathered.
    loop {
        let term = turn * DOT_STEP;
        let (mut x, mut y) = ([0; 4], [0; 4]);
        if term < g.terms {
            // SAFETY: a pixel of the table; rows are multiples of a step.
            unsafe {
                x = tap_words(g, args.vectors, image, (h, w), term + quad * 16);
                y = W::load16(true, weights, term + quad * 16);
            }
        }
        if turn > 0 {
            let a = smem.add((turn - 1) % 2 * 2 * half);
            let (a, b) = (a.add(tm), a.add(half + tn));
            // SAFETY: the step is written, and nobody writes it before the next barrier.
            unsafe {
                multiply::<Dot4, { DOT_STEP / 4 }, 1, 1>(
                    &mut sums,
                    (a, DOT_PITCH, 0),
                    (b, DOT_PITCH, 0),
                );
            }
        }
        if term >= g.terms {
            break;
        }
        let a = smem.add(turn % 2 * 2 * half + quad * 4 * DOT_PITCH + row);
        let mut i = 0;
        while i < 4 {
            // SAFETY: words quad * 4 + i of this row, in the place that nobody reads now.
            unsafe {
                a.add(i * DOT_PITCH).write(x[i as usize]);
                a.add(half + i * DOT_PITCH).write(y[i as usize]);
            }
            i += 1;
        }
        sync_threads();
        turn += 1;
    }
    sync_threads();
    let mut i = 0;
    while i < 4 {
        // SAFETY: rows and columns of the staging area.
        unsafe {
            smem.add((tm + i) * (SIDE + 4) + tn).write_x4(sums[0][i as usize][0].map(|v| v as u32))
        };
        i += 1;
    }
    sync_threads();
    // SAFETY: the staging area is written; outputs belong to this block.
    unsafe {
        finish_rows::<W, SIDE, SIDE>(args, smem, SIDE + 4, (pixel0, column0, group), thread, 256);
    }
}

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
            let y = args.y.as_ptr().wrapping_add(at);
            let mut bits = sum;
            if W::TERNARY {
                let (image, _) = g.by_image.div_rem(pixel);
                let scales = args.scales.as_ptr().cast_const();
                let bias = args.bias.as_ptr().cast_const().wrapping_add(channel as usize);
                let residual = args.residual.as_ptr().cast_const().wrapping_add(at);
                let has_bias = opaque_here(u32::from(!args.bias.is_null())) != 0;
                let has_residual = opaque_here(u32::from(!args.residual.is_null())) != 0;
                // SAFETY: a number for each image and each output channel; as large as y.
                let (scale, b, r) = unsafe {
                    (
                        ld_nc(scales.wrapping_add(image as usize)),
                        ld_nc_if(has_bias, bias),
                        ld_if(has_residual, residual),
                    )
                };
                let value = dequantise(sum as i32, scale, args.segments.scale_of(channel));
                let b = if has_bias { b } else { ABSENT };
                let r = if has_residual { r } else { ABSENT };
                let activation = Activation::from_u32(opaque_here(args.activation as u32));
                bits = finish(value, b, r, activation).to_bits();
            }
            // SAFETY: y[pixel, channel] belongs to this thread.
            unsafe { st(y, bits) };
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
            let residual = args.residual.as_ptr().cast_const().wrapping_add(at[i]);
            let scale = args.scales.as_ptr().cast_const().wrapping_add(image as usize);
            // SAFETY: the staging area; a number for each image; four channels of a pixel, aligned.
            unsafe {
                sums[i] = smem.add(of_tile * pitch + column).read_x4();
                scales[i] = ld_nc(scale);
                extra[i] = ld_or_zero_x4(has, residual.cast());
            }
            i += 1;
        }
        let mut i = 0;
        while i < ROWS {
            let of_tile = row + i as u32 * apart;
            if of_tile < PIXELS && pixel0 + of_tile < g.pixels {
                let mut out = [0u32; 4];
                let mut c = 0;
                while c < 4 {
                    let value = dequantise(sums[i][c] as i32, scales[i], weight_scales[c]);
                    let r = if has { extra[i][c] } else { ABSENT };
                    out[c] = finish_cheap(value, biases[c], r, activation).to_bits();
                    c += 1;
                }
                // SAFETY: four outputs that belong to this thread.
                unsafe { st_x4(args.y.as_ptr().wrapping_add(at[i]).cast(), out) };
            }
            i += 1;
        }
        row += ROWS as u32 * apart;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles; the pointers of
        /// `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the caller's promise.
            unsafe { run::<$ty>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dI8 conv2d_i8 Bytes;
    Conv2dTernary conv2d_ternary Ternaries;
}
