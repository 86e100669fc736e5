//! Device side of [`contract::decode_layers::rows`]: the layers of several rows, a sequence each: up to eight, or up to sixteen in two tiles.
//!
//! As for one row, but a row is normed and quantised by one block only, which hands it on as bytes ([`exchange`]): all blocks read all
//! rows, so that what each reads has to be small. The rows are the columns of the products ([`product`]), whose warps read what they
//! multiply straight from the exchange. Pages of the sequences are dealt out over the blocks ([`attention`]).

mod ahead;
mod attention;
mod combine;
mod exchange;
mod memory;
mod product;
mod unit;

use contract::attention_paged::ABSENT;
use contract::bit_linear::Finish;
use contract::decode_layers::rows::{
    Args, DecodeLayersRows, DecodeLayersRows16, ROUNDS, Tiles, WORK_THREADS, WORK_WARPS,
};
use contract::decode_layers::{LINEARS, MAX_HIDDEN, THREADS, WARPS};
use contract::launch::Kernel;
use contract::w2a8::{Divisor, MAX_SEGMENTS};

use super::entries::{Entries, segments_of};
use super::exchange::{put, take};
use super::{LONG, SHORT, divide, gated_silu, row};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mbarrier::{arrive, wait};
use crate::arch::mem::{ld, st};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::warp_id;
use attention::Attention;
use contract::activation::Activation;
use exchange::Exchange;
use memory::{Memory, Share};

/// # Safety
///
/// The launch obeys the kernel's `SPEC`, with `shape.rows_blocks(..)` blocks that all run at once; the pointers cover the
/// contract's table; `exchange` and `acts` are as the launch before left them, or empty.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn decode_layers_rows(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { layers::<1, 2>(&args) };
}

/// # Safety
///
/// As for [`decode_layers_rows`].
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn decode_layers_rows16(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { layers::<2, 1>(&args) };
}

