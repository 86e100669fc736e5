//! Segments of long rows: one in the registers of a warp, or below sm_90 passing through them.
#![cfg_attr(not(level_sm_90), allow(dead_code))]

use contract::parts::SEGMENT;

use crate::arch::mem::X4;
use crate::arch::shared::Shared;
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, warp_tree};
use crate::float::{Float, Piece};
use crate::row::lanes::Lanes;
use crate::row::{Line, put, take};

/// Elements of a lane, and its items at most.
pub const LEN: usize = (SEGMENT / LANES) as usize;

/// The elements of a lane, in items.
pub type Values = [Piece; LEN];

/// The same as they come from memory.
pub type Raw = [X4<u32>; LEN];

/// The lanes of a segment of elements `E`.
pub struct Segment<E, const PIECES: bool>(core::marker::PhantomData<E>);

impl<E: Float, const PIECES: bool> Segment<E, PIECES> {
    /// Elements of an item: a piece, or a word of 16-bit elements where rows are not in pieces.
    pub const WIDTH: u32 = if PIECES || E::PIECE == 4 { E::PIECE as u32 } else { 2 };
    /// Items of a lane.
    pub const ITEMS: usize = LEN / Self::WIDTH as usize;

    /// One function for each element of an item.
    #[inline(always)]
    pub fn map(values: Piece, mut f: impl FnMut(usize, f32) -> f32) -> Piece {
        let mut out = [0.0; 8];
        let mut i = 0;
        while i < Self::WIDTH as usize {
            out[i] = f(i, values[i]);
            i += 1;
        }
        out
    }

    /// The item at `p`, as far as there are elements `left`.
    ///
    /// # Safety
    ///
    /// So many elements there are of a row of a tensor; nobody writes them meanwhile.
    #[inline(always)]
    pub unsafe fn load(line: &Line<PIECES>, left: u32, p: *const E) -> X4<u32> {
        // SAFETY: the caller's promise.
        let load = |i: u32| unsafe { line.load(left > i, p, i) };
        if PIECES {
            load(0)
        } else if Self::WIDTH == 2 {
            [load(0)[0] | load(1)[0] << 16, 0, 0, 0]
        } else {
            [load(0)[0], load(1)[0], load(2)[0], load(3)[0]]
        }
    }

    /// Writes the item at `p`, as far as there are elements `left`.
    ///
    /// # Safety
    ///
    /// As for [`Segment::load`], and they belong to this thread.
    #[inline(always)]
    pub unsafe fn store(line: &Line<PIECES>, left: u32, p: *mut E, item: X4<u32>) {
        // SAFETY: the caller's promise.
        unsafe {
            if left > 0 {
                line.store(p, 0, item);
            }
            let mut i = 1;
            while i < Self::WIDTH && !PIECES {
                if left > i {
                    let bits = if Self::WIDTH == 2 { item[0] >> 16 } else { item[i as usize] };
                    line.store(p, i, [bits, 0, 0, 0]);
                }
                i += 1;
            }
        }
    }

    /// The first element of this lane. Anew in each pass: the addresses of all items would take more registers than there are.
    #[inline(always)]
    pub fn own() -> u32 {
        opaque(Self::WIDTH * lane_id())
    }

    /// Elements from the first one of a lane to those of item `n`.
    #[inline(always)]
    pub const fn on(n: usize) -> u32 {
        Self::WIDTH * LANES * n as u32
    }

    /// Every item of this lane.
    #[inline(always)]
    pub fn each(mut body: impl FnMut(usize)) {
        let mut n = 0;
        while n < Self::ITEMS {
            body(n);
            n += 1;
        }
    }

    /// After so many items the partials are those of the first one again.
    pub const GROUPS: usize = 8 / Self::WIDTH as usize;

    /// Takes the terms of item `n` into this lane's partials.
    #[inline(always)]
    pub fn take(n: usize, v: Piece, partials: &mut [Piece; 8]) {
        let p = &mut partials[n % Self::GROUPS];
        *p = Self::map(*p, |i, p| p + v[i]);
    }

