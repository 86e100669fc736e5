//! The input row of a linear layer: normed, quantised, in shared memory.
//!
//! The arithmetic of `crate::bit_linear`, of rows that stay in registers whole.

use contract::decode_layers::{THREADS, WARPS};
use contract::num::{ORDINARY_ZERO, abs_bits, act_scale, fma, is_ordinary, quantise_ordinary};
use contract::rmsnorm::{inv_rms, normalise};
use contract::w2a8::act_bytes;

use super::Memory;
use super::product::index;
use crate::act_quant::held::step;
use crate::arch::block;
use crate::arch::mem::ld_if;
use crate::arch::thread::thread_idx_x;

/// Scale and sum of the quantised row.
#[derive(Clone, Copy)]
pub(super) struct Quantised {
    pub(super) scale: f32,
    pub(super) sum: i32,
}

/// The gains of the held elements, zeros past the end or where there are none.
///
/// # Safety
///
/// `norm` is null or starts `k` elements that nobody writes.
#[inline(always)]
pub(super) unsafe fn gains<const HELD: usize>(norm: *const f32, k: u32) -> [f32; HELD] {
    let mut gains = [0.0; HELD];
    let own = norm.wrapping_add(thread_idx_x() as usize);
    let mut j = 0;
    while j < HELD {
        let there = thread_idx_x() + THREADS * (j as u32) < k;
        // SAFETY: an element of the gain.
        gains[j] =
            unsafe { ld_if(!norm.is_null() && there, own.wrapping_add(THREADS as usize * j)) };
        j += 1;
    }
    gains
}

/// Norms and quantises the held elements of a row of `k` into shared memory.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// Elements past the end are zeros; nobody uses the scratch or the quantised row before it since the last barrier.
#[inline(always)]
pub(super) unsafe fn quantise<const HELD: usize>(
    mut row: [f32; HELD],
    gains: [f32; HELD],
    norm: bool,
    k: u32,
    eps: f32,
    memory: Memory,
) -> Quantised {
    if norm {
        let mut squares = 0.0;
        let mut j = 0;
        while j < HELD {
            squares = fma(row[j], row[j], squares);
            j += 1;
        }
        // SAFETY: 256 words of the scratch, for this call.
        let r = inv_rms(unsafe { block::sum_partials(memory.scratch, squares) }, k, eps);
        let mut j = 0;
        while j < HELD {
            // Past the end there are zeros, unless `r` is not finite; then the row is not either.
            row[j] = normalise(row[j], r, gains[j]);
            j += 1;
        }
    }
    let mut top = 0;
    let mut j = 0;
    while j < HELD {
        top = top.max(abs_bits(row[j]));
        j += 1;
    }
    let words = memory.scratch.cast::<u32>().add(THREADS);
    // SAFETY: a word of each warp behind the partials, for this call.
    let scale = act_scale(f32::from_bits(unsafe { block::max(words, top) }));
    // In a row that is not finite every value is 0.
    if !is_ordinary(scale) {
        row = [0.0; HELD];
    }
    let by = if is_ordinary(scale) { scale } else { 0.0 };
    let padded = act_bytes(k as usize) as u32;
    let own = memory.acts.add(index(thread_idx_x() as usize) as u32);
    let mut sum = 0;
    let mut j = 0;
    while j < HELD {
        // The same for every thread: a padded row is a multiple of the block.
        if THREADS * (j as u32) < padded {
            let word = quantise_ordinary(row[j], by);
            // SAFETY: below act_bytes(k), and index maps each index to a byte of its own: that of the thread's
            // first element, moved by `step`.
            unsafe { own.add(step(j) as u32).write_u8(word as u8) };
            sum += word.wrapping_sub(ORDINARY_ZERO) as i32;
        }
        j += 1;
    }
    // Its barrier also shows the row to the block.
    // SAFETY: a word of each warp behind those of the maximum, for this call.
    let sum = unsafe { block::sum(words.add(WARPS), sum) };
    Quantised { scale, sum }
}

const _: () = assert!(WARPS == block::WARPS && THREADS == block::THREADS);
