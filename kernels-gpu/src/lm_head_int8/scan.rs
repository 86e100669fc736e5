//! Bounds of every row: four rows per warp, 16 bytes at a time, each against 16 high and 16 low digits of the
//! input, in whole numbers.
//!
//! The block's 32 rows are a group: when their sums are there, one warp makes a bound per lane.

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Args, GROUP, SCAN_ROWS, SCAN_SMEM_BYTES, STATS_WORDS, Scan, THREADS, bounds, has_bounds,
    row_bytes,
};
use contract::num::order_key;

use contract::sample::counted;

use super::{asked, ended, enlist, input_stats, known_floor, raise_floor};
use crate::arch::dot::dp4a_ss;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{X4, ld_nc_stream_x4_if, ld_or_zero_x4, ld_u8, ld_x4, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, sync_threads};
use crate::arch::warp::{LANES, lane_id, warp_id, warp_max, warp_sum};

/// Rows of a warp.
const ROWS: usize = (SCAN_ROWS * LANES / THREADS) as usize;
/// Steps of 512 bytes of each row in flight; some GPUs before sm_75 have half the registers.
const UNROLL: usize = if cfg!(level_sm_75) { 2 } else { 1 };
/// Whether what is known of a row is read before the wait and held; for want of registers not before sm_75.
const EARLY: bool = cfg!(level_sm_75);
/// Bytes of a step.
const STEP: u32 = 16 * LANES;

const _: () = assert!(GROUP == LANES && SCAN_ROWS == LANES && SCAN_SMEM_BYTES == 8 * SCAN_ROWS);

/// Weights in flight: `[step][row]`.
type Steps = [[X4<u32>; ROWS]; UNROLL];

/// Sums over the lane's part of each row.
#[derive(Clone, Copy)]
struct Sums {
    high: [i32; ROWS],
    low: [i32; ROWS],
}

/// Takes the steps from byte `first` of the rows into the sums; zeros past the end.
///
/// # Safety
///
/// `digits` starts those of a row of `end` bytes.
#[inline(always)]
unsafe fn take(sums: &mut Sums, steps: &Steps, digits: *const u8, first: u32, end: u32) {
    let mut u = 0;
    while u < UNROLL {
        let byte = first + STEP * u as u32 + 16 * lane_id();
        let at = digits.wrapping_add(byte as usize);
        // SAFETY: both digits of the 16 values from `byte` on, when they are inside of the row.
        let (high, low): (X4<u32>, X4<u32>) = unsafe {
            (
                ld_or_zero_x4(byte < end, at.cast()),
                ld_or_zero_x4(byte < end, at.wrapping_add(end as usize).cast()),
            )
        };
        let mut r = 0;
        while r < ROWS {
            let mut i = 0;
            while i < 4 {
                sums.high[r] = dp4a_ss(steps[u][r][i], high[i], sums.high[r]);
                sums.low[r] = dp4a_ss(steps[u][r][i], low[i], sums.low[r]);
                i += 1;
            }
            r += 1;
        }
        u += 1;
    }
}

