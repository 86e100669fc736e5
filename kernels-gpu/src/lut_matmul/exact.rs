//! The exact forms: 16-bit tables of int8 sums in shared memory.
//!
//! A block owns `TILES` tiles of weights. It goes along K in stretches whose tables fit into shared
//! memory; its warps build the tables together and then share the steps of the stretch, each warp
//! every `WARPS`th. A lane loads the bytes of its row, [`HELD`] steps ahead, the first of them
//! before the wait for the kernel that makes the activations. The sums of the warps meet at the end.

use contract::launch::Kernel;
use contract::lut_matmul::{
    Args, Form, STEP_LOOKUPS, TILE, pair_entry, table_words, tile_steps, triple_entry,
};
use contract::w2a8::{ActStats, act_bytes, act_index, dequantise};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_nc_stream_u8_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};

/// Steps in flight per lane and tile.
const HELD: usize = 3;
/// Vectors of a step, at most.
const VECTORS: usize = 5;
/// Bytes of a step that belong to one row.
type Step = [u32; VECTORS];
/// Where the negative entries of a table begin, in bytes.
const NEGATIVE: u32 = 32;

const _: () = assert!(TILE == LANES as usize);

/// Four activations from `4 * word` on; zeros past the end of the row.
///
/// # Safety
///
/// `row` is a row of activations of `k` columns in the order of `contract::w2a8`.
#[inline(always)]
unsafe fn acts_word(row: *const u32, word: u32, k: u32) -> u32 {
    let at = 4 * word as usize;
    // SAFETY: a row has `act_bytes(k)` bytes, whole groups of it, so the word is inside.
    unsafe { ld_if(at < act_bytes(k as usize), row.wrapping_add(act_index(at) / 4)) }
}

/// Builds table `lookup` of the row into `at`.
///
/// # Safety
///
/// As for [`acts_word`]; `at` starts `table_words` words of shared memory that are this thread's.
#[inline(always)]
unsafe fn build<const TL2: bool>(row: *const u32, lookup: u32, k: u32, at: Shared<u32>) {
    let first = lookup * if TL2 { 3 } else { 2 };
    // SAFETY: by the caller.
    let low = unsafe { acts_word(row, first / 4, k) };
    let shift = 8 * (first % 4);
    let bytes = if TL2 {
        // SAFETY: by the caller.
        let high = unsafe { acts_word(row, first / 4 + 1, k) };
        ((u64::from(high) << 32 | u64::from(low)) >> shift) as u32
    } else {
        low >> shift
    };
    let x = [bytes as i8 as i32, (bytes >> 8) as i8 as i32, (bytes >> 16) as i8 as i32];
    let mut word = 0;
    while word < if TL2 { 7 } else { 5 } {
        let code = 2 * word as u8;
        let entry = |code: u8| match TL2 {
            true => triple_entry(code, x),
            // Code 9 is none: its half of the last word is never read.
            false => pair_entry(code % 9, [x[0], x[1]]),
        };
        let (a, b) = (entry(code), entry(code + 1));
        // SAFETY: word < table_words, and 8 + word for TL2.
        unsafe {
            at.add(word).write(a as u32 & 0xffff | (b as u32) << 16);
            if TL2 {
                let (a, b) = (-a, -b);
                at.add(NEGATIVE / 4 + word).write(a as u32 & 0xffff | (b as u32) << 16);
            }
        }
        word += 1;
    }
}

/// The sum of the eight lookups of a step whose tables start at `tables`.
///
/// # Safety
///
/// The tables of the step are built; codes are valid.
#[inline(always)]
unsafe fn look_up<const TL2: bool>(step: &Step, tables: Shared<i16>) -> i32 {
    let stride = 2 * table_words(if TL2 { Form::Tl2 } else { Form::Tl1 });
    let mut acc = 0;
    let mut j = 0;
    while j < STEP_LOOKUPS as u32 {
        let byte = step[j as usize / 2];
        let mut entry = if j % 2 == 0 { byte << 1 & 0x1e } else { byte >> 3 & 0x1e };
        if TL2 {
            // Sign j is bit 7 - j; it adds NEGATIVE = 1 << 5.
            let signs = step[4];
            entry |= if j < 2 { signs >> (2 - j) } else { signs << (j - 2) } & NEGATIVE;
        }
        // SAFETY: an entry of table j, by the caller.
        acc += unsafe { tables.byte_add(entry).add(j * stride).read_i16() };
        j += 1;
    }
    acc
}

/// The bytes of step `index` of a row, or zeros.
///
/// # Safety
///
/// When `enabled`, step `index` of the lane's row starts `index * step_bytes` after `row`.
#[inline(always)]
unsafe fn load<const TL2: bool>(enabled: bool, row: *const u8, index: u32) -> Step {
    let form = if TL2 { Form::Tl2 } else { Form::Tl1 };
    let row = row.wrapping_add(index as usize * form.step_bytes());
    let mut step = [0; VECTORS];
    let mut v = 0;
    while v < form.step_bytes() / TILE {
        // SAFETY: vector v of the step; weights never change.
        step[v] = unsafe { ld_nc_stream_u8_if(enabled, row.wrapping_add(v * TILE)) };
        v += 1;
    }
    step
}

