//! The exact forms: 16-bit tables of int8 sums in shared memory.
//!
//! A block owns one tile of weights. It goes along K in stretches whose tables fit into shared memory;
//! its warps build the tables together and then share its steps, each warp every `WARPS`th
//! pair. A lane loads the bytes of its row, [`HELD`] pairs ahead, the first of them before the wait
//! for the kernel that makes the activations. The sums of the warps meet at the end.

use contract::launch::Kernel;
use contract::lut_matmul::{
    Args, BAND, Form, STEP_LOOKUPS, STRETCH, TILE, step_in_band, table_words, tile_steps,
};
use contract::w2a8::{ActStats, act_bytes, dequantise};

use super::exact_tables::{NEGATIVE, build};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc_stream_u8_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_y, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};

/// Pairs of steps whose loads a lane has in flight. Older machines lack the registers for two.
const HELD: usize = if cfg!(level_sm_75) { 2 } else { 1 };
/// Vectors of a step, at most.
const VECTORS: usize = 5;
/// Bytes of a step that belong to one row.
type Step = [u32; VECTORS];

const _: () = assert!(TILE == LANES as usize && STRETCH.is_multiple_of(2));

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

/// The bytes of a step, or zeros.
///
/// # Safety
///
/// When `enabled`, the lane's byte of the step's first vector is at `step`.
#[inline(always)]
unsafe fn load<const TL2: bool>(enabled: bool, step: *const u8) -> Step {
    let form = if TL2 { Form::Tl2 } else { Form::Tl1 };
    let mut bytes = [0; VECTORS];
    let mut v = 0;
    while v < form.step_bytes() / TILE {
        // SAFETY: vector v of the step; weights never change.
        bytes[v] = unsafe { ld_nc_stream_u8_if(enabled, step.wrapping_add(v * TILE)) };
        v += 1;
    }
    bytes
}

/// The kernel.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, grid x has a block for each tile, the block has
/// `WARPS` warps and `SMEM_BYTES` of shared memory.
#[inline(always)]
unsafe fn exact<const TL2: bool, const WARPS: u32>(args: &Args) {
    let form = if TL2 { Form::Tl2 } else { Form::Tl1 };
    let (n, k) = (args.n, args.k);
    let steps = form.steps(k as usize) as u32;
    let (lane, warp) = (lane_id(), warp_id());
    let tile = block_idx_x() % BAND as u32;
    let first_tile = block_idx_x() - tile;
    let in_band = (n.div_ceil(TILE as u32) - first_tile).min(BAND as u32);
    let band = first_tile as usize * form.tile_bytes(k as usize);
    let own = args.w.as_ptr().cast_const().wrapping_add(band + lane as usize);
    let row = block_idx_x() * TILE as u32 + thread_idx_x();
    let writes = thread_idx_x() < TILE as u32 && row < n;
    let shared = dynamic_shared_mem::<u32>();
    let words = table_words(form);
    // A pair of steps begins at an even one, so it does not cross the end of a stretch.
    let load_held = |first: u32, end: u32| {
        let mut held = [[[0; VECTORS]; 2]; HELD];
        let mut h = 0;
        while h < HELD {
            let index = first + h as u32 * 2 * WARPS;
            let at = step_in_band(in_band, tile, steps, index) as usize * form.step_bytes();
            let step = own.wrapping_add(at);
            // SAFETY: index < end <= steps, and index + 1 likewise.
            unsafe {
                held[h][0] = load::<TL2>(index < end, step);
                held[h][1] = load::<TL2>(index + 1 < end, step.wrapping_add(form.step_bytes()));
            }
            h += 1;
        }
        held
    };

    let mut m = block_idx_y();
    let mut held = load_held(2 * warp, steps.min(tile_steps(form)));
    launch_dependents();
    dependency_wait();
    loop {
        let acts = args.acts.as_ptr().cast_const();
        let acts = acts.wrapping_add(m as usize * (act_bytes(k as usize) / 4));
        let stats = args.stats.as_ptr().cast_const().wrapping_add(m as usize);
        // SAFETY: stats[m]; the scale is its first field.
        let scale = unsafe { ld(stats.cast::<f32>()) };
        let (mut acc, mut base) = (0i32, 0);
        while base < steps {
            let end = steps.min(base + tile_steps(form));
            let pairs = STEP_LOOKUPS as u32 / 2;
            let mut pair = thread_idx_x();
            while pair < (end - base) * pairs {
                let at = shared.add(2 * pair * words);
                // SAFETY: the pair is one of the stretch, so its tables are inside.
                unsafe { build::<TL2>(acts, base * pairs + pair, k, at) };
                pair += 32 * WARPS;
            }
            sync_threads();
            let mut first = base + 2 * warp;
            while first < end {
                let next = first + HELD as u32 * 2 * WARPS;
                let ahead = load_held(next, end);
                let mut h = 0;
                while h < HELD {
                    let index = first + h as u32 * 2 * WARPS;
                    let step_words = STEP_LOOKUPS as u32 * words;
                    let at = shared.add((index - base) * step_words).cast();
                    if index < end {
                        // SAFETY: the tables of steps base..end are built; codes are valid.
                        acc += unsafe { look_up::<TL2>(&held[h][0], at) };
                    }
                    if index + 1 < end {
                        // SAFETY: as above.
                        acc += unsafe { look_up::<TL2>(&held[h][1], at.byte_add(4 * step_words)) };
                    }
                    h += 1;
                }
                held = ahead;
                first = next;
            }
            base = end;
            // The next stretch, or the first one again for another row.
            let begin = if base < steps { base } else { 0 };
            let end = steps.min(begin + tile_steps(form));
            let more = base < steps || args.m - m > grid_dim_y();
            held = load_held(begin + 2 * warp, if more { end } else { 0 });
            sync_threads();
        }

        // SAFETY: sums[warp][lane]; WARPS * 32 words fit, and no table is in use.
        unsafe { shared.add(warp * LANES + lane).write(acc as u32) };
        sync_threads();
        if writes {
            let mut total = 0i32;
            let mut warp = 0;
            while warp < WARPS {
                // SAFETY: written before the barrier.
                total += unsafe { shared.add(warp * LANES + lane).read() } as i32;
                warp += 1;
            }
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
    ($($name:ident $symbol:literal $form:ident $warps:literal;)*) => {$(
        const _: () = {
            /// # Safety
            ///
            /// The launch obeys the kernel's `SPEC`; the pointers cover the contract's table.
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                const TL2: bool = matches!(Form::$form, Form::Tl2);
                // SAFETY: the launch contract, handed on.
                unsafe { exact::<TL2, $warps>(&args) }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::lut_matmul::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_lut_matmul!(entries);
