//! Rows of norms that have sums for each segment, spread over all blocks in parts. From sm_90.
//!
//! A warp has a segment, which comes to shared memory by asynchronous copies, some parts ahead. It stays there as it is stored until the block is
//! some parts on: meanwhile one of its last warps tells the other blocks of the row the part's sums, and one hears theirs, as
//! [`crate::row::exchange`] has it.
//!
//! Segments of rows that start anywhere lie there in the pieces that they lie in, their last elements in front of the first ones. A block has rows one
//! after the other that begin in the same place of a piece, so that what it keeps of the gain and the offset lies as they do.
//!
//! Of a row with more parts than there are blocks, nothing can wait: each block goes through its parts of the row twice.

mod told;

use contract::launch::DevPtr;
use contract::norm::{SETS, behind, stage_bytes, stages};
use contract::parts::{PART, SEGMENT, scratch_bytes};
use contract::ring::places;

use super::sums::{Sums, sums};
use super::{Norm, Shape, Tensors};
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_part, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier;
use crate::arch::mem::{X4, ld_or_zero_x4, st_x4};
use crate::arch::mem_or::ld_or_x4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, warp_id};
use crate::float::{Float, window};
use crate::row::exchange::Told;
use crate::row::segment::{Raw, Segment};
use crate::row::walk::{Turn, Walk};
use crate::row::{in_pieces, map};

/// What a launch has beside the tensors.
#[derive(Clone, Copy)]
pub struct Launch {
    /// The slots.
    pub exchange: DevPtr<u32>,
    /// Its first row, and how many there are.
    pub rows: [u32; 2],
}

/// A block's work on rows of `E`, which may start anywhere where that is `ODD`, centred or not.
struct Work<E, const ODD: bool, const CENTRED: bool> {
    tensors: Tensors,
    shape: Shape,
    /// The first row.
    first: u32,
    walk: Walk,
    told: Told<SETS>,
    /// Where the stages of this warp are.
    area: Shared<u32>,
    /// Which one of the block it is.
    warp: u32,
    element: core::marker::PhantomData<E>,
}

/// Items of a lane: pieces, whatever rows are in.
type Own<E> = Segment<E, true>;

/// Items of the gain and the offset that are kept.
type Beside = [[X4<u32>; 2]; 8];

impl<E: Float, const ODD: bool, const CENTRED: bool> Work<E, ODD, CENTRED> {
    /// Bytes of an element.
    const BYTES: u32 = 16 / E::PIECE as u32;
    /// Items that are written together.
    const SOME: usize = if CENTRED { 4 } else { Own::<E>::ITEMS };
    /// Whether gain and offset of a segment are kept: there are registers for those of 16 bits.
    const KEPT: bool = Self::BYTES == 2;
    /// Those of a stage.
    const STAGE: u32 = stage_bytes(Self::BYTES);
    /// Stages of a warp.
    const STAGES: u32 = stages(Self::BYTES);
    /// Words of a gain of 1 and of an offset of -0.0.
    const NOTHING: [u32; 2] = if Self::BYTES == 4 {
        [0x3f80_0000, 0x8000_0000]
    } else {
        [E::LOWEST ^ 0xc000_c000, 0x8000_8000]
    };

    #[inline(always)]
    fn new(tensors: Tensors, shape: Shape, launch: Launch) -> Self {
        let warp = shuffle_idx(warp_id(), 0);
        let bytes = Self::STAGES * Self::STAGE;
        let area = dynamic_shared_mem::<u32>().byte_add(scratch_bytes(SETS) + warp * bytes).kept();
        let [first, rows] = launch.rows;
        let walk =
            Walk::new(shape[1], rows, if Self::KEPT { places(shape[1], Self::BYTES) } else { 1 });
        let told = Told::new();
        Self { tensors, shape, first, walk, told, area, warp, element: core::marker::PhantomData }
    }

