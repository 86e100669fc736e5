//! Rows of up to about 1,024 elements that start anywhere, in the registers of some lanes.

use contract::row::SHORT;
use contract::softmax::{Args, LANE, MOST_ODD_SINGLES};

use super::Row;
use crate::arch::thread::opaque;
use crate::float::Float;
use crate::row::lanes::{Lanes, Raw, Turns};
use crate::row::turned::fits_turned;

/// Whether rows go this way: the first of each tensor starts on a boundary of 16 bytes, and what is not seen has minus infinity for a score.
#[inline(always)]
pub(super) fn turned<E: Float>(args: &Args) -> bool {
    let starts = (args.x.addr() | args.y.addr()) as u32;
    let plain = args.mask.is_null() && args.scale > 0.0;
    plain && starts.is_multiple_of(16) && args.k > MOST_ODD_SINGLES && fits_turned::<E>(args.k)
}

/// A row from the piece on that it begins in.
struct Turned<E: Float> {
    row: Row<E, true>,
    lanes: Lanes<1>,
    /// Whether the last piece may be loaded: it ends in the tensor.
    whole: bool,
}

impl<E: Float> Turned<E> {
    /// Row `m`, of `lanes` for any.
    #[inline(always)]
    fn new(args: &Args, m: u32, lanes: Lanes<1>) -> Self {
        let mut row = Row::<E, true>::new(args, m);
        let odd = row.line.start as u32 % E::PIECE as u32;
        row.line.start -= odd as usize;
        row.seen += odd;
        Self { lanes: lanes.turned(args.k, odd), whole: m + 1 < args.m, row }
    }

    /// [`Row::ask`], or its rest, as far as pieces may be loaded.
    ///
    /// # Safety
    ///
    /// As for [`Row::ask`].
    #[inline(always)]
    unsafe fn ask(&self, rest: Option<Raw>) -> Raw {
        let mut row = Row { line: self.row.line, ..self.row };
        if !self.whole {
            row.seen -= row.seen % E::PIECE as u32;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match rest {
                None => row.ask(self.lanes),
                Some(raw) => row.rest(self.lanes, raw),
            }
        }
    }
}

/// Rows one after the other: the next is asked for before one is worked on.
///
/// # Safety
///
/// As for [`super::short`], of rows that are [`turned`].
#[inline(always)]
pub(super) unsafe fn rows<E: Float, const LOG: bool>(args: &Args) {
    let turns = Turns::of_turned::<E>(args.m, args.k, LANE);
    let lanes = Lanes::<1>::of_turned::<E>(args.k, LANE);
    let row = |turn: u32| Turned::<E>::new(args, turns.row(turn), lanes);
    // SAFETY: handed on. The barriers of the maximum stand between one row's sum and the next one's.
    unsafe {
        let mut raw = row(0).ask(None);
        let mut turn = 0;
        while turns.more(turn) {
            let own = row(turn);
            turn = opaque(turn + 1);
            let here = own.ask(Some(raw));
            let (from, seen) = (own.row.row(), own.row.seen);
            let here = own.lanes.cut(from, seen, own.whole, E::LOWEST, here);
            raw = own.row.held::<1, LOG>(own.lanes, here, || row(turn).ask(None));
        }
    }
}

const _: () = assert!(MOST_ODD_SINGLES < SHORT);
