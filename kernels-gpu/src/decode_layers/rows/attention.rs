//! Attention of the rows: pages of their sequences, dealt out over the blocks.
//!
//! A unit is a page for up to four query heads that share its keys. Units follow each other by pages, then by heads, then by rows; a
//! block has a run of them, the same in every layer, and groups of four warps take them in turn: what a warp does waits for itself most
//! of the time, so that three units side by side take little longer than one. A group has its own place for keys and values, which come
//! into shared memory ahead, as soon as it is idle.

use contract::decode_layers::rows::{ASK_THREADS, Args, GROUP_THREADS, GROUPS, KEY_BYTES, Tiles};
use contract::decode_layers::{EMPTY, MAX_HEAD_DIM, UNIT_HEADS, partial_len, tag};
use contract::kv_append::kv_stride;
use contract::num::f32_to_bf16;
use contract::rope::rotate;

use super::super::attention::{KEYS, own_thread};
use super::exchange::Slot;
use super::memory::Memory;
use super::unit::{self, Results};
use super::workers;
use crate::arch::async_copy::copy_x16;
use crate::arch::atomic::ld_relaxed_if_ones;
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::mbarrier::{
    Barrier, arrive, arrive_after_copies, arrive_expecting, copy_bulk, wait,
};
use crate::arch::mem::{ld, ld_if, ld_x2, st, st_u16};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, sync_some};
use crate::arch::warp::any;
use crate::arch::wgmma::proxy_fence;

/// Threads of a group that have a pair of a head each, of every second head.
const OF_HEAD: u32 = MAX_HEAD_DIM as u32 / 2;
/// Pairs of a query of a thread.
const PAIRS: usize = 2;
/// The first of the named barriers of groups.
const BARRIER: u32 = 4;

/// Where a unit is: its row, its heads by number, its key block.
#[derive(Clone, Copy)]
struct Place {
    row: u32,
    heads: u32,
    block: u32,
}

/// The units of this block.
pub(super) struct Attention<'a, const T: usize> {
    args: &'a Args,
    epoch: u32,
}

/// How many units a block has: hardly any, up to one for each group, or more, so that their keys and values are what takes longest.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Load {
    Few,
    Some,
    Many,
}

/// Key blocks of a row at `pos`.
#[inline(always)]
fn key_blocks(pos: u32, capacity: u32) -> u32 {
    if pos < capacity { pos / KEYS + 1 } else { 0 }
}

/// The pages of a layer: keys and values.
///
/// # Safety
///
/// `layer` is a layer of `args`.
#[inline(always)]
unsafe fn caches(args: &Args, layer: u32) -> [*mut u8; 2] {
    let at = args.caches.as_ptr().cast_const().wrapping_add(layer as usize).cast::<[u32; 2]>();
    // SAFETY: an entry that nobody writes.
    let pair: [[u32; 2]; 2] = unsafe { [ld_x2(at), ld_x2(at.wrapping_add(1))] };
    pair.map(|[low, high]| (u64::from(low) | u64::from(high) << 32) as *mut u8)
}

impl<'a, const T: usize> Attention<'a, T> {
    const ROWS: u32 = Tiles(T as u32).rows();

    /// What this block has of a launch.
    #[inline(always)]
    pub(super) fn new(args: &'a Args, memory: Memory<T>, epoch: u32) -> Self {
        let all = args.shape.kv_heads * args.group.div_ceil(UNIT_HEADS);
        let blocks_of = |row: u32| {
            // SAFETY: written before a barrier.
            key_blocks(unsafe { memory.positions.add(row).read() }, args.capacity)
        };
        let mut units = 0;
        let mut row = 0;
        while row < Self::ROWS {
            units += blocks_of(row) * all;
            row = opaque(row + 1); // one loop
        }
        let (each, more) = (units / workers::<T>(args), units % workers::<T>(args));
        let block = block_idx_x();
        let count = each + u32::from(block < more);
        // The first units of the groups, each by a thread; what is behind the last one is nobody's.
        let mut left = block * each + block.min(more) + own_thread();
        let mut place = Place { row: 0, heads: 0, block: 0 };
        let mut row = 0;
        while row < Self::ROWS {
            let of_heads = blocks_of(row);
            if left < of_heads * all {
                place = Place { row, heads: left / of_heads, block: left % of_heads };
                break;
            }
            left -= of_heads * all;
            row = opaque(row + 1); // one loop
        }
        let Place { row, heads, block } = place;
        if own_thread() < GROUPS {
            // SAFETY: words that nobody reads before the next barrier.
            unsafe { memory.first.add(4 * own_thread()).write_x4([row, heads, block, count]) };
        }
        Self { args, epoch }
    }

