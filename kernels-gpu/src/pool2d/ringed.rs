//! Whole images, channels first, too large and too few for the other ways: those of a warp come to its shared memory slice by slice, lane `l` of eight
//! has the taps that lie `l` places behind a multiple of eight, counted from an aligned piece.

use contract::pool2d::{Args, RING, RING_SLICE, RING_STAGE};

use crate::arch::async_copy::{commit_group, copy_x16_part, wait_group};
use crate::arch::float::maximum;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::warp::{LANES, lane_id, sync_warp, warp_id};
use crate::float::Float;

/// Taps of a lane at a time.
const TAPS: u32 = 16;

/// What this lane has of an image, and which one that is; lanes without one have none of its taps.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`, images have less than 2^28 elements; the block has the shared memory
/// of the contract, `number` is that of this warp in the grid.
#[inline(always)]
pub(super) unsafe fn ringed<E: Float, const AVG: bool>(args: &Args, number: u64) -> (f32, u64) {
    let size = 16 / E::PIECE as u32;
    let (image, each) = (args.h.len * args.w.len, args.ringed());
    let all = u64::from(args.images) * u64::from(args.channels);
    let first = number * u64::from(each);
    // Pieces of an image in a slice, and slices that an image may touch.
    let bits = (RING_SLICE / 16 / each).trailing_zeros();
    let (bytes, pieces) = (image * size, 1 << bits);
    let steps = (bytes + 14).div_ceil(16).div_ceil(pieces);
    let pitch = RING_SLICE / each + 32;
    let held = dynamic_shared_mem::<u32>().byte_add(warp_id() * RING * RING_STAGE);
    let lane = lane_id();
    let x = args.x.as_ptr().cast_const();
    let start = |own: u32| x.wrapping_add(((first + u64::from(own)) * u64::from(bytes)) as usize);
    let ask = |step: u32| {
        let stage = held.byte_add(step % RING * RING_STAGE);
        let mut i = 0;
        while i < RING_SLICE / 16 / LANES && step < steps {
            let piece = lane + LANES * i;
            let (own, j) = (piece >> bits, piece & (pieces - 1));
            let from = start(own);
            let shift = from as usize as u32 & 15;
            let at = (step * pieces + j) * 16;
            // Of the image, and what is in front of it.
            if first + u64::from(own) < all && at < shift + bytes {
                let rest = if shift + bytes - at < 16 { shift + bytes - at } else { 16 };
                let from = from.wrapping_sub(shift as usize).wrapping_add(at as usize);
                // SAFETY: so many bytes of the tensor, or of the piece that its first element is in; a place of this lane.
                unsafe { copy_x16_part(stage.byte_add(own * pitch + j * 16), from, rest) };
            }
            i += 1;
        }
        commit_group();
    };
    let (own, slot) = (lane / 8, lane % 8);
    let there = own < each && first + u64::from(own) < all;
    let own = if there { own } else { 0 };
    let shift = (start(own) as usize as u32 & 15) / size;
    let nothing = if AVG { 0.0 } else { f32::NEG_INFINITY };
    let mut value = nothing;
    let mut step = 0;
    while step + 1 < RING {
        ask(step);
        step += 1;
    }
    let len = pieces * E::PIECE as u32;
    let mut step = 0;
    while step < steps {
        wait_group::<{ RING - 2 }>();
        // Also: all are done with the slice that the next one takes the place of.
        sync_warp();
        ask(step + RING - 1);
        let at: Shared<u32> = held.byte_add(step % RING * RING_STAGE + own * pitch + slot * size);
        let load = |tap: u32, inside: &dyn Fn(u32) -> bool| -> [f32; TAPS as usize] {
            core::array::from_fn(|i| {
                let i = tap + 8 * i as u32;
                // A slice of one of many images has fewer taps than are read at a time.
                let here = i < len;
                let at = at.byte_add(if here { i * size } else { 0 });
                // SAFETY: a tap that has come, or what is beside it, of a slice.
                let bits = unsafe {
                    if E::PIECE == 4 { at.read() } else { at.cast::<u16>().read_u16().into() }
                };
                let v = E::widen([bits, 0, 0, 0])[0];
                if here && inside(i) { v } else { nothing }
            })
        };
        // The next taps are asked for before these are taken.
        let mut take = |inside: &dyn Fn(u32) -> bool| {
            let mut next = load(0, inside);
            let mut tap = 0;
            while tap < len {
                let taps = next;
                tap += 8 * TAPS;
                if tap < len {
                    next = load(tap, inside);
                }
                let mut i = 0;
                while i < taps.len() {
                    value = if AVG { value + taps[i] } else { maximum(value, taps[i]) };
                    i += 1;
                }
            }
        };
        if step == 0 || step + 2 >= steps {
            take(&|i| (step * len + i + slot).wrapping_sub(shift) < image);
        } else {
            take(&|_| true);
        }
        step += 1;
    }
    wait_group::<0>();
    (value, if there { first + u64::from(own) } else { u64::MAX })
}
