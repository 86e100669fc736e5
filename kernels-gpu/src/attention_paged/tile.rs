//! A page of one kv head in shared memory, and four queries on it.
//!
//! Scores: four lanes make those of two keys, a quarter of the dot's eight partials each, for all heads;
//! then each lane gives away what others finish, and is left with one key and two heads. A warp per head
//! makes the exponentials. Values: a thread carries two neighbouring dimensions of two heads through the
//! keys in order.

use contract::attention_paged::{
    PAGE, STEP_HEAD_DIM, STEP_HEADS, STEP_KEY_BYTES, STEP_SMEM_BYTES, STEP_THREADS,
    STEP_VALUE_BYTES,
};
use contract::num::{BlockSum, bf16_to_f32, exp, fma, max, score, weighted_value};

use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{opaque, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, shuffle_up, shuffle_xor, warp_id, warp_tree};

/// Keys of a page.
pub(super) const KEYS: u32 = PAGE as u32;
/// Heads at once.
pub(super) const HEADS: usize = STEP_HEADS as usize;
/// Heads whose values one thread carries.
pub(super) const OWN: usize = HEADS * STEP_HEAD_DIM as usize / 2 / STEP_THREADS as usize;
/// Keys of a lane, and how far they are apart.
const OF_LANE: usize = (KEYS / APART) as usize;
const APART: u32 = STEP_THREADS / 4;
/// Heads of a warp.
pub(super) const HEADS_OF_WARP: u32 = STEP_HEADS * LANES / STEP_THREADS;
/// Groups of eight elements at once.
const GROUPS: u32 = 2;
/// Keys at once.
const AT_ONCE: u32 = 16;

const _: () = assert!(KEYS == 2 * LANES && HEADS == 4 && OF_LANE % 2 == 0);
const _: () = assert!(APART * OF_LANE as u32 / 2 == LANES && KEYS % AT_ONCE == 0);
const _: () = assert!(STEP_THREADS as usize * OWN * 2 == HEADS * STEP_HEAD_DIM as usize);

/// The keys, [`STEP_KEY_BYTES`] apart.
#[inline(always)]
pub(super) fn keys() -> Shared<u8> {
    dynamic_shared_mem()
}

/// The values, [`STEP_VALUE_BYTES`] apart.
#[inline(always)]
pub(super) fn values() -> Shared<u8> {
    keys().add(KEYS * STEP_KEY_BYTES)
}

/// The queries, rotated: [`STEP_HEAD_DIM`] words each.
#[inline(always)]
pub(super) fn queries() -> Shared<f32> {
    values().add(KEYS * STEP_VALUE_BYTES).cast()
}

/// Scores, then exponentials: 64 words of each head.
#[inline(always)]
fn scores() -> Shared<f32> {
    queries().add(STEP_HEADS * STEP_HEAD_DIM)
}

/// Maximum and sum of each head.
#[inline(always)]
pub(super) fn sums() -> Shared<f32> {
    scores().add(STEP_HEADS * KEYS)
}

/// Where one thread tells the others something.
#[inline(always)]
pub(super) fn note() -> Shared<u32> {
    sums().add(2 * STEP_HEADS).cast()
}

const _: () = assert!(
    KEYS * (STEP_KEY_BYTES + STEP_VALUE_BYTES)
        + 4 * (STEP_HEADS * (STEP_HEAD_DIM + KEYS) + 2 * STEP_HEADS + 4)
        == STEP_SMEM_BYTES
);

/// Both elements of a word, the lower one first.
#[inline(always)]
pub(super) fn pair(word: u32) -> [f32; 2] {
    [bf16_to_f32(word as u16), bf16_to_f32((word >> 16) as u16)]
}

