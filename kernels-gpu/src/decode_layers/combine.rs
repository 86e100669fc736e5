//! The results of the key blocks of a head, taken first to last: a block for 32 elements of a head.
//!
//! Its warps fetch the results, each those of every eighth key block; then one warp takes them in their order. The arithmetic of
//! `contract::num::Running`: a lane makes the factors of one key block. With attention on tensor cores they are taken relative to the largest of a
//! round, in no such order.

use core::hint::cold_path;

use contract::attention_paged::ABSENT;
use contract::decode_layers::{Args, WARPS, partial_len, tag};
use contract::num::{Running, Weights, exp, fma, max, order_key, order_value};

use super::attention::key_blocks;
use super::exchange::Exchange;
use super::sync;
use crate::arch::atomic::ld_relaxed_x4;
use crate::arch::float::exp2_approx;
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, grid_dim_x};
use crate::arch::warp::{
    LANES, any, lane_id, shuffle_idx, shuffle_up, sync_warp, warp_id, warp_max,
};

/// Key blocks that a warp fetches at once, and all warps together.
const OF_WARP: u32 = 8;
/// Key blocks that a warp fetches with one load, and the steps from its ones to the next.
const OF_LOAD: u32 = 2;
const LOADS: u32 = OF_WARP / OF_LOAD;
const STEP: u32 = OF_LOAD * WARPS;
/// Key blocks that are read at once; twice as many are taken at once. Those past the last one change nothing: by these factors and
/// this value.
const PART: u32 = 4;
const NOTHING: [f32; 4] = [1.0, 1.0, -0.0, 0.0];
const NO_VALUE: f32 = -0.0;
type Part = [([f32; 4], f32); PART as usize];
const ROUND: u32 = OF_WARP * WARPS;
/// Lanes that have two elements of a key block each.
const HALF: u32 = LANES / OF_LOAD;

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
        let stats = values.add((ROUND + PART) * LANES);
        Self { values, stats, factors: stats.add(2 * ROUND) }
    }
}

/// The first item of a block: a head, and behind it, from bit 16 on, which 32 elements of it.
#[inline(always)]
pub(super) fn first(args: &Args) -> u32 {
    let slices = args.shape.head_dim.div_ceil(LANES);
    // From the last block on: the first ones have the key blocks.
    let item = grid_dim_x() - 1 - block_idx_x();
    opaque_here(item / slices | (item % slices) << 16)
}

/// This block's share of the attention output of `layer`, from item `own` on; `idle` starts memory that nobody uses.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// The launch contract; the blocks of the launch make the partial results of the layer.
#[inline(always)]
pub(super) unsafe fn combine<const FAST: bool, const PAGED: bool>(
    args: &Args,
    x: &Exchange,
    idle: Shared<f32>,
    layer: u32,
    pos: u32,
    epoch: u32,
    own: u32,
) {
    let shape = args.shape;
    let slices = shape.head_dim.div_ceil(LANES);
    let blocks = key_blocks::<PAGED>(args, pos);
    let tag = tag(epoch, shape.layers, layer);
    let memory = Memory::at(idle);
    let mut own = own;
    loop {
        let (head, slice) = (own & 0xffff, own >> 16);
        if head >= shape.heads {
            break;
        }
        let d = slice * LANES + lane_id();
        let (mut running, mut value) = (Running::EMPTY, 0.0);
        if PAGED && blocks == 0 && warp_id() == 0 && d < shape.head_dim {
            cold_path();
            let out = if pos == ABSENT { 0.0 } else { f32::NAN };
            // SAFETY: a word of the output is this lane's.
            unsafe { x.put(layer, shape.input(1) + head * shape.head_dim + d, out) };
        }
        let mut first = 0;
        while first < blocks {
            let here = (blocks - first).min(ROUND);
            // SAFETY: results of key blocks of the head; the memory is idle, or the barrier below was passed; a word of the
            // output is this lane's.
            unsafe {
                let pair = (slice * LANES + 2 * (lane_id() % HALF)).min(shape.head_dim - 2);
                fetch(args, memory, head * args.key_blocks + first, here, 2 + pair, tag);
                sync();
                if warp_id() == 0 {
                    if FAST {
                        (running, value) = take_fast(memory, here, running, value);
                    } else {
                        (running, value) = take(memory, here, running, value);
                    }
                    if first + here == blocks && d < shape.head_dim {
                        let at = shape.input(1) + head * shape.head_dim + d;
                        let out = if FAST { value / running.sum } else { running.finish(value) };
                        x.put(layer, at, out);
                    }
                }
                // Nobody reads the memory any more.
                sync();
            }
            first += ROUND;
        }
        let item = head * slices + slice + grid_dim_x();
        own = opaque(item / slices | (item % slices) << 16);
    }
}

