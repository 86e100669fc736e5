//! Rows of 16 bits in words: up to 32 lanes have a row, each up to [`SMALL_WORDS`] of the words that it lies in, as far apart as there are lanes.
//!
//! A row that begins in the upper half of a word has its elements one place further there. Its partials are turned by that, which their tree does not see:
//! its first steps are taken over words, for both halves of each, and the last one over these.

use contract::row::{self, SMALL_WORDS};

use super::{Make, Rows};
use crate::arch::float::maximum;
use crate::arch::shared::Shared;
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, shuffle_xor, sync_warp};
use crate::float::Float;

/// Most words of a lane.
const MOST: usize = SMALL_WORDS as usize;

/// The words of a lane.
pub type Words = [u32; MOST];

/// Their elements.
pub type Halves = [[f32; 2]; MOST];

/// A row in the lanes that have it, `W` words in each, the last of which may be none; it may be none of any tensor.
#[derive(Clone, Copy)]
pub struct Pairs<const W: usize> {
    /// Its elements.
    k: u32,
    /// How many lanes have it, and which of them this is.
    lanes: u32,
    own: u32,
    /// 1 if it begins in the upper half of a word.
    odd: u32,
}

/// Which element the half of this lane's word `i` is, of rows of `k` elements of which as many as fit lie side by side in a warp, the first one on a
/// boundary of words; of no meaning where it is none.
#[inline(always)]
pub fn element(k: u32, of: row::Small, i: usize, half: usize) -> u32 {
    let lanes = of.lanes(k, 2);
    let odd = k & (lane_id() >> lanes.trailing_zeros()) & 1;
    (2 * ((lane_id() & (lanes - 1)) + lanes * i as u32) + half as u32).wrapping_sub(odd)
}

impl<const W: usize> Pairs<W> {
    /// Which element of the row the half of this lane's word `i` is; of no meaning where it is none.
    #[inline(always)]
    pub fn element(&self, i: usize, half: usize) -> u32 {
        (2 * (self.own + self.lanes * i as u32) + half as u32).wrapping_sub(self.odd)
    }

    /// Whether it is one.
    #[inline(always)]
    pub fn has(&self, i: usize, half: usize) -> bool {
        let inside = i + 1 < W && (i > 0 || half > 0);
        inside || self.element(i, half) < self.k
    }

    /// Puts the halves of a word where the row has none of its own.
    #[inline(always)]
    pub fn fill(&self, raw: &mut Words, nothing: u32) {
        let mut i = 0;
        while i < W {
            if i == 0 || i + 1 == W {
                let low = if self.has(i, 0) { 0 } else { 0xffff };
                let high = if self.has(i, 1) { 0 } else { 0xffff_0000u32 };
                raw[i] = raw[i] & !(low | high) | nothing & (low | high);
            }
            i += 1;
        }
    }

    /// The largest of all lanes' elements, whose words have been filled with what is lower, NaN if one is NaN, in every lane of the row.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn max_raw<E: Float>(&self, raw: &Words) -> f32 {
        let larger = |a: u32, b: u32| E::max_raw([a, 0, 0, 0], [b, 0, 0, 0])[0];
        // Two at a time, which do not wait for each other.
        let mut tops = [raw[0], raw[1 % W]];
        let mut i = 2;
        while i < W {
            tops[i % 2] = larger(tops[i % 2], raw[i]);
            i += 1;
        }
        let mut top = larger(tops[0], tops[1]);
        let mut distance = LANES / 2;
        while distance > 0 {
            if distance < self.lanes {
                top = larger(top, shuffle_xor(top, distance));
            }
            distance /= 2;
        }
        let top = E::widen([top, 0, 0, 0]);
        maximum(top[0], top[1])
    }

    /// A sum over the row, `step(acc, value(i)[half])`, in every lane of the row. Where it `ADDS`, the step is plain addition, nothing is negative, and what
    /// is none of the row's zero.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn sum<const ADDS: bool>(
        &self,
        value: impl Fn(usize) -> [f32; 2],
        step: impl Fn(f32, f32) -> f32,
    ) -> f32 {
        // Elements 256 apart are of one partial. A sum of two is the same whether they are of one or of two.
        let p = match self.lanes {
            32 if W > 4 && W <= 10 => self.lane_sum::<ADDS, 4>(&value, &step),
            16 if W > (if ADDS { 16 } else { 8 }) => self.lane_sum::<ADDS, 8>(&value, &step),
            8 if W > 16 && !ADDS => self.lane_sum::<ADDS, 16>(&value, &step),
            _ => self.lane_sum::<ADDS, 32>(&value, &step),
        };
        let mut sum = p;
        let mut distance = LANES / 2;
        while distance > 0 {
            if distance < self.lanes {
                sum = sum.map(|sum| sum + shuffle_xor(sum, distance));
            }
            distance /= 2;
        }
        // No sum is a negative zero, as one that begins with zero is none.
        sum[0] + sum[1] + 0.0
    }

    /// The sums of this lane's partials of both halves, of which it has `P` each.
    #[inline(always)]
    fn lane_sum<const ADDS: bool, const P: usize>(
        &self,
        value: &impl Fn(usize) -> [f32; 2],
        step: &impl Fn(f32, f32) -> f32,
    ) -> [f32; 2] {
        // Negative zero leaves what is added to it as it is.
        let mut p = [[-0.0; 2]; P];
        let mut i = 0;
        while i < W {
            let v = value(i);
            let mut half = 0;
            while half < 2 {
                if ADDS || self.has(i, half) {
                    p[i % P][half] = step(p[i % P][half], v[half]);
                }
                half += 1;
            }
            i += 1;
        }
        let mut len = P;
        while len > 1 {
            len /= 2;
            let mut i = 0;
            while i < len && i + len < W {
                p[i] = [p[i][0] + p[i + len][0], p[i][1] + p[i + len][1]];
                i += 1;
            }
        }
        p[0]
    }
}

