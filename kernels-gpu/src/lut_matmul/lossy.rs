//! The bit-serial form: the kernel that builds int8 tables, and the one that looks up in them.
//!
//! Building: one block for each activation group and row; thread `p` owns tables `p, p + 256, ...`.
//! Looking up: a block owns one tile and goes along K in stretches. Its warps copy the tables of a
//! stretch to shared memory, share its steps, and add up integers for each row and activation group;
//! the first warp, one lane a row, then takes those through the chain of floats, group by group.

use contract::launch::Kernel;
use contract::lut_matmul::TILE;
use contract::lut_matmul::lossy::{
    Args, BUILD_SMEM_BYTES, BUILD_THREADS, BuildArgs, Chain, ENTRIES, GROUP, Head, LossyTables,
    MAX_BITS, SMEM_BYTES, STEP_COLUMNS, STEP_TABLE_BYTES, STEP_TABLES, STRETCH, WARPS, entry,
    quantised, reach, scale_of, step_bytes, steps,
};
use contract::num::abs_bits;

use crate::arch::block;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_nc, ld_nc_stream_u8_if, ld_x4, st, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};

const _: () = assert!(BUILD_THREADS == block::THREADS);
const _: () = assert!(BUILD_SMEM_BYTES >= 4 * (block::THREADS + block::WARPS));
const _: () = assert!(core::mem::offset_of!(Head, scale) == 0 && size_of::<Head>() == 8);

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

/// Vectors of a step, at most.
const VECTORS: usize = STEP_TABLES / 2 * MAX_BITS;

/// `sum 2^i table[index]` over the tables and bits of a step.
///
/// # Safety
///
/// `tables` starts the tables of the step in shared memory.
#[inline(always)]
unsafe fn look_up<const BITS: usize>(step: &[u32; VECTORS], tables: Shared<i8>) -> i32 {
    let mut z = 0;
    let mut v = 0;
    while v < STEP_TABLES / 2 * BITS {
        let (pair, bit) = (v / BITS, v % BITS);
        let low = tables.byte_add(step[v] & 15).add((2 * pair * ENTRIES) as u32);
        let high = tables.byte_add(step[v] >> 4).add(((2 * pair + 1) * ENTRIES) as u32);
        // SAFETY: entries of the two tables of the pair.
        z += unsafe { low.read_i8() + high.read_i8() } << bit;
        v += 1;
    }
    z
}

