//! Windows that share taps, channels last: bands of images come to shared memory line by line, where each tap is read once for all windows side by
//! side ([`contract::pool2d::TilesArgs`]).

use contract::launch::Kernel;
use contract::pool2d::{
    Share, TILES_OUTPUTS, TILES_THREADS, TilesArgs, TilesBf16, TilesF16, TilesF32, tiles_turn,
};

use super::item::plus;
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::st;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};

const OUTPUTS: usize = TILES_OUTPUTS as usize;

/// The larger of each two elements of a word.
#[inline(always)]
fn larger<E: Float>(a: u32, b: u32) -> u32 {
    E::max_raw([a, 0, 0, 0], [b, 0, 0, 0])[0]
}

/// The larger of each two words.
#[inline(always)]
fn largest<E: Float>(a: [u32; OUTPUTS], b: [u32; OUTPUTS]) -> [u32; OUTPUTS] {
    E::max_raw(a, b)
}

/// A pixel's place in its line: where half of a warp has another group of outputs than the other half, neighbours change places in each second one,
/// so that they are in other banks.
#[inline(always)]
const fn place(pixel: u32, step: u32, words: u32) -> u32 {
    if words < 32 { pixel ^ (pixel >> (4 * step).trailing_zeros()) & 1 } else { pixel }
}

/// Where a thread reads a line.
#[derive(Clone, Copy)]
struct Line {
    /// Of even and of odd pixels of the first places.
    even: Shared<u32>,
    odd: Shared<u32>,
}

impl Line {
    /// The words of the pixels of group `group`'s windows.
    ///
    /// # Safety
    ///
    /// They are in shared memory, and nobody writes them meanwhile.
    #[inline(always)]
    unsafe fn read<const N: usize, const STEP: usize, const WORDS: u32>(self) -> [u32; N] {
        core::array::from_fn(|i| {
            let pixel = place(i as u32, STEP as u32, WORDS);
            let from = if pixel & 1 == 0 { self.even } else { self.odd };
            // SAFETY: the caller's promise.
            unsafe { from.add(pixel * WORDS).read() }
        })
    }

    #[inline(always)]
    fn further(self, bytes: u32) -> Self {
        Self { even: self.even.byte_add(bytes), odd: self.odd.byte_add(bytes) }
    }
}

/// The maxima of a row of each window.
#[inline(always)]
fn across<E: Float, const K: usize, const STEP: usize, const COLUMNS: usize>(
    w: [u32; COLUMNS],
) -> [u32; OUTPUTS] {
    let get = |i: usize| if i < COLUMNS { w[i] } else { 0 };
    if STEP == 1 && K > 3 {
        // What all four have in common, and what is in front of it and behind.
        let mut common = w[3];
        let mut i = 4;
        while i < K {
            common = larger::<E>(common, w[i]);
            i += 1;
        }
        let [front, behind] = [larger::<E>(w[1], w[2]), larger::<E>(get(K), get(K + 1))];
        return [
            larger::<E>(common, larger::<E>(w[0], front)),
            larger::<E>(common, larger::<E>(front, get(K))),
            larger::<E>(common, larger::<E>(w[2], behind)),
            larger::<E>(common, larger::<E>(behind, get(K + 2))),
        ];
    }
    // Pairs serve two windows, or two places of one.
    let pairs: [u32; COLUMNS] = core::array::from_fn(|i| larger::<E>(w[i], get(i + 1)));
    core::array::from_fn(|v| {
        let mut top = pairs[v * STEP];
        let mut s = 2;
        while s < K {
            let at = v * STEP + s;
            top = larger::<E>(top, if s + 1 < K { pairs[at] } else { w[at] });
            s += 2;
        }
        top
    })
}

