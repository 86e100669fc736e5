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
mod write;

use contract::launch::DevPtr;
use contract::norm::{SETS, behind, stage_bytes, stages};
use contract::parts::{PART, SEGMENT, scratch_bytes};
use contract::ring::places;

use super::sums::{Sums, sums};
use super::{Norm, Shape, Tensors};
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_part, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier;
use crate::arch::mem::{X4, ld_or_zero_x4, prefetch_l2_bulk, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, sync_warp, warp_id};
use crate::float::Float;
use crate::row::exchange::Told;
use crate::row::segment::{Raw, Segment};
use crate::row::walk::{Turn, Walk};
use crate::row::{in_pieces, put};

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
    /// Whether gain and offset start on boundaries of 16 bytes.
    pieces: bool,
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
        let offset = if CENTRED { tensors[3] } else { DevPtr::NULL };
        let pieces = ((tensors[2].addr() | offset.addr()) as u32).is_multiple_of(16);
        let (told, element) = (Told::new(), core::marker::PhantomData);
        Self { tensors, shape, first, walk, told, area, warp, pieces, element }
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
            if ODD && Self::KEPT && !CENTRED && norm.adds() && lane_id() == 0 {
                // The residual, as far as the second-level cache, but for the last of a row.
                if segment * SEGMENT + SEGMENT <= norm.line.k {
                    let from = norm.delta.wrapping_add((segment * SEGMENT) as usize);
                    // SAFETY: pieces of its row.
                    unsafe { prefetch_l2_bulk(from.cast(), SEGMENT * Self::BYTES) };
                }
            }
            if ODD && segment * SEGMENT + SEGMENT + E::PIECE as u32 <= norm.line.k {
                // All of it is there.
                let copy = |on: u32| {
                    let to = to.byte_add(on * Self::BYTES);
                    // SAFETY: the caller's promise; a piece of the row.
                    unsafe { copy_x16(to, from.wrapping_add(on as usize), true) };
                };
                Own::<E>::each(|n| copy(Own::<E>::on(n)));
                if lane_id() == 0 {
                    copy(SEGMENT);
                }
                commit_group();
                return;
            }
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
            if ODD {
                // Other lanes' copies came too.
                sync_warp();
                Own::<E>::wrap(self.stage(at), if comes { odd } else { 0 });
                sync_warp();
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
                    put::<E>(to, raw);
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
            let mut edge = [u32::MAX; 2];
            loop {
                let segment = walk.segment(turn, self.warp);
                if Self::KEPT && fresh {
                    // Blocks have the same part of every row, most of the time. It comes while others are made.
                    let segment = walk.segment(before, self.warp);
                    if segment != u32::MAX {
                        let [a, b, c, d] = self.both::<4>((segment, self.place(before)), 0);
                        near = [a, b, c, d, a, b, c, d];
                        if ODD && !CENTRED {
                            edge = self.beside_edge(segment, self.place(before));
                        }
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
                        self.write(
                            (before, segment),
                            (free, number % SETS),
                            (&near, edge),
                            wait,
                            value,
                        );
                    } else {
                        wait();
                    }
                    let last = before;
                    before = walk.next(last);
                    fresh = before.part != last.part || self.place(before) != self.place(last);
                }
                if ODD {
                    sync_warp();
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
