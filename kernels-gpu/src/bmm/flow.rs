//! The one arithmetic ([`super::exact`]) of small f32 products in pieces of 16 bytes: both factors of a matrix are asked
//! for at once by `cp.async`, in slices of [`WHOLE_SLICE`] terms, and each thread makes 4 by 8 outputs as they come.
//!
//! A factor stands in shared memory in the lines that it has in memory. Where neighbours are neighbours in k, the pieces
//! of a line are exchanged by its number: lines that a warp reads at once are in different banks.

use contract::bmm::{Args, Matrix, WHOLE_SLICE};
use contract::num::fma;

use super::source::Float;
use super::target::Target;
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{ld_x4, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, sync_warp};

/// Terms of a slice.
const DEPTH: u32 = WHOLE_SLICE;

/// Asks for the slice from `k` on of a factor of `sides` rows (columns of `B`).
///
/// # Safety
///
/// The matrix covers what its contract says, and no thread writes it; nobody accesses the slice.
#[inline(always)]
unsafe fn copy<const ALONG: bool, const SIDE: u32>(
    to: Shared<f32>,
    matrix: &Matrix,
    batch: u32,
    (sides, terms): (u32, u32),
    (k, t): (u32, u32),
) {
    let threads = SIDE * SIDE / 32;
    let per_line = if ALONG { DEPTH } else { SIDE } / 4;
    let (line, piece) = (t / per_line, t % per_line);
    let step = threads / per_line;
    let (far, near) = if ALONG { (line, k / 4 + piece) } else { (k + line, piece) };
    let (far_len, near_len) = if ALONG { (sides, terms) } else { (terms, sides) };
    let at = u64::from(batch) * matrix.stride + u64::from(far) * matrix.ld + u64::from(4 * near);
    let mut p = matrix.addr.cast::<f32>().as_ptr().cast_const().wrapping_add(at as usize);
    let next = (u64::from(step) * matrix.ld) as usize;
    let end = if 4 * near < near_len { far_len } else { 0 };
    let mut i = 0;
    while i < DEPTH * SIDE / 4 / threads {
        let far = far + i * step;
        let piece = if ALONG { near ^ far / 4 % 8 } else { near };
        // SAFETY: four elements are inside when the first is, because lines are whole pieces.
        unsafe { copy_x16(to.add(far * SIDE + 4 * piece), p, far < end) };
        p = p.wrapping_add(next);
        i += 1;
    }
}

/// Where four lines of a thread start, in bytes: where neighbours are neighbours in k, with their exchange of pieces.
#[inline(always)]
fn first<const SIDE: u32>(along: bool, fours: u32) -> u32 {
    if along { 16 * (fours * SIDE + fours % 8) } else { 16 * fours }
}

/// Four terms from `k` on of four rows (columns of `B`), `[term][row]`.
///
/// # Safety
///
/// A slice that was waited for; `k` is a multiple of four.
#[inline(always)]
unsafe fn four<const ALONG: bool, const SIDE: u32>(
    factor: Shared<f32>,
    first: u32,
    k: u32,
) -> [[f32; 4]; 4] {
    let at = if ALONG {
        factor.byte_add((first ^ k / 4 % 8 * 16) + k / 32 * 128)
    } else {
        factor.byte_add(first).add(k * SIDE)
    };
    let mut out = [[0.0; 4]; 4];
    let mut i = 0;
    while i < 4 {
        // SAFETY: the caller's promise.
        let values = unsafe { at.add(i as u32 * SIDE).read_x4() };
        let mut j = 0;
        while j < 4 {
            if ALONG {
                out[j][i] = values[j];
            } else {
                out[i][j] = values[j];
            }
            j += 1;
        }
        i += 1;
    }
    out
}

/// Takes `N` times four terms from `k` on.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn fours<const A: bool, const B: bool, const SIDE: u32, const N: u32>(
    sums: &mut [[[f32; 4]; 4]; 2],
    (left, rows): (Shared<f32>, u32),
    (right, columns): (Shared<f32>, [u32; 2]),
    k: u32,
) {
    let mut n = 0;
    while n < N {
        let k = k + 4 * n;
        // SAFETY: the caller's promise.
        let left = unsafe { four::<A, SIDE>(left, rows, k) };
        let mut half = 0;
        while half < 2 {
            // SAFETY: the caller's promise.
            let right = unsafe { four::<B, SIDE>(right, columns[half], k) };
            let mut term = 0;
            while term < 4 {
                let mut i = 0;
                while i < 4 {
                    let mut j = 0;
                    while j < 4 {
                        let sum = &mut sums[half][i][j];
                        *sum = fma(left[term][i], right[term][j], *sum);
                        j += 1;
                    }
                    i += 1;
                }
                term += 1;
            }
            half += 1;
        }
        n += 1;
    }
}

