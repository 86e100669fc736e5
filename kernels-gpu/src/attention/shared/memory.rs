//! What a block keeps in shared memory, the scores made from it and their exponentials.

use contract::attention::RowTile;
use contract::num::{BlockSum, Running, Weights, exp, fma, max, score};

use super::{KEYS, OWN_KEYS, SCORE_ROWS, Scores, WARP_ROWS};
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::warp::{lane_id, shuffle_xor, sync_warp, warp_id};

/// Shared memory of a block; `D` elements for each query and key, zeros behind the head.
#[derive(Clone, Copy)]
pub(super) struct Memory<const D: u32> {
    pub(super) q: Shared<f32>,
    /// Keys sorted by partial, later values as they are.
    pub(super) kv: Shared<f32>,
    /// This warp's exponentials `[key][row]`.
    pub(super) weights: Shared<f32>,
    /// This warp's sums that wait.
    pub(super) parked: Shared<f32>,
    /// For each of this warp's rows: the factors of [`Weights`], and the keys it sees of the block.
    pub(super) factors: Shared<f32>,
}

impl<const D: u32> Memory<D> {
    pub(super) const PITCH: u32 = D + 4;

    #[inline(always)]
    pub(super) fn of_warp(tile: RowTile) -> Self {
        let q: Shared<f32> = dynamic_shared_mem();
        let kv = q.add(tile.rows * Self::PITCH);
        let weights = kv.add(KEYS * Self::PITCH);
        let parked = weights.add(KEYS * tile.rows);
        let factors = parked.add(KEYS * tile.rows);
        Self {
            q,
            kv,
            weights: weights.add(warp_id() * KEYS * WARP_ROWS),
            parked: parked.add(warp_id() * KEYS * WARP_ROWS),
            factors: factors.add(warp_id() * 4 * WARP_ROWS),
        }
    }

    /// The same, of whose addresses LLVM knows nothing: it would make them all before the loop over the keys, and
    /// there are no registers to keep them in.
    #[inline(always)]
    pub(super) fn anew(self) -> Self {
        let zero = opaque_here(0);
        let Self { q, kv, weights, parked, factors } = self;
        let [q, kv, weights, parked, factors] =
            [q, kv, weights, parked, factors].map(|part| part.byte_add(zero));
        Self { q, kv, weights, parked, factors }
    }

    /// The partial `p` of the dots of this lane's rows and keys.
    ///
    /// # Safety
    ///
    /// Queries and keys are in shared memory and stay there.
    #[inline(always)]
    pub(super) unsafe fn partial(&self, p: u32) -> Scores {
        let (c, g) = (lane_id() / 4, lane_id() % 4);
        let q = self.q.add((warp_id() * WARP_ROWS + g) * Self::PITCH + p * (D / 8));
        let k = self.kv.add(c * Self::PITCH + p * (D / 8));
        let mut acc = [[0.0; OWN_KEYS]; SCORE_ROWS];
        let mut step = opaque(0);
        while step < D / 8 {
            // SAFETY: four words of a query.
            let q: [[f32; 4]; SCORE_ROWS] = core::array::from_fn(|r| unsafe {
                q.add(4 * r as u32 * Self::PITCH + step).read_x4()
            });
            let mut i = 0;
            while i < OWN_KEYS {
                // SAFETY: four words of a key.
                let k = unsafe { k.add(8 * i as u32 * Self::PITCH + step).read_x4() };
                let mut r = 0;
                while r < SCORE_ROWS {
                    let mut e = 0;
                    while e < 4 {
                        acc[r][i] = fma(q[r][e], k[e], acc[r][i]);
                        e += 1;
                    }
                    r += 1;
                }
                i += 1;
            }
            step += 4;
        }
        acc
    }

    /// The scores of this lane's rows and keys: the tree over the partials, `((0 4) (2 6)) ((1 5) (3 7))`. Sums wait
    /// in shared memory, half of the tree where the exponentials will stand.
    ///
    /// # Safety
    ///
    /// As for [`Memory::partial`]; the warp has read the exponentials.
    #[inline(always)]
    pub(super) unsafe fn scores(&self, scale: f32) -> Scores {
        let mut sum = [[0.0; OWN_KEYS]; SCORE_ROWS];
        let mut odd = opaque(0);
        while odd < 2 {
            // SAFETY: the caller's promise; this lane's own words.
            unsafe {
                park(self.parked, add(self.partial(odd), self.partial(odd + 4)));
                sum = add(self.partial(odd + 2), self.partial(odd + 6));
                sum = add_parked(self.parked, sum);
                if odd == 0 {
                    park(self.weights, sum);
                }
            }
            odd += 1;
        }
        // SAFETY: as above.
        sum = unsafe { add_parked(self.weights, sum) };
        sync_warp();
        sum.map(|row| row.map(|dot| score(dot, scale)))
    }

