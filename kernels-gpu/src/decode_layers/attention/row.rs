//! The row on its way into shared memory: queries, and the new key and value where they are needed.

use contract::decode_layers::{Args, EMPTY, KEY_BYTES, KV_SLOTS, MAX_HEAD_DIM};
use contract::kv_append::kv_stride;
use contract::num::f32_to_bf16;
use contract::rope::rotate;

use super::super::exchange::Exchange;
use super::{Attention, Heads, KEYS, Memory, Unit, WIDE, fast, own_thread, page_of, place_in};
use crate::arch::atomic::ld_relaxed_if_ones;
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_if, st, st_u16};
use crate::arch::warp::any;

/// Threads that have a pair of a head each.
const OF_HEAD: u32 = MAX_HEAD_DIM as u32 / 2;

impl<const FAST: bool, const PAGED: bool> Attention<'_, FAST, PAGED> {
    /// Waits for the row, leaves the turned queries of `heads` in shared memory and the new key and value in the cache; two
    /// elements of those for [`Attention::place`].
    ///
    /// A thread has a pair of a query, and one of the new key or two elements of the new value.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`]; nobody uses the queries since the last barrier.
    #[inline(always)]
    pub(super) unsafe fn row(
        &self,
        x: &Exchange,
        layer: u32,
        heads: Heads,
        memory: Memory,
        caches: [*mut u8; 2],
    ) -> u32 {
        let Args { shape, capacity, group, pages, .. } = *self.args;
        let half = shape.head_dim / 2;
        let (own, pair) = (own_thread() / OF_HEAD, own_thread() % OF_HEAD);
        let pos = opaque_here(self.pos);
        let inside = pos < capacity;
        let turns = inside && pair < half;
        let at = pos as usize * half as usize + pair as usize; // cos[pos, pair]
        // SAFETY: an element of the tables.
        let [cos, sin] = [self.args.cos, self.args.sin]
            .map(|table| unsafe { ld_if(turns, table.as_ptr().cast_const().wrapping_add(at)) });
        let (has_new, stores) = (self.has_new != 0, heads.first == 0 && self.has_new == 1);
        let page = if PAGED && stores {
            // SAFETY: the key block of the row's position, which its cache has.
            unsafe { page_of(self.args, pos / KEYS) }
        } else {
            0
        };
        let of_query = own < self.width && heads.first + own < group && pair < half;
        let (is_key, of_new) = (own == 0, has_new && own < 2 && pair < half);
        let q = x.at(layer, (heads.kv_head * group + heads.first + own) * shape.head_dim + pair);
        let new_head = shape.heads + heads.kv_head + if is_key { 0 } else { shape.kv_heads };
        let new = x.at(layer, new_head * shape.head_dim + if is_key { pair } else { 2 * pair });
        let from = [
            q,
            q.wrapping_add(half as usize),
            new,
            new.wrapping_add(if is_key { half as usize } else { 1 }),
        ];
        let wanted = |needed: bool| if needed { EMPTY } else { 0 };
        let mut words = [wanted(of_query), wanted(of_query), wanted(of_new), wanted(of_new)];
        loop {
            let mut missing = false;
            let mut j = 0;
            while j < 4 {
                // SAFETY: a word of the row.
                words[j] = unsafe { ld_relaxed_if_ones(words[j], from[j]) };
                missing |= words[j] == EMPTY;
                j += 1;
            }
            if !any(missing) {
                break;
            }
        }
        let row = words.map(f32::from_bits);
        let turn = |low: f32, high: f32| {
            if inside { rotate(low, high, cos, sin) } else { (low, high) }
        };
        // SAFETY: elements of a head of the block's shared memory, each of one thread; elements of the new position in the
        // caches, of the first heads' blocks.
        unsafe {
            if of_query {
                let (low, high) = turn(row[0], row[1]);
                if FAST {
                    fast::leave(memory.q.cast(), own, pair, low);
                    fast::leave(memory.q.cast(), own, pair + half, high);
                } else {
                    let q = |e: u32| memory.q.add((e / 2 * WIDE as u32 + own) * 2 + e % 2);
                    q(pair).write(low);
                    q(pair + half).write(high);
                }
            }
            if !of_new {
                return 0;
            }
            let (mut low, mut high) = (row[2], row[3]);
            if is_key {
                (low, high) = turn(low, high);
            }
            let (low, high) = (f32_to_bf16(low), f32_to_bf16(high));
            let both = u32::from(low) | u32::from(high) << 16;
            if stores && (!PAGED || page < pages) {
                let position = if PAGED {
                    place_in(self.args, page, heads.kv_head) + (pos % KEYS) as usize
                } else {
                    heads.kv_head as usize * capacity as usize + pos as usize
                };
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

    /// Puts the new key and value, `both` of each thread, into the slot of their unit.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`]; `both` came from [`Attention::row`].
    #[inline(always)]
    pub(super) unsafe fn place(&self, memory: Memory, both: u32, unit: Unit) {
        let half = self.args.shape.head_dim / 2;
        let (own, pair) = (own_thread() / OF_HEAD, own_thread() % OF_HEAD);
        if own >= 2 || pair >= half {
            return;
        }
        let (keys, values) = memory.slot(unit.done % KV_SLOTS);
        // SAFETY: two elements of the slot's rows behind those that are on their way.
        unsafe {
            if own == 0 {
                let key = keys.add(unit.stored * KEY_BYTES).cast::<u16>().add(pair);
                key.write_u16(both as u16);
                key.add(half).write_u16((both >> 16) as u16);
            } else if FAST {
                let piece = fast::value_at(values, unit.stored, pair / 4);
                piece.cast::<u32>().add(pair % 4).write(both);
            } else {
                values.add(unit.stored * 4 * half).cast::<u32>().add(pair).write(both);
            }
        }
    }
}
