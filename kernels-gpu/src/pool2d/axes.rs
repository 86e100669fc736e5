//! Windows of any kind, one axis after the other: what a tile of outputs reads comes to shared memory as it lies in memory, the maxima or sums of
//! the rows of windows go through it again ([`contract::pool2d::AxesArgs`]).

use contract::launch::Kernel;
use contract::pool2d::{
    AXES_RUN, AXES_THREADS, AxesArgs, AxesBf16, AxesF16, AxesF32, AxesLastBf16, AxesLastF16,
    AxesLastF32, Axis, Share, Walk, axes_item,
};

use super::plane_tile::{behind, bring_lines, size};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::{X4, st_x2, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::element::{Bf16, F16};
use crate::float::Float;

const RUN: usize = AXES_RUN as usize;

/// The larger of each two elements.
#[inline(always)]
fn larger<E: Float, const W: usize>(a: [u32; W], b: [u32; W]) -> [u32; W] {
    let word = |v: &[u32; W], i: usize| if i < W { v[i] } else { 0 };
    let wide = |v: &[u32; W]| -> X4<u32> { core::array::from_fn(|i| word(v, i)) };
    let top = E::max_raw(wide(&a), wide(&b));
    core::array::from_fn(|i| top[i])
}

/// The sum of each two.
#[inline(always)]
fn plus<const N: usize>(a: [f32; N], b: [f32; N]) -> [f32; N] {
    core::array::from_fn(|i| a[i] + b[i])
}

/// The taps of the window that starts at `start` which are inside of an axis.
#[inline(always)]
fn inside(axis: &Axis, start: i32) -> (u32, u32) {
    let far = |taps: u32| if axis.dilation == 1 { taps } else { taps.div_ceil(axis.dilation) };
    let first = if start < 0 { far((-start) as u32) } else { 0 };
    let end = far((axis.len as i32 - start) as u32);
    (first, if end < axis.kernel { end } else { axis.kernel })
}

/// The sum of taps `first` to `end`: of two and two, from left to right, of which the first is even; those in front are zeros.
#[inline(always)]
fn pairs<const N: usize>((first, end): (u32, u32), tap: impl Fn(u32) -> [f32; N]) -> [f32; N] {
    let mut sum = [0.0; N];
    let mut b = opaque(first);
    if b % 2 == 1 && b < end {
        sum = tap(b);
        b += 1;
    }
    while b + 3 < end {
        rolled();
        let taps: [[f32; N]; 4] = core::array::from_fn(|i| tap(b + i as u32));
        sum = plus(plus(sum, plus(taps[0], taps[1])), plus(taps[2], taps[3]));
        b = opaque(b + 4);
    }
    if b + 1 < end {
        sum = plus(sum, plus(tap(b), tap(b + 1)));
        b += 2;
    }
    if b < end { plus(sum, tap(b)) } else { sum }
}

/// The sums of four windows of `len` taps side by side, as of [`pairs`]: two neighbours are a pair of two of them. A tap outside is zero.
#[inline(always)]
fn four_sums<const N: usize>(len: u32, tap: impl Fn(u32) -> [f32; N]) -> [[f32; N]; RUN] {
    let mut sums = [[0.0; N]; RUN];
    let add = |sums: [[f32; N]; RUN], more: [[f32; N]; RUN]| -> [[f32; N]; RUN] {
        core::array::from_fn(|r| plus(sums[r], more[r]))
    };
    let four = |b: u32| -> [[f32; N]; RUN] { core::array::from_fn(|i| tap(b + i as u32)) };
    // What each of the next taps is with the one behind it, and the fifth.
    let [a, b, c, d] = four(0);
    let mut next = tap(4);
    let mut two = [plus(a, b), plus(b, c), plus(c, d), plus(d, next)];
    let mut b = opaque(0);
    while b + 4 <= len {
        rolled();
        let more = four(b + 5);
        sums = add(sums, two);
        let middle = [plus(next, more[0]), plus(more[0], more[1])];
        sums = add(sums, [two[2], two[3], middle[0], middle[1]]);
        two = [middle[0], middle[1], plus(more[1], more[2]), plus(more[2], more[3])];
        next = more[3];
        b = opaque(b + 4);
    }
    if b + 2 <= len {
        sums = add(sums, two);
        b = opaque(b + 2);
    }
    if b < len { add(sums, four(b)) } else { sums }
}

/// The sums or maxima (`of`) of four windows of `len` taps, two taps apart: two and two taps are a pair of all windows that they are part of. A
/// tap outside is `nothing`.
#[inline(always)]
fn four_apart<V: Copy>(
    len: u32,
    nothing: V,
    tap: impl Fn(u32) -> V,
    of: impl Fn(V, V) -> V,
) -> [V; RUN] {
    let mut values = [nothing; RUN];
    let pair = |b: u32| of(tap(b), tap(b + 1));
    let add = |values: [V; RUN], more: [V; RUN]| core::array::from_fn(|r| of(values[r], more[r]));
    let mut pairs: [V; RUN] = core::array::from_fn(|i| pair(2 * i as u32));
    let mut b = opaque(0);
    while b + 4 <= len {
        rolled();
        values = add(values, pairs);
        let next = pair(b + 8);
        values = add(values, [pairs[1], pairs[2], pairs[3], next]);
        pairs = [pairs[2], pairs[3], next, pair(b + 10)];
        b = opaque(b + 4);
    }
    if b + 2 <= len {
        values = add(values, pairs);
        b = opaque(b + 2);
    }
    if b < len { add(values, core::array::from_fn(|r| tap(b + 2 * r as u32))) } else { values }
}

/// The maxima of taps `first` to `end`.
#[inline(always)]
fn maxima<E: Float, const W: usize>(
    (first, end): (u32, u32),
    tap: impl Fn(u32) -> [u32; W],
) -> [u32; W] {
    let mut top = [E::LOWEST; W];
    let mut b = opaque(first);
    while b + 3 < end {
        rolled();
        let taps: [[u32; W]; 4] = core::array::from_fn(|i| tap(b + i as u32));
        let halves = [larger::<E, W>(taps[0], taps[1]), larger::<E, W>(taps[2], taps[3])];
        top = larger::<E, W>(top, larger::<E, W>(halves[0], halves[1]));
        b = opaque(b + 4);
    }
    while b < end {
        rolled();
        top = larger::<E, W>(top, tap(b));
        b = opaque(b + 1);
    }
    top
}

/// The maxima of four windows side by side, the first of which starts at `start`, of taps up to `read`. Those outside have the value of the
/// nearest one inside, which is one of the window's: padding is at most half of it.
#[inline(always)]
fn four_maxima<E: Float, const W: usize>(
    axis: &Axis,
    start: i32,
    read: u32,
    tap: impl Fn(u32) -> [u32; W],
) -> [[u32; W]; RUN] {
    let near = |j: u32| {
        let place = (start + j as i32).max(0).min(read as i32 - 1);
        tap((place - start) as u32)
    };
    let (first, end) = inside(axis, start);
    let all = maxima::<E, W>((if first < 3 { 3 } else { first }, end), &tap);
    let front: [[u32; W]; 3] = core::array::from_fn(|j| near(j as u32));
    let behind: [[u32; W]; 3] = core::array::from_fn(|j| near(axis.kernel + j as u32));
    let (second, third) =
        (larger::<E, W>(front[1], front[2]), larger::<E, W>(behind[0], behind[1]));
    [
        larger::<E, W>(all, larger::<E, W>(front[0], second)),
        larger::<E, W>(all, larger::<E, W>(second, behind[0])),
        larger::<E, W>(all, larger::<E, W>(front[2], third)),
        larger::<E, W>(all, larger::<E, W>(third, behind[2])),
    ]
}

/// `W` words.
///
/// # Safety
///
/// They have come to shared memory, aligned to their size.
#[inline(always)]
unsafe fn words<const W: usize>(at: Shared<u32>) -> [u32; W] {
    let mut out = [0; W];
    // SAFETY: the caller's promise.
    unsafe {
        match W {
            4 => out.copy_from_slice(&at.read_x4()),
            2 => out.copy_from_slice(&at.read_x2()),
            _ => out[0] = at.read(),
        }
    }
    out
}

/// Writes `W` words.
///
/// # Safety
///
/// A place of this thread in shared memory, aligned to their size.
#[inline(always)]
unsafe fn put_words<const W: usize>(to: Shared<u32>, value: [u32; W]) {
    // SAFETY: the caller's promise.
    unsafe {
        match W {
            4 => to.write_x4(core::array::from_fn(|i| value[i])),
            2 => to.write_x2(core::array::from_fn(|i| value[i])),
            _ => to.write(value[0]),
        }
    }
}

/// The first item and line of this thread; no item where it has none.
#[inline(always)]
fn place(walk: &Walk) -> (u32, u32) {
    let (line, item) = walk.by.div_rem(thread_idx_x());
    (line, if line < walk.lines { item } else { u32::MAX })
}

/// A thread has items of `W` words of the images, or the sums of `N` elements, which are neighbouring channels where those are innermost (`LAST`).
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the arguments of `contract::pool2d::axes_of` for elements `E`; their pointers cover the
/// contract's table.
#[inline(always)]
unsafe fn axes<E: Float, const AVG: bool, const LAST: bool, const W: usize, const N: usize>(
    args: &AxesArgs,
) {
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
    let (i0, deep) = if args.planes > 1 { (0, h.len) } else { read(h, p0, rows) };
    let (j0, wide) = if LAST { read(w, q0, columns) } else { (0, w.len) };
    let planes = if LAST { pool.images } else { pool.images * pool.channels };
    let plane = group * args.planes;
    let planes = args.planes.min(planes - plane);
    let lines = planes * deep;
    // Words of channels of a pixel, those in front of this tile, and items of its.
    let all = pool.channels / (4 / size::<E>());
    let word0 = part * args.words;
    let items = if LAST { args.words / W as u32 } else { 1 };
    let bits = items.trailing_zeros();
    launch_dependents();
    dependency_wait();
    let held = dynamic_shared_mem::<u32>();
    let mut first = held;
    // Bytes of a line that has come.
    let mut line = w.len * size::<E>();
    if LAST {
        let start = (u64::from(plane) * u64::from(h.len) + u64::from(i0)) * u64::from(w.len);
        let x = pool.x.cast::<u32>().as_ptr().cast_const();
        let x = x.wrapping_add((start + u64::from(j0)) as usize * all as usize + word0 as usize);
        line = wide * args.words * 4;
        let bits = (args.words / 4).trailing_zeros();
        let (start, mut i) = place(&args.bring);
        while i < wide << bits {
            let (column, piece) = (i >> bits, i & ((1 << bits) - 1));
            let here = word0 + piece * 4 < all;
            let offset = if here { column * all + piece * 4 } else { 0 };
            let row = (w.len * all) as usize;
            let mut from = x.wrapping_add(offset as usize).wrapping_add(start as usize * row);
            let mut to = held.byte_add(start * line + i * 16);
            let mut l = start;
            while l < lines {
                rolled();
                // SAFETY: a piece of a pixel of the image; a place of this block.
                unsafe { copy_x16(to, from, here) };
                l += args.bring.lines;
                from = from.wrapping_add(args.bring.lines as usize * row);
                to = to.byte_add(args.bring.lines * line);
            }
            i += args.bring.at_once;
        }
    } else {
        let start = u64::from(plane) * u64::from(h.len) + u64::from(i0);
        // SAFETY: handed on.
        unsafe { bring_lines::<E>(pool, [start, u64::from(lines)], held, AXES_THREADS) };
        first = held.byte_add(behind::<E>(pool, start));
    }
    commit_group();
    wait_group::<0>();
    sync_threads();
    let top = if AVG { 4 * N as u32 } else { 4 * W as u32 };
    let tops = held.byte_add(args.tops);
    // Rows of windows.
    let apart = if AVG { 1 } else { w.dilation };
    let tap_bytes = apart * if LAST { args.words * 4 } else { size::<E>() };
    let (start, mut i) = place(&args.first);
    while i < columns.div_ceil(args.across) << bits {
        let (q, item) = ((i >> bits) * args.across, i & (items - 1));
        let begin = w.at(q0 + q, 0);
        // From the first column that has come.
        let from = begin - j0 as i32;
        let column = from as u32 * if LAST { args.words * 4 } else { size::<E>() };
        let mut at = first.byte_add(start * line);
        at = at.byte_add(column.wrapping_add(item * (4 * W as u32)));
        let mut to = tops.byte_add(start * args.pitch + ((q << bits) + item) * top);
        let range = inside(w, begin);
        let mut l = start;
        while l < lines {
            rolled();
            let tap = |b: u32| -> [u32; W] {
                let at = at.byte_add(b.wrapping_mul(tap_bytes));
                // SAFETY: a tap that has come.
                unsafe {
                    if LAST || E::PIECE == 4 {
                        words(at)
                    } else {
                        [u32::from(at.cast::<u16>().read_u16()); W]
                    }
                }
            };
            let values = |raw: [u32; W]| -> [f32; N] {
                let wide = E::widen(core::array::from_fn(|i| if i < W { raw[i] } else { 0 }));
                core::array::from_fn(|i| wide[i])
            };
            // SAFETY: places of this thread.
            unsafe {
                let there = |b: u32| (from as u32).wrapping_add(b) < wide;
                if AVG && opaque_here(args.across) > 1 {
                    let tap = |b: u32| if there(b) { values(tap(b)) } else { [0.0; N] };
                    let sums = if w.stride == 1 {
                        four_sums(w.kernel, tap)
                    } else {
                        four_apart(w.kernel, [0.0; N], tap, plus)
                    };
                    if LAST {
                        let mut r = 0;
                        while r < RUN {
                            let to = to.byte_add((r as u32 * top) << bits);
                            put_words(to, sums[r].map(f32::to_bits));
                            r += 1;
                        }
                    } else {
                        to.write_x4(sums.map(|sum| sum[0].to_bits()));
                    }
                } else if AVG {
                    put_words(to, pairs(range, |b| values(tap(b))).map(f32::to_bits));
                } else if opaque_here(args.across) > 1 {
                    let tops = if w.stride == 1 {
                        four_maxima::<E, W>(w, begin, j0 + wide, tap)
                    } else {
                        let nothing = [E::LOWEST; W];
                        let tap = |b: u32| if there(b) { tap(b) } else { nothing };
                        four_apart(w.kernel, nothing, tap, larger::<E, W>)
                    };
                    let mut r = 0;
                    while r < RUN {
                        put_words(to.byte_add((r as u32 * top) << bits), tops[r]);
                        r += 1;
                    }
                } else {
                    put_words(to, maxima::<E, W>(range, tap));
                }
            }
            l += args.first.lines;
            at = at.byte_add(args.first.lines * line);
            to = to.byte_add(args.first.lines * args.pitch);
        }
        i += args.first.at_once;
    }
    sync_threads();
    // Windows.
    let tap_bytes = if AVG { 1 } else { h.dilation } * args.pitch;
    let padded = pool.count_include_pad == 1;
    let runs = args.rows.div_ceil(args.down);
    let (start, mut i) = place(&args.second);
    while i < columns << bits {
        let (q, item) = (i >> bits, i & (items - 1));
        let word = word0 + item * W as u32;
        let across = if AVG { w.taps(q0 + q, padded) } else { 1 };
        let full = Share::of(across * h.kernel);
        let own = (u64::from(plane) * u64::from(h.out) + u64::from(p0)) * u64::from(w.out);
        let own = (own + u64::from(q0 + q)) as usize;
        // There may be none behind the last channel.
        let mut l = if LAST && word >= all { u32::MAX } else { start };
        while l < planes * runs {
            rolled();
            let (own_plane, r) = args.by_rows.div_rem(l);
            let r = r * args.down;
            l += args.second.lines;
            if r >= rows {
                continue;
            }
            let begin = h.at(p0 + r, 0);
            // From the first row that has come.
            let from = begin - i0 as i32;
            let at = (own_plane * deep).wrapping_add_signed(from).wrapping_mul(args.pitch);
            let at = tops.byte_add(at).byte_add(i * top);
            let range = inside(h, begin);
            let place = own + ((own_plane * h.out + r) * w.out) as usize;
            let write = |r: u32, value: [u32; W]| {
                let place = place + (r * w.out) as usize;
                // SAFETY: an output of this thread.
                unsafe {
                    if LAST {
                        let y = pool.y.cast::<u32>().as_ptr();
                        let to = y.wrapping_add(place * all as usize + word as usize);
                        match W {
                            4 => st_x4(to.cast(), core::array::from_fn(|i| value[i])),
                            _ => st_x2(to.cast(), [value[0], value[W - 1]]),
                        }
                    } else {
                        E::store_bits(pool.y.cast::<E>().as_ptr().wrapping_add(place), value[0]);
                    }
                }
            };
            // SAFETY: rows of windows that are there.
            let row = |a: u32| unsafe { words::<W>(at.byte_add(a.wrapping_mul(tap_bytes))) };
            // SAFETY: the same.
            let sum_row = |a: u32| unsafe {
                words::<N>(at.byte_add(a.wrapping_mul(tap_bytes))).map(f32::from_bits)
            };
            let finish =
                |v: u32, sum: [f32; N]| {
                    let down = h.taps(p0 + r + v, padded);
                    let share = if down == h.kernel { full } else { Share::of(across * down) };
                    let raw = E::narrow(core::array::from_fn(|i| {
                        if i < N { share.take(sum[i]) } else { 0.0 }
                    }));
                    write(v, core::array::from_fn(|i| raw[i]));
                };
            if opaque_here(args.down) > 1 {
                let there = |a: u32| (from as u32).wrapping_add(a) < deep;
                if AVG {
                    let row = |a: u32| if there(a) { sum_row(a) } else { [0.0; N] };
                    let sums = if h.stride == 1 {
                        four_sums(h.kernel, row)
                    } else {
                        four_apart(h.kernel, [0.0; N], row, plus)
                    };
                    let mut v = 0;
                    while v < RUN {
                        if r + (v as u32) < rows {
                            finish(v as u32, sums[v]);
                        }
                        v += 1;
                    }
                } else {
                    let values = if h.stride == 1 {
                        four_maxima::<E, W>(h, begin, i0 + deep, row)
                    } else {
                        let nothing = [E::LOWEST; W];
                        let row = |a: u32| if there(a) { row(a) } else { nothing };
                        four_apart(h.kernel, nothing, row, larger::<E, W>)
                    };
                    let mut v = 0;
                    while v < RUN {
                        if r + (v as u32) < rows {
                            write(v as u32, values[v]);
                        }
                        v += 1;
                    }
                }
            } else if AVG {
                finish(0, pairs(range, sum_row));
            } else {
                write(0, maxima::<E, W>(range, row));
            }
        }
        i += args.second.at_once;
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $ty:ty, $last:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: AxesArgs) {
            const SUMS: usize = if $last { 4 } else { 1 };
            const WORDS: usize = if $last { axes_item(1, size::<$ty>()) as usize } else { 1 };
            // SAFETY: the launch contract, handed on.
            unsafe {
                if args.pool.average == 1 {
                    axes::<$ty, true, $last, WORDS, SUMS>(&args);
                } else {
                    axes::<$ty, false, $last, SUMS, 1>(&args);
                }
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_axes_f32 AxesF32 f32, false;
    pool2d_axes_f16 AxesF16 F16, false;
    pool2d_axes_bf16 AxesBf16 Bf16, false;
    pool2d_axes_last_f32 AxesLastF32 f32, true;
    pool2d_axes_last_f16 AxesLastF16 F16, true;
    pool2d_axes_last_bf16 AxesLastBf16 Bf16, true;
}
