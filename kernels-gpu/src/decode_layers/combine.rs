//! The results of the key blocks of a head, taken first to last: a warp for 32 elements of a head.

use contract::attention::KEY_BLOCK;
use contract::bit_linear::WARPS;
use contract::decode_layers::{Args, partial_len, tag};
use contract::num::{BlockSum, Running, Weights};

use super::exchange::Exchange;
use crate::arch::atomic::ld_relaxed_u64;
use crate::arch::thread::{block_idx_x, grid_dim_x};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_idx, warp_id};

/// Values in flight at once.
const IN_FLIGHT: usize = 8;

/// Reads `N` words marked with `tag`, `step` apart, each as soon as it is there.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// Somebody writes the words with this tag.
#[inline(always)]
unsafe fn take<const N: usize>(from: *const u64, step: usize, last: u32, tag: u32) -> [f32; N] {
    let mut words = [0; N];
    loop {
        let mut missing = false;
        let mut j = 0;
        while j < N {
            // Past the last one it is read again and not used: no branch between the loads.
            // SAFETY: the caller's promise.
            words[j] = unsafe { ld_relaxed_u64(from.wrapping_add((j as u32).min(last) as usize * step)) };
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
    let mut item = block_idx_x() + warp_id() * grid_dim_x();
    while item < shape.heads * slices {
        let (head, slice) = (item / slices, item % slices);
        let d = slice * LANES + lane_id();
        let from = args.partial.as_ptr().cast_const();
        let from = from.wrapping_add((head * args.key_blocks) as usize * len);
        let (mut running, mut value) = (Running::EMPTY, 0.0);
        let mut first = 0;
        while first < blocks {
            let here = (blocks - first).min(LANES);
            let at = |block: u32, i: u32| from.wrapping_add(block as usize * len + i as usize);
            let own = first + lane_id().min(here - 1);
            // SAFETY: results of key blocks of the head.
            let [top, sum] = unsafe { take::<2>(at(own, 0), 1, 1, tag) };
            let mut b = 0;
            while b < here {
                let last = here - b - 1;
                let own = at(first + b, 2 + d.min(shape.head_dim - 1));
                // SAFETY: as above.
                let values = unsafe { take::<IN_FLIGHT>(own, len, last, tag) };
                let mut j = 0;
                while j < IN_FLIGHT {
                    let block = BlockSum {
                        max: shuffle_idx(top, b + j as u32),
                        sum: shuffle_idx(sum, b + j as u32),
                    };
                    if (j as u32) <= last {
                        let weights: Weights = running.take(block);
                        value = weights.combine(value, values[j]);
                    }
                    j += 1;
                }
                b += IN_FLIGHT as u32;
            }
            first += LANES;
        }
        if d < shape.head_dim {
            // SAFETY: a word of this lane's.
            unsafe { x.put(layer, shape.input(1) + head * shape.head_dim + d, running.finish(value)) };
        }
        item += WARPS * grid_dim_x();
    }
}
