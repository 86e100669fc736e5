//! The results of the key blocks of a head, taken first to last: a block for 32 elements of a head.
//!
//! Its warps fetch the results, each those of every eighth key block; then one warp takes them in their order. The arithmetic of
//! `contract::num::Running`: a lane makes the factors of one key block.

use contract::attention::KEY_BLOCK;
use contract::decode_layers::{Args, WARPS, partial_len, tag};
use contract::num::{Running, Weights, exp, max};

use super::exchange::Exchange;
use crate::arch::atomic::ld_relaxed_u64;
use crate::arch::hint::opaque_here;
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_threads};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_idx, shuffle_up, sync_warp, warp_id};

/// Key blocks that a warp fetches at once, and all warps together.
const OF_WARP: u32 = 8;
const ROUND: u32 = OF_WARP * WARPS;

/// Shared memory: the values of a round, 32 of each key block; their maxima and sums; their factors.
#[derive(Clone, Copy)]
struct Memory {
    values: Shared<f32>,
    stats: Shared<f32>,
    factors: Shared<f32>,
}

impl Memory {
    #[inline(always)]
    fn at(values: Shared<f32>) -> Self {
        let stats = values.add(ROUND * LANES);
        Self { values, stats, factors: stats.add(2 * ROUND) }
    }
}

/// This block's share of the attention output of `layer`; `idle` starts memory that nobody uses.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The launch contract; the blocks of the launch make the partial results of the layer.
#[inline(always)]
pub(super) unsafe fn combine(
    args: &Args,
    x: &Exchange,
    idle: Shared<f32>,
    layer: u32,
    pos: u32,
    epoch: u32,
) {
    let shape = args.shape;
    let slices = shape.head_dim.div_ceil(LANES);
    let blocks = pos.saturating_add(1).min(args.capacity).div_ceil(KEY_BLOCK as u32);
    let tag = tag(epoch, shape.layers, layer);
    let memory = Memory::at(idle);
    // From the last block on: the first ones have the key blocks. Not known to stay: what is made of it would stay in registers
    // over all layers.
    let mut item = grid_dim_x() - 1 - opaque_here(block_idx_x());
    while item < shape.heads * slices {
        let (head, slice) = (item / slices, item % slices);
        let d = slice * LANES + lane_id();
        let (mut running, mut value) = (Running::EMPTY, 0.0);
        let mut first = 0;
        while first < blocks {
            let here = (blocks - first).min(ROUND);
            // SAFETY: results of key blocks of the head; the memory is idle, or the barrier below was passed.
            unsafe {
                let d = d.min(shape.head_dim - 1);
                fetch(args, memory, head * args.key_blocks + first, here, 2 + d, tag);
                sync_threads();
                if warp_id() == 0 {
                    (running, value) = take(memory, here, running, value);
                }
                // Nobody reads the memory any more.
                sync_threads();
            }
            first += ROUND;
        }
        if warp_id() == 0 && d < shape.head_dim {
            let at = shape.input(1) + head * shape.head_dim + d;
            // SAFETY: a word of this lane's.
            unsafe { x.put(layer, at, running.finish(value)) };
        }
        item += grid_dim_x();
    }
}

/// Brings word `at` of `here` key blocks from `first` on, their maxima and sums into shared memory, as soon as they are there.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// Somebody writes these words with this tag; nobody uses the memory.
#[inline(always)]
unsafe fn fetch(args: &Args, memory: Memory, first: u32, here: u32, at: u32, tag: u32) {
    // No key block for this warp: the same for all of its lanes.
    if warp_id() >= here {
        return;
    }
    let len = partial_len(args.shape.head_dim as usize);
    let from = args.partial.as_ptr().cast_const().wrapping_add(first as usize * len);
    // Key blocks of this warp: the same for all of its lanes.
    let count = (here - warp_id()).div_ceil(WARPS);
    let block = |j: u32| warp_id() + WARPS * j;
    let own = block((lane_id() % OF_WARP).min(count - 1));
    let stat = lane_id() / OF_WARP % 2;
    let stat_at = from.wrapping_add(own as usize * len + stat as usize);
    let from = from.wrapping_add(at as usize);
    let mut words = [0; OF_WARP as usize];
    // SAFETY: the caller's promise.
    unsafe {
        loop {
            let of_stat = ld_relaxed_u64(stat_at);
            let mut j = 0;
            while j < OF_WARP {
                if j < count {
                    words[j as usize] = ld_relaxed_u64(from.wrapping_add(block(j) as usize * len));
                }
                j += 1;
            }
            let mut missing = (of_stat >> 32) as u32 != tag;
            let mut j = 0;
            while j < OF_WARP {
                missing |= j < count && (words[j as usize] >> 32) as u32 != tag;
                j += 1;
            }
            if ballot(missing) == 0 {
                memory.stats.add(2 * own + stat).write(f32::from_bits(of_stat as u32));
                break;
            }
        }
        let mut j = 0;
        while j < OF_WARP {
            if j < count {
                let to = memory.values.add(LANES * block(j) + lane_id());
                to.write(f32::from_bits(words[j as usize] as u32));
            }
            j += 1;
        }
    }
}

/// Takes `here` key blocks into the running results.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// They were fetched before a barrier; only this warp uses the memory.
#[inline(always)]
unsafe fn take(memory: Memory, here: u32, mut running: Running, mut value: f32) -> (Running, f32) {
    // SAFETY: words of the round's key blocks, in shared memory.
    unsafe {
        let mut first = 0;
        while first < here {
            let own = (first + lane_id()).min(here - 1);
            let [top, sum] = [0, 1].map(|i| memory.stats.add(2 * own + i).read());
            let now = max_up_to(running.max, top);
            let below = shuffle_up(now, 1);
            let below = if lane_id() == 0 { running.max } else { below };
            if first + lane_id() < here {
                let factors = [exp(below - now), exp(top - now), sum, 0.0];
                memory.factors.add(4 * own).write_x4(factors);
            }
            running.max = shuffle_idx(now, LANES - 1);
            first += LANES;
        }
        sync_warp();
        let mut take = |b: u32| {
            let [running_by, block_by, sum, _]: [f32; 4] = memory.factors.add(4 * b).read_x4();
            let weights = Weights { running: running_by, block: block_by };
            running.sum = weights.combine(running.sum, sum);
            value = weights.combine(value, memory.values.add(LANES * b + lane_id()).read());
        };
        let mut b = 0;
        while b + OF_WARP <= here {
            let mut j = 0;
            while j < OF_WARP {
                take(b + j);
                j += 1;
            }
            b += OF_WARP;
        }
        while b < here {
            take(b);
            b += 1;
        }
    }
    (running, value)
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