    /// Where stage `at` of this warp is.
    #[inline(always)]
    fn stage(&self, at: u32) -> Shared<u32> {
        self.area.byte_add(at * Self::STAGE)
    }

    /// This lane's first item there.
    #[inline(always)]
    fn own_stage(&self, at: u32) -> Shared<u32> {
        self.stage(at).byte_add(Own::<E>::own() * Self::BYTES)
    }

    /// The row of a turn, from the piece on that it begins in.
    #[inline(always)]
    fn norm(&self, turn: Turn) -> Norm<E, true> {
        let norm = Norm::new(self.tensors, self.shape, self.first + self.walk.row(turn));
        if ODD { norm.turned(E::PIECE as u32, self.shape[0]) } else { norm }
    }

    /// Elements in front of the row of a turn in its first piece.
    #[inline(always)]
    fn place(&self, turn: Turn) -> u32 {
        let row = self.first + self.walk.row(turn);
        if ODD { row.wrapping_mul(self.shape[1]) % E::PIECE as u32 } else { 0 }
    }

    /// Those of a row.
    #[inline(always)]
    fn odd(norm: &Norm<E, true>) -> u32 {
        if ODD { norm.line.odd.unwrap_or(0) } else { 0 }
    }

    /// Whether a segment of a turn comes by itself: not where it was changed a moment ago.
    #[inline(always)]
    fn comes(&self, turn: Turn) -> bool {
        self.tensors[1].is_null() || self.walk.begins(turn)
    }

    /// Asks for the segment of a turn.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table. Nobody else uses this lane's items of the stage until the wait for the group.
    #[inline(always)]
    unsafe fn ask(&self, turn: Turn, at: u32) {
        let segment = self.walk.segment(turn, self.warp);
        if segment != u32::MAX && self.comes(turn) {
            let norm = self.norm(turn);
            let first = segment * SEGMENT + Own::<E>::own();
            let left = norm.line.k.saturating_sub(first);
            let to = self.own_stage(at);
            let from = norm.x.wrapping_add(first as usize).cast_const();
            let copy = |on: u32| {
                let (to, from) = (to.byte_add(on * Self::BYTES), from.wrapping_add(on as usize));
                let (left, piece) = (left.saturating_sub(on), E::PIECE as u32);
                // SAFETY: the caller's promise; the last piece of the last row does not end in the tensor.
                unsafe {
                    if ODD && !norm.line.whole {
                        let left = if left < piece { left } else { piece };
                        copy_x16_part(to, from, left * Self::BYTES);
                    } else {
                        copy_x16(to, from, left > 0);
                    }
                }
            };
            Own::<E>::each(|n| copy(Own::<E>::on(n)));
            if ODD && lane_id() == 0 && Self::odd(&norm) > 0 {
                copy(SEGMENT);
            }
        }
        commit_group();
    }

