//! Larger windows, channels last: what a tile of outputs reads comes to shared memory at once, where each tap is read
//! as often as windows meet it ([`contract::pool2d::TilesArgs`]).

use contract::launch::Kernel;
use contract::pool2d::{
    Share, TILES_OUTPUTS, TILES_THREADS, TILES_WIDE, TilesArgs, TilesBf16, TilesF16, TilesF32,
};

use super::strips::plus;
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::st;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};

const OUTPUTS: usize = TILES_OUTPUTS as usize;
/// Words of channels of a tile.
const WORDS: u32 = TILES_WIDE / 4;

/// The larger of each two elements of a word.
#[inline(always)]
fn larger<E: Float>(a: u32, b: u32) -> u32 {
    E::max_raw([a, 0, 0, 0], [b, 0, 0, 0])[0]
}

/// The word of `N` neighbouring pixels from `at` on.
///
/// # Safety
///
/// They are in shared memory, and nobody writes them meanwhile.
#[inline(always)]
unsafe fn line<const N: usize>(at: Shared<u32>) -> [u32; N] {
    // SAFETY: the caller's promise.
    core::array::from_fn(|i| unsafe { at.add(i as u32 * WORDS).read() })
}

/// The maxima of a row of each window.
#[inline(always)]
fn across<E: Float, const K: usize, const STEP: usize, const COLUMNS: usize>(
    line: [u32; COLUMNS],
) -> [u32; OUTPUTS] {
    // Pairs serve two windows, or two places of one.
    let pairs: [u32; COLUMNS] = core::array::from_fn(|i| {
        if i + 1 < COLUMNS { larger::<E>(line[i], line[(i + 1) % COLUMNS]) } else { 0 }
    });
    core::array::from_fn(|v| {
        let mut top = line[v * STEP + K - 1];
        let mut s = 0;
        while s + 1 < K {
            top = larger::<E>(top, pairs[v * STEP + s]);
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

/// Windows of `K` by `K` in steps of `STEP`, which read `COLUMNS` columns; of maxima, `AGES` rows of outputs meet one.
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
>(
    args: &TilesArgs,
) {
    const { assert!(COLUMNS == (OUTPUTS - 1) * STEP + K && AGES == K.div_ceil(STEP) && K % 2 == 1) };
    let (pool, h, w) = (&args.pool, &args.pool.h, &args.pool.w);
    let len = E::PIECE as u32 / 4;
    let (rest, part) = args.by_channels.div_rem(block_idx_x());
    let (rest, right) = args.by_columns.div_rem(rest);
    let (image, down) = args.by_down.div_rem(rest);
    // Words of channels of a pixel, and those in front of this tile.
    let (words, word0) = (pool.channels / len, part * WORDS);
    launch_dependents();
    dependency_wait();
    let pixels = dynamic_shared_mem::<u32>();
    let x = pool.x.cast::<u32>().as_ptr().cast_const();
    let x = x.wrapping_add(image as usize * (h.len * w.len * words) as usize + word0 as usize);
    let (p0, q0) = (down * args.rows, right * args.columns);
    let (top, left) = (h.at(p0, 0), w.at(q0, 0));
    let mut i = thread_idx_x();
    while i < args.pixels * (WORDS / 4) {
        let (pixel, piece) = (i / (WORDS / 4), i % (WORDS / 4));
        let (line, column) = args.by_line.div_rem(pixel);
        let (i_h, i_w) = (top + line as i32, left + column as i32);
        // For maxima the nearest tap inside, which is one of the window's: padding is at most half of it.
        let (to_h, to_w) = if AVG {
            (i_h as u32, i_w as u32)
        } else {
            (i_h.max(0).min(h.len as i32 - 1) as u32, i_w.max(0).min(w.len as i32 - 1) as u32)
        };
        let inside = to_h < h.len && to_w < w.len && word0 + piece * 4 < words;
        let from = to_h.wrapping_mul(w.len).wrapping_add(to_w).wrapping_mul(words);
        let from = x.wrapping_add(from as usize + (piece * 4) as usize);
        let to = pixels.byte_add(line * args.pitch + column * TILES_WIDE + piece * 16);
        // SAFETY: a piece of a pixel of the image; a place of this block.
        unsafe { copy_x16(to, from, inside) };
        i += TILES_THREADS;
    }
    commit_group();
    let table = pixels.byte_add(args.smem - 8 * (K * K) as u32).cast::<f32>();
    let own = thread_idx_x();
    if AVG && own < (K * K) as u32 {
        let share = Share::of((own / K as u32 + 1) * (own % K as u32 + 1));
        // SAFETY: the block has this memory behind the tile, each thread its place.
        unsafe { table.add(2 * own).write_x2(share.parts()) };
    }
    wait_group::<0>();
    sync_threads();
    let y = pool.y.cast::<u32>().as_ptr();
    let y = y.wrapping_add(image as usize * (h.out * w.out * words) as usize + word0 as usize);
    let mut task = thread_idx_x();
    while task < args.tasks {
        rolled();
        let (rest, word) = (task / WORDS, task % WORDS);
        let (group, piece) = args.by_rows.div_rem(rest);
        task += TILES_THREADS;
        let (row, q) = (piece * args.each, q0 + group * TILES_OUTPUTS);
        let (p, end) = (p0 + row, h.out.min(p0 + row + args.each));
        if p >= h.out || q >= w.out || word0 + word >= words {
            continue;
        }
        let mut at = pixels
            .byte_add(row * STEP as u32 * args.pitch)
            .add(group * TILES_OUTPUTS * STEP as u32 * WORDS + word);
        let mut to = y.wrapping_add(((p * w.out + q) * words + word) as usize);
        let mut write = |values: [u32; OUTPUTS]| {
            let mut v = 0;
            while v < OUTPUTS {
                if q + (v as u32) < w.out {
                    // SAFETY: a word of an output of this thread.
                    unsafe { st(to.wrapping_add(v * words as usize), values[v]) };
                }
                v += 1;
            }
            to = to.wrapping_add((w.out * words) as usize);
        };
        if AVG {
            let padded = pool.count_include_pad == 1;
            // Behind the last output as many as there.
            let places: [Shared<f32>; OUTPUTS] = core::array::from_fn(|v| {
                table.add(2 * w.taps((q + v as u32).min(w.out - 1), padded) - 2)
            });
            let (mut ages, mut before): ([Piece; AGES], Piece) = ([[0.0; 8]; AGES], [0.0; 8]);
            // The output that ends next: those in front of the first one are none.
            let mut p_end = p.wrapping_sub(AGES as u32 - 1);
            'walk: loop {
                rolled();
                let mut u = 0;
                while u < AGES {
                    let mut j = 0;
                    while j < STEP {
                        // SAFETY: a line of the tile.
                        let row = sums::<E, K, STEP, COLUMNS>(unsafe { line(at) });
                        at = at.byte_add(opaque_here(args.pitch));
                        // Two and two rows of a window are a pair.
                        let pair = plus(before, row);
                        before = row;
                        let mut age = 0;
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
                        if j == (K - 1) % STEP {
                            if p_end as i32 >= p as i32 {
                                let rows = h.taps(p_end, padded) - 1;
                                let shares: [Share; OUTPUTS] = core::array::from_fn(|v| {
                                    // SAFETY: an entry of the table.
                                    Share::from_parts(unsafe {
                                        places[v].byte_add(rows * (8 * K as u32)).read_x2()
                                    })
                                });
                                let done = ages[(u + 1) % AGES];
                                write(E::narrow(core::array::from_fn(|i| {
                                    let v = i / (E::PIECE / 4);
                                    if v < OUTPUTS { shares[v].take(done[i]) } else { 0.0 }
                                })));
                            }
                            p_end = p_end.wrapping_add(1);
                            if p_end as i32 >= end as i32 {
                                break 'walk;
                            }
                        }
                        j += 1;
                    }
                    u += 1;
                }
            }
        } else {
            let mut ages = [[0u32; OUTPUTS]; AGES];
            // Turns of `STEP` lines, of which the last one may lack some.
            let (turns, lines) =
                (end - p + AGES as u32 - 1, (end - p - 1) * STEP as u32 + K as u32);
            let mut turn = opaque(0);
            while turn < turns {
                let mut j = 0;
                while j < STEP {
                    if j == 0 || turn * (STEP as u32) + (j as u32) < lines {
                        // SAFETY: a line of the tile.
                        let tops = across::<E, K, STEP, COLUMNS>(unsafe { line(at) });
                        let mut age = 0;
                        while age < AGES {
                            let r = age * STEP + j;
                            if r < K {
                                let mut v = 0;
                                while v < OUTPUTS {
                                    let so_far = ages[age][v];
                                    ages[age][v] =
                                        if r == 0 { tops[v] } else { larger::<E>(so_far, tops[v]) };
                                    v += 1;
                                }
                            }
                            age += 1;
                        }
                        at = at.byte_add(args.pitch);
                    }
                    j += 1;
                }
                if turn + 1 >= AGES as u32 {
                    write(ages[AGES - 1]);
                }
                let mut age = AGES - 1;
                while age > 0 {
                    ages[age] = ages[age - 1];
                    age -= 1;
                }
                turn += 1;
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
    // SAFETY: handed on.
    unsafe {
        match (args.pool.w.kernel, args.pool.w.stride) {
            (5, 1) => tiles::<E, AVG, 5, 1, { 5 + MORE }, 5>(args),
            (5, _) => tiles::<E, AVG, 5, 2, { 5 + 2 * MORE }, 3>(args),
            (_, 1) => tiles::<E, AVG, 7, 1, { 7 + MORE }, 7>(args),
            _ => tiles::<E, AVG, 7, 2, { 7 + 2 * MORE }, 4>(args),
        }
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
