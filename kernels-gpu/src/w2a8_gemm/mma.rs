//! The kernels on `mma.sync`: codes as the left factor, 16 features; activations as the right one, 8
//! tokens; both through a ring of slices in shared memory, filled by `cp.async`.
//!
//! A lane takes whole chunks, as in [`crate::w2a8_gemv`]: lane `(g, t)` the chunk `t` of four
//! neighbours, of features `g` and `g + 8` and of token `g`. Bit lane `j` of word `i` are four codes,
//! and word `i` of piece `j` their activations; which terms of k meet in one product is the same on
//! both sides, and their order does not matter to a sum of integers. So nothing is moved between
//! lanes: for a piece, the four words of a chunk are shifted and masked, two products of depth 32.
//!
//! The warps of a block stand side by side over features and over halves of groups of chunks. Their
//! sums meet in shared memory at the end.

use contract::launch::Kernel;
use contract::w2a8_gemm::{Args, GROUP_BYTES, Mma, SUM_PAD, head_bytes};

use super::tile::{CODES, Tile};
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mma::mma_u8_s8;
use crate::arch::shared::dynamic_shared_mem;
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};

/// Bytes of 16-byte piece `piece` of row `row`, in rows of `width` bytes. Eight lanes read four
/// neighbours in each of two rows; the two halves of a line trade places in odd rows.
#[inline(always)]
const fn place(row: u32, piece: u32, width: u32) -> u32 {
    row * width + ((piece ^ (row % 2 * 4)) * 16)
}

/// Sums that a warp keeps of each output, so that no product waits for the one before it: each has
/// `blocks` others to run beside.
const fn chains(blocks: usize) -> usize {
    match blocks {
        1 => 4,
        2 | 3 => 2,
        _ => 1,
    }
}

/// The kernel, for the numbers of [`Mma`].
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its variant; the contract's table holds.
#[inline(always)]
unsafe fn gemm<
    const ROW_BLOCKS: usize,
    const TOKEN_BLOCKS: usize,
    const ROWS: u32,
    const TOKENS: u32,
    const K_WARPS: u32,
    const GROUPS: u32,
    const STAGES: u32,
    const SPLIT: u32,
    const THREADS: u32,
    const CODE_WIDTH: u32,
    const ACT_WIDTH: u32,
    const CHAINS: usize,
