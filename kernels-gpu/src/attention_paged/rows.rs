//! Walks over all pages of a row in one block of threads.

use contract::attention_paged::{ABSENT, Args, PAGE, THREADS};
use contract::kv_append::kv_stride;
use contract::launch::DevPtr;
use contract::num::Running;
use contract::rope::rotate;

use super::{page, position};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc, st};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::attention::query::{DIMS, Plain, Query, Stored, shared_q, write_out};
use crate::element::CacheElement;

/// How pages stand in memory.
pub(super) trait Part {
    /// Where their elements are.
    type Stored: Stored;

    /// Element 0 of row 0 of part `part` of `pages`: one for each kv head of a page.
    fn part(pages: DevPtr<u8>, part: usize, head_dim: usize) -> Self::Stored;
}

impl<E: CacheElement> Part for E {
    type Stored = Plain<E>;

    #[inline(always)]
    fn part(pages: DevPtr<u8>, part: usize, head_dim: usize) -> Plain<E> {
        let stride = kv_stride(head_dim);
        let at = pages.cast::<E>().as_ptr().cast_const().wrapping_add(part * PAGE * stride);
        Plain { at, stride }
    }
}

/// Gives every element of a head of outputs the value `v`.
///
/// # Safety
///
/// `out` starts a head of `head_dim` outputs that belong to this block.
#[inline(always)]
pub(super) unsafe fn fill_out(out: *mut f32, head_dim: u32, v: f32) {
    let mut d = thread_idx_x();
    while d < head_dim {
        // SAFETY: element d of the head belongs to this thread.
        unsafe { st(out.wrapping_add(d as usize), v) };
        d += THREADS;
    }
}

/// Brings the query at `q`, rotated for position `pos`, into shared memory, padded with zeros.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// `q` starts a head of `args.head_dim` elements; `pos < args.capacity`; nobody reads the query.
#[inline(always)]
unsafe fn load_query(args: &Args, q: *const f32, pos: u32) {
    let half = args.head_dim / 2;
    let mut pair = thread_idx_x();
    while pair < half {
        let angle = pos as usize * half as usize + pair as usize; // cos[pos, pair]
        // SAFETY: both elements of a pair of the head; pos < capacity, and the tables never change;
        // pair + half < head_dim <= MAX_HEAD_DIM.
        unsafe {
            let (lo, hi) = rotate(
                ld(q.wrapping_add(pair as usize)),
                ld(q.wrapping_add((pair + half) as usize)),
                ld_nc(args.cos.as_ptr().cast_const().wrapping_add(angle)),
                ld_nc(args.sin.as_ptr().cast_const().wrapping_add(angle)),
            );
            shared_q().add(pair).write(lo);
            shared_q().add(pair + half).write(hi);
        }
        pair += THREADS;
    }
    let pad = args.head_dim + thread_idx_x();
    if pad < kv_stride(args.head_dim as usize) as u32 {
        // SAFETY: kv_stride(head_dim) <= MAX_HEAD_DIM.
        unsafe { shared_q().add(pad).write(0.0) };
    }
    sync_threads();
}

/// Block `(head, m)` takes all pages of row `m`.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of `P`; block and grid are the
/// contract's; the keys and values of all rows are stored.
#[inline(always)]
pub(super) unsafe fn rows<P: Part>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let Args { heads, kv_heads, head_dim, .. } = *args;
    let (m, head) = (block_idx_x() / heads, block_idx_x() % heads);
    let out = (m as usize * heads as usize + head as usize) * head_dim as usize; // out[m, head]
    let out = args.out.as_ptr().wrapping_add(out);
    // SAFETY: the grid has blocks for M rows.
    let pos = unsafe { position(args, m) };
    if pos >= args.capacity {
        // SAFETY: out[m, head] belongs to this block.
        unsafe { fill_out(out, head_dim, if pos == ABSENT { 0.0 } else { f32::NAN }) };
        return; // the whole block
    }
    let row = m as usize * ((heads + 2 * kv_heads) * head_dim) as usize; // qkv[m]
    let q = args.qkv.as_ptr().cast_const().wrapping_add(row + (head * head_dim) as usize);
    // SAFETY: q[m, head], and pos < capacity.
    unsafe { load_query(args, q, pos) };

    let kv_head = (head / (heads / kv_heads)) as usize;
    let visible = pos + 1;
    let mut running = Running::EMPTY;
    let mut values = [0.0; DIMS];
    let mut there = true;
    let mut block = 0;
    while block * (PAGE as u32) < visible {
        // SAFETY: block * PAGE <= pos < capacity.
        let page = unsafe { page(args, m, block) };
        if page >= args.pages {
            there = false; // for the whole block of threads
            break;
        }
        let part = page as usize * kv_heads as usize + kv_head; // pages[page, kv head]
        let query = Query {
            head_dim,
            scale: args.scale,
            keys: P::part(args.k_pages, part, head_dim as usize),
            values: P::part(args.v_pages, part, head_dim as usize),
            visible: (visible - block * PAGE as u32).min(PAGE as u32),
        };
        // SAFETY: the page has at least one visible key; the query is in shared memory.
        let (sums, new) = unsafe { query.key_block::<4, 0>(0, None) };
        let weights = running.take(sums);
        let mut i = 0;
        while i < DIMS {
            values[i] = weights.combine(values[i], new[i]);
            i += 1;
        }
        block += 1;
    }
    // SAFETY: out[m, head] belongs to this block.
    unsafe {
        if there {
            write_out(out, head_dim, running, values);
        } else {
            fill_out(out, head_dim, f32::NAN);
        }
    }
}
