//! What a block makes of a key block and its queries, all of them in shared memory.

use contract::decode_layers::{
    HEAD_STEP, KEY_BYTES, KV_SLOTS, VALUE_BYTES, WARPS, partial_len, tag, word,
};
use contract::num::{exp, fma, max, order_key, order_value, score, weighted_value};

use super::super::sync;
use super::{Attention, KEYS, Memory, NARROW, Unit, WIDE, fast, own_thread};
use crate::arch::atomic::st_relaxed_u64_x2;
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mbarrier::wait;
use crate::arch::mem::X4;
use crate::arch::shared::Shared;
use crate::arch::thread::opaque_u64;
use crate::arch::warp::{LANES, shuffle_xor, warp_max, warp_tree};

/// Threads that share a key, two partials of its dot each, are lanes so far apart.
const APART: u32 = 8;

/// Where the results of a unit go.
pub(super) struct Results {
    /// Those of the first head.
    to: *mut u64,
    /// From head to head.
    len: usize,
    tag: u64,
    /// Heads of the unit.
    heads: u32,
}

impl Results {
    /// The same, worked out where this is called.
    #[inline(always)]
    pub(super) fn fixed(self) -> Self {
        let to = opaque_u64(self.to as u64) as *mut u64;
        Self { to, len: opaque_u64(self.len as u64) as usize, ..self }
    }

    /// # Safety
    ///
    /// Words `at` and `at + 1` of a head are this thread's; `at` is even.
    #[inline(always)]
    pub(super) unsafe fn put(&self, head: u32, at: u32, values: [f32; 2]) {
        if head < self.heads {
            let words = values.map(|value| u64::from(word(value)) | self.tag);
            // SAFETY: the caller's promise.
            unsafe { st_relaxed_u64_x2(self.at(head, at), words) };
        }
    }

    #[inline(always)]
    fn at(&self, head: u32, at: u32) -> *mut u64 {
        self.to.wrapping_add(head as usize * self.len + at as usize)
    }
}

/// Where the weight of a head of `H` and a key is: those of half of the heads are beside each other.
#[inline(always)]
fn weight_of<const H: usize>(head: u32, key: u32) -> u32 {
    let half = H as u32 / 2;
    (head / half * KEYS + key) * half + head % half
}

