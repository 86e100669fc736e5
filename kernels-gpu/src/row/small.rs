//! The shortest rows: a block has some of them side by side in shared memory, where they come and go by the pieces that they lie in together.
//!
//! Up to 32 lanes have a row, each up to eight of its elements, as far apart as there are lanes: a partial of a sum is one element. Rows of up to four
//! are a lane's, several at a time.
#![cfg_attr(not(level_sm_80), allow(dead_code))]

use contract::row::{SMALL_LEN, THREADS, small_beside, small_lanes, small_rows};

use crate::arch::float::maximum;
use crate::arch::mem::{X4, ld_x4, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, sync_threads, thread_idx_x};
use crate::arch::warp::{shuffle_xor, warp_id};
use crate::float::{Float, Piece};

/// Elements of a lane.
const LEN: usize = SMALL_LEN as usize;

/// Bytes of the rows that are side by side: a word more for each 32, so that lanes of neighbouring rows reach all banks.
const BYTES: u32 = 4 * SMALL_LEN * THREADS / 32 * 33;

/// A row in the lanes that have it, up to `N` elements in each; it may be none of any tensor.
#[derive(Clone, Copy)]
pub struct Small<E, const N: usize> {
    /// Which one.
    pub m: u32,
    /// Its elements; 0 where there is no such row.
    pub k: u32,
    /// How many lanes have it, and which of them this is.
    lanes: u32,
    own: u32,
    /// Where the rows of the block are, and this lane's first element among theirs.
    area: Shared<u32>,
    first: u32,
    element: core::marker::PhantomData<E>,
}

impl<E: Float, const N: usize> Small<E, N> {
    /// Bytes of an element.
    const BYTES: u32 = 16 / E::PIECE as u32;

    /// Where element `e` of the rows of the block is.
    #[inline(always)]
    fn place(area: Shared<u32>, e: u32) -> Shared<u32> {
        let bytes = Self::BYTES * e;
        area.byte_add(bytes + bytes / 128 * 4)
    }

    /// The same of this one.
    #[inline(always)]
    pub fn element(&self, i: usize) -> u32 {
        self.own + self.lanes * i as u32
    }

    /// Whether the row has it.
    #[inline(always)]
    pub fn has(&self, i: usize) -> bool {
        self.element(i) < self.k
    }

    /// This lane's elements, zeros where there are none.
    #[inline(always)]
    unsafe fn get(&self) -> Piece {
        core::array::from_fn(|i| {
            if i >= N || !self.has(i) {
                return 0.0;
            }
            let at = Self::place(self.area, self.first + self.lanes * i as u32);
            // SAFETY: an element of a row of the block.
            let bits = unsafe {
                if E::PIECE == 4 { at.read() } else { u32::from(at.cast::<u16>().read_u16()) }
            };
            E::widen([bits, 0, 0, 0])[0]
        })
    }

    /// Puts this lane's elements of the output where those of the row were.
    ///
    /// # Safety
    ///
    /// The row is one that [`rows`] gave.
    #[inline(always)]
    pub unsafe fn put(&self, [a, b, c, d, e, f, g, h]: Piece) {
        let low = E::narrow([a, b, c, d, e, f, g, h]);
        let high = E::narrow([e, f, g, h, 0.0, 0.0, 0.0, 0.0]);
        let mut i = 0;
        while i < N {
            if self.has(i) {
                let at = Self::place(self.area, self.first + self.lanes * i as u32);
                // SAFETY: an element of this lane.
                unsafe {
                    if E::PIECE == 8 {
                        at.cast::<u16>().write_u16((low[i / 2] >> (16 * (i % 2))) as u16);
                    } else {
                        at.write(if i < 4 { low[i] } else { high[i - 4] });
                    }
                }
            }
            i += 1;
        }
    }

    /// The largest of the values of all lanes, NaN if one is NaN, in every lane of the row.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn max(&self, v: Piece) -> f32 {
        let mut top = v[0];
        let mut i = 1;
        while i < N {
            top = maximum(top, v[i]);
            i += 1;
        }
        let mut distance = self.lanes / 2;
        while distance > 0 {
            top = maximum(top, shuffle_xor(top, distance));
            distance = opaque(distance / 2);
        }
        top
    }

    /// The tree over the partials of all lanes, zeros where there is no element, in every lane of the row.
    ///
    /// *Convergence*: every lane of the warp calls it.
    #[inline(always)]
    pub fn tree(&self, mut p: Piece) -> f32 {
        let mut len = N;
        while len > 1 {
            len /= 2;
            let mut i = 0;
            while i < len {
                p[i] += p[i + len];
                i += 1;
            }
        }
        let mut distance = self.lanes / 2;
        while distance > 0 {
            p[0] += shuffle_xor(p[0], distance);
            distance = opaque(distance / 2);
        }
        p[0]
    }
}

/// Where such rows belong to warps, as before sm_80, whose compilers have no registers for them: the first of this warp, and where those of the block end.
#[inline(always)]
pub fn warp_rows([m, k]: [u32; 2]) -> (u32, u32) {
    let all = small_rows(m, k);
    let first = block_idx_x() * all;
    (first + warp_id(), if m - first < all { m } else { first + all })
}

