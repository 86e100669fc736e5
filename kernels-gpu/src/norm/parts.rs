//! Rows of norms that have sums for each segment, spread over all blocks in parts. From sm_90.
//!
//! A warp has a segment, which comes to shared memory by asynchronous copies, some parts ahead. It stays there as it is stored until the block is
//! some parts on: meanwhile its last warp tells the other blocks of the row the part's sums, and hears theirs, as [`crate::row::exchange`] has it.
//!
//! Of a row with more parts than there are blocks, nothing can wait: each block goes through its parts of the row twice.

use contract::launch::DevPtr;
use contract::norm::{SETS, around, behind, stages};
use contract::num::tree8;
use contract::parts::{PART, SEGMENT, scratch_bytes};

use super::sums::{Sums, part_of, sums};
use super::{Norm, Shape, Tensors};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier;
use crate::arch::mem::{X4, ld_or_zero_x4, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id, shuffle_idx, sync_warp, warp_id, warp_tree};
use crate::float::Float;
use crate::row::exchange::{Speaker, Told, hear_one, hear_some};
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

/// Items of a lane that are written together.
const AT_ONCE: usize = 4;

/// Items of a lane: pieces, whatever rows are in.
type Own<E> = Segment<E, true>;

impl<E: Float, const PIECES: bool, const CENTRED: bool> Work<E, PIECES, CENTRED> {
    /// Bytes of an element.
    const BYTES: u32 = 16 / E::PIECE as u32;
    /// Stages of a warp.
    const STAGES: u32 = stages(Self::BYTES);
    /// Parts that the block is behind with what it writes.
    const BEHIND: u32 = behind(Self::BYTES);
    /// Parts ahead that are asked for.
    const AHEAD: u32 = Self::STAGES - Self::BEHIND;

    #[inline(always)]
    fn new(tensors: Tensors, shape: Shape, launch: Launch) -> Self {
        let warp = shuffle_idx(warp_id(), 0);
        let bytes = Self::STAGES * SEGMENT * Self::BYTES;
        let area = dynamic_shared_mem::<u32>().byte_add(scratch_bytes(SETS) + warp * bytes).kept();
        let [first, rows] = launch.rows;
        let walk = Walk::new(shape[1], rows);
        let told = Told::new();
        Self { tensors, shape, first, walk, told, area, warp, element: core::marker::PhantomData }
    }

    /// Where stage `at` of this warp is.
    #[inline(always)]
    fn stage(&self, at: u32) -> Shared<u32> {
        self.area.byte_add(at * SEGMENT * Self::BYTES)
    }

    /// This lane's first item there.
    #[inline(always)]
    fn own_stage(&self, at: u32) -> Shared<u32> {
        self.stage(at).byte_add(Own::<E>::own() * Self::BYTES)
    }

    /// The row of a turn.
    #[inline(always)]
    fn norm(&self, turn: Turn) -> Norm<E, PIECES> {
        Norm::new(self.tensors, self.shape, self.first + self.walk.row(turn))
    }

    /// Whether a segment of a turn comes by itself: not where it was changed a moment ago, or is in no pieces.
    #[inline(always)]
    fn comes(&self, turn: Turn) -> bool {
        PIECES && (self.tensors[1].is_null() || self.walk.begins(turn))
    }

    /// Asks for the segment of a turn.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table. Nobody but this lane uses its items of the stage, and it waits for the group first.
    #[inline(always)]
    unsafe fn ask(&self, turn: Turn, at: u32) {
        let segment = self.walk.segment(turn, self.warp);
        if segment != u32::MAX && self.comes(turn) {
            let (norm, own) = (self.norm(turn), Own::<E>::own());
            let start = segment * SEGMENT + own;
            let left = norm.line.k.saturating_sub(start);
            let (from, to) = (norm.x.wrapping_add(start as usize), self.own_stage(at));
            Own::<E>::each(|n| {
                let on = Own::<E>::on(n);
                let from = from.wrapping_add(on as usize).cast_const();
                // SAFETY: the caller's promise.
                unsafe { copy_x16(to.byte_add(on * Self::BYTES), from, on < left) };
            });
        }
        commit_group();
    }

    /// Puts a segment that does not come by itself into its stage, with the residual added.
    ///
    /// # Safety
    ///
    /// The row is one of the contract's table, the stage this warp's.
    #[inline(always)]
    unsafe fn fetch(&self, norm: &Norm<E, PIECES>, segment: u32, again: bool, at: u32) {
        let start = segment * SEGMENT;
        let left = norm.line.k - start;
        let stage = self.stage(at);
        sync_warp();
        let mut on = lane_id();
        while on < SEGMENT {
            // SAFETY: elements of the row, which this warp has.
            unsafe {
                let there = on < left;
                let first = (start + on) as usize;
                let mut x = E::load_bits_if(there, norm.x.cast_const().wrapping_add(first));
                if norm.adds() && !again {
                    let delta = E::load_bits_if(there, norm.delta.wrapping_add(first));
                    x = Norm::<E, false>::sum([x, 0, 0, 0], [delta, 0, 0, 0])[0] & E::ONE;
                    if there {
                        E::store_bits(norm.x.wrapping_add(first), x);
                    }
                }
                if Self::BYTES == 4 {
                    stage.add(on).write(x);
                } else {
                    stage.cast::<u16>().add(on).write_u16(x as u16);
                }
            }
            on = opaque(on + LANES);
        }
        sync_warp();
    }

