//! Attention of the row: key blocks of some query heads, dealt out over the blocks of the launch.
//!
//! Keys and values that are in the cache come into shared memory while earlier parts run: which ones a block needs is the same
//! in every layer. The new key and value join them there; they are made again wherever they are needed.
//!
//! Instructions that run once a layer wait for the instruction cache: what matters is how few they are, so loops stay loops.

pub(super) mod answer;
mod fast;
mod pages;
mod row;

use contract::attention::KEY_BLOCK;
use contract::decode_layers::{
    ASKERS, Args, KEY_BYTES, KV_SLOT_BYTES, KV_SLOTS, MAX_HEAD_DIM, OWN_PAGES, OWN_WORDS, THREADS,
    UNIT_HEADS, WARPS,
};
use contract::kv_append::kv_stride;

use super::exchange::Exchange;
use super::sync;
use crate::arch::async_copy::copy_x16;
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::mbarrier::{
    Barrier, arrive, arrive_after_copies, arrive_expecting, copy_bulk, init,
};
use crate::arch::mem::ld_x2;
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::arch::wgmma::proxy_fence;
pub(super) use pages::key_blocks;
use pages::{page_of, place_in};

pub(super) const KEYS: u32 = KEY_BLOCK as u32;
/// Heads of a unit where there are many, and where there are few.
pub(super) const WIDE: usize = UNIT_HEADS as usize;
const NARROW: usize = WIDE / 2;

/// The shared memory of attention.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    kv: Shared<u8>,
    barriers: Barrier,
    /// Two elements of every head of a wide unit, then the next two.
    q: Shared<f32>,
    /// Of each head of a unit 64 scores, 64 weights, and the maximum.
    scores: Shared<f32>,
    weights: Shared<f32>,
    tops: Shared<f32>,
    /// What [`Attention::leave`] leaves.
    own: Shared<u32>,
}

impl Memory {
    #[inline(always)]
    pub(super) fn at(kv: Shared<u8>) -> Self {
        let barriers = kv.add(KV_SLOTS * KV_SLOT_BYTES).cast::<u64>();
        let q = barriers.add(KV_SLOTS).cast::<f32>();
        let scores = q.add(UNIT_HEADS * MAX_HEAD_DIM as u32);
        let weights = scores.add(UNIT_HEADS * KEYS);
        let tops = weights.add(UNIT_HEADS * KEYS);
        Self { kv, barriers, q, scores, weights, tops, own: tops.add(UNIT_HEADS).cast() }
    }

    /// The first item of combining, over pages: there it would not stay in a register.
    #[inline(always)]
    pub(super) fn item(&self) -> Shared<u32> {
        self.own.add(8 + OWN_PAGES + 1)
    }

    /// What scores are multiplied by, over pages: no number where a page of the block's is not there.
    #[inline(always)]
    pub(super) fn scale(&self) -> Shared<f32> {
        self.own.add(8 + OWN_PAGES).cast()
    }

    /// `grid_dim_x()`, left there by [`Attention::leave`].
    ///
    /// # Safety
    ///
    /// It was left before a barrier.
    #[inline(always)]
    pub(super) unsafe fn blocks(&self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { self.own.add(7).read() }
    }

    /// Keys and values: nothing between the last unit of a layer and [`Attention::fill`].
    #[inline(always)]
    pub(super) fn idle(&self) -> Shared<f32> {
        self.kv.cast()
    }

