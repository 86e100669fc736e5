//! Rows in registers: one in those of 2 to 32 lanes of a warp, or of the `WARPS` warps of a block.
//!
//! A lane has up to [`LEN`] elements of it, in pieces of 16 bytes. In a row of one warp, piece `n` of a lane is number `lane + lanes n`.
//! Several warps, up to four, lie side by side over 256 elements, so that a lane has the same few partials all along the row, and nobody
//! takes them over: a piece of a lane is then so many parts, one from each group of 256. Of eight warps, four have the first half of the
//! row and hand their partials to the others.
//!
//! Rows that start anywhere lie in pieces as well: [`super::turned`].
//!
//! The shortest others are in shared memory ([`super::small`]).

use contract::num::PARTIALS;
use contract::row::{SCRATCH_BYTES, SHORT};

use super::Line;
use super::tree::{max_of_warps, tree_of_warps};
use super::turns::lanes_of;
pub use super::turns::{Turns, near};
use crate::arch::float::maximum;
use crate::arch::mem::{X4, st_x4};
use crate::arch::mem_or::ld_or_x4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, shuffle_xor, warp_id};
use crate::float::{Float, Piece};

/// The most elements of a lane.
pub const LEN: usize = SHORT as usize / 32;
/// The most pieces of a lane.
pub const MOST: usize = LEN / 4;
/// Partials of a sum.
const P: u32 = PARTIALS as u32;

/// The pieces of a lane.
pub type Pieces = [Piece; MOST];

/// The same as they come from memory.
pub type Raw = [X4<u32>; MOST];

/// Nothing of a row.
pub const NOTHING: Raw = [[0; 4]; MOST];

/// Where a piece of a lane is: that of its first one, and what comes on top.
#[derive(Clone, Copy)]
pub struct At {
    pub(super) own: u32,
    pub(super) step: u32,
}

impl At {
    /// Its first element.
    #[inline(always)]
    pub fn first(self) -> u32 {
        self.own + self.step
    }
}

/// The lanes of a row, of one warp or of `WARPS`: of two warps in blocks of two rows beside each other, of others alone. Rows of several
/// warps have 16-bit elements.
#[derive(Clone, Copy)]
pub struct Lanes<const WARPS: u32> {
    /// How many there are; of several warps, those of one.
    pub(super) count: u32,
    /// Which of them this is, of those side by side.
    pub(super) own: u32,
    /// The first element of the half of the row, or the row.
    pub(super) start: u32,
    /// Where that ends.
    pub(super) end: u32,
    /// Where the row begins in its first piece, if it may do so anywhere ([`super::turned`]).
    pub(super) odd: Option<u32>,
    /// Where the last pieces end that some lane has: not before `end`.
    reach: u32,
}

impl<const WARPS: u32> Lanes<WARPS> {
    /// Whether one warp has the row, or several.
    const ONE: bool = WARPS <= 1;
    /// How many warps have the row.
    const ALL: u32 = if Self::ONE { 1 } else { WARPS };
    /// Warps side by side.
    const WIDE: u32 = if Self::ALL < 4 { Self::ALL } else { 4 };
    /// Neighbours among the elements of a piece.
    pub(super) const NEXT: usize = (8 / Self::WIDE) as usize;
    /// How many halves there are.
    const HALVES: u32 = Self::ALL / Self::WIDE;

    /// Those of a row of `k` elements of type `E`, of a family with such a `LANE`.
    #[inline(always)]
    pub fn new<E: Float>(k: u32, lane: u32) -> Self {
        let (mut count, mut start, mut end) = (LANES, 0, k);
        if Self::ONE {
            count = lanes_of::<E>(k, lane);
        } else if Self::HALVES > 1 {
            // In whole turns of pieces.
            let turn = Self::step::<E>(count);
            let half = k.div_ceil(turn * Self::HALVES) * turn;
            start = Self::half() * half;
            end = if k < start + half { k } else { start + half };
        }
        let own = if Self::ONE { lane_id() % count } else { thread_idx_x() % (LANES * Self::WIDE) };
        let all = Self::step::<E>(count);
        // One turn of pieces at least, of lanes that have none.
        let len = if end > start { end - start } else { 1 };
        let reach = start + ((len + all - 1) & !(all - 1));
        Self { count, own, start, end, odd: None, reach }
    }

