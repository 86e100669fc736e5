//! The depthwise kernels for any window: one input channel for each output channel, an output at a
//! time. The lanes of a warp are neighbours in memory. Where channels are side by side and windows 3, 5
//! or 7 wide, a thread takes four channels of four outputs, which share the columns that it reads.

use contract::conv2d::{
    ABSENT, Activation, Args, CHUNK, Conv2dTapsF32, Conv2dTapsHalf, TAPS_FOUR, TAPS_SIDE,
    TAPS_THREADS, finish, finish_cheap,
};
use contract::launch::Kernel;
use contract::num::{RowType, fma};

use super::epilogue::{bias, residual};
use super::value::{Half, One, Value};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// # Safety
///
/// The launch obeys the kernel's `SPEC` and the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn any<T: Value>(args: &Args) {
    let g = &args.geometry;
    let (lane, warp) = (thread_idx_x() % 32, thread_idx_x() / 32);
    let block = block_idx_x();
    let channels = g.k * g.groups;
    let (channel0, pixel0) =
        (block % args.column_tiles * TAPS_SIDE, block / args.column_tiles * TAPS_SIDE);
    let channels_first = g.y_step[1] == 1;
    let mut i = warp;
    while i < TAPS_SIDE {
        let (across, along) = if channels_first { (lane, i) } else { (i, lane) };
        let (channel, pixel) = (channel0 + across, pixel0 + along);
        if channel < channels && pixel < g.pixels {
            let (image, h, w) = g.corner(pixel);
            let c = channel / g.k;
            let x = args.x.as_ptr().cast::<T>().cast_const();
            let x = x.wrapping_add((u64::from(image) * g.x_image) as usize);
            let x = x.wrapping_add((c * g.x_step[2]) as usize);
            let taps = args.w.as_ptr().cast::<T>().cast_const().wrapping_add(channel as usize);
            let (mut acc, mut total) = (0.0f32, 0.0f32);
            let mut tap = 0;
            while tap < g.terms {
                if tap > 0 && tap % CHUNK as u32 == 0 {
                    total = if tap == CHUNK as u32 { acc } else { total + acc };
                    acc = 0.0;
                }
                let (r, s) = g.by_s.div_rem(tap);
                let pixel = g.pixel(h, w, r, s);
                // SAFETY: a pixel of channel c of the image.
                let value = unsafe {
                    T::load(
                        args.element,
                        pixel.is_some(),
                        x.wrapping_add(pixel.unwrap_or(0) as usize),
                    )
                };
                let weight = taps.wrapping_add(tap as usize * args.columns as usize);
                // SAFETY: w[tap, channel].
                acc = fma(value, unsafe { T::load(args.element, true, weight) }, acc);
                tap += 1;
            }
            let sum = if g.terms > CHUNK as u32 { total + acc } else { acc };
            let at = g.output(pixel, channel) as usize;
            // SAFETY: as large as y, and an output channel.
            let (residual, bias) = unsafe { (residual::<T>(args, at), bias(args, channel)) };
            let value = finish(sum, bias, residual, args.activation);
            // SAFETY: y[pixel, channel] belongs to this thread.
            unsafe { T::store(args.element, args.y.as_ptr().cast::<T>().wrapping_add(at), value) };
        }
        i += TAPS_THREADS / 32;
    }
}