    /// The tree over the partials of a segment.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn tree(mut partials: [Piece; 8]) -> f32 {
        // The largest distances are between items of a lane.
        let mut groups = Self::GROUPS;
        while groups > 1 {
            groups /= 2;
            let mut g = 0;
            while g < groups {
                let other = partials[g + groups];
                partials[g] = Self::map(partials[g], |i, p| p + other[i]);
                g += 1;
            }
        }
        if Self::WIDTH > 2 {
            return Lanes::<1>::tree_of::<E>(LANES, E::PIECE, partials[0]);
        }
        let [a, b, ..] = Self::map(partials[0], |_, p| warp_tree(p));
        a + b
    }

    /// This lane's partials of the terms `v(n)` of a segment.
    #[inline(always)]
    pub fn sum(v: impl Fn(usize) -> Piece) -> [Piece; 8] {
        let mut partials = [[0.0; 8]; 8];
        Self::each(|n| Self::take(n, v(n), &mut partials));
        partials
    }

    /// The same where the first elements of the first item, `odd` of them, come behind all others.
    #[inline(always)]
    pub fn sum_turned(odd: u32, v: impl Fn(usize) -> Piece) -> [Piece; 8] {
        let mut partials = [[0.0; 8]; 8];
        let first = v(0);
        let last = |i: usize| (i as u32) < odd;
        partials[0] = Self::map(first, |i, v| if last(i) { 0.0 } else { 0.0 + v });
        let mut n = 1;
        while n < Self::ITEMS {
            Self::take(n, v(n), &mut partials);
            n += 1;
        }
        partials[0] = Self::map(partials[0], |i, p| if last(i) { p + first[i] } else { p });
        partials
    }

    /// Moves the last elements of a segment that came to `stage` in front of it, where its first piece has `odd` elements of another.
    ///
    /// # Safety
    ///
    /// They came; nobody else uses either place meanwhile.
    #[inline(always)]
    pub unsafe fn wrap(stage: Shared<u32>, odd: u32) {
        let bytes = 16 / E::PIECE as u32;
        if lane_id() < odd {
            let to = stage.byte_add(lane_id() * bytes);
            // SAFETY: the caller's promise.
            unsafe { put::<E>(to, take::<E>(to.byte_add(SEGMENT * bytes))) };
        }
    }

    /// The element of this lane among those at the edges of a segment with places `left`, which go one by one: first those of its first piece, if `odd`
    /// of them are behind all others, then those of its last one, if that is not whole. Whether there is one, where it waits, and where it is in the row
    /// from the segment on.
    #[inline(always)]
    pub fn edge(left: u32, odd: u32) -> (bool, u32, u32) {
        let piece = E::PIECE as u32;
        let last = if left < SEGMENT { left - left % piece } else { SEGMENT };
        let behind = lane_id() >= piece;
        // Of a segment of one piece that is not whole, the first lanes have all.
        let from = if behind { last + lane_id() - piece } else { lane_id() };
        let place = if from < odd { from + SEGMENT } else { from };
        let own = behind & (last > 0) & (last < SEGMENT) | !behind & (odd > 0 || last == 0);
        (own & (lane_id() < 2 * piece) & (place < left), from, place)
    }

    /// The `first` piece of a segment whose `odd` first elements are not of it: the `last` one begins with those that stand there instead.
    #[inline(always)]
    pub fn wrapped(first: X4<u32>, last: X4<u32>, odd: u32) -> X4<u32> {
        core::array::from_fn(|word| {
            let bits = (128 / E::PIECE as u32 * odd).saturating_sub(32 * word as u32);
            let before = if bits < 32 { (1 << bits) - 1 } else { u32::MAX };
            first[word] & !before | last[word] & before
        })
    }

    /// Writes such a piece, `to` where it begins, as far as there are elements `left`.
    ///
    /// # Safety
    ///
    /// They are elements of a row, and belong to this thread.
    #[inline(always)]
    pub unsafe fn store_wrapped(to: *mut E, odd: u32, left: u32, y: X4<u32>) {
        let mut i = 0;
        while i < E::PIECE {
            let at = if (i as u32) < odd { i as u32 + SEGMENT } else { i as u32 };
            let bits = if E::PIECE == 4 { y[i] } else { y[i / 2] >> (16 * (i % 2)) };
            if at < left {
                // SAFETY: the caller's promise.
                unsafe { E::store_bits(to.wrapping_add(at as usize), bits) };
            }
            i += 1;
        }
    }
}