    /// Turns the scores of a block of keys into exponentials in shared memory, and takes the block into
    /// `running`; `seen` is how many of the keys each row sees.
    #[inline(always)]
    pub(super) fn softmax(
        &self,
        mut s: Scores,
        running: &mut [Running; SCORE_ROWS],
        seen: [u32; SCORE_ROWS],
    ) {
        let (c, g) = (lane_id() / 4, lane_id() % 4);
        let mut r = 0;
        while r < SCORE_ROWS {
            let mut top = f32::NEG_INFINITY;
            let mut i = 0;
            while i < OWN_KEYS {
                top = if c + 8 * (i as u32) < seen[r] { max(top, s[r][i]) } else { top };
                i += 1;
            }
            let mut distance = 16;
            while distance >= 4 {
                top = max(top, shuffle_xor(top, distance));
                distance /= 2;
            }
            i = 0;
            while i < OWN_KEYS {
                let p = exp(s[r][i] - top);
                s[r][i] = if c + 8 * (i as u32) < seen[r] { p } else { 0.0 };
                i += 1;
            }
            // The tree over 64 keys: 32, 16 and 8 apart here, 4, 2 and 1 apart in other lanes.
            let p = s[r];
            let near = |i: usize| p[i] + p[i + 4];
            let mut sum = (near(0) + near(2)) + (near(1) + near(3));
            distance = 16;
            while distance >= 4 {
                sum += shuffle_xor(sum, distance);
                distance /= 2;
            }
            let mut weights = Weights { running: 1.0, block: 0.0 };
            if seen[r] > 0 {
                weights = running[r].take(BlockSum { max: top, sum });
            }
            if c == 0 {
                let factors = [weights.running, weights.block, f32::from_bits(seen[r]), 0.0];
                // SAFETY: four words of this row, which the warp has read.
                unsafe { self.factors.add(4 * (4 * g + r as u32)).write_x4(factors) };
            }
            r += 1;
        }
        let mut i = 0;
        while i < OWN_KEYS {
            let at = self.weights.add((c + 8 * i as u32) * WARP_ROWS + 4 * g);
            // SAFETY: this lane's four rows of a key; the warp has read what was there.
            unsafe { at.write_x4([s[0][i], s[1][i], s[2][i], s[3][i]]) };
            i += 1;
        }
    }
}

/// Puts sums aside in this lane's part of a warp's 1,024 words.
///
/// # Safety
///
/// The words are there, and no other lane's are read from them before they are written again.
#[inline(always)]
pub(super) unsafe fn park(to: Shared<f32>, sums: Scores) {
    let mut i = 0;
    while i < OWN_KEYS {
        // SAFETY: four words of this lane's.
        unsafe {
            let at = to.add(4 * (32 * i as u32 + lane_id()));
            at.write_x4([sums[0][i], sums[1][i], sums[2][i], sums[3][i]]);
        }
        i += 1;
    }
}

/// What was parked, plus `sums`.
///
/// # Safety
///
/// As for [`park`].
#[inline(always)]
pub(super) unsafe fn add_parked(from: Shared<f32>, mut sums: Scores) -> Scores {
    let mut i = 0;
    while i < OWN_KEYS {
        // SAFETY: four words of this lane's.
        let first = unsafe { from.add(4 * (32 * i as u32 + lane_id())).read_x4() };
        let mut r = 0;
        while r < SCORE_ROWS {
            sums[r][i] = first[r] + sums[r][i];
            r += 1;
        }
        i += 1;
    }
    sums
}

/// Sums, one by one.
#[inline(always)]
pub(super) fn add(a: Scores, b: Scores) -> Scores {
    core::array::from_fn(|r| core::array::from_fn(|i| a[r][i] + b[r][i]))
}
