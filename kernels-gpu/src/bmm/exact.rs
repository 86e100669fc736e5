//! The one arithmetic: slices of both factors go through registers into shared memory, where they
//! stand k by k, and each thread takes its terms in the order of k ([`crate::tile::simt`]).
//!
//! While a slice is multiplied the next one is on its way; there are two places for slices, so one
//! barrier a slice is enough. After each chunk of k the sums join the totals: registers of the
//! thread, or (large tile) shared memory of its own.

use contract::bmm::{Args, K_CHUNK, Matrix, row_words};

use super::source::{Source, Sum, Target, Word};
use super::write::{write, write_squares};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, Register, sync_warp};
use crate::tile::simt::{Sums, Term, multiply, zeros};
use crate::tile::walk::tile_at;

/// The part of one factor that a thread carries from memory to shared memory: in each slice `Q`
/// groups of four words.
struct Part<E, const Q: usize> {
    element: E,
    /// Group 0 of the next slice.
    p: *const u8,
    /// Bytes from one row of memory to the next, one group to the next, one slice to the next.
    ld: u64,
    group: u64,
    slice: u64,
    /// Rows of `A` (columns of `B`) that are left from group 0 on; lost from one group to the next.
    beside: i32,
    side_step: i32,
    /// Elements of k that are left from group 0 of the next slice on; lost from one group to the
    /// next.
    k_left: i32,
    depth_step: i32,
    /// Word of group 0 in a slice in shared memory, words from one group to the next.
    at: u32,
    at_step: u32,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
    fast: bool,
}

impl<E: Source, const Q: usize> Part<E, Q> {
    /// For thread `t` of `threads`: a tile of `rows` from `first` on, slices of `depth` words, in
    /// shared memory `row_words(rows)` from one k to the next.
    #[inline(always)]
    fn new(
        element: E,
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, side_len, rows): (u32, u32, u32),
        (k, depth): (u32, u32),
        (t, threads): (u32, u32),
    ) -> Self {
        let bytes = u64::from(element.bytes());
        let (ld, base) = (matrix.ld * bytes, matrix.addr.as_ptr().cast_const());
        let base = base.wrapping_add((u64::from(batch) * matrix.stride * bytes) as usize);
        let (side, side_step, word, depth_step, near, far, group, slice);
        if along {
            let groups = depth / 4;
            (side, side_step) = (t / groups, threads / groups);
            (word, depth_step) = (4 * (t % groups), 0);
            (far, near) = (first + side, word * E::PER_WORD);
            (group, slice) = (u64::from(side_step) * ld, u64::from(depth * E::PER_WORD) * bytes);
        } else {
            let groups = rows / 4;
            (side, side_step) = (4 * (t % groups), 0);
            (word, depth_step) = (t / groups, threads / groups);
            (far, near) = (word * E::PER_WORD, first + side);
            let lines = |words: u32| u64::from(words * E::PER_WORD) * ld;
            (group, slice) = (lines(depth_step), lines(depth));
        }
        Self {
            element,
            p: base.wrapping_add((u64::from(far) * ld + u64::from(near) * bytes) as usize),
            ld,
            group,
            slice,
            beside: side_len.wrapping_sub(first + side) as i32,
            side_step: side_step as i32,
            k_left: k as i32 - (word * E::PER_WORD) as i32,
            depth_step: (depth_step * E::PER_WORD) as i32,
            at: word * row_words(rows) + side,
            at_step: depth_step * row_words(rows) + side_step,
            along,
            fast: matrix.unit >= 4 * element.bytes(),
        }
    }

    /// The groups of the next slice of `DEPTH` words; what is not there is `pad`.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it.
    #[inline(always)]
    unsafe fn load<const DEPTH: u32>(&mut self, pad: Word<E>) -> [[Word<E>; 4]; Q] {
        let mut groups = [[pad; 4]; Q];
        let mut q = 0;
        while q < Q {
            let p = self.p.wrapping_add(q * self.group as usize);
            let beside = self.beside - q as i32 * self.side_step;
            let k = self.k_left - q as i32 * self.depth_step;
            // SAFETY: `count` and `rows` end where the matrix does; the caller's promise.
            groups[q] = unsafe {
                if self.along || E::PER_WORD == 1 {
                    let (count, other) = if self.along { (k, beside) } else { (beside, k) };
                    self.element.along(p, if other > 0 { count } else { 0 }, self.fast, pad)
                } else {
                    self.element.across(p, self.ld, k, beside)
                }
            };
            q += 1;
        }
        self.p = self.p.wrapping_add(self.slice as usize);
        self.k_left -= (DEPTH * E::PER_WORD) as i32;
        groups
    }

    /// Puts them into the slice at `to`, `ld` words from one k to the next.
    ///
    /// # Safety
    ///
    /// A slice of shared memory, aligned to 16, that no other thread accesses without a barrier
    /// between, but to write its own part.
    #[inline(always)]
    unsafe fn store(&self, to: Shared<Word<E>>, ld: u32, groups: [[Word<E>; 4]; Q]) {
        let mut q = 0;
        while q < Q {
            let at = to.add(self.at + q as u32 * self.at_step);
            // SAFETY: inside the slice; in the second form `at` is a multiple of 4.
            unsafe {
                if self.along {
                    let mut i = 0;
                    while i < 4 {
                        at.add(i * ld).write(groups[q][i as usize]);
                        i += 1;
                    }
                } else {
                    at.write_x4(groups[q]);
                }
            }
            q += 1;
        }
    }
}

