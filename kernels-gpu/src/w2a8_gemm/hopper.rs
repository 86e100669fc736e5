//! The kernels on `wgmma`: codes as the left factor, decoded in registers; activations as the right
//! one, straight from shared memory.
//!
//! A slice is piece `j` of the eight chunks of a group: 128 bytes of each token that lie together in
//! global memory and become one swizzled row. Its codes are word `j` of those chunks. In a product
//! of depth 32 lane `t` gives codes `4 t` to `4 t + 3` of a word, which are its bit lane `t`: every
//! lane reads the same words, shifts by its own distance and masks, two instructions for four codes.
//!
//! Codes stand in a ring of whole groups (four slices), activations in a ring of slices. At step `s`
//! a warpgroup issues the products of slice `s`, waits for those of slice `s - 1`, and decodes the
//! codes of slice `s + 1` while its products run. Steps come in pairs, so that no register that a
//! running product reads is copied.

use contract::launch::Kernel;
use contract::w2a8_gemm::{Args, GROUP_BYTES, Hopper, SUM_PAD, head_bytes};

use super::tile::{CODES, Tile};
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::opaque;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::sync_threads;
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::{self, Descriptor, swizzle};
use crate::tile::hopper::{begin, each_group};

/// The left factor of a slice: four products of depth 32.
type Left = [[u32; 4]; 4];

/// The codes of a lane for one slice. `rows` starts the lane's row `g` in its group of chunks, `word`
/// the slice's place in a chunk.
///
/// # Safety
///
/// The group of the block's 64 rows is in shared memory, shown by a barrier.
#[inline(always)]
unsafe fn decode(rows: Shared<u8>, word: u32) -> Left {
    let (g, t) = (lane_id() / 4, lane_id() % 4);
    let mut left = [[0; 4]; 4];
    let mut chunk = 0;
    while chunk < 8 {
        let at = rows.add((chunk ^ g) * 16 + word * 4).cast::<u32>();
        // SAFETY: word `word` of a chunk, of rows g and g + 8.
        let (low, high) = unsafe { (at.read(), at.add(8 * GROUP_BYTES / 4).read()) };
        let (product, side) = (chunk as usize / 2, chunk as usize % 2 * 2);
        left[product][side] = (low >> (2 * t)) & CODES;
        left[product][side + 1] = (high >> (2 * t)) & CODES;
        chunk += 1;
    }
    left
}

/// Issues the products of a slice.
///
/// # Safety
///
/// `right` starts the activations of the slice, shown to the async proxy and by a barrier.
#[inline(always)]
unsafe fn products<const TOKENS: u32>(left: Left, right: Shared<u8>) {
    let b = Descriptor::new(right, 0, wgmma::ATOM_BYTES);
    wgmma::fence();
    let mut i = 0;
    while i < 4 {
        let b = b.advance(32 * i as u32);
        // SAFETY: the caller's promise.
        unsafe {
            match TOKENS {
                64 => wgmma::i8_n64(left[i], b),
                128 => wgmma::i8_n128(left[i], b),
                _ => wgmma::i8_n256(left[i], b),
            }
        }
        i += 1;
    }
    wgmma::commit();
}

/// Waits until at most the `N` newest groups of copies are under way.
#[inline(always)]
fn wait_for<const N: u32>() {
    match N {
        1 => wait_group::<1>(),
        2 => wait_group::<2>(),
        3 => wait_group::<3>(),
        4 => wait_group::<4>(),
        5 => wait_group::<5>(),
        _ => wait_group::<6>(),
    }
}

/// Shows the block and the products the oldest of `AHEAD` groups of copies.
///
/// *Convergence*: every thread of the block.
#[inline(always)]
fn arrive<const AHEAD: u32>() {
    match AHEAD {
        2 => wait_group::<1>(),
        3 => wait_group::<2>(),
        4 => wait_group::<3>(),
        5 => wait_group::<4>(),
        _ => wait_group::<5>(),
    }
    wgmma::proxy_fence();
    sync_threads();
}

/// The kernel, for the numbers of [`Hopper`].
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its variant; the contract's table holds.
#[inline(always)]
unsafe fn gemm<
    const ROWS: u32,
    const K_GROUPS: u32,
    const TOKENS: u32,
    const AHEAD: u32,
    const CODES_AHEAD: u32,
    const SPLIT: u32,
    const THREADS: u32,
