//! Rows of up to 8,192 elements that start anywhere, in the registers of some lanes or of some warps.

use contract::softmax::{Args, LANE};

use super::Row;
use crate::arch::thread::opaque;
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
