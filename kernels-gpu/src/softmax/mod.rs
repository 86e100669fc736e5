//! Device side of [`contract::softmax`]: some lanes of a warp, or a block, a row.
//!
//! Scores become terms where they wait. A row that does not fit is read three times: for the maximum, the sum, and the output.
//! Rows with a sum for each segment are spread over all blocks in [`parts`], or `alone` on a block.

#[cfg(not(level_sm_90))]
mod alone;
#[cfg(level_sm_90)]
mod exchange;
mod held;
#[cfg(level_sm_90)]
mod parts;
mod segment;
#[cfg(level_sm_80)]
mod small;
#[cfg(level_sm_80)]
mod turned;

use contract::launch::{DevPtr, Kernel};
#[cfg(level_sm_90)]
use contract::row::{LONG, lies};
use contract::row::{LONG_THREADS, MIDDLE, MIDDLE_THREADS, SHORT, split};
#[cfg(not(level_sm_90))]
use contract::softmax::WHOLE;
use contract::softmax::{
    Args, LANE, MiddleBf16, MiddleF16, MiddleF32, ShortBf16, ShortF16, ShortF32, closing, score,
    shift, term, term_half, visible,
};
#[cfg(level_sm_90)]
use contract::softmax::{
    LongBf16, LongF16, LongF32, LongTurnedBf16, LongTurnedF16, LongTurnedF32, PartArgs, PartsBf16,
    PartsF16, PartsF32, TurnedBf16, TurnedF16, TurnedF32,
};
#[cfg(level_sm_80)]
use contract::softmax::{SmallBf16, SmallF16, SmallF32, WordsBf16, WordsF16};

use crate::arch::block::WARPS;
use crate::arch::float::maximum;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::X4;
use crate::arch::thread::opaque;
use crate::arch::warp::sync_warp;
use crate::element::{Bf16, F16};
use crate::float::{Float, Piece};
use crate::row::block::{self, Block, Chunk};
use crate::row::lanes::{Lanes, MOST, NOTHING, Pieces, Raw, Turns, near};
use crate::row::{Line, in_pieces, map, width};

/// The tensors at a row.
struct Row<E, const PIECES: bool> {
    line: Line<PIECES>,
    /// `x[0, 0]`: where the row is comes anew where it is needed, which takes no registers in between.
    x: *const E,
    /// The row's in the mask.
    mask: *const E,
    /// `y[0, 0]`.
    y: *mut E,
    /// Whether there is a mask.
    masked: bool,
    /// Elements from here on are hidden, and not read.
    seen: u32,
    scale: f32,
    log: bool,
}

impl<E: Float, const PIECES: bool> Row<E, PIECES> {
    /// Those of row `m`.
    #[inline(always)]
    fn new(args: &Args, m: u32) -> Self {
        let line = Line::new([m, args.m, args.k]);
        let at = |p: DevPtr<u8>, start: usize| p.cast::<E>().as_ptr().wrapping_add(start);
        let masked = !args.mask.is_null(); // the same for every thread
        let mask = if masked { (m % args.mask_rows) as usize * args.k as usize } else { 0 };
        let seen = if line.k == 0 { 0 } else { visible(m, args.k, args.queries) };
        Self {
            line,
            x: at(args.x, 0).cast_const(),
            mask: at(args.mask, mask).cast_const(),
            y: at(args.y, 0),
            masked,
            seen,
            scale: args.scale,
            log: args.log == 1,
        }
    }

    /// The same row, which may start anywhere, of so many.
    #[inline(always)]
    fn turned(mut self, boundary: u32, rows: u32) -> Self {
        self.line = self.line.turned(boundary, rows);
        self.seen += self.line.odd.unwrap_or(0);
        self
    }

    #[inline(always)]
    fn row(&self) -> *const E {
        self.x.wrapping_add(self.line.start)
    }

    /// The item of the scores, as far as it is seen.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`].
    #[inline(always)]
    unsafe fn load(&self, there: bool, first: u32) -> X4<u32> {
        // SAFETY: the caller's promise.
        unsafe { self.line.load(there && first < self.seen, self.row(), first) }
    }

    /// The items of the scores and of the mask.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`]; there is a mask.
    #[inline(always)]
    unsafe fn load_both(&self, there: bool, first: u32) -> [X4<u32>; 2] {
        let there = there && first < self.seen;
        // SAFETY: the caller's promise.
        unsafe { [self.load(there, first), self.line.beside(there, self.mask, first)] }
    }

