//! bf16 and f16 on a Hopper GPU's tensor cores: [`crate::tile::hopper`] with slices of plain
//! matrices, 16 bytes a copy.

use contract::bmm::{Args, Matrix};

use super::source::{Float, Target};
use super::write::write;
use crate::arch::async_copy::copy_x16;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::st_x4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::wgmma::swizzle;
use crate::tile::hopper::{BLOCK, BLOCK_BYTES, DEPTH, Half, begin, for_each_eight, multiply, park};
use crate::tile::walk::tile_at;

/// Elements of a copy.
const PIECE: u32 = 8;

/// What a thread copies of each slice of one factor: pieces of 16 bytes, in rows that are
/// a multiple of 8 apart, so that their swizzle is the same.
struct Part {
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

impl Part {
    /// A tile of `width` rows or columns from `first` on, for `threads` threads.
    #[inline(always)]
    fn new(
        (matrix, mn_major, batch): (&Matrix, bool, u32),
        (first, side_len): (u32, u32),
        width: u32,
        threads: u32,
    ) -> Self {
        let t = thread_idx_x();
        let ld = matrix.ld;
        let base = matrix.addr.cast::<u16>().as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let pieces = if mn_major { width / PIECE } else { DEPTH / PIECE };
        let (row, piece) = (t / pieces, t % pieces);
        let rows = threads / pieces;
        let at = piece / 8 * BLOCK_BYTES + swizzle(row, piece % 8);
        let (side, depth) = if mn_major { (piece * PIECE, row) } else { (row, piece * PIECE) };
        let (side, next) = (first + side, u64::from(rows) * ld);
        let (far, near) = if mn_major { (depth, side) } else { (side, depth) };
        Self {
            p: base.wrapping_add((u64::from(far) * ld + u64::from(near)) as usize),
            piece: next,
            slice: if mn_major { u64::from(DEPTH) * ld } else { u64::from(DEPTH) },
            at,
            at_step: rows * 128,
            side,
            side_step: if mn_major { 0 } else { rows },
            side_len,
            depth,
            depth_step: if mn_major { rows } else { 0 },
        }
    }

    /// Asks for the next slice, of which `k` terms are there.
    ///
    /// # Safety
    ///
    /// `to` starts the factor's part of a slice in shared memory; the matrix covers what its contract
    /// says and has a unit of 16.
    #[inline(always)]
    unsafe fn copy<const COPIES: u32>(&mut self, to: Shared<u8>, k: u32) {
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

/// Makes the tile of this block: 64 rows for each of its `GROUPS` warpgroups, `N` columns.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `A` and
/// `B` have a unit of 16; `C` overlaps neither.
#[inline(always)]
pub(super) unsafe fn hopper<
    E: Half,
    const GROUPS: u32,
    const N: u32,
    const AHEAD: u32,
    const BEHIND: u32,
>(
    args: &Args,
    element: Float<true>,
) {
    const { assert!(N == GROUPS * BLOCK || N == 2 * GROUPS * BLOCK) };
    begin::<N>();
    launch_dependents();
    let rows = GROUPS * BLOCK;
    let (tiles_m, tiles_n) = (args.m.div_ceil(rows), args.n.div_ceil(N));
    let per_matrix = tiles_m * tiles_n;
    let batch = block_idx_x() / per_matrix;
    let [tile_m, tile_n] = tile_at(block_idx_x() - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * rows, tile_n * N);
    let at = (row0, column0);
    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % 1024);
    dependency_wait();
    // SAFETY: the ring is inside the block's memory, which has 1,024 bytes more than it needs.
    unsafe {
        let mn_major = [args.a.transposed != 0, args.b.transposed == 0];
        let mut a = Part::new((&args.a, mn_major[0], batch), (row0, args.m), rows, GROUPS * 128);
        let mut b = Part::new((&args.b, mn_major[1], batch), (column0, args.n), N, GROUPS * 128);
        let slices = args.k.div_ceil(DEPTH);
        multiply::<E, GROUPS, N, AHEAD, BEHIND>(ring, mn_major, slices, |s, to| {
            let k = args.k - s * DEPTH;
            // A block is 512 pieces, over 128 threads for each block of rows.
            a.copy::<4>(to, k);
            let to = to.add(GROUPS * BLOCK_BYTES);
            match N / BLOCK / GROUPS {
                1 => b.copy::<4>(to, k),
                _ => b.copy::<8>(to, k),
            }
        });
        if args.c.unit == 16 && !<Float<true> as Target>::reads(args.beta) {
            let base = args.c.addr.cast::<u16>().as_ptr();
            let base = base.wrapping_add((u64::from(batch) * args.c.stride) as usize);
            for_each_eight::<E, N>(f32::from_bits(args.alpha), |row, column, words| {
                let (row, column) = (row0 + row, column0 + column);
                if row < args.m && column < args.n {
                    let at = u64::from(row) * args.c.ld + u64::from(column);
                    // Rows of C are a multiple of 8 long: all eight are inside when the first is.
                    st_x4(base.wrapping_add(at as usize).cast(), words);
                }
            });
        } else {
            let parked = park::<N>(ring);
            let (shape, who) = ((rows, N, N + 8), (thread_idx_x(), GROUPS * 128));
            write(args, element, batch, at, (args.m, args.n), parked, shape, who);
        }
    }
}
