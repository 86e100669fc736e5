//! The linear kernel on tensor cores: tiles of the bitmap become `A` fragments in registers.
//!
//! Of a tile, lane `4 g + t` owns the columns `32 j + 8 t .. + 8` of rows `g` and `g + 8`, for `j` of
//! eight: two steps of 16 columns each, four of every `t`. Which columns meet in a fragment does not
//! matter as long as `x` is read the same way.

use contract::launch::Kernel;
use contract::sparse::{BLOCK, LinearArgs, PERIOD, ROWS, WAYS, groups, steps};
#[cfg(level_sm_90a)]
use contract::sparse::{
    SparseBf16Bulk8, SparseBf16Bulk8Short, SparseBf16Bulk16, SparseBf16Bulk16Short,
    SparseBf16Bulk16Wide,
};
#[cfg(not(level_sm_90a))]
use contract::sparse::{
    SparseBf16Few8, SparseBf16Few16, SparseBf16Mma8, SparseBf16Mma16, WAY_WARPS,
};

#[cfg(level_sm_90a)]
use super::bulk::Bulk;
#[cfg(not(level_sm_90a))]
use super::stream::Rings;
use super::stream::{Source, Tile};
use crate::arch::bitmap::take;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_or_zero_x4, st};
use crate::arch::mma::mma_bf16;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads};
use crate::arch::warp::{lane_id, warp_id};

const PER_UNIT: usize = 2;

/// When blocks of the next kernel may come.
trait Dependents {
    /// Before the first tile.
    #[inline(always)]
    fn begun() {}
    /// Behind the last one.
    #[inline(always)]
    fn walked() {}
}

/// As soon as there is room.
enum Early {}

impl Dependents for Early {
    #[inline(always)]
    fn begun() {
        launch_dependents();
    }
}

/// At the end: where there is room for many blocks, those of the next kernel would crowd.
#[cfg(level_sm_90a)]
enum Late {}

#[cfg(level_sm_90a)]
impl Dependents for Late {
    #[inline(always)]
    fn walked() {
        launch_dependents();
    }
}

/// `R` groups of rows by `8 NT` inputs a warp at a time: what a lane holds of the inputs meets every
/// group, since inputs take the memory pipe longer than weights where there are many. `W` warps have a
/// way, a part of its tiles each, which come by `S`; of a tile's eight `j`, inputs of `AHEAD` are asked for
/// before its units.
///
/// # Safety
///
/// As for the exact kernel with bf16 values; `x` is bf16 and K a multiple of 8. A block for `R` groups;
/// `ring` is the matrix's.
#[inline(always)]
unsafe fn linear_mma<
    S: Source<R>,
    D: Dependents,
    const NT: usize,
    const R: usize,
    const W: usize,
    const AHEAD: usize,
>(
    args: &LinearArgs,
) {
    let (warp, lane) = (warp_id(), lane_id());
    let way = warp % WAYS as u32;
    let tiles = steps(args.k as usize, PER_UNIT) as u32;
    // The warp's part of the way.
    let part = tiles.div_ceil(W as u32);
    let begin = (warp / WAYS as u32 * part).min(tiles);
    let count = part.min(tiles - begin);
    // The first column of the lane.
    let column = begin * PERIOD as u32 + way * BLOCK as u32 + lane % 4 * 8;
    let group = |r: usize| block_idx_x() * R as u32 + r as u32;
    let mut mb = block_idx_y();
    while mb * (8 * NT as u32) < args.m {
        let first = mb * 8 * NT as u32;
        let inputs: [u32; NT] = core::array::from_fn(|n| first + 8 * n as u32 + lane / 4);
        let rows: [*const u16; NT] = core::array::from_fn(|n| {
            let at = inputs[n] as usize * args.k as usize + column as usize;
            args.x.cast::<u16>().as_ptr().cast_const().wrapping_add(at)
        });
        // Two sums of each output where a warp has all of a way, so that one product need not wait for the
        // other, and sums are as short as those of two warps.
        let mut acc = [[[[0.0f32; 4]; NT]; R]; 2];
        // A group past the last one repeats that.
        let last = groups(args.n as usize) as u32 - 1;
        let of = |r: usize| (group(r).min(last) * WAYS as u32 + way) as usize * tiles as usize;
        // SAFETY: the warp's tiles.
        let mut streams =
            unsafe { S::new(args, core::array::from_fn(|r| of(r) + begin as usize), count, part) };
        // The weights are constants: what came before this kernel may still run.
        D::begun();
        dependency_wait();
        let mut index = 0;
        while index < count {
            let k = index * PERIOD as u32;
            let left = args.k.saturating_sub(k + column);
            let load = |j: usize| -> [[u32; 4]; NT] {
                core::array::from_fn(|n| {
                    let there = inputs[n] < args.m && 32 * (j as u32) < left;
                    let from = rows[n].wrapping_add(k as usize + 32 * j);
                    // SAFETY: eight columns of a row, aligned, since K is a multiple of 8. A lane whose
                    // input is past the last one asks for nothing.
                    unsafe { ld_or_zero_x4(there, from.cast()) }
                })
            };
            // Asked for before the units: a round trip to L2 is as long as half a tile.
            let mut x = [[[0; 4]; NT]; 8];
            let mut j = 0;
            while j < AHEAD {
                x[j] = load(j);
                j += 1;
            }
            let mut tile = streams.tiles();
            let mut j = 0;
            while j < 8 {
                // SAFETY: stored units, where their bits are set.
                let a = unsafe { columns::<R>(&mut tile, j) };
                let mut s = 0;
                while s < 2 {
                    let mut r = 0;
                    while r < R {
                        let mut n = 0;
                        while n < NT {
                            let b = [x[j][n][2 * s], x[j][n][2 * s + 1]];
                            let acc = &mut acc[if W == 1 { s } else { 0 }][r][n];
                            *acc = mma_bf16(a[s][r], b, *acc);
                            n += 1;
                        }
                        r += 1;
                    }
                    s += 1;
                }
                if j + AHEAD < 8 {
                    x[j + AHEAD] = load(j + AHEAD);
                }
                j += 1;
            }
            index += 1;
        }
        D::walked();
        streams.end();
        let mut r = 0;
        while r < R {
            let sum = |n: usize| core::array::from_fn(|i| acc[0][r][n][i] + acc[1][r][n][i]);
            let sums: [[f32; 4]; NT] = core::array::from_fn(sum);
            // SAFETY: every stream was read to its end.
            unsafe { finish::<NT>(args, group(r) * ROWS as u32, first, (W * WAYS) as u32, sums) };
            r += 1;
        }
        mb += grid_dim_y();
        if mb * (8 * NT as u32) < args.m {
            S::again();
        }
    }
}

