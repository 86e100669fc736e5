//! The exact kernels: an implicit matrix product, output pixels by output channels.
//!
//! A step of `BK` terms is gathered into registers, widened, and put into shared memory as
//! `a[term][pixel]` and `b[term][channel]` while the step before it is used; no column matrix
//! exists anywhere. A thread holds `TM` pixels by `TN` channels and takes the terms in order, so
//! its accumulators are the contract's chains.
//!
//! Terms past the last: `a` is +0 there and the packed weights are -0, which leaves every sum as it
//! is. After a chunk of 1,024 terms the sums go through shared memory to the epilogue; where more
//! chunks follow, the `f32` output itself holds their sum, written and read by the same thread. In
//! a split launch a block makes one chunk, and `conv2d_join` adds them in order.

use contract::conv2d::{Args, CHUNK, Conv2dF32, Conv2dF32Small, Conv2dHalf, STEP_64, STEP_128};
use contract::launch::Kernel;

use super::epilogue::{Staging, finish_fours, finish_rows};
use super::exact_gather::{Row, gather, weights};
use super::exact_product::multiply;
use super::value::{Half, Value};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, `T` and the tile are
/// the kernel's, and the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn run<
    T: Value,
    const BM: u32,
    const BN: u32,
    const BK: u32,
    const TM: usize,
    const TN: usize,
    const QUADS_A: usize,
    const QUADS_B: usize,
    const STAGED: u32,
    const THROUGH_Y: bool,