    #[inline(always)]
    pub(super) fn end(&self) -> Shared<u8> {
        self.own.add(OWN_WORDS).cast()
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

    /// Keys and values of slot `slot`.
    #[inline(always)]
    fn slot(&self, slot: u32) -> (Shared<u8>, Shared<u8>) {
        let keys = self.kv.add(slot * KV_SLOT_BYTES);
        (keys, keys.add(KEYS * KEY_BYTES))
    }
}

/// `thread_idx_x()`, of which the optimiser does not know that it stays: what is made of it would stay in registers over all
/// layers.
#[inline(always)]
pub(super) fn own_thread() -> u32 {
    opaque_here(thread_idx_x())
}

/// Heads that look at the same keys: a key and value head, and the first one of its group's.
#[derive(Clone, Copy)]
struct Heads {
    kv_head: u32,
    first: u32,
}

/// A key block of some heads.
#[derive(Clone, Copy)]
struct Unit {
    heads: Heads,
    block: u32,
    /// Keys, and those of them that are in the cache.
    keys: u32,
    stored: u32,
    /// How many units this block has taken before it, over all layers.
    done: u32,
    /// Whether it is of two heads, and which two of the block's.
    narrow: bool,
    half: u32,
}

impl Unit {
    #[inline(always)]
    fn has_new(&self) -> bool {
        self.stored < self.keys
    }

    /// Whether the place of value `key` is filled with what the cache has, or zeros: all but that of the new one.
    #[inline(always)]
    fn has_value(&self, key: u32) -> bool {
        !(self.has_new() && key == self.stored)
    }

    /// The same, worked out where this is called.
    #[inline(always)]
    fn fixed(self) -> Self {
        Self {
            block: opaque_here(self.block),
            keys: opaque_here(self.keys),
            stored: opaque_here(self.stored),
            ..self
        }
    }
}

/// The units of this block, over all layers: every `step`-th key block of the same heads, from `first` on. So the query
/// stays while the keys go by. Where there are fewer blocks than such heads, a block has all key blocks of several. What is left in
/// the last round, where it is for at most half of the blocks, is dealt out once more: half of the heads each.
pub(super) struct Attention<'a, const FAST: bool, const PAGED: bool> {
    args: &'a Args,
    pos: u32,
    epoch: u32,
    /// Heads of a unit: [`WIDE`] or [`NARROW`].
    width: u32,
    heads: Heads,
    /// Whether the new key is in one of the key blocks: not 0; 1 for the block that leaves it in the cache.
    has_new: u32,
    first: u32,
    step: u32,
    /// Units before the one of half of the heads.
    full: u32,
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

impl<'a, const FAST: bool, const PAGED: bool> Attention<'a, FAST, PAGED> {
    /// What this block has of a launch of `blocks` blocks at `pos`.
    #[inline(always)]
    pub(super) fn new(args: &'a Args, pos: u32, epoch: u32, blocks: u32) -> Self {
        let key_blocks = key_blocks::<PAGED>(args, pos);
        let block = block_idx_x();
        let groups = |width: u32| args.shape.kv_heads * args.group.div_ceil(width);
        // Few heads a unit while every unit has a block of its own. On tensor cores four take as long as two.
        let narrow = !FAST
            && (args.group <= NARROW as u32
                || groups(NARROW as u32).saturating_mul(key_blocks) <= blocks);
        let width = if narrow { NARROW } else { WIDE } as u32;
        let groups = groups(width);
        let step = (blocks / groups).max(1);
        let (group, first) =
            if blocks < groups { (block, 0) } else { (block % groups, block / groups) };
        // What is left in the last round goes to twice as many blocks, half of the heads each.
        let (full, left) = (key_blocks / step, key_blocks % step);
        let halves = !FAST && width == WIDE as u32 && blocks >= groups && 2 * left <= step;
        let run = if first >= step {
            0
        } else if halves {
            full + u32::from(first < 2 * left)
        } else {
            key_blocks.saturating_sub(first).div_ceil(step)
        };
        let full = if halves { full } else { u32::MAX };
        let count = run * groups.saturating_sub(group).div_ceil(blocks);
        let Heads { kv_head, first: first_head } = Self::heads(args, width, group);
        // Not known how they are made: divisions would be made again in each layer.
        let heads = Heads { kv_head: opaque_here(kv_head), first: opaque_here(first_head) };
        // Half of the heads that are not there.
        let none = run > full && first % 2 == 1 && first_head + NARROW as u32 >= args.group;
        let run = opaque_here(if none { full } else { run });
        let (full, count) = (opaque_here(full), if none { run } else { count });
        let last = pos / KEYS;
        let has_new = if last / step >= full {
            run > full && full * step + first / 2 == last
        } else {
            last >= first && (last - first).is_multiple_of(step)
        };
        let has_new = pos < args.capacity && has_new;
        // Of two blocks that have the new key, the first leaves it in the cache.
        let second = last / step >= full && first % 2 == 1;
        let has_new = opaque_here(if has_new { 1 + u32::from(second) } else { 0 });
        Self { args, pos, epoch, width, heads, has_new, first, step, full, run, count }
    }

