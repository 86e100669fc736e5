//! Rows of norms that have sums for each segment, spread over all blocks in parts. From sm_90.
//!
//! A warp has a segment, which comes to shared memory by asynchronous copies, some parts ahead. It stays there as it is stored until the block is
//! some parts on: meanwhile one of its last warps tells the other blocks of the row the part's sums, and one hears theirs, as
//! [`crate::row::exchange`] has it.
//!
//! Of a row with more parts than there are blocks, nothing can wait: each block goes through its parts of the row twice.

mod told;

use contract::launch::DevPtr;
use contract::norm::{SETS, behind, stage_bytes, stages};
use contract::parts::{PART, SEGMENT, scratch_bytes};

use super::sums::{Sums, sums};
use super::{Norm, Shape, Tensors};
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_part, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier;
use crate::arch::mem::{X4, ld_or_zero_x4, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, sync_warp, warp_id};
use crate::float::Float;
use crate::row::exchange::Told;
use crate::row::in_pieces;
use crate::row::segment::{Raw, Segment};
use crate::row::walk::{Turn, Walk};

/// What a launch has beside the tensors.
#[derive(Clone, Copy)]
pub struct Launch {
    /// The slots.
    pub exchange: DevPtr<u32>,
    /// Its first row, and how many there are.
    pub rows: [u32; 2],
}

/// A block's work on rows of `E`, centred or not.
struct Work<E, const PIECES: bool, const CENTRED: bool> {
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

/// The piece of a row at `p`, as far as there are elements `left`.
///
/// # Safety
///
/// So many elements there are of a row of a tensor; nobody else writes them meanwhile.
#[inline(always)]
unsafe fn item<E: Float, const PIECES: bool>(p: *const E, left: u32) -> X4<u32> {
    // SAFETY: the caller's promise.
    unsafe { if PIECES { ld_or_zero_x4(left > 0, p.cast()) } else { E::gather(p, left) } }
}

/// Sixteen bytes of two pieces, from one of the first one on.
#[inline(always)]
fn window(a: X4<u32>, b: X4<u32>, from: u32) -> X4<u32> {
    let mut w = [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]];
    let mut words = 2;
    while words > 0 {
        let mut i = 0;
        while i + words < 8 {
            w[i] = if from / 4 & words as u32 != 0 { w[i + words] } else { w[i] };
            i += 1;
        }
        words /= 2;
    }
    let bits = 8 * (from % 4);
    core::array::from_fn(|i| ((u64::from(w[i + 1]) << 32 | u64::from(w[i])) >> bits) as u32)
}

impl<E: Float, const PIECES: bool, const CENTRED: bool> Work<E, PIECES, CENTRED> {
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
    /// Parts that the block is behind with what it writes.
    const BEHIND: u32 = behind(Self::BYTES);
    /// Parts ahead that are asked for.
    const AHEAD: u32 = Self::STAGES - Self::BEHIND;

    #[inline(always)]
    fn new(tensors: Tensors, shape: Shape, launch: Launch) -> Self {
        let warp = shuffle_idx(warp_id(), 0);
        let bytes = Self::STAGES * Self::STAGE;
        let area = dynamic_shared_mem::<u32>().byte_add(scratch_bytes(SETS) + warp * bytes).kept();
        let [first, rows] = launch.rows;
        let walk = Walk::new(shape[1], rows);
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

    /// The row of a turn.
    #[inline(always)]
    fn norm(&self, turn: Turn) -> Norm<E, true> {
        Norm::new(self.tensors, self.shape, self.first + self.walk.row(turn))
    }

    /// Whether a segment of a turn comes by itself: not where it was changed a moment ago, or is to be and is in no pieces.
    #[inline(always)]
    fn comes(&self, turn: Turn) -> bool {
        self.tensors[1].is_null() || PIECES && self.walk.begins(turn)
    }

    /// Where a segment begins in its first piece, in bytes.
    #[inline(always)]
    fn odd(p: *const E) -> u32 {
        if PIECES { 0 } else { p as usize as u32 % 16 }
    }

    /// Asks for the segment of a turn, or for the pieces that it lies in.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table. Nobody else uses the stage, or where rows are in pieces this lane's items of it, until the wait for
    /// the group, and then a barrier of the warp.
    #[inline(always)]
    unsafe fn ask(&self, turn: Turn, at: u32) {
        let segment = self.walk.segment(turn, self.warp);
        if segment != u32::MAX && self.comes(turn) {
            let (norm, own) = (self.norm(turn), Own::<E>::own());
            let start = segment * SEGMENT;
            let left = norm.line.k - start;
            let to = self.own_stage(at);
            let from = norm.x.wrapping_add(start as usize).cast_const();
            if PIECES {
                let (from, left) = (from.wrapping_add(own as usize), left.saturating_sub(own));
                Own::<E>::each(|n| {
                    let on = Own::<E>::on(n);
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = from.wrapping_add(on as usize);
                        copy_x16(to.byte_add(on * Self::BYTES), from, on < left);
                    }
                });
            } else {
                // SAFETY: handed on.
                unsafe { self.ask_pieces(from, if left < SEGMENT { left } else { SEGMENT }, at) };
            }
        }
        commit_group();
    }

