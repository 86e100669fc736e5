//! Averages of windows in planes, rows innermost: what a tile of outputs reads comes to shared memory by way of [`super::plane_tile`]. A
//! thread makes four neighbours, of windows one row apart those of two or four rows, which share what is read and widened.

use contract::launch::Kernel;
use contract::num::{reciprocal, tree8};
use contract::pool2d::{
    PLANES_SUM_THREADS, PLANES_SUMS, PlanesArgs, PlanesAvgBf16, PlanesAvgF16, PlanesAvgF32,
    planes_rows,
};

use super::plane_tile::{Tile, size};
use super::windows::divide_by;
use crate::arch::dot::permute;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};

const SUMS: usize = PLANES_SUMS as usize;

/// Rows of outputs of a thread at most.
const ROWS: usize = 4;

/// Words of a line that a thread reads at most.
const WORDS: usize = 16;

/// The values from `at` on, `behind` of them left out, of `LEN` elements.
///
/// # Safety
///
/// They have come to shared memory, at a multiple of 16 bytes, or with `S` of 1 and 16-bit elements 8.
#[inline(always)]
unsafe fn line<E: Float, const S: usize, const LEN: usize>(
    at: Shared<u32>,
    behind: u32,
) -> [f32; WORDS] {
    let mut raw = [0; WORDS + 4];
    let words = if E::PIECE == 4 { LEN } else { LEN / 2 + 1 };
    // SAFETY: the caller's promise; what is behind the line is not used.
    unsafe {
        let mut i = 0;
        while i < words {
            if E::PIECE == 8 && S == 1 {
                [raw[i], raw[i + 1]] = at.add(i as u32).read_x2();
                i += 2;
            } else {
                [raw[i], raw[i + 1], raw[i + 2], raw[i + 3]] = at.add(i as u32).read_x4();
                i += 4;
            }
        }
    }
    if E::PIECE == 4 {
        return core::array::from_fn(|i| f32::from_bits(raw[i]));
    }
    let selector = 0x3210 + 0x2222 * behind;
    let mut values = [0.0; WORDS];
    let mut i = 0;
    while 2 * i < LEN {
        let word = permute(raw[i], raw[i + 1], selector);
        let pair = E::widen([word, 0, 0, 0]);
        values[2 * i] = pair[0];
        values[2 * i + 1] = pair[1];
        i += 1;
    }
    values
}

/// The sums of `R` rows of windows of `K` by `K`, `S` apart.
///
/// # Safety
///
/// What they read has come to shared memory.
#[inline(always)]
unsafe fn sums<E: Float, const K: usize, const S: usize, const R: usize, const LEN: usize>(
    mut at: Shared<u32>,
    pitch: u32,
    behind: [u32; 2],
) -> [[f32; SUMS]; ROWS] {
    const { assert!(LEN == (SUMS - 1) * S + K && LEN <= WORDS && R <= ROWS) };
    let mut partials = [[[0.0f32; SUMS]; 8]; ROWS];
    let mut l = 0;
    while l < (R - 1) * S + K {
        // SAFETY: the caller's promise.
        let values = unsafe { line::<E, S, LEN>(at, behind[l % 2]) };
        at = at.byte_add(opaque_here(pitch));
        let mut row = 0;
        while row < R {
            if l >= row * S && l - row * S < K {
                let mut s = 0;
                while s < K {
                    let tap = (l - row * S) * K + s;
                    let mut v = 0;
                    while v < SUMS {
                        let value = values[v * S + s];
                        let sum = partials[row][tap % 8][v];
                        // As in `tiles`: one of eight that starts with zero is enough.
                        partials[row][tap % 8][v] =
                            if tap > 0 && tap < 8 { value } else { sum + value };
                        v += 1;
                    }
                    s += 1;
                }
            }
            row += 1;
        }
        l += 1;
    }
    core::array::from_fn(|row| {
        core::array::from_fn(|v| {
            let p = |slot: usize| partials[row][slot][v];
            if K == 2 { (p(0) + p(2)) + (p(1) + p(3)) } else { tree8(core::array::from_fn(p)) }
        })
    })
}

