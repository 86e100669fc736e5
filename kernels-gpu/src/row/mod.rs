//! Rows over threads, as [`contract::row`] states it: by warps (`T` = 32) or by blocks (`T` = 256).
//!
//! A row is loaded into shared memory in pieces of 16 bytes where it starts on such a boundary, else one
//! by one ([`Row::fill`]); every thread then walks over the elements of its own partials
//! ([`Row::walk`], and [`Row::far`] over those behind the held ones), and the output leaves as the
//! input came ([`Row::drain`]).

mod reduce;

use contract::row::{HELD, SHORT, SMEM_BYTES, THREADS};

use crate::arch::block;
use crate::arch::mem::{X4, ld_or_zero_x4, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, sync_warp, warp_id};
use crate::float::{Float, Piece};

pub use reduce::{Partials, max};

const _: () = assert!(THREADS == block::THREADS);
const _: () = assert!(SMEM_BYTES == 4 * (HELD + 2 * THREADS + block::WARPS));
const _: () = assert!(HELD == SHORT * block::WARPS);

/// A row that belongs to a warp.
pub const WARP: u32 = 32;
/// A row that belongs to a block.
pub const BLOCK: u32 = THREADS;
/// Elements of a thread that are loaded, or walked over, at a time.
const AT_ONCE: usize = 8;
/// Single elements of a thread that are loaded at a time.
const ONES: usize = 4;

/// The row of this warp or block.
#[derive(Clone, Copy)]
pub struct Row<const T: u32> {
    /// Which one.
    pub m: u32,
    /// Elements.
    pub k: u32,
    /// Elements that are held.
    held: u32,
    /// Where they are held.
    buf: Shared<f32>,
    /// Whether it is read and written in pieces.
    aligned: bool,
}

impl<const T: u32> Row<T> {
    /// The row of `k` elements of this warp or block, unless there are only `rows`. `tensors` are the
    /// addresses of everything that is read and written beside it, null where there is nothing.
    #[inline(always)]
    pub fn new<E: Float>(rows: u32, k: u32, tensors: &[u64]) -> Option<Self> {
        let warp = T == WARP;
        let m = if warp { block_idx_x() * block::WARPS + warp_id() } else { block_idx_x() };
        let mut aligned = (k as usize).is_multiple_of(E::PIECE);
        let mut i = 0;
        while i < tensors.len() {
            aligned &= tensors[i].is_multiple_of(16);
            i += 1;
        }
        let (first, room) = if warp { (SHORT * warp_id(), SHORT) } else { (0, HELD) };
        let buf = dynamic_shared_mem::<f32>().add(first);
        if m < rows { Some(Self { m, k, held: k.min(room), buf, aligned }) } else { None }
    }

    /// Index of the first element of the row in its tensor.
    #[inline(always)]
    pub fn start(&self) -> usize {
        self.m as usize * self.k as usize
    }

    #[inline(always)]
    fn own(&self) -> u32 {
        if T == WARP { lane_id() } else { thread_idx_x() }
    }

    /// Whether the row is loaded and written in pieces.
    #[inline(always)]
    pub fn in_pieces(&self) -> bool {
        self.aligned
    }

    /// Loads the held elements of a row in pieces by `raw(inside, first)`, `PIECES` of a thread at a time;
    /// `piece(first, raw)` gives the values.
    ///
    /// # Safety
    ///
    /// The block has `contract::row::SMEM_BYTES` of shared memory; the row is [`Row::in_pieces`].
    #[inline(always)]
    pub unsafe fn fill<E: Float, R: Copy, const PIECES: usize>(
        &self,
        nothing: R,
        raw: impl Fn(bool, u32) -> R,
        mut piece: impl FnMut(u32, R) -> Piece,
    ) {
        let step = T * E::PIECE as u32;
        let mut start = self.own() * E::PIECE as u32;
        while start < self.held {
            let first = |i: usize| start + step * i as u32;
            let mut raws = [nothing; PIECES];
            let mut i = 0;
            while i < PIECES {
                raws[i] = raw(first(i) < self.held, first(i));
                i += 1;
            }
            let mut i = 0;
            while i < PIECES {
                if first(i) < self.held {
                    let [a, b, c, d, e, f, g, h] = piece(first(i), raws[i]);
                    let to = self.buf.add(first(i));
                    // SAFETY: a piece of the held elements, which are whole pieces of the row.
                    unsafe {
                        to.write_x4([a, b, c, d]);
                        if E::PIECE == 8 {
                            to.add(4).write_x4([e, f, g, h]);
                        }
                    }
                }
                i += 1;
            }
            start = opaque(start + PIECES as u32 * step);
        }
    }

    /// Loads the held elements one by one, by `one(i)`.
    ///
    /// # Safety
    ///
    /// The block has `contract::row::SMEM_BYTES` of shared memory.
    #[inline(always)]
    pub unsafe fn fill_ones(&self, mut one: impl FnMut(u32) -> f32) {
        let mut i = self.own();
        while i < self.held {
            let mut values = [0.0; ONES];
            let mut u = 0;
            while u < ONES {
                let i = i + T * u as u32;
                values[u] = if i < self.held { one(i) } else { 0.0 };
                u += 1;
            }
            let mut u = 0;
            while u < ONES {
                let i = i + T * u as u32;
                if i < self.held {
                    // SAFETY: a held element.
                    unsafe { self.buf.add(i).write(values[u]) };
                }
                u += 1;
            }
            i = opaque(i + ONES as u32 * T);
        }
    }

