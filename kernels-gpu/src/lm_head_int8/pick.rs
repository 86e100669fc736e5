//! The next token of an input by a cluster of blocks: the logits of the rows that can win, by [`lm_head`](crate::lm_head)'s own dot, and what the
//! sampler draws from them, with no trip through memory in between. From sm_90.
//!
//! Where the best is all that is asked, the scan has listed rows, and those that reach the last floor are computed. Else the rows whose upper
//! bound reaches the floor are taken in two steps: first about as many as are wanted, those of the largest bounds. The `wanted`-th largest of their logits is
//! a better floor than any bound; of the others those that reach it are computed, a quarter in noise.
//! Where rows do not fit, all logits that can win go through memory, as the sampler's; where every logit was computed, they are there.

mod memory;

use contract::launch::Kernel;
use contract::lm_head_int8::{
    Args, Asked, BARRED, CANDIDATES, CLUSTER_THREADS, GROUP, LIST_HEAD, PickArgs, PickBf16,
    PickF16, PickF32, first_rows, floor_of, groups, pick_blocks,
};
use contract::num::{PARTIALS, order_key, order_value};
use contract::sample::{self, SHORT_LIST, rank_index, rank_of};

use memory::{Memory, best_of_block, kth};

use super::{asked, ended, input_stats, listed, wanted};
use crate::arch::atomic::max_u64_relaxed;
use crate::arch::cluster::{cluster_rank, leave_cluster, read_of, sync_cluster};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{X4, ld, ld_if, ld_u8_if, ld_x2_if, ld_x4, ld_x4_if, st};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_y, sync_threads, thread_idx_x};
use crate::arch::warp::{
    LANES, any, lane_id, shuffle_idx, shuffle_xor_u64, warp_id, warp_max, warp_sum,
};
use crate::element::{Bf16, Element, F16};
use crate::lm_head::{OWN, Steps, dot_near, load_steps};
use crate::sample::draw::Asked as Drawn;
use crate::sample::gather::column;
use crate::sample::list::of_listed;
use crate::sample::team::{Alone, Cluster};
use crate::sample::{advance, pick as pick_from_all};

const WARPS: u32 = CLUSTER_THREADS / LANES;
/// Four bounds of a thread, in flight.
const IN_FLIGHT: usize = 8;

const _: () = assert!(GROUP == LANES && SHORT_LIST == CLUSTER_THREADS && 4 * IN_FLIGHT == 32);

/// The logit of row `id`, as the sampler takes it, in every lane. `STEPS` steps of 256 weights are in flight.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for a table of `E`; `id` is a row of it; `x` is the input, written before a barrier.
#[inline(always)]
unsafe fn logit<E: Element, const STEPS: usize>(
    (args, x): (&Args, Shared<f32>),
    asked: &Asked,
    id: u32,
) -> f32 {
    let (k, own) = (args.k as usize, OWN * lane_id() as usize);
    let table = args.w.cast::<E>().as_ptr().cast_const();
    let row = table.wrapping_add(id as usize * args.stride as usize + own);
    // SAFETY: a row of K elements, from element 8 lane; x has K; the row is one of the vocabulary.
    unsafe {
        let steps: Steps<E, STEPS, 1> = load_steps([row], 0, (k / PARTIALS) as u32);
        // With a penalty of 1 no marks count.
        let marks = args.marks.as_ptr().cast_const().wrapping_add(id as usize);
        let marks = ld_u8_if(asked.penalty != 1.0, marks);
        asked.adjust(dot_near(row, steps, x, k), marks)
    }
}

