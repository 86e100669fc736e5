//! The int8 tables of [`super::lossy`]: one block for each activation group and row; thread `p` owns
//! tables `p, p + 256, ...`, so that the bias is the contract's strided sum.

use contract::launch::Kernel;
use contract::lut_matmul::lossy::{
    BUILD_SMEM_BYTES, BUILD_THREADS, BuildArgs, ENTRIES, GROUP, LossyTables, STEP_TABLES, entry,
    quantised, reach, scale_of, steps,
};
use contract::num::abs_bits;

use crate::arch::block;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_if, st, st_x4};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads, thread_idx_x};

const _: () = assert!(BUILD_THREADS == block::THREADS);
const _: () = assert!(BUILD_SMEM_BYTES >= 4 * (block::THREADS + block::WARPS));

/// The activations of table `c`, zeros past the end of the row.
///
/// # Safety
///
/// `row` starts a row of `k` activations.
#[inline(always)]
unsafe fn activations(row: *const f32, c: u32, k: u32) -> [f32; GROUP] {
    let mut x = [0.0; GROUP];
    let mut j = 0;
    while j < GROUP {
        let at = c * GROUP as u32 + j as u32;
        // SAFETY: at < k.
        x[j] = unsafe { ld_if(at < k, row.wrapping_add(at as usize)) };
        j += 1;
    }
    x
}

/// # Safety
///
/// The launch obeys `LossyTables::SPEC`, grid x has a block for each activation group; the pointers
/// of `args` cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn lut_matmul_lossy_tables(args: BuildArgs) {
    launch_dependents();
    dependency_wait();
    let (k, group) = (args.k, block_idx_x() as usize);
    let tables = steps(k as usize) * STEP_TABLES;
    let of_group = args.act_group as usize / GROUP;
    let first = group * of_group;
    let end = (first + of_group).min(tables) as u32;
    let own = first as u32 + thread_idx_x();
    let scratch = dynamic_shared_mem::<f32>();
    let mut m = block_idx_y();
    loop {
        let row = args.x.as_ptr().cast_const().wrapping_add(m as usize * k as usize);
        let (mut top, mut partial) = (0, 0.0);
        let mut c = own;
        while c < end {
            // SAFETY: x[m].
            let x = unsafe { activations(row, c, k) };
            top = top.max(abs_bits(reach(x)));
            partial += entry(0, x);
            c += BUILD_THREADS;
        }
        // SAFETY: words 256 to 263 of the shared memory are for this call.
        let top = unsafe { block::max(scratch.add(block::THREADS).cast(), top) };
        let scale = scale_of(f32::from_bits(top));
        // SAFETY: the first 256 words are for this call.
        let bias = unsafe { block::sum_partials(scratch, partial) };
        if thread_idx_x() == 0 {
            let groups = tables.div_ceil(of_group);
            let head = args.heads.cast::<f32>().as_ptr();
            let head = head.wrapping_add(2 * (m as usize * groups + group));
            // SAFETY: heads[m, group] is this block's: the scale, then the bias.
            unsafe {
                st(head, scale);
                st(head.wrapping_add(1), bias);
            }
        }
        let out = args.tables.cast::<[u32; 4]>().as_ptr().wrapping_add(m as usize * tables);
        let mut c = own;
        while c < end {
            // SAFETY: x[m].
            let x = unsafe { activations(row, c, k) };
            let mut words = [0u32; ENTRIES / 4];
            let mut i = 0;
            while i < ENTRIES {
                let byte = quantised(entry(i, x), scale) as u8;
                words[i / 4] |= u32::from(byte) << (8 * (i % 4));
                i += 1;
            }
            // SAFETY: tables[m, c] is this thread's.
            unsafe { st_x4(out.wrapping_add(c as usize), words) };
            c += BUILD_THREADS;
        }
        m += grid_dim_y();
        if m >= args.m {
            break; // the same for every thread of the block
        }
        sync_threads();
    }
}

const _: unsafe extern "ptx-kernel" fn(<LossyTables as Kernel>::Args) = lut_matmul_lossy_tables;
