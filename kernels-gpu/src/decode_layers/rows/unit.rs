//! What four warps make of a page and the queries of four heads, all of them in shared memory. The arithmetic of one row.

use contract::decode_layers::rows::GROUP_THREADS;
use contract::decode_layers::{HEAD_STEP, KEY_BYTES, UNIT_HEADS, word};
use contract::num::{exp, fma, max, order_key, order_value, score};

use super::super::attention::answer::weigh;
use super::super::attention::{KEYS, own_thread};
use super::memory::Unit;
use crate::arch::atomic::st_relaxed_u64_x2;
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::mem::X4;
use crate::arch::shared::Shared;
use crate::arch::warp::{LANES, lane_id, shuffle_xor, warp_max, warp_tree};

const HEADS: usize = UNIT_HEADS as usize;
/// Threads that share a key, two partials of its dot each, are lanes so far apart.
const APART: u32 = 8;
/// Keys of a thread, so far apart.
const KEYS_EACH: u32 = 2;
const NEXT_KEY: u32 = KEYS / KEYS_EACH;

/// Where the results of a unit go.
pub(super) struct Results {
    /// Those of the first head.
    pub(super) to: *mut u64,
    /// From head to head.
    pub(super) len: usize,
    pub(super) tag: u64,
    /// Heads of the unit.
    pub(super) heads: u32,
}

impl Results {
    /// # Safety
    ///
    /// Words `at` and `at + 1` of a head are this thread's; `at` is even.
    #[inline(always)]
    unsafe fn put(&self, head: u32, at: u32, values: [f32; 2]) {
        if head < self.heads {
            let words = values.map(|value| u64::from(word(value)) | self.tag);
            let to = self.to.wrapping_add(head as usize * self.len + at as usize);
            // SAFETY: the caller's promise.
            unsafe { st_relaxed_u64_x2(to, words) };
        }
    }
}

/// Where the weight of a head and a key is: those of two heads are beside each other.
#[inline(always)]
fn weight_of(head: u32, key: u32) -> u32 {
    (head / 2 * KEYS + key) * 2 + head % 2
}

/// Leaves the scores of all heads with all keys, at `keys`.
///
/// *Convergence*: every thread of the group calls it.
///
/// # Safety
///
/// Queries and keys are in shared memory; nobody reads the scores.
#[inline(always)]
pub(super) unsafe fn scores(unit: Unit, keys: Shared<u8>, head_dim: u32, scale: f32) {
    let (warp, lane) = (own_thread() % GROUP_THREADS / LANES, own_thread() % LANES);
    let (part, key) = (lane / APART, warp * APART + lane % APART);
    // SAFETY: a row of a slot that nobody filled gives a score that nobody uses.
    let sums = unsafe {
        let q = unit.q.add(2 * UNIT_HEADS * part);
        dots(q, keys.add(key * KEY_BYTES + 4 * part), head_dim)
    };
    // Partials 4 apart are 16 lanes apart, those 2 apart 8 lanes; each of both lanes goes on with half of the heads.
    let (upper, odd) = (part / 2 == 1, part % 2 == 1);
    let halve = |own: [f32; 2], other: [f32; 2], up: bool, distance: u32| -> [f32; 2] {
        let (keep, send) = if up { (other, own) } else { (own, other) };
        [0, 1].map(|e: usize| keep[e] + shuffle_xor(send[e], distance))
    };
    let mut i = 0;
    while i < KEYS_EACH {
        let sums = sums[i as usize];
        let own = [0, 1].map(|h| halve(sums[h], sums[HEADS / 2 + h], upper, 2 * APART));
        let own = halve(own[0], own[1], odd, APART);
        // SAFETY: a score of this thread.
        unsafe {
            let to = unit.scores.add(part * KEYS + key + NEXT_KEY * i);
            to.write(score(own[0] + own[1], scale));
        }
        i += 1;
    }
}

