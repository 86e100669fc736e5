//! Device side of [`contract::kv_append`]: a thread takes four neighbours of a head and the four that
//! stand half a head further, which rotation pairs with them.
//!
//! With rotation the threads of a row take its heads of q (rotated in place), then of k, then of v; the
//! plain kernels have no q heads. Cache rows are written up to their stride, zeros last.

use contract::kv_append::{
    Args, KvAppendBf16, KvAppendF32, KvAppendRopeBf16, KvAppendRopeF32, PART, THREADS, kv_stride,
};
use contract::launch::{DevPtr, Kernel};
use contract::rope::rotate;

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_nc, ld_nc_x4, ld_x4, st, st_x4};
use crate::arch::thread::{block_idx_x, block_idx_y, thread_idx_x};
use crate::element::{Bf16, CacheElement};

/// A head of a row.
#[derive(Clone, Copy)]
struct Head<E> {
    /// In the fused row.
    source: *mut f32,
    /// In the cache; `None` for a head of q.
    target: Option<*mut E>,
    /// `cos[pos]` and `sin[pos]`, when it rotates.
    angles: Option<[*const f32; 2]>,
    dim: u32,
}

impl<E: CacheElement> Head<E> {
    /// Takes elements `d` to `d + 4`, and those half a head further, of a head that is a multiple of eight
    /// long, at addresses that are multiples of 16 bytes.
    ///
    /// # Safety
    ///
    /// The pointers cover the head, the caches' and the tables' position; `d + 4 <= dim / 2`. Nobody else
    /// takes these elements.
    #[inline(always)]
    unsafe fn take_whole(self, d: u32) {
        let (low, high) = (d as usize, (d + self.dim / 2) as usize);
        let source = self.source;
        // SAFETY: the caller's promise; the tables never change.
        unsafe {
            let mut a: [f32; 4] = ld_x4(source.wrapping_add(low).cast_const().cast());
            let mut b: [f32; 4] = ld_x4(source.wrapping_add(high).cast_const().cast());
            if let Some([cos, sin]) = self.angles {
                let c: [f32; 4] = ld_nc_x4(cos.wrapping_add(low).cast());
                let s: [f32; 4] = ld_nc_x4(sin.wrapping_add(low).cast());
                let mut i = 0;
                while i < 4 {
                    (a[i], b[i]) = rotate(a[i], b[i], c[i], s[i]);
                    i += 1;
                }
            }
            if let Some(target) = self.target {
                E::store4(target.wrapping_add(low), a);
                E::store4(target.wrapping_add(high), b);
            } else {
                st_x4(source.wrapping_add(low).cast(), a);
                st_x4(source.wrapping_add(high).cast(), b);
            }
        }
    }

    /// Takes element `d` and what belongs to it, of any head: the one half a head further where they rotate,
    /// else the one half a stride further, zeros where the head has ended.
    ///
    /// # Safety
    ///
    /// As for [`Head::take_whole`]; `d < kv_stride(dim) / 2`.
    #[inline(always)]
    unsafe fn take(self, d: u32) {
        let (half, span) = (self.dim / 2, kv_stride(self.dim as usize) as u32 / 2);
        let source = self.source;
        let (mut places, mut values) = ([d, d + span], [0.0; 2]);
        // SAFETY: the caller's promise; every element is read below `dim`, and written below the stride
        // where there is a cache, else below `dim`.
        unsafe {
            if let Some([cos, sin]) = self.angles {
                // Pairs, then the places behind the head.
                places = if d < half { [d, d + half] } else { [d + half, d + span] };
                if d < half {
                    let [lo, hi] = places.map(|at| ld(source.wrapping_add(at as usize)));
                    let at = d as usize;
                    let (cos, sin) = (ld_nc(cos.wrapping_add(at)), ld_nc(sin.wrapping_add(at)));
                    values = rotate(lo, hi, cos, sin).into();
                }
            } else {
                values = places
                    .map(|at| ld_if(at < self.dim, source.wrapping_add(at as usize).cast_const()));
            }
            let mut i = 0;
            while i < 2 {
                let at = places[i] as usize;
                match self.target {
                    Some(target) => E::store(target.wrapping_add(at), values[i]),
                    None if d < half => st(source.wrapping_add(at), values[i]),
                    None => {}
                }
                i += 1;
            }
        }
    }
}

/// # Safety
///
/// The pointers of `args` cover the contract's table for caches of `E`; the grid is the
/// contract's `rope_grid` with `ROPE`, else its `grid`.
#[inline(always)]
unsafe fn kv_append<E: CacheElement, const ROPE: bool>(args: &Args) {
    let (heads, kv_heads, dim) = (args.heads, args.kv_heads, args.head_dim);
    let stride = kv_stride(dim as usize);
    let parts = stride as u32 / PART;
    let (m, part) = (block_idx_x(), block_idx_y() * THREADS + thread_idx_x());
    let head = if ROPE { part / parts } else { heads + part / parts };
    let d = part % parts * (PART / 2);
    dependency_wait();
    // SAFETY: one element, there by the contract.
    let pos = unsafe { ld(args.start.as_ptr().cast_const()) }.saturating_add(m);
    if pos >= args.capacity || head >= heads + 2 * kv_heads {
        return;
    }
    let row = m as usize * ((heads + 2 * kv_heads) * dim) as usize; // qkv[m]
    let cache_of = |cache: DevPtr<u8>, head: u32| {
        let at = (head as usize * args.capacity as usize + pos as usize) * stride; // cache[head, pos]
        Some(cache.cast::<E>().as_ptr().wrapping_add(at))
    };
    let table = |table: DevPtr<f32>| {
        table.as_ptr().cast_const().wrapping_add(pos as usize * (dim / 2) as usize) // cos[pos]
    };
    let is_value = head >= heads + kv_heads;
    let head = Head {
        source: args.qkv.as_ptr().wrapping_add(row + (head * dim) as usize),
        target: match head {
            _ if head < heads => None,
            _ if is_value => cache_of(args.v_cache, head - heads - kv_heads),
            _ => cache_of(args.k_cache, head - heads),
        },
        angles: (ROPE && !is_value).then(|| [table(args.cos), table(args.sin)]),
        dim,
    };
    let bases = args.qkv.addr() | args.cos.addr() | args.sin.addr();
    let bases = bases | args.k_cache.addr() | args.v_cache.addr();
    if dim.is_multiple_of(PART) && bases.is_multiple_of(16) {
        // SAFETY: m < M by the grid, pos < capacity, the head is one of the row's, and no other thread has
        // this part of it. Rows and positions are multiples of 16 bytes, as their heads are.
        unsafe { head.take_whole(d) };
    } else {
        let mut i = 0;
        while i < PART / 2 {
            // SAFETY: as above.
            unsafe { head.take(d + i) };
            i += 1;
        }
    }
    // Not earlier: blocks of attention that start before the kernel in front of this one has ended stand
    // several on one multiprocessor, and last as long as the fullest.
    launch_dependents();
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
