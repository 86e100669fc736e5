//! A row of `f32` over a block: thread `t` owns elements `t, t + 256, ...`.
//!
//! The first `HELD` of them stay in its registers between the passes; rows longer than that read the
//! others again. Each kernel has two bodies, for [`SHORT`] and for [`LONG`], because a short row should
//! not pay for a long one's loops.

use contract::act_quant::THREADS;
use contract::w2a8::act_index;

use crate::arch::mem::{ld, ld_if, ld_nc_if, st};
use crate::arch::mem_if::st_if;
use crate::arch::thread::thread_idx_x;

/// Elements of a thread that stay in registers, in the body for rows up to 2,560.
pub(crate) const SHORT: usize = 10;
/// The same in the body for longer rows: those up to 7,168 are read once.
pub(crate) const LONG: usize = 28;

/// Whether a row of `k` elements fits the registers of the [`SHORT`] body.
#[inline(always)]
pub(crate) fn is_short(k: u32) -> bool {
    k <= THREADS * SHORT as u32
}

/// Index of element `j` of this thread.
#[inline(always)]
pub(crate) fn element(j: usize) -> u32 {
    thread_idx_x() + THREADS * j as u32
}

/// How far apart elements `i` and `i + 256 j` of a row of activations stand, for `i < 256`.
#[inline(always)]
pub(crate) const fn step(j: usize) -> usize {
    act_index(THREADS as usize * j)
}

const _: () = {
    let mut i = 0;
    while i < THREADS as usize {
        let mut j = 0;
        while j < 5 {
            assert!(act_index(i + THREADS as usize * j) == act_index(i) + step(j));
            j += 1;
        }
        i += 1;
    }
};

/// The held elements of a vector of `k` that no kernel writes; zeros past its end.
///
/// # Safety
///
/// `p` is null or starts `k` readable elements that nobody writes while this kernel, or the one
/// before it, runs.
#[inline(always)]
pub(super) unsafe fn held_constants<const HELD: usize>(p: *const f32, k: u32) -> [f32; HELD] {
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
/// (zeros past the end) and this thread's partial of a sum: `take(partial, x)` adds what an element gives, for a
/// zero nothing.
///
/// # Safety
///
/// `x`, and `delta` unless null, start `k` elements; those of this thread are its own.
#[inline(always)]
pub(super) unsafe fn residual_row<const HELD: usize>(
    x: *mut f32,
    delta: *const f32,
    k: u32,
    take: impl Fn(f32, f32) -> f32,
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
    let mut sum = 0.0;
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        held[j] = if add { held[j] + deltas[j] } else { held[j] };
        // SAFETY: x[i] belongs to this thread.
        unsafe { st_if(add && i < k, x.wrapping_add(i as usize), held[j]) };
        // Past the end this adds zero to a sum that is not minus zero.
        sum = take(sum, held[j]);
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
            sum = take(sum, v);
        }
        i += THREADS;
    }
    (held, sum)
}