/// Makes the scores of all keys, `there` of them, for all heads. What stands behind the last key makes scores that
/// nobody reads, or none.
///
/// # Safety
///
/// Keys and queries of `head_dim` elements, a multiple of 8, are in shared memory.
#[inline(always)]
pub(super) unsafe fn make_scores(head_dim: u32, scale: f32, there: u32) {
    if warp_id() * (LANES / 4) >= there {
        return; // the whole warp
    }
    let (quarter, key) = (thread_idx_x() % 4, thread_idx_x() / 4);
    let row = keys().add(key * STEP_KEY_BYTES + 4 * quarter).cast::<u32>();
    let q = queries().add(2 * quarter);
    let mut p = [[[0.0f32; 2]; HEADS]; OF_LANE]; // [key][head][partial 2 quarter + e]
    let mut take = |g: u32| {
        let k: [[f32; 2]; OF_LANE] = core::array::from_fn(|i| {
            // SAFETY: elements 8 g + 2 quarter, + 1 of the key.
            pair(unsafe { row.add(i as u32 * APART * (STEP_KEY_BYTES / 4) + 4 * g).read() })
        });
        let mut h = 0;
        while h < HEADS {
            // SAFETY: the same elements of query h.
            let q = unsafe { q.add(h as u32 * STEP_HEAD_DIM + 8 * g).read_x2() };
            let mut i = 0;
            while i < OF_LANE {
                p[i][h][0] = fma(q[0], k[i][0], p[i][h][0]);
                p[i][h][1] = fma(q[1], k[i][1], p[i][h][1]);
                i += 1;
            }
            h += 1;
        }
    };
    let groups = head_dim / 8;
    let mut g = 0;
    while g + GROUPS <= groups {
        let mut i = 0;
        while i < GROUPS {
            take(g + i);
            i += 1;
        }
        g += GROUPS;
    }
    while g < groups {
        take(g);
        g = opaque(g + 1);
    }
    let mut i = 0;
    while i < OF_LANE / 2 {
        // SAFETY: handed on.
        unsafe { finish([p[i], p[i + OF_LANE / 2]], key + i as u32 * APART, quarter, scale) };
        i += 1;
    }
}

/// Finishes the scores of keys `key` and `key + LANES`, of which each of four lanes has a quarter.
///
/// # Safety
///
/// Each lane writes scores of its own.
#[inline(always)]
unsafe fn finish(p: [[[f32; 2]; HEADS]; 2], key: u32, quarter: u32, scale: f32) {
    // Distance 4: the upper quarters keep the second key.
    let upper = quarter >= 2;
    let mut one = [[0.0f32; 2]; HEADS];
    let mut h = 0;
    while h < HEADS {
        let mut e = 0;
        while e < 2 {
            let (first, second) = (p[0][h][e], p[1][h][e]);
            let (keep, give) = if upper { (second, first) } else { (first, second) };
            one[h][e] = keep + shuffle_xor(give, 2);
            e += 1;
        }
        h += 1;
    }
    // Distance 2: odd quarters keep the upper heads. Distance 1 is inside of the lane.
    let odd = quarter % 2 == 1;
    let mut h = 0;
    while h < HEADS / 2 {
        let mut two = [0.0; 2];
        let mut e = 0;
        while e < 2 {
            let (low, high) = (one[h][e], one[h + HEADS / 2][e]);
            let (keep, give) = if odd { (high, low) } else { (low, high) };
            two[e] = keep + shuffle_xor(give, 1);
            e += 1;
        }
        let head = h as u32 + if odd { STEP_HEADS / 2 } else { 0 };
        let key = key + if upper { LANES } else { 0 };
        // SAFETY: a word of this head and key, which belongs to this lane.
        unsafe { scores().add(head * KEYS + key).write(score(two[0] + two[1], scale)) };
        h += 1;
    }
}

/// Head `i` of this warp's.
#[inline(always)]
pub(super) fn head_of_warp(i: u32) -> u32 {
    warp_id() + i * (STEP_HEADS / HEADS_OF_WARP)
}

/// Four words for a lane and a head, in the place of the keys.
#[inline(always)]
pub(super) fn factors(lane: u32, head: u32) -> Shared<f32> {
    keys().add(16 * (lane * STEP_HEADS + head)).cast()
}

/// The largest of `before` and the `max` of this lane and of those in front of it.
///
/// *Convergence*: every lane calls it.
#[inline(always)]
pub(super) fn running_max(before: f32, own: f32) -> f32 {
    let (mut top, mut distance) = (max(before, own), 1);
    while distance < LANES {
        let other = shuffle_up(top, distance);
        top = if lane_id() < distance { top } else { max(other, top) };
        distance *= 2;
    }
    top
}