/// The sums of a row of each window, channel by channel: of two and two neighbours.
#[inline(always)]
fn sums<E: Float, const K: usize, const STEP: usize, const COLUMNS: usize>(
    line: [u32; COLUMNS],
) -> Piece {
    let len = E::PIECE / 4;
    let values = line.map(|word| E::widen([word, 0, 0, 0]));
    let pairs: [[f32; 2]; COLUMNS] = core::array::from_fn(|i| {
        let next = values[(i + 1) % COLUMNS];
        [values[i][0] + next[0], values[i][1] + next[1]]
    });
    core::array::from_fn(|i| {
        if i >= OUTPUTS * len {
            return 0.0;
        }
        let (at, channel) = (i / len * STEP, i % len);
        let mut sum = pairs[at][channel];
        let mut s = 2;
        while s < K {
            sum += if s + 1 < K { pairs[at + s][channel] } else { values[at + s][channel] };
            s += 2;
        }
        sum
    })
}

/// The band of a thread or of a copy.
struct Band {
    image: u32,
    /// The first row and column of outputs.
    p0: u32,
    q0: u32,
}

/// Windows of `K` by `K` in steps of `STEP`, of which four side by side read `COLUMNS` columns, and `AGES` rows of outputs meet a line; `WORDS` words
/// of channels.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::tiles_of` for this window, step and
/// element; their pointers cover the contract's table.
#[inline(always)]
unsafe fn tiles<
    E: Float,
    const AVG: bool,
    const K: usize,
    const STEP: usize,
    const COLUMNS: usize,
    const AGES: usize,
    const WORDS: u32,
