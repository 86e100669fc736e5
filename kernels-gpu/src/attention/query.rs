//! One query and head, and what a block of threads does with 64 keys.

use contract::attention::{KEY_BLOCK, MAX_HEAD_DIM, THREADS};
use contract::num::{BlockSum, Running, exp, fma, max, score, tree8, weighted_value};

use crate::arch::mem::st;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, shuffle_xor, warp_id, warp_tree};
use crate::element::CacheElement;

/// Keys of a block.
const KEYS: u32 = KEY_BLOCK as u32;
/// Dimensions of the values that one thread carries.
pub(crate) const DIMS: usize = (MAX_HEAD_DIM / THREADS) as usize;
/// Keys whose values are in flight at once, behind those that were loaded early.
const IN_FLIGHT: u32 = 16;

const _: () = assert!(THREADS == 2 * KEYS && KEYS == 64);

/// An element of keys, or of values, of one kv head.
pub(crate) trait Stored: Copy {
    /// The element so many rows and elements further.
    fn further(self, rows: usize, elements: usize) -> Self;

    /// The element, or 0 when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// When `enabled`: it is there, and no other thread writes it meanwhile.
    unsafe fn load_if(self, enabled: bool) -> f32;

    /// The element and the three behind it, of a row that is padded to eight; any values when `enabled` does not hold.
    ///
    /// # Safety
    ///
    /// As for [`Stored::load_if`], of a multiple of four in its row.
    unsafe fn load4_if(self, enabled: bool) -> [f32; 4];
}

/// An element of rows of `E`.
#[derive(Clone, Copy)]
pub(crate) struct Plain<E> {
    pub(crate) at: *const E,
    /// Elements from row to row.
    pub(crate) stride: usize,
}

impl<E: CacheElement> Stored for Plain<E> {
    #[inline(always)]
    fn further(self, rows: usize, elements: usize) -> Self {
        Self { at: self.at.wrapping_add(rows * self.stride + elements), ..self }
    }

    #[inline(always)]
    unsafe fn load_if(self, enabled: bool) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { E::load_if(enabled, self.at) }
    }

    #[inline(always)]
    unsafe fn load4_if(self, enabled: bool) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { E::load4_if(enabled, self.at) }
    }
}

/// One query and head, and the caches it looks at.
pub(crate) struct Query<S> {
    pub(crate) head_dim: u32,
    pub(crate) scale: f32,
    /// k[kv head, 0].
    pub(crate) keys: S,
    /// v[kv head, 0].
    pub(crate) values: S,
    /// Keys that the query sees.
    pub(crate) visible: u32,
}

/// The last key that a query sees, when it is not in the cache yet.
#[derive(Clone, Copy)]
pub(crate) struct NewKey {
    /// This thread's dimensions of the value, as a cache keeps them.
    pub(crate) value: [f32; DIMS],
}

/// The query, zero padded to 8 elements: [`MAX_HEAD_DIM`] words.
#[inline(always)]
pub(crate) fn shared_q() -> Shared<f32> {
    dynamic_shared_mem()
}

/// The scores of a key block.
#[inline(always)]
pub(crate) fn shared_scores() -> Shared<f32> {
    shared_q().add(MAX_HEAD_DIM)
}

/// Their exponentials.
#[inline(always)]
fn shared_weights() -> Shared<f32> {
    shared_scores().add(KEYS)
}

/// The new key, zero padded to 8 elements, as a cache keeps it; only where there is a [`NewKey`].
#[inline(always)]
pub(crate) fn shared_k() -> Shared<f32> {
    shared_weights().add(KEYS)
}

impl<S: Stored> Query<S> {
    /// Key blocks with a visible key.
    pub(crate) fn blocks(&self) -> u32 {
        self.visible.div_ceil(KEYS)
    }