    /// Has a segment that came, or does now, in its stage, with the residual added; its sums, in every lane.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table, the stage this warp's.
    #[inline(always)]
    unsafe fn make(&self, turn: Turn, segment: u32, at: u32) -> Sums {
        let norm = self.norm(turn);
        let (start, odd) = (segment * SEGMENT, Self::odd(&norm));
        let stage = self.own_stage(at);
        let on_stage = |n: usize| stage.byte_add(Own::<E>::on(n) * Self::BYTES);
        let left = norm.line.k - start;
        let turned = odd > 0 && lane_id() == 0;
        // SAFETY: items of this lane.
        unsafe {
            let (comes, first) = (self.comes(turn), start + Own::<E>::own());
            let add = norm.adds() && self.walk.begins(turn);
            if ODD && comes && turned {
                let last = stage.byte_add(SEGMENT * Self::BYTES).read_x4();
                stage.write_x4(Own::<E>::wrapped(stage.read_x4(), last, odd));
            }
            if ODD && (!comes || add) {
                self.add_turned(&norm, (start, at), (comes, add));
            } else if !comes || add {
                let load = |p: *const E, n: usize| {
                    let first = first + Own::<E>::on(n);
                    norm.line.load(first < norm.line.k, p, first)
                };
                let mut raw: Raw = [[0; 4]; _];
                if add {
                    Own::<E>::each(|n| raw[n] = load(norm.delta, n));
                }
                Own::<E>::each(|n| {
                    let own =
                        if comes { on_stage(n).read_x4() } else { load(norm.x.cast_const(), n) };
                    raw[n] = if add { Norm::<E, true>::sum(own, raw[n]) } else { own };
                    on_stage(n).write_x4(raw[n]);
                });
                if add {
                    let (to, left) =
                        (norm.x.wrapping_add(first as usize), left.saturating_sub(Own::<E>::own()));
                    Own::<E>::each(|n| Self::put_item((to, left, odd), n, raw[n]));
                }
            }
            if ODD && left < SEGMENT + odd {
                // Zeros behind the row.
                let left = left.saturating_sub(Own::<E>::own());
                Own::<E>::each(|n| {
                    let raw = on_stage(n).read_x4();
                    on_stage(n).write_x4(Self::cut(raw, n, left, if turned { odd } else { 0 }));
                });
            }
            // Read anew in each pass: that leaves registers for what is beside the row.
            let x = |n: usize| E::widen(on_stage(n).read_x4());
            sums::<E, CENTRED, ODD>(x, left - odd, odd)
        }
    }

    /// Has a segment of a row that may start anywhere in its stage, unless it `comes` there, with the residual if that is to `add`: element by element
    /// in the last row, whose last piece does not end in the tensor.
    ///
    /// # Safety
    ///
    /// As for [`Work::make`].
    #[inline(always)]
    unsafe fn add_turned(
        &self,
        norm: &Norm<E, true>,
        (start, at): (u32, u32),
        (comes, add): (bool, bool),
    ) {
        let (odd, own, width) = (Self::odd(norm), Own::<E>::own(), E::PIECE as u32);
        let stage = self.own_stage(at);
        let (x, delta) =
            (norm.x.wrapping_add(start as usize), norm.delta.wrapping_add(start as usize));
        let left = norm.line.k - start;
        let step = if norm.line.whole { width } else { 1 };
        let mut i = 0;
        while i < LANES {
            let on = i / width * width * LANES + i % width;
            let (turned, to) = (own + on < odd, stage.byte_add(on * Self::BYTES));
            let place = own + on + if turned { SEGMENT } else { 0 };
            // SAFETY: elements of the segment; a piece of the first lane is in two places.
            unsafe {
                if norm.line.whole {
                    let load = |p: *const E| {
                        let at = |place: u32| p.wrapping_add(place as usize).cast();
                        let first = ld_or_zero_x4(own + on < left, at(own + on));
                        let last = ld_or_zero_x4(turned && place < left, at(place));
                        Own::<E>::wrapped(first, last, if turned { odd } else { 0 })
                    };
                    let mut raw = if comes { to.read_x4() } else { load(x) };
                    if add {
                        raw = Norm::<E, true>::sum(raw, load(delta));
                        let to = x.wrapping_add((own + on) as usize);
                        if turned {
                            Own::<E>::store_wrapped(to, odd, left - own, raw);
                        } else if own + on + width <= left {
                            st_x4(to.cast(), raw);
                        } else if own + on < left {
                            E::scatter(to, left - own - on, raw);
                        }
                    }
                    to.write_x4(raw);
                } else if place < left {
                    let load = |p: *const E| E::load_bits_if(true, p.wrapping_add(place as usize));
                    let mut raw = load(x);
                    if add {
                        raw = Norm::<E, true>::sum([raw, 0, 0, 0], [load(delta), 0, 0, 0])[0];
                        E::store_bits(x.wrapping_add(place as usize), raw);
                    }
                    if E::PIECE == 4 {
                        to.write(raw);
                    } else {
                        to.cast::<u16>().write_u16(raw as u16);
                    }
                }
            }
            i = opaque(i + step);
        }
    }

