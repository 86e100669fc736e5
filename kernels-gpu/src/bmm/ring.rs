//! The one arithmetic ([`super::exact`]) of f32 of any alignment: `cp.async` puts slices into a ring in shared memory, some
//! of them ahead, so that what a thread waits for is not memory.
//!
//! The chunks of k, whose sums are added afterwards, are what the blocks of a cluster, and the groups of threads of a
//! block, share out among them. In a round each makes one chunk and parks its sums in shared memory; then each block
//! adds up some of the rows of all, first to last.
//!
//! A slice keeps the order of memory: where neighbours are neighbours in k, a row of it is 32 terms, in pieces of four
//! that stand at piece `c ^ (row / 4 % 8)`; else a row of it is the whole side at one k.

use contract::bmm::{Args, K_CHUNK, Matrix, RING_DEPTH, ring_words, row_words};
use contract::num::{RowType, fma};

use super::source::Float;
use super::split::{add_chunks, rank_and_block};
use super::target::Target;
use super::write::{write, write_squares};
use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::cluster::{read_x4_of, sync_cluster};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{opaque_u64, sync_threads, thread_idx_x};
use crate::arch::warp::LANES;
use crate::tile::walk::tile_at;

/// Terms of a slice.
const DEPTH: u32 = RING_DEPTH;

/// Where a term of a row (column of `B`) stands in a slice of `SIDE` of them.
#[inline(always)]
fn place<const SIDE: u32>(along: bool, side: u32, k: u32) -> u32 {
    if along { side * DEPTH + (k / 4 ^ side / 4 % 8) * 4 + k % 4 } else { k * SIDE + side }
}

/// What a thread of a group of `THREADS` copies of one factor: in each slice 4 pieces of four elements, or 16 elements.
struct Part<const SIDE: u32, const THREADS: u32> {
    /// The first of them in the next slice, and elements from one row of memory to the next.
    p: *const f32,
    ld: u64,
    /// Rows (columns of `B`), and terms, that are left from there on.
    beside: i32,
    k_left: i32,
    /// Whether neighbours in memory are neighbours in k, and whether four of them are an aligned piece.
    along: bool,
    pieces: bool,
}

impl<const SIDE: u32, const THREADS: u32> Part<SIDE, THREADS> {
    /// Row and term of thread `t`'s first element.
    #[inline(always)]
    fn first(t: u32, along: bool, pieces: bool) -> [u32; 2] {
        let width = if pieces { 4 } else { 1 };
        let row = if along { DEPTH } else { SIDE } / width;
        let (far, near) = (t / row, t % row * width);
        if along { [far, near] } else { [near, far] }
    }

    /// Of the tile from `first` on; terms from `k` to `end`.
    #[inline(always)]
    fn new(
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, side_len): (u32, u32),
        (k, end): (u32, u32),
        t: u32,
    ) -> Self {
        let pieces = matrix.unit >= 16;
        let [side, depth] = Self::first(t, along, pieces);
        let base = matrix.addr.cast::<f32>().as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let (side, depth) = (first + side, k + depth);
        let (far, near) = if along { (side, depth) } else { (depth, side) };
        Self {
            p: base.wrapping_add((u64::from(far) * matrix.ld + u64::from(near)) as usize),
            ld: matrix.ld,
            beside: side_len.wrapping_sub(side) as i32,
            k_left: end as i32 - depth as i32,
            along,
            pieces,
        }
    }

    /// Asks for the next slice; zeros are where nothing is.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it; nobody accesses the slice.
    #[inline(always)]
    unsafe fn copy(&mut self, to: Shared<f32>, t: u32) {
        // SAFETY: handed on.
        unsafe { if self.pieces { self.copy_by::<4>(to, t) } else { self.copy_by::<1>(to, t) } }
        let slice = if self.along { u64::from(DEPTH) } else { u64::from(DEPTH) * self.ld };
        self.p = self.p.wrapping_add(slice as usize);
        self.k_left -= DEPTH as i32;
    }

    /// # Safety
    ///
    /// As for [`Self::copy`]; `WIDTH` is 4 where there are pieces, and 1 where not.
    #[inline(always)]
    unsafe fn copy_by<const WIDTH: u32>(&self, to: Shared<f32>, t: u32) {
        // Opaque, because what follows from these would else be in registers all the time.
        let [side, depth] = Self::first(opaque(t), self.along, WIDTH == 4);
        // Rows, or terms, from one copy to the next, and what is left of them.
        let lines = THREADS * WIDTH / if self.along { DEPTH } else { SIDE };
        let step = opaque_u64(u64::from(lines) * self.ld * 4);
        let near = if self.along { self.k_left } else { self.beside };
        let mut far = if self.along { self.beside } else { self.k_left };
        far = if near > 0 { far } else { 0 };
        let mut p = self.p.cast::<u8>();
        let mut i = 0;
        while i < DEPTH * SIDE / (THREADS * WIDTH) {
            let at = if self.along { [side + i * lines, depth] } else { [side, depth + i * lines] };
            let at = to.add(place::<SIDE>(self.along, at[0], at[1]));
            // SAFETY: the elements are inside when the first is, because rows are whole pieces.
            unsafe { if WIDTH == 4 { copy_x16(at, p, far > 0) } else { copy_x4(at, p, far > 0) } }
            p = p.wrapping_add(step as usize);
            far -= lines as i32;
            i += 1;
        }
    }
}