/// The kernel.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, grid x covers the tiles, `TILES` a block, the
/// block has `WARPS` warps and `SMEM_BYTES` of shared memory.
#[inline(always)]
unsafe fn exact<const TL2: bool, const WARPS: u32, const TILES: usize>(args: &Args) {
    let form = if TL2 { Form::Tl2 } else { Form::Tl1 };
    let (n, k) = (args.n, args.k);
    let steps = form.steps(k as usize) as u32;
    let tiles = n.div_ceil(TILE as u32);
    let (lane, warp) = (lane_id(), warp_id());
    let tile0 = block_idx_x() * TILES as u32;
    let mut rows = [args.w.as_ptr().cast_const(); TILES];
    let mut t = 0;
    while t < TILES {
        // Tiles past the end read the last one once more.
        let tile = (tile0 + t as u32).min(tiles - 1) as usize;
        rows[t] = rows[t].wrapping_add(tile * form.tile_bytes(k as usize) + lane as usize);
        t += 1;
    }
    let shared = dynamic_shared_mem::<u32>();
    let words = table_words(form);
    let held = |first: u32, end: u32| {
        let mut held = [[[0; VECTORS]; TILES]; HELD];
        let mut h = 0;
        while h < HELD {
            let index = first + h as u32 * WARPS;
            let mut t = 0;
            while t < TILES {
                // SAFETY: index < end <= steps.
                held[h][t] = unsafe { load::<TL2>(index < end, rows[t], index) };
                t += 1;
            }
            h += 1;
        }
        held
    };

    let mut m = block_idx_y();
    let mut step = held(warp, steps.min(tile_steps(form)));
    launch_dependents();
    dependency_wait();
    loop {
        let acts = args.acts.as_ptr().cast_const();
        let acts = acts.wrapping_add(m as usize * (act_bytes(k as usize) / 4));
        let mut acc = [0i32; TILES];
        let mut base = 0;
        while base < steps {
            let end = steps.min(base + tile_steps(form));
            let mut lookup = thread_idx_x();
            while lookup < (end - base) * STEP_LOOKUPS as u32 {
                let all = base * STEP_LOOKUPS as u32 + lookup;
                // SAFETY: lookup < tile_steps * STEP_LOOKUPS, so the table is inside.
                unsafe { build::<TL2>(acts, all, k, shared.add(lookup * words)) };
                lookup += 32 * WARPS;
            }
            sync_threads();
            let mut first = base + warp;
            while first < end {
                let next = first + HELD as u32 * WARPS;
                let ahead = held(next, end);
                let mut h = 0;
                while h < HELD {
                    let index = first + h as u32 * WARPS;
                    if index < end {
                        let at = (index - base) * STEP_LOOKUPS as u32 * words;
                        let tables = shared.add(at).cast::<i16>();
                        let mut t = 0;
                        while t < TILES {
                            // SAFETY: the tables of steps base..end are built; codes are valid.
                            acc[t] += unsafe { look_up::<TL2>(&step[h][t], tables) };
                            t += 1;
                        }
                    }
                    h += 1;
                }
                step = ahead;
                first = next;
            }
            base = end;
            let begin = if base < steps { base } else { 0 };
            step = held(begin + warp, steps.min(begin + tile_steps(form)));
            sync_threads();
        }

        // sums[warp][tile][lane]
        let mut t = 0;
        while t < TILES {
            let at = (warp * TILES as u32 + t as u32) * LANES + lane;
            // SAFETY: WARPS * TILES * 32 words fit; no table is in use.
            unsafe { shared.add(at).write(acc[t] as u32) };
            t += 1;
        }
        sync_threads();
        let row = tile0 * TILE as u32 + thread_idx_x();
        if thread_idx_x() < TILES as u32 * LANES && row < n {
            let mut total = 0i32;
            let mut warp = 0;
            while warp < WARPS {
                let at = warp * TILES as u32 * LANES + thread_idx_x();
                // SAFETY: written before the barrier.
                total += unsafe { shared.add(at).read() } as i32;
                warp += 1;
            }
            let stats = args.stats.as_ptr().cast_const().wrapping_add(m as usize);
            // SAFETY: stats[m]; the scale is its first field.
            let scale = unsafe { ld(stats.cast::<f32>()) };
            let y = dequantise(total, scale, args.segments.scale_of(row));
            let at = m as usize * n as usize + row as usize;
            // SAFETY: y[m, row] with row < n belongs to this thread.
            unsafe { st(args.y.as_ptr().wrapping_add(at), y) };
        }
        m += grid_dim_y();
        if m >= args.m {
            break; // the same for every thread of the block
        }
        sync_threads();
    }
}

const _: () = assert!(core::mem::offset_of!(ActStats, scale) == 0);

macro_rules! entries {
    ($($name:ident $symbol:literal $form:ident $warps:literal $tiles:literal;)*) => {$(
        const _: () = {
            /// # Safety
            ///
            /// The launch obeys the kernel's `SPEC`; the pointers cover the contract's table.
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                const TL2: bool = matches!(Form::$form, Form::Tl2);
                // SAFETY: the launch contract, handed on.
                unsafe { exact::<TL2, $warps, $tiles>(&args) }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::lut_matmul::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_lut_matmul!(entries);
