//! Device side of [`contract::w2a8_trits`]: as [`crate::w2a8_gemv`], on vectors of 80 codes.
//!
//! A vector becomes five words of 2-bit codes by logic on whole words, eight tenths of an operation for each
//! weight with the product; each word meets its own piece of activations.

use contract::launch::Kernel;
use contract::w2a8::{CHUNK_GROUP, dequantise, turn};
use contract::w2a8_trits::{Args, THREADS, UNPACKED, UnpackArgs, W2a8TritsUnpack, unpack};

use crate::arch::dot::dp4a_us;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{X4, ld, ld_nc_stream_x4_if, ld_x4_if, st, st_x4};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::warp::group_sum;
use crate::w2a8_gemv::load_step;

/// Adds the products of sixteen neighbours and their activations, scaled per accumulator.
#[inline(always)]
fn dot16(acc: &mut [i32; 4], word: u32, acts: X4<u32>) {
    acc[0] = dp4a_us(word & 0x0303_0303, acts[0], acc[0]);
    acc[1] = dp4a_us(word & 0x0c0c_0c0c, acts[1], acc[1]);
    acc[2] = dp4a_us(word & 0x3030_3030, acts[2], acc[2]);
    acc[3] = dp4a_us(word & 0xc0c0_c0c0, acts[3], acc[3]);
}

/// The kernel, for the shapes of lanes, rows and step that the entries name.
///
/// # Safety
///
/// The pointers of `args` cover the extents of the contract's table for `args.n` rows of `args.vectors` vectors and
/// `args.pieces` pieces, aligned to 16 bytes, and the block has `THREADS` threads.
#[inline(always)]
unsafe fn gemv<const LANES: u32, const ROWS: usize, const UNROLL: usize>(args: &Args) {
    const { assert!(LANES <= 32 && ROWS <= LANES as usize) };
    const LAST: usize = UNPACKED - 1;

    let (n, vectors) = (args.n, args.vectors);
    let lane = thread_idx_x() % LANES;
    let row0 = (block_idx_x() * (THREADS / LANES) + thread_idx_x() / LANES) * ROWS as u32;

    // Lanes beyond the last row read it once more: the reduction needs them all.
    let w = args.w.as_ptr().cast::<X4<u32>>().cast_const();
    let mut rows = [w; ROWS];
    let mut r = 0;
    while r < ROWS {
        let row = (row0 + r as u32).min(n - 1);
        rows[r] = w.wrapping_add(row as usize * vectors as usize);
        r += 1;
    }

    // SAFETY: row <= n - 1, so each pointer starts a row of the weights.
    let mut step = unsafe { load_step::<LANES, ROWS, UNROLL>(&rows, lane, vectors) };
    // As in `w2a8_gemv`.
    let per_step = UNROLL as u32 * LANES;
    if ROWS * UNROLL >= 8 || vectors <= 2 * per_step {
        launch_dependents();
    }
    dependency_wait();

    let acts = args.acts.as_ptr().cast::<X4<u32>>().cast_const();
    let mut acts = acts.wrapping_add(lane as usize);
    let last = args.pieces - LAST as u32 * vectors;
    // SAFETY: one element, there by the contract.
    let scale = unsafe { ld(args.stats.as_ptr().cast::<f32>().cast_const()) };
    // SAFETY: the second field of the same element.
    let sum = unsafe { ld(args.stats.as_ptr().cast::<i32>().cast_const().wrapping_add(1)) };

    let mut acc = [[0; 4]; ROWS];
    let mut base = 0;
    loop {
        let mut u = 0;
        while u < UNROLL {
            let vector = base + lane + u as u32 * LANES;
            let mut q = [[0; 4]; UNPACKED];
            let mut d = 0;
            while d < UNPACKED {
                let piece = acts.wrapping_add(u * LANES as usize + d * vectors as usize);
                let there = vector < if d == LAST { last } else { vectors };
                // SAFETY: piece d * vectors + vector < pieces. Where there is none the codes are 0, whatever `q` is.
                q[d] = unsafe { ld_x4_if(there, piece) };
                d += 1;
            }
            let mut r = 0;
            while r < ROWS {
                let words = unpack(step[u][r]);
                let mut d = 0;
                while d < UNPACKED {
                    dot16(&mut acc[r], words[d], q[d]);
                    d += 1;
                }
                r += 1;
            }
            u += 1;
        }
        base += per_step;
        if base >= vectors {
            break; // the same for every thread of the grid
        }
        if base + 2 * per_step >= vectors {
            launch_dependents();
        }
        acts = acts.wrapping_add(per_step as usize);
        // SAFETY: as above; the predicate inside covers the end of the row.
        step = unsafe { load_step::<LANES, ROWS, UNROLL>(&rows, base + lane, vectors) };
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
    let row = row0 + lane;
    if lane < ROWS as u32 && row < n {
        let y = dequantise(total, scale, args.segments.scale_of(row));
        // SAFETY: row < n, and each row belongs to one lane of one group.
        unsafe { st(args.y.as_ptr().wrapping_add(row as usize), y) };
    }
}

macro_rules! entries {
    ($($name:ident $symbol:literal $lanes:literal $rows:literal $unroll:literal;)*) => {$(
        const _: () = {
            /// # Safety
            ///
            /// The launch obeys the variant's `SPEC`; the pointers cover the contract's table.
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                // SAFETY: the launch contract, handed on.
                unsafe { gemv::<$lanes, $rows, $unroll>(&args) }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::w2a8_trits::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_w2a8_trits!(entries);

/// # Safety
///
/// The launch obeys `W2a8TritsUnpack::SPEC` with the contract's grid; the pointers of `args` cover `n` rows of
/// `vectors` vectors and of `words` words.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn w2a8_trits_unpack(args: UnpackArgs) {
    let row = block_idx_x() * (THREADS / 32) + thread_idx_x() / 32;
    launch_dependents();
    // The kernel in front may still read what is overwritten here.
    dependency_wait();
    if row >= args.n {
        return;
    }
    const GROUP: u32 = CHUNK_GROUP as u32;
    let from = args.w.as_ptr().cast::<X4<u32>>().cast_const();
    let from = from.wrapping_add(row as usize * args.vectors as usize);
    let to = args.out.as_ptr().cast::<X4<u32>>();
    let to = to.wrapping_add(row as usize * (args.words / 4) as usize);
    let mut chunk = thread_idx_x() % 32;
    while chunk < args.words / 4 {
        let mut words = [0; 4];
        let mut j = 0;
        while j < 4 {
            let mut vector = (chunk / GROUP * 4 + j as u32) * GROUP + chunk % GROUP;
            let mut d = 0;
            while vector >= args.vectors {
                vector -= args.vectors;
                d += 1;
            }
            // SAFETY: a vector of this row, which has every piece of every chunk; weights never change.
            let five =
                unpack(unsafe { ld_nc_stream_x4_if(true, from.wrapping_add(vector as usize)) });
            let mut other = 0;
            while other < UNPACKED {
                words[j] = if other == d { five[other] } else { words[j] };
                other += 1;
            }
            j += 1;
        }
        // SAFETY: a chunk of this row, which no other thread writes.
        unsafe { st_x4(to.wrapping_add(chunk as usize), turn(words)) };
        chunk += 32;
    }
}

const _: unsafe extern "ptx-kernel" fn(<W2a8TritsUnpack as Kernel>::Args) = w2a8_trits_unpack;
