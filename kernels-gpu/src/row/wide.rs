//! Rows in the registers of several warps: pieces are parts of neighbours, one from each group of 256 elements.
//!
//! Rows that start anywhere lie in such parts from a boundary in front of them on, so that all partials are turned, as in [`super::turned`].

use contract::num::PARTIALS;
use contract::row::SHORT;

use super::lanes::{At, Lanes, Raw};
use crate::arch::mem::{X4, st, st_x2};
use crate::arch::mem_if::{st_if, st_x2_if};
use crate::arch::mem_or::{ld_or, ld_or_x2};
use crate::arch::shared::Shared;
use crate::float::{Float, Piece};

/// Partials of a sum.
const P: u32 = PARTIALS as u32;

/// Elements of a part that one instruction moves.
pub(super) const fn part(warps: u32) -> u32 {
    if warps == 2 { 4 } else { 2 }
}

/// Elements from one place to the next that rows of `k` elements lie from in the registers of several warps: 32 bytes where these have room, else
/// a part.
#[inline(always)]
pub(super) const fn boundary(warps: u32, k: u32) -> u32 {
    if k + 15 <= warps * SHORT { 16 } else { part(warps) }
}

/// Whether the registers of several warps hold a row of `k` elements wherever it starts.
#[inline(always)]
pub(super) const fn fits(warps: u32, k: u32) -> bool {
    k + part(warps) - 1 <= warps * SHORT
}

impl<const WARPS: u32> Lanes<WARPS> {
    /// Elements of a part, and its words.
    const PART: u32 = part(WARPS);
    const WORDS: usize = Self::PART as usize / 2;

    /// Whether all lanes have all of their pieces at `at` in the row, and in front of `end`.
    #[inline(always)]
    fn whole<E: Float>(&self, at: At, end: u32) -> bool {
        let begins = at.step == 0 && self.start == 0 && self.odd.unwrap_or(0) > 0;
        self.start + at.step + Self::step::<E>(self.count) <= end && !begins
    }

    /// The same of the part of a piece from word `word` on; and whether it is behind `end` altogether.
    #[inline(always)]
    fn whole_part(&self, at: At, word: usize, end: u32) -> [bool; 2] {
        let first = self.start + at.step + P * (2 * word / Self::NEXT) as u32;
        let begins = first == 0 && self.odd.unwrap_or(0) > 0;
        [first + P <= end && !begins, first >= end]
    }

    /// Whether element `place` of the piece at `at` is not in front of the row.
    #[inline(always)]
    fn begun(&self, at: At, place: u32) -> bool {
        at.step + place >= P || self.odd.is_none_or(|odd| at.first() + place >= odd)
    }

    /// [`Lanes::piece`], at `p`.
    ///
    /// # Safety
    ///
    /// As for that.
    #[inline(always)]
    pub(super) unsafe fn parts<E: Float>(
        &self,
        p: *const E,
        at: At,
        end: u32,
        nothing: u32,
    ) -> X4<u32> {
        let left = end.saturating_sub(at.own);
        let parts = |whole: bool| {
            let part = |i: usize| {
                let place = self.place(2 * i);
                let there = at.step + place < left && self.begun(at, place + Self::PART - 1);
                (whole || there, p.wrapping_add(place as usize))
            };
            // SAFETY: the caller's promise.
            unsafe {
                if WARPS == 2 {
                    let half = |i: usize| {
                        let (there, p) = part(i);
                        ld_or_x2(there, p.cast(), nothing)
                    };
                    let ([a, b], [c, d]) = (half(0), half(2));
                    return [a, b, c, d];
                }
                core::array::from_fn(|i| {
                    let (there, p) = part(i);
                    ld_or(there, p.cast(), nothing)
                })
            }
        };
        if self.whole::<E>(at, end) { parts(true) } else { parts(false) }
    }

    /// [`Lanes::cut`] of several warps.
    ///
    /// # Safety
    ///
    /// As for that.
    #[inline(always)]
    pub(super) unsafe fn cut_parts<E: Float>(
        &self,
        row: *const E,
        seen: u32,
        loaded: bool,
        nothing: u32,
        mut raw: Raw,
    ) -> Raw {
        let end = if seen < self.end { seen } else { self.end };
        let (low, high) = (nothing & 0xffff, nothing & 0xffff_0000);
        self.each::<E>(|n, at| {
            if self.whole::<E>(at, end) {
                return;
            }
            let mut word = 0;
            while word < 4 {
                let [whole, behind] = self.whole_part(at, word, end);
                if whole || behind {
                    // Nothing was loaded of what is behind.
                    word += 1;
                    continue;
                }
                let place = self.place(2 * word);
                let first = at.first() + place;
                let left = end.saturating_sub(first);
                if !loaded && first >= end - end % Self::PART && left > 0 {
                    let p = row.wrapping_add(first as usize);
                    // SAFETY: elements of the row.
                    let one =
                        |i: u32| unsafe { E::load_bits_if(i < left, p.wrapping_add(i as usize)) };
                    raw[n][word] = one(0) | one(1) << 16;
                }
                // What is none of the row at all was not loaded, but with another part.
                let own = &mut raw[n][word];
                *own = if left == 1 { *own & 0xffff | high } else { *own };
                *own = if left == 0 && Self::WORDS > 1 { nothing } else { *own };
                if at.step + place < P {
                    let skip = self.odd.unwrap_or(0).saturating_sub(first);
                    *own = if skip == 1 { *own & 0xffff_0000 | low } else { *own };
                    *own = if skip > 1 && Self::WORDS > 1 { nothing } else { *own };
                }
                word += 1;
            }
        });
        raw
    }

