//! Rows of up to 8,192 elements that start anywhere, in the registers of some lanes or of some warps.

#[cfg(level_sm_90)]
use contract::row::SHORT;
use contract::softmax::{Args, LANE};
#[cfg(level_sm_90)]
use contract::softmax::{SEGMENT, closing, score, shift};

use super::Row;
#[cfg(level_sm_90)]
use super::larger;
#[cfg(level_sm_90)]
use super::segment::{LEN, Segment, largest};
#[cfg(level_sm_90)]
use crate::arch::block::WARPS;
#[cfg(level_sm_90)]
use crate::arch::float::maximum;
#[cfg(level_sm_90)]
use crate::arch::mem::{X4, st_x4};
#[cfg(level_sm_90)]
use crate::arch::mem_or::ld_or_x4;
use crate::arch::thread::opaque;
#[cfg(level_sm_90)]
use crate::arch::warp::lane_id;
use crate::float::Float;
use crate::row::lanes::{Lanes, Raw, Turns};
use crate::row::turned::fits_turned;

/// Whether rows go this way in so many warps: the first of each tensor starts on a boundary of 16 bytes, and what is not seen has minus infinity
/// for a score.
#[inline(always)]
pub(super) fn turned<E: Float, const W: u32>(args: &Args) -> bool {
    let starts = (args.x.addr() | args.y.addr()) as u32;
    args.scale > 0.0 && starts.is_multiple_of(16) && fits_turned::<E, W>(args.k)
}

/// A row from the piece on that it begins in.
struct Turned<E: Float, const W: u32> {
    row: Row<E, true>,
    lanes: Lanes<W>,
}

impl<E: Float, const W: u32> Turned<E, W> {
    /// Row `m`, of `lanes` for any.
    #[inline(always)]
    fn new(args: &Args, m: u32, lanes: Lanes<W>) -> Self {
        let row = Row::<E, true>::new(args, m).turned(Lanes::<W>::boundary::<E>(args.k), args.m);
        Self { lanes: lanes.turned::<E>(args.k, row.line.odd.unwrap_or(0)), row }
    }

    /// [`Row::ask`], or its rest, as far as pieces may be loaded.
    ///
    /// # Safety
    ///
    /// As for [`Row::ask`].
    #[inline(always)]
    unsafe fn ask(&self, rest: Option<Raw>) -> Raw {
        let seen = self.lanes.loaded::<E>(self.row.seen, self.row.line.whole);
        let row = Row { line: self.row.line, seen, ..self.row };
        // SAFETY: the caller's promise.
        unsafe {
            match rest {
                None => row.ask(self.lanes),
                Some(raw) => row.rest(self.lanes, raw),
            }
        }
    }
}

/// Short rows, in the lanes of a warp.
///
/// # Safety
///
/// As for [`super::short`], of rows that are [`turned`].
#[inline(always)]
pub(super) unsafe fn short<E: Float>(args: &Args) {
    let turns = Turns::of_turned::<E>(args.m, args.k, LANE);
    let lanes = Lanes::<1>::of_turned::<E>(args.k, LANE);
    // SAFETY: handed on.
    unsafe { any::<E, 1>(args, turns, lanes) };
}

/// Longer rows, in several warps.
///
/// # Safety
///
/// As for [`super::long`], of rows that are [`turned`].
#[cfg(level_sm_90)]
#[inline(always)]
pub(super) unsafe fn long<E: Float, const W: u32>(args: &Args) {
    let lanes = Lanes::<W>::new::<E>(args.k, LANE);
    // SAFETY: handed on.
    unsafe { any::<E, W>(args, Turns::of_block::<W>(args.m), lanes) };
}

/// # Safety
///
/// As for both.
#[inline(always)]
unsafe fn any<E: Float, const W: u32>(args: &Args, turns: Turns, lanes: Lanes<W>) {
    // SAFETY: handed on.
    unsafe {
        if args.log == 1 {
            rows::<E, W, true>(args, turns, lanes);
        } else {
            rows::<E, W, false>(args, turns, lanes);
        }
    }
}

