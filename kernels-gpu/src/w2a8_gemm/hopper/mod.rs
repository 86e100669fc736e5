//! The kernels on `wgmma`: codes as the left factor, decoded in registers; activations as the right
//! one, straight from shared memory.
//!
//! A slice is piece `j` of the eight chunks of a group: 128 bytes of each token that lie together in
//! global memory and become one swizzled row. Its codes are bit lane `j` of the words of those chunks. In a
//! product of depth 32 lane `t` gives terms `4 t` to `4 t + 3` of two pieces, whose codes stand in word `t` of
//! their chunks: a lane takes sixteen words for the four slices of a group, and nobody else reads them. A shift
//! and a mask make four codes.
//!
//! Two warpgroups multiply. Of a third one a thread asks for activations, in a ring of slices, and another
//! one for codes, in a ring of whole groups (four slices); the copy engine brings them, swizzled. They meet
//! at barriers of each place of a ring, so that nobody waits for more than it needs: while a warpgroup
//! writes the sums of a tile, the slices of the next one arrive. While the products of a slice run, the
//! codes of the next one are decoded.

mod copy;
mod multiply;
mod ring;
mod write;

use contract::attention_paged::PAGE;
use contract::launch::{Kernel, TensorMap};
use contract::w2a8_gemm::{
    AHEAD_BYTES, Ahead, Args, BulkArgs, Hopper, SUM_PAD, TURN_BYTES, head_bytes,
};

use self::copy::{Tiles, copy};
use self::multiply::Consumer;
use self::ring::{Place, Ring};
use self::write::{divisors, park, stats, write, write_few};
use super::tile::Tile;
use crate::arch::cluster::{cluster_dim_x, cluster_idx_x, cluster_rank};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier;
use crate::arch::mem::{ld, prefetch_l2, prefetch_l2_bulk};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::tensor::{parameter_address, prefetch_map};
use crate::arch::thread::{block_idx_x, grid_dim_x, sync_some, sync_threads, thread_idx_x};
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma;
use crate::tile::hopper::each_group;

/// Groups of codes that are asked for before the block's barriers are known.
const EARLY: u32 = 2;
/// Tokens of a tile that asks for the other groups only when the first one has come, which is then there earlier: with
/// programmatic dependent launch 2 to 4 % of all time at 64 tokens; at 32 and 128 as much is lost as won.
const PACED: u32 = 64;
/// Threads that multiply.
const CONSUMERS: u32 = 256;

/// The kernel, for the numbers of [`Hopper`].
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the blocks of its variant; the contract's table holds; `maps`
/// is the address of the parameter.
#[inline(always)]
unsafe fn gemm<
    const ROWS: u32,
    const TOKENS: u32,
    const STEP: usize,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
    const FEW: u32,
    const MANY: u32,
