//! Device side of [`contract::pool2d`].
//!
//! Windows: one output (channels first), or one piece of channels of one output (channels last), a
//! thread; neighbouring threads read neighbouring taps, so that a tap that several windows share comes
//! from L1. Whole images: eight lanes a channel, lane `l` partial `l` (channels first), or a thread a
//! piece of channels (channels last).

use contract::launch::Kernel;
use contract::num::tree8;
use contract::pool2d::{
    Args, Axis, GlobalBf16, GlobalF16, GlobalF32, THREADS, WindowBf16, WindowF16, WindowF32, max,
};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_x4, st_x4};
use crate::arch::thread::{block_idx_x, opaque, opaque_u64, thread_idx_x};
use crate::arch::warp::shuffle_xor;
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};

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

/// A maximum or the eight partials of a sum, of `LEN` channels.
#[derive(Clone, Copy)]
struct Taken<const LEN: usize> {
    top: [f32; LEN],
    partials: [[f32; LEN]; 8],
}

impl<const LEN: usize> Taken<LEN> {
    #[inline(always)]
    fn new() -> Self {
        Self { top: [f32::NEG_INFINITY; LEN], partials: [[0.0; LEN]; 8] }
    }

    /// Takes tap `tap` of the window; `slot` is `tap % 8`.
    #[inline(always)]
    fn take(&mut self, average: bool, slot: usize, values: [f32; LEN]) {
        let mut i = 0;
        while i < LEN {
            if average {
                self.partials[slot][i] += values[i];
            } else {
                self.top[i] = max(self.top[i], values[i]);
            }
            i += 1;
        }
    }

    #[inline(always)]
    fn finish(&self, average: bool, count: u32) -> [f32; LEN] {
        self.finish_by(average, count as f32)
    }

    #[inline(always)]
    fn finish_by(&self, average: bool, count: f32) -> [f32; LEN] {
        core::array::from_fn(|i| {
            let mut p = [0.0; 8];
            let mut slot = 0;
            while slot < 8 {
                p[slot] = self.partials[slot][i];
                slot += 1;
            }
            if average { tree8(p) / count } else { self.top[i] }
        })
    }
}

/// Walks over the taps of a window, eight loads at a time; `load` reads the tap at a place of the image.
#[inline(always)]
fn window<R: Copy, const LEN: usize>(
    (h, w): (&Axis, &Axis),
    (oh, ow): (u32, u32),
    average: bool,
    nothing: R,
    load: impl Fn(u32, u32) -> R,
    widen: impl Fn(R) -> [f32; LEN],
) -> Taken<LEN> {
    let mut taken = Taken::new();
    let taps = h.kernel * w.kernel;
    let (mut a, mut b) = (0, 0); // row and column of the tap
    let mut tap = 0;
    while tap < taps {
        let mut raw = [nothing; 8];
        let mut inside = [false; 8];
        let mut u = 0;
        while u < 8 {
            let (i, j) = (h.at(oh, a), w.at(ow, b));
            // Negative places are large numbers.
            inside[u] = tap + (u as u32) < taps && (i as u32) < h.len && (j as u32) < w.len;
            if inside[u] {
                raw[u] = load(i as u32, j as u32);
            }
            b += 1;
            if b == w.kernel {
                b = 0;
                a += 1;
            }
            u += 1;
        }
        let mut u = 0;
        while u < 8 {
            if inside[u] {
                taken.take(average, u, widen(raw[u]));
            }
            u += 1;
        }
        tap = opaque(tap + 8);
    }
    taken
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn windows<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let (h, w, average) = (&args.h, &args.w, args.average == 1);
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let y = args.y.cast::<E>().as_ptr();
    let count = |oh: u32, ow: u32| {
        let padded = args.count_include_pad == 1;
        h.taps(oh, padded) * w.taps(ow, padded)
    };
    let image = h.len as usize * w.len as usize;
    let n = thread();
    if args.channels_last == 0 {
        let (rest, ow) = divide(n, w.out);
        let (plane, oh) = divide(rest, h.out);
        if plane >= u64::from(args.images) * u64::from(args.channels) {
            return;
        }
        let x = x.wrapping_add(plane as usize * image);
        // SAFETY: x[n, c, i, j], inside of the image.
        let load = |i: u32, j: u32| unsafe {
            E::load_if(true, x.wrapping_add(i as usize * w.len as usize + j as usize))
        };
        let taken = window((h, w), (oh, ow), average, 0.0, load, |v| [v]);
        let [value] = taken.finish(average, if average { count(oh, ow) } else { 1 });
        // SAFETY: y[n, c, oh, ow] belongs to this thread.
        unsafe { E::store(y.wrapping_add(n as usize), value) };
        return;
    }
    let pieces = args.channels / args.piece;
    let (rest, piece) = divide(n, pieces);
    let (rest, ow) = divide(rest, w.out);
    let (batch, oh) = divide(rest, h.out);
    if batch >= u64::from(args.images) {
        return;
    }
    let c = args.channels as usize;
    let channel = (piece * args.piece) as usize;
    let x = x.wrapping_add(batch as usize * image * c + channel);
    let at = |i: u32, j: u32| x.wrapping_add((i as usize * w.len as usize + j as usize) * c);
    let y = y.wrapping_add(n as usize * args.piece as usize);
    let count = if average { count(oh, ow) } else { 1 };
    if args.piece == 1 {
        // SAFETY: x[n, i, j, c], inside of the image.
        let load = |i: u32, j: u32| unsafe { E::load_if(true, at(i, j)) };
        let taken = window((h, w), (oh, ow), average, 0.0, load, |v| [v]);
        let [value] = taken.finish(average, count);
        // SAFETY: y[n, oh, ow, c] belongs to this thread.
        unsafe { E::store(y, value) };
    } else {
        // SAFETY: a piece of channels of x[n, i, j], aligned to 16 as the contract has it.
        let load = |i: u32, j: u32| unsafe { ld_x4(at(i, j).cast()) };
        let taken = window((h, w), (oh, ow), average, [0u32; 4], load, E::widen);
        // SAFETY: that piece of y[n, oh, ow] belongs to this thread.
        unsafe { st_x4(y.cast(), E::narrow(taken.finish(average, count))) };
    }
}

