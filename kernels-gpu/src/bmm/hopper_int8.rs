//! i8 on a Hopper GPU's tensor cores: [`crate::tile::hopper`] with rows of 128 terms. The instruction takes factors only
//! with neighbours in k side by side: such ones are copied as they are, others are turned in registers on their way.

use contract::bmm::{Args, Matrix, finish_i32};

use super::source::transpose;
use crate::arch::async_copy::copy_x16;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{ld_if, ld_or_zero_x4, ld_x2_if, st, st_x2, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::warp::{LANES, lane_id};
use crate::arch::wgmma::{self, declare, swizzle};
use crate::tile::hopper::{BLOCK, BLOCK_BYTES, I8, each_group, multiply, swap};
use crate::tile::walk::tile_at;

/// Rows and columns of a tile, warpgroups, and terms of a slice.
const SIDE: u32 = 128;
const GROUPS: u32 = SIDE / BLOCK;
const DEPTH: u32 = 128;

/// What a thread brings of one factor: in each slice four pieces of 16 terms, 32 rows apart, or a square of 4 terms of 16
/// rows.
struct Part {
    /// The first of them in the next slice.
    p: *const u8,
    ld: u64,
    /// Rows (columns of `B`), and terms, that are left from there on.
    beside: i32,
    k_left: i32,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
    /// The square on its way: `[term]`.
    square: [[u32; 4]; 4],
}

impl Part {
    /// Row and term of a thread's first element.
    #[inline(always)]
    fn first(t: u32, along: bool) -> [u32; 2] {
        if along { [t / 8, t % 8 * 16] } else { [t / LANES * 16, t % LANES * 4] }
    }

    #[inline(always)]
    fn new(
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, side_len): (u32, u32),
        k: u32,
    ) -> Self {
        let base = matrix.addr.as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let [side, depth] = Self::first(thread_idx_x(), along);
        let (far, near) = if along { (first + side, depth) } else { (depth, first + side) };
        Self {
            p: base.wrapping_add((u64::from(far) * matrix.ld + u64::from(near)) as usize),
            ld: matrix.ld,
            beside: side_len as i32 - (first + side) as i32,
            k_left: k as i32 - depth as i32,
            along,
            square: [[0; 4]; 4],
        }
    }

    /// Asks for the square of the next slice, where it is one.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, has a unit of 16, and nobody writes it.
    #[inline(always)]
    unsafe fn load(&mut self) {
        if self.along {
            return;
        }
        let mut i = 0;
        while i < 4 {
            let there = self.beside > 0 && self.k_left > i as i32;
            let p = self.p.wrapping_add((i as u64 * self.ld) as usize);
            // SAFETY: 16 neighbours are inside when the first is; the caller's promise.
            self.square[i] = unsafe { ld_or_zero_x4(there, p.cast()) };
            i += 1;
        }
        self.p = self.p.wrapping_add((u64::from(DEPTH) * self.ld) as usize);
        self.k_left -= DEPTH as i32;
    }

    /// Brings the next slice.
    ///
    /// # Safety
    ///
    /// As for [`Self::load`]; the factor's part of the slice is this block's, and no products read it.
    #[inline(always)]
    unsafe fn copy(&mut self, to: Shared<u8>) {
        // Once more, so that what follows from it need not stay in registers meanwhile.
        let [side, depth] = Self::first(opaque(thread_idx_x()), self.along);
        if self.along {
            let to = to.add(swizzle(side, depth / 16));
            let mut i = 0;
            while i < 4 {
                let there = self.beside > 32 * i && self.k_left > 0;
                let p = self.p.wrapping_add((i as u64 * 32 * self.ld) as usize);
                // SAFETY: 16 neighbours are inside when the first is; the caller's promise.
                unsafe { copy_x16(to.add(i as u32 * 32 * 128), p, there) };
                i += 1;
            }
            self.p = self.p.wrapping_add(DEPTH as usize);
            self.k_left -= DEPTH as i32;
            return;
        }
        let mut q = 0;
        while q < 4 {
            let words = transpose(self.square.map(|row| row[q]));
            let mut i = 0;
            while i < 4 {
                let at = swizzle(side + 4 * q as u32 + i as u32, depth / 16) + depth % 16;
                // SAFETY: four terms of a row that are this thread's.
                unsafe { to.add(at).cast::<u32>().write(words[i]) };
                i += 1;
            }
            q += 1;
        }
        // SAFETY: handed on.
        unsafe { self.load() };
    }
}

