//! Whole images: eight lanes a channel, lane `l` partial `l` (channels first), or a thread a piece of channels
//! (channels last).

use contract::pool2d::Args;

use super::{BATCH, Taken, divide, thread};
use crate::arch::float::maximum;
use crate::arch::mem::{ld_or_zero_x4, st_x4};
use crate::arch::thread::opaque_u64;
use crate::arch::warp::shuffle_xor;
use crate::float::{Float, Piece};

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn whole<E: Float, const AVG: bool>(args: &Args) {
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
        let [mut value] = taps::<f32, 1, AVG, 8>(image, lane, 0.0, load, |v| [v]).0[0];
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
        let taken = taps::<f32, 1, AVG, 1>(image, 0, 0.0, load, |v| [v]);
        // SAFETY: the output of this thread.
        unsafe { E::store(y, taken.finish::<AVG>(image as f32)[0]) };
    } else {
        // SAFETY: a tap of the piece of channels, aligned to 16 as the contract has it.
        let load = |inside: bool, i: u64| unsafe { ld_or_zero_x4(inside, at(i).cast()) };
        let taken = taps::<[u32; 4], 8, AVG, 1>(image, 0, [0; 4], load, E::widen);
        let value: Piece = taken.finish::<AVG>(image as f32);
        // SAFETY: the piece of outputs of this thread.
        unsafe { st_x4(y.cast(), E::narrow(value)) };
    }
}

/// Taps `first, first + STEP, ...` of a whole image. With a step of 8 all lie in one partial: that of slot 0.
#[inline(always)]
fn taps<R: Copy, const LEN: usize, const AVG: bool, const STEP: u64>(
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
