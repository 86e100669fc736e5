//! Exact linear kernels: a block makes 16 outputs of `MB` input rows, a warp a quarter of each sum.
//!
//! Lane `4 g + t` of warp `way` holds partial `4 way + t` of rows `g` and `g + 8`. A tile with few
//! units is walked unit by unit, each lane at its own bits; a fuller one position by position. Both
//! make the same chains.

use contract::launch::Kernel;
use contract::sparse::{
    BLOCK, LinearArgs, PERIOD, SparseBf16M1, SparseBf16M4, SparseF16M1, SparseF16M4, SparseF32M1,
    SparseF32M4, WAYS, WORD, X_FLOATS, X_PITCH, span, steps,
};

use super::input::{Bf16, F16, Value, load4};
use super::stream::{Stream, Tile, behind_streams, first_row};
use crate::arch::bitmap::{below, first_set, fma_stored, opaque, take};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_y, grid_dim_y, sync_threads};
use crate::arch::warp::{lane_id, shuffle_xor, sync_warp, warp_id, warp_max};

/// From so many units of a word on, a tile is walked by positions.
const BY_POSITION: u32 = 17;

/// Takes the weights of one unit into the chains of a row; `x[i]` are the columns of input `i`.
#[inline(always)]
fn add<V: Value, const MB: usize>(unit: u32, x: [[f32; 2]; MB], acc: &mut [f32; MB]) {
    let w = V::widen(unit);
    let mut e = 0;
    while e < V::PER_UNIT {
        let mut i = 0;
        while i < MB {
            acc[i] = fma_stored(w[e], x[i][e], acc[i]);
            i += 1;
        }
        e += 1;
    }
}

/// Both words of the lane at once, unit after unit.
///
/// # Safety
///
/// `tile` is what the warp's stream gave; `x` is the staged input of the lane's columns.
#[inline(always)]
unsafe fn by_unit<V: Value, const MB: usize>(tile: Tile, x: Shared<f32>, acc: &mut [[f32; MB]; 2]) {
    let Tile { mut masks, mut at } = tile;
    while masks[0] | masks[1] != 0 {
        let mut half = 0;
        while half < 2 {
            let word = masks[half];
            let offset = first_set(word);
            masks[half] = below(word, offset);
            // Past the last unit: any staged column, for a unit of zeros.
            let first = x.add((offset % WORD as u32) * V::PER_UNIT as u32);
            // SAFETY: a stored unit while the word is not 0; its columns.
            let (unit, x) = unsafe {
                let unit = take(word, !0, &mut at[half]);
                let columns = |i: usize| {
                    let from = first.add(i as u32 * X_FLOATS);
                    if V::PER_UNIT == 2 { from.read_x2() } else { [from.read(), 0.0] }
                };
                (unit, core::array::from_fn(columns))
            };
            add::<V, MB>(unit, x, &mut acc[half]);
            half += 1;
        }
    }
}

