//! Integer kernels without tensor cores.
//!
//! A step is 64 terms in 16 words: `a[word][pixel]` and `b[word][channel]` in shared memory, four
//! terms a word, for dp4a. Sums are exact, so the order of the terms does not matter.

use contract::conv2d::int8::{Args, DOT_PITCH, DOT_STEP};
use contract::conv2d::{Conv2dI8, Conv2dTernary};
use contract::launch::Kernel;

use super::int8_finish::finish_rows;
use super::int8_weights::{Bytes, Ternaries, Weights};
use super::tap_words;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::tile::simt::{Dot4, multiply, zeros};

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
