//! The bit-serial form: lookups in int8 tables.
//!
//! A block owns one tile and goes along K in stretches. Its warps copy the tables of a stretch to
//! shared memory, share its steps, and add up integers for each row and activation group; the first
//! warp, one lane a row, then takes the products of the groups through the chain of floats.

use contract::launch::Kernel;
use contract::lut_matmul::TILE;
use contract::lut_matmul::lossy::{
    Args, Chain, ENTRIES, Head, MAX_BITS, SMEM_BYTES, STEP_COLUMNS, STEP_TABLE_BYTES, STEP_TABLES,
    STRETCH, WARPS, product, step_bytes, steps, stretch,
};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc, ld_nc_stream_u8_if, ld_x4, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};

const _: () = assert!(core::mem::offset_of!(Head, scale) == 0 && size_of::<Head>() == 8);

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

/// Scale and bias of group `local` of the stretch.
///
/// # Safety
///
/// The heads of the stretch start at `heads`.
#[inline(always)]
unsafe fn head(heads: Shared<u32>, local: u32) -> Head {
    // SAFETY: by the caller.
    let (scale, bias) = unsafe { (heads.add(2 * local).read(), heads.add(2 * local + 1).read()) };
    Head { scale: f32::from_bits(scale), bias: f32::from_bits(bias) }
}

/// The kernel.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, grid x has a block for each tile, the block has
/// `WARPS` warps and `SMEM_BYTES` of shared memory. A lane has `HELD` steps in flight.
#[inline(always)]
unsafe fn lookup<const BITS: usize, const HELD: usize>(args: &Args) {
    let steps = steps(args.k as usize) as u32;
    let of_group = args.act_group / STEP_COLUMNS as u32; // steps
    let groups = steps.div_ceil(of_group);
    let weight_groups = groups.div_ceil(args.per_weight_group);
    let (lane, thread, threads) = (lane_id(), thread_idx_x(), 32 * WARPS);
    let tile = block_idx_x() as usize;
    let row = (block_idx_x() * TILE as u32 + lane).min(args.n - 1) as usize;
    let w = args.w.as_ptr().cast_const();
    let w = w.wrapping_add(tile * steps as usize * step_bytes(BITS) + lane as usize);
    let load = |first: u32, last: u32| {
        let mut held = [[0; VECTORS]; HELD];
        let mut h = 0;
        while h < HELD {
            let index = first + h as u32;
            let at = w.wrapping_add(index as usize * step_bytes(BITS));
            let mut v = 0;
            while v < step_bytes(BITS) / TILE {
                let at = at.wrapping_add(v * TILE);
                // SAFETY: vector v of a step of the tile; weights never change.
                held[h][v] = unsafe { ld_nc_stream_u8_if(index < last, at) };
                v += 1;
            }
            h += 1;
        }
        held
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
            let end = steps.min(base + stretch(of_group));
            let (first_group, end_group) = (base / of_group, end.div_ceil(of_group));
            let mut i = thread;
            while i < (end - base) * STEP_TABLES as u32 {
                let at = (base as usize) * STEP_TABLES + i as usize;
                // SAFETY: a table of the row, to its place in the stretch.
                unsafe { shared.add(4 * i).write_x4(ld_x4(tables.wrapping_add(at))) };
                i += threads;
            }
            let mut i = thread;
            while i < (end_group - first_group) * TILE as u32 {
                // SAFETY: a sum of a group of the stretch: at most one for each step.
                unsafe { sums.add(i).write(0) };
                i += threads;
            }
            let mut i = thread;
            while i < 2 * (end_group - first_group) {
                let at = 2 * first_group as usize + i as usize;
                // SAFETY: a word of the row's heads, to its place in the stretch.
                unsafe { heads.add(i).write(ld(row_heads.wrapping_add(at))) };
                i += threads;
            }
            // Neighbouring steps of a warp share a group, so its sum is seldom put away.
            let share = (end - base).div_ceil(WARPS);
            let mut index = base + warp_id() * share;
            let last = end.min(index + share);
            let mut held = load(index, last);
            sync_threads();
            let (mut z, mut group) = (0i32, index / of_group);
            while index < last {
                let ahead = load(index + HELD as u32, last);
                let mut h = 0;
                while h < HELD {
                    if index < last {
                        let at = shared.byte_add((index - base) * STEP_TABLE_BYTES);
                        // SAFETY: the tables of the stretch are there.
                        z += unsafe { look_up::<BITS>(&held[h], at.cast()) };
                        index += 1;
                        if index == last || index == (group + 1) * of_group {
                            let at = (group - first_group) * TILE as u32 + lane;
                            // SAFETY: a sum of the stretch; between the barriers all go this way.
                            unsafe { sums.add(at).atomic_add(z as u32) };
                            (z, group) = (0, group + 1);
                        }
                    }
                    h += 1;
                }
                held = ahead;
            }
            sync_threads();
            // The products of whole groups, in the place of their sums. A group that has begun in
            // an earlier stretch, or goes on in the next one, is alone in its stretch or last.
            let whole = if of_group > STRETCH { 0 } else { end_group - first_group };
            let mut i = thread;
            while i < whole * TILE as u32 {
                // SAFETY: a sum of the stretch, this thread's until the next barrier.
                unsafe {
                    let p = product(head(heads, i / TILE as u32), sums.add(i).read() as i32);
                    sums.add(i).write(p.to_bits());
                }
                i += threads;
            }
            sync_threads();
            if thread < TILE as u32 {
                let mut local = 0;
                while local < end_group - first_group {
                    let group = first_group + local;
                    // SAFETY: written before the barrier.
                    let (word, head) = unsafe {
                        (sums.add(local * TILE as u32 + lane).read(), head(heads, local))
                    };
                    local += 1;
                    let mut p = f32::from_bits(word);
                    if whole == 0 {
                        carry += word as i32;
                        if (group + 1) * of_group > end && end < steps {
                            break; // goes on in the next stretch
                        }
                        p = product(head, carry);
                        carry = 0;
                    }
                    chain.add(p, head.bias);
                    if (group + 1) % args.per_weight_group == 0 || group + 1 == groups {
                        let of_weights = group / args.per_weight_group;
                        let at = row * weight_groups as usize + of_weights as usize;
                        let (s, z) = (args.s.as_ptr().cast_const(), args.z.as_ptr().cast_const());
                        // SAFETY: s[row, weight group]; weights never change.
                        let scale = unsafe { ld_nc(s.wrapping_add(at)) };
                        let zero = if args.z.is_null() {
                            None
                        } else {
                            // SAFETY: z[row, weight group].
                            Some(unsafe { ld_nc(z.wrapping_add(at)) })
                        };
                        chain.end(scale, zero);
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
                unsafe { lookup::<$bits, { if $bits == 1 { 2 } else { 1 } }>(&args) }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::lut_matmul::lossy::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_lut_matmul_lossy!(entries);
