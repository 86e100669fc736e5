//! The warps that have no row: they ask for what later parts need, as soon as the row of a part is there, and look after the set of the
//! exchange that the next launch takes.
//!
//! The other warps would do it on the way of the row. Those of one warpgroup give their registers to them.

use contract::decode_layers::{ASKERS, Args, LINEARS, THREADS};

use super::Memory;
use super::attention::{Attention, caches};
use super::entries::{look_ahead, norm};
use super::exchange::empty_other;
use super::weights::{Share, ask_next, next};
use crate::arch::mbarrier::wait;
use crate::arch::thread::{opaque_grid_dim_x, sync_some, thread_idx_x};
use crate::arch::warp::LANES;

/// Registers of a thread that has no row, and of one that has: the block was launched with 168 for each.
pub(super) const FEW_REGISTERS: u32 = 40;
pub(super) const MANY_REGISTERS: u32 = 232;
/// With which linear layer's row keys and values of the next layer are asked for.
const WITH_KEYS: u32 = 2;

/// Asks, part after part.
///
/// *Convergence*: every thread that has no row calls it.
///
/// # Safety
///
/// The launch contract; shares and barriers are in shared memory, the weights of the first qkv and output projection are asked for;
/// the other threads arrive at `memory.come` in every part.
#[inline(always)]
pub(super) unsafe fn ask_for_all<const FAST: bool, const PAGED: bool>(
    args: &Args,
    memory: Memory,
    [pos, epoch]: [u32; 2],
) {
    let layers = args.shape.layers;
    // Read here: what the other warps need too would stay in a register until they part.
    let blocks = opaque_grid_dim_x();
    // SAFETY: the caller's promise; the other set belongs to nobody now; nobody uses these words yet.
    unsafe {
        empty_other(args, epoch, blocks);
        Attention::<FAST, PAGED>::new(args, pos, epoch, blocks).leave(memory.attention, blocks);
    }
    // All of these threads have read the number of the launch before one asks for the weights of gate and up, without which no block ends;
    // those that have the row, before the barriers of the first part.
    sync_some(2, ASKERS);
    let mut part = 0;
    while part < layers * LINEARS as u32 {
        let (layer, kind) = (part / LINEARS as u32, part % LINEARS as u32);
        // SAFETY: left before the barrier.
        let attention = unsafe { Attention::<FAST, PAGED>::left(args, memory.attention) };
        // One warp asks for weights, all for keys and values: those of the first layer with its first row, in front of which they would
        // hold up what that row needs. Where there are none the others would be waited for by nobody, and must not wait: they might
        // miss a phase.
        if (part == 0 || kind == WITH_KEYS) && attention.has_units()
            || thread_idx_x() < THREADS + LANES
        {
            // SAFETY: entries that nobody writes; when the row is there, all that was read before it is idle.
            unsafe {
                let far = norm(args, part + LINEARS as u32);
                let weights = next(args, part);
                let caches = caches(args, (layer + u32::from(part > 0)).min(layers - 1));
                let k = Share::row_len(memory, kind);
                wait(memory.come.add(kind), layer % 2);
                if part == 0 || kind == WITH_KEYS {
                    attention.fill(memory.attention, layer + u32::from(part > 0), caches);
                }
                ask_next(args, memory, part, weights);
                look_ahead(args, far, k, part + 3 * LINEARS as u32, memory.attention.blocks());
            }
        }
        part += 1;
    }
}
