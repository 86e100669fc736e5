//! The kernels on `wgmma`: codes as the left factor, decoded in registers; activations as the right
//! one, straight from shared memory.
//!
//! A slice is piece `j` of the eight chunks of a group: 128 bytes of each token that lie together in
//! global memory and become one swizzled row. Its codes are word `j` of those chunks. In a product
//! of depth 32 lane `t` gives codes `4 t` to `4 t + 3` of a word, which are its bit lane `t`: every
//! lane reads the same words, shifts by its own distance and masks, two instructions for four codes.
//!
//! Two warpgroups multiply. A third one copies activations, in a ring of slices; of a fourth one two
//! warps copy codes, in a ring of whole groups (four slices), and one thread shows the activations to
//! the async proxy, by which the products read: that fence waits for all that its thread has under
//! way, so it is worth a thread that has nothing. They meet at barriers of each place of a ring, so
//! that nobody waits for more than it needs: while a warpgroup writes the sums of a tile, the slices
//! of the next one arrive. While the products of a slice run, the codes of the next one are decoded.

mod copy;
mod multiply;
mod ring;
mod write;

use contract::launch::Kernel;
use contract::w2a8_gemm::{Args, GROUP_BYTES, Hopper, SUM_PAD, head_bytes};

use self::copy::{Tiles, copy_acts, copy_codes, show_acts};
use self::multiply::Consumer;
use self::ring::{Place, Ring};
use self::write::{divisors, park, write};
use super::tile::Tile;
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma;
use crate::tile::hopper::each_group;

/// Threads that multiply.
const CONSUMERS: u32 = 256;

/// The kernel, for the numbers of [`Hopper`].
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its variant; the contract's table holds.
#[inline(always)]
unsafe fn gemm<
    const BLOCKS: usize,
    const ROWS: u32,
    const TOKENS: u32,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
    const SPLIT: u32,
    const ACT_COPIERS: u32,
    const CODE_COPIERS: u32,
>(
    args: &Args,
) {
    const { assert!(BLOCKS == 1 || BLOCKS == 2 && TOKENS == 128) };
    wgmma::declare();
    let head = dynamic_shared_mem::<u8>();
    let barriers = head.add(2 * head_bytes(ROWS, TOKENS));
    let ring = barriers.add(24 * (ACT_STAGES + CODE_STAGES));
    let ring = ring.add(ring.addr().wrapping_neg() % 1024);
    let barriers = barriers.cast::<u64>();
    let acts = Ring::<ACT_STAGES, ACT_BYTES> { places: ring, barriers };
    let codes = Ring::<CODE_STAGES, CODE_BYTES> {
        places: ring.add(ACT_STAGES * ACT_BYTES),
        barriers: barriers.add(3 * ACT_STAGES),
    };
    if thread_idx_x() == 0 {
        // SAFETY: this thread alone; the barrier shows them to the others.
        unsafe {
            acts.init(ACT_COPIERS, CONSUMERS / 32);
            codes.init(CODE_COPIERS, CONSUMERS);
        }
    }
    sync_threads();
    let tiles = Tiles {
        first: block_idx_x() / SPLIT,
        step: grid_dim_x() / SPLIT,
        end: Tile::<ROWS, TOKENS, SPLIT>::count(args),
        part: block_idx_x() % SPLIT,
    };
    let warp = warp_id();
    // What the others give back of the registers of the block.
    if warp < CONSUMERS / 32 {
        if ACT_COPIERS == 128 {
            wgmma::take_registers::<224>();
        } else {
            wgmma::take_registers::<192>();
        }
        dependency_wait();
        // SAFETY: the caller's promise.
        unsafe {
            consume::<BLOCKS, ROWS, TOKENS, ACT_STAGES, ACT_BYTES, CODE_STAGES, CODE_BYTES, SPLIT>(
                args, tiles, head, acts, codes,
            );
        }
    } else {
        wgmma::give_registers::<32>();
        let thread = thread_idx_x() - CONSUMERS;
        if thread < ACT_COPIERS {
            dependency_wait();
            // SAFETY: the caller's promise.
            unsafe {
                copy_acts::<ROWS, TOKENS, SPLIT, ACT_COPIERS, _, _>(args, tiles, thread, acts)
            };
        } else if thread < ACT_COPIERS + CODE_COPIERS {
            let thread = thread - ACT_COPIERS;
            // SAFETY: the caller's promise.
            unsafe {
                copy_codes::<ROWS, TOKENS, SPLIT, CODE_COPIERS, _, _>(args, tiles, thread, codes)
            };
            launch_dependents();
            dependency_wait();
        } else {
            dependency_wait();
            if thread == ACT_COPIERS + CODE_COPIERS {
                // SAFETY: the caller's promise.
                unsafe { show_acts::<ROWS, TOKENS, SPLIT, _, _>(args, tiles, acts) };
            }
        }
    }
}