    /// Which half of the row these lanes have.
    #[inline(always)]
    pub(super) fn half() -> u32 {
        if Self::ONE { 0 } else { warp_id() % Self::ALL / Self::WIDE }
    }

    /// Elements from a piece of `count` lanes to the next.
    #[inline(always)]
    pub(super) fn step<E: Float>(count: u32) -> u32 {
        if Self::ONE { count * E::PIECE as u32 } else { P * Self::WIDE }
    }

    /// Where element `i` of a piece is in the row, from its first on.
    #[inline(always)]
    pub fn place(&self, i: usize) -> u32 {
        match WARPS {
            1 => i as u32,
            _ => P * (i / Self::NEXT) as u32 + (i % Self::NEXT) as u32,
        }
    }

    /// Where a piece is in `row`.
    #[inline(always)]
    fn pointer<E>(row: *const E, at: At) -> *const E {
        if Self::ONE {
            return row.wrapping_add(at.first() as usize);
        }
        // The pieces of a lane then have known distances.
        row.wrapping_add(at.own as usize).wrapping_add(at.step as usize)
    }

    /// The piece at `at` as far as `end`, and words of `nothing` elsewhere.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`].
    #[inline(always)]
    pub unsafe fn piece<E: Float>(&self, row: *const E, at: At, end: u32, nothing: u32) -> X4<u32> {
        let p = Self::pointer(row, at);
        // SAFETY: the caller's promise.
        unsafe {
            if WARPS == 1 {
                return ld_or_x4(at.first() < end, p.cast(), nothing);
            }
            self.parts(p, at, end, nothing)
        }
    }

    /// What of a tensor that has one element, from `p` on, for each of the row is beside the piece at `at`, as far as `end`.
    ///
    /// # Safety
    ///
    /// As for [`Lanes::piece`], of `p`.
    #[inline(always)]
    pub unsafe fn beside<E: Float>(&self, p: *const E, at: At, end: u32) -> X4<u32> {
        let Some(odd) = self.odd else {
            // SAFETY: handed on.
            return unsafe { self.piece(p, at, end, 0) };
        };
        let one = |i: usize| {
            let place = at.first() + self.place(i);
            let p = p.wrapping_add(place as usize).wrapping_sub(odd as usize);
            // SAFETY: an element of it.
            unsafe { E::load_bits_if(odd <= place && place < end, p) }
        };
        core::array::from_fn(|i| match E::PIECE {
            4 => one(i),
            _ => one(2 * i) | one(2 * i + 1) << 16,
        })
    }

    /// Writes the piece at `at`, as far as these lanes have the row.
    ///
    /// # Safety
    ///
    /// As for [`Line::store`].
    #[inline(always)]
    pub unsafe fn write<E: Float>(&self, row: *mut E, at: At, raw: X4<u32>) {
        let p = Self::pointer(row.cast_const(), at).cast_mut();
        // SAFETY: the caller's promise.
        unsafe {
            if WARPS == 1 {
                return if self.odd.is_none() || self.inside::<E>(at) {
                    st_x4(p.cast(), raw);
                } else {
                    self.write_some(p, at, raw);
                };
            }
            self.write_parts(p, at, raw);
        }
    }

    /// Rows beside each other.
    pub(super) const BESIDE: u32 = if WARPS == 2 { 2 } else { 1 };

    /// The row of these lanes where every block has as many as are beside each other.
    #[inline(always)]
    pub fn row() -> u32 {
        block_idx_x() * Self::BESIDE + warp_id() / Self::ALL
    }

    /// Waits for the other warps of the row.
    ///
    /// *Convergence*: every lane of them calls it.
    #[inline(always)]
    fn wait(&self) {
        if WARPS == 2 {
            // Numbers that are known: a block with others takes all barriers, and few blocks run beside each other.
            let half = WARPS * LANES;
            if warp_id() < WARPS { sync_some(1, half) } else { sync_some(2, half) }
        } else {
            sync_threads();
        }
    }