>(
    args: &TilesArgs,
) {
    const { assert!(COLUMNS == (OUTPUTS - 1) * STEP + K && AGES == K.div_ceil(STEP)) };
    let turn = const { tiles_turn(AVG as u32, K as u32, STEP as u32) };
    let (pool, h, w) = (&args.pool, &args.pool.h, &args.pool.w);
    let len = E::PIECE as u32 / 4;
    let (first, part) = args.by_channels.div_rem(block_idx_x());
    // Words of channels of a pixel, and those in front of these bands.
    let (words, word0) = (pool.channels / len, part * WORDS);
    let find = |band: u32| {
        let (rest, right) = args.by_columns.div_rem(first * args.bands + band);
        let (image, down) = args.by_down.div_rem(rest);
        Band { image, p0: down * args.rows, q0: right * args.columns }
    };
    launch_dependents();
    dependency_wait();
    let held = dynamic_shared_mem::<u32>();
    let x = pool.x.cast::<u32>().as_ptr().cast_const();
    // Asks for the lines of turn `number`, which come to stage `stage`.
    let bring = |number: u32, stage: u32| {
        let to = held.byte_add(stage * turn * args.pitch);
        let mut i = thread_idx_x();
        while number < args.turns && i < args.bands * args.line * (WORDS / 4) {
            rolled();
            let (pixel, piece) = (i / (WORDS / 4), i % (WORDS / 4));
            let (band, column) = args.by_line.div_rem(pixel);
            let Band { image, p0, q0 } = find(band);
            let i_w = w.at(q0, 0) + column as i32;
            // For maxima the nearest tap inside, which is one of the window's: padding is at most half of it.
            let near = |i: i32, len: u32| {
                if AVG { i as u32 } else { i.max(0).min(len as i32 - 1) as u32 }
            };
            let i_w = near(i_w, w.len);
            let inside = i_w < w.len && word0 + piece * 4 < words && image < pool.images;
            let from = x.wrapping_add(image as usize * (h.len * w.len * words) as usize);
            let from = from.wrapping_add((i_w * words + word0 + piece * 4) as usize);
            let column = place(column, STEP as u32, WORDS);
            let mut to = to.byte_add(band * args.band + column * (WORDS * 4) + piece * 16);
            let top = h.at(p0, 0) + (number * turn) as i32;
            let mut l = opaque(0);
            while l < turn {
                rolled();
                let i_h = near(top + l as i32, h.len);
                let here = inside && i_h < h.len;
                let from = from.wrapping_add(i_h as usize * (w.len * words) as usize);
                // SAFETY: a piece of a pixel of the image; a place of this block.
                unsafe { copy_x16(to, if here { from } else { x }, here) };
                to = to.byte_add(args.pitch);
                l += 1;
            }
            i += TILES_THREADS;
        }
        commit_group();
    };
    let mut stage = 0;
    while stage + 1 < args.stages {
        bring(stage, stage);
        stage += 1;
    }
    let table = held.byte_add(args.smem - 8 * (K * K) as u32).cast::<f32>();
    let own = thread_idx_x();
    if AVG && own < (K * K) as u32 {
        let share = Share::of((own / K as u32 + 1) * (own % K as u32 + 1));
        // SAFETY: the block has this memory behind the bands, each thread its place.
        unsafe { table.add(2 * own).write_x2(share.parts()) };
    }
    let (rest, word) = (own / WORDS, own % WORDS);
    let (band, group) = args.by_group.div_rem(rest);
    let Band { image, p0: p, q0 } = find(band);
    let q = q0 + group * TILES_OUTPUTS;
    let end = h.out.min(p + args.rows);
    let active = band < args.bands && image < pool.images && q < w.out && word0 + word < words;
    let at = band * args.band + group * (TILES_OUTPUTS * WORDS * 4 * STEP as u32) + word * 4;
    let change = if WORDS < 32 { (group & 1) * (WORDS * 4) } else { 0 };
    let odd = at.wrapping_sub(change);
    let own = Line { even: held.byte_add(at + change), odd: held.byte_add(odd) };
    let y = pool.y.cast::<u32>().as_ptr();
    let y = y.wrapping_add(image as usize * (h.out * w.out * words) as usize);
    let mut to = y.wrapping_add(((p * w.out + q) * words + word0 + word) as usize);
    // Writes the next row of outputs of this thread, if it is one.
    let mut next = p.wrapping_sub(if AVG || STEP > 1 { AGES as u32 - 1 } else { K as u32 - 1 });
    let mut write = |next: u32, values: [u32; OUTPUTS]| {
        let mut v = 0;
        while v < OUTPUTS {
            if q + (v as u32) < w.out {
                // SAFETY: a word of an output of this thread.
                unsafe { st(to.wrapping_add(v * words as usize), values[v]) };
            }
            v += 1;
        }
        to = to.wrapping_add((w.out * words) as usize);
        next + 1 < end
    };
    let padded = pool.count_include_pad == 1;
    // Behind the last output as many as there.
    let places: [Shared<f32>; OUTPUTS] = core::array::from_fn(|v| {
        let taps = if AVG { w.taps((q + v as u32).min(w.out - 1), padded) } else { 1 };
        table.add(2 * taps - 2)
    });
    let (mut ages, mut before): ([Piece; AGES], Piece) = ([[0.0; 8]; AGES], [0.0; 8]);
    let mut tops = [[0u32; OUTPUTS]; AGES];
    let mut left = args.turns;
    let mut number = args.stages - 1;
    let (mut stage, mut free) = (0, args.stages - 1);
    let mut there = active;
    while left > 0 {
        rolled();
        if args.stages > 2 {
            wait_group::<1>();
        } else {
            wait_group::<0>();
        }
        sync_threads();
        bring(number, free);
        let mut at = own.further(stage * turn * args.pitch);
        (number, left) = (number + 1, left - 1);
        free = stage;
        stage = if stage + 1 == args.stages { 0 } else { stage + 1 };
        let unit = const { if AVG || STEP > 1 { AGES * STEP } else { K - 1 } };
        let mut l = opaque(0);
        'lines: while there && l < turn {
            rolled();
            l += unit as u32;
            // SAFETY: a line that has come.
            let mut read = || unsafe {
                let line = at.read::<COLUMNS, STEP, WORDS>();
                at = at.further(opaque_here(args.pitch));
                line
            };
            if !AVG && STEP == 1 {
                // Blocks of a line less than a window, which is the end of one and the start of the next one.
                let mut start = [0; OUTPUTS];
                let mut lines = [[0u32; OUTPUTS]; AGES];
                let mut i = 0;
                while i + 1 < K {
                    lines[i] = across::<E, K, STEP, COLUMNS>(read());
                    start = if i == 0 { lines[0] } else { largest::<E>(start, lines[i]) };
                    if next as i32 >= p as i32 {
                        there = write(next, largest::<E>(tops[i], start));
                    }
                    if !there {
                        break 'lines;
                    }
                    next = next.wrapping_add(1);
                    i += 1;
                }
                let mut i = K - 1;
                while i > 0 {
                    i -= 1;
                    tops[i] =
                        if i + 2 > K - 1 { lines[i] } else { largest::<E>(lines[i], tops[i + 1]) };
                }
                continue;
            }
            let mut u = 0;
            while u < AGES {
                let mut j = 0;
                while j < STEP {
                    let line = read();
                    let mut age = 0;
                    if AVG {
                        let row = sums::<E, K, STEP, COLUMNS>(line);
                        // Two and two rows of a window are a pair.
                        let pair = plus(before, row);
                        before = row;
                        while age < AGES {
                            let (slot, r) = ((u + AGES - age) % AGES, age * STEP + j);
                            if r == 1 {
                                ages[slot] = pair;
                            } else if r < K && r % 2 == 1 {
                                ages[slot] = plus(ages[slot], pair);
                            } else if r + 1 == K {
                                ages[slot] = plus(ages[slot], row);
                            }
                            age += 1;
                        }
                    } else {
                        let row = across::<E, K, STEP, COLUMNS>(line);
                        while age < AGES {
                            let (slot, r) = ((u + AGES - age) % AGES, age * STEP + j);
                            if r == 0 {
                                tops[slot] = row;
                            } else if r < K {
                                tops[slot] = largest::<E>(tops[slot], row);
                            }
                            age += 1;
                        }
                    }
                    if j == (K - 1) % STEP {
                        let done = (u + 1) % AGES;
                        if next as i32 >= p as i32 {
                            there = if AVG {
                                let rows = h.taps(next, padded) - 1;
                                let shares: [Share; OUTPUTS] = core::array::from_fn(|v| {
                                    // SAFETY: an entry of the table.
                                    Share::from_parts(unsafe {
                                        places[v].byte_add(rows * (8 * K as u32)).read_x2()
                                    })
                                });
                                let done = ages[done];
                                write(
                                    next,
                                    E::narrow(core::array::from_fn(|i| {
                                        let v = i / (E::PIECE / 4);
                                        if v < OUTPUTS { shares[v].take(done[i]) } else { 0.0 }
                                    })),
                                )
                            } else {
                                write(next, tops[done])
                            };
                        }
                        if !there {
                            break 'lines;
                        }
                        next = next.wrapping_add(1);
                    }
                    j += 1;
                }
                u += 1;
            }
        }
    }
}

