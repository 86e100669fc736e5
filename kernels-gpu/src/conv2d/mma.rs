//! Tensor cores from sm_80: an implicit matrix product by `mma.sync`, f16 or bf16, `f32` sums.
//!
//! A block keeps [`STAGES`](contract::conv2d::Conv2dMmaBf16::STAGES) steps of 64 terms in shared
//! memory, copied past the registers: `a[pixel][term]` gathered from the image, `b[term][channel]` as
//! packed. Rows are swizzled ([`super::gather`]). Warps hold `WM` pixels by `WN` channels.

use contract::conv2d::{Args, Conv2dMmaBf16, Conv2dMmaF16, MMA_STEP};
use contract::launch::Kernel;

use super::epilogue::Staging;
use super::gather::{ROW_BYTES, Rows, copy_weights, swizzled, together};
use super::half16::{BFloat, Half16, IeeeHalf, finish_rows};
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mma::{ldmatrix_x4, ldmatrix_x4_trans};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, and the pointers of
/// `args` cover the contract's table.
#[inline(always)]
unsafe fn run<
    H: Half16,
    const BM: u32,
    const BN: u32,
    const WARPS_M: u32,
    const WARPS_N: u32,
    const MT: usize,
    const NT: usize,
    const PIECES_A: usize,
    const PIECES_B: usize,
>(
    args: &Args,
) {
    const STAGES: u32 = 3;
    const { assert!(BM == WARPS_M * MT as u32 * 16 && BN == WARPS_N * NT as u32 * 8) };
    let threads = WARPS_M * WARPS_N * 32;
    let g = &args.geometry;
    let (thread, block) = (thread_idx_x(), block_idx_x());
    let (column_tile, rest) = (block % args.column_tiles, block / args.column_tiles);
    let (pixel_tile, rest) = (rest % args.pixel_tiles, rest / args.pixel_tiles);
    let (group, split) = (rest % g.groups, rest / g.groups);
    let (pixel0, column0) = (pixel_tile * BM, column_tile * BN);
    let start = split * args.split_terms;
    let stop = (start + args.split_terms).min(g.terms);
    let steps = (stop - start).div_ceil(MMA_STEP);

    // Gathering: piece `piece` of rows `row + i * apart`, which have the same row % 8.
    let (row, piece, apart) = (thread / 8, thread % 8, threads / 8);
    let x = args.x.as_ptr().cast::<u16>().cast_const();
    let mut rows =
        Rows::<u16, PIECES_A>::new(g, x, group, (pixel0 + row, apart), start + piece * 8);
    let a_to = swizzled(row, piece);
    let across = BN / 8;
    let (b_row, b_piece) = (thread / across, thread % across);
    let column = column0 + b_piece * 8;
    let matrix = group as usize * args.rows as usize * args.columns as usize;
    let w = args.w.as_ptr().cast::<u16>().cast_const();
    let w = (w.wrapping_add(matrix + column as usize), column < args.columns);

    let smem = dynamic_shared_mem::<u8>();
    let stage_bytes = ROW_BYTES * (BM + BN);
    let vectors = together(args.vectors);
    launch_dependents();
    dependency_wait();
    let (warp, lane) = (thread / 32, thread % 32);
    let (warp_m, warp_n) = (warp / WARPS_N * (BM / WARPS_M), warp % WARPS_N * (BN / WARPS_N));
    let mut acc = [[[0.0f32; 4]; NT]; MT];
    // Turn t asks for step t and uses step t - 2.
    let mut turn = opaque(0);
    while turn < steps + STAGES - 1 {
        if turn >= STAGES - 1 {
            wait_group::<{ STAGES - 2 }>();
            sync_threads();
            let a = smem.add((turn + 1) % STAGES * stage_bytes);
            // SAFETY: the stage is there for every thread; nobody writes it before the next barrier.
            unsafe {
                multiply::<H, BN, MT, NT>(&mut acc, a, a.add(BM * ROW_BYTES), warp_m, warp_n, lane);
            }
        }
        if turn < steps {
            let to = smem.add(turn % STAGES * stage_bytes);
            let term = start + turn * MMA_STEP;
            // SAFETY: pieces of this stage, which everybody has read before this turn's barrier.
            unsafe {
                if vectors {
                    rows.copy(g, MMA_STEP, to.add(a_to), apart * ROW_BYTES);
                } else {
                    rows.copy_each(g, term + piece * 8, to.add(a_to), apart * ROW_BYTES);
                }
                copy_weights::<PIECES_B>(
                    w,
                    (args.rows, args.columns),
                    (term, b_row, threads / across),
                    to.add(BM * ROW_BYTES),
                    (b_piece, BN * 2),
                );
            }
        }
        commit_group();
        turn += 1;
    }
    wait_group::<0>();

    // The sums go through shared memory, `[pixel][channel]`, in passes that fit the stages.
    let pitch = BN + 4;
    let floats = smem.cast::<f32>();
    sync_threads();
    let mut i = 0;
    while i < MT {
        let mut j = 0;
        while j < NT {
            let mut half = 0;
            while half < 2 {
                let row = warp_m + 16 * i as u32 + 8 * half + lane / 4;
                let at = floats.add(row * pitch + warp_n + 8 * j as u32 + lane % 4 * 2);
                let d = acc[i][j];
                // SAFETY: inside the staging area; two neighbours of this lane.
                unsafe { at.write_x2([d[2 * half as usize], d[2 * half as usize + 1]]) };
                half += 1;
            }
            j += 1;
        }
        i += 1;
    }
    sync_threads();
    let part =
        Staging { smem: floats, pitch, pixel0, column0, group, split, first: true, last: true };
    // SAFETY: the staging area is written; outputs belong to this block.
    unsafe { finish_rows::<H, BM, BN>(args, &part, thread, threads) };
}