/// Computes the logits of the first `count` rows of `now`, a warp for each, and calls `made(i, row, key)` in one lane.
///
/// *Convergence*: every thread of the block calls it, behind a barrier.
///
/// # Safety
///
/// They are rows of the table; the pointers of `args` cover the contract's table for a table of `E`; the input is in shared memory.
#[inline(always)]
unsafe fn compute<E: Element, const STEPS: usize>(
    (args, memory): (&Args, Memory),
    asked: &Asked,
    now: Shared<u32>,
    count: u32,
    mut made: impl FnMut(u32, u32, u32),
) {
    let mut entry = warp_id();
    while entry < count {
        // SAFETY: an entry below `count`; a row of the table.
        let (row, x) = unsafe {
            let row = now.add(entry).read();
            (row, logit::<E, STEPS>((args, memory.x), asked, row))
        };
        if lane_id() == 0 {
            made(entry, row, order_key(x));
        }
        entry += WARPS;
    }
}

/// The best of the rows that the scan has listed.
///
/// *Convergence*: every thread of the cluster calls it.
///
/// # Safety
///
/// As for [`pick`]; the counts are 0.
#[inline(always)]
unsafe fn best_of_list<E: Element, const STEPS: usize>(
    (args, sample): (&Args, &sample::Args),
    asked: &Asked,
    memory: Memory,
    [floor, count]: [u32; 2],
) {
    let blocks = pick_blocks(args.m);
    let list = args.scratch().as_ptr().cast_const().wrapping_add(LIST_HEAD as usize);
    let mut entry = cluster_rank() + blocks * thread_idx_x();
    while entry < count {
        // SAFETY: an entry of the list.
        let [row, key] = unsafe { ld_x2_if(true, list.wrapping_add(2 * entry as usize).cast()) };
        if key >= floor {
            // SAFETY: a place for this row alone: there is one for each of the list.
            unsafe { memory.now.add(memory.next(1)).write(row) };
        }
        entry += blocks * CLUSTER_THREADS;
    }
    sync_threads();
    let mut best = 0;
    // SAFETY: counted before the barrier; rows of the table.
    unsafe {
        let count = memory.count(1);
        compute::<E, STEPS>((args, memory), asked, memory.now, count, |_, row, key| {
            best = rank_of(key, row).max(best);
        });
        best = best_of_block(memory, best);
        if thread_idx_x() == 0 {
            memory.best(0).write_u64(best);
        }
        sync_cluster();
    }
    if cluster_rank() == 0 && warp_id() == 0 {
        let words = memory.best(0).cast::<u32>();
        let rank = lane_id().min(blocks - 1);
        // SAFETY: written before the barrier; the block stays until the next.
        let mut best = unsafe {
            u64::from(read_of(rank, words)) | u64::from(read_of(rank, words.add(1))) << 32
        };
        let mut distance = LANES / 2;
        while distance > 0 {
            best = best.max(shuffle_xor_u64(best, distance));
            distance /= 2;
        }
        if lane_id() == 0 {
            // SAFETY: a token; all others have read what changes, before the barrier of the cluster.
            unsafe { advance(sample, rank_index(best)) };
        }
    }
    leave_cluster();
}

/// Copies the input into shared memory; it is there behind a barrier.
///
/// # Safety
///
/// `x` covers the contract's table; nobody reads what is there.
#[inline(always)]
unsafe fn keep_input(args: &Args, memory: Memory) {
    let mut first = thread_idx_x();
    while first < args.k {
        let values: [f32; 5] = core::array::from_fn(|j| {
            let at = first + CLUSTER_THREADS * j as u32;
            // SAFETY: at < K.
            unsafe { ld_if(at < args.k, args.x.as_ptr().cast_const().wrapping_add(at as usize)) }
        });
        let mut j = 0;
        while j < values.len() {
            let at = first + CLUSTER_THREADS * j as u32;
            if at < args.k {
                // SAFETY: a place of this thread.
                unsafe { memory.x.add(at).write(values[j]) };
            }
            j += 1;
        }
        first += CLUSTER_THREADS * values.len() as u32;
    }
}

