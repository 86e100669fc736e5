//! Stores the keys, rotated, and the values of all rows in their pages.

use contract::attention_paged::{APPEND_THREADS, Args, PAGE, page_len};
use contract::kv_append::kv_stride;
use contract::rope::rotate;

use super::{page, position};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::element::CacheElement;

/// Block `(head, m)` stores a head of k, then of v, of row `m`.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of `E`; block and grid are the
/// contract's.
#[inline(always)]
pub(super) unsafe fn append<E: CacheElement>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let (kv_heads, dim) = (args.kv_heads, args.head_dim);
    let (m, side) = (block_idx_x() / (2 * kv_heads), block_idx_x() % (2 * kv_heads));
    // SAFETY: the grid has blocks for M rows.
    let pos = unsafe { position(args, m) };
    if pos >= args.capacity {
        return; // the whole block
    }
    let is_key = side < kv_heads;
    let kv_head = if is_key { side } else { side - kv_heads };
    // SAFETY: pos < capacity.
    let page = unsafe { page(args, m, pos / PAGE as u32) };
    if page >= args.pages {
        return; // the whole block
    }
    let row = m as usize * ((args.heads + 2 * kv_heads) * dim) as usize; // qkv[m]
    let source =
        args.qkv.as_ptr().cast_const().wrapping_add(row + ((args.heads + side) * dim) as usize);
    let stride = kv_stride(dim as usize);
    let at = page as usize * page_len(kv_heads as usize, dim as usize)
        + (kv_head as usize * PAGE + pos as usize % PAGE) * stride; // pages[page, kv head, place]
    let pages = if is_key { args.k_pages } else { args.v_pages };
    let target = pages.cast::<E>().as_ptr().wrapping_add(at);
    let half = dim / 2;
    let mut pair = thread_idx_x();
    while pair < half {
        let angle = pos as usize * half as usize + pair as usize; // cos[pos, pair]
        // SAFETY: both elements of a pair of a head of the row; pos < capacity and pair < head_dim / 2,
        // and the tables never change; pages[page, kv head, place, ..] belongs to this block.
        unsafe {
            let mut lo = ld(source.wrapping_add(pair as usize));
            let mut hi = ld(source.wrapping_add((pair + half) as usize));
            if is_key {
                let cos = ld_nc(args.cos.as_ptr().cast_const().wrapping_add(angle));
                let sin = ld_nc(args.sin.as_ptr().cast_const().wrapping_add(angle));
                (lo, hi) = rotate(lo, hi, cos, sin);
            }
            E::store(target.wrapping_add(pair as usize), lo);
            E::store(target.wrapping_add((pair + half) as usize), hi);
        }
        pair += APPEND_THREADS;
    }
    let pad = dim + thread_idx_x();
    if (pad as usize) < stride {
        // SAFETY: between head_dim and the stride, fewer than 8 elements.
        unsafe { E::store(target.wrapping_add(pad as usize), 0.0) };
    }
}
