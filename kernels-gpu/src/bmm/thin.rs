//! Products with few rows, exact: a lane makes a column. The chunks of k, whose sums are added afterwards, are what
//! warps share out among them; each brings its part of both factors to shared memory, by copies of one element, so that
//! any alignment and either layout is the same, or of four where neighbours are columns and pieces aligned.

use contract::bmm::{Args, K_CHUNK, Matrix, THIN_ROWS, THIN_STAGE, finish, thin_words};
use contract::num::fma;

use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque, opaque_u64, sync_threads};
use crate::arch::warp::{LANES, lane_id, sync_warp, warp_id};

/// Warps of a block.
const WARPS: u32 = 4;
/// Terms of a stage, and words that one of them takes in its wide part, at most.
const STAGE: u32 = THIN_STAGE;
const WIDE: u32 = LANES + 1;

/// One factor: `beside` elements of it are in memory next to a chain's, `along` says whether terms are neighbours there,
/// `pieces` whether four neighbours are an aligned piece.
struct Factor {
    p: *const f32,
    ld: u64,
    along: bool,
    pieces: bool,
    beside: u32,
}

impl Factor {
    #[inline(always)]
    fn new(matrix: &Matrix, along: bool, batch: u32, (first, beside): (u32, u32)) -> Self {
        let p = matrix.addr.cast::<f32>().as_ptr().cast_const();
        let p = p.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let at = if along { u64::from(first) * matrix.ld } else { u64::from(first) };
        let (pieces, beside) = (matrix.unit >= 16, beside - first);
        Self { p: p.wrapping_add(at as usize), ld: matrix.ld, along, pieces, beside }
    }

    /// Asks for `STAGE` terms from `k` on of `COUNT` rows or columns; zeros from `end` on, and where there are none. Term
    /// `i` of number `j` goes to word `i * pitch + j`.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says; the words are this warp's.
    #[inline(always)]
    unsafe fn copy<const COUNT: u32>(&self, k: u32, end: u32, to: Shared<f32>, pitch: u32) {
        let lane = lane_id();
        // From one copy to the next; opaque, because multiples of it would else be in registers all the time.
        let step = |lines: u32| opaque_u64(u64::from(lines) * self.ld * 4) as usize;
        if !self.along && COUNT == LANES && self.pieces {
            // Four terms of all numbers at a time.
            let (term, j) = (lane / 8, lane % 8 * 4);
            let (mut p, step) = (self.at(k + term, j), step(4));
            let limit = if j < self.beside { end } else { 0 };
            let to = to.add(term * LANES + j);
            let mut i = 0;
            while i < STAGE {
                // SAFETY: four elements of the matrix when the first is there, because rows are whole pieces.
                unsafe { copy_x16(to.add(i * LANES), p, k + i + term < limit) };
                p = p.wrapping_byte_add(step);
                i += 4;
            }
            return;
        }
        if !self.along && COUNT < LANES {
            // Several terms of all numbers at a time.
            let (term, j) = (lane / COUNT, lane % COUNT);
            let (mut p, step) = (self.at(k + term, j), step(LANES / COUNT));
            let limit = if j < self.beside { end } else { 0 };
            let mut i = 0;
            while i < STAGE {
                // SAFETY: an element of the matrix when it is there.
                unsafe { copy_x4(to.add((i + term) * pitch + j), p, k + i + term < limit) };
                p = p.wrapping_byte_add(step);
                i += LANES / COUNT;
            }
            return;
        }
        // Lanes are neighbours in memory.
        let pitch = match COUNT {
            LANES if self.along => WIDE,
            LANES => LANES,
            _ => pitch,
        };
        let (there, mut p, limit, steps) = if self.along {
            (lane < end - k, self.at(0, k + lane), self.beside, [pitch, 1])
        } else {
            (lane < self.beside, self.at(k, lane), end - k, [1, pitch])
        };
        let limit = if there { limit } else { 0 };
        let (to, step) = (to.add(lane * steps[0]), step(1));
        let count = if self.along { COUNT } else { STAGE };
        let mut i = 0;
        while i < count {
            // SAFETY: as above.
            unsafe { copy_x4(to.add(i * steps[1]), p, i < limit) };
            p = p.wrapping_byte_add(step);
            i += 1;
        }
    }