    /// The score of key `t`, or of the new one, in both threads of its pair; thread `half` of the pair
    /// makes partials `4 half ..` of the dot. `GROUPS` groups of 8 elements of a key are in flight at once.
    ///
    /// # Safety
    ///
    /// `t < self.visible`; the query, and the new key, are in shared memory.
    #[inline(always)]
    unsafe fn score<const GROUPS: usize>(&self, t: u32, is_new: bool, half: u32) -> f32 {
        let key = self.keys.further(t as usize, 4 * half as usize);
        let q = shared_q().add(4 * half);
        let mut p = [0.0; 4];
        let groups = self.head_dim.div_ceil(8);
        let mut first = 0;
        while first < groups {
            let mut keys: [[f32; 4]; GROUPS] = core::array::from_fn(|g| {
                let at = 8 * (first + g as u32);
                // SAFETY: elements at + 4 half .. + 4 of the key, whose row is padded to 8.
                unsafe { key.further(0, at as usize).load4_if(at < self.head_dim && !is_new) }
            });
            if is_new {
                let mut g = 0;
                while g < GROUPS as u32 && first + g < groups {
                    // SAFETY: elements 8 (first + g) + 4 half .. + 4 of the new key, padded likewise.
                    keys[g as usize] =
                        unsafe { shared_k().add(8 * (first + g) + 4 * half).read_x4() };
                    g += 1;
                }
            }
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
    /// once. With `new` the last key of the block is the new one.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// `block < self.blocks()`; the query is in shared memory; a new key is the last one that the query
    /// sees, in this key block and in shared memory.
    #[inline(always)]
    pub(crate) unsafe fn key_block<const GROUPS: usize, const EARLY: usize>(
        &self,
        block: u32,
        new: Option<NewKey>,
    ) -> (BlockSum, [f32; DIMS]) {
        let first = block * KEYS;
        let keys = (self.visible - first).min(KEYS); // at least 1
        let stored = if new.is_some() { keys - 1 } else { keys };
        let values = self.values.further(first as usize, 0);
        let own = values.further(0, thread_idx_x() as usize);
        let early: [f32; EARLY] = core::array::from_fn(|t| {
            let there = (t as u32) < stored && thread_idx_x() < self.head_dim;
            // SAFETY: v[kv head, first + t, d] with t < stored and d < head_dim.
            unsafe { own.further(t, 0).load_if(there) }
        });
        let (t, half) = (thread_idx_x() / 2, thread_idx_x() % 2);
        // A key that is not there has the score of the last one, which nobody reads.
        // SAFETY: first + keys <= visible.
        let s = unsafe {
            let t = t.min(keys - 1);
            self.score::<GROUPS>(first + t, t >= stored, half)
        };
        if half == 0 {
            // SAFETY: t < 64; the last reader of the scores passed the second barrier below.
            unsafe { shared_scores().add(t).write(s) };
        }
        sync_threads();

        let lane = lane_id();
        // SAFETY: 64 scores, written before the barrier.
        let s =
            unsafe { [shared_scores().add(lane).read(), shared_scores().add(lane + 32).read()] };
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
                shared_weights().add(lane).write(p[0]);
                shared_weights().add(lane + 32).write(p[1]);
            }
        }
        let sum = warp_tree(p[0] + p[1]);
        sync_threads();

        let mut out = [0.0; DIMS];
        if thread_idx_x() < self.head_dim {
            // SAFETY: keys first .. first + stored are in the cache, and d < head_dim.
            out[0] = unsafe { self.weighted(own, stored, &early) };
        }
        let mut i = 1;
        while i < DIMS {
            let d = thread_idx_x() + THREADS * i as u32;
            if d < self.head_dim {
                // SAFETY: as above.
                out[i] = unsafe { self.weighted(values.further(0, d as usize), stored, &[]) };
            }
            i += 1;
        }
        if let Some(new) = new {
            // SAFETY: stored < 64, written before the barrier.
            let p = unsafe { shared_weights().add(stored).read() };
            out = core::array::from_fn(|i| weighted_value(out[i], p, new.value[i]));
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
        values: S,
        keys: u32,
        early: &[f32; EARLY],
    ) -> f32 {
        let mut acc = 0.0;
        let mut take = |t: u32, v: [f32; 4]| {
            // SAFETY: t < 64, a multiple of 4.
            let p = unsafe { shared_weights().add(t).read_x4() };
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
                unsafe { values.further(key as usize, 0).load_if(key < keys) }
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

/// Writes this thread's dimensions of the output at `out`.
///
/// # Safety
///
/// `out` starts a head of `head_dim` outputs that belong to this block.
#[inline(always)]
pub(crate) unsafe fn write_out(
    out: *mut f32,
    head_dim: u32,
    running: Running,
    values: [f32; DIMS],
) {
    let mut i = 0;
    while i < DIMS {
        let d = thread_idx_x() + THREADS * i as u32;
        if d < head_dim {
            // SAFETY: element d of the head belongs to this thread.
            unsafe { st(out.wrapping_add(d as usize), running.finish(values[i])) };
        }
        i += 1;
    }
}