    /// Asks for the pieces that `len` elements from `from` on lie in, zeros behind these.
    ///
    /// # Safety
    ///
    /// As for [`Work::ask`].
    #[inline(always)]
    unsafe fn ask_pieces(&self, from: *const E, len: u32, at: u32) {
        let (odd, own) = (Self::odd(from), Own::<E>::own() * Self::BYTES);
        let first = from.cast::<u8>().wrapping_sub(odd as usize);
        let end = odd + len * Self::BYTES;
        let to = self.own_stage(at);
        let copy = |on: u32| {
            let left = end.saturating_sub(own + on);
            let from = first.wrapping_add((own + on) as usize);
            // SAFETY: bytes of the row, or in front of it in its tensor.
            unsafe { copy_x16_part(to.byte_add(on), from, if left < 16 { left } else { 16 }) };
        };
        // The first piece may begin in front of the tensor.
        let before = first < self.tensors[0].as_ptr().cast_const();
        if before && lane_id() == 0 {
            // SAFETY: elements of the row, and of the first piece of the stage.
            unsafe {
                let raw = E::gather(from, len);
                let mut i = 0;
                while i < E::PIECE && odd + i as u32 * Self::BYTES < 16 {
                    let to = to.byte_add(odd + i as u32 * Self::BYTES);
                    if Self::BYTES == 4 {
                        to.write(raw[i]);
                    } else {
                        to.cast::<u16>().write_u16((raw[i / 2] >> (16 * (i % 2))) as u16);
                    }
                    i += 1;
                }
            }
        } else {
            copy(0);
        }
        let mut on = 16 * LANES;
        while on < SEGMENT * Self::BYTES {
            copy(on);
            on = opaque(on + 16 * LANES);
        }
        if lane_id() == 0 {
            copy(SEGMENT * Self::BYTES);
        }
    }

    /// Has a segment that came, or does now, in its stage in order, with the residual added; its sums, in every lane.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table, the stage this warp's.
    #[inline(always)]
    unsafe fn make(&self, turn: Turn, segment: u32, at: u32) -> Sums {
        let norm = self.norm(turn);
        let start = segment * SEGMENT;
        let left = norm.line.k - start;
        let stage = self.own_stage(at);
        let on_stage = |n: usize| stage.byte_add(Own::<E>::on(n) * Self::BYTES);
        // SAFETY: items of this lane, or behind a barrier of the warp.
        unsafe {
            let first = (start + Own::<E>::own()) as usize;
            let left = left.saturating_sub(Own::<E>::own());
            let (x, delta) = (norm.x.wrapping_add(first), norm.delta.wrapping_add(first));
            let load = |p: *const E, n: usize| {
                let on = Own::<E>::on(n);
                item::<E, PIECES>(p.wrapping_add(on as usize), left.saturating_sub(on))
            };
            let comes = self.comes(turn);
            if !PIECES && comes {
                let odd = Self::odd(norm.x.wrapping_add(start as usize));
                let mut on = 0;
                while on < SEGMENT * Self::BYTES {
                    let piece = stage.byte_add(on);
                    sync_warp();
                    let raw = window(piece.read_x4(), piece.byte_add(16).read_x4(), odd);
                    sync_warp();
                    piece.write_x4(raw);
                    on = opaque(on + 16 * LANES);
                }
            } else if !comes || norm.adds() {
                let add = norm.adds() && self.walk.begins(turn);
                let mut raw: Raw = [[0; 4]; _];
                if add {
                    Own::<E>::each(|n| raw[n] = load(delta, n));
                }
                Own::<E>::each(|n| {
                    let own = if comes { on_stage(n).read_x4() } else { load(x, n) };
                    raw[n] = if add { Norm::<E, true>::sum(own, raw[n]) } else { own };
                    on_stage(n).write_x4(raw[n]);
                });
                if add {
                    Own::<E>::each(|n| {
                        let on = Own::<E>::on(n);
                        let to = x.wrapping_add(on as usize);
                        if PIECES && on < left {
                            st_x4(to.cast(), raw[n]);
                        } else if !PIECES {
                            E::scatter(to, left.saturating_sub(on), raw[n]);
                        }
                    });
                }
            }
            // Read anew in each pass: that leaves registers for what is beside the row.
            sums::<E, CENTRED>(|n| E::widen(on_stage(n).read_x4()), norm.line.k - start)
        }
    }

