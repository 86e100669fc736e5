//! Segments of long rows: what softmax makes of one.
#![cfg_attr(not(level_sm_90), allow(dead_code))]

use contract::num::order_value;
use contract::softmax::{SEGMENT, score};

use super::{Row, of_type};
use crate::arch::float::maximum;
use crate::arch::warp::warp_max;
use crate::float::{Float, Piece};
pub(super) use crate::row::segment::{LEN, Raw, Segment, Values};
use crate::row::tree::key;

impl<E: Float, const PIECES: bool> Segment<E, PIECES> {
    /// The terms of an item.
    #[inline(always)]
    pub(super) fn terms(v: Piece, shift: f32) -> Piece {
        Self::map(v, |_, v| of_type::<E>(v, shift))
    }

    /// The larger of a value and an item's values.
    #[cfg(not(level_sm_90))]
    #[inline(always)]
    pub(super) fn larger(top: f32, v: Piece) -> f32 {
        let mut top = top;
        let mut i = 0;
        while i < Self::WIDTH as usize {
            top = maximum(top, v[i]);
            i += 1;
        }
        top
    }

    /// The scores of a segment from what came of it, and the largest of this lane. Where rows may start anywhere (`ODD`), elements of the first piece
    /// that are in front of it are those behind its last whole one.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table.
    #[inline(always)]
    pub(super) unsafe fn scores<const ODD: bool>(
        row: &Row<E, true>,
        start: u32,
        raw: Raw,
    ) -> (Values, f32) {
        let mut v = [[0.0; 8]; LEN];
        let odd = if ODD { row.line.odd.unwrap_or(0) } else { 0 };
        let whole = start + odd + SEGMENT <= row.seen;
        if !row.masked && whole && row.scale == 1.0 {
            Self::each(|n| v[n] = E::widen(raw[n]));
        } else {
            let own = Self::own();
            let left = row.seen.saturating_sub(start + own);
            // Elements of the row from the lane's first on.
            let place = |n: usize, i: usize| {
                let on = Self::on(n) + i as u32;
                if ODD && n == 0 && own + on < odd { on + SEGMENT } else { on }
            };
            let mask = row.mask.wrapping_add((start + own) as usize).wrapping_sub(odd as usize);
            Self::each(|n| {
                v[n] = E::widen(raw[n]);
                let added = if row.masked && ODD {
                    let one = |i: usize| {
                        let at = mask.wrapping_add(place(n, i) as usize);
                        // SAFETY: an element of the mask's row, as far as it is seen.
                        unsafe { E::load_if(place(n, i) < left, at) }
                    };
                    Self::map([0.0; 8], |i, _| one(i))
                } else if row.masked {
                    let at = mask.wrapping_add(Self::on(n) as usize);
                    // SAFETY: an item of the mask's row, as far as it is seen.
                    E::widen(unsafe { row.line.load(Self::on(n) < left, at, 0) })
                } else {
                    [-0.0; 8]
                };
                v[n] = Self::map(v[n], |i, x| score(x, row.scale, added[i]));
            });
            if !whole {
                Self::each(|n| {
                    let seen = |i: usize| place(n, i) < left;
                    v[n] = Self::map(v[n], |i, v| if seen(i) { v } else { f32::NEG_INFINITY });
                });
            }
        }
        // Two at a time, which do not wait for each other.
        let mut tops = [f32::NEG_INFINITY; 2];
        if E::PIECE == 8 && !row.masked && whole && row.scale == 1.0 {
            // In pairs.
            let mut top = raw[0];
            Self::each(|n| top = E::max_raw(top, raw[n]));
            let [a, b, c, d] = top;
            let top = E::max_raw([a, b, 0, 0], [c, d, 0, 0]);
            let top = E::widen(E::max_raw([top[0], 0, 0, 0], [top[1], 0, 0, 0]));
            tops = [top[0], top[1]];
        } else {
            Self::each(|n| {
                let mut i = 0;
                while i < Self::WIDTH as usize {
                    tops[(n + i) % 2] = maximum(tops[(n + i) % 2], v[n][i]);
                    i += 1;
                }
            });
        }
        (v, maximum(tops[0], tops[1]))
    }
}

/// The largest value of the warp, in every lane.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
pub(super) fn largest(top: f32) -> f32 {
    order_value(warp_max(key(top)))
}