    /// What there is of this lane's item `n` of a segment, of which the lane has elements `left`, the `odd` first ones behind all others.
    #[inline(always)]
    fn cut(raw: X4<u32>, n: usize, left: u32, odd: u32) -> X4<u32> {
        core::array::from_fn(|word| {
            let (mut own, mut i) = (0, 0);
            while i < E::PIECE / 4 {
                let place = (E::PIECE / 4 * word + i) as u32;
                let behind = if n == 0 && place < odd { SEGMENT } else { 0 };
                if Own::<E>::on(n) + place + behind < left {
                    own |= E::ONE << (16 * i);
                }
                i += 1;
            }
            raw[word] & own
        })
    }

    /// Writes item `n` of this lane: its first one begins at `to`, from where there are elements `left`, `odd` of a segment behind its others.
    ///
    /// # Safety
    ///
    /// They are elements of a row, and belong to this lane.
    #[inline(always)]
    unsafe fn put_item((to, left, odd): (*mut E, u32, u32), n: usize, raw: X4<u32>) {
        let on = Own::<E>::on(n);
        let (to_item, left_item) = (to.wrapping_add(on as usize), left.saturating_sub(on));
        // SAFETY: the caller's promise.
        unsafe {
            if ODD && n == 0 && odd > 0 && lane_id() == 0 {
                Own::<E>::store_wrapped(to, odd, left, raw);
            } else if left_item >= E::PIECE as u32 || !ODD && left_item > 0 {
                st_x4(to_item.cast(), raw);
            } else if ODD && left_item > 0 {
                E::scatter(to_item, left_item, raw);
            }
        }
    }

    /// What of a gain or an offset is beside this lane's item `n` of a segment whose row begins in such a place; words of `nothing` where there is none.
    ///
    /// # Safety
    ///
    /// It is one of the contract's table.
    #[inline(always)]
    unsafe fn beside(
        &self,
        (p, nothing): (DevPtr<u8>, u32),
        (segment, odd): (u32, u32),
        n: usize,
    ) -> X4<u32> {
        let (p, k) = (p.cast::<E>().as_ptr().cast_const(), self.shape[1]);
        let (start, own) = (segment * SEGMENT, Own::<E>::own() + Own::<E>::on(n));
        let there = if p.is_null() { 0 } else { k };
        let at = |element: u32| p.wrapping_add(element as usize);
        // SAFETY: elements of it.
        unsafe {
            if !ODD {
                return ld_or_x4(start + own < there, at(start + own).cast(), opaque(nothing));
            }
            let one = |i: usize| {
                let place = own + i as u32;
                let element = start + if place < odd { place + SEGMENT } else { place } - odd;
                E::load_bits_if(element < there, at(element))
            };
            let absent = if there == 0 { opaque(nothing) } else { 0 };
            core::array::from_fn(|i| match E::PIECE {
                4 => one(i) | absent,
                _ => one(2 * i) | one(2 * i + 1) << 16 | absent,
            })
        }
    }

