//! The row on its way into shared memory: queries, and the new key and value where they are needed.

use contract::decode_layers::{Args, EMPTY, KEY_BYTES, MAX_HEAD_DIM, UNIT_HEADS};
use contract::kv_append::kv_stride;
use contract::num::f32_to_bf16;
use contract::rope::rotate;

use super::super::exchange::Exchange;
use super::{Attention, Memory, SIDE, Unit, own_thread};
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_if, ld_relaxed, st, st_u16};
use crate::arch::warp::ballot;

impl Attention<'_> {
    /// This thread's two elements of the row, a pair of a query, or of the new key, or two of the new value; and the angles.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`].
    #[inline(always)]
    pub(super) unsafe fn row(&self, x: &Exchange, layer: u32, unit: Unit) -> [[f32; 2]; 2] {
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
        let needed = if of_query { in_group < self.args.group } else { unit.stored < unit.keys };
        let needed = needed && pair < half;
        let from = x.at(layer, if needed { head * shape.head_dim + at } else { 0 });
        let step = if needed { step as usize } else { 0 };
        loop {
            // SAFETY: two words of the row.
            let words: [u32; 2] =
                unsafe { [ld_relaxed(from), ld_relaxed(from.wrapping_add(step))] };
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
    pub(super) unsafe fn place(
        &self,
        memory: Memory,
        [row, angles]: [[f32; 2]; 2],
        [k_cache, v_cache]: [*mut u8; 2],
        unit: Unit,
        slot: u32,
    ) {
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
}
