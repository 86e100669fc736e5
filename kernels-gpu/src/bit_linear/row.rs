//! The input row of a block: normed, quantised, in shared memory.
//!
//! As in [`crate::act_quant`] thread `t` owns elements `t, t + 256, ...`, of which the first stay in its
//! registers.

use contract::bit_linear::{Args, THREADS, WARPS};
use contract::num::{ORDINARY_ZERO, abs_bits, act_scale, fma, is_ordinary, quantise_ordinary};
use contract::rmsnorm::{inv_rms, normalise};
use contract::w2a8::{act_bytes, act_index};

use super::Memory;
use crate::act_quant::held::{element, step};
use crate::arch::block;
use crate::arch::grid::dependency_wait;
use crate::arch::mem::{ld, ld_if};
use crate::arch::thread::thread_idx_x;

/// Scale and sum of the quantised row.
#[derive(Clone, Copy)]
pub(super) struct Quantised {
    pub(super) scale: f32,
    pub(super) sum: i32,
}

/// Waits for the kernel in front, then quantises its row into shared memory. A thread holds `HELD`
/// elements; with `WHOLE` there are no others.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// `x`, and `norm` unless null, hold `k <= MAX_K` elements.
#[inline(always)]
pub(super) unsafe fn quantise<const HELD: usize, const WHOLE: bool>(
    args: &Args,
    memory: Memory,
) -> Quantised {
    let k = args.k;
    let (x, gain) = (args.x.as_ptr().cast_const(), args.norm.as_ptr().cast_const());
    let norm = !gain.is_null(); // the same for every thread
    // Before the wait: a load of the kind that ptxas leaves there (docs/codegen.md).
    // SAFETY: elements i < k of a constant.
    let gains: [f32; HELD] = unsafe { load_held(norm, gain, k) };
    dependency_wait();
    // SAFETY: elements i < k of the row.
    let mut row: [f32; HELD] = unsafe { load_held(true, x, k) };
    let mut r = 1.0;
    if norm {
        let mut squares = 0.0;
        let mut j = 0;
        while j < HELD {
            // Past the end this adds the square of zero to a sum that is not below zero.
            squares = fma(row[j], row[j], squares);
            j += 1;
        }
        let mut i = element(HELD);
        while !WHOLE && i < k {
            // SAFETY: i < k.
            let v = unsafe { ld(x.wrapping_add(i as usize)) };
            squares = fma(v, v, squares);
            i += THREADS;
        }
        // SAFETY: 256 words of the scratch, for this call.
        r = inv_rms(unsafe { block::sum_partials(memory.scratch, squares) }, k, args.eps);
        let mut j = 0;
        while j < HELD {
            // Past the end there are zeros, unless `r` is not finite; then the row is not either.
            row[j] = normalise(row[j], r, gains[j]);
            j += 1;
        }
    }
    let far = |i: u32| {
        let at = i as usize;
        // SAFETY: i < k, and `norm` is not null when there is one.
        unsafe {
            let v = ld(x.wrapping_add(at));
            if norm { normalise(v, r, ld(gain.wrapping_add(at))) } else { v }
        }
    };

    let mut top = 0;
    let mut j = 0;
    while j < HELD {
        top = top.max(abs_bits(row[j]));
        j += 1;
    }
    let mut i = element(HELD);
    while !WHOLE && i < k {
        top = top.max(abs_bits(far(i)));
        i += THREADS;
    }
    let words = memory.scratch.cast::<u32>().add(THREADS);
    // SAFETY: 8 words behind the partials, for this call.
    let scale = act_scale(f32::from_bits(unsafe { block::max(words, top) }));

    // In a row that is not finite every value is 0: so is every product with a scale of 0.
    let by = if is_ordinary(scale) { scale } else { 0.0 };
    let padded = act_bytes(k as usize) as u32;
    let own = memory.acts.add(act_index(thread_idx_x() as usize) as u32);
    let put = |j: usize, v: f32| {
        let v = if is_ordinary(scale) { v } else { 0.0 };
        let word = quantise_ordinary(v, by);
        // SAFETY: element(j) < act_bytes(K) <= MAX_K, and act_index maps each such index to a byte of its
        // own: that of the thread's first element, moved by `step`.
        unsafe { own.add(step(j) as u32).write_u8(word as u8) };
        word.wrapping_sub(ORDINARY_ZERO) as i32
    };
    let mut sum = 0;
    let mut j = 0;
    while j < HELD {
        // The same for every thread: a padded row is a multiple of the block.
        if THREADS * (j as u32) < padded {
            sum += put(j, row[j]);
        }
        j += 1;
    }
    while !WHOLE && element(j) < padded {
        let i = element(j);
        sum += put(j, if i < k { far(i) } else { 0.0 });
        j += 1;
    }
    // Its barrier also shows the row to the block.
    // SAFETY: 8 words behind those of the maximum, for this call.
    let sum = unsafe { block::sum(words.add(WARPS), sum) };
    Quantised { scale, sum }
}

/// The held elements of a vector of `k`, zeros past its end or without `enabled`.
///
/// # Safety
///
/// When `enabled`, `p` starts `k` elements that nobody writes meanwhile.
#[inline(always)]
unsafe fn load_held<const HELD: usize>(enabled: bool, p: *const f32, k: u32) -> [f32; HELD] {
    let mut held = [0.0; HELD];
    let mut j = 0;
    while j < HELD {
        let i = element(j);
        // SAFETY: i < k.
        held[j] = unsafe { ld_if(enabled && i < k, p.wrapping_add(i as usize)) };
        j += 1;
    }
    held
}