    /// The scores of an item, minus infinity where they are hidden.
    #[inline(always)]
    fn scores(&self, first: u32, x: X4<u32>, mask: Option<X4<u32>>) -> Piece {
        let x = E::widen(x);
        let v = match mask.map(E::widen) {
            Some(mask) => map::<E, PIECES>(x, |i, x| score(x, self.scale, mask[i])),
            None => map::<E, PIECES>(x, |_, x| score(x, self.scale, -0.0)),
        };
        if first + width::<E, PIECES>() as u32 <= self.seen && self.line.begun(first) {
            return v;
        }
        let seen = |i: u32| i < self.seen && self.line.begun(i);
        map::<E, PIECES>(v, |i, v| if seen(first + i as u32) { v } else { f32::NEG_INFINITY })
    }

    /// Has the row come, and scores it: `each(s, scores)`.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table, and fits.
    #[inline(always)]
    unsafe fn come<const T: u32, const ROOM: u32, const ODD: bool>(
        &self,
        block: &Block<E, T, ROOM, PIECES, false>,
        mut each: impl FnMut(u32, Piece),
    ) {
        // SAFETY: pieces of this thread.
        unsafe {
            block.ask_all(&self.line, self.row(), self.seen);
            block.came(|group| {
                block.own(group, |s| {
                    let first = block.element(s);
                    let load = |p: *const E| self.line.beside(first < self.seen, p, first);
                    let mask = if self.masked { Some(load(self.mask)) } else { None };
                    each(s, self.came(block, s, mask));
                });
            });
        }
    }

    /// The scores of the item at element `s`, which waits as it came.
    ///
    /// # Safety
    ///
    /// It came, and belongs to this thread.
    #[inline(always)]
    unsafe fn came<const T: u32, const ROOM: u32>(
        &self,
        block: &Block<E, T, ROOM, PIECES, false>,
        s: u32,
        mask: Option<X4<u32>>,
    ) -> Piece {
        // SAFETY: the caller's promise. What is not seen did not come, and is hidden.
        let raw = unsafe { Block::<E, T, ROOM, PIECES, false>::raw(s) };
        self.scores(block.element(s), raw, mask)
    }

    /// The scores of this thread's items of a chunk: `each(s, first, scores)`.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table.
    #[inline(always)]
    unsafe fn chunk<const T: u32, const ROOM: u32, const AT_ONCE: usize, const ODD: bool>(
        &self,
        block: &Block<E, T, ROOM, PIECES, false>,
        chunk: Chunk,
        mut each: impl FnMut(u32, u32, Piece),
    ) {
        // SAFETY: items of the row.
        unsafe {
            if self.masked {
                let load = |there: bool, first: u32| self.load_both(there, first);
                block.load::<_, 2>(chunk, [[0; 4]; 2], load, |s, first, [x, mask]| {
                    each(s, first, self.scores(first, x, Some(mask)));
                });
            } else {
                let load = |there: bool, first: u32| self.load(there, first);
                block.load::<_, AT_ONCE>(chunk, [0; 4], load, |s, first, x| {
                    each(s, first, self.scores(first, x, None));
                });
            }
        }
    }

    /// The output of an item: from terms, or from scores where the logarithm is wanted.
    #[inline(always)]
    fn output(&self, log: bool, v: Piece, shift: f32, closing: f32) -> X4<u32> {
        E::narrow(if log {
            map::<E, PIECES>(v, |_, v| (v - shift) - closing)
        } else {
            map::<E, PIECES>(v, |_, v| v * closing)
        })
    }

    #[inline(always)]
    fn to(&self) -> *mut E {
        self.y.wrapping_add(self.line.start)
    }

    /// Writes an item.
    ///
    /// # Safety
    ///
    /// As for [`Line::store`].
    #[inline(always)]
    unsafe fn write(&self, first: u32, v: Piece, shift: f32, closing: f32) {
        // SAFETY: the caller's promise.
        unsafe { self.line.store(self.to(), first, self.output(self.log, v, shift, closing)) };
    }
}

/// The larger of a value and an item's values.
#[inline(always)]
fn larger<E: Float, const PIECES: bool>(top: f32, v: Piece) -> f32 {
    let mut top = top;
    let mut i = 0;
    while i < width::<E, PIECES>() {
        top = maximum(top, v[i]);
        i += 1;
    }
    top
}

/// The term of a score, for outputs of type `E`.
#[inline(always)]
fn of_type<E: Float>(v: f32, shift: f32) -> f32 {
    if E::PIECE == 8 { term_half(v, shift) } else { term(v, shift) }
}

