//! Elements over threads, as [`contract::stream`] states it.
//!
//! A thread takes [`PIECES`] pieces, one block width apart, so that an access of a warp is 512 bytes side
//! by side; they come in batches, of which all loads are issued before the first value is used. A block in the
//! midst of one long row has no ends to look for, and is most of them.

use contract::stream::{BATCH, PIECES, THREADS};

use crate::arch::mem::{X4, ld_x4, st_x4};
use crate::arch::thread::{block_idx_x, opaque, thread_idx_x};
use crate::float::{Float, Piece};

/// Pieces of a batch.
const N: usize = BATCH as usize;

/// The pieces of a batch of this thread: where they lie, and how they are read.
pub struct Pieces {
    row: [u64; N],
    at: [u64; N],
    /// Elements of each; 0 past the end of the tensor.
    len: [u32; N],
    /// All are whole, and every row starts on a boundary of 16 bytes.
    whole: bool,
}

/// A tensor of rows, `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Rows<E> {
    /// The first element.
    pub start: *const E,
    /// Elements from row to row.
    pub stride: u64,
}

/// Runs `body` on each batch of this thread, of `rows` of `k` elements of `E`.
#[inline(always)]
pub fn batches<E: Float>(rows: u64, k: u64, aligned: bool, mut body: impl FnMut(&Pieces)) {
    let block = u64::from(block_idx_x()) * u64::from(THREADS * PIECES);
    let midst = rows == 1 && aligned && block + u64::from(THREADS * PIECES) <= k / E::PIECE as u64;
    let per_row = k.div_ceil(E::PIECE as u64);
    // Divisions of 64 bits are subroutines: one row needs none, and few tensors more than the one of
    // 32 bits.
    let (first_row, first) = if midst || rows == 1 {
        (0, block)
    } else if (block | per_row) >> 32 == 0 {
        (u64::from(block as u32 / per_row as u32), u64::from(block as u32 % per_row as u32))
    } else {
        (block / per_row, block % per_row)
    };
    let mut own = thread_idx_x();
    while own < THREADS * PIECES {
        let mut pieces = Pieces { row: [0; N], at: [0; N], len: [0; N], whole: aligned };
        let mut i = 0;
        while i < N {
            let mut piece = first + u64::from(own + THREADS * i as u32);
            if midst {
                pieces.at[i] = piece * E::PIECE as u64;
                i += 1;
                continue;
            }
            let mut row = first_row;
            if rows != 1 && piece >= per_row {
                // Rows are shorter than 2^31 where there are several, so this fits 32 bits.
                let (j, per_row) = (piece as u32, per_row as u32);
                row += u64::from(j / per_row);
                piece = u64::from(j % per_row);
            }
            let at = piece * E::PIECE as u64;
            let left = if row < rows && at < k { k - at } else { 0 };
            pieces.row[i] = row;
            pieces.at[i] = at;
            pieces.len[i] = left.min(E::PIECE as u64) as u32;
            pieces.whole &= left >= E::PIECE as u64;
            i += 1;
        }
        body(&pieces);
        own = opaque(own + THREADS * BATCH);
    }
}

impl Pieces {
    #[inline(always)]
    fn index(&self, i: usize, stride: u64) -> usize {
        (self.row[i] * stride + self.at[i]) as usize
    }

    /// Reads the pieces of a tensor.
    ///
    /// # Safety
    ///
    /// The tensor has the rows and elements that [`batches`] was told, readable, which nobody writes
    /// meanwhile; `aligned` was true only if they start on boundaries of 16 bytes.
    #[inline(always)]
    pub unsafe fn load<E: Float>(&self, from: Rows<E>) -> [X4<u32>; N] {
        let p = |i: usize| from.start.wrapping_add(self.index(i, from.stride));
        if self.whole {
            // SAFETY: whole pieces of aligned rows.
            core::array::from_fn(|i| unsafe { ld_x4(p(i).cast()) })
        } else {
            // SAFETY: `len` elements from `at` on lie in the row.
            core::array::from_fn(|i| unsafe { E::gather(p(i), self.len[i]) })
        }
    }

    /// Rounds and writes the pieces of a tensor.
    ///
    /// # Safety
    ///
    /// As for [`Pieces::load`], writable, and nobody reads it meanwhile.
    #[inline(always)]
    pub unsafe fn store<E: Float>(&self, y: *mut E, stride: u64, value: impl Fn(usize) -> Piece) {
        let mut i = 0;
        while i < N {
            let p = y.wrapping_add(self.index(i, stride));
            let raw = E::narrow(value(i));
            // SAFETY: as in `load`; the pieces of different threads are disjoint.
            unsafe {
                if self.whole { st_x4(p.cast(), raw) } else { E::scatter(p, self.len[i], raw) }
            }
            i += 1;
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

/// Pieces of a tensor that is not there.
pub const NOTHING: [X4<u32>; N] = [[0; 4]; N];