/// Four terms from `k` on of `N` times `H` rows, two or four, `next` rows apart: `[square][term][row]`.
///
/// # Safety
///
/// A slice that was waited for.
#[inline(always)]
unsafe fn four<const ALONG: bool, const SIDE: u32, const N: usize, const H: usize>(
    slice: Shared<f32>,
    first: u32,
    next: u32,
    k: u32,
) -> [[[f32; H]; 4]; N] {
    let mut out = [[[0.0; H]; 4]; N];
    // Rows that are a multiple of 32 apart have their pieces in the same places.
    let at = slice.add(place::<SIDE>(ALONG, first, k));
    let mut s = 0;
    while s < N {
        let mut i = 0;
        while i < if ALONG { H as u32 } else { 4 } {
            let line =
                if ALONG { (s as u32 * next + i) * DEPTH } else { i * SIDE + s as u32 * next };
            // SAFETY: the caller's promise.
            let values = unsafe {
                if ALONG || H == 4 {
                    at.add(line).read_x4()
                } else {
                    let [low, high] = at.add(line).read_x2();
                    [low, high, 0.0, 0.0]
                }
            };
            let mut j = 0;
            while j < if ALONG { 4 } else { H } {
                let (term, row) = if ALONG { (j, i as usize) } else { (i as usize, j) };
                out[s][term][row] = values[j];
                j += 1;
            }
            i += 1;
        }
        s += 1;
    }
    out
}

/// Takes `terms` terms of a slice, a multiple of four, `N` fours at a time.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn multiply<
    const A: bool,
    const B: bool,
    const SIDE: u32,
    const RM: usize,
    const H: usize,
    const N: u32,
>(
    sums: &mut Sums<RM, H>,
    a: (Shared<f32>, u32),
    b: (Shared<f32>, u32),
    terms: u32,
) {
    // Opaque, because LLVM would write out the loop.
    let mut k = opaque(0);
    while N > 1 && k + 4 * N <= terms {
        // SAFETY: the caller's promise.
        unsafe { fours::<A, B, SIDE, RM, H, N>(sums, a, b, k) };
        k = opaque(k + 4 * N);
    }
    while k < terms {
        // SAFETY: the caller's promise.
        unsafe { fours::<A, B, SIDE, RM, H, 1>(sums, a, b, k) };
        k += 4;
    }
}

/// Takes `N` times four terms from `k` on.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn fours<
    const A: bool,
    const B: bool,
    const SIDE: u32,
    const RM: usize,
    const H: usize,
    const N: u32,
>(
    sums: &mut Sums<RM, H>,
    (a, row): (Shared<f32>, u32),
    (b, column): (Shared<f32>, u32),
    k: u32,
) {
    let next = SIDE / RM as u32;
    let mut n = 0;
    while n < N {
        let k = k + 4 * n;
        // SAFETY: the caller's promise.
        let (left, [right]) = unsafe {
            (four::<A, SIDE, RM, H>(a, row, next, k), four::<B, SIDE, 1, 4>(b, column, 0, k))
        };
        let mut term = 0;
        while term < 4 {
            let mut r = 0;
            while r < RM {
                let mut i = 0;
                while i < H {
                    let mut j = 0;
                    while j < 4 {
                        let sum = &mut sums[r][i][j];
                        *sum = fma(left[r][term][i], right[term][j], *sum);
                        j += 1;
                    }
                    i += 1;
                }
                r += 1;
            }
            term += 1;
        }
        n += 1;
    }
}