    /// Leaves in shared memory what [`Attention::fill`] needs: it would stay in registers over all layers; and pages, and no number for the
    /// scale where one of them is not there. By the threads that have no row: one of them arrives for keys behind a barrier of theirs.
    ///
    /// # Safety
    ///
    /// The launch contract; nobody uses the words before that barrier.
    #[inline(always)]
    pub(super) unsafe fn leave(&self, memory: Memory, blocks: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if thread_idx_x() == THREADS {
                memory.own.write_x4([self.heads.kv_head, self.first, self.step, self.full]);
                memory.own.add(4).write_x4([self.run, self.count, self.pos, blocks]);
            }
            let mut at = thread_idx_x() - THREADS;
            while PAGED && at < self.run {
                let page = page_of(self.args, self.unit(self.heads, at, 0).block);
                if at < OWN_PAGES {
                    memory.own.add(8 + at).write(page);
                }
                if page >= self.args.pages {
                    memory.scale().write(f32::NAN);
                }
                at = opaque(at + ASKERS); // one loop
            }
        }
    }

    /// What was left there, for [`Attention::fill`] alone.
    ///
    /// # Safety
    ///
    /// It was left before a barrier.
    #[inline(always)]
    pub(super) unsafe fn left(args: &'a Args, memory: Memory) -> Self {
        // SAFETY: the caller's promise.
        let ([kv_head, first, step, full], [run, count, pos, _]) =
            unsafe { (memory.own.read_x4(), memory.own.add(4).read_x4()) };
        let heads = Heads { kv_head, first: 0 };
        Self { args, pos, epoch: 0, width: 0, heads, has_new: 0, first, step, full, run, count }
    }

    /// Whether this block has units.
    #[inline(always)]
    pub(super) fn has_units(&self) -> bool {
        self.run > 0
    }

    /// The heads number `group`.
    #[inline(always)]
    fn heads(args: &Args, width: u32, group: u32) -> Heads {
        let of_group = args.group.div_ceil(width);
        Heads { kv_head: group / of_group, first: group % of_group * width }
    }

    /// Unit `at` of the heads; unit `done` of this block.
    #[inline(always)]
    fn unit(&self, heads: Heads, at: u32, done: u32) -> Unit {
        let halves = at >= self.full;
        let half = if halves { self.first % 2 } else { 0 };
        let block = at * self.step + if halves { self.first / 2 } else { self.first };
        let narrow = halves || self.width == NARROW as u32;
        let heads = Heads { first: heads.first + NARROW as u32 * half, ..heads };
        let here = |keys: u32| keys.saturating_sub(block * KEYS).min(KEYS);
        let stored = here(self.pos.min(self.args.capacity));
        let keys = here(self.pos.saturating_add(1).min(self.args.capacity));
        Unit { heads, block, keys, stored, done, narrow, half }
    }