>(
    bulk: &BulkArgs,
    maps: u64,
) {
    const {
        assert!(matches!(TOKENS, 32 | 64 | 128) && matches!(STEP, 1 | 2 | 4));
    };
    wgmma::declare();
    let args = &bulk.base;
    let head = dynamic_shared_mem::<u8>();
    let barriers = head.add(2 * head_bytes(ROWS, TOKENS));
    let ring = barriers.add(16 * (ACT_STAGES + CODE_STAGES));
    let ring = ring.add(ring.addr().wrapping_neg() % 1024);
    let barriers = barriers.cast::<u64>();
    let acts = Ring::<ACT_STAGES, ACT_BYTES> { places: ring, barriers };
    let codes = Ring::<CODE_STAGES, CODE_BYTES> {
        places: ring.add(ACT_STAGES * ACT_BYTES),
        barriers: barriers.add(2 * ACT_STAGES),
    };
    let tiles = Tiles {
        first: cluster_idx_x(),
        step: cluster_dim_x(),
        end: Tile::<ROWS, TOKENS>::count(args),
        part: [cluster_rank(), bulk.split],
    };
    let thread = thread_idx_x().wrapping_sub(CONSUMERS);
    let acts_map = maps + size_of::<TensorMap>() as u64;
    if thread == 0 {
        // SAFETY: one thread; nobody else knows of the ring yet, and its places are free.
        unsafe {
            codes.init(CONSUMERS);
            mbarrier::show_new();
            // Codes never change: the first ones are asked for before anything else. Not more: the copy engine
            // takes one after the other, and would come to the activations later.
            copy::<true, ROWS, TOKENS, _, _>(args, tiles, maps, codes, 0..EARLY);
        }
    } else if thread == 32 {
        // SAFETY: one thread; the second map.
        unsafe {
            prefetch_map(acts_map);
            acts.init(CONSUMERS / 32);
        }
        mbarrier::show_new();
    } else if thread >= 64 && thread_idx_x() >= CONSUMERS {
        // The threads that copy nothing, of all blocks in turn.
        ahead(args, block_idx_x() * 64 + thread - 64);
    }
    sync_threads();
    if thread_idx_x() < CONSUMERS {
        // What the others give back of those that each thread of the block starts with.
        wgmma::take_registers::<MANY>();
        // SAFETY: the caller's promise.
        unsafe {
            consume::<ROWS, TOKENS, STEP, ACT_STAGES, ACT_BYTES, CODE_STAGES, CODE_BYTES>(
                args, tiles, head, acts, codes,
            );
        }
    } else {
        wgmma::give_registers::<FEW>();
        if thread == 0 {
            if TOKENS == PACED
                && tiles.first < tiles.end
                && Tile::<ROWS, TOKENS>::of(args, tiles.first, tiles.part).chunks > 0
            {
                // SAFETY: asked for above.
                unsafe { mbarrier::wait(codes.full(Place::FIRST), 0) };
            }
            // SAFETY: the caller's promise.
            unsafe { copy::<true, ROWS, TOKENS, _, _>(args, tiles, maps, codes, EARLY..u32::MAX) };
            // Not earlier: blocks of the next kernel would take the places of this one's unevenly.
            launch_dependents();
        }
        dependency_wait();
        if thread == 32 {
            // SAFETY: the caller's promise.
            unsafe { copy::<false, ROWS, TOKENS, _, _>(args, tiles, acts_map, acts, 0..u32::MAX) };
        } else if thread == 0 {
            // SAFETY: the caller's promise; positions and tables are older than the kernel in front.
            unsafe { bring(&bulk.ahead) };
        }
    }
}

/// Asks for line `index` of the activations in the second-level cache, or of scales and sums behind them. Nobody reads them before the wait for
/// the kernel in front; if they are older than that, they need not come from memory then.
#[inline(always)]
fn ahead(args: &Args, index: u32) {
    const LINE: u32 = 128;
    let lines = args.act_pieces * 16 / LINE;
    let total = args.m.saturating_mul(lines);
    let p = if index < total {
        args.acts.as_ptr().cast_const().cast::<u8>().wrapping_add(index as usize * LINE as usize)
    } else if index - total < (args.m * 8).div_ceil(LINE) {
        args.stats
            .as_ptr()
            .cast_const()
            .cast::<u8>()
            .wrapping_add((index - total) as usize * LINE as usize)
    } else {
        return;
    };
    // SAFETY: an address in a tensor.
    unsafe { prefetch_l2(p) };
}

/// Asks for this block's share of the keys that attention behind reads, by pieces of [`AHEAD_BYTES`] in turn. Memory has little to do until then.
///
/// # Safety
///
/// The contract's table of [`Ahead`] holds, and nobody writes positions or tables.
#[inline(always)]
unsafe fn bring(ahead: &Ahead) {
    let of_page = ahead.page_bytes.div_ceil(AHEAD_BYTES).max(1);
    let mut piece = block_idx_x();
    while piece < ahead.rows * of_page {
        let (row, from) = (piece / of_page, piece % of_page * AHEAD_BYTES);
        let at = |p: *mut u32, stride: u32, more: u32| {
            p.cast_const().wrapping_add(row as usize * stride as usize + more as usize)
        };
        // SAFETY: the position of a row, and a page of its table.
        let (position, page) = unsafe {
            (
                ld(at(ahead.positions.as_ptr(), ahead.position_stride, 0)),
                ld(at(ahead.tables.as_ptr(), ahead.table_stride, ahead.block)),
            )
        };
        if position / PAGE as u32 > ahead.block && page < ahead.pages {
            let p = ahead.keys.as_ptr().cast_const().wrapping_add(from as usize);
            let p = p.wrapping_add(page as usize * ahead.page_bytes as usize);
            // SAFETY: inside of a page that is there.
            unsafe { prefetch_l2_bulk(p, (ahead.page_bytes - from).min(AHEAD_BYTES)) };
        }
        piece += grid_dim_x();
    }
}

