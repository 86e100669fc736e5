//! The linear kernel on tensor cores: tiles of the bitmap become `A` fragments in registers.
//!
//! Of a tile, lane `4 g + t` owns the columns `32 j + 8 t .. + 8` of rows `g` and `g + 8`, for `j` of
//! eight: two steps of 16 columns each, four of every `t`. Which columns meet in a fragment does not
//! matter as long as `x` is read the same way.

use contract::launch::Kernel;
use contract::sparse::{BLOCK, LinearArgs, PERIOD, SparseBf16Mma8, SparseBf16Mma16, WAYS, steps};

use super::stream::{Stream, Tile, first_row, stream_memory};
use crate::arch::bitmap::take;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_x4, st};
use crate::arch::mma::mma_bf16;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads};
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
        // SAFETY: the way's tiles; memory of this stream alone.
        let mut stream = unsafe {
            let first = (block_idx_x() * WAYS as u32 + way) as usize * tiles as usize;
            Stream::new(args, first, tiles, stream_memory(way))
        };
        // The weights are constants: what came before this kernel may still run.
        launch_dependents();
        dependency_wait();
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
                    // SAFETY: stored units, where their bits are set.
                    let a = unsafe { fragment(masks, 4 * j + 2 * s, &mut at) };
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
        let sums: [[f32; 4]; NT] = core::array::from_fn(sum);
        // SAFETY: every stream was read to its end.
        unsafe { finish::<NT, WAYS>(args, first, sums) };
        mb += grid_dim_y();
    }
}

/// Units `first` and `first + 1` of both words, as an `A` fragment.
///
/// # Safety
///
/// As for [`take`], for each of them.
#[inline(always)]
pub(super) unsafe fn fragment(masks: [u32; 2], first: usize, at: &mut [u32; 2]) -> [u32; 4] {
    let bit = |i: usize| 0x8000_0000_u32 >> (first + i);
    // SAFETY: the caller's promise.
    unsafe {
        let a0 = take(masks[0], bit(0), &mut at[0]);
        let a1 = take(masks[1], bit(0), &mut at[1]);
        let a2 = take(masks[0], bit(1), &mut at[0]);
        let a3 = take(masks[1], bit(1), &mut at[1]);
        [a0, a1, a2, a3]
    }
}

/// Adds the sums of the warps and writes the outputs of the block's rows and of inputs `first ..`.
///
/// # Safety
///
/// Nothing is on its way into shared memory any more; the outputs are the block's.
#[inline(always)]
pub(super) unsafe fn finish<const NT: usize, const WARPS: usize>(
    args: &LinearArgs,
    first: u32,
    acc: [[f32; 4]; NT],
) {
    let (warp, lane) = (warp_id(), lane_id());
    let scratch = dynamic_shared_mem::<f32>();
    let place = |warp: u32, j: u32| scratch.add((warp * 4 * NT as u32 + j) * 32 + lane);
    sync_threads();
    let mut j = 0;
    while j < 4 * NT {
        // SAFETY: 8 KiB and less of the streams' memory, behind a barrier.
        unsafe { place(warp, j as u32).write(acc[j / 4][j % 4]) };
        j += 1;
    }
    sync_threads();
    let mut j = warp;
    while j < 4 * NT as u32 {
        let mut sum = 0.0;
        let mut warp = 0;
        while warp < WARPS as u32 {
            // SAFETY: written before the barrier.
            sum += unsafe { place(warp, j).read() };
            warp += 1;
        }
        let row = first_row() + lane / 4 + 8 * (j % 4 / 2);
        let input = first + 8 * (j / 4) + 2 * (lane % 4) + j % 2;
        if row < args.n && input < args.m {
            let at = input as usize * args.n as usize + row as usize;
            // SAFETY: y[input, row] belongs to this lane.
            unsafe { st(args.y.as_ptr().wrapping_add(at), sum) };
        }
        j += WARPS as u32;
    }
    sync_threads();
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $nt:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: LinearArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe { linear_mma::<$nt>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    sparse_bf16_mma8 SparseBf16Mma8 1;
    sparse_bf16_mma16 SparseBf16Mma16 2;
}
