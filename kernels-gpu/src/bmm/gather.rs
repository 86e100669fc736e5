//! bf16 and f16 on a Hopper GPU's tensor cores where rows start anywhere: [`crate::tile::hopper`] with slices that come
//! element by element, or two by two, by way of registers. A warp reads a row of 64 elements; the elements of the next slice are
//! asked for before the products of this one.

use contract::bmm::{Args, Matrix};

use super::source::Float;
use super::split::{PARKED, add_up, part_of, rank_and_block};
use super::write::write_eight;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld_if, ld_word_or_half_if};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{LANES, lane_id, warp_id};
use crate::arch::wgmma::{declare, swizzle};
use crate::tile::hopper::{BLOCK, BLOCK_BYTES, DEPTH, Half, for_each_eight, multiply, park};
use crate::tile::walk::tile_at;

/// Warps of a block.
const WARPS: u32 = 4;
/// Rows of a slice that a warp reads.
const ROWS: usize = (BLOCK / WARPS) as usize;

/// What a lane carries of one factor: two elements of each row of the warp.
struct Part {
    /// The first of them in the next slice.
    p: *const u16,
    /// Elements from row to row of the warp, and from slice to slice.
    row: u64,
    slice: u64,
    /// Rows, and elements of a row, that are left from there on; and what of them a slice takes.
    rows: i32,
    elements: i32,
    taken: [i32; 2],
    /// Whether two elements are an aligned word.
    pairs: bool,
    /// The elements of a slice: the lower ones, or both, and the upper ones.
    low: [u32; ROWS],
    high: [u32; ROWS],
}

impl Part {
    /// A block of rows or columns from `first` on, of `side_len`.
    #[inline(always)]
    fn new(
        (matrix, mn_major, batch): (&Matrix, bool, u32),
        (first, side_len): (u32, u32),
        (k, first_slice): (u32, u32),
    ) -> Self {
        let (warp, near) = (warp_id(), 2 * lane_id());
        let base = matrix.addr.cast::<u16>().as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let side = side_len as i32 - first as i32;
        let (line, at, rows, elements) = if mn_major {
            (warp, first + near, k as i32, side)
        } else {
            (first + warp, near, side, k as i32)
        };
        let slice = if mn_major { u64::from(DEPTH) * matrix.ld } else { u64::from(DEPTH) };
        let taken = if mn_major { [DEPTH as i32, 0] } else { [0, DEPTH as i32] };
        let before = u64::from(first_slice) * slice + u64::from(line) * matrix.ld;
        Self {
            p: base.wrapping_add((before + u64::from(at)) as usize),
            row: u64::from(WARPS) * matrix.ld,
            slice,
            rows: rows - warp as i32 - first_slice as i32 * taken[0],
            elements: elements - near as i32 - first_slice as i32 * taken[1],
            taken,
            pairs: matrix.unit >= 4,
            low: [0; ROWS],
            high: [0; ROWS],
        }
    }

    /// Reads the next slice; zeros are where nothing is.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and nobody writes it.
    #[inline(always)]
    unsafe fn load(&mut self) {
        let mut i = 0;
        while i < ROWS {
            let p = self.p.wrapping_add((i as u64 * self.row) as usize);
            let left = if self.rows > (WARPS as usize * i) as i32 { self.elements } else { 0 };
            // SAFETY: `left` elements of the row.
            unsafe {
                if self.pairs {
                    self.low[i] = ld_if(left > 0, p.cast());
                } else {
                    // Into words at once: what would widen them later waits for them first.
                    self.low[i] = ld_word_or_half_if(left > 0, true, p.cast());
                    self.high[i] = ld_word_or_half_if(left > 1, true, p.wrapping_add(1).cast());
                }
            }
            i += 1;
        }
        self.p = self.p.wrapping_add(self.slice as usize);
        self.rows -= self.taken[0];
        self.elements -= self.taken[1];
    }

    /// Puts what was read into a block of a slice.
    ///
    /// # Safety
    ///
    /// The block is this thread block's, and no products read it.
    #[inline(always)]
    unsafe fn store(&self, to: Shared<u8>) {
        let mut i = 0;
        while i < ROWS {
            let row = warp_id() + WARPS * i as u32;
            let at = to.add(swizzle(row, lane_id() / 4) + 4 * (lane_id() % 4));
            // SAFETY: two elements of a row that is this warp's.
            unsafe { at.cast().write(self.low[i] | self.high[i] << 16) };
            i += 1;
        }
    }
}

/// Makes the tile of this block, 64 by 64.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn gather<E: Half>(args: &Args, element: Float<false>) {
    declare();
    launch_dependents();
    let (tiles_m, tiles_n) = (args.m.div_ceil(BLOCK), args.n.div_ceil(BLOCK));
    let per_matrix = tiles_m * tiles_n;
    let (rank, block) = rank_and_block(args);
    let batch = block / per_matrix;
    let [tile_m, tile_n] = tile_at(block - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * BLOCK, tile_n * BLOCK);
    let mn_major = [args.a.transposed != 0, args.b.transposed == 0];
    // k = 0 is one slice of zeros.
    let (first_slice, slices) = part_of(args, rank, args.k.div_ceil(DEPTH).max(1));
    let k = (args.k, first_slice);
    let mut a = Part::new((&args.a, mn_major[0], batch), (row0, args.m), k);
    let mut b = Part::new((&args.b, mn_major[1], batch), (column0, args.n), k);
    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % 1024);
    dependency_wait();
    // SAFETY: the caller's promise; the ring is inside the block's memory, which has 1,024 bytes more than it needs; the
    // elements of this tile are this block's.
    unsafe {
        a.load();
        b.load();
        let load = |_: u32, _: u32, to: Shared<u8>| {
            a.store(to);
            b.store(to.add(BLOCK_BYTES));
            // Behind the last slice nothing is left, or what another block of the cluster takes.
            a.load();
            b.load();
        };
        let done = |_: u32, slot: Shared<u8>| {
            if args.split > 0 {
                let (parked, who) = (ring.cast::<f32>(), (thread_idx_x(), WARPS * LANES));
                park(parked, PARKED);
                add_up(args, element, (batch, row0, column0), parked, |a, b| a + b, who);
                return;
            }
            for_each_eight::<64>(slot, |row, column, sums| {
                write_eight(args, element, batch, (row0 + row, column0 + column), sums);
            });
        };
        multiply::<E, 1, 64, 1, 0>(ring, mn_major, (1, slices), load, done);
    }
}
