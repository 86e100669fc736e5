//! Walks over all key blocks in one block of threads. For prefill.

use contract::attention::{Args, THREADS};
use contract::kv_append::kv_stride;
use contract::launch::DevPtr;
use contract::num::Running;

use super::query::{DIMS, Plain, Query, shared_q, write_out};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::ld;
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
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
    let query = unsafe { load_query::<E>(args, m, head) };
    let mut running = Running::EMPTY;
    let mut values = [0.0; DIMS];
    let mut block = 0;
    while block < query.blocks() {
        // SAFETY: block < blocks().
        let (sums, new) = unsafe { query.key_block::<4, 0>(block, None) };
        let weights = running.take(sums);
        let mut i = 0;
        while i < DIMS {
            values[i] = weights.combine(values[i], new[i]);
            i += 1;
        }
        block += 1;
    }
    let row = (m as usize * args.heads as usize + head as usize) * args.head_dim as usize;
    // SAFETY: out[m, head] belongs to this block.
    unsafe { write_out(args.out.as_ptr().wrapping_add(row), args.head_dim, running, values) };
}

/// Finds row `m` of head `head` and brings its query into shared memory.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table; `m < args.m`, `head < args.heads`.
#[inline(always)]
unsafe fn load_query<E: CacheElement>(args: &Args, m: u32, head: u32) -> Query<Plain<E>> {
    let stride = kv_stride(args.head_dim as usize);
    let kv_head = head / (args.heads / args.kv_heads);
    let at = kv_head as usize * args.capacity as usize * stride;
    // SAFETY: one element, there by the contract.
    let start = unsafe { ld(args.start.as_ptr().cast_const()) };
    let q = args.q.as_ptr().cast_const();
    let q = q.wrapping_add(m as usize * args.q_stride as usize); // q[m]
    let q = q.wrapping_add((head * args.head_dim) as usize); // q[m, head]
    let mut d = thread_idx_x();
    while d < stride as u32 {
        // SAFETY: q[m, head, d] when d < head_dim.
        let v = if d < args.head_dim { unsafe { ld(q.wrapping_add(d as usize)) } } else { 0.0 };
        // SAFETY: d < kv_stride(head_dim) <= MAX_HEAD_DIM.
        unsafe { shared_q().add(d).write(v) };
        d += THREADS;
    }
    sync_threads();
    let plain = |cache: DevPtr<u8>| Plain::<E> {
        at: cache.cast::<E>().as_ptr().cast_const().wrapping_add(at),
        stride,
    };
    Query {
        head_dim: args.head_dim,
        scale: args.scale,
        keys: plain(args.k_cache),
        values: plain(args.v_cache),
        visible: start.saturating_add(m).saturating_add(1).min(args.capacity),
    }
}
