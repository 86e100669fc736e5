//! Windows over images: a thread makes four outputs below each other, of one channel or of one piece of
//! channels.

use contract::pool2d::{Args, Axis, ROWS, Share};

use super::item::{load_item, map, store_item};
use super::{BATCH, divide, thread};
use crate::arch::mem::X4;
use crate::arch::thread::{opaque, opaque_u64};
use crate::float::{Float, Piece};

/// Whether a place lies on an axis.
#[inline(always)]
fn on(axis: &Axis, place: i32) -> bool {
    // Negative places are large numbers.
    (place as u32) < axis.len
}

/// Axes, and an output on them.
type At<'a> = ((&'a Axis, &'a Axis), (u32, u32));

/// The taps of a row of a window of `K` columns, or of all of its rows.
type Taps<const K: usize> = [X4<u32>; K];

/// Windows of `K` by `K` neighbouring taps, `AT_ONCE` of them one below the other, whose taps are all asked for before one is worked on. `S`
/// rows apart they share rows, which are read once; with 0 they may be any distance apart, and share none.
///
/// `tap(inside, offset)` reads the item that many elements from the first of the image. Taps outside of the image are zeros
/// for averages. For maxima they are the nearest ones inside, which every window has: padding is at most half of it.
/// `each(oh, value)` has the outputs.
#[inline(always)]
fn square<
    E: Float,
    const LEN: usize,
    const AVG: bool,
    const K: usize,
    const S: usize,
    const AT_ONCE: usize,
>(
    args: &Args,
    out: &Outputs,
    tap: impl Fn(bool, isize) -> X4<u32>,
    mut each: impl FnMut(u32, X4<u32>),
) {
    const { assert!(K >= 1 && K <= 3 && AT_ONCE <= 4) };
    let (h, w) = (&args.h, &args.w);
    let left = w.at(out.ow, 0);
    let column = |b: usize| {
        let j = left + b as i32;
        // Of averages one step after the other, which takes fewer registers.
        let place = if AVG { left } else { j.max(0).min(w.len as i32 - 1) };
        (!AVG || on(w, j), place as isize * out.step)
    };
    let columns: [(bool, isize); K] = core::array::from_fn(column);
    let pitch = w.len as isize * out.step;
    let row = |i: i32| -> Taps<K> {
        let inside = !AVG || on(h, i);
        let first = if AVG { i } else { i.max(0).min(h.len as i32 - 1) } as isize * pitch;
        core::array::from_fn(|b| {
            let step = if AVG { b as isize * out.step } else { 0 };
            tap(inside && columns[b].0, first + columns[b].1 + step)
        })
    };
    // Anew for each output: what comes of the padding would take registers in between.
    let count = |oh: u32| {
        let padded = opaque(args.count_include_pad) == 1;
        h.taps(oh, padded) * w.taps(out.ow, padded)
    };
    // Where row `a` of window `g` is among those that are asked for.
    let place = |g: usize, a: usize| if S == 0 { g * K + a } else { g * S + a };
    let mut oh = out.rows.start;
    while oh < out.rows.end {
        let mut rows = [[[0; 4]; K]; 12];
        let mut g = 0;
        while g < AT_ONCE {
            // Those behind the last output have the rows of that.
            let last =
                if oh + (g as u32) < out.rows.end { oh + g as u32 } else { out.rows.end - 1 };
            let mut a = 0;
            while a < K {
                if S == 0 || g == 0 || a + S >= K {
                    rows[place(g, a)] = row(h.at(last, a as u32));
                }
                a += 1;
            }
            g += 1;
        }
        let mut g = 0;
        while g < AT_ONCE {
            let here = oh + g as u32;
            if here < out.rows.end {
                let window: [Taps<K>; K] = core::array::from_fn(|a| rows[place(g, a)]);
                each(
                    here,
                    if AVG {
                        average::<E, LEN, K>(&window, count(here))
                    } else {
                        let mut top = window[0][0];
                        // One tap with itself: every NaN becomes the one quiet NaN.
                        let mut tap = if K == 1 { 0 } else { 1 };
                        while tap < K * K {
                            top = E::max_raw(top, window[tap / K][tap % K]);
                            tap += 1;
                        }
                        top
                    },
                );
            }
            g += 1;
        }
        oh = opaque(oh + AT_ONCE as u32);
    }
}