impl<const FAST: bool, const PAGED: bool> Attention<'_, FAST, PAGED> {
    /// Leaves the results of `H` heads of a unit in `partial`.
    ///
    /// *Convergence*: every thread that has the row calls it.
    ///
    /// # Safety
    ///
    /// As for [`Attention::layer`]; keys and values are asked for; `new` is of [`Attention::row`], which has just been called
    /// if this is the `first` unit of its heads.
    #[inline(always)]
    pub(super) unsafe fn answer<const H: usize>(
        &self,
        memory: Memory,
        unit: Unit,
        results: &Results,
        new: u32,
        first: bool,
    ) {
        let slot = unit.done % KV_SLOTS;
        // SAFETY: words of the block's shared memory; the partial results of this unit, each word of one thread.
        unsafe {
            if unit.has_new() {
                self.place(memory, new, unit);
            }
            wait(memory.barriers.add(slot), unit.done / KV_SLOTS % 2);
            if first || unit.has_new() {
                sync();
            }
            let (keys, values) = memory.slot(slot);
            if FAST {
                fast::answer::<PAGED>(memory, (keys, values), unit.keys, self.args.scale, results);
                return;
            }
            self.scores::<H>(memory, keys, unit.half);
            sync();
            Self::soften::<H>(memory, unit.keys);
            sync();
            let (warp, lane) = (own_thread() / LANES, own_thread() % LANES);
            let own = warp % (WARPS / 2);
            if warp >= WARPS / 2 {
                // The upper warps make the sums, of a head each.
                if own < H as u32 {
                    let p = [0, 1]
                        .map(|i| memory.weights.add(weight_of::<H>(own, lane + LANES * i)).read());
                    let sum = warp_tree(p[0] + p[1]);
                    if lane == 0 {
                        results.put(own, 0, [memory.tops.add(own).read(), sum]);
                    }
                }
            } else {
                // The others have 64 dimensions of half of the heads each.
                let (pair, heads) = (own % 2 * LANES + lane, own / 2 * (H as u32 / 2));
                // Else the distances of a step of keys stay in registers over all layers.
                let bytes = opaque_here(2 * self.args.shape.head_dim);
                if 4 * pair < bytes {
                    let weights = memory.weights.add(weight_of::<H>(heads, 0));
                    let own = values.add(4 * pair);
                    if H == NARROW {
                        let [value] = weigh_heads::<1>(weights, own, bytes, unit.keys);
                        results.put(heads, 2 + 2 * pair, value);
                    } else {
                        let [a, b] = weigh_heads::<2>(weights, own, bytes, unit.keys);
                        results.put(heads, 2 + 2 * pair, a);
                        results.put(heads + 1, 2 + 2 * pair, b);
                    }
                }
            }
        }
    }

    #[inline(always)]
    pub(super) fn results(&self, layer: u32, unit: Unit) -> Results {
        let shape = self.args.shape;
        let len = partial_len(shape.head_dim as usize);
        let head = unit.heads.kv_head * self.args.group + unit.heads.first;
        let at = (head * self.args.key_blocks + unit.block) as usize * len;
        Results {
            to: self.args.partial.as_ptr().wrapping_add(at),
            len: self.args.key_blocks as usize * len,
            tag: u64::from(tag(self.epoch, shape.layers, layer)) << 32,
            heads: self.args.group - unit.heads.first,
        }
    }

    /// Leaves the scores of `H` heads, of all or of this `half` of the queries.
    ///
    /// *Convergence*: every thread that has the row calls it.
    ///
    /// # Safety
    ///
    /// Queries and keys are in shared memory.
    #[inline(always)]
    unsafe fn scores<const H: usize>(&self, memory: Memory, keys: Shared<u8>, half: u32) {
        let lane = own_thread() % LANES;
        let (part, key) = (lane / APART, own_thread() / LANES * APART + lane % APART);
        // SAFETY: a row of a slot that nobody filled gives a score that nobody uses.
        let sums: [[f32; 2]; H] = unsafe {
            let q = memory.q.add(2 * WIDE as u32 * part + 4 * half);
            dots(q, keys.add(key * KEY_BYTES + 4 * part), self.args.shape.head_dim)
        };
        // Partials 4 apart are 16 lanes apart, those 2 apart 8 lanes; each of both lanes goes on with half of the heads.
        let (upper, odd) = (part / 2 == 1, part % 2 == 1);
        let halve = |own: [f32; 2], other: [f32; 2], up: bool, distance: u32| -> [f32; 2] {
            let (keep, send) = if up { (other, own) } else { (own, other) };
            [0, 1].map(|e: usize| keep[e] + shuffle_xor(send[e], distance))
        };
        let (own, head, writes) = if H == NARROW {
            let own = halve(sums[0], sums[1], upper, 2 * APART);
            (own.map(|s| s + shuffle_xor(s, APART)), part / 2, !odd)
        } else {
            let own = [0, 1].map(|h| halve(sums[h], sums[H / 2 + h], upper, 2 * APART));
            (halve(own[0], own[1], odd, APART), part, true)
        };
        if writes {
            // SAFETY: a score of this thread.
            unsafe {
                let scale = if PAGED { memory.scale().read() } else { self.args.scale };
                memory.scores.add(head * KEYS + key).write(score(own[0] + own[1], scale));
            }
        }
    }

    /// Turns scores into weights, of which a thread has one, and leaves the maxima in the results.
    ///
    /// *Convergence*: every thread that has the row calls it.
    ///
    /// # Safety
    ///
    /// 64 scores of each head, of which `keys` count, written before a barrier.
    #[inline(always)]
    unsafe fn soften<const H: usize>(memory: Memory, keys: u32) {
        let (head, key) = (own_thread() / KEYS, own_thread() % KEYS);
        // The same for all lanes of a warp.
        if head >= H as u32 {
            return;
        }
        // SAFETY: the caller's promise; a weight of this thread.
        unsafe {
            let own = memory.scores.add(head * KEYS + key).read();
            let other = memory.scores.add(head * KEYS + (key ^ LANES)).read();
            let top = if key < keys { max(f32::NEG_INFINITY, own) } else { f32::NEG_INFINITY };
            let top = if key ^ LANES < keys { max(top, other) } else { top };
            // Which of two zeros it is changes no bit of what is made of it.
            let top = order_value(warp_max(order_key(top)));
            let p = if key < keys { exp(own - top) } else { 0.0 };
            memory.weights.add(weight_of::<H>(head, key)).write(p);
            if key == 0 {
                memory.tops.add(head).write(top);
            }
        }
    }
}