/// Sums of a thread: `[square][row][column]`.
type Sums<const RM: usize, const H: usize> = [[[f32; 4]; H]; RM];

/// Makes the tile of this block, `SIDE` by `SIDE`: `WAYS` groups of threads of `RM` squares of `H` by 4 each, one above the
/// other; `N` times four terms at a time, out of rings of `STAGES` slices.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn ring<
    const SIDE: u32,
    const RM: usize,
    const H: usize,
    const WAYS: u32,
    const THREADS: u32,
    const N: u32,
    const STAGES: u32,
>(
    args: &Args,
) {
    const { assert!(THREADS * 4 * (H * RM) as u32 == SIDE * SIDE && SIDE % (32 * RM as u32) == 0) };
    let high = H as u32;
    let ahead = STAGES - 1;
    let tx_len = SIDE / 4;
    let next = SIDE / RM as u32;
    let slice_words = DEPTH * SIDE;
    let out = Float::<true>(RowType::F32 as u32);
    launch_dependents();
    let (t, way) = match WAYS {
        1 => (thread_idx_x(), 0),
        _ => (thread_idx_x() % THREADS, thread_idx_x() / THREADS),
    };
    // As in `exact`.
    let (lane, warp) = (t % LANES, t / LANES);
    let (y, x) = (lane >> 1 & 1 | lane >> 3 & 2, lane & 1 | lane >> 1 & 6);
    let (ty, tx) = (warp / (tx_len / 8) * 4 + y, warp % (tx_len / 8) * 8 + x);
    let (tiles_m, tiles_n) = (args.m.div_ceil(SIDE), args.n.div_ceil(SIDE));
    let per_matrix = tiles_m * tiles_n;
    let (rank, block) = rank_and_block(args);
    let tile = |block: u32| {
        let batch = block / per_matrix;
        let [tile_m, tile_n] = tile_at(block - batch * per_matrix, tiles_m, tiles_n);
        (batch, tile_m * SIDE, tile_n * SIDE)
    };
    let along = (args.a.transposed == 0, args.b.transposed != 0);

    let smem = dynamic_shared_mem::<f32>();
    let ring = smem.add(way * STAGES.min(args.k.div_ceil(DEPTH)) * 2 * slice_words);
    // Parked sums lie over the rings.
    let (pitch, parked_words) = (row_words(SIDE), SIDE * row_words(SIDE));
    let parked = smem;
    let rows = SIDE >> args.split;
    let chunks = args.k.div_ceil(K_CHUNK as u32);
    let at_once = WAYS << args.split;
    // Totals of several rounds stand behind the rings; of one, over this block's parked sums.
    let one_round = chunks <= at_once;
    let (totals, totals_ld) = if one_round {
        (parked.add(rank * rows * pitch), pitch)
    } else {
        (smem.add(ring_words(SIDE, WAYS, STAGES)), SIDE)
    };
    let whole = args.c.unit >= 16 && !Float::<true>::reads(args.beta);
    dependency_wait();

    let mut start = 0; // the first chunk of this round
    while start == 0 || start < chunks {
        let mut sums: Sums<RM, H> = [[[0.0; 4]; H]; RM];
        // The groups of a block go in step, as the first of them does.
        let chunk = start + rank * WAYS;
        let len = |chunk: u32| args.k.saturating_sub(chunk * K_CHUNK as u32).min(K_CHUNK as u32);
        let slices = len(chunk).div_ceil(DEPTH);
        let mine = len(chunk + way);
        let k = ((chunk + way) * K_CHUNK as u32, (chunk + way) * K_CHUNK as u32 + mine);
        let (batch, row0, column0) = tile(opaque(block));
        let (a_at, b_at) = ((&args.a, along.0, batch), (&args.b, along.1, batch));
        let mut a = Part::<SIDE, THREADS>::new(a_at, (row0, args.m), k, t);
        let mut b = Part::<SIDE, THREADS>::new(b_at, (column0, args.n), k, t);
        // SAFETY: `args` says the truth; a place of the ring is asked for again behind a barrier that all readers have
        // reached; nobody reads or writes parked sums but between the barriers of the cluster as it is said there.
        unsafe {
            // Step s asks for slice s and multiplies the one that was asked for `ahead` steps before. Opaque, because
            // LLVM would copy the first steps out of the loop.
            let mut s = opaque(0);
            while s < slices + ahead {
                if s >= ahead {
                    match STAGES {
                        3 => wait_group::<1>(),
                        _ => wait_group::<4>(),
                    }
                    sync_threads();
                }
                // Where nothing hides what asking takes, it comes behind the products.
                if H == 4 {
                    if s < slices {
                        let to = ring.add(s % STAGES * 2 * slice_words);
                        a.copy(to, t);
                        b.copy(to.add(slice_words), t);
                    }
                    commit_group();
                }
                if s >= ahead {
                    let slice = s - ahead;
                    let left = ring.add(slice % STAGES * 2 * slice_words);
                    let right = left.add(slice_words);
                    let terms = mine.saturating_sub(slice * DEPTH).min(DEPTH);
                    let (from, fours) = (((left, high * ty), (right, 4 * tx)), terms / 4 * 4);
                    match along {
                        (false, false) => {
                            multiply::<false, false, SIDE, RM, H, N>(
                                &mut sums, from.0, from.1, fours,
                            );
                        }
                        (false, true) => {
                            multiply::<false, true, SIDE, RM, H, N>(
                                &mut sums, from.0, from.1, fours,
                            );
                        }
                        (true, false) => {
                            multiply::<true, false, SIDE, RM, H, N>(
                                &mut sums, from.0, from.1, fours,
                            );
                        }
                        (true, true) => {
                            multiply::<true, true, SIDE, RM, H, N>(
                                &mut sums, from.0, from.1, fours,
                            );
                        }
                    }
                    // Zeros behind the end would make a sum of -0 one of 0.
                    let mut k = opaque(fours);
                    while k < terms {
                        let value = |from: Shared<f32>, along, side| {
                            from.add(place::<SIDE>(along, side, k)).read()
                        };
                        let columns: [f32; 4] =
                            core::array::from_fn(|j| value(right, along.1, 4 * tx + j as u32));
                        let mut r = 0;
                        while r < H * RM {
                            let row = high * ty + r as u32 / high * next + r as u32 % high;
                            let left = value(left, along.0, row);
                            let mut j = 0;
                            while j < 4 {
                                let sum = &mut sums[r / H][r % H][j];
                                *sum = fma(left, columns[j], *sum);
                                j += 1;
                            }
                            r += 1;
                        }
                        k = opaque(k + 1);
                    }
                }
                if H != 4 {
                    if s < slices {
                        let to = ring.add(s % STAGES * 2 * slice_words);
                        a.copy(to, t);
                        b.copy(to.add(slice_words), t);
                    }
                    commit_group();
                }
                s += 1;
            }
            if H == 4 && chunks <= 1 && whole && args.split == 0 {
                // Once more, so that it need not stay in registers meanwhile.
                let (batch, row0, column0) = tile(opaque(block));
                if way == 0 {
                    let (mine, shape) = ((row0 + 4 * ty, column0 + 4 * tx), (args.m, args.n));
                    let sums = sums.map(|square| core::array::from_fn(|i| [square[i % H]]));
                    write_squares::<_, RM, 1>(args, out, batch, mine, shape, (next, 0), sums);
                }
                return;
            }
            sync_threads();
            let mut r = 0;
            while r < H * RM {
                let row = high * ty + r as u32 / high * next + r as u32 % high;
                let at = parked.add(way * parked_words + row * pitch + 4 * tx);
                at.write_x4(sums[r / H][r % H]);
                r += 1;
            }
            let count = (chunks - start).min(at_once);
            let barrier = || if args.split > 0 { sync_cluster() } else { sync_threads() };
            barrier();
            let mut index = thread_idx_x();
            while index < rows * (SIDE / 4) {
                let (i, j) = (index / (SIDE / 4), 4 * (index % (SIDE / 4)));
                let from = parked.add((rank * rows + i) * pitch + j);
                let to = totals.add(i * totals_ld + j);
                let mut total = if start > 0 { to.read_x4() } else { [0.0; 4] };
                total = add_chunks(total, (start, count), |c| {
                    read_x4_of(c / WAYS, from.add(c % WAYS * parked_words))
                });
                to.write_x4(total);
                index += THREADS * WAYS;
            }
            barrier();
        }
        start += at_once;
    }
    let (batch, row0, column0) = tile(opaque(block));
    let at = (row0 + rank * rows, column0);
    let shape = (rows, SIDE, totals_ld);
    // SAFETY: each thread writes the fours that it has added up.
    unsafe {
        let who = (thread_idx_x(), THREADS * WAYS);
        write(args, out, batch, at, (args.m, args.n), totals, shape, who);
    }
}