/// The sums of a row of a window.
#[inline(always)]
fn row_sums<E: Float, const LEN: usize, const K: usize>(taps: &Taps<K>) -> Piece {
    let values = taps.map(E::widen);
    map::<LEN>([0.0; 8], |i, _| {
        let mut sum = values[0][i];
        let mut b = 1;
        while b < K {
            sum += values[b][i];
            b += 1;
        }
        sum
    })
}

/// The averages, of sums.
#[inline(always)]
fn shares<E: Float, const LEN: usize>(sums: Piece, count: u32) -> X4<u32> {
    let share = Share::of(count);
    E::narrow(map::<LEN>(sums, |_, sum| share.take(sum)))
}

/// The averages of a window of `count` taps.
#[inline(always)]
fn average<E: Float, const LEN: usize, const K: usize>(
    window: &[Taps<K>; K],
    count: u32,
) -> X4<u32> {
    let mut sums = row_sums::<E, LEN, K>(&window[0]);
    let mut a = 1;
    while a < K {
        let row = row_sums::<E, LEN, K>(&window[a]);
        sums = map::<LEN>(sums, |i, sum| sum + row[i]);
        a += 1;
    }
    shares::<E, LEN>(sums, count)
}

/// Averages of windows of `K` by `K` neighbouring taps, `S` rows apart: the sums of a row are made once for all windows that it is part of. A
/// row is asked for before the one in front of it is worked on.
#[inline(always)]
fn averages<E: Float, const LEN: usize, const K: usize, const S: usize>(
    args: &Args,
    out: &Outputs,
    tap: impl Fn(bool, isize) -> X4<u32>,
    mut each: impl FnMut(u32, X4<u32>),
) {
    let (h, w) = (&args.h, &args.w);
    let (left, top) = (w.at(out.ow, 0), h.at(out.rows.start, 0));
    let columns: [bool; K] = core::array::from_fn(|b| on(w, left + b as i32));
    let first = (top as isize * w.len as isize + left as isize) * out.step;
    let row = |a: usize| -> Taps<K> {
        let inside = on(h, top + a as i32);
        let first = first + a as isize * w.len as isize * out.step;
        core::array::from_fn(|b| tap(inside && columns[b], first + b as isize * out.step))
    };
    let padded = opaque(args.count_include_pad) == 1;
    let across = w.taps(out.ow, padded);
    let outputs = ROWS as usize;
    let lines = (outputs - 1) * S + K;
    let mut sums = [[0.0; 8]; ROWS as usize];
    let mut next = row(0);
    let mut a = 0;
    while a < lines {
        let here = next;
        if a + 1 < lines {
            next = row(a + 1);
        }
        let values = row_sums::<E, LEN, K>(&here);
        let mut g = 0;
        while g < outputs {
            if a == g * S {
                sums[g] = values;
            } else if a > g * S && a - g * S < K {
                sums[g] = map::<LEN>(sums[g], |i, sum| sum + values[i]);
            }
            if a == g * S + K - 1 {
                let oh = out.rows.start + g as u32;
                if oh >= out.rows.end {
                    return;
                }
                each(oh, shares::<E, LEN>(sums[g], h.taps(oh, padded) * across));
            }
            g += 1;
        }
        a += 1;
    }
}