/// Makes matrices with sides of at most `SIDE` and as many terms, by `SIDE * SIDE / 32` threads each.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, and is what
/// [`contract::bmm::Variant::takes`] allows; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn flow<const SIDE: u32>(args: &Args) {
    let threads = SIDE * SIDE / 32;
    let (t, group) = (thread_idx_x() % threads, thread_idx_x() / threads);
    let index = block_idx_x() * (128 / threads) + group;
    // A warp without a matrix reads and writes nothing.
    let (m, n, batch) = if index < args.batch { (args.m, args.n, index) } else { (0, 0, 0) };
    let lane = lane_id();
    // As in `exact`.
    let (ty, tx) = if threads > LANES {
        (t / LANES * 4 + (lane >> 1 & 1 | lane >> 3 & 2), lane & 1 | lane >> 1 & 6)
    } else {
        (lane >> 1 & 1 | lane >> 2 & 6, lane & 1 | lane >> 1 & 2)
    };
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let left = dynamic_shared_mem::<f32>().add(group * 2 * SIDE * SIDE);
    let right = left.add(SIDE * SIDE);
    dependency_wait();
    let mut sums = [[[0.0f32; 4]; 4]; 2];
    // SAFETY: the caller's promise; a slice is read behind a barrier.
    unsafe {
        let rows = (left, first::<SIDE>(along.0, ty));
        let columns = (right, [tx, tx + SIDE / 8].map(|fours| first::<SIDE>(along.1, fours)));
        macro_rules! product {
            ($a:literal, $b:literal) => {{
                let mut k = 0;
                while k < SIDE {
                    if k < args.k {
                        copy::<$a, SIDE>(left, &args.a, batch, (m, args.k), (k, t));
                        copy::<$b, SIDE>(right, &args.b, batch, (n, args.k), (k, t));
                    }
                    commit_group();
                    k += DEPTH;
                }
                let mut k = opaque(0);
                while k < args.k {
                    match (SIDE - k) / DEPTH {
                        4 => wait_group::<3>(),
                        3 => wait_group::<2>(),
                        2 => wait_group::<1>(),
                        _ => wait_group::<0>(),
                    }
                    if threads == LANES {
                        sync_warp()
                    } else {
                        sync_threads()
                    };
                    let end = args.k.min(k + DEPTH);
                    if end == k + DEPTH {
                        fours::<$a, $b, SIDE, { DEPTH / 4 }>(&mut sums, rows, columns, k);
                        k = opaque(end);
                    }
                    while k < end {
                        fours::<$a, $b, SIDE, 1>(&mut sums, rows, columns, k);
                        k = opaque(k + 4);
                    }
                }
            }};
        }
        match along {
            (true, false) => product!(true, false),
            (true, true) => product!(true, true),
            (false, false) => product!(false, false),
            (false, true) => product!(false, true),
        }
        // Not before: the next kernel's blocks would come unevenly.
        launch_dependents();
        let c = args.c.addr.cast::<f32>().as_ptr();
        let c = c.wrapping_add((u64::from(batch) * args.c.stride) as usize);
        let reads = Float::<true>::reads(args.beta);
        let mut i = 0;
        while i < 4 {
            let row = 4 * ty + i as u32;
            let line = c.wrapping_add((u64::from(row) * args.c.ld) as usize);
            let mut half = 0;
            while half < 2 {
                let column = 4 * tx + half as u32 * (SIDE / 2);
                if row < m && column < n {
                    let p = line.wrapping_add(column as usize);
                    let mut old = [0.0; 4];
                    if reads {
                        old = ld_x4(p.cast_const().cast());
                    }
                    let out = core::array::from_fn(|j| {
                        Float::<true>::finish(args.alpha, sums[half][i][j], args.beta, old[j])
                    });
                    st_x4(p.cast(), out);
                }
                half += 1;
            }
            i += 1;
        }
    }
}
