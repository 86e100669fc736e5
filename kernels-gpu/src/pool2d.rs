//! Device side of [`contract::pool2d`].
//!
//! Windows: a thread makes four outputs, one below the other, or a piece of channels of each where channels
//! are innermost; neighbouring threads read neighbouring taps, so that a tap that several windows share comes
//! from L1. Whole images: eight lanes a channel, lane `l` partial `l` (channels first), or a thread a
//! piece of channels (channels last). `AVG` says average or maximum throughout.

use contract::launch::Kernel;
use contract::num::tree8;
use contract::pool2d::{
    Args, Axis, GlobalBf16, GlobalF16, GlobalF32, ROWS, THREADS, WindowBf16, WindowF16, WindowF32,
};

use crate::arch::float::maximum;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_or_zero_x4, st_x4};
use crate::arch::thread::{block_idx_x, opaque, opaque_u64, thread_idx_x};
use crate::arch::warp::shuffle_xor;
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};

/// Taps that are loaded at once: one for each partial.
const BATCH: usize = 8;

/// Quotient and remainder, by the division of 32 bits where that does.
#[inline(always)]
fn divide(n: u64, by: u32) -> (u64, u32) {
    if n >> 32 == 0 {
        (u64::from(n as u32 / by), n as u32 % by)
    } else {
        (n / u64::from(by), (n % u64::from(by)) as u32)
    }
}

/// Index of this thread in the grid.
#[inline(always)]
fn thread() -> u64 {
    u64::from(block_idx_x()) * u64::from(THREADS) + u64::from(thread_idx_x())
}

/// The maximum in `[0]`, or the eight partials of a sum, of `LEN` channels.
#[derive(Clone, Copy)]
struct Taken<const LEN: usize>([[f32; LEN]; BATCH]);

impl<const LEN: usize> Taken<LEN> {
    #[inline(always)]
    fn new<const AVG: bool>() -> Self {
        Self([[if AVG { 0.0 } else { f32::NEG_INFINITY }; LEN]; BATCH])
    }

    /// Takes a tap, unless it lies outside; `slot` is its number modulo 8.
    #[inline(always)]
    fn take<const AVG: bool>(&mut self, inside: bool, slot: usize, values: [f32; LEN]) {
        let slot = if AVG { slot } else { 0 };
        let mut i = 0;
        while i < LEN {
            let (old, v) = (self.0[slot][i], values[i]);
            let new = if AVG { old + v } else { maximum(old, v) };
            self.0[slot][i] = if inside { new } else { old };
            i += 1;
        }
    }

    #[inline(always)]
    fn finish<const AVG: bool>(&self, count: f32) -> [f32; LEN] {
        core::array::from_fn(|i| {
            let partials = core::array::from_fn(|slot| self.0[slot][i]);
            if AVG { tree8(partials) / count } else { self.0[0][i] }
        })
    }
}

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
unsafe fn windows<E: Float, const AVG: bool>(args: &Args) {
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

/// # Safety
///
/// As for [`windows`].
#[inline(always)]
unsafe fn global<E: Float, const AVG: bool>(args: &Args) {
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let y = args.y.cast::<E>().as_ptr();
    let (image, n) = (u64::from(args.h.len) * u64::from(args.w.len), thread());
    let c = args.channels as usize;
    if args.channels_last == 0 {
        let (plane, lane) = (n / 8, n % 8);
        // Lanes without a plane stay for the shuffles.
        let image = if plane < u64::from(args.images) * c as u64 { image } else { 0 };
        let x = x.wrapping_add((plane * image) as usize);
        // SAFETY: a tap of x[n, c].
        let load = |inside: bool, i: u64| unsafe { E::load_if(inside, x.wrapping_add(i as usize)) };
        let [mut value] = whole::<f32, 1, AVG, 8>(image, lane, 0.0, load, |v| [v]).0[0];
        let mut distance = 4;
        while distance > 0 {
            let other = shuffle_xor(value, distance);
            value = if AVG { value + other } else { maximum(value, other) };
            distance /= 2;
        }
        if image > 0 && lane == 0 {
            let value = if AVG { value / image as f32 } else { value };
            // SAFETY: y[n, c] belongs to this group of lanes.
            unsafe { E::store(y.wrapping_add(plane as usize), value) };
        }
        return;
    }
    let (batch, piece) = divide(n, args.channels / args.piece);
    if batch >= u64::from(args.images) {
        return;
    }
    let x = x.wrapping_add((batch * image) as usize * c + (piece * args.piece) as usize);
    let y = y.wrapping_add(n as usize * args.piece as usize);
    let at = |i: u64| x.wrapping_add(i as usize * c);
    if args.piece == 1 {
        // SAFETY: a tap of the channel.
        let load = |inside: bool, i: u64| unsafe { E::load_if(inside, at(i)) };
        let taken = whole::<f32, 1, AVG, 1>(image, 0, 0.0, load, |v| [v]);
        // SAFETY: the output of this thread.
        unsafe { E::store(y, taken.finish::<AVG>(image as f32)[0]) };
    } else {
        // SAFETY: a tap of the piece of channels, aligned to 16 as the contract has it.
        let load = |inside: bool, i: u64| unsafe { ld_or_zero_x4(inside, at(i).cast()) };
        let taken = whole::<[u32; 4], 8, AVG, 1>(image, 0, [0; 4], load, E::widen);
        let value: Piece = taken.finish::<AVG>(image as f32);
        // SAFETY: the piece of outputs of this thread.
        unsafe { st_x4(y.cast(), E::narrow(value)) };
    }
}

/// Taps `first, first + STEP, ...` of a whole image. With a step of 8 all lie in one partial: that of slot 0.
#[inline(always)]
fn whole<R: Copy, const LEN: usize, const AVG: bool, const STEP: u64>(
    image: u64,
    first: u64,
    nothing: R,
    load: impl Fn(bool, u64) -> R,
    widen: impl Fn(R) -> [f32; LEN],
) -> Taken<LEN> {
    let mut taken = Taken::new::<AVG>();
    let mut tap = first;
    while tap < image {
        let mut raw = [nothing; BATCH];
        let mut u = 0;
        while u < BATCH {
            let i = tap + STEP * u as u64;
            raw[u] = load(i < image, i);
            u += 1;
        }
        let mut u = 0;
        while u < BATCH {
            let slot = if STEP == 1 { u } else { 0 };
            taken.take::<AVG>(tap + STEP * (u as u64) < image, slot, widen(raw[u]));
            u += 1;
        }
        tap = opaque_u64(tap + STEP * BATCH as u64);
    }
    taken
}

macro_rules! entries {
    ($($symbol:ident $body:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            launch_dependents();
            dependency_wait();
            // SAFETY: the launch contract, handed on.
            unsafe {
                if args.average == 1 {
                    $body::<$element, true>(&args);
                } else {
                    $body::<$element, false>(&args);
                }
            }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    pool2d_f32 windows WindowF32 f32;
    pool2d_f16 windows WindowF16 F16;
    pool2d_bf16 windows WindowBf16 Bf16;
    pool2d_global_f32 global GlobalF32 f32;
    pool2d_global_f16 global GlobalF16 F16;
    pool2d_global_bf16 global GlobalBf16 Bf16;
}