/// Windows of any size, in batches of taps: the outputs of `LEN` channels. `load(inside, offset)` reads them at a tap, zeros or minus
/// infinities outside of the image.
#[inline(always)]
fn any<E: Float, const LEN: usize, const AVG: bool>(
    ((h, w), (oh, ow)): At<'_>,
    (row, column): (isize, isize),
    count: &dyn Fn() -> u32,
    load: impl Fn(bool, isize) -> X4<u32>,
) -> Piece {
    // Four channels leave no registers for more.
    let at_once = if LEN < 4 { BATCH } else { BATCH / 2 };
    // Of the pairs of rows so far, of the row in front of this one, and of this one; the first of two taps.
    let mut sums: Piece = [0.0; 8];
    let (mut above, mut line, mut one): (Piece, Piece, Piece) = ([0.0; 8], [0.0; 8], [0.0; 8]);
    let (mut second, mut second_row) = (false, false);
    let mut top = [E::LOWEST; 4];
    let (mut i, left) = (h.at(oh, 0), w.at(ow, 0));
    let down = i + (h.kernel * h.dilation) as i32;
    let start = left as isize * column;
    let (steps, right) = (row * h.dilation as isize, column * w.dilation as isize);
    let mut from = i as isize * row;
    let (mut j, mut at, mut b) = (left, start, 0);
    while i < down {
        let mut raw = [[0; 4]; BATCH];
        let mut ends = [false; BATCH];
        let mut u = 0;
        while u < at_once {
            raw[u] = load(i < down && on(h, i) && on(w, j), from + at);
            (b, j, at) = (b + 1, j + w.dilation as i32, at + right);
            if b == w.kernel {
                (b, j, at) = (0, left, start);
                (i, from) = (i + h.dilation as i32, from + steps);
                ends[u] = true;
            }
            u += 1;
        }
        let mut u = 0;
        while u < at_once {
            if AVG {
                // Zeros leave a sum from zero up as it is.
                let values = E::widen(raw[u]);
                if second || ends[u] {
                    // A tap without a second one is as it is.
                    let pair = map::<LEN>(values, |i, v| if second { one[i] + v } else { v });
                    line = map::<LEN>(line, |i, sum| sum + pair[i]);
                }
                one = values;
                second = !second && !ends[u];
                if ends[u] {
                    if second_row {
                        sums = map::<LEN>(sums, |i, sum| sum + (above[i] + line[i]));
                    }
                    (above, line) = (line, [0.0; 8]);
                    second_row = !second_row;
                }
            } else {
                top = E::max_raw(top, raw[u]);
            }
            u += 1;
        }
        j = opaque(j as u32) as i32;
    }
    if AVG {
        let share = Share::of(count());
        // `second_row`: the last one is alone.
        map::<LEN>(sums, |i, sum| share.take(if second_row { sum + above[i] } else { sum }))
    } else {
        E::widen(top)
    }
}

/// The place of a thread's outputs.
struct Outputs {
    /// Image and channel, or image alone where channels are innermost.
    plane: usize,
    /// First channel, counted from the plane's.
    channel: usize,
    /// Rows of outputs.
    rows: core::ops::Range<u32>,
    /// Column of outputs.
    ow: u32,
    /// Elements from column to column.
    step: isize,
}

/// The outputs of this thread, unless there are none left.
#[inline(always)]
fn outputs(args: &Args) -> Option<Outputs> {
    let (h, w) = (&args.h, &args.w);
    let last = args.channels_last == 1;
    let (rest, piece) =
        if last { divide(thread(), args.channels / args.piece) } else { (thread(), 0) };
    let (rest, ow) = divide(rest, w.out);
    let (plane, group) = divide(rest, h.out.div_ceil(ROWS));
    let planes = if last { 1 } else { u64::from(args.channels) } * u64::from(args.images);
    if plane >= planes {
        return None;
    }
    let first = group * ROWS;
    let end = if h.out - first < ROWS { h.out } else { first + ROWS };
    Some(Outputs {
        plane: plane as usize,
        channel: (piece * args.piece) as usize,
        rows: first..end,
        ow,
        step: if last { args.channels as isize } else { 1 },
    })
}

/// Runs `body(oh, steps, count)` for each output of this thread; `count` says how many taps it has.
#[inline(always)]
fn each_row<const AVG: bool>(
    args: &Args,
    out: &Outputs,
    mut body: impl FnMut(u32, (isize, isize), &dyn Fn() -> u32),
) {
    let (h, w) = (&args.h, &args.w);
    let mut oh = out.rows.start;
    while oh < out.rows.end {
        // Anew in each turn: offsets of all taps would take more registers than there are.
        let column = opaque_u64(out.step as u64) as isize;
        body(oh, (w.len as isize * column, column), &|| {
            let (padded, ow) = (opaque(args.count_include_pad) == 1, opaque(out.ow));
            if AVG { h.taps(oh, padded) * w.taps(ow, padded) } else { 1 }
        });
        oh = opaque(oh + 1);
    }
}

/// The first channel of this thread in its image.
#[inline(always)]
fn image<E>(args: &Args, out: &Outputs) -> *const E {
    let image = args.h.len as usize * args.w.len as usize * out.step as usize;
    args.x.cast::<E>().as_ptr().cast_const().wrapping_add(out.plane * image + out.channel)
}

