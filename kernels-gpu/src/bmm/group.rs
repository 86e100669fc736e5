//! The one arithmetic ([`super::exact`]) of small f32 products of any alignment: a block asks for both factors of some
//! matrices at once, and each of its threads makes 8 by 4 outputs of one of them.
//!
//! A factor stands in shared memory in the lines that it has in memory, `PITCH` words from one to the next, so that
//! neighbouring lines have a piece in different banks. Where lines start anywhere and are one piece of memory, that comes
//! in a bulk copy, and stands as it is.

use contract::bmm::{Args, GROUP_SLICES, Group, Matrix};
use contract::num::fma;

use super::source::Float;
use super::target::Target;
use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mbarrier::{Barrier, arrive_expecting, copy_bulk, end, init, show_new, wait};
use crate::arch::mem::{ld, st, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque_u64, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};

/// Threads and warps of a block.
const THREADS: u32 = 128;
const WARPS: u32 = THREADS / LANES;

/// A factor of the matrices of a block.
struct Factor<const PITCH: u32> {
    /// Its first element in memory.
    p: *const f32,
    stride: u64,
    ld: u64,
    /// Whether neighbours in memory are neighbours in k, and whether four of them are an aligned piece.
    along: bool,
    pieces: bool,
    /// Rows (columns of `B`), terms, matrices.
    sides: u32,
    k: u32,
    copies: u32,
    to: Shared<f32>,
}

impl<const PITCH: u32> Factor<PITCH> {
    /// Rows, columns or terms, at most.
    const SIDE: u32 = PITCH - 4;
    /// Terms of a slice.
    const SLICE: u32 = Self::SIDE / GROUP_SLICES;

    #[inline(always)]
    fn new(
        matrix: &Matrix,
        along: bool,
        (sides, k): (u32, u32),
        (first, here): (u32, u32),
        to: Shared<f32>,
    ) -> Self {
        let p = matrix.addr.cast::<f32>().as_ptr().cast_const();
        let p = p.wrapping_add((u64::from(first) * matrix.stride) as usize);
        let copies = if matrix.stride == 0 { 1 } else { here };
        let (stride, ld, pieces) = (matrix.stride, matrix.ld, matrix.unit >= 16);
        Self { p, stride, ld, along, pieces, sides, k, copies, to }
    }

    /// Lines in memory of a matrix, and their length.
    #[inline(always)]
    fn shape(&self) -> (u32, u32) {
        if self.along { (self.sides, self.k) } else { (self.k, self.sides) }
    }

    /// Words from a matrix of the block to the next in shared memory.
    #[inline(always)]
    fn words(&self) -> u32 {
        match (self.stride, self.flat()) {
            (0, _) => 0,
            (_, true) => self.sides * self.k,
            _ => Group::words(self.along, self.sides, self.k, PITCH),
        }
    }

    /// Words from one line to the next there.
    #[inline(always)]
    fn pitch(&self) -> u32 {
        if self.flat() { self.shape().1 } else { PITCH }
    }

    /// Where the first element of a matrix stands there.
    #[inline(always)]
    fn first(&self, matrix: u32) -> Shared<f32> {
        let over = if self.flat() { self.span().1 } else { 0 };
        self.to.add(over + matrix * self.words())
    }

    /// Whether it is one piece of memory without an alignment.
    #[inline(always)]
    fn flat(&self) -> bool {
        let (lines, len) = self.shape();
        let dense = lines <= 1 || self.ld == u64::from(len);
        self.k > 0
            && !self.pieces
            && dense
            && (self.copies == 1 || self.stride == u64::from(lines * len))
    }

    /// The last 16 bytes that start at or before it, words of them that are before it, words from there to the end, and
    /// those of them that are whole 16 bytes.
    #[inline(always)]
    fn span(&self) -> (*const f32, u32, u32, u32) {
        let over = self.p as u64 as u32 % 16 / 4;
        let words = over + self.copies * self.sides * self.k;
        (self.p.wrapping_sub(over as usize), over, words, words / 4 * 4)
    }

    /// Asks for the whole 16 bytes of a flat one.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says and no thread writes it; nobody accesses `to`; the barrier expects them.
    #[inline(always)]
    unsafe fn ask_flat(&self, barrier: Barrier) {
        let (p, _, _, whole) = self.span();
        if whole > 0 {
            // SAFETY: handed on; what lies before the matrix is in the same 16 bytes.
            unsafe { copy_bulk(self.to, p, whole * 4, barrier) };
        }
    }

    /// Brings the others.
    ///
    /// # Safety
    ///
    /// As for [`Self::ask_flat`].
    #[inline(always)]
    unsafe fn bring_rest(&self, t: u32) {
        let (p, _, words, whole) = self.span();
        if whole + t < words {
            // SAFETY: an element of the last matrix.
            unsafe { self.to.add(whole + t).write(ld(p.wrapping_add((whole + t) as usize))) };
        }
    }