    /// An element, by its line in memory and its place there.
    #[inline(always)]
    fn at(&self, line: u32, x: u32) -> *const f32 {
        self.p.wrapping_add((u64::from(line) * self.ld + u64::from(x)) as usize)
    }
}

/// Makes the columns of this block: 32, of which each of the `WAYS` = 4 warps makes every fourth chunk, or (`WAYS` = 1) 32 of
/// each warp. `T` and `COUNT`: rows, or more; `BEHIND`: places of a ring but two.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, with `m <= T`; `C` overlaps
/// neither `A` nor `B`.
#[inline(always)]
unsafe fn columns<const T: usize, const COUNT: u32, const WAYS: u32, const BEHIND: u32>(
    args: &Args,
) {
    let places = BEHIND + 2;
    let (warp, lane) = (warp_id(), lane_id());
    let (way, part) = if WAYS == 1 { (0, warp) } else { (warp, 0) };
    let width = LANES * WARPS / WAYS;
    let tiles = args.n.div_ceil(width);
    let batch = block_idx_x() / tiles;
    let first = (block_idx_x() - batch * tiles) * width + LANES * part;
    // A warp without a column still comes to the barriers.
    let n = if first < args.n { args.n } else { first };
    let a = Factor::new(&args.a, args.a.transposed == 0, batch, (0, args.m));
    let b = Factor::new(&args.b, args.b.transposed != 0, batch, (first, n));
    // A row's terms are neighbours where it is the only one.
    let pitch = if T == 1 { 1 } else { T as u32 + 4 };
    let wide_pitch = if b.along { WIDE } else { LANES };
    let stage_words = thin_words(COUNT);
    let ring = dynamic_shared_mem::<f32>().add(warp * places * stage_words);
    let place = |stage: u32| ring.add(stage % places * stage_words);
    let chunks = args.k.div_ceil(K_CHUNK as u32);
    dependency_wait();

    let mut totals = [0.0; T];
    let mut round = 0;
    while round == 0 || round < chunks {
        let mut sums = [0.0; T];
        let start = (round + way) * K_CHUNK as u32;
        let end = if args.k.saturating_sub(start) < K_CHUNK as u32 {
            args.k
        } else {
            start + K_CHUNK as u32
        };
        let stages = if n > first { end.saturating_sub(start).div_ceil(STAGE) } else { 0 };
        // SAFETY: `args` says the truth; the ring is this warp's, and a place is used again behind a barrier.
        unsafe {
            let ask = |stage: u32| {
                if stage < stages {
                    let (k, at) = (start + stage * STAGE, place(stage));
                    b.copy::<LANES>(k, end, at, wide_pitch);
                    a.copy::<COUNT>(k, end, at.add(STAGE * WIDE), pitch);
                }
                commit_group();
            };
            let mut stage = opaque(0);
            while stage < places - 1 {
                ask(stage);
                stage = opaque(stage + 1);
            }
            let mut stage = opaque(0);
            while stage < stages {
                wait_group::<BEHIND>();
                sync_warp();
                ask(stage + places - 1);
                let wide = place(stage).add(lane);
                let thin = place(stage).add(STAGE * WIDE);
                // Opaque, because 32 multiples of it would else be in registers all the time.
                let wide_pitch = opaque(wide_pitch);
                let terms = end - start - stage * STAGE;
                if terms >= STAGE {
                    let mut i = 0;
                    while i < STAGE {
                        steps::<T>(
                            &mut sums,
                            (wide.add(i * wide_pitch), wide_pitch),
                            thin.add(i * pitch),
                        );
                        i += 4;
                    }
                } else {
                    let mut i = opaque(0);
                    while i < terms {
                        step::<T>(&mut sums, wide.add(i * wide_pitch), thin.add(i * pitch));
                        i = opaque(i + 1);
                    }
                }
                stage = opaque(stage + 1);
            }
            wait_group::<0>();
            sync_warp();
        }
        if WAYS == 1 {
            totals =
                core::array::from_fn(|t| if round == 0 { sums[t] } else { totals[t] + sums[t] });
        } else {
            // SAFETY: the rings are free; each warp writes to its own, and the first reads all, between barriers.
            unsafe {
                let mut t = 0;
                while t < T {
                    ring.add(t as u32 * LANES + lane).write(sums[t]);
                    t += 1;
                }
                sync_threads();
                let mut other = 0;
                while other < WAYS && warp == 0 {
                    let chunk =
                        dynamic_shared_mem::<f32>().add(other * places * stage_words + lane);
                    if round + other < chunks {
                        let mut t = 0;
                        while t < T {
                            let sum = chunk.add(t as u32 * LANES).read();
                            totals[t] = if round + other == 0 { sum } else { totals[t] + sum };
                            t += 1;
                        }
                    }
                    other = opaque(other + 1);
                }
                sync_threads();
            }
        }
        round = opaque(round + WAYS);
    }
    if WAYS > 1 && warp > 0 || first + lane >= args.n {
        return;
    }
    let [row, column] = if args.c.transposed == 0 { [args.c.ld, 1] } else { [1, args.c.ld] };
    let c = args.c.addr.cast::<f32>().as_ptr();
    let at = u64::from(batch) * args.c.stride + u64::from(first + lane) * column;
    let c = c.wrapping_add(at as usize);
    let (alpha, beta) = (f32::from_bits(args.alpha), f32::from_bits(args.beta));
    let mut t = 0;
    while t < T {
        if (t as u32) < args.m {
            let p = c.wrapping_add((t as u64 * row) as usize);
            // SAFETY: an element of C that is this lane's.
            unsafe {
                let old = if beta == 0.0 { 0.0 } else { ld(p.cast_const()) };
                st(p, finish(alpha, totals[t], beta, old));
            }
        }
        t += 1;
    }
}

