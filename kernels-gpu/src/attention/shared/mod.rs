//! Many rows with the bits of one: keys and values come to shared memory once for 64 rows of a kv head.
//!
//! A warp holds 16 rows. For the scores lane `4 c + g` takes rows `g + 4 r` and keys `c + 8 i`, one partial of the
//! dot after the other; queries and keys stand sorted by partial, `[d % 8][d / 8]`, so that four steps of a chain
//! are one load. For the weighted values lane `16 h + l` takes eight of the warp's rows and dimensions `4 l..` of each
//! 64. Between the two the exponentials lie in shared memory, which only the warp sees.

mod memory;
mod stage;
mod values;

use contract::attention::{
    Args, AttentionRowsBf16D64, AttentionRowsBf16D128, AttentionRowsF32D64, AttentionRowsF32D128,
    KEY_BLOCK, RowTile,
};
use contract::launch::Kernel;
use contract::num::Running;

use super::tile::Rows;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::ld_if;
use crate::arch::thread::sync_threads;
use crate::arch::warp::{lane_id, sync_warp, warp_id};
use crate::element::{Bf16, CacheElement};
use memory::Memory;
use stage::{load_piece, put_sorted, stage};
use values::{take_values, write};

/// Keys of a block.
const KEYS: u32 = KEY_BLOCK as u32;
/// Rows of a warp, and of a lane in each of the two phases.
const WARP_ROWS: u32 = 16;
const SCORE_ROWS: usize = 4;
const VALUE_ROWS: usize = 8;
/// Keys of a lane.
const OWN_KEYS: usize = 8;

/// A number for each of a lane's rows and keys.
type Scores = [[f32; OWN_KEYS]; SCORE_ROWS];

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the tile's grid; the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn rows<E: CacheElement, const D: u32, const PARTS: usize>(args: &Args, tile: RowTile) {
    const { assert!(PARTS as u32 * 64 == D) };
    launch_dependents();
    dependency_wait();
    // SAFETY: the caller's promise.
    let rows = unsafe { Rows::of_block(args, tile) };
    let memory = Memory::<D>::of_warp(tile);
    let head_dim = args.head_dim;
    let load_query = |row, piece| {
        let q = rows.query(args, row);
        core::array::from_fn(|i| {
            let d = 8 * piece + i as u32;
            // SAFETY: an element of the query.
            let value: f32 = unsafe { ld_if(d < head_dim, q.wrapping_add(d as usize)) };
            if d < head_dim { value } else { 0.0 }
        })
    };
    stage::<D>(tile.rows, load_query, |row, piece, values| {
        // SAFETY: a piece of a query, which this thread writes.
        unsafe { put_sorted::<D>(memory.q.add(row * Memory::<D>::PITCH), piece, values) };
    });

    let (stride, start) = rows.cache(args);
    let keys = args.k_cache.cast::<E>().as_ptr().cast_const().wrapping_add(start);
    let values = args.v_cache.cast::<E>().as_ptr().cast_const().wrapping_add(start);
    let limit = rows.visible(tile.rows - 1);
    let row0 = warp_id() * WARP_ROWS;
    let (least, most) = (rows.visible(row0), rows.visible(row0 + WARP_ROWS - 1));
    let visible: [u32; SCORE_ROWS] =
        core::array::from_fn(|r| rows.visible(row0 + lane_id() % 4 + 4 * r as u32));
    let mut running = [Running::EMPTY; SCORE_ROWS];
    let mut out = [[[0.0f32; 4]; PARTS]; VALUE_ROWS];
    let mut first = opaque(0);
    while first < limit {
        let memory = memory.anew();
        // SAFETY: positions below `limit` are in the cache.
        let load = |cache: *const E, t: u32, piece| unsafe {
            let at = cache.wrapping_add((first + t) as usize * stride);
            load_piece::<E>(first + t < limit, at, piece, head_dim)
        };
        sync_threads();
        stage::<D>(
            KEYS,
            |t, piece| load(keys, t, piece),
            |t, piece, values| {
                let values = core::array::from_fn(|i| {
                    if 8 * piece + (i as u32) < head_dim { values[i] } else { 0.0 }
                });
                // SAFETY: a piece of a key; every thread has taken the values before.
                unsafe { put_sorted::<D>(memory.kv.add(t * Memory::<D>::PITCH), piece, values) };
            },
        );
        sync_threads();
        let some = first < most;
        if some {
            // SAFETY: queries and keys were there before the barrier.
            let s = unsafe { memory.scores(args.scale) };
            memory.softmax(s, &mut running, visible.map(|v| v.saturating_sub(first).min(KEYS)));
        }
        sync_threads();
        stage::<D>(
            KEYS,
            |t, piece| load(values, t, piece),
            |t, piece, values| {
                let at = memory.kv.add(t * Memory::<D>::PITCH + 8 * piece);
                let [a, b, c, d, e, f, g, h] = values;
                // SAFETY: a piece of a value; every thread has taken the keys.
                unsafe {
                    at.write_x4([a, b, c, d]);
                    at.add(4).write_x4([e, f, g, h]);
                }
            },
        );
        sync_threads();
        if some {
            // SAFETY: exponentials and values were there before the barrier.
            unsafe {
                if first + KEYS <= least {
                    take_values::<D, PARTS, true>(&memory, &mut out, KEYS);
                } else {
                    take_values::<D, PARTS, false>(&memory, &mut out, (most - first).min(KEYS));
                }
            }
        }
        first += KEYS;
    }
    // The sums, to those who have the values.
    if lane_id() < 4 {
        let mut r = 0;
        while r < SCORE_ROWS {
            // SAFETY: this row's word, which the warp has read.
            unsafe { memory.factors.add(4 * (4 * lane_id() + r as u32) + 3).write(running[r].sum) };
            r += 1;
        }
    }
    sync_warp();
    // SAFETY: the rows of this warp belong to it.
    unsafe { write::<D, PARTS>(args, &rows, &memory, &out, row0) };
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $element:ty: $d:literal $parts:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with its tile's grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.rows == 64 && $kernel::TILE.head_dim == $d) };
            // SAFETY: the caller's promise.
            unsafe { rows::<$element, $d, $parts>(&args, $kernel::TILE) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    AttentionRowsBf16D64 attention_rows_bf16_64 Bf16: 64 1;
    AttentionRowsBf16D128 attention_rows_bf16_128 Bf16: 128 2;
    AttentionRowsF32D64 attention_rows_f32_64 f32: 64 1;
    AttentionRowsF32D128 attention_rows_f32_128 f32: 128 2;
}
