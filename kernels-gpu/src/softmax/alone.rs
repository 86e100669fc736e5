//! Rows that have a sum for each segment, a block each. Below sm_90.
//!
//! A row is read three times: for its maximum, for the sums, and for the output. A warp has one part of the row in four, and after that one
//! segment in four.

use contract::num::{PARTIALS, fma};
use contract::row::MIDDLE_THREADS;
use contract::softmax::{Args, PART, Parts, SEGMENT, closing, factor, score, segments, shift};

use super::Row;
use super::segment::{Segment, largest};
use crate::arch::float::maximum;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{opaque, sync_threads};
use crate::arch::warp::{LANES, lane_id, shuffle_idx, shuffle_xor, warp_id};
use crate::float::{Float, Piece};
use crate::row::block::Rows;
use crate::row::in_pieces;
use crate::row::tree::{max_of_warps, tree_of_warps};

/// Warps of a block.
const WARPS: u32 = MIDDLE_THREADS / LANES;

/// The scores of a segment, a few items of a lane at a time: `each(on, n, scores)` for those `on` elements behind its first, `n` being the
/// number of the item but for a multiple of [`Segment::GROUPS`].
///
/// # Safety
///
/// The row is one of the contract's table.
#[inline(always)]
unsafe fn scores<E: Float, const PIECES: bool>(
    row: &Row<E, PIECES>,
    segment: u32,
    mut each: impl FnMut(u32, usize, Piece),
) {
    let turn = Segment::<E, PIECES>::GROUPS;
    let own = segment * SEGMENT + Segment::<E, PIECES>::own();
    let left = row.seen.saturating_sub(own);
    let (from, mask) = (row.row().wrapping_add(own as usize), row.mask.wrapping_add(own as usize));
    let mut start = 0;
    while start < SEGMENT {
        let on = |n: usize| start + Segment::<E, PIECES>::on(n);
        let load = |p: *const E, n: usize| {
            let at = p.wrapping_add(on(n) as usize);
            // SAFETY: an item of the row, as far as it is seen; the caller's promise.
            unsafe { Segment::<E, PIECES>::load(&row.line, left.saturating_sub(on(n)), at) }
        };
        let mut raw = [[0; 4]; 8];
        let mut n = 0;
        while n < turn {
            raw[n] = load(from, n);
            n += 1;
        }
        let mut n = 0;
        while n < turn {
            let added = if row.masked { E::widen(load(mask, n)) } else { [-0.0; 8] };
            let v = Segment::<E, PIECES>::map(E::widen(raw[n]), |i, x| {
                let v = score(x, row.scale, added[i]);
                if on(n) + (i as u32) < left { v } else { f32::NEG_INFINITY }
            });
            each(on(n), n, v);
            n += 1;
        }
        start = opaque(on(turn));
    }
}

/// The maximum of a segment, of this lane's elements.
///
/// # Safety
///
/// As for [`scores`].
#[inline(always)]
unsafe fn top<E: Float, const PIECES: bool>(row: &Row<E, PIECES>, segment: u32) -> f32 {
    let mut top = f32::NEG_INFINITY;
    // SAFETY: handed on.
    unsafe { scores(row, segment, |_, _, v| top = Segment::<E, PIECES>::larger(top, v)) };
    top
}

/// A row.
///
/// # Safety
///
/// The row is one of the contract's table; the block has all of it, and the scratch of [`contract::row::SCRATCH_BYTES`].
#[inline(always)]
unsafe fn alone<E: Float, const PIECES: bool>(row: &Row<E, PIECES>) {
    let (parts, count) = (Parts::new(row.line.k), segments(row.line.k));
    let scratch = dynamic_shared_mem::<f32>();
    // SAFETY: segments of the row; words of the scratch that one thread writes, behind a barrier.
    unsafe {
        let mut top = f32::NEG_INFINITY;
        let mut segment = warp_id();
        while segment < count {
            top = maximum(top, self::top(row, segment));
            segment = opaque(segment + WARPS);
        }
        let top = max_of_warps(scratch.add(2 * PARTIALS as u32).cast(), WARPS, top, sync_threads);

        // Partial `p` is in lane `p / 4 % 32` of warp `p % 4`: two in each lane.
        let mut partials = [0.0; 2];
        let mut part = warp_id();
        while part < parts.count {
            let (first, len) = parts.segments(part);
            let mut own = [f32::NEG_INFINITY, 0.0];
            let mut n = 0;
            while n < len {
                let top = largest(self::top(row, first + n));
                let shift = self::shift(top);
                let mut partials = [[0.0; 8]; 8];
                scores(row, first + n, |_, n, v| {
                    let v = Segment::<E, PIECES>::terms(v, shift);
                    Segment::<E, PIECES>::take(n, v, &mut partials);
                });
                let sum = Segment::<E, PIECES>::tree(partials);
                if lane_id() == n {
                    own = [top, sum];
                }
                n = opaque(n + 1);
            }
            let max = largest(own[0]);
            let mut sum = own[1] * factor(own[0], max);
            let mut distance = PART / 2;
            while distance > 0 {
                sum += shuffle_xor(sum, distance);
                distance /= 2;
            }
            let sum = shuffle_idx(sum, 0);
            let place = part / WARPS % (2 * LANES);
            let mut half = 0;
            while half < 2 {
                if place == lane_id() + LANES * half {
                    let p = &mut partials[half as usize];
                    *p = fma(sum, factor(max, top), *p);
                }
                half += 1;
            }
            part = opaque(part + WARPS);
        }
        let at = scratch.add(warp_id() + WARPS * lane_id());
        at.write(partials[0]);
        at.add(WARPS * LANES).write(partials[1]);
        sync_threads();
        let closing = closing(tree_of_warps(scratch), top, row.log);

        let shift = self::shift(top);
        let mut segment = warp_id();
        while segment < count {
            let own = if row.log { top } else { largest(self::top(row, segment)) };
            let (own_shift, times) = (self::shift(own), factor(own, top) * closing);
            let first = segment * SEGMENT + Segment::<E, PIECES>::own();
            let left = row.line.k.saturating_sub(first);
            let to = row.to().wrapping_add(first as usize);
            scores(row, segment, |on, _, v| {
                let out = if row.log {
                    Segment::<E, PIECES>::map(v, |_, v| (v - shift) - closing)
                } else {
                    let terms = Segment::<E, PIECES>::terms(v, own_shift);
                    Segment::<E, PIECES>::map(terms, |_, e| e * times)
                };
                let to = to.wrapping_add(on as usize);
                let left = left.saturating_sub(on);
                Segment::<E, PIECES>::store(&row.line, left, to, E::narrow(out));
            });
            segment = opaque(segment + WARPS);
        }
    }
}

/// The rows of a block.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
pub(super) unsafe fn rows<E: Float>(args: &Args) {
    let pieces = in_pieces::<E>(args.k, &[args.x, args.y, args.mask]);
    let mut rows = Rows::<MIDDLE_THREADS>::new(1, args.m);
    loop {
        // SAFETY: handed on.
        unsafe {
            if pieces {
                alone::<E, true>(&Row::new(args, rows.m));
            } else {
                alone::<E, false>(&Row::new(args, rows.m));
            }
        }
        if !rows.next() {
            return;
        }
    }
}