/// The same, position after position.
///
/// # Safety
///
/// As for [`by_unit`].
#[inline(always)]
unsafe fn by_position<V: Value, const MB: usize>(
    tile: Tile,
    x: Shared<f32>,
    acc: &mut [[f32; MB]; 2],
) {
    let Tile { mut masks, mut at } = tile;
    let (mut first, end) = (0, opaque((WORD * V::PER_UNIT) as u32));
    while first < end {
        // SAFETY: eight staged columns of the lane.
        let x: [[f32; 8]; MB] = core::array::from_fn(|i| unsafe {
            let x = x.add(i as u32 * X_FLOATS + first);
            let (a, b) = (x.read_x4(), x.add(4).read_x4());
            [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
        });
        let units = 8 / V::PER_UNIT;
        let mut j = 0;
        while j < units {
            let columns = core::array::from_fn(|i| {
                let c = j * V::PER_UNIT;
                [x[i][c], x[i][c + V::PER_UNIT - 1]]
            });
            let mut half = 0;
            while half < 2 {
                // SAFETY: a stored unit, where its bit is set.
                let unit = unsafe { take(masks[half], 0x8000_0000 >> j, &mut at[half]) };
                add::<V, MB>(unit, columns, &mut acc[half]);
                half += 1;
            }
            j += 1;
        }
        masks = [masks[0] << units, masks[1] << units];
        first += 8;
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for values of `V`; block, shared memory and
/// grid are the contract's for `MB` input rows at a time.
#[inline(always)]
unsafe fn linear<V: Value, const MB: usize>(args: &LinearArgs) {
    launch_dependents();
    dependency_wait();
    let (way, lane) = (warp_id(), lane_id());
    let staged = behind_streams().cast::<f32>().add(way * MB as u32 * X_FLOATS);
    let own = staged.add(lane % 4 * X_PITCH);
    // Where four neighbouring columns of this lane go.
    let stage = staged.add(lane % 8 / 2 * X_PITCH + lane / 8 * 8 + lane % 2 * 4);
    let (tiles, span) = (steps(args.k as usize, V::PER_UNIT) as u32, span(V::PER_UNIT) as u32);
    let in_period = BLOCK as u32 / span;
    let mut mb = block_idx_y();
    while mb * (MB as u32) < args.m {
        let first = mb * MB as u32;
        let load = |tile: u32| -> [[[f32; 4]; 2]; MB] {
            let k = tile / in_period * PERIOD as u32 + way * BLOCK as u32;
            let k = k + tile % in_period * span + 4 * lane;
            // SAFETY: a row below m; rows past the last one repeat it.
            core::array::from_fn(|i| unsafe {
                let row = (first + i as u32).min(args.m - 1);
                let upper = if V::PER_UNIT == 2 {
                    load4(args.x, args.x_type, row, args.k, k + 128)
                } else {
                    [0.0; 4]
                };
                [load4(args.x, args.x_type, row, args.k, k), upper]
            })
        };
        // SAFETY: the caller's promise.
        let mut stream = unsafe { Stream::new(args, V::PER_UNIT) };
        let mut x = load(0);
        let mut acc = [[0.0; MB]; 2];
        let mut index = 0;
        while index < tiles {
            let tile = stream.tile();
            let mut i = 0;
            while i < MB {
                let to = stage.add(i as u32 * X_FLOATS);
                // SAFETY: the warp's staging area; `tile` ended with a barrier of the warp.
                unsafe {
                    to.write_x4(x[i][0]);
                    if V::PER_UNIT == 2 {
                        to.add(32).write_x4(x[i][1]);
                    }
                }
                i += 1;
            }
            sync_warp();
            index += 1;
            if index < tiles {
                x = load(index);
            }
            let most = tile.masks[0].count_ones().max(tile.masks[1].count_ones());
            // SAFETY: the tile's units and columns are staged.
            unsafe {
                if warp_max(most) < BY_POSITION {
                    by_unit::<V, MB>(tile, own, &mut acc);
                } else {
                    by_position::<V, MB>(tile, own, &mut acc);
                }
            }
        }
        // SAFETY: every stream was read to its end.
        unsafe { finish(args, first, acc) };
        mb += grid_dim_y();
    }
}

/// Adds the partials of the block and writes its outputs.
///
/// # Safety
///
/// Nothing is on its way into the rings any more; the outputs are the block's.
#[inline(always)]
unsafe fn finish<const MB: usize>(args: &LinearArgs, first: u32, acc: [[f32; MB]; 2]) {
    let (way, lane) = (warp_id(), lane_id());
    let scratch = dynamic_shared_mem::<f32>();
    sync_threads();
    let mut j = 0;
    while j < 2 * MB {
        let to = scratch.add((way * 2 * MB as u32 + j as u32) * 32 + lane);
        // SAFETY: 4 KiB and less at the start of the rings, behind a barrier.
        unsafe { to.write(acc[j % 2][j / 2]) };
        j += 1;
    }
    sync_threads();
    let mut j = way;
    while j < 2 * MB as u32 {
        let of = |way: u32| {
            // SAFETY: written before the barrier.
            unsafe { scratch.add((way * 2 * MB as u32 + j) * 32 + lane).read() }
        };
        // Distances 8 and 4 of the tree are ways, 2 and 1 lanes.
        let sum = (of(0) + of(2)) + (of(1) + of(3));
        let sum = sum + shuffle_xor(sum, 2);
        let sum = sum + shuffle_xor(sum, 1);
        let (row, input) = (first_row() + lane / 4 + 8 * (j % 2), first + j / 2);
        if lane % 4 == 0 && row < args.n && input < args.m {
            let at = input as usize * args.n as usize + row as usize;
            // SAFETY: y[input, row] belongs to this lane.
            unsafe { st(args.y.as_ptr().wrapping_add(at), sum) };
        }
        j += WAYS as u32;
    }
    sync_threads();
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $value:ty, $mb:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: LinearArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe { linear::<$value, $mb>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    sparse_bf16_m1 SparseBf16M1 Bf16, 1;
    sparse_f16_m1 SparseF16M1 F16, 1;
    sparse_f32_m1 SparseF32M1 f32, 1;
}
#[cfg(level_sm_75)]
entries! {
    sparse_bf16_m4 SparseBf16M4 Bf16, 4;
    sparse_f16_m4 SparseF16M4 F16, 4;
    sparse_f32_m4 SparseF32M4 f32, 4;
}
