//! The warps that make no products: they ask for what later parts need, and empty words of the exchange for later layers.

use contract::decode_layers::rows::{ASK_THREADS, Args, GROUPS, KV_SLOTS, WORK_THREADS};
use contract::decode_layers::{LINEARS, Linear};
use contract::w2a8::MAX_SEGMENTS;

use super::super::entries::Entries;
use super::attention::{Attention, Load};
use super::exchange::Exchange;
use super::memory::{Memory, Share};
use super::workers;
use crate::arch::fence::device_fence;
use crate::arch::hint::opaque;
use crate::arch::mbarrier::{arrive_expecting, copy_bulk, copy_bulk_stream, wait};
use crate::arch::thread::{sync_some, thread_idx_x};
use crate::arch::wgmma::proxy_fence;

/// The thread that asks for weights.
pub(super) const ASKS: u32 = WORK_THREADS;

/// Asks, part after part.
///
/// *Convergence*: every thread that asks calls it.
///
/// # Safety
///
/// The launch contract; shares and barriers are in shared memory, the weights of the first layer are asked for; the other threads
/// arrive at `memory.come` in every part.
#[inline(always)]
pub(super) unsafe fn ask_for_all<const T: usize>(
    args: &Args,
    memory: Memory<T>,
    attention: &Attention<T>,
    x: &Exchange<T>,
    linears: &Entries,
) {
    let layers = args.shape.layers;
    // SAFETY: the caller's promise; the slots are empty.
    unsafe { attention.fill(memory, 0, 0, KV_SLOTS) };
    let mut part = 0;
    while part < layers * LINEARS as u32 {
        let (layer, kind) = (part / LINEARS as u32, part % LINEARS as u32);
        // SAFETY: when the rows are there, all that was read before them is idle.
        unsafe {
            let (target, more) = match kind {
                0 | 1 => (part + 2, part),
                2 => (part + 3, part),
                _ => (part + 1, part + 3),
            };
            let from = [linears.weights(target), linears.weights(more)];
            let far = linears.norm(part + LINEARS as u32);
            let k = Share::find(memory, kind).k;
            wait(memory.come.add(kind), layer % 2);
            let load = attention.load(memory);
            if kind == 0 {
                // Down has been made: keys and values take the place of its weights.
                attention.fill(memory, layer, KV_SLOTS, GROUPS);
                if load != Load::Many {
                    // What else is asked for in this part would hold up the queries.
                    wait(memory.turned(), layer % 2);
                }
            }
            // What a part asks for is there before its own outputs are on their way. Gate and up come in attention, but for their first
            // half, which comes in down unless keys and values take that time; down in halves, behind attention and with the output
            // projection; the next layer's output projection and qkv in gate and up and in down.
            let half_before = load != Load::Some;
            if thread_idx_x() == ASKS {
                let halves = match kind {
                    0 => [!half_before, true],
                    1 => [false, true],
                    _ => [true; 2],
                };
                ask_later(layers, memory, linears, target, from[0], halves);
                if kind == 3 && half_before {
                    ask_later(layers, memory, linears, more, from[1], [true, false]);
                }
            }
            let (of_layer, from, to) = match kind {
                2 => (layer + 1, 0, 1),
                3 => (layer + 1, 1, KV_SLOTS),
                _ => (layer, GROUPS, if kind == 0 { u32::MAX } else { 0 }),
            };
            if of_layer < layers {
                attention.fill(memory, of_layer, from, to);
            }
            if kind == 0 {
                let down = part + LINEARS as u32 - 1;
                attention.wait_idle(memory, layer);
                if thread_idx_x() == ASKS {
                    let from = linears.weights(down);
                    ask_later(layers, memory, linears, down, from, [true, false]);
                }
            }
            // All blocks are in this layer: nobody reads words of the layer before the last.
            x.empty_before(memory, layer, kind);
            // What this block makes of weights that are asked for later comes behind it: of down of the next layer at the latest.
            device_fence();
            sync_some(3, ASK_THREADS);
            let asks = thread_idx_x() == ASKS;
            linears.look_ahead(asks, workers::<T>(args), far, k, part + 3 * LINEARS as u32);
        }
        part += 1;
    }
}

/// Asks for linear layer `target` of all, unless it is one of the first layer's that are asked for before all parts, or behind the last.
///
/// # Safety
///
/// As for [`ask`].
#[inline(always)]
unsafe fn ask_later<const T: usize>(
    layers: u32,
    memory: Memory<T>,
    linears: &Entries,
    target: u32,
    from: *const u8,
    halves: [bool; 2],
) {
    if target >= LINEARS as u32 - 1 && target < layers * LINEARS as u32 {
        // SAFETY: the caller's promise.
        unsafe { ask(memory, target % LINEARS as u32, linears.at(target), from, halves) };
    }
}

/// Asks for linear layer `kind` of `entry`, whose weights are at `from`: the first half of its rows (of a gated product: those of the
/// outputs), the second one, or both. By one thread.
///
/// # Safety
///
/// The launch contract; shares and barriers are in shared memory; nobody uses the place of the weights since the last barrier. The
/// first half comes first, or at once.
#[inline(always)]
pub(super) unsafe fn ask<const T: usize>(
    memory: Memory<T>,
    kind: u32,
    entry: *const Linear,
    from: *const u8,
    halves: [bool; 2],
) {
    // SAFETY: rows of the weights, which nobody writes, and their place.
    unsafe {
        let share = Share::find(memory, kind);
        let barrier = memory.full.add(kind);
        let from = from.wrapping_add(share.first as usize * share.stride as usize);
        let middle = share.rows / 2;
        // The factors of a gated product do not follow the outputs.
        let second = if share.rows > share.outputs { share.n } else { middle };
        proxy_fence();
        if halves[0] {
            const SCALES: u32 = 4 * MAX_SEGMENTS as u32;
            arrive_expecting(barrier, share.stride * share.rows + SCALES);
            let scales = (&raw const (*entry).segments.scale).cast::<f32>();
            copy_bulk(memory.scales.add(MAX_SEGMENTS as u32 * kind), scales, SCALES, barrier);
        }
        let mut half = 0;
        while half < 2 {
            if if half == 0 { halves[0] } else { halves[1] } {
                let (mut row, end) = if half == 0 { (0, middle) } else { (middle, share.rows) };
                let mut from = from.wrapping_add((half * second) as usize * share.stride as usize);
                // At once where they stand together here too.
                let step = if share.turn == 0 { end - row } else { 1 };
                let bytes = step * share.stride;
                while row < end {
                    let to = memory.areas.add(share.area + row * share.stride);
                    let turn = share.turn * (row % 2);
                    copy_bulk_stream(to.add(turn), from, bytes - turn, barrier);
                    if turn > 0 {
                        let rest = from.wrapping_add((bytes - turn) as usize);
                        copy_bulk_stream(to, rest, turn, barrier);
                    }
                    from = from.wrapping_add(share.stride as usize);
                    row = opaque(row + step); // one loop
                }
            }
            half = opaque(half + 1); // one loop
        }
    }
}