/// # Safety
///
/// As for [`tiles`].
#[inline(always)]
unsafe fn fitting<E: Float, const AVG: bool>(args: &TilesArgs) {
    const MORE: usize = OUTPUTS - 1;
    macro_rules! form {
        ($k:literal $step:literal) => {{
            const COLUMNS: usize = $k + $step * MORE;
            const AGES: usize = usize::div_ceil($k, $step);
            // SAFETY: handed on.
            unsafe {
                if args.wide == 128 {
                    tiles::<E, AVG, $k, $step, COLUMNS, AGES, 32>(args);
                } else {
                    tiles::<E, AVG, $k, $step, COLUMNS, AGES, 16>(args);
                }
            }
        }};
    }
    match (args.pool.w.kernel, args.pool.w.stride) {
        (3, _) => form!(3 1),
        (4, 2) => form!(4 2),
        (4, _) => form!(4 4),
        (5, 1) => form!(5 1),
        (5, _) => form!(5 2),
        (6, _) => form!(6 2),
        (7, 1) => form!(7 1),
        (9, _) if !AVG => form!(9 1),
        (13, _) if !AVG => form!(13 1),
        _ => form!(7 2),
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $ty:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: TilesArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe {
                if args.pool.average == 1 {
                    fitting::<$ty, true>(&args);
                } else {
                    fitting::<$ty, false>(&args);
                }
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_tiles_f32 TilesF32 f32;
    pool2d_tiles_f16 TilesF16 F16;
    pool2d_tiles_bf16 TilesBf16 Bf16;
}
