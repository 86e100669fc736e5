//! Averages of any windows in planes, rows innermost: what a tile of outputs reads comes to shared memory by way of [`super::plane_tile`]. A
//! thread makes neighbours of a row, one after the other.

use contract::launch::Kernel;
use contract::pool2d::{
    PLANES_SUM_THREADS, PLANES_SUMS, PlanesArgs, PlanesAvgBf16, PlanesAvgF16, PlanesAvgF32, Share,
};

use super::plane_tile::{Tile, size};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, rolled};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};

/// The sum of a window, whose rows start at `at` and, `behind` elements further, those after odd numbers of rows.
///
/// # Safety
///
/// What it reads has come to shared memory.
#[inline(always)]
unsafe fn sum<E: Float>(at: Shared<u32>, pitch: u32, kernel: [u32; 2], behind: [u32; 2]) -> f32 {
    // Two and two rows, and in them two and two neighbours.
    let (mut sum, mut above) = (0.0, 0.0);
    let mut a = opaque(0);
    while a < kernel[0] {
        rolled();
        let behind = if a % 2 == 0 { behind[0] } else { behind[1] };
        let mut at = at.byte_add(a * pitch + behind * size::<E>());
        let mut row = 0.0;
        let mut b = opaque(0);
        while b < kernel[1] {
            // Four at a time; behind the last one zeros, which leave a sum from zero up as it is.
            let values: [f32; 4] = core::array::from_fn(|i| {
                let at = at.byte_add(i as u32 * size::<E>());
                // SAFETY: an element of the tile, or one behind it.
                let bits = unsafe {
                    if E::PIECE == 4 { at.read() } else { u32::from(at.cast::<u16>().read_u16()) }
                };
                E::widen([if b + (i as u32) < kernel[1] { bits } else { 0 }, 0, 0, 0])[0]
            });
            row += values[0] + values[1];
            row += values[2] + values[3];
            at = at.byte_add(4 * size::<E>());
            b = opaque(b + 4);
        }
        if a % 2 == 0 {
            above = row;
        } else {
            sum += above + row;
        }
        a = opaque(a + 1);
    }
    if kernel[0] % 2 == 0 { sum } else { sum + above }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::planes_of` for elements `E`; their pointers
/// cover the contract's table.
#[inline(always)]
unsafe fn averages<E: Float>(args: &PlanesArgs) {
    let tile = Tile::new(args);
    launch_dependents();
    dependency_wait();
    let held = dynamic_shared_mem::<u32>();
    let (h, w) = (&args.pool.h, &args.pool.w);
    // SAFETY: the launch contract, handed on.
    unsafe {
        tile.surround(held, args.pitch, [args.pitch / 16, PLANES_SUM_THREADS], [0; 4]);
        tile.bring::<E, true>(held, PLANES_SUM_THREADS, 0);
        sync_threads();
    }
    let outputs = tile.outputs::<E>(held);
    let padded = args.pool.count_include_pad == 1;
    let mut task = thread_idx_x();
    while task < args.tasks {
        rolled();
        let (rest, group) = args.by_columns.div_rem(task);
        let (plane, r) = args.by_rows.div_rem(rest);
        task += PLANES_SUM_THREADS;
        let q = group * PLANES_SUMS;
        if plane >= tile.planes || r >= tile.rows || q >= tile.columns {
            continue;
        }
        let first = (plane * h.len) as i32 + h.at(tile.p0 + r, 0) - tile.i0 as i32;
        let at = (plane * args.lines + r * h.stride) * args.pitch;
        let at = held.byte_add(at + q * w.stride * size::<E>());
        let behind = tile.behind::<E>(first as u32);
        let behind = if E::PIECE == 4 { [0, 0] } else { [behind, behind ^ (w.len & 1)] };
        let down = h.taps(tile.p0 + r, padded);
        let mut values: Piece = [0.0; 8];
        let mut v = opaque(0);
        while v < PLANES_SUMS {
            rolled();
            // Behind the last output any.
            let column = if q + v < tile.columns { v } else { 0 };
            let at = at.byte_add(column * w.stride * size::<E>());
            // SAFETY: the tile has the window.
            let sum = unsafe { sum::<E>(at, args.pitch, [h.kernel, w.kernel], behind) };
            let average = Share::of(down * w.taps(tile.q0 + q + column, padded)).take(sum);
            let mut to = 0;
            while to < PLANES_SUMS as usize {
                if v == to as u32 {
                    values[to] = average;
                }
                to += 1;
            }
            v = opaque(v + 1);
        }
        let mut out = outputs.at(plane * args.rows + r, q);
        // SAFETY: outputs of this thread.
        unsafe {
            if E::PIECE == 4 {
                out.write::<4>(E::narrow(values));
            } else {
                out.write::<2>(E::narrow(values));
            }
        }
    }
    // SAFETY: all are there behind the barrier.
    unsafe {
        if args.direct == 0 {
            Tile::new(args).flush::<E>(held, PLANES_SUM_THREADS);
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $ty:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: PlanesArgs) {
            // SAFETY: the launch contract.
            unsafe { averages::<$ty>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_planes_avg_f32 PlanesAvgF32 f32;
    pool2d_planes_avg_f16 PlanesAvgF16 F16;
    pool2d_planes_avg_bf16 PlanesAvgBf16 Bf16;
}
