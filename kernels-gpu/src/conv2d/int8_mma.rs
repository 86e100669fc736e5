//! Integer tensor cores from sm_80: an implicit matrix product by `mma.sync` on bytes.
//!
//! A step is 128 terms, rows of 128 bytes on both sides, swizzled ([`super::gather`]): `a[pixel]`
//! gathered from the image by `cp.async`, `b[channel]` as packed. Ternary weights travel as they are,
//! 2 bits each, through registers: a thread turns the codes of a step into bytes while the step
//! before it is multiplied.

use contract::conv2d::int8::{Args, MMA_STAGES as STAGES, MMA_STEP, ternary_bytes};
use contract::conv2d::{Conv2dI8Mma, Conv2dTernaryMma};
use contract::launch::Kernel;

use super::gather::{ROW_BYTES, Rows, swizzled, together};
use super::int8_finish::finish_rows;
use super::int8_weights::{Bytes, Ternaries, Weights, load64};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mma::{ldmatrix_x4, mma_s8};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, and the pointers of
/// `args` cover the contract's table.
#[inline(always)]
unsafe fn run<
    W: Weights,
    const BM: u32,
    const BN: u32,
    const WARPS_M: u32,
    const WARPS_N: u32,
    const MT: usize,
    const NT: usize,
    const PIECES: usize,
>(
    args: &Args,
) {
    const { assert!(BM == WARPS_M * MT as u32 * 16 && BN == WARPS_N * NT as u32 * 8) };
    let threads = WARPS_M * WARPS_N * 32;
    let g = &args.geometry;
    let (thread, block) = (thread_idx_x(), block_idx_x());
    let (column_tile, rest) = (block % args.column_tiles, block / args.column_tiles);
    let (pixel_tile, group) = (rest % args.pixel_tiles, rest / args.pixel_tiles);
    let (pixel0, column0) = (pixel_tile * BM, column_tile * BN);
    let steps = g.terms.div_ceil(MMA_STEP);

    let (row, piece, apart) = (thread / 8, thread % 8, threads / 8);
    let x = args.x.as_ptr().cast_const();
    let mut rows = Rows::<u8, PIECES>::new(g, x, group, (pixel0 + row, apart), piece * 16);
    // int8: pieces of rows row + i * apart. Ternary: four pieces of row thread / 2.
    let weights = args.w.as_ptr().cast_const();
    let (b_row, b_piece) = if W::TERNARY { (thread / 2, thread % 2 * 4) } else { (row, piece) };
    let channel = group * g.k + (column0 + b_row).min(g.k - 1);
    let own = weights.wrapping_add(channel as usize * args.row_words as usize);

    let smem = dynamic_shared_mem::<u8>();
    let stage_bytes = ROW_BYTES * (BM + BN);
    let vectors = together(args.vectors);
    launch_dependents();
    dependency_wait();

    let (warp, lane) = (thread / 32, thread % 32);
    let (warp_m, warp_n) = (warp / WARPS_N * (BM / WARPS_M), warp % WARPS_N * (BN / WARPS_N));
    let mut acc = [[[0i32; 4]; NT]; MT];
    let begin = opaque(0);
    let mut turn = begin;
    while turn < steps + STAGES - 1 {
        let term = turn * MMA_STEP;
        if turn >= begin + STAGES - 1 {
            wait_group::<{ STAGES - 2 }>();
            sync_threads();
            let a = smem.add((turn + 1) % STAGES * stage_bytes);
            // SAFETY: the stage is there for every thread; nobody writes it before the next barrier.
            unsafe { multiply(&mut acc, a, a.add(BM * ROW_BYTES), warp_m, warp_n, lane) };
        }
        let to = smem.add(turn % STAGES * stage_bytes);
        let mut codes = [0u32; 4];
        if turn < steps {
            let a_to = to.add(swizzled(row, piece));
            let at = term + piece * 16;
            // SAFETY: pieces of this stage, which everybody has read before this turn's barrier.
            unsafe {
                if vectors {
                    rows.copy(g, MMA_STEP, a_to, apart * ROW_BYTES);
                } else {
                    rows.copy_each(g, at, a_to, apart * ROW_BYTES);
                }
            }
            if W::TERNARY {
                let at = term + b_piece * 16;
                // SAFETY: 64 terms of the row, where it has them.
                codes = unsafe { load64(at < args.row_words * 16, own, at) };
            }
            let mut i = 0;
            while i < PIECES && !W::TERNARY {
                let r = row + i as u32 * apart;
                let channel = group * g.k + (column0 + r).min(g.k - 1);
                let from = weights.wrapping_add(channel as usize * args.row_words as usize);
                let from = from.wrapping_add(at as usize / 4);
                let to = to.add(BM * ROW_BYTES + swizzled(r, piece));
                // SAFETY: 16 bytes of the row, where it has them, to a piece of this stage.
                unsafe { copy_x16(to, from, at < args.row_words * 4) };
                i += 1;
            }
        }
        commit_group();
        let mut i = 0;
        while i < 4 && W::TERNARY && turn < steps {
            let to = to.add(BM * ROW_BYTES + swizzled(b_row, b_piece + i));
            let bytes = codes.map(|word| ternary_bytes(word >> (2 * i)));
            // SAFETY: a piece of the stage of this turn, which nobody reads yet.
            unsafe { to.cast::<u32>().write_x4(bytes) };
            i += 1;
        }
        turn += 1;
    }
    wait_group::<0>();
    sync_threads();
    let (words, pitch) = (smem.cast::<u32>(), BN + 4);
    let mut i = 0;
    while i < MT {
        let mut j = 0;
        while j < NT {
            let mut half = 0;
            while half < 2 {
                let row = warp_m + 16 * i as u32 + 8 * half + lane / 4;
                let at = words.add(row * pitch + warp_n + 8 * j as u32 + lane % 4 * 2);
                let d = acc[i][j];
                let pair = [d[2 * half as usize] as u32, d[2 * half as usize + 1] as u32];
                // SAFETY: inside the staging area; two neighbours of this lane.
                unsafe { at.write_x2(pair) };
                half += 1;
            }
            j += 1;
        }
        i += 1;
    }
    sync_threads();
    // SAFETY: the staging area is written; outputs belong to this block.
    unsafe {
        finish_rows::<W, BM, BN>(args, words, pitch, (pixel0, column0, group), thread, threads);
    }
}