/// The terms of an item.
#[inline(always)]
fn terms<E: Float, const PIECES: bool>(v: Piece, shift: f32) -> Piece {
    map::<E, PIECES>(v, |_, v| of_type::<E>(v, shift))
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block and grid are the contract's.
#[inline(always)]
unsafe fn short<E: Float>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let turns = Turns::new::<E>(args.m, args.k, LANE);
    let pieces = in_pieces::<E>(args.k, &[args.x, args.y, args.mask]);
    // Before sm_80 a maximum takes three instructions, and there are no registers for a row.
    if cfg!(level_sm_80) && pieces {
        // SAFETY: handed on.
        unsafe { near_rows::<E, 1>(args, turns) };
        return;
    }
    #[cfg(level_sm_80)]
    if turned::turned::<E, 1>(args) {
        // SAFETY: handed on.
        return unsafe { turned::short::<E>(args) };
    }
    #[cfg(level_sm_90)]
    if turned::wraps::<E>(args) {
        // SAFETY: handed on.
        return unsafe { turned::wrapped::<E>(args) };
    }
    let (mut m, end) = turns.warp_rows(args.m);
    while m < end {
        // SAFETY: handed on; the warp has shared memory for a short row.
        unsafe {
            if !cfg!(level_sm_80) && pieces {
                held::row::<E, 32, SHORT, true, false>(args, m);
            } else {
                held::row::<E, 32, SHORT, false, false>(args, m);
            }
        }
        sync_warp();
        m += WARPS;
    }
}

/// Rows in registers, one after the other: the next is asked for before one is worked on.
///
/// # Safety
///
/// As for [`short`]; rows are in pieces, and `turns` those of such lanes.
#[inline(always)]
unsafe fn near_rows<E: Float, const W: u32>(args: &Args, turns: Turns) {
    // SAFETY: handed on.
    unsafe {
        if args.log == 1 {
            rows_in_turn::<E, W, true>(args, turns);
        } else {
            rows_in_turn::<E, W, false>(args, turns);
        }
    }
}

/// # Safety
///
/// As for [`near_rows`].
#[inline(always)]
unsafe fn rows_in_turn<E: Float, const W: u32, const LOG: bool>(args: &Args, turns: Turns) {
    let lanes = Lanes::<W>::new::<E>(args.k, LANE);
    let row = |turn: u32| Row::<E, true>::new(args, turns.row(turn));
    // SAFETY: handed on. The barriers of the maximum stand between one row's sum and the next one's.
    unsafe {
        let mut raw = row(0).ask(lanes);
        let mut turn = 0;
        while turns.more(turn) {
            let own = row(turn);
            turn = opaque(turn + 1);
            let here = own.rest(lanes, raw);
            raw = if W <= 1 {
                let next = row(turn).ask(lanes);
                own.held::<W, LOG>(lanes, here, || next)
            } else {
                own.held::<W, LOG>(lanes, here, || row(turn).ask(lanes))
            };
        }
    }
}

impl<E: Float> Row<E, true> {
    /// Asks for the first pieces of the scores that this lane has, as far as they are seen.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`].
    #[inline(always)]
    unsafe fn ask<const W: u32>(&self, lanes: Lanes<W>) -> Raw {
        // SAFETY: the caller's promise.
        unsafe { self.part(lanes, false, NOTHING) }
    }

    /// Those, or the others beside those in `raw`: as many ahead as there are registers for.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`].
    #[inline(always)]
    unsafe fn part<const W: u32>(&self, lanes: Lanes<W>, others: bool, raw: Raw) -> Raw {
        let (row, nothing) = ((self.row(), self.seen), E::LOWEST);
        // SAFETY: the caller's promise.
        unsafe {
            if E::PIECE == 8 && W <= 1 && !cfg!(level_sm_90) {
                // There are no registers for one more.
                lanes.load::<_, 3>(&self.line, row, nothing, others, raw)
            } else if E::PIECE == 8 {
                lanes.load::<_, 4>(&self.line, row, nothing, others, raw)
            } else {
                lanes.load::<_, 0>(&self.line, row, nothing, others, raw)
            }
        }
    }

    /// The others beside them.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`].
    #[inline(always)]
    unsafe fn rest<const W: u32>(&self, lanes: Lanes<W>, raw: Raw) -> Raw {
        // SAFETY: the caller's promise.
        unsafe { self.part(lanes, true, raw) }
    }