/// The sum of any window.
///
/// # Safety
///
/// As for [`sums`].
#[inline(always)]
unsafe fn any<E: Float>(at: Shared<u32>, pitch: u32, kernel: [u32; 2], behind: [u32; 2]) -> f32 {
    let lines = |l: u32| at.byte_add(l * pitch);
    let mut partials = [0.0f32; 8];
    let (mut a, mut b) = (0, kernel[1]);
    let mut at = lines(0).byte_add(behind[0] * size::<E>());
    while a < kernel[0] {
        rolled();
        let mut slot = 0;
        while slot < 8 {
            // SAFETY: an element of the tile; behind the last one any that is there.
            let bits = unsafe {
                if E::PIECE == 4 { at.read() } else { u32::from(at.cast::<u16>().read_u16()) }
            };
            let value = E::widen([if a < kernel[0] { bits } else { 0 }, 0, 0, 0])[0];
            partials[slot] += value;
            at = at.byte_add(size::<E>());
            b -= 1;
            if b == 0 {
                a += 1;
                b = kernel[1];
                let line = if a < kernel[0] { a } else { 0 };
                let behind = if line % 2 == 0 { behind[0] } else { behind[1] };
                at = lines(line).byte_add(behind * size::<E>());
            }
            slot += 1;
        }
    }
    tree8(partials)
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::planes_of` for elements `E`; their pointers
/// cover the contract's table. `K` by `K` windows, `S` apart; with `K` of 0 any.
#[inline(always)]
unsafe fn averages<E: Float, const K: usize, const S: usize, const R: usize, const LEN: usize>(
    tile: &Tile<'_>,
    held: Shared<u32>,
) {
    let args = tile.args;
    let (h, w) = (&args.pool.h, &args.pool.w);
    let each = if K == 0 { planes_rows(&args.pool) } else { R as u32 };
    let outputs = tile.outputs::<E>(held);
    let full = (h.kernel * w.kernel) as f32;
    let inverse = reciprocal(full);
    let mut task = thread_idx_x();
    while task < args.tasks {
        rolled();
        let (rest, group) = args.by_columns.div_rem(task);
        let (plane, row) = args.by_rows.div_rem(rest);
        task += PLANES_SUM_THREADS;
        let (r, q) = (row * each, group * PLANES_SUMS);
        if plane >= tile.planes || r >= tile.rows || q >= tile.columns {
            continue;
        }
        let i = h.at(tile.p0 + r, 0);
        let first = (plane * h.len) as i32 + i - tile.i0 as i32;
        let at = (plane * args.lines + r * h.stride) * args.pitch;
        let at = held.byte_add(at + q * w.stride * size::<E>());
        let behind = tile.behind::<E>(first as u32);
        let behind = if E::PIECE == 4 { [0, 0] } else { [behind, behind ^ (w.len & 1)] };
        let totals: [[f32; SUMS]; ROWS] = if K == 0 {
            let mut totals = [[0.0; SUMS]; ROWS];
            let mut i = 0;
            while i < each * PLANES_SUMS {
                rolled();
                let (row, v) = (i / PLANES_SUMS, i % PLANES_SUMS);
                let at = at.byte_add(row * args.pitch + v * w.stride * size::<E>());
                let behind = if row % 2 == 1 { [behind[1], behind[0]] } else { behind };
                // SAFETY: the caller's promise.
                let sum = unsafe { any::<E>(at, args.pitch, [h.kernel, w.kernel], behind) };
                let mut to = 0;
                while to < ROWS * SUMS {
                    if to as u32 == i {
                        totals[to / SUMS][to % SUMS] = sum;
                    }
                    to += 1;
                }
                i += 1;
            }
            totals
        } else {
            // SAFETY: the caller's promise.
            unsafe { sums::<E, { K }, S, R, LEN>(at, args.pitch, behind) }
        };
        let mut out = outputs.at(plane * args.rows + r, q);
        let mut row = 0;
        while row < ROWS {
            if (row as u32) < each && (K == 0 || row < R) && r + (row as u32) < tile.rows {
                let sums = totals[row];
                let sums: Piece = core::array::from_fn(|i| if i < SUMS { sums[i] } else { 0.0 });
                let padded = opaque(args.pool.count_include_pad) == 1;
                let count = |v: u32| {
                    // Behind the last output as many as there.
                    let at = (tile.q0 + q + v).min(w.out - 1);
                    h.taps(tile.p0 + r + row as u32, padded) * w.taps(at, padded)
                };
                let all = h.kernel * w.kernel;
                let values = if args.whole == 1 || count(0) == all && count(SUMS as u32 - 1) == all
                {
                    divide_by::<SUMS>(sums, full, inverse)
                } else {
                    core::array::from_fn(|i| {
                        if i < SUMS { sums[i] / count(i as u32) as f32 } else { 0.0 }
                    })
                };
                // SAFETY: outputs of this thread.
                unsafe {
                    if E::PIECE == 4 {
                        out.write::<4>(E::narrow(values));
                    } else {
                        out.write::<2>(E::narrow(values));
                    }
                }
            }
            row += 1;
        }
    }
}

/// # Safety
///
/// As for [`averages`].
#[inline(always)]
unsafe fn fitting<E: Float>(args: &PlanesArgs) {
    const MORE: usize = SUMS - 1;
    let tile = Tile::new(args);
    launch_dependents();
    dependency_wait();
    let held = dynamic_shared_mem::<u32>();
    let (h, w) = (&args.pool.h, &args.pool.w);
    let even = h.kernel == w.kernel && h.stride == w.stride;
    // SAFETY: the launch contract, handed on.
    unsafe {
        tile.surround(held, args.pitch, [args.pitch / 16, PLANES_SUM_THREADS], [0; 4]);
        tile.bring::<E, true>(held, PLANES_SUM_THREADS, 0);
        sync_threads();
        match (w.kernel, w.stride) {
            (2, 2) if even => averages::<E, 2, 2, 1, { 2 + 2 * MORE }>(&tile, held),
            (3, 1) if even => averages::<E, 3, 1, 4, { 3 + MORE }>(&tile, held),
            (3, 2) if even => averages::<E, 3, 2, 1, { 3 + 2 * MORE }>(&tile, held),
            (5, 1) if even => averages::<E, 5, 1, 2, { 5 + MORE }>(&tile, held),
            (5, 2) if even => averages::<E, 5, 2, 1, { 5 + 2 * MORE }>(&tile, held),
            (7, 1) if even => averages::<E, 7, 1, 2, { 7 + MORE }>(&tile, held),
            (7, 2) if even => averages::<E, 7, 2, 1, { 7 + 2 * MORE }>(&tile, held),
            _ => averages::<E, 0, 1, 1, MORE>(&tile, held),
        }
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
            unsafe { fitting::<$ty>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_planes_avg_f32 PlanesAvgF32 f32;
    pool2d_planes_avg_f16 PlanesAvgF16 F16;
    pool2d_planes_avg_bf16 PlanesAvgBf16 Bf16;
}