/// The largest lower bound of this thread's groups.
///
/// # Safety
///
/// `input` covers the contract's table.
#[inline(always)]
unsafe fn own_top(args: &Args) -> u32 {
    let (end, mut top) = (groups(args.vocab), 0u32);
    let mut group = thread_idx_x();
    while group < end {
        let keys: [u32; 8] = core::array::from_fn(|j| {
            let at = group + CLUSTER_THREADS * j as u32;
            let key = args.scratch().as_ptr().cast_const().wrapping_add(at as usize);
            // SAFETY: at < end.
            unsafe { ld_if(at < end, key) }
        });
        top = keys.into_iter().fold(top, u32::max);
        group += 8 * CLUSTER_THREADS;
    }
    top
}

/// The bounds of rows `at .. at + 4`, as far as there are such; `at` is a multiple of 4.
///
/// # Safety
///
/// `bounds` covers the contract's table.
#[inline(always)]
unsafe fn four_bounds(args: &Args, at: u32) -> X4<f32> {
    let bounds = args.bounds.as_ptr().cast_const().wrapping_add(at as usize);
    // SAFETY: below the vocabulary; a row of a multiple of four starts on 16 bytes.
    unsafe {
        if args.vocab.is_multiple_of(4) {
            ld_x4_if(at < args.vocab, bounds.cast())
        } else {
            core::array::from_fn(|i| ld_if(at + (i as u32) < args.vocab, bounds.wrapping_add(i)))
        }
    }
}

