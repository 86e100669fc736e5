//! The results of the key blocks of a head, taken first to last: a warp for 32 elements of a head.
//!
//! The arithmetic of `contract::num::Running`: a lane makes the factors of one key block, then all take the blocks in their order.

use contract::attention::KEY_BLOCK;
use contract::decode_layers::{Args, WARPS, partial_len, tag};
use contract::num::{Running, Weights, exp, max};

use super::exchange::Exchange;
use crate::arch::atomic::ld_relaxed_u64;
use crate::arch::hint::opaque_here;
use crate::arch::thread::{block_idx_x, grid_dim_x};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_idx, shuffle_up, warp_id};

/// Values in flight at once.
const IN_FLIGHT: usize = 8;

/// Reads `N` words marked with `tag`, `step` apart, each as soon as it is there.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// Somebody writes the first `last + 1` of the words with this tag.
#[inline(always)]
unsafe fn take<const N: usize>(from: *const u64, step: usize, last: u32, tag: u32) -> [f32; N] {
    let mut words = [0; N];
    loop {
        let mut missing = false;
        let mut j = 0;
        while j < N {
            // Past the last one it is read again and not used: no branch between the loads.
            // SAFETY: the caller's promise.
            words[j] =
                unsafe { ld_relaxed_u64(from.wrapping_add((j as u32).min(last) as usize * step)) };
            j += 1;
        }
        let mut j = 0;
        while j < N {
            missing |= (words[j] >> 32) as u32 != tag;
            j += 1;
        }
        if ballot(missing) == 0 {
            return words.map(|w| f32::from_bits(w as u32));
        }
    }
}

/// This block's share of the attention output of `layer`.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The launch contract; the blocks of the launch make the partial results of the layer.
#[inline(always)]
pub(super) unsafe fn combine(args: &Args, x: &Exchange, layer: u32, pos: u32, epoch: u32) {
    let shape = args.shape;
    let slices = shape.head_dim.div_ceil(LANES);
    let blocks = pos.saturating_add(1).min(args.capacity).div_ceil(KEY_BLOCK as u32);
    let len = partial_len(shape.head_dim as usize);
    let tag = tag(epoch, shape.layers, layer);
    // Not known to stay: what is made of it would stay in registers over all layers.
    let block = opaque_here(block_idx_x());
    let mut item = block + warp_id() * grid_dim_x();
    while item < shape.heads * slices {
        let (head, slice) = (item / slices, item % slices);
        let d = slice * LANES + lane_id();
        let from = args.partial.as_ptr().cast_const();
        let from = from.wrapping_add((head * args.key_blocks) as usize * len);
        let at = |block: u32, i: u32| from.wrapping_add(block as usize * len + i as usize);
        let (mut running, mut value) = (Running::EMPTY, 0.0);
        let mut first = 0;
        while first < blocks {
            let here = (blocks - first).min(LANES);
            let own = first + lane_id().min(here - 1);
            // SAFETY: results of key blocks of the head.
            let [top, sum] = unsafe { take::<2>(at(own, 0), 1, 1, tag) };
            let factors = factors(running.max, top);
            let mut b = 0;
            while b < here {
                let last = here - b - 1;
                let own = at(first + b, 2 + d.min(shape.head_dim - 1));
                // SAFETY: as above.
                let values = unsafe { take::<IN_FLIGHT>(own, len, last, tag) };
                let mut j = 0;
                while j < IN_FLIGHT {
                    let lane = b + j as u32;
                    let weights = Weights {
                        running: shuffle_idx(factors.running, lane),
                        block: shuffle_idx(factors.block, lane),
                    };
                    let total = weights.combine(running.sum, shuffle_idx(sum, lane));
                    let next = weights.combine(value, values[j]);
                    // Choices and no branch: the next ones do not wait for it.
                    running.sum = if j as u32 <= last { total } else { running.sum };
                    value = if j as u32 <= last { next } else { value };
                    j += 1;
                }
                b += IN_FLIGHT as u32;
            }
            running.max = shuffle_idx(max_up_to(running.max, top), here - 1);
            first += LANES;
        }
        if d < shape.head_dim {
            let at = shape.input(1) + head * shape.head_dim + d;
            // SAFETY: a word of this lane's.
            unsafe { x.put(layer, at, running.finish(value)) };
        }
        item += WARPS * grid_dim_x();
    }
}

/// The largest of `before` and the values of the lanes up to this one. Order cannot matter.
#[inline(always)]
fn max_up_to(before: f32, value: f32) -> f32 {
    let mut top = max(before, value);
    let mut distance = 1;
    while distance < LANES {
        top = max(top, shuffle_up(top, distance));
        distance *= 2;
    }
    top
}

/// The factors of this lane's key block, whose largest score is `top`, behind those of the lanes below it and `before`.
#[inline(always)]
fn factors(before: f32, top: f32) -> Weights {
    let now = max_up_to(before, top);
    let below = shuffle_up(now, 1);
    let below = if lane_id() == 0 { before } else { below };
    Weights { running: exp(below - now), block: exp(top - now) }
}
