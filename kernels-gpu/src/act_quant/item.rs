//! Four elements of a row in a lane, and where their bytes go.
//!
//! A warp has 128 neighbours of a row at a time. Where rows start on boundaries of four elements (`PIECES`), a lane has four neighbours, which come by
//! one load; elsewhere it has every 32nd, so that each load of the warp is of neighbours, and the four lanes of a word hand each other its bytes.
//! Both ways the warp writes its 128 bytes as words, whole sectors of memory.

use contract::num::{ORDINARY_ZERO, abs_bits, quantise_ordinary};

use crate::arch::dot::permute;
use crate::arch::mem::{X4, ld_or_zero_x2, ld_or_zero_x4, st, st_x4};
use crate::arch::mem_or::{ld_or, ld_or_x4};
use crate::arch::warp::{lane_id, shuffle_xor, warp_tree};
use crate::float::Float;
use crate::row::lanes::Lanes;

/// The values of an item.
pub(super) type Four = [f32; 4];

/// Where the four elements are.
#[derive(Clone, Copy)]
pub(super) struct Item<const PIECES: bool> {
    /// The first.
    pub(super) first: u32,
    /// Elements of the row; 0 where there is no such row.
    pub(super) k: u32,
}

impl<const PIECES: bool> Item<PIECES> {
    /// From one to the next.
    const STEP: usize = if PIECES { 1 } else { 32 };

    /// The first of this lane, of 128 elements of a warp.
    #[inline(always)]
    pub(super) fn own() -> u32 {
        if PIECES { 4 * lane_id() } else { lane_id() }
    }

    /// The first one of the word that this lane writes, of the same.
    #[inline(always)]
    pub(super) fn word() -> u32 {
        if PIECES { 4 * lane_id() } else { 32 * (lane_id() % 4) + lane_id() / 4 * 4 }
    }

    /// The first of `k` elements of a vector, which are these.
    #[inline(always)]
    fn of<E>(self, p: *const E) -> *const E {
        p.wrapping_add(self.first as usize)
    }

    /// Whether the row has number `q` of them.
    #[inline(always)]
    pub(super) fn has(self, q: usize) -> bool {
        // All four of a piece, or none.
        self.first + if PIECES { 0 } else { 32 * q as u32 } < self.k
    }

    /// The elements as they are stored, zeros where the row has none.
    ///
    /// # Safety
    ///
    /// `row` starts `k` readable elements of a tensor.
    #[inline(always)]
    pub(super) unsafe fn load<E: Float>(self, row: *const E) -> X4<u32> {
        let p = self.of(row);
        // SAFETY: elements of the row.
        unsafe {
            if !PIECES {
                core::array::from_fn(|q| {
                    E::load_bits_if(self.has(q), p.wrapping_add(Self::STEP * q))
                })
            } else if E::PIECE == 4 {
                ld_or_zero_x4(self.has(0), p.cast())
            } else {
                let [a, b] = ld_or_zero_x2(self.has(0), p.cast());
                [a, b, 0, 0]
            }
        }
    }

    /// Their values.
    #[inline(always)]
    pub(super) fn widen<E: Float>(raw: X4<u32>) -> Four {
        if PIECES {
            let all = E::widen(raw);
            return [all[0], all[1], all[2], all[3]];
        }
        core::array::from_fn(|q| E::widen([raw[q], 0, 0, 0])[0])
    }

    /// Those of a vector that no kernel writes, `nothing` where the row has none or there is no vector.
    ///
    /// # Safety
    ///
    /// `p` is null or starts `k` readable elements, on a boundary of 16 bytes where that is `PIECES`.
    #[inline(always)]
    pub(super) unsafe fn beside(self, p: *const f32, nothing: f32) -> Four {
        let (there, p) = (!p.is_null(), self.of(p));
        // SAFETY: elements of the vector.
        unsafe {
            if PIECES {
                return ld_or_x4(there && self.has(0), p.cast(), nothing);
            }
            core::array::from_fn(|q| {
                ld_or(there && self.has(q), p.wrapping_add(Self::STEP * q), nothing)
            })
        }
    }

    /// Writes them.
    ///
    /// # Safety
    ///
    /// `row` starts `k` writable elements; those of the item belong to this thread.
    #[inline(always)]
    pub(super) unsafe fn store(self, row: *mut f32, values: Four) {
        let p = self.of(row.cast_const()).cast_mut();
        // SAFETY: elements of the row.
        unsafe {
            if PIECES {
                if self.has(0) {
                    st_x4(p.cast(), values);
                }
                return;
            }
            let mut q = 0;
            while q < 4 {
                if self.has(q) {
                    st(p.wrapping_add(Self::STEP * q), values[q]);
                }
                q += 1;
            }
        }
    }

    /// One function for each value, zero where the row has none.
    #[inline(always)]
    pub(super) fn map(self, values: Four, f: impl Fn(usize, f32) -> f32) -> Four {
        core::array::from_fn(|q| if self.has(q) { f(q, values[q]) } else { 0.0 })
    }

    /// The tree over the partials of a sum, of which this lane has those of two halves of 128, in every lane.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub(super) fn tree(low: Four, high: Four) -> f32 {
        let [a, b, c, d]: Four = core::array::from_fn(|q| low[q] + high[q]);
        if PIECES {
            Lanes::<1>::tree_of::<f32>(32, 4, [a, b, c, d, 0.0, 0.0, 0.0, 0.0])
        } else {
            warp_tree((a + c) + (b + d))
        }
    }

    /// The word that this lane writes, of the quantised items of the warp; adds what has to be taken off again by [`total`] to `sum`.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub(super) fn quantised(values: Four, scale: f32, sum: &mut u32) -> u32 {
        let words = values.map(|v| quantise_ordinary(v, scale));
        let mut q = 0;
        while q < 4 {
            *sum = sum.wrapping_add(words[q]);
            q += 1;
        }
        let word =
            permute(permute(words[0], words[1], 0x40), permute(words[2], words[3], 0x40), 0x5410);
        if PIECES {
            return word;
        }
        // Byte q of a word is of lane q of four: they change bytes with their neighbour, then with the one behind it.
        let select = |odd: bool, a, b| if odd { b } else { a };
        let odd = lane_id() % 2 == 1;
        let word = permute(word, shuffle_xor(word, 1), select(odd, 0x6240, 0x3715));
        let odd = lane_id() / 2 % 2 == 1;
        permute(word, shuffle_xor(word, 2), select(odd, 0x5410, 0x3276))
    }
}

/// The sum of `items` quantised items, given what [`Item::quantised`] made of them.
#[inline(always)]
pub(super) fn total(sum: u32, items: u32) -> u32 {
    sum.wrapping_sub(ORDINARY_ZERO.wrapping_mul(4 * items))
}

/// The largest of some values and what was so far.
#[inline(always)]
pub(super) fn top(so_far: u32, values: Four) -> u32 {
    let mut top = so_far;
    let mut q = 0;
    while q < 4 {
        top = top.max(abs_bits(values[q]));
        q += 1;
    }
    top
}
