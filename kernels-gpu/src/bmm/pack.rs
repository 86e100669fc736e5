//! The one arithmetic ([`super::exact`]) of many small f32 products of any alignment: a block asks for both factors of some
//! matrices at once, and each of its threads makes 8 by 8 outputs of one of them.
//!
//! A factor stands in shared memory as it lies in memory, brought in one bulk copy; where its lines are apart, or would start
//! in the same banks, each stands [`PACK_PITCH`] words behind the one before.

use contract::bmm::{Args, Matrix, PACK_PITCH, PACK_THREADS, Pack};
use contract::num::fma;

use super::source::Float;
use super::target::Target;
use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mbarrier::{Barrier, arrive_expecting, copy_bulk, end, init, show_new, wait};
use crate::arch::mem::{ld, ld_or_zero_x4, st, st_x4};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque_u64, sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id};

const THREADS: u32 = PACK_THREADS;
const WARPS: u32 = THREADS / LANES;
const PITCH: u32 = PACK_PITCH;
/// Pieces of results that a thread reads before it writes them.
const AT_ONCE: usize = 4;

/// A factor of the matrices of a block.
struct Factor {
    /// Its first element in memory.
    p: *const f32,
    stride: u64,
    ld: u64,
    /// Whether four neighbours in memory are an aligned piece, and whether all of it comes in one.
    pieces: bool,
    flat: bool,
    /// Lines of a matrix, their length, matrices.
    lines: u32,
    len: u32,
    copies: u32,
    to: Shared<f32>,
}

impl Factor {
    #[inline(always)]
    fn new(
        matrix: &Matrix,
        (along, flat): (bool, bool),
        (sides, k): (u32, u32),
        (first, here): (u32, u32),
        to: Shared<f32>,
    ) -> Self {
        let p = matrix.addr.cast::<f32>().as_ptr().cast_const();
        let p = p.wrapping_add((u64::from(first) * matrix.stride) as usize);
        let copies = if matrix.stride == 0 { 1 } else { here };
        let (lines, len) = if along { (sides, k) } else { (k, sides) };
        let (stride, ld, pieces) = (matrix.stride, matrix.ld, matrix.unit >= 16);
        Self { p, stride, ld, pieces, flat, lines, len, copies, to }
    }

    /// Words from one line to the next in shared memory.
    #[inline(always)]
    fn pitch(&self) -> u32 {
        if self.flat { self.len } else { PITCH }
    }

    /// Where a matrix starts there.
    #[inline(always)]
    fn first(&self, matrix: u32) -> Shared<f32> {
        let over = if self.flat { self.span().1 } else { 0 };
        let matrix = if self.stride == 0 { 0 } else { matrix };
        self.to.add(over + matrix * self.lines * self.pitch())
    }

    /// The last 16 bytes that start at or before it, words of them that are before it, words from there to the end, and
    /// those of them that are whole 16 bytes.
    #[inline(always)]
    fn span(&self) -> (*const f32, u32, u32, u32) {
        let over = self.p as u64 as u32 % 16 / 4;
        let words = over + self.copies * self.lines * self.len;
        (self.p.wrapping_sub(over as usize), over, words, words / 4 * 4)
    }

    /// Bytes that a bulk copy brings.
    #[inline(always)]
    fn bulk(&self) -> u32 {
        if self.flat { self.span().3 * 4 } else { 0 }
    }

    /// Asks for a flat one.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says and no thread writes it; nobody accesses `to`; the barrier expects it.
    #[inline(always)]
    unsafe fn ask_flat(&self, barrier: Barrier) {
        let (bytes, p) = (self.bulk(), self.span().0);
        if bytes > 0 {
            // SAFETY: handed on; what lies before the matrix is in the same 16 bytes.
            unsafe { copy_bulk(self.to, p, bytes, barrier) };
        }
    }

