//! i8 on tensor cores (`mma.sync`): slices of 64 terms go through registers into shared memory, where each row of `A` and
//! column of `B` has its 64 bytes side by side, as `ldmatrix` reads them.
//!
//! While a slice is multiplied the next one is on its way; there are two places for slices, so one barrier a slice is enough.
//! Rows of memory may start anywhere: they are read in aligned words, from which the bytes are cut.

use contract::bmm::{Args, INT8_DEPTH, Matrix, finish_i32};

use super::source::{transpose, window};
#[cfg(level_sm_90a)]
use super::split::{self, PARKED, add_up, part_of, rank_and_block};
#[cfg(level_sm_90a)]
use super::target::Int32;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{ld_if, ld_or_zero_x4, st, st_x2};
use crate::arch::mma::{ldmatrix_x4, mma_s8};
use crate::arch::shared::{Shared, dynamic_shared_mem};
#[cfg(not(level_sm_90a))]
use crate::arch::thread::block_idx_x;
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};
use crate::tile::walk::tile_at;

/// Bytes of a row of a slice.
const ROW: u32 = INT8_DEPTH;
/// Pieces of 16 bytes that a thread carries of each factor.
const PIECES: usize = 2;
/// Blocks of 8 columns of a warp.
const COLUMNS: usize = 4;

/// Where piece `piece` of 16 bytes of a row stands: eight rows at one piece are in different banks.
#[inline(always)]
fn place(row: u32, piece: u32) -> u32 {
    row * ROW + (piece ^ row >> 1 & 3) * 16
}

/// What a thread brings of one factor: in each slice `PIECES` times 16 terms of a row, or 4 terms of 4 rows.
struct Part {
    /// The first of them in the next slice.
    p: *const u8,
    /// Bytes from one row of memory to the next.
    ld: u64,
    /// Rows (columns of `B`), and terms, that are left from there on.
    beside: i32,
    k_left: i32,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
    whole: bool,
}

/// Rows, or terms, from one piece of a thread to its next: `[along][rows, terms]`.
const fn steps(rows: u32, along: bool) -> [u32; 2] {
    // 128 threads for 64 rows, 256 for 128.
    if along { [rows / 2, 0] } else { [0, 32] }
}

/// Row and term of a thread's first piece of a slice of `rows`. Across: a warp reads 32 neighbours of 16 rows of memory.
#[inline(always)]
fn first_piece(t: u32, rows: u32, along: bool) -> [u32; 2] {
    let (warps, lane) = (rows / LANES, t % LANES);
    if along {
        [t / 4, 16 * (t % 4)]
    } else {
        [4 * (lane % 8 + t / LANES % warps * 8), 4 * (lane / 8 + t / LANES / warps * 4)]
    }
}