/// Which element of a row of `k` number `i` of this lane is.
#[inline(always)]
pub fn element(k: u32, i: usize) -> u32 {
    let lanes = small_lanes(k);
    thread_idx_x() % lanes + lanes * i as u32
}

/// Pieces that a thread reads and writes at a time.
type Pieces = [X4<u32>; 2];

/// The rows of a tensor that a block has side by side.
struct Together {
    /// The first element of all.
    start: usize,
    /// How many there are.
    len: u32,
}

impl Together {
    /// This thread's pieces of them: `each(i, on, len)` for elements `len` of piece `i`, which is `on` elements behind the start.
    #[inline(always)]
    fn each<E: Float>(&self, mut each: impl FnMut(usize, u32, u32)) {
        let width = E::PIECE as u32;
        let mut i = 0;
        while i < LEN / E::PIECE {
            let on = width * (thread_idx_x() + THREADS * i as u32);
            if on < self.len {
                let left = self.len - on;
                each(i, on, if left < width { left } else { width });
            }
            i += 1;
        }
    }

    /// Loads them.
    ///
    /// # Safety
    ///
    /// They are elements of the tensor; nobody else writes them meanwhile.
    #[inline(always)]
    unsafe fn load<E: Float>(&self, p: *const E) -> Pieces {
        let mut raw = [[0; 4]; 2];
        self.each::<E>(|i, on, len| {
            let p = p.wrapping_add(self.start + on as usize);
            // SAFETY: the caller's promise.
            raw[i] = unsafe {
                if len == E::PIECE as u32 && (p as usize).is_multiple_of(16) {
                    ld_x4(p.cast())
                } else {
                    E::gather(p, len)
                }
            };
        });
        raw
    }

    /// Writes one.
    ///
    /// # Safety
    ///
    /// As for [`Together::load`], and they belong to this thread.
    #[inline(always)]
    unsafe fn store<E: Float>(&self, p: *mut E, on: u32, len: u32, raw: X4<u32>) {
        let p = p.wrapping_add(self.start + on as usize);
        // SAFETY: the caller's promise.
        unsafe {
            if len == E::PIECE as u32 && (p as usize).is_multiple_of(16) {
                st_x4(p.cast(), raw);
            } else {
                E::scatter(p, len, raw);
            }
        }
    }
}

/// The rows of a block, of `m` of `k` elements: `make(row, v)` for each and this lane's elements of it, which has [`Small::put`] put down those of the
/// output `y`. A residual is added first, where there is one, by `sum`.
///
/// *Convergence*: every thread of the block calls it, and `make` is called by whole warps.
///
/// # Safety
///
/// The tensors have the rows, as `x` is written with a residual and `y` always; block, grid and shared memory are the contract's.
#[inline(always)]
pub unsafe fn rows<E: Float, const N: usize>(
    [m, k]: [u32; 2],
    (x, delta, y): (*mut E, *const E, *mut E),
    sum: impl Fn(X4<u32>, X4<u32>) -> X4<u32>,
    mut make: impl FnMut(Small<E, N>, Piece),
) {
    // What other ways of a kernel have of the same would take their registers.
    let [m, k] = [opaque(m), opaque(k)];
    let lanes = small_lanes(k);
    let beside = small_beside(k);
    let (all, t) = (small_rows(m, k), thread_idx_x());
    let own = t / lanes;
    let mut first = block_idx_x() * all;
    let end = if m - first < all { m } else { first + all };
    let together = |first: u32| {
        let left = end.saturating_sub(first);
        let rows = if left < beside { left } else { beside };
        Together { start: first as usize * k as usize, len: rows * k }
    };
    let mut area = dynamic_shared_mem::<u32>();
    let other = area.byte_add(BYTES);
    let mut other = other;
    // SAFETY: handed on. Barriers stand between what one thread puts down and another reads, and rows side by side take turns in two places.
    unsafe {
        let mut here = together(first);
        let (mut raw, mut added) = (here.load(x.cast_const()), [[0; 4]; 2]);
        if !delta.is_null() {
            added = here.load(delta);
        }
        while first < end {
            here.each::<E>(|i, on, len| {
                if !delta.is_null() {
                    raw[i] = sum(raw[i], added[i]);
                    here.store(x, on, len, raw[i]);
                }
                let at = Small::<E, N>::place(area, on);
                let mut word = 0;
                while word < 4 {
                    at.add(word as u32).write(raw[i][word]);
                    word += 1;
                }
            });
            let next = together(first + beside);
            raw = next.load(x.cast_const());
            if !delta.is_null() {
                added = next.load(delta);
            }
            sync_threads();
            let mut turn = 0;
            while turn < LEN / N {
                let own = own + THREADS / lanes * turn as u32;
                let row = Small {
                    m: first + own,
                    k: if first + own < end { k } else { 0 },
                    lanes,
                    own: t % lanes,
                    area,
                    first: own * k + t % lanes,
                    element: core::marker::PhantomData,
                };
                let v = row.get();
                make(row, v);
                turn += 1;
            }
            sync_threads();
            here.each::<E>(|_, on, len| {
                let at = Small::<E, N>::place(area, on);
                let raw = core::array::from_fn(|word| at.add(word as u32).read());
                here.store(y, on, len, raw);
            });
            (area, other) = (other, area);
            here = next;
            first = opaque(first + beside);
        }
    }
}
