//! Long sums of few outputs on tensor cores, 16-bit floats of any alignment: the warps of a block, and the blocks of a cluster,
//! share out the terms of a tile of 32 by 32, and add up their sums by way of shared memory.
//!
//! A lane reads what it multiplies straight from memory, in pieces of eight elements. The order of terms is free, so that
//! it takes eight neighbours where they lie side by side; where rows (columns of `B`) do, it takes four neighbours of each of
//! eight terms, and the order of rows is free too.

use contract::bmm::{Args, Matrix, PARKED_ROW, SPREAD};

use super::direct::Fragment;
use super::source::Float;
use super::split::{add_up, part_and_block, rank_and_block};
use super::write::write;
use crate::arch::dot::permute;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{ld_or_zero_x2, ld_or_zero_x4, st};
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};
use crate::tile::walk::tile_at;

/// Warps of a block, and sides of its tile.
const WARPS: u32 = 8;
const SIDE: u32 = 32;
const _: () = assert!(WARPS * LANES * 4 == SIDE * SIDE);
/// Rows (columns of `B`) of a lane, and terms of a step, eight of each lane.
const SIDES: usize = 4;
const DEPTH: u32 = 32;
const TERMS: usize = 8;

/// One factor, as a lane reads it.
struct Factor {
    /// The lane's first element in the next step.
    p: *const u8,
    /// Bytes from one line of memory to the next.
    line: u64,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
    /// Rows (columns of `B`), and terms, that are left from the lane's first on.
    beside: u32,
    k: u32,
}

/// What a lane has read of a step, in aligned pieces: two for each row, or halves of one for each term.
type Raw = [[u32; 4]; TERMS];