    /// What these warps have beside a row: as [`contract::row::SCRATCH_BYTES`] has it.
    #[inline(always)]
    fn scratch(&self) -> Shared<f32> {
        dynamic_shared_mem::<f32>().byte_add(SCRATCH_BYTES * (warp_id() / Self::ALL))
    }

    /// Whether what is loaded ends exactly where it is told to, not with a piece.
    #[inline(always)]
    pub fn exact(&self) -> bool {
        self.odd.is_some()
    }

    /// Whether every piece of [`Lanes::each`] is one of a row whose elements end at `end`.
    #[inline(always)]
    pub fn full(&self, end: u32) -> bool {
        self.reach <= end && (Self::HALVES == 1 || self.reach <= self.end)
    }

    /// Runs `body(n, at)` on each piece that some lane of the warp has.
    #[inline(always)]
    pub fn each<E: Float>(&self, mut body: impl FnMut(usize, At)) {
        let next = match WARPS {
            1 => E::PIECE,
            _ => Self::NEXT,
        };
        // Anew in each pass: the addresses of all pieces would take more registers than there are.
        let own = opaque(self.start + self.own * next as u32);
        let mut n = 0;
        while n < LEN / E::PIECE {
            let step = Self::step::<E>(self.count) * n as u32;
            if n == 0 || self.start + step < self.reach {
                body(n, At { own, step });
            }
            n += 1;
        }
    }

    /// Runs `body(n, at)` on each piece of `line` that this lane has, or of several warps, that some lane has.
    #[inline(always)]
    pub fn own<E: Float>(&self, line: &Line<true>, mut body: impl FnMut(usize, At)) {
        let end = if line.k == 0 { 0 } else { self.end };
        self.each::<E>(|n, at| {
            if if Self::ONE { at.first() < end } else { end > 0 } {
                body(n, at);
            }
        });
    }

    /// Loads the pieces of `row` that this lane has, as far as `seen`, words of `nothing` elsewhere: the first `AHEAD`, which the
    /// lanes ask for before they work on the row in front, or the others beside those in `raw`.
    ///
    /// # Safety
    ///
    /// As for [`Line::load`].
    #[inline(always)]
    pub unsafe fn load<E: Float, const AHEAD: usize>(
        &self,
        line: &Line<true>,
        (row, seen): (*const E, u32),
        nothing: u32,
        others: bool,
        mut raw: Raw,
    ) -> Raw {
        let seen = if line.k == 0 { 0 } else { seen };
        let end = if seen < self.end { seen } else { self.end };
        self.each::<E>(|n, at| {
            if others == (n >= AHEAD) {
                // SAFETY: the caller's promise.
                raw[n] = unsafe { self.piece(row, at, end, nothing) };
            }
        });
        raw
    }

    /// The largest value of the row, NaN if one is NaN, in every lane of it.
    ///
    /// *Convergence*: every lane of the warp, or of the block, calls it.
    ///
    /// # Safety
    ///
    /// A block has the shared memory; called once.
    #[inline(always)]
    pub unsafe fn max(&self, value: f32) -> f32 {
        if WARPS > 1 {
            // SAFETY: the caller's promise.
            return unsafe {
                max_of_warps(self.scratch().add(2 * P).cast(), WARPS, value, || self.wait())
            };
        }
        let mut top = value;
        let mut distance = self.count / 2;
        while distance > 0 {
            top = maximum(top, shuffle_xor(top, distance));
            distance /= 2;
        }
        top
    }

    /// A sum over the row: `step(acc, value)` of the pieces `v(n)` that this lane has of `line`, and the tree over the partials, in every
    /// lane of the row. With `all`, zeros beside the row are taken too, which leave the sum as it is. Sums of several warps are made in one of two
    /// places, in turn.
    ///
    /// *Convergence*: every lane of the warp, or of the block, calls it.
    ///
    /// # Safety
    ///
    /// A block has the shared memory; between two sums in a place there is one in the other, or a maximum.
    #[inline(always)]
    pub unsafe fn sum<E: Float>(
        &self,
        (place, all): (u32, bool),
        line: &Line<true>,
        v: impl Fn(usize) -> Piece,
        step: impl Fn(f32, f32) -> f32,
    ) -> f32 {
        let groups = |lanes: usize| P as usize / (lanes * E::PIECE);
        if Self::ONE {
            let p = match self.count {
                ..=8 => self.folded::<E>(groups(8), all, line, &v, &step),
                16 => self.folded::<E>(groups(16), all, line, &v, &step),
                _ => self.folded::<E>(groups(32), all, line, &v, &step),
            };
            return self.tree::<E>(p);
        }
        // SAFETY: 256 words for this call, written by one lane each, or by one after a barrier behind the other.
        unsafe {
            let scratch = self.scratch().add(P * place);
            let mut half = 0;
            while half < Self::HALVES {
                if Self::half() == half && self.start < self.end {
                    self.hand_on::<E>(scratch, all, &v, &step);
                }
                self.wait();
                half += 1;
            }
            tree_of_warps(scratch)
        }
    }