/// Rows one after the other: the next is asked for before one is worked on.
///
/// # Safety
///
/// As for [`short`] and [`long`].
#[inline(always)]
unsafe fn rows<E: Float, const W: u32, const LOG: bool>(
    args: &Args,
    turns: Turns,
    lanes: Lanes<W>,
) {
    let row = |turn: u32| Turned::<E, W>::new(args, turns.row(turn), lanes);
    // SAFETY: handed on. The barriers of the maximum stand between one row's sum and the next one's.
    unsafe {
        let mut raw = row(0).ask(None);
        let mut turn = 0;
        while turns.more(turn) {
            let own = row(turn);
            turn = opaque(turn + 1);
            let here = own.ask(Some(raw));
            let (from, seen) = (own.row.row(), own.row.seen);
            let here = own.lanes.cut(from, seen, own.row.line.whole, E::LOWEST, here);
            raw = own.row.held::<W, LOG>(own.lanes, here, || row(turn).ask(None));
        }
    }
}

/// Whether a warp has all of a row of `k` elements but what of it is in a piece more than its lanes have.
#[cfg(level_sm_90)]
#[inline(always)]
pub(super) fn wraps<E: Float>(args: &Args) -> bool {
    let starts = (args.x.addr() | args.y.addr()) as u32;
    args.scale > 0.0 && starts.is_multiple_of(16) && args.k <= SHORT
}

/// Rows that lie in a piece more than the lanes of a warp have, a warp each, one after the other: what of a row is in its last piece stands for
/// what is in front of it in the first one.
///
/// # Safety
///
/// As for [`super::short`], of rows that [`wraps`] is true of, and that not always fit in the lanes.
#[cfg(level_sm_90)]
#[inline(always)]
pub(super) unsafe fn wrapped<E: Float>(args: &Args) {
    // SAFETY: handed on.
    unsafe {
        if args.log == 1 {
            wrapped_rows::<E, true>(args);
        } else {
            wrapped_rows::<E, false>(args);
        }
    }
}

/// The lanes of such a row.
#[cfg(level_sm_90)]
type Lane<E> = Segment<E, true>;

#[cfg(level_sm_90)]
impl<E: Float> Row<E, true> {
    /// Asks for the pieces of such a row, as far as they are seen.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table, or none of it.
    #[inline(always)]
    unsafe fn ask_wrapped(&self) -> [X4<u32>; LEN] {
        let own = Lane::<E>::own();
        let seen = if self.line.k == 0 { 0 } else { self.seen };
        let mut raw = [[0; 4]; _];
        // SAFETY: pieces of the row, of which only the last one may not end in the tensor.
        unsafe {
            Lane::<E>::each(|n| {
                let first = own + Lane::<E>::on(n);
                raw[n] = if n + 1 < Lane::<E>::ITEMS {
                    let at = self.row().wrapping_add(first as usize);
                    ld_or_x4(first < seen, at.cast(), E::LOWEST)
                } else {
                    self.line.load(first < seen, self.row(), first)
                };
            });
        }
        raw
    }

    /// The pieces that came, minus infinity where there is nothing of the row or it is hidden, with what is in the last one.
    ///
    /// # Safety
    ///
    /// As for [`Row::ask_wrapped`]; there is such a row.
    #[inline(always)]
    unsafe fn wrap(&self, mut raw: [X4<u32>; LEN], causal: bool) -> [X4<u32>; LEN] {
        let (own, nothing, piece) = (Lane::<E>::own(), [E::LOWEST; 4], E::PIECE as u32);
        Lane::<E>::each(|n| {
            if causal || n + 1 == Lane::<E>::ITEMS {
                let left = self.seen.saturating_sub(own + Lane::<E>::on(n));
                let left = if left < piece { left } else { piece };
                raw[n] = Lane::<E>::wrapped(nothing, raw[n], left);
            }
        });
        let (mut odd, mut more) = (0, 0);
        if lane_id() == 0 {
            (odd, more) = (self.line.odd.unwrap_or(0), self.seen.saturating_sub(SEGMENT));
        }
        // SAFETY: a piece of the row.
        let last = unsafe { self.line.load(more > 0, self.row(), SEGMENT) };
        raw[0] = Lane::<E>::wrapped(Lane::<E>::wrapped(raw[0], nothing, odd), last, more);
        raw
    }

