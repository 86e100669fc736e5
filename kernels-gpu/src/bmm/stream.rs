//! The one arithmetic ([`super::exact`]) of f32 in pieces of 16 bytes: `cp.async` puts slices of [`STREAM_DEPTH`] terms into
//! a ring in shared memory, and each thread makes `RM` by `RN` squares of 4 by 4 outputs of a tile whose sides are the
//! launch's to say: few of its rows and columns are outside of the result.
//!
//! A slice keeps the order of memory. Where neighbours are neighbours in k, a line of 32 words holds two rows of it, and
//! piece `c` of the line stands at `c ^ (row / 4 % 8)`; else a row of it is [`STREAM_SIDE`] words at one k.

use contract::bmm::{Args, K_CHUNK, Matrix, STREAM_DEPTH, STREAM_SIDE, STREAM_STAGES};
use contract::num::{RowType, fma};

use super::exact::join;
use super::source::Float;
use super::target::Target;
use super::write::{prefetch_tile, write, write_squares};
use crate::arch::async_copy::{commit_group, copy_x4, copy_x16, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, opaque_u64, sync_threads, thread_idx_x};
use crate::tile::simt::{Fma, Sums, zeros};
use crate::tile::walk::tile_at;

/// Terms of a slice, and words of one factor's part of it.
const DEPTH: u32 = STREAM_DEPTH;
const WORDS: u32 = DEPTH * STREAM_SIDE;

/// What one of `THREADS` threads copies of one factor: pieces of four elements of each slice, or elements.
struct Part<const THREADS: u32> {
    /// The first of them in the next slice, and bytes from one line of memory to the next.
    p: *const u8,
    line: u64,
    /// Rows (columns of `B`), and terms, that are left from the first of them on.
    beside: i32,
    k_left: i32,
    /// Where it stands in a slice, in bytes.
    at: u32,
    /// Whether they are pieces.
    pieces: bool,
}

impl<const THREADS: u32> Part<THREADS> {
    #[inline(always)]
    fn new<const ALONG: bool>(
        matrix: &Matrix,
        batch: u32,
        (first, end): (u32, u32),
        k: u32,
    ) -> Self {
        let (t, pieces) = (thread_idx_x(), matrix.unit >= 16);
        let [side, depth] = match (ALONG, pieces) {
            (true, true) => [t / 4, t % 4 * 4],
            (true, false) => [t / 16 * 4, t % 16],
            (false, true) => [t % 32 * 4, t / 32],
            (false, false) => [t % 128, t / 128],
        };
        let at = if ALONG {
            side / 2 * 128 + ((side % 2 * 4 + depth / 4) ^ side / 4 % 8) * 16 + depth % 4 * 4
        } else {
            (depth * STREAM_SIDE + side) * 4
        };
        let base = matrix.addr.cast::<f32>().as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let (far, near) = if ALONG { (first + side, depth) } else { (depth, first + side) };
        let p = base.wrapping_add((u64::from(far) * matrix.ld + u64::from(near)) as usize);
        let (beside, k_left) = (end as i32 - (first + side) as i32, k as i32 - depth as i32);
        Self { p: p.cast(), line: 4 * matrix.ld, beside, k_left, at, pieces }
    }

