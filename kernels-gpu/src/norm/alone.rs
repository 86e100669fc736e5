//! Rows of norms that have sums for each segment, a block each. Below sm_90.
//!
//! A row is read twice, or three times where its squares are around a mean: for the sums, and for the output. A warp has one part of the row in
//! four, and after that one segment in four.

use contract::norm::around;
use contract::num::PARTIALS;
use contract::parts::{Parts, SEGMENT, segments};
use contract::row::MIDDLE_THREADS;

use super::sums::{Sums, part_of, sums};
use super::{Norm, Shape, Tensors};
use crate::arch::mem::{X4, ld_or_zero_x4, st_x4};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{opaque, sync_threads};
use crate::arch::warp::{LANES, lane_id, warp_id};
use crate::float::Float;
use crate::row::block::Rows;
use crate::row::in_pieces;
use crate::row::segment::Segment;
use crate::row::tree::tree_of_warps;

/// Warps of a block.
const WARPS: u32 = MIDDLE_THREADS / LANES;

/// The item of a row at `p`, as far as there are elements `left`.
///
/// # Safety
///
/// So many elements there are of a row of a tensor; nobody else writes them meanwhile.
#[inline(always)]
unsafe fn load<E: Float, const PIECES: bool>(left: u32, p: *const E) -> X4<u32> {
    // SAFETY: the caller's promise.
    unsafe { if PIECES { ld_or_zero_x4(left > 0, p.cast()) } else { E::gather(p, left) } }
}

/// Writes it.
///
/// # Safety
///
/// As for [`load`], and it belongs to this thread.
#[inline(always)]
unsafe fn store<E: Float, const PIECES: bool>(left: u32, p: *mut E, raw: X4<u32>) {
    // SAFETY: the caller's promise.
    unsafe {
        if !PIECES {
            E::scatter(p, left, raw);
        } else if left > 0 {
            st_x4(p.cast(), raw);
        }
    }
}

/// The items of a segment: `each(n, left, first)`, of so many elements `left` from the lane's `first` on.
#[inline(always)]
fn items<E: Float>(segment: u32, k: u32, mut each: impl FnMut(usize, u32, usize)) {
    let own = segment * SEGMENT + Segment::<E, true>::own();
    Segment::<E, true>::each(|n| {
        let first = own + Segment::<E, true>::on(n);
        each(n, k.saturating_sub(first), first as usize);
    });
}

/// The sums of a part, in every lane; with `add`, the residual is added.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The row is one of the contract's table, and the part this warp's.
#[inline(always)]
unsafe fn part<E: Float, const PIECES: bool, const CENTRED: bool>(
    norm: &Norm<E, true>,
    parts: Parts,
    part: u32,
    add: bool,
) -> Sums {
    let k = norm.line.k;
    let (first, len) = parts.segments(part);
    let mut own = Sums::default();
    let mut n = 0;
    while n < len {
        let segment = first + n;
        // SAFETY: items of the row.
        let load = |left: u32, p: *const E| unsafe { load::<E, PIECES>(left, p) };
        if add {
            items::<E>(segment, k, |_, left, first| {
                let x = norm.x.wrapping_add(first);
                let delta = load(left, norm.delta.wrapping_add(first));
                let sum = Norm::<E, true>::sum(load(left, x.cast_const()), delta);
                // SAFETY: an item of the row, and of this lane.
                unsafe { store::<E, PIECES>(left, x, sum) };
            });
        }
        // Read anew in each pass: there are no registers for all of it.
        let own_first = segment * SEGMENT + Segment::<E, true>::own();
        let x = |n: usize| {
            let first = own_first + Segment::<E, true>::on(n);
            let at = norm.x.wrapping_add(first as usize).cast_const();
            E::widen(load(k.saturating_sub(first), at))
        };
        let sums = sums::<E, CENTRED, false>(x, k - segment * SEGMENT, 0);
        if lane_id() == n {
            own = sums;
        }
        n = opaque(n + 1);
    }
    part_of::<CENTRED>(own, parts, part, k)
}

/// A row.
///
/// # Safety
///
/// The row is one of the contract's table; the block has all of it, and the scratch of [`contract::row::SCRATCH_BYTES`].
#[inline(always)]
unsafe fn alone<E: Float, const PIECES: bool, const CENTRED: bool>(
    norm: &Norm<E, true>,
    row_of: impl Fn(Sums) -> [f32; 2],
    value: impl Fn([f32; 3], [f32; 2]) -> f32,
) {
    let k = norm.line.k;
    let (parts, count) = (Parts::new(k), segments(k));
    let scratch = dynamic_shared_mem::<f32>();
    let mut all = Sums::default();
    let mut pass = u32::from(!CENTRED);
    let mut add = norm.adds();
    // SAFETY: segments of the row, each of one warp until the last barrier; words of the scratch that one thread writes, behind a barrier.
    unsafe {
        while pass < 2 {
            let mean = all.sum / k as f32;
            // Partial `p` is in lane `p / 4 % 32` of warp `p % 4`: two in each lane.
            let mut partials = [0.0; 2];
            let mut number = warp_id();
            while number < parts.count {
                let own = part::<E, PIECES, CENTRED>(norm, parts, number, add);
                let term = if pass == 0 {
                    own.sum
                } else if CENTRED {
                    around(own.squares, own.sum, parts.elements(number, k), mean)
                } else {
                    own.squares
                };
                let place = number / WARPS % (2 * LANES);
                let mut half = 0;
                while half < 2 {
                    if place == lane_id() + LANES * half {
                        partials[half as usize] += term;
                    }
                    half += 1;
                }
                number = opaque(number + WARPS);
            }
            let scratch = scratch.add(PARTIALS as u32 * pass);
            let at = scratch.add(warp_id() + WARPS * lane_id());
            at.write(partials[0]);
            at.add(WARPS * LANES).write(partials[1]);
            sync_threads();
            let sum = tree_of_warps(scratch);
            if pass == 0 {
                all.sum = sum
            } else {
                all.squares = sum
            }
            (pass, add) = (opaque(pass + 1), false);
        }
        let row = row_of(all);
        let mut segment = warp_id();
        while segment < count {
            items::<E>(segment, k, |_, left, first| {
                let x = load::<E, PIECES>(left, norm.x.wrapping_add(first).cast_const());
                let beside =
                    norm.beside(|p: *const E| load::<E, PIECES>(left, p.wrapping_add(first)));
                let y = norm.output(E::widen(x), beside, |x, w, b| value([x, w, b], row));
                store::<E, PIECES>(left, norm.to().wrapping_add(first), y);
            });
            segment = opaque(segment + WARPS);
        }
    }
}

/// The rows of a block.
///
/// # Safety
///
/// The tensors are those of the contract for elements `E`; block and grid are the contract's.
#[inline(always)]
pub unsafe fn rows<E: Float, const CENTRED: bool>(
    tensors: Tensors,
    shape: Shape,
    row_of: impl Fn(Sums) -> [f32; 2],
    value: impl Fn([f32; 3], [f32; 2]) -> f32,
) {
    let pieces = in_pieces::<E>(shape[1], &tensors);
    let mut rows = Rows::<MIDDLE_THREADS>::new(1, shape[0]);
    loop {
        let norm = Norm::<E, true>::new(tensors, shape, rows.m);
        // SAFETY: handed on.
        unsafe {
            if pieces {
                alone::<E, true, CENTRED>(&norm, &row_of, &value);
            } else {
                alone::<E, false, CENTRED>(&norm, &row_of, &value);
            }
        }
        if !rows.next() {
            return;
        }
    }
}
