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

/// The taps of a window; `load(inside, offset)` reads the tap that many elements from the first element of
/// the image. An average is divided by `count`. `steps` are the elements from row to row and from column to column.
#[inline(always)]
fn window<R: Copy, const LEN: usize, const AVG: bool>(
    axes: (&Axis, &Axis),
    out: (u32, u32),
    steps: (isize, isize),
    count: f32,
    nothing: R,
    load: impl Fn(bool, isize) -> R,
    widen: impl Fn(R) -> [f32; LEN],
) -> [f32; LEN] {
    match (axes.0.kernel, axes.1.kernel) {
        (3, 3) => square::<R, LEN, AVG, 3>(axes, out, steps, count, nothing, load, widen),
        (2, 2) => square::<R, LEN, AVG, 2>(axes, out, steps, count, nothing, load, widen),
        _ => any::<R, LEN, AVG>(axes, out, steps, count, nothing, load, widen),
    }
}

/// Windows of `K` by `K` taps, all of which are loaded before the first is used.
#[inline(always)]
fn square<R: Copy, const LEN: usize, const AVG: bool, const K: usize>(
    (h, w): (&Axis, &Axis),
    (oh, ow): (u32, u32),
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
    (h, w): (&Axis, &Axis),
    (oh, ow): (u32, u32),
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

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn windows<E: Float, const AVG: bool>(args: &Args) {
    let (h, w) = (&args.h, &args.w);
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let y = args.y.cast::<E>().as_ptr();
    let image = h.len as usize * w.len as usize;
    let below = h.out.div_ceil(ROWS);
    // The first element of the channels in `x`, and the elements from row to row and from column to column.
    let last = args.channels_last == 1;
    let (pieces, step) =
        if last { (args.channels / args.piece, args.channels as isize) } else { (1, 1) };
    let (rest, piece) = if last { divide(thread(), pieces) } else { (thread(), 0) };
    let (rest, ow) = divide(rest, w.out);
    let (plane, group) = divide(rest, below);
    let planes = if last { 1 } else { u64::from(args.channels) } * u64::from(args.images);
    if plane >= planes {
        return;
    }
    let (plane, channel) = (plane as usize, (piece * args.piece) as usize);
    let x = x.wrapping_add(plane * image * step as usize + channel);
    let padded = args.count_include_pad == 1;
    let columns = if AVG { w.taps(ow, padded) } else { 1 };
    let mut oh = group * ROWS;
    let end = if h.out - oh < ROWS { h.out } else { oh + ROWS };
    while oh < end {
        // Anew in each turn: offsets of all taps would take more registers than there are.
        let column = opaque_u64(step as u64) as isize;
        let steps = (w.len as isize * column, column);
        let count = (if AVG { h.taps(oh, padded) * columns } else { 1 }) as f32;
        let place = (plane * h.out as usize + oh as usize) * w.out as usize + ow as usize;
        let y = y.wrapping_add(place * step as usize + channel);
        if args.piece == 1 {
            // SAFETY: a tap of the channel, inside of the image.
            let load = |inside: bool, i: isize| unsafe { E::load_if(inside, x.wrapping_offset(i)) };
            let value = window::<f32, 1, AVG>((h, w), (oh, ow), steps, count, 0.0, load, |v| [v]);
            // SAFETY: an output of this thread.
            unsafe { E::store(y, value[0]) };
        } else {
            // SAFETY: a tap of the piece of channels, aligned to 16 as the contract has it.
            let load = |inside: bool, i: isize| unsafe {
                ld_or_zero_x4(inside, x.wrapping_offset(i).cast())
            };
            let values =
                window::<[u32; 4], 8, AVG>((h, w), (oh, ow), steps, count, [0; 4], load, E::widen);
            // SAFETY: a piece of outputs of this thread.
            unsafe { st_x4(y.cast(), E::narrow(values)) };
        }
        oh = opaque(oh + 1);
    }
}
