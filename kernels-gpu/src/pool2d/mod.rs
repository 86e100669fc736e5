//! Device side of [`contract::pool2d`].
//!
//! [`windows`]: a thread makes four outputs, one below the other, of one channel or of 16 bytes of
//! channels, where they are innermost. Neighbouring threads read neighbouring taps, so that a tap that
//! several windows share comes from L1. [`lines`]: a thread makes 16 bytes of outputs of a row, where rows are innermost and
//! the windows the usual ones, or 16 bytes of columns of windows side by side. [`whole`]: eight lanes an image, lane `l` partial `l`;
//! [`streamed`]: a lane an image; [`last`]: eight threads a piece of channels, where they are innermost. `tiles`, `strips`, `planes` and
//! `axes`: windows by way of shared memory, usual ones with channels last and in planes, any maxima in planes, and all others. `AVG`
//! says average or maximum throughout.

#[cfg(level_sm_80)]
mod axes;
mod item;
mod last;
mod lines;
#[cfg(level_sm_80)]
mod plane_tile;
#[cfg(level_sm_80)]
mod planes;
#[cfg(level_sm_80)]
mod ringed;
mod streamed;
#[cfg(level_sm_80)]
mod strip_tile;
#[cfg(level_sm_80)]
mod strips;
#[cfg(level_sm_80)]
mod tiles;
mod whole;
mod windows;

use contract::launch::Kernel;
use contract::pool2d::{
    Args, GlobalBf16, GlobalF16, GlobalF32, LinesBf16, LinesF16, LinesF32, PiecesBf16, PiecesF16,
    PiecesF32, THREADS, WholeBf16, WholeF16, WholeF32, WindowBf16, WindowF16, WindowF32,
};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::element::{Bf16, F16};

use crate::float::Float;
use whole::whole;
use windows::windows;

/// Taps that are loaded at once: one for each partial.
const BATCH: usize = 8;

/// Quotient and remainder, by the division of 32 bits where that does.
#[inline(always)]
fn divide(n: u64, by: u32) -> (u64, u32) {
    if n >> 32 == 0 {
        (u64::from(n as u32 / by), n as u32 % by)
    } else {
        (n / u64::from(by), (n % u64::from(by)) as u32)
    }
}

/// Index of this thread in the grid.
#[inline(always)]
fn thread() -> u64 {
    u64::from(block_idx_x()) * u64::from(THREADS) + u64::from(thread_idx_x())
}

/// # Safety
///
/// As for [`lines::lines`].
#[inline(always)]
unsafe fn lines<E: Float, const AVG: bool>(args: &Args) {
    // SAFETY: handed on.
    unsafe {
        match (args.w.kernel, args.w.stride) {
            (4, _) => lines::apart::<E, AVG, 4>(args),
            (8, _) if E::PIECE == 8 => lines::apart::<E, AVG, 8>(args),
            (3, 2) => lines::lines::<E, AVG, 3, 2>(args),
            // From sm_80 on they are made in strips.
            #[cfg(not(level_sm_80))]
            (3, _) => lines::lines::<E, AVG, 3, 1>(args),
            _ => lines::lines::<E, AVG, 2, 2>(args),
        }
    }
}

/// Less than 16 bytes of channels a thread.
///
/// # Safety
///
/// As for [`windows::windows`].
#[inline(always)]
unsafe fn narrow<E: Float, const AVG: bool>(args: &Args) {
    // SAFETY: handed on.
    unsafe {
        match args.piece {
            4 if E::PIECE == 8 => windows::<E, 4, AVG>(args),
            _ => windows::<E, 1, AVG>(args),
        }
    }
}

/// Whole images with channels last, or many.
///
/// # Safety
///
/// As for [`last::last`].
#[inline(always)]
unsafe fn many<E: Float, const AVG: bool>(args: &Args) {
    // SAFETY: handed on.
    unsafe {
        if args.channels_last == 1 {
            last::last::<E, AVG>(args);
        } else {
            streamed::streamed::<E, AVG>(args);
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $body:ident<$($part:tt),*>;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            launch_dependents();
            dependency_wait();
            // SAFETY: the launch contract, handed on.
            unsafe {
                if args.average == 1 {
                    $body::<$($part),*, true>(&args);
                } else {
                    $body::<$($part),*, false>(&args);
                }
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_f32 WindowF32 narrow<f32>;
    pool2d_f16 WindowF16 narrow<F16>;
    pool2d_bf16 WindowBf16 narrow<Bf16>;
    pool2d_pieces_f32 PiecesF32 windows<f32, 4>;
    pool2d_pieces_f16 PiecesF16 windows<F16, 8>;
    pool2d_pieces_bf16 PiecesBf16 windows<Bf16, 8>;
    pool2d_lines_f32 LinesF32 lines<f32>;
    pool2d_lines_f16 LinesF16 lines<F16>;
    pool2d_lines_bf16 LinesBf16 lines<Bf16>;
    pool2d_global_f32 GlobalF32 whole<f32>;
    pool2d_global_f16 GlobalF16 whole<F16>;
    pool2d_global_bf16 GlobalBf16 whole<Bf16>;
    pool2d_whole_f32 WholeF32 many<f32>;
    pool2d_whole_f16 WholeF16 many<F16>;
    pool2d_whole_bf16 WholeBf16 many<Bf16>;
}
