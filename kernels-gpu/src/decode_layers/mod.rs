//! Device side of [`contract::decode_layers`]: one block for each multiprocessor, all at once, for all layers.
//!
//! A block makes its share of the outputs of every linear layer, as in [`crate::bit_linear`]; its weights are there before the row
//! is ([`weights`]). Rows go between blocks word by word ([`exchange`]); key blocks are dealt out over the blocks
//! ([`attention`]), and their results combined by whoever comes to it ([`combine`]). All linear layers run through the same
//! instructions: those of a whole layer would not stay in the cache.

mod attention;
mod combine;
mod exchange;
mod row;
mod weights;

use core::hint::select_unpredictable;

use contract::activation::Activation;
use contract::bit_linear::{Finish, WARPS};
use contract::decode_layers::{
    AREAS, Args, DecodeLayers, LINEARS, Linear, MAX_HIDDEN, MAX_OUTPUTS, SHARE_WORDS, THREADS,
};
use contract::launch::Kernel;
use contract::w2a8::dequantise;

use crate::act_quant::held::{LONG, SHORT};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mbarrier::{Barrier, init};
use crate::arch::mem::{X4, ld, ld_if, ld_x2, ld_x4, prefetch_l2, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::bit_linear::Tile;
use attention::Attention;
use exchange::Exchange;
use row::Quantised;
use weights::{Share, Weights, multiply};

/// The shared memory of a block, part by part.
#[derive(Clone, Copy)]
struct Memory {
    /// For attention.
    attention: attention::Memory,
    /// Of the norm: one word of each thread; then of the maximum and of the sum, one of each warp.
    scratch: Shared<f32>,
    /// One word of each row of weights; zeros between linear layers.
    sums: Shared<u32>,
    /// The block's share of each linear layer.
    shares: Shared<u32>,
    /// For each area: whether its weights are there.
    full: Barrier,
    /// The quantised row.
    acts: Shared<u8>,
    /// Weights.
    areas: Shared<u8>,
}

impl Memory {
    #[inline(always)]
    fn new() -> Self {
        let attention = attention::Memory::at(dynamic_shared_mem());
        let scratch = attention.end().cast::<f32>();
        let sums = scratch.add(THREADS + 2 * WARPS).cast::<u32>();
        let shares = sums.add(2 * MAX_OUTPUTS);
        let full = shares.add(LINEARS as u32 * SHARE_WORDS).cast::<u64>();
        let acts = full.add(AREAS as u32 + 1).cast::<u8>();
        let areas = acts.add(contract::decode_layers::MAX_FFN as u32);
        Self { attention, scratch, sums, shares, full, acts, areas }
    }
}

/// The entry of linear layer `part` of all.
#[inline(always)]
fn entry(args: &Args, part: u32) -> *const Linear {
    args.linears.as_ptr().cast_const().wrapping_add(part as usize)
}

/// The gain of the norm in front of linear layer `part`, or of the last one.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
unsafe fn norm(args: &Args, part: u32) -> *const f32 {
    let entry = entry(args, part.min(args.shape.layers * LINEARS as u32 - 1));
    // SAFETY: an entry that nobody writes.
    let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*entry).norm).cast()) };
    (u64::from(low) | u64::from(high) << 32) as *const f32
}

/// The scales of the segments of a linear layer: where they end, and the scales as words.
///
/// # Safety
///
/// `entry` is an element of `args.linears`.
#[inline(always)]
unsafe fn segments(entry: *const Linear) -> [X4<u32>; 4] {
    // SAFETY: the fields of an entry that nobody writes, 16 bytes at a time; see the assertion below.
    unsafe {
        let at = (&raw const (*entry).segments).cast::<X4<u32>>();
        [0, 1, 2, 3].map(|i| ld_x4(at.wrapping_add(i)))
    }
}

/// The weight scale of a row.
#[inline(always)]
fn scale_of([e, f, s, t]: [X4<u32>; 4], row: u32) -> f32 {
    let (ends, scales) = ([e, f], [s, t]);
    let mut scale = scales[0][0];
    let mut i = 1;
    while i < 8 {
        // A choice of values: as a branch it would become one of addresses, and the array memory.
        let past = row >= ends[(i - 1) / 4][(i - 1) % 4];
        scale = select_unpredictable(past, scales[i / 4][i % 4], scale);
        i += 1;
    }
    f32::from_bits(scale)
}

