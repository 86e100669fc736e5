//! Small products of 16-bit floats on tensor cores: a block (a warp, where sides are at most 32) asks for both factors of a
//! matrix at once by `cp.async`, waits, and makes its result.
//!
//! A factor in pieces of 16 bytes stands in lines of swizzled pieces and is read by `ldmatrix`; one whose rows start anywhere
//! stands as it lies in memory, and is read element by element; so are both then.

use contract::bmm::{Args, Matrix, PARKED_ROW, WHOLE_DEPTH, whole_bytes};

use super::direct::Fragment;
use super::source::Float;
use super::target::Target;
use super::write::prefetch_tile;
use crate::arch::async_copy::{commit_group, copy_x16, copy_x16_part, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::st_x4;
use crate::arch::mma::{ldmatrix_x4, ldmatrix_x4_trans};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, sync_warp};
use crate::tile::hopper::{Half, trade};

/// Terms, at most.
const DEPTH: u32 = WHOLE_DEPTH;
/// Elements of a piece.
const PIECE: u32 = 8;
/// Rows and columns of a warp.
const SIDE_OF_WARP: u32 = 32;

/// Bytes to piece `piece` of line `line`, in lines of `PIECES` pieces: eight neighbouring lines have a piece in different
/// banks.
#[inline(always)]
fn place<const PIECES: u32>(line: u32, piece: u32) -> u32 {
    (line * PIECES + (piece ^ line / (8 / PIECES) % PIECES)) * 16
}

/// The same in a factor of `SIDE` rows (columns of `B`).
#[inline(always)]
fn place_in<const SIDE: u32>(along: bool, line: u32, piece: u32) -> u32 {
    if along || SIDE == DEPTH { place::<8>(line, piece) } else { place::<4>(line, piece) }
}

/// Asks for a factor of `sides` by `k` elements in pieces, by `THREADS` threads.
///
/// # Safety
///
/// The matrix covers what its contract says and has a unit of 16, and no thread writes it; nobody accesses `to`.
#[inline(always)]
unsafe fn ask_pieces<const SIDE: u32, const THREADS: u32>(
    to: Shared<u8>,
    (matrix, along, batch): (&Matrix, bool, u32),
    (sides, k): (u32, u32),
    t: u32,
) {
    let (lines, len) = if along { (sides, k) } else { (k, sides) };
    // Zeros where a product in depth takes more than there is.
    let whole = k.next_multiple_of(2 * PIECE);
    let (end, wide) = if along { (SIDE, whole) } else { (whole, SIDE) };
    let per_line = if along { DEPTH } else { SIDE } / PIECE;
    let (mut line, piece) = (t / per_line, t % per_line);
    let p = matrix.addr.cast::<u16>().as_ptr().cast_const();
    let at = u64::from(batch) * matrix.stride + u64::from(line) * matrix.ld;
    let mut p = p.wrapping_add((at + u64::from(piece * PIECE)) as usize);
    let step = u64::from(THREADS / per_line) * matrix.ld;
    let end = if piece * PIECE < wide { end } else { 0 };
    let lines = if piece * PIECE < len { lines } else { 0 };
    let mut i = 0;
    while i < SIDE * DEPTH / PIECE / THREADS {
        if line < end {
            let at = to.add(place_in::<SIDE>(along, line, piece));
            // SAFETY: eight elements are inside when the first is, because lines are whole pieces.
            unsafe { copy_x16(at, p, line < lines) };
        }
        p = p.wrapping_add(step as usize);
        line += THREADS / per_line;
        i += 1;
    }
}

/// Words of 16 rows (columns of `B`) from `side` on, by 16 terms from `k` on.
///
/// # Safety
///
/// The pieces were waited for.
#[inline(always)]
unsafe fn pieces<const SIDE: u32>(from: Shared<u8>, along: bool, side: u32, k: u32) -> [u32; 4] {
    let (j, r) = (lane_id() / 8, lane_id() % 8);
    let (beside, term) = (side / PIECE + j % 2, k / PIECE + j / 2);
    // SAFETY: inside of the factor's shared memory.
    unsafe {
        if along {
            ldmatrix_x4(from.add(place_in::<SIDE>(true, beside * PIECE + r, term)))
        } else {
            ldmatrix_x4_trans(from.add(place_in::<SIDE>(false, term * PIECE + r, beside)))
        }
    }
}

/// A factor that stands in shared memory as it lies in memory: where its first element is, and bytes from one row (column of
/// `B`), and one term, to the next.
struct Flat {
    first: Shared<u8>,
    side: u32,
    term: u32,
}