/// Takes a term of the lane's column and of every row.
///
/// # Safety
///
/// The words are there, and nobody writes them.
#[inline(always)]
unsafe fn step<const T: usize>(sums: &mut [f32; T], wide: Shared<f32>, thin: Shared<f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        let w = wide.read();
        if T == 1 {
            sums[0] = fma(thin.read(), w, sums[0]);
            return;
        }
        let mut t = 0;
        while t < T {
            let rows = thin.add(t as u32).read_x4();
            let mut i = 0;
            while i < 4 {
                sums[t + i] = fma(rows[i], w, sums[t + i]);
                i += 1;
            }
            t += 4;
        }
    }
}

/// Takes four terms, `pitch` words apart in the wide part.
///
/// # Safety
///
/// As for [`step`].
#[inline(always)]
unsafe fn steps<const T: usize>(
    sums: &mut [f32; T],
    (wide, pitch): (Shared<f32>, u32),
    thin: Shared<f32>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let terms = if T == 1 { thin.read_x4() } else { [0.0; 4] };
        let mut i = 0;
        while i < 4 {
            let wide = wide.add(i * pitch);
            if T == 1 {
                sums[0] = fma(terms[i as usize], wide.read(), sums[0]);
            } else {
                step::<T>(sums, wide, thin.add(i * (T as u32 + 4)));
            }
            i += 1;
        }
    }
}

/// # Safety
///
/// As for [`columns`], with `m` of [`THIN_ROWS`] and less.
#[inline(always)]
pub(super) unsafe fn thin<const WAYS: u32, const BEHIND: u32>(args: &Args) {
    launch_dependents();
    // SAFETY: handed on.
    unsafe {
        if args.m == 1 {
            columns::<1, 1, WAYS, BEHIND>(args);
        } else if args.m <= 4 {
            columns::<4, 4, WAYS, BEHIND>(args);
        } else if args.m <= 8 {
            columns::<8, 8, WAYS, BEHIND>(args);
        } else {
            columns::<{ THIN_ROWS as usize }, { THIN_ROWS }, WAYS, BEHIND>(args);
        }
    }
}
