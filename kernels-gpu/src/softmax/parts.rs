//! Rows that have a sum for each segment, spread over all blocks in parts. From sm_90.
//!
//! A warp has a segment: its elements come by asynchronous copies, some parts ahead, and its terms wait in shared memory. A block goes from part
//! to part, each as far from the one before as there are blocks, and is two parts behind with what it writes: meanwhile one of its last warps tells
//! the other blocks of the row the part's maximum and sum, and one hears theirs, as [`crate::row::exchange`] has it.
//!
//! Of a row with more parts than there are blocks, nothing can wait: each block goes through its parts of the row twice.

use core::marker::PhantomData;

use contract::softmax::{
    BEHIND, PART, PART_SCRATCH_BYTES, PART_THREADS, PartArgs, SEGMENT, SETS, ahead, factor, shift,
    stage_bytes,
};

use super::Row;
use super::exchange::{listen, tell};
use super::segment::{Raw, Segment, Values, largest};
use crate::arch::async_copy::{commit_group, copy_x4, copy_x4_part, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque_here;
use crate::arch::mbarrier;
use crate::arch::mem::{X4, ld_u16, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, sync_warp, warp_id};
use crate::float::{Float, Piece};
use crate::row::exchange::Told;
use crate::row::in_pieces;
use crate::row::walk::{Turn, Walk};

const _: () = assert!(PART_THREADS == LANES * (PART + 2));

/// A block's work on rows of `E`.
struct Work<'a, E, const PIECES: bool> {
    args: &'a PartArgs,
    walk: Walk,
    told: Told<SETS>,
    /// Where the stages of this warp are.
    area: Shared<u32>,
    /// Which one of the block it is.
    warp: u32,
    element: PhantomData<E>,
}

impl<'a, E: Float, const PIECES: bool> Work<'a, E, PIECES> {
    /// Bytes of an element.
    const BYTES: u32 = 16 / E::PIECE as u32;
    /// Stages of a warp: how many parts ahead elements are asked for. Terms wait in [`BEHIND`] places behind them.
    const AHEAD: u32 = ahead(Self::BYTES);

    #[inline(always)]
    fn new(args: &'a PartArgs) -> Self {
        let bytes = Self::AHEAD * stage_bytes(Self::BYTES) + BEHIND * 4 * SEGMENT;
        let warp = shuffle_idx(warp_id(), 0);
        let area = dynamic_shared_mem::<u32>().byte_add(PART_SCRATCH_BYTES + warp * bytes).kept();
        Self {
            args,
            walk: Walk::new(args.rows.k, args.count),
            told: Told::new(),
            area,
            warp,
            element: PhantomData,
        }
    }

    /// Where stage `at` of this warp is.
    #[inline(always)]
    fn stage(&self, at: u32) -> Shared<u32> {
        self.area.byte_add(at * stage_bytes(Self::BYTES))
    }

    /// Where terms wait.
    #[inline(always)]
    fn waiting(&self, at: u32) -> Shared<f32> {
        self.stage(Self::AHEAD).byte_add(4 * SEGMENT * at).cast()
    }