/// Four channels of [`TAPS_FOUR`] outputs of a row a thread, windows `S` wide in steps of `STEP`, which read
/// `COLUMNS` columns.
///
/// # Safety
///
/// As for [`any`]; `taps_fours` holds.
#[inline(always)]
unsafe fn fours<T: Value, const S: usize, const STEP: usize, const COLUMNS: usize>(args: &Args) {
    const { assert!(COLUMNS == (TAPS_FOUR as usize - 1) * STEP + S) };
    let g = &args.geometry;
    let quads = g.groups / 4;
    let at = block_idx_x() * TAPS_THREADS + thread_idx_x();
    let (channel, rest) = (at % quads * 4, at / quads);
    let (q0, rest) = (rest % args.pixel_tiles * TAPS_FOUR, rest / args.pixel_tiles);
    let (p, image) = (rest % g.out[0], rest / g.out[0]);
    if image >= args.images {
        return;
    }
    let x = args.x.as_ptr().cast::<T>().cast_const();
    let x = x.wrapping_add((u64::from(image) * g.x_image) as usize + channel as usize);
    let [edge_h, edge_w] = g.edges;
    // Offsets of the columns, all ones where there is none.
    let w0 = q0 as i32 * STEP as i32 - g.pad[1];
    let mut columns = [u32::MAX; COLUMNS];
    let mut j = 0;
    while j < COLUMNS {
        // Columns behind the last output may be so far behind the image that there is no reflection.
        let wanted = j < S || q0 + ((j - S) / STEP) as u32 + 1 < g.out[1];
        let w = if wanted { edge_w.source(w0 + j as i32) } else { -1 };
        columns[j] = if w < 0 { u32::MAX } else { w as u32 * g.x_step[1] };
        j += 1;
    }
    let mut weights = args.w.as_ptr().cast::<T>().cast_const().wrapping_add(channel as usize);
    let mut sums = [[0.0f32; 4]; TAPS_FOUR as usize];
    let rows = g.taps / S as u32;
    let mut r = 0;
    while r < rows {
        let h = edge_h.source(p as i32 * g.stride[0] + r as i32 * g.dilation[0] - g.pad[0]);
        let line = x.wrapping_add((h.max(0) as u32 * g.x_step[0]) as usize);
        let (mut pixels, mut taps) = ([[0.0f32; 4]; COLUMNS], [[0.0f32; 4]; S]);
        let mut j = 0;
        while j < COLUMNS {
            let there = h >= 0 && columns[j] != u32::MAX;
            // SAFETY: four channels of a pixel of the image.
            pixels[j] =
                unsafe { T::load4(args.element, there, line.wrapping_add(columns[j] as usize)) };
            j += 1;
        }
        let mut s = 0;
        while s < S {
            // SAFETY: w[tap, channel..channel + 4].
            taps[s] = unsafe { T::load4(args.element, true, weights) };
            weights = weights.wrapping_add(args.columns as usize);
            s += 1;
        }
        let mut q = 0;
        while q < TAPS_FOUR as usize {
            let mut s = 0;
            while s < S {
                let mut c = 0;
                while c < 4 {
                    sums[q][c] = fma(pixels[q * STEP + s][c], taps[s][c], sums[q][c]);
                    c += 1;
                }
                s += 1;
            }
            q += 1;
        }
        r += 1;
    }
    // SAFETY: output channels.
    let biases: [f32; 4] = core::array::from_fn(|c| unsafe { bias(args, channel + c as u32) });
    let has = opaque_here(u32::from(!args.residual.is_null())) != 0;
    let silu = opaque_here(u32::from(!args.activation.is_cheap())) != 0;
    let activation = Activation::from_u32(opaque_here(args.activation as u32));
    let pixel = (image * g.out[0] + p) * g.out[1] + q0;
    let mut at = (u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel)) as usize;
    // Counts that the compiler does not know, and what comes next in front: one copy of the body.
    let (count, mut q) = (opaque_here(TAPS_FOUR.min(g.out[1] - q0)), 0);
    while q < count {
        let residual = args.residual.as_ptr().cast::<T>().cast_const().wrapping_add(at);
        // SAFETY: as large as y.
        let residual = unsafe { T::load4(args.element, has, residual) };
        let mut out = [0.0f32; 4];
        let mut c = 0;
        while c < 4 {
            let residual = if has { residual[c] } else { ABSENT };
            out[c] = finish_cheap(sums[0][c], biases[c], residual, activation);
            c += 1;
        }
        let mut c = 0;
        while silu && c < opaque_here(4) {
            out = [out[1], out[2], out[3], Activation::Silu.apply(out[0])];
            c += 1;
        }
        // SAFETY: four channels of one output of this thread.
        unsafe { T::store4(args.element, args.y.as_ptr().cast::<T>().wrapping_add(at), out) };
        sums = [sums[1], sums[2], sums[3], sums[0]];
        at += g.y_step[0] as usize;
        q += 1;
    }
}

/// The general kernel: the form for the shape.
///
/// # Safety
///
/// As for [`any`]; `pixel_tiles` is not 0 only where `taps_fours` holds.
#[inline(always)]
unsafe fn fitting<T: Value>(args: &Args) -> bool {
    launch_dependents();
    dependency_wait();
    // SAFETY: the caller's promise.
    unsafe {
        match (args.pixel_tiles, args.geometry.s, args.geometry.stride[1]) {
            (0, _, _) => return false,
            (_, 3, 1) => fours::<T, 3, 1, 6>(args),
            (_, 3, _) => fours::<T, 3, 2, 9>(args),
            (_, 5, 1) => fours::<T, 5, 1, 8>(args),
            (_, 5, _) => fours::<T, 5, 2, 11>(args),
            (_, _, 1) => fours::<T, 7, 1, 10>(args),
            (_, _, _) => fours::<T, 7, 2, 13>(args),
        }
    }
    true
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty, $($element:ident: $one:ty),*;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, in the layout of
        /// taps (or that of `taps_fours`); the pointers of `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the caller's promise.
            unsafe {
                let done = match args.element {
                    $(RowType::$element => fitting::<$one>(&args),)*
                    #[allow(unreachable_patterns)]
                    _ => false,
                };
                if !done {
                    any::<$ty>(&args);
                }
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTapsF32 conv2d_taps_f32 f32, F32: f32;
    Conv2dTapsHalf conv2d_taps_half Half, F16: One<true>, Bf16: One<false>;
}
