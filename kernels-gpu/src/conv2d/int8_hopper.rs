//! Ternary weights on a Hopper GPU's integer tensor cores: 128 pixels by 64 or 128 channels.
//!
//! A step is 128 terms: `a`, a row of 128 bytes for each pixel, gathered by `cp.async`; `b`, one for
//! each channel. Weights travel as they are, 2 bits each, by `cp.async` too: a thread turns the codes
//! that it has copied itself into the bytes of `b`, one turn before they are multiplied. Turns and ring
//! as in [`super::hopper`].

use contract::conv2d::int8::{Args, HOPPER_STAGES, MMA_STEP, ternary_bytes};
use contract::conv2d::{Conv2dTernaryHopper, Conv2dTernaryHopperNarrow};
use contract::launch::Kernel;

use super::gather::{ROW_BYTES, Rows, swizzled, together};
use super::hopper::{BM, clear, park};
use super::int8_finish::finish_rows;
use super::int8_weights::Ternaries;
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor};

const THREADS: u32 = 256;
/// Turns between asking for a step and multiplying it.
const AHEAD: u32 = HOPPER_STAGES - 2;
/// Bytes of the codes of a channel in a step.
const CODE_BYTES: u32 = MMA_STEP / 4;
/// Bytes of 64 rows of a step.
const BLOCK_BYTES: u32 = 64 * ROW_BYTES;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles, and the pointers of
/// `args` cover the contract's table.
#[inline(always)]
unsafe fn run<const BN: u32>(args: &Args) {
    const { assert!(BN == 64 || BN == 128) };
    wgmma::declare();
    clear::<BN>();
    let g = &args.geometry;
    let (thread, block) = (thread_idx_x(), block_idx_x());
    let (column_tile, rest) = (block % args.column_tiles, block / args.column_tiles);
    let (pixel_tile, group) = (rest % args.pixel_tiles, rest / args.pixel_tiles);
    let (pixel0, column0) = (pixel_tile * BM, column_tile * BN);
    let steps = g.terms.div_ceil(MMA_STEP);

    let (row, piece, apart) = (thread / 8, thread % 8, THREADS / 8);
    let x = args.x.as_ptr().cast_const();
    let mut rows = Rows::<u8, { (BM * 8 / THREADS) as usize }>::new(
        g,
        x,
        group,
        (pixel0 + row, apart),
        piece * 16,
    );
    // Weights: 64 terms of row thread / 2. With 64 channels half of the threads have none.
    let (b_row, b_piece) = (thread / 2, thread % 2 * 4);
    let carries = b_row < BN;
    let channel = group * g.k + (column0 + b_row).min(g.k - 1);
    let own = args.w.as_ptr().cast_const();
    let own = own.wrapping_add(channel as usize * args.row_words as usize + b_piece as usize);

    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % ATOM_BYTES);
    let (codes_at, stage_bytes) = (ROW_BYTES * (BM + BN), ROW_BYTES * (BM + BN) + BN * CODE_BYTES);
    let own_at = codes_at + thread * 16;
    let vectors = together(args.vectors);
    launch_dependents();
    dependency_wait();

    // Opaque, because LLVM would copy the first turns out of the loop.
    let begin = opaque(0);
    let mut turn = begin;
    while turn < steps + AHEAD {
        if turn >= begin + AHEAD - 1 {
            wait_group::<{ AHEAD - 2 }>();
        }
        if turn >= begin + AHEAD {
            wgmma::proxy_fence();
            sync_threads();
            let stage = ring.add((turn - AHEAD) % HOPPER_STAGES * stage_bytes);
            // SAFETY: the step was waited for, fenced and shown by the barrier.
            unsafe { multiply::<BN>(stage, thread / 128) };
        }
        if turn >= begin + AHEAD - 1 && turn < steps + AHEAD - 1 && carries {
            // The next step's codes, which this thread has waited for.
            let stage = ring.add((turn + 1 - AHEAD) % HOPPER_STAGES * stage_bytes);
            // SAFETY: 16 bytes that this thread has copied.
            let codes = unsafe { stage.add(own_at).cast::<u32>().read_x4() };
            let to = stage.add(BM * ROW_BYTES);
            let mut i = 0;
            while i < 4 {
                let code = codes[i as usize];
                let bytes = [0, 2, 4, 6].map(|shift| ternary_bytes(code >> shift));
                // SAFETY: a piece of that step, which nobody reads before the next barrier.
                unsafe {
                    to.add(swizzled(b_row, b_piece + i)).cast::<u32>().write_x4(bytes);
                }
                i += 1;
            }
        }
        if turn < steps {
            let stage = ring.add(turn % HOPPER_STAGES * stage_bytes);
            let (term, to) = (turn * MMA_STEP, stage.add(swizzled(row, piece)));
            let word = turn * (MMA_STEP / 16);
            let there = carries && word + b_piece < args.row_words;
            // SAFETY: pieces of this stage, which is free; 64 terms of the row, which is a multiple of
            // 64 long.
            unsafe {
                if vectors {
                    rows.copy(g, MMA_STEP, to, apart * ROW_BYTES);
                } else {
                    rows.copy_each(g, term + piece * 16, to, apart * ROW_BYTES);
                }
                if carries {
                    copy_x16(stage.add(own_at), own.wrapping_add(word as usize), there);
                }
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
    // SAFETY: the staging area is written; outputs belong to this block.
    unsafe {
        finish_rows::<Ternaries, BM, BN>(
            args,
            staging.cast(),
            pitch,
            (pixel0, column0, group),
            thread,
            THREADS,
        );
    }
}

/// Starts the products of a step.
///
/// # Safety
///
/// As for [`wgmma::s8_n64`].
#[inline(always)]
unsafe fn multiply<const BN: u32>(stage: Shared<u8>, warpgroup: u32) {
    let a = Descriptor::new(stage.add(warpgroup * BLOCK_BYTES), BLOCK_BYTES, ATOM_BYTES);
    let b = Descriptor::new(stage.add(BM * ROW_BYTES), BLOCK_BYTES, ATOM_BYTES);
    wgmma::fence();
    let mut k = 0;
    while k < MMA_STEP / 32 {
        // 32 terms further: 32 bytes of each row.
        let (a, b) = (a.advance(k * 32), b.advance(k * 32));
        // SAFETY: the caller's promise.
        unsafe { if BN == 64 { wgmma::s8_n64(a, b) } else { wgmma::s8_n128(a, b) } }
        k += 1;
    }
    wgmma::commit();
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $bn:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with a grid of the contract's tiles; the pointers of
        /// `args` cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.pixels == BM && $kernel::TILE.channels == $bn) };
            // SAFETY: the caller's promise.
            unsafe { run::<$bn>(&args) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dTernaryHopper conv2d_ternary_hopper 128;
    Conv2dTernaryHopperNarrow conv2d_ternary_hopper_narrow 64;
}