/// Makes the tiles of this block: `TY` by `TX` threads a tile, each `RM` by `RN` squares, `Q` groups
/// a slice of `DEPTH` words.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, as the
/// contract has it; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn exact<
    E: Source,
    C: Target<Sum = Sum<E>>,
    const TY: u32,
    const TX: u32,
    const RM: usize,
    const RN: usize,
    const Q: usize,
    const DEPTH: u32,
    const DIRECT: bool,
>(
    args: &Args,
    element: E,
    out: C,
) {
    const { assert!(Q as u32 * 4 * TX == 4 * RM as u32 * DEPTH) };
    const { assert!(TY * RM as u32 == TX * RN as u32) };
    let (threads, side) = (TY * TX, 4 * TY * RM as u32);
    let ld = row_words(side);
    launch_dependents();

    // Which tile this thread works on, and where in it.
    let (t, group) = (thread_idx_x() % threads, thread_idx_x() / threads);
    // Lanes that differ in bit 0 read the same of A, in bit 1 the same of B: the hardware then
    // serves 16 lanes at once instead of 8.
    let lane = t % LANES;
    let (ty, tx) = if threads >= LANES {
        let warp = t / LANES;
        let (y, x) = (lane >> 1 & 1 | lane >> 3 & 2, lane & 1 | lane >> 1 & 6);
        (warp / (TX / 8) * 4 + y, warp % (TX / 8) * 8 + x)
    } else {
        (lane >> 1 & 1 | lane >> 2 & 2, lane & 1 | lane >> 1 & 2)
    };
    let (tiles_m, tiles_n) = (args.m.div_ceil(side), args.n.div_ceil(side));
    let per_matrix = tiles_m * tiles_n;
    let index = block_idx_x() * (block_dim_x() / threads) + group;
    let batch = index / per_matrix;
    let here = batch < args.batch;
    let [tile_m, tile_n] = tile_at(index - batch * per_matrix, tiles_m, tiles_n);
    let (row0, column0) = (tile_m * side, tile_n * side);
    // A group without a tile reads and writes nothing, but arrives at every barrier.
    let (m, n, batch) = if here { (args.m, args.n, batch) } else { (0, 0, 0) };

    let slices = args.k.div_ceil(<E as Source>::PER_WORD * DEPTH);
    let (k, thread) = ((args.k, DEPTH), (t, threads));
    let (along_a, along_b) = (args.a.transposed == 0, args.b.transposed != 0);
    let mut a = Part::<E, Q>::new(element, (&args.a, along_a, batch), (row0, m, side), k, thread);
    let mut b =
        Part::<E, Q>::new(element, (&args.b, along_b, batch), (column0, n, side), k, thread);

    // Shared memory of a tile: two slices of A, two of B, the totals row by row.
    let slice = DEPTH * ld;
    let smem = dynamic_shared_mem::<Word<E>>().add(group * (4 * slice + side * side));
    let totals = smem.add(4 * slice).cast::<Sum<E>>();
    let mine = totals.add(4 * ty * side + 4 * tx);
    // What is past the end of k must not change a sum: fma(-0.0, 0.0, s) is s, also where s is -0.0.
    let (pad_a, pad_b) = (E::MINUS_ZERO, Word::<E>::from_word(0));
    dependency_wait();

    let mut sums: Sums<E::Term, RM, RN> = zeros::<E::Term, RM, RN>();
    // Opaque, because LLVM would copy the first step out of the loop.
    let start = opaque(0);
    let mut s = start;
    let mut first = true;
    let whole = DIRECT && args.c.unit >= 4 * out.width() && !C::reads(args.beta);
    // SAFETY: `args` says the truth; each thread writes its own part of a slice and its own totals,
    // and reads what others wrote after a barrier.
    unsafe {
        // Step s loads slice s (none is left in the last step) and multiplies the one before.
        while s <= slices {
            let (next_a, next_b) = (a.load::<DEPTH>(pad_a), b.load::<DEPTH>(pad_b));
            let (to, at) = (smem.add(s % 2 * slice), smem.add((s + 1) % 2 * slice));
            if s > start {
                let left = (at.add(4 * ty), ld, 4 * TY);
                let right = (at.add(2 * slice + 4 * tx), ld, 4 * TX);
                multiply::<E::Term, DEPTH, RM, RN>(&mut sums, left, right);
            }
            let chunk = E::PER_WORD == 1 && s % (K_CHUNK as u32 / DEPTH) == 0 && s > start;
            // A single chunk needs no totals where it can be written as it is.
            if chunk && s < slices || s == slices && !(first && whole) {
                join::<E::Term, RM, RN>(&mut sums, mine, side, (4 * TY, 4 * TX), first);
                first = false;
            }
            a.store(to, ld, next_a);
            b.store(to.add(2 * slice), ld, next_b);
            barrier(threads);
            s += 1;
        }
        if first && whole {
            if here {
                let mine = (row0 + 4 * ty, column0 + 4 * tx);
                write_squares::<C, RM, RN>(args, out, batch, mine, (4 * TY, 4 * TX), sums);
            }
            return;
        }
        write(args, out, batch, (row0, column0), (m, n), totals, (side, side, side), thread);
    }
}