/// All layers of up to `T` tiles of rows, `SETS` sets of rows of weights at a time.
///
/// # Safety
///
/// As for [`decode_layers_rows`].
#[inline(always)]
unsafe fn layers<const T: usize, const SETS: usize>(args: &Args) {
    let memory = Memory::<T>::new();
    let shape = args.shape;
    let parts = shape.layers * LINEARS as u32;
    let linears = Entries::new(args.linears, parts);
    let blocks = workers::<T>(args);
    // SAFETY: memory of its own, before the barrier.
    unsafe { memory.init(&shape, [block_idx_x().min(blocks - 1), blocks]) };
    sync_threads();
    if block_idx_x() >= blocks {
        // A team of threads for each of its rows.
        let team = thread_idx_x() / THREADS;
        let m = (block_idx_x() - blocks) * T as u32 + team;
        if team < T as u32 && m < args.m {
            dependency_wait();
            // SAFETY: the launch contract, handed on.
            unsafe { quantise_row(args, memory.team(team), &linears, m) };
        }
        // No thread of a block has ended while others come to its barriers.
        sync_threads();
        launch_dependents();
        return;
    }
    // SAFETY: shares and barriers are in shared memory; the weights never change.
    unsafe {
        if thread_idx_x() >= WORK_THREADS {
            if thread_idx_x() == ahead::ASKS {
                // The weights of down follow the keys and values in their place.
                let mut kind = 0;
                while kind < LINEARS as u32 - 1 {
                    let from = linears.weights(kind);
                    ahead::ask(memory, kind, linears.at(kind), from, [true; 2]);
                    kind = opaque(kind + 1); // one loop
                }
            }
        } else {
            // The segments of the rows of weights: the same in every layer of the model.
            let mut kind = 0;
            while kind < LINEARS as u32 {
                let share = Share::find(memory, kind);
                let mut i = thread_idx_x();
                while i < share.outputs {
                    let at = share.first + i;
                    let found = segments_of(linears.at(kind), [at, share.n + at]);
                    memory.segments.add(max_outputs::<T>() * kind + i).write_u8(found as u8);
                    i += WORK_THREADS;
                }
                kind += 1;
            }
        }
    }
    dependency_wait();

    // SAFETY: words that no running kernel writes but block 0, when a row of every block came.
    let epoch = unsafe { ld(args.epoch.as_ptr().cast_const()) };
    // SAFETY: a position of each row; words of a thread each.
    unsafe {
        if thread_idx_x() < const { Tiles(T as u32).rows() } {
            let at = (thread_idx_x() * args.position_stride) as usize;
            let mut pos = ABSENT;
            if thread_idx_x() < args.m {
                pos = ld(args.positions.as_ptr().cast_const().wrapping_add(at));
            }
            memory.positions.add(thread_idx_x()).write(pos);
        }
        if thread_idx_x() == 0 {
            memory.gate().write(args.gate);
        }
    }
    sync_threads();
    let x = Exchange::<T>::new(args, epoch);
    let attention = Attention::new(args, memory, epoch);
    sync_threads();
    if thread_idx_x() >= WORK_THREADS {
        // SAFETY: the launch contract, handed on.
        unsafe { ahead::ask_for_all(args, memory, &attention, &x, &linears) };
        launch_dependents();
        return;
    }
    // SAFETY: the shares are in shared memory; an element of `h`, whose only writer is this thread.
    let mut h = match unsafe { own_element::<T>(args, memory) } {
        // SAFETY: the same.
        Some(at) => unsafe { ld(args.h.as_ptr().cast_const().wrapping_add(at)) },
        None => 0.0,
    };
    let mut part = 0;
    while part < parts {
        let (layer, kind) = (part / LINEARS as u32, part % LINEARS as u32);
        let memory = memory.again();
        // SAFETY: the launch contract, handed on; parts come in their order.
        unsafe {
            let (share, slot) = (Share::find(memory, kind), x.slot(memory, layer));
            let scales_of = |round: u32| {
                let own =
                    max_outputs::<T>() * kind + own_output::<T>(round).min(max_outputs::<T>() - 1);
                let segments = memory.segments.add(own).cast::<i8>().read_i8() as u32;
                let scales = memory.scales.add(MAX_SEGMENTS as u32 * kind);
                [segments % 8, segments / 8 % 8].map(|segment| scales.add(segment).read())
            };
            let sums = memory.sums(kind);
            // What the warps multiply is there: so the row of every block is.
            let come = || arrive(memory.come.add(kind));
            product::multiply::<T, SETS>(args, memory, &slot, &share, [layer, kind], sums, come);
            // With several tiles there are no registers for what only the outputs need.
            let (share, slot) = if T > 1 {
                let memory = memory.again();
                (Share::find(memory, kind), x.slot(memory, layer))
            } else {
                (share, slot)
            };
            let stats = memory.stats.add(part % 2 * const { Tiles(T as u32).stat_words() });
            if warp_id() == WORK_WARPS - 1 {
                if share.groups < WORK_WARPS {
                    // Not before the rows: the others' way to the cache stays free.
                    wait(memory.come.add(kind), layer % 2);
                }
                slot.fetch_stats(kind, args.m, stats);
            }
            let row = own_row::<T>();
            let scales = scales_of(0);
            sync_work();
            let (scale, of_row) = exchange::stats(stats, row);
            let divisor = Divisor::new(scale);
            let (of_tile, column) = product::tile_of::<T>(kind, row);
            // What is made of the sums of an output and of its factor: without factors the second sum is the first one.
            let own_sums = |output: u32| {
                let factor = output + share.rows - share.outputs;
                [output, factor].map(|i| sums.add(of_tile + product::sum_at(i, column)))
            };
            let value_of = |acc: [u32; 2], scales: [f32; 2]| {
                let acc = acc.map(|sum| (sum as i32 >> product::SHIFT).wrapping_sub(of_row));
                let p = divide(&divisor, acc);
                [p[0] * scales[0], p[1] * scales[1]]
            };
            let mut finish = |round: u32, output: u32, p: [f32; 2]| {
                let mut value = p[0];
                if kind == 2 {
                    value = Activation::Relu2.gated(p[0], p[1]);
                    if memory.gate().read() != Finish::Relu2 as u32 {
                        value = gated_silu(p);
                    }
                } else if kind % 2 == 1 && round == 0 {
                    h += p[0];
                    value = h;
                }
                put(slot.row(row, share.output + share.first + output).cast_mut(), value);
            };
            let wanted = |output: u32| output < share.outputs && row < args.m;
            if T == 1 {
                let mut round = 0;
                while round < ROUNDS {
                    rolled();
                    let output = own_output::<T>(round);
                    if wanted(output) {
                        let own = own_sums(output);
                        let acc = own.map(|sum| sum.read());
                        own[0].write(0);
                        own[1].write(0);
                        let scales = if round == 0 { scales } else { scales_of(round) };
                        finish(round, output, value_of(acc, scales));
                    }
                    round = opaque(round + 1); // one loop
                }
            } else {
                // Both at once: neither waits for the other. Who has a second one has a first one.
                let outputs = [0, 1].map(|round| own_output::<T>(round));
                if wanted(outputs[0]) {
                    let first = own_sums(outputs[0]);
                    let own =
                        [first, if wanted(outputs[1]) { own_sums(outputs[1]) } else { first }];
                    let acc = own.map(|own| own.map(|sum| sum.read()));
                    let p = [value_of(acc[0], scales), value_of(acc[1], scales_of(1))];
                    own[0][0].write(0);
                    own[0][1].write(0);
                    finish(0, outputs[0], p[0]);
                    if wanted(outputs[1]) {
                        own[1][0].write(0);
                        own[1][1].write(0);
                        finish(1, outputs[1], p[1]);
                    }
                }
            }
            if kind == 0 {
                attention.attend(&slot, layer, memory);
                combine::combine(args, memory, &slot, layer, epoch);
            }
        }
        part += 1;
    }
    launch_dependents();
    // Nobody reads the rows any more: this block has seen rows that all others have made of them.
    // SAFETY: an element of this thread; every block has read the number of the launch.
    unsafe {
        if let Some(at) = own_element::<T>(args, memory) {
            st(args.h.as_ptr().wrapping_add(at), h);
        }
        if block_idx_x() == 0 && thread_idx_x() == 0 {
            st(args.epoch.as_ptr(), epoch.wrapping_add(1));
        }
    }
}