    /// This lane's pieces as partials, which are those of `groups` pieces, and the largest distances of the tree.
    #[inline(always)]
    fn folded<E: Float>(
        &self,
        groups: usize,
        all: bool,
        line: &Line<true>,
        v: impl Fn(usize) -> Piece,
        step: impl Fn(f32, f32) -> f32,
    ) -> Piece {
        let mut p = [[0.0; 8]; MOST];
        self.take::<E>(groups, all, line, v, &mut p, step);
        // The largest distances are between pieces of a lane.
        let most = LEN / E::PIECE;
        let mut len = if groups < most { groups } else { most };
        while len > 1 {
            len /= 2;
            let mut g = 0;
            while g < len {
                let mut i = 0;
                while i < E::PIECE {
                    p[g][i] += p[g + len][i];
                    i += 1;
                }
                g += 1;
            }
        }
        p[0]
    }

    /// Takes this lane's pieces into its partials, which are those of `groups` pieces; with `all`, zeros behind the row too.
    #[inline(always)]
    fn take<E: Float>(
        &self,
        groups: usize,
        all: bool,
        line: &Line<true>,
        v: impl Fn(usize) -> Piece,
        p: &mut Pieces,
        step: impl Fn(f32, f32) -> f32,
    ) {
        let mut piece = |n: usize, _| {
            let (p, v) = (&mut p[n % groups], v(n));
            let mut i = 0;
            while i < E::PIECE {
                p[i] = step(p[i], v[i]);
                i += 1;
            }
        };
        if all { self.each::<E>(piece) } else { self.own::<E>(line, &mut piece) }
    }

    /// The tree over the partials, a piece of them in each lane, in every lane of the row.
    #[inline(always)]
    fn tree<E: Float>(&self, p: Piece) -> f32 {
        match self.count {
            2 => Self::tree_of::<E>(2, 2, p),
            4 if E::PIECE == 8 => Self::tree_of::<E>(4, 4, p),
            count => Self::tree_of::<E>(count, E::PIECE, p),
        }
    }

    /// [`Lanes::tree`] of `count` lanes, which share the values of a piece in `shares` parts.
    #[inline(always)]
    pub fn tree_of<E: Float>(count: u32, shares: usize, mut p: Piece) -> f32 {
        // The next distances are between lanes. Two lanes share the sums of their values in halves.
        let mut len = E::PIECE;
        let mut distance = count / 2;
        while len > E::PIECE / shares {
            len /= 2;
            let upper = lane_id() & distance != 0;
            let mut i = 0;
            while i < len {
                let (keep, give) = if upper { (p[i + len], p[i]) } else { (p[i], p[i + len]) };
                p[i] = keep + shuffle_xor(give, distance);
                i += 1;
            }
            distance /= 2;
        }
        while len == 1 && distance > 0 {
            p[0] += shuffle_xor(p[0], distance);
            distance /= 2;
        }
        // The last ones are within a piece: where its values went above, and in the lane.
        let mut distance = count / 2;
        let mut left = E::PIECE;
        while left > len {
            let mut i = 0;
            while i < len {
                p[i] += shuffle_xor(p[i], distance);
                i += 1;
            }
            distance /= 2;
            left /= 2;
        }
        while len > 1 {
            len /= 2;
            let mut i = 0;
            while i < len {
                p[i] += p[i + len];
                i += 1;
            }
        }
        p[0]
    }
}
