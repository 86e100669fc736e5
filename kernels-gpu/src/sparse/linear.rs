//! Exact linear kernels: a block makes 16 outputs of `MB` input rows, a warp a quarter of each sum.
//!
//! Lane `4 g + t` of warp `way` holds partial `4 way + t` of rows `g` and `g + 8`. A tile with few
//! values is walked value by value, each lane at its own bits; a fuller one position by position.
//! Both make the same chains.

use contract::launch::Kernel;
use contract::num::{RowType, bf16_to_f32};
use contract::sparse::{
    LinearArgs, PERIOD, ROWS, SPAN, SparseBf16M1, SparseBf16M4, SparseF16M1, SparseF16M4,
    SparseF32M1, SparseF32M4, WAYS, WORD, X_PITCH,
};

use super::stream::{Bf16, F16, Stream, Tile, Value, behind_rings, first_row};
use crate::arch::bitmap::{below, first_set, fma_if, opaque, read_if};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::half::f16_to_f32;
use crate::arch::mem::{ld, ld_u16, ld_x2, ld_x4, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_y, grid_dim_y, sync_threads};
use crate::arch::warp::{lane_id, shuffle_xor, sync_warp, warp_id, warp_max};

/// From so many values of a word on, a tile is walked by positions.
const BY_POSITION: u32 = 14;

/// Columns `k .. k + 4` of input row `row`, zeros outside of it.
///
/// # Safety
///
/// `row < m`, and `x` is the contract's.
#[inline(always)]
unsafe fn load_x(args: &LinearArgs, row: u32, k: u32) -> [f32; 4] {
    let at = row as usize * args.k as usize + k as usize;
    let whole = k + 4 <= args.k;
    // SAFETY: elements below K of the row; vectors only where they fit and are aligned.
    unsafe {
        if args.x_type == RowType::F32 as u32 {
            let p = args.x.cast::<f32>().as_ptr().cast_const().wrapping_add(at);
            if whole && p.addr().is_multiple_of(16) {
                return ld_x4(p.cast());
            }
            core::array::from_fn(
                |i| {
                    if k + (i as u32) < args.k { ld(p.wrapping_add(i)) } else { 0.0 }
                },
            )
        } else {
            let p = args.x.cast::<u16>().as_ptr().cast_const().wrapping_add(at);
            let half = args.x_type == RowType::F16 as u32;
            let widen = |h: u16| if half { f16_to_f32(h) } else { bf16_to_f32(h) };
            if whole && p.addr().is_multiple_of(8) {
                let [a, b]: [u32; 2] = ld_x2(p.cast());
                return [a as u16, (a >> 16) as u16, b as u16, (b >> 16) as u16].map(widen);
            }
            core::array::from_fn(|i| {
                if k + (i as u32) < args.k { widen(ld_u16(p.wrapping_add(i))) } else { 0.0 }
            })
        }
    }
}

/// Both words of the lane at once, value after value.
///
/// # Safety
///
/// `tile` is what the warp's stream gave; `x` is the staged input of the lane's columns.
#[inline(always)]
unsafe fn by_value<V: Value, const MB: usize>(
    tile: Tile<V::At>,
    x: Shared<f32>,
    acc: &mut [[f32; MB]; 2],
) {
    let Tile { mut masks, mut at } = tile;
    while masks[0] | masks[1] != 0 {
        let mut half = 0;
        while half < 2 {
            let word = masks[half];
            let offset = first_set(word);
            masks[half] = below(word, offset);
            // SAFETY: a stored value, and its column, while the word is not 0.
            unsafe {
                let w = V::take(word, !0, &mut at[half]);
                let mut i = 0;
                while i < MB {
                    let from = x.add(i as u32 * 4 * X_PITCH + (offset & 31));
                    let x = read_if(word, from);
                    acc[half][i] = fma_if(word, !0, w, x, acc[half][i]);
                    i += 1;
                }
            }
            half += 1;
        }
    }
}

/// The same, position after position.
///
/// # Safety
///
/// As for [`by_value`].
#[inline(always)]
unsafe fn by_position<V: Value, const MB: usize>(
    tile: Tile<V::At>,
    x: Shared<f32>,
    acc: &mut [[f32; MB]; 2],
) {
    let Tile { mut masks, mut at } = tile;
    let (mut first, end) = (0, opaque(WORD as u32));
    while first < end {
        // SAFETY: eight staged columns of the lane.
        let x: [[f32; 8]; MB] = core::array::from_fn(|i| unsafe {
            let x = x.add(i as u32 * 4 * X_PITCH + first);
            let (a, b) = (x.read_x4(), x.add(4).read_x4());
            [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
        });
        let mut j = 0;
        while j < 8 {
            let bit = 0x8000_0000 >> j;
            let mut half = 0;
            while half < 2 {
                // SAFETY: a stored value, where its bit is set.
                let w = unsafe { V::take(masks[half], bit, &mut at[half]) };
                let mut i = 0;
                while i < MB {
                    acc[half][i] = fma_if(masks[half], bit, w, x[i][j], acc[half][i]);
                    i += 1;
                }
                half += 1;
            }
            j += 1;
        }
        masks = [masks[0] << 8, masks[1] << 8];
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
    let staged = behind_rings().cast::<f32>().add(way * MB as u32 * 4 * X_PITCH);
    let own = staged.add(lane % 4 * X_PITCH);
    // Four neighbouring columns for each lane.
    let stage = staged.add(lane / 8 * X_PITCH + lane % 8 * 4);
    let steps = args.k.div_ceil(PERIOD as u32);
    let mut mb = block_idx_y();
    while mb * (MB as u32) < args.m {
        let first = mb * MB as u32;
        // Rows past the last one repeat it.
        let load = |step: u32| -> [[f32; 4]; MB] {
            let k = step * PERIOD as u32 + way * SPAN as u32 + 4 * lane;
            // SAFETY: a row below m.
            core::array::from_fn(|i| unsafe { load_x(args, (first + i as u32).min(args.m - 1), k) })
        };
        // SAFETY: the caller's promise.
        let mut stream = unsafe { Stream::<V>::new(args) };
        let mut x = load(0);
        let mut acc = [[0.0; MB]; 2];
        let mut step = 0;
        while step < steps {
            let tile = stream.tile();
            let mut i = 0;
            while i < MB {
                // SAFETY: the warp's staging area; `tile` ended with a barrier of the warp.
                unsafe { stage.add(i as u32 * 4 * X_PITCH).write_x4(x[i]) };
                i += 1;
            }
            sync_warp();
            step += 1;
            if step < steps {
                x = load(step);
            }
            let most = tile.masks[0].count_ones().max(tile.masks[1].count_ones());
            // SAFETY: the tile's values and columns are staged.
            unsafe {
                if warp_max(most) < BY_POSITION {
                    by_value::<V, MB>(tile, own, &mut acc);
                } else {
                    by_position::<V, MB>(tile, own, &mut acc);
                }
            }
        }
        // SAFETY: every ring was read to its end.
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
        // SAFETY: 4 KiB and less at the start of the rings, behind a barrier.
        unsafe {
            scratch.add((way * 2 * MB as u32 + j as u32) * 32 + lane).write(acc[j % 2][j / 2])
        };
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

const _: () = assert!(ROWS == 16);

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
    sparse_bf16_m4 SparseBf16M4 Bf16, 4;
    sparse_f16_m4 SparseF16M4 F16, 4;
    sparse_f32_m1 SparseF32M1 f32, 1;
    sparse_f32_m4 SparseF32M4 f32, 4;
}