/// Makes the tile of this block.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `A` and `B` have a unit of 16,
/// `C` overlaps neither.
#[inline(always)]
pub(super) unsafe fn hopper_int8(args: &Args) {
    declare();
    launch_dependents();
    let (tiles_m, tiles_n) = (args.m.div_ceil(SIDE), args.n.div_ceil(SIDE));
    let per_matrix = tiles_m * tiles_n;
    let batch = block_idx_x() / per_matrix;
    let [tile_m, tile_n] = tile_at(block_idx_x() - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * SIDE, tile_n * SIDE);
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let mut a = Part::new((&args.a, along.0, batch), (row0, args.m), args.k);
    let mut b = Part::new((&args.b, along.1, batch), (column0, args.n), args.k);
    let smem = dynamic_shared_mem::<u8>();
    let ring = smem.add(smem.addr().wrapping_neg() % 1024);
    dependency_wait();
    // SAFETY: the caller's promise; the ring is inside the block's memory, which has 1,024 bytes more than it needs; the
    // elements of this tile are this block's.
    unsafe {
        a.load();
        b.load();
        let load = |_: u32, _: u32, to: Shared<u8>| {
            a.copy(to);
            b.copy(to.add(GROUPS * BLOCK_BYTES));
        };
        let done = |_: u32, _: Shared<u8>| {
            let base = args.c.addr.cast::<i32>().as_ptr();
            let base = base.wrapping_add((u64::from(batch) * args.c.stride) as usize);
            let row = row0 + 16 * (thread_idx_x() / LANES) + lane_id() / 4;
            let column = column0 + 2 * (lane_id() % 4);
            let (alpha, beta) = (args.alpha as i32, args.beta as i32);
            if args.c.unit >= 16 && beta == 0 {
                // Pairs of two blocks of columns become fours of one: 64 bytes of a row at a time.
                let column = column0 + lane_id() % 2 * 8 + lane_id() % 4 / 2 * 4;
                each_group!(SIDE, J => {
                    let sums = wgmma::read::<J>().map(f32::to_bits);
                    let (column, mut i) = (column + 16 * J, 0);
                    while i < 2 {
                        let [x, y] = [0, 1].map(|j| swap(sums[2 * i + j], sums[2 * i + 4 + j], 1));
                        let out = [x[0], y[0], x[1], y[1]];
                        let row = row + 8 * i as u32;
                        if row < args.m && column < args.n {
                            let at = u64::from(row) * args.c.ld + u64::from(column);
                            let out = out.map(|sum| finish_i32(alpha, sum as i32, 0, 0));
                            // Rows of C are fours: all are inside when the first is.
                            st_x4(base.wrapping_add(at as usize).cast(), out);
                        }
                        i += 1;
                    }
                });
                return;
            }
            each_group!(SIDE, J => {
                let sums = wgmma::read::<J>();
                let mut i = 0;
                while i < 4 {
                    let (row, column) =
                        (row + 8 * (i as u32 % 2), column + 16 * J + 8 * (i as u32 / 2));
                    let at = u64::from(row) * args.c.ld + u64::from(column);
                    let p = base.wrapping_add(at as usize);
                    let pair = [sums[2 * i], sums[2 * i + 1]].map(|sum| sum.to_bits() as i32);
                    if args.c.unit < 8 {
                        let mut j = 0;
                        while j < 2 {
                            if row < args.m && column + (j as u32) < args.n {
                                let p = p.wrapping_add(j);
                                let old = ld_if(beta != 0, p.cast_const());
                                st(p, finish_i32(alpha, pair[j], beta, old));
                            }
                            j += 1;
                        }
                    } else if row < args.m && column < args.n {
                        // Rows of C are a multiple of 2 long: both are inside when the first is.
                        let old: [i32; 2] = ld_x2_if(beta != 0, p.cast_const().cast());
                        let out = [0, 1].map(|j| finish_i32(alpha, pair[j], beta, old[j]));
                        st_x2(p.cast(), out);
                    }
                    i += 1;
                }
            });
        };
        // k = 0 is one slice of zeros.
        let slices = args.k.div_ceil(DEPTH).max(1);
        multiply::<I8, GROUPS, SIDE, 2, 0>(ring, [false; 2], (1, slices), load, done);
    }
}