    /// Those of gain and offset beside `COUNT` items, from one on: no offset where squares are around zero.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// As for [`Work::beside`].
    #[inline(always)]
    unsafe fn both<const COUNT: usize>(
        &self,
        segment: (u32, u32),
        from: usize,
    ) -> [[X4<u32>; 2]; COUNT] {
        let offset = if CENTRED { self.tensors[3] } else { DevPtr::NULL };
        let tensors = [self.tensors[2], offset];
        let start = segment.0 * SEGMENT + Own::<E>::own();
        let mut out = [[[0; 4]; 2]; COUNT];
        let whole = (segment.0 + 1) * SEGMENT <= self.shape[1];
        let pieces = ((tensors[0].addr() | tensors[1].addr()) as u32).is_multiple_of(16);
        // SAFETY: pieces of the tensors.
        unsafe {
            if !ODD || !whole || !pieces {
                let mut i = 0;
                while i < COUNT {
                    out[i] = [0, 1]
                        .map(|t| self.beside((tensors[t], Self::NOTHING[t]), segment, from + i));
                    i += 1;
                }
                return out;
            }
            let load = |t: usize, n: usize| {
                let p = tensors[t];
                let at = p.cast::<E>().as_ptr().wrapping_add((start + Own::<E>::on(n)) as usize);
                ld_or_x4(!p.is_null(), at.cast_const().cast(), opaque(Self::NOTHING[t]))
            };
            // The piece in front of one is another lane's; in front of the first one is the segment's last.
            let mut before =
                [0, 1].map(|t| load(t, if from > 0 { from - 1 } else { Own::<E>::ITEMS - 1 }));
            let mut i = 0;
            while i < COUNT {
                out[i] = [0, 1].map(|t| load(t, from + i));
                i += 1;
            }
            let (last, lane) = (lane_id() == LANES - 1, lane_id().wrapping_sub(1) % LANES);
            let mut i = 0;
            while i < COUNT && segment.1 > 0 {
                let here = out[i];
                let mut t = 0;
                while t < if CENTRED { 2 } else { 1 } {
                    let front = core::array::from_fn(|word| {
                        shuffle_idx(if last { before[t][word] } else { here[t][word] }, lane)
                    });
                    out[i][t] = window(front, here[t], 16 - segment.1 * Self::BYTES);
                    t += 1;
                }
                before = here;
                i += 1;
            }
            out
        }
    }

    /// Writes this warp's segment of a turn, once its row is told: `wait` comes back then.
    ///
    /// # Safety
    ///
    /// What waits in the stage is the segment.
    #[inline(always)]
    unsafe fn write(
        &self,
        (turn, segment): (Turn, u32),
        (at, set): (u32, u32),
        near: &Beside,
        wait: impl Fn(),
        value: impl Fn([f32; 3], [f32; 2]) -> f32,
    ) {
        let turn = Turn { pass: opaque(turn.pass), part: turn.part };
        let norm = self.norm(turn);
        let (start, own, odd) = (segment * SEGMENT, Own::<E>::own(), Self::odd(&norm));
        let stage = self.own_stage(at);
        // SAFETY: items of the row, which wait; the last warp put both words down before it arrived.
        unsafe {
            let to = norm.to().wrapping_add((start + own) as usize);
            let left = (norm.line.k - start).saturating_sub(own);
            // What is not kept comes some at a time, the first while the row is waited for.
            let mut some = 0;
            while some < Own::<E>::ITEMS {
                let mut beside = [[[0; 4]; 2]; 8];
                if Self::KEPT {
                    let mut i = 0;
                    while i < Self::SOME {
                        beside[i] = near[some + i];
                        i += 1;
                    }
                } else if CENTRED {
                    let [a, b, c, d] = self.both::<4>((segment, odd), some);
                    beside = [a, b, c, d, a, b, c, d];
                } else {
                    beside = self.both::<8>((segment, odd), some);
                }
                if some == 0 {
                    wait();
                }
                let row = self.told.row(set).read_x2();
                let mut i = 0;
                while i < Self::SOME {
                    let on = Own::<E>::on(some + i);
                    let x = E::widen(stage.byte_add(on * Self::BYTES).read_x4());
                    let [w, b] = beside[i].map(E::widen);
                    let y = E::narrow(map::<E, true>(x, |i, x| value([x, w[i], b[i]], row)));
                    Self::put_item((to, left, odd), some + i, y);
                    i += 1;
                }
                some += Self::SOME;
            }
        }
    }