/// Blocks that make outputs: those behind them quantise.
#[inline(always)]
fn workers<const T: usize>(args: &Args) -> u32 {
    grid_dim_x() - Tiles(T as u32).quantisers(args.m)
}

/// Most outputs of a block in a linear layer.
#[inline(always)]
const fn max_outputs<const T: usize>() -> u32 {
    const { Tiles(T as u32).max_outputs() }
}

/// Norms and quantises row `m` for all linear layers, part after part, as soon as it is there.
///
/// *Convergence*: [`THREADS`] threads of a block call it.
///
/// # Safety
///
/// The launch contract; shares are in shared memory.
#[inline(always)]
unsafe fn quantise_row<const T: usize>(args: &Args, memory: Memory<T>, linears: &Entries, m: u32) {
    // SAFETY: a word that no running kernel writes but block 0, when a row of every block came.
    let epoch = unsafe { ld(args.epoch.as_ptr().cast_const()) };
    let x = Exchange::<T>::new(args, epoch);
    // SAFETY: an entry of the model.
    let mut gain_next = unsafe { linears.norm(0) };
    let mut part = 0;
    while part < args.shape.layers * LINEARS as u32 {
        let (layer, kind) = (part / LINEARS as u32, part % LINEARS as u32);
        // SAFETY: the caller's promise: a row that somebody makes, or one that the launch starts with.
        unsafe {
            let Share { k, input, acts, .. } = Share::find(memory, kind);
            let before = if kind == 0 { layer.max(1) - 1 } else { layer };
            let source = x.slot(memory, before).row(m, input);
            let of_k = row::of_k(k);
            let way = x.slot(memory, layer).way([kind, acts], m);
            let gain = gain_next;
            // A part ahead: its loads wait for nothing then.
            gain_next = linears.norm(part + 1);
            let scale = if k <= MAX_HIDDEN as u32 {
                let gains = row::gains::<_, T>(gain, k);
                let row = if part > 0 {
                    take::<SHORT, T>(source, k)
                } else {
                    let start = (m * args.shape.hidden) as usize;
                    row::start::<_, T>(args.h.as_ptr().cast_const().wrapping_add(start), k)
                };
                row::quantise::<_, T>(row, gains, !gain.is_null(), [k, of_k], args.eps, memory.row)
            } else {
                let gains = row::gains::<_, T>(gain, k);
                let row = take::<LONG, T>(source, k);
                row::quantise::<_, T>(row, gains, !gain.is_null(), [k, of_k], args.eps, memory.row)
            };
            way.publish(memory.row, k, scale.value);
        }
        part = opaque(part + 1);
    }
}

/// Which of the block's outputs this thread makes in round `round`, of its row.
#[inline(always)]
fn own_output<const T: usize>(round: u32) -> u32 {
    let own = const { Tiles(T as u32).max_own() };
    // It would stay in a register over all parts.
    opaque_here(thread_idx_x()) % own + round * own
}

/// The row of this thread's outputs.
#[inline(always)]
fn own_row<const T: usize>() -> u32 {
    opaque_here(thread_idx_x()) / const { Tiles(T as u32).max_own() }
}

/// Waits for the threads that make products.
///
/// *Convergence*: each of them calls it.
#[inline(always)]
fn sync_work() {
    sync_some(2, WORK_THREADS);
}

/// This thread's element of the residual streams, if it has one.
///
/// # Safety
///
/// The shares are in shared memory.
#[inline(always)]
unsafe fn own_element<const T: usize>(args: &Args, memory: Memory<T>) -> Option<usize> {
    // SAFETY: the caller's promise.
    let share = unsafe { Share::find(memory, 1) };
    let (output, row) = (own_output::<T>(0), own_row::<T>());
    let there = thread_idx_x() < WORK_THREADS && output < share.outputs && row < args.m;
    there.then_some((row * args.shape.hidden + share.first + output) as usize)
}

const _: unsafe extern "ptx-kernel" fn(<DecodeLayersRows as Kernel>::Args) = decode_layers_rows;
const _: unsafe extern "ptx-kernel" fn(<DecodeLayersRows16 as Kernel>::Args) = decode_layers_rows16;
const _: () = assert!(WORK_WARPS >= WARPS && THREADS == 32 * WARPS);
