//! The depthwise kernels for windows of 3 by 3 taps, steps of 1 or 2, zero padding, channels side by
//! side: bound by memory. A thread makes four channels of a block of [`TAPS_ROWS`] by [`TAPS_PIXELS`]
//! outputs, reads every input of that block once, and takes the taps in the contract's order.

use contract::conv2d::{
    ABSENT, Activation, Args, Conv2dTaps3Bf16, Conv2dTaps3F16, Conv2dTaps3F32, TAPS_PIXELS,
    TAPS_ROWS, TAPS_THREADS, finish, finish_cheap,
};
use contract::launch::Kernel;
use contract::num::fma;

use super::epilogue::{bias, residual};
use super::value::{One, Value};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, thread_idx_x};

const ROWS: usize = TAPS_ROWS as usize;
const PIXELS: usize = TAPS_PIXELS as usize;

/// `COLUMNS`: what a row of outputs reads, `STEP * (PIXELS - 1) + 3`.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC`, windows are 3 by 3 with both steps `STEP` and no dilation,
/// `vectors` holds, and the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn three<T: Value, const STEP: usize, const COLUMNS: usize>(args: &Args) {
    let g = &args.geometry;
    let quads = g.groups / 4;
    let across = g.out[1].div_ceil(TAPS_PIXELS);
    let down = g.out[0].div_ceil(TAPS_ROWS);
    let at = block_idx_x() * TAPS_THREADS + thread_idx_x();
    let (quad, rest) = (at % quads, at / quads);
    let (q0, rest) = (rest % across * TAPS_PIXELS, rest / across);
    let (p0, image) = (rest % down * TAPS_ROWS, rest / down);
    let channel = quad * 4;

    let x = args.x.as_ptr().cast::<T>().cast_const();
    // Threads past the last block of outputs read the last image and write nothing.
    let exists = image < args.images;
    let image = image.min(args.images - 1);
    let x = x.wrapping_add((u64::from(image) * g.x_image) as usize + channel as usize);
    let w = args.w.as_ptr().cast::<T>().cast_const().wrapping_add(channel as usize);
    let w0 = q0 as i32 * g.stride[1] - g.pad[1];
    launch_dependents();
    dependency_wait();

    let mut taps = [[0.0f32; 4]; 9];
    let mut tap = 0;
    while tap < 9 {
        let row = w.wrapping_add(tap * args.columns as usize);
        // SAFETY: w[tap, channel..channel + 4].
        taps[tap] = unsafe { T::load4(args.element, true, row) };
        tap += 1;
    }
    let mut acc = [[[0.0f32; 4]; PIXELS]; ROWS];
    let mut line = 0;
    while line < (ROWS - 1) * STEP + 3 {
        let h = p0 as i32 * g.stride[0] - g.pad[0] + line as i32;
        let row = x.wrapping_add((h as u32).wrapping_mul(g.x_step[0]) as usize);
        let mut input = [[0.0f32; 4]; COLUMNS];
        let mut j = 0;
        while j < COLUMNS {
            let column = w0 + j as i32;
            let inside =
                (h as u32) < g.edges[0].len as u32 && (column as u32) < g.edges[1].len as u32;
            let at = row.wrapping_add((column as u32).wrapping_mul(g.x_step[1]) as usize);
            // SAFETY: four channels of a pixel of the image, aligned (`vectors`).
            input[j] = unsafe { T::load4(args.element, inside, at) };
            j += 1;
        }
        let mut p = 0;
        while p < ROWS {
            if line >= p * STEP && line < p * STEP + 3 {
                let mut s = 0;
                while s < 3 {
                    let taps = &taps[(line - p * STEP) * 3 + s];
                    let mut q = 0;
                    while q < PIXELS {
                        let mut c = 0;
                        while c < 4 {
                            acc[p][q][c] = fma(input[q * STEP + s][c], taps[c], acc[p][q][c]);
                            c += 1;
                        }
                        q += 1;
                    }
                    s += 1;
                }
            }
            p += 1;
        }
        line += 1;
    }

    let rows = if exists { TAPS_ROWS.min(g.out[0] - p0) } else { 0 };
    let pixels = TAPS_PIXELS.min(g.out[1] - q0);
    let activation = args.activation;
    if activation.is_cheap() {
        let mut biases = [0.0; 4];
        let mut c = 0;
        while c < 4 {
            // SAFETY: an output channel.
            biases[c] = unsafe { bias(args, channel + c as u32) };
            c += 1;
        }
        let mut i = 0;
        while i < ROWS * PIXELS {
            let (p, q) = ((i / PIXELS) as u32, (i % PIXELS) as u32);
            if p < rows && q < pixels {
                let pixel = (p0 + p) * g.out[1] + q0 + q;
                let at = u64::from(image) * g.y_image + u64::from(pixel * g.y_step[0] + channel);
                let residual = args.residual.as_ptr().cast::<T>().cast_const();
                // Opaque, because LLVM would copy all of this for every kind of epilogue.
                let has = opaque_here(u32::from(!args.residual.is_null())) != 0;
                let activation = Activation::from_u32(opaque_here(activation as u32));
                // SAFETY: as large as y.
                let residual =
                    unsafe { T::load4(args.element, has, residual.wrapping_add(at as usize)) };
                let mut out = [0.0; 4];
                let mut c = 0;
                while c < 4 {
                    let residual = if has { residual[c] } else { ABSENT };
                    out[c] = finish_cheap(
                        acc[p as usize][q as usize][c],
                        biases[c],
                        residual,
                        activation,
                    );
                    c += 1;
                }
                let y = args.y.as_ptr().cast::<T>().wrapping_add(at as usize);
                // SAFETY: four channels of one output, which belong to this thread.
                unsafe { T::store4(args.element, y, out) };
            }
            i += 1;
        }
        return;
    }
    // Through shared memory of this thread alone, so that there is one copy of the activation.
    let own = dynamic_shared_mem::<f32>().add(thread_idx_x() * 4);
    let slot = |i: usize| own.add(i as u32 * TAPS_THREADS * 4);
    let mut i = 0;
    while i < ROWS * PIXELS {
        // SAFETY: ROWS * PIXELS slots of four for each thread.
        unsafe { slot(i).write_x4(acc[i / PIXELS][i % PIXELS]) };
        i += 1;
    }
    let mut p = 0;
    while p < rows {
        let mut q = 0;
        while q < pixels {
            let slot = slot((p * TAPS_PIXELS + q) as usize);
            let pixel = (p0 + p) * g.out[1] + q0 + q;
            let at = u64::from(image) * g.y_image + u64::from(pixel * g.y_step[0] + channel);
            // One channel at a time, so that there is one copy of the activations.
            let (count, mut c) = (opaque_here(4), 0);
            while c < count {
                // SAFETY: written above by this thread; an output channel; as large as y.
                unsafe {
                    let slot = slot.add(c);
                    let bias = bias(args, channel + c);
                    let residual = residual::<T>(args, at as usize + c as usize);
                    let activation = Activation::from_u32(args.activation as u32);
                    slot.write(finish(slot.read(), bias, residual, activation));
                }
                c += 1;
            }
            let y = args.y.as_ptr().cast::<T>().wrapping_add(at as usize);
            // SAFETY: four channels of one output, which belong to this thread.
            unsafe { T::store4(args.element, y, slot.read_x4()) };
            q += 1;
        }
        p += 1;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty;)*) => { $(
        /// # Safety
        ///
        /// As for the general kernels; moreover `contract::conv2d::taps3_blocks` gives the grid.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the caller's promise.
            unsafe {
                if args.geometry.stride[0] == 1 {
                    three::<$ty, 1, { PIXELS + 2 }>(&args)
                } else {
                    three::<$ty, 2, { 2 * PIXELS + 1 }>(&args)
                }
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTaps3F32 conv2d_taps3_f32 f32;
    Conv2dTaps3F16 conv2d_taps3_f16 One<true>;
    Conv2dTaps3Bf16 conv2d_taps3_bf16 One<false>;
}