    /// This lane's item `n` of a gain or an offset in a segment, zeros where there is none.
    ///
    /// # Safety
    ///
    /// It is one of the contract's table.
    #[inline(always)]
    unsafe fn beside(&self, p: DevPtr<u8>, segment: u32, n: usize) -> X4<u32> {
        let (p, k) = (p.cast::<E>().as_ptr().cast_const(), self.shape[1]);
        let first = segment * SEGMENT + Own::<E>::own() + Own::<E>::on(n);
        let left = if p.is_null() { 0 } else { k.saturating_sub(first) };
        let p = p.wrapping_add(first as usize);
        // SAFETY: an item, as far as there are elements.
        unsafe {
            if PIECES || (p as usize).is_multiple_of(16) && left >= E::PIECE as u32 {
                ld_or_zero_x4(left > 0, p.cast())
            } else {
                E::gather(p, left)
            }
        }
    }

    /// Those of gain and offset: no offset where squares are around zero.
    ///
    /// # Safety
    ///
    /// As for [`Work::beside`].
    #[inline(always)]
    unsafe fn both(&self, segment: u32, n: usize) -> [X4<u32>; 2] {
        let offset = if CENTRED { self.tensors[3] } else { DevPtr::NULL };
        // SAFETY: handed on.
        unsafe { [self.beside(self.tensors[2], segment, n), self.beside(offset, segment, n)] }
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
        let start = segment * SEGMENT;
        let left = norm.line.k - start;
        let own = Own::<E>::own();
        let stage = self.own_stage(at);
        // SAFETY: items of the row, which wait; the last warp put both words down before it arrived.
        unsafe {
            let to = norm.to().wrapping_add((start + own) as usize);
            let left_own = left.saturating_sub(own);
            // What is not kept comes some at a time, the first while the row is waited for.
            let mut some = 0;
            while some < Own::<E>::ITEMS {
                let mut beside = [[[0; 4]; 2]; 8];
                let mut i = 0;
                while i < Self::SOME {
                    beside[i] =
                        if Self::KEPT { near[some + i] } else { self.both(segment, some + i) };
                    i += 1;
                }
                if some == 0 {
                    wait();
                }
                let row = self.told.row(set).read_x2();
                let mut i = 0;
                while i < Self::SOME {
                    let on = Own::<E>::on(some + i);
                    let here = stage.byte_add(on * Self::BYTES);
                    let x = E::widen(here.read_x4());
                    let y = norm.output(x, beside[i], |x, w, b| value([x, w, b], row));
                    if !PIECES {
                        here.write_x4(y);
                    } else if on < left_own {
                        st_x4(to.wrapping_add(on as usize).cast(), y);
                    }
                    i += 1;
                }
                some += Self::SOME;
            }
            if PIECES {
                return;
            }
            sync_warp();
            let to = norm.to().wrapping_add(start as usize);
            self.write_pieces(to, if left < SEGMENT { left } else { SEGMENT }, at);
            sync_warp();
        }
    }

