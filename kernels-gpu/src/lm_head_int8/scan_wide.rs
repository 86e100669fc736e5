//! Bounds of every row for many inputs, on `wgmma` (sm_90a): rows of the table as the left factor, both
//! digits of each input as two columns of the right one.
//!
//! Slices of 128 bytes of each row and digit come through a ring in shared memory by the copy engine, where both factors are
//! read. Step `s` multiplies slice `s`, asks for slice `s + STAGES - 1` and waits for its products: at the
//! barrier of a step nobody reads the place of the slice in front of it. A warpgroup takes 64
//! rows and all digits: lane `(g, t)` of a warp ends with rows `g`, `g + 8` and inputs `t`, `t + 4`, ...

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Args, Asked, GROUP, MANY_SLICE, Many, ScanWide, ScanWideSome, WIDE, WIDE_SOME, WIDE_THREADS,
    WideArgs, bounds, groups, row_bytes,
};
use contract::num::{fma, order_key, order_value};

use super::scan_rows::{ALONE, COUNTS, DRAWN, PLAIN, WORDS, note_input};
use super::{enlist, known_floor, raise_floor};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::mbarrier::{Barrier, arrive_expecting, init, show_new, wait};
use crate::arch::mem::{ld_u8_if, ld_x4, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::tensor::{copy_tile, copy_tile_stream, parameter_address, prefetch_map};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::{ballot, lane_id, shuffle_xor, warp_id};
use crate::arch::wgmma::{self, Descriptor};
use crate::tile::hopper::each_group;

const _: () = assert!(MANY_SLICE == 128 && GROUP == 32);

/// What is noted of an input, for one lane.
struct Input {
    asked: Asked,
    stats: [f32; 4],
    how: u32,
    /// Factors of a row's error and norm, a little larger than they have to be; see [`Input::ends`].
    reach: [f32; 2],
}

impl Input {
    /// # Safety
    ///
    /// `words` starts the words of an input.
    #[inline(always)]
    unsafe fn at(words: Shared<f32>) -> Self {
        // SAFETY: the caller's promise.
        let [[temperature, penalty, s0, s1], [s2, how, ..]]: [[f32; 4]; 2] =
            unsafe { [words.read_x4(), words.add(4).read_x4()] };
        // More than the roundings of the sums themselves, which `bounds` makes whole first: some 7 of 2^-24 of the norms'
        // product, of which `s2` has 12 to spare.
        const MORE: f32 = 1.0 + 1.0 / 1024.0;
        Self {
            asked: Asked::of_bounds(temperature, penalty),
            stats: [s0, s1, s2, 0.0],
            how: how.to_bits(),
            reach: [s1 * MORE, s2 * MORE],
        }
    }

    /// A lower and an upper bound of a logit that the sampler sees as it is. Cheaper than [`bounds`], and hardly wider.
    #[inline(always)]
    fn ends(&self, [high, low]: [i32; 2], row: [f32; 4]) -> [f32; 2] {
        let near = fma(high as f32, 256.0, low as f32) * row[0];
        let reach = fma(row[1], self.reach[0], row[2] * self.reach[1]);
        [fma(near, self.stats[0], -reach), fma(near, self.stats[0], reach)]
    }

    /// The bounds as the sampler will see the logit.
    ///
    /// # Safety
    ///
    /// `marks` are those of the row, where there is one.
    #[inline(always)]
    unsafe fn adjusted(
        &self,
        [high, low]: [i32; 2],
        row: [f32; 4],
        (there, marks): (bool, *const u8),
    ) -> [f32; 2] {
        let ends = bounds(256 * i64::from(high) + i64::from(low), row, self.stats);
        if self.asked.keeps() {
            return ends;
        }
        // SAFETY: the caller's promise. With a penalty of 1 no marks count.
        let marks = unsafe { ld_u8_if(there && self.asked.penalty != 1.0, marks) };
        ends.map(|end| self.asked.adjust(end, marks))
    }
}

/// Temperatures that the bounds themselves are divided by: nothing leaves the range of normal numbers.
const TEMPERATURES: core::ops::RangeInclusive<f32> = 1.0 / 1024.0..=1024.0;

/// Where logits are divided by a temperature and by nothing else, has the bounds made so from the start: three roundings more, of five that are
/// left ([`Input::at`]).
///
/// # Safety
///
/// `words` starts those of an input, which nobody else uses yet.
#[inline(always)]
unsafe fn temper_bounds(words: Shared<f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        let [temperature, penalty, s0, s1] = words.read_x4();
        let [s2, how, floor, none] = words.add(4).read_x4();
        let how = how.to_bits();
        if how & (COUNTS | ALONE) == COUNTS && penalty == 1.0 && TEMPERATURES.contains(&temperature)
        {
            let of = 1.0 / temperature;
            words.write_x4([temperature, penalty, s0 * of, s1 * of]);
            words.add(4).write_x4([s2 * of, f32::from_bits(how | DRAWN), floor, none]);
        }
    }
}