impl Part {
    /// For a tile of `rows` from `first` on.
    #[inline(always)]
    fn new(
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, side_len, rows): (u32, u32, u32),
        (k, first_slice): (u32, u32),
    ) -> Self {
        let base = matrix.addr.as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let [side, depth] = first_piece(thread_idx_x(), rows, along);
        let depth = first_slice * ROW + depth;
        let (far, near) = if along { (first + side, depth) } else { (depth, first + side) };
        Self {
            p: base.wrapping_add((u64::from(far) * matrix.ld + u64::from(near)) as usize),
            ld: matrix.ld,
            beside: side_len.wrapping_sub(first + side) as i32,
            k_left: k as i32 - depth as i32,
            along,
            whole: matrix.unit == 16,
        }
    }

    /// The next slice; zeros are behind the end of k.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it.
    #[inline(always)]
    unsafe fn load<const SIDE: u32>(&mut self) -> [[u32; 4]; PIECES] {
        let mut pieces = [[0; 4]; PIECES];
        let [rows, terms] = steps(SIDE, self.along);
        let mut q = 0;
        while q < PIECES {
            let lines = u64::from(q as u32 * (rows + terms));
            let p = self.p.wrapping_add((lines * self.ld) as usize);
            let beside = self.beside - (q as u32 * rows) as i32;
            let k = self.k_left - (q as u32 * terms) as i32;
            // SAFETY: the caller's promise; rows and terms that are not there are not read.
            unsafe {
                if self.along {
                    let count = if beside > 0 { k } else { 0 };
                    pieces[q] = if self.whole {
                        ld_or_zero_x4(count > 0, p.cast())
                    } else {
                        window::<4, 5>(p, count)
                    };
                } else {
                    let mut lines = [0; 4];
                    let mut i = 0;
                    while i < 4 {
                        let line = p.wrapping_add(i * self.ld as usize);
                        let count = if (i as i32) < k { beside } else { 0 };
                        [lines[i]] = if self.whole {
                            [ld_if(count > 0, line.cast())]
                        } else {
                            window::<1, 2>(line, count)
                        };
                        i += 1;
                    }
                    pieces[q] = lines;
                }
            }
            q += 1;
        }
        let slice = if self.along { u64::from(ROW) } else { u64::from(ROW) * self.ld };
        self.p = self.p.wrapping_add(slice as usize);
        self.k_left -= ROW as i32;
        pieces
    }

    /// Puts them into a slice.
    ///
    /// # Safety
    ///
    /// The block's shared memory, where no thread reads; each writes its own part.
    #[inline(always)]
    unsafe fn store<const SIDE: u32>(&self, to: Shared<u8>, pieces: [[u32; 4]; PIECES]) {
        // Once more, so that it need not stay in registers meanwhile.
        let [row0, depth0] = first_piece(opaque(thread_idx_x()), SIDE, self.along);
        let [rows, terms] = steps(SIDE, self.along);
        let mut q = 0;
        while q < PIECES {
            let (row, depth) = (row0 + q as u32 * rows, depth0 + q as u32 * terms);
            // SAFETY: inside the slice.
            unsafe {
                if self.along {
                    to.add(place(row, depth / 16)).cast::<u32>().write_x4(pieces[q]);
                } else {
                    let words = transpose(pieces[q]);
                    let mut i = 0;
                    while i < 4 {
                        let at = place(row + i, depth / 16) + depth % 16;
                        to.add(at).cast::<u32>().write(words[i as usize]);
                        i += 1;
                    }
                }
            }
            q += 1;
        }
    }
}

