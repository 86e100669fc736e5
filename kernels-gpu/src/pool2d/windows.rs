//! Windows over images: a thread makes four outputs below each other, of one channel or of one piece of
//! channels.

use contract::num::{abs_bits, fma, reciprocal};
use contract::pool2d::{Args, Axis, ROWS};

use super::{BATCH, Taken, divide, thread};
use crate::arch::mem::{X4, ld_or_zero_x4, st_x4};
use crate::arch::thread::{opaque, opaque_u64};
use crate::float::{Float, Piece};
use crate::row::map;

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

/// Windows of `K` by `K` neighbouring taps, one below the other: a row that two of them share is read once.
///
/// `tap(inside, offset)` reads the item that many elements from the first of the image. Taps outside of the image are zeros
/// for averages. For maxima they are the nearest ones inside, which every window has: padding is at most half of it.
/// `each(oh, value)` has the outputs.
#[inline(always)]
fn square<E: Float, const PIECES: bool, const AVG: bool, const K: usize, const KEPT: u32>(
    args: &Args,
    out: &Outputs,
    tap: impl Fn(bool, isize) -> X4<u32>,
    mut each: impl FnMut(u32, X4<u32>),
) {
    const { assert!(K == 2 || K == 3) };
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
    // How many rows of a window are those of the one before.
    let kept = if KEPT < K as u32 { KEPT } else { (K as u32).saturating_sub(h.stride) };
    let mut oh = out.rows.start;
    let mut window: [Taps<K>; K] = core::array::from_fn(|a| row(h.at(oh, a as u32)));
    while oh < out.rows.end {
        each(
            oh,
            if AVG {
                average::<E, PIECES, K>(&window, count(oh))
            } else {
                let mut top = window[0][0];
                let mut tap = 1;
                while tap < K * K {
                    top = E::max_raw(top, window[tap / K][tap % K]);
                    tap += 1;
                }
                top
            },
        );
        if K == 3 && kept == 2 {
            window[0] = window[1];
            window[1] = window[2];
        } else if kept == 1 {
            window[0] = window[K - 1];
        }
        let mut a = 0;
        while a < K {
            if a as u32 >= kept && oh + 1 < out.rows.end {
                window[a] = row(h.at(oh + 1, a as u32));
            }
            a += 1;
        }
        oh = opaque(oh + 1);
    }
}

/// The averages of a window, divided by `count`.
#[inline(always)]
fn average<E: Float, const PIECES: bool, const K: usize>(
    window: &[Taps<K>; K],
    count: u32,
) -> X4<u32> {
    let sums = map::<E, PIECES>([0.0; 8], |i, _| {
        let tap = |t: usize| E::widen(window[t / K][t % K])[i];
        // As `tree8`, without what is zero; a sum from zero up is never minus zero.
        let first = 0.0 + tap(0);
        if K == 2 {
            (first + tap(2)) + (tap(1) + tap(3))
        } else {
            let (low, high) = (first + tap(8 % (K * K)), tap(4 % (K * K)));
            let t = |t: usize| tap(t % (K * K));
            ((low + high) + (t(2) + t(6))) + ((t(1) + t(5)) + (t(3) + t(7)))
        }
    });
    E::narrow(divide_all::<E, PIECES>(sums, count as f32))
}

/// `sums / count`, each rounded as by a division: by the reciprocal where that is certain.
#[inline(always)]
fn divide_all<E: Float, const PIECES: bool>(sums: Piece, count: f32) -> Piece {
    if !PIECES {
        return map::<E, PIECES>(sums, |_, s| s / count);
    }
    let r = reciprocal(count);
    // Away from the ends of the range of exponents a quotient from the rounded reciprocal and its exact remainder is
    // the rounded one (Markstein, 1990).
    let (mut least, mut most) = (u32::MAX, 0);
    let quotients = map::<E, PIECES>(sums, |_, s| {
        let magnitude = abs_bits(s);
        // Zero is certain too: less one it is the largest number.
        least = least.min(magnitude.wrapping_sub(1));
        most = most.max(magnitude);
        let q = s * r;
        fma(fma(-q, count, s), r, q)
    });
    let certain = least >= (27 << 23) - 1 && most < 247 << 23;
    if certain { quotients } else { map::<E, PIECES>(sums, |_, s| s / count) }
}