/// `LEN` channels a thread.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's, with items of `LEN`
/// channels: where that is more than one, channels are innermost, and each item is aligned to its size.
#[inline(always)]
pub(super) unsafe fn windows<E: Float, const LEN: usize, const AVG: bool>(args: &Args) {
    let Some(out) = outputs(args) else { return };
    let x = image::<E>(args, &out);
    // The output in row 0: one pointer instead of all that it comes from.
    let place = out.plane * args.h.out as usize * args.w.out as usize + out.ow as usize;
    let y = args.y.cast::<E>().as_ptr().wrapping_add(place * out.step as usize + out.channel);
    // SAFETY: an item of the image.
    let tap =
        |inside: bool, i: isize| unsafe { load_item::<E, LEN>(inside, x.wrapping_offset(i), 0) };
    let output = |oh: u32| {
        let step = if args.channels_last == 1 { args.channels } else { 1 };
        y.wrapping_add(opaque(oh) as usize * args.w.out as usize * step as usize)
    };
    // SAFETY: an output of this thread.
    let store = |oh: u32, value: X4<u32>| unsafe { store_item::<E, LEN>(output(oh), value) };
    let near = args.h.dilation == 1 && args.w.dilation == 1;
    match (args.h.kernel, args.w.kernel) {
        (3, 3) if near && args.h.stride == 1 && AVG => {
            averages::<E, LEN, 3, 1>(args, &out, tap, store)
        }
        // Of `f32` all taps of two outputs at once are faster.
        (3, 3) if near && args.h.stride == 2 && AVG && E::PIECE == 8 => {
            averages::<E, LEN, 3, 2>(args, &out, tap, store)
        }
        // Of more channels there are no registers for as many rows.
        (3, 3) if near && args.h.stride == 1 && E::PIECE == 8 && LEN > 1 => {
            square::<E, LEN, AVG, 3, 1, 2>(args, &out, tap, store)
        }
        (3, 3) if near && args.h.stride == 1 => {
            square::<E, LEN, AVG, 3, 1, 4>(args, &out, tap, store)
        }
        (3, 3) if near && args.h.stride == 2 && LEN == 8 => {
            square::<E, LEN, AVG, 3, 2, 1>(args, &out, tap, store)
        }
        (3, 3) if near && args.h.stride == 2 => {
            square::<E, LEN, AVG, 3, 2, 2>(args, &out, tap, store)
        }
        (3, 3) if near && E::PIECE == 8 && LEN > 1 => {
            square::<E, LEN, AVG, 3, 0, 1>(args, &out, tap, store)
        }
        (3, 3) if near => square::<E, LEN, AVG, 3, 0, 2>(args, &out, tap, store),
        (2, 2) if near && E::PIECE == 8 && LEN > 1 => {
            square::<E, LEN, AVG, 2, 0, 2>(args, &out, tap, store)
        }
        (2, 2) if near => square::<E, LEN, AVG, 2, 0, 4>(args, &out, tap, store),
        (1, 1) => square::<E, LEN, AVG, 1, 0, 4>(args, &out, tap, store),
        _ => each_row::<AVG>(args, &out, |oh, steps, count| {
            let at = ((&args.h, &args.w), (oh, out.ow));
            let nothing = if AVG { 0 } else { E::LOWEST };
            // Of eight channels the partials would fill the registers, and the host launches another kernel; of four of 16 bits two
            // go at a time.
            if LEN == 4 && E::PIECE == 8 {
                let mut half = 0;
                while half < 2 {
                    let x = x.wrapping_add(2 * half);
                    // SAFETY: half an item of the image, and of the outputs.
                    unsafe {
                        let tap = |inside: bool, i: isize| {
                            load_item::<E, 2>(inside, x.wrapping_offset(i), nothing)
                        };
                        let value = E::narrow(any::<E, 2, AVG>(at, steps, count, tap));
                        store_item::<E, 2>(output(oh).wrapping_add(2 * half), value);
                    }
                    half += 1;
                }
            } else if LEN < 8 {
                // SAFETY: an item of the image.
                let tap = |inside: bool, i: isize| unsafe {
                    load_item::<E, LEN>(inside, x.wrapping_offset(i), nothing)
                };
                store(oh, E::narrow(any::<E, LEN, AVG>(at, steps, count, tap)));
            }
        }),
    }
}
