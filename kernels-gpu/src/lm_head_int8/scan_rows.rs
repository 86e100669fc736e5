//! Bounds of every row for several inputs, on `mma.sync`: rows of the table as the left factor, both
//! digits of four inputs as the eight columns of the right one. From sm_80.
//!
//! Slices of 128 bytes of each row and digit come through a ring in shared memory; the eight pieces of a slice
//! trade places from row to row, so that eight rows of a matrix lie in all banks. A warp takes
//! 32 rows, a group: lane `(g, t)` ends with rows `g`, `g + 8`, ... and both sums of input `t` of each four.

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Args, Asked, FEW, GROUP, MANY_SLICE, MANY_THREADS, Many, STATS_WORDS, ScanFew, bounds, groups,
    has_bounds, row_bytes,
};
#[cfg(not(level_sm_90a))]
use contract::lm_head_int8::{MANY, SOME, ScanMany, ScanSome};
use contract::num::order_key;

use super::{asked, ended, enlist, input_stats, known_floor, raise_floor};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_u8_if, ld_x4, st};
use crate::arch::mma::{ldmatrix_x4, mma_s8};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, opaque, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, shuffle_xor, warp_id};

/// Pieces of 16 bytes of a row in a slice.
const PIECES: u32 = MANY_SLICE / 16;
/// Words that are kept of an input: temperature, penalty, three of its statistics, how it counts, the floor as far as it is known.
pub(super) const WORDS: u32 = 8;
/// How an input counts: it has bounds, and somebody asks for them.
pub(super) const COUNTS: u32 = 1;
/// The best is all that is asked.
pub(super) const ALONE: u32 = 2;
/// And every logit is seen as it is.
#[cfg(level_sm_90a)]
pub(super) const PLAIN: u32 = 4;
/// The best few are asked for, and what the sampler divides logits by is in the statistics.
#[cfg(level_sm_90a)]
pub(super) const DRAWN: u32 = 8;

const _: () = assert!(PIECES == 8 && GROUP == 32);

/// Where piece `piece` of row `row` of a slice lies.
#[inline(always)]
const fn place(row: u32, piece: u32) -> u32 {
    row * MANY_SLICE + ((piece ^ (row % 8)) * 16)
}

/// Puts what decides about input `input` into shared memory.
///
/// # Safety
///
/// `to` starts [`WORDS`] words that nobody uses; the contract's table holds.
#[inline(always)]
pub(super) unsafe fn note_input(args: &Args, input: u32, to: Shared<f32>) {
    let here = args.of_row(input.min(args.m - 1));
    // SAFETY: the launch contract, handed on.
    let (asked, stats, ended) = unsafe {
        (asked(here.params.as_ptr()), input_stats(here.input.as_ptr()), ended(here.state.as_ptr()))
    };
    let counts = input < args.m && asked.wanted(args.vocab) != 0 && has_bounds(stats) && !ended;
    let alone = counts && asked.alone(args.vocab);
    let how = if counts { COUNTS } else { 0 } + if alone { ALONE } else { 0 };
    #[cfg(level_sm_90a)]
    let how = how + if alone && asked.keeps() { PLAIN } else { 0 };
    // SAFETY: by the caller; the launch contract, handed on.
    unsafe {
        let floor = if alone { known_floor(&here) } else { 0 };
        to.write_x4([asked.temperature, asked.penalty, stats[0], stats[1]]);
        to.add(4).write_x4([stats[2], f32::from_bits(how), f32::from_bits(floor), 0.0]);
    }
}