    /// [`Lanes::write`] of several warps, at `p`.
    ///
    /// # Safety
    ///
    /// As for that.
    #[inline(always)]
    pub(super) unsafe fn write_parts<E: Float>(&self, p: *mut E, at: At, raw: X4<u32>) {
        let at_word = |i: usize| p.wrapping_add(self.place(2 * i) as usize);
        let left = self.end.saturating_sub(at.own);
        if self.odd.is_none() || self.whole::<E>(at, self.end) {
            let parts = |whole: bool| {
                let mut i = 0;
                while i < 4 {
                    if whole || at.step + self.place(2 * i) < left {
                        // SAFETY: the caller's promise.
                        unsafe {
                            match WARPS {
                                2 if i % 2 == 0 => st_x2(at_word(i).cast(), [raw[i], raw[i + 1]]),
                                2 => {}
                                _ => st(at_word(i).cast(), raw[i]),
                            }
                        }
                    }
                    i += 1;
                }
            };
            return if self.whole::<E>(at, self.end) { parts(true) } else { parts(false) };
        }
        let mut i = 0;
        while i < 4 {
            let [whole, behind] = self.whole_part(at, i, self.end);
            if whole || behind {
                // SAFETY: the caller's promise.
                unsafe {
                    match WARPS {
                        2 => st_x2_if(whole, at_word(i).cast(), [raw[i], raw[i + 1]]),
                        _ => st_if(whole, at_word(i).cast(), raw[i]),
                    }
                }
                i += Self::WORDS;
                continue;
            }
            let first = at.first() + self.place(2 * i);
            let mut from = 0;
            if at.step + self.place(2 * i) < P {
                from = self.odd.unwrap_or(0).saturating_sub(first);
            }
            let left = self.end.saturating_sub(first);
            let all = from == 0 && left >= Self::PART;
            // SAFETY: the caller's promise; elements of the row.
            unsafe {
                match WARPS {
                    2 => st_x2_if(all, at_word(i).cast(), [raw[i], raw[i + 1]]),
                    _ => st_if(all, at_word(i).cast(), raw[i]),
                }
                if !all && from < left && from < Self::PART {
                    let mut on = 0;
                    while on < Self::PART {
                        if from <= on && on < left {
                            let bits = raw[i + on as usize / 2] >> (16 * (on % 2));
                            E::store_bits(at_word(i).wrapping_add(on as usize), bits);
                        }
                        on += 1;
                    }
                }
            }
            i += Self::WORDS;
        }
    }

    /// Takes this lane's pieces into the partials of lanes side by side, in `scratch`; with `all`, zeros beside the row too.
    ///
    /// # Safety
    ///
    /// The partials belong to this lane.
    #[inline(always)]
    pub(super) unsafe fn hand_on<E: Float>(
        &self,
        scratch: Shared<f32>,
        all: bool,
        v: impl Fn(usize) -> Piece,
        step: impl Fn(f32, f32) -> f32,
    ) {
        let place = |i: usize| scratch.add(self.own * Self::NEXT as u32 + i as u32);
        let mut p = [0.0; 8];
        // SAFETY: the caller's promise.
        unsafe {
            let mut i = 0;
            while i < Self::NEXT && Self::half() > 0 {
                [p[i], p[i + 1]] = place(i).read_x2();
                i += 2;
            }
            self.each::<E>(|n, at| {
                let v = v(n);
                let left = self.end.saturating_sub(at.own);
                let mut take = |all: bool| {
                    let mut i = 0;
                    while i < E::PIECE {
                        let p = &mut p[i % Self::NEXT];
                        // Parts are of the row or not, unless it starts anywhere.
                        let place = self.place(if self.odd.is_some() { i } else { i - i % 2 });
                        if all || at.step + place < left && self.begun(at, place) {
                            *p = step(*p, v[i]);
                        }
                        i += 1;
                    }
                };
                if all || self.odd.is_some() && self.whole::<E>(at, self.end) {
                    take(true);
                } else {
                    take(false);
                }
            });
            let mut i = 0;
            while i < Self::NEXT {
                place(i).write_x2([p[i], p[i + 1]]);
                i += 2;
            }
        }
    }
}
