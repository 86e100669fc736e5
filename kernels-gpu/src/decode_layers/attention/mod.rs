//! Attention of the row: key blocks of a head, two query heads at a time, dealt out over the blocks of the launch.
//!
//! Keys and values that are in the cache come into shared memory while earlier parts run: which ones a block needs is the same
//! in every layer. The new key and value join them there; they are made again wherever they are needed.

mod answer;
mod row;

use contract::attention::KEY_BLOCK;
use contract::decode_layers::{
    Args, KEY_BYTES, KV_SLOT_BYTES, KV_SLOTS, MAX_HEAD_DIM, THREADS, UNIT_HEADS, WARPS,
};
use contract::kv_append::kv_stride;

use super::exchange::Exchange;
use crate::arch::async_copy::copy_x16;
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier::{
    Barrier, arrive_after_copies, arrive_expecting, copy_bulk, init, wait,
};
use crate::arch::mem::ld_x2;
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::wgmma::proxy_fence;

const KEYS: u32 = KEY_BLOCK as u32;
/// Threads of a query head.
const SIDE: u32 = THREADS / UNIT_HEADS;

/// The shared memory of attention.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    kv: Shared<u8>,
    barriers: Barrier,
    q: Shared<f32>,
    scores: Shared<f32>,
    weights: Shared<f32>,
}

impl Memory {
    #[inline(always)]
    pub(super) fn at(kv: Shared<u8>) -> Self {
        let barriers = kv.add(KV_SLOTS * KV_SLOT_BYTES).cast::<u64>();
        let q = barriers.add(KV_SLOTS).cast::<f32>();
        let scores = q.add(UNIT_HEADS * MAX_HEAD_DIM as u32);
        Self { kv, barriers, q, scores, weights: scores.add(UNIT_HEADS * KEYS) }
    }

    /// Keys and values: nothing between the last unit of a layer and [`Attention::fill`].
    #[inline(always)]
    pub(super) fn idle(&self) -> Shared<f32> {
        self.kv.cast()
    }

    #[inline(always)]
    pub(super) fn end(&self) -> Shared<u8> {
        self.weights.add(WARPS * KEYS).cast()
    }

    /// Makes the barriers.
    ///
    /// # Safety
    ///
    /// Nobody uses them before the next barrier of the block.
    #[inline(always)]
    pub(super) unsafe fn init(&self) {
        if thread_idx_x() < KV_SLOTS {
            // SAFETY: the caller's promise.
            unsafe { init(self.barriers.add(thread_idx_x()), THREADS + 1) };
        }
    }
}

/// `thread_idx_x()`, of which the optimiser does not know that it stays: what is made of it would stay in registers over all
/// layers.
#[inline(always)]
fn own_thread() -> u32 {
    opaque_here(thread_idx_x())
}

/// A key block and the query heads that look at it.
#[derive(Clone, Copy)]
struct Unit {
    block: u32,
    kv_head: u32,
    /// Which heads of the group.
    pair: u32,
    /// Keys, and those of them that are in the cache.
    keys: u32,
    stored: u32,
    /// Whether it is the first one of its heads: the query is not there.
    first: bool,
}

/// The units of this block, over all layers: every `step`-th key block of the heads `group`, from `first` on. So the query
/// stays while the keys go by. Where there are fewer blocks than such heads, a block has all key blocks of several.
pub(super) struct Attention<'a> {
    args: &'a Args,
    pos: u32,
    epoch: u32,
    group: u32,
    /// [`Attention::heads`] of `group`.
    heads: [u32; 2],
    first: u32,
    step: u32,
    /// Units of the same heads, and all units of this block in a layer.
    run: u32,
    count: u32,
}

/// The caches of a layer.
///
/// # Safety
///
/// `layer` is a layer of `args`.
#[inline(always)]
pub(super) unsafe fn caches(args: &Args, layer: u32) -> [*mut u8; 2] {
    let at = args.caches.as_ptr().cast_const().wrapping_add(layer as usize).cast::<[u32; 2]>();
    // SAFETY: an entry that nobody writes.
    let pair: [[u32; 2]; 2] = unsafe { [ld_x2(at), ld_x2(at.wrapping_add(1))] };
    pair.map(|[low, high]| (u64::from(low) | u64::from(high) << 32) as *mut u8)
}

impl<'a> Attention<'a> {
    /// Asks for the first units.
    ///
    /// # Safety
    ///
    /// The launch contract; earlier launches have ended.
    #[inline(always)]
    pub(super) unsafe fn new(args: &'a Args, memory: Memory, pos: u32, epoch: u32) -> Self {
        let shape = args.shape;
        let visible = pos.saturating_add(1).min(args.capacity);
        let groups = shape.kv_heads * args.group.div_ceil(UNIT_HEADS);
        let (block, blocks) = (block_idx_x(), grid_dim_x());
        let step = (blocks / groups).max(1);
        let (group, first) =
            if blocks < groups { (block, 0) } else { (block % groups, block / groups) };
        let run = if first < step {
            visible.div_ceil(KEYS).saturating_sub(first).div_ceil(step)
        } else {
            0
        };
        let heads = Self::heads(args, group);
        let count = run * groups.saturating_sub(group).div_ceil(blocks);
        let attention = Self { args, pos, epoch, group, heads, first, step, run, count };
        // SAFETY: the slots are empty.
        unsafe { attention.fill(memory, 0, caches(args, 0)) };
        attention
    }

