//! Rows of 16-bit elements that start anywhere ([`crate::row::turned`]) in the registers of several warps, one after the other. The next one comes
//! while one is worked on. Gain and offset lie as the row does and stay where they are: they are read again where that changes, which it does not
//! from row to row of a block where there are many ([`contract::row::grid_of_blocks`]). From sm_90.

use contract::launch::DevPtr;

use super::{Family, Held, Norm, Shape, Tensors};
use crate::arch::mem::X4;
use crate::arch::thread::opaque;
use crate::arch::warp::LANES;
use crate::float::{Float, Piece};
use crate::row::lanes::{Lanes, NOTHING, Raw, Turns};
use crate::row::turned::fits_turned;

/// Pieces of the next row that are asked for before one is worked on: all.
const AHEAD: usize = 4;

/// Whether rows of `k` elements wait in the registers of so many warps, wherever they start.
#[inline(always)]
pub fn goes<E: Float, const W: u32>([x, delta, _, _, y]: &Tensors, k: u32) -> bool {
    let starts = (x.addr() | delta.addr() | y.addr()) as u32;
    starts.is_multiple_of(16) && fits_turned::<E, W>(k)
}

/// Where a row is.
struct Start<E, const W: u32> {
    norm: Norm<E, true>,
    lanes: Lanes<W>,
}

impl<E: Float, const W: u32> Start<E, W> {
    /// Row `m`.
    #[inline(always)]
    fn new(tensors: Tensors, shape: Shape, m: u32) -> Self {
        let norm = Norm::<E, true>::new(tensors, shape, m);
        let lanes = Lanes::<W>::new::<E>(shape[1], LANES);
        let norm = norm.turned(Lanes::<W>::boundary::<E>(shape[1]), shape[0]);
        let lanes = lanes.turned::<E>(shape[1], norm.line.odd.unwrap_or(0));
        Self { norm, lanes }
    }

    /// Asks for the row's pieces in one of its tensors.
    ///
    /// # Safety
    ///
    /// The tensors are those of the contract.
    #[inline(always)]
    unsafe fn ask(&self, row: *const E) -> Raw {
        let line = &self.norm.line;
        let seen = self.lanes.loaded::<E>(line.k, line.whole);
        // SAFETY: pieces of the row.
        unsafe { self.lanes.load::<_, AHEAD>(line, (row, seen), 0, false, NOTHING) }
    }

    /// What came of it, zeros beside the row.
    ///
    /// # Safety
    ///
    /// As for [`Start::ask`], which asked for it.
    #[inline(always)]
    unsafe fn came(&self, row: *const E, raw: Raw) -> Raw {
        let line = &self.norm.line;
        // SAFETY: handed on.
        unsafe { self.lanes.cut(row, line.k, line.whole, 0, raw) }
    }

    /// The pieces of a gain or an offset that stand beside those of the row.
    ///
    /// # Safety
    ///
    /// As for [`Start::ask`].
    #[inline(always)]
    unsafe fn beside(&self, p: DevPtr<u8>) -> Raw {
        let (mut raw, p) = (NOTHING, p.cast::<E>().as_ptr().cast_const());
        if !p.is_null() {
            self.lanes.own::<E>(&self.norm.line, |n, at| {
                let end = self.norm.line.k;
                // SAFETY: the caller's promise.
                raw[n] = unsafe { self.lanes.singles(p, at, end) };
            });
        }
        raw
    }
}

/// A row, with the residual added.
pub struct InTurn<'a, E, const W: u32> {
    start: Start<E, W>,
    raw: Raw,
    /// Gain and offset.
    beside: &'a [Raw; 2],
    /// Sums so far.
    sums: &'a mut u32,
}

impl<E: Float, const W: u32> InTurn<'_, E, W> {
    /// The values of piece `n`.
    #[inline(always)]
    fn piece(&self, n: usize) -> Piece {
        E::widen(self.raw[n])
    }
}

impl<E: Float, const W: u32> Held<E> for InTurn<'_, E, W> {
    #[inline(always)]
    unsafe fn sum(&mut self, which: u32, step: impl Fn(f32, f32) -> f32) -> f32 {
        let place = *self.sums % 2;
        *self.sums = opaque(place + 1);
        let (lanes, line) = (&self.start.lanes, &self.start.norm.line);
        // SAFETY: handed on; places take turns, over all rows.
        unsafe { lanes.sum::<E>((place, which == 0), line, |n| self.piece(n), step) }
    }

    #[inline(always)]
    unsafe fn write<const AT_ONCE: usize>(&self, value: impl Fn(f32, f32, f32) -> f32) {
        let Start { norm, lanes, .. } = &self.start;
        lanes.own::<E>(&norm.line, |n, at| {
            let beside: [X4<u32>; 2] = [self.beside[0][n], self.beside[1][n]];
            // SAFETY: a piece of this lane.
            unsafe { lanes.write(norm.to(), at, norm.output(self.piece(n), beside, &value)) };
        });
    }
}

/// The rows of a block.
///
/// # Safety
///
/// The tensors are those of the contract, and [`goes`] holds of them; block and grid are the contract's.
#[inline(always)]
pub unsafe fn rows<F: Family, E: Float, const W: u32>(
    args: &F::Args,
    tensors: Tensors,
    shape: Shape,
) {
    let turns = Turns::of_block::<W>(shape[0]);
    let row = |turn: u32| Start::<E, W>::new(tensors, shape, turns.row(turn));
    let (mut turn, mut sums, mut lies) = (0, 0, u32::MAX);
    let mut beside = [NOTHING; 2];
    // SAFETY: handed on.
    unsafe {
        let first = row(0);
        let mut next = first.ask(first.norm.x);
        while turns.more(turn) {
            let start = row(turn);
            let norm = &start.norm;
            let mut raw = start.came(norm.x, next);
            if norm.adds() {
                let delta = start.ask(norm.delta);
                let delta = start.came(norm.delta, delta);
                start.lanes.own::<E>(&norm.line, |n, at| {
                    raw[n] = Norm::<E, true>::sum(raw[n], delta[n]);
                    start.lanes.write(norm.x, at, raw[n]);
                });
            }
            let odd = norm.line.odd.unwrap_or(0);
            if odd != lies {
                lies = odd;
                beside = [tensors[2], tensors[3]].map(|p| start.beside(p));
            }
            turn = opaque(turn + 1);
            let behind = row(turn);
            next = behind.ask(behind.norm.x);
            F::make(args, InTurn { start, raw, beside: &beside, sums: &mut sums });
        }
    }
}
