//! Elements over threads, as [`contract::stream`] states it.
//!
//! A block in the midst of one long row has no ends to look for, and is most of them: a thread takes [`PIECES`]
//! pieces, one block width apart, so that an access of a warp is 512 bytes side by side, in batches of which all
//! loads are issued before the first value is used. Other blocks take piece after piece of the output, whatever rows these lie in: what of an input
//! lies beside one begins anywhere, and comes in the two pieces that it is in.

use contract::stream::{BATCH, PIECES, THREADS};

use crate::arch::mem::{X4, ld_x4, st_x4};
use crate::arch::thread::{block_idx_x, opaque, thread_idx_x};
use crate::float::{Float, Piece, window};

/// Pieces of a batch.
const N: usize = BATCH as usize;

/// What is made of the pieces of two tensors.
pub trait Function {
    /// The output; `b` is zeros where there is no second tensor.
    fn apply<E: Float>(&self, a: Piece, b: Piece) -> Piece;
}

/// A tensor of rows, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Rows<E> {
    /// The first element, or null.
    pub start: *const E,
    /// Elements from row to row.
    pub stride: u64,
}

/// `rows` of `k` elements of one tensor or two, and of the output.
pub struct Tensors<E> {
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub k: u64,
    /// Whether every row starts on a boundary of 16 bytes.
    pub aligned: bool,
    /// The first tensor.
    pub a: Rows<E>,
    /// The second, or null.
    pub b: Rows<E>,
    /// The output, contiguous.
    pub y: *mut E,
}

impl<E: Float> Tensors<E> {
    /// Writes `f` of this thread's pieces.
    ///
    /// # Safety
    ///
    /// The inputs are readable, and nobody writes them meanwhile; the output is writable, and nobody else accesses
    /// it; `aligned` tells the truth; block and grid are the contract's.
    #[inline(always)]
    pub unsafe fn each(&self, f: &impl Function) {
        let first = u64::from(block_idx_x()) * u64::from(THREADS * PIECES);
        let midst = first + u64::from(THREADS * PIECES) <= self.k / E::PIECE as u64;
        // SAFETY: handed on; in the midst, every piece is whole.
        unsafe {
            if self.rows == 1 && self.aligned && midst {
                self.batches(first, f);
            } else {
                self.one_by_one(first, f);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Tensors::each`]; all pieces of the block, of which `block` is the first, are whole, and in one row.
    #[inline(always)]
    unsafe fn batches(&self, block: u64, f: &impl Function) {
        let mut own = thread_idx_x();
        while own < THREADS * PIECES {
            let at = (block + u64::from(own)) as usize * E::PIECE;
            let place = |i: usize| at + THREADS as usize * i * E::PIECE;
            let load = |start: *const E| -> [X4<u32>; N] {
                // SAFETY: whole pieces of an aligned row.
                core::array::from_fn(|i| unsafe { ld_x4(start.wrapping_add(place(i)).cast()) })
            };
            let a = load(self.a.start);
            let b = if self.b.start.is_null() { [[0; 4]; N] } else { load(self.b.start) };
            let mut i = 0;
            while i < N {
                let y = E::narrow(f.apply::<E>(E::widen(a[i]), E::widen(b[i])));
                // SAFETY: as above; the pieces of different threads are disjoint.
                unsafe { st_x4(self.y.wrapping_add(place(i)).cast(), y) };
                i += 1;
            }
            own = opaque(own + THREADS * BATCH);
        }
    }

    /// # Safety
    ///
    /// As for [`Tensors::each`]; `block` is the block's first piece.
    #[inline(always)]
    unsafe fn one_by_one(&self, block: u64, f: &impl Function) {
        let (rows, k, width) = (self.rows, self.k, E::PIECE as u64);
        let (all, block) = (rows * k, block * width);
        // Divisions of 64 bits are subroutines: one row needs none, and few tensors more than the one of 32 bits.
        let (row, first) = if rows == 1 {
            (0, block)
        } else if (block | k) >> 32 == 0 {
            (u64::from(block as u32 / k as u32), u64::from(block as u32 % k as u32))
        } else {
            (block / k, block % k)
        };
        let mut own = thread_idx_x();
        while own < THREADS * PIECES {
            let on = u64::from(own) * width;
            let (mut row, mut at) = (row, first + on);
            if rows != 1 && at >= k {
                // Rows are shorter than 2^31 where there are several, so this fits 32 bits.
                let (j, k) = (at as u32, k as u32);
                row += u64::from(j / k);
                at = u64::from(j % k);
            }
            if block + on < all {
                let left = all - block - on;
                let len = if left < width { left as u32 } else { E::PIECE as u32 };
                // SAFETY: elements of the tensors; the pieces of different threads are disjoint.
                unsafe {
                    let (a, b) = (self.load(self.a, row, at, len), self.load(self.b, row, at, len));
                    let y = E::narrow(f.apply::<E>(E::widen(a), E::widen(b)));
                    let p = self.y.wrapping_add((block + on) as usize);
                    if len == E::PIECE as u32 && (p as usize).is_multiple_of(16) {
                        st_x4(p.cast(), y);
                    } else {
                        E::scatter(p, len, y);
                    }
                }
            }
            own = opaque(own + THREADS);
        }
    }

    /// The first `len` elements of a piece from element `at` of a row on, which may go on in the next ones.
    ///
    /// # Safety
    ///
    /// They are elements of the tensor.
    #[inline(always)]
    unsafe fn load(&self, Rows { start, stride }: Rows<E>, row: u64, at: u64, len: u32) -> X4<u32> {
        if start.is_null() {
            return [0; 4];
        }
        let p = start.wrapping_add((row * stride + at) as usize);
        if self.aligned && len == E::PIECE as u32 {
            // SAFETY: a whole piece of a row.
            return unsafe { ld_x4(p.cast()) };
        }
        let odd = p as usize % 16;
        let front = p.cast::<u8>().wrapping_sub(odd);
        let end = start.wrapping_add(((self.rows - 1) * stride + self.k) as usize).cast();
        // SAFETY: pieces of the tensor, or elements.
        unsafe {
            if len == E::PIECE as u32 && at + E::PIECE as u64 <= self.k {
                if odd == 0 {
                    return ld_x4(front.cast());
                }
                if E::PIECE == 4 {
                    return E::gather(p, len);
                }
                if front >= start.cast() && front.wrapping_add(32) <= end {
                    let (low, high) = (ld_x4(front.cast()), ld_x4(front.wrapping_add(16).cast()));
                    return window(low, high, odd as u32);
                }
            }
            let (mut p, mut left) = (p, self.k - at);
            let mut raw = [0; 4];
            let mut i = 0;
            while i < E::PIECE {
                let bits = E::load_bits_if((i as u32) < len, p);
                if E::PIECE == 4 {
                    raw[i] = bits
                } else {
                    raw[i / 2] |= bits << (16 * (i % 2))
                }
                (p, left) = (p.wrapping_add(1), left - 1);
                if left == 0 {
                    (p, left) = (p.wrapping_add(stride.wrapping_sub(self.k) as usize), self.k);
                }
                i += 1;
            }
            raw
        }
    }
}

/// Applies a function to each value of a piece.
#[inline(always)]
pub fn map<E: Float>(values: Piece, f: impl Fn(usize, f32) -> f32) -> Piece {
    let mut out = [0.0; 8];
    let mut i = 0;
    while i < E::PIECE {
        out[i] = f(i, values[i]);
        i += 1;
    }
    out
}
