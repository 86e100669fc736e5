//! Many short rows: a warp has eight items of 128 elements at once, of eight rows or fewer.

use contract::act_quant::{SHORT_ITEMS, short_rows};
use contract::num::{act_scale, fma, is_ordinary};
use contract::w2a8::{act_bytes, act_index};

use super::held::step;
use super::item::{Four, Item, top, total};
use super::source::{Affine, Norm, Source};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{st, st_x2, st_x4};
use crate::arch::thread::block_idx_x;
use crate::arch::warp::{lane_id, warp_id, warp_max, warp_sum};

/// Items of a warp.
const ITEMS: usize = SHORT_ITEMS as usize;
/// Elements of an item of all lanes.
const WIDE: u32 = 128;
/// Items of a group of 512 bytes.
const OF_GROUP: usize = 4;

/// The rows of the block.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` and grid; the pointers of the source cover the contract's table.
#[inline(always)]
pub(super) unsafe fn rows<S: Source>(source: S) {
    launch_dependents();
    dependency_wait();
    // SAFETY: handed on.
    unsafe {
        match (source.pieces(), short_rows(source.rows().k)) {
            (true, 8) => rows_in::<S, 8, true>(&source),
            (true, 4) => rows_in::<S, 4, true>(&source),
            (true, 2) => rows_in::<S, 2, true>(&source),
            (true, _) => rows_in::<S, 1, true>(&source),
            (_, 8) => rows_in::<S, 8, false>(&source),
            (_, 4) => rows_in::<S, 4, false>(&source),
            (_, 2) => rows_in::<S, 2, false>(&source),
            (..) => rows_in::<S, 1, false>(&source),
        }
    }
}

/// # Safety
///
/// As for [`rows`].
#[inline(always)]
unsafe fn rows_in<S: Source, const R: usize, const P: bool>(source: &S) {
    let rows = source.rows();
    let each = ITEMS / R;
    let first = (block_idx_x() * (contract::act_quant::THREADS / 32) + warp_id()) * R as u32;
    let place = |n: usize| {
        let k = if first + ((n / each) as u32) < rows.m { rows.k } else { 0 };
        let item = Item::<P> { first: WIDE * (n % each) as u32 + Item::<P>::own(), k };
        (first + (n / each) as u32, item)
    };
    let mut held: [Four; ITEMS] = [[0.0; 4]; ITEMS];
    let at_once = ITEMS / S::TENSORS;
    let mut from = 0;
    while from < ITEMS {
        let mut raws = [[[0; 4]; 2]; ITEMS];
        let mut n = from;
        while n < from + at_once {
            let (row, item) = place(n);
            // SAFETY: rows of the contract, or an item of nothing.
            raws[n] = unsafe { source.load(row, item) };
            n += 1;
        }
        let mut n = from;
        while n < from + at_once {
            let (row, item) = place(n);
            // SAFETY: the same; the items belong to this lane.
            held[n] = unsafe { source.take(row, item, raws[n]) };
            n += 1;
        }
        from += at_once;
    }
    if S::NORM != Norm::No
        && let Some(affine) = source.affine()
    {
        // SAFETY: handed on.
        unsafe { norm::<S, R, P>(&affine, rows.k, &mut held) };
    }

    let to = rows.acts.cast::<u8>().as_ptr().wrapping_add(act_index(Item::<P>::word() as usize));
    let mut own = [0; 2];
    let mut r = 0;
    while r < R {
        let mut most = 0;
        let mut i = 0;
        while i < each {
            most = top(most, held[each * r + i]);
            i += 1;
        }
        let scale = act_scale(f32::from_bits(warp_max(most)));
        // A row that is not finite quantises to zeros.
        let ordinary = is_ordinary(scale);
        let row = first + r as u32;
        let start = row as usize * act_bytes(rows.k as usize);
        let mut sum = 0;
        let mut i = 0;
        while i < each {
            let word = Item::<P>::quantised(held[each * r + i], scale, &mut sum);
            let there = row < rows.m && (i < OF_GROUP || rows.k > WIDE * OF_GROUP as u32);
            if there {
                let at = to.wrapping_add(start + step(i / 2) + act_index(WIDE as usize * (i % 2)));
                // SAFETY: words of acts[m], zeros past the end of the row.
                unsafe { st(at.cast::<u32>(), if ordinary { word } else { 0 }) };
            }
            i += 1;
        }
        if each < OF_GROUP && row < rows.m {
            // The rest of each of the four lines of the group.
            let rest = 2 * (OF_GROUP - each);
            let (line, piece) = (lane_id() as usize / rest, lane_id() as usize % rest);
            let rest = rows.acts.cast::<u8>().as_ptr().wrapping_add(start);
            if line < 4 {
                let at = rest.wrapping_add(128 * line + 32 * each + 16 * piece);
                // SAFETY: zeros past the end of the row, in places of acts[m] that no item has.
                unsafe { st_x4(at.cast(), [0u32; 4]) };
            }
        }
        let sum = warp_sum(total(sum, each as u32) as i32);
        if lane_id() == r as u32 {
            own = [scale.to_bits(), if ordinary { sum as u32 } else { 0 }];
        }
        r += 1;
    }
    let row = first + lane_id();
    if lane_id() < R as u32 && row < rows.m {
        let at = rows.stats.cast::<u32>().as_ptr().wrapping_add(2 * row as usize);
        // SAFETY: stats[m], written by this lane alone: the scale, then the sum.
        unsafe { st_x2(at.cast(), own) };
    }
}

/// Normalises the rows.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// As for [`Affine::of`].
#[inline(always)]
unsafe fn norm<S: Source, const R: usize, const P: bool>(
    affine: &Affine,
    k: u32,
    held: &mut [Four; ITEMS],
) {
    let each = ITEMS / R;
    let item = |i: usize| Item::<P> { first: WIDE * i as u32 + Item::<P>::own(), k };
    let mut factors = [0.0; R];
    let mut r = 0;
    while r < R {
        if S::NORM == Norm::Layer {
            let mean = sum::<R, P>(held, r, |acc, v| acc + v) / k as f32;
            let mut i = 0;
            while i < each {
                held[each * r + i] = item(i).map(held[each * r + i], |_, v| v - mean);
                i += 1;
            }
        }
        let squares = sum::<R, P>(held, r, |acc, v| fma(v, v, acc));
        factors[r] = affine.factor(S::NORM, squares, k);
        r += 1;
    }
    let mut i = 0;
    while i < each {
        // SAFETY: handed on.
        let by = unsafe { affine.of(S::NORM, item(i)) };
        let mut r = 0;
        while r < R {
            let n = each * r + i;
            held[n] = Affine::normed(S::NORM, item(i), held[n], factors[r], by);
            r += 1;
        }
        i += 1;
    }
}

/// A sum over row `r` of the warp, in every lane: `take` adds what an element gives, for a zero nothing.
///
/// *Convergence*: every lane of the warp calls it.
#[inline(always)]
fn sum<const R: usize, const P: bool>(
    held: &[Four; ITEMS],
    r: usize,
    take: impl Fn(f32, f32) -> f32,
) -> f32 {
    let each = ITEMS / R;
    let mut halves = [[0.0; 4]; 2];
    let mut i = 0;
    while i < each {
        let mut q = 0;
        while q < 4 {
            halves[i % 2][q] = take(halves[i % 2][q], held[each * r + i][q]);
            q += 1;
        }
        i += 1;
    }
    Item::<P>::tree(halves[0], halves[1])
}
