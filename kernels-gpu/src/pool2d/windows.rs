//! Windows over images: a thread makes four outputs below each other, of one channel or of one piece of
//! channels.

use contract::pool2d::{Args, Axis, ROWS};

use super::{BATCH, Taken, divide, thread};
use crate::arch::mem::{ld_or_zero_x4, st_x4};
use crate::arch::thread::{opaque, opaque_u64};
use crate::float::Float;

/// Whether a place lies on an axis.
#[inline(always)]
fn on(axis: &Axis, place: i32) -> bool {
    // Negative places are large numbers.
    (place as u32) < axis.len
}

/// Axes, and an output on them.
type At<'a> = ((&'a Axis, &'a Axis), (u32, u32));

/// Windows of `K` by `K` taps, all of which are loaded before the first is used: `load(inside, offset)`
/// reads the tap that many elements from the first of the image. `row` and `column` are the elements from one
/// to the next; an average is divided by `count`.
#[inline(always)]
fn square<R: Copy, const LEN: usize, const AVG: bool, const K: usize>(
    ((h, w), (oh, ow)): At<'_>,
    (row, column): (isize, isize),
    count: f32,
    nothing: R,
    load: impl Fn(bool, isize) -> R,
    widen: impl Fn(R) -> [f32; LEN],
) -> [f32; LEN] {
    const { assert!(K <= 3) };
    let mut raw = [nothing; 9];
    let mut inside = [false; 9];
    let first = h.at(oh, 0) as isize * row + w.at(ow, 0) as isize * column;
    let (row, column) = (row * h.dilation as isize, column * w.dilation as isize);
    let mut tap = 0;
    while tap < K * K {
        let (a, b) = (tap / K, tap % K);
        inside[tap] = on(h, h.at(oh, a as u32)) && on(w, w.at(ow, b as u32));
        raw[tap] = load(inside[tap], first + a as isize * row + b as isize * column);
        tap += 1;
    }
    // Channel by channel, so that the partials of one are done with before those of the next.
    core::array::from_fn(|i| {
        let mut taken = Taken::<1>::new::<AVG>();
        let mut tap = 0;
        while tap < K * K {
            taken.take::<AVG>(inside[tap], tap % BATCH, [widen(raw[tap])[i]]);
            tap += 1;
        }
        taken.finish::<AVG>(count)[0]
    })
}

/// Windows of any size, in batches of taps.
#[inline(always)]
fn any<R: Copy, const LEN: usize, const AVG: bool>(
    ((h, w), (oh, ow)): At<'_>,
    (row, column): (isize, isize),
    count: f32,
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
    taken.finish::<AVG>(count)
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

/// Runs `body(oh, steps, count, place)` for each output of this thread; `place` is that of its first
/// channel, counted in elements of `y`.
#[inline(always)]
fn each_row<const AVG: bool>(
    args: &Args,
    out: &Outputs,
    mut body: impl FnMut(u32, (isize, isize), f32, usize),
) {
    let (h, w) = (&args.h, &args.w);
    let padded = args.count_include_pad == 1;
    let columns = if AVG { w.taps(out.ow, padded) } else { 1 };
    let mut oh = out.rows.start;
    while oh < out.rows.end {
        // Anew in each turn: offsets of all taps would take more registers than there are.
        let column = opaque_u64(out.step as u64) as isize;
        let count = (if AVG { h.taps(oh, padded) * columns } else { 1 }) as f32;
        let place = (out.plane * h.out as usize + oh as usize) * w.out as usize + out.ow as usize;
        let place = place * out.step as usize + out.channel;
        body(oh, (w.len as isize * column, column), count, place);
        oh = opaque(oh + 1);
    }
}

/// The first channel of this thread in its image.
#[inline(always)]
fn image<E>(args: &Args, out: &Outputs) -> *const E {
    let image = args.h.len as usize * args.w.len as usize * out.step as usize;
    args.x.cast::<E>().as_ptr().cast_const().wrapping_add(out.plane * image + out.channel)
}

/// One channel a thread.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's,
/// with pieces of one channel.
#[inline(always)]
pub(super) unsafe fn windows<E: Float, const AVG: bool>(args: &Args) {
    let Some(out) = outputs(args) else { return };
    let (x, y) = (image::<E>(args, &out), args.y.cast::<E>().as_ptr());
    each_row::<AVG>(args, &out, |oh, steps, count, place| {
        // SAFETY: a tap of the channel, inside of the image.
        let load = |inside: bool, i: isize| unsafe { E::load_if(inside, x.wrapping_offset(i)) };
        let at = ((&args.h, &args.w), (oh, out.ow));
        let [value] = match (args.h.kernel, args.w.kernel) {
            (3, 3) => square::<f32, 1, AVG, 3>(at, steps, count, 0.0, load, |v| [v]),
            (2, 2) => square::<f32, 1, AVG, 2>(at, steps, count, 0.0, load, |v| [v]),
            _ => any::<f32, 1, AVG>(at, steps, count, 0.0, load, |v| [v]),
        };
        // SAFETY: an output of this thread.
        unsafe { E::store(y.wrapping_add(place), value) };
    });
}

/// A piece of channels a thread.
///
/// # Safety
///
/// As for [`windows`], with pieces of 16 bytes: channels are innermost, and each piece is aligned to 16.
#[inline(always)]
pub(super) unsafe fn pieces<E: Float, const AVG: bool>(args: &Args) {
    let Some(out) = outputs(args) else { return };
    let (x, y) = (image::<E>(args, &out), args.y.cast::<E>().as_ptr());
    each_row::<AVG>(args, &out, |oh, steps, count, place| {
        // SAFETY: a tap of the piece of channels, inside of the image.
        let load =
            |inside: bool, i: isize| unsafe { ld_or_zero_x4(inside, x.wrapping_offset(i).cast()) };
        let at = ((&args.h, &args.w), (oh, out.ow));
        let zero = [0u32; 4];
        let values = match (args.h.kernel, args.w.kernel) {
            (3, 3) => square::<_, 8, AVG, 3>(at, steps, count, zero, load, E::widen),
            (2, 2) => square::<_, 8, AVG, 2>(at, steps, count, zero, load, E::widen),
            _ => {
                // Half of the channels at a time: all of their partials would fill the registers.
                let half = |at_half: usize| {
                    move |raw| core::array::from_fn(|i| E::widen(raw)[4 * at_half + i])
                };
                let [a, b, c, d] = any::<_, 4, AVG>(at, steps, count, zero, load, half(0));
                let [e, f, g, h] = if E::PIECE == 8 {
                    any::<_, 4, AVG>(at, steps, count, zero, load, half(1))
                } else {
                    [0.0; 4]
                };
                [a, b, c, d, e, f, g, h]
            }
        };
        // SAFETY: a piece of outputs of this thread.
        unsafe { st_x4(y.wrapping_add(place).cast(), E::narrow(values)) };
    });
}