/// Brings words `at` and `at + 1` of `here` key blocks from `first` on, their maxima and sums into shared memory, as soon as
/// they are there. Half of a warp has a key block.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// Somebody writes these words with this tag; nobody uses the memory; `at` is even.
#[inline(always)]
unsafe fn fetch(args: &Args, memory: Memory, first: u32, here: u32, at: u32, tag: u32) {
    // Whose values nobody reads: the same for all lanes of a warp.
    let read = here.next_multiple_of(2 * PART);
    if OF_LOAD * warp_id() >= read {
        return;
    }
    // All results are less than 2^32 words.
    let len = 2 * partial_len(args.shape.head_dim as usize) as u32;
    // Those past the last one are the last one. Whether all of a load are past it is the same for all lanes.
    let block = |side: u32, j: u32| (OF_LOAD * warp_id() + side + STEP * j).min(here - 1);
    let some = |j: u32| OF_LOAD * warp_id() + STEP * j < here;
    let side = lane_id() / HALF;
    let own = block(lane_id() % OF_LOAD, lane_id() / OF_LOAD % LOADS);
    // A word of the results is two of four bytes: a value, and what marks it.
    let from = args.partial.as_ptr().cast_const().cast::<u32>();
    let at_block = |block: u32, at: u32| from.wrapping_add(((first + block) * len + at) as usize);
    let word = |j: u32| at_block(block(side, j), 2 * at);
    let absent = |words: [u32; 4]| (words[1] ^ tag) | (words[3] ^ tag);
    let mut words = [[0; 4]; LOADS as usize];
    // SAFETY: the caller's promise.
    unsafe {
        loop {
            // All are asked for before one is looked at.
            let stats = ld_relaxed_x4(at_block(own, 0));
            words[0] = ld_relaxed_x4(word(0));
            if some(1) {
                let mut j = 1;
                while j < LOADS {
                    words[j as usize] = ld_relaxed_x4(word(j));
                    j += 1;
                }
            }
            let mut missing = absent(stats) | absent(words[0]);
            if some(1) {
                let mut j = 1;
                while j < LOADS {
                    missing |= absent(words[j as usize]);
                    j += 1;
                }
            }
            if !any(missing != 0) {
                let stats = [stats[0], stats[2]].map(f32::from_bits);
                memory.stats.add(2 * own).write_x2(stats);
                break;
            }
        }
        let mut j = 0;
        while j < LOADS {
            let block = OF_LOAD * warp_id() + side + STEP * j;
            // The same for both halves of a warp.
            if block < read {
                let [low, _, high, _] = words[j as usize];
                let values = [low, high].map(f32::from_bits);
                let values = if block < here { values } else { [NO_VALUE; 2] };
                memory.values.add(LANES * block + 2 * (lane_id() % HALF)).write_x2(values);
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
        // The factors of all key blocks: a lane has two of them, half a round apart.
        let own = [0, 1].map(|i| (lane_id() + LANES * i).min(here - 1));
        let stats = own.map(|own| memory.stats.add(2 * own).read_x2());
        let [mut low, mut high] = [stats[0][0], stats[1][0]];
        let mut distance = 1;
        while distance < LANES {
            let below = [low, high].map(|top| shuffle_up(top, distance));
            (low, high) = (max(low, below[0]), max(high, below[1]));
            distance *= 2;
        }
        // The largest before each key block, and with it.
        let first = running.max;
        low = max(first, low);
        let half = shuffle_idx(low, LANES - 1);
        high = max(half, high);
        let below = [(low, first), (high, half)].map(|(now, before)| {
            let below = shuffle_up(now, 1);
            if lane_id() == 0 { before } else { below }
        });
        running.max = shuffle_idx(high, LANES - 1);
        let leave = |i: u32, now: f32, below: f32, [top, sum]: [f32; 2]| {
            let block = lane_id() + LANES * i;
            let (by, weight) = (exp(below - now), exp(top - now));
            let factors = [by, weight, sum * weight, 0.0];
            memory.factors.add(4 * block).write_x4(if block < here { factors } else { NOTHING });
        };
        leave(0, low, below[0], stats[0]);
        if here > LANES {
            leave(1, high, below[1], stats[1]);
        }
        sync_warp();
        let load = |first: u32| -> Part {
            core::array::from_fn(|j| {
                let b = first + j as u32;
                let factors = memory.factors.add(4 * b).read_x4();
                (factors, memory.values.add(LANES * b + lane_id()).read())
            })
        };
        let take = |mut running: Running, mut value: f32, part: Part| {
            let mut j = 0;
            while j < PART as usize {
                let ([by, weight, sum, _], of_block) = part[j];
                running.sum = fma(running.sum, by, sum);
                value = Weights { running: by, block: weight }.combine(value, of_block);
                j += 1;
            }
            (running, value)
        };
        // Half a step is always on its way.
        let mut next = load(0);
        let mut b = 0;
        while b < here {
            rolled();
            let half = next;
            next = load(b + PART);
            (running, value) = take(running, value, half);
            let half = next;
            next = load(b + 2 * PART);
            (running, value) = take(running, value, half);
            b = opaque(b + 2 * PART);
        }
    }
    (running, value)
}

/// [`take`], relative to the largest maximum so far, and by way of powers of two that have a bound.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// As for [`take`].
#[inline(always)]
unsafe fn take_fast(memory: Memory, here: u32, running: Running, value: f32) -> (Running, f32) {
    let weight = |top: f32, largest: f32| exp2_approx((top - largest) * core::f32::consts::LOG2_E);
    // SAFETY: words of the round's key blocks, in shared memory.
    unsafe {
        let stats = [0, 1].map(|i| {
            let block = lane_id() + LANES * i;
            let [top, sum] = memory.stats.add(2 * block.min(here - 1)).read_x2();
            if block < here { [top, sum] } else { [f32::NEG_INFINITY, 0.0] }
        });
        let own = max(stats[0][0], stats[1][0]);
        let top = max(running.max, order_value(warp_max(order_key(own))));
        let leave = |i: u32, [own, sum]: [f32; 2]| {
            let weight = weight(own, top);
            let to = memory.factors.add(2 * (lane_id() + LANES * i));
            to.write_x2([weight, sum * weight]);
        };
        leave(0, stats[0]);
        if here > LANES {
            leave(1, stats[1]);
        }
        // Nothing yet: minus infinity.
        let by = weight(running.max, top);
        let (mut sums, mut values) = ([running.sum * by, 0.0], [value * by, 0.0]);
        sync_warp();
        let mut b = 0;
        while b < here {
            rolled();
            // Those past the last one have a weight of 0.
            let part: [([f32; 2], f32); 2 * PART as usize] = core::array::from_fn(|j| {
                let b = b + j as u32;
                let factors = memory.factors.add(2 * b).read_x2();
                (factors, memory.values.add(LANES * b + lane_id()).read())
            });
            let mut j = 0;
            while j < part.len() {
                let ([weight, sum], value) = part[j];
                sums[j % 2] += sum;
                values[j % 2] = fma(value, weight, values[j % 2]);
                j += 1;
            }
            b = opaque(b + 2 * PART);
        }
        (Running { max: top, sum: sums[0] + sums[1] }, values[0] + values[1])
    }
}

const _: () = assert!(ROUND == 2 * LANES && STEP * LOADS == ROUND && OF_LOAD * HALF == LANES);
const _: () = assert!(ROUND.is_multiple_of(2 * PART) && (2 * PART).is_multiple_of(OF_LOAD));