    /// Brings what is behind the whole 16 bytes of a flat one.
    ///
    /// # Safety
    ///
    /// As for [`Self::ask_flat`].
    #[inline(always)]
    unsafe fn bring_rest(&self, t: u32) {
        let (p, _, words, whole) = self.span();
        if self.flat && whole + t < words {
            // SAFETY: an element of the last matrix.
            unsafe { self.to.add(whole + t).write(ld(p.wrapping_add((whole + t) as usize))) };
        }
    }

    /// Asks for what is not flat.
    ///
    /// # Safety
    ///
    /// As for [`Self::ask_flat`].
    #[inline(always)]
    unsafe fn ask(&self, t: u32) {
        if self.flat {
            return;
        }
        let (line, x, step) = if self.pieces {
            (t / 16, t % 16 * 4, THREADS / 16)
        } else {
            (t / 64, t % 64, THREADS / 64)
        };
        let lines = if x < self.len { self.lines } else { 0 };
        let at = u64::from(line) * self.ld + u64::from(x);
        let first = self.p.wrapping_add(at as usize);
        let next = opaque_u64(u64::from(step) * self.ld * 4) as usize;
        let to = self.to.add(line * PITCH + x);
        let mut j = opaque(0);
        while j < self.copies {
            let mut p = first.wrapping_add((u64::from(j) * self.stride) as usize);
            let mut to = to.add(j * self.lines * PITCH);
            let mut i = opaque(line);
            while i < lines {
                // SAFETY: elements of the matrix; four are when the first is, because lines are whole pieces.
                unsafe { if self.pieces { copy_x16(to, p, true) } else { copy_x4(to, p, true) } }
                (p, to, i) = (p.wrapping_byte_add(next), to.add(step * PITCH), opaque(i + step));
            }
            j = opaque(j + 1);
        }
    }
}

/// Where the eight rows (columns of `B`) of a thread are read: one by one, `count` apart, where neighbours are terms; else
/// two fours, `4 * count` apart.
#[inline(always)]
fn places(from: Shared<f32>, along: bool, which: u32, count: u32, pitch: u32) -> [Shared<f32>; 8] {
    core::array::from_fn(|i| {
        let side = side(along, which, count, i as u32);
        from.add(if along { side * pitch } else { side }).kept()
    })
}

/// The row (column) that is number `i` of those of a thread.
#[inline(always)]
fn side(along: bool, which: u32, count: u32, i: u32) -> u32 {
    if along { which + i * count } else { 4 * which + i / 4 * 4 * count + i % 4 }
}

/// How the rows (columns) of a term are read: see [`places`]; `FOURS` are in aligned pieces.
const ALONG: u32 = 0;
const ACROSS: u32 = 1;
const FOURS: u32 = 2;

/// A term of them.
///
/// # Safety
///
/// Shared memory that was waited for.
#[inline(always)]
unsafe fn term<const HOW: u32>(at: &[Shared<f32>; 8], term: u32) -> [f32; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        if HOW == FOURS {
            let (low, high) = (at[0].read_x4(), at[4].read_x4());
            return core::array::from_fn(|i| if i < 4 { low[i] } else { high[i - 4] });
        }
        core::array::from_fn(|i| {
            if HOW == ALONG {
                at[i].add(term).read()
            } else {
                at[i / 4 * 4].add(i as u32 % 4).read()
            }
        })
    }
}

