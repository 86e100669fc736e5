//! Windows of any kind, one axis after the other: what a tile of outputs reads comes to shared memory as it lies in memory, the maxima or sums of
//! the rows of windows go through it again ([`contract::pool2d::AxesArgs`]).

use contract::launch::Kernel;
use contract::pool2d::{AXES_RUN, AXES_THREADS, AxesArgs, AxesBf16, AxesF16, AxesF32, Axis, Share};

use super::plane_tile::{put, size};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::st;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::Float;

/// The larger of each two elements of a word.
#[inline(always)]
fn larger<E: Float>(a: u32, b: u32) -> u32 {
    E::max_raw([a, 0, 0, 0], [b, 0, 0, 0])[0]
}

/// The taps of the window that starts at `start` which are inside of an axis.
#[inline(always)]
fn inside(axis: &Axis, start: i32) -> (u32, u32) {
    let far = |taps: u32| if axis.dilation == 1 { taps } else { taps.div_ceil(axis.dilation) };
    let first = if start < 0 { far((-start) as u32) } else { 0 };
    let end = far((axis.len as i32 - start) as u32);
    (first, if end < axis.kernel { end } else { axis.kernel })
}

/// Two sums, of which elements of 32 bits use one.
type Sums = [f32; 2];

/// The sum of taps `first` to `end`: of two and two, from left to right, of which the first is even; those in front are zeros.
#[inline(always)]
fn pairs((first, end): (u32, u32), tap: impl Fn(u32) -> Sums) -> Sums {
    let plus = |a: Sums, b: Sums| [a[0] + b[0], a[1] + b[1]];
    let mut sum = [0.0; 2];
    let mut b = opaque(first);
    if b % 2 == 1 && b < end {
        sum = tap(b);
        b += 1;
    }
    while b + 3 < end {
        rolled();
        let taps: [Sums; 4] = core::array::from_fn(|i| tap(b + i as u32));
        sum = plus(plus(sum, plus(taps[0], taps[1])), plus(taps[2], taps[3]));
        b = opaque(b + 4);
    }
    if b + 1 < end {
        sum = plus(sum, plus(tap(b), tap(b + 1)));
        b += 2;
    }
    if b < end { plus(sum, tap(b)) } else { sum }
}

/// The maxima of taps `first` to `end`.
#[inline(always)]
fn maxima<E: Float>((first, end): (u32, u32), tap: impl Fn(u32) -> u32) -> u32 {
    let mut top = E::LOWEST;
    let mut b = opaque(first);
    while b + 3 < end {
        rolled();
        let taps: [u32; 4] = core::array::from_fn(|i| tap(b + i as u32));
        let halves = [larger::<E>(taps[0], taps[1]), larger::<E>(taps[2], taps[3])];
        top = larger::<E>(top, larger::<E>(halves[0], halves[1]));
        b = opaque(b + 4);
    }
    while b < end {
        rolled();
        top = larger::<E>(top, tap(b));
        b = opaque(b + 1);
    }
    top
}

