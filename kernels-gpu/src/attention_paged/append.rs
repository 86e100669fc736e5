//! Stores the keys, rotated, and the values of all rows in their pages.

use contract::attention_paged::{APPEND_THREADS, Args, PAGE};
use contract::kv_append::kv_stride;
use contract::rope::rotate;

use super::{page, position};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::element::CacheElement;

/// Where a block stores: a row of a kv head's part of a page.
pub(super) struct Place {
    pub(super) is_key: bool,
    /// Of all parts of all pages.
    pub(super) part: usize,
    /// Of the part.
    pub(super) row: usize,
    pos: u32,
    source: *const f32,
}

impl Place {
    /// That of block `(head, m)`: a head of k, then of v, of row `m`; `None` where nothing is stored. Waits for the kernel in front.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table; block and grid are the contract's.
    #[inline(always)]
    pub(super) unsafe fn of_block(args: &Args) -> Option<Self> {
        launch_dependents();
        dependency_wait();
        let (kv_heads, dim) = (args.kv_heads, args.head_dim);
        let (m, side) = (block_idx_x() / (2 * kv_heads), block_idx_x() % (2 * kv_heads));
        // SAFETY: the grid has blocks for M rows.
        let pos = unsafe { position(args, m) };
        if pos >= args.capacity {
            return None;
        }
        let is_key = side < kv_heads;
        let kv_head = if is_key { side } else { side - kv_heads };
        // SAFETY: pos < capacity.
        let page = unsafe { page(args, m, pos / PAGE as u32) };
        if page >= args.pages {
            return None;
        }
        let row = m as usize * ((args.heads + 2 * kv_heads) * dim) as usize; // qkv[m]
        let source =
            args.qkv.as_ptr().cast_const().wrapping_add(row + ((args.heads + side) * dim) as usize);
        let part = page as usize * kv_heads as usize + kv_head as usize; // pages[page, kv head]
        Some(Self { is_key, part, row: pos as usize % PAGE, pos, source })
    }

    /// Calls `take` with this thread's pairs of the head: the number of each, and both elements, rotated where it is a key.
    ///
    /// # Safety
    ///
    /// The place is that of this block.
    #[inline(always)]
    pub(super) unsafe fn pairs(&self, args: &Args, mut take: impl FnMut(u32, f32, f32)) {
        let half = args.head_dim / 2;
        let mut pair = thread_idx_x();
        while pair < half {
            let angle = self.pos as usize * half as usize + pair as usize; // cos[pos, pair]
            // SAFETY: both elements of a pair of a head of the row; pos < capacity and pair < head_dim / 2,
            // and the tables never change.
            let (lo, hi) = unsafe {
                let mut lo = ld(self.source.wrapping_add(pair as usize));
                let mut hi = ld(self.source.wrapping_add((pair + half) as usize));
                if self.is_key {
                    let cos = ld_nc(args.cos.as_ptr().cast_const().wrapping_add(angle));
                    let sin = ld_nc(args.sin.as_ptr().cast_const().wrapping_add(angle));
                    (lo, hi) = rotate(lo, hi, cos, sin);
                }
                (lo, hi)
            };
            take(pair, lo, hi);
            pair += APPEND_THREADS;
        }
    }
}

/// Block `(head, m)` stores a head of k, then of v, of row `m`.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for pages of `E`; block and grid are the
/// contract's.
#[inline(always)]
pub(super) unsafe fn append<E: CacheElement>(args: &Args) {
    // SAFETY: handed on.
    let Some(place) = (unsafe { Place::of_block(args) }) else {
        return; // the whole block
    };
    let (dim, stride) = (args.head_dim, kv_stride(args.head_dim as usize));
    let pages = if place.is_key { args.k_pages } else { args.v_pages };
    let at = (place.part * PAGE + place.row) * stride; // pages[page, kv head, row]
    let target = pages.cast::<E>().as_ptr().wrapping_add(at);
    // SAFETY: pages[page, kv head, row, ..] belongs to this block.
    unsafe {
        place.pairs(args, |pair, lo, hi| {
            E::store(target.wrapping_add(pair as usize), lo);
            E::store(target.wrapping_add((pair + dim / 2) as usize), hi);
        });
    }
    let pad = dim + thread_idx_x();
    if (pad as usize) < stride {
        // SAFETY: between head_dim and the stride, fewer than 8 elements.
        unsafe { E::store(target.wrapping_add(pad as usize), 0.0) };
    }
}