>(
    args: &Args,
) {
    const {
        assert!((2 * GROUPS).is_multiple_of(K_WARPS) && (STAGES == 3 || STAGES == 4));
        assert!(CODE_WIDTH == 8 * GROUPS && ACT_WIDTH == 32 * GROUPS);
        assert!((THREADS / ACT_WIDTH).is_multiple_of(2));
    };
    if args.lets_in != 0 {
        // A kernel that has much to ask for before its own wait, and places enough.
        launch_dependents();
    }
    let width = GROUP_BYTES * GROUPS;
    let slice_bytes = (ROWS + 4 * TOKENS) * width;
    let (lane, warp) = (lane_id(), warp_id());
    let (g, t) = (lane / 4, lane % 4);
    let (row_warp, k_warp) = (warp / K_WARPS, warp % K_WARPS);
    let tile = Tile::<ROWS, TOKENS>::new(args, SPLIT);
    let head = dynamic_shared_mem::<u8>();
    let ring = head.add(head_bytes(ROWS, TOKENS));
    let slices = tile.chunks.div_ceil(CODE_WIDTH);

    let lines = tile.codes::<CODE_WIDTH, THREADS>(args, thread_idx_x());
    let at = place(lines.line, lines.piece, width);
    let codes = |s: u32| {
        let to = ring.add(s % STAGES * slice_bytes + at);
        // SAFETY: slice s of the ring, which nobody reads now; the contract's table.
        unsafe { lines.copy(s * CODE_WIDTH, to, width) };
    };
    let lines = tile.acts::<ACT_WIDTH, THREADS>(args, thread_idx_x());
    let at = place(lines.line, lines.piece, 4 * width);
    let acts = |s: u32| {
        let to = ring.add(s % STAGES * slice_bytes + ROWS * width + at);
        // SAFETY: as above.
        unsafe { lines.copy(s * ACT_WIDTH, to, 4 * width) };
    };

    // Codes never change: they are asked for before the kernel in front of this one has ended.
    let start = opaque(0);
    let mut s = start;
    while s < STAGES - 1 {
        codes(s);
        s += 1;
    }
    // SAFETY: the head stands before the ring.
    unsafe { tile.scales::<THREADS>(args, head) };
    dependency_wait();
    // SAFETY: as above.
    unsafe { tile.begin::<THREADS>(args, head) };
    let mut s = 0;
    while s < STAGES - 1 {
        acts(s);
        commit_group();
        s += 1;
    }

    let mut sums = [[[[0; 4]; TOKEN_BLOCKS]; ROW_BLOCKS]; CHAINS];
    let mut s = start;
    while s < slices {
        if STAGES == 4 {
            wait_group::<2>()
        } else {
            wait_group::<1>()
        }
        // Shows slice s, and that nobody reads slice s - 1 any more.
        sync_threads();
        let next = s + STAGES - 1;
        if next < slices {
            codes(next);
            acts(next);
        } else {
            // Not earlier: blocks of the next kernel would take the places of this one's unevenly.
            launch_dependents();
        }
        commit_group();

        let here = ring.add(s % STAGES * slice_bytes);
        let there = here.add(ROWS * width);
        let mut half = 0;
        while half < 2 * GROUPS / K_WARPS {
            let h = half * K_WARPS + k_warp;
            let mut w = [[[0u32; 4]; 2]; ROW_BLOCKS]; // w[block][which 8 rows][word]
            let mut r = 0;
            while r < 2 * ROW_BLOCKS {
                let row = (row_warp * 2 * ROW_BLOCKS as u32 + r as u32) * 8 + g;
                // SAFETY: a piece of slice s.
                w[r / 2][r % 2] =
                    unsafe { here.add(place(row, 4 * h + t, width)).cast::<u32>().read_x4() };
                r += 1;
            }
            let mut j = 0;
            while j < 4 {
                let piece = h / 2 * 32 + j as u32 * 8 + h % 2 * 4 + t;
                let mut q = [[0u32; 4]; TOKEN_BLOCKS];
                let mut b = 0;
                while b < TOKEN_BLOCKS {
                    let at = place(8 * b as u32 + g, piece, 4 * width);
                    // SAFETY: as above.
                    q[b] = unsafe { there.add(at).cast::<u32>().read_x4() };
                    b += 1;
                }
                let mut r = 0;
                while r < ROW_BLOCKS {
                    let codes = |below: usize, word: usize| (w[r][below][word] >> (2 * j)) & CODES;
                    let mut pair = 0;
                    while pair < 2 {
                        let [x, y] = [2 * pair, 2 * pair + 1];
                        let a = [codes(0, x), codes(1, x), codes(0, y), codes(1, y)];
                        let mut b = 0;
                        while b < TOKEN_BLOCKS {
                            let q = [q[b][x], q[b][y]];
                            let sum = &mut sums[(2 * j + pair) % CHAINS][r][b];
                            *sum = mma_u8_s8(a, q, *sum);
                            b += 1;
                        }
                        pair += 1;
                    }
                    r += 1;
                }
                j += 1;
            }
            half += 1;
        }
        s += 1;
    }

    wait_group::<0>();
    // SAFETY: the head came with the first slice.
    unsafe { tile.divisors::<THREADS>(head) };
    // Everybody is done with the slices; also with what was asked for and is not there.
    sync_threads();
    let parked = ring.cast::<i32>();
    let mut r = 0;
    while r < ROW_BLOCKS {
        let row = (row_warp * ROW_BLOCKS as u32 + r as u32) * 16 + g;
        let mut b = 0;
        while b < TOKEN_BLOCKS {
            let mut i = 0;
            while i < 4 {
                let token = 8 * b as u32 + 2 * t + i as u32 % 2;
                let at = (k_warp * TOKENS + token) * (ROWS + SUM_PAD) + row + 8 * (i as u32 / 2);
                let mut sum = 0;
                let mut chain = 0;
                while chain < CHAINS {
                    sum += sums[chain][r][b][i];
                    chain += 1;
                }
                // SAFETY: this lane's own sum.
                unsafe { parked.add(at).write(sum) };
                i += 1;
            }
            b += 1;
        }
        r += 1;
    }
    if SPLIT == 1 {
        sync_threads();
    }
    // SAFETY: head and sums are written.
    unsafe { tile.finish::<K_WARPS, THREADS>(args, head, parked) };
}

macro_rules! entries {
    ($($name:ident $symbol:literal [$rows:literal, $tokens:literal, $row_warps:literal, $k_warps:literal, $groups:literal, $stages:literal, $split:literal];)*) => {$(
        const _: () = {
            const CUT: Mma =
                Mma::new([$rows, $tokens, $row_warps, $k_warps, $groups, $stages, $split]);

            /// # Safety
            ///
            /// As for [`gemm`].
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                // SAFETY: the launch contract, handed on.
                unsafe {
                    gemm::<
                        $rows,
                        $tokens,
                        { CUT.rows() },
                        { CUT.tokens() },
                        $k_warps,
                        $groups,
                        $stages,
                        $split,
                        { CUT.threads() },
                        { 8 * $groups },
                        { 32 * $groups },
                        { chains($rows * $tokens) },
                    >(&args)
                }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::w2a8_gemm::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_w2a8_gemm_mma!(entries);
#[cfg(level_sm_90)]
contract::for_each_w2a8_gemm_split!(entries);
