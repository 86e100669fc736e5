//! One query and head, and what a block of threads does with 64 keys.

use contract::attention::{Args, KEY_BLOCK, MAX_HEAD_DIM, THREADS};
use contract::kv_append::kv_stride;
use contract::num::{BlockSum, Running, exp, fma, max, score, tree8, weighted_value};

use crate::arch::mem::{ld, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, shuffle_xor, warp_id, warp_tree};
use crate::element::CacheElement;

/// Keys of a block.
const KEYS: u32 = KEY_BLOCK as u32;
/// Dimensions of the values that one thread carries.
pub(super) const DIMS: usize = (MAX_HEAD_DIM / THREADS) as usize;
/// Keys whose values are in flight at once, behind those that were loaded early.
const IN_FLIGHT: u32 = 16;

const _: () = assert!(THREADS == 2 * KEYS && KEYS == 64);

/// One query and head, and the caches it looks at.
pub(super) struct Query<E> {
    head_dim: u32,
    stride: usize,
    scale: f32,
    /// k[kv head, 0].
    keys: *const E,
    /// v[kv head, 0].
    values: *const E,
    /// Keys that the query sees.
    visible: u32,
    /// The query, zero padded to 8 elements.
    shared_q: Shared<f32>,
    pub(super) shared_scores: Shared<f32>,
    shared_weights: Shared<f32>,
}

impl<E: CacheElement> Query<E> {
    /// Finds row `m` of head `head` and brings its query into shared memory.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table; `m < args.m`, `head < args.heads`.
    #[inline(always)]
    pub(super) unsafe fn new(args: &Args, m: u32, head: u32) -> Self {
        let stride = kv_stride(args.head_dim as usize);
        let kv_head = head / (args.heads / args.kv_heads);
        let at = kv_head as usize * args.capacity as usize * stride;
        // SAFETY: one element, there by the contract.
        let start = unsafe { ld(args.start.as_ptr().cast_const()) };
        let shared_q: Shared<f32> = dynamic_shared_mem();
        let query = Self {
            head_dim: args.head_dim,
            stride,
            scale: args.scale,
            keys: args.k_cache.cast::<E>().as_ptr().cast_const().wrapping_add(at),
            values: args.v_cache.cast::<E>().as_ptr().cast_const().wrapping_add(at),
            visible: start.saturating_add(m).saturating_add(1).min(args.capacity),
            shared_q,
            shared_scores: shared_q.add(MAX_HEAD_DIM),
            shared_weights: shared_q.add(MAX_HEAD_DIM + KEYS),
        };
        let q = args.q.as_ptr().cast_const();
        let q = q.wrapping_add(m as usize * args.q_stride as usize); // q[m]
        let q = q.wrapping_add((head * args.head_dim) as usize); // q[m, head]
        let mut d = thread_idx_x();
        while d < stride as u32 {
            // SAFETY: q[m, head, d] when d < head_dim.
            let v = if d < args.head_dim { unsafe { ld(q.wrapping_add(d as usize)) } } else { 0.0 };
            // SAFETY: d < kv_stride(head_dim) <= MAX_HEAD_DIM.
            unsafe { shared_q.add(d).write(v) };
            d += THREADS;
        }
        sync_threads();
        query
    }

    /// Key blocks with a visible key.
    pub(super) fn blocks(&self) -> u32 {
        self.visible.div_ceil(KEYS)
    }

    /// The score of key `t`, in both threads of its pair; thread `half` of the pair makes partials
    /// `4 half ..` of the dot. `GROUPS` groups of 8 elements of a key are in flight at once.
    ///
    /// # Safety
    ///
    /// `t < self.visible`; the query is in shared memory.
    #[inline(always)]
    unsafe fn score<const GROUPS: usize>(&self, t: u32, half: u32) -> f32 {
        let key = self.keys.wrapping_add(t as usize * self.stride + 4 * half as usize);
        let q = self.shared_q.add(4 * half);
        let mut p = [0.0; 4];
        let groups = self.head_dim.div_ceil(8);
        let mut first = 0;
        while first < groups {
            let keys: [[f32; 4]; GROUPS] = core::array::from_fn(|g| {
                let at = 8 * (first + g as u32);
                // SAFETY: elements at + 4 half .. + 4 of the key, whose row is padded to 8.
                unsafe { E::load4_if(at < self.head_dim, key.wrapping_add(at as usize)) }
            });
            let mut g = 0;
            while g < GROUPS as u32 && first + g < groups {
                let at = 8 * (first + g);
                // SAFETY: elements at + 4 half .. + 4 of the query, padded likewise.
                let q = unsafe { q.add(at).read_x4() };
                let mut e = 0;
                while e < 4 {
                    let next = fma(q[e], keys[g as usize][e], p[e]);
                    p[e] = if at + 4 * half + (e as u32) < self.head_dim { next } else { p[e] };
                    e += 1;
                }
                g += 1;
            }
            first += GROUPS as u32;
        }
        let other = p.map(|p| shuffle_xor(p, 1));
        let (low, high) = if half == 0 { (p, other) } else { (other, p) };
        let dot = tree8([low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]);
        score(dot, self.scale)
    }