/// Brings what a later linear layer reads besides its weights into the second-level cache: its gain `norm` of `k` elements, and
/// the entry of one further on.
///
/// # Safety
///
/// The launch contract.
#[inline(always)]
unsafe fn look_ahead(args: &Args, norm: *const f32, k: u32, part: u32) {
    const LINE: u32 = 128;
    let mut at = LINE * block_idx_x();
    while thread_idx_x() == 0 && !norm.is_null() && at < 4 * k {
        // SAFETY: inside of the gain.
        unsafe { prefetch_l2(norm.wrapping_byte_add(at as usize)) };
        at += LINE * grid_dim_x();
    }
    if block_idx_x() == 0 && thread_idx_x() == 0 && part < args.shape.layers * LINEARS as u32 {
        // SAFETY: an entry of the model.
        unsafe { prefetch_l2(entry(args, part)) };
    }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC`, with `shape.blocks(..)` blocks that all run at once; the pointers cover the
/// contract's table; `exchange` is empty in the set that the launch uses.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn decode_layers(args: Args) {
    let (args, memory) = (&args, Memory::new());
    let shape = args.shape;
    let parts = shape.layers * LINEARS as u32;
    let areas = shape.areas(grid_dim_x());
    // SAFETY: memory of its own, before the barrier.
    unsafe {
        let mut kind = 0;
        while kind < LINEARS {
            let [n, k, rows] = shape.linear(kind);
            let area = match contract::decode_layers::area(kind) {
                0 => areas[0],
                1 => areas[1],
                _ => areas[2],
            };
            let share = Share::new(Tile::of(n, k, rows), k, area);
            share.leave(memory.shares.add(SHARE_WORDS * kind as u32));
            kind = opaque(kind as u32 + 1) as usize; // one loop
        }
        memory.sums.add(thread_idx_x()).write(0);
        memory.sums.add(THREADS + thread_idx_x()).write(0);
        if thread_idx_x() < AREAS as u32 {
            init(memory.full.add(thread_idx_x()), 1);
        }
        memory.attention.init();
    }
    sync_threads();
    // SAFETY: shares and barriers are in shared memory; the weights never change.
    let mut weights = unsafe { Weights::new(args, memory) };
    dependency_wait();

    // SAFETY: words that no running kernel writes but block 0, when all blocks have read them.
    let (pos, epoch) =
        unsafe { (ld(args.start.as_ptr().cast_const()), ld(args.epoch.as_ptr().cast_const())) };
    let x = Exchange::new(args, epoch);
    // SAFETY: the launch contract, handed on.
    let mut attention = unsafe { Attention::new(args, memory.attention, pos, epoch) };
    // SAFETY: the launch contract: the other set belongs to nobody now.
    unsafe { x.empty_other() };
    // SAFETY: left before the barrier.
    let own = unsafe { Share::find(memory, 1) }.tile;
    let has_own = thread_idx_x() < own.outputs;
    let at = args.h.as_ptr().wrapping_add((own.first + thread_idx_x()) as usize);
    // SAFETY: h[first + t], whose only writer is this thread.
    let mut h = unsafe { ld_if(has_own, at.cast_const()) };

    // SAFETY: parts of the model.
    let (mut gain, mut gain_next, mut gain_far) =
        unsafe { (norm(args, 0), norm(args, 1), norm(args, 4)) };
    let mut part = 0;
    while part < parts {
        let (layer, kind) = (part / LINEARS as u32, part % LINEARS as u32);
        let [_, k, rows] = shape.linear(kind as usize);
        // SAFETY: the launch contract, handed on; parts come in their order.
        unsafe {
            let share = Share::find(memory, kind);
            let tile = share.tile;
            let segments = segments(entry(args, part));
            let source = match kind {
                0 if part == 0 => args.h.cast::<u32>().as_ptr().cast_const(),
                0 => x.at(layer - 1, shape.input(LINEARS)),
                _ => x.at(layer, shape.input(kind as usize)),
            };
            let row = if k <= MAX_HIDDEN as u32 {
                take::<SHORT>(args, memory, source, part > 0, gain, k)
            } else {
                take::<LONG>(args, memory, source, part > 0, gain, k)
            };
            multiply(memory, &share, layer, kind);
            sync_threads();
            let mut p = [0.0; 2];
            let own = tile.first + thread_idx_x();
            if thread_idx_x() < tile.outputs {
                let mut r = 0;
                while r < 2 {
                    let sum = memory.sums.add(thread_idx_x() + tile.outputs * r as u32);
                    if (r as u32) < rows {
                        let scale = scale_of(segments, tile.n * r as u32 + own);
                        p[r] = dequantise(sum.read() as i32 - row.sum, row.scale, scale);
                        sum.write(0);
                    }
                    r += 1;
                }
                if kind % 2 == 1 {
                    h += p[0];
                }
                let relu = args.gate == Finish::Relu2 as u32;
                let act = if relu { Activation::Relu2 } else { Activation::Silu };
                let (value, to) = match kind {
                    0 => (p[0], 0),
                    2 => (act.gated(p[0], p[1]), shape.input(3)),
                    _ => (h, shape.input(kind as usize + 1)),
                };
                x.put(layer, to + own, value);
            }
            weights.after(args, memory, part);
            look_ahead(args, gain_far, k, part + 12);
            (gain, gain_next) = (gain_next, norm(args, part + 2));
            gain_far = norm(args, part + 5);
            if kind == 0 {
                attention.layer(&x, layer);
                combine::combine(args, &x, layer, pos, epoch);
            }
        }
        part += 1;
    }
    launch_dependents();
    // Nobody reads the row any more: this block has seen a row that all others have made of it.
    // SAFETY: h[first + t] of this thread; every block has read the number of the launch.
    unsafe {
        if has_own {
            st(at, h);
        }
        if block_idx_x() == 0 && thread_idx_x() == 0 {
            st(args.epoch.as_ptr(), epoch.wrapping_add(1));
        }
    }
}

/// The row of a linear layer, quantised.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// As for [`row::quantise`] and [`exchange::take`]; `gain` is null or starts `k` elements.
#[inline(always)]
unsafe fn take<const HELD: usize>(
    args: &Args,
    memory: Memory,
    source: *const u32,
    waits: bool,
    gain: *const f32,
    k: u32,
) -> Quantised {
    // SAFETY: the caller's promise.
    unsafe {
        let gains: [f32; HELD] = row::gains(gain, k);
        let held = exchange::take::<HELD>(source, k, waits);
        row::quantise(held, gains, !gain.is_null(), k, args.eps, memory)
    }
}

const _: unsafe extern "ptx-kernel" fn(<DecodeLayers as Kernel>::Args) = decode_layers;
const _: () = assert!(
    THREADS as usize * SHORT == MAX_HIDDEN
        && THREADS as usize * LONG == contract::decode_layers::MAX_FFN
        && size_of::<Linear>() == 80
        && core::mem::offset_of!(Linear, segments) == 16
);