    /// Whether what is not seen has minus infinity for a score, as it has for an element.
    #[inline(always)]
    fn hides<const W: u32>(&self, lanes: Lanes<W>) -> bool {
        let pieces = lanes.exact() || self.seen.is_multiple_of(E::PIECE as u32);
        lanes.full(self.seen) || pieces && self.scale > 0.0
    }

    /// The scores of these lanes' pieces, minus infinity where there are none.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`].
    #[inline(always)]
    unsafe fn all_scores<const W: u32>(&self, lanes: Lanes<W>, raw: Raw) -> Pieces {
        let mut v = [[0.0; 8]; MOST];
        if self.masked {
            lanes.each::<E>(|n, at| {
                // SAFETY: a piece of a row of the mask.
                let mask = unsafe { lanes.beside(self.mask, at, self.seen) };
                let mask = E::widen(mask);
                v[n] = map::<E, true>(E::widen(raw[n]), |i, x| score(x, self.scale, mask[i]));
            });
        } else if self.scale == 1.0 {
            lanes.each::<E>(|n, _| v[n] = E::widen(raw[n]));
        } else {
            lanes.each::<E>(|n, _| {
                v[n] = map::<E, true>(E::widen(raw[n]), |_, x| score(x, self.scale, -0.0));
            });
        }
        if !self.hides(lanes) {
            lanes.each::<E>(|n, at| {
                let left = self.seen.saturating_sub(at.first());
                let seen = |i: usize| lanes.place(i) < left;
                v[n] = map::<E, true>(v[n], |i, v| if seen(i) { v } else { f32::NEG_INFINITY });
            });
        }
        v
    }

    /// The largest of these lanes' scores, given the pieces `raw` that they come from.
    #[inline(always)]
    fn top<const W: u32>(&self, lanes: Lanes<W>, raw: Raw, v: &Pieces) -> f32 {
        if E::PIECE == 8 && !self.masked && self.scale > 0.0 && self.hides(lanes) {
            // In pairs, before they are scaled: a product that is rounded keeps the order.
            let mut top = raw[0];
            lanes.each::<E>(|n, _| top = E::max_raw(top, raw[n]));
            let [a, b, c, d] = top;
            let top = E::max_raw([a, b, 0, 0], [c, d, 0, 0]);
            let top = E::widen(E::max_raw([top[0], 0, 0, 0], [top[1], 0, 0, 0]));
            return score(maximum(top[0], top[1]), self.scale, -0.0);
        }
        // Two at a time, which do not wait for each other.
        let mut tops = [f32::NEG_INFINITY; 2];
        lanes.each::<E>(|n, _| tops[n % 2] = larger::<E, true>(tops[n % 2], v[n]));
        maximum(tops[0], tops[1])
    }

    /// The output of a row that waits in the registers of these lanes, and the `next`, which they ask for once these are scores.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table; `raw` comes from it.
    #[inline(always)]
    unsafe fn held<const W: u32, const LOG: bool>(
        &self,
        lanes: Lanes<W>,
        raw: Raw,
        ask: impl FnOnce() -> Raw,
    ) -> Raw {
        // SAFETY: pieces of the row; each function of `lanes` is called once.
        unsafe {
            let mut v = self.all_scores(lanes, raw);
            let top = lanes.max(self.top(lanes, raw, &v));
            let shift = shift(top);
            let (next, sum);
            if LOG {
                // The scores stay, their terms go into the sum as they come.
                let terms = |n: usize| terms::<E, true>(v[n], shift);
                sum = lanes.sum::<E>((0, true), &self.line, terms, |acc, e| acc + e);
                next = ask();
            } else {
                next = ask();
                lanes.each::<E>(|n, _| v[n] = terms::<E, true>(v[n], shift));
                sum = lanes.sum::<E>((0, true), &self.line, |n| v[n], |acc, e| acc + e);
            }
            let closing = closing(sum, top, LOG);
            lanes.own::<E>(&self.line, |n, at| {
                lanes.write(self.to(), at, self.output(LOG, v[n], shift, closing));
            });
            next
        }
    }
}

