//! Device side of [`contract::decode_layers`]: one block for each multiprocessor, all at once, for all layers.
//!
//! A block makes its share of the outputs of every linear layer, as in [`crate::bit_linear`]; its weights are there before the row
//! is ([`weights`]), for which it has warps of their own ([`ahead`]). Rows go between blocks word by word ([`exchange`]); key blocks are dealt out over the blocks
//! ([`attention`]), and their results combined by whoever comes to it ([`combine`]). All linear layers run through the same
//! instructions: those of a whole layer would not stay in the cache.

mod ahead;
mod attention;
mod combine;
mod entries;
mod exchange;
mod product;
mod row;
mod rows;
mod weights;

use core::hint::cold_path;

use contract::activation::Activation;
use contract::bit_linear::Finish;
use contract::decode_layers::{
    Args, DecodeLayers, DecodeLayersFast, DecodeLayersPaged, DecodeLayersPagedFast, FIXED_BYTES,
    KV_SLOT_BYTES, KV_SLOTS, LINEARS, MAX_FFN, MAX_HIDDEN, MAX_OUTPUTS, SHARE_WORDS, THREADS,
    WARPS,
};
use contract::launch::Kernel;
use contract::w2a8::Divisor;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier::{Barrier, arrive, init};
use crate::arch::mem::{ld, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::{give_registers, take_registers};
use attention::Attention;
use entries::{norm, scales, segments};
use exchange::{Exchange, put};
use weights::{Share, multiply};

/// Elements of a row that a thread holds: of rows up to `MAX_HIDDEN`, and of longer ones.
const SHORT: usize = 10;
const LONG: usize = 28;

/// The named barrier of the threads that have a row; of the first team of several, which have the next ones.
const TEAM_BARRIER: u32 = 1;

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
    /// For each linear layer: whether its row is there.
    come: Barrier,
    /// The quantised row.
    acts: Shared<u8>,
    /// Weights.
    areas: Shared<u8>,
}

impl Memory {
    #[inline(always)]
    fn new() -> Self {
        Self::at(dynamic_shared_mem())
    }

    /// The same, of which the optimiser does not know it.
    #[inline(always)]
    fn again(self) -> Self {
        Self::at(dynamic_shared_mem::<u8>().add(opaque_here(0)))
    }