    /// The warps that have segments.
    ///
    /// # Safety
    ///
    /// As for the entry.
    #[inline(always)]
    unsafe fn segments(&self, value: impl Fn([f32; 3], [f32; 2]) -> f32 + Copy) {
        let (walk, told) = (&self.walk, self.told);
        // Parts that the block is behind with what it writes, and those ahead that are asked for.
        let behind = behind(Self::BYTES, walk.parts.count);
        let ahead = Self::STAGES - behind;
        let mut asked = walk.first();
        // SAFETY: stages are used in turn, and asked for again when they were written. A barrier has a phase in every turn of its set.
        unsafe {
            let mut at = 0;
            while at < ahead {
                self.ask(asked, at);
                asked = walk.next(asked);
                at = opaque(at + 1);
            }
            // The turn that is written, and its stage, are some behind.
            let (mut turn, mut before) = (walk.first(), walk.first());
            let (mut at, mut n) = (0, 0);
            let (mut fresh, mut near): (_, Beside) = (true, [[[0; 4]; 2]; 8]);
            loop {
                let segment = walk.segment(turn, self.warp);
                if Self::KEPT && fresh {
                    // Blocks have the same part of every row, most of the time. It comes while others are made.
                    let segment = walk.segment(before, self.warp);
                    if segment != u32::MAX {
                        let [a, b, c, d] = self.both::<4>((segment, self.place(before)), 0);
                        near = [a, b, c, d, a, b, c, d];
                    }
                    fresh = false;
                }
                let free = if at < behind { at + ahead } else { at - behind };
                if ahead == 1 {
                    wait_group::<0>()
                } else {
                    wait_group::<1>()
                }
                let mut own = Sums::default();
                if segment != u32::MAX {
                    own = self.make(turn, segment, at);
                }
                if walk.there(turn) && lane_id() == 0 {
                    told.segment(n % SETS, self.warp).write_x2([own.sum, own.squares]);
                    mbarrier::arrive(told.segments_there(n % SETS));
                }
                if n >= behind {
                    if !walk.there(before) {
                        return;
                    }
                    let (segment, number) = (walk.segment(before, self.warp), n - behind);
                    let wait = || mbarrier::wait(told.row_there(number % SETS), number / SETS % 2);
                    if segment != u32::MAX && walk.last(before) {
                        self.write((before, segment), (free, number % SETS), &near, wait, value);
                    } else {
                        wait();
                    }
                    let last = before;
                    before = walk.next(last);
                    fresh = before.part != last.part || self.place(before) != self.place(last);
                }
                self.ask(asked, free);
                asked = walk.next(asked);
                at = if at + 1 < Self::STAGES { at + 1 } else { 0 };
                turn = walk.next(turn);
                n = opaque(n + 1);
            }
        }
    }
}

/// The rows of a launch: `row_of` makes two numbers of the sums of a row, `value` an output of `[x, weight, bias]` and these.
///
/// # Safety
///
/// The tensors are those of the contract for elements `E`; block, grid and exchange are the contract's, and all blocks run at once.
#[inline(always)]
pub unsafe fn rows<E: Float, const CENTRED: bool>(
    tensors: Tensors,
    shape: Shape,
    launch: Launch,
    row_of: impl Fn(Sums) -> [f32; 2],
    value: impl Fn([f32; 3], [f32; 2]) -> f32 + Copy,
) {
    launch_dependents();
    dependency_wait();
    // SAFETY: handed on.
    unsafe {
        Told::<SETS>::new().start();
        if warp_id() == PART {
            Work::<E, false, CENTRED>::new(tensors, shape, launch).tell(launch.exchange);
        } else if warp_id() > PART {
            let work = Work::<E, false, CENTRED>::new(tensors, shape, launch);
            work.listen(launch.exchange, row_of);
        } else if in_pieces::<E>(shape[1], &tensors) {
            Work::<E, false, CENTRED>::new(tensors, shape, launch).segments(value);
        } else {
            Work::<E, true, CENTRED>::new(tensors, shape, launch).segments(value);
        }
    }
}
