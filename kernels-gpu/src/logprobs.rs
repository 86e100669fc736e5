//! Device side of [`contract::logprobs`].
//!
//! `logprobs_groups` finds the best logit of each group, and how many are above the token; `logprobs_tell` sums the weights, and the
//! last block of a row that is done with its part lists the most likely tokens by the best of the groups.

use contract::launch::Kernel;
use contract::logprobs::{
    Args, ENTRY_WORDS, Groups, LIST, LOGPROB, MAX_BLOCKS, MAX_GROUPS, MAX_TOP, RANK, STEP, THREADS,
    TILE, TOKEN, Tell, groups, ln_sum, log_probability, span, weight,
};
use contract::num::{order_key, order_value};
use contract::sample::{rank_index, rank_of};

use crate::arch::atomic::add_acq_rel;
use crate::arch::fence::system_fence;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_x2, st, st_x2};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, block_idx_y, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, shuffle_xor_u64, sync_warp, warp_id};

/// Warps of the block.
const WARPS: u32 = THREADS / LANES;
/// Logits of a lane in a tile.
const OF_LANE: usize = (TILE / LANES) as usize;

/// One row that is told.
#[derive(Clone, Copy)]
struct Row {
    at: usize,
    logits: *const f32,
    vocab: u32,
    /// Logits of a group.
    span: u32,
    groups: u32,
    /// Its token, the token's number, and what is wanted.
    id: u32,
    step: u32,
    wanted: u32,
}

impl Row {
    /// Calls `each(logit, index)` with this lane's logits of `group`.
    ///
    /// # Safety
    ///
    /// The row has `vocab` logits.
    #[inline(always)]
    unsafe fn for_each(&self, group: u32, mut each: impl FnMut(f32, u32)) {
        let mut first = group * self.span;
        let end = first + self.span;
        while first < end {
            let index = |j: usize| first + j as u32 * LANES + lane_id();
            // All at once.
            let loaded: [f32; OF_LANE] = core::array::from_fn(|j| {
                let i = index(j);
                // SAFETY: i < vocab.
                unsafe { ld_if(i < self.vocab, self.logits.wrapping_add(i as usize)) }
            });
            let mut j = 0;
            while j < OF_LANE {
                if index(j) < self.vocab {
                    each(loaded[j], index(j));
                }
                j += 1;
            }
            first += TILE;
        }
    }

    /// The row of this block; `None` where nothing is told of it.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table; behind the wait.
    #[inline(always)]
    unsafe fn of(args: &Args) -> Option<Self> {
        let at = block_idx_y() as usize;
        let word = |words: *const u32, stride: u32| words.wrapping_add(at * stride as usize);
        // SAFETY: a word of each row.
        let (id, step, wanted, last) = unsafe {
            (
                ld(word(args.ids.as_ptr(), args.ids_stride)),
                ld(word(args.steps.as_ptr(), args.steps_stride)),
                ld(word(args.wanted.as_ptr(), args.wanted_stride)),
                ld(word(args.last.as_ptr(), 1)),
            )
        };
        let vocab = args.vocab;
        let logits = args.logits.as_ptr().cast_const().wrapping_add(at * vocab as usize);
        let (span, groups) = (span(vocab), groups(vocab));
        let row = Self { at, logits, vocab, span, groups, id, step, wanted };
        (wanted != 0 && step != 0 && step != last).then_some(row)
    }

    /// The logit of the token, if it is one.
    ///
    /// # Safety
    ///
    /// The row has `vocab` logits.
    #[inline(always)]
    unsafe fn token(&self) -> Option<f32> {
        let has_token = self.id < self.vocab;
        // SAFETY: id < vocab.
        let x = unsafe { ld_if(has_token, self.logits.wrapping_add(self.id as usize)) };
        has_token.then_some(x)
    }

    /// Calls `each` with this warp's groups.
    #[inline(always)]
    fn for_each_group(&self, mut each: impl FnMut(u32)) {
        let mut group = block_idx_x() * WARPS + warp_id();
        while group < self.groups {
            each(group);
            group += grid_dim_x() * WARPS;
        }
    }

    /// The best of each group in memory.
    #[inline(always)]
    fn bests(&self, args: &Args) -> *mut u64 {
        args.bests.as_ptr().wrapping_add(self.at * self.groups as usize)
    }

    /// The sum of block `block` and its tokens above, in memory.
    #[inline(always)]
    fn part(&self, args: &Args, block: u32) -> *mut u64 {
        let block = self.at * grid_dim_x() as usize + block as usize;
        args.parts.as_ptr().wrapping_add(2 * block)
    }
}