/// # Safety
///
/// As for [`windows`].
#[inline(always)]
unsafe fn global<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let average = args.average == 1;
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let y = args.y.cast::<E>().as_ptr();
    let image = args.h.len as u64 * args.w.len as u64;
    let n = thread();
    if args.channels_last == 0 {
        let planes = u64::from(args.images) * u64::from(args.channels);
        let (plane, lane) = (n / 8, n % 8);
        let inside = plane < planes; // lanes without a plane stay for the shuffles
        let x = x.wrapping_add((plane * image) as usize);
        let mut taken = Taken::<1>::new();
        let mut tap = lane;
        while tap < image {
            let mut values = [0.0; 8];
            let mut u = 0;
            while u < 8 {
                let i = tap + 8 * u as u64;
                // SAFETY: tap i of x[n, c].
                values[u] = unsafe { E::load_if(inside && i < image, x.wrapping_add(i as usize)) };
                u += 1;
            }
            let mut u = 0;
            while u < 8 {
                if tap + 8 * (u as u64) < image {
                    taken.take(average, 0, [values[u]]);
                }
                u += 1;
            }
            tap = opaque_u64(tap + 64);
        }
        let mut value = if average { taken.partials[0][0] } else { taken.top[0] };
        let mut distance = 4;
        while distance > 0 {
            let other = shuffle_xor(value, distance);
            value = if average { value + other } else { max(value, other) };
            distance /= 2;
        }
        if inside && lane == 0 {
            let value = if average { value / image as f32 } else { value };
            // SAFETY: y[n, c] belongs to this group of lanes.
            unsafe { E::store(y.wrapping_add(plane as usize), value) };
        }
        return;
    }
    let (batch, piece) = divide(n, args.channels / args.piece);
    if batch >= u64::from(args.images) {
        return;
    }
    let c = args.channels as usize;
    let x = x.wrapping_add((batch * image) as usize * c + (piece * args.piece) as usize);
    let y = y.wrapping_add(n as usize * args.piece as usize);
    // SAFETY: as in `windows`.
    unsafe {
        if args.piece == 1 {
            let load = |i: u64| E::load_if(i < image, x.wrapping_add(i as usize * c));
            let [value] = whole(image, average, 0.0, load, |v| [v]);
            E::store(y, value);
        } else {
            let load = |i: u64| {
                let i = if i < image { i } else { 0 };
                ld_x4(x.wrapping_add(i as usize * c).cast())
            };
            let value: Piece = whole(image, average, [0u32; 4], load, E::widen);
            st_x4(y.cast(), E::narrow(value));
        }
    }
}

/// A whole image of channels, eight taps at a time.
#[inline(always)]
fn whole<R: Copy, const LEN: usize>(
    image: u64,
    average: bool,
    nothing: R,
    load: impl Fn(u64) -> R,
    widen: impl Fn(R) -> [f32; LEN],
) -> [f32; LEN] {
    let mut taken = Taken::new();
    let mut tap = 0;
    while tap < image {
        let mut raw = [nothing; 8];
        let mut u = 0;
        while u < 8 {
            raw[u] = load(tap + u as u64);
            u += 1;
        }
        let mut u = 0;
        while u < 8 {
            if tap + (u as u64) < image {
                taken.take(average, u, widen(raw[u]));
            }
            u += 1;
        }
        tap = opaque_u64(tap + 8);
    }
    taken.finish_by(average, image as f32)
}

macro_rules! entries {
    ($($symbol:ident $body:ident $kernel:ident $element:ty;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { $body::<$element>(&args) }
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
