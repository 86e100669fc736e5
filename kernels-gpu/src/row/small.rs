//! Short rows: a warp has some that follow each other, as they lie, in shared memory, where they come and go by the pieces of 16 bytes that they lie in
//! together, wherever they start. Others come meanwhile.
//!
//! Up to 32 lanes have a row, each up to `N` of its elements, as far apart as there are lanes. A mask comes as the rows do.

pub mod pairs;
mod together;

use contract::row::{self, SMALL_MOST, SMALL_THREADS};

use self::pairs::{Pairs, Words};
use self::together::Together;

use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::float::maximum;
use crate::arch::mem::X4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, opaque};
use crate::arch::warp::{LANES, lane_id, shuffle_xor, sync_warp, warp_id};
use crate::float::Float;
use crate::row::{put, take};

/// Warps of a block.
const WARPS: u32 = SMALL_THREADS / LANES;

/// Most elements of a lane.
const MOST: usize = SMALL_MOST as usize;

/// Elements of a lane of rows that are a power of two: all of such rows, or of every second or fourth, lie in the same banks.
const TURNED: usize = 16;

/// Partials of a sum in a lane, where 32 have a row.
const PARTIALS: usize = 8;

/// The elements of a lane.
pub type Values = [f32; MOST];

/// A row in the lanes that have it, up to `N` elements in each, the last two of which may be none; it may be none of any tensor.
pub struct Small<const N: usize> {
    /// Which one.
    pub m: u32,
    /// Its elements.
    k: u32,
    /// How many lanes have it, and which of them this is.
    lanes: u32,
    own: u32,
    /// Which of its elements this lane begins with, if it has [`TURNED`].
    turned: Option<u32>,
    /// Where this lane's first element of the mask is.
    mask: Shared<u32>,
}

impl<const N: usize> Small<N> {
    /// Which element of the row this lane's number `i` is.
    #[inline(always)]
    pub fn element(&self, i: usize) -> u32 {
        self.own + self.lanes * place(i, self.turned)
    }

    /// Whether the row has it.
    #[inline(always)]
    pub fn has(&self, i: usize) -> bool {
        i + 2 < N || i < N && (self.turned.is_some() || self.element(i) < self.k)
    }

    /// What the mask has beside it; zero where it is none.
    ///
    /// # Safety
    ///
    /// There is a mask.
    #[inline(always)]
    pub unsafe fn beside<E: Float>(&self, i: usize) -> f32 {
        let on = self.lanes * place(i, self.turned);
        let at = self.mask.byte_add(16 / E::PIECE as u32 * on);
        // SAFETY: an element of it, which came with the row.
        unsafe { read::<E>(at, self.has(i)) }
    }

    /// The largest of the values of all lanes, NaN if one is NaN, in every lane of the row.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn max(&self, v: &Values) -> f32 {
        // Two at a time, which do not wait for each other.
        let mut tops = [v[0], v[1]];
        let mut i = 2;
        while i < N {
            tops[i % 2] = maximum(tops[i % 2], v[i]);
            i += 1;
        }
        let mut top = maximum(tops[0], tops[1]);
        let mut distance = LANES / 2;
        while distance > 0 {
            if distance < self.lanes {
                top = maximum(top, shuffle_xor(top, distance));
            }
            distance /= 2;
        }
        top
    }

    /// A sum over the row, `step(acc, value(i))`, which is plain addition where it `ADDS`, in every lane of the row.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn sum<const ADDS: bool>(
        &self,
        value: impl Fn(usize) -> f32,
        step: impl Fn(f32, f32) -> f32,
    ) -> f32 {
        let one = |acc: f32, i: usize| if self.has(i) { step(acc, value(i)) } else { acc };
        let mut p = [0.0; 2 * PARTIALS];
        let mut i = 0;
        while i < N && i < PARTIALS {
            p[i] = one(0.0, i);
            i += 1;
        }
        let len = PARTIALS;
        // Elements 256 apart are of one partial. A sum of two is the same whether they are of one or of two.
        if (!ADDS && N > len || N > 2 * len) && self.lanes == LANES {
            let mut i = len;
            while i < N {
                p[i % len] = one(p[i % len], i);
                i += 1;
            }
        } else {
            let mut i = len;
            while i < N {
                p[i % (2 * len)] = one(if i < 2 * len { 0.0 } else { p[i % (2 * len)] }, i);
                i += 1;
            }
            let mut i = 0;
            while i < len && i + len < N {
                p[i] += p[i + len];
                i += 1;
            }
        }
        let mut len = len;
        while len > 1 {
            len /= 2;
            let mut i = 0;
            while i < len && i + len < N {
                p[i] += p[i + len];
                i += 1;
            }
        }
        let mut sum = p[0];
        let mut distance = LANES / 2;
        while distance > 0 {
            if distance < self.lanes {
                sum += shuffle_xor(sum, distance);
            }
            distance /= 2;
        }
        sum
    }
}