impl Flat {
    /// Asks for it: from the last 16 bytes on that start at or before it.
    ///
    /// # Safety
    ///
    /// As for [`ask_pieces`], of any unit.
    #[inline(always)]
    unsafe fn ask<const THREADS: u32>(
        to: Shared<u8>,
        (matrix, along, batch): (&Matrix, bool, u32),
        (sides, k): (u32, u32),
        t: u32,
    ) -> Self {
        let p = matrix.addr.as_ptr().cast_const();
        let p = p.wrapping_add((u64::from(batch) * matrix.stride * 2) as usize);
        let (lines, len) = if along { (sides, k) } else { (k, sides) };
        let (over, ld) = (p as u64 as u32 % 16, matrix.ld as u32 * 2);
        let bytes = if lines > 0 && len > 0 { over + (lines - 1) * ld + len * 2 } else { 0 };
        let p = p.wrapping_sub(over as usize);
        let mut i = 16 * t;
        while i < bytes {
            // SAFETY: what lies between rows is in the same buffer, what lies before the matrix in the same 16 bytes.
            unsafe { copy_x16_part(to.add(i), p.wrapping_add(i as usize), (bytes - i).min(16)) };
            i += 16 * THREADS;
        }
        let (side, term) = if along { (ld, 2) } else { (2, ld) };
        Self { first: to.add(over), side, term }
    }

    /// Words of 16 rows (columns of `B`) from `side` on, by four terms of each lane, from its `k` on; zeros where `masks` are.
    ///
    /// # Safety
    ///
    /// The factor was waited for.
    #[inline(always)]
    unsafe fn words(&self, side: u32, k: u32, masks: [u32; 2]) -> [u32; 4] {
        let mine = self.first.add((side + lane_id() / 4) * self.side + k * self.term);
        let mine = mine.cast::<u16>();
        core::array::from_fn(|i| {
            let at = mine.byte_add(8 * (i as u32 % 2) * self.side + 2 * (i as u32 / 2) * self.term);
            // SAFETY: inside of the factor's shared memory.
            let [low, high] =
                [0, self.term].map(|next| u32::from(unsafe { at.byte_add(next).read_u16() }));
            (low | high << 16) & masks[i / 2]
        })
    }
}

/// `sums += left right`, 32 by 32 by 16.
#[inline(always)]
fn products<F: Fragment>(
    sums: &mut [[[f32; 4]; 4]; 2],
    left: &[[u32; 4]; 2],
    right: &[[u32; 4]; 2],
) {
    let mut r = 0;
    while r < 2 {
        let mut c = 0;
        while c < 4 {
            let w = right[c / 2];
            sums[r][c] = F::product(left[r], [w[c % 2], w[c % 2 + 2]], sums[r][c]);
            c += 1;
        }
        r += 1;
    }
}