    /// The first unit of a group, and how many units the block has. They would stay in registers over all layers.
    #[inline(always)]
    fn units(memory: Memory<T>, group: u32) -> (Place, u32) {
        // SAFETY: written before a barrier.
        let [row, heads, block, count] = unsafe { memory.first.add(4 * group).read_x4() };
        (Place { row, heads, block }, count)
    }

    /// Parts of four heads of a key and value head.
    #[inline(always)]
    fn parts(&self) -> u32 {
        opaque_here(self.args.group).div_ceil(UNIT_HEADS)
    }

    /// The position of a row.
    #[inline(always)]
    fn position(memory: Memory<T>, row: u32) -> u32 {
        // SAFETY: written before a barrier.
        unsafe { memory.positions.add(row).read() }
    }

    /// The unit behind one.
    #[inline(always)]
    fn next(&self, memory: Memory<T>, place: Place) -> Place {
        let Place { mut row, mut heads, mut block } = place;
        block += 1;
        if block == key_blocks(Self::position(memory, row), self.args.capacity) {
            (block, heads) = (0, heads + 1);
            if heads == self.args.shape.kv_heads * self.parts() {
                heads = 0;
                row += 1;
                // Behind the last unit any row is right.
                while row < Self::ROWS && Self::position(memory, row) >= self.args.capacity {
                    row = opaque(row + 1); // one loop
                }
                row = if row < Self::ROWS { row } else { 0 };
            }
        }
        Place { row, heads, block }
    }

    /// The key and value head of heads number `heads`, and the first of its group's.
    #[inline(always)]
    fn heads(&self, heads: u32) -> (u32, u32) {
        // Most models have no more heads than a unit takes, and then nothing is divided.
        let parts = self.parts();
        if parts == 1 { (heads, 0) } else { (heads / parts, heads % parts * UNIT_HEADS) }
    }

