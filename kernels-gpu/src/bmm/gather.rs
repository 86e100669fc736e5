//! bf16 and f16 on a Hopper GPU's tensor cores where rows start anywhere: [`crate::tile::hopper`] with slices that come by way
//! of registers. A piece of eight elements is cut from the two aligned pieces of memory that hold it; those of the next slice
//! are asked for before the products of this one.

use contract::bmm::Args;

use super::hopper::Part;
use super::source::Float;
use super::split::{self, PARKED, add_up, part_of, rank_and_block};
use super::target::Target;
use super::write::{prefetch_tile, write_column};
use crate::arch::dot::permute;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::ld_or_zero_x4;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::thread_idx_x;
use crate::arch::wgmma::declare;
use crate::tile::hopper::{BLOCK, BLOCK_BYTES, DEPTH, Half, for_each_sum, multiply, park};
use crate::tile::walk::tile_at;

/// Pieces that a thread brings of each factor.
const PIECES: usize = 4;

/// One factor: where the pieces are, and those of a slice on their way.
struct Cut {
    part: Part,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
    /// Terms that are left from the next slice on, and of the slice on its way.
    k: [u32; 2],
    /// Two aligned pieces each.
    raw: [[[u32; 4]; 2]; PIECES],
    /// The address of the first element, modulo 16, of each.
    over: [u32; PIECES],
}

impl Cut {
    /// Elements of piece `i` that are there, of a slice with `k` terms.
    #[inline(always)]
    fn count(&self, i: u32, k: u32) -> u32 {
        let Part { side, side_step, side_len, depth, depth_step, .. } = self.part;
        let side = side_len.saturating_sub(side + i * side_step);
        let depth = k.saturating_sub(depth + i * depth_step);
        let (near, far) = if self.along { (depth, side) } else { (side, depth) };
        if far > 0 { near.min(8) } else { 0 }
    }

    /// Asks for the next slice; zeros are where nothing is.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and nobody writes it. The aligned pieces that hold its elements are read
    /// whole: memory is allocated in such pieces.
    #[inline(always)]
    unsafe fn load(&mut self) {
        let mut i = 0;
        while i < PIECES {
            let count = self.count(i as u32, self.k[0]);
            let p = self.part.p.wrapping_add((i as u64 * self.part.piece) as usize);
            let over = p as u64 as u32 % 16;
            let p = p.cast::<u8>().wrapping_sub(over as usize);
            // SAFETY: an element of each is there.
            unsafe {
                self.raw[i][0] = ld_or_zero_x4(count > 0, p.cast());
                self.raw[i][1] = ld_or_zero_x4(over + 2 * count > 16, p.wrapping_add(16).cast());
            }
            self.over[i] = over;
            i += 1;
        }
        self.part.p = self.part.p.wrapping_add(self.part.slice as usize);
        self.k = [self.k[0].saturating_sub(DEPTH), self.k[0]];
    }

    /// Puts what was read into its part of a slice.
    ///
    /// # Safety
    ///
    /// The part is this thread block's, and no products read it.
    #[inline(always)]
    unsafe fn store(&self, to: Shared<u8>) {
        let mut i = 0;
        while i < PIECES {
            let over = self.over[i];
            let [[a, b, c, d], [e, f, g, h]] = self.raw[i];
            let by_two = [[a, c], [b, d], [c, e], [d, f], [e, g], [f, h]];
            let by_two = by_two.map(|[near, far]| if over & 8 != 0 { far } else { near });
            let words: [u32; 5] = core::array::from_fn(|j| {
                let (near, far) = (by_two[j], by_two[j + 1]);
                if over & 4 != 0 { far } else { near }
            });
            let selector = if over & 2 != 0 { 0x5432 } else { 0x3210 };
            let mut piece: [u32; 4] =
                core::array::from_fn(|j| permute(words[j], words[j + 1], selector));
            let count = self.count(i as u32, self.k[1]);
            if count < 8 {
                let mut j = 0;
                while j < 4 {
                    let there = count.saturating_sub(2 * j as u32);
                    piece[j] &= if there >= 2 { !0 } else { 0xffff * there };
                    j += 1;
                }
            }
            let at = to.add(self.part.at + i as u32 * self.part.at_step);
            // SAFETY: a piece that is this thread's.
            unsafe { at.cast().write_x4(piece) };
            i += 1;
        }
    }
}

/// Makes the tile of this block: 64 rows for each of its `GROUPS` warpgroups, as many columns.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn gather<E: Half, const GROUPS: u32, const N: u32>(
    args: &Args,
    element: Float<false>,
) {
    const { assert!(N == GROUPS * BLOCK) };
    declare();
    launch_dependents();
    let threads = GROUPS * 128;
    let (tiles_m, tiles_n) = (args.m.div_ceil(N), args.n.div_ceil(N));
    let per_matrix = tiles_m * tiles_n;
    let may_split = N == split::SIDE;
    let (rank, block) = rank_and_block(args);
    let batch = block / per_matrix;
    let [tile_m, tile_n] = tile_at(block - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * N, tile_n * N);
    let mn_major = [args.a.transposed != 0, args.b.transposed == 0];
    // k = 0 is one slice of zeros.
    let (first_slice, slices) = part_of(args, rank, args.k.div_ceil(DEPTH).max(1));
    let cut = |matrix, mn_major: bool, side| {
        let part = Part::new((matrix, mn_major, batch), side, (N, first_slice), threads);
        // What follows is another block's of the cluster.
        let k = [args.k.saturating_sub(first_slice * DEPTH).min(slices * DEPTH), 0];
        Cut { part, along: !mn_major, k, raw: [[[0; 4]; 2]; PIECES], over: [0; PIECES] }
    };
    let mut a = cut(&args.a, mn_major[0], (row0, args.m));
    let mut b = cut(&args.b, mn_major[1], (column0, args.n));
    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % 1024);
    dependency_wait();
    // SAFETY: the caller's promise; the ring is inside the block's memory, which has 1,024 bytes more than it needs; the
    // elements of this tile are this block's.
    unsafe {
        a.load();
        b.load();
        if <Float<false> as Target>::reads(args.beta) && args.split == 0 {
            let (at, who) = ((batch, row0, column0), (thread_idx_x(), threads));
            prefetch_tile(args, 2, at, (args.m, args.n), (N, N), who);
        }
        let load = |_: u32, _: u32, to: Shared<u8>| {
            a.store(to);
            b.store(to.add(GROUPS * BLOCK_BYTES));
            // Behind the last slice nothing is left.
            a.load();
            b.load();
        };
        let done = |_: u32, slot: Shared<u8>| {
            if may_split && args.split > 0 {
                let (parked, who) = (ring.cast::<f32>(), (thread_idx_x(), threads));
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
                return;
            }
            for_each_sum::<N, 8>(
                slot,
                false,
                |_, _| [0; 4],
                |_, _, _, _| {},
                |row, column, sums| {
                    write_column(args, element, batch, (row0 + row, column0 + column), sums);
                },
            );
        };
        multiply::<E, GROUPS, N, 1, 0>(ring, mn_major, (1, slices), load, done);
    }
}