    /// The sums of a segment, in every lane. It came, or does now, and has the residual added then.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// As for [`Work::fetch`].
    #[inline(always)]
    unsafe fn make(&self, turn: Turn, segment: u32, at: u32) -> Sums {
        let norm = self.norm(turn);
        let start = segment * SEGMENT;
        let left = norm.line.k - start;
        let own = Own::<E>::own();
        let stage = self.own_stage(at);
        let on_stage = |n: usize| stage.byte_add(Own::<E>::on(n) * Self::BYTES);
        let mut raw: Raw = [[0; 4]; _];
        // SAFETY: items of this lane, or behind a barrier of the warp.
        unsafe {
            if !self.comes(turn) {
                self.fetch(&norm, segment, !self.walk.begins(turn), at);
            }
            if PIECES && norm.adds() && self.walk.begins(turn) {
                let first = (start + own) as usize;
                let left = left.saturating_sub(own);
                let (x, delta) = (norm.x.wrapping_add(first), norm.delta.wrapping_add(first));
                Own::<E>::each(|n| {
                    let on = Own::<E>::on(n) as usize;
                    let there = (on as u32) < left;
                    raw[n] = ld_or_zero_x4(there, delta.wrapping_add(on).cast());
                });
                Own::<E>::each(|n| {
                    let on = Own::<E>::on(n) as usize;
                    raw[n] = Norm::<E, true>::sum(on_stage(n).read_x4(), raw[n]);
                    if (on as u32) < left {
                        on_stage(n).write_x4(raw[n]);
                        st_x4(x.wrapping_add(on).cast(), raw[n]);
                    }
                });
            } else {
                Own::<E>::each(|n| raw[n] = on_stage(n).read_x4());
            }
        }
        sums::<E, CENTRED>(&raw, left)
    }