    /// Asks for the keys and values of units `from` to `to` of `layer`, as their places become idle. By the threads that ask.
    ///
    /// # Safety
    ///
    /// Units are asked for in their order.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, memory: Memory<T>, layer: u32, from: u32, to: u32) {
        let (mut place, count) = Self::units(memory, 0);
        let to = to.min(count);
        if from >= to {
            return;
        }
        // SAFETY: a layer of the model.
        let caches = unsafe { caches(self.args, layer) };
        let mut at = 0;
        if T == 1 {
            while at < to {
                if at >= from {
                    // SAFETY: the caller's promise.
                    unsafe { self.ask(memory, place, at, [layer, count], caches, [true; 2]) };
                }
                place = self.next(memory, place);
                at = opaque(at + 1); // one loop
            }
            return;
        }
        while at < from {
            place = self.next(memory, place);
            at = opaque(at + 1); // one loop
        }
        // The keys of a unit of each group, then their values: the place of keys is idle first.
        while at < to {
            let (first, of_first) = (at, place);
            let end = to.min(first + GROUPS);
            let mut values = false;
            loop {
                (at, place) = (first, of_first);
                while at < end {
                    // SAFETY: the caller's promise.
                    unsafe {
                        self.ask(memory, place, at, [layer, count], caches, [!values, values])
                    };
                    place = self.next(memory, place);
                    at = opaque(at + 1); // one loop
                }
                if values {
                    break;
                }
                values = opaque(1) != 0;
            }
        }
    }

    /// What keys and values this block has.
    #[inline(always)]
    pub(super) fn load(&self, memory: Memory<T>) -> Load {
        match Self::units(memory, 0).1 {
            0..2 => Load::Few,
            count if asked_after(count) => Load::Some,
            _ => Load::Many,
        }
    }

    /// Waits until the last group is done with its units of `layer`: then the weights of down may come.
    ///
    /// # Safety
    ///
    /// All of them are asked for.
    #[inline(always)]
    pub(super) unsafe fn wait_idle(&self, memory: Memory<T>, layer: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.wait_done(memory, layer, GROUPS - 1) };
    }

    /// Whether nobody uses the values of group `group`, nor its keys.
    #[inline(always)]
    fn idle(memory: Memory<T>, group: u32) -> Barrier {
        memory.empty[usize::from(T > 1)].add(group)
    }

    /// Waits until group `group` is done with its units of `layer`.
    ///
    /// # Safety
    ///
    /// As for [`Attention::attend`].
    #[inline(always)]
    unsafe fn wait_done(&self, memory: Memory<T>, layer: u32, group: u32) {
        let (_, count) = Self::units(memory, 0);
        let uses = units_of(group, count);
        if uses > 0 {
            // SAFETY: a barrier of the block.
            unsafe { wait(Self::idle(memory, group), (layer * uses + uses - 1) % 2) };
        }
    }

    /// Asks for the keys of unit `at` of the `count` ones of this block, for its values, or for both, which have a barrier together then.
    ///
    /// # Safety
    ///
    /// As for [`Attention::fill`].
    #[inline(always)]
    unsafe fn ask(
        &self,
        memory: Memory<T>,
        place: Place,
        at: u32,
        [layer, count]: [u32; 2],
        caches: [*mut u8; 2],
        [of_keys, of_values]: [bool; 2],
    ) {
        const ROWS: u32 = ASK_THREADS / 16;
        let Args { shape, table_stride, pages, .. } = *self.args;
        let (group, own) = (at % GROUPS, own_thread() % ASK_THREADS);
        let done = layer * units_of(group, count) + at / GROUPS;
        let bytes = 2 * kv_stride(shape.head_dim as usize) as u32;
        let side = if of_keys { group } else { GROUPS + group };
        let barrier = memory.filled[0].add(side);
        let (kv_head, _) = self.heads(place.heads);
        // SAFETY: a word of the row's table; keys and values of a page that is there, which no running kernel writes, and their
        // place, once the last unit in it is done.
        unsafe {
            let (keys, values) = memory.slot(group);
            let at = (place.row * table_stride + place.block) as usize;
            let page = ld(self.args.tables.as_ptr().cast_const().wrapping_add(at));
            let pos = Self::position(memory, place.row);
            let stored = (pos - place.block * KEYS).min(KEYS);
            let stored = if page < pages { stored } else { 0 };
            let at = (page as usize * shape.kv_heads as usize + kv_head as usize) * KEYS as usize;
            let from = caches.map(|cache| cache.cast_const().wrapping_add(at * bytes as usize));
            // For values alone only who asks for them: the others, for whom nobody waits, might miss a turn of the barrier.
            if done > 0 && (of_keys || own == 0) {
                wait(memory.empty[0].add(side), (done + 1) % 2);
            }
            if own == 0 {
                if of_keys {
                    memory.pages.add(group).write(page);
                }
                let stored = if of_values { stored } else { 0 };
                proxy_fence();
                arrive_expecting(barrier, bytes * stored);
                if stored > 0 {
                    copy_bulk(values, from[1], bytes * stored, barrier);
                }
            }
            if !of_keys {
                return;
            }
            let (piece, row) = (16 * (own % 16), own / 16);
            if piece < bytes {
                let mut to = keys.add(row * KEY_BYTES + piece);
                let mut from = from[0].wrapping_add((row * bytes + piece) as usize);
                let mut key = row;
                while key < stored {
                    copy_x16(to, from, true);
                    to = to.add(ROWS * KEY_BYTES);
                    from = from.wrapping_add((ROWS * bytes) as usize);
                    key = opaque(key + ROWS); // one loop
                }
            }
            arrive_after_copies(barrier);
        }
    }

    /// This block's share of the attention of `layer`.
    ///
    /// *Convergence*: every thread that makes products calls it.
    ///
    /// # Safety
    ///
    /// The launch contract; layers come in order.
    #[inline(always)]
    pub(super) unsafe fn attend(&self, words: &Slot<T>, layer: u32, memory: Memory<T>) {
        let Args { shape, group: of_group, key_blocks, pages, .. } = *self.args;
        let len = partial_len(shape.head_dim as usize);
        let group = own_thread() / GROUP_THREADS;
        let (mut place, count) = Self::units(memory, group.min(GROUPS - 1));
        let (mut at, mut turned) = (group, u32::MAX);
        if at >= count || group >= GROUPS {
            // SAFETY: barriers of the block.
            unsafe {
                if asked_after(count) {
                    arrive(memory.turned());
                }
                // Who looks for results before there can be any is in the way of those who make them.
                self.wait_done(memory, layer, 0);
            }
            return;
        }
        let unit = memory.unit(group);
        let mut done = layer * units_of(group, count);
        while at < count {
            let (pos, stored, keys) = self.keys(memory, place);
            let (kv_head, first_head) = self.heads(place.heads);
            // SAFETY: words of the group's shared memory; the partial results of this unit.
            unsafe {
                let (of_keys, values) = memory.slot(group);
                let mut new = 0;
                // The queries are there already where the group's last unit was of the same heads.
                let query = place.row << 24 | place.heads;
                if turned != query || stored < keys {
                    turned = query;
                    new = self.row(words, layer, place, pos, stored < keys, memory);
                }
                if at == group && asked_after(count) {
                    arrive(memory.turned());
                }
                wait(memory.filled[0].add(group), done % 2);
                if stored < keys {
                    let values = (T == 1).then_some(values);
                    place_new(new, [Some(of_keys), values], stored, shape.head_dim);
                }
                sync_group(group);
                // A page that is not there gives what is no number.
                let there = memory.pages.add(group).read() < pages;
                let scale = if there { self.args.scale } else { f32::NAN };
                unit::scores(unit, of_keys, shape.head_dim, scale);
                sync_group(group);
                if T > 1 {
                    arrive(memory.empty[0].add(group));
                }
                unit::soften(unit, keys);
                if T > 1 {
                    wait(memory.filled[1].add(group), done % 2);
                    if stored < keys {
                        place_new(new, [None, Some(values)], stored, shape.head_dim);
                    }
                }
                sync_group(group);
                let head = place.row * shape.heads + kv_head * of_group + first_head;
                let to = (head * key_blocks + place.block) as usize * len;
                let results = Results {
                    to: self.args.partial.as_ptr().wrapping_add(to),
                    len: key_blocks as usize * len,
                    tag: u64::from(tag(self.epoch, shape.layers, layer)) << 32,
                    heads: of_group - first_head,
                };
                unit::answer(unit, values, keys, shape.head_dim, &results);
                arrive(Self::idle(memory, group));
            }
            (at, done) = (at + GROUPS, done + 1);
            if T > 1 && at >= count {
                sync_group(group);
                // SAFETY: all threads of the group are done with it.
                unsafe { memory.forget_unit(group) };
            }
            let mut skip = if at < count { GROUPS } else { 0 };
            while skip > 0 {
                place = self.next(memory, place);
                skip = opaque(skip - 1); // one loop
            }
        }
    }

    /// The position of a unit's row, and its keys: those in the page, and all.
    #[inline(always)]
    fn keys(&self, memory: Memory<T>, place: Place) -> (u32, u32, u32) {
        let pos = Self::position(memory, place.row);
        let stored = (pos - place.block * KEYS).min(KEYS);
        (pos, stored, stored + u32::from(place.block == pos / KEYS))
    }

    /// Waits for the row, leaves the turned queries in the group's memory, and, with `news`, the new key and value in their page; two
    /// elements of those for [`place_new`].
    ///
    /// A thread has a pair of every second query, and one of the new key or two elements of the new value.
    ///
    /// *Convergence*: every thread of the group calls it.
    ///
    /// # Safety
    ///
    /// As for [`Attention::attend`]; nobody uses the queries.
    #[inline(always)]
    unsafe fn row(
        &self,
        words: &Slot<T>,
        layer: u32,
        place: Place,
        pos: u32,
        news: bool,
        memory: Memory<T>,
    ) -> u32 {
        let Args { shape, group, pages, table_stride, .. } = *self.args;
        let half = shape.head_dim / 2;
        let (own, pair) = (own_thread() % GROUP_THREADS / OF_HEAD, own_thread() % OF_HEAD);
        let queries = memory.unit(own_thread() / GROUP_THREADS).q;
        let (kv_head, first) = self.heads(place.heads);
        let there = pair < half;
        let at = pos as usize * half as usize + pair as usize; // cos[pos, pair]
        let (is_key, of_new) = (own == 0, news && there);
        let head = |i: usize| first + own + 2 * i as u32;
        let of_query = [0, 1].map(|i| head(i) < group && there);
        let stores = of_new && first == 0;
        // SAFETY: elements of the tables; an entry of the model.
        let (cos, sin, page, caches) = unsafe {
            let [cos, sin] = [self.args.cos, self.args.sin]
                .map(|table| ld_if(there, table.as_ptr().cast_const().wrapping_add(at)));
            let at = (place.row * table_stride + pos / KEYS) as usize;
            let page = ld_if(stores, self.args.tables.as_ptr().cast_const().wrapping_add(at));
            (cos, sin, page, caches(self.args, layer))
        };
        let q = [0, 1]
            .map(|i| words.row(place.row, (kv_head * group + head(i)) * shape.head_dim + pair));
        let new_head = shape.heads + kv_head + if is_key { 0 } else { shape.kv_heads };
        let new = new_head * shape.head_dim + if is_key { pair } else { 2 * pair };
        let new = words.row(place.row, new);
        let from = [
            q[0],
            q[0].wrapping_add(half as usize),
            q[1],
            q[1].wrapping_add(half as usize),
            new,
            new.wrapping_add(if is_key { half as usize } else { 1 }),
        ];
        let wanted = |needed: bool| if needed { EMPTY } else { 0 };
        let [first, second, third] = [wanted(of_query[0]), wanted(of_query[1]), wanted(of_new)];
        let mut found = [first, first, second, second, third, third];
        loop {
            let mut missing = false;
            let mut j = 0;
            while j < found.len() {
                // SAFETY: a word of the row.
                found[j] = unsafe { ld_relaxed_if_ones(found[j], from[j]) };
                j += 1;
            }
            j = 0;
            while j < found.len() {
                missing |= found[j] == EMPTY;
                j += 1;
            }
            if !any(missing) {
                break;
            }
        }
        let row = found.map(f32::from_bits);
        // SAFETY: elements of a head of the group's shared memory, each of one thread; elements of the new position in the
        // pages, of the first heads' blocks.
        unsafe {
            let mut i = 0;
            while i < PAIRS {
                if of_query[i] {
                    let (low, high) = rotate(row[2 * i], row[2 * i + 1], cos, sin);
                    let own = own + 2 * i as u32;
                    let q = |e: u32| queries.add((e / 2 * UNIT_HEADS + own) * 2 + e % 2);
                    q(pair).write(low);
                    q(pair + half).write(high);
                }
                i += 1;
            }
            if !of_new {
                return 0;
            }
            let (mut low, mut high) = (row[4], row[5]);
            if is_key {
                (low, high) = rotate(low, high, cos, sin);
            }
            let (low, high) = (f32_to_bf16(low), f32_to_bf16(high));
            let both = u32::from(low) | u32::from(high) << 16;
            if stores && page < pages {
                let position = (page as usize * shape.kv_heads as usize + kv_head as usize)
                    * KEYS as usize
                    + (pos % KEYS) as usize;
                let cache = if is_key { caches[0] } else { caches[1] };
                let cache = cache.wrapping_add(2 * position * kv_stride(shape.head_dim as usize));
                if is_key {
                    let cache = cache.cast::<u16>().wrapping_add(pair as usize);
                    st_u16(cache, low);
                    st_u16(cache.wrapping_add(half as usize), high);
                } else {
                    st(cache.cast::<u32>().wrapping_add(pair as usize), both);
                }
            }
            both
        }
    }
}