/// Takes the 128 terms of a stage.
///
/// # Safety
///
/// `a` and `b` start a stage that is written and stays so.
#[inline(always)]
unsafe fn multiply<const MT: usize, const NT: usize>(
    acc: &mut [[[i32; 4]; NT]; MT],
    a: Shared<u8>,
    b: Shared<u8>,
    warp_m: u32,
    warp_n: u32,
    lane: u32,
) {
    let (in_eight, eight) = (lane % 8, lane / 8);
    let mut k = 0;
    while k < MMA_STEP / 32 {
        let mut x = [[0u32; 4]; MT];
        let mut i = 0;
        while i < MT {
            let row = warp_m + 16 * i as u32 + in_eight + eight % 2 * 8;
            // SAFETY: a piece of a row of the stage.
            x[i] = unsafe { ldmatrix_x4(a.add(swizzled(row, 2 * k + eight / 2))) };
            i += 1;
        }
        let mut j = 0;
        while j < NT / 2 {
            let row = warp_n + 16 * j as u32 + in_eight + eight / 2 * 8;
            // SAFETY: a piece of a row of the stage.
            let w = unsafe { ldmatrix_x4(b.add(swizzled(row, 2 * k + eight % 2))) };
            let mut i = 0;
            while i < MT {
                acc[i][2 * j] = mma_s8(x[i], [w[0], w[1]], acc[i][2 * j]);
                acc[i][2 * j + 1] = mma_s8(x[i], [w[2], w[3]], acc[i][2 * j + 1]);
                i += 1;
            }
            j += 1;
        }
        k += 1;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty: $bm:literal $bn:literal $wm:literal $wn:literal $mt:literal $nt:literal $pieces:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles; the pointers of
        /// `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.pixels == $bm && $kernel::TILE.channels == $bn) };
            // A row of ternaries for two threads, pieces of bytes for eight.
            const { assert!($kernel::SPEC.threads() == 2 * $bn && $bm * 8 == 2 * $bn * $pieces) };
            // SAFETY: the caller's promise.
            unsafe { run::<$ty, $bm, $bn, $wm, $wn, $mt, $nt, $pieces>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dI8Mma conv2d_i8_mma Bytes: 64 64 2 2 2 4 4;
    Conv2dTernaryMma conv2d_ternary_mma Ternaries: 64 64 2 2 2 4 4;
}
