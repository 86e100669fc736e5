//! Rows that have a sum for each segment, spread over all blocks in parts. From sm_90.
//!
//! A warp has a segment: its elements come by asynchronous copies, some parts ahead, and its terms wait in shared memory. A block goes from part
//! to part, each as far from the one before as there are blocks, and is some parts behind with what it writes: meanwhile one of its last warps tells
//! the other blocks of the row the part's maximum and sum, and one hears theirs, as [`crate::row::exchange`] has it.
//!
//! Of a row with more parts than there are blocks, nothing can wait: each block goes through its parts of the row twice.

use core::marker::PhantomData;

use contract::softmax::{
    PART, PART_SCRATCH_BYTES, PART_THREADS, PartArgs, SEGMENT, SETS, factor, on_way, shift,
    stage_bytes, warp_bytes,
};

use super::Row;
use super::exchange::{listen, tell};
use super::segment::{Raw, Segment, Values, largest};
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_part, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier;
use crate::arch::mem::st_x4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, sync_warp, warp_id};
use crate::float::{Float, Piece};
use crate::row::exchange::Told;
use crate::row::in_pieces;
use crate::row::walk::{Turn, Walk};

const _: () = assert!(PART_THREADS == LANES * (PART + 2));

/// A block's work on rows of `E`.
struct Work<'a, E, const ODD: bool> {
    args: &'a PartArgs,
    walk: Walk,
    told: Told<SETS>,
    /// Where the stages of this warp are.
    area: Shared<u32>,
    /// Which one of the block it is.
    warp: u32,
    element: PhantomData<E>,
}

impl<'a, E: Float, const ODD: bool> Work<'a, E, ODD> {
    /// Bytes of an element.
    const BYTES: u32 = 16 / E::PIECE as u32;
    /// Stages of a warp: how many parts ahead elements are asked for. Terms wait in so many places behind them.
    const AHEAD: u32 = on_way(Self::BYTES, ODD)[0];
    const BEHIND: u32 = on_way(Self::BYTES, ODD)[1];

    #[inline(always)]
    fn new(args: &'a PartArgs) -> Self {
        let warp = shuffle_idx(warp_id(), 0);
        let bytes = PART_SCRATCH_BYTES + warp * warp_bytes(Self::BYTES);
        let area = dynamic_shared_mem::<u32>().byte_add(bytes).kept();
        Self {
            args,
            walk: Walk::new(args.rows.k, args.count, 1),
            told: Told::new(),
            area,
            warp,
            element: PhantomData,
        }
    }

    /// Where stage `at` of this warp is.
    #[inline(always)]
    fn stage(&self, at: u32) -> Shared<u32> {
        self.area.byte_add(at * stage_bytes(Self::BYTES, ODD))
    }

    /// Where terms wait.
    #[inline(always)]
    fn waiting(&self, at: u32) -> Shared<f32> {
        self.stage(Self::AHEAD).byte_add(4 * SEGMENT * at).cast()
    }

    /// The row of a turn, from the piece on that it begins in.
    #[inline(always)]
    fn row(&self, turn: Turn) -> Row<E, true> {
        let row = Row::new(&self.args.rows, self.args.first + self.walk.row(turn));
        if ODD { row.turned(E::PIECE as u32, self.args.rows.m) } else { row }
    }