/// Turns scores into weights, of which a thread has two, and leaves the maxima beside them.
///
/// *Convergence*: every thread of the group calls it.
///
/// # Safety
///
/// 64 scores of each head, of which `keys` count, written before a barrier; nobody reads the weights.
#[inline(always)]
pub(super) unsafe fn soften(unit: Unit, keys: u32) {
    let (first, key) = (own_thread() % GROUP_THREADS / KEYS, own_thread() % KEYS);
    let mut i = 0;
    while i < 2 {
        let head = first + 2 * i;
        // SAFETY: the caller's promise; a weight of this thread.
        unsafe {
            let own = unit.scores.add(head * KEYS + key).read();
            let other = unit.scores.add(head * KEYS + (key ^ LANES)).read();
            let top = if key < keys { max(f32::NEG_INFINITY, own) } else { f32::NEG_INFINITY };
            let top = if key ^ LANES < keys { max(top, other) } else { top };
            // Which of two zeros it is changes no bit of what is made of it.
            let top = order_value(warp_max(order_key(top)));
            let p = if key < keys { exp(own - top) } else { 0.0 };
            unit.weights.add(weight_of(head, key)).write(p);
            if key == 0 {
                unit.tops.add(head).write(top);
            }
        }
        i += 1;
    }
}

/// Leaves the weighted values of half of the dimensions of half of the heads in the results, and the maximum and the sum of the
/// weights of a head.
///
/// *Convergence*: every thread of the group calls it.
///
/// # Safety
///
/// Weights, and `values` of `keys` keys, are in shared memory; the results are of this block.
#[inline(always)]
pub(super) unsafe fn answer(
    unit: Unit,
    values: Shared<u8>,
    keys: u32,
    head_dim: u32,
    results: &Results,
) {
    let (own, lane) = (own_thread() % GROUP_THREADS / LANES, own_thread() % LANES);
    let (pair, heads) = (own % 2 * LANES + lane, own / 2 * 2);
    let bytes = 2 * head_dim;
    // SAFETY: the caller's promise.
    unsafe {
        if 4 * pair < bytes {
            let weights = unit.weights.add(weight_of(heads, 0));
            let [a, b] = weigh::<2>(weights, values.add(4 * pair), opaque_here(bytes), keys);
            results.put(heads, 2 + 2 * pair, a);
            results.put(heads + 1, 2 + 2 * pair, b);
        }
        let p = [0, 1].map(|i| unit.weights.add(weight_of(own, lane + LANES * i)).read());
        let sum = warp_tree(p[0] + p[1]);
        if lane_id() == 0 {
            results.put(own, 0, [unit.tops.add(own).read(), sum]);
        }
    }
}

/// Two partials of the dots of two keys with the queries of all heads.
///
/// # Safety
///
/// `head_dim` elements in shared memory each.
#[inline(always)]
unsafe fn dots(
    q: Shared<f32>,
    key: Shared<u8>,
    head_dim: u32,
) -> [[[f32; 2]; HEADS]; KEYS_EACH as usize] {
    type Step = ([X4<f32>; 2], [u32; KEYS_EACH as usize]);
    let mut sums = [[[0.0; 2]; HEADS]; KEYS_EACH as usize];
    let load = |i: u32| -> Step {
        // SAFETY: i < head_dim / 8.
        unsafe {
            let q = q.add(8 * UNIT_HEADS * i);
            let key = key.add(16 * i);
            let keys = [0, 1].map(|j| key.add(j * NEXT_KEY * KEY_BYTES).cast::<u32>().read());
            ([q.read_x4(), q.add(4).read_x4()], keys)
        }
    };
    let mut take = |(q, keys): Step| {
        let mut j = 0;
        while j < KEYS_EACH as usize {
            let key = [keys[j] << 16, keys[j] & 0xffff_0000].map(f32::from_bits);
            let mut h = 0;
            while h < HEADS {
                sums[j][h] =
                    [0, 1].map(|e: usize| fma(q[h / 2][h % 2 * 2 + e], key[e], sums[j][h][e]));
                h += 1;
            }
            j += 1;
        }
    };
    let steps = head_dim / HEAD_STEP as u32;
    // A step is always on its way.
    let mut here = load(0);
    let mut i = 0;
    while i + 2 < steps {
        rolled();
        let next = load(i + 1);
        take(here);
        here = load(i + 2);
        take(next);
        i = opaque(i + 2);
    }
    if i + 1 < steps {
        let next = load(i + 1);
        take(here);
        take(next);
    } else {
        take(here);
    }
    sums
}

const _: () = assert!(
    APART * 4 == LANES
        && APART * KEYS_EACH * GROUP_THREADS == LANES * KEYS
        && KEYS == 2 * LANES
        && 2 * KEYS == GROUP_THREADS
        && HEADS == 4
);