/// Two partials of the dots of a key with the queries of `H` heads.
///
/// # Safety
///
/// `head_dim` elements in shared memory each; the queries stand there as those of [`WIDE`] heads.
#[inline(always)]
unsafe fn dots<const H: usize>(q: Shared<f32>, key: Shared<u8>, head_dim: u32) -> [[f32; 2]; H] {
    type Step = ([X4<f32>; 2], u32);
    let mut sums = [[0.0; 2]; H];
    let load = |i: u32| -> Step {
        // SAFETY: i < head_dim / 8.
        unsafe {
            let q = q.add(8 * WIDE as u32 * i);
            let low = q.read_x4();
            let high = if H == 2 { low } else { q.add(4).read_x4() };
            ([low, high], key.add(16 * i).cast::<u32>().read())
        }
    };
    let mut take = |(q, key): Step| {
        let key = [key << 16, key & 0xffff_0000].map(f32::from_bits);
        let mut h = 0;
        while h < H {
            sums[h] = [0, 1].map(|e: usize| fma(q[h / 2][h % 2 * 2 + e], key[e], sums[h][e]));
            h += 1;
        }
    };
    let steps = head_dim / HEAD_STEP as u32;
    let mut i = 0;
    if steps >= 4 {
        // Always two steps on their way.
        let mut next = [load(0), load(1)];
        while i + 4 <= steps {
            rolled();
            let here = next;
            next = [load(i + 2), load(i + 3)];
            let [(), ()] = here.map(&mut take);
            let here = next;
            let after = (i + 4).min(steps - 2);
            next = [load(after), load(after + 1)];
            let [(), ()] = here.map(&mut take);
            i = opaque(i + 4);
        }
    }
    while i < steps {
        rolled();
        take(load(i));
        i = opaque(i + 1);
    }
    sums
}

/// [`weigh`], with the distances of the longest heads known.
///
/// # Safety
///
/// As for [`weigh`].
#[inline(always)]
unsafe fn weigh_heads<const H: usize>(
    weights: Shared<f32>,
    values: Shared<u8>,
    stride: u32,
    keys: u32,
) -> [[f32; 2]; H] {
    // SAFETY: the caller's promise.
    unsafe {
        if stride == VALUE_BYTES {
            weigh(weights, values, VALUE_BYTES, keys)
        } else {
            weigh(weights, values, stride, keys)
        }
    }
}

/// Two dimensions of the weighted values of `keys` keys, `stride` bytes apart, in their order; of `H` heads, whose weights
/// stand beside each other.
///
/// # Safety
///
/// Weights and values are in shared memory.
#[inline(always)]
pub(in super::super) unsafe fn weigh<const H: usize>(
    weights: Shared<f32>,
    values: Shared<u8>,
    stride: u32,
    keys: u32,
) -> [[f32; 2]; H] {
    // SAFETY: eight of 64 keys: rows past the last one are in the slot too.
    let load = |t: u32| unsafe { Keys::<H>::load(weights, values, stride, t.min(KEYS - STEP)) };
    let mut acc = [[0.0; 2]; H];
    // A step is always on its way.
    let mut next = load(0);
    let mut t = 0;
    while t + 2 * STEP <= keys {
        rolled();
        let here = next;
        next = load(t + STEP);
        acc = here.take(acc, STEP);
        let here = next;
        next = load(t + 2 * STEP);
        acc = here.take(acc, STEP);
        t = opaque(t + 2 * STEP);
    }
    while t < keys {
        rolled();
        acc = next.take(acc, keys - t);
        t = opaque(t + STEP);
        next = load(t);
    }
    acc
}

/// Keys of a step.
const STEP: u32 = 8;

/// The weights of `H` heads and the values of a step of keys.
#[derive(Clone, Copy)]
struct Keys<const H: usize> {
    weights: [[X4<f32>; 2]; H],
    values: [u32; STEP as usize],
}

impl<const H: usize> Keys<H> {
    /// # Safety
    ///
    /// As for [`weigh`], from key `t` on.
    #[inline(always)]
    unsafe fn load(weights: Shared<f32>, values: Shared<u8>, stride: u32, t: u32) -> Self {
        let (p, v) = (weights.add(t * H as u32), values.add(t * stride));
        // SAFETY: the caller's promise: 8 * H weights beside each other.
        unsafe {
            Self {
                weights: core::array::from_fn(|i| {
                    [0, 1].map(|j: usize| p.add((8 * i + 4 * j) as u32).read_x4())
                }),
                values: core::array::from_fn(|j| v.add(j as u32 * stride).cast::<u32>().read()),
            }
        }
    }

    /// Takes `there` keys at most.
    #[inline(always)]
    fn take(self, mut acc: [[f32; 2]; H], there: u32) -> [[f32; 2]; H] {
        let mut j = 0;
        while j < STEP as usize {
            let v = [self.values[j] << 16, self.values[j] & 0xffff_0000].map(f32::from_bits);
            let mut h = 0;
            while h < H {
                let at = j * H + h;
                let p = self.weights[at / 8][at / 4 % 2][at % 4];
                let next = [0, 1].map(|e: usize| weighted_value(acc[h][e], p, v[e]));
                if (j as u32) < there {
                    acc[h] = next;
                }
                h += 1;
            }
            j += 1;
        }
        acc
    }
}

const _: () = assert!(APART * 4 == LANES && APART * WARPS == KEYS && KEYS == 2 * LANES);
