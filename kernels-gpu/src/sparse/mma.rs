//! The linear kernel on tensor cores: tiles of the bitmap become `A` fragments in registers.
//!
//! Of a tile, lane `4 g + t` owns columns `32 t ..` of rows `g` and `g + 8`. Step `s` of eight takes
//! columns `4 s .. 4 s + 4` of each lane's 32: which columns meet in a fragment does not matter as long
//! as `x` is read the same way.

use contract::launch::Kernel;
use contract::sparse::{LinearArgs, PERIOD, SPAN, SparseBf16Mma8, SparseBf16Mma16, WAYS, WORD};

use super::stream::{Bf16, Stream, Tile, first_row};
use crate::arch::bitmap::take_pair;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_u16, ld_x4, st};
use crate::arch::mma::mma_bf16;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_y, grid_dim_y, sync_threads};
use crate::arch::warp::{lane_id, warp_id};

/// The lane's 32 columns of one input row, two to a word; zeros outside of the matrix.
type Columns = [u32; WORD / 2];

/// # Safety
///
/// `x` is the contract's.
#[inline(always)]
unsafe fn load_columns(args: &LinearArgs, row: u32, k: u32) -> Columns {
    if row >= args.m || k >= args.k {
        return [0; WORD / 2];
    }
    let at = row as usize * args.k as usize + k as usize;
    let p = args.x.cast::<u16>().as_ptr().cast_const().wrapping_add(at);
    let mut words = [0; WORD / 2];
    let mut i = 0;
    if k + WORD as u32 <= args.k && p.addr().is_multiple_of(16) {
        while i < WORD / 8 {
            // SAFETY: eight columns of the row, aligned.
            let four: [u32; 4] = unsafe { ld_x4(p.wrapping_add(8 * i).cast()) };
            words[4 * i] = four[0];
            words[4 * i + 1] = four[1];
            words[4 * i + 2] = four[2];
            words[4 * i + 3] = four[3];
            i += 1;
        }
    } else {
        while i < WORD {
            if k + (i as u32) < args.k {
                // SAFETY: a column of the row.
                let h = unsafe { ld_u16(p.wrapping_add(i)) };
                words[i / 2] |= u32::from(h) << (16 * (i % 2));
            }
            i += 1;
        }
    }
    words
}

/// # Safety
///
/// As for the exact kernel with bf16 values, and `x` is bf16.
#[inline(always)]
unsafe fn linear_mma<const NT: usize>(args: &LinearArgs) {
    launch_dependents();
    dependency_wait();
    let (way, lane) = (warp_id(), lane_id());
    let steps = args.k.div_ceil(PERIOD as u32);
    let mut mb = block_idx_y();
    while mb * (8 * NT as u32) < args.m {
        let first = mb * 8 * NT as u32;
        // SAFETY: the caller's promise.
        let mut stream = unsafe { Stream::<Bf16>::new(args) };
        let mut acc = [[0.0f32; 4]; NT];
        let mut step = 0;
        while step < steps {
            let k = step * PERIOD as u32 + way * SPAN as u32 + lane % 4 * WORD as u32;
            let x: [Columns; NT] = core::array::from_fn(|n| {
                // SAFETY: the caller's promise.
                unsafe { load_columns(args, first + 8 * n as u32 + lane / 4, k) }
            });
            let Tile { masks, mut at } = stream.tile();
            let mut s = 0;
            while s < 8 {
                let bit = |i: u32| 0x8000_0000_u32 >> (4 * s + i);
                // SAFETY: stored values, where their bits are set.
                let a = unsafe {
                    let a0 = take_pair(masks[0], bit(0), bit(1), &mut at[0]);
                    let a1 = take_pair(masks[1], bit(0), bit(1), &mut at[1]);
                    let a2 = take_pair(masks[0], bit(2), bit(3), &mut at[0]);
                    let a3 = take_pair(masks[1], bit(2), bit(3), &mut at[1]);
                    [a0, a1, a2, a3]
                };
                let mut n = 0;
                while n < NT {
                    let b = [x[n][2 * s as usize], x[n][2 * s as usize + 1]];
                    acc[n] = mma_bf16(a, b, acc[n]);
                    n += 1;
                }
                s += 1;
            }
            step += 1;
        }
        // SAFETY: every ring was read to its end.
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
unsafe fn finish<const NT: usize>(args: &LinearArgs, first: u32, acc: [[f32; 4]; NT]) {
    let (way, lane) = (warp_id(), lane_id());
    let scratch = dynamic_shared_mem::<f32>();
    sync_threads();
    let mut j = 0;
    while j < 4 * NT as u32 {
        // SAFETY: 4 KiB and less at the start of the rings, behind a barrier.
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