/// The maxima of four windows side by side, the first of which starts at `start`, of taps up to `read`. Those outside have the value of the
/// nearest one inside, which is one of the window's: padding is at most half of it.
#[inline(always)]
fn run<E: Float>(
    axis: &Axis,
    start: i32,
    read: u32,
    tap: impl Fn(u32) -> u32,
) -> [u32; AXES_RUN as usize] {
    let near = |j: u32| {
        let place = (start + j as i32).max(0).min(read as i32 - 1);
        tap((place - start) as u32)
    };
    let (first, end) = inside(axis, start);
    let all = maxima::<E>((if first < 3 { 3 } else { first }, end), &tap);
    let front: [u32; 3] = core::array::from_fn(|j| near(j as u32));
    let behind: [u32; 3] = core::array::from_fn(|j| near(axis.kernel + j as u32));
    let (second, third) = (larger::<E>(front[1], front[2]), larger::<E>(behind[0], behind[1]));
    [
        larger::<E>(all, larger::<E>(front[0], second)),
        larger::<E>(all, larger::<E>(second, behind[0])),
        larger::<E>(all, larger::<E>(front[2], third)),
        larger::<E>(all, larger::<E>(third, behind[2])),
    ]
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::axes_of` for elements `E`; their pointers cover the
/// contract's table; `LAST` says whether channels are innermost.
#[inline(always)]
unsafe fn axes<E: Float, const AVG: bool, const LAST: bool>(args: &AxesArgs) {
    let (pool, h, w) = (&args.pool, &args.pool.h, &args.pool.w);
    let (rest, part) = if LAST { args.by_words.div_rem(block_idx_x()) } else { (block_idx_x(), 0) };
    let (rest, right) = args.by_across.div_rem(rest);
    let (group, down) = args.by_down.div_rem(rest);
    let (p0, q0) = (down * args.rows, right * args.columns);
    let (rows, columns) = (args.rows.min(h.out - p0), args.columns.min(w.out - q0));
    // What is read of an axis: the first one, and how many.
    let read = |axis: &Axis, from: u32, outputs: u32| {
        let first = axis.at(from, 0).max(0);
        let end = axis.at(from + outputs - 1, axis.kernel - 1) + 1;
        (first as u32, (end.min(axis.len as i32) - first).max(0) as u32)
    };
    let several = args.planes > 1;
    let (i0, deep) = if several { (0, h.len) } else { read(h, p0, rows) };
    let (j0, wide) = if LAST { read(w, q0, columns) } else { (0, w.len) };
    let planes = if LAST { pool.images } else { pool.images * pool.channels };
    let plane = group * args.planes;
    let planes = args.planes.min(planes - plane);
    let lines = planes * deep;
    // Words of channels of a pixel, of this tile, and those in front of it.
    let (all, words) = (pool.channels / (4 / size::<E>()), if LAST { args.words } else { 1 });
    let word0 = part * words;
    let bits = words.trailing_zeros();
    launch_dependents();
    dependency_wait();
    let held = dynamic_shared_mem::<u32>();
    let tensor = pool.x.as_ptr().cast_const();
    let start = u64::from(plane) * u64::from(h.len) + u64::from(i0);
    let mut first = held;
    if LAST {
        let x =
            tensor.cast::<u32>().wrapping_add((start * u64::from(w.len)) as usize * all as usize);
        let x = x.wrapping_add((j0 * all + word0) as usize);
        let mut i = thread_idx_x();
        while i < lines * wide << (bits - 2) {
            let (pixel, piece) = (i >> (bits - 2), i & ((words >> 2) - 1));
            let (line, column) = (pixel / wide, pixel % wide);
            let from = (line * w.len + column) as usize * all as usize + (piece * 4) as usize;
            // SAFETY: a piece of a pixel of the image; a place of this block.
            unsafe {
                let here = word0 + piece * 4 < all;
                copy_x16(held.add(i * 4), x.wrapping_add(if here { from } else { 0 }), here);
            }
            i += AXES_THREADS;
        }
    } else {
        let row = w.len * size::<E>();
        let x = tensor.wrapping_add((start * u64::from(row)) as usize);
        let shift = x as usize as u32 & 15;
        first = held.byte_add(shift);
        let x = x.wrapping_sub(shift as usize);
        let all = u64::from(pool.images) * u64::from(pool.channels) * u64::from(h.len);
        let tensor = tensor as usize..tensor as usize + (all * u64::from(row)) as usize;
        let mut at = thread_idx_x() * 16;
        while at < shift + lines * row {
            rolled();
            let from = x.wrapping_add(at as usize);
            // SAFETY: a piece of the tensor, or its elements; a place of this block.
            unsafe {
                if from as usize >= tensor.start && from as usize + 16 <= tensor.end {
                    copy_x16(held.byte_add(at), from, true);
                } else {
                    let mut i = 0;
                    while i < 16 {
                        rolled();
                        let from = from.wrapping_add(i as usize);
                        if tensor.contains(&(from as usize)) {
                            put::<E>(held.byte_add(at + i), E::load_bits_if(true, from.cast()));
                        }
                        i += size::<E>();
                    }
                }
            }
            at += AXES_THREADS * 16;
        }
    }
    commit_group();
    wait_group::<0>();
    sync_threads();
    let per = if LAST { 4 / size::<E>() } else { 1 };
    let top = if AVG { 4 * per } else { 4 };
    let tops = held.byte_add(args.tops);
    // Rows of windows.
    let step = w.dilation * if LAST { words * 4 } else { size::<E>() };
    let mut task = thread_idx_x();
    let runs = args.columns.div_ceil(args.across);
    while task < (lines * runs) << bits {
        rolled();
        let (rest, word) = (task >> bits, task & (words - 1));
        let (line, q) = args.by_runs.div_rem(rest);
        let q = q * args.across;
        let to = tops.byte_add((((line * args.columns + q) << bits) + word) * top);
        task += AXES_THREADS;
        if q >= columns {
            continue;
        }
        let start = w.at(q0 + q, 0);
        let place = (line * wide).wrapping_add_signed(start - j0 as i32);
        let at = first.byte_add(if LAST {
            (place * words).wrapping_add(word).wrapping_mul(4)
        } else {
            place.wrapping_mul(size::<E>())
        });
        let range = inside(w, start);
        let tap = |b: u32| {
            let at = at.byte_add(b.wrapping_mul(step));
            // SAFETY: a tap that has come.
            unsafe {
                if LAST || E::PIECE == 4 {
                    at.read()
                } else {
                    u32::from(at.cast::<u16>().read_u16())
                }
            }
        };
        // SAFETY: a place of this thread.
        unsafe {
            if AVG {
                let sum = pairs(range, |b| {
                    let values = E::widen([tap(b), 0, 0, 0]);
                    [values[0], if per == 2 { values[1] } else { 0.0 }]
                });
                if per == 2 {
                    to.cast::<f32>().write_x2(sum);
                } else {
                    to.cast::<f32>().write(sum[0]);
                }
            } else if LAST && opaque_here(args.across) > 1 {
                let values = run::<E>(w, start, j0 + wide, tap);
                let mut i = 0;
                while i < values.len() {
                    if q + (i as u32) < columns {
                        to.add((i as u32) << bits).write(values[i]);
                    }
                    i += 1;
                }
            } else {
                to.write(maxima::<E>(range, tap));
            }
        }
    }
    sync_threads();
    // Windows.
    let line = args.columns * words * top;
    let step = h.dilation * line;
    let padded = pool.count_include_pad == 1;
    let mut task = thread_idx_x();
    let runs = args.rows.div_ceil(args.down);
    while task < (planes * runs * args.columns) << bits {
        rolled();
        let (rest, word) = (task >> bits, task & (words - 1));
        let (rest, q) = args.by_columns.div_rem(rest);
        let (own, r) = args.by_rows.div_rem(rest);
        let r = r * args.down;
        task += AXES_THREADS;
        if q >= columns || r >= rows || word0 + word >= all && LAST {
            continue;
        }
        let start = h.at(p0 + r, 0);
        let from = (own * deep).wrapping_add_signed(start - i0 as i32);
        let at = tops.byte_add(from.wrapping_mul(line).wrapping_add(((q << bits) + word) * top));
        let range = inside(h, start);
        let place = (u64::from(plane + own) * u64::from(h.out) + u64::from(p0 + r))
            * u64::from(w.out)
            + u64::from(q0 + q);
        let y = pool.y.as_ptr();
        let word_of = |place: u64| {
            let y = y.cast::<u32>().wrapping_add(place as usize * all as usize);
            y.wrapping_add((word0 + word) as usize)
        };
        // SAFETY: rows of windows that are there.
        let top_at = |a: u32| unsafe { at.byte_add(a.wrapping_mul(step)).read() };
        if LAST && !AVG && opaque_here(args.down) > 1 {
            let values = run::<E>(h, start, i0 + deep, top_at);
            let mut i = 0;
            while i < values.len() {
                if r + (i as u32) < rows {
                    let to = word_of(place + i as u64 * u64::from(w.out));
                    // SAFETY: outputs of this thread.
                    unsafe { st(to, values[i]) };
                }
                i += 1;
            }
            continue;
        }
        let value = if AVG {
            let sum = pairs(range, |a| {
                let at = at.byte_add(a * step).cast::<f32>();
                // SAFETY: rows of windows that are there.
                unsafe { if per == 2 { at.read_x2() } else { [at.read(), 0.0] } }
            });
            let share = Share::of(h.taps(p0 + r, padded) * w.taps(q0 + q, padded));
            let second = if per == 2 { share.take(sum[1]) } else { 0.0 };
            E::narrow([share.take(sum[0]), second, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0]
        } else {
            maxima::<E>(range, top_at)
        };
        // SAFETY: an output of this thread.
        unsafe {
            if LAST {
                st(word_of(place), value);
            } else {
                E::store_bits(y.cast::<E>().wrapping_add(place as usize), value);
            }
        }
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $ty:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: AxesArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe {
                match (args.pool.average == 1, args.pool.channels_last == 1) {
                    (true, true) => axes::<$ty, true, true>(&args),
                    (true, false) => axes::<$ty, true, false>(&args),
                    (false, true) => axes::<$ty, false, true>(&args),
                    (false, false) => axes::<$ty, false, false>(&args),
                }
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_axes_f32 AxesF32 f32;
    pool2d_axes_f16 AxesF16 F16;
    pool2d_axes_bf16 AxesBf16 Bf16;
}