/// Whether somebody waits for the queries of a block of `count` units: nobody arrives at a barrier that nobody waits at.
#[inline(always)]
fn asked_after(count: u32) -> bool {
    count <= GROUPS
}

/// Units of a group, of the `count` ones of its block.
#[inline(always)]
fn units_of(group: u32, count: u32) -> u32 {
    (count + GROUPS - 1 - group) / GROUPS
}

/// Waits for the group's threads.
///
/// *Convergence*: each of them calls it.
#[inline(always)]
fn sync_group(group: u32) {
    sync_some(BARRIER + group, GROUP_THREADS);
}

/// Puts the new key and value, `both` of each thread, behind the `stored` ones, or one of them.
///
/// # Safety
///
/// As for [`Attention::attend`]; `both` came from [`Attention::row`].
#[inline(always)]
unsafe fn place_new(
    both: u32,
    [keys, values]: [Option<Shared<u8>>; 2],
    stored: u32,
    head_dim: u32,
) {
    let half = head_dim / 2;
    let (own, pair) = (own_thread() % GROUP_THREADS / OF_HEAD, own_thread() % OF_HEAD);
    if pair >= half {
        return;
    }
    // SAFETY: two elements of the rows behind those that are on their way.
    unsafe {
        if own == 0 {
            if let Some(keys) = keys {
                let key = keys.add(stored * KEY_BYTES).cast::<u16>().add(pair);
                key.write_u16(both as u16);
                key.add(half).write_u16((both >> 16) as u16);
            }
        } else if let Some(values) = values {
            values.add(stored * 4 * half).cast::<u32>().add(pair).write(both);
        }
    }
}

const _: () = assert!(
    GROUP_THREADS == 2 * OF_HEAD
        && 2 * PAIRS == UNIT_HEADS as usize
        && ASK_THREADS.is_multiple_of(16)
);
