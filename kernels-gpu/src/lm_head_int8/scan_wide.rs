//! Bounds of every row for many inputs, on `wgmma` (sm_90a): rows of the table as the left factor, both
//! digits of each input as two columns of the right one.
//!
//! Slices of 128 bytes of each row and digit come through a ring in shared memory, where both factors are
//! read. Step `s` multiplies slice `s`, asks for slice `s + STAGES - 1` and waits for its products: at the
//! barrier of a step nobody reads the place of the slice in front of it. A warpgroup takes 64
//! rows and all digits: lane `(g, t)` of a warp ends with rows `g`, `g + 8` and inputs `t`, `t + 4`, ...

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Args, Asked, GROUP, MANY_SLICE, Many, STATS_WORDS, ScanWide, ScanWideSome, WIDE, WIDE_SOME,
    WIDE_THREADS, bounds, groups, row_bytes,
};
use contract::num::order_key;

use super::scan_rows::{WORDS, note_input};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::mem::{ld_u8_if, ld_x4, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, shuffle_xor, warp_id};
use crate::arch::wgmma::{self, Descriptor, swizzle};
use crate::tile::hopper::each_group;

/// Pieces of 16 bytes of a row in a slice.
const PIECES: u32 = MANY_SLICE / 16;

const _: () = assert!(PIECES == 8 && GROUP == 32);