impl Factor {
    /// From row (column of `B`) `first` of `len` on, terms from `k` to `end`.
    #[inline(always)]
    fn new(
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, len): (u32, u32),
        (k, end): (u32, u32),
    ) -> Self {
        let (own, term) = (lane_id() / 4, k + lane_id() % 4 * TERMS as u32);
        let side = first + if along { own } else { own * SIDES as u32 };
        let (far, near) = if along { (side, term) } else { (term, side) };
        let at = u64::from(batch) * matrix.stride + u64::from(far) * matrix.ld + u64::from(near);
        let p = matrix.addr.as_ptr().cast_const().wrapping_add(2 * at as usize);
        let (beside, k) = (len.saturating_sub(side), end.saturating_sub(term));
        Self { p, line: 2 * matrix.ld, along, beside, k }
    }

    /// Row (column of `B`) `i` of the lanes of this number, in the tile.
    #[inline(always)]
    fn side(&self, own: u32, i: usize) -> u32 {
        if self.along { 8 * i as u32 + own } else { SIDES as u32 * own + i as u32 }
    }

    /// Elements of piece `i` that are there: terms of a row, or rows of a term.
    #[inline(always)]
    fn count(&self, i: usize) -> u32 {
        if self.along {
            if 8 * (i as u32) < self.beside { self.k.min(TERMS as u32) } else { 0 }
        } else {
            if (i as u32) < self.k { self.beside.min(SIDES as u32) } else { 0 }
        }
    }

    /// Asks for the next step; zeros are where nothing is.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and nobody writes it. The aligned pieces that hold its elements are read
    /// whole: memory is allocated in such pieces.
    #[inline(always)]
    unsafe fn read(&self) -> Raw {
        let mut raw = [[0; 4]; TERMS];
        // SAFETY: an element of each piece is there.
        unsafe {
            if self.along {
                let mut i = 0;
                while i < SIDES {
                    let p = self.p.wrapping_add((8 * i as u64 * self.line) as usize);
                    let (over, count) = (p as u64 as u32 % 16, self.count(i));
                    let p = p.wrapping_sub(over as usize);
                    raw[2 * i] = ld_or_zero_x4(count > 0, p.cast());
                    let more = over + 2 * count > 16;
                    raw[2 * i + 1] = ld_or_zero_x4(more, p.wrapping_add(16).cast());
                    i += 1;
                }
            } else {
                let mut j = 0;
                while j < TERMS {
                    let p = self.p.wrapping_add((j as u64 * self.line) as usize);
                    let (over, count) = (p as u64 as u32 % 8, self.count(j));
                    let p = p.wrapping_sub(over as usize);
                    let [a, b] = ld_or_zero_x2(count > 0, p.cast());
                    let [c, d] = ld_or_zero_x2(over + 2 * count > 8, p.wrapping_add(8).cast());
                    raw[j] = [a, b, c, d];
                    j += 1;
                }
            }
        }
        raw
    }

    /// Pairs of terms of each row, cut from what was read, and on to the next step.
    #[inline(always)]
    fn cut(&mut self, raw: Raw) -> [[u32; 4]; SIDES] {
        let mut words = [[0; 4]; SIDES];
        if self.along {
            let mut i = 0;
            while i < SIDES {
                let over = self.p as u64 as u32 + 8 * i as u32 * self.line as u32;
                let ([a, b, c, d], [e, f, g, h]) = (raw[2 * i], raw[2 * i + 1]);
                let by_two = [[a, c], [b, d], [c, e], [d, f], [e, g], [f, h]];
                let by_two = by_two.map(|[near, far]| if over & 8 != 0 { far } else { near });
                let whole: [u32; 5] = core::array::from_fn(|j| {
                    let (near, far) = (by_two[j], by_two[j + 1]);
                    if over & 4 != 0 { far } else { near }
                });
                let count = self.count(i);
                words[i] = core::array::from_fn(|j| {
                    let there = count.saturating_sub(2 * j as u32);
                    let mask = if there >= 2 { !0 } else { 0xffff * there };
                    permute(whole[j], whole[j + 1], select(over)) & mask
                });
                i += 1;
            }
            self.p = self.p.wrapping_add(2 * DEPTH as usize);
        } else {
            let mut rows = [[0; 2]; TERMS];
            let mut j = 0;
            while j < TERMS {
                let over = self.p as u64 as u32 + j as u32 * self.line as u32;
                let [a, b, c, d] = raw[j];
                let whole = if over & 4 != 0 { [b, c, d] } else { [a, b, c] };
                rows[j] = core::array::from_fn(|w| permute(whole[w], whole[w + 1], select(over)));
                j += 1;
            }
            let mut i = 0;
            while i < SIDES {
                let half = if i % 2 == 0 { 0x5410 } else { 0x7632 };
                words[i] = core::array::from_fn(|w| {
                    permute(rows[2 * w][i / 2], rows[2 * w + 1][i / 2], half)
                });
                i += 1;
            }
            self.p = self.p.wrapping_add((u64::from(DEPTH) * self.line) as usize);
        }
        self.k = self.k.saturating_sub(DEPTH);
        words
    }
}

/// The bytes of two words that an element of 16 bits at this address starts with.
#[inline(always)]
fn select(over: u32) -> u32 {
    if over & 2 != 0 { 0x5432 } else { 0x3210 }
}

