//! Device side of [`contract::decode_layers`]: one block for each multiprocessor, all at once, for all layers.
//!
//! A block makes its share of the outputs of every linear layer, as in [`crate::bit_linear`], with the same queue of weights
//! ([`queue`]), which runs on from layer to layer: the weights of a part are there before its row is. Rows go between blocks
//! word by word ([`exchange`]); key blocks are dealt out over the blocks ([`attention`]).

mod attention;
mod combine;
mod exchange;
mod queue;
mod row;

use core::hint::select_unpredictable;

use contract::activation::Activation;
use contract::bit_linear::{Finish, WARPS};
use contract::decode_layers::{
    Args, DecodeLayers, LINEARS, Linear, MAX_OUTPUTS, SHARE_WORDS, THREADS,
};
use contract::launch::Kernel;
use contract::w2a8::dequantise;

use crate::act_quant::held::{LONG, SHORT};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{X4, ld, ld_if, ld_x2, ld_x4, prefetch_l2, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::bit_linear::Tile;
use crate::bit_linear::product::multiply;
use attention::Attention;
use exchange::Exchange;
use queue::{Queue, Share};

/// The shared memory of a block, part by part.
#[derive(Clone, Copy)]
struct Memory {
    /// Of the norm: one word of each thread; then of the maximum and of the sum, one of each warp.
    scratch: Shared<f32>,
    /// One word of each row of weights; zeros between linear layers.
    sums: Shared<u32>,
    /// The quantised row.
    acts: Shared<u8>,
    /// The block's share of each linear layer.
    shares: Shared<u32>,
    /// For attention.
    attention: attention::Memory,
    /// Weights on their way.
    slots: Shared<u32>,
}

impl Memory {
    #[inline(always)]
    fn new() -> Self {
        let slots: Shared<u32> = dynamic_shared_mem();
        let attention = attention::Memory::at(slots.cast::<u8>().add(contract::decode_layers::QUEUE_BYTES));
        let scratch = attention.end().cast::<f32>();
        let sums = scratch.add(THREADS + 2 * WARPS).cast::<u32>();
        let shares = sums.add(2 * MAX_OUTPUTS);
        let acts = shares.add(LINEARS as u32 * SHARE_WORDS).cast::<u8>();
        Self { scratch, sums, acts, shares, attention, slots }
    }
}

/// What stays the same over all layers.
struct Step<'a> {
    args: &'a Args,
    memory: Memory,
    exchange: Exchange,
}

impl Step<'_> {
    /// The weight scales of this thread's output of a linear layer, and of its factor.
    ///
    /// # Safety
    ///
    /// `entry` is an element of `args.linears`.
    #[inline(always)]
    unsafe fn scales(&self, entry: *const Linear, tile: Tile) -> [f32; 2] {
        let row = tile.first + thread_idx_x();
        // SAFETY: the fields of an entry that nobody writes, 16 bytes at a time; see the assertion below.
        let (ends, scales) = unsafe {
            let at = &raw const (*entry).segments;
            let at = at.cast::<X4<u32>>();
            let ends: [X4<u32>; 2] = [ld_x4(at), ld_x4(at.wrapping_add(1))];
            let scales: [X4<u32>; 2] = [ld_x4(at.wrapping_add(2)), ld_x4(at.wrapping_add(3))];
            (ends, scales)
        };
        [row, tile.n + row].map(|row| {
            let mut scale = scales[0][0];
            let mut i = 1;
            while i < 8 {
                // A choice of values: as a branch it would become one of addresses, and the array memory.
                let past = row >= ends[(i - 1) / 4][(i - 1) % 4];
                scale = select_unpredictable(past, scales[i / 4][i % 4], scale);
                i += 1;
            }
            f32::from_bits(scale)
        })
    }

    /// The products of this thread's output in linear layer `KIND` of `layer`, and of its factor.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The launch contract; `source` starts the row, of which words come one by one when `waits`; `norm` is the gain of
    /// the layer; the queue stands at its first step.
    #[inline(always)]
    unsafe fn linear<const KIND: usize, const HELD: usize>(
        &self,
        queue: &mut Queue,
        layer: u32,
        norm: *const f32,
        source: *const u32,
        waits: bool,
    ) -> [f32; 2] {
        let [_, k, rows] = self.args.shape.linear(KIND);
        let entry = self.args.linears.as_ptr().cast_const();
        let entry = entry.wrapping_add(layer as usize * LINEARS + KIND);
        // SAFETY: the launch contract, handed on; the shares are in shared memory.
        unsafe {
            let share = Share::find(self.memory.shares.add(SHARE_WORDS * KIND as u32));
            let scales = self.scales(entry, share.tile);
            let gains: [f32; HELD] = row::gains(norm, k);
            let held = exchange::take::<HELD>(source, k, waits);
            let row = row::quantise(held, gains, !norm.is_null(), k, self.args.eps, self.memory);
            multiply(queue, self.memory.acts, self.memory.sums, share.tile, share.start, share.end);
            sync_threads();
            let mut out = [0.0; 2];
            if thread_idx_x() < share.tile.outputs {
                let mut r = 0;
                while r < rows as usize {
                    let sum = self.memory.sums.add(thread_idx_x() + share.tile.outputs * r as u32);
                    out[r] = dequantise(sum.read() as i32 - row.sum, row.scale, scales[r]);
                    sum.write(0);
                    r += 1;
                }
            }
            out
        }
    }
}

