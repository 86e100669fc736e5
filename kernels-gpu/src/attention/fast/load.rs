//! From memory to shared memory.

use contract::attention::{Args, TILE_THREADS};

use super::super::tile::Rows;
use super::{KEYS, swizzled};
use crate::arch::async_copy::copy_x16_part;
use crate::arch::half::pack_bf16;
use crate::arch::hint::{opaque, opaque_here};
use crate::arch::mem::{ld_if, ld_x4_if};
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;

/// Asks for the keys, or values, of positions `first..first + 64` below `limit`; what is not there becomes zero.
///
/// # Safety
///
/// `cache` starts positions of `stride` elements, `limit` of them readable; `to` is a tile that nobody reads.
#[inline(always)]
pub(super) unsafe fn copy_tile<const D: u32>(
    to: Shared<u8>,
    cache: *const u16,
    (stride, head_dim): (usize, u32),
    (first, limit): (u32, u32),
) {
    let pieces = D / 8;
    let (piece, across) = (thread_idx_x() % pieces, TILE_THREADS / pieces);
    let bytes = 2 * head_dim.saturating_sub(8 * piece).min(8);
    let mut row = opaque_here(thread_idx_x() / pieces);
    while row < KEYS {
        let there = if first + row < limit { bytes } else { 0 };
        let at = if there > 0 { (first + row) as usize * stride + 8 * piece as usize } else { 0 };
        // SAFETY: a piece of the tile; `there` bytes of a position, which starts at a multiple of 16 bytes.
        unsafe {
            copy_x16_part(to.byte_add(swizzled::<D>(row, piece)), cache.wrapping_add(at), there)
        };
        row += across;
    }
}

/// Rounds the queries to bf16 and puts them into shared memory, zeros behind them.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table; `to` holds the tile's rows.
#[inline(always)]
pub(super) unsafe fn load_queries<const D: u32>(
    to: Shared<u8>,
    args: &Args,
    rows: &Rows,
    count: u32,
) {
    let pieces = D / 8;
    let piece = thread_idx_x() % pieces;
    let (first, whole) = (8 * piece, (args.head_dim | args.q_stride) % 4 == 0);
    let mut row = opaque(thread_idx_x() / pieces);
    while row < count {
        let q = rows.query(args, row).wrapping_add(first as usize);
        let mut values = [0.0f32; 8];
        // SAFETY: elements below head_dim of a query.
        unsafe {
            if whole {
                let low: [f32; 4] = ld_x4_if(first < args.head_dim, q.cast());
                let high: [f32; 4] = ld_x4_if(first + 4 < args.head_dim, q.wrapping_add(4).cast());
                let mut i = 0;
                while i < 4 {
                    values[i] = if first < args.head_dim { low[i] } else { 0.0 };
                    values[4 + i] = if first + 4 < args.head_dim { high[i] } else { 0.0 };
                    i += 1;
                }
            } else {
                let mut i = 0;
                while i < 8 {
                    let there = first + (i as u32) < args.head_dim;
                    let value: f32 = ld_if(there, q.wrapping_add(i));
                    values[i] = if there { value } else { 0.0 };
                    i += 1;
                }
            }
        }
        let [a, b, c, d, e, f, g, h] = values;
        let words = [pack_bf16(a, b), pack_bf16(c, d), pack_bf16(e, f), pack_bf16(g, h)];
        // SAFETY: a piece of the tile.
        unsafe { to.byte_add(swizzled::<D>(row, piece)).cast::<u32>().write_x4(words) };
        row += TILE_THREADS / pieces;
    }
}