/// Makes matrices with sides of at most `SIDE`, by `THREADS` threads each: a warp for each 32 by 32.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, and is what
/// [`contract::bmm::Variant::takes`] allows; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn whole<F: Fragment, E: Half, const SIDE: u32, const THREADS: u32>(
    args: &Args,
    element: Float<false>,
) {
    const { assert!(THREADS == SIDE * SIDE / LANES) };
    launch_dependents();
    let groups = 128 / THREADS;
    let (t, group) = (thread_idx_x() % THREADS, thread_idx_x() / THREADS);
    let index = block_idx_x() * groups + group;
    // A warp without a matrix reads and writes nothing.
    let (m, n, batch) = if index < args.batch { (args.m, args.n, index) } else { (0, 0, 0) };
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let barrier = || if THREADS == LANES { sync_warp() } else { sync_threads() };
    let bytes = whole_bytes(SIDE);
    let smem = dynamic_shared_mem::<u8>().add(group * 2 * bytes);
    let (warp, lane) = (t / LANES, lane_id());
    let (row, column) = (warp / 2 * SIDE_OF_WARP, warp % 2 * SIDE_OF_WARP);
    dependency_wait();
    let mut sums = [[[0.0f32; 4]; 4]; 2];
    // SAFETY: the caller's promise; the factors are read behind a barrier, and their place is used again behind one.
    unsafe {
        let (a_at, b_at) = (smem, smem.add(bytes));
        let (a, b) = ((&args.a, along.0, batch), (&args.b, along.1, batch));
        if <Float<false> as Target>::reads(args.beta) {
            prefetch_tile(args, 2, (batch, 0, 0), (m, n), (SIDE, SIDE), (t, THREADS));
        }
        if args.a.unit >= 16 && args.b.unit >= 16 {
            ask_pieces::<SIDE, THREADS>(a_at, a, (m, args.k), t);
            ask_pieces::<SIDE, THREADS>(b_at, b, (n, args.k), t);
            commit_group();
            wait_group::<0>();
            barrier();
            // Opaque, because LLVM would write out the loop.
            let mut k = opaque(0);
            while k < args.k {
                let left = [0, 16].map(|i| pieces::<SIDE>(a_at, along.0, row + i, k));
                let right = [0, 16].map(|i| pieces::<SIDE>(b_at, along.1, column + i, k));
                products::<F>(&mut sums, &left, &right);
                k = opaque(k + 16);
            }
        } else {
            let a = Flat::ask::<THREADS>(a_at, a, (m, args.k), t);
            let b = Flat::ask::<THREADS>(b_at, b, (n, args.k), t);
            commit_group();
            wait_group::<0>();
            barrier();
            // A lane's terms are neighbours over all steps, for the sake of the banks that they are in.
            let steps = args.k.div_ceil(16);
            let first = lane % 4 * 4 * steps;
            let mut step = opaque(0);
            while step < steps {
                let k = first + 4 * step;
                let half = |k: u32| if k < args.k { 0xffff } else { 0u32 };
                let masks = [0, 2].map(|i| half(k + i) | half(k + i + 1) << 16);
                let left = [0, 16].map(|i| a.words(row + i, k, masks));
                let right = [0, 16].map(|i| b.words(column + i, k, masks));
                products::<F>(&mut sums, &left, &right);
                step = opaque(step + 1);
            }
        }
        let c = args.c.addr.cast::<u16>().as_ptr();
        let c = c.wrapping_add((u64::from(batch) * args.c.stride) as usize);
        let at =
            |i: u32, j: u32| c.wrapping_add((u64::from(i) * args.c.ld + u64::from(j)) as usize);
        let reads = <Float<false> as Target>::reads(args.beta);
        let (alpha, g, l) = (f32::from_bits(args.alpha), lane / 4, lane % 4);
        if args.c.unit >= 16 && !reads {
            let mut r = 0;
            while r < 4 {
                let words = trade(core::array::from_fn(|c| {
                    let sum = sums[r / 2][c];
                    E::pack(alpha * sum[r % 2 * 2], alpha * sum[r % 2 * 2 + 1])
                }));
                let (i, j) = (row + 8 * r as u32 + g, column + 8 * l);
                if i < m && j < n {
                    st_x4(at(i, j).cast(), words);
                }
                r += 1;
            }
            return;
        }
        // By way of shared memory, so that the lanes of a warp are neighbours.
        sync_threads();
        let tile = dynamic_shared_mem::<f32>();
        let tile = tile.add(thread_idx_x() / LANES * SIDE_OF_WARP * PARKED_ROW);
        let mine = tile.add(g * PARKED_ROW + 2 * l).cast::<u64>();
        let mut r = 0;
        while r < 4 {
            let mut c = 0;
            while c < 4 {
                let sum = sums[r / 2][c];
                let [low, high] = [0, 1].map(|i| u64::from(sum[2 * (r % 2) + i].to_bits()));
                mine.add((8 * r as u32 * PARKED_ROW + 8 * c as u32) / 2)
                    .write_u64(low | high << 32);
                c += 1;
            }
            r += 1;
        }
        sync_warp();
        let rows = if column + lane < n { m.saturating_sub(row).min(SIDE_OF_WARP) } else { 0 };
        let put = |i: u32, old: f32| {
            let sum = tile.add(i * PARKED_ROW + lane).read();
            let value = <Float<false> as Target>::finish(args.alpha, sum, args.beta, old);
            element.store_half(at(row + i, column + lane), value);
        };
        let mut i = 0;
        if !reads {
            while i < rows {
                put(i, 0.0);
                i += 1;
            }
            return;
        }
        while i < rows {
            // Asked for together.
            let old: [f32; 8] = core::array::from_fn(|j| {
                let i = i + j as u32;
                if i < rows { element.load_half(at(row + i, column + lane)) } else { 0.0 }
            });
            let mut j = 0;
            while j < 8 {
                if i < rows {
                    put(i, old[j]);
                }
                (i, j) = (i + 1, j + 1);
            }
        }
    }
}