    /// Asks for the terms from `k` on of a slice of what is not flat.
    ///
    /// # Safety
    ///
    /// As for [`Self::ask_flat`].
    #[inline(always)]
    unsafe fn ask(&self, k: u32, t: u32) {
        let (lines, len) = self.shape();
        let near = if self.along { Self::SLICE } else { Self::SIDE };
        let per_line = if self.pieces { near / 4 } else { near };
        let (mut line, mut x) = (t / per_line, t % per_line);
        if self.pieces {
            x *= 4;
        }
        let step = THREADS / per_line;
        let lines = if self.along {
            x += k;
            lines
        } else {
            line += k;
            lines.min(k + Self::SLICE)
        };
        let lines = if x < len { lines } else { 0 };
        let at = u64::from(line) * self.ld + u64::from(x);
        let first = self.p.wrapping_add(at as usize);
        let next = opaque_u64(u64::from(step) * self.ld * 4) as usize;
        let to = self.to.add(line * PITCH + x);
        let mut j = 0;
        while j < self.copies {
            let mut p = first.wrapping_add((u64::from(j) * self.stride) as usize);
            let mut to = to.add(j * self.words());
            let mut i = line;
            while i < lines {
                // SAFETY: elements of the matrix; four are when the first is, because lines are whole pieces.
                unsafe { if self.pieces { copy_x16(to, p, true) } else { copy_x4(to, p, true) } }
                (p, to, i) = (p.wrapping_byte_add(next), to.add(step * PITCH), i + step);
            }
            j += 1;
        }
    }
}

