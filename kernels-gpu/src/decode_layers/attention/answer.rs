//! What a block makes of a key block and its queries, all of them in shared memory.

use contract::decode_layers::{
    Args, HEAD_STEP, KEY_BYTES, MAX_HEAD_DIM, UNIT_HEADS, partial_len, tag, word,
};
use contract::num::{exp, fma, max, score, weighted_value};

use super::{Attention, KEYS, Memory, SIDE, Unit, own_thread};
use crate::arch::atomic::st_relaxed_u64;
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::X4;
use crate::arch::shared::Shared;
use crate::arch::thread::sync_threads;
use crate::arch::warp::{shuffle_xor, sync_warp, warp_tree};

impl Attention<'_> {
    /// Leaves the results of a unit in `partial`.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`]; query, keys and values are in shared memory.
    #[inline(always)]
    pub(super) unsafe fn answer(&self, memory: Memory, layer: u32, unit: Unit, slot: u32) {
        let Args { shape, scale, .. } = *self.args;
        let (keys, values) = Self::slot(memory, slot);
        let (side, own) = (own_thread() / SIDE, own_thread() % SIDE);
        let scores = memory.scores.add(side * KEYS);
        // Whose two dimensions: half of the threads have some, those of both sides on different schedulers.
        let pair = own ^ SIDE / 2 * side;
        // SAFETY: words of the block's shared memory; a row of a slot that nobody filled gives a score that nobody uses.
        let (top, p) = unsafe {
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
        if in_group >= self.args.group {
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
            // The same for all lanes: the sum is made by warps that have no dimensions.
            if pair >= SIDE / 2 {
                let sum = warp_tree(p);
                if pair == SIDE / 2 {
                    put(0, top);
                    put(1, sum);
                }
            } else if 2 * pair < shape.head_dim {
                let weights = memory.weights.add(own_thread() / 32 * KEYS);
                let [low, high] = weigh(weights, values, 2 * shape.head_dim, pair, unit.keys);
                put(2 + 2 * pair, low);
                put(3 + 2 * pair, high);
            }
        }
    }

    /// Turns scores into this warp's weights; returns their maximum and the sum of this lane's.
    ///
    /// # Safety
    ///
    /// 64 scores, of which `keys` count, written before a barrier.
    #[inline(always)]
    unsafe fn soften(memory: Memory, scores: Shared<f32>, keys: u32) -> (f32, f32) {
        let lane = own_thread() % 32;
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
        let weights = memory.weights.add(own_thread() / 32 * KEYS);
        // SAFETY: words of this warp's lanes.
        unsafe {
            weights.add(lane).write(p[0]);
            weights.add(lane + 32).write(p[1]);
        }
        sync_warp();
        (top, p[0] + p[1])
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
    let load = |i: u32| -> (X4<f32>, [u32; 2]) {
        // SAFETY: i < head_dim / 8.
        unsafe { (q.add(8 * i).read_x4(), key.add(16 * i).cast::<u32>().read_x2()) }
    };
    let load4 = |i: u32| [load(i), load(i + 1), load(i + 2), load(i + 3)];
    let mut take = |(a, b): (X4<f32>, [u32; 2])| {
        let b = [b[0] << 16, b[0] & 0xffff_0000, b[1] << 16, b[1] & 0xffff_0000];
        let mut e = 0;
        while e < 4 {
            sums[e] = fma(a[e], f32::from_bits(b[e]), sums[e]);
            e += 1;
        }
    };
    let steps = head_dim / HEAD_STEP as u32;
    let mut i = 0;
    if steps >= 8 {
        // Always four steps on their way.
        let mut next = load4(0);
        while i + 8 <= steps {
            let here = next;
            next = load4(i + 4);
            let [(), (), (), ()] = here.map(&mut take);
            let here = next;
            next = load4((i + 8).min(steps - 4));
            let [(), (), (), ()] = here.map(&mut take);
            i += 8;
        }
    }
    while i < steps {
        rolled();
        take(load(i));
        i = opaque(i + 1);
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
    // SAFETY: t < 64.
    let value = |t: u32| unsafe { own.add(t * stride).cast::<u32>().read() };
    let take = |acc: [f32; 2], p: f32, v: u32| {
        let (low, high) = (f32::from_bits(v << 16), f32::from_bits(v & 0xffff_0000));
        [weighted_value(acc[0], p, low), weighted_value(acc[1], p, high)]
    };
    // SAFETY: t + STEP <= 64, a multiple of 4.
    let load = |t: u32| unsafe {
        let p: [X4<f32>; STEP as usize / 4] =
            core::array::from_fn(|j| weights.add(t + 4 * j as u32).read_x4());
        let v: [u32; STEP as usize] = core::array::from_fn(|j| value(t + j as u32));
        (p, v)
    };
    let take_all =
        |mut acc: [f32; 2], (p, v): ([X4<f32>; STEP as usize / 4], [u32; STEP as usize])| {
            let mut j = 0;
            while j < STEP as usize {
                acc = take(acc, p[j / 4][j % 4], v[j]);
                j += 1;
            }
            acc
        };
    let mut acc = [0.0; 2];
    let mut t = 0;
    // A step is always on its way; those past the keys are in the slot too.
    let mut next = load(0);
    while t + 2 * STEP <= keys {
        let here = next;
        next = load(t + STEP);
        acc = take_all(acc, here);
        let here = next;
        next = load((t + 2 * STEP).min(KEYS - STEP));
        acc = take_all(acc, here);
        t += 2 * STEP;
    }
    if t + STEP <= keys {
        acc = take_all(acc, next);
        t += STEP;
    }
    while t < keys {
        rolled();
        // SAFETY: t < keys.
        acc = take(acc, unsafe { weights.add(t).read() }, value(t));
        t += 1;
    }
    acc
}
