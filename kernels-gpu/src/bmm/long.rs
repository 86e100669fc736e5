//! Few outputs, or few terms, on tensor cores, 16-bit floats and i8 of any alignment. Long sums: the warps of a block, and the
//! blocks of a cluster, share out the terms of a tile of 32 by 32, and add up their sums by way of shared memory. Others: a
//! warp makes all of its tile.
//!
//! A lane reads what it multiplies straight from memory, in pieces of 16 bytes. The order of terms is free, so that
//! it takes neighbours where they lie side by side; where rows (columns of `B`) do, it takes four neighbours of each
//! term, and the order of rows is free too.

use contract::bmm::{Args, Matrix, PARKED_ROW, SPREAD};

use super::direct::Fragment;
use super::source::transpose;
use super::split::{add_up, part_and_block, rank_and_block};
use super::target::Target;
use super::write::{prefetch_tile, write};
use crate::arch::dot::permute;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{ld_if, ld_or_zero_x2, ld_or_zero_x4, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, Register, lane_id, sync_warp, warp_id};
use crate::tile::walk::tile_at;

/// Warps of a block that share out a tile's terms, those that have tiles of their own, and sides of a tile.
const WARPS: u32 = 8;
const ALONE: u32 = 4;
/// See [`WARPS`].
const SIDE: u32 = 32;
const _: () = assert!(WARPS * LANES * 4 == SIDE * SIDE);
/// Rows (columns of `B`) of a lane.
const SIDES: usize = 4;

/// One factor, as a lane reads it: elements of which a word has `PER_WORD`, 2 or 4.
struct Factor<const PER_WORD: u32> {
    /// The lane's first element in the next step.
    p: *const u8,
    /// Bytes from one line of memory to the next.
    line: u64,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
    /// Whether pieces, or a term's words, are aligned; of i8.
    whole: bool,
    /// Rows (columns of `B`), and terms, that are left from the lane's first on.
    beside: u32,
    k: u32,
}

/// What a lane has read of a step, in aligned pieces: two for each row, or for each term (two terms of i8) the words that hold its
/// part of four rows.
type Raw = [[u32; 4]; 8];

impl<const PER_WORD: u32> Factor<PER_WORD> {
    /// Bytes of an element, terms of a lane in a step, and all of a step.
    const BYTES: u32 = 4 / PER_WORD;
    const TERMS: u32 = 4 * PER_WORD;
    const DEPTH: u32 = 4 * Self::TERMS;