/// One tile: `ROWS` rows of the table, `2 * INPUTS` digits; warps of 32 rows and `8 * TILES` digits.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid, behind `lm_head_int8_input`; the contract's table holds.
#[inline(always)]
unsafe fn scan<const ROWS: u32, const INPUTS: u32, const STAGES: u32, const TILES: usize>(
    args: &Args,
) {
    const { assert!(STAGES == 3 || STAGES == 4) };
    let (lane, warp) = (lane_id(), warp_id());
    let row_warps = const { ROWS / GROUP };
    let (row_warp, digit_warp) = (warp % row_warps, warp / row_warps);
    let (row0, input0) = (block_idx_x() * ROWS, block_idx_y() * INPUTS);
    let end = row_bytes(args.k as usize) as u32; // a multiple of 16
    let slices = end.div_ceil(MANY_SLICE);
    let slice_bytes = const { (ROWS + 2 * INPUTS) * MANY_SLICE };
    let ring: Shared<u8> = dynamic_shared_mem();
    let notes: Shared<f32> = ring.add(STAGES * slice_bytes).cast();

    // Blocks begin with different slices, or all of them would ask for the same digits at once.
    let turn = block_idx_x() % slices;
    let turned = |s: u32| if s + turn < slices { s + turn } else { s + turn - slices };

    // Thread i copies piece i % 8 of rows i / 8, i / 8 + 32, ...
    let (piece, line) = (thread_idx_x() % PIECES, thread_idx_x() / PIECES);
    let table = |s: u32| {
        let byte = turned(s) * MANY_SLICE + 16 * piece;
        let to = ring.add(s % STAGES * slice_bytes);
        let mut row = line;
        while row < ROWS {
            let from = (row0 + row).min(args.vocab - 1) as usize * end as usize + byte as usize;
            let from = args.bytes.as_ptr().cast_const().wrapping_add(from);
            // SAFETY: a piece of the slice, which nobody reads now; 16 bytes of a row, which nobody
            // writes any more.
            unsafe { copy_x16(to.add(place(row, piece)), from, byte < end) };
            row += MANY_THREADS / PIECES;
        }
    };
    // Sixteen pieces of an input: high and low digit of 16 values, eight times.
    let digits = |s: u32| {
        let to = ring.add(s % STAGES * slice_bytes + ROWS * MANY_SLICE);
        let mut i = thread_idx_x();
        while i < 2 * PIECES * INPUTS {
            let (input, part) = (i / (2 * PIECES), i % (2 * PIECES));
            let byte = turned(s) * MANY_SLICE + part / 2 * 16; // of the values
            let there = byte < end && input0 + input < args.m;
            let of_row = args.of_row((input0 + input).min(args.m - 1));
            let from = of_row.input.as_ptr().cast_const().wrapping_add(STATS_WORDS).cast::<u8>();
            let from = from.wrapping_add((part % 2 * end + byte) as usize);
            // SAFETY: as above, of the digits of an input, behind the wait for them.
            unsafe { copy_x16(to.add(place(2 * input + part % 2, part / 2)), from, there) };
            i += MANY_THREADS;
        }
    };

    // The table never changes: it is asked for before the kernel in front of this one has ended.
    let start = opaque(0);
    let mut s = start;
    while s < STAGES - 1 {
        table(s);
        s += 1;
    }
    dependency_wait();
    let mut s = 0;
    while s < STAGES - 1 {
        digits(s);
        commit_group();
        s += 1;
    }
    if thread_idx_x() < INPUTS {
        // SAFETY: the words of this input; the launch contract, handed on. The barriers below show them.
        unsafe { note_input(args, input0 + thread_idx_x(), notes.add(WORDS * thread_idx_x())) };
    }
    let mut sums = [[[0i32; 4]; TILES]; 2];
    let mut s = start;
    while s < slices {
        if STAGES == 4 {
            wait_group::<2>()
        } else {
            wait_group::<1>()
        }
        // Shows slice s, and that nobody reads slice s - 1 any more.
        sync_threads();
        let next = s + STAGES - 1;
        if next < slices {
            table(next);
            digits(next);
        } else {
            launch_dependents();
        }
        commit_group();
        let here = ring.add(s % STAGES * slice_bytes);
        let there = here.add(ROWS * MANY_SLICE);
        let mut step = 0;
        while step < PIECES / 2 {
            // Matrices: rows 0 to 7 and 8 to 15 of the first half of k, then of the second.
            let a: [[u32; 4]; 2] = core::array::from_fn(|r| {
                let row = row_warp * GROUP + 16 * r as u32 + lane % 16;
                // SAFETY: pieces of slice s.
                unsafe { ldmatrix_x4(here.add(place(row, 2 * step + lane / 16))) }
            });
            let mut b = 0;
            while b < TILES {
                // Two tiles of eight digits: both halves of k of the first, then of the second.
                let digit = (digit_warp * TILES as u32 + b as u32) * 8 + lane / 16 * 8 + lane % 8;
                // SAFETY: as above.
                let q = unsafe { ldmatrix_x4(there.add(place(digit, 2 * step + lane / 8 % 2))) };
                let mut r = 0;
                while r < 2 {
                    sums[r][b] = mma_s8(a[r], [q[0], q[1]], sums[r][b]);
                    sums[r][b + 1] = mma_s8(a[r], [q[2], q[3]], sums[r][b + 1]);
                    r += 1;
                }
                b += 2;
            }
            step += 1;
        }
        s += 1;
    }
    wait_group::<0>();
    sync_threads();

    // SAFETY: the notes are there, the ring is nobody's; the launch contract, handed on.
    unsafe {
        finish::<ROWS, INPUTS, TILES>(
            args,
            &sums,
            (notes, ring.cast()),
            (row0, input0),
            (row_warp, digit_warp),
        );
    }
}

