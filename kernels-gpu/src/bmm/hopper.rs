//! bf16 and f16 on a Hopper GPU's tensor cores: [`crate::tile::hopper`] with slices of plain
//! matrices, 16 bytes a copy.

use contract::bmm::{Args, Matrix};

use super::source::Float;
use super::write::write;
use crate::arch::async_copy::copy_x16;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::wgmma::swizzle;
use crate::tile::hopper::{
    B_BYTES, BLOCK_BYTES, COLUMNS, DEPTH, Half, PARKED_ROW, ROWS, THREADS, begin, multiply, park,
};
use crate::tile::walk::tile_at;

/// Elements of a copy.
const PIECE: u32 = 8;

/// What a thread copies of each slice of one factor: `COPIES` pieces of 16 bytes, in rows that are
/// a multiple of 8 apart, so that their swizzle is the same.
struct Part<const COPIES: u32> {
    /// The first piece of the next slice.
    p: *const u16,
    /// Elements from one piece to the next, and from one slice to the next.
    piece: u64,
    slice: u64,
    /// Bytes in the slice: of the first piece, and from one to the next.
    at: u32,
    at_step: u32,
    /// Row or column of the first piece, distance, and end.
    side: u32,
    side_step: u32,
    side_len: u32,
    /// Term of the first piece in its slice, and distance.
    depth: u32,
    depth_step: u32,
}

impl<const COPIES: u32> Part<COPIES> {
    /// A tile of `WIDTH` rows or columns from `first` on.
    #[inline(always)]
    fn new<const WIDTH: u32, const MN_MAJOR: bool>(
        matrix: &Matrix,
        batch: u32,
        (first, side_len): (u32, u32),
    ) -> Self {
        let t = thread_idx_x();
        let ld = matrix.ld;
        let base = matrix.addr.cast::<u16>().as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let pieces = if MN_MAJOR { WIDTH / PIECE } else { DEPTH / PIECE };
        let (row, piece) = (t / pieces, t % pieces);
        let rows = THREADS / pieces;
        let at = piece / 8 * BLOCK_BYTES + swizzle(row, piece % 8);
        let (side, depth) = if MN_MAJOR { (piece * PIECE, row) } else { (row, piece * PIECE) };
        let (side, next) = (first + side, u64::from(rows) * ld);
        let (far, near) = if MN_MAJOR { (depth, side) } else { (side, depth) };
        Self {
            p: base.wrapping_add((u64::from(far) * ld + u64::from(near)) as usize),
            piece: next,
            slice: if MN_MAJOR { u64::from(DEPTH) * ld } else { u64::from(DEPTH) },
            at,
            at_step: rows * 128,
            side,
            side_step: if MN_MAJOR { 0 } else { rows },
            side_len,
            depth,
            depth_step: if MN_MAJOR { rows } else { 0 },
        }
    }

    /// Asks for the next slice, of which `k` terms are there.
    ///
    /// # Safety
    ///
    /// `to` starts the factor's part of a slice in shared memory; the matrix covers what its contract
    /// says and has a unit of 16.
    #[inline(always)]
    unsafe fn copy(&mut self, to: Shared<u8>, k: u32) {
        let mut i = 0;
        while i < COPIES {
            let (side, depth) = (self.side + i * self.side_step, self.depth + i * self.depth_step);
            let there = side < self.side_len && depth < k;
            let p = self.p.wrapping_add((u64::from(i) * self.piece) as usize);
            // SAFETY: 8 elements from (side, depth) on are inside when the first is, because a row
            // of memory is a multiple of 8 long; the caller's promise.
            unsafe { copy_x16(to.add(self.at + i * self.at_step), p, there) };
            i += 1;
        }
        self.p = self.p.wrapping_add(self.slice as usize);
    }
}

/// The slices of both factors, in the order the instructions want them.
///
/// # Safety
///
/// As for [`hopper`].
#[inline(always)]
unsafe fn sums<E: Half, const TA: u32, const TB: u32, const A_MN: bool, const B_MN: bool>(
    args: &Args,
    batch: u32,
    (row0, column0): (u32, u32),
    ring: Shared<u8>,
) {
    let mut a = Part::<4>::new::<ROWS, A_MN>(&args.a, batch, (row0, args.m));
    let mut b = Part::<8>::new::<COLUMNS, B_MN>(&args.b, batch, (column0, args.n));
    // SAFETY: the ring is the block's; the caller's promise.
    unsafe {
        multiply::<E, TA, TB>(ring, args.k.div_ceil(DEPTH), |s, to| {
            let k = args.k - s * DEPTH;
            a.copy(to, k);
            b.copy(to.add(B_BYTES), k);
        });
    }
}

/// Makes the tile of this block.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `A` and
/// `B` have a unit of 16; `C` overlaps neither.
#[inline(always)]
pub(super) unsafe fn hopper<E: Half>(args: &Args, element: Float<true>) {
    begin();
    launch_dependents();
    let (tiles_m, tiles_n) = (args.m.div_ceil(ROWS), args.n.div_ceil(COLUMNS));
    let per_matrix = tiles_m * tiles_n;
    let batch = block_idx_x() / per_matrix;
    let [tile_m, tile_n] = tile_at(block_idx_x() - batch * per_matrix, tiles_m, tiles_n);
    let tile = (tile_m * ROWS, tile_n * COLUMNS);
    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % 1024);
    dependency_wait();
    // SAFETY: the ring is inside the block's memory, which has 1,024 bytes more than it needs.
    unsafe {
        match (args.a.transposed == 0, args.b.transposed != 0) {
            (true, true) => sums::<E, 0, 0, false, false>(args, batch, tile, ring),
            (true, false) => sums::<E, 0, 1, false, true>(args, batch, tile, ring),
            (false, true) => sums::<E, 1, 0, true, false>(args, batch, tile, ring),
            (false, false) => sums::<E, 1, 1, true, true>(args, batch, tile, ring),
        }
        let parked = park(ring);
        let shape = (ROWS, COLUMNS, PARKED_ROW);
        write(
            args,
            element,
            batch,
            tile,
            (args.m, args.n),
            parked,
            shape,
            (thread_idx_x(), THREADS),
        );
    }
}