    /// Takes key block `block`: its maximum and sum, and the weighted values of this thread's
    /// dimensions. The values of the first `EARLY` keys (a multiple of 4) are on their way while the
    /// scores are made: a block of threads that is alone on its multiprocessor waits for memory
    /// once.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// `block < self.blocks()`; the query is in shared memory.
    #[inline(always)]
    pub(super) unsafe fn key_block<const GROUPS: usize, const EARLY: usize>(
        &self,
        block: u32,
    ) -> (BlockSum, [f32; DIMS]) {
        let first = block * KEYS;
        let keys = (self.visible - first).min(KEYS); // at least 1
        let values = self.values.wrapping_add(first as usize * self.stride);
        let own = values.wrapping_add(thread_idx_x() as usize);
        let early: [f32; EARLY] = core::array::from_fn(|t| {
            let there = (t as u32) < keys && thread_idx_x() < self.head_dim;
            // SAFETY: v[kv head, first + t, d] with t < keys and d < head_dim.
            unsafe { E::load_if(there, own.wrapping_add(t * self.stride)) }
        });
        let (t, half) = (thread_idx_x() / 2, thread_idx_x() % 2);
        // A key that is not there has the score of the last one, which nobody reads.
        // SAFETY: first + keys <= visible.
        let s = unsafe { self.score::<GROUPS>(first + t.min(keys - 1), half) };
        if half == 0 {
            // SAFETY: t < 64; the last reader of the scores passed the second barrier below.
            unsafe { self.shared_scores.add(t).write(s) };
        }
        sync_threads();

        let lane = lane_id();
        // SAFETY: 64 scores, written before the barrier.
        let s = unsafe {
            [self.shared_scores.add(lane).read(), self.shared_scores.add(lane + 32).read()]
        };
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
        if warp_id() == 0 {
            // SAFETY: two of 64 words; their last reader passed the barrier above.
            unsafe {
                self.shared_weights.add(lane).write(p[0]);
                self.shared_weights.add(lane + 32).write(p[1]);
            }
        }
        let sum = warp_tree(p[0] + p[1]);
        sync_threads();

        let mut out = [0.0; DIMS];
        if thread_idx_x() < self.head_dim {
            // SAFETY: keys first .. first + keys are visible, and d < head_dim.
            out[0] = unsafe { self.weighted(own, keys, &early) };
        }
        let mut i = 1;
        while i < DIMS {
            let d = thread_idx_x() + THREADS * i as u32;
            if d < self.head_dim {
                // SAFETY: as above.
                out[i] = unsafe { self.weighted(values.wrapping_add(d as usize), keys, &[]) };
            }
            i += 1;
        }
        (BlockSum { max: top, sum }, out)
    }

    /// One dimension of the weighted values of `keys` keys, in key order: `values` of the first
    /// key, `early` the values of the first keys, as far as they were loaded.
    ///
    /// # Safety
    ///
    /// These keys are visible, the dimension is one of the head's, and the exponentials of the
    /// keys are in shared memory.
    #[inline(always)]
    unsafe fn weighted<const EARLY: usize>(
        &self,
        values: *const E,
        keys: u32,
        early: &[f32; EARLY],
    ) -> f32 {
        let mut acc = 0.0;
        let mut take = |t: u32, v: [f32; 4]| {
            // SAFETY: t < 64, a multiple of 4.
            let p = unsafe { self.shared_weights.add(t).read_x4() };
            let mut e = 0;
            while e < 4 {
                let next = weighted_value(acc, p[e], v[e]);
                acc = if t + (e as u32) < keys { next } else { acc };
                e += 1;
            }
        };
        let mut j = 0;
        while j < EARLY {
            take(j as u32, [early[j], early[j + 1], early[j + 2], early[j + 3]]);
            j += 4;
        }
        let mut t = EARLY as u32;
        while t < keys {
            let v: [f32; IN_FLIGHT as usize] = core::array::from_fn(|j| {
                let key = t + j as u32;
                // SAFETY: v[kv head, first + key, d] with key < keys.
                unsafe { E::load_if(key < keys, values.wrapping_add(key as usize * self.stride)) }
            });
            let mut j = 0;
            while j < IN_FLIGHT as usize {
                take(t + j as u32, [v[j], v[j + 1], v[j + 2], v[j + 3]]);
                j += 4;
            }
            t += IN_FLIGHT;
        }
        acc
    }
}

/// Writes this thread's dimensions of `out[m, head]`.
///
/// # Safety
///
/// `m < args.m` and `head < args.heads`; `out` covers the contract's table.
#[inline(always)]
pub(super) unsafe fn write_out(
    args: &Args,
    m: u32,
    head: u32,
    running: Running,
    values: [f32; DIMS],
) {
    let row = (m as usize * args.heads as usize + head as usize) * args.head_dim as usize;
    let mut i = 0;
    while i < DIMS {
        let d = thread_idx_x() + THREADS * i as u32;
        if d < args.head_dim {
            let at = args.out.as_ptr().wrapping_add(row + d as usize);
            // SAFETY: out[m, head, d] belongs to this thread.
            unsafe { st(at, running.finish(values[i])) };
        }
        i += 1;
    }
}
