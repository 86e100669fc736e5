//! Whole images: eight lanes a channel, lane `l` partial `l` (channels first), or a thread a piece of channels
//! (channels last).

use contract::pool2d::{Args, THREADS};

use super::{BATCH, Taken, divide, thread};
use crate::arch::float::maximum;
use crate::arch::mem::{ld_or_zero_x4, st_x4};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{block_idx_x, opaque, opaque_u64, sync_threads, thread_idx_x};
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
    let times = args.staged(16 / E::PIECE as u32);
    if times > 0 {
        // SAFETY: handed on.
        return unsafe { staged::<E, AVG>(args, times, x, y) };
    }
    if args.channels_last == 0 {
        let (plane, lane) = (n / 8, n % 8);
        // Lanes without a plane stay for the shuffles.
        let image = if plane < u64::from(args.images) * c as u64 { image } else { 0 };
        let x = x.wrapping_add((plane * image) as usize);
        // SAFETY: a tap of x[n, c].
        let load = |inside: bool, i: u64| unsafe { E::load_if(inside, x.wrapping_add(i as usize)) };
        let [value] = taps::<f32, 1, AVG, 8>(image, lane, 0.0, load, |v| [v]).0[0];
        // SAFETY: y[n, c] belongs to these lanes.
        unsafe { finish::<E, AVG>(value, image, y.wrapping_add(plane as usize)) };
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

/// Writes what eight lanes have of an image of so many taps, unless it has none.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// `y` is an output of these lanes.
#[inline(always)]
unsafe fn finish<E: Float, const AVG: bool>(mut value: f32, image: u64, y: *mut E) {
    let mut distance = 4;
    while distance > 0 {
        let other = shuffle_xor(value, distance);
        value = if AVG { value + other } else { maximum(value, other) };
        distance /= 2;
    }
    if image > 0 && thread_idx_x() % 8 == 0 {
        // SAFETY: the caller's promise.
        unsafe { E::store(y, if AVG { value / image as f32 } else { value }) };
    }
}

/// Eight lanes a channel, with the images of the block in its shared memory: side by side they are whole pieces of 16
/// bytes, which one is not.
///
/// # Safety
///
/// As for [`whole`], where [`Args::staged`] holds.
#[inline(always)]
unsafe fn staged<E: Float, const AVG: bool>(args: &Args, times: u32, x: *const E, y: *mut E) {
    let most = THREADS / 8 * times;
    let image = args.h.len * args.w.len;
    let first = u64::from(block_idx_x()) * u64::from(most);
    let left = u64::from(args.images) * u64::from(args.channels) - first;
    let planes = if left < u64::from(most) { left as u32 } else { most };
    let x = x.wrapping_add(first as usize * image as usize);
    let (len, piece) = (planes * image, E::PIECE as u32);
    let held = dynamic_shared_mem::<u32>();
    let mut at = thread_idx_x() * piece;
    while at < len {
        let place = |i: usize| at + THREADS * piece * i as u32;
        let mut raw = [[0; 4]; AHEAD];
        let mut i = 0;
        while i < AHEAD {
            let p = x.wrapping_add(place(i) as usize);
            // SAFETY: a piece of these images, aligned to 16.
            raw[i] = unsafe { ld_or_zero_x4(place(i) + piece <= len, p.cast()) };
            i += 1;
        }
        let mut i = 0;
        while i < AHEAD {
            if place(i) < len {
                if place(i) + piece > len {
                    // SAFETY: the elements of the last images.
                    raw[i] =
                        unsafe { E::gather(x.wrapping_add(place(i) as usize), len - place(i)) };
                }
                // SAFETY: the block has memory for its images, in whole pieces.
                unsafe { held.byte_add(place(i) * (16 / piece)).write_x4(raw[i]) };
            }
            i += 1;
        }
        at = opaque(place(AHEAD));
    }
    sync_threads();
    let lane = thread_idx_x() % 8;
    let mut plane = thread_idx_x() / 8;
    while plane < most {
        // Lanes without a plane stay for the shuffles.
        let image = if plane < planes { image } else { 0 };
        let own = held.byte_add((plane * image + lane) * (16 / piece));
        let mut value = if AVG { 0.0 } else { f32::NEG_INFINITY };
        let mut tap = 0;
        while tap + lane < image {
            let own = own.byte_add(tap * (16 / piece));
            let mut u = 0;
            while u < BATCH as u32 {
                // SAFETY: a tap, or what lies behind the images in the memory of the block.
                let bits = unsafe {
                    match E::PIECE {
                        4 => own.add(8 * u).read(),
                        _ => u32::from(own.byte_add(16 * u).cast::<u16>().read_u16()),
                    }
                };
                let v = E::widen([bits, 0, 0, 0])[0];
                let new = if AVG { value + v } else { maximum(value, v) };
                value = if tap + lane + 8 * u < image { new } else { value };
                u += 1;
            }
            tap = opaque(tap + 8 * BATCH as u32);
        }
        let y = y.wrapping_add(first as usize + plane as usize);
        // SAFETY: the output of these lanes.
        unsafe { finish::<E, AVG>(value, u64::from(image), y) };
        plane = opaque(plane + THREADS / 8);
    }
}

/// Pieces of a thread that are asked for before the first is put down.
const AHEAD: usize = 8;

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
