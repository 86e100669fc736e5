//! A Hopper GPU's tensor cores: 128 pixels by 64 or 128 channels by two warpgroups, `wgmma`.
//!
//! A step is 64 terms: `a`, 128 rows of a pixel's 64 terms, gathered from the image; then `b`, for
//! each 64 channels a row of 128 bytes for each term, as packed. Rows are swizzled as
//! [`crate::arch::wgmma`] wants them, which is what [`super::gather`] writes.
//!
//! A ring of `AHEAD + 2` steps: turn `t` multiplies step `t - AHEAD`, asks for step `t`, and waits for
//! the products of the turn before. The place of step `t` is free: it held step `t - AHEAD - 2`, whose
//! products every thread had waited for when it came to the barrier of turn `t`.

use contract::conv2d::{
    Args, Conv2dHopperBf16, Conv2dHopperF16, Conv2dHopperNarrowBf16, Conv2dHopperNarrowF16,
    HOPPER_THREADS as THREADS, MMA_STEP,
};
use contract::launch::Kernel;

use super::epilogue::Staging;
use super::gather::{ROW_BYTES, Rows, copy_weights, swizzled, together};
use super::half16::{BFloat, Half16, IeeeHalf, finish_rows};
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor};

/// Output pixels of a tile.
const BM: u32 = 128;
/// Bytes of 64 channels of a step.
const BLOCK_BYTES: u32 = MMA_STEP * ROW_BYTES;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, and the pointers of
/// `args` cover the contract's table.
#[inline(always)]
unsafe fn run<
    H: Half16,
    const BN: u32,
    const PIECES_B: usize,
    const AHEAD: u32,
    const PENDING: u32,
>(
    args: &Args,
) {
    const { assert!(PENDING == AHEAD - 1) };
    let stages = AHEAD + 2;
    const { assert!(BN == 64 || BN == 128) };
    wgmma::declare();
    clear::<BN>();
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
    let (row, piece, apart) = (thread / 8, thread % 8, THREADS / 8);
    let x = args.x.as_ptr().cast::<u16>().cast_const();
    let mut rows = Rows::<u16, { (BM * 8 / THREADS) as usize }>::new(
        g,
        x,
        group,
        (pixel0 + row, apart),
        start + piece * 8,
    );
    let across = BN / 8;
    let (b_row, b_piece) = (thread / across, thread % across);
    let column = column0 + b_piece * 8;
    let matrix = group as usize * args.rows as usize * args.columns as usize;
    let w = args.w.as_ptr().cast::<u16>().cast_const();
    let w = (w.wrapping_add(matrix + column as usize), column < args.columns);
    let b_to = BM * ROW_BYTES + b_piece / 8 * BLOCK_BYTES;

    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % ATOM_BYTES);
    let stage_bytes = ROW_BYTES * (BM + BN);
    let vectors = together(args.vectors);
    launch_dependents();
    dependency_wait();

    // Opaque, because LLVM would copy the first turns out of the loop.
    let begin = opaque(0);
    let mut turn = begin;
    while turn < steps + AHEAD {
        if turn >= begin + AHEAD {
            wait_group::<PENDING>();
            wgmma::proxy_fence();
            sync_threads();
            let stage = ring.add((turn - AHEAD) % stages * stage_bytes);
            // SAFETY: the step was waited for, fenced and shown by the barrier.
            unsafe { multiply::<H, BN>(stage, thread / 128) };
        }
        if turn < steps {
            let to = ring.add(turn % stages * stage_bytes);
            let term = start + turn * MMA_STEP;
            let a_to = to.add(swizzled(row, piece));
            // SAFETY: pieces of this stage, which is free (see the file's words).
            unsafe {
                if vectors {
                    rows.copy(g, MMA_STEP, a_to, apart * ROW_BYTES);
                } else {
                    rows.copy_each(g, term + piece * 8, a_to, apart * ROW_BYTES);
                }
                copy_weights::<PIECES_B>(
                    w,
                    (args.rows, args.columns),
                    (term, b_row, THREADS / across),
                    to.add(b_to),
                    (b_piece % 8, ROW_BYTES),
                );
            }
        }
        commit_group();
        wgmma::wait::<1>();
        turn += 1;
    }
    wgmma::wait::<0>();

    // The other warpgroup may still multiply out of the ring.
    sync_threads();
    let pitch = BN + 8;
    let staging = ring.cast::<f32>();
    let (warp, lane) = (thread / 32, thread % 32);
    // SAFETY: the rows of this warp, inside of the ring.
    unsafe { park::<BN>(staging.add((16 * warp + lane / 4) * pitch + 2 * (lane % 4)), pitch) };
    sync_threads();
    let part =
        Staging { smem: staging, pitch, pixel0, column0, group, split, first: true, last: true };
    // SAFETY: the staging area is written; outputs belong to this block.
    unsafe { finish_rows::<H, BM, BN>(args, &part, thread, THREADS) };
}