/// Turns the scores of this warp's heads into exponentials of `keys` keys, at least one, and zeros, and
/// leaves maxima and sums.
///
/// *Convergence*: every lane calls it.
///
/// # Safety
///
/// The scores are there, and no other warp uses those of the heads.
#[inline(always)]
pub(super) unsafe fn make_weights(keys: u32) {
    let mut i = 0;
    while i < HEADS_OF_WARP {
        // SAFETY: handed on.
        unsafe { weights_of(head_of_warp(i), keys) };
        i += 1;
    }
}

/// [`make_weights`] of one head.
///
/// # Safety
///
/// As for [`make_weights`].
#[inline(always)]
unsafe fn weights_of(head: u32, keys: u32) {
    let (lane, own) = (lane_id(), scores().add(head * KEYS));
    // SAFETY: two of 64 words.
    let s = unsafe { [own.add(lane).read(), own.add(lane + LANES).read()] };
    let there = [lane < keys, lane + LANES < keys];
    let mut top = if there[0] { max(f32::NEG_INFINITY, s[0]) } else { f32::NEG_INFINITY };
    top = if there[1] { max(top, s[1]) } else { top };
    let mut distance = LANES / 2;
    while distance > 0 {
        top = max(top, shuffle_xor(top, distance));
        distance /= 2;
    }
    let p = [
        if there[0] { exp(s[0] - top) } else { 0.0 },
        if there[1] { exp(s[1] - top) } else { 0.0 },
    ];
    let sum = warp_tree(p[0] + p[1]);
    // SAFETY: the words that this lane read; two words of the head.
    unsafe {
        own.add(lane).write(p[0]);
        own.add(lane + LANES).write(p[1]);
        if lane == 0 {
            sums().add(2 * head).write_x2([top, sum]);
        }
    }
}

/// Maximum and sum of head `head`.
///
/// # Safety
///
/// They are there.
#[inline(always)]
pub(super) unsafe fn block_sum(head: u32) -> BlockSum {
    // SAFETY: two words of the head.
    let [max, sum] = unsafe { sums().add(2 * head).read_x2() };
    BlockSum { max, sum }
}

/// Weighted values of dimensions `2 dims, 2 dims + 1` of heads `head ..`, over `keys` keys.
///
/// # Safety
///
/// Exponentials and values are there; the dimensions are below the size of a head.
#[inline(always)]
pub(super) unsafe fn weighted(dims: u32, head: u32, keys: u32) -> [[f32; 2]; OWN] {
    // A whole page, which most are, needs no look at its end.
    // SAFETY: handed on.
    unsafe {
        if keys == KEYS { walk::<true>(dims, head, KEYS) } else { walk::<false>(dims, head, keys) }
    }
}

/// [`weighted`], for a page whose keys are all there when it is `WHOLE`.
///
/// # Safety
///
/// As for [`weighted`].
#[inline(always)]
unsafe fn walk<const WHOLE: bool>(dims: u32, head: u32, keys: u32) -> [[f32; 2]; OWN] {
    let values = values().add(4 * dims).cast::<u32>();
    let weights = scores().add(head * KEYS);
    let mut acc = [[0.0; 2]; OWN];
    let mut take = |t: u32| {
        let p: [[f32; 4]; OWN] = core::array::from_fn(|h| {
            // SAFETY: exponentials t .. t + 4 of a head.
            unsafe { weights.add(h as u32 * KEYS + t).read_x4() }
        });
        let mut j = 0;
        while j < 4 {
            // SAFETY: two elements of the value of key t + j < 64.
            let v = pair(unsafe { values.add((t + j) * (STEP_VALUE_BYTES / 4)).read() });
            let mut h = 0;
            while h < OWN {
                let mut e = 0;
                while e < 2 {
                    let next = weighted_value(acc[h][e], p[h][j as usize], v[e]);
                    acc[h][e] = if WHOLE || t + j < keys { next } else { acc[h][e] };
                    e += 1;
                }
                h += 1;
            }
            j += 1;
        }
    };
    let mut t = 0;
    if WHOLE {
        while t < KEYS {
            let mut i = 0;
            while i < AT_ONCE {
                take(t + i);
                i += 4;
            }
            t = opaque(t + AT_ONCE);
        }
    } else {
        while t < keys {
            take(t);
            t = opaque(t + 4);
        }
    }
    acc
}