    /// Asks for a segment, as far as it is seen.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table. Nobody uses the stage until [`wait_group`], and a barrier of the warp.
    #[inline(always)]
    unsafe fn ask(&self, turn: Turn, stage: u32) {
        let segment = self.walk.segment(turn, self.warp);
        if segment != u32::MAX {
            let row = self.row(turn);
            let start = segment * SEGMENT;
            let own = Segment::<E, true>::own();
            let from = row.row().wrapping_add((start + own) as usize);
            let to = self.stage(stage).byte_add(own * Self::BYTES);
            let left = row.seen.saturating_sub(start + own);
            // The last piece of the last row does not end in the tensor.
            let there = row.line.k.saturating_sub(start + own);
            let there = if row.line.whole { u32::MAX } else { there };
            if ODD && start + SEGMENT + E::PIECE as u32 <= row.seen {
                // All of it is seen.
                let copy = |on: u32| {
                    let to = to.byte_add(on * Self::BYTES);
                    // SAFETY: the caller's promise; a piece of the row.
                    unsafe { copy_x16(to, from.wrapping_add(on as usize), true) };
                };
                Segment::<E, true>::each(|n| copy(Segment::<E, true>::on(n)));
                if lane_id() == 0 {
                    copy(SEGMENT);
                }
                commit_group();
                return;
            }
            // SAFETY: the caller's promise.
            let copy = |on: u32, enabled: bool| unsafe {
                let (to, from) = (to.byte_add(on * Self::BYTES), from.wrapping_add(on as usize));
                if ODD && enabled {
                    let there = there - on;
                    let piece = E::PIECE as u32;
                    copy_x16_part(
                        to,
                        from,
                        Self::BYTES * if there < piece { there } else { piece },
                    );
                } else if !ODD {
                    copy_x16(to, from, enabled);
                }
            };
            Segment::<E, true>::each(|n| {
                let on = Segment::<E, true>::on(n);
                copy(on, on < left);
            });
            if ODD && lane_id() == 0 {
                copy(SEGMENT, SEGMENT < left && row.line.odd != Some(0));
            }
        }
        commit_group();
    }

    /// What came of a segment. Its last elements, where it ends in a piece that others begin in, stand for those in front of it.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// It came.
    #[inline(always)]
    unsafe fn came(&self, odd: u32, stage: u32) -> Raw {
        let mut raw = [[0; 4]; _];
        let stage = self.stage(stage);
        if ODD {
            // Other lanes' copies came too.
            sync_warp();
            // SAFETY: the caller's promise.
            unsafe { Segment::<E, true>::wrap(stage, odd) };
            sync_warp();
        }
        let own = stage.byte_add(Segment::<E, true>::own() * Self::BYTES);
        Segment::<E, true>::each(|n| {
            let at = own.byte_add(Segment::<E, true>::on(n) * Self::BYTES);
            // SAFETY: the caller's promise.
            raw[n] = unsafe { at.read_x4() };
        });
        raw
    }

    /// This lane's place where terms wait. The halves of eight lie apart, so that lanes side by side reach all banks.
    #[inline(always)]
    fn place(&self, at: u32) -> Shared<f32> {
        self.waiting(at).add(opaque(4 * lane_id()))
    }

    /// Puts items down where terms wait.
    ///
    /// # Safety
    ///
    /// The place is this lane's.
    #[inline(always)]
    unsafe fn put(&self, at: u32, v: &Values) {
        let own = self.place(at);
        Segment::<E, true>::each(|n| {
            let at = own.add(Segment::<E, true>::on(n));
            let [a, b, c, d, e, f, g, h] = v[n];
            // SAFETY: the caller's promise.
            unsafe {
                at.write_x4([a, b, c, d]);
                if E::PIECE == 8 {
                    at.add(4 * LANES).write_x4([e, f, g, h]);
                }
            }
        });
    }

    /// Where the term of an element is among those that wait, of which a lane's items have their halves apart.
    #[inline(always)]
    fn term(element: u32) -> u32 {
        if E::PIECE == 4 {
            return element;
        }
        let (item, lane, i) = (element / (8 * LANES), element / 8 % LANES, element % 8);
        8 * LANES * item + 4 * LANES * (i / 4) + 4 * lane + i % 4
    }