/// Starts the products of a step.
///
/// # Safety
///
/// As for [`wgmma::bf16_n64`].
#[inline(always)]
unsafe fn multiply<H: Half16, const BN: u32>(stage: Shared<u8>, warpgroup: u32) {
    let a = Descriptor::new(stage.add(warpgroup * BLOCK_BYTES), BLOCK_BYTES, ATOM_BYTES);
    let b = Descriptor::new(stage.add(BM * ROW_BYTES), BLOCK_BYTES, ATOM_BYTES);
    wgmma::fence();
    let mut k = 0;
    while k < MMA_STEP / wgmma::DEPTH {
        // 16 terms further: 32 bytes of each row of a, 16 rows of b.
        let (a, b) = (a.advance(k * 2 * wgmma::DEPTH), b.advance(k * ROW_BYTES * wgmma::DEPTH));
        // SAFETY: the caller's promise.
        unsafe { if BN == 64 { H::product_64(a, b) } else { H::product_128(a, b) } }
        k += 1;
    }
    wgmma::commit();
}

macro_rules! groups {
    ($call:ident) => {
        $call!(0 1 2 3);
        if BN == 128 {
            $call!(4 5 6 7);
        }
    };
}

/// Empties the accumulators.
#[inline(always)]
fn clear<const BN: u32>() {
    macro_rules! clear {
        ($($j:literal)*) => { $(wgmma::clear::<$j>();)* };
    }
    groups!(clear);
}

/// Puts this lane's sums to `mine`, its first place in rows of `pitch`.
///
/// # Safety
///
/// The rows of the warp and eight rows after them are the block's shared memory, which no other
/// thread accesses without a barrier between.
#[inline(always)]
unsafe fn park<const BN: u32>(mine: Shared<f32>, pitch: u32) {
    macro_rules! store {
        ($($j:literal)*) => { $(
            let sums = wgmma::read::<$j>();
            let mut i = 0;
            while i < 4 {
                let at = mine.add(8 * (i as u32 % 2) * pitch + 16 * $j + 8 * (i as u32 / 2));
                // SAFETY: the caller's promise.
                unsafe { at.write_x2([sums[2 * i], sums[2 * i + 1]]) };
                i += 1;
            }
        )* };
    }
    groups!(store);
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty: $bn:literal $pb:literal $ahead:literal $pending:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles; the pointers of
        /// `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.pixels == BM && $kernel::TILE.channels == $bn) };
            const { assert!($kernel::STAGES == $ahead + 2) };
            // SAFETY: the caller's promise.
            unsafe { run::<$ty, $bn, $pb, $ahead, $pending>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dHopperBf16 conv2d_hopper_bf16 BFloat: 128 4 4 3;
    Conv2dHopperNarrowBf16 conv2d_hopper_narrow_bf16 BFloat: 64 2 2 1;
    Conv2dHopperF16 conv2d_hopper_f16 IeeeHalf: 128 4 4 3;
    Conv2dHopperNarrowF16 conv2d_hopper_narrow_f16 IeeeHalf: 64 2 2 1;
}
