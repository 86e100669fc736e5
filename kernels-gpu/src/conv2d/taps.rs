//! The depthwise kernels for any window: one input channel for each output channel, an output at a
//! time. The lanes of a warp are neighbours in memory.

use contract::conv2d::{
    Args, CHUNK, Conv2dTapsF32, Conv2dTapsHalf, TAPS_SIDE, TAPS_THREADS, finish,
};
use contract::launch::Kernel;
use contract::num::fma;

use super::epilogue::{bias, residual};
use super::value::{Half, Value};
use crate::arch::grid::{dependency_wait, launch_dependents};
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
    launch_dependents();
    dependency_wait();
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

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, in the layout of
        /// taps; the pointers of `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the caller's promise.
            unsafe { any::<$ty>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTapsF32 conv2d_taps_f32 f32;
    Conv2dTapsHalf conv2d_taps_half Half;
}
