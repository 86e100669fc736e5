//! The results of the key blocks of a row's heads, taken first to last: a warp for 32 elements of a head.

use contract::attention_paged::ABSENT;
use contract::decode_layers::rows::{Args, WORK_WARPS};
use contract::decode_layers::{partial_len, tag};
use contract::num::{Running, Weights, exp, fma, max};

use super::super::exchange::put;
use super::exchange::Slot;
use super::memory::Memory;
use super::workers;
use crate::arch::atomic::{ld_relaxed_x2_if, ld_relaxed_x4_if};
use crate::arch::hint::{opaque, rolled};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{LANES, any, lane_id, shuffle_idx, shuffle_up, warp_id};

/// Key blocks that are taken at once.
const ROUND: u32 = 16;

/// This block's share of the attention output of `layer`.
///
/// *Convergence*: every thread that makes products calls it.
///
/// # Safety
///
/// The launch contract; the blocks of the launch make the partial results of the layer.
#[inline(always)]
pub(super) unsafe fn combine<const T: usize>(
    args: &Args,
    memory: Memory<T>,
    slot: &Slot<T>,
    layer: u32,
    epoch: u32,
) {
    let shape = args.shape;
    let slices = shape.head_dim.div_ceil(LANES);
    let of_row = shape.heads * slices;
    let tag = tag(epoch, shape.layers, layer);
    // The last blocks and warps come first, as they may have no unit.
    let (blocks, warp) = (workers::<T>(args), WORK_WARPS - 1 - warp_id());
    let mut item = (blocks - 1 - block_idx_x()) + blocks * warp;
    while item < args.m * of_row {
        let (row, rest) = (item / of_row, item % of_row);
        let (head, slice) = (rest / slices, rest % slices);
        // SAFETY: written before a barrier; results of the head; a word of the output is this lane's.
        unsafe {
            let pos = memory.positions.add(row).read();
            let d = slice * LANES + lane_id();
            let value = if pos < args.capacity {
                let first = (row * shape.heads + head) * args.key_blocks;
                let blocks = pos / contract::attention::KEY_BLOCK as u32 + 1;
                of_head(args, first, blocks, d.min(shape.head_dim - 1), tag)
            } else if pos == ABSENT {
                0.0
            } else {
                f32::NAN
            };
            if d < shape.head_dim {
                let at = shape.input(1) + head * shape.head_dim + d;
                put(slot.row(row, at).cast_mut(), value);
            }
        }
        item = opaque(item + blocks * WORK_WARPS);
    }
}

/// Element `d` of a head, of `blocks` key blocks from `first` on.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// Somebody writes these words with this tag.
#[inline(always)]
unsafe fn of_head(args: &Args, first: u32, blocks: u32, d: u32, tag: u32) -> f32 {
    // All results are less than 2^32 words of four bytes: a value, and what marks it.
    let len = 2 * partial_len(args.shape.head_dim as usize) as u32;
    let from = args.partial.as_ptr().cast_const().cast::<u32>();
    let at = |block: u32, word: u32| from.wrapping_add(((first + block) * len + 2 * word) as usize);
    let (mut running, mut value) = (Running::EMPTY, 0.0);
    let mut base = 0;
    while base < blocks {
        rolled();
        let here = (blocks - base).min(ROUND);
        // Lanes past the last one have the last one's.
        let own = base + (lane_id() % ROUND).min(here - 1);
        // SAFETY: the caller's promise.
        let stats_of =
            |missing, words| unsafe { ld_relaxed_x4_if::<0>(missing, words, at(own, 0)) };
        let mut stats = [0, !tag, 0, !tag];
        // What is past the last one changes nothing: factors of 1, and -0 to add.
        let mut values = [[(-0.0f32).to_bits(), !tag]; ROUND as usize];
        loop {
            let mut j = 0;
            while j < ROUND {
                let word = values[j as usize];
                // SAFETY: the caller's promise. All are asked for before one is looked at.
                values[j as usize] = unsafe {
                    ld_relaxed_x2_if((j < here) & (word[1] != tag), word, at(base + j, 2 + d))
                };
                j += 1;
            }
            stats = stats_of(stats[1] != tag || stats[3] != tag, stats);
            let mut missing = stats[1] ^ tag | stats[3] ^ tag;
            let mut j = 0;
            while j < ROUND {
                missing |= if j < here { values[j as usize][1] ^ tag } else { 0 };
                j += 1;
            }
            if !any(missing != 0) {
                break;
            }
        }
        let [top, sum] = [stats[0], stats[2]].map(f32::from_bits);
        // The largest up to each key block; a lane has one of them, and those behind the round do not count.
        let mut most = max(running.max, top);
        let mut distance = 1;
        while distance < ROUND {
            let below = shuffle_up(most, distance);
            most = if lane_id() < distance { most } else { max(below, most) };
            distance *= 2;
        }
        let below = shuffle_up(most, 1);
        let below = if lane_id() == 0 { running.max } else { below };
        let there = lane_id() % ROUND < here;
        let (by, weight) = (exp(below - most), exp(top - most));
        let sum = if there { sum * weight } else { -0.0 };
        let (by, weight) = if there { (by, weight) } else { (1.0, 1.0) };
        let mut first = 0;
        while first < here {
            rolled();
            let mut j = 0;
            while j < ROUND / 2 {
                let factors = [by, weight, sum].map(|factor| shuffle_idx(factor, first + j));
                let of_block = [0, ROUND / 2].map(|half| values[(half + j) as usize][0]);
                let of_block = f32::from_bits(of_block[(first > 0) as usize]);
                running.sum = fma(running.sum, factors[0], factors[2]);
                value = Weights { running: factors[0], block: factors[1] }.combine(value, of_block);
                j += 1;
            }
            first = opaque(first + ROUND / 2);
        }
        running.max = shuffle_idx(most, here - 1);
        base += ROUND;
    }
    running.finish(value)
}
