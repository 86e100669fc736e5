//! Windows over images: a thread makes four outputs below each other, of one channel or of one piece of
//! channels.

use contract::num::{abs_bits, fma, reciprocal, tree8};
use contract::pool2d::{Args, Axis, ROWS};

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

/// The averages of a window, divided by `count`.
#[inline(always)]
fn average<E: Float, const LEN: usize, const K: usize>(
    window: &[Taps<K>; K],
    count: u32,
) -> X4<u32> {
    let sums = map::<LEN>([0.0; 8], |i, _| {
        let tap = |t: usize| E::widen(window[t / K][t % K])[i];
        // As `tree8`, without what is zero; a sum from zero up is never minus zero.
        let first = 0.0 + tap(0);
        if K == 1 {
            first
        } else if K == 2 {
            (first + tap(2 % (K * K))) + (tap(1 % (K * K)) + tap(3 % (K * K)))
        } else {
            let (low, high) = (first + tap(8 % (K * K)), tap(4 % (K * K)));
            let t = |t: usize| tap(t % (K * K));
            ((low + high) + (t(2) + t(6))) + ((t(1) + t(5)) + (t(3) + t(7)))
        }
    });
    E::narrow(divide_all::<LEN>(sums, count as f32))
}

/// `sums / count`, each rounded as by a division: by the reciprocal where that is certain.
#[inline(always)]
pub(super) fn divide_all<const LEN: usize>(sums: Piece, count: f32) -> Piece {
    if LEN == 1 {
        return map::<LEN>(sums, |_, s| s / count);
    }
    divide_by::<LEN>(sums, count, reciprocal(count))
}

/// The same, given the rounded reciprocal.
#[inline(always)]
pub(super) fn divide_by<const LEN: usize>(sums: Piece, count: f32, r: f32) -> Piece {
    // Away from the ends of the range of exponents a quotient from the rounded reciprocal and its exact remainder is
    // the rounded one (Markstein, 1990).
    let (mut least, mut most) = (u32::MAX, 0);
    let quotients = map::<LEN>(sums, |_, s| {
        let magnitude = abs_bits(s);
        // Zero is certain too: less one it is the largest number.
        least = least.min(magnitude.wrapping_sub(1));
        most = most.max(magnitude);
        let q = s * r;
        fma(fma(-q, count, s), r, q)
    });
    let certain = least >= (27 << 23) - 1 && most < 247 << 23;
    if certain { quotients } else { map::<LEN>(sums, |_, s| s / count) }
}

/// Windows of any size, in batches of taps: the outputs of `LEN` channels. `load(inside, offset)` reads them at a tap, zeros or minus
/// infinities outside of the image.
#[inline(always)]
fn any<E: Float, const LEN: usize, const AVG: bool>(
    ((h, w), (oh, ow)): At<'_>,
    (row, column): (isize, isize),
    count: &dyn Fn() -> f32,
    load: impl Fn(bool, isize) -> X4<u32>,
) -> Piece {
    // The partials of four channels leave no registers for more.
    let at_once = if LEN < 4 { BATCH } else { BATCH / 2 };
    let mut sums: [Piece; BATCH] = [[0.0; 8]; BATCH];
    let mut top = [E::LOWEST; 4];
    let (mut i, left) = (h.at(oh, 0), w.at(ow, 0));
    let down = i + (h.kernel * h.dilation) as i32;
    let start = left as isize * column;
    let (steps, right) = (row * h.dilation as isize, column * w.dilation as isize);
    let mut from = i as isize * row;
    let (mut j, mut at, mut b) = (left, start, 0);
    while i < down {
        let mut first = 0;
        while first < BATCH {
            let mut raw = [[0; 4]; BATCH];
            let mut u = 0;
            while u < at_once {
                raw[u] = load(i < down && on(h, i) && on(w, j), from + at);
                (b, j, at) = (b + 1, j + w.dilation as i32, at + right);
                if b == w.kernel {
                    (b, j, at) = (0, left, start);
                    (i, from) = (i + h.dilation as i32, from + steps);
                }
                u += 1;
            }
            let mut u = 0;
            while u < at_once {
                if AVG {
                    // Zeros leave a sum from zero up as it is.
                    let values = E::widen(raw[u]);
                    sums[first + u] = map::<LEN>(sums[first + u], |i, sum| sum + values[i]);
                } else {
                    top = E::max_raw(top, raw[u]);
                }
                u += 1;
            }
            first += at_once;
        }
        j = opaque(j as u32) as i32;
    }
    if AVG {
        let count = count();
        map::<LEN>([0.0; 8], |i, _| tree8(core::array::from_fn(|slot| sums[slot][i])) / count)
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
    mut body: impl FnMut(u32, (isize, isize), &dyn Fn() -> f32),
) {
    let (h, w) = (&args.h, &args.w);
    let mut oh = out.rows.start;
    while oh < out.rows.end {
        // Anew in each turn: offsets of all taps would take more registers than there are.
        let column = opaque_u64(out.step as u64) as isize;
        body(oh, (w.len as isize * column, column), &|| {
            let (padded, ow) = (opaque(args.count_include_pad) == 1, opaque(out.ow));
            if AVG { (h.taps(oh, padded) * w.taps(ow, padded)) as f32 } else { 1.0 }
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
        // Of more channels there are no registers for as many rows.
        (3, 3) if near && args.h.stride == 1 && LEN == 8 && AVG => {
            square::<E, LEN, AVG, 3, 1, 1>(args, &out, tap, store)
        }
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