/// Takes the 64 terms of a stage.
///
/// # Safety
///
/// `a` and `b` start a stage that is written and stays so.
#[inline(always)]
unsafe fn multiply<H: Half16, const BN: u32, const MT: usize, const NT: usize>(
    acc: &mut [[[f32; 4]; NT]; MT],
    a: Shared<u8>,
    b: Shared<u8>,
    warp_m: u32,
    warp_n: u32,
    lane: u32,
) {
    let (in_eight, upper, right) = (lane % 8, lane / 8 % 2 * 8, lane / 16);
    let mut k = 0;
    while k < MMA_STEP / 16 {
        let mut x = [[0u32; 4]; MT];
        let mut i = 0;
        while i < MT {
            let row = warp_m + 16 * i as u32 + in_eight + upper;
            // SAFETY: a piece of a row of the stage.
            x[i] = unsafe { ldmatrix_x4(a.add(swizzled(row, 2 * k + right))) };
            i += 1;
        }
        let mut j = 0;
        while j < NT / 2 {
            let row = 16 * k + in_eight + upper;
            let piece = warp_n / 8 + 2 * j as u32 + right;
            // SAFETY: a piece of a row of the stage.
            let w = unsafe { ldmatrix_x4_trans(b.add(row * (BN * 2) + (piece ^ in_eight) * 16)) };
            let mut i = 0;
            while i < MT {
                acc[i][2 * j] = H::mma(x[i], [w[0], w[1]], acc[i][2 * j]);
                acc[i][2 * j + 1] = H::mma(x[i], [w[2], w[3]], acc[i][2 * j + 1]);
                i += 1;
            }
            j += 1;
        }
        k += 1;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty: $bm:literal $bn:literal $wm:literal $wn:literal $mt:literal $nt:literal $pa:literal $pb:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles; the pointers of
        /// `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.pixels == $bm && $kernel::TILE.channels == $bn) };
            const { assert!($kernel::STAGES == 3 && $kernel::SPEC.threads() == $wm * $wn * 32) };
            // SAFETY: the caller's promise.
            unsafe { run::<$ty, $bm, $bn, $wm, $wn, $mt, $nt, $pa, $pb>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dMmaBf16 conv2d_mma_bf16 BFloat: 64 64 2 2 2 4 4 4;
    Conv2dMmaF16 conv2d_mma_f16 IeeeHalf: 64 64 2 2 2 4 4 4;
}
