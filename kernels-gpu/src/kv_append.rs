//! Device side of [`contract::kv_append`]: one block per head of a row.
//!
//! With rotation, block `(h, m)` takes head `h` of q (rotated in place), then of k, then of v; the
//! plain kernels have no q heads. Cache rows are written up to their stride, zeros last.

use contract::kv_append::{
    Args, KvAppendBf16, KvAppendF32, KvAppendRopeBf16, KvAppendRopeF32, THREADS, kv_stride,
};
use contract::launch::{DevPtr, Kernel};
use contract::rope::rotate;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_nc, st};
use crate::arch::thread::{block_idx_x, block_idx_y, thread_idx_x};
use crate::element::{Bf16, CacheElement};

/// Element `d` of the head at `head` after rotation at `pos`; `d < head_dim`.
///
/// # Safety
///
/// `head` starts a head of `args.head_dim` elements and `pos < args.capacity`.
#[inline(always)]
unsafe fn rotated(args: &Args, head: *const f32, pos: u32, d: u32) -> f32 {
    let half = args.head_dim / 2;
    let pair = if d < half { d } else { d - half };
    let at = pos as usize * half as usize + pair as usize; // cos[pos, pair]
    // SAFETY: the caller's promise; pair < head_dim / 2, and the tables never change.
    let (lo, hi) = unsafe {
        rotate(
            ld(head.wrapping_add(pair as usize)),
            ld(head.wrapping_add((pair + half) as usize)),
            ld_nc(args.cos.as_ptr().cast_const().wrapping_add(at)),
            ld_nc(args.sin.as_ptr().cast_const().wrapping_add(at)),
        )
    };
    if d < half { lo } else { hi }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for caches of `E`; the grid is the
/// contract's `rope_grid` with `ROPE`, else its `grid`.
#[inline(always)]
unsafe fn kv_append<E: CacheElement, const ROPE: bool>(args: &Args) {
    launch_dependents();
    dependency_wait();
    let m = block_idx_x();
    // SAFETY: one element, there by the contract.
    let pos = unsafe { ld(args.start.as_ptr().cast_const()) }.saturating_add(m);
    if pos >= args.capacity {
        return; // the whole block
    }
    let (heads, kv_heads, dim) = (args.heads, args.kv_heads, args.head_dim);
    let head = if ROPE { block_idx_y() } else { heads + block_idx_y() };
    let row = m as usize * ((heads + 2 * kv_heads) * dim) as usize; // qkv[m]
    let source = args.qkv.as_ptr().wrapping_add(row + (head * dim) as usize);

    if head < heads {
        // A pair belongs to one thread: both of its elements change.
        let half = dim / 2;
        let mut d = thread_idx_x();
        while d < half {
            // SAFETY: d + half < head_dim.
            unsafe {
                let lo = rotated(args, source, pos, d);
                let hi = rotated(args, source, pos, d + half);
                st(source.wrapping_add(d as usize), lo);
                st(source.wrapping_add((d + half) as usize), hi);
            }
            d += THREADS;
        }
        return;
    }

    let is_key = head < heads + kv_heads;
    let (cache, kv_head): (DevPtr<u8>, u32) =
        if is_key { (args.k_cache, head - heads) } else { (args.v_cache, head - heads - kv_heads) };
    let stride = kv_stride(dim as usize);
    let at = (kv_head as usize * args.capacity as usize + pos as usize) * stride; // cache[head, pos]
    let target = cache.cast::<E>().as_ptr().wrapping_add(at);
    let mut d = thread_idx_x();
    while (d as usize) < stride {
        let value = if d >= dim {
            0.0
        } else if ROPE && is_key {
            // SAFETY: d < head_dim and pos < capacity.
            unsafe { rotated(args, source, pos, d) }
        } else {
            // SAFETY: d < head_dim.
            unsafe { ld(source.cast_const().wrapping_add(d as usize)) }
        };
        // SAFETY: cache[head, pos, d] with pos < capacity and d < stride belongs to this thread.
        unsafe { E::store(target.wrapping_add(d as usize), value) };
        d += THREADS;
    }
}

macro_rules! entries {
    ($($symbol:ident $kernel:ident $element:ty, $rope:literal;)*) => {$(
        /// # Safety
        ///
        /// The launch obeys the kernel's `SPEC` and grid; the pointers cover the contract's table.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol(args: Args) {
            // SAFETY: the launch contract, handed on.
            unsafe { kv_append::<$element, $rope>(&args) }
        }
        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )*};
}

entries! {
    kv_append_bf16 KvAppendBf16 Bf16, false;
    kv_append_f32 KvAppendF32 f32, false;
    kv_append_rope_bf16 KvAppendRopeBf16 Bf16, true;
    kv_append_rope_f32 KvAppendRopeF32 f32, true;
}
