//! Many rows on tensor cores: scores and weighted values by `mma.sync` of bf16, from sm_80.
//!
//! A warp holds `16 MT` rows of the block: their scores, exponentials and outputs stay in its registers
//! while tiles of 64 keys and values pass through shared memory. Rows of shared memory are swizzled by 16 bytes: piece
//! `p` of row `r` stands at `p ^ r % 8`. The values of a tile are on their way during its scores, the keys of
//! the next during its weighted values.

mod load;
mod state;

use contract::attention::{
    Args, AttentionFastD64, AttentionFastD128, AttentionFastD256, KEY_BLOCK, RowTile,
};
use contract::launch::Kernel;

use super::tile::Rows;
use crate::arch::async_copy::{commit_group, wait_group};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::sync_threads;
use crate::arch::warp::{lane_id, warp_id};
use load::{copy_tile, load_queries};
use state::{State, hide, scores};

/// Keys of a tile.
const KEYS: u32 = KEY_BLOCK as u32;
/// Blocks of 8 keys in a tile.
const KEY_TILES: usize = KEY_BLOCK / 8;

/// Byte at which 16-byte piece `piece` of row `row` stands, of rows of `D` bf16.
#[inline(always)]
fn swizzled<const D: u32>(row: u32, piece: u32) -> u32 {
    row * (2 * D) + (piece ^ (row % 8)) * 16
}

/// # Safety
///
/// The launch obeys the kernel's `SPEC` with the tile's grid; the pointers of `args` cover the contract's table.
#[inline(always)]
unsafe fn fast<const D: u32, const MT: usize, const NT: usize>(args: &Args, tile: RowTile) {
    const { assert!(NT as u32 * 8 == D && D % 64 == 0) };
    launch_dependents();
    dependency_wait();
    // SAFETY: the caller's promise.
    let rows = unsafe { Rows::of_block(args, tile) };
    let (stride, start) = rows.cache(args);
    let keys = args.k_cache.cast::<u16>().as_ptr().cast_const().wrapping_add(start);
    let values = args.v_cache.cast::<u16>().as_ptr().cast_const().wrapping_add(start);
    let limit = rows.visible(tile.rows - 1);
    let q: Shared<u8> = dynamic_shared_mem();
    let k = q.byte_add(tile.rows * 2 * D);
    let v = k.byte_add(KEYS * 2 * D);
    // SAFETY: positions below `limit` are in the cache; nobody reads the tile yet.
    unsafe { copy_tile::<D>(k, keys, (stride, args.head_dim), (0, limit)) };
    commit_group();
    // SAFETY: the caller's promise.
    unsafe { load_queries::<D>(q, args, &rows, tile.rows) };

    let first_row = warp_id() * 16 * MT as u32;
    let own = first_row + lane_id() / 4;
    let all_see = rows.visible(first_row);
    // Powers of two: exp(scale s) = 2^(factor s).
    let factor = args.scale * core::f32::consts::LOG2_E;
    let mut state = State::<MT, NT> {
        top: [[f32::NEG_INFINITY; 2]; MT],
        sum: [[0.0; 2]; MT],
        out: [[[0.0; 4]; NT]; MT],
    };
    let mut first = opaque(0);
    while first < limit {
        wait_group::<0>();
        sync_threads();
        // SAFETY: as for the keys; every thread has taken the values of the tile before.
        unsafe { copy_tile::<D>(v, values, (stride, args.head_dim), (first, limit)) };
        commit_group();
        // SAFETY: queries and keys were there before the barrier.
        let mut s = unsafe { scores::<D, MT>(q, k, first_row) };
        // A loop of one turn at most: LLVM would make selects of a condition, for every tile.
        let mut hidden = opaque_here(u32::from(first + KEYS > all_see));
        while hidden > 0 {
            hide(&mut s, &rows, opaque_here(own), first);
            hidden -= 1;
        }
        let p = state.exponentials(s, factor);
        wait_group::<0>();
        sync_threads();
        if first + KEYS < limit {
            // SAFETY: as above; every thread has taken the keys.
            unsafe { copy_tile::<D>(k, keys, (stride, args.head_dim), (first + KEYS, limit)) };
            commit_group();
        }
        // SAFETY: the values were there before the barrier.
        unsafe { state.take_values::<D>(v, p) };
        first += KEYS;
    }
    // SAFETY: the outputs of its rows belong to this warp.
    unsafe { state.write(args, &rows, own) };
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $d:literal $mt:literal $nt:literal;)*) => { $(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` with its tile's grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            const { assert!($kernel::TILE.rows == 64 * $mt && $kernel::TILE.head_dim == $d) };
            // SAFETY: the caller's promise.
            unsafe { fast::<$d, $mt, $nt>(&args, $kernel::TILE) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    AttentionFastD64 attention_fast_64 64 1 8;
    AttentionFastD128 attention_fast_128 128 1 16;
    AttentionFastD256 attention_fast_256 256 1 32;
}
