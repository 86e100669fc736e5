//! `ROWS` output features by `TOKENS` tokens per lane
//! group, dp4a.
//!
//! Reads and decodes as [`crate::w2a8_gemv`] does; each chunk of weights serves all tokens of the
//! block, and the next one is on its way while it does. Lane `t` of a group writes token `t`.

use contract::launch::Kernel;
use contract::w2a8::{CHUNK_GROUP, dequantise};
use contract::w2a8_gemm::{Args, GRID_Y, LANES, ROWS, ROWS_PER_BLOCK, TOKENS, W2a8Gemm};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{X4, ld, ld_x4, st};
use crate::arch::thread::{block_idx_x, block_idx_y, block_idx_z, thread_idx_x};
use crate::arch::warp::group_sum;
use crate::w2a8_gemv::{ANEW, dot_piece, load_step};

const _: () = assert!(LANES == CHUNK_GROUP as u32 && TOKENS <= LANES);

/// # Safety
///
/// The launch obeys `W2a8Gemm::SPEC` with the contract's grid; the pointers of `args` cover the
/// contract's table, `w` and `acts` aligned to 16 bytes.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn w2a8_gemm(args: Args) {
    const R: usize = ROWS as usize;
    const T: usize = TOKENS as usize;
    let (n, m, chunks) = (args.n, args.m, args.chunks);
    let lane = thread_idx_x() % LANES;
    let block = block_idx_z() * GRID_Y + block_idx_y();
    let row0 = block * ROWS_PER_BLOCK + thread_idx_x() / LANES * ROWS;
    let token0 = block_idx_x() * TOKENS;

    // What lies beyond the last row or token reads the last one again and is not written.
    let w = args.w.as_ptr().cast::<X4<u32>>().cast_const();
    let mut rows = [w; R];
    let mut r = 0;
    while r < R {
        let row = (row0 + r as u32).min(n - 1);
        rows[r] = w.wrapping_add(row as usize * chunks as usize);
        r += 1;
    }
    // SAFETY: each pointer starts a row of the weights.
    let mut step = unsafe { load_step::<LANES, R, 1>(&rows, lane, chunks) };
    launch_dependents();
    dependency_wait();

    let acts = args.acts.as_ptr().cast::<X4<u32>>().cast_const();
    let mut pieces = [acts; T]; // acts[token], piece 0 of chunk `lane`
    let mut t = 0;
    while t < T {
        let token = (token0 + t as u32).min(m - 1);
        let at = token as usize * args.act_pieces as usize + lane as usize;
        pieces[t] = acts.wrapping_add(at);
        t += 1;
    }

    let mut acc = [[[0; 4]; R]; T];
    let mut base = 0;
    while base < chunks {
        // SAFETY: as above; the predicate inside covers the end of the row.
        let next = unsafe { load_step::<LANES, R, 1>(&rows, base + LANES + lane, chunks) };
        let mut t = 0;
        while t < T && base + lane < chunks {
            let mut j = 0;
            while j < 4 {
                let piece = pieces[t].wrapping_add(base as usize * 4 + j * CHUNK_GROUP);
                // SAFETY: chunk base + lane < chunks of a row that has whole chunk groups.
                let q = unsafe { ld_x4(piece) };
                let mut r = 0;
                while r < R {
                    dot_piece::<ANEW>(&mut acc[t][r], step[0][r], j, q);
                    r += 1;
                }
                j += 1;
            }
            t += 1;
        }
        step = next;
        base += LANES;
    }

    let mut totals = [0; R];
    let mut t = 0;
    while t < T {
        let mut r = 0;
        while r < R {
            let a = acc[t][r];
            let codes = group_sum::<LANES>(a[0] + (a[1] >> 2) + (a[2] >> 4) + (a[3] >> 6));
            totals[r] = if lane == t as u32 { codes } else { totals[r] };
            r += 1;
        }
        t += 1;
    }
    let token = token0 + lane;
    if lane < TOKENS && token < m {
        let stats = args.stats.cast::<u32>().as_ptr().cast_const();
        let stats = stats.wrapping_add(2 * token as usize);
        // SAFETY: stats[token]: the scale, then the sum.
        let (scale, sum) = unsafe { (f32::from_bits(ld(stats)), ld(stats.wrapping_add(1)) as i32) };
        let mut r = 0;
        while r < R {
            let row = row0 + r as u32;
            if row < n {
                let y = dequantise(totals[r] - sum, scale, args.segments.scale_of(row));
                let at = token as usize * n as usize + row as usize;
                // SAFETY: y[token, row] belongs to this lane.
                unsafe { st(args.y.as_ptr().wrapping_add(at), y) };
            }
            r += 1;
        }
    }
}

const _: unsafe extern "ptx-kernel" fn(<W2a8Gemm as Kernel>::Args) = w2a8_gemm;