/// Waits for the threads of the tile.
#[inline(always)]
fn barrier(threads: u32) {
    if threads > LANES { sync_threads() } else { sync_warp() }
}

/// Adds the sums of a chunk to the totals, which are the sums of the first one, and empties them.
///
/// # Safety
///
/// The squares at `mine`, `steps` apart in a tile of `side` columns, are this thread's own shared
/// memory.
#[inline(always)]
unsafe fn join<T: Term, const RM: usize, const RN: usize>(
    sums: &mut Sums<T, RM, RN>,
    mine: Shared<T::Sum>,
    side: u32,
    steps: (u32, u32),
    first: bool,
) {
    let mut r = 0;
    while r < RM {
        let mut i = 0;
        while i < 4 {
            let mut c = 0;
            while c < RN {
                let row = r as u32 * steps.0 + i as u32;
                let at = mine.add(row * side + c as u32 * steps.1);
                let mut total = sums[r][i][c];
                sums[r][i][c] = [T::ZERO; 4];
                // SAFETY: the caller's promise.
                unsafe {
                    if !first {
                        let before = at.read_x4();
                        let mut j = 0;
                        while j < 4 {
                            total[j] = T::add(before[j], total[j]);
                            j += 1;
                        }
                    }
                    at.write_x4(total);
                }
                c += 1;
            }
            i += 1;
        }
        r += 1;
    }
}