/// Tiles of `ROWS` rows of the table and `INPUTS` inputs, one after the other; 128 threads for each 64 rows.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid, behind `lm_head_int8_input`; the contract's table holds.
#[inline(always)]
unsafe fn scan<const ROWS: u32, const INPUTS: u32, const STAGES: u32>(args: &Args) {
    const { assert!(WIDE_THREADS == 2 * ROWS && (INPUTS == 32 || INPUTS == 64)) };
    const { assert!(STAGES == 4 || STAGES == 5) };
    // Columns of the product: digits; rows between two copies of a thread.
    let (digit_count, lines) = const { (2 * INPUTS, WIDE_THREADS / PIECES) };
    let slice_rows = const { ROWS * MANY_SLICE };
    let slice_bytes = const { Many { rows: ROWS, inputs: INPUTS, stages: STAGES }.slice_bytes() };
    wgmma::declare();
    let input0 = block_idx_y() * INPUTS;
    let tiles = args.vocab.div_ceil(ROWS);
    let end = row_bytes(args.k as usize) as u32; // a multiple of 16
    let slices = end.div_ceil(MANY_SLICE);
    let memory: Shared<u8> = dynamic_shared_mem();
    let ring = memory.add(memory.addr().wrapping_neg() % wgmma::ATOM_BYTES);
    let notes: Shared<f32> = ring.add(STAGES * slice_bytes).cast();
    let tops = notes.add(WORDS * INPUTS).cast::<u32>();

    // Tiles begin with different slices, or all blocks would ask for the same digits at once.
    let turned = |tile: u32, s: u32| {
        let s = s + tile % slices;
        if s < slices { s } else { s - slices }
    };

    // Thread i copies piece i % 8 of rows i / 8, i / 8 + 64, ...
    let (piece, line) = (thread_idx_x() % PIECES, thread_idx_x() / PIECES);
    let table = |tile: u32, s: u32| {
        let byte = turned(tile, s) * MANY_SLICE + 16 * piece;
        let to = ring.add(s % STAGES * slice_bytes);
        let mut i = 0;
        while i < ROWS / lines {
            let row = line + i * lines;
            let from =
                (tile * ROWS + row).min(args.vocab - 1) as usize * end as usize + byte as usize;
            let from = args.bytes.as_ptr().cast_const().wrapping_add(from);
            // SAFETY: a piece of the slice, which nobody reads now; 16 bytes of a row, which nobody
            // writes any more.
            unsafe { copy_x16(to.add(swizzle(row, piece)), from, byte < end) };
            i += 1;
        }
    };
    // Sixteen pieces of an input: high and low digit of 16 values, eight times.
    let digits = |tile: u32, s: u32| {
        let to = ring.add(s % STAGES * slice_bytes + slice_rows);
        let mut i = 0;
        while i < 2 * PIECES * INPUTS / WIDE_THREADS {
            let at = thread_idx_x() + i * WIDE_THREADS;
            let (input, part) = (at / (2 * PIECES), at % (2 * PIECES));
            let byte = turned(tile, s) * MANY_SLICE + part / 2 * 16; // of the values
            let there = byte < end && input0 + input < args.m;
            let of_row = args.of_row((input0 + input).min(args.m - 1));
            let from = of_row.input.as_ptr().cast_const().wrapping_add(STATS_WORDS).cast::<u8>();
            let from = from.wrapping_add((2 * byte + part % 2 * 16) as usize);
            let place = swizzle(2 * input + part % 2, part / 2);
            // SAFETY: as above, of the digits of an input, behind the wait for them.
            unsafe { copy_x16(to.add(place), from, there) };
            i += 1;
        }
    };

    // The table never changes: it is asked for before the kernel in front of this one has ended.
    let start = opaque(0);
    let mut tile = block_idx_x();
    let mut s = start;
    while s < STAGES - 1 {
        table(tile, s);
        s += 1;
    }
    dependency_wait();
    let mut s = start;
    while s < STAGES - 1 {
        digits(tile, s);
        commit_group();
        s += 1;
    }
    if thread_idx_x() < INPUTS {
        // SAFETY: the words of this input; the launch contract, handed on. The barriers below show them.
        unsafe { note_input(args, input0 + thread_idx_x(), notes.add(WORDS * thread_idx_x())) };
    }
    loop {
        each_group!(digit_count, J => { wgmma::clear::<J>(); });
        let mut s = start;
        while s < slices {
            if STAGES == 5 {
                wait_group::<3>()
            } else {
                wait_group::<2>()
            }
            wgmma::proxy_fence();
            sync_threads();
            let here = ring.add(s % STAGES * slice_bytes);
            let of_group = here.add(thread_idx_x() / 128 * (64 * MANY_SLICE));
            let a = Descriptor::new(of_group, 0, wgmma::ATOM_BYTES);
            let b = Descriptor::new(here.add(slice_rows), 0, wgmma::ATOM_BYTES);
            wgmma::fence();
            let mut step = 0;
            while step < MANY_SLICE / 32 {
                // SAFETY: slice s, waited for, fenced and shown by the barrier.
                unsafe {
                    let (a, b) = (a.advance(32 * step), b.advance(32 * step));
                    if INPUTS == 32 {
                        wgmma::i8_both_n64(a, b, true)
                    } else {
                        wgmma::i8_both_n128(a, b, true)
                    }
                };
                step += 1;
            }
            wgmma::commit();
            let next = s + STAGES - 1;
            if next < slices {
                table(tile, next);
                digits(tile, next);
            } else if tile + grid_dim_x() >= tiles {
                launch_dependents();
            }
            commit_group();
            wgmma::wait::<0>();
            s += 1;
        }
        wait_group::<0>();
        // Nobody reads the ring any more.
        sync_threads();
        let (row0, next) = (tile * ROWS, tile + grid_dim_x());
        // The next tile's first slices come while this one's sums become bounds.
        let mut s = start;
        while s < STAGES - 1 && next < tiles {
            table(next, s);
            digits(next, s);
            commit_group();
            s += 1;
        }

        // Opaque, or the addresses of all inputs would be kept from tile to tile.
        let input0 = opaque_here(input0);
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let row = [row0 + 16 * warp_id() + g, row0 + 16 * warp_id() + g + 8];
        let stats: [[f32; 4]; 2] = row.map(|row| {
            let at = 4 * row.min(args.vocab - 1) as usize;
            // SAFETY: a row of the table.
            unsafe { ld_x4(args.rows.as_ptr().cast_const().wrapping_add(at).cast()) }
        });
        each_group!(digit_count, J => {
            let sums = wgmma::read::<J>().map(|sum| sum.to_bits() as i32);
            let mut b = 0;
            while b < 2 {
                let own = 8 * J + 4 * b as u32 + t;
                let here = args.of_row((input0 + own).min(args.m - 1));
                // SAFETY: the words of this input.
                let [[temperature, penalty, s0, s1], [s2, counts, ..]]: [[f32; 4]; 2] = unsafe {
                    let words = notes.add(WORDS * own);
                    [words.read_x4(), words.add(4).read_x4()]
                };
                let asked = Asked { temperature, penalty, top_k: 0 };
                let (input_stats, counts) = ([s0, s1, s2, 0.0], counts.to_bits() != 0);
                let mut found: [[f32; 2]; 2] = core::array::from_fn(|i| {
                    let pair = [sums[4 * b + 2 * i], sums[4 * b + 2 * i + 1]];
                    bounds(256 * i64::from(pair[0]) + i64::from(pair[1]), stats[i], input_stats)
                });
                // One decision for both rows: most inputs leave their bounds as they are.
                if counts && !asked.keeps() {
                    let mut i = 0;
                    while i < 2 {
                        let seen = here.seen.as_ptr().cast_const().wrapping_add(row[i] as usize);
                        // SAFETY: row < vocab. A penalty of 1 changes nothing.
                        let seen = unsafe { ld_u8_if(row[i] < args.vocab && penalty != 1.0, seen) };
                        found[i] = found[i].map(|bound| asked.adjust(bound, seen != 0));
                        i += 1;
                    }
                }
                let mut top = 0;
                let mut i = 0;
                while i < 2 {
                    if counts && row[i] < args.vocab {
                        let [lower, upper] = found[i];
                        top = order_key(lower).max(top);
                        // SAFETY: row < vocab; the logit belongs to this lane.
                        unsafe { st(here.logits.as_ptr().wrapping_add(row[i] as usize), upper) };
                    }
                    i += 1;
                }
                let mut distance = 4;
                while distance < 32 {
                    top = shuffle_xor(top, distance).max(top);
                    distance *= 2;
                }
                if g == 0 {
                    // SAFETY: a word of the warp and the input.
                    unsafe { tops.add(warp_id() * INPUTS + own).write(top) };
                }
                b += 1;
            }
        });
        sync_threads();
        // A group is the rows of two warps.
        let (group, own) = (thread_idx_x() / INPUTS, thread_idx_x() % INPUTS);
        // Half of the threads, where there are half as many inputs.
        if group < ROWS / GROUP {
            // SAFETY: words of two warps, and what was noted of the input.
            let (top, counts) = unsafe {
                let of_warp = tops.add(2 * group * INPUTS + own);
                (
                    of_warp.read().max(of_warp.add(INPUTS).read()),
                    notes.add(WORDS * own + 5).read().to_bits() != 0,
                )
            };
            let group = row0 / GROUP + group;
            if counts && group < groups(args.vocab) {
                let here = args.of_row(input0 + own);
                // SAFETY: the group of this thread; an input that counts is there.
                unsafe { st(here.tops.as_ptr().wrapping_add(group as usize), top) };
            }
        }
        if next >= tiles {
            return;
        }
        tile = next;
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
            unsafe { scan::<{ CUT.rows }, { CUT.inputs }, { CUT.stages }>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    lm_head_int8_scan_wide ScanWide WIDE;
    lm_head_int8_scan_wide_some ScanWideSome WIDE_SOME;
}
