//! A page of one kv head, and four queries on it: a warp's work.
//!
//! Scores: a lane has a quarter of the dot's eight partials for eight keys and all four queries, so that what it
//! reads of a query serves eight keys and what it reads of a key four queries; then each lane gives away what
//! others finish, and is left with two keys and all heads. Values: a lane carries four neighbouring dimensions
//! of all heads through the keys in order, and reads them from global memory itself.

use contract::attention_paged::{
    PAGE, STEP_HEAD_DIM, STEP_HEADS, STEP_KEY_BYTES, STEP_SMEM_BYTES, STEP_WARPS,
};
use contract::num::{BlockSum, bf16_to_f32, exp, fma, max, score, weighted_value};

use crate::arch::mem::{ld_x2, ld_x2_if};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::warp::{LANES, lane_id, shuffle_xor, sync_warp, warp_id};

/// Keys of a page.
pub(super) const KEYS: u32 = PAGE as u32;
/// Heads at once.
pub(super) const HEADS: usize = STEP_HEADS as usize;
/// Dimensions of a lane.
pub(super) const OWN: u32 = STEP_HEAD_DIM / LANES;
/// Keys of a lane, [`STEP`] apart, and where the lanes of a quarter start.
const TALL: usize = 8;
const STEP: u32 = KEYS / TALL as u32;
/// Values asked for at once.
const CHUNK: usize = 8;

const _: () = assert!(LANES == 4 * STEP && HEADS == 4 && OWN == 4 && KEYS == 2 * LANES);

/// The queries, rotated: [`STEP_HEAD_DIM`] words each.
#[inline(always)]
pub(super) fn queries() -> Shared<f32> {
    dynamic_shared_mem::<u8>().add(STEP_WARPS * KEYS * STEP_KEY_BYTES).cast()
}

/// Where one thread tells the others something.
#[inline(always)]
pub(super) fn note() -> Shared<u32> {
    queries().add(STEP_HEADS * STEP_HEAD_DIM).cast()
}

const _: () = assert!(
    STEP_WARPS * KEYS * STEP_KEY_BYTES + 4 * (STEP_HEADS * STEP_HEAD_DIM + 4) == STEP_SMEM_BYTES
);

/// The keys of this warp's page, [`STEP_KEY_BYTES`] apart.
#[inline(always)]
pub(super) fn keys() -> Shared<u8> {
    dynamic_shared_mem().add(warp_id() * KEYS * STEP_KEY_BYTES)
}

/// The exponentials of this warp's page, in the place of its keys: those of all heads for each key.
#[inline(always)]
fn weights() -> Shared<f32> {
    keys().cast()
}

/// Both elements of a word, the lower one first.
#[inline(always)]
fn pair(word: u32) -> [f32; 2] {
    [bf16_to_f32(word as u16), bf16_to_f32((word >> 16) as u16)]
}

/// The first key that this lane has the scores of; the second one is [`LANES`] behind.
#[inline(always)]
fn own_key() -> u32 {
    let quarter = lane_id() % 4;
    lane_id() / 4 + STEP * (quarter % 2) + 2 * STEP * (quarter / 2)
}