/// Multiplies the block's tiles, and writes them when nobody else has a part of their k.
///
/// # Safety
///
/// As for [`gemm`], in all of the [`CONSUMERS`].
#[inline(always)]
unsafe fn consume<
    const ROWS: u32,
    const TOKENS: u32,
    const STEP: usize,
    const ACT_STAGES: u32,
    const ACT_BYTES: u32,
    const CODE_STAGES: u32,
    const CODE_BYTES: u32,
>(
    args: &Args,
    tiles: Tiles,
    head: Shared<u8>,
    acts: Ring<ACT_STAGES, ACT_BYTES>,
    codes: Ring<CODE_STAGES, CODE_BYTES>,
) {
    let (group, warp) = (warp_id() / 4, warp_id() % 4);
    let row = 64 * group + 16 * warp;
    let mut consumer = Consumer::<TOKENS, STEP, _, _, _, _>::begin(acts, codes, row);
    let head = head.add(group * head_bytes(ROWS, TOKENS));
    let turn = codes.places.add(CODE_STAGES * CODE_BYTES + warp_id() * TURN_BYTES).cast::<i32>();
    let mut index = tiles.first;
    while index < tiles.end {
        let tile = Tile::<ROWS, TOKENS>::of(args, index, tiles.part);
        // Nobody reads the head of the tile before any more.
        sync_some(1 + group, 128);
        // SAFETY: this warpgroup's own head.
        unsafe { tile.scales::<128>(args, head) };
        each_group!(TOKENS, J => {
            wgmma::clear::<J>();
        });
        // Nothing of the kernel in front was needed so far.
        dependency_wait();
        // SAFETY: the caller's promise; this warpgroup's own head.
        unsafe { divisors::<TOKENS>(stats::<TOKENS>(args, tile.token0), head) };
        consumer.tile(tile.chunks.div_ceil(8));
        if tiles.part[1] > 1 {
            // Nobody reads the rings any more. A barrier of its own: where a part of k has no chunks, one warpgroup
            // can be here while the other is still at its own.
            consumer.end();
            sync_some(3, CONSUMERS);
            let parked = acts.places.cast::<i32>();
            // SAFETY: the sums take the place of the rings; the head is shown. Only those that multiply
            // are still here, or their warps: the others are not waited for.
            unsafe {
                park::<TOKENS>(parked.add(row + lane_id() / 4), ROWS + SUM_PAD);
                tile.finish::<1, CONSUMERS>(args, head, parked);
            }
            return;
        }
        sync_some(1 + group, 128);
        // SAFETY: the head is shown; the products are done.
        unsafe {
            if TOKENS == 64 {
                write_few(args, tile, row, head);
            } else {
                write::<ROWS, TOKENS>(args, tile, row, head, turn);
            }
        }
        index += tiles.step;
    }
    consumer.end();
    // Also a block without a tile waits.
    dependency_wait();
}

macro_rules! entries {
    ($($name:ident $symbol:ident [$tokens:literal, $acts:literal, $codes:literal, $step:literal, $registers:literal];)*) => {$(
        const _: () = {
            const CUT: Hopper = Hopper::new([$tokens, $acts, $codes, $step, $registers]);

            /// # Safety
            ///
            /// As for [`gemm`].
            #[unsafe(no_mangle)]
            unsafe extern "ptx-kernel" fn $symbol(args: BulkArgs) {
                // SAFETY: the launch contract, handed on.
                unsafe {
                    gemm::<
                        { CUT.rows() },
                        $tokens,
                        $step,
                        $acts,
                        { CUT.step_bytes() },
                        $codes,
                        { CUT.group_bytes() },
                        { CUT.few_registers() },
                        { CUT.many_registers() },
                    >(&args, parameter_address!($symbol))
                }
            }
            const _: unsafe extern "ptx-kernel" fn(
                <contract::w2a8_gemm::$name as Kernel>::Args,
            ) = $symbol;
        };
    )*};
}

contract::for_each_w2a8_gemm_hopper!(entries);