/// What is made of a row.
pub trait Make {
    /// Most elements of a lane.
    const MOST: usize;

    /// Most words of a lane.
    const WORDS: usize;

    /// Two elements that stand where a row in words has none.
    const NOTHING: u32;

    /// Whether lanes may have rows in words that begin in either half of one.
    const APART: bool;

    /// The output, given this lane's elements of the row.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// The row is one that [`rows`] gave.
    unsafe fn make<const N: usize>(&self, row: Small<N>, x: &Values) -> Values;

    /// The same of a row of 16 bits in words.
    ///
    /// *Convergence*: every lane of the warp calls it.
    ///
    /// # Safety
    ///
    /// As for [`Make::make`].
    unsafe fn make_pairs<const LEAST: usize, const W: usize>(
        &self,
        row: Pairs<LEAST, W>,
        x: Words,
    ) -> Words;
}

/// Which element of a lane number `i` is.
#[inline(always)]
fn place(i: usize, turned: Option<u32>) -> u32 {
    match turned {
        Some(turned) => (i as u32 + turned) % TURNED as u32,
        None => i as u32,
    }
}

/// Which of its elements this lane begins with, where rows that lie in the same banks have so many lanes each, so that lanes of different rows read from
/// different ones. The tree over a row does not see it.
#[inline(always)]
fn turned<E: Float>(lanes: u32) -> u32 {
    let row = lane_id() >> lanes.trailing_zeros();
    match 16 / E::PIECE as u32 * lanes {
        2 => row / 4 * 2,
        4 => row / 2,
        _ => row,
    }
}

/// Whether rows of `k` elements are such ones.
#[inline(always)]
fn turns(k: u32, lanes: u32) -> bool {
    k == TURNED as u32 * lanes && lanes < LANES
}

/// Which element of a row of `k` number `i` of this lane is.
#[inline(always)]
pub fn element<E: Float>(k: u32, of: row::Small, i: usize) -> u32 {
    let lanes = of.lanes(k, 16 / E::PIECE as u32);
    let turned = if turns(k, lanes) && i < TURNED { turned::<E>(lanes) } else { 0 };
    let place = if i < TURNED { place(i, Some(turned)) } else { i as u32 };
    lane_id() % lanes + lanes * place
}

/// An element, or zero.
///
/// # Safety
///
/// If it is `there`, it is one that waits.
#[inline(always)]
unsafe fn read<E: Float>(at: Shared<u32>, there: bool) -> f32 {
    if !there {
        return 0.0;
    }
    // SAFETY: the caller's promise.
    let bits = unsafe { take::<E>(at) };
    E::widen([bits, 0, 0, 0])[0]
}