    /// Writes the output of such a row.
    ///
    /// # Safety
    ///
    /// The row is this warp's.
    #[inline(always)]
    unsafe fn write_wrapped(&self, out: impl Fn(usize) -> X4<u32>) {
        let (own, k) = (Lane::<E>::own(), self.line.k);
        let (odd, to) = (self.line.odd.unwrap_or(0), self.to().wrapping_add(own as usize));
        // SAFETY: pieces of the row, and its elements in those that are not all of it.
        unsafe {
            Lane::<E>::each(|n| {
                let on = Lane::<E>::on(n);
                let (to_item, left) = (to.wrapping_add(on as usize), k - own - on);
                if n == 0 && lane_id() == 0 && odd > 0 {
                    Lane::<E>::store_wrapped(to, odd, k, out(n));
                } else if n + 1 < Lane::<E>::ITEMS || left >= E::PIECE as u32 {
                    st_x4(to_item.cast(), out(n));
                } else {
                    E::scatter(to_item, left, out(n));
                }
            });
        }
    }
}

/// # Safety
///
/// As for [`wrapped`].
#[cfg(level_sm_90)]
#[inline(always)]
unsafe fn wrapped_rows<E: Float, const LOG: bool>(args: &Args) {
    let (mut m, end) = Turns::new::<E>(args.m, args.k, LANE).warp_rows(args.m);
    let row = |m: u32| {
        let m = if m < end { m } else { u32::MAX };
        Row::<E, true>::new(args, m).turned(E::PIECE as u32, args.m)
    };
    // There are no registers for two rows of `f32`.
    let ahead = E::PIECE == 8;
    // SAFETY: handed on.
    unsafe {
        let mut next = if ahead { row(m).ask_wrapped() } else { [[0; 4]; _] };
        while m < end {
            let own = row(m);
            let here = if ahead { next } else { own.ask_wrapped() };
            let here = own.wrap(here, args.queries > 0);
            let (mut v, top);
            if own.masked {
                (v, top) = Lane::<E>::scores::<true>(&own, 0, here);
            } else {
                v = [[0.0; 8]; _];
                let scaled = |x| if own.scale == 1.0 { x } else { score(x, own.scale, -0.0) };
                Lane::<E>::each(|n| v[n] = Lane::<E>::map(E::widen(here[n]), |_, x| scaled(x)));
                top = if E::PIECE == 8 {
                    // In pairs, before they are scaled: a product that is rounded keeps the order.
                    let mut top = here[0];
                    Lane::<E>::each(|n| top = E::max_raw(top, here[n]));
                    let [a, b, c, d] = top;
                    let top = E::max_raw([a, b, 0, 0], [c, d, 0, 0]);
                    let top = E::widen(E::max_raw([top[0], 0, 0, 0], [top[1], 0, 0, 0]));
                    score(maximum(top[0], top[1]), own.scale, -0.0)
                } else {
                    let mut tops = [f32::NEG_INFINITY; 2];
                    Lane::<E>::each(|n| {
                        tops[n % 2] = larger::<E, true>(tops[n % 2], v[n]);
                    });
                    maximum(tops[0], tops[1])
                };
            }
            m = opaque(m + WARPS);
            if ahead {
                next = row(m).ask_wrapped();
            }
            let top = largest(top);
            let shift = shift(top);
            let odd = if lane_id() == 0 { own.line.odd.unwrap_or(0) } else { 0 };
            let partials = if LOG {
                Lane::<E>::sum_turned(odd, |n| Lane::<E>::terms(v[n], shift))
            } else {
                Lane::<E>::each(|n| v[n] = Lane::<E>::terms(v[n], shift));
                Lane::<E>::sum_turned(odd, |n| v[n])
            };
            let closing = closing(Lane::<E>::tree(partials), top, LOG);
            own.write_wrapped(|n| own.output(LOG, v[n], shift, closing));
        }
    }
}
