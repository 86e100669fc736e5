//! Device side of [`contract::w2a8_gemv`]: one lane group per `ROWS` output rows.
//!
//! A group of `LANES` lanes walks its rows together. In one step each lane holds `UNROLL` chunks
//! (16 bytes, 64 codes) of each row, lane `l` the chunks `l, l + LANES, ...`, so a row is read in
//! whole cache lines. Where `PARTS` groups share their rows, they take turns at its lines, and their sums meet in shared memory. All loads of a step are issued before the first is used, those of the first step
//! before the wait for the kernel that makes the activations, and where there are registers for it those of
//! the next step before this one's are used.
//!
//! Codes are decoded by a mask alone: the two bits of a code stay where they are, four
//! accumulators collect what is then 1, 4, 16 and 64 times too large, and the end shifts. A code
//! is `t + 1`; the sum of the activations, which the quantiser left, takes the ones out again.

use contract::launch::Kernel;
use contract::w2a8::{ActStats, CHUNK_GROUP, dequantise};
use contract::w2a8_gemv::Args;

use crate::arch::dot::dp4a_us;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{X4, ld, ld_nc_stream_x4_if, ld_x4_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::warp::group_sum;

/// Weights of one step: `[chunk][row]`.
pub type Step<const ROWS: usize, const UNROLL: usize> = [[X4<u32>; ROWS]; UNROLL];

/// Whether [`dot_piece`] makes its sum anew on GPUs before Volta.
pub const ANEW: bool = cfg!(not(level_sm_70));

/// Adds the products of a chunk's codes and piece `j` of its activations, `4^j` times too large. `ANEW`: to a sum that starts
/// at zero, which is another addition and the same sum. GPUs before Volta have no `dp4a`, or some of them, and `ptxas` then
/// spills what it need not in one way or the other.
#[inline(always)]
pub fn dot_piece<const ANEW: bool>(acc: &mut [i32; 4], chunk: X4<u32>, j: usize, acts: X4<u32>) {
    let mask = 0x0303_0303 << (2 * j);
    let mut sum = if ANEW { 0 } else { acc[j] };
    let mut w = 0;
    while w < 4 {
        sum = dp4a_us(chunk[w] & mask, acts[w], sum);
        w += 1;
    }
    acc[j] = if ANEW { acc[j] + sum } else { sum };
}

/// Issues the loads of the step that starts at chunk `first` of this lane; `LANES` chunks lie between two of them.
///
/// # Safety
///
/// Each of `rows` is the first chunk of a row of `chunks` chunks of the weights.
#[inline(always)]
pub unsafe fn load_step<const LANES: u32, const ROWS: usize, const UNROLL: usize>(
    rows: &[*const X4<u32>; ROWS],
    first: u32,
    chunks: u32,
) -> Step<ROWS, UNROLL> {
    let mut step = [[[0; 4]; ROWS]; UNROLL];
    let mut u = 0;
    while u < UNROLL {
        let chunk = first + u as u32 * LANES;
        let mut r = 0;
        while r < ROWS {
            // SAFETY: w[row, chunk] is read only when chunk < chunks; weights never change.
            step[u][r] =
                unsafe { ld_nc_stream_x4_if(chunk < chunks, rows[r].wrapping_add(chunk as usize)) };
            r += 1;
        }
        u += 1;
    }
    step
}

/// Whether a step of so many rows and chunks asks for the next one before its own are used: where there are
/// registers for both, and the rows are few enough that a lane has long ones. Measured on an H200: 5120x27648
/// 9.8 us for 11.2; steps of four rows, or of one, are no faster for it.
const fn asks_ahead(rows: usize, unroll: usize) -> bool {
    rows == 2 && unroll == 2
}

/// The kernel, for the shapes of lanes, rows and step that the entries name. `STRIDE` chunks lie between two of a lane.
///
/// # Safety
///
/// The pointers of `args` cover the extents of the contract's table for `args.n` rows of
/// `args.chunks` chunks, aligned to 16 bytes, and the block has `THREADS` threads, and a word of shared memory for each row of each
/// group, where there are parts.
#[inline(always)]
unsafe fn gemv<
    const THREADS: u32,
    const LANES: u32,
    const ROWS: usize,
    const UNROLL: usize,
    const PARTS: u32,
    const STRIDE: u32,
    const AHEAD: bool,
>(
    args: &Args,
) {
    const GROUP: u32 = CHUNK_GROUP as u32;
    const { assert!(LANES.is_multiple_of(GROUP) && LANES <= 32 && ROWS <= LANES as usize) };
    const { assert!(STRIDE == LANES * PARTS && THREADS.is_multiple_of(STRIDE)) };

    let (n, chunks) = (args.n, args.chunks);
    let lane = thread_idx_x() % LANES;
    let group = thread_idx_x() / LANES;
    // What this lane has of a row begins with this chunk.
    let own = thread_idx_x() % STRIDE;
    let row0 = (block_idx_x() * (THREADS / STRIDE) + thread_idx_x() / STRIDE) * ROWS as u32;

    // Lanes beyond the last row read it once more: the reduction needs them all.
    let w = args.w.as_ptr().cast::<X4<u32>>().cast_const();
    let mut rows = [w; ROWS];
    let mut r = 0;
    while r < ROWS {
        let row = (row0 + r as u32).min(n - 1);
        rows[r] = w.wrapping_add(row as usize * chunks as usize);
        r += 1;
    }

    // SAFETY: row <= n - 1, so each pointer starts a row of the weights.
    let mut step = unsafe { load_step::<STRIDE, ROWS, UNROLL>(&rows, own, chunks) };
    // So is the scale that the lane's row will need.
    let row = row0 + lane;
    let weight = args.segments.scale_of(row);
    // Blocks of the next kernel that start while this one has much to do take the places of its last
    // blocks, unevenly; there are no such places where a block needs many registers.
    let per_step = UNROLL as u32 * STRIDE;
    if ROWS * UNROLL >= 8 || chunks <= 2 * per_step {
        launch_dependents();
    }
    dependency_wait();

    // acts: piece j of chunk c is 16-byte unit ((c / 8) * 4 + j) * 8 + c % 8.
    let acts = args.acts.as_ptr().cast::<X4<u32>>().cast_const();
    let mut acts = acts.wrapping_add((own / GROUP * 4 * GROUP + own % GROUP) as usize);
    // SAFETY: one element, there by the contract.
    let scale = unsafe { ld(args.stats.as_ptr().cast::<f32>().cast_const()) };
    // SAFETY: the second field of the same element.
    let sum = unsafe { ld(args.stats.as_ptr().cast::<i32>().cast_const().wrapping_add(1)) };

    let mut acc = [[0; 4]; ROWS];
    let mut base = 0;
    loop {
        let mut next = [[[0; 4]; ROWS]; UNROLL];
        if AHEAD && base + per_step < chunks {
            let first = base + per_step + own;
            // SAFETY: as above; the predicate inside covers the end of the row.
            next = unsafe { load_step::<STRIDE, ROWS, UNROLL>(&rows, first, chunks) };
        }
        let mut u = 0;
        while u < UNROLL {
            let chunk = base + own + u as u32 * STRIDE;
            let piece = acts.wrapping_add(u * STRIDE as usize * 4);
            let mut j = 0;
            while j < 4 {
                // SAFETY: chunk < chunks, and a row of activations has whole chunk groups. Beyond
                // them the codes are 0, whatever `q` is.
                let q = unsafe { ld_x4_if(chunk < chunks, piece.wrapping_add(j * GROUP as usize)) };
                let mut r = 0;
                while r < ROWS {
                    dot_piece::<ANEW>(&mut acc[r], step[u][r], j, q);
                    r += 1;
                }
                j += 1;
            }
            u += 1;
        }
        base += per_step;
        if base >= chunks {
            break; // the same for every thread of the grid
        }
        if base + 2 * per_step >= chunks {
            launch_dependents();
        }
        acts = acts.wrapping_add(UNROLL * STRIDE as usize * 4);
        step = if AHEAD {
            next
        } else {
            // SAFETY: as above; the predicate inside covers the end of the row.
            unsafe { load_step::<STRIDE, ROWS, UNROLL>(&rows, base + own, chunks) }
        };
    }

    // After the sums every lane has every row of the group; lane r writes row r.
    let mut total = 0;
    let mut r = 0;
    while r < ROWS {
        let a = acc[r];
        let codes = group_sum::<LANES>(a[0] + (a[1] >> 2) + (a[2] >> 4) + (a[3] >> 6));
        if lane == r as u32 {
            total = codes - sum;
        }
        r += 1;
    }
    if PARTS > 1 {
        // The sum of the activations is in the first part's alone.
        let part = group % PARTS;
        let sums: Shared<i32> = dynamic_shared_mem().add(group * ROWS as u32);
        if part != 0 && lane < ROWS as u32 {
            // SAFETY: the word of this row and group.
            unsafe { sums.add(lane).write(total + sum) };
        }
        sync_threads();
        if part != 0 {
            return;
        }
        let mut other = 1;
        while other < PARTS {
            if lane < ROWS as u32 {
                // SAFETY: the word of this row and another group, written before the barrier.
                total += unsafe { sums.add(other * ROWS as u32 + lane).read() };
            }
            other += 1;
        }
    }
    if lane < ROWS as u32 && row < n {
        let y = dequantise(total, scale, weight);
        // SAFETY: row < n, and each row belongs to one lane of one group.
        unsafe { st(args.y.as_ptr().wrapping_add(row as usize), y) };
    }
}

macro_rules! entries {
    ($($name:ident $symbol:literal $threads:literal $lanes:literal $rows:literal $unroll:literal $parts:literal;)*) => {$(
        const _: () = {
            /// # Safety
            ///
            /// The launch obeys the variant's `SPEC`; the pointers cover the contract's table.
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                // SAFETY: the launch contract, handed on.
                unsafe {
                    gemv::<
                        $threads,
                        $lanes,
                        $rows,
                        $unroll,
                        $parts,
                        { $lanes * $parts },
                        { asks_ahead($rows, $unroll) },
                    >(&args)
                }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::w2a8_gemv::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_w2a8_gemv!(entries);

// `sum` is read as the word after `scale`.
const _: () = assert!(core::mem::offset_of!(ActStats, sum) == 4);
