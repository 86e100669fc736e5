//! Whole images, channels first: eight lanes a channel, lane `l` partial `l`.

use contract::pool2d::{Args, STAGE_BYTES, STAGE_TIMES, THREADS};

use super::{BATCH, thread};
use crate::arch::float::maximum;
use crate::arch::mem::{X4, ld_or_zero_x4};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{
    block_idx_x, grid_dim_x, opaque, opaque_u64, sync_threads, thread_idx_x,
};
use crate::arch::warp::shuffle_xor;
use crate::float::Float;

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn whole<E: Float, const AVG: bool>(args: &Args) {
    let x = args.x.cast::<E>().as_ptr().cast_const();
    let y = args.y.cast::<E>().as_ptr();
    let (image, n) = (u64::from(args.h.len) * u64::from(args.w.len), thread());
    let times = args.staged(16 / E::PIECE as u32);
    if times > 0 {
        // SAFETY: handed on.
        return unsafe { staged::<E, AVG>(args, times, x, y) };
    }
    #[cfg(level_sm_80)]
    if image < 1 << 28 {
        // SAFETY: the launch contract; the output of these lanes.
        unsafe {
            let (value, plane) = super::ringed::ringed::<E, AVG>(args, n / 32);
            let image = if plane == u64::MAX { 0 } else { image };
            finish::<E, AVG>(value, image, y.wrapping_add(plane as usize));
        }
        return;
    }
    let (plane, lane) = (n / 8, n % 8);
    // Lanes without a plane stay for the shuffles.
    let all = u64::from(args.images) * u64::from(args.channels);
    let image = if plane < all { image } else { 0 };
    let x = x.wrapping_add((plane * image) as usize);
    // SAFETY: a tap of x[n, c].
    let load = |inside: bool, i: u64| unsafe { E::load_if(inside, x.wrapping_add(i as usize)) };
    let value = taps::<AVG>(image, lane, load);
    // SAFETY: y[n, c] belongs to these lanes.
    unsafe { finish::<E, AVG>(value, image, y.wrapping_add(plane as usize)) };
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
/// bytes, which one is not. The next ones are asked for before these are worked on.
///
/// # Safety
///
/// As for [`whole`], where [`Args::staged`] holds; the grid may have fewer blocks than that takes.
#[inline(always)]
unsafe fn staged<E: Float, const AVG: bool>(args: &Args, times: u32, x: *const E, y: *mut E) {
    let (most, image) = (THREADS / 8 * times, args.h.len * args.w.len);
    let all = u64::from(args.images) * u64::from(args.channels);
    let piece = E::PIECE as u32;
    let held = dynamic_shared_mem::<u32>();
    // Planes from `first` on, and their first element.
    let planes = |first: u64| {
        let left = all.saturating_sub(first);
        let planes = if left < u64::from(most) { left as u32 } else { most };
        (planes, x.wrapping_add(first as usize * image as usize))
    };
    let place = |i: usize| (thread_idx_x() + THREADS * i as u32) * piece;
    let ask = |first: u64| -> [X4<u32>; AHEAD] {
        let (planes, x) = planes(first);
        core::array::from_fn(|i| {
            let there = place(i) + piece <= planes * image;
            // SAFETY: a piece of these images, aligned to 16.
            unsafe { ld_or_zero_x4(there, x.wrapping_add(place(i) as usize).cast()) }
        })
    };
    let mut first = u64::from(block_idx_x()) * u64::from(most);
    let mut next = ask(first);
    while first < all {
        let (planes, x) = planes(first);
        let len = planes * image;
        // SAFETY: the block has memory for its images, in whole pieces; the last one may have fewer elements.
        unsafe {
            let mut i = 0;
            while i < AHEAD {
                if place(i) + piece <= len {
                    held.byte_add(place(i) * (16 / piece)).write_x4(next[i]);
                }
                i += 1;
            }
            let whole = len / piece * piece;
            if whole < len && thread_idx_x() == 0 {
                let rest = E::gather(x.wrapping_add(whole as usize), len - whole);
                held.byte_add(whole * (16 / piece)).write_x4(rest);
            }
        }
        sync_threads();
        let after = first + u64::from(grid_dim_x()) * u64::from(most);
        next = ask(after);
        // SAFETY: the images are there; their outputs belong to this block.
        unsafe { each_plane::<E, AVG>(image, times, planes, y.wrapping_add(first as usize)) };
        sync_threads();
        first = opaque_u64(after);
    }
}

/// The outputs of so many planes that wait in shared memory, `times` of eight lanes.
///
/// # Safety
///
/// The planes are there; `y` is the output of the first.
#[inline(always)]
unsafe fn each_plane<E: Float, const AVG: bool>(image: u32, times: u32, planes: u32, y: *mut E) {
    let held = dynamic_shared_mem::<u32>();
    let (lane, plane) = (thread_idx_x() % 8, thread_idx_x() / 8);
    let bytes = 16 / E::PIECE as u32;
    let own = held.byte_add((plane * image + lane) * bytes);
    let mut values = [if AVG { 0.0 } else { f32::NEG_INFINITY }; TIMES];
    let mut tap = 0;
    while tap + lane < image {
        let mut i = 0;
        while i < TIMES {
            if (i as u32) < times {
                let own = own.byte_add((THREADS / 8 * image * i as u32 + tap) * bytes);
                let mut u = 0;
                while u < TAPS {
                    let at = own.byte_add(8 * u * bytes);
                    let inside = tap + lane + 8 * u < image;
                    // SAFETY: a tap; that of a plane behind the last one is not used.
                    let bits = unsafe {
                        if E::PIECE == 4 { at.read() } else { at.cast::<u16>().read_u16().into() }
                    };
                    let v = E::widen([bits, 0, 0, 0])[0];
                    let new = if AVG { values[i] + v } else { maximum(values[i], v) };
                    values[i] = if inside { new } else { values[i] };
                    u += 1;
                }
            }
            i += 1;
        }
        tap = opaque(tap + 8 * TAPS);
    }
    // The lanes share the planes in halves: plane `i` goes to lane `i`, and the tree over its partials with it.
    let mut len = TIMES;
    while len > 1 {
        len /= 2;
        let upper = lane as usize & len != 0;
        let mut i = 0;
        while i < len {
            let (low, high) = (values[i], values[i + len]);
            let other = shuffle_xor(if upper { low } else { high }, len as u32);
            let keep = if upper { high } else { low };
            values[i] = if AVG { keep + other } else { maximum(keep, other) };
            i += 1;
        }
    }
    let plane = plane + THREADS / 8 * lane;
    if plane < planes {
        let value = if AVG { values[0] / image as f32 } else { values[0] };
        // SAFETY: the output of this thread.
        unsafe { E::store(y.wrapping_add(plane as usize), value) };
    }
}

/// Pieces of a thread that are asked for at once: all of those in shared memory.
const AHEAD: usize = (STAGE_BYTES / (16 * THREADS)) as usize;
/// Taps of a lane at a time.
const TAPS: u32 = 4;
/// Images of eight lanes.
const TIMES: usize = STAGE_TIMES as usize;
const _: () = assert!(TIMES == 8);

/// Taps `first`, `first + 8` and so on of a whole image, which lie in one partial.
#[inline(always)]
fn taps<const AVG: bool>(image: u64, first: u64, load: impl Fn(bool, u64) -> f32) -> f32 {
    let mut value = if AVG { 0.0 } else { f32::NEG_INFINITY };
    let mut tap = first;
    while tap < image {
        let raw: [f32; BATCH] = core::array::from_fn(|u| {
            let i = tap + 8 * u as u64;
            load(i < image, i)
        });
        let mut u = 0;
        while u < BATCH {
            let new = if AVG { value + raw[u] } else { maximum(value, raw[u]) };
            value = if tap + 8 * (u as u64) < image { new } else { value };
            u += 1;
        }
        tap = opaque_u64(tap + 8 * BATCH as u64);
    }
    value
}
