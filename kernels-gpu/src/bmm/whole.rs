//! The one arithmetic ([`super::exact`]) of small f32 products of any alignment: a block (a warp, where sides are at most 32)
//! asks for both factors of a matrix at once by `cp.async`, and multiplies slice after slice as they come.
//!
//! A slice keeps the order of memory. Where neighbours are neighbours in k, a line of 32 words holds `32 / DEPTH` rows, and
//! piece `c` of it stands at `c ^ (row / 4 % 8)`; else a row of it is the whole side at one k.

use contract::bmm::{Args, Matrix, WHOLE_SLICE};
use contract::num::{RowType, fma};

use super::exact::join;
use super::source::Float;
use super::target::Target;
use super::write::{write_fours, write_squares};
use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque_u64, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, sync_warp};
use crate::tile::simt::{Fma, Sums, zeros};

/// Terms of a slice.
const DEPTH: u32 = WHOLE_SLICE;

/// Where a term of a row (column of `B`) stands in a slice of `SIDE` of them.
#[inline(always)]
fn place<const SIDE: u32>(along: bool, side: u32, k: u32) -> u32 {
    if !along {
        return k * SIDE + side;
    }
    let rows = 32 / DEPTH;
    let piece = side % rows * (DEPTH / 4) + k / 4;
    side / rows * 32 + (piece ^ side / 4 % 8) * 4 + k % 4
}

/// Asks for a slice of a factor of `sides` rows (columns of `B`), with `k` terms from `p` on; zeros are where nothing is.
///
/// # Safety
///
/// The matrix covers what its contract says, and no thread writes it; nobody accesses the slice. `WIDTH` is 4 where the matrix
/// has a unit of 16, and 1 where not.
#[inline(always)]
unsafe fn copy<const SIDE: u32, const THREADS: u32, const WIDTH: u32>(
    to: Shared<f32>,
    (p, ld, along): (*const f32, u64, bool),
    (sides, k): (u32, u32),
    t: u32,
) {
    let row = if along { DEPTH } else { SIDE } / WIDTH;
    // Opaque, because places in a slice would else be in registers all the time.
    let t = opaque(t);
    let (mut far, near) = (t / row, t % row * WIDTH);
    let (far_len, near_len) = if along { (sides, k) } else { (k, sides) };
    let mut p = p.wrapping_add((u64::from(far) * ld + u64::from(near)) as usize);
    let end = if near < near_len { far_len } else { 0 };
    let step = opaque_u64(u64::from(THREADS / row) * ld);
    let mut i = 0;
    while i < DEPTH * SIDE / (THREADS * WIDTH) {
        let (side, term) = if along { (far, near) } else { (near, far) };
        let at = to.add(place::<SIDE>(along, side, term));
        // SAFETY: the elements are inside when the first is, because rows are whole pieces.
        unsafe { if WIDTH == 4 { copy_x16(at, p, far < end) } else { copy_x4(at, p, far < end) } }
        p = p.wrapping_add(step as usize);
        far += THREADS / row;
        i += 1;
    }
}

/// Four terms from `k` on of `N` times four rows, `next` rows apart: `[square][term][row]`.
///
/// # Safety
///
/// A slice that was waited for; `first` and `k` are multiples of four.
#[inline(always)]
unsafe fn four<const ALONG: bool, const SIDE: u32, const N: usize>(
    slice: Shared<f32>,
    first: u32,
    next: u32,
    k: u32,
) -> [[[f32; 4]; 4]; N] {
    let mut out = [[[0.0; 4]; 4]; N];
    let mut i = 0;
    while i < 4 {
        let (row, term) = if ALONG { (i, 0) } else { (0, i) };
        let mut s = 0;
        while s < N {
            let at = place::<SIDE>(ALONG, first + s as u32 * next + row, k + term);
            // SAFETY: the caller's promise.
            let values = unsafe { slice.add(at).read_x4() };
            let mut j = 0;
            while j < 4 {
                let (term, row) = if ALONG { (j, i as usize) } else { (i as usize, j) };
                out[s][term][row] = values[j];
                j += 1;
            }
            s += 1;
        }
        i += 1;
    }
    out
}

/// Takes `N` times four terms of a slice from `k` on: of `RM` squares one above the other.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn fours<const A: bool, const B: bool, const SIDE: u32, const RM: usize, const N: u32>(
    sums: &mut Sums<Fma, RM, 1>,
    (a, row): (Shared<f32>, u32),
    (b, column): (Shared<f32>, u32),
    k: u32,
) {
    let mut i = 0;
    while i < N {
        let k = k + 4 * i;
        // SAFETY: the caller's promise.
        let (left, [right]) = unsafe {
            (four::<A, SIDE, RM>(a, row, SIDE / RM as u32, k), four::<B, SIDE, 1>(b, column, 0, k))
        };
        let mut term = 0;
        while term < 4 {
            let mut r = 0;
            while r < 4 * RM {
                let mut c = 0;
                while c < 4 {
                    let sum = &mut sums[r / 4][r % 4][0][c];
                    *sum = fma(left[r / 4][term][r % 4], right[term][c], *sum);
                    c += 1;
                }
                r += 1;
            }
            term += 1;
        }
        i += 1;
    }
}

/// Waits until at most `n` of the newest groups are under way.
#[inline(always)]
fn wait(n: u32) {
    match n {
        0 => wait_group::<0>(),
        1 => wait_group::<1>(),
        2 => wait_group::<2>(),
        3 => wait_group::<3>(),
        4 => wait_group::<4>(),
        5 => wait_group::<5>(),
        6 => wait_group::<6>(),
        _ => wait_group::<7>(),
    }
}