/// The kernel.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, grid x has a block for each tile, the block has
/// `WARPS` warps and `SMEM_BYTES` of shared memory.
#[inline(always)]
unsafe fn lookup<const BITS: usize>(args: &Args) {
    let steps = steps(args.k as usize) as u32;
    let of_group = args.act_group / STEP_COLUMNS as u32; // steps
    let groups = steps.div_ceil(of_group);
    let weight_groups = groups.div_ceil(args.per_weight_group);
    let (lane, thread) = (lane_id(), thread_idx_x());
    let tile = block_idx_x() as usize;
    let row = (block_idx_x() * TILE as u32 + lane).min(args.n - 1) as usize;
    let w = args.w.as_ptr().cast_const();
    let w = w.wrapping_add(tile * steps as usize * step_bytes(BITS) + lane as usize);
    let load = |enabled: bool, index: u32| {
        let at = w.wrapping_add(index as usize * step_bytes(BITS));
        let mut step = [0; VECTORS];
        let mut v = 0;
        while v < step_bytes(BITS) / TILE {
            // SAFETY: vector v of a step of the tile; weights never change.
            step[v] = unsafe { ld_nc_stream_u8_if(enabled, at.wrapping_add(v * TILE)) };
            v += 1;
        }
        step
    };
    let shared = dynamic_shared_mem::<u32>();
    let sums = shared.byte_add(STRETCH * STEP_TABLE_BYTES);
    let heads = sums.add(STRETCH * TILE as u32);
    launch_dependents();
    dependency_wait();
    let mut m = block_idx_y();
    loop {
        let tables = args.tables.cast::<[u32; 4]>().as_ptr().cast_const();
        let tables = tables.wrapping_add(m as usize * steps as usize * STEP_TABLES);
        let row_heads = args.heads.cast::<u32>().as_ptr().cast_const();
        let row_heads = row_heads.wrapping_add(2 * m as usize * groups as usize);
        let (mut chain, mut carry, mut base) = (Chain::default(), 0, 0);
        while base < steps {
            let end = steps.min(base + STRETCH);
            let (first_group, end_group) = (base / of_group, end.div_ceil(of_group));
            let mut i = thread;
            while i < (end - base) * STEP_TABLES as u32 {
                let at = (base as usize) * STEP_TABLES + i as usize;
                // SAFETY: a table of the row, to its place in the stretch.
                unsafe { shared.add(4 * i).write_x4(ld_x4(tables.wrapping_add(at))) };
                i += 32 * WARPS;
            }
            let mut i = thread;
            while i < (end_group - first_group) * TILE as u32 {
                // SAFETY: a sum of a group of the stretch: at most one for each step.
                unsafe { sums.add(i).write(0) };
                i += 32 * WARPS;
            }
            let mut i = thread;
            while i < 2 * (end_group - first_group) {
                let at = 2 * first_group as usize + i as usize;
                // SAFETY: a word of the row's heads, to its place in the stretch.
                unsafe { heads.add(i).write(ld(row_heads.wrapping_add(at))) };
                i += 32 * WARPS;
            }
            // Neighbouring steps of a warp share a group, so its sum is seldom put away.
            let share = (end - base).div_ceil(WARPS);
            let mut index = base + warp_id() * share;
            let last = end.min(index + share);
            let mut step = load(index < last, index);
            sync_threads();
            let (mut z, mut group) = (0i32, index / of_group);
            while index < last {
                let ahead = load(index + 1 < last, index + 1);
                let at = shared.byte_add((index - base) * STEP_TABLE_BYTES);
                // SAFETY: the tables of the stretch are there.
                z += unsafe { look_up::<BITS>(&step, at.cast()) };
                step = ahead;
                index += 1;
                if index == last || index == (group + 1) * of_group {
                    let at = (group - first_group) * TILE as u32 + lane;
                    // SAFETY: a sum of the stretch; between the barriers all go this way.
                    unsafe { sums.add(at).atomic_add(z as u32) };
                    (z, group) = (0, group + 1);
                }
            }
            sync_threads();
            if thread < TILE as u32 {
                let mut group = first_group;
                while group < end_group {
                    let local = group - first_group;
                    // SAFETY: written before the barrier.
                    let z = unsafe { sums.add(local * TILE as u32 + lane).read() } as i32;
                    // SAFETY: as above: scale and bias.
                    let (scale, bias) =
                        unsafe { (heads.add(2 * local).read(), heads.add(2 * local + 1).read()) };
                    let head = Head { scale: f32::from_bits(scale), bias: f32::from_bits(bias) };
                    carry += z;
                    group += 1;
                    // The rest of a group may be in the next stretch.
                    if group * of_group <= end || end == steps {
                        chain.add(head, carry);
                        carry = 0;
                        if group % args.per_weight_group == 0 || group == groups {
                            let of_weights = (group - 1) / args.per_weight_group;
                            let at = row * weight_groups as usize + of_weights as usize;
                            // SAFETY: s[row, weight group]; weights never change.
                            let scale =
                                unsafe { ld_nc(args.s.as_ptr().cast_const().wrapping_add(at)) };
                            let zero = if args.z.is_null() {
                                None
                            } else {
                                // SAFETY: z[row, weight group].
                                Some(unsafe {
                                    ld_nc(args.z.as_ptr().cast_const().wrapping_add(at))
                                })
                            };
                            chain.end(scale, zero);
                        }
                    }
                }
            }
            sync_threads();
            base = end;
        }
        if thread < TILE as u32 && tile * TILE + (lane as usize) < args.n as usize {
            let at = m as usize * args.n as usize + row;
            // SAFETY: y[m, row] belongs to this thread.
            unsafe { st(args.y.as_ptr().wrapping_add(at), chain.y) };
        }
        m += grid_dim_y();
        if m >= args.m {
            break; // the same for every thread of the block
        }
    }
}

const _: () = assert!(SMEM_BYTES >= STRETCH * (STEP_TABLE_BYTES + 4 * TILE as u32 + 8));

macro_rules! entries {
    ($($name:ident $symbol:literal $bits:literal;)*) => {$(
        const _: () = {
            /// # Safety
            ///
            /// The launch obeys the kernel's `SPEC`; the pointers cover the contract's table.
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                // SAFETY: the launch contract, handed on.
                unsafe { lookup::<$bits>(&args) }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::lut_matmul::lossy::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_lut_matmul_lossy!(entries);