/// Writes the halves of a word that are `there`.
#[inline(always)]
unsafe fn write(at: Shared<u32>, word: u32, [low, high]: [bool; 2]) {
    // SAFETY: halves of this lane.
    unsafe {
        if low && high {
            at.write(word);
        } else {
            if low {
                at.cast::<u16>().write_u16(word as u16);
            }
            if high {
                at.byte_add(2).cast::<u16>().write_u16((word >> 16) as u16);
            }
        }
    }
}

impl<E: Float> Rows<E> {
    /// As [`Rows::each`], `W` words in a lane.
    #[inline(always)]
    unsafe fn each_pairs<const W: usize, M: Make>(
        &self,
        here: Shared<u32>,
        (first, odd): (u32, u32),
        make: &M,
    ) {
        let [rows, k] = self.shape;
        // Anew for each length: what all of them have in front would take more registers than there are.
        let lanes = opaque(self.lanes);
        let bits = lanes.trailing_zeros();
        let own = lane_id() & (lanes - 1);
        // From a lane: what all warps have is copied to a register of each for every place.
        let step = shuffle_idx(4 * lanes, 0);
        let bytes = k * Self::BYTES;
        // Neighbours of a row are in other turns, where that may be: rows beside each other then begin in more banks.
        let groups = LANES >> bits;
        let (apart, next) = if M::APART { (self.most >> (5 - bits), 1) } else { (1, groups) };
        let mut row = (lane_id() >> bits) * apart;
        let mut start = odd + row * bytes;
        let mut turn = 0;
        // SAFETY: rows of this warp, and words of this lane.
        unsafe {
            while turn < self.most {
                let there = first + row < rows;
                let at = here.byte_add((start & !3) + 4 * own);
                let pairs = Pairs::<W> { k, lanes, own, odd: start / 2 % 2 };
                let (mut x, mut from) = ([0; MOST], at);
                let mut i = 0;
                while i < W {
                    if i > 0 {
                        from = from.byte_add(step).kept();
                    }
                    // Behind the last row there may be nothing.
                    if i + 1 < W || pairs.has(i, 0) {
                        x[i] = from.read();
                    }
                    i += 1;
                }
                sync_warp();
                let y = make.make_pairs::<W>(pairs, x);
                let at = at.kept();
                if there {
                    let mut i = 0;
                    while i < W {
                        let has = [0, 1].map(|half| pairs.has(i, half));
                        write(at.byte_add(step * i as u32), y[i], has);
                        i += 1;
                    }
                }
                // Rows in the next turn may lie in the same words.
                sync_warp();
                row += next;
                start += next * bytes;
                turn = opaque(turn + groups);
            }
        }
    }

    /// As [`Rows::make`], of rows in words.
    #[inline(always)]
    pub(super) unsafe fn make_pairs<M: Make>(&self, here: Shared<u32>, of: (u32, u32), make: &M) {
        // Lanes have more than half of the most.
        let held = |words: usize| words <= M::WORDS && words > M::WORDS / 2;
        // SAFETY: handed on.
        unsafe {
            match self.shape[1].div_ceil(2).div_ceil(self.lanes) {
                5 if held(5) => self.each_pairs::<5, M>(here, of, make),
                6 if held(6) => self.each_pairs::<6, M>(here, of, make),
                7 if held(7) => self.each_pairs::<7, M>(here, of, make),
                8 if held(8) => self.each_pairs::<8, M>(here, of, make),
                9 if held(9) => self.each_pairs::<9, M>(here, of, make),
                10 if held(10) => self.each_pairs::<10, M>(here, of, make),
                11 if held(11) => self.each_pairs::<11, M>(here, of, make),
                12 if held(12) => self.each_pairs::<12, M>(here, of, make),
                13 if held(13) => self.each_pairs::<13, M>(here, of, make),
                14 if held(14) => self.each_pairs::<14, M>(here, of, make),
                15 if held(15) => self.each_pairs::<15, M>(here, of, make),
                16 if held(16) => self.each_pairs::<16, M>(here, of, make),
                17 if held(17) => self.each_pairs::<17, M>(here, of, make),
                _ => {}
            }
        }
    }
}