/// The gains of the norms of a layer.
///
/// # Safety
///
/// `layer` is a layer of `args`.
#[inline(always)]
unsafe fn norms(args: &Args, layer: u32) -> [*const f32; LINEARS] {
    let mut norms = [core::ptr::null(); LINEARS];
    let mut kind = 0;
    while kind < LINEARS {
        let entry = args.linears.as_ptr().cast_const();
        let entry = entry.wrapping_add(layer as usize * LINEARS + kind);
        // SAFETY: an entry that nobody writes.
        let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*entry).norm).cast()) };
        norms[kind] = (u64::from(low) | u64::from(high) << 32) as *const f32;
        kind += 1;
    }
    norms
}

/// Brings what is read of a later layer, besides its weights, into the second-level cache.
///
/// # Safety
///
/// `norms` are the gains of layer `layer - 1`.
#[inline(always)]
unsafe fn look_ahead(args: &Args, layer: u32, norms: &[*const f32; LINEARS]) {
    const LINE: u32 = 128;
    let [a, b, c, d] = *norms;
    let (kind, norm) = match thread_idx_x() {
        0 => (0, a),
        1 => (1, b),
        2 => (2, c),
        _ => (3, d),
    };
    let bytes = 4 * args.shape.linear(kind)[1];
    let mut at = LINE * block_idx_x();
    while thread_idx_x() < LINEARS as u32 && !norm.is_null() && at < bytes {
        // SAFETY: inside of the gains.
        unsafe { prefetch_l2(norm.wrapping_byte_add(at as usize)) };
        at += LINE * grid_dim_x();
    }
    let bytes = (size_of::<Linear>() * LINEARS) as u32;
    let at = LINE * thread_idx_x().wrapping_sub(32);
    if block_idx_x() == 0 && at < bytes && layer < args.shape.layers {
        let entry = args.linears.as_ptr().cast_const().wrapping_add(layer as usize * LINEARS);
        // SAFETY: inside of the entries of a layer.
        unsafe { prefetch_l2(entry.wrapping_byte_add(at as usize)) };
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
    let share = |kind| {
        let [n, k, rows] = shape.linear(kind);
        Share::new(Tile::of(n, k, rows))
    };
    // SAFETY: memory of its own, before the barriers of the first layer.
    unsafe {
        let mut kind = 0;
        while kind < LINEARS {
            share(kind).leave(memory.shares.add(SHARE_WORDS * kind as u32));
            kind = opaque(kind as u32 + 1) as usize; // one loop
        }
        memory.sums.add(thread_idx_x()).write(0);
        memory.sums.add(THREADS + thread_idx_x()).write(0);
        memory.attention.init();
    }
    sync_threads();
    // SAFETY: the shares are in shared memory; the entries never change.
    let mut queue = unsafe { Queue::new(args, memory.slots, memory.shares) };
    queue.fill();
    dependency_wait();

    // SAFETY: words that no running kernel writes but block 0, when all blocks have read them.
    let (pos, epoch) =
        unsafe { (ld(args.start.as_ptr().cast_const()), ld(args.epoch.as_ptr().cast_const())) };
    let step = Step { args, memory, exchange: Exchange::new(args, epoch) };
    // SAFETY: the launch contract, handed on.
    let mut attention = unsafe { Attention::new(args, memory.attention, pos, epoch) };
    // SAFETY: the launch contract: the other set belongs to nobody now.
    unsafe { step.exchange.empty_other() };
    // SAFETY: left before the barrier.
    let own = unsafe { Share::find(memory.shares.add(SHARE_WORDS)) }.tile;
    let has_own = thread_idx_x() < own.outputs;
    let at = args.h.as_ptr().wrapping_add((own.first + thread_idx_x()) as usize);
    // SAFETY: h[first + t], whose only writer is this thread.
    let mut h = unsafe { ld_if(has_own, at.cast_const()) };

    // SAFETY: layers of the model.
    let (mut gains, mut gains_next) = unsafe { (norms(args, 0), norms(args, 1.min(shape.layers - 1))) };
    let mut layer = 0;
    while layer < shape.layers {
        let x = &step.exchange;
        let put = |kind: usize, of: usize, value: f32| {
            // SAFETY: left before a barrier; a word of this thread's.
            unsafe {
                let [_, first, outputs, _] =
                    memory.shares.add(SHARE_WORDS * of as u32).read_x4();
                if thread_idx_x() < outputs {
                    x.put(layer, shape.input(kind) + first + thread_idx_x(), value);
                }
            }
        };
        let source = if layer == 0 {
            args.h.cast::<u32>().as_ptr().cast_const()
        } else {
            x.at(layer - 1, shape.input(LINEARS))
        };
        // SAFETY: the launch contract, handed on; parts in the order of the queue.
        unsafe {
            let [p, _] = step.linear::<0, SHORT>(&mut queue, layer, gains[0], source, layer > 0);
            put(0, 0, p);
            attention.layer(x, layer);
            look_ahead(args, layer + 2, &gains_next);
            combine::combine(args, x, layer, pos, epoch);

            let source = x.at(layer, shape.input(1));
            let [p, _] = step.linear::<1, SHORT>(&mut queue, layer, gains[1], source, true);
            h += p;
            put(2, 1, h);

            let source = x.at(layer, shape.input(2));
            let [gate, up] = step.linear::<2, SHORT>(&mut queue, layer, gains[2], source, true);
            let act =
                if args.gate == Finish::Relu2 as u32 { Activation::Relu2 } else { Activation::Silu };
            put(3, 2, act.gated(gate, up));
            gains[0] = gains_next[0];
            gains[1] = gains_next[1];
            gains[2] = gains_next[2];

            let source = x.at(layer, shape.input(3));
            let [p, _] = step.linear::<3, LONG>(&mut queue, layer, gains[3], source, true);
            h += p;
            put(4, 3, h);
            gains[3] = gains_next[3];
            gains_next = norms(args, (layer + 2).min(shape.layers - 1));
        }
        layer += 1;
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

const _: unsafe extern "ptx-kernel" fn(<DecodeLayers as Kernel>::Args) = decode_layers;
const _: () = assert!(
    THREADS as usize * SHORT == contract::decode_layers::MAX_HIDDEN
        && THREADS as usize * LONG == contract::decode_layers::MAX_FFN
        && size_of::<Linear>() == 80
        && core::mem::offset_of!(Linear, segments) == 16
);