>(
    args: &Args,
) {
    const { assert!((K_GROUPS == 1 || K_GROUPS == 2) && AHEAD >= 2 && AHEAD <= 6) };
    begin::<TOKENS>();
    let slice_bytes = K_GROUPS * TOKENS * GROUP_BYTES;
    let steps_per_group = 4 / K_GROUPS;
    let stages = AHEAD + 2;
    let tile = Tile::<ROWS, TOKENS, SPLIT>::new(args);
    let (group, lane) = (warp_id() / 4, lane_id());
    let (row_group, k_group) = (group / K_GROUPS, group % K_GROUPS);

    let head = dynamic_shared_mem::<u8>();
    let ring = head.add(head_bytes(ROWS, TOKENS));
    let ring = ring.add(ring.addr().wrapping_neg() % 1024);
    let code_ring = ring.add(stages * slice_bytes);
    let groups = tile.chunks.div_ceil(8);
    let steps = groups * steps_per_group;

    let lines = tile.codes::<8, THREADS>(args);
    let at = swizzle(lines.line, lines.piece);
    let codes = |group: u32| {
        let to = code_ring.add(group % (CODES_AHEAD + 1) * ROWS * GROUP_BYTES + at);
        // SAFETY: a group of the ring, which nobody reads now; the contract's table.
        unsafe { lines.copy(group * 8, to, GROUP_BYTES) };
    };
    let lines = tile.acts::<8, THREADS>(args);
    let at = swizzle(lines.line, lines.piece);
    let acts = |s: u32| {
        let to = ring.add(s % stages * slice_bytes + at);
        let mut i = 0;
        while i < K_GROUPS {
            let to = to.add(i * TOKENS * GROUP_BYTES);
            // SAFETY: as above, a slice.
            unsafe { lines.copy((s * K_GROUPS + i) * 8, to, GROUP_BYTES) };
            i += 1;
        }
    };
    let row = 64 * row_group + 16 * (warp_id() % 4) + lane / 4;
    let left = |s: u32| {
        let rows = code_ring.add(s / steps_per_group % (CODES_AHEAD + 1) * ROWS * GROUP_BYTES);
        let word = s % steps_per_group * K_GROUPS + k_group;
        // SAFETY: a barrier has shown the group of step s; beyond the last step it is not used.
        unsafe { decode(rows.add(row * GROUP_BYTES), word) }
    };
    let right = |s: u32| ring.add(s % stages * slice_bytes + k_group * TOKENS * GROUP_BYTES);

    // What step s asks for, while the slices up to s + AHEAD - 1 are under way.
    let load = |s: u32| {
        if s.is_multiple_of(steps_per_group) && s / steps_per_group + CODES_AHEAD < groups {
            codes(s / steps_per_group + CODES_AHEAD);
        }
        if s + AHEAD < steps {
            acts(s + AHEAD);
        }
        commit_group();
    };

    // Codes never change: they are asked for before the kernel in front of this one has ended.
    let mut group = 0;
    while group < CODES_AHEAD {
        codes(group);
        group += 1;
    }
    commit_group();
    launch_dependents();
    dependency_wait();
    // SAFETY: the head stands before the ring.
    unsafe { tile.begin::<THREADS>(args, head) };
    let mut s = 0;
    while s < AHEAD {
        acts(s);
        commit_group();
        s += 1;
    }
    wait_for::<AHEAD>();
    sync_threads();
    let mut even = left(0);
    // The start is opaque, because LLVM would copy the first steps out of the loop.
    let mut s = opaque(0);
    while s < steps {
        arrive::<AHEAD>();
        // SAFETY: `arrive` showed slice s, and that the products of slice s - 2 are done everywhere.
        unsafe { products::<TOKENS>(even, right(s)) };
        load(s);
        wgmma::wait::<1>();
        let odd = left(s + 1);
        arrive::<AHEAD>();
        // SAFETY: as above. The number of steps is even.
        unsafe { products::<TOKENS>(odd, right(s + 1)) };
        load(s + 1);
        wgmma::wait::<1>();
        even = left(s + 2);
        s += 2;
    }
    wgmma::wait::<0>();
    wait_group::<0>();
    sync_threads();
    // SAFETY: the head came before the first slice.
    unsafe { tile.divisors::<THREADS>(head) };

    let parked = ring.cast::<i32>();
    let mine = parked.add((k_group * TOKENS + 2 * (lane % 4)) * (ROWS + SUM_PAD) + row);
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
    ($($name:ident $symbol:literal [$row_groups:literal, $k_groups:literal, $tokens:literal, $ahead:literal, $split:literal];)*) => {$(
        const _: () = {
            const CUT: Hopper = Hopper::new([$row_groups, $k_groups, $tokens, $ahead, $split]);

            /// # Safety
            ///
            /// As for [`gemm`].
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                // SAFETY: the launch contract, handed on.
                unsafe {
                    gemm::<
                        { CUT.rows() },
                        $k_groups,
                        $tokens,
                        $ahead,
                        { CUT.codes_ahead() },
                        $split,
                        { CUT.threads() },
                    >(&args)
                }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::w2a8_gemm::$name as Kernel>::Args,
            ) = entry;
        };
    )*};
}

contract::for_each_w2a8_gemm_hopper!(entries);
