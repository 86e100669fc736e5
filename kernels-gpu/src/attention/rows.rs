//! Walks over all key blocks in one block of threads. For prefill.

use contract::attention::Args;
use contract::num::Running;

use super::query::{DIMS, Query, write_out};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::thread::block_idx_x;
use crate::element::CacheElement;

/// Block `(head, m)` takes all key blocks.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for caches of `E`; block and grid are the
/// contract's.
#[inline(always)]
pub(super) unsafe fn attention<E: CacheElement>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let (head, m) = (block_idx_x() % args.heads, block_idx_x() / args.heads);
    // SAFETY: the grid has heads * M blocks.
    let query = unsafe { Query::<E>::new(args, m, head) };
    let mut running = Running::EMPTY;
    let mut values = [0.0; DIMS];
    let mut block = 0;
    while block < query.blocks() {
        // SAFETY: block < blocks().
        let (sums, new) = unsafe { query.key_block::<4, 0>(block) };
        let weights = running.take(sums);
        let mut i = 0;
        while i < DIMS {
            values[i] = weights.combine(values[i], new[i]);
            i += 1;
        }
        block += 1;
    }
    // SAFETY: the grid has heads * M blocks.
    unsafe { write_out(args, m, head, running, values) };
}
