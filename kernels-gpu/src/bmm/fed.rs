//! The one arithmetic ([`super::exact`]) of f32 of any alignment where a block is alone on its multiprocessor: some warps do
//! nothing but ask for slices, by `cp.async` into a ring in shared memory, as many ahead as there are places; the others
//! multiply, and read the next four terms before the products of these.
//!
//! The chunks of k, whose sums are added afterwards, are what the blocks of a cluster share out: a block makes every
//! `1 << split`-th of them and keeps their sums in shared memory; then each block adds up some of the outputs, first chunk
//! to last.
//!
//! A slice keeps the order of memory. Where neighbours are neighbours in k, it is a line of [`FED_DEPTH`] terms for each row
//! (column of `B`), and four words; else a line of all rows for each term.

use contract::bmm::{Args, FED_BARRIERS, FED_FEW, K_CHUNK, Matrix, SPREAD, fed_line, thin_rows};
use contract::num::{RowType, fma};

use super::source::Float;
use super::split::{add_chunks, part_and_block, rank_and_block};
use super::target::Target;
use crate::arch::async_copy::{commit_group, copy_x4_if, copy_x16_if, wait_group};
use crate::arch::cluster::{read_x4_of, sync_cluster};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mbarrier::{arrive, init, wait};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_dim_x, opaque_u64, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};
use crate::tile::walk::tile_at;

/// Threads that copy a slice.
const FEEDERS: u32 = 4 * LANES;
/// The same where a block makes several chunks at a time, and all that copy then.
const FEW_FEEDERS: u32 = 2 * LANES;
const ALL_FEEDERS: u32 = 8 * LANES;

/// What a thread copies of one factor.
struct Feed {
    /// The first element of the tile.
    p: *const f32,
    ld: u64,
    /// Rows (columns of `B`) of the tile that there are.
    beside: u32,
    /// Whether neighbours in memory are neighbours in k, and whether four of them are an aligned piece.
    along: bool,
    pieces: bool,
}

impl Feed {
    #[inline(always)]
    fn new((matrix, along, batch): (&Matrix, bool, u32), first: u32, side: u32, most: u32) -> Self {
        let p = matrix.addr.cast::<f32>().as_ptr().cast_const();
        let at = u64::from(first) * if along { matrix.ld } else { 1 };
        let p = p.wrapping_add((u64::from(batch) * matrix.stride + at) as usize);
        // A single row stands the same either way.
        let pieces = matrix.unit >= 16 && (along || most >= 4);
        Self { p, ld: matrix.ld, beside: side.saturating_sub(first).min(most), along, pieces }
    }