/// The bits of element `i` of some values of a lane.
#[inline(always)]
fn narrow<E: Float>(v: &Values, i: usize) -> u32 {
    if E::PIECE == 4 {
        return v[i].to_bits();
    }
    let word = E::narrow([v[i & !1], v[i | 1], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
    word >> (16 * (i % 2))
}

/// The tensors of rows.
#[derive(Clone, Copy)]
pub struct Tensors<E> {
    /// Rows.
    pub x: *mut E,
    /// What is added to them first, or null.
    pub delta: *const E,
    /// Rows of which each has one element for each of theirs, row `i % mask_rows` beside row `i`, or null.
    pub mask: *const E,
    /// How many there are.
    pub mask_rows: u32,
    /// Output.
    pub y: *mut E,
}

/// Where rows of a mask wait: those from `first` on of `rows` of so many bytes, and then once more from the first one on.
#[derive(Clone, Copy)]
struct Masks {
    first: u32,
    rows: u32,
    bytes: u32,
}

impl Masks {
    /// Those from `first` on, up to `count`, and the first of them anew, as two parts.
    #[inline(always)]
    fn parts(&self, count: u32) -> [Together; 2] {
        let &Self { first, rows, bytes } = self;
        let again = (first + count).saturating_sub(rows);
        let again = if again < first { again } else { first };
        [Together::new(first, [rows, count], bytes), Together::new(0, [rows, again], bytes)]
    }

    /// Where the first one of all waits, if there are as many that some are anew.
    #[inline(always)]
    fn second(&self) -> u32 {
        let odd = self.first.wrapping_mul(self.bytes) % 16;
        (odd + (self.rows - self.first) * self.bytes).next_multiple_of(16)
    }

    /// Where the one beside row `row` does.
    #[inline(always)]
    fn place(&self, row: u32) -> u32 {
        let &Self { first, rows, bytes } = self;
        let own = (first + row) % rows;
        let odd = first.wrapping_mul(bytes) % 16;
        if own >= first { odd + (own - first) * bytes } else { self.second() + own * bytes }
    }
}

/// The rows of a warp.
struct Rows<E> {
    shape: [u32; 2],
    tensors: Tensors<E>,
    /// How many lie together, and lanes of a row.
    most: u32,
    lanes: u32,
    /// Bytes that they lie in.
    stage: u32,
}

impl<E: Float> Rows<E> {
    /// Bytes of an element.
    const BYTES: u32 = 16 / E::PIECE as u32;

    /// Those from `first` on.
    #[inline(always)]
    fn together(&self, first: u32) -> Together {
        let [m, k] = self.shape;
        Together::new(first, [m, self.most], k * Self::BYTES)
    }

    /// Asks for those from `first` on, if there are any.
    #[inline(always)]
    unsafe fn ask(&self, to: Shared<u32>, first: u32) {
        let ([m, k], Tensors { x, delta, mask, mask_rows, .. }) = (self.shape, self.tensors);
        let bytes = k * Self::BYTES;
        // SAFETY: handed on.
        unsafe {
            if first < m {
                let own = self.together(first);
                own.ask(to, x.cast_const().cast());
                if !delta.is_null() {
                    own.ask(to.byte_add(self.stage), delta.cast());
                }
                if !mask.is_null() {
                    let masks = Masks { first: first % mask_rows, rows: mask_rows, bytes };
                    let (to, [one, other]) = (to.byte_add(self.stage), masks.parts(own.count));
                    one.ask(to, mask.cast());
                    if other.count > 0 {
                        other.ask(to.byte_add(masks.second()), mask.cast());
                    }
                }
            }
        }
        commit_group();
    }

    /// Makes those from `first` on, which wait at `here`, the first one `odd` bytes behind. What decides on the way is the same in all warps, so that
    /// the compiler knows that lanes stay together.
    #[inline(always)]
    unsafe fn each<const N: usize, const ODD: bool>(
        &self,
        here: Shared<u32>,
        (first, odd): (u32, u32),
        make: &impl Make,
    ) {
        let [rows, k] = self.shape;
        let Tensors { mask, mask_rows, .. } = self.tensors;
        // Anew for each length: what all of them have in front would take more registers than there are.
        let lanes = opaque(self.lanes);
        let bits = lanes.trailing_zeros();
        let own = lane_id() & (lanes - 1);
        let bytes = k * Self::BYTES;
        let mut row = lane_id() >> bits;
        let mut at = here.byte_add(odd + row * bytes + Self::BYTES * own);
        let mut turn = 0;
        // SAFETY: rows of this warp, and elements of this lane.
        unsafe {
            while turn < self.most {
                let m = first + row;
                let there = m < rows;
                let mut beside = here;
                if !mask.is_null() {
                    let masks = Masks { first: first % mask_rows, rows: mask_rows, bytes };
                    beside = here.byte_add(self.stage + masks.place(row) + Self::BYTES * own);
                }
                let turned = || if ODD { None } else { Some(turned::<E>(opaque(lanes))) };
                let lanes_here = opaque(lanes);
                let small =
                    Small::<N> { m, k, lanes: lanes_here, own, turned: turned(), mask: beside };
                let step = Self::BYTES * lanes;
                let mut x = [0.0; MOST];
                let mut i = 0;
                while i < N {
                    x[i] = read::<E>(at.byte_add(step * place(i, small.turned)), small.has(i));
                    i += 1;
                }
                sync_warp();
                let has = [N - 2, N - 1].map(|i| small.has(i));
                let y = make.make::<N>(small, &x);
                let (step, turned) = (opaque(step), turned());
                let mut i = 0;
                while i < N {
                    if there && (i + 2 < N || has[i + 2 - N]) {
                        put::<E>(at.byte_add(step * place(i, turned)), narrow::<E>(&y, i));
                    }
                    i += 1;
                }
                row += LANES >> bits;
                turn = opaque(turn + (LANES >> bits));
                at = at.byte_add(bytes << (LANES.trailing_zeros() - bits));
            }
        }
    }

    /// Makes those from `first` on, which wait at `here`.
    #[inline(always)]
    unsafe fn make<M: Make>(&self, here: Shared<u32>, of: (u32, u32), make: &M) {
        // SAFETY: handed on.
        unsafe {
            match self.shape[1].div_ceil(self.lanes) {
                16 if turns(self.shape[1], self.lanes) => {
                    self.each::<TURNED, false>(here, of, make)
                }
                ..=2 => self.each::<2, true>(here, of, make),
                ..=4 => self.each::<4, true>(here, of, make),
                ..=6 => self.each::<6, true>(here, of, make),
                ..=8 => self.each::<8, true>(here, of, make),
                ..=10 => self.each::<10, true>(here, of, make),
                ..=12 => self.each::<12, true>(here, of, make),
                ..=14 => self.each::<14, true>(here, of, make),
                17..=18 if M::MOST > 16 => self.each::<18, true>(here, of, make),
                19.. if M::MOST > 16 => self.each::<20, true>(here, of, make),
                _ => self.each::<16, true>(here, of, make),
            }
        }
    }
}

/// The rows of this warp, of `m` of `k` elements, all of whose tensors start on boundaries of 16 bytes; `IN_WORDS` are those that [`row::Small::paired`] has.
/// A residual is added by `sum`.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The tensors have the rows, as `x` is written with a residual and `y` always; block, grid and shared memory are the contract's.
#[inline(always)]
pub unsafe fn rows<E: Float, M: Make, const IN_WORDS: bool>(
    [m, k]: [u32; 2],
    of: row::Small,
    tensors: Tensors<E>,
    sum: impl Fn(X4<u32>, X4<u32>) -> X4<u32>,
    make: &M,
) {
    let bytes = Rows::<E>::BYTES;
    let (most, stage) = (of.rows(k, bytes), of.stage_bytes(k, bytes));
    let adds = !tensors.delta.is_null();
    let rows = Rows::<E> { shape: [m, k], tensors, most, lanes: of.lanes(k, bytes), stage };
    let own = stage * if adds || !tensors.mask.is_null() { 4 } else { 2 };
    let mut here = dynamic_shared_mem::<u32>().byte_add(warp_id() * own).kept();
    let mut other = here.byte_add(own / 2);
    let mut first = (block_idx_x() * WARPS + warp_id()) * most;
    let step = || opaque(grid_dim_x()) * WARPS * most;
    // SAFETY: handed on. What one lane puts down another reads behind a meeting of the warp, and rows take turns in two places.
    unsafe {
        rows.ask(here, first);
        while first < m {
            rows.ask(other, first + step());
            wait_group::<1>();
            sync_warp();
            let own = rows.together(first);
            if adds {
                let mut on = 16 * opaque(lane_id());
                while on < own.end {
                    let at = here.byte_add(on);
                    at.write_x4(sum(at.read_x4(), at.byte_add(stage).read_x4()));
                    on = opaque(on + 16 * LANES);
                }
                sync_warp();
                own.write::<E>(here, tensors.x.cast());
                sync_warp();
            }
            if IN_WORDS {
                rows.make_pairs(here, (first, own.odd), make);
            } else {
                rows.make(here, (first, own.odd), make);
            }
            sync_warp();
            // Anew, as it takes registers.
            rows.together(opaque(first)).write::<E>(here, tensors.y.cast());
            sync_warp();
            (here, other) = (other, here);
            first = opaque(first) + step();
        }
    }
}