/// Multiplies the block's tiles, and writes them when nobody else has a part of their k.
///
/// # Safety
///
/// As for [`gemm`], in all of the [`CONSUMERS`], after the wait for the kernel in front.
#[inline(always)]
unsafe fn consume<
    const BLOCKS: usize,
    const ROWS: u32,
    const TOKENS: u32,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
    const SPLIT: u32,
>(
    args: &Args,
    tiles: Tiles,
    head: Shared<u8>,
    acts: Ring<ACT_STAGES, ACT_BYTES>,
    codes: Ring<CODE_STAGES, CODE_BYTES>,
) {
    let (group, warp) = (warp_id() / 4, warp_id() % 4);
    let row = 64 * BLOCKS as u32 * group + 16 * warp + lane_id() / 4;
    let mut consumer = Consumer::<BLOCKS, TOKENS, _, _, _, _> {
        acts,
        codes,
        act: Place::FIRST,
        code: Place::FIRST,
        row_bytes: row * GROUP_BYTES,
    };
    if SPLIT > 1 {
        let tile = Tile::<ROWS, TOKENS, SPLIT>::of(args, tiles.first, tiles.part);
        // SAFETY: the head stands before the barriers.
        unsafe { tile.begin::<CONSUMERS>(args, head) };
        commit_group();
        // A part of k may have no product.
        each_group!(TOKENS, J => {
            wgmma::clear::<J>();
            if BLOCKS == 2 {
                wgmma::clear::<{ (J + 8) % 16 }>();
            }
        });
        consumer.tile(tile.chunks.div_ceil(8), true);
        wait_group::<0>();
        // Nobody reads the rings any more.
        sync_some(1, CONSUMERS);
        let parked = acts.places.cast::<i32>();
        // SAFETY: the head came; the sums take the place of the rings. Only those that multiply are
        // still here, or their warps: the others are not waited for.
        unsafe {
            tile.divisors::<CONSUMERS>(head);
            park::<BLOCKS, TOKENS>(parked.add(row), ROWS + SUM_PAD);
            tile.finish::<1, CONSUMERS>(args, head, parked);
        }
        return;
    }
    let head = head.add(group * head_bytes(ROWS, TOKENS));
    let mut index = tiles.first;
    while index < tiles.end {
        let tile = Tile::<ROWS, TOKENS, SPLIT>::of(args, index, 0);
        // Nobody reads the head of the tile before any more.
        sync_some(1 + group, 128);
        // SAFETY: this warpgroup's own head.
        unsafe { divisors::<TOKENS>(args, tile.token0, head) };
        consumer.tile(tile.chunks.div_ceil(8), false);
        sync_some(1 + group, 128);
        // SAFETY: the head is shown; the products are done.
        unsafe { write::<BLOCKS, TOKENS>(args, tile.token0, tile.row0 + row, head) };
        index += tiles.step;
    }
}

macro_rules! entries {
    ($($name:ident $symbol:literal [$blocks:literal, $tokens:literal, $acts:literal, $codes:literal, $split:literal];)*) => {$(
        const _: () = {
            const CUT: Hopper = Hopper::new([$blocks, $tokens, $acts, $codes, $split]);

            /// # Safety
            ///
            /// As for [`gemm`].
            #[unsafe(export_name = $symbol)]
            unsafe extern "ptx-kernel" fn entry(args: Args) {
                // SAFETY: the launch contract, handed on.
                unsafe {
                    gemm::<
                        $blocks,
                        { CUT.rows() },
                        $tokens,
                        $acts,
                        { CUT.slice_bytes() },
                        $codes,
                        { CUT.group_bytes() },
                        $split,
                        { CUT.act_copiers() },
                        { CUT.code_copiers() },
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
