//! The linear kernel on tensor cores: tiles of the bitmap become `A` fragments in registers.
//!
//! Of a tile, lane `4 g + t` owns the columns `32 j + 8 t .. + 8` of rows `g` and `g + 8`, for `j` of
//! eight: two steps of 16 columns each, four of every `t`. Which columns meet in a fragment does not
//! matter as long as `x` is read the same way.

use contract::launch::Kernel;
use contract::sparse::{BLOCK, LinearArgs, PERIOD, SparseBf16Mma8, SparseBf16Mma16, WAYS, steps};

use super::stream::{Stream, Tile, first_row};
use crate::arch::bitmap::take;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_x4, st};
use crate::arch::mma::mma_bf16;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_y, grid_dim_y, sync_threads};
use crate::arch::warp::{lane_id, warp_id};

const PER_UNIT: usize = 2;

/// The lane's columns of a tile, from one input row: for each `j` eight, two to a word. `row` is the
/// first of them, `left` the columns of the matrix from there on; zeros past its end.
///
/// # Safety
///
/// As many readable columns as `left` says, aligned to 16, and a multiple of 8.
#[inline(always)]
unsafe fn load_columns(row: *const u16, left: u32) -> [[u32; 4]; 8] {
    if left > 7 * 32 {
        // SAFETY: `32 j + 8` columns and more.
        return core::array::from_fn(|j| unsafe { ld_x4(row.wrapping_add(32 * j).cast()) });
    }
    core::array::from_fn(|j| {
        let mut words = [0; 4];
        if 32 * (j as u32) < left {
            // SAFETY: eight columns from there on.
            words = unsafe { ld_x4(row.wrapping_add(32 * j).cast()) };
        }
        words
    })
}

/// # Safety
///
/// As for the exact kernel with bf16 values; `x` is bf16 and K a multiple of 8.
#[inline(always)]
unsafe fn linear_mma<const NT: usize>(args: &LinearArgs) {
    launch_dependents();
    dependency_wait();
    let (way, lane) = (warp_id(), lane_id());
    let tiles = steps(args.k as usize, PER_UNIT) as u32;
    // The first column of the lane.
    let column = way * BLOCK as u32 + lane % 4 * 8;
    let mut mb = block_idx_y();
    while mb * (8 * NT as u32) < args.m {
        let first = mb * 8 * NT as u32;
        let rows: [*const u16; NT] = core::array::from_fn(|n| {
            // Rows past the last one repeat it: their products go nowhere.
            let row = (first + 8 * n as u32 + lane / 4).min(args.m - 1);
            let at = row as usize * args.k as usize + column as usize;
            args.x.cast::<u16>().as_ptr().cast_const().wrapping_add(at)
        });
        // Two sums of each output, so that one product need not wait for the other.
        let mut acc = [[[0.0f32; 4]; NT]; 2];
        // SAFETY: the caller's promise.
        let mut stream = unsafe { Stream::new(args, PER_UNIT) };
        let mut index = 0;
        while index < tiles {
            let k = index * PERIOD as u32;
            let left = args.k.saturating_sub(k + column);
            // Asked for before the units, all of them: a round trip to L2 is as long as a tile.
            let x: [[[u32; 4]; 8]; NT] = core::array::from_fn(|n| {
                // SAFETY: `left` columns of the row from there on; K is a multiple of 8.
                unsafe { load_columns(rows[n].wrapping_add(k as usize), left) }
            });
            let Tile { masks, mut at } = stream.tile();
            let mut j = 0;
            while j < 8 {
                let mut s = 0;
                while s < 2 {
                    let bit = |i: usize| 0x8000_0000_u32 >> (4 * j + 2 * s + i);
                    // SAFETY: stored units, where their bits are set.
                    let a = unsafe {
                        let a0 = take(masks[0], bit(0), &mut at[0]);
                        let a1 = take(masks[1], bit(0), &mut at[1]);
                        let a2 = take(masks[0], bit(1), &mut at[0]);
                        let a3 = take(masks[1], bit(1), &mut at[1]);
                        [a0, a1, a2, a3]
                    };
                    let mut n = 0;
                    while n < NT {
                        let b = [x[n][j][2 * s], x[n][j][2 * s + 1]];
                        acc[s][n] = mma_bf16(a, b, acc[s][n]);
                        n += 1;
                    }
                    s += 1;
                }
                j += 1;
            }
            index += 1;
        }
        let sum = |n: usize| core::array::from_fn(|i| acc[0][n][i] + acc[1][n][i]);
        let acc: [[f32; 4]; NT] = core::array::from_fn(sum);
        // SAFETY: every stream was read to its end.
        unsafe { finish(args, first, acc) };
        mb += grid_dim_y();
    }
}

/// Adds the four ways and writes the block's outputs.
///
/// # Safety
///
/// As for the exact kernel.
#[inline(always)]
pub(super) unsafe fn finish<const NT: usize>(args: &LinearArgs, first: u32, acc: [[f32; 4]; NT]) {
    let (way, lane) = (warp_id(), lane_id());
    let scratch = dynamic_shared_mem::<f32>();
    sync_threads();
    let mut j = 0;
    while j < 4 * NT as u32 {
        // SAFETY: 8 KiB and less at the start of the rings, behind a barrier.
        unsafe {
            scratch
                .add((way * 4 * NT as u32 + j) * 32 + lane)
                .write(acc[j as usize / 4][j as usize % 4])
        };
        j += 1;
    }
    sync_threads();
    let mut j = way;
    while j < 4 * NT as u32 {
        let of = |way: u32| {
            // SAFETY: written before the barrier.
            unsafe { scratch.add((way * 4 * NT as u32 + j) * 32 + lane).read() }
        };
        let sum = (of(0) + of(2)) + (of(1) + of(3));
        let row = first_row() + lane / 4 + 8 * (j % 4 / 2);
        let input = first + 8 * (j / 4) + 2 * (lane % 4) + j % 2;
        if row < args.n && input < args.m {
            let at = input as usize * args.n as usize + row as usize;
            // SAFETY: y[input, row] belongs to this lane.
            unsafe { st(args.y.as_ptr().wrapping_add(at), sum) };
        }
        j += WAYS as u32;
    }
    sync_threads();
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sparse_bf16_mma8(args: LinearArgs) {
    // SAFETY: the launch contract, handed on.
    unsafe { linear_mma::<1>(&args) }
}
const _: unsafe extern "ptx-kernel" fn(<SparseBf16Mma8 as Kernel>::Args) = sparse_bf16_mma8;

/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn sparse_bf16_mma16(args: LinearArgs) {
    // SAFETY: the launch contract, handed on.
    unsafe { linear_mma::<2>(&args) }
}
const _: unsafe extern "ptx-kernel" fn(<SparseBf16Mma16 as Kernel>::Args) = sparse_bf16_mma16;