    /// Key and value head of the heads `group`, and which heads of its group.
    #[inline(always)]
    fn heads(args: &Args, group: u32) -> [u32; 2] {
        let pairs = args.group.div_ceil(UNIT_HEADS);
        [group / pairs, group % pairs]
    }

    /// Unit `i` of this block.
    #[inline(always)]
    fn unit(&self, i: u32) -> Unit {
        let visible = self.pos.saturating_add(1).min(self.args.capacity);
        let (mut group, mut at, mut heads) = (self.group, i, self.heads);
        // No division where a block has no other heads.
        if i >= self.run {
            group += i / self.run * grid_dim_x();
            at = i % self.run;
            heads = Self::heads(self.args, group);
        }
        let (block, [kv_head, pair]) = (self.first + at * self.step, heads);
        let keys = visible.saturating_sub(block * KEYS).min(KEYS);
        let has_new = self.pos < self.args.capacity && block == self.pos / KEYS;
        let stored = if has_new { keys - 1 } else { keys };
        Unit { block, kv_head, pair, keys, stored, first: at == 0 }
    }

    /// Keys and values of slot `slot`.
    #[inline(always)]
    fn slot(memory: Memory, slot: u32) -> (Shared<u8>, Shared<u8>) {
        let keys = memory.kv.add(slot * KV_SLOT_BYTES);
        (keys, keys.add(KEYS * KEY_BYTES))
    }

    /// Asks for the keys and values of as many units of `layer` as there are slots.
    ///
    /// # Safety
    ///
    /// All units of the layer before it are done, none of this one is asked for.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, memory: Memory, layer: u32, caches: [*mut u8; 2]) {
        let mut i = 0;
        while i < KV_SLOTS.min(self.count) && layer < self.args.shape.layers {
            // SAFETY: an empty slot.
            unsafe { self.ask(memory, layer, i, caches) };
            i += 1;
        }
    }

    /// Asks for the keys and values of unit `i` of `layer`.
    ///
    /// # Safety
    ///
    /// Nobody uses the slot since the last barrier.
    #[inline(always)]
    unsafe fn ask(&self, memory: Memory, layer: u32, i: u32, caches: [*mut u8; 2]) {
        let slot = (layer * self.count + i) % KV_SLOTS;
        let shape = self.args.shape;
        let unit = self.unit(i);
        let (keys, values) = Self::slot(memory, slot);
        let bytes = 2 * kv_stride(shape.head_dim as usize) as u32;
        let at = unit.kv_head as usize * self.args.capacity as usize + (unit.block * KEYS) as usize;
        let from = caches.map(|cache| cache.cast_const().wrapping_add(at * bytes as usize));
        let barrier = memory.barriers.add(slot);
        let piece = 16 * ((own_thread() % 32) % 16);
        let row = KEYS / WARPS * (own_thread() / 32) + (own_thread() % 32) / 16;
        let (to, key) = (keys.add(row * KEY_BYTES + piece), (row * bytes + piece) as usize);
        // SAFETY: keys and values in the cache, which no running kernel writes, and their slot.
        unsafe {
            let mut i = 0;
            while i < KEYS / WARPS {
                if row + i < unit.stored && piece < bytes {
                    let from = from[0].wrapping_add(key + (i * bytes) as usize);
                    copy_x16(to.add(i * KEY_BYTES), from, true);
                }
                i += 2;
            }
            arrive_after_copies(barrier);
            if own_thread() == THREADS - 32 {
                // Values follow each other as in the cache.
                proxy_fence();
                arrive_expecting(barrier, bytes * unit.stored);
                if unit.stored > 0 {
                    copy_bulk(values, from[1], bytes * unit.stored, barrier);
                }
            }
        }
    }

    /// This block's share of the attention of `layer`.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The launch contract; layers come in order.
    #[inline(always)]
    pub(super) unsafe fn layer(&self, x: &Exchange, layer: u32, memory: Memory) {
        // SAFETY: a layer of the launch.
        let caches = unsafe { caches(self.args, layer) };
        let mut i = 0;
        while i < self.count {
            let unit = self.unit(i);
            // SAFETY: the launch contract, handed on.
            unsafe {
                let done = layer * self.count + i;
                let slot = done % KV_SLOTS;
                let barrier = memory.barriers.add(slot);
                if unit.first || unit.stored < unit.keys {
                    let row = self.row(x, layer, unit);
                    wait(barrier, done / KV_SLOTS % 2);
                    self.place(memory, row, caches, unit, slot);
                    sync_threads();
                } else {
                    // The query is that of the unit before.
                    wait(barrier, done / KV_SLOTS % 2);
                }
                self.answer(memory, layer, unit, slot);
                sync_threads();
                if i + KV_SLOTS < self.count {
                    self.ask(memory, layer, i + KV_SLOTS, caches);
                }
            }
            i += 1;
        }
    }
}

const _: () =
    assert!(SIDE == 2 * KEYS && SIDE as usize == MAX_HEAD_DIM && KEYS.is_multiple_of(WARPS));
