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

/// A row in the lanes that have it, up to `W` words in each, the last of which may be none; it may be none of any tensor.
///
/// How many words there are is the same in all lanes of all warps: what is done for words that may be none is behind a branch that all take together.
#[derive(Clone, Copy)]
pub struct Pairs<const LEAST: usize, const W: usize> {
    /// How many words lanes have, `LEAST` to `W`.
    words: u32,
    /// How many lanes have it.
    lanes: u32,
    /// Of how many words of this lane it has the lower and the upper half, but for the first one.
    halves: [u32; 2],
    /// Whether the lower half of this lane's first word is none of its.
    behind: bool,
}

/// Which element the half of this lane's word `i` is, of rows of `k` elements of which as many as fit lie side by side in a warp, the first one on a
/// boundary of words; of no meaning where it is none.
#[inline(always)]
pub fn element(k: u32, of: row::Small, i: usize, half: usize) -> u32 {
    let lanes = of.lanes(k, 2);
    let odd = k & (lane_id() >> lanes.trailing_zeros()) & 1;
    (2 * ((lane_id() & (lanes - 1)) + lanes * i as u32) + half as u32).wrapping_sub(odd)
}

impl<const LEAST: usize, const W: usize> Pairs<LEAST, W> {
    /// Whether there is a word `i`, the last one too where that is none in some lanes.
    #[inline(always)]
    pub fn there(&self, i: usize) -> bool {
        i < LEAST || self.words > i as u32
    }

    /// Whether the half of this lane's word `i` is an element of the row.
    #[inline(always)]
    fn has(&self, i: usize, half: usize) -> bool {
        match i {
            0 => half > 0 || !self.behind,
            _ => i + 1 < LEAST || self.halves[half] > i as u32,
        }
    }

    /// Reads this lane's words, one to four of which are so many bytes apart, with `nothing` where the row has none of its own.
    ///
    /// # Safety
    ///
    /// They are.
    #[inline(always)]
    unsafe fn read(&self, at: Shared<u32>, steps: [u32; 4], nothing: u32) -> Words {
        let [low, high] = self.halves;
        let (mut x, mut from, mut last) = ([nothing; MOST], at, nothing);
        // SAFETY: the caller's promise; behind the last row there may be nothing.
        unsafe {
            if low > high {
                let half = at.byte_add(steps[0] * high).cast::<u16>().read_u16();
                last = nothing & 0xffff_0000 | u32::from(half);
            }
            let mut i = 0;
            while i < W {
                // Few addresses, which wait in registers until the words are written.
                if i > 0 && i % 4 == 0 {
                    from = from.byte_add(steps[3]).kept();
                }
                let from = if i % 4 > 0 { from.byte_add(steps[i % 4 - 1]) } else { from };
                if i == 0 || self.has(i, 1) {
                    x[i] = from.read();
                } else if high == i as u32 {
                    x[i] = last;
                }
                i += 1;
            }
        }
        if self.behind {
            x[0] = x[0] & 0xffff_0000 | nothing & 0xffff;
        }
        x
    }

    /// Writes them.
    ///
    /// # Safety
    ///
    /// As for [`Pairs::read`]; the row is one of the tensor.
    #[inline(always)]
    unsafe fn write(&self, at: Shared<u32>, steps: [u32; 4], y: &Words) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.behind {
                at.byte_add(2).cast::<u16>().write_u16((y[0] >> 16) as u16);
            } else {
                at.write(y[0]);
            }
            let (mut i, mut to) = (1, at);
            while i < W {
                if i % 4 == 0 {
                    to = to.byte_add(steps[3]).kept();
                }
                let at = if i % 4 > 0 { to.byte_add(steps[i % 4 - 1]) } else { to };
                if self.has(i, 1) {
                    at.write(y[i]);
                } else if self.has(i, 0) {
                    at.cast::<u16>().write_u16(y[i] as u16);
                }
                i += 1;
            }
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
            32 if W > 4 && LEAST <= 10 => self.lane_sum::<ADDS, 4>(&value, &step),
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
        // Lanes that have so few partials have no more words.
        let words = if P == 4 && W > 10 { 10 } else { W };
        let mut i = 0;
        while i < words {
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

impl<E: Float> Rows<E> {
    /// As [`Rows::each`], of rows with so many `words` in a lane, `LEAST` to `W`.
    #[inline(always)]
    unsafe fn each_pairs<const LEAST: usize, const W: usize, M: Make>(
        &self,
        here: Shared<u32>,
        (first, odd): (u32, u32),
        words: u32,
        make: &M,
    ) {
        let [rows, k] = self.shape;
        // Anew for each length: what all of them have in front would take more registers than there are.
        let lanes = opaque(self.lanes);
        let bits = lanes.trailing_zeros();
        let own = lane_id() & (lanes - 1);
        // From a lane: what all warps have is copied to a register of each for every place. Four of them, so that of the addresses, which wait until
        // the words are written, there are few.
        let steps = [1, 2, 3, 4].map(|i| shuffle_idx(4 * i * lanes, 0));
        let bytes = k * Self::BYTES;
        // Neighbours of a row are in other turns, where that may be: rows beside each other then begin in more banks.
        let groups = LANES >> bits;
        let (apart, next) = if M::APART { (self.most >> (5 - bits), 1) } else { (1, groups) };
        let pairs = |start: u32| {
            let odd = start / 2 % 2;
            // Where each half ends, in words of the row.
            let halves = [k + odd + 1, k + odd].map(|end| (end / 2 + lanes - 1 - own) >> bits);
            Pairs::<LEAST, W> { words, lanes, halves, behind: own == 0 && odd > 0 }
        };
        let mut row = (lane_id() >> bits) * apart;
        let mut start = odd + row * bytes;
        let mut turn = 0;
        // SAFETY: rows of this warp, and words of this lane.
        unsafe {
            while turn < self.most {
                let there = first + row < rows;
                let at = here.byte_add((start & !3) + 4 * own);
                let x = pairs(start).read(at, steps, M::NOTHING);
                sync_warp();
                let y = make.make_pairs::<LEAST, W>(pairs(start), x);
                let at = at.kept();
                if there {
                    // Anew, as it takes registers.
                    pairs(opaque(start)).write(at, steps, &y);
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
        let words = self.shape[1].div_ceil(2).div_ceil(self.lanes);
        // Lanes have more than half of the most.
        let held = |most: usize| most <= M::WORDS && most > M::WORDS / 2;
        // SAFETY: handed on.
        unsafe {
            match words {
                5 if held(5) => self.each_pairs::<5, 5, M>(here, of, words, make),
                6 if held(6) => self.each_pairs::<6, 6, M>(here, of, words, make),
                7 if held(7) => self.each_pairs::<7, 7, M>(here, of, words, make),
                8 if held(8) => self.each_pairs::<8, 8, M>(here, of, words, make),
                9 if held(9) => self.each_pairs::<9, 9, M>(here, of, words, make),
                10 if held(10) => self.each_pairs::<10, 10, M>(here, of, words, make),
                11 if held(11) => self.each_pairs::<11, 11, M>(here, of, words, make),
                12..=13 if held(13) => self.each_pairs::<12, 13, M>(here, of, words, make),
                14..=15 if held(15) => self.each_pairs::<14, 15, M>(here, of, words, make),
                16..=17 if held(17) => self.each_pairs::<16, 17, M>(here, of, words, make),
                _ => {}
            }
        }
    }
}