/// The scores of keys [`own_key`] and the one behind, for all heads. What stands behind the last key makes
/// scores that nobody reads.
///
/// *Convergence*: every lane calls it.
///
/// # Safety
///
/// Keys and queries of `head_dim` elements, a multiple of 8, are in shared memory.
#[inline(always)]
pub(super) unsafe fn make_scores(head_dim: u32, scale: f32) -> [[f32; HEADS]; 2] {
    let quarter = lane_id() % 4;
    let row = keys().add(lane_id() / 4 * STEP_KEY_BYTES + 4 * quarter).cast::<u32>();
    let q = queries().add(2 * quarter);
    let mut p = [[[0.0f32; 2]; HEADS]; TALL]; // [key][head][partial 2 quarter + e]
    let groups = head_dim / 8;
    let mut take = |g: u32| {
        // SAFETY: elements 8 g + 2 quarter, + 1 of a query, and of every key.
        let (q, k): ([[f32; 2]; HEADS], [[f32; 2]; TALL]) = unsafe {
            (
                core::array::from_fn(|h| q.add(h as u32 * STEP_HEAD_DIM + 8 * g).read_x2()),
                core::array::from_fn(|i| {
                    pair(row.add(i as u32 * STEP * (STEP_KEY_BYTES / 4) + 4 * g).read())
                }),
            )
        };
        let mut i = 0;
        while i < TALL {
            let mut h = 0;
            while h < HEADS {
                p[i][h][0] = fma(q[h][0], k[i][0], p[i][h][0]);
                p[i][h][1] = fma(q[h][1], k[i][1], p[i][h][1]);
                h += 1;
            }
            i += 1;
        }
    };
    let mut g = 0;
    while g + 2 <= groups {
        take(g);
        take(g + 1);
        g += 2;
    }
    if g < groups {
        take(g);
    }
    // The lane keeps those of keys whose number has the bits that it stands for.
    let trade = |keep_second: bool, first: f32, second: f32, distance: u32| {
        let (keep, give) = if keep_second { (second, first) } else { (first, second) };
        keep + shuffle_xor(give, distance)
    };
    let (upper, odd) = (quarter >= 2, quarter % 2 == 1);
    core::array::from_fn(|half| {
        core::array::from_fn(|h| {
            // Distance 4, distance 2, and distance 1 inside of the lane.
            let two: [f32; 2] = core::array::from_fn(|e| {
                let one: [f32; 2] = core::array::from_fn(|i| {
                    trade(upper, p[4 * half + i][h][e], p[4 * half + 2 + i][h][e], 2)
                });
                trade(odd, one[0], one[1], 1)
            });
            score(two[0] + two[1], scale)
        })
    })
}

/// Turns `scores` into exponentials of `keys` keys, at least one, and zeros, which all lanes find in shared
/// memory, and gives maximum and sum of each head to all.
///
/// *Convergence*: every lane calls it.
///
/// # Safety
///
/// No lane reads the keys any more that does not do so before a barrier of its warp here.
#[inline(always)]
pub(super) unsafe fn make_weights(mut scores: [[f32; HEADS]; 2], keys: u32) -> [BlockSum; HEADS] {
    let key = own_key();
    let there = [key < keys, key + LANES < keys];
    let sums = core::array::from_fn(|h| {
        let s = [scores[0][h], scores[1][h]];
        let mut top = if there[0] { max(f32::NEG_INFINITY, s[0]) } else { f32::NEG_INFINITY };
        top = if there[1] { max(top, s[1]) } else { top };
        let mut distance = LANES / 2;
        while distance > 0 {
            top = max(top, shuffle_xor(top, distance));
            distance /= 2;
        }
        let p: [f32; 2] = core::array::from_fn(|i| if there[i] { exp(s[i] - top) } else { 0.0 });
        (scores[0][h], scores[1][h]) = (p[0], p[1]);
        // Distance 32 is inside of the lane; 16, 8, 4, 2 and 1 are those of `own_key`.
        let mut sum = p[0] + p[1];
        sum += shuffle_xor(sum, 2);
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 16);
        sum += shuffle_xor(sum, 8);
        sum += shuffle_xor(sum, 4);
        BlockSum { max: top, sum }
    });
    sync_warp();
    // SAFETY: four words of each of the lane's keys, in the place of keys that nobody reads.
    unsafe {
        weights().add(STEP_HEADS * key).write_x4(scores[0]);
        weights().add(STEP_HEADS * (key + LANES)).write_x4(scores[1]);
    }
    sync_warp();
    sums
}

/// The values of a page as a lane sees them: four dimensions of each.
pub(super) struct Values {
    /// The lane's dimensions of the first value; unless it is `inside`, nothing.
    pub(super) from: *const u32,
    /// Words from value to value.
    pub(super) stride: u32,
    /// Values that are stored.
    pub(super) stored: u32,
    /// The value behind them.
    pub(super) own: [u32; 2],
}

