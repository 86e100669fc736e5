//! The kernels on `wgmma` for few tokens, where reading operands counts for more than multiplying.
//!
//! Unlike in [`super::hopper`], a lane takes whole chunks, as in [`super::mma`]: lane `t` the chunk `t`
//! of four neighbours. Its words are its alone, a fourth of the reads of codes. The activations must
//! then stand word by word: in shared memory 16 bytes hold word `i` of piece `j` of four neighbouring
//! chunks. They come through registers, which transposes 4 by 4 words by their names: a thread reads
//! 64 bytes, a piece of four chunks, and writes four times 16.
//!
//! A group of chunks is two steps of two slices; warpgroup `h` over k has pieces `2 h` and `2 h + 1`.
//! Activations are read three steps before they are multiplied, in two sets of registers; codes come
//! by `cp.async`, several groups before.

use contract::launch::Kernel;
use contract::w2a8_gemm::{Args, GROUP_BYTES, SUM_PAD, Skinny, head_bytes};

use super::tile::{CODES, Tile};
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::mem::{X4, ld_x4_if};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::{self, swizzle};
use crate::tile::hopper::{begin, each_group};

use super::hopper::{Left, products};

/// Slices of a step.
const K_GROUPS: u32 = 2;
/// Slots of the ring of activations.
const SLOTS: u32 = 3;

/// Where chunk `chunk` of row `row` stands in a group of codes.
#[inline(always)]
const fn place(row: u32, chunk: u32) -> u32 {
    row * GROUP_BYTES + ((chunk ^ (row % 2 * 4)) * 16)
}

/// What a thread carries of a step's activations: for each of its units of 64 bytes, a piece of four
/// chunks.
type Units<const COUNT: usize> = [[X4<u32>; 4]; COUNT];

/// The left factor of a slice from the lane's words of it: `[chunk t or t + 4][row g or g + 8]`.
#[inline(always)]
fn decode(words: [[u32; 2]; 2]) -> Left {
    let mut left = [[0; 4]; 4];
    let mut i = 0;
    while i < 4 {
        let [low, high] = words[i / 2];
        let (low, high) = (low >> (4 * (i % 2)), high >> (4 * (i % 2)));
        left[i] = [low & CODES, high & CODES, (low >> 2) & CODES, (high >> 2) & CODES];
        i += 1;
    }
    left
}

/// The kernel, for the numbers of [`Skinny`].
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its variant; the contract's table holds.
#[inline(always)]
unsafe fn gemm<
    const ROWS: u32,
    const TOKENS: u32,
    const CODES_AHEAD: u32,
    const SPLIT: u32,
    const THREADS: u32,
    const COUNT: usize,