    /// Waits for the other threads of the row.
    ///
    /// *Convergence*: every thread of the warp or block calls it.
    #[inline(always)]
    pub fn wait(&self) {
        if T == WARP { sync_warp() } else { sync_threads() }
    }

    /// Walks over the held elements of this thread's partials: `each(turn, value, place)`.
    ///
    /// # Safety
    ///
    /// After [`Row::wait`].
    #[inline(always)]
    pub unsafe fn walk(&self, mut each: impl FnMut(usize, f32, Shared<f32>)) {
        let mut i = self.own();
        // As long as all of a batch are there; then the rest, one test each.
        while i + T * (AT_ONCE as u32 - 1) < self.held {
            let mut values = [0.0; AT_ONCE];
            let mut u = 0;
            while u < AT_ONCE {
                // SAFETY: a held element.
                values[u] = unsafe { self.buf.add(i + T * u as u32).read() };
                u += 1;
            }
            let mut u = 0;
            while u < AT_ONCE {
                each(u, values[u], self.buf.add(i + T * u as u32));
                u += 1;
            }
            i = opaque(i + T * AT_ONCE as u32);
        }
        let mut u = 0;
        while u < AT_ONCE {
            let place = i + T * u as u32;
            if place < self.held {
                // SAFETY: a held element.
                each(u, unsafe { self.buf.add(place).read() }, self.buf.add(place));
            }
            u += 1;
        }
    }

    /// The same over the elements that are not held, read by `load(inside, i)`: `each(i, value)`. There
    /// are none in a row of a warp.
    #[inline(always)]
    pub fn far(&self, load: impl Fn(bool, u32) -> f32, mut each: impl FnMut(u32, f32)) {
        let mut first = HELD + self.own();
        while T == BLOCK && first < self.k {
            let mut values = [0.0; AT_ONCE];
            let mut u = 0;
            while u < AT_ONCE {
                let i = first + T * u as u32;
                values[u] = load(i < self.k, i);
                u += 1;
            }
            let mut u = 0;
            while u < AT_ONCE {
                let i = first + T * u as u32;
                if i < self.k {
                    each(i, values[u]);
                }
                u += 1;
            }
            first = opaque(first + T * AT_ONCE as u32);
        }
    }

    /// Writes the held elements: `piece(first, values)` for pieces, or `one(i, value)`, rounded to `y`.
    ///
    /// # Safety
    ///
    /// After [`Row::fill`] and a wait for what was changed since. `y` is the row's first output; the
    /// held ones belong to these threads.
    #[inline(always)]
    pub unsafe fn drain<E: Float>(
        &self,
        y: *mut E,
        piece: impl Fn(u32, Piece) -> Piece,
        one: impl Fn(u32, f32) -> f32,
    ) {
        if self.aligned {
            let step = T * E::PIECE as u32;
            let write = |first: u32| {
                let from = self.buf.add(first);
                // SAFETY: a piece of the held elements; y[m, first ..] is aligned to 16.
                unsafe {
                    let [a, b, c, d] = from.read_x4();
                    let [e, f, g, h] = if E::PIECE == 8 { from.add(4).read_x4() } else { [0.0; 4] };
                    let values = piece(first, [a, b, c, d, e, f, g, h]);
                    st_x4(y.wrapping_add(first as usize).cast(), E::narrow(values));
                }
            };
            let mut first = self.own() * E::PIECE as u32;
            while first < self.held {
                write(first);
                if first + step < self.held {
                    write(first + step);
                }
                first = opaque(first + 2 * step);
            }
        } else {
            let mut i = self.own();
            while i < self.held {
                // SAFETY: a held element, and its output.
                unsafe {
                    let value = one(i, self.buf.add(i).read());
                    E::store(y.wrapping_add(i as usize), value);
                }
                i = opaque(i + T);
            }
        }
    }
}

/// Sixteen bytes from element `first` on, zeros when `inside` does not hold.
///
/// # Safety
///
/// When `inside`: a readable piece of an aligned row that nobody writes meanwhile.
#[inline(always)]
pub unsafe fn piece_if<E: Float>(inside: bool, row: *const E, first: u32) -> X4<u32> {
    // SAFETY: the caller's promise.
    unsafe { ld_or_zero_x4(inside, row.wrapping_add(first as usize).cast()) }
}

/// One function for each element of a piece, told its index in the row.
#[inline(always)]
pub fn map<E: Float>(first: u32, values: Piece, mut f: impl FnMut(u32, f32) -> f32) -> Piece {
    let mut out = [0.0; 8];
    let mut i = 0;
    while i < E::PIECE {
        out[i] = f(first + i as u32, values[i]);
        i += 1;
    }
    out
}