>(
    args: &Args,
) {
    const { assert!(TM % 4 == 0 && TN % 4 == 0 && CHUNK as u32 % BK == 0) };
    let threads = BM / TM as u32 * (BN / TN as u32);
    let g = &args.geometry;
    let (thread, block) = (thread_idx_x(), block_idx_x());
    let (column_tile, rest) = (block % args.column_tiles, block / args.column_tiles);
    let (pixel_tile, rest) = (rest % args.pixel_tiles, rest / args.pixel_tiles);
    let (group, split) = (rest % g.groups, rest / g.groups);
    let (pixel0, column0) = (pixel_tile * BM, column_tile * BN);

    // Gathering: term quad `k_quad` of pixels `thread / per_row + i * apart`.
    let per_row = BK / 4;
    let k_quad = thread % per_row * 4;
    let x = args.x.as_ptr().cast::<T>().cast_const();
    let mut rows = [Row { image: x, h: 0, w: 0, tap: 0, inside: false }; QUADS_A];
    let mut i = 0;
    while i < QUADS_A {
        // Pixels past the last one read the last one and are not written.
        let pixel = pixel0 + thread / per_row + i as u32 * (threads / per_row);
        let (image, h, w) = g.corner(pixel.min(g.pixels - 1));
        let at = u64::from(image) * g.x_image + u64::from(group * g.c * g.x_step[2]);
        rows[i] = Row { image: x.wrapping_add(at as usize), h, w, tap: 0, inside: false };
        i += 1;
    }
    // Weights: row `thread / quads + i * apart`, columns `b_column..+ 4`.
    let quads = BN / 4;
    let (b_row, b_column) = (thread / quads, thread % quads * 4);
    let in_matrix = column0 + b_column < args.columns;
    let matrix = group as usize * args.rows as usize * args.columns as usize;
    let w = args.w.as_ptr().cast::<T>().cast_const();
    let w = w.wrapping_add(matrix + (column0 + b_column) as usize);

    let a_pitch = BM + 4;
    let stage = BK * (a_pitch + BN);
    let smem = dynamic_shared_mem::<f32>();

    // Computing: lanes of a warp stand 4 (pixels) by 8 (channels). Lanes that differ in bit 0 read
    // the same pixels, in bit 1 the same channels: shared memory then serves 16 lanes at once.
    let warps_across = BN / TN as u32 / 8;
    let (warp, lane) = (thread / 32, thread % 32);
    let tm = (warp / warps_across * 4 + (lane >> 1 & 1 | lane >> 3 & 2)) * 4;
    let tn = (warp % warps_across * 8 + (lane & 1 | lane >> 1 & 6)) * 4;

    launch_dependents();
    dependency_wait();

    let mut total = [[0.0f32; TN]; TM];
    let start = split * args.split_terms;
    let stop = (start + args.split_terms).min(g.terms);
    let mut chunk = start; // its first term
    while chunk < stop {
        let end = (chunk + CHUNK as u32).min(stop);
        let mut acc = [[0.0f32; TN]; TM];
        let mut buffer = 0;
        let mut term = chunk;
        let mut channel = u32::MAX / 2; // of the step; as large as this: another tap
        // Each turn gathers one step, uses the one before it, and stores what it gathered.
        loop {
            let (mut a_next, mut b_next) = ([[0.0; 4]; QUADS_A], [[0.0; 4]; QUADS_B]);
            if term < end {
                // SAFETY: images of the table; `gather` checks the rest.
                a_next = unsafe {
                    gather::<T, QUADS_A, BK>(args, &mut rows, &mut channel, term + k_quad)
                };
                // SAFETY: the rows of the packed matrix are whole steps.
                b_next =
                    unsafe { weights::<T, QUADS_B, BN>(args, w, in_matrix, term + b_row, threads) };
            }
            if term > chunk {
                let a = smem.add((buffer ^ 1) * stage);
                // SAFETY: the stage is written, and tm, tn are inside of it.
                unsafe {
                    multiply::<BM, BN, BK, TM, TN>(&mut acc, a.add(tm), a.add(BK * a_pitch + tn));
                }
            }
            if term >= end {
                break;
            }
            let a = smem.add(buffer * stage);
            let b = a.add(BK * a_pitch);
            let mut i = 0;
            while i < QUADS_A {
                let row = thread / per_row + i as u32 * (threads / per_row);
                let mut e = 0;
                while e < 4 {
                    // SAFETY: a[k_quad + e][row] of this stage.
                    unsafe { a.add((k_quad + e as u32) * a_pitch + row).write(a_next[i][e]) };
                    e += 1;
                }
                i += 1;
            }
            let mut i = 0;
            while i < QUADS_B {
                let row = b_row + i as u32 * (threads / quads);
                // SAFETY: b[row][b_column..+ 4] of this stage.
                unsafe { b.add(row * BN + b_column).write_x4(b_next[i]) };
                i += 1;
            }
            // One barrier a step: who writes this stage again has passed the barrier of the other
            // stage, and with it everybody's reads of this one.
            sync_threads();
            buffer ^= 1;
            term += BK;
        }
        let (first, last) = (chunk == start, end == stop);
        if !THROUGH_Y && !first {
            let mut i = 0;
            while i < TM {
                let mut j = 0;
                while j < TN {
                    acc[i][j] = total[i][j] + acc[i][j];
                    j += 1;
                }
                i += 1;
            }
        }
        if THROUGH_Y || last {
            let mut from = 0;
            while from < BM / STAGED {
                sync_threads();
                // Rows tm.. of each half (or quarter) of the tile are those of one pass.
                let per_pass = TM as u32 / (BM / STAGED);
                let mut i = 0;
                while i < TM as u32 {
                    if i / per_pass == from {
                        let row = tm + i % 4 + (i / 4) * (BM * 4 / TM as u32) - from * STAGED;
                        let mut j = 0;
                        while j < TN / 4 {
                            let column = tn + j as u32 * (BN * 4 / TN as u32);
                            let v = &acc[i as usize];
                            let quad = [v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]];
                            // SAFETY: row below STAGED, column below BN of the staging area.
                            unsafe { smem.add(row * (BN + 4) + column).write_x4(quad) };
                            j += 1;
                        }
                    }
                    i += 1;
                }
                sync_threads();
                let staging = Staging {
                    smem,
                    pitch: BN + 4,
                    pixel0: pixel0 + from * STAGED,
                    column0,
                    group,
                    split,
                    first: first || !THROUGH_Y,
                    last,
                };
                // SAFETY: the staging area is written; outputs belong to this block.
                unsafe {
                    if !finish_fours::<T, STAGED, BN>(args, &staging, thread, threads) {
                        finish_rows::<T, STAGED, BN>(args, &staging, thread, threads);
                    }
                }
                from += 1;
            }
            sync_threads();
        } else {
            total = acc;
            // The next chunk writes the stage that others may still read.
            sync_threads();
        }
        chunk = end;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty: $bm:literal $bn:literal $bk:ident $tm:literal $tn:literal $qa:literal $qb:literal $through_y:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles; the pointers of
        /// `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.pixels == $bm && $kernel::TILE.channels == $bn) };
            // SAFETY: the caller's promise.
            unsafe {
                run::<$ty, $bm, $bn, $bk, $tm, $tn, $qa, $qb, { $kernel::STAGED }, $through_y>(&args);
            }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dF32 conv2d_f32 f32: 128 64 STEP_128 8 8 2 1 true;
    Conv2dF32Small conv2d_f32_small f32: 64 64 STEP_64 4 4 1 1 false;
    Conv2dHalf conv2d_half Half: 64 64 STEP_64 4 4 1 1 false;
}
