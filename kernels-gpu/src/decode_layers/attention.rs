//! Attention of the row: key blocks of a head, two query heads at a time, dealt out over the blocks of the launch.
//!
//! Keys and values that are in the cache come into shared memory while earlier parts run: which ones a block needs is the same
//! in every layer. The new key and value join them there; they are made again wherever they are needed.

use contract::attention::KEY_BLOCK;
use contract::decode_layers::{
    Args, EMPTY, HEAD_STEP, WARPS, KEY_BYTES, KV_SLOT_BYTES, KV_SLOTS, MAX_HEAD_DIM, THREADS, UNIT_HEADS,
    partial_len, tag, word,
};
use contract::kv_append::kv_stride;
use contract::num::{exp, f32_to_bf16, fma, max, score, weighted_value};
use contract::rope::rotate;

use super::exchange::Exchange;
use crate::arch::atomic::st_relaxed_u64;
use crate::arch::async_copy::copy_x16;
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier::{Barrier, arrive_after_copies, arrive_expecting, copy_bulk, fence_async, init, wait};
use crate::arch::mem::{X4, ld_if, ld_relaxed, ld_x2, st, st_u16};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::arch::warp::{ballot, shuffle_xor, sync_warp, warp_tree};

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
}

/// The units of this block, over all layers.
pub(super) struct Attention<'a> {
    args: &'a Args,
    pos: u32,
    epoch: u32,
    /// Units of this block in a layer.
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
        let pairs = args.group.div_ceil(UNIT_HEADS);
        let units = visible.div_ceil(KEYS) * shape.kv_heads * pairs;
        let mine = units.saturating_sub(block_idx_x()).div_ceil(grid_dim_x());
        let attention = Self {
            args,
            pos,
            epoch,
            count: mine,
        };
        // SAFETY: the slots are empty.
        unsafe { attention.fill(memory, 0, caches(args, 0)) };
        attention
    }

    /// Unit `i` of this block.
    #[inline(always)]
    fn unit(&self, i: u32) -> Unit {
        let u = block_idx_x() + i * grid_dim_x();
        let pairs = self.args.group.div_ceil(UNIT_HEADS);
        let visible = self.pos.saturating_add(1).min(self.args.capacity);
        let (rest, pair) = (u / pairs, u % pairs);
        let (block, kv_head) = (rest / self.args.shape.kv_heads, rest % self.args.shape.kv_heads);
        let keys = visible.saturating_sub(block * KEYS).min(KEYS);
        let has_new = self.pos < self.args.capacity && block == self.pos / KEYS;
        Unit { block, kv_head, pair, keys, stored: if has_new { keys - 1 } else { keys } }
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
                fence_async();
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
        let mut i = 0;
        while i < self.count {
            let unit = self.unit(i);
            // SAFETY: the launch contract, handed on.
            unsafe {
                let row = self.row(x, layer, unit);
                let done = layer * self.count + i;
                let slot = done % KV_SLOTS;
                wait(memory.barriers.add(slot), done / KV_SLOTS % 2);
                self.place(memory, row, layer, unit, slot);
                sync_threads();
                self.answer(memory, layer, unit, slot);
                sync_threads();
                if i + KV_SLOTS < self.count {
                    self.ask(memory, layer, i + KV_SLOTS, caches(self.args, layer));
                }
            }
            i += 1;
        }
    }

    /// This thread's two elements of the row, a pair of a query, or of the new key, or two of the new value; and the angles.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`].
    #[inline(always)]
    unsafe fn row(&self, x: &Exchange, layer: u32, unit: Unit) -> [[f32; 2]; 2] {
        let shape = self.args.shape;
        let half = shape.head_dim / 2;
        let (side, pair) = (own_thread() / SIDE, own_thread() % (SIDE / 2));
        let pos = opaque_here(self.pos);
        let turns = pos < self.args.capacity && pair < half;
        let at = pos as usize * half as usize + pair as usize; // cos[pos, pair]
        // SAFETY: an element of the tables.
        let angles = unsafe {
            [
                ld_if(turns, self.args.cos.as_ptr().cast_const().wrapping_add(at)),
                ld_if(turns, self.args.sin.as_ptr().cast_const().wrapping_add(at)),
            ]
        };
        let of_query = own_thread() % SIDE < SIDE / 2;
        let in_group = unit.pair * UNIT_HEADS + side;
        let (head, step, at) = if of_query {
            (unit.kv_head * self.args.group + in_group, half, pair)
        } else if side == 0 {
            (shape.heads + unit.kv_head, half, pair)
        } else {
            (shape.heads + shape.kv_heads + unit.kv_head, 1, 2 * pair)
        };
        let needed =
            if of_query { in_group < self.args.group } else { unit.stored < unit.keys };
        let needed = needed && pair < half;
        let from = x.at(layer, if needed { head * shape.head_dim + at } else { 0 });
        let step = if needed { step as usize } else { 0 };
        loop {
            // SAFETY: two words of the row.
            let words: [u32; 2] = unsafe { [ld_relaxed(from), ld_relaxed(from.wrapping_add(step))] };
            let missing = words[0] == EMPTY || words[1] == EMPTY;
            if ballot(needed && missing) == 0 {
                return [words.map(f32::from_bits), angles];
            }
        }
    }

    /// Rotates the elements and puts them where the block needs them; stores the new key and value.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`]; `row` came from [`Attention::row`].
    #[inline(always)]
    unsafe fn place(&self, memory: Memory, [row, angles]: [[f32; 2]; 2], layer: u32, unit: Unit, slot: u32) {
        let Args { shape, capacity, .. } = *self.args;
        let half = shape.head_dim / 2;
        let (side, pair) = (own_thread() / SIDE, own_thread() % (SIDE / 2));
        if pair >= half {
            return;
        }
        let of_query = own_thread() % SIDE < SIDE / 2;
        let [mut low, mut high] = row;
        if (of_query || side == 0) && self.pos < capacity {
            (low, high) = rotate(low, high, angles[0], angles[1]);
        }
        // SAFETY: elements of a head of the block's shared memory, each of one thread; elements of the new position in the
        // caches, of the unit of the first heads.
        unsafe {
            if of_query {
                let q = memory.q.add(side * MAX_HEAD_DIM as u32 + pair);
                q.write(low);
                q.add(half).write(high);
                return;
            }
            if unit.stored == unit.keys {
                return;
            }
            let (keys, values) = Self::slot(memory, slot);
            let (low, high) = (f32_to_bf16(low), f32_to_bf16(high));
            let position = unit.kv_head as usize * capacity as usize + self.pos as usize;
            let [k_cache, v_cache] = caches(self.args, layer);
            let cache = if side == 0 { k_cache } else { v_cache };
            let cache = cache.wrapping_add(2 * position * kv_stride(shape.head_dim as usize));
            let owner = unit.pair == 0;
            if side == 0 {
                let key = keys.add(unit.stored * KEY_BYTES).cast::<u16>().add(pair);
                key.write_u16(low);
                key.add(half).write_u16(high);
                if owner {
                    let cache = cache.cast::<u16>().wrapping_add(pair as usize);
                    st_u16(cache, low);
                    st_u16(cache.wrapping_add(half as usize), high);
                }
            } else {
                let both = u32::from(low) | u32::from(high) << 16;
                values.add(unit.stored * 2 * shape.head_dim).cast::<u32>().add(pair).write(both);
                if owner {
                    st(cache.cast::<u32>().wrapping_add(pair as usize), both);
                }
            }
        }
    }

    /// Leaves the results of a unit in `partial`.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`]; query, keys and values are in shared memory.
    #[inline(always)]
    unsafe fn answer(&self, memory: Memory, layer: u32, unit: Unit, slot: u32) {
        let Args { shape, scale, .. } = *self.args;
        let (keys, values) = Self::slot(memory, slot);
        let (side, own) = (own_thread() / SIDE, own_thread() % SIDE);
        let scores = memory.scores.add(side * KEYS);
        // SAFETY: words of the block's shared memory; a row of a slot that nobody filled gives a score that nobody uses.
        let sum = unsafe {
            let q = memory.q.add(side * MAX_HEAD_DIM as u32);
            let s = score(dot(q, keys.add(own / 2 * KEY_BYTES), shape.head_dim), scale);
            if own % 2 == 0 {
                scores.add(own / 2).write(s);
            }
            sync_threads();
            Self::soften(memory, scores, unit.keys)
        };
        let in_group = unit.pair * UNIT_HEADS + side;
        let head = unit.kv_head * self.args.group + in_group;
        if in_group >= self.args.group || 2 * own >= shape.head_dim {
            return;
        }
        let len = partial_len(shape.head_dim as usize);
        let at = (head * self.args.key_blocks + unit.block) as usize * len;
        let to = self.args.partial.as_ptr().wrapping_add(at);
        let tag = u64::from(tag(self.epoch, shape.layers, layer)) << 32;
        // SAFETY: the partial results of this block of this head; each word of one thread.
        unsafe {
            let put = |at: u32, value: f32| {
                st_relaxed_u64(to.wrapping_add(at as usize), u64::from(word(value)) | tag);
            };
            if own == 0 {
                put(0, sum[0]);
                put(1, sum[1]);
            }
            let weights = memory.weights.add((own_thread() / 32) * KEYS);
            let [low, high] = weigh(weights, values, 2 * shape.head_dim, own, unit.keys);
            put(2 + 2 * own, low);
            put(3 + 2 * own, high);
        }
    }

    /// Turns scores into this warp's weights; returns their maximum and sum.
    ///
    /// # Safety
    ///
    /// 64 scores, of which `keys` count, written before a barrier.
    #[inline(always)]
    unsafe fn soften(memory: Memory, scores: Shared<f32>, keys: u32) -> [f32; 2] {
        let lane = (own_thread() % 32);
        // SAFETY: the caller's promise.
        let s = unsafe { [scores.add(lane).read(), scores.add(lane + 32).read()] };
        let there = [lane < keys, lane + 32 < keys];
        let mut top = if there[0] { max(f32::NEG_INFINITY, s[0]) } else { f32::NEG_INFINITY };
        top = if there[1] { max(top, s[1]) } else { top };
        let mut distance = 16;
        while distance > 0 {
            top = max(top, shuffle_xor(top, distance));
            distance /= 2;
        }
        let p = [
            if there[0] { exp(s[0] - top) } else { 0.0 },
            if there[1] { exp(s[1] - top) } else { 0.0 },
        ];
        let weights = memory.weights.add((own_thread() / 32) * KEYS);
        // SAFETY: words of this warp's lanes.
        unsafe {
            weights.add(lane).write(p[0]);
            weights.add(lane + 32).write(p[1]);
        }
        let sum = warp_tree(p[0] + p[1]);
        sync_warp();
        [top, sum]
    }
}