/// Makes the tile of this block, or its part of the sums of it.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn long<F: Fragment>(args: &Args, element: Float<false>) {
    launch_dependents();
    let (tiles_m, tiles_n) = (args.m.div_ceil(SIDE), args.n.div_ceil(SIDE));
    // Spread, parts are blocks by themselves, which write their sums where another kernel finds them.
    let spread = args.split >= SPREAD;
    let parts = args.split.wrapping_sub(SPREAD);
    let (rank, block) =
        if spread { part_and_block(args, tiles_m * tiles_n) } else { rank_and_block(args) };
    let batch = block / (tiles_m * tiles_n);
    let [tile_m, tile_n] = tile_at(block - batch * (tiles_m * tiles_n), tiles_m, tiles_n);
    let (row0, column0) = (tile_m * SIDE, tile_n * SIDE);
    let (steps, part) = (args.k.div_ceil(DEPTH), rank * WARPS + warp_id());
    let from = |part: u32| {
        let steps = u64::from(steps) * u64::from(part);
        let steps = if spread { steps / u64::from(parts) } else { steps >> args.split };
        steps as u32 / WARPS
    };
    let (first, last) = (from(part), from(part + 1));
    let terms = (first * DEPTH, (last * DEPTH).min(args.k));
    let mut a = Factor::new((&args.a, args.a.transposed == 0, batch), (row0, args.m), terms);
    let mut b = Factor::new((&args.b, args.b.transposed != 0, batch), (column0, args.n), terms);
    dependency_wait();

    let mut sums = [[[0.0f32; 4]; SIDES]; SIDES / 2];
    // SAFETY: the caller's promise; each warp writes its own tile, which others read behind a barrier, and each thread then
    // fours of its own.
    unsafe {
        let mut step = opaque(first);
        while step < last {
            let (left, right) = (a.read(), b.read());
            let (left, right) = (a.cut(left), b.cut(right));
            let mut s = 0;
            while s < 2 {
                let mut r = 0;
                while r < SIDES / 2 {
                    let [upper, lower] = [left[2 * r], left[2 * r + 1]];
                    let rows = [upper[2 * s], lower[2 * s], upper[2 * s + 1], lower[2 * s + 1]];
                    let mut c = 0;
                    while c < SIDES {
                        let columns = [right[c][2 * s], right[c][2 * s + 1]];
                        sums[r][c] = F::product(rows, columns, sums[r][c]);
                        c += 1;
                    }
                    r += 1;
                }
                s += 1;
            }
            step = opaque(step + 1);
        }
        let parked = dynamic_shared_mem::<f32>();
        let mine = parked.add(warp_id() * SIDE * PARKED_ROW);
        let mut i = 0;
        while i < SIDES {
            let row = a.side(lane_id() / 4, i);
            let mut j = 0;
            while j < 2 * SIDES {
                let column = b.side(lane_id() % 4 * 2 + j as u32 % 2, j / 2);
                let sum = sums[i / 2][j / 2][i % 2 * 2 + j % 2];
                mine.add(row * PARKED_ROW + column).write(sum);
                j += 1;
            }
            i += 1;
        }
        sync_threads();
        let own = parked.add(thread_idx_x() / 8 * PARKED_ROW + thread_idx_x() % 8 * 4);
        let mut sum = own.read_x4();
        let mut other = 1;
        while other < WARPS {
            let more: [f32; 4] = own.add(other * SIDE * PARKED_ROW).read_x4();
            sum = core::array::from_fn(|j| sum[j] + more[j]);
            other += 1;
        }
        if spread {
            let (row, column) = (row0 + thread_idx_x() / 8, column0 + thread_idx_x() % 8 * 4);
            let at = u64::from(rank * args.batch + batch) * args.c.stride
                + u64::from(row) * args.c.ld
                + u64::from(column);
            let p = args.c.addr.cast::<f32>().as_ptr().wrapping_add(at as usize);
            let mut j = 0;
            while j < 4 {
                if row < args.m && column + (j as u32) < args.n {
                    st(p.wrapping_add(j), sum[j]);
                }
                j += 1;
            }
            return;
        }
        own.write_x4(sum);
        let who = (thread_idx_x(), WARPS * LANES);
        if args.split > 0 {
            let tile = (batch, row0, column0);
            add_up::<_, SIDE, PARKED_ROW>(args, element, tile, parked, |a, b| a + b, who);
            return;
        }
        sync_threads();
        let (at, shape) = ((row0, column0), (SIDE, SIDE, PARKED_ROW));
        write(args, element, batch, at, (args.m, args.n), parked, shape, who);
    }
}