    #[inline(always)]
    fn at(start: Shared<u8>) -> Self {
        let attention = attention::Memory::at(start);
        let scratch = attention.end().cast::<f32>();
        let sums = scratch.add(THREADS + 2 * WARPS).cast::<u32>();
        let shares = sums.add(2 * MAX_OUTPUTS);
        let full = shares.add(LINEARS as u32 * SHARE_WORDS).cast::<u64>();
        let come = full.add(LINEARS as u32);
        let acts = come.add(LINEARS as u32).cast::<u8>();
        let areas = start.add(KV_SLOTS * KV_SLOT_BYTES + FIXED_BYTES);
        Self { attention, scratch, sums, shares, full, come, acts, areas }
    }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC`, with `shape.blocks(..)` blocks that all run at once; the pointers cover the
/// contract's table; `exchange` is empty in the set that the launch uses.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn decode_layers(args: Args) {
    // SAFETY: the caller's promise.
    unsafe { layers::<false, false>(&args) }
}

/// # Safety
///
/// As for [`decode_layers`], of a shape with heads of [`contract::decode_layers::FAST_HEAD_DIM`] elements.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn decode_layers_fast(args: Args) {
    // SAFETY: the caller's promise.
    unsafe { layers::<true, false>(&args) }
}

/// # Safety
///
/// As for [`decode_layers`]; the table covers the capacity, and no entry of it is written meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn decode_layers_paged(args: Args) {
    // SAFETY: the caller's promise.
    unsafe { layers::<false, true>(&args) }
}

/// # Safety
///
/// As for [`decode_layers_paged`] and [`decode_layers_fast`].
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn decode_layers_paged_fast(args: Args) {
    // SAFETY: the caller's promise.
    unsafe { layers::<true, true>(&args) }
}

/// All layers; `FAST` is attention on tensor cores, `PAGED` over pages.
///
/// # Safety
///
/// As for the kernels.
#[inline(always)]
unsafe fn layers<const FAST: bool, const PAGED: bool>(args: &Args) {
    let memory = Memory::new();
    let shape = args.shape;
    let parts = shape.layers * LINEARS as u32;
    let areas = shape.areas(grid_dim_x());
    let mut own_segments = 0;
    // SAFETY: memory of its own, before the barrier.
    unsafe {
        // A warp for each linear layer, a lane for the steps of each warp.
        if warp_id() < LINEARS as u32 {
            let kind = warp_id() as usize;
            let area = match kind {
                0 => areas[0],
                1 => areas[1],
                2 => areas[2],
                _ => areas[3],
            };
            let share = Share::new(&shape, kind, area, lane_id());
            share.leave(memory.shares.add(SHARE_WORDS * kind as u32));
        }
        if thread_idx_x() < THREADS {
            memory.sums.add(thread_idx_x()).write(0);
            memory.sums.add(THREADS + thread_idx_x()).write(0);
        }
        if thread_idx_x() < LINEARS as u32 {
            init(memory.full.add(thread_idx_x()), 1);
            init(memory.come.add(thread_idx_x()), THREADS);
        }
        memory.attention.init();
        if PAGED && thread_idx_x() == 0 {
            memory.attention.scale().write(args.scale);
        }
    }
    sync_threads();
    if thread_idx_x() >= THREADS {
        give_registers::<{ ahead::FEW_REGISTERS }>();
        // SAFETY: the launch contract, handed on; shares and barriers are in shared memory; the weights never change.
        unsafe {
            weights::ask_first(args, memory);
            dependency_wait();
            let (pos, epoch) = counters(args);
            ahead::ask_for_all::<FAST, PAGED>(args, memory, [pos, epoch]);
        }
        launch_dependents();
        return;
    }
    take_registers::<{ ahead::MANY_REGISTERS }>();
    // SAFETY: the shares are in shared memory; parts of the model.
    unsafe {
        entries::look_ahead_first(args);
        let mut kind = 0;
        while kind < LINEARS as u32 {
            own_segments |= segments(args, kind, Share::find(memory, kind).tile) << (6 * kind);
            kind += 1;
        }
    }
    // SAFETY: parts of the model.
    let (mut gain_next, mut scales_next) =
        unsafe { (norm(args, 0), scales(args, 0, own_segments)) };
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    let (pos, epoch) = unsafe { counters(args) };
    let x = Exchange::new(args, epoch);
    let first_item = combine::first(args);
    if PAGED && thread_idx_x() == 0 {
        // SAFETY: read behind barriers of the first part.
        unsafe { memory.attention.item().write(first_item) };
    }
    let attention = Attention::<FAST, PAGED>::new(args, pos, epoch, grid_dim_x());
    // SAFETY: the shares are in shared memory; h[first + t], whose only writer is this thread.
    let mut h = match unsafe { own_row(memory) } {
        // SAFETY: the same.
        Some(row) => unsafe { ld(args.h.as_ptr().cast_const().wrapping_add(row as usize)) },
        None => 0.0,
    };

    let relu = opaque_here(u32::from(args.gate == Finish::Relu2 as u32));
    let mut part = 0;
    while part < parts {
        let (layer, kind) = (part / LINEARS as u32, part % LINEARS as u32);
        // Anew in each part: addresses that stay the same over all parts would stay in registers.
        let memory = memory.again();
        // SAFETY: the launch contract, handed on; parts come in their order.
        unsafe {
            let share = Share::find(memory, kind);
            let (tile, k) = (share.tile, share.k);
            // Of the first part: `h`.
            let source = x.at(if kind == 0 { layer.max(1) - 1 } else { layer }, share.input);
            let start = args.h.as_ptr().cast_const();
            let gain = gain_next;
            // Asked for a part ahead and before the weights, behind which they would come.
            let weight_scales = scales_next;
            let (next, next_kind) = ((part + 1).min(parts - 1), (kind + 1) % LINEARS as u32);
            scales_next = scales(args, next, own_segments >> (6 * next_kind));
            gain_next = norm(args, part + 1);
            // The row is there: now memory may be busy with what comes later. By every thread: one of a warp would do, and is
            // no faster, but racecheck orders what the others read by their own arrival alone.
            let come = || arrive(memory.come.add(kind));
            let first = weights::first(memory, &share, layer, kind);
            let scale = if k <= MAX_HIDDEN as u32 {
                let gains = row::gains::<_, 1>(gain, k);
                let of_k = row::of_k(k);
                let row = if part > 0 {
                    exchange::take::<SHORT, 1>(source, k)
                } else {
                    row::start::<_, 1>(start, k)
                };
                come();
                row::quantise::<_, 1>(row, gains, !gain.is_null(), [k, of_k], args.eps, memory)
            } else {
                // Never the first part, nor the one behind attention.
                let gains = row::gains::<_, 1>(gain, k);
                let of_k = row::of_k(k);
                let row = exchange::take::<LONG, 1>(source, k);
                come();
                row::quantise::<_, 1>(row, gains, !gain.is_null(), [k, of_k], args.eps, memory)
            };
            multiply(memory, &share, first);
            let makes = thread_idx_x() < tile.outputs;
            // Before the barrier: what comes after it is on the way of the row.
            let mut ready = ([0; 2], [0; 2], 0);
            if makes {
                let at = x.at(layer, share.output + tile.first + thread_idx_x()) as u64;
                // Behind the outputs are their factors, or zeros.
                let sums =
                    [0, 1].map(|r| memory.sums.add(thread_idx_x() + tile.outputs * r).addr());
                ready = (
                    [at as u32, (at >> 32) as u32].map(opaque_here),
                    sums.map(opaque_here),
                    opaque_here(row::sum(memory) as u32) as i32,
                );
            }
            sync();
            if makes {
                let ([low, high], sums, of_row) = ready;
                let at = u64::from(low) | u64::from(high) << 32;
                let sums = sums.map(|at| memory.sums.byte_add(at.wrapping_sub(memory.sums.addr())));
                let p = scale.divide(sums.map(|sum| sum.read() as i32 - of_row));
                let p = [p[0] * weight_scales[0], p[1] * weight_scales[1]];
                if kind % 2 == 1 {
                    h += p[0];
                }
                // The same instructions for all: those that run once a layer are not in the cache.
                let mut gated = Activation::Relu2.gated(p[0], p[1]);
                if relu == 0 {
                    gated = gated_silu(p);
                }
                let value = if kind % 2 == 1 { h } else { p[0] };
                let value = if kind == 2 { gated } else { value };
                put(at as *mut u32, value);
                sums[0].write(0);
                sums[1].write(0);
            }
            if kind == 0 {
                let caches = attention::caches(args, layer);
                attention.layer(&x, layer, memory.attention, caches);
                let idle = memory.attention.idle();
                let first = if PAGED { memory.attention.item().read() } else { first_item };
                combine::combine::<FAST, PAGED>(args, &x, idle, layer, pos, epoch, first);
            }
        }
        part += 1;
    }
    launch_dependents();
    // Nobody reads the row any more: this block has seen a row that all others have made of it.
    // SAFETY: h[first + t] of this thread; every block has read the number of the launch.
    unsafe {
        if let Some(row) = own_row(memory) {
            st(args.h.as_ptr().wrapping_add(row as usize), h);
        }
        if block_idx_x() == 0 && thread_idx_x() == 0 {
            st(args.epoch.as_ptr(), epoch.wrapping_add(1));
        }
    }
}

/// Position of the row and number of the launch.
///
/// # Safety
///
/// The launch contract; the kernels in front of this one have ended, and this block has put no word of part 2 yet.
#[inline(always)]
unsafe fn counters(args: &Args) -> (u32, u32) {
    // SAFETY: words that no running kernel writes but block 0, when a row of every block came.
    unsafe { (ld(args.start.as_ptr().cast_const()), ld(args.epoch.as_ptr().cast_const())) }
}

/// Waits for the threads that have the row, as [`sync_threads`] does for all.
///
/// *Convergence*: each of them calls it.
#[inline(always)]
fn sync() {
    sync_some(TEAM_BARRIER, THREADS);
}

/// The gated product where its activation is the rarer one.
#[inline(always)]
fn gated_silu([gate, up]: [f32; 2]) -> f32 {
    cold_path();
    Activation::Silu.gated(gate, up)
}

/// `acc / scale` of each; scales that are not ordinary are a branch of their own.
#[inline(always)]
fn divide(divisor: &Divisor, acc: [i32; 2]) -> [f32; 2] {
    let [a, b] = acc;
    let [a, b, ..] = if divisor.is_ordinary() {
        divisor.divide4_ordinary([a, b, b, b])
    } else {
        let b = opaque_here(b as u32) as i32;
        divisor.divide4([a, b, b, b])
    };
    [a, b]
}

/// This thread's element of the residual stream, if it has one.
///
/// # Safety
///
/// The shares are in shared memory.
#[inline(always)]
unsafe fn own_row(memory: Memory) -> Option<u32> {
    // SAFETY: the caller's promise.
    let tile = unsafe { Share::find(memory, 1) }.tile;
    (thread_idx_x() < tile.outputs).then_some(tile.first + thread_idx_x())
}

const _: unsafe extern "ptx-kernel" fn(<DecodeLayers as Kernel>::Args) = decode_layers;
const _: unsafe extern "ptx-kernel" fn(<DecodeLayersFast as Kernel>::Args) = decode_layers_fast;
const _: unsafe extern "ptx-kernel" fn(<DecodeLayersPaged as Kernel>::Args) = decode_layers_paged;
const _: unsafe extern "ptx-kernel" fn(<DecodeLayersPagedFast as Kernel>::Args) =
    decode_layers_paged_fast;
const _: () = assert!(
    THREADS as usize * SHORT == MAX_HIDDEN
        && THREADS as usize * LONG == MAX_FFN
        && THREADS == MAX_OUTPUTS
);