/// Windows of any size, in batches of taps.
#[inline(always)]
fn any<R: Copy, const LEN: usize, const AVG: bool>(
    ((h, w), (oh, ow)): At<'_>,
    (row, column): (isize, isize),
    count: &dyn Fn() -> f32,
    nothing: R,
    load: impl Fn(bool, isize) -> R,
    widen: impl Fn(R) -> [f32; LEN],
) -> [f32; LEN] {
    let mut taken = Taken::new::<AVG>();
    let taps = h.kernel * w.kernel;
    let (mut a, mut b) = (0, 0); // row and column of the tap
    let mut tap = 0;
    while tap < taps {
        let mut half = 0;
        while half < BATCH {
            // Four at a time: the partials of eight channels leave no registers for more.
            let mut raw = [nothing; BATCH / 2];
            let mut inside = [false; BATCH / 2];
            let mut u = 0;
            while u < BATCH / 2 {
                let (i, j) = (h.at(oh, a), w.at(ow, b));
                inside[u] = tap + ((half + u) as u32) < taps && on(h, i) && on(w, j);
                raw[u] = load(inside[u], i as isize * row + j as isize * column);
                b += 1;
                if b == w.kernel {
                    b = 0;
                    a += 1;
                }
                u += 1;
            }
            let mut u = 0;
            while u < BATCH / 2 {
                taken.take::<AVG>(inside[u], half + u, widen(raw[u]));
                u += 1;
            }
            half += BATCH / 2;
        }
        tap = opaque(tap + BATCH as u32);
    }
    taken.finish::<AVG>(count())
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

/// One channel a thread, or a piece of channels.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's, with items of one
/// channel, or of 16 bytes: then channels are innermost, and each piece is aligned to 16.
#[inline(always)]
pub(super) unsafe fn windows<E: Float, const PIECES: bool, const AVG: bool>(args: &Args) {
    let Some(out) = outputs(args) else { return };
    let x = image::<E>(args, &out);
    // The output in row 0: one pointer instead of all that it comes from.
    let place = out.plane * args.h.out as usize * args.w.out as usize + out.ow as usize;
    let y = args.y.cast::<E>().as_ptr().wrapping_add(place * out.step as usize + out.channel);
    let tap = |inside: bool, i: isize| {
        let p = x.wrapping_offset(i);
        // SAFETY: an item of the image.
        unsafe {
            if PIECES {
                ld_or_zero_x4(inside, p.cast())
            } else {
                [E::load_bits_if(inside, p), 0, 0, 0]
            }
        }
    };
    let store = |oh: u32, value: X4<u32>| {
        let step = if args.channels_last == 1 { args.channels } else { 1 };
        let p = y.wrapping_add(opaque(oh) as usize * args.w.out as usize * step as usize);
        // SAFETY: an output of this thread.
        unsafe { if PIECES { st_x4(p.cast(), value) } else { E::store_bits(p, value[0]) } }
    };
    let near = args.h.dilation == 1 && args.w.dilation == 1;
    match (args.h.kernel, args.w.kernel) {
        (3, 3) if near && PIECES && args.h.stride == 2 => {
            square::<E, PIECES, AVG, 3, 1>(args, &out, tap, store)
        }
        (3, 3) if near => square::<E, PIECES, AVG, 3, 3>(args, &out, tap, store),
        (2, 2) if near => square::<E, PIECES, AVG, 2, 3>(args, &out, tap, store),
        _ => each_row::<AVG>(args, &out, |oh, steps, count| {
            let at = ((&args.h, &args.w), (oh, out.ow));
            let zero = [0u32; 4];
            if !PIECES {
                let [v] = any::<_, 1, AVG>(at, steps, count, zero, tap, |raw| [E::widen(raw)[0]]);
                return store(oh, E::narrow([v, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
            }
            // Half of the channels at a time: all of their partials would fill the registers.
            let half = |at_half: usize| {
                move |raw| core::array::from_fn(|i| E::widen(raw)[4 * at_half + i])
            };
            let [a, b, c, d] = any::<_, 4, AVG>(at, steps, count, zero, tap, half(0));
            let [e, f, g, h] = if E::PIECE == 8 {
                any::<_, 4, AVG>(at, steps, count, zero, tap, half(1))
            } else {
                [0.0; 4]
            };
            store(oh, E::narrow([a, b, c, d, e, f, g, h]));
        }),
    }
}