/// The best of all groups, whose own are `bests`.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
fn best_of(groups: u32, bests: impl Fn(u32) -> u64) -> u64 {
    let mut best = 0;
    let mut group = lane_id();
    while group < groups {
        best = best.max(bests(group));
        group += LANES;
    }
    over_lanes(best, u64::max)
}

/// Loads a number of 64 bits.
///
/// # Safety
///
/// `p` is a global address, aligned to 8.
#[inline(always)]
unsafe fn load(p: *const u64) -> u64 {
    // SAFETY: the caller's promise.
    let [low, high]: [u32; 2] = unsafe { ld_x2(p.cast()) };
    u64::from(low) | u64::from(high) << 32
}

/// Stores one.
///
/// # Safety
///
/// As for [`load`], and nobody else writes there.
#[inline(always)]
unsafe fn store(p: *mut u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { st_x2(p.cast(), [value as u32, (value >> 32) as u32]) };
}

/// The best rank of each group, in the block that tells.
#[inline(always)]
fn shared_bests() -> Shared<u64> {
    dynamic_shared_mem()
}

/// The sum of a number of each warp, in every lane of the first one; `room` has a word for each.
///
/// *Convergence*: every thread of the block calls it; nobody uses the room.
#[inline(always)]
fn over_block(room: Shared<u64>, of_lane: u64) -> u64 {
    let of_warp = over_lanes(of_lane, u64::wrapping_add);
    if lane_id() == 0 {
        // SAFETY: a word of the warp.
        unsafe { room.add(warp_id()).write_u64(of_warp) };
    }
    sync_threads();
    // SAFETY: written before the barrier.
    let own = unsafe { room.add(lane_id() % WARPS).read_u64() };
    over_lanes(if lane_id() < WARPS { own } else { 0 }, u64::wrapping_add)
}

/// `join` over the lanes, in every lane.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
fn over_lanes(value: u64, join: impl Fn(u64, u64) -> u64) -> u64 {
    let (mut value, mut distance) = (value, LANES / 2);
    while distance > 0 {
        value = join(value, shuffle_xor_u64(value, distance));
        distance /= 2;
    }
    value
}

/// The rank of the most likely token `lane_id()`, for lanes below `count`; 0 for the others.
///
/// *Convergence*: every lane of one warp calls it.
///
/// # Safety
///
/// The best of each group stands in shared memory, for this warp alone, which takes out what it finds.
#[inline(always)]
unsafe fn list(row: &Row, count: u32) -> u64 {
    let (mut own, mut j) = (0, 0);
    while j < count {
        // SAFETY: the caller's promise; what the first lane wrote stands before a barrier of the warp.
        unsafe {
            let best = best_of(row.groups, |group| shared_bests().add(group).read_u64());
            own = if lane_id() == j { best } else { own };
            // Its group's next one.
            let group = rank_index(best) / row.span;
            let mut next = 0;
            row.for_each(group, |x, i| {
                let rank = rank_of(order_key(x), i);
                next = if rank < best { rank.max(next) } else { next };
            });
            next = over_lanes(next, u64::max);
            sync_warp();
            if lane_id() == 0 {
                shared_bests().add(group).write_u64(next);
            }
            sync_warp();
        }
        j += 1;
    }
    own
}

/// # Safety
///
/// The launch obeys `Groups::SPEC` with its grid; the pointers of `args` cover the contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn logprobs_groups(args: Args) {
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on.
    let Some(row) = (unsafe { Row::of(&args) }) else { return };
    // SAFETY: the same.
    let of_token = unsafe { row.token() }.map_or(u32::MAX, order_key);
    let (mut above, bests) = (0, row.bests(&args));
    row.for_each_group(|group| {
        let mut best = 0;
        // SAFETY: the row is the contract's; a warp writes for its groups alone.
        unsafe {
            row.for_each(group, |x, i| {
                let key = order_key(x);
                above += u64::from(key > of_token);
                best = rank_of(key, i).max(best);
            });
            best = over_lanes(best, u64::max);
            if lane_id() == 0 {
                store(bests.wrapping_add(group as usize), best);
            }
        }
    });
    let above = over_block(dynamic_shared_mem(), above);
    if thread_idx_x() == 0 {
        // SAFETY: the second number of the block.
        unsafe { store(row.part(&args, block_idx_x()).wrapping_add(1), above) };
    }
}