/// # Safety
///
/// As for [`short`].
#[inline(always)]
unsafe fn long<E: Float, const T: u32, const ROOM: u32, const W: u32>(args: &Args) {
    launch_dependents();
    dependency_wait();
    #[cfg(not(level_sm_90))]
    if args.k > WHOLE {
        // SAFETY: handed on.
        return unsafe { alone::rows::<E>(args) };
    }
    let pieces = in_pieces::<E>(args.k, &[args.x, args.y, args.mask]);
    // SAFETY: handed on.
    unsafe {
        if pieces && near::<E, W>(args.k) {
            if T < LONG_THREADS && near::<E, 2>(args.k) {
                return near_rows::<E, 2>(args, Turns::of_block::<2>(args.m));
            }
            return near_rows::<E, W>(args, Turns::of_block::<W>(args.m));
        }
        let mut rows = block::Rows::<T>::new(split(args.k, 4), args.m);
        loop {
            if !pieces {
                held::row::<E, T, ROOM, false, false>(args, rows.m);
            } else if E::PIECE == 4 || !cfg!(level_sm_90) || T == LONG_THREADS {
                // Where there are long blocks, others have no longer rows.
                held::row::<E, T, ROOM, true, false>(args, rows.m);
            }
            if !rows.next() {
                return;
            }
        }
    }
}

/// Rows that start anywhere, of more than one warp.
///
/// # Safety
///
/// As for [`short`]; tensors start on boundaries of 16 bytes.
#[cfg(level_sm_90)]
#[inline(always)]
unsafe fn long_turned<E: Float, const T: u32, const ROOM: u32, const W: u32>(args: &Args) {
    launch_dependents();
    dependency_wait();
    // SAFETY: handed on.
    unsafe {
        if T < LONG_THREADS && turned::turned::<E, 2>(args) {
            return turned::long::<E, 2>(args);
        }
        if turned::turned::<E, W>(args) {
            return turned::long::<E, W>(args);
        }
        let mut rows = block::Rows::<T>::new(split(lies(args.k), 4), args.m);
        loop {
            held::row::<E, T, ROOM, true, true>(args, rows.m);
            if !rows.next() {
                return;
            }
        }
    }
}

macro_rules! entries {
    ($args:ident: $($symbol:ident $kernel:ident $body:expr;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: $args) {
            // SAFETY: the launch contract, handed on.
            unsafe { $body(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    Args:
    softmax_short_f32 ShortF32 short::<f32>;
    softmax_short_f16 ShortF16 short::<F16>;
    softmax_short_bf16 ShortBf16 short::<Bf16>;
    softmax_f32 MiddleF32 long::<f32, MIDDLE_THREADS, MIDDLE, 4>;
    softmax_f16 MiddleF16 long::<F16, MIDDLE_THREADS, MIDDLE, 4>;
    softmax_bf16 MiddleBf16 long::<Bf16, MIDDLE_THREADS, MIDDLE, 4>;
}

#[cfg(level_sm_80)]
entries! {
    Args:
    softmax_small_f32 SmallF32 small::rows::<f32>;
    softmax_small_f16 SmallF16 small::rows::<F16>;
    softmax_small_bf16 SmallBf16 small::rows::<Bf16>;
    softmax_words_f16 WordsF16 small::words::<F16>;
    softmax_words_bf16 WordsBf16 small::words::<Bf16>;
}

#[cfg(level_sm_90)]
entries! {
    Args:
    softmax_long_f32 LongF32 long::<f32, LONG_THREADS, LONG, 8>;
    softmax_long_f16 LongF16 long::<F16, LONG_THREADS, LONG, 8>;
    softmax_long_bf16 LongBf16 long::<Bf16, LONG_THREADS, LONG, 8>;
    softmax_turned_f32 TurnedF32 long_turned::<f32, MIDDLE_THREADS, MIDDLE, 4>;
    softmax_turned_f16 TurnedF16 long_turned::<F16, MIDDLE_THREADS, MIDDLE, 4>;
    softmax_turned_bf16 TurnedBf16 long_turned::<Bf16, MIDDLE_THREADS, MIDDLE, 4>;
    softmax_long_turned_f32 LongTurnedF32 long_turned::<f32, LONG_THREADS, LONG, 8>;
    softmax_long_turned_f16 LongTurnedF16 long_turned::<F16, LONG_THREADS, LONG, 8>;
    softmax_long_turned_bf16 LongTurnedBf16 long_turned::<Bf16, LONG_THREADS, LONG, 8>;
}

#[cfg(level_sm_90)]
entries! {
    PartArgs:
    softmax_parts_f32 PartsF32 parts::parts::<f32>;
    softmax_parts_f16 PartsF16 parts::parts::<F16>;
    softmax_parts_bf16 PartsBf16 parts::parts::<Bf16>;
}