/// Draws from the rows whose upper bounds reach the floor. Whether they do not fit: then all that can win is left for the sampler.
///
/// *Convergence*: every thread of the cluster calls it.
///
/// # Safety
///
/// As for [`pick`]; the counts are 0.
#[inline(always)]
unsafe fn draw_of_bounds<E: Element, const STEPS: usize>(
    (args, sample): (&Args, &sample::Args),
    asked: &Asked,
    memory: Memory,
    wanted: u32,
) -> bool {
    let (blocks, thread) = (pick_blocks(args.m), thread_idx_x());
    let floor = {
        // SAFETY: the launch contract, handed on; a word of this thread.
        unsafe {
            memory.made.add(thread).write(own_top(args));
            // What is forbidden is not computed.
            floor_of(kth(memory, memory.made, wanted)).max(BARRED + 1)
        }
    };
    // This block's rows: four a thread of each 2,048 a block.
    let step = 4 * CLUSTER_THREADS * blocks;
    let mut row = 4 * (CLUSTER_THREADS * cluster_rank() + thread);
    let mut own_top = 0;
    while row - 4 * thread < args.vocab {
        // SAFETY: `bounds` covers the contract's table.
        let uppers: [X4<f32>; IN_FLIGHT] =
            core::array::from_fn(|j| unsafe { four_bounds(args, row + step * j as u32) });
        // A bit for each that reaches the floor. Few do: those are read again.
        let (mut reach, mut j) = (0, 0);
        while j < 4 * IN_FLIGHT {
            reach |= u32::from(order_key(uppers[j / 4][j % 4]) >= floor) << j;
            j += 1;
        }
        while reach != 0 {
            let j = reach.trailing_zeros();
            reach &= reach - 1;
            let at = row + step * (j / 4) + j % 4;
            if at < args.vocab {
                // SAFETY: at < vocab; a place for this row alone.
                unsafe {
                    let key =
                        order_key(ld(args.bounds.as_ptr().cast_const().wrapping_add(at as usize)));
                    own_top = key.max(own_top);
                    let place = memory.next(0);
                    if place < CANDIDATES {
                        memory.rows.add(place).write(at);
                        memory.keys.add(place).write(key);
                    }
                }
            }
        }
        row += step * IN_FLIGHT as u32;
    }
    // The first rows, by the largest bounds.
    let room = SHORT_LIST / blocks;
    // SAFETY: a word of this thread; counted before a barrier of `kth`; candidates were written before it.
    let (found, chosen) = unsafe {
        memory.made.add(thread).write(own_top);
        let least = kth(memory, memory.made, first_rows(wanted, blocks).min(room));
        let found = memory.count(0);
        let mut i = thread;
        while i < found.min(CANDIDATES) {
            if memory.keys.add(i).read() >= least {
                let place = memory.next(1);
                if place < room {
                    memory.now.add(place).write(memory.rows.add(i).read());
                    memory.rows.add(i).write(u32::MAX);
                }
            }
            i += CLUSTER_THREADS;
        }
        memory.made.add(thread).write(0);
        sync_threads();
        (found, memory.count(1).min(room))
    };
    // SAFETY: rows of the table; a word of each.
    unsafe {
        compute::<E, STEPS>((args, memory), asked, memory.now, chosen, |i, _, key| {
            memory.made.add(i).write(key);
        });
        sync_cluster();
        // Keys of all blocks: `room` of each.
        let (of, i) = (thread / room, thread % room);
        let key = if of < blocks { read_of(of, memory.made.add(i)) } else { 0 };
        memory.all.add(thread).write(key);
    }
    // SAFETY: words written before the barrier; places of one row each.
    let rest = unsafe {
        // At least `wanted` logits reach it.
        let better = kth(memory, memory.all, wanted).max(floor);
        if thread < chosen {
            memory.list(memory.made.add(thread).read(), memory.now.add(thread).read(), better);
        }
        let mut i = thread;
        while i < found.min(CANDIDATES) {
            let row = memory.rows.add(i).read();
            if row != u32::MAX && memory.keys.add(i).read() >= better {
                memory.now.add(chosen + memory.next(2)).write(row);
            }
            i += CLUSTER_THREADS;
        }
        sync_threads();
        compute::<E, STEPS>(
            (args, memory),
            asked,
            memory.now.add(chosen),
            memory.count(2),
            |_, row, key| {
                memory.list(key, row, better);
            },
        );
        sync_cluster();
        // How many each block lists, in a lane.
        let of = lane_id().min(blocks - 1);
        [read_of(of, memory.counts.add(3)), read_of(of, memory.counts)]
    };
    let [own, found] = if lane_id() < blocks { rest } else { [0; 2] };
    let total = warp_sum(own as i32) as u32;
    if total == 0 || total > SHORT_LIST || any(found > CANDIDATES) {
        sync_cluster(); // all have read the counts
        // Where nothing may be picked all of them stand for it.
        let floor = if total == 0 { 0 } else { floor };
        // SAFETY: as above.
        unsafe { through_memory::<E, STEPS>(args, asked, memory, floor) };
        return true; // the whole cluster
    }
    if cluster_rank() != 0 {
        leave_cluster();
        return false; // every thread of the block
    }
    // The entry's block, and its place there.
    let (mut of, mut at, mut block) = (0, thread, 0);
    while block + 1 < blocks {
        let count = shuffle_idx(own, block);
        if of == block && at >= count {
            (of, at) = (of + 1, at - count);
        }
        block += 1;
    }
    let mut best = 0;
    if thread < total {
        let entry = memory.short.add(2 * at);
        // SAFETY: an entry of that block's list; a place of this thread.
        unsafe {
            let (key, row) = (read_of(of, entry), read_of(of, entry.add(1)));
            column(0).add(thread).write(key);
            column(1).add(thread).write(row);
            best = rank_of(key, row);
        }
    }
    leave_cluster();
    // SAFETY: the launch contract, handed on; the columns were written before a barrier, and nobody else reads what changes.
    unsafe {
        let best = best_of_block(memory, best);
        let drawn = Drawn::of(sample, order_value((best >> 32) as u32));
        let token = of_listed(Alone, sample, rank_index(best), &drawn, (total, true));
        if thread == 0 {
            advance(sample, token.unwrap_or(rank_index(best)));
        }
    }
    false
}

