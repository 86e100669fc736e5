//! Sums of a segment of a long row, which a warp has in its registers.

use contract::norm::around;
use contract::num::fma;
use contract::parts::{PART, Parts, SEGMENT};

use crate::arch::warp::{lane_id, shuffle_idx, shuffle_xor};
use crate::float::{Float, Piece};
use crate::row::segment::{Raw, Segment, Values};

/// What [`contract::norm`] states of a segment, a part or a row.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    /// Of the elements; left out where squares are around zero.
    pub sum: f32,
    /// Of their squares.
    pub squares: f32,
}

/// Those of a segment with so many elements `left` of the row, zeros behind them.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
pub fn sums<E: Float, const CENTRED: bool>(raw: &Raw, left: u32) -> Sums {
    let mut v: Values = [[0.0; 8]; _];
    Segment::<E, true>::each(|n| v[n] = E::widen(raw[n]));
    if !CENTRED {
        return Sums { sum: 0.0, squares: over::<E>(|n| v[n], |acc, v| fma(v, v, acc)) };
    }
    let sum = over::<E>(|n| v[n], |acc, v| acc + v);
    let mean = sum / (if left < SEGMENT { left } else { SEGMENT }) as f32;
    Segment::<E, true>::each(|n| v[n] = Segment::<E, true>::map(v[n], |_, v| v - mean));
    if left < SEGMENT {
        let left = left.saturating_sub(Segment::<E, true>::own());
        Segment::<E, true>::each(|n| {
            let on = Segment::<E, true>::on(n);
            let there = |i: usize| on + (i as u32) < left;
            v[n] = Segment::<E, true>::map(v[n], |i, v| if there(i) { v } else { 0.0 });
        });
    }
    Sums { sum, squares: over::<E>(|n| v[n], |acc, v| fma(v, v, acc)) }
}

/// The sum over a segment of the items `v(n)` of each lane, in every lane.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
fn over<E: Float>(v: impl Fn(usize) -> Piece, step: impl Fn(f32, f32) -> f32) -> f32 {
    let mut partials = [[0.0; 8]; 8];
    Segment::<E, true>::each(|n| {
        let (p, v) = (&mut partials[n % Segment::<E, true>::GROUPS], v(n));
        *p = Segment::<E, true>::map(*p, |i, p| step(p, v[i]));
    });
    Segment::<E, true>::tree(partials)
}

/// Those of a part of a row of `k` elements, in every lane: lane `n` has those of its segment `n`, zeros where there is none.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
pub fn part_of<const CENTRED: bool>(own: Sums, parts: Parts, part: u32, k: u32) -> Sums {
    // The first eight lanes have all of it, the others zeros, which do not go there.
    let over = |mut v: f32| {
        let mut distance = PART / 2;
        while distance > 0 {
            v += shuffle_xor(v, distance);
            distance /= 2;
        }
        shuffle_idx(v, 0)
    };
    if !CENTRED {
        return Sums { sum: 0.0, squares: over(own.squares) };
    }
    let sum = over(own.sum);
    let mean = sum / parts.elements(part, k) as f32;
    let (first, len) = parts.segments(part);
    let mut squares = own.squares;
    if lane_id() < len {
        let left = k - (first + lane_id()) * SEGMENT;
        let len = if left < SEGMENT { left } else { SEGMENT };
        squares = around(own.squares, own.sum, len, mean);
    }
    Sums { sum, squares: over(squares) }
}
