//! Brings the pages of runs together, and rotates the queries of their rows.

use contract::attention_paged::{
    GATHER_THREADS, GatherArgs, PAGE, int8_part_bytes, int8_scales, int8_stride,
};
use contract::num::{MX_BLOCK, f32_to_bf16, mx_value};
use contract::rope::rotate;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{X4, ld, ld_nc, ld_u8, ld_x2, ld_x4, st, st_x4};
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// Every 16 or 32 bits of it are NaN.
const NAN: u32 = 0x7fc0_7fc0;

/// Block `(side, kv head, page)` copies, or with `INT8` decodes to bf16, as many positions of a page as `blocks` says; those behind them rotate a row of queries.
///
/// # Safety
///
/// The pointers of `args` cover the contract's tables; block and grid are the contract's; the keys and values of all rows are stored.
#[inline(always)]
pub(super) unsafe fn gather<const INT8: bool>(args: &GatherArgs) {
    launch_dependents();
    dependency_wait();
    let copies = 2 * args.kv_heads * args.key_blocks;
    // SAFETY: handed on.
    unsafe {
        if block_idx_x() < copies {
            copy::<INT8>(args);
        } else {
            rotate_row(args, block_idx_x() - copies);
        }
    }
}

/// # Safety
///
/// As for [`gather`].
#[inline(always)]
unsafe fn copy<const INT8: bool>(args: &GatherArgs) {
    let GatherArgs { kv_heads, position_bytes, key_blocks, .. } = *args;
    let (values, unit) = (block_idx_x() % 2 == 1, block_idx_x() / 2);
    let (kv_head, block) = (unit % kv_heads, unit / kv_heads);
    let of_block = args.blocks.as_ptr().cast_const().wrapping_add(2 * block as usize);
    // SAFETY: the words of a block, there by the contract.
    let (page, count) = unsafe { (ld(of_block), ld(of_block.wrapping_add(1))) };
    let there = page < args.page_count;
    let part = PAGE * position_bytes as usize;
    let head_dim = args.head_dim as usize;
    let from_part = if INT8 { int8_part_bytes(head_dim) } else { part };
    let from =
        if there { (page as usize * kv_heads as usize + kv_head as usize) * from_part } else { 0 };
    let to = (kv_head as usize * key_blocks as usize + block as usize) * part;
    let [keys_from, values_from] = args.pages;
    let [keys_to, values_to] = args.to;
    let from =
        if values { values_from } else { keys_from }.as_ptr().cast_const().wrapping_add(from);
    let to = if values { values_to } else { keys_to }.as_ptr().wrapping_add(to);
    let bytes = count.min(PAGE as u32) * position_bytes;
    let mut at = 16 * thread_idx_x();
    while at < bytes {
        // SAFETY: 16 bytes of a position that is stored, or what becomes of them; the place belongs to this thread.
        unsafe {
            let words: X4<u32> = if !there {
                [NAN; 4]
            } else if INT8 {
                decoded(from, at / position_bytes, at % position_bytes / 2, head_dim)
            } else {
                ld_x4(from.wrapping_add(at as usize).cast())
            };
            st_x4(to.wrapping_add(at as usize).cast(), words);
        }
        at += 16 * GATHER_THREADS;
    }
}

/// Elements `first` to `first + 8` of row `row` of a part of 8 bits, as bf16; zeros behind the head.
///
/// # Safety
///
/// The row is stored, and `first` is a multiple of 8 below the row's end.
#[inline(always)]
unsafe fn decoded(part: *const u8, row: u32, first: u32, head_dim: usize) -> X4<u32> {
    let scales = PAGE * int8_stride(head_dim) + row as usize * int8_scales(head_dim);
    let codes = part.wrapping_add(row as usize * int8_stride(head_dim) + first as usize);
    // SAFETY: eight codes, padded to sixteen, and their scale.
    let (scale, codes): (_, [u32; 2]) = unsafe {
        (ld_u8(part.wrapping_add(scales + first as usize / MX_BLOCK)), ld_x2(codes.cast()))
    };
    core::array::from_fn(|i| {
        let half = |e: usize| {
            let code = (codes[i / 2] >> (8 * (2 * (i % 2) + e))) as i8;
            let inside = first as usize + 2 * i + e < head_dim;
            u32::from(f32_to_bf16(if inside { mx_value(code, scale) } else { 0.0 }))
        };
        half(0) | half(1) << 16
    })
}

/// # Safety
///
/// As for [`gather`]; `m` is a row.
#[inline(always)]
unsafe fn rotate_row(args: &GatherArgs, m: u32) {
    let GatherArgs { heads, kv_heads, head_dim, .. } = *args;
    let half = head_dim / 2;
    let position = args.positions.as_ptr().cast_const();
    // SAFETY: one element, there by the contract.
    let pos = unsafe { ld(position.wrapping_add(m as usize * args.position_stride as usize)) };
    let from = m as usize * ((heads + 2 * kv_heads) * head_dim) as usize; // qkv[m]
    let from = args.qkv.as_ptr().cast_const().wrapping_add(from);
    let to = args.q.as_ptr().wrapping_add(m as usize * (heads * head_dim) as usize); // q[m]
    let mut i = thread_idx_x();
    while i < heads * half {
        let (head, pair) = (i / half, i % half);
        let at = (head * head_dim + pair) as usize;
        // SAFETY: both elements of a pair of a head of the row; below `capacity` its angle, and the tables never change.
        unsafe {
            let (mut lo, mut hi) = (f32::NAN, f32::NAN);
            if pos < args.capacity {
                let angle = pos as usize * half as usize + pair as usize; // cos[pos, pair]
                let cos = ld_nc(args.cos.as_ptr().cast_const().wrapping_add(angle));
                let sin = ld_nc(args.sin.as_ptr().cast_const().wrapping_add(angle));
                lo = ld(from.wrapping_add(at));
                hi = ld(from.wrapping_add(at + half as usize));
                (lo, hi) = rotate(lo, hi, cos, sin);
            }
            st(to.wrapping_add(at), lo);
            st(to.wrapping_add(at + half as usize), hi);
        }
        i += GATHER_THREADS;
    }
}