    /// Asks for the keys and values of as many units of `layer` as there are slots. By the threads that have no row.
    ///
    /// # Safety
    ///
    /// All units of the layer before it are done, none of this one is asked for.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, memory: Memory, layer: u32, caches: [*mut u8; 2]) {
        if layer < self.args.shape.layers {
            // SAFETY: empty slots.
            unsafe { self.fill_run::<true>(memory, self.heads, layer * self.count, caches) };
        }
    }

    /// Asks for the first units of the heads.
    ///
    /// # Safety
    ///
    /// All units before `done` are done, none of these is asked for.
    #[inline(always)]
    unsafe fn fill_run<const AHEAD: bool>(
        &self,
        memory: Memory,
        heads: Heads,
        done: u32,
        caches: [*mut u8; 2],
    ) {
        let mut at = 0;
        while at < KV_SLOTS.min(self.run) {
            // SAFETY: an empty slot.
            unsafe {
                let unit = self.unit(heads, at, done + at);
                if AHEAD {
                    self.ask_ahead(memory, unit, at, caches);
                } else {
                    self.ask(memory, unit, at, caches);
                }
            }
            at = opaque(at + 1); // one loop
        }
    }

    /// Where the keys and values of a unit are, of `bytes` a position; it is number `at` of its heads.
    ///
    /// # Safety
    ///
    /// The launch contract; [`Attention::leave`] was called before a barrier.
    #[inline(always)]
    unsafe fn source(
        &self,
        memory: Memory,
        unit: Unit,
        at: u32,
        caches: [*mut u8; 2],
        bytes: u32,
    ) -> [*const u8; 2] {
        let kv_head = unit.heads.kv_head;
        let place = if PAGED {
            // SAFETY: a key block of the row.
            let page = unsafe {
                if at < OWN_PAGES {
                    memory.own.add(8 + at).read()
                } else {
                    page_of(self.args, unit.block)
                }
            };
            // Where it is not there: see `leave`.
            place_in(self.args, page.min(self.args.pages - 1), kv_head)
        } else {
            kv_head as usize * self.args.capacity as usize + (unit.block * KEYS) as usize
        };
        caches.map(|cache| cache.cast_const().wrapping_add(place * bytes as usize))
    }

    /// Asks for the keys and values of unit `at` of the heads. By the threads that have the row.
    ///
    /// # Safety
    ///
    /// Nobody uses the slot since the last barrier.
    #[inline(always)]
    unsafe fn ask(&self, memory: Memory, unit: Unit, at: u32, caches: [*mut u8; 2]) {
        let slot = unit.done % KV_SLOTS;
        let (keys, values) = memory.slot(slot);
        let bytes = 2 * kv_stride(self.args.shape.head_dim as usize) as u32;
        // SAFETY: the caller's promise.
        let from = unsafe { self.source(memory, unit, at, caches, bytes) };
        let barrier = memory.barriers.add(slot);
        let piece = 16 * (own_thread() % 16);
        let row = KEYS / WARPS * (own_thread() / 32) + own_thread() % 32 / 16;
        let (to, key) = (keys.add(row * KEY_BYTES + piece), (row * bytes + piece) as usize);
        // SAFETY: keys and values in the cache, which no running kernel writes, and their slot.
        unsafe {
            let mut i = 0;
            while i < KEYS / WARPS {
                let there = row + i < unit.stored;
                let key = key + (i * bytes) as usize;
                if there && piece < bytes {
                    copy_x16(to.add(i * KEY_BYTES), from[0].wrapping_add(key), true);
                }
                if FAST && unit.has_value(row + i) {
                    let to = fast::value_at(values, row + i, piece / 16);
                    copy_x16(to, from[1].wrapping_add(key), there);
                }
                i += 2;
            }
            arrive_after_copies(barrier);
            if FAST {
                if own_thread() == 0 {
                    arrive(barrier);
                }
            } else if own_thread() == THREADS - 32 {
                // Values follow each other as in the cache.
                proxy_fence();
                arrive_expecting(barrier, bytes * unit.stored);
                if unit.stored > 0 {
                    copy_bulk(values, from[1], bytes * unit.stored, barrier);
                }
            }
        }
    }

    /// The same by the threads that have no row.
    ///
    /// # Safety
    ///
    /// Nobody uses the slot since an arrival that these threads waited for.
    #[inline(always)]
    unsafe fn ask_ahead(&self, memory: Memory, unit: Unit, at: u32, caches: [*mut u8; 2]) {
        const ROWS: u32 = ASKERS / 16;
        let slot = unit.done % KV_SLOTS;
        let (keys, values) = memory.slot(slot);
        let bytes = 2 * kv_stride(self.args.shape.head_dim as usize) as u32;
        // SAFETY: the caller's promise.
        let from = unsafe { self.source(memory, unit, at, caches, bytes) };
        let barrier = memory.barriers.add(slot);
        let (piece, row) = (16 * (own_thread() % 16), own_thread() % ASKERS / 16);
        // SAFETY: as for `ask`; there are as many arrivals as there.
        unsafe {
            if FAST {
                if own_thread() == THREADS {
                    arrive(barrier);
                }
                let mut from = from[1].wrapping_add((row * bytes + piece) as usize);
                let mut key = row;
                while key < KEYS {
                    if unit.has_value(key) {
                        let to = fast::value_at(values, key, piece / 16);
                        copy_x16(to, from, key < unit.stored);
                    }
                    from = from.wrapping_add((ROWS * bytes) as usize);
                    key = opaque(key + ROWS); // one loop
                }
            } else if own_thread() == THREADS + 32 {
                proxy_fence();
                arrive_expecting(barrier, bytes * unit.stored);
                if unit.stored > 0 {
                    copy_bulk(values, from[1], bytes * unit.stored, barrier);
                }
            }
            if piece < bytes {
                let mut to = keys.add(row * KEY_BYTES + piece);
                let mut from = from[0].wrapping_add((row * bytes + piece) as usize);
                let mut key = row;
                while key < unit.stored {
                    copy_x16(to, from, true);
                    to = to.add(ROWS * KEY_BYTES);
                    from = from.wrapping_add((ROWS * bytes) as usize);
                    key = opaque(key + ROWS); // one loop
                }
            }
            let mut arrivals = 0;
            while arrivals < THREADS / ASKERS {
                arrive_after_copies(barrier);
                arrivals += 1;
            }
        }
    }

    /// This block's share of the attention of `layer`, whose caches are `caches`.
    ///
    /// *Convergence*: every thread that has the row calls it.
    ///
    /// # Safety
    ///
    /// The launch contract; layers come in order.
    #[inline(always)]
    pub(super) unsafe fn layer(
        &self,
        x: &Exchange,
        layer: u32,
        memory: Memory,
        caches: [*mut u8; 2],
    ) {
        let mut heads = self.heads;
        let (mut done, end) = (layer * self.count, (layer + 1) * self.count);
        let mut group = block_idx_x();
        while done < end {
            // SAFETY: the launch contract, handed on.
            unsafe {
                // Worked out while the row is on its way.
                let mut unit = self.unit(heads, 0, done).fixed();
                let mut results = self.results(layer, unit).fixed();
                let new = self.row(x, layer, heads, memory, caches);
                let mut at = 0;
                while at < self.run {
                    if at > 0 {
                        unit = self.unit(heads, at, done + at);
                        results = self.results(layer, unit);
                    }
                    if !FAST && unit.narrow {
                        self.answer::<NARROW>(memory, unit, &results, new, at == 0);
                    } else {
                        self.answer::<WIDE>(memory, unit, &results, new, at == 0);
                    }
                    // Nothing waits for the last but one.
                    if at + KV_SLOTS != self.run {
                        sync();
                    }
                    if at + KV_SLOTS < self.run {
                        let next = self.unit(heads, at + KV_SLOTS, done + at + KV_SLOTS);
                        self.ask(memory, next, at + KV_SLOTS, caches);
                    }
                    at += 1;
                }
                done += self.run;
                if done < end {
                    // Heads of a launch of few blocks.
                    group += grid_dim_x();
                    heads = Self::heads(self.args, self.width, group);
                    self.fill_run::<false>(memory, heads, done, caches);
                }
            }
        }
    }
}

const _: () = assert!(
    THREADS == UNIT_HEADS * MAX_HEAD_DIM as u32 / 2 && KEYS.is_multiple_of(WARPS) && KV_SLOTS == 2
);