    /// Item `n` of what waits at this lane's `own` place.
    ///
    /// # Safety
    ///
    /// After [`Work::put`] of this lane.
    #[inline(always)]
    unsafe fn get(own: Shared<f32>, n: usize) -> Piece {
        let at = own.add(Segment::<E, true>::on(n));
        let mut out = [0.0; 8];
        // SAFETY: the caller's promise.
        unsafe {
            [out[0], out[1], out[2], out[3]] = at.read_x4();
            if E::PIECE == 8 {
                [out[4], out[5], out[6], out[7]] = at.add(4 * LANES).read_x4();
            }
        }
        out
    }

    /// The scores of a segment, and their maximum, in every lane. Nobody needs the stage any more.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The segment came to the stage.
    #[inline(always)]
    unsafe fn scores(&self, turn: Turn, segment: u32, stage: u32) -> (Values, f32) {
        let row = self.row(turn);
        let start = segment * SEGMENT;
        // SAFETY: the caller's promise.
        unsafe {
            let raw = self.came(row.line.odd.unwrap_or(0), stage);
            let (v, top) = Segment::<E, true>::scores::<ODD>(&row, start, raw);
            (v, largest(top))
        }
    }

    /// Makes terms of scores with such a maximum, unless these are to wait, for the logarithm; the terms' sum.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    fn terms(&self, turn: Turn, v: &mut Values, top: f32) -> f32 {
        let shift = shift(top);
        let terms = |v| Segment::<E, true>::terms(v, shift);
        let m = self.args.first + self.walk.row(turn);
        let odd = m.wrapping_mul(self.args.rows.k) % E::PIECE as u32;
        let odd = if lane_id() == 0 { odd } else { 0 };
        let log = self.args.rows.log == 1;
        if !log {
            Segment::<E, true>::each(|n| v[n] = terms(v[n]));
        }
        let term = |n: usize| if log { terms(v[n]) } else { v[n] };
        Segment::<E, true>::tree(if ODD {
            Segment::<E, true>::sum_turned(odd, term)
        } else {
            Segment::<E, true>::sum(term)
        })
    }

    /// Writes this warp's segment, if it has one and this is the time, once its row is told.
    ///
    /// # Safety
    ///
    /// What waits is the segment's.
    #[inline(always)]
    unsafe fn write(&self, segment: Waiting, at: u32, set: u32) {
        let Waiting { turn, top } = segment;
        let turn = Turn { pass: opaque(turn.pass), part: opaque(turn.part) };
        let segment = self.walk.segment(turn, self.warp);
        if segment == u32::MAX || !self.walk.last(turn) {
            return;
        }
        let row = self.row(turn);
        let (start, own) = (segment * SEGMENT, Segment::<E, true>::own());
        let left = row.line.k - start;
        let to = row.to().wrapping_add((start + own) as usize);
        let place = self.place(at);
        let odd = row.line.odd.unwrap_or(0);
        // SAFETY: items of the row, which wait; the last warp put both words down before it said so.
        unsafe {
            let [max, closing] = self.told.row(set).read_x2();
            let times = factor(top, max) * closing;
            let shift = shift(max);
            let out = |v: f32| {
                if row.log { (v - shift) - closing } else { v * times }
            };
            if left >= SEGMENT + odd && !row.log {
                Segment::<E, true>::each(|n| {
                    let v = Self::get(place, n);
                    let y = E::narrow(Segment::<E, true>::map(v, |_, v| v * times));
                    if !(ODD && n == 0 && lane_id() == 0 && odd > 0) {
                        st_x4(to.wrapping_add(Segment::<E, true>::on(n) as usize).cast(), y);
                    }
                });
            } else {
                let left = left.saturating_sub(own);
                Segment::<E, true>::each(|n| {
                    let on = Segment::<E, true>::on(n);
                    let whole = if ODD { left >= on + E::PIECE as u32 } else { on < left };
                    if whole && !(ODD && n == 0 && lane_id() == 0 && odd > 0) {
                        let v = Segment::<E, true>::map(Self::get(place, n), |_, v| out(v));
                        st_x4(to.wrapping_add(on as usize).cast(), E::narrow(v));
                    }
                });
            }
            if ODD {
                let (there, from, on) = Segment::<E, true>::edge(row.line.k - start, odd);
                if there {
                    let v = out(self.waiting(at).add(Self::term(from)).read());
                    let y = E::narrow([v, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
                    E::store_bits(row.to().wrapping_add((start + on) as usize), y[0]);
                }
            }
        }
    }

    /// The warps that have segments.
    ///
    /// # Safety
    ///
    /// As for the entry.
    #[inline(always)]
    unsafe fn segments(&self) {
        let (walk, told) = (&self.walk, self.told);
        let mut asked = walk.first();
        // SAFETY: stages are used in turn, and asked for again when they were read. A barrier has a phase in every turn of its set.
        unsafe {
            let mut at = 0;
            while at < Self::AHEAD {
                self.ask(asked, at);
                asked = walk.next(asked);
                at = opaque(at + 1);
            }
            let mut turn = walk.first();
            let (mut at, mut n, mut place) = (0, 0, 0);
            let none = Waiting { turn, top: 0.0 };
            let mut before = [none; 3];
            loop {
                let segment = walk.segment(turn, self.warp);
                let (mut v, mut tops) = ([[0.0; 8]; _], [f32::NEG_INFINITY, 0.0]);
                if Self::AHEAD == 1 {
                    wait_group::<0>()
                } else {
                    wait_group::<1>()
                }
                if segment != u32::MAX {
                    (v, tops[0]) = self.scores(turn, segment, at);
                }
                if ODD {
                    sync_warp();
                }
                self.ask(asked, at);
                asked = walk.next(asked);
                if opaque_here(segment) != u32::MAX {
                    tops[1] = self.terms(turn, &mut v, tops[0]);
                }
                if walk.there(turn) && lane_id() == 0 {
                    told.segment(n % SETS, self.warp).write_x2(tops);
                    mbarrier::arrive(told.segments_there(n % SETS));
                }
                let first = before[Self::BEHIND as usize - 1];
                if opaque_here(n) >= Self::BEHIND {
                    if !walk.there(first.turn) {
                        return;
                    }
                    let n = n - Self::BEHIND;
                    mbarrier::wait(told.row_there(n % SETS), n / SETS % 2);
                    self.write(first, place, n % SETS);
                }
                if ODD {
                    sync_warp();
                }
                if segment != u32::MAX {
                    self.put(place, &v);
                }
                if ODD {
                    sync_warp();
                }
                before = [Waiting { turn, top: tops[0] }, before[0], before[1]];
                at = if at + 1 < Self::AHEAD { at + 1 } else { 0 };
                place = if place + 1 < Self::BEHIND { place + 1 } else { 0 };
                turn = walk.next(turn);
                n = opaque(n + 1);
            }
        }
    }
}

/// A segment whose terms wait.
#[derive(Clone, Copy)]
struct Waiting {
    turn: Turn,
    /// Its maximum.
    top: f32,
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for elements `E`; block, grid and exchange are the contract's, and all blocks run at once.
#[inline(always)]
pub unsafe fn parts<E: Float>(args: &PartArgs) {
    launch_dependents();
    dependency_wait();
    let rows = &args.rows;
    // SAFETY: handed on.
    unsafe {
        if in_pieces::<E>(rows.k, &[rows.x, rows.y, rows.mask]) {
            work::<E, false>(args);
        } else {
            work::<E, true>(args);
        }
    }
}

/// # Safety
///
/// As for [`parts`]; `ODD` unless rows are in pieces.
#[inline(always)]
unsafe fn work<E: Float, const ODD: bool>(args: &PartArgs) {
    // SAFETY: handed on.
    unsafe {
        Told::<SETS>::new().start();
        if warp_id() < PART {
            Work::<E, ODD>::new(args).segments();
        } else if warp_id() == PART {
            tell(args);
        } else {
            listen(args);
        }
    }
}