/// Takes `N` terms, of which the first is `now`; the next one is read before the products of each.
///
/// # Safety
///
/// As for [`term`]; behind the last term is shared memory of the block.
#[inline(always)]
unsafe fn take<const A: u32, const B: u32, const N: u32>(
    sums: &mut [[f32; 8]; 8],
    now: &mut [[f32; 8]; 2],
    (left, left_pitch): (&mut [Shared<f32>; 8], u32),
    (right, right_pitch): (&mut [Shared<f32>; 8], u32),
) {
    let mut i = 0;
    while i < N {
        let [l, r] = *now;
        if A != ALONG {
            (left[0], left[4]) = (left[0].add(left_pitch), left[4].add(left_pitch));
        }
        if B != ALONG {
            (right[0], right[4]) = (right[0].add(right_pitch), right[4].add(right_pitch));
        }
        // SAFETY: the caller's promise.
        *now = unsafe { [term::<A>(left, i + 1), term::<B>(right, i + 1)] };
        let mut y = 0;
        while y < 8 {
            let mut x = 0;
            while x < 8 {
                sums[y][x] = fma(l[y], r[x], sums[y][x]);
                x += 1;
            }
            y += 1;
        }
        i += 1;
    }
    if A == ALONG {
        *left = left.map(|at| at.add(N));
    }
    if B == ALONG {
        *right = right.map(|at| at.add(N));
    }
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth, and is what
/// [`contract::bmm::Variant::takes`] allows; `C` overlaps neither `A` nor `B`.
#[inline(always)]
pub(super) unsafe fn pack(args: &Args) {
    launch_dependents();
    let plan = Pack::of(args);
    let (t, k) = (thread_idx_x(), args.k);
    let first = block_idx_x() * plan.group;
    let here = plan.group.min(args.batch - first);
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let smem = dynamic_shared_mem::<f32>();
    let (barrier, smem) = (smem.cast::<u64>(), smem.add(4));
    let a = Factor::new(&args.a, (along.0, plan.flat[0]), (args.m, k), (first, here), smem);
    let to = smem.add(plan.words(0));
    let b = Factor::new(&args.b, (along.1, plan.flat[1]), (args.n, k), (first, here), to);
    let bulk = a.flat || b.flat;
    dependency_wait();
    // SAFETY: the caller's promise; what is asked for is read after it was waited for, and behind a barrier.
    unsafe {
        if bulk && t == 0 {
            init(barrier, 1);
            show_new();
            arrive_expecting(barrier, a.bulk() + b.bulk());
            a.ask_flat(barrier);
            b.ask_flat(barrier);
        }
        a.ask(t);
        b.ask(t);
        commit_group();
        a.bring_rest(t);
        b.bring_rest(t);
    }
    // Which matrix a thread has, and where in it.
    let who = |t: u32| {
        let mine = t / (plan.tall * plan.wide);
        let rest = t - mine * plan.tall * plan.wide;
        (mine, rest / plan.wide, rest % plan.wide)
    };
    let (mine, ty, tx) = who(t);
    let slot = if mine < here { mine } else { 0 };
    let (a_pitch, b_pitch) = (a.pitch(), b.pitch());
    let (from_a, from_b) = (a.first(slot), b.first(slot));
    let fours = from_b.addr() % 16 == 0 && b_pitch % 4 == 0;
    let mut left = places(from_a, along.0, ty, plan.tall, a_pitch);
    let mut right = places(from_b, along.1, tx, plan.wide, b_pitch);
    let mut sums = [[0.0f32; 8]; 8];
    // SAFETY: inside of the factors' shared memory, which is there: waited for, and behind a barrier.
    unsafe {
        wait_group::<0>();
        sync_threads();
        if bulk {
            wait(barrier, 0);
        }
        macro_rules! product {
            ($a:ident, $b:ident) => {{
                let mut now = [term::<$a>(&left, 0), term::<$b>(&right, 0)];
                let (left, right) = ((&mut left, a_pitch), (&mut right, b_pitch));
                let mut i = opaque(0);
                while i + 4 <= k {
                    let (left, right) = ((&mut *left.0, left.1), (&mut *right.0, right.1));
                    take::<$a, $b, 4>(&mut sums, &mut now, left, right);
                    i = opaque(i + 4);
                }
                while i < k {
                    let (left, right) = ((&mut *left.0, left.1), (&mut *right.0, right.1));
                    take::<$a, $b, 1>(&mut sums, &mut now, left, right);
                    i = opaque(i + 1);
                }
            }};
        }
        match (along.0, along.1, fours) {
            (true, true, _) => product!(ALONG, ALONG),
            (true, false, false) => product!(ALONG, ACROSS),
            (true, false, true) => product!(ALONG, FOURS),
            (false, true, _) => product!(ACROSS, ALONG),
            (false, false, false) => product!(ACROSS, ACROSS),
            (false, false, true) => product!(ACROSS, FOURS),
        }
    }
    // Once more, so that it need not stay in registers meanwhile.
    let t = opaque(thread_idx_x());
    let first = opaque(block_idx_x()) * plan.group;
    let here = plan.group.min(args.batch - first);
    let (mine, ty, tx) = who(t);
    let there = mine < here;
    let c = args.c.addr.cast::<f32>().as_ptr();
    let c = c.wrapping_add((u64::from(first) * args.c.stride) as usize);
    let reads = Float::<true>::reads(args.beta);
    let (m, n) = (args.m, args.n);
    // A factor of one changes nothing.
    let factor = if reads { 1.0 } else { f32::from_bits(args.alpha) };
    // SAFETY: elements of C that are this block's; shared memory is used again behind a barrier.
    unsafe {
        if args.c.unit >= 16 && !reads && !along.1 {
            let c = c.wrapping_add((u64::from(mine) * args.c.stride) as usize);
            let mut y = 0;
            while y < 8 {
                let row = side(along.0, ty, plan.tall, y as u32);
                let line = c.wrapping_add((u64::from(row) * args.c.ld) as usize);
                let mut half = 0;
                while half < 2 {
                    let column = side(false, tx, plan.wide, 4 * half as u32);
                    if there && row < m && column < n {
                        let out: [f32; 4] =
                            core::array::from_fn(|x| factor * sums[y][4 * half + x]);
                        st_x4(line.wrapping_add(column as usize).cast(), out);
                    }
                    half += 1;
                }
                y += 1;
            }
            return;
        }
        // By way of shared memory, so that the lanes of a warp are neighbours.
        let area = m * n;
        let dense = (m <= 1 || args.c.ld == u64::from(n))
            && (here == 1 || args.c.stride == u64::from(area));
        let over = if dense { c as u64 as u32 % 16 / 4 } else { 0 };
        sync_threads();
        if t == 0 && bulk {
            end(barrier);
        }
        let parked = smem.add(over);
        let mut x = 0;
        while x < 8 {
            let column = side(along.1, tx, plan.wide, x as u32);
            let end = if there && column < n { m } else { 0 };
            let at = parked.add(mine * area + column);
            let mut y = 0;
            while y < 8 {
                let row = side(along.0, ty, plan.tall, y as u32);
                if row < end {
                    at.add(row * n).write(factor * sums[y][x]);
                }
                y += 1;
            }
            x += 1;
        }
        sync_threads();
        if dense {
            let c = c.wrapping_sub(over as usize);
            let end = over + here * area;
            let finish =
                |sum: f32, old: f32| Float::<true>::finish(args.alpha, sum, args.beta, old);
            let mut i = 4 * t;
            while i < end {
                // Some at a time, where what they are added to has to come.
                let mut old = [[0.0; 4]; AT_ONCE];
                if reads {
                    old = core::array::from_fn(|j| {
                        let i = i + j as u32 * 4 * THREADS;
                        let whole = i >= over && i + 4 <= end;
                        ld_or_zero_x4(whole, c.wrapping_add(i as usize).cast_const().cast())
                    });
                }
                let mut j = 0;
                while j < AT_ONCE {
                    let p = c.wrapping_add(i as usize);
                    if i >= over && i + 4 <= end {
                        let mut out: [f32; 4] = smem.add(i).read_x4();
                        if reads {
                            out = core::array::from_fn(|x| finish(out[x], old[j][x]));
                        }
                        st_x4(p.cast(), out);
                    } else {
                        let mut x = i.max(over);
                        while x < end.min(i + 4) {
                            let p = c.wrapping_add(x as usize);
                            let mut out = smem.add(x).read();
                            if reads {
                                out = finish(out, ld(p.cast_const()));
                            }
                            st(p, out);
                            x = opaque(x + 1);
                        }
                    }
                    i += 4 * THREADS;
                    j += 1;
                }
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
