//! Where keys and values are: in a cache of the row's own, or in pages.

use contract::decode_layers::Args;

use super::KEYS;
use crate::arch::mem::ld;

/// Key blocks of a row at `pos`; over pages none of one that is out of their reach.
#[inline(always)]
pub(in super::super) fn key_blocks<const PAGED: bool>(args: &Args, pos: u32) -> u32 {
    if PAGED && pos >= args.capacity {
        return 0;
    }
    pos.saturating_add(1).min(args.capacity).div_ceil(KEYS)
}

/// The page of key block `block`.
///
/// # Safety
///
/// The launch contract of a kernel over pages; a key block of the capacity.
#[inline(always)]
pub(super) unsafe fn page_of(args: &Args, block: u32) -> u32 {
    // SAFETY: an entry of the table.
    unsafe { ld(args.tables.as_ptr().cast_const().wrapping_add(block as usize)) }
}

/// Where the positions of `kv_head` in `page` begin in a cache.
#[inline(always)]
pub(super) fn place_in(args: &Args, page: u32, kv_head: u32) -> usize {
    ((page * args.shape.kv_heads + kv_head) * KEYS) as usize
}
