//! The one arithmetic ([`super::exact`]) of f32 of any alignment: `cp.async` of single elements puts slices into a ring in
//! shared memory, some of them ahead, so that what a thread waits for is not memory.

use contract::bmm::{Args, K_CHUNK, Matrix, RING_STAGES, row_words};
use contract::num::RowType;

use super::exact::join;
use super::source::Float;
use super::target::Target;
use super::write::{write, write_squares};
use crate::arch::async_copy::{commit_group, copy_x4, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::LANES;
use crate::tile::simt::{Fma, Sums, multiply, zeros};
use crate::tile::walk::tile_at;

const SIDE: u32 = 64;
const THREADS: u32 = 128;
/// Terms of a slice.
const DEPTH: u32 = 8;
/// Elements of a slice of one factor that a thread copies.
const COPIES: u32 = SIDE * DEPTH / THREADS;
/// Words from one k to the next in a slice, and of a slice of one factor.
const LD: u32 = row_words(SIDE);
const SLICE: u32 = DEPTH * LD;

/// What a thread copies of one factor.
struct Part {
    /// The first element of the next slice, and the bytes from one row of memory to the next.
    p: *const u8,
    row: u64,
    /// Rows (columns of `B`), and terms, that are left from there on.
    beside: i32,
    k_left: i32,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
}

impl Part {
    /// Row and term of a thread's first element.
    #[inline(always)]
    fn first(t: u32, along: bool) -> [u32; 2] {
        if along { [t / DEPTH, t % DEPTH] } else { [t % SIDE, t / SIDE] }
    }

    #[inline(always)]
    fn new(
        (matrix, along, batch): (&Matrix, bool, u32),
        first: u32,
        side_len: u32,
        k: u32,
    ) -> Self {
        let [side, depth] = Self::first(thread_idx_x(), along);
        let base = matrix.addr.cast::<f32>().as_ptr().cast_const();
        let base = base.wrapping_add((u64::from(batch) * matrix.stride) as usize);
        let (far, near) = if along { (first + side, depth) } else { (depth, first + side) };
        Self {
            p: base.wrapping_add((u64::from(far) * matrix.ld + u64::from(near)) as usize).cast(),
            row: 4 * matrix.ld,
            beside: side_len.wrapping_sub(first + side) as i32,
            k_left: k as i32 - depth as i32,
            along,
        }
    }

    /// Asks for the next slice; zeros are where nothing is.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it; nobody accesses the slice.
    #[inline(always)]
    unsafe fn copy(&mut self, to: Shared<f32>) {
        let [side, depth] = Self::first(thread_idx_x(), self.along);
        let to = to.add(depth * LD + side);
        // Rows of memory from one element to the next, words in the slice, and what is lost of rows and terms.
        let (lines, words, sides, terms) = if self.along {
            (THREADS / DEPTH, THREADS / DEPTH, (THREADS / DEPTH) as i32, 0)
        } else {
            (THREADS / SIDE, THREADS / SIDE * LD, 0, (THREADS / SIDE) as i32)
        };
        let mut i = 0;
        while i < COPIES {
            let p = self.p.wrapping_add((u64::from(i * lines) * self.row) as usize);
            let there = self.beside > i as i32 * sides && self.k_left > i as i32 * terms;
            // SAFETY: an element of the matrix when it is there.
            unsafe { copy_x4(to.add(i * words), p, there) };
            i += 1;
        }
        let slice = if self.along { u64::from(4 * DEPTH) } else { u64::from(DEPTH) * self.row };
        self.p = self.p.wrapping_add(slice as usize);
        self.k_left -= DEPTH as i32;
    }
}

/// Makes the tile of this block, 64 by 64: a thread has two squares one above the other.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its tiling; `args` says the truth; `C` overlaps neither `A` nor
/// `B`.
#[inline(always)]
pub(super) unsafe fn ring(args: &Args) {
    const TY: u32 = 8;
    const TX: u32 = 16;
    let out = Float::<true>(RowType::F32 as u32);
    launch_dependents();
    let t = thread_idx_x();
    // As in `exact`.
    let (lane, warp) = (t % LANES, t / LANES);
    let (y, x) = (lane >> 1 & 1 | lane >> 3 & 2, lane & 1 | lane >> 1 & 6);
    let (ty, tx) = (warp / (TX / 8) * 4 + y, warp % (TX / 8) * 8 + x);
    let place = |block: u32| {
        let (tiles_m, tiles_n) = (args.m.div_ceil(SIDE), args.n.div_ceil(SIDE));
        let per_matrix = tiles_m * tiles_n;
        let batch = block / per_matrix;
        let [tile_m, tile_n] = tile_at(block - batch * per_matrix, tiles_m, tiles_n);
        (batch, (tile_m * SIDE, tile_n * SIDE))
    };
    let (batch, (row0, column0)) = place(block_idx_x());
    let along = (args.a.transposed == 0, args.b.transposed != 0);
    let mut a = Part::new((&args.a, along.0, batch), row0, args.m, args.k);
    let mut b = Part::new((&args.b, along.1, batch), column0, args.n, args.k);
    let smem = dynamic_shared_mem::<f32>();
    let totals = smem.add(RING_STAGES * 2 * SLICE);
    let mine = totals.add(4 * ty * SIDE + 4 * tx);
    let slices = args.k.div_ceil(DEPTH);
    dependency_wait();

    let mut sums: Sums<Fma, 2, 1> = zeros::<Fma, 2, 1>();
    let mut first = true;
    let whole = args.c.unit >= 16 && !Float::<true>::reads(args.beta);
    // SAFETY: `args` says the truth; a place of the ring is asked for again behind a barrier that all readers have reached;
    // totals are the thread's own until the barrier before `write`.
    unsafe {
        // Opaque, because LLVM would copy the first steps out of the loop. Step s asks for slice s and multiplies the one
        // that was asked for `AHEAD` steps before.
        const AHEAD: u32 = RING_STAGES - 1;
        let mut s = opaque(0);
        while s < slices + AHEAD {
            if s >= AHEAD {
                wait_group::<{ RING_STAGES - 2 }>();
                sync_threads();
            }
            let to = smem.add(s % RING_STAGES * 2 * SLICE);
            a.copy(to);
            b.copy(to.add(SLICE));
            commit_group();
            if s >= AHEAD {
                let slice = s - AHEAD;
                let at = smem.add(slice % RING_STAGES * 2 * SLICE);
                let (left, right) = (at.add(4 * ty), at.add(SLICE + 4 * tx));
                let terms = args.k - slice * DEPTH;
                if terms >= DEPTH {
                    let (left, right) = ((left, LD, 4 * TY), (right, LD, 4 * TX));
                    multiply::<Fma, DEPTH, 2, 1>(&mut sums, left, right);
                } else {
                    // Zeros behind the end would make a sum of -0 one of 0.
                    let mut k = opaque(0);
                    while k < terms {
                        let left = (left.add(k * LD), LD, 4 * TY);
                        multiply::<Fma, 1, 2, 1>(&mut sums, left, (right.add(k * LD), LD, 4 * TX));
                        k = opaque(k + 1);
                    }
                }
                if (slice + 1) % (K_CHUNK as u32 / DEPTH) == 0 && slice + 1 < slices {
                    join::<Fma, 2, 1>(&mut sums, mine, SIDE, (4 * TY, 4 * TX), first);
                    first = false;
                }
            }
            s += 1;
        }
        wait_group::<0>();
        // Once more, so that it need not stay in registers meanwhile.
        let (batch, at) = place(opaque(block_idx_x()));
        let shape = (args.m, args.n);
        if first && whole {
            let mine = (at.0 + 4 * ty, at.1 + 4 * tx);
            write_squares::<_, 2, 1>(args, out, batch, mine, shape, (4 * TY, 4 * TX), sums);
            return;
        }
        join::<Fma, 2, 1>(&mut sums, mine, SIDE, (4 * TY, 4 * TX), first);
        sync_threads();
        write(args, out, batch, at, shape, totals, (SIDE, SIDE, SIDE), (t, THREADS));
    }
}
