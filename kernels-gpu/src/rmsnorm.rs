//! Device side of [`contract::rmsnorm`]: one block per row, partial `p` in thread `p`.
//!
//! Thread `t` owns elements `t, t + 256, ...` of its row. The first `HELD` of them stay in its
//! registers between the passes; rows longer than that read the others again. Each kernel has two
//! bodies, for [`SHORT`] and for [`LONG`], because a short row should not pay for a long one's
//! loops.

use contract::launch::Kernel;
use contract::num::fma;
use contract::rmsnorm::{Args, RmsNorm, SMEM_BYTES, THREADS, inv_rms, normalise};

use crate::arch::block;
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mem::{ld, ld_if, ld_nc, ld_nc_if, st};
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{block_idx_x, thread_idx_x};

const _: () = assert!(THREADS == block::THREADS && SMEM_BYTES >= 4 * block::THREADS);

/// Elements of a thread that stay in registers, in the body for rows up to 2,560.
pub const SHORT: usize = 10;
/// The same in the body for longer rows: those up to 7,168 are read once.
pub const LONG: usize = 28;

/// Whether a row of `k` elements fits the registers of the [`SHORT`] body.
#[inline(always)]
pub fn is_short(k: u32) -> bool {
    k <= THREADS * SHORT as u32
}

/// Index of element `j` of this thread.
#[inline(always)]
pub fn element(j: usize) -> u32 {
    thread_idx_x() + THREADS * j as u32
}

/// The held elements of a vector of `k` that no kernel writes; zeros past its end.
///
/// # Safety
///
/// `p` is null or starts `k` readable elements that nobody writes while this kernel, or the one
/// before it, runs.
#[inline(always)]
pub unsafe fn held_constants<const HELD: usize>(p: *const f32, k: u32) -> [f32; HELD] {
    let mut held = [0.0; HELD];
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        // SAFETY: i < k, and p is not null.
        held[j] = unsafe { ld_nc_if(i < k && !p.is_null(), p.wrapping_add(i as usize)) };
        j += 1;
    }
    held
}

/// Reads a row, adds `delta` and writes the sum back when there is one. Returns the held elements
/// (zeros past the end) and this thread's partial of the sum of squares.
///
/// # Safety
///
/// `x`, and `delta` unless null, start `k` elements; those of this thread are its own.
#[inline(always)]
pub unsafe fn residual_row<const HELD: usize>(
    x: *mut f32,
    delta: *const f32,
    k: u32,
) -> ([f32; HELD], f32) {
    let add = !delta.is_null();
    let mut held = [0.0; HELD];
    let mut deltas = [0.0; HELD];
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        // SAFETY: x[i] and delta[i] with i < k.
        unsafe {
            held[j] = ld_if(i < k, x.cast_const().wrapping_add(i as usize));
            deltas[j] = ld_if(i < k && add, delta.wrapping_add(i as usize));
        }
        j += 1;
    }
    let mut squares = 0.0;
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        if add {
            held[j] += deltas[j];
            if i < k {
                // SAFETY: x[i] belongs to this thread.
                unsafe { st(x.wrapping_add(i as usize), held[j]) };
            }
        }
        // Past the end this adds the square of zero to a sum that is not below zero.
        squares = fma(held[j], held[j], squares);
        j += 1;
    }
    let mut i = element(HELD);
    while i < k {
        // SAFETY: x[i] and delta[i] with i < k, x[i] of this thread.
        unsafe {
            let at = x.wrapping_add(i as usize);
            let mut v = ld(at.cast_const());
            if add {
                v += ld(delta.wrapping_add(i as usize));
                st(at, v);
            }
            squares = fma(v, v, squares);
        }
        i += THREADS;
    }
    (held, squares)
}

/// # Safety
///
/// The launch obeys `RmsNorm::SPEC` with one block per row; the pointers of `args` cover the
/// contract's table.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn rmsnorm(args: Args) {
    // SAFETY: the launch contract, handed on.
    unsafe { if is_short(args.k) { body::<SHORT>(&args) } else { body::<LONG>(&args) } }
}

/// # Safety
///
/// As for [`rmsnorm`].
#[inline(always)]
unsafe fn body<const HELD: usize>(args: &Args) {
    let k = args.k;
    let weight = args.weight.as_ptr().cast_const();
    // SAFETY: `weight` holds K elements that never change.
    let gains: [f32; HELD] = unsafe { held_constants(weight, k) };
    launch_dependents();
    dependency_wait();

    let row = block_idx_x() as usize * k as usize;
    let (x, y) = (args.x.as_ptr().wrapping_add(row), args.y.as_ptr().wrapping_add(row));
    let delta = args.delta.as_ptr().cast_const();
    let delta = if delta.is_null() { delta } else { delta.wrapping_add(row) };
    // SAFETY: row m of `x` and of `delta`, both K long.
    let (held, squares): ([f32; HELD], f32) = unsafe { residual_row(x, delta, k) };
    let scratch: Shared<f32> = dynamic_shared_mem();
    // SAFETY: the block has SMEM_BYTES of shared memory, used by this call alone.
    let r = inv_rms(unsafe { block::sum_partials(scratch, squares) }, k, args.eps);

    let mut j = 0;
    while j < HELD {
        let i = element(j);
        if i < k {
            // SAFETY: y[m, i] with i < K belongs to this thread.
            unsafe { st(y.wrapping_add(i as usize), normalise(held[j], r, gains[j])) };
        }
        j += 1;
    }
    let mut i = element(HELD);
    while i < k {
        let at = i as usize;
        // SAFETY: i < K; x[m, i] and y[m, i] belong to this thread.
        unsafe {
            let v =
                normalise(ld(x.cast_const().wrapping_add(at)), r, ld_nc(weight.wrapping_add(at)));
            st(y.wrapping_add(at), v);
        }
        i += THREADS;
    }
}

const _: unsafe extern "ptx-kernel" fn(<RmsNorm as Kernel>::Args) = rmsnorm;