    /// Writes this warp's segment of a turn, if it has one and this is the time, once its row is told.
    ///
    /// # Safety
    ///
    /// What waits in the stage is the segment.
    #[inline(always)]
    unsafe fn write(
        &self,
        turn: Turn,
        (at, number): (u32, u32),
        value: impl Fn([f32; 3], [f32; 2]) -> f32,
    ) {
        let turn = Turn { pass: opaque(turn.pass), part: opaque(turn.part) };
        let segment = self.walk.segment(turn, self.warp);
        let set = number % SETS;
        let wait = || {
            // SAFETY: the barrier was made, and has a phase in every turn of the set.
            unsafe { mbarrier::wait(self.told.row_there(set), number / SETS % 2) }
        };
        if segment == u32::MAX || !self.walk.last(turn) {
            return wait();
        }
        let norm = self.norm(turn);
        let start = segment * SEGMENT;
        let left = norm.line.k - start;
        // SAFETY: items of the row, which wait; the last warp put both words down before it said so.
        unsafe {
            if PIECES {
                let own = Own::<E>::own();
                let (stage, left) = (self.own_stage(at), left.saturating_sub(own));
                let first = (start + own) as usize;
                let to = norm.to().wrapping_add(first);
                // As many at once as there are registers for: what is beside the first is on its way while the row is.
                let mut half = 0;
                while half < Own::<E>::ITEMS / AT_ONCE {
                    let mut beside = [[[0; 4]; 2]; AT_ONCE];
                    let mut n = 0;
                    while n < AT_ONCE {
                        let on = Own::<E>::on(AT_ONCE * half + n);
                        beside[n] = norm.beside(|p: *const E| {
                            let p = p.wrapping_add(first).wrapping_add(on as usize);
                            ld_or_zero_x4(on < left, p.cast())
                        });
                        n += 1;
                    }
                    if half == 0 {
                        wait();
                    }
                    let row = self.told.row(set).read_x2();
                    let mut n = 0;
                    while n < AT_ONCE {
                        let on = Own::<E>::on(AT_ONCE * half + n);
                        if on < left {
                            let x = E::widen(stage.byte_add(on * Self::BYTES).read_x4());
                            let y = norm.output(x, beside[n], |x, w, b| value([x, w, b], row));
                            st_x4(to.wrapping_add(on as usize).cast(), y);
                        }
                        n += 1;
                    }
                    half += 1;
                }
                return;
            }
            wait();
            let row = self.told.row(set).read_x2();
            let stage = self.stage(at);
            let mut on = lane_id();
            while on < SEGMENT && on < left {
                let bits = if Self::BYTES == 4 {
                    stage.add(on).read()
                } else {
                    u32::from(stage.cast::<u16>().add(on).read_u16())
                };
                let first = start + on;
                let beside = norm.beside(|p: *const E| norm.line.load(true, p, first));
                let x = E::widen([bits, 0, 0, 0]);
                let y = norm.output(x, beside, |x, w, b| value([x, w, b], row));
                norm.line.store(norm.to(), first, y);
                on = opaque(on + LANES);
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
            loop {
                let segment = walk.segment(turn, self.warp);
                match Self::AHEAD {
                    1 => wait_group::<0>(),
                    2 => wait_group::<1>(),
                    3 => wait_group::<2>(),
                    _ => wait_group::<3>(),
                }
                if walk.there(turn) {
                    let mut sums = Sums::default();
                    if segment != u32::MAX {
                        sums = self.make(turn, segment, at);
                    }
                    if lane_id() == 0 {
                        told.segment(n % SETS, self.warp).write_x2([sums.sum, sums.squares]);
                        mbarrier::arrive(told.segments_there(n % SETS));
                    }
                }
                if n >= Self::BEHIND {
                    if !walk.there(before) {
                        return;
                    }
                    self.write(before, (free, n - Self::BEHIND), value);
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

    /// The warp that tells other blocks of the row, and hears them: `row(sums)` is what the warps of the block are told.
    ///
    /// # Safety
    ///
    /// As for the entry.
    #[inline(always)]
    unsafe fn talk(&self, exchange: DevPtr<u32>, row_of: impl Fn(Sums) -> [f32; 2]) {
        let (walk, told, k) = (&self.walk, self.told, self.shape[1]);
        let parts = walk.parts;
        // SAFETY: words of the exchange, and of the block.
        unsafe {
            let speaker = Speaker::new(exchange);
            let mut turn = walk.first();
            let mut n = 0;
            while walk.there(turn) {
                let set = n % SETS;
                mbarrier::wait(told.segments_there(set), n / SETS % 2);
                let mut own = [0.0; 2];
                if lane_id() < PART {
                    own = told.segment(set, lane_id()).read_x2();
                }
                let own = Sums { sum: own[0], squares: own[1] };
                let part = part_of::<CENTRED>(own, parts, turn.part, k);
                let row = speaker.row(walk.row(turn), parts.count);
                speaker.tell(row, turn.part, [part.sum, part.squares]);
                let mut both = [0.0; 2];
                if walk.last(turn) {
                    both = row_of(self.hear(row, speaker.flag));
                }
                if lane_id() == 0 {
                    told.row(set).write_x2(both);
                    mbarrier::arrive(told.row_there(set));
                }
                turn = walk.next(turn);
                n = opaque(n + 1);
            }
            speaker.end();
        }
    }

    /// The sums of a row, in every lane.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The slots are those of the exchange.
    #[inline(always)]
    unsafe fn hear(&self, row: *const u32, flag: u32) -> Sums {
        let (parts, k) = (self.walk.parts, self.shape[1]);
        let count = parts.count;
        // What a part adds to the squares around the row's mean.
        let squares = |[sum, squares]: [f32; 2], part: u32, mean: f32| {
            if CENTRED && part < count {
                around(squares, sum, parts.elements(part, k), mean)
            } else {
                squares
            }
        };
        // SAFETY: handed on.
        unsafe {
            if count <= LANES {
                let heard = hear_one(row, count, flag, 0.0);
                let sum = if CENTRED { warp_tree(heard[0]) } else { 0.0 };
                let own = squares(heard, lane_id(), sum / k as f32);
                return Sums { sum, squares: warp_tree(own) };
            }
            let mut out = Sums::default();
            let mut pass = u32::from(!CENTRED);
            while pass < 2 {
                let mean = out.sum / k as f32;
                let mut p = [0.0; 8];
                let mut part = 0;
                while part < count {
                    let heard = hear_some(row, part, count, flag, 0.0);
                    let mut i = 0;
                    while i < 8 {
                        let own = part + LANES * i + lane_id();
                        let heard = heard[i as usize];
                        p[i as usize] +=
                            if pass == 0 { heard[0] } else { squares(heard, own, mean) };
                        i += 1;
                    }
                    part = opaque(part + 8 * LANES);
                }
                let all = warp_tree(tree8(p));
                if pass == 0 {
                    out.sum = all
                } else {
                    out.squares = all
                }
                pass = opaque(pass + 1);
            }
            out
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
            Work::<E, true, CENTRED>::new(tensors, shape, launch).talk(launch.exchange, row_of);
        } else if in_pieces::<E>(shape[1], &tensors) {
            Work::<E, true, CENTRED>::new(tensors, shape, launch).segments(value);
        } else {
            Work::<E, false, CENTRED>::new(tensors, shape, launch).segments(value);
        }
    }
}