    /// Asks for the next slice; what is not there stays as it was.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it; nobody accesses the slice.
    #[inline(always)]
    unsafe fn copy<const ALONG: bool>(&mut self, to: Shared<f32>) {
        let (near, mut far) =
            if ALONG { (self.k_left, self.beside) } else { (self.beside, self.k_left) };
        far = if near > 0 { far } else { 0 };
        let slice = to;
        let to = slice.byte_add(self.at);
        let mut p = self.p;
        if self.pieces {
            let lines = if ALONG { THREADS / 4 } else { THREADS / 32 };
            let step = opaque_u64(self.line * u64::from(lines)) as usize;
            let mut i = 0;
            while i < 512 / THREADS {
                if far > (i * lines) as i32 {
                    // SAFETY: four elements are inside when the first is, because lines are whole pieces.
                    unsafe { copy_x16(to.byte_add(i * THREADS * 16), p, true) };
                }
                p = p.wrapping_add(step);
                i += 1;
            }
        } else if ALONG {
            // Four rows that are neighbours, and those `THREADS / 4` behind.
            let step = opaque_u64(self.line * u64::from(THREADS / 4)) as usize;
            let other = slice.byte_add(self.at ^ 64);
            let mut j = 0;
            while j < 512 / THREADS {
                let mut p = self.p.wrapping_add(j as usize * step);
                let mut i = 0;
                while i < 4 {
                    if far > (j * (THREADS / 4) + i) as i32 {
                        let at = if i % 2 == 0 { to } else { other };
                        let at = at.byte_add(i / 2 * 128 + j * THREADS * 16);
                        // SAFETY: an element of the matrix.
                        unsafe { copy_x4(at, p, true) };
                    }
                    p = p.wrapping_add(self.line as usize);
                    i += 1;
                }
                j += 1;
            }
        } else {
            let step = opaque_u64(self.line * u64::from(THREADS / 128)) as usize;
            let mut i = 0;
            while i < 2048 / THREADS {
                if far > (i * (THREADS / 128)) as i32 {
                    // SAFETY: an element of the matrix.
                    unsafe { copy_x4(to.byte_add(i * THREADS * 4), p, true) };
                }
                p = p.wrapping_add(step);
                i += 1;
            }
        }
        // Behind the last of these lines the next slice's are.
        self.p = if ALONG { self.p.wrapping_add(4 * DEPTH as usize) } else { p };
        self.k_left -= DEPTH as i32;
    }
}

/// Bytes to the first of four rows (columns of `B`) of a thread.
#[inline(always)]
fn first(along: bool, fours: u32) -> u32 {
    if along { fours * 256 + fours % 8 * 16 } else { 16 * fours }
}

/// Four terms from `4 quad` on of four rows (columns of `B`), `[term][row]`.
///
/// # Safety
///
/// A slice that was waited for.
#[inline(always)]
unsafe fn four<const ALONG: bool>(slice: Shared<f32>, first: u32, quad: u32) -> [[f32; 4]; 4] {
    let mut out = [[0.0; 4]; 4];
    let mut i = 0;
    while i < 4 {
        let at = if ALONG {
            slice.byte_add(first ^ (i % 2 * 4 + quad) * 16).byte_add(i / 2 * 128)
        } else {
            slice.byte_add(first).add((4 * quad + i) * STREAM_SIDE)
        };
        // SAFETY: the caller's promise.
        let values = unsafe { at.read_x4() };
        let mut j = 0;
        while j < 4 {
            if ALONG {
                out[j][i as usize] = values[j];
            } else {
                out[i as usize][j] = values[j];
            }
            j += 1;
        }
        i += 1;
    }
    out
}

/// Takes four terms.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn fours<const A: bool, const B: bool, const RM: usize, const RN: usize>(
    sums: &mut Sums<Fma, RM, RN>,
    (left, rows): (Shared<f32>, [u32; RM]),
    (right, columns): (Shared<f32>, [u32; RN]),
    quad: u32,
) {
    // SAFETY: the caller's promise.
    let left = rows.map(|first| unsafe { four::<A>(left, first, quad) });
    // SAFETY: the caller's promise.
    let right = columns.map(|first| unsafe { four::<B>(right, first, quad) });
    let mut term = 0;
    while term < 4 {
        let mut r = 0;
        while r < RM {
            let mut i = 0;
            while i < 4 {
                let mut c = 0;
                while c < RN {
                    let mut j = 0;
                    while j < 4 {
                        let sum = &mut sums[r][i][c][j];
                        *sum = fma(left[r][term][i], right[c][term][j], *sum);
                        j += 1;
                    }
                    c += 1;
                }
                i += 1;
            }
            r += 1;
        }
        term += 1;
    }
}