/// The fragments of 32 columns from `32 j` of a tile on, two steps of every group.
///
/// # Safety
///
/// As for [`take`], for each of their units.
#[inline(always)]
unsafe fn columns<const R: usize>(tile: &mut [Tile; R], j: usize) -> [[[u32; 4]; R]; 2] {
    core::array::from_fn(|s| {
        core::array::from_fn(|r| {
            let Tile { masks, at } = &mut tile[r];
            // SAFETY: the caller's promise.
            unsafe { fragment(*masks, 4 * j + 2 * s, at) }
        })
    })
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

/// Adds the sums of the warps and writes the outputs of the 16 rows from `first_row` on and of inputs `first ..`.
///
/// # Safety
///
/// Nothing is on its way into shared memory any more; the outputs are the block's.
#[inline(always)]
pub(super) unsafe fn finish<const NT: usize>(
    args: &LinearArgs,
    first_row: u32,
    first: u32,
    warps: u32,
    acc: [[f32; 4]; NT],
) {
    let (warp, lane) = (warp_id(), lane_id());
    let scratch = dynamic_shared_mem::<f32>();
    let place = |warp: u32, j: u32| scratch.add((warp * 4 * NT as u32 + j) * 32 + lane);
    sync_threads();
    let mut j = 0;
    while j < 4 * NT {
        // SAFETY: the streams' memory, which is no less, behind a barrier.
        unsafe { place(warp, j as u32).write(acc[j / 4][j % 4]) };
        j += 1;
    }
    sync_threads();
    let mut j = warp;
    while j < 4 * NT as u32 {
        let mut sum = 0.0;
        let mut warp = 0;
        while warp < warps {
            // SAFETY: written before the barrier.
            sum += unsafe { place(warp, j).read() };
            warp += 1;
        }
        let row = first_row + lane / 4 + 8 * (j % 4 / 2);
        let input = first + 8 * (j / 4) + 2 * (lane % 4) + j % 2;
        if row < args.n && input < args.m {
            let at = input as usize * args.n as usize + row as usize;
            // SAFETY: y[input, row] belongs to this lane.
            unsafe { st(args.y.as_ptr().wrapping_add(at), sum) };
        }
        j += warps;
    }
    sync_threads();
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $source:ident $when:ident $nt:literal $r:literal $w:tt $ahead:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: LinearArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe { linear_mma::<$source<$r>, $when, $nt, $r, $w, $ahead>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

#[cfg(not(level_sm_90a))]
entries! {
    sparse_bf16_mma8 SparseBf16Mma8 Rings Early 1 1 1 8;
    sparse_bf16_mma16 SparseBf16Mma16 Rings Early 2 1 1 8;
    sparse_bf16_few8 SparseBf16Few8 Rings Early 1 1 WAY_WARPS 4;
    sparse_bf16_few16 SparseBf16Few16 Rings Early 2 2 WAY_WARPS 4;
}

#[cfg(level_sm_90a)]
entries! {
    sparse_bf16_bulk8 SparseBf16Bulk8 Bulk Late 1 1 1 8;
    sparse_bf16_bulk8_short SparseBf16Bulk8Short Bulk Early 1 1 4 4;
    sparse_bf16_bulk16 SparseBf16Bulk16 Bulk Early 2 2 1 4;
    sparse_bf16_bulk16_short SparseBf16Bulk16Short Bulk Early 2 2 4 3;
    sparse_bf16_bulk16_wide SparseBf16Bulk16Wide Bulk Early 2 2 2 3;
}
