//! Sums of a segment of a long row, which a warp has in its registers.

use contract::norm::around;
use contract::num::fma;
use contract::parts::{PART, Parts, SEGMENT};

use crate::arch::warp::{lane_id, shuffle_idx, shuffle_xor};
use crate::float::{Float, Piece};
use crate::row::segment::Segment;

/// What [`contract::norm`] states of a segment, a part or a row.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    /// Of the elements; left out where squares are around zero.
    pub sum: f32,
    /// Of their squares.
    pub squares: f32,
}

/// Those of a segment of the items `x(n)` of this lane, with so many elements `left` of the row and zeros behind them. Of the first item of the first
/// lane, `odd` elements are those behind all others.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
pub fn sums<E: Float, const CENTRED: bool, const ODD: bool>(
    x: impl Fn(usize) -> Piece,
    left: u32,
    odd: u32,
) -> Sums {
    let wrapped = if ODD && lane_id() == 0 { odd } else { 0 };
    if !CENTRED {
        let squares = over::<E, ODD>(x, wrapped, |_, acc, v| fma(v, v, acc));
        return Sums { sum: 0.0, squares };
    }
    let sum = over::<E, ODD>(&x, wrapped, |_, acc, v| acc + v);
    if left >= SEGMENT {
        // A power of two: the bits of a division.
        let mean = sum * (1.0 / SEGMENT as f32);
        let step = |_, acc, v: f32| fma(v - mean, v - mean, acc);
        return Sums { sum, squares: over::<E, ODD>(x, wrapped, step) };
    }
    let mean = sum / left as f32;
    let left = (left + odd).saturating_sub(Segment::<E, true>::own());
    let step = |on: u32, acc, v: f32| {
        if on < left { fma(v - mean, v - mean, acc) } else { acc }
    };
    Sums { sum, squares: over::<E, ODD>(x, wrapped, step) }
}

/// The sum over a segment of the items `x(n)` of each lane, in every lane: `step(on, acc, v)` takes the element that is `on` behind the first, the
/// first `wrapped` ones a segment behind.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
fn over<E: Float, const ODD: bool>(
    x: impl Fn(usize) -> Piece,
    wrapped: u32,
    step: impl Fn(u32, f32, f32) -> f32,
) -> f32 {
    let mut partials = [[0.0; 8]; 8];
    let last = |n: usize, i: usize| ODD && n == 0 && (i as u32) < wrapped;
    Segment::<E, true>::each(|n| {
        let (p, v) = (&mut partials[n % Segment::<E, true>::GROUPS], x(n));
        let on = Segment::<E, true>::on(n);
        *p = Segment::<E, true>::map(
            *p,
            |i, p| {
                if last(n, i) { p } else { step(on + i as u32, p, v[i]) }
            },
        );
    });
    if ODD {
        let v = x(0);
        partials[0] = Segment::<E, true>::map(partials[0], |i, p| {
            if last(0, i) { step(SEGMENT + i as u32, p, v[i]) } else { p }
        });
    }
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