    /// The row of a turn.
    #[inline(always)]
    fn row(&self, turn: Turn) -> Row<E, PIECES> {
        Row::new(&self.args.rows, self.args.first + self.walk.row(turn))
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
            let (start, to) = (segment * SEGMENT, self.stage(stage));
            let from = row.row().wrapping_add(start as usize);
            let seen = row.seen.saturating_sub(start);
            // SAFETY: the caller's promise.
            unsafe {
                if PIECES {
                    let own = Segment::<E, PIECES>::own();
                    let (to, from) =
                        (to.byte_add(own * Self::BYTES), from.wrapping_add(own as usize));
                    let left = seen.saturating_sub(own);
                    Segment::<E, PIECES>::each(|n| {
                        let on = Segment::<E, PIECES>::on(n);
                        let from = from.wrapping_add(on as usize);
                        copy_x16(to.byte_add(on * Self::BYTES), from, on < left);
                    });
                } else if Self::BYTES == 4 {
                    let (to, from) = (to.add(lane_id()), from.wrapping_add(lane_id() as usize));
                    let left = seen.saturating_sub(lane_id());
                    Self::each_single(|start, on| {
                        let from = from.wrapping_add(start as usize).wrapping_add(on as usize);
                        copy_x4(to.add(start).add(on), from, start + on < left);
                    });
                } else {
                    self.ask_words(from, if seen < SEGMENT { seen } else { SEGMENT }, to);
                }
            }
        }
        commit_group();
    }

    /// Every 32nd element of a segment, eight at a time: `body(start, on)` for that `on` elements behind the first of the eight.
    #[inline(always)]
    fn each_single(mut body: impl FnMut(u32, u32)) {
        let mut start = 0;
        while start < SEGMENT {
            let mut on = 0;
            while on < 8 * LANES {
                body(start, on);
                on += LANES;
            }
            start = opaque(start + 8 * LANES);
        }
    }

    /// Asks for the words that 16-bit elements lie in.
    ///
    /// # Safety
    ///
    /// As for [`Work::ask`], of `len` elements.
    #[inline(always)]
    unsafe fn ask_words(&self, from: *const E, len: u32, to: Shared<u32>) {
        let odd = (from as usize % 4) as u32;
        let word = from.cast::<u8>().wrapping_sub(odd as usize);
        let end = if len > 0 { odd + 2 * len } else { 0 };
        // The first word may begin in front of the tensor.
        let before = odd != 0 && word < self.args.rows.x.as_ptr();
        let own = opaque(4 * lane_id());
        let (word, to) = (word.wrapping_add(own as usize), to.byte_add(own));
        let mut n = 0;
        while n <= SEGMENT / 2 / LANES {
            let on = 4 * LANES * n;
            let at = own + on;
            let left = end.saturating_sub(at);
            // SAFETY: bytes of the row, or of its neighbour in the word in front.
            unsafe {
                if at == 0 && before {
                    if end > 0 {
                        to.byte_add(2).cast::<u16>().write_u16(ld_u16(from.cast()));
                    }
                } else if n < SEGMENT / 2 / LANES || at < end {
                    let bytes = if left < 4 { left } else { 4 };
                    copy_x4_part(to.byte_add(on), word.wrapping_add(on as usize), bytes);
                }
            }
            n += 1;
        }
    }

    /// What came of a segment.
    ///
    /// # Safety
    ///
    /// It came.
    #[inline(always)]
    unsafe fn came(&self, from: *const E, stage: u32) -> Raw {
        let mut raw = [[0; 4]; _];
        let odd = if PIECES || Self::BYTES == 4 { 0 } else { (from as usize % 4) as u32 };
        let own = self.stage(stage).byte_add(Segment::<E, PIECES>::own() * Self::BYTES + odd);
        Segment::<E, PIECES>::each(|n| {
            let at = own.byte_add(Segment::<E, PIECES>::on(n) * Self::BYTES);
            // SAFETY: the caller's promise.
            raw[n] = unsafe {
                if PIECES || Self::BYTES == 4 {
                    at.read_x4()
                } else if odd == 0 {
                    [at.read(), 0, 0, 0]
                } else {
                    let half = |i| u32::from(at.cast::<u16>().add(i).read_u16());
                    [half(0) | half(1) << 16, 0, 0, 0]
                }
            };
        });
        raw
    }

    /// This lane's place where terms wait. The halves of eight lie apart, so that lanes side by side reach all banks.
    #[inline(always)]
    fn place(&self, at: u32) -> Shared<f32> {
        let width = if Segment::<E, PIECES>::WIDTH == 8 { 4 } else { Segment::<E, PIECES>::WIDTH };
        self.waiting(at).add(opaque(width * lane_id()))
    }

    /// Puts items down where terms wait.
    ///
    /// # Safety
    ///
    /// The place is this lane's.
    #[inline(always)]
    unsafe fn put(&self, stage: u32, v: &Values) {
        let own = self.place(stage);
        Segment::<E, PIECES>::each(|n| {
            let at = own.add(Segment::<E, PIECES>::on(n));
            let [a, b, c, d, e, f, g, h] = v[n];
            // SAFETY: the caller's promise.
            unsafe {
                match Segment::<E, PIECES>::WIDTH {
                    2 => at.write_x2([a, b]),
                    4 => at.write_x4([a, b, c, d]),
                    _ => {
                        at.write_x4([a, b, c, d]);
                        at.add(4 * LANES).write_x4([e, f, g, h]);
                    }
                }
            }
        });
    }

    /// Item `n` of what waits at this lane's `own` place.
    ///
    /// # Safety
    ///
    /// After [`Work::put`] of this lane.
    #[inline(always)]
    unsafe fn get(own: Shared<f32>, n: usize) -> Piece {
        let at = own.add(Segment::<E, PIECES>::on(n));
        let mut out = [0.0; 8];
        // SAFETY: the caller's promise.
        unsafe {
            match Segment::<E, PIECES>::WIDTH {
                2 => [out[0], out[1]] = at.read_x2(),
                4 => [out[0], out[1], out[2], out[3]] = at.read_x4(),
                _ => {
                    [out[0], out[1], out[2], out[3]] = at.read_x4();
                    [out[4], out[5], out[6], out[7]] = at.add(4 * LANES).read_x4();
                }
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
            if !PIECES {
                sync_warp();
            }
            let raw = self.came(row.row().wrapping_add(start as usize), stage);
            let (v, top) = Segment::<E, PIECES>::scores(&row, start, raw);
            (v, largest(top))
        }
    }

    /// Makes terms of scores with such a maximum, unless these are to wait, for the logarithm; the terms' sum.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    fn terms(&self, v: &mut Values, top: f32) -> f32 {
        let shift = shift(top);
        let terms = |v| Segment::<E, PIECES>::terms(v, shift);
        Segment::<E, PIECES>::tree(if self.args.rows.log == 1 {
            Segment::<E, PIECES>::sum(|n| terms(v[n]))
        } else {
            Segment::<E, PIECES>::each(|n| v[n] = terms(v[n]));
            Segment::<E, PIECES>::sum(|n| v[n])
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
        let (start, own) = (segment * SEGMENT, Segment::<E, PIECES>::own());
        let left = row.line.k - start;
        let to = row.to().wrapping_add((start + own) as usize);
        let place = self.place(at);
        // SAFETY: items of the row, which wait; the last warp put both words down before it said so.
        unsafe {
            let [max, closing] = self.told.row(set).read_x2();
            let times = factor(top, max) * closing;
            let shift = shift(max);
            let out = |v: f32| if row.log { (v - shift) - closing } else { v * times };
            if !PIECES && Self::BYTES == 4 {
                let place = self.waiting(at).add(lane_id());
                let left = left.saturating_sub(lane_id());
                let to = row.to().wrapping_add((start + lane_id()) as usize);
                Self::each_single(|start, on| {
                    if start + on < left {
                        let v = out(place.add(start).add(on).read());
                        let to = to.wrapping_add(start as usize).wrapping_add(on as usize);
                        row.line.store(to, 0, [v.to_bits(), 0, 0, 0]);
                    }
                });
                return;
            }
            if left >= SEGMENT && !row.log {
                let out = |n| {
                    let v = Self::get(place, n);
                    E::narrow(Segment::<E, PIECES>::map(v, |_, v| v * times))
                };
                if !PIECES {
                    return Self::write_words(to, out);
                }
                Segment::<E, PIECES>::each(|n| {
                    row.line.store(to, Segment::<E, PIECES>::on(n), out(n));
                });
                return;
            }
            let left = left.saturating_sub(own);
            Segment::<E, PIECES>::each(|n| {
                let on = Segment::<E, PIECES>::on(n);
                if on < left {
                    let v = Segment::<E, PIECES>::map(Self::get(place, n), |_, v| out(v));
                    let to = to.wrapping_add(on as usize);
                    Segment::<E, PIECES>::store(&row.line, left - on, to, E::narrow(v));
                }
            });
        }
    }

    /// Writes the pairs `out(n)` of a whole segment, this lane's from `to` on, in words.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// They are elements of a row, and belong to this warp.
    #[inline(always)]
    unsafe fn write_words(to: *mut E, out: impl Fn(usize) -> X4<u32>) {
        let word = |to: *mut E, n: usize| {
            to.wrapping_add(Segment::<E, PIECES>::on(n) as usize).cast::<u32>()
        };
        // SAFETY: the caller's promise; words start at multiples of 4.
        unsafe {
            if (to as usize).is_multiple_of(4) {
                Segment::<E, PIECES>::each(|n| st(word(to, n), out(n)[0]));
                return;
            }
            // A word is the second of a pair and the first of the next one, which the next lane has.
            let next_lane = (lane_id() + 1) % LANES;
            let mut own = out(0)[0];
            if lane_id() == 0 {
                E::store_bits(to, own);
            }
            let to = to.wrapping_add(1);
            let last = Segment::<E, PIECES>::ITEMS - 1;
            let mut n = 0;
            while n < last {
                let next = out(n + 1)[0];
                let first = shuffle_idx(if lane_id() == 0 { next } else { own }, next_lane);
                st(word(to, n), opaque(own >> 16) | first << 16);
                own = next;
                n += 1;
            }
            let first = shuffle_idx(own, next_lane);
            if lane_id() < LANES - 1 {
                st(word(to, last), opaque(own >> 16) | first << 16);
            } else {
                let to = to.wrapping_add(Segment::<E, PIECES>::on(last) as usize);
                E::store_bits(to, own >> 16);
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
            let mut before = [none; BEHIND as usize];
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
                if !PIECES {
                    sync_warp();
                }
                self.ask(asked, at);
                asked = walk.next(asked);
                if opaque_here(segment) != u32::MAX {
                    tops[1] = self.terms(&mut v, tops[0]);
                }
                if walk.there(turn) && lane_id() == 0 {
                    told.segment(n % SETS, self.warp).write_x2(tops);
                    mbarrier::arrive(told.segments_there(n % SETS));
                }
                let first = before[BEHIND as usize - 1];
                if opaque_here(n) >= BEHIND {
                    if !walk.there(first.turn) {
                        return;
                    }
                    let n = n - BEHIND;
                    mbarrier::wait(told.row_there(n % SETS), n / SETS % 2);
                    self.write(first, place, n % SETS);
                }
                if !PIECES {
                    sync_warp();
                }
                if segment != u32::MAX {
                    self.put(place, &v);
                }
                if !PIECES {
                    sync_warp();
                }
                before = [Waiting { turn, top: tops[0] }, before[0]];
                at = if at + 1 < Self::AHEAD { at + 1 } else { 0 };
                place = if place + 1 < BEHIND { place + 1 } else { 0 };
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
            work::<E, true>(args);
        } else {
            work::<E, false>(args);
        }
    }
}

/// # Safety
///
/// As for [`parts`]; `PIECES` is as rows are.
#[inline(always)]
unsafe fn work<E: Float, const PIECES: bool>(args: &PartArgs) {
    // SAFETY: handed on.
    unsafe {
        Told::<SETS>::new().start();
        if warp_id() < PART {
            Work::<E, PIECES>::new(args).segments();
        } else if warp_id() == PART {
            tell(args);
        } else {
            listen(args);
        }
    }
}