/// # Safety
///
/// The launch obeys `Scan::SPEC` with grid `groups(vocab)` by inputs, behind `lm_head_int8_input`; the pointers
/// of `args` cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn lm_head_int8_scan(args: Args) {
    let args = args.of_row(block_idx_y());
    // SAFETY: the launch contract, handed on; no kernel writes `params`, so they can be read at once.
    let asked = unsafe { asked(args.params.as_ptr()) };
    if asked.wanted(args.vocab) == 0 {
        launch_dependents();
        dependency_wait();
        return; // every thread of the row: all logits are computed
    }
    let end = row_bytes(args.k as usize) as u32;
    let row0 = block_idx_x() * SCAN_ROWS + warp_id() * ROWS as u32;
    let rows: [*const u8; ROWS] = core::array::from_fn(|r| {
        let row = (row0 + r as u32).min(args.vocab - 1); // lanes stay alive: the last row again
        let at = row as usize * end as usize + 16 * lane_id() as usize;
        args.bytes.as_ptr().cast_const().wrapping_add(at)
    });
    let mut steps: Steps = core::array::from_fn(|u| {
        core::array::from_fn(|r| {
            let byte = STEP * u as u32;
            // SAFETY: 16 bytes inside of the row, which nobody writes any more.
            unsafe {
                let p = rows[r].wrapping_add(byte as usize);
                ld_or_zero_x4(byte + 16 * lane_id() < end, p.cast())
            }
        })
    });
    // For the one warp that makes the bounds: a row per lane.
    let row = block_idx_x() * SCAN_ROWS + lane_id();
    let known = row.min(args.vocab - 1) as usize;
    // SAFETY: a row of the table, which nobody writes any more.
    let stats = || unsafe { ld_x4(args.rows.as_ptr().cast_const().wrapping_add(4 * known).cast()) };
    let early = EARLY.then(stats);
    launch_dependents();
    dependency_wait();

    // SAFETY: the launch contract, handed on.
    let input = unsafe { input_stats(args.input.as_ptr()) };
    // SAFETY: as above.
    if !has_bounds(input) || unsafe { ended(args.state.as_ptr()) } {
        return; // every thread of the row
    }
    let alone = || asked.alone(args.vocab);
    // Asked for before the rows have come: blocks that run at the same time need not know of each other.
    let floor = || {
        // SAFETY: the launch contract, handed on.
        if alone() && warp_id() == 0 { unsafe { known_floor(&args) } } else { 0 }
    };
    let early_floor = EARLY.then(floor);
    // SAFETY: known < vocab.
    let marks = unsafe { ld_u8(args.marks.as_ptr().cast_const().wrapping_add(known)) };
    let marks = counted(marks, asked.penalty);
    let digits = args.input.as_ptr().cast_const().wrapping_add(STATS_WORDS).cast::<u8>();
    let mut sums = Sums { high: [0; ROWS], low: [0; ROWS] };
    let mut first = 0;
    while first < end {
        // SAFETY: the digits of `end` values.
        unsafe { take(&mut sums, &steps, digits, first, end) };
        first += STEP * UNROLL as u32;
        steps = core::array::from_fn(|u| {
            core::array::from_fn(|r| {
                let byte = first + STEP * u as u32;
                // SAFETY: as above.
                unsafe {
                    let p = rows[r].wrapping_add(byte as usize);
                    ld_nc_stream_x4_if(byte + 16 * lane_id() < end, p.cast())
                }
            })
        });
    }

    let of_rows: Shared<i32> = dynamic_shared_mem();
    let mut r = 0;
    while r < ROWS {
        let pair = [warp_sum(sums.high[r]), warp_sum(sums.low[r])];
        if lane_id() == 0 {
            let at = 2 * (warp_id() * ROWS as u32 + r as u32);
            // SAFETY: two words of a row of this warp.
            unsafe { of_rows.add(at).write_x2(pair) };
        }
        r += 1;
    }
    sync_threads();
    if warp_id() == 0 {
        // SAFETY: two words of a row, written before the barrier.
        let [high, low] = unsafe { of_rows.add(2 * lane_id()).read_x2() };
        let sum = 256 * i64::from(high) + i64::from(low);
        let stats = early.unwrap_or_else(stats);
        let [lower, upper] = bounds(sum, stats, input).map(|bound| asked.adjust(bound, marks));
        let inside = row < args.vocab;
        let top = warp_max(if inside { order_key(lower) } else { 0 });
        // SAFETY: a row of this lane, and the group of this block; the launch contract, handed on.
        unsafe {
            if alone() {
                let floor = early_floor.unwrap_or_else(floor);
                if lane_id() == 0 && top > floor {
                    raise_floor(&args, top);
                }
                let key = order_key(upper);
                if inside && key >= top.max(floor) {
                    enlist(&args, row, key);
                }
                return;
            }
            if inside {
                st(args.bounds.as_ptr().wrapping_add(row as usize), upper);
            }
            if lane_id() == 0 {
                st(args.scratch().as_ptr().wrapping_add(block_idx_x() as usize), top);
            }
        }
    }
}

const _: unsafe extern "ptx-kernel" fn(<Scan as Kernel>::Args) = lm_head_int8_scan;