/// Two elements each of a lane's dimensions of the values of a chunk.
type Chunk = [[u32; 2]; CHUNK];

/// The chunks that a lane has asked for: two of those that are whole, and what is behind the last of these.
pub(super) struct Ring {
    whole: [Chunk; 2],
    rest: Chunk,
}

impl Values {
    /// Asks for the values of a whole chunk, if it is one.
    ///
    /// # Safety
    ///
    /// The stored values are there, and nobody writes them.
    #[inline(always)]
    unsafe fn ask(&self, first: u32, into: &mut Chunk) {
        if first + CHUNK as u32 <= self.stored {
            let from = self.from.wrapping_add((first * self.stride) as usize);
            let mut j = 0;
            while j < CHUNK {
                let from = from.wrapping_add(j * self.stride as usize);
                // SAFETY: a stored value.
                into[j] = unsafe { ld_x2(from.cast()) };
                j += 1;
            }
        }
    }

    /// Asks for the first ones.
    ///
    /// # Safety
    ///
    /// As for [`Values::ask`].
    #[inline(always)]
    pub(super) unsafe fn start(&self) -> Ring {
        let mut ring = Ring { whole: [[[0; 2]; CHUNK]; 2], rest: [[0; 2]; CHUNK] };
        let rest = self.stored / CHUNK as u32 * CHUNK as u32;
        // SAFETY: handed on; a stored value.
        unsafe {
            self.ask(0, &mut ring.whole[0]);
            self.ask(CHUNK as u32, &mut ring.whole[1]);
            if rest < self.stored {
                let mut j = 0;
                while j < CHUNK {
                    let key = rest + j as u32;
                    let from = self.from.wrapping_add((key * self.stride) as usize);
                    ring.rest[j] = ld_x2_if(key < self.stored, from.cast());
                    j += 1;
                }
            }
        }
        ring
    }

    /// Weighted values of the lane's dimensions for all heads, over the stored keys and, if `has_own`, the own
    /// one behind them.
    ///
    /// # Safety
    ///
    /// As for [`Values::ask`], of which `ring` are the first; the exponentials are there.
    #[inline(always)]
    pub(super) unsafe fn weighted(
        &self,
        mut ring: Ring,
        has_own: bool,
    ) -> [[f32; OWN as usize]; HEADS] {
        let mut acc = [[0.0; OWN as usize]; HEADS];
        let mut take = |words: [u32; 2], key: u32| {
            // SAFETY: the exponentials of a key of the page.
            let p = unsafe { weights().add(STEP_HEADS * key).read_x4() };
            let ([a, b], [c, d]) = (pair(words[0]), pair(words[1]));
            let v = [a, b, c, d];
            let mut h = 0;
            while h < HEADS {
                let mut e = 0;
                while e < v.len() {
                    acc[h][e] = weighted_value(acc[h][e], p[h], v[e]);
                    e += 1;
                }
                h += 1;
            }
        };
        let whole = self.stored / CHUNK as u32 * CHUNK as u32;
        let mut first = 0;
        while first < whole {
            let mut c = 0;
            while c < 2 {
                let chunk = first + (c * CHUNK) as u32;
                if chunk < whole {
                    let mut j = 0;
                    while j < CHUNK {
                        take(ring.whole[c][j], chunk + j as u32);
                        j += 1;
                    }
                    // SAFETY: handed on.
                    unsafe { self.ask(chunk + 2 * CHUNK as u32, &mut ring.whole[c]) };
                }
                c += 1;
            }
            first += 2 * CHUNK as u32;
        }
        if whole < self.stored {
            let mut j = 0;
            while j < CHUNK {
                if whole + (j as u32) < self.stored {
                    take(ring.rest[j], whole + j as u32);
                }
                j += 1;
            }
        }
        if has_own {
            take(self.own, self.stored);
        }
        acc
    }
}
