//! Exact linear kernels: a block makes 16 outputs of `MB` input rows, a warp a quarter of each sum.
//!
//! Lane `4 g + t` of warp `way` holds partial `4 way + t` of rows `g` and `g + 8`. A tile with few
//! units is walked unit by unit, each lane at its own bits; a fuller one position by position
//! (`walk.rs`).

use core::marker::PhantomData;

use contract::launch::Kernel;
use contract::num::RowType;
use contract::sparse::{
    BLOCK, Conv2dArgs, LinearArgs, PERIOD, RING_BYTES, SparseBf16M1, SparseBf16M4,
    SparseConv2dBf16, SparseConv2dF16, SparseConv2dF32, SparseF16M1, SparseF16M4, SparseF32M1,
    SparseF32M4, WAYS, X_FLOATS, X_PITCH, span, steps,
};

use super::input::{Bf16, F16, Input, Value, load2};
use super::stream::{Stream, behind_streams, first_row, stream_memory};
use super::walk::{Pairs, Staged, Wide, by_position, by_unit};
use crate::arch::bitmap::opaque;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads};
use crate::arch::warp::{lane_id, shuffle_xor, sync_warp, warp_id, warp_max};

/// From so many units of a word on, a tile is walked by positions.
const BY_POSITION: u32 = 17;

/// Four neighbouring columns of one input row, on their way to where [`by_unit`] looks for them.
struct Four<S> {
    wide: [f32; 4],
    pairs: [u32; 2],
    staged: PhantomData<S>,
}

impl<S: Staged> Four<S> {
    /// The lane's four of the first 128 columns from `column` on.
    ///
    /// # Safety
    ///
    /// `row < m`; the arguments are the contract's, as [`Pairs`] rows of the type of the weights.
    #[inline(always)]
    unsafe fn load(input: &impl Input, row: u32, column: u32) -> Self {
        let column = column + 4 * lane_id();
        // SAFETY: the caller's promise.
        unsafe {
            if S::PAIRS {
                let pairs = load2(input.linear(), row, column);
                Self { wide: [0.0; 4], pairs, staged: PhantomData }
            } else {
                let wide = input.load4(row, column);
                Self { wide, pairs: [0; 2], staged: PhantomData }
            }
        }
    }

    /// Puts it among the `upper`th 128 columns of a tile.
    ///
    /// # Safety
    ///
    /// `staged` starts this warp's columns of one input.
    #[inline(always)]
    unsafe fn stage(&self, staged: Shared<u32>, upper: u32) {
        let (lane, in_word) = (lane_id(), if S::PAIRS { 2 } else { 1 });
        let at = (lane / 8 * 8 + lane % 2 * 4 + 32 * upper) / in_word;
        let to = staged.add(lane % 8 / 2 * X_PITCH + at);
        // SAFETY: the caller's promise; columns of one lane.
        unsafe {
            if S::PAIRS {
                to.write_x2(self.pairs);
            } else {
                to.write_x4(self.wide.map(f32::to_bits));
            }
        }
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for values of `V`; block, shared memory and
/// grid are the contract's for `MB` input rows at a time. As [`Pairs`], the input is rows of the type of
/// the weights.
#[inline(always)]
unsafe fn linear<V: Value, S: Staged, const MB: usize>(input: &impl Input) {
    let args = input.linear();
    let (way, lane) = (warp_id(), lane_id());
    let staged = behind_streams().cast::<u32>().add(way * MB as u32 * X_FLOATS);
    let own = staged.add(lane % 4 * X_PITCH);
    let (tiles, span) = (steps(args.k as usize, V::PER_UNIT) as u32, span(V::PER_UNIT) as u32);
    let (in_period, per_unit) = (BLOCK as u32 / span, V::PER_UNIT as u32);
    let mut mb = block_idx_y();
    while mb * (MB as u32) < args.m {
        let first = mb * MB as u32;
        // SAFETY: the caller's promise.
        let mut stream = unsafe {
            let first = (block_idx_x() * WAYS as u32 + way) as usize * tiles as usize;
            Stream::new(args, first, tiles, stream_memory(way, RING_BYTES))
        };
        // The weights are constants: what came before this kernel may still run.
        launch_dependents();
        dependency_wait();
        let mut acc = [[0.0; MB]; 2];
        let mut index = 0;
        while index < tiles {
            let column = index / in_period * PERIOD as u32 + way * BLOCK as u32;
            let column = column + index % in_period * span;
            // The columns of a single input are asked for before the units.
            let load = |row: u32, upper: u32| -> Four<S> {
                // SAFETY: a row below m; rows past the last one repeat it.
                unsafe { Four::load(input, row.min(args.m - 1), column + 128 * upper) }
            };
            let mut x = [None, None];
            if MB == 1 {
                x[0] = Some(load(first, 0));
                if V::PER_UNIT == 2 {
                    x[1] = Some(load(first, 1));
                }
            }
            let tile = stream.tile();
            // SAFETY: the warp's staging area; `tile` ended with a barrier of the warp.
            unsafe {
                if let Some(x) = &x[0] {
                    x.stage(staged, 0);
                }
                if let Some(x) = &x[1] {
                    x.stage(staged, 1);
                }
                if MB > 1 {
                    let (mut i, end) = (0, opaque(MB as u32 * per_unit));
                    while i < end {
                        let (i_row, upper) = (i / per_unit, i % per_unit);
                        load(first + i_row, upper).stage(staged.add(i_row * X_FLOATS), upper);
                        i += 1;
                    }
                }
            }
            sync_warp();
            let most = tile.masks[0].count_ones().max(tile.masks[1].count_ones());
            // SAFETY: the tile's units and columns are staged.
            unsafe {
                if warp_max(most) < BY_POSITION {
                    by_unit::<V, S, MB>(tile, own, &mut acc);
                } else {
                    by_position::<V, S, MB>(tile, own, &mut acc);
                }
            }
            index += 1;
        }
        stream.end();
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
    ($($symbol:ident $kernel:ident $args:ty, $value:ty, $mb:literal $(or $type:ident)?;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: $args) {
            // SAFETY: the launch contract, handed on; `x` is of the type that was looked at.
            unsafe {
                $(if args.x_type == RowType::$type as u32 {
                    return linear::<$value, Pairs, $mb>(&args);
                })?
                linear::<$value, Wide, $mb>(&args)
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    sparse_bf16_m1 SparseBf16M1 LinearArgs, Bf16, 1 or Bf16;
    sparse_f16_m1 SparseF16M1 LinearArgs, F16, 1 or F16;
    sparse_f32_m1 SparseF32M1 LinearArgs, f32, 1;
    sparse_bf16_m4 SparseBf16M4 LinearArgs, Bf16, 4;
    sparse_f16_m4 SparseF16M4 LinearArgs, F16, 4;
    sparse_f32_m4 SparseF32M4 LinearArgs, f32, 4;
    sparse_conv2d_bf16 SparseConv2dBf16 Conv2dArgs, Bf16, 4;
    sparse_conv2d_f16 SparseConv2dF16 Conv2dArgs, F16, 4;
    sparse_conv2d_f32 SparseConv2dF32 Conv2dArgs, f32, 4;
}
