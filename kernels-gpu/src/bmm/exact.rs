//! The one arithmetic: slices of both factors go through registers into shared memory, where they
//! stand k by k, and each thread takes its terms in the order of k ([`crate::tile::simt`]).
//!
//! While a slice is multiplied the next one is on its way; there are two places for slices, so one
//! barrier a slice is enough. After each chunk of k the sums join the totals: registers of the
//! thread, or (large tile) shared memory of its own.

use contract::bmm::{Args, K_CHUNK, row_words};

use super::part::Part;
use super::source::{Source, Sum, Word};
use super::target::Target;
use super::write::{prefetch_tile, write, write_squares};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, Register, sync_warp};
use crate::tile::simt::{Sums, Term, multiply, zeros};
use crate::tile::walk::tile_at;

/// Makes the tiles of this block: `TY` by `TX` threads a tile, each `RM` by `RN` squares, `Q` groups
/// a slice of `DEPTH` words. `WHOLE`: `A` and `B` have groups of four only, whole and aligned.
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
    const WHOLE: bool,
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
    let place = |block: u32, (m, n): (u32, u32)| {
        let (tiles_m, tiles_n) = (m.div_ceil(side), n.div_ceil(side));
        let per_matrix = tiles_m * tiles_n;
        let index = block * (block_dim_x() / threads) + group;
        // Divisions take time.
        let (batch, [tile_m, tile_n]) = if per_matrix == 1 {
            (index, [0, 0])
        } else {
            let batch = index / per_matrix;
            (batch, tile_at(index - batch * per_matrix, tiles_m, tiles_n))
        };
        let at = (tile_m * side, tile_n * side);
        // A group without a tile reads and writes nothing, but arrives at every barrier.
        if batch < args.batch { (batch, at, (m, n)) } else { (0, at, (0, 0)) }
    };
    let (batch, (row0, column0), (m, n)) = place(block_idx_x(), (args.m, args.n));

    if DIRECT && C::reads(args.beta) {
        let (at, who) = ((batch, row0, column0), (t, threads));
        // SAFETY: the caller's promise.
        unsafe { prefetch_tile(args, out.width(), at, (m, n), (side, side), who) };
    }

    let slices = args.k.div_ceil(<E as Source>::PER_WORD * DEPTH);
    let (k, thread) = ((args.k, DEPTH), (t, threads));
    let (along_a, along_b) = (args.a.transposed == 0, args.b.transposed != 0);
    let mut a = Part::<E, Q>::new(element, (&args.a, along_a, batch), (row0, m, side), k, thread);
    let mut b =
        Part::<E, Q>::new(element, (&args.b, along_b, batch), (column0, n, side), k, thread);

    if WHOLE {
        (a.fast, b.fast) = (true, true);
    }

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
    let mut s = opaque(0);
    let mut first = true;
    let whole = DIRECT && args.c.unit >= 4 * out.width() && !C::reads(args.beta);
    // SAFETY: `args` says the truth; each thread writes its own part of a slice and its own totals,
    // and reads what others wrote after a barrier.
    unsafe {
        // Step s loads slice s (none is left in the last step) and multiplies the one before.
        while s <= slices {
            let (next_a, next_b) = (a.load::<DEPTH>(pad_a), b.load::<DEPTH>(pad_b));
            let (to, at) = (smem.add(s % 2 * slice), smem.add((s + 1) % 2 * slice));
            if s > 0 {
                let left = (at.add(4 * ty), ld, 4 * TY);
                let right = (at.add(2 * slice + 4 * tx), ld, 4 * TX);
                multiply::<E::Term, DEPTH, RM, RN>(&mut sums, left, right);
            }
            let chunk = E::PER_WORD == 1 && s % (K_CHUNK as u32 / DEPTH) == 0 && s > 0;
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
        // Once more, so that it need not stay in registers meanwhile.
        let shape = (opaque(args.m), opaque(args.n));
        let (batch, at, shape) = place(opaque(block_idx_x()), shape);
        if first && whole {
            let mine = (at.0 + 4 * ty, at.1 + 4 * tx);
            write_squares::<C, RM, RN>(args, out, batch, mine, shape, (4 * TY, 4 * TX), sums);
            return;
        }
        write(args, out, batch, at, shape, totals, (side, side, side), thread);
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
pub(super) unsafe fn join<T: Term, const RM: usize, const RN: usize>(
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