>(
    args: &Args,
) {
    const { assert!(THREADS == 128 * K_GROUPS * (ROWS / 64) && CODES_AHEAD >= 2) };
    begin::<TOKENS>();
    let slice_bytes = TOKENS * GROUP_BYTES;
    let tile = Tile::<ROWS, TOKENS, SPLIT>::new(args);
    let (group, lane) = (warp_id() / 4, lane_id());
    let (row_group, k_group) = (group / K_GROUPS, group % K_GROUPS);
    let (g, t) = (lane / 4, lane % 4);

    let head = dynamic_shared_mem::<u8>();
    let ring = head.add(head_bytes(ROWS, TOKENS));
    let ring = ring.add(ring.addr().wrapping_neg() % 1024);
    let code_ring = ring.add(SLOTS * K_GROUPS * slice_bytes);
    let groups = tile.chunks.div_ceil(8);
    let steps = 2 * groups;

    let lines = tile.codes::<8, THREADS>(args);
    let at = place(lines.line, lines.piece);
    let codes = |group: u32| {
        if group < groups {
            let to = code_ring.add(group % (CODES_AHEAD + 1) * ROWS * GROUP_BYTES + at);
            // SAFETY: a group of the ring, which nobody reads now; the contract's table.
            unsafe { lines.copy(group * 8, to, GROUP_BYTES) };
        }
        commit_group();
    };

    // Unit `index` of a step: half of slice `index / 2 % 2` of token `index / 4`.
    let acts = args.acts.as_ptr().cast::<X4<u32>>().cast_const();
    let (half, slice) = (thread_idx_x() % 2, thread_idx_x() / 2 % 2);
    let first_token = thread_idx_x() / 4;
    let first = tile.act(args, first_token) + u64::from(16 * slice + 4 * half);
    let acts = acts.wrapping_add(first as usize);
    let next_token = u64::from(THREADS / 4) * u64::from(args.act_pieces);
    let read = |s: u32| -> Units<COUNT> {
        let mut units = [[[0; 4]; 4]; COUNT];
        let at = (s / 2 * 32 + s % 2 * 8) as usize;
        let mut u = 0;
        while u < COUNT {
            let token = first_token + u as u32 * (THREADS / 4);
            let there = s < steps && token < TOKENS && tile.has_token(args, token);
            let p = acts.wrapping_add((u as u64 * next_token) as usize + at);
            let mut c = 0;
            while c < 4 {
                // SAFETY: a chunk's piece of this token, which has whole groups.
                units[u][c] = unsafe { ld_x4_if(there, p.wrapping_add(c)) };
                c += 1;
            }
            u += 1;
        }
        units
    };
    let write = |s: u32, units: Units<COUNT>| {
        let to = ring.add((s % SLOTS * K_GROUPS + slice) * slice_bytes);
        let mut u = 0;
        while u < COUNT {
            let token = first_token + u as u32 * (THREADS / 4);
            if TOKENS.is_multiple_of(THREADS / 4) || token < TOKENS {
                let [a, b, c, d] = units[u];
                let mut i = 0;
                while i < 4 {
                    // Piece 4 half + i, swizzled: the numbers below 4 are in its low bits alone.
                    let at = to.add(swizzle(token, 4 * half) ^ (16 * i as u32)).cast::<u32>();
                    // SAFETY: this thread's pieces of a slot that no product reads now.
                    unsafe { at.write_x4([a[i], b[i], c[i], d[i]]) };
                    i += 1;
                }
            }
            u += 1;
        }
    };
    // The lane's words of the two slices of a group: `[slice][chunk][row]`.
    let row = 64 * row_group + 16 * (warp_id() % 4) + g;
    let mine = place(row, t) + 8 * k_group;
    let words = |group: u32| -> [[[u32; 2]; 2]; 2] {
        let group = code_ring.add(group % (CODES_AHEAD + 1) * ROWS * GROUP_BYTES);
        let mut words = [[[0; 2]; 2]; 2];
        let mut c = 0;
        while c < 2 {
            let mut r = 0;
            while r < 2 {
                let at = (mine ^ (64 * c)) + 8 * GROUP_BYTES * r;
                // SAFETY: words of a group that a barrier has shown.
                let pair = unsafe { group.add(at).cast::<u64>().read_u64() };
                words[0][c as usize][r as usize] = pair as u32;
                words[1][c as usize][r as usize] = (pair >> 32) as u32;
                r += 1;
            }
            c += 1;
        }
        words
    };
    let right = |s: u32| -> Shared<u8> { ring.add((s % SLOTS * K_GROUPS + k_group) * slice_bytes) };

    // Codes never change: they are asked for before the kernel in front of this one has ended.
    let mut group = 0;
    while group < CODES_AHEAD {
        codes(group);
        group += 1;
    }
    launch_dependents();
    dependency_wait();
    let now = read(0);
    let mut odd = read(1);
    // SAFETY: the head stands before the ring.
    unsafe { tile.begin::<THREADS>(args, head) };
    commit_group();
    write(0, now);
    let mut even = read(2);

    // The start is opaque, because LLVM would copy the first steps out of the loop.
    let mut s = opaque(0);
    while s < steps {
        // Shows slice s, the codes of its group, and that the products of s - 2 are done everywhere.
        // Behind the codes that are needed: CODES_AHEAD - 1 groups, and the head, which came later
        // than all but what the loop has asked for.
        match CODES_AHEAD {
            2 => wait_group::<1>(),
            3 => wait_group::<2>(),
            4 => wait_group::<3>(),
            5 => wait_group::<4>(),
            _ => wait_group::<5>(),
        }
        wgmma::proxy_fence();
        sync_threads();
        let of_group = words(s / 2);
        let left = decode(of_group[0]);
        // SAFETY: the slice is shown.
        unsafe { products::<TOKENS>(left, right(s)) };
        write(s + 1, odd);
        odd = read(s + 3);
        codes(s / 2 + CODES_AHEAD);
        let left = decode(of_group[1]);
        wgmma::wait::<1>();
        wgmma::proxy_fence();
        sync_threads();
        // SAFETY: as above.
        unsafe { products::<TOKENS>(left, right(s + 1)) };
        write(s + 2, even);
        even = read(s + 4);
        wgmma::wait::<1>();
        s += 2;
    }
    wgmma::wait::<0>();
    wait_group::<0>();
    sync_threads();
    // SAFETY: the head was waited for.
    unsafe { tile.divisors::<THREADS>(head) };

    let parked = ring.cast::<i32>();
    let mine = parked.add((k_group * TOKENS + 2 * t) * (ROWS + SUM_PAD) + row);
    each_group!(TOKENS, J => {
        let sums = wgmma::read::<J>();
        let mut i = 0;
        while i < 8 {
            let (token, row) = (16 * J + 8 * (i as u32 / 4) + i as u32 % 2, 8 * (i as u32 / 2 % 2));
            let at = mine.add(token * (ROWS + SUM_PAD) + row);
            // SAFETY: this lane's own sum.
            unsafe { at.write(sums[i].to_bits() as i32) };
            i += 1;
        }
    });
    // SAFETY: head and sums are written.
    unsafe { tile.finish::<K_GROUPS, THREADS>(args, head, parked) };
}

macro_rules! entries {
    ($($name:ident $symbol:literal [$row_groups:literal, $tokens:literal, $codes:literal, $split:literal];)*) => {$(
        const _: () = {
            const CUT: Skinny = Skinny::new([$row_groups, $tokens, $codes, $split]);

            /// # Safety
            ///
            /// As for [`gemm`].
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                // SAFETY: the launch contract, handed on.
                unsafe {
                    gemm::<
                        { CUT.rows() },
                        $tokens,
                        $codes,
                        $split,
                        { CUT.threads() },
                        { (4 * $tokens as usize).div_ceil(CUT.threads() as usize) },
                    >(&args)
                }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::w2a8_gemm::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_w2a8_gemm_skinny!(entries);