/// Leaves what `sample_prepare` does of the rows that reach the floor.
///
/// *Convergence*: every thread of the cluster calls it, behind a barrier.
///
/// # Safety
///
/// As for [`pick`]; nobody uses shared memory.
#[inline(always)]
unsafe fn through_memory<E: Element, const STEPS: usize>(
    args: &Args,
    asked: &Asked,
    memory: Memory,
    floor: u32,
) {
    let thread = thread_idx_x();
    let mut first = CLUSTER_THREADS * cluster_rank();
    let mut best = 0;
    while first < args.vocab {
        let row = first + thread;
        let inside = row < args.vocab;
        // SAFETY: row < vocab; words of this thread, a place for this row alone.
        unsafe {
            if thread == 0 {
                memory.counts.add(1).write(0);
            }
            memory.made.add(thread).write(order_key(f32::NEG_INFINITY));
            sync_threads();
            let bound = args.bounds.as_ptr().cast_const().wrapping_add(row as usize);
            if inside && order_key(ld_if(inside, bound)) >= floor {
                memory.now.add(memory.next(1)).write(row);
            }
            sync_threads();
            let count = memory.count(1);
            compute::<E, STEPS>((args, memory), asked, memory.now, count, |_, row, key| {
                memory.made.add(row - first).write(key);
                best = rank_of(key, row).max(best);
            });
            sync_threads();
            let key = memory.made.add(thread).read();
            let top = warp_max(if inside { key } else { 0 });
            if inside {
                st(args.adjusted.as_ptr().wrapping_add(row as usize), order_value(key));
                if lane_id() == 0 {
                    st(args.tops.as_ptr().wrapping_add((row / GROUP) as usize), top);
                }
            }
        }
        first += CLUSTER_THREADS * pick_blocks(args.m);
    }
    // SAFETY: one element, changed by this instruction alone; then the launch contract, handed on.
    unsafe {
        best = best_of_block(memory, best);
        if thread == 0 {
            max_u64_relaxed(args.best.as_ptr(), best);
        }
        sync_cluster();
    }
}

/// # Safety
///
/// The pointers of `all` cover the contracts' tables for a table of `E`; block, cluster and grid are the contract's, behind the scan
/// and `lm_head_int8_rescore`.
#[inline(always)]
unsafe fn pick<E: Element, const STEPS: usize>(all: &PickArgs) {
    let (args, sample) = (&all.head.of_row(block_idx_y()), &all.sample.of_row(block_idx_y()));
    // SAFETY: the launch contract, handed on; no kernel writes `params`, so they can be read at once.
    let asked = unsafe { asked(args.params.as_ptr()) };
    let memory = Memory::new();
    if thread_idx_x() < 8 {
        // SAFETY: a word of this thread.
        unsafe { memory.counts.add(thread_idx_x()).write(0) };
    }
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    let (ended, stats, head) = unsafe {
        let scratch = args.scratch().as_ptr().cast_const();
        (ended(args.state.as_ptr()), input_stats(args.input.as_ptr()), ld_x4(scratch.cast()))
    };
    if ended {
        return; // the whole cluster
    }
    let wanted = wanted(&asked, stats, args.vocab);
    let mut of_all = !listed(args, &asked, wanted, head);
    if !of_all {
        // SAFETY: `x` has K values, and there is room for them.
        unsafe { keep_input(args, memory) };
        sync_threads(); // the counts are 0
        // SAFETY: the launch contract, handed on.
        unsafe {
            if asked.alone(args.vocab) {
                best_of_list::<E, STEPS>((args, sample), &asked, memory, [head[0], head[2]]);
            } else {
                of_all = draw_of_bounds::<E, STEPS>((args, sample), &asked, memory, wanted);
            }
        }
    }
    if of_all {
        // SAFETY: the launch contract, handed on.
        unsafe { pick_from_all(Cluster(pick_blocks(args.m)), sample) };
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty, $steps:literal;)*) => {$(
        /// # Safety
        ///
        /// As for [`pick`].
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: PickArgs) {
            // SAFETY: the launch contract, handed on.
            unsafe { pick::<$element, $steps>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    lm_head_int8_pick_bf16 PickBf16 Bf16, 10;
    lm_head_int8_pick_f16 PickF16 F16, 10;
    lm_head_int8_pick_f32 PickF32 f32, 5;
}