    /// Asks for the slice of `terms` terms from `k` on; what is not there stays as it was. `t`: which of `THREADS`.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it; nobody accesses the slice.
    #[inline(always)]
    unsafe fn copy<const SIDE: u32, const D: u32, const THREADS: u32>(
        &self,
        to: Shared<f32>,
        k: u32,
        terms: u32,
        t: u32,
    ) {
        // SAFETY: handed on.
        unsafe {
            match (self.along, self.pieces) {
                (true, true) => self.copy_by::<true, 4, SIDE, D, THREADS>(to, k, terms, t),
                (true, false) => self.copy_by::<true, 1, SIDE, D, THREADS>(to, k, terms, t),
                (false, true) if SIDE >= 4 => {
                    self.copy_by::<false, 4, SIDE, D, THREADS>(to, k, terms, t)
                }
                _ => self.copy_by::<false, 1, SIDE, D, THREADS>(to, k, terms, t),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Self::copy`]; `WIDTH` is 4 where there are pieces, and 1 where not.
    #[inline(always)]
    unsafe fn copy_by<
        const ALONG: bool,
        const WIDTH: u32,
        const SIDE: u32,
        const D: u32,
        const THREADS: u32,
    >(
        &self,
        to: Shared<f32>,
        k: u32,
        terms: u32,
        t: u32,
    ) {
        let (lines, width) = if ALONG { (SIDE, D) } else { (D, SIDE) };
        let units = width / WIDTH;
        let (line, x) = (t / units, t % units * WIDTH);
        let step = THREADS / units;
        let (near, far) = if ALONG { (terms, self.beside) } else { (self.beside, terms) };
        let far = if x < near { far } else { 0 };
        let pitch = if ALONG { fed_line(D) } else { SIDE };
        let at = if ALONG {
            u64::from(line) * self.ld + u64::from(k + x)
        } else {
            u64::from(k + line) * self.ld + u64::from(x)
        };
        let mut p = self.p.wrapping_add(at as usize);
        let next = opaque_u64(u64::from(step) * self.ld * 4) as usize;
        let to = to.add(line * pitch + x);
        let count = lines.div_ceil(step);
        let mut i = opaque(0);
        while i < count {
            let mut j = 0;
            while j < count.min(4) {
                if lines >= step || line < lines {
                    let to = to.add((i + j) * step * pitch);
                    let there = line + (i + j) * step < far;
                    // SAFETY: the elements are inside when the first is, because lines are whole pieces.
                    unsafe {
                        if WIDTH == 4 {
                            copy_x16_if(to, p, there)
                        } else {
                            copy_x4_if(to, p, there)
                        }
                    }
                }
                p = p.wrapping_byte_add(next);
                j += 1;
            }
            i = opaque(i + 4);
        }
    }
}

/// Row (column of `B`) `i` of lane `at` of `across`: neighbours of a lane are neighbours in memory, or lanes are.
#[inline(always)]
fn side_of<const N: usize>(along: bool, at: u32, across: u32, i: usize) -> u32 {
    if along { at + i as u32 * across } else { at * N as u32 + i as u32 }
}

/// Four terms from `k` on of `N` rows: `[term][row]`.
///
/// # Safety
///
/// A slice that was waited for.
#[inline(always)]
unsafe fn four<const ALONG: bool, const SIDE: u32, const D: u32, const N: usize>(
    slice: Shared<f32>,
    at: u32,
    k: u32,
) -> [[f32; N]; 4] {
    let mut out = [[0.0; N]; 4];
    // SAFETY: the caller's promise.
    unsafe {
        if ALONG {
            let from = slice.add(at * fed_line(D) + k);
            let mut i = 0;
            while i < N {
                let values = from.add(i as u32 * (SIDE / N as u32) * fed_line(D)).read_x4();
                let mut term = 0;
                while term < 4 {
                    out[term][i] = values[term];
                    term += 1;
                }
                i += 1;
            }
            return out;
        }
        let from = slice.add(k * SIDE + at * N as u32);
        let mut term = 0;
        while term < 4 {
            let from = from.add(term as u32 * SIDE);
            let mut i = 0;
            while i < N {
                if N % 4 == 0 {
                    let values = from.add(i as u32).read_x4();
                    let mut j = 0;
                    while j < 4 {
                        out[term][i + j] = values[j];
                        j += 1;
                    }
                    i += 4;
                } else if N % 2 == 0 {
                    let values = from.add(i as u32).read_x2();
                    (out[term][i], out[term][i + 1]) = (values[0], values[1]);
                    i += 2;
                } else {
                    out[term][i] = from.add(i as u32).read();
                    i += 1;
                }
            }
            term += 1;
        }
    }
    out
}

/// Adds four terms.
#[inline(always)]
fn add<const H: usize, const W: usize>(
    sums: &mut [[f32; W]; H],
    left: &[[f32; H]; 4],
    right: &[[f32; W]; 4],
) {
    let mut term = 0;
    while term < 4 {
        let mut i = 0;
        while i < H {
            let mut j = 0;
            while j < W {
                sums[i][j] = fma(left[term][i], right[term][j], sums[i][j]);
                j += 1;
            }
            i += 1;
        }
        term += 1;
    }
}

/// Takes `terms` terms of a slice, `N` fours at a time where it is a whole one.
///
/// # Safety
///
/// A slice that was waited for.
#[inline(always)]
unsafe fn multiply<
    const A: bool,
    const B: bool,
    const TM: u32,
    const TN: u32,
    const H: usize,
    const W: usize,
    const D: u32,
    const N: u32,
    const AHEAD: usize,
>(
    sums: &mut [[f32; W]; H],
    (a, y): (Shared<f32>, u32),
    (b, x): (Shared<f32>, u32),
    terms: u32,
) {
    // SAFETY: the caller's promise; behind the last line of a slice there is room for four terms.
    unsafe {
        if terms == D {
            // The fours that are read ahead of the one that is multiplied.
            let ask = |k: u32| (four::<A, TM, D, H>(a, y, k), four::<B, TN, D, W>(b, x, k));
            let mut fours: [_; AHEAD] = core::array::from_fn(|i| ask(4 * i as u32));
            if 4 * N == D {
                let mut n = 0;
                while n < N {
                    let next = if n + (AHEAD as u32) < N {
                        ask(4 * n + 4 * AHEAD as u32)
                    } else {
                        fours[0]
                    };
                    add(sums, &fours[0].0, &fours[0].1);
                    fours =
                        core::array::from_fn(|i| if i + 1 < AHEAD { fours[i + 1] } else { next });
                    n += 1;
                }
                return;
            }
            let mut k = opaque(0);
            while k < D {
                let mut n = 0;
                while n < N {
                    let next = ask(k + 4 * n + 4 * AHEAD as u32);
                    add(sums, &fours[0].0, &fours[0].1);
                    fours =
                        core::array::from_fn(|i| if i + 1 < AHEAD { fours[i + 1] } else { next });
                    n += 1;
                }
                k = opaque(k + 4 * N);
            }
            return;
        }
        let mut k = opaque(0);
        while k + 4 <= terms {
            add(sums, &four::<A, TM, D, H>(a, y, k), &four::<B, TN, D, W>(b, x, k));
            k = opaque(k + 4);
        }
        // Zeros behind the end would make a sum of -0 one of 0.
        let (tall, wide) = (TM / H as u32, TN / W as u32);
        while k < terms {
            let value = |from: Shared<f32>, along, side, line| {
                from.add(if along { side * fed_line(D) + k } else { k * line + side }).read()
            };
            let right: [f32; W] =
                core::array::from_fn(|j| value(b, B, side_of::<W>(B, x, wide, j), TN));
            let mut i = 0;
            while i < H {
                let left = value(a, A, side_of::<H>(A, y, tall, i), TM);
                let mut j = 0;
                while j < W {
                    sums[i][j] = fma(left, right[j], sums[i][j]);
                    j += 1;
                }
                i += 1;
            }
            k = opaque(k + 1);
        }
    }
}

/// Makes the tile of this block, `TM` by `TN`, of `WAYS` chunks at a time, each by as many of the `WARPS` warps that multiply: `H` by
/// `W` outputs for a lane, `N` fours of terms at a time and `AHEAD` of them read ahead. `PLACES` slices of `D` terms of each chunk
/// are in the ring, and the sums of `ROUNDS` times `WAYS` chunks in shared memory.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn fed<
    const TM: u32,
    const TN: u32,
    const H: usize,
    const W: usize,
    const WARPS: u32,
    const D: u32,
    const PLACES: u32,
    const ROUNDS: u32,
    const WAYS: u32,
    const N: u32,
    const AHEAD: usize,
    const SPREADS: bool,
>(
    args: &Args,
) {
    const {
        assert!(TM * TN <= WARPS / WAYS * LANES * (H * W) as u32);
        assert!(2 * PLACES <= FED_BARRIERS);
        // What is read ahead behind a slice.
        assert!(4 * N == D || AHEAD == 1);
    };
    launch_dependents();
    let (tiles_m, tiles_n) = (args.m.div_ceil(TM), args.n.div_ceil(TN));
    // Spread, a block makes one chunk, and writes its sums where another kernel finds them.
    let spread = SPREADS && args.split >= SPREAD;
    let split = if spread { 0 } else { args.split };
    let (rank, block, part) = if spread {
        let (part, block) = part_and_block(args, tiles_m * tiles_n);
        (0, block, part)
    } else {
        let (rank, block) = rank_and_block(args);
        (rank, block, 0)
    };
    let batch = block / (tiles_m * tiles_n);
    let [tile_m, tile_n] = tile_at(block - batch * (tiles_m * tiles_n), tiles_m, tiles_n);
    let (row0, column0) = (tile_m * TM, tile_n * TN);
    let along = (args.a.transposed == 0 || TM == 1, args.b.transposed != 0);
    let chunks = if spread { part + 1 } else { args.k.div_ceil(K_CHUNK as u32) };
    // Chunks of a round of all blocks, and of as many rounds as there is room for.
    let at_once = WAYS << split;
    let span = ROUNDS * at_once;

    let smem = dynamic_shared_mem::<f32>();
    let full = |place: u32| smem.cast::<u64>().add(place);
    let empty = |place: u32| smem.cast::<u64>().add(PLACES + place);
    let parked = smem.add(2 * FED_BARRIERS);
    let ring = parked.add(ROUNDS * WAYS * TM * TN);
    let words = (TM + TN) * fed_line(D);
    let totals = ring.add(PLACES * WAYS * words);
    let slice = |place: u32, way: u32| ring.add((place * WAYS + way) * words);
    let next = |place: u32| if place + 1 == PLACES { 0 } else { place + 1 };
    let (t, warp) = (thread_idx_x(), warp_id());
    // The last threads of a block are those that copy.
    let feeders = if WAYS == 1 { FEEDERS } else { ALL_FEEDERS };
    let feeder = t.wrapping_sub(block_dim_x() - feeders);
    // SAFETY: the barriers are the block's, and used behind the block barrier.
    unsafe {
        if t < PLACES {
            init(full(t), feeders);
            init(empty(t), WARPS * LANES);
        }
    }
    sync_threads();
    dependency_wait();
    let len = |chunk: u32| args.k.saturating_sub(chunk * K_CHUNK as u32).min(K_CHUNK as u32);
    let barrier = || if split > 0 { sync_cluster() } else { sync_threads() };

    // The place of the next slices, and whether the ring was gone through an odd number of times.
    let (mut place, mut odd) = (0, 0);
    let mut start = part; // the first chunk of this span
    while start == part || start < chunks {
        if feeder < feeders {
            let a = Feed::new((&args.a, args.a.transposed == 0, batch), row0, args.m, TM);
            let b = Feed::new((&args.b, along.1, batch), column0, args.n, TN);
            // Of several chunks each is some threads' to copy.
            let each = if WAYS == 1 { FEEDERS } else { FEW_FEEDERS };
            // Whether a slice was asked for whose arrival is still to be told, and its place.
            let (mut asked, mut before) = (false, 0);
            let mut first = start + WAYS * rank;
            while first < chunks.min(start + span) {
                // Of the chunks of a round the first is the longest.
                let (mut k, end) = (0, len(first));
                while k < end {
                    // SAFETY: `args` says the truth; a place is asked for again when all have read it.
                    unsafe {
                        wait(empty(place), odd ^ 1);
                        let mut way = feeder / each;
                        while way < WAYS {
                            let from = (first + way) * K_CHUNK as u32 + k;
                            let terms = len(first + way).saturating_sub(k).min(D);
                            let b_to = slice(place, way);
                            let a_to = b_to.add(TN * fed_line(D));
                            if WAYS == 1 {
                                b.copy::<TN, D, FEEDERS>(b_to, from, terms, feeder);
                                a.copy::<TM, D, FEEDERS>(a_to, from, terms, feeder);
                            } else {
                                b.copy::<TN, D, FEW_FEEDERS>(b_to, from, terms, feeder % each);
                                a.copy::<TM, D, FEW_FEEDERS>(a_to, from, terms, feeder % each);
                            }
                            way += feeders / each;
                        }
                        // One is on its way while the one before is waited for: that threads arrive by themselves when
                        // their copies are there is what racecheck does not follow.
                        commit_group();
                        if asked {
                            wait_group::<1>();
                            arrive(full(before));
                        }
                    }
                    (asked, before) = (true, place);
                    place = next(place);
                    odd ^= u32::from(place == 0);
                    k += D;
                }
                first += at_once;
            }
            wait_group::<0>();
            if asked {
                // SAFETY: as above.
                unsafe { arrive(full(before)) };
            }
        } else if warp < WARPS {
            let (wide, tall) = (TN / W as u32, TM / H as u32);
            let (way, warp) = (warp / (WARPS / WAYS), warp % (WARPS / WAYS));
            // Where a warp has more lanes than outputs, some make the same.
            let (y, x) = ((warp * LANES + lane_id()) / wide % tall, lane_id() % wide);
            let mut first = start + WAYS * rank;
            let mut to = parked.add(way * (TM * TN));
            while first < chunks.min(start + span) {
                let mut sums = [[0.0; W]; H];
                let (mut k, end, mine) = (0, len(first), len(first + way));
                while k < end {
                    let terms = mine.saturating_sub(k).min(D);
                    let b = slice(place, way);
                    let a = b.add(TN * fed_line(D));
                    // SAFETY: waited for; nobody writes the place before this thread has said that it has read it.
                    unsafe {
                        wait(full(place), odd);
                        macro_rules! take {
                            ($a:literal, $b:literal) => {
                                multiply::<$a, $b, TM, TN, H, W, D, N, AHEAD>(
                                    &mut sums,
                                    (a, y),
                                    (b, x),
                                    terms,
                                )
                            };
                        }
                        match along {
                            (true, true) => take!(true, true),
                            (true, false) => take!(true, false),
                            (false, true) => take!(false, true),
                            (false, false) => take!(false, false),
                        }
                        arrive(empty(place));
                    }
                    place = next(place);
                    odd ^= u32::from(place == 0);
                    k += D;
                }
                let mut i = 0;
                while i < H {
                    let row = side_of::<H>(along.0, y, tall, i);
                    let mut j = 0;
                    while j < W {
                        let column = side_of::<W>(along.1, x, wide, j);
                        // SAFETY: an output that is this lane's.
                        unsafe { to.add(row * TN + column).write(sums[i][j]) };
                        j += 1;
                    }
                    i += 1;
                }
                to = to.add(WAYS * TM * TN);
                first += at_once;
            }
        }
        barrier();
        let count = (chunks - start).min(span);
        let last = chunks - start <= span;
        let share = (TM * TN / 4) >> split;
        let mut index = t;
        while index < share {
            let group = rank * share + index;
            // SAFETY: parked before the barrier, and there until the one below; of the totals and of `C` these four are this
            // thread's.
            unsafe {
                let mut total =
                    if start > part { totals.add(4 * group).read_x4() } else { [0.0; 4] };
                total = add_chunks(total, (start - part, count), |c| {
                    let (round, c) = (c / at_once, c % at_once);
                    let at = (WAYS * round + c % WAYS) * (TM * TN) + 4 * group;
                    read_x4_of(c / WAYS, parked.add(at))
                });
                if last {
                    let at = (row0 + 4 * group / TN, column0 + 4 * group % TN);
                    write(args, part * args.batch + batch, at, total);
                } else {
                    totals.add(4 * group).write_x4(total);
                }
            }
            index += block_dim_x();
        }
        barrier();
        start += span;
    }
}

/// Writes four outputs that are neighbours in a row of the tile, where they are inside of `C`.
///
/// # Safety
///
/// `args` says the truth; no other thread accesses these elements.
#[inline(always)]
unsafe fn write(args: &Args, batch: u32, (row, column): (u32, u32), sums: [f32; 4]) {
    if row >= args.m || column >= args.n {
        return;
    }
    let element = Float::<true>(RowType::F32 as u32);
    let [line, step] = if args.c.transposed == 0 { [args.c.ld, 1] } else { [1, args.c.ld] };
    let at = u64::from(batch) * args.c.stride + u64::from(row) * line + u64::from(column) * step;
    let p = args.c.addr.as_ptr().wrapping_add(at as usize * 4);
    // SAFETY: elements that are inside; the caller's promise.
    unsafe {
        if args.c.unit >= 16 && args.c.transposed == 0 {
            let mut old = [0.0; 4];
            if Float::<true>::reads(args.beta) {
                old = element.load4(p, 4, true);
            }
            let out = core::array::from_fn(|j| {
                Float::<true>::finish(args.alpha, sums[j], args.beta, old[j])
            });
            element.store4(p, 4, true, out);
            return;
        }
        let p = |j: usize| p.wrapping_add(4 * (j as u64 * step) as usize);
        let there = |j: usize| column + (j as u32) < args.n;
        let mut old = [0.0; 4];
        if Float::<true>::reads(args.beta) {
            old = core::array::from_fn(|j| element.load4(p(j), there(j).into(), false)[0]);
        }
        let mut j = 0;
        while j < 4 {
            if there(j) {
                let out = Float::<true>::finish(args.alpha, sums[j], args.beta, old[j]);
                element.store4(p(j), 1, false, [out; 4]);
            }
            j += 1;
        }
    }
}

/// Few rows: as many as [`thin_rows`] says.
///
/// # Safety
///
/// As for [`fed`], with `m` of [`contract::bmm::THIN_ROWS`] and less.
#[inline(always)]
pub(super) unsafe fn few(args: &Args) {
    const D: u32 = FED_FEW.depth;
    const PLACES: u32 = FED_FEW.places;
    const ROUNDS: u32 = FED_FEW.rounds;
    // SAFETY: handed on.
    unsafe {
        match thin_rows(args.m) {
            1 => fed::<1, 32, 1, 1, 1, D, PLACES, ROUNDS, 1, 32, 2, false>(args),
            4 => fed::<4, 32, 1, 1, 4, D, PLACES, ROUNDS, 1, 32, 2, false>(args),
            8 => fed::<8, 32, 2, 1, 4, D, PLACES, ROUNDS, 1, 32, 1, false>(args),
            _ => fed::<16, 8, 1, 1, 4, D, PLACES, ROUNDS, 1, 32, 2, false>(args),
        }
    }
}