/// Makes the tile of this block, `SIDE` by `SIDE`: warps of `16 ROWS` by 32.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn int8<const SIDE: u32, const ROWS: usize>(args: &Args) {
    launch_dependents();
    const { assert!(SIDE / (16 * ROWS as u32) * (SIDE / 32) * LANES == 2 * SIDE) };
    let (tiles_m, tiles_n) = (args.m.div_ceil(SIDE), args.n.div_ceil(SIDE));
    let per_matrix = tiles_m * tiles_n;
    let slices = args.k.div_ceil(ROW);
    #[cfg(level_sm_90a)]
    let (block, (first_slice, slices)) = {
        let (rank, block) = rank_and_block(args);
        (block, part_of(args, rank, slices))
    };
    #[cfg(not(level_sm_90a))]
    let (block, first_slice) = (block_idx_x(), 0);
    let batch = block / per_matrix;
    let [tile_m, tile_n] = tile_at(block - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * SIDE, tile_n * SIDE);
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let k = (args.k, first_slice);
    let mut a = Part::new((&args.a, along.0, batch), (row0, args.m, SIDE), k);
    let mut b = Part::new((&args.b, along.1, batch), (column0, args.n, SIDE), k);

    let smem = dynamic_shared_mem::<u8>();
    let (lane, warp) = (lane_id(), warp_id());
    let (warp_row, warp_column) = (warp / (SIDE / 32) * 16 * ROWS as u32, warp % (SIDE / 32) * 32);
    // The rows that this lane gives `ldmatrix`: of A 16 rows of two pieces, of B 16 columns of two pieces.
    let left = place(lane % 16, lane / 16) + warp_row * ROW;
    let right = place(lane / 16 * 8 + lane % 8, lane / 8 % 2) + (SIDE + warp_column) * ROW;
    dependency_wait();

    let mut sums = [[[0i32; 4]; COLUMNS]; ROWS];
    // Opaque, because LLVM would copy the first step out of the loop.
    let mut s = opaque(0);
    // SAFETY: `args` says the truth; each thread writes its own part of a slice and reads what others wrote after a barrier.
    unsafe {
        // Step s loads slice s (none is left in the last step) and multiplies the one before.
        while s <= slices {
            let next = (a.load::<SIDE>(), b.load::<SIDE>());
            if s > 0 {
                let at = smem.add((s + 1) % 2 * 2 * SIDE * ROW);
                let mut depth = 0;
                while depth < ROW {
                    // The upper two pieces of a row are 32 bytes from the lower ones, whichever way.
                    let (left, right) = (at.add(left ^ depth), at.add(right ^ depth));
                    let (near, far) = (ldmatrix_x4(right), ldmatrix_x4(right.add(16 * ROW)));
                    let columns = [
                        [near[0], near[1]],
                        [near[2], near[3]],
                        [far[0], far[1]],
                        [far[2], far[3]],
                    ];
                    let mut r = 0;
                    while r < ROWS {
                        let rows = ldmatrix_x4(left.add(16 * ROW * r as u32));
                        let mut c = 0;
                        while c < COLUMNS {
                            sums[r][c] = mma_s8(rows, columns[c], sums[r][c]);
                            c += 1;
                        }
                        r += 1;
                    }
                    depth += 32;
                }
            }
            let to = smem.add(s % 2 * 2 * SIDE * ROW);
            a.store::<SIDE>(to, next.0);
            b.store::<SIDE>(to.add(SIDE * ROW), next.1);
            sync_threads();
            s += 1;
        }
        #[cfg(level_sm_90a)]
        if SIDE == split::SIDE && args.split > 0 {
            let parked = smem.cast::<i32>();
            let at = parked.add((warp_row + lane / 4) * PARKED + warp_column + 2 * (lane % 4));
            let mut r = 0;
            while r < 2 * ROWS {
                let mut c = 0;
                while c < COLUMNS {
                    let pair = [0, 1].map(|i| sums[r / 2][c][2 * (r % 2) + i] as u32);
                    let at = at.add(8 * r as u32 * PARKED + 8 * c as u32).cast();
                    at.write_u64(u64::from(pair[0]) | u64::from(pair[1]) << 32);
                    c += 1;
                }
                r += 1;
            }
            let who = (thread_idx_x(), 2 * SIDE);
            let at = (batch, row0, column0);
            add_up::<_, { split::SIDE }, PARKED>(args, Int32, at, parked, i32::wrapping_add, who);
            return;
        }
        let at = (row0 + warp_row, column0 + warp_column);
        write(args, batch, at, &sums);
    }
}

/// Writes the sums of a warp, what is inside of `C`.
///
/// # Safety
///
/// `args` says the truth; no other warp accesses these elements.
#[inline(always)]
unsafe fn write<const ROWS: usize>(
    args: &Args,
    batch: u32,
    (row0, column0): (u32, u32),
    sums: &[[[i32; 4]; COLUMNS]; ROWS],
) {
    let base = args.c.addr.cast::<i32>().as_ptr();
    let base = base.wrapping_add((u64::from(batch) * args.c.stride) as usize);
    let column0 = column0 + 2 * (lane_id() % 4);
    let pairs = args.c.unit >= 8 && args.beta == 0;
    let mut r = 0;
    while r < 2 * ROWS {
        let row = row0 + lane_id() / 4 + 8 * r as u32;
        let line = base.wrapping_add((u64::from(row) * args.c.ld) as usize);
        let mut c = 0;
        while c < COLUMNS {
            let column = column0 + 8 * c as u32;
            let pair = [0, 1].map(|i| sums[r / 2][c][2 * (r % 2) + i]);
            let p = line.wrapping_add(column as usize);
            let left = if row < args.m { args.n as i32 - column as i32 } else { 0 };
            // SAFETY: elements of C that are this lane's; the caller's promise.
            unsafe {
                if pairs {
                    if left > 0 {
                        let alpha = args.alpha as i32;
                        st_x2(p.cast(), pair.map(|sum| finish_i32(alpha, sum, 0, 0)));
                    }
                } else {
                    let mut i = 0;
                    while i < 2 {
                        let (p, there) = (p.wrapping_add(i), left > i as i32);
                        let old = ld_if(there && args.beta != 0, p.cast_const());
                        let value = finish_i32(args.alpha as i32, pair[i], args.beta as i32, old);
                        if there {
                            st(p, value);
                        }
                        i += 1;
                    }
                }
            }
            c += 1;
        }
        r += 1;
    }
}
