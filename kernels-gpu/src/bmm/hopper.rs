//! bf16 and f16 on a Hopper GPU's tensor cores: [`crate::tile::hopper`] with slices of plain
//! matrices, 16 bytes a copy.

use contract::bmm::{Args, Matrix, finish};

use super::source::Float;
use super::split::{self, PARKED, add_up, part_of, rank_and_block};
use super::target::Target;
use super::write::write_column;
use crate::arch::async_copy::copy_x16;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_or_zero_x4, prefetch_l2, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::arch::wgmma::{declare, swizzle};
use crate::tile::hopper::{
    BLOCK, BLOCK_BYTES, DEPTH, Half, for_each_packed, for_each_sum, multiply, park,
};
use crate::tile::walk::tile_at;

/// Elements of a copy.
const PIECE: u32 = 8;

/// What a thread copies of each slice of one factor: pieces of 16 bytes, in rows that are
/// a multiple of 8 apart, so that their swizzle is the same.
pub(super) struct Part {
    /// The first piece of the next slice.
    pub(super) p: *const u16,
    /// Elements from one piece to the next, and from one slice to the next.
    pub(super) piece: u64,
    pub(super) slice: u64,
    /// Bytes in the slice: of the first piece, and from one to the next.
    pub(super) at: u32,
    pub(super) at_step: u32,
    /// Row or column of the first piece, distance, and end.
    pub(super) side: u32,
    pub(super) side_step: u32,
    pub(super) side_len: u32,
    /// Term of the first piece in its slice, and distance.
    pub(super) depth: u32,
    pub(super) depth_step: u32,
}