/// Tiles of `ROWS` rows of the table and `INPUTS` inputs, one after the other; 128 threads for each 64 rows.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid, behind `lm_head_int8_input`; the contract's table holds; `maps` is the address
/// of both maps.
#[inline(always)]
unsafe fn scan<const ROWS: u32, const INPUTS: u32, const STAGES: u32>(args: &Args, maps: u64) {
    const { assert!(WIDE_THREADS == 2 * ROWS && (INPUTS == 32 || INPUTS == 64)) };
    // Columns of the product: digits.
    let digit_count = const { 2 * INPUTS };
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
    let full: Barrier = tops.add(ROWS / 16 * INPUTS).cast();

    // Tiles begin with different slices, or all blocks would ask for the same digits at once.
    let byte = |tile: u32, s: u32| {
        let s = s + tile % slices;
        (if s < slices { s } else { s - slices }) * MANY_SLICE
    };
    let asks = thread_idx_x() == 0;
    // Places of the ring and phases of their barriers go on from tile to tile.
    let table = |tile: u32, s: u32, place: u32| {
        let (to, barrier) = (ring.add(place * slice_bytes), full.add(place));
        // SAFETY: a slice that nobody reads now, of the table, which nobody writes any more.
        unsafe {
            arrive_expecting(barrier, slice_bytes);
            // No other tile reads them; the digits stay.
            copy_tile_stream(to, maps, [byte(tile, s), tile * ROWS, 0, 0], barrier);
        }
    };
    let digits = |tile: u32, s: u32, place: u32| {
        let to = ring.add(place * slice_bytes + slice_rows);
        // SAFETY: the same, of the digits, behind the wait for them.
        unsafe { copy_tile(to, maps + 128, [byte(tile, s), 0, input0, 0], full.add(place)) };
    };

    let start = opaque(0);
    let mut tile = block_idx_x();
    if asks {
        let mut place = 0;
        // SAFETY: barriers of this block; the maps are there.
        unsafe {
            while place < STAGES {
                init(full.add(place), 1);
                place += 1;
            }
            show_new();
            prefetch_map(maps);
            prefetch_map(maps + 128);
        }
        // The table never changes: it is asked for before the kernel in front of this one has ended.
        let mut s = start;
        while s < STAGES - 1 && s < slices {
            table(tile, s, s);
            s += 1;
        }
    }
    dependency_wait();
    if asks {
        let mut s = start;
        while s < STAGES - 1 && s < slices {
            digits(tile, s, s);
            s += 1;
        }
    }
    if thread_idx_x() < INPUTS {
        let words = notes.add(WORDS * thread_idx_x());
        // SAFETY: the words of this input; the launch contract, handed on. The barriers below show them.
        unsafe {
            note_input(args, input0 + thread_idx_x(), words);
            temper_bounds(words);
        }
    }
    let (mut place, mut parity) = (0, 0);
    // Thread i knows of the floor of input i, as it was when its tile began.
    let mut known = 0;
    let mut again = false;
    loop {
        each_group!(digit_count, J => { wgmma::clear::<J>(); });
        let mut s = start;
        while s < slices {
            // Nobody reads the place of the slice in front of this one any more.
            sync_threads();
            // SAFETY: a barrier of this block, whose phase was asked for.
            unsafe { wait(full.add(place), parity) };
            let here = ring.add(place * slice_bytes);
            let of_group = here.add(thread_idx_x() / 128 * (64 * MANY_SLICE));
            let a = Descriptor::new(of_group, 0, wgmma::ATOM_BYTES);
            let b = Descriptor::new(here.add(slice_rows), 0, wgmma::ATOM_BYTES);
            wgmma::fence();
            let mut step = 0;
            while step < MANY_SLICE / 32 {
                // SAFETY: slice s, waited for.
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
            let to = if place == 0 { STAGES - 1 } else { place - 1 };
            if next < slices {
                if asks {
                    table(tile, next, to);
                    digits(tile, next, to);
                }
            } else if tile + grid_dim_x() >= tiles {
                launch_dependents();
            }
            wgmma::wait::<0>();
            place += 1;
            if place == STAGES {
                (place, parity) = (0, parity ^ 1);
            }
            s += 1;
        }
        if again && thread_idx_x() < INPUTS {
            // SAFETY: what was noted of the input; an input that counts is there; words that are read behind the barrier.
            unsafe {
                let words = notes.add(WORDS * thread_idx_x());
                let input = Input::at(words);
                let mut of_quick = [0.0, 0.0, 0.0, f32::INFINITY];
                if input.how & ALONE != 0 {
                    known = known_floor(&args.of_row(input0 + thread_idx_x()));
                    let [a, b] = input.reach;
                    of_quick = [input.stats[0], a, b, order_value(known)];
                }
                tops.cast::<f32>().add(4 * thread_idx_x()).write_x4(of_quick);
            }
        }
        // Nobody reads the ring any more.
        sync_threads();
        let (row0, next) = (tile * ROWS, tile + grid_dim_x());
        // The next tile's first slices come while this one's sums become bounds.
        if asks && next < tiles {
            let (mut s, mut to) = (start, place);
            while s < STAGES - 1 && s < slices {
                table(next, s, to);
                digits(next, s, to);
                to = if to == STAGES - 1 { 0 } else { to + 1 };
                s += 1;
            }
        }
        // What all inputs of the block have in common.
        let (quick, lists) = {
            let of = |i: u32| {
                // SAFETY: what was noted of an input.
                unsafe { notes.add(WORDS * i + 5).read().to_bits() }
            };
            let (a, b) = (of(lane_id()), of(INPUTS - 1 - lane_id()));
            let other = |how: u32| how & COUNTS != 0 && how & PLAIN == 0;
            (again && ballot(other(a) || other(b)) == 0, ballot((a | b) & ALONE != 0) != 0)
        };
        // Opaque, or the addresses of all inputs would be kept from tile to tile.
        let input0 = opaque_here(input0);
        let (g, t) = (lane_id() / 4, lane_id() % 4);
        let row = [row0 + 16 * warp_id() + g, row0 + 16 * warp_id() + g + 8];
        let stats: [[f32; 4]; 2] = row.map(|row| {
            let at = 4 * row.min(args.vocab - 1) as usize;
            // SAFETY: a row of the table.
            unsafe { ld_x4(args.rows.as_ptr().cast_const().wrapping_add(at).cast()) }
        });
        // Of rows that are not there nothing is looked at.
        let there = row.map(|row| row < args.vocab);
        if quick {
            // What the other blocks know is near: what reaches it is listed, and hardly a lower bound raises it.
            each_group!(digit_count, J => {
                let sums = wgmma::read::<J>().map(|sum| sum.to_bits() as i32);
                let reaches = |b: usize| {
                    let own = 8 * J + 4 * b as u32 + t;
                    // SAFETY: words written before the barrier.
                    let [s0, s1, s2, least] = unsafe { tops.cast::<f32>().add(4 * own).read_x4() };
                    // As `Input::ends`. A floor that is not a number is reached by all.
                    let below = [0, 1].map(|i| {
                        let [high, low] = [sums[4 * b + 2 * i], sums[4 * b + 2 * i + 1]];
                        let near = fma(high as f32, 256.0, low as f32) * stats[i][0];
                        fma(near, s0, fma(stats[i][1], s1, stats[i][2] * s2)) < least
                    });
                    !(below[0] && below[1])
                };
                let reaches = [reaches(0), reaches(1)];
                if reaches[0] || reaches[1] {
                    let mut b = 0;
                    while b < 2 {
                        let own = 8 * J + 4 * b as u32 + t;
                        // SAFETY: as above.
                        let (input, least) = unsafe {
                            (
                                Input::at(notes.add(WORDS * own)),
                                tops.cast::<f32>().add(4 * own + 3).read(),
                            )
                        };
                        let here = args.of_row((input0 + own).min(args.m - 1));
                        let mut i = 0;
                        while i < 2 {
                            let pair = [sums[4 * b + 2 * i], sums[4 * b + 2 * i + 1]];
                            let [lower, upper] = input.ends(pair, stats[i]);
                            if input.how & ALONE != 0 && there[i] && !(upper < least) {
                                // SAFETY: an input that counts is there; the launch contract, handed on.
                                unsafe {
                                    enlist(&here, row[i], order_key(upper));
                                    if !(lower <= least) {
                                        raise_floor(&here, order_key(lower));
                                    }
                                }
                            }
                            i += 1;
                        }
                        b += 1;
                    }
                }
            });
            if next >= tiles {
                return;
            }
            tile = next; // again
            continue;
        }
        each_group!(digit_count, J => {
            let sums = wgmma::read::<J>().map(|sum| sum.to_bits() as i32);
            let mut b = 0;
            while b < 2 {
                let own = 8 * J + 4 * b as u32 + t;
                // SAFETY: the words of this input.
                let input = unsafe { Input::at(notes.add(WORDS * own)) };
                let pair = |i: usize| [sums[4 * b + 2 * i], sums[4 * b + 2 * i + 1]];
                let mut top = 0;
                if input.how & DRAWN != 0 {
                    let bounds = args.of_row(input0 + own).bounds.as_ptr();
                    let mut i = 0;
                    while i < 2 {
                        let [lower, upper] = input.ends(pair(i), stats[i]);
                        if there[i] {
                            top = order_key(lower).max(top);
                            // SAFETY: a row that is there; its bound belongs to this lane.
                            unsafe { st(bounds.wrapping_add(row[i] as usize), upper) };
                        }
                        i += 1;
                    }
                } else if input.how & PLAIN != 0 {
                    let low = |i: usize| {
                        let [low, _] = input.ends(pair(i), stats[i]);
                        if there[i] { order_key(low) } else { 0 }
                    };
                    top = low(0).max(low(1));
                } else if input.how & COUNTS != 0 {
                    let here = args.of_row(input0 + own);
                    let mut i = 0;
                    while i < 2 {
                        let at = row[i] as usize;
                        let marks = here.marks.as_ptr().cast_const().wrapping_add(at);
                        // SAFETY: a row that is there; its bound belongs to this lane.
                        unsafe {
                            let [lower, upper] =
                                input.adjusted(pair(i), stats[i], (there[i], marks));
                            if there[i] {
                                top = order_key(lower).max(top);
                                if input.how & ALONE == 0 {
                                    st(here.bounds.as_ptr().wrapping_add(at), upper);
                                }
                            }
                        }
                        i += 1;
                    }
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
            let (mut top, how) = unsafe {
                let of_warp = tops.add(2 * group * INPUTS + own);
                (
                    of_warp.read().max(of_warp.add(INPUTS).read()),
                    notes.add(WORDS * own + 5).read().to_bits(),
                )
            };
            let here = args.of_row((input0 + own).min(args.m - 1));
            if how & ALONE != 0 {
                if group == 0 {
                    let mut warp = 2;
                    while warp < ROWS / 16 {
                        // SAFETY: written before the barrier.
                        top = unsafe { tops.add(warp * INPUTS + own).read() }.max(top);
                        warp += 1;
                    }
                    // SAFETY: a word that only this thread has read; an input that counts is there.
                    unsafe {
                        if top > known {
                            raise_floor(&here, top);
                        }
                        tops.add(own).write(top.max(known));
                    }
                }
            } else if how & COUNTS != 0 && row0 / GROUP + group < groups(args.vocab) {
                let group = row0 / GROUP + group;
                // SAFETY: the group of this thread; an input that counts is there.
                unsafe { st(here.scratch().as_ptr().wrapping_add(group as usize), top) };
            }
        }
        sync_threads();
        if lists {
            each_group!(digit_count, J => {
                let sums = wgmma::read::<J>().map(|sum| sum.to_bits() as i32);
                let mut b = 0;
                while b < 2 {
                    let own = 8 * J + 4 * b as u32 + t;
                    // SAFETY: the words of this input; a word written before the barrier.
                    let (input, floor) =
                        unsafe { (Input::at(notes.add(WORDS * own)), tops.add(own).read()) };
                    let pair = |i: usize| [sums[4 * b + 2 * i], sums[4 * b + 2 * i + 1]];
                    if input.how & PLAIN != 0 {
                        // Both at once: hardly any reaches it. A floor that is not a number is reached by all.
                        let least = order_value(floor);
                        let upper = [0, 1].map(|i| input.ends(pair(i), stats[i])[1]);
                        if !(upper[0] < least && upper[1] < least) {
                            let here = args.of_row(input0 + own);
                            let mut i = 0;
                            while i < 2 {
                                let key = order_key(upper[i]);
                                if there[i] && key >= floor {
                                    // SAFETY: an input that counts is there; the launch contract, handed on.
                                    unsafe { enlist(&here, row[i], key) };
                                }
                                i += 1;
                            }
                        }
                    } else if input.how & ALONE != 0 {
                        let here = args.of_row(input0 + own);
                        let mut i = 0;
                        while i < 2 {
                            let marks = here.marks.as_ptr().cast_const().wrapping_add(row[i] as usize);
                            // SAFETY: the same; a row that is there.
                            unsafe {
                                let [_, upper] = input.adjusted(pair(i), stats[i], (there[i], marks));
                                if there[i] && order_key(upper) >= floor {
                                    enlist(&here, row[i], order_key(upper));
                                }
                            }
                            i += 1;
                        }
                    }
                    b += 1;
                }
            });
        }
        if next >= tiles {
            return;
        }
        (tile, again) = (next, true);
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $cut:ident;)*) => {$(
        /// # Safety
        ///
        /// As for [`scan`].
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: WideArgs) {
            const CUT: Many = $cut;
            // SAFETY: the launch contract, handed on; the maps stand in front.
            unsafe {
                let maps = parameter_address!($symbol);
                scan::<{ CUT.rows }, { CUT.inputs }, { CUT.stages }>(&args.scan, maps)
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    lm_head_int8_scan_wide ScanWide WIDE;
    lm_head_int8_scan_wide_some ScanWideSome WIDE_SOME;
}