/// One term of row (column) `i` of four.
///
/// # Safety
///
/// As for [`four`].
#[inline(always)]
unsafe fn one<const ALONG: bool>(slice: Shared<f32>, first: u32, i: u32, k: u32) -> f32 {
    let at = if ALONG {
        slice.byte_add(first ^ (i % 2 * 4 + k / 4) * 16).byte_add(i / 2 * 128 + k % 4 * 4)
    } else {
        slice.byte_add(first).add(k * STREAM_SIDE + i)
    };
    // SAFETY: the caller's promise.
    unsafe { at.read() }
}

/// Makes the tile of this block, `N` times four terms at a time.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn stream<
    const HEIGHT: u32,
    const WIDTH: u32,
    const RM: usize,
    const RN: usize,
    const THREADS: u32,
    const N: u32,
>(
    args: &Args,
) {
    const AHEAD: u32 = STREAM_STAGES - 1;
    launch_dependents();
    let out = Float::<true>(RowType::F32 as u32);
    // Sides of a tile, of it in threads, and which of those this is. All of it again where it is wanted, so that it need
    // not stay in registers meanwhile.
    let who = || {
        let [tall, wide] = [HEIGHT / (4 * RM as u32), WIDTH / (4 * RN as u32)];
        let t = opaque_here(thread_idx_x());
        // Lanes that differ in bit 0 read the same of A, in bit 1 the same of B: see `exact`.
        let (quad, across) = (t / 4, wide / 2);
        let (down, beside) = (quad / across, quad % across);
        ([tall, wide], [2 * down + (t >> 1 & 1), 2 * beside + (t & 1)])
    };
    let tile = || {
        let block = opaque_here(block_idx_x());
        // Not `div_ceil`, which would ask for the rest.
        let (tiles_m, tiles_n) = ((args.m + HEIGHT - 1) / HEIGHT, (args.n + WIDTH - 1) / WIDTH);
        let per_matrix = tiles_m * tiles_n;
        let batch = block / per_matrix;
        let [tile_m, tile_n] = tile_at(block - batch * per_matrix, tiles_m, tiles_n);
        (batch, tile_m * HEIGHT, tile_n * WIDTH)
    };
    let smem = dynamic_shared_mem::<f32>();
    let (k, slices) = (args.k, args.k.div_ceil(DEPTH));
    // Of a single chunk over the ring, else behind it.
    let parked = || {
        let one = opaque_here(args.k) <= K_CHUNK as u32;
        if one { smem } else { smem.add(STREAM_STAGES * 2 * WORDS) }
    };
    let keep = |sums: &mut Sums<Fma, RM, RN>, is_first: bool| {
        let ([tall, wide], [ty, tx]) = who();
        let mine = parked().add(4 * ty * WIDTH + 4 * tx);
        if ty < tall {
            // SAFETY: each thread has totals of its own.
            unsafe { join::<Fma, RM, RN>(sums, mine, WIDTH, (4 * tall, 4 * wide), is_first) };
        }
    };
    let mut sums: Sums<Fma, RM, RN> = zeros::<Fma, RM, RN>();
    let mut is_first = true;
    dependency_wait();
    if Float::<true>::reads(args.beta) {
        let (at, who) = (tile(), (thread_idx_x(), THREADS));
        // SAFETY: the caller's promise.
        unsafe { prefetch_tile(args, 4, at, (args.m, args.n), (HEIGHT, WIDTH), who) };
    }
    macro_rules! product {
        ($a:literal, $b:literal) => {{
            let ([tall, wide], [ty, tx]) = who();
            let (batch, row0, column0) = tile();
            let active = ty < tall;
            let ends = (args.m.min(row0 + HEIGHT), args.n.min(column0 + WIDTH));
            let mut a = Part::<THREADS>::new::<$a>(&args.a, batch, (row0, ends.0), k);
            let mut b = Part::<THREADS>::new::<$b>(&args.b, batch, (column0, ends.1), k);
            let rows: [u32; RM] = core::array::from_fn(|r| first($a, ty + r as u32 * tall));
            let columns: [u32; RN] = core::array::from_fn(|c| first($b, tx + c as u32 * wide));
            let (mut place, mut ahead) = (smem, smem);
            let end = smem.add(STREAM_STAGES * 2 * WORDS);
            let next = |place: Shared<f32>| {
                let next = place.add(2 * WORDS);
                if next.addr() == end.addr() { smem } else { next }
            };
            let mut s = opaque(0);
            while s < AHEAD {
                a.copy::<$a>(ahead);
                b.copy::<$b>(ahead.add(WORDS));
                commit_group();
                ahead = next(ahead);
                s = opaque(s + 1);
            }
            let mut s = opaque(0);
            while s < slices {
                wait_group::<{ STREAM_STAGES - 2 }>();
                sync_threads();
                a.copy::<$a>(ahead);
                b.copy::<$b>(ahead.add(WORDS));
                commit_group();
                ahead = next(ahead);
                let terms = (k - s * DEPTH).min(DEPTH);
                if active {
                    // Opaque, because places in a slice would else be in registers all the time.
                    let (rows, columns) = (rows.map(opaque_here), columns.map(opaque_here));
                    let (left, right) = ((place, rows), (place.add(WORDS), columns));
                    let mut quad = opaque(0);
                    while 4 * quad + 4 * N <= terms {
                        let mut n = 0;
                        while n < N {
                            fours::<$a, $b, RM, RN>(&mut sums, left, right, quad + n);
                            n += 1;
                        }
                        quad = opaque(quad + N);
                    }
                    let mut k = opaque(4 * quad);
                    let (rows, columns) = (rows.map(opaque_here), columns.map(opaque_here));
                    while k < terms {
                        rolled();
                        let mut r = 0;
                        while r < 4 * RM {
                            let value = one::<$a>(left.0, rows[r / 4], r as u32 % 4, k);
                            let mut c = 0;
                            while c < 4 * RN {
                                let other = one::<$b>(right.0, columns[c / 4], c as u32 % 4, k);
                                let sum = &mut sums[r / 4][r % 4][c / 4][c % 4];
                                *sum = fma(value, other, *sum);
                                c += 1;
                            }
                            r += 1;
                        }
                        k = opaque(k + 1);
                    }
                }
                place = next(place);
                s = opaque(s + 1);
                if s % (K_CHUNK as u32 / DEPTH) == 0 && s < slices {
                    keep(&mut sums, is_first);
                    is_first = false;
                }
            }
        }};
    }
    // SAFETY: `args` says the truth; a place of the ring is asked for again behind a barrier that all readers have reached;
    // each thread has totals of its own.
    unsafe {
        match (args.a.transposed == 0, args.b.transposed != 0) {
            (true, false) => product!(true, false),
            (true, true) => product!(true, true),
            (false, false) => product!(false, false),
            (false, true) => product!(false, true),
        }
        let ([tall, wide], [ty, tx]) = who();
        let (batch, row0, column0) = tile();
        if is_first && args.c.unit >= 16 && !Float::<true>::reads(args.beta) {
            if ty < tall {
                let (at, steps) = ((row0 + 4 * ty, column0 + 4 * tx), (4 * tall, 4 * wide));
                write_squares::<_, RM, RN>(args, out, batch, at, (args.m, args.n), steps, sums);
            }
            return;
        }
        sync_threads();
        keep(&mut sums, is_first);
        sync_threads();
        let (at, t) = ((row0, column0), thread_idx_x());
        write(
            args,
            out,
            batch,
            at,
            (args.m, args.n),
            parked(),
            (HEIGHT, WIDTH, WIDTH),
            (t, THREADS),
        );
    }
}