/// Four terms of `N` fours of rows (columns of `B`): `[four][term][row]`. Where lines are rows, `next` words are from one
/// of them to the next; else the rows are neighbours.
///
/// # Safety
///
/// Shared memory that was waited for.
#[inline(always)]
unsafe fn four<const ALONG: bool, const PITCH: u32, const N: usize>(
    at: Shared<f32>,
    next: u32,
) -> [[[f32; 4]; 4]; N] {
    let mut out = [[[0.0; 4]; 4]; N];
    let mut s = 0;
    while s < N {
        let mut i = 0;
        while i < 4 {
            let from = s as u32 * 4;
            let at = if ALONG { at.add((from + i) * next) } else { at.add(i * PITCH + from) };
            // SAFETY: the caller's promise.
            let values = unsafe { at.read_x4() };
            let mut j = 0;
            while j < 4 {
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

/// Takes `N` times four terms; `next` is for columns of `B`.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn fours<const A: bool, const B: bool, const PITCH: u32, const N: u32>(
    sums: &mut [[f32; 4]; 8],
    a: Shared<f32>,
    b: Shared<f32>,
    next: u32,
) {
    let mut i = 0;
    while i < N {
        let at = |p: Shared<f32>, along| p.add(if along { 4 * i } else { 4 * i * PITCH });
        // SAFETY: the caller's promise.
        let (left, [right]) = unsafe {
            (four::<A, PITCH, 2>(at(a, A), 2 * PITCH), four::<B, PITCH, 1>(at(b, B), next))
        };
        let mut term = 0;
        while term < 4 {
            let mut r = 0;
            while r < 8 {
                let mut c = 0;
                while c < 4 {
                    sums[r][c] = fma(left[r / 4][term][r % 4], right[term][c], sums[r][c]);
                    c += 1;
                }
                r += 1;
            }
            term += 1;
        }
        i += 1;
    }
}

/// Takes `N` terms, one by one, of factors with any words from one line to the next.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn ones<const A: bool, const B: bool, const N: u32>(
    sums: &mut [[f32; 4]; 8],
    (a, a_pitch): (Shared<f32>, u32),
    (b, b_pitch, column_next): (Shared<f32>, u32, u32),
) {
    let mut term = 0;
    while term < N {
        // SAFETY: the caller's promise.
        let (left, right): ([f32; 8], [f32; 4]) = unsafe {
            (
                core::array::from_fn(|i| {
                    let i = i as u32;
                    a.add(if A { 2 * i * a_pitch + term } else { term * a_pitch + i }).read()
                }),
                core::array::from_fn(|j| {
                    let j = j as u32 * column_next;
                    b.add(if B { j * b_pitch + term } else { term * b_pitch + j }).read()
                }),
            )
        };
        let mut r = 0;
        while r < 8 {
            let mut c = 0;
            while c < 4 {
                sums[r][c] = fma(left[r], right[c], sums[r][c]);
                c += 1;
            }
            r += 1;
        }
        term += 1;
    }
}

/// Makes matrices with sides of at most `PITCH - 4`.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, and is what
/// [`contract::bmm::Variant::takes`] allows; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn group<const PITCH: u32>(args: &Args) {
    launch_dependents();
    let plan = Group::of(args, PITCH);
    let (t, k) = (thread_idx_x(), args.k);
    let first = block_idx_x() * plan.group;
    let here = plan.group.min(args.batch - first);
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let smem = dynamic_shared_mem::<f32>();
    let (barrier, smem) = (smem.cast::<u64>(), smem.add(4));
    let to = (smem, smem.add(plan.group * plan.a));
    let a = Factor::<PITCH>::new(&args.a, along.0, (args.m, k), (first, here), to.0);
    let b = Factor::<PITCH>::new(&args.b, along.1, (args.n, k), (first, here), to.1);
    let flat = (a.flat(), b.flat());
    dependency_wait();
    // SAFETY: the caller's promise; what is asked for is read after it was waited for, and behind a barrier.
    unsafe {
        if (flat.0 || flat.1) && t == 0 {
            init(barrier, 1);
            show_new();
            let bytes = |flat: bool, factor: &Factor<PITCH>| {
                if flat { factor.span().3 * 4 } else { 0 }
            };
            arrive_expecting(barrier, bytes(flat.0, &a) + bytes(flat.1, &b));
            if flat.0 {
                a.ask_flat(barrier);
            }
            if flat.1 {
                b.ask_flat(barrier);
            }
        }
        let mut slice = opaque(0);
        while slice < GROUP_SLICES {
            let from = slice * Factor::<PITCH>::SLICE;
            if !flat.0 && from < k {
                a.ask(from, t);
            }
            if !flat.1 && from < k {
                b.ask(from, t);
            }
            commit_group();
            slice = opaque(slice + 1);
        }
    }
    // Whether terms are taken four at a time; else neighbouring lanes have neighbouring columns, for the sake of the banks.
    let by_four = a.pieces && b.pieces;
    let apart = !by_four && PITCH > 36;
    // Which matrix a thread has, its first row and column of it, and from each to the next.
    let who = |t: u32| {
        let items = plan.tall * plan.wide;
        let mine = t / items;
        let quad = (t - mine * items) / 4;
        let across = plan.wide / 2;
        let (down, beside) = (quad / across, quad % across);
        // Lanes that differ in bit 0 read the same of A, in bit 1 the same of B: see `exact`.
        let (y, column) = (t / 2 % 2, 2 * beside + t % 2);
        let rows = if along.0 { (16 * down + y, 2) } else { (16 * down + 8 * y, 1) };
        let columns = if along.1 || apart { (column, plan.wide) } else { (4 * column, 1) };
        (mine, rows, columns)
    };
    let (mine, (row0, _), (column0, _)) = who(t);
    let slot = if mine < here { mine } else { 0 };
    let place = |factor: &Factor<PITCH>, side: u32| {
        factor.first(slot).add(if factor.along { side * factor.pitch() } else { side })
    };
    let (mut left, mut right) = (place(&a, row0), place(&b, column0));
    let mut sums = [[0.0f32; 4]; 8];
    // SAFETY: inside of the factors' shared memory, which is there: waited for, and behind a barrier.
    unsafe {
        if flat.0 || flat.1 {
            if flat.0 {
                a.bring_rest(t);
            }
            if flat.1 {
                b.bring_rest(t);
            }
            sync_threads();
            wait(barrier, 0);
        }
        let mut slice = opaque(0);
        let (mut from, end_k) = (opaque(0), if by_four { k / 4 * 4 } else { 0 });
        while slice < GROUP_SLICES {
            if slice == 0 {
                wait_group::<1>()
            } else {
                wait_group::<0>()
            }
            sync_threads();
            slice = opaque(slice + 1);
            let to = end_k.min(slice * Factor::<PITCH>::SLICE);
            macro_rules! take {
                ($a:literal, $b:literal) => {{
                    let forward = |along: bool, k: u32| if along { k } else { k * PITCH };
                    while from + 8 <= to {
                        fours::<$a, $b, PITCH, 2>(&mut sums, left, right, plan.wide * PITCH);
                        left = left.add(forward($a, 8));
                        right = right.add(forward($b, 8));
                        from = opaque(from + 8);
                    }
                    if from < to {
                        fours::<$a, $b, PITCH, 1>(&mut sums, left, right, plan.wide * PITCH);
                        left = left.add(forward($a, 4));
                        right = right.add(forward($b, 4));
                        from = opaque(from + 4);
                    }
                }};
            }
            match along {
                (false, false) => take!(false, false),
                (false, true) => take!(false, true),
                (true, false) => take!(true, false),
                (true, true) => take!(true, true),
            }
        }
        let (a_pitch, b_pitch) = (a.pitch(), b.pitch());
        let column_next = if along.1 || apart { plan.wide } else { 1 };
        macro_rules! take_ones {
            ($a:literal, $b:literal) => {{
                let forward = |along: bool, pitch: u32, k: u32| if along { k } else { k * pitch };
                while from + 4 <= k {
                    let (left_at, right_at) = ((left, a_pitch), (right, b_pitch, column_next));
                    ones::<$a, $b, 4>(&mut sums, left_at, right_at);
                    left = left.add(forward($a, a_pitch, 4));
                    right = right.add(forward($b, b_pitch, 4));
                    from = opaque(from + 4);
                }
                while from < k {
                    let (left_at, right_at) = ((left, a_pitch), (right, b_pitch, column_next));
                    ones::<$a, $b, 1>(&mut sums, left_at, right_at);
                    left = left.add(forward($a, a_pitch, 1));
                    right = right.add(forward($b, b_pitch, 1));
                    from = opaque(from + 1);
                }
            }};
        }
        match along {
            (false, false) => take_ones!(false, false),
            (false, true) => take_ones!(false, true),
            (true, false) => take_ones!(true, false),
            (true, true) => take_ones!(true, true),
        }
    }
    // Once more, so that it need not stay in registers meanwhile.
    let t = opaque(thread_idx_x());
    let first = opaque(block_idx_x()) * plan.group;
    let here = plan.group.min(args.batch - first);
    let (mine, (row0, row_next), (column0, column_next)) = who(t);
    let there = mine < here;
    let c = args.c.addr.cast::<f32>().as_ptr();
    let c = c.wrapping_add((u64::from(first) * args.c.stride) as usize);
    let reads = Float::<true>::reads(args.beta);
    let (m, n) = (args.m, args.n);
    // A factor of one changes nothing.
    let factor = if reads { 1.0 } else { f32::from_bits(args.alpha) };
    // SAFETY: elements of C that are this block's; shared memory is used again behind a barrier.
    unsafe {
        if args.c.unit >= 16 && !reads && !along.1 && !apart {
            let at = u64::from(mine) * args.c.stride + u64::from(row0) * args.c.ld;
            let mut p = c.wrapping_add((at + u64::from(column0)) as usize);
            let next = opaque_u64(u64::from(row_next) * args.c.ld * 4) as usize;
            let end = if there && column0 < n { m } else { 0 };
            let (mut r, mut row) = (0, row0);
            while r < 8 {
                if row < end {
                    st_x4(p.cast(), sums[r].map(|sum| factor * sum));
                }
                (r, row, p) = (r + 1, row + row_next, p.wrapping_byte_add(next));
            }
            return;
        }
        // By way of shared memory, so that the lanes of a warp are neighbours.
        let area = m * n;
        let dense = (m <= 1 || args.c.ld == u64::from(n))
            && (here == 1 || args.c.stride == u64::from(area))
            && !reads;
        let over = if dense { c as u64 as u32 % 16 / 4 } else { 0 };
        sync_threads();
        if t == 0 && (a.flat() || b.flat()) {
            end(barrier);
        }
        let parked = smem.add(over);
        let mut at = parked.add(mine * area + row0 * n + column0);
        // Rows that this thread has of each of its columns.
        let ends: [u32; 4] =
            core::array::from_fn(
                |i| {
                    if there && column0 + i as u32 * column_next < n { m } else { 0 }
                },
            );
        let (mut r, mut row) = (0, row0);
        while r < 8 {
            let mut i = 0;
            while i < 4 {
                if row < ends[i] {
                    at.add(i as u32 * column_next).write(factor * sums[r][i]);
                }
                i += 1;
            }
            (r, row, at) = (r + 1, row + row_next, at.add(row_next * n));
        }
        sync_threads();
        if dense {
            let c = c.wrapping_sub(over as usize);
            let end = over + here * area;
            let mut i = 4 * t;
            while i < end {
                let p = c.wrapping_add(i as usize);
                if i >= over && i + 4 <= end {
                    st_x4(p.cast(), smem.add(i).read_x4());
                } else {
                    let mut j = i.max(over);
                    while j < end.min(i + 4) {
                        st(c.wrapping_add(j as usize), smem.add(j).read());
                        j = opaque(j + 1);
                    }
                }
                i += 4 * THREADS;
            }
            return;
        }
        let mut j = opaque(0);
        while j < here {
            let mut line = opaque(warp_id());
            while line < m {
                let at = u64::from(j) * args.c.stride + u64::from(line) * args.c.ld;
                let mut x = opaque(lane_id());
                while x < n {
                    let p = c.wrapping_add((at + u64::from(x)) as usize);
                    let mut value = parked.add(j * area + line * n + x).read();
                    if reads {
                        let old = ld(p.cast_const());
                        value = Float::<true>::finish(args.alpha, value, args.beta, old);
                    }
                    st(p, value);
                    x = opaque(x + LANES);
                }
                line = opaque(line + WARPS);
            }
            j = opaque(j + 1);
        }
    }
}