/// The dot of a query with the key at `key`: every second thread takes the first half of the partials.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// `head_dim` elements in shared memory each.
#[inline(always)]
unsafe fn dot(q: Shared<f32>, key: Shared<u8>, head_dim: u32) -> f32 {
    let part = own_thread() % 2;
    let (q, key) = (q.add(4 * part), key.add(8 * part));
    let mut sums = [0.0; 4];
    let mut take = |i: u32| {
        // SAFETY: i < head_dim / 8.
        let (a, b): (X4<f32>, [u32; 2]) =
            unsafe { (q.add(8 * i).read_x4(), key.add(16 * i).cast::<u32>().read_x2()) };
        let b = [b[0] << 16, b[0] & 0xffff_0000, b[1] << 16, b[1] & 0xffff_0000];
        let mut e = 0;
        while e < 4 {
            sums[e] = fma(a[e], f32::from_bits(b[e]), sums[e]);
            e += 1;
        }
    };
    let steps = head_dim / HEAD_STEP as u32;
    let mut i = 0;
    while i + 8 <= steps {
        let mut j = 0;
        while j < 8 {
            take(i + j);
            j += 1;
        }
        i += 8;
    }
    while i < steps {
        take(i);
        i += 1;
    }
    // Partials 4 apart are in neighbouring threads.
    let sums = sums.map(|s| s + shuffle_xor(s, 1));
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// Dimensions `2 pair` and `2 pair + 1` of the weighted values of `keys` keys, `stride` bytes apart, in their order.
///
/// # Safety
///
/// Weights and values are in shared memory.
#[inline(always)]
unsafe fn weigh(
    weights: Shared<f32>,
    values: Shared<u8>,
    stride: u32,
    pair: u32,
    keys: u32,
) -> [f32; 2] {
    const STEP: u32 = 16;
    // Else the distances of a step of keys stay in registers over all layers.
    let stride = opaque_here(stride);
    let own = values.add(4 * pair);
    // SAFETY: t < keys.
    let value = |t: u32| unsafe { own.add(t * stride).cast::<u32>().read() };
    let take = |acc: [f32; 2], p: f32, v: u32| {
        let (low, high) = (f32::from_bits(v << 16), f32::from_bits(v & 0xffff_0000));
        [weighted_value(acc[0], p, low), weighted_value(acc[1], p, high)]
    };
    let mut acc = [0.0; 2];
    let mut t = 0;
    while t + STEP <= keys {
        let v: [u32; STEP as usize] = core::array::from_fn(|j| value(t + j as u32));
        let mut j = 0;
        while j < STEP {
            // SAFETY: t + j < 64, a multiple of 4.
            let p: X4<f32> = unsafe { weights.add(t + j).read_x4() };
            let mut e = 0;
            while e < 4 {
                acc = take(acc, p[e], v[j as usize + e]);
                e += 1;
            }
            j += 4;
        }
        t += STEP;
    }
    while t < keys {
        // SAFETY: t < keys.
        acc = take(acc, unsafe { weights.add(t).read() }, value(t));
        t += 1;
    }
    acc
}

const _: () = assert!(SIDE == 2 * KEYS && SIDE as usize == MAX_HEAD_DIM && KEYS.is_multiple_of(WARPS));