impl Part {
    /// A tile of `width` rows or columns from `first` on, for `threads` threads.
    #[inline(always)]
    pub(super) fn new(
        (matrix, mn_major, batch): (&Matrix, bool, u32),
        (first, side_len): (u32, u32),
        (width, first_slice): (u32, u32),
        threads: u32,
    ) -> Self {
        let t = thread_idx_x();
        let ld = matrix.ld;
        let base = matrix.addr.cast::<u16>().as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        // Rows in the order of memory, of all columns where threads are whole rows of those, else of a block.
        let line = if width % 128 == 0 { width } else { BLOCK };
        let pieces = if mn_major { line / PIECE } else { DEPTH / PIECE };
        let (row, piece) = (t / pieces, t % pieces);
        let rows = threads / pieces;
        let at = piece / 8 * BLOCK_BYTES + swizzle(row, piece % 8);
        let (side, depth) = if mn_major { (piece * PIECE, row) } else { (row, piece * PIECE) };
        let (side, next) = (first + side, u64::from(rows) * ld);
        let (far, near) = if mn_major { (depth, side) } else { (side, depth) };
        let slice = if mn_major { u64::from(DEPTH) * ld } else { u64::from(DEPTH) };
        let at_first = u64::from(far) * ld + u64::from(near) + u64::from(first_slice) * slice;
        Self {
            p: base.wrapping_add(at_first as usize),
            piece: next,
            slice,
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

impl Part {
    /// [`Self::copy`] of three blocks, by 256 threads: of half of one at a time.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    unsafe fn copy_blocks(&mut self, to: Shared<u8>, k: u32) {
        let mn_major = self.side_step == 0;
        let mut i = 0;
        while i < 6 {
            let (block, half) = (i / 2, i % 2);
            let (beside, down) = if mn_major { (block * BLOCK, half) } else { (0, i) };
            let side = self.side + beside + down * self.side_step;
            let there = side < self.side_len && self.depth + down * self.depth_step < k;
            let p = self.p.wrapping_add(u64::from(down) as usize * self.piece as usize);
            let p = p.wrapping_add(beside as usize);
            // SAFETY: as for `copy`.
            unsafe { copy_x16(to.add(self.at + i * (BLOCK_BYTES / 2)), p, there) };
            i += 1;
        }
        self.p = self.p.wrapping_add(self.slice as usize);
    }
}

/// Makes the tiles of this block, one of every `grid_dim_x()`: 64 rows for each of its `GROUPS`
/// warpgroups, `N` columns.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling, or fewer; `args` says the
/// truth; `A` and `B` have a unit of 16; `C` overlaps neither, and unless `ANY`, has a unit of 16.
#[inline(always)]
pub(super) unsafe fn hopper<
    E: Half,
    const GROUPS: u32,
    const N: u32,
    const AHEAD: u32,
    const BEHIND: u32,
    const ANY: bool,
    const ROWS: usize,
>(
    args: &Args,
    element: Float<false>,
) {
    const { assert!(N == GROUPS * BLOCK || N == 2 * GROUPS * BLOCK || N == 192 && GROUPS == 2) };
    declare();
    launch_dependents();
    let (rows, threads) = (GROUPS * BLOCK, GROUPS * 128);
    let (tiles_m, tiles_n) = (args.m.div_ceil(rows), args.n.div_ceil(N));
    let per_matrix = tiles_m * tiles_n;
    // A small tile's sum may be shared out in a cluster.
    let may_split = GROUPS == 1 && N == split::SIDE;
    let (first, stride, rank) = if may_split {
        let (rank, block) = rank_and_block(args);
        (block, grid_dim_x() >> args.split, rank)
    } else {
        (block_idx_x(), grid_dim_x(), 0)
    };
    // k = 0 is one slice of zeros.
    let slices = args.k.div_ceil(DEPTH).max(1);
    let (first_slice, slices) = if may_split { part_of(args, rank, slices) } else { (0, slices) };
    let tiles = (per_matrix * args.batch - first).div_ceil(stride);
    let place = |tile: u32| {
        let index = first + tile * stride;
        let batch = index / per_matrix;
        let [tile_m, tile_n] = tile_at(index - batch * per_matrix, tiles_m, tiles_n);
        (batch, tile_m * rows, tile_n * N)
    };
    let mn_major = [args.a.transposed != 0, args.b.transposed == 0];
    let parts = |tile: u32| {
        let (batch, row0, column0) = place(tile);
        let a =
            Part::new((&args.a, mn_major[0], batch), (row0, args.m), (rows, first_slice), threads);
        let b =
            Part::new((&args.b, mn_major[1], batch), (column0, args.n), (N, first_slice), threads);
        (a, b)
    };
    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % 1024);
    let (mut a, mut b) = parts(0);
    dependency_wait();
    let reads = <Float<false> as Target>::reads(args.beta);
    // What the results are added to comes closer while the products are made.
    let prefetch = |tile: u32| {
        let (batch, row0, column0) = place(tile);
        let lines = N / 64;
        let (mut row, column) =
            (row0 + thread_idx_x() / lines, column0 + thread_idx_x() % lines * 64);
        let end = args.m.min(row0 + rows);
        while row < end && column < args.n {
            let at = u64::from(batch) * args.c.stride + u64::from(row) * args.c.ld;
            let p =
                args.c.addr.cast::<u16>().as_ptr().wrapping_add((at + u64::from(column)) as usize);
            // SAFETY: an element of C.
            unsafe { prefetch_l2(p) };
            row += threads / lines;
        }
    };
    let load = |tile: u32, slice: u32, to: Shared<u8>| {
        if slice == 0 && tile > 0 {
            (a, b) = parts(tile);
        }
        if slice == 0 && reads {
            prefetch(tile);
        }
        let k = args.k.saturating_sub((first_slice + slice) * DEPTH);
        let b_to = to.add(GROUPS * BLOCK_BYTES);
        // SAFETY: a block is 512 pieces, over 128 threads for each block of rows; the caller's
        // promise.
        unsafe {
            a.copy::<4>(to, k);
            match N / BLOCK / GROUPS {
                1 if N == 192 => b.copy_blocks(b_to, k),
                1 => b.copy::<4>(b_to, k),
                _ => b.copy::<8>(b_to, k),
            }
        }
    };
    let done = |tile: u32, slot: Shared<u8>| {
        let (batch, row0, column0) = place(tile);
        if may_split && args.split > 0 {
            // The ring is free: a block with a part of a tile makes no other.
            let (parked, who) = (ring.cast::<f32>(), (thread_idx_x(), threads));
            // SAFETY: a parked tile is smaller than the ring; the caller's promise.
            unsafe {
                park(parked, PARKED);
                let tile = (batch, row0, column0);
                add_up::<_, { split::SIDE }, PARKED>(
                    args,
                    element,
                    tile,
                    parked,
                    |a, b| a + b,
                    who,
                );
            }
            return;
        }
        let base = args.c.addr.cast::<u16>().as_ptr();
        let base = base.wrapping_add((u64::from(batch) * args.c.stride) as usize);
        let at = |row: u32, column: u32| {
            let at = u64::from(row0 + row) * args.c.ld + u64::from(column0 + column);
            base.wrapping_add(at as usize)
        };
        // Rows of C are a multiple of 8 long where it has a unit of 16: all eight are inside when the first is.
        let there = |row, column| row0 + row < args.m && column0 + column < args.n;
        let put = |row: u32, column: u32, words| {
            if there(row, column) {
                // SAFETY: inside; elements of this tile are this block's.
                unsafe { st_x4(at(row, column).cast(), words) };
            }
        };
        let (alpha, beta) = (f32::from_bits(args.alpha), f32::from_bits(args.beta));
        let whole = !ANY || args.c.unit == 16;
        if whole && !reads {
            for_each_packed::<E, N>(alpha, put);
            return;
        }
        // SAFETY: the slot is free; what is read and written is inside, and this block's.
        unsafe {
            for_each_sum::<N, ROWS>(
                slot,
                whole,
                |row, column| {
                    let there = whole && there(row, column);
                    ld_or_zero_x4(there, at(row, column).cast_const().cast())
                },
                |row, column, sums, old| {
                    let sums = [sums.read_x4(), sums.add(4).read_x4()];
                    let words = core::array::from_fn(|i| {
                        let [low, high] = [0, 1].map(|j| {
                            let old = E::widen((old[i] >> (16 * j)) as u16);
                            finish(alpha, sums[i / 2][i % 2 * 2 + j], beta, old)
                        });
                        E::pack(low, high)
                    });
                    put(row, column, words);
                },
                |row, column, sums| {
                    write_column(args, element, batch, (row0 + row, column0 + column), sums);
                },
            );
        }
    };
    // SAFETY: the ring is inside the block's memory, which has 1,024 bytes more than it needs.
    unsafe {
        multiply::<E, GROUPS, N, AHEAD, BEHIND>(ring, mn_major, (tiles, slices), load, done);
    }
}