/// Bounds of rows `g`, `g + 8`, `g + 16`, `g + 24` of the warp's group, for input `t` of each of its tiles.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The notes of the block's inputs are in shared memory, and room for a word of each group and input, `tops`; the
/// contract's table holds.
#[inline(always)]
unsafe fn finish<const ROWS: u32, const INPUTS: u32, const TILES: usize>(
    args: &Args,
    sums: &[[[i32; 4]; TILES]; 2],
    (notes, tops): (Shared<f32>, Shared<u32>),
    (row0, input0): (u32, u32),
    (row_warp, digit_warp): (u32, u32),
) {
    let (g, t) = (lane_id() / 4, lane_id() % 4);
    let first = row0 + row_warp * GROUP + g;
    let row = |i: usize| first + 8 * i as u32;
    let own = |b: usize| (digit_warp * TILES as u32 + b as u32) * 4 + t;
    let stats: [[f32; 4]; 4] = core::array::from_fn(|i| {
        let at = 4 * row(i).min(args.vocab - 1) as usize;
        // SAFETY: a row of the table.
        unsafe { ld_x4(args.rows.as_ptr().cast_const().wrapping_add(at).cast()) }
    });
    let mut uppers = [[0u32; 4]; TILES];
    let mut b = 0;
    while b < TILES {
        let own = own(b);
        let here = args.of_row((input0 + own).min(args.m - 1));
        // SAFETY: the words of this input.
        let [[temperature, penalty, s0, s1], [s2, how, ..]]: [[f32; 4]; 2] = unsafe {
            let words = notes.add(WORDS * own);
            [words.read_x4(), words.add(4).read_x4()]
        };
        let asked = Asked::of_bounds(temperature, penalty);
        let (input_stats, how) = ([s0, s1, s2, 0.0], how.to_bits());
        let (counts, alone) = (how & COUNTS != 0, how & ALONE != 0);
        let mut top = 0;
        let mut i = 0;
        while i < 4 {
            let row = row(i);
            let inside = counts && row < args.vocab;
            let pair = [sums[i / 2][b][i % 2 * 2], sums[i / 2][b][i % 2 * 2 + 1]];
            let sum = 256 * i64::from(pair[0]) + i64::from(pair[1]);
            let at = row as usize;
            // SAFETY: row < vocab; the bound belongs to this lane.
            unsafe {
                // With a penalty of 1 no marks count.
                let looks = inside && penalty != 1.0;
                let marks = ld_u8_if(looks, here.marks.as_ptr().cast_const().wrapping_add(at));
                let [lower, upper] =
                    bounds(sum, stats[i], input_stats).map(|bound| asked.adjust(bound, marks));
                if inside {
                    top = order_key(lower).max(top);
                    if alone {
                        uppers[b][i] = order_key(upper);
                    } else {
                        st(here.bounds.as_ptr().wrapping_add(at), upper);
                    }
                }
            }
            i += 1;
        }
        let mut distance = 4;
        while distance < 32 {
            top = shuffle_xor(top, distance).max(top);
            distance *= 2;
        }
        let group = row0 / GROUP + row_warp;
        if g == 0 {
            // SAFETY: a word of this warp and input; the group of this warp.
            unsafe {
                tops.add(row_warp * INPUTS + own).write(top);
                if counts && !alone && group < groups(args.vocab) {
                    st(here.scratch().as_ptr().wrapping_add(group as usize), top);
                }
            }
        }
        b += 1;
    }
    sync_threads();
    let mut b = 0;
    while b < TILES {
        let own = own(b);
        // SAFETY: the words of this input.
        let [how, known] = unsafe {
            let words = notes.cast::<u32>().add(WORDS * own);
            [words.add(5).read(), words.add(6).read()]
        };
        if how & ALONE != 0 {
            let here = args.of_row(input0 + own);
            let mut top = 0;
            let mut group = 0;
            while group < ROWS / GROUP {
                // SAFETY: written before the barrier.
                top = unsafe { tops.add(group * INPUTS + own).read() }.max(top);
                group += 1;
            }
            // SAFETY: the launch contract, handed on; an input that counts is there.
            unsafe {
                if row_warp == 0 && g == 0 && top > known {
                    raise_floor(&here, top);
                }
                let mut i = 0;
                while i < 4 {
                    let key = uppers[b][i];
                    if row(i) < args.vocab && key >= top.max(known) {
                        enlist(&here, row(i), key);
                    }
                    i += 1;
                }
            }
        }
        b += 1;
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $cut:ident;)*) => {$(
        /// # Safety
        ///
        /// As for [`scan`].
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const CUT: Many = $cut;
            // SAFETY: the launch contract, handed on.
            unsafe { scan::<{ CUT.rows }, { CUT.inputs }, { CUT.stages }, { tiles(CUT) }>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

/// Tiles of eight digits of a warp.
const fn tiles(cut: Many) -> usize {
    let digit_warps = MANY_THREADS / 32 / (cut.rows / GROUP);
    (2 * cut.inputs / 8 / digit_warps) as usize
}

entries! {
    lm_head_int8_scan_few ScanFew FEW;
}

// `lm_head_int8_scan_wide` takes their place.
#[cfg(not(level_sm_90a))]
entries! {
    lm_head_int8_scan_some ScanSome SOME;
    lm_head_int8_scan_many ScanMany MANY;
}