/// Makes matrices with sides of at most `SIDE`, by `THREADS` threads each.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, and is what
/// [`contract::bmm::Variant::takes`] allows; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn whole<const SIDE: u32, const RM: usize, const THREADS: u32>(args: &Args) {
    const { assert!(THREADS * 16 * RM as u32 == SIDE * SIDE) };
    let out = Float::<true>(RowType::F32 as u32);
    launch_dependents();
    let groups = 128 / THREADS;
    let (t, group) = (thread_idx_x() % THREADS, thread_idx_x() / THREADS);
    let index = block_idx_x() * groups + group;
    // A warp without a matrix reads and writes nothing.
    let (m, n, batch) = if index < args.batch { (args.m, args.n, index) } else { (0, 0, 0) };
    let barrier = || if THREADS == LANES { sync_warp() } else { sync_threads() };
    // As in `exact`.
    let (lane, warp) = (t % LANES, t / LANES);
    let (y, x) = (lane >> 1 & 1 | lane >> 3 & 2, lane & 1 | lane >> 1 & 6);
    let (ty, tx) = (warp / (SIDE / 32) * 4 + y, warp % (SIDE / 32) * 8 + x);
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let slices = args.k.div_ceil(DEPTH);
    let slice_words = DEPTH * SIDE;
    let smem = dynamic_shared_mem::<f32>().add(group * slices * 2 * slice_words);
    dependency_wait();
    // SAFETY: the caller's promise; a slice is read behind a barrier, and its place used again behind one.
    unsafe {
        let base = |matrix: &Matrix| {
            let p = matrix.addr.cast::<f32>().as_ptr().cast_const();
            p.wrapping_add((u64::from(batch) * matrix.stride) as usize)
        };
        let (mut a, mut b) = (base(&args.a), base(&args.b));
        let mut s = opaque(0);
        while s < slices {
            let (k, to) = (args.k - s * DEPTH, smem.add(s * 2 * slice_words));
            macro_rules! copy {
                ($matrix:expr, $p:expr, $along:expr, $to:expr, $sides:expr) => {
                    let from = ($p, $matrix.ld, $along);
                    if $matrix.unit >= 16 {
                        copy::<SIDE, THREADS, 4>($to, from, ($sides, k), t);
                    } else {
                        copy::<SIDE, THREADS, 1>($to, from, ($sides, k), t);
                    }
                    let step = u64::from(DEPTH) * if $along { 1 } else { $matrix.ld };
                    $p = $p.wrapping_add(step as usize);
                };
            }
            copy!(args.a, a, along.0, to, m);
            copy!(args.b, b, along.1, to.add(slice_words), n);
            commit_group();
            s = opaque(s + 1);
        }
        let mut sums: Sums<Fma, RM, 1> = zeros::<Fma, RM, 1>();
        let mut s = opaque(0);
        while s < slices {
            wait(slices - 1 - s);
            barrier();
            let left = smem.add(s * 2 * slice_words);
            let right = left.add(slice_words);
            // Opaque, because places in a slice would else be in registers all the time.
            let (left, right) = ((left, 4 * opaque(ty)), (right, 4 * opaque(tx)));
            let terms = (args.k - s * DEPTH).min(DEPTH);
            macro_rules! take {
                ($a:literal, $b:literal) => {{
                    let mut k = opaque(0);
                    if terms == DEPTH {
                        fours::<$a, $b, SIDE, RM, { DEPTH / 4 }>(&mut sums, left, right, 0);
                        k = DEPTH;
                    }
                    while k + 4 <= terms {
                        fours::<$a, $b, SIDE, RM, 1>(&mut sums, left, right, k);
                        k = opaque(k + 4);
                    }
                }};
            }
            match along {
                (false, false) => take!(false, false),
                (false, true) => take!(false, true),
                (true, false) => take!(true, false),
                (true, true) => take!(true, true),
            }
            // Zeros behind the end would make a sum of -0 one of 0.
            let mut k = opaque(terms / 4 * 4);
            while k < terms {
                let value = |from: (Shared<f32>, u32), along, side| {
                    from.0.add(place::<SIDE>(along, from.1 + side, k)).read()
                };
                let columns: [f32; 4] = core::array::from_fn(|c| value(right, along.1, c as u32));
                let mut r = 0;
                while r < 4 * RM {
                    let row = r as u32 / 4 * (SIDE / RM as u32) + r as u32 % 4;
                    let left = value(left, along.0, row);
                    let mut c = 0;
                    while c < 4 {
                        let sum = &mut sums[r / 4][r % 4][0][c];
                        *sum = fma(left, columns[c], *sum);
                        c += 1;
                    }
                    r += 1;
                }
                k = opaque(k + 1);
            }
            s = opaque(s + 1);
        }
        let steps = (SIDE / RM as u32, 0);
        if args.c.unit >= 16 && !Float::<true>::reads(args.beta) {
            let at = (4 * ty, 4 * tx);
            write_squares::<_, RM, 1>(args, out, batch, at, (m, n), steps, sums);
            return;
        }
        // By way of shared memory, so that the lanes of a warp are neighbours.
        sync_threads();
        let parked = dynamic_shared_mem::<f32>().add(group * SIDE * SIDE);
        join::<Fma, RM, 1>(&mut sums, parked.add(4 * ty * SIDE + 4 * tx), SIDE, steps, true);
        barrier();
        let tile = (SIDE, SIDE, SIDE);
        write_fours(args, out, batch, (0, 0), (m, n), parked, tile, (t, THREADS));
    }
}