/// # Safety
///
/// The launch obeys `Tell::SPEC` with its grid, behind `logprobs_groups` with the same arguments; the pointers of `args` cover the contract's
/// table, and the tickets are 0.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn logprobs_tell(args: Args) {
    launch_dependents();
    dependency_wait();
    // SAFETY: the launch contract, handed on. The block that changes `last` does so when all have read it.
    let Some(row) = (unsafe { Row::of(&args) }) else { return };
    let bests = row.bests(&args).cast_const();
    // SAFETY: one of each group.
    let best_in = |group: u32| unsafe { load(bests.wrapping_add(group as usize)) };
    let max = order_value((best_of(row.groups, best_in) >> 32) as u32);
    let mut sum = 0;
    // SAFETY: the row is the contract's.
    row.for_each_group(|group| unsafe { row.for_each(group, |x, _| sum += weight(x, max)) });
    let sum = over_block(shared_bests().add(MAX_GROUPS), sum);
    let (ticket, blocks) = (args.tickets.as_ptr().wrapping_add(row.at), grid_dim_x());
    let note: Shared<u32> = shared_bests().cast();
    if thread_idx_x() == 0 {
        // SAFETY: the first number of the block, shown by the ticket; a word of shared memory that nobody uses yet.
        unsafe {
            store(row.part(&args, block_idx_x()), sum);
            note.write(add_acq_rel(ticket, 1));
        }
    }
    sync_threads();
    // SAFETY: written before the barrier.
    let is_last = unsafe { note.read() } + 1 == blocks;
    sync_threads();
    if !is_last {
        return;
    }
    let mut group = thread_idx_x();
    while group < row.groups {
        // SAFETY: one of each group, written by this thread alone.
        unsafe { shared_bests().add(group).write_u64(best_in(group)) };
        group += THREADS;
    }
    sync_threads();
    if warp_id() == 0 {
        // SAFETY: the launch contract, handed on; all other blocks of the row are done.
        unsafe { tell(&args, &row, max) };
    }
}

/// Writes the entry of a row.
///
/// *Convergence*: every lane of one warp calls it.
///
/// # Safety
///
/// The parts of all blocks are seen; the best of each group stands in shared memory; nobody else reads or writes what is of the row.
#[inline(always)]
unsafe fn tell(args: &Args, row: &Row, max: f32) {
    let count = (row.wanted - 1).min(MAX_TOP).min(row.vocab);
    // SAFETY: the caller's promise.
    let listed = unsafe { list(row, count) };
    let (mut sum, mut above) = (0, 0);
    if lane_id() < grid_dim_x() {
        let part = row.part(args, lane_id());
        // SAFETY: two numbers of each block.
        (sum, above) = unsafe { (load(part), load(part.wrapping_add(1))) };
    }
    let ln_sum = ln_sum(over_lanes(sum, u64::wrapping_add));
    let above = over_lanes(above, u64::wrapping_add) as u32;
    let entry = row.at * args.ring as usize + ((row.step - 1) % args.ring) as usize;
    let entry = args.out.as_ptr().wrapping_add(entry * ENTRY_WORDS);
    // SAFETY: the entry has so many words, which this warp alone writes; lists stand on 8 bytes.
    unsafe {
        if lane_id() < count {
            let logprob = log_probability(order_value((listed >> 32) as u32), max, ln_sum);
            let pair = entry.wrapping_add(LIST + 2 * lane_id() as usize);
            st_x2(pair.cast(), [rank_index(listed), logprob.to_bits()]);
        }
        let x = row.token();
        if lane_id() == 0 {
            let logprob = x.map_or(f32::NAN, |x| log_probability(x, max, ln_sum));
            st(entry.wrapping_add(TOKEN), row.id);
            st(entry.wrapping_add(LOGPROB), logprob.to_bits());
            st(entry.wrapping_add(RANK), if x.is_some() { above + 1 } else { 0 });
            st(args.last.as_ptr().wrapping_add(row.at), row.step);
            st(args.tickets.as_ptr().wrapping_add(row.at), 0);
        }
        sync_warp();
        if lane_id() == 0 {
            system_fence();
            st(entry.wrapping_add(STEP), row.step);
        }
    }
}

const _: unsafe extern "ptx-kernel" fn(<Groups as Kernel>::Args) = logprobs_groups;
const _: unsafe extern "ptx-kernel" fn(<Tell as Kernel>::Args) = logprobs_tell;
// A lane holds one of the listed, and the parts of a block.
const _: () = assert!(
    MAX_TOP <= LANES && MAX_BLOCKS <= LANES && WARPS <= LANES && ENTRY_WORDS.is_multiple_of(4)
);