    /// From row (column of `B`) `first` of `len` on, terms from `k` to `end`.
    #[inline(always)]
    fn new(
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, len): (u32, u32),
        (k, end): (u32, u32),
    ) -> Self {
        let (own, term) = (lane_id() / 4, k + lane_id() % 4 * Self::TERMS);
        let side = first + if along { own } else { own * SIDES as u32 };
        let (far, near) = if along { (side, term) } else { (term, side) };
        let at = u64::from(batch) * matrix.stride + u64::from(far) * matrix.ld + u64::from(near);
        let p = matrix.addr.as_ptr().cast_const().wrapping_add(Self::BYTES as usize * at as usize);
        let (beside, k) = (len.saturating_sub(side), end.saturating_sub(term));
        let whole = PER_WORD == 4 && matrix.unit >= if along { 16 } else { 4 };
        Self { p, line: u64::from(Self::BYTES) * matrix.ld, along, whole, beside, k }
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
            if 8 * (i as u32) < self.beside { self.k.min(Self::TERMS) } else { 0 }
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
        let mut raw = [[0; 4]; 8];
        // SAFETY: an element of each piece is there.
        unsafe {
            if self.along && self.whole {
                let mut i = 0;
                while i < SIDES {
                    let p = self.p.wrapping_add((8 * i as u64 * self.line) as usize);
                    raw[2 * i] = ld_or_zero_x4(self.count(i) > 0, p.cast());
                    i += 1;
                }
            } else if self.along {
                let mut i = 0;
                while i < SIDES {
                    let p = self.p.wrapping_add((8 * i as u64 * self.line) as usize);
                    let (over, count) = (p as u64 as u32 % 16, self.count(i));
                    let p = p.wrapping_sub(over as usize);
                    raw[2 * i] = ld_or_zero_x4(count > 0, p.cast());
                    let more = over + Self::BYTES * count > 16;
                    raw[2 * i + 1] = ld_or_zero_x4(more, p.wrapping_add(16).cast());
                    i += 1;
                }
            } else if self.whole {
                let mut j = 0;
                while j < 16 {
                    let p = self.p.wrapping_add((j as u64 * self.line) as usize);
                    raw[j / 2][j % 2 * 2] = ld_if(self.count(j) > 0, p.cast());
                    j += 1;
                }
            } else if PER_WORD == 4 {
                let mut j = 0;
                while j < 16 {
                    let p = self.p.wrapping_add((j as u64 * self.line) as usize);
                    let (over, count) = (p as u64 as u32 % 4, self.count(j));
                    let p = p.wrapping_sub(over as usize).cast::<u32>();
                    raw[j / 2][j % 2 * 2] = ld_if(count > 0, p);
                    raw[j / 2][j % 2 * 2 + 1] = ld_if(over + count > 4, p.wrapping_add(1));
                    j += 1;
                }
            } else {
                let mut j = 0;
                while j < 8 {
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
        if self.along && self.whole {
            // Zeros stand behind the last term: lines are whole pieces.
            words = [raw[0], raw[2], raw[4], raw[6]];
            self.p = self.p.wrapping_add((Self::BYTES * Self::DEPTH) as usize);
        } else if self.along {
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
                    let there = count.saturating_sub(PER_WORD * j as u32);
                    let mask =
                        if PER_WORD == 2 { 0xffff * there } else { (1u32 << (8 * there % 32)) - 1 };
                    let mask = if there >= PER_WORD { !0 } else { mask };
                    permute(whole[j], whole[j + 1], Self::select(over)) & mask
                });
                i += 1;
            }
            self.p = self.p.wrapping_add((Self::BYTES * Self::DEPTH) as usize);
        } else if PER_WORD == 4 {
            let mut w = 0;
            while w < 4 {
                let turned = transpose(core::array::from_fn(|j| {
                    let j = 4 * w + j;
                    if self.whole {
                        return raw[j / 2][j % 2 * 2];
                    }
                    let over = self.p as u64 as u32 + j as u32 * self.line as u32;
                    let [near, far] = [raw[j / 2][j % 2 * 2], raw[j / 2][j % 2 * 2 + 1]];
                    permute(near, far, Self::select(over))
                }));
                let mut i = 0;
                while i < SIDES {
                    words[i][w] = turned[i];
                    i += 1;
                }
                w += 1;
            }
            self.p = self.p.wrapping_add((u64::from(Self::DEPTH) * self.line) as usize);
        } else {
            let mut rows = [[0; 2]; 8];
            let mut j = 0;
            while j < 8 {
                let over = self.p as u64 as u32 + j as u32 * self.line as u32;
                let [a, b, c, d] = raw[j];
                let whole = if over & 4 != 0 { [b, c, d] } else { [a, b, c] };
                rows[j] =
                    core::array::from_fn(|w| permute(whole[w], whole[w + 1], Self::select(over)));
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
            self.p = self.p.wrapping_add((u64::from(Self::DEPTH) * self.line) as usize);
        }
        self.k = self.k.saturating_sub(Self::DEPTH);
        words
    }

    /// The bytes of two words that an element at this address starts with.
    #[inline(always)]
    fn select(over: u32) -> u32 {
        match PER_WORD {
            2 => {
                if over & 2 != 0 {
                    0x5432
                } else {
                    0x3210
                }
            }
            _ => 0x3210 + 0x1111 * (over & 3),
        }
    }
}

/// Sums of a warp's tile: those of two rows of each sixteen, and two columns of each eight.
type Sums<F> = [[[<F as Fragment>::Sum; 4]; SIDES]; SIDES / 2];