    /// Writes `len` elements of a stage, to the pieces that they lie in from `to` on.
    ///
    /// # Safety
    ///
    /// They are this warp's, behind a barrier of it.
    #[inline(always)]
    unsafe fn write_pieces(&self, to: *mut E, len: u32, at: u32) {
        let odd = Self::odd(to);
        let (before, first) = (odd / Self::BYTES, to.cast::<u8>().wrapping_sub(odd as usize));
        let piece = |on: u32| {
            let own = Own::<E>::own() * Self::BYTES + on;
            let here = self.stage(at).byte_add(own);
            let element = own / Self::BYTES;
            // SAFETY: pieces of the stage, and elements of the row.
            unsafe {
                let mut raw = here.read_x4();
                if odd > 0 {
                    let mut front = [0; 4];
                    if own > 0 {
                        front = self.stage(at).byte_add(own - 16).read_x4();
                    }
                    raw = window(front, raw, 16 - odd);
                }
                let to = first.wrapping_add(own as usize).cast::<E>();
                if before <= element && element + E::PIECE as u32 <= before + len {
                    st_x4(to.cast(), raw);
                } else {
                    let mut i = 0;
                    while i < E::PIECE {
                        let place = element + i as u32;
                        if before <= place && place < before + len {
                            let word = if Self::BYTES == 4 {
                                raw[i]
                            } else {
                                raw[i / 2] >> (16 * (i % 2))
                            };
                            E::store_bits(to.wrapping_add(i), word);
                        }
                        i += 1;
                    }
                }
            }
        };
        let mut on = 0;
        while on < SEGMENT * Self::BYTES {
            piece(on);
            on = opaque(on + 16 * LANES);
        }
        if lane_id() == 0 && odd > 0 {
            piece(SEGMENT * Self::BYTES);
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
        let mut asked = walk.first();
        // SAFETY: stages are used in turn, and asked for again when they were written. A barrier has a phase in every turn of its set.
        unsafe {
            let mut at = 0;
            while at < Self::AHEAD {
                self.ask(asked, at);
                asked = walk.next(asked);
                at = opaque(at + 1);
            }
            // The turn that is written, and its stage, are some behind.
            let (mut turn, mut before) = (walk.first(), walk.first());
            let (mut at, mut free, mut n) = (0, Self::AHEAD, 0);
            let (mut near_to, mut near): (u32, Beside) = (u32::MAX, [[[0; 4]; 2]; 8]);
            loop {
                let segment = walk.segment(turn, self.warp);
                match Self::AHEAD {
                    1 => wait_group::<0>(),
                    2 => wait_group::<1>(),
                    3 => wait_group::<2>(),
                    _ => wait_group::<3>(),
                }
                let mut own = Sums::default();
                if segment != u32::MAX {
                    own = self.make(turn, segment, at);
                }
                if walk.there(turn) && lane_id() == 0 {
                    told.segment(n % SETS, self.warp).write_x2([own.sum, own.squares]);
                    mbarrier::arrive(told.segments_there(n % SETS));
                }
                if n >= Self::BEHIND {
                    if !walk.there(before) {
                        return;
                    }
                    let (segment, number) = (walk.segment(before, self.warp), n - Self::BEHIND);
                    if Self::KEPT && segment != near_to && segment != u32::MAX {
                        // Blocks have the same part of every row, most of the time.
                        Own::<E>::each(|n| near[n] = self.both(segment, n));
                        near_to = segment;
                    }
                    let wait = || mbarrier::wait(told.row_there(number % SETS), number / SETS % 2);
                    if segment != u32::MAX && walk.last(before) {
                        self.write((before, segment), (free, number % SETS), &near, wait, value);
                    } else {
                        wait();
                    }
                    before = walk.next(before);
                }
                self.ask(asked, free);
                asked = walk.next(asked);
                at = if at + 1 < Self::STAGES { at + 1 } else { 0 };
                free = if free + 1 < Self::STAGES { free + 1 } else { 0 };
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
            Work::<E, true, CENTRED>::new(tensors, shape, launch).tell(launch.exchange);
        } else if warp_id() > PART {
            let work = Work::<E, true, CENTRED>::new(tensors, shape, launch);
            work.listen(launch.exchange, row_of);
        } else if in_pieces::<E>(shape[1], &tensors) {
            Work::<E, true, CENTRED>::new(tensors, shape, launch).segments(value);
        } else {
            Work::<E, false, CENTRED>::new(tensors, shape, launch).segments(value);
        }
    }
}