/// Sums of a tile over so many steps.
///
/// # Safety
///
/// The matrices cover what their contract says, and nobody writes them.
#[inline(always)]
unsafe fn sums<F: Fragment, const PER_WORD: u32>(
    a: &mut Factor<PER_WORD>,
    b: &mut Factor<PER_WORD>,
    (first, last): (u32, u32),
) -> Sums<F> {
    let mut sums = [[[F::Sum::from_word(0); 4]; SIDES]; SIDES / 2];
    let mut step = opaque(first);
    while step < last {
        // SAFETY: the caller's promise.
        let (left, right) = unsafe { (a.read(), b.read()) };
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
    sums
}

/// Puts the sums of this warp's tile into shared memory.
///
/// # Safety
///
/// A tile of shared memory that nobody else accesses.
#[inline(always)]
unsafe fn park<F: Fragment, const PER_WORD: u32>(
    to: Shared<F::Sum>,
    (a, b): (&Factor<PER_WORD>, &Factor<PER_WORD>),
    sums: Sums<F>,
) {
    let mut i = 0;
    while i < SIDES {
        let row = a.side(lane_id() / 4, i);
        let mut j = 0;
        while j < 2 * SIDES {
            let column = b.side(lane_id() % 4 * 2 + j as u32 % 2, j / 2);
            let sum = sums[i / 2][j / 2][i % 2 * 2 + j % 2];
            // SAFETY: inside of the tile.
            unsafe { to.add(row * PARKED_ROW + column).write(sum) };
            j += 1;
        }
        i += 1;
    }
}

/// Makes the tiles of this block, one a warp.
///
/// # Safety
///
/// As for [`long`].
#[inline(always)]
pub(super) unsafe fn alone<F: Fragment, C: Target<Sum = F::Sum>, const PER_WORD: u32>(
    args: &Args,
    element: C,
) {
    launch_dependents();
    let (tiles_m, tiles_n) = (args.m.div_ceil(SIDE), args.n.div_ceil(SIDE));
    let per_matrix = tiles_m * tiles_n;
    let index = block_idx_x() * ALONE + warp_id();
    let batch = index / per_matrix;
    let here = batch < args.batch;
    let [tile_m, tile_n] = tile_at(index - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * SIDE, tile_n * SIDE);
    // A warp without a tile reads and writes nothing.
    let (m, n, batch) = if here { (args.m, args.n, batch) } else { (0, 0, 0) };
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let mut a = Factor::<PER_WORD>::new((&args.a, along.0, batch), (row0, m), (0, args.k));
    let mut b = Factor::<PER_WORD>::new((&args.b, along.1, batch), (column0, n), (0, args.k));
    dependency_wait();
    // SAFETY: the caller's promise; a tile of shared memory is this warp's.
    unsafe {
        if C::reads(args.beta) {
            let tile = (batch, row0, column0);
            prefetch_tile(args, 4, tile, (m, n), (SIDE, SIDE), (lane_id(), LANES));
        }
        let steps = args.k.div_ceil(Factor::<PER_WORD>::DEPTH);
        let sums = sums::<F, PER_WORD>(&mut a, &mut b, (0, steps));
        let parked = dynamic_shared_mem::<F::Sum>().add(warp_id() * SIDE * PARKED_ROW);
        park::<F, PER_WORD>(parked, (&a, &b), sums);
        sync_warp();
        let (shape, who) = ((SIDE, SIDE, PARKED_ROW), (lane_id(), LANES));
        write(args, element, batch, (row0, column0), (m, n), parked, shape, who);
    }
}

/// Makes the tile of this block, or its part of the sums of it.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn long<F: Fragment, C: Target<Sum = F::Sum>, const PER_WORD: u32>(
    args: &Args,
    element: C,
) {
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
    const { assert!(F::PER_WORD == PER_WORD) };
    let depth = Factor::<PER_WORD>::DEPTH;
    let (steps, part) = (args.k.div_ceil(depth), rank * WARPS + warp_id());
    let from = |part: u32| {
        let steps = u64::from(steps) * u64::from(part);
        let steps = if spread { steps / u64::from(parts) } else { steps >> args.split };
        steps as u32 / WARPS
    };
    let (first, last) = (from(part), from(part + 1));
    let terms = (first * depth, (last * depth).min(args.k));
    let mut a =
        Factor::<PER_WORD>::new((&args.a, args.a.transposed == 0, batch), (row0, args.m), terms);
    let mut b =
        Factor::<PER_WORD>::new((&args.b, args.b.transposed != 0, batch), (column0, args.n), terms);
    dependency_wait();

    // SAFETY: the caller's promise; each warp writes its own tile, which others read behind a barrier, and each thread then
    // fours of its own.
    unsafe {
        let sums = sums::<F, PER_WORD>(&mut a, &mut b, (first, last));
        let parked = dynamic_shared_mem::<F::Sum>();
        park::<F, PER_WORD>(parked.add(warp_id() * SIDE * PARKED_ROW), (&a, &b), sums);
        sync_threads();
        let own = parked.add(thread_idx_x() / 8 * PARKED_ROW + thread_idx_x() % 8 * 4);
        let mut sum = own.read_x4();
        let mut other = 1;
        while other < WARPS {
            let more: [F::Sum; 4] = own.add(other * SIDE * PARKED_ROW).read_x4();
            sum = core::array::from_fn(|j| F::add(sum[j], more[j]));
            other += 1;
        }
        if spread {
            let (row, column) = (row0 + thread_idx_x() / 8, column0 + thread_idx_x() % 8 * 4);
            let at = u64::from(rank * args.batch + batch) * args.c.stride
                + u64::from(row) * args.c.ld
                + u64::from(column);
            let p = args.c.addr.cast::<F::Sum>().as_ptr().wrapping_add(at as usize);
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
            add_up::<_, SIDE, PARKED_ROW>(args, element, tile, parked, F::add, who);
            return;
        }
        sync_threads();
        let (at, shape) = ((row0, column0), (SIDE, SIDE, PARKED_ROW));
        write(args, element, batch, at, (args.m, args.n), parked, shape, who);
    }
}
