//! The input row of a linear layer: normed, quantised, in shared memory.
//!
//! The arithmetic of `crate::bit_linear`, of rows that stay in registers whole. Threads `p` and `p + 256` share partial sum `p`
//! of the norm: they take its elements in turn, and the first one, which sums, reads those of the other as well.

use contract::decode_layers::{PARTIALS, THREADS, WARPS};
use contract::num::{
    ORDINARY_ZERO, abs_bits, act_scale, fma, is_ordinary, quantise_ordinary, tree8,
};
use contract::rmsnorm::{inv_rms, normalise};
use contract::w2a8::{act_bytes, act_index};

use super::{Memory, exchange};
use crate::arch::mem::ld_if;
use crate::arch::shared::Shared;
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id, warp_max, warp_sum, warp_tree};

/// How far apart elements `i` and `i + THREADS` stand in a row of activations.
const STEP: usize = act_index(THREADS as usize);

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
        gains[j] = unsafe { ld_if(!norm.is_null() && there, own.wrapping_add(THREADS as usize * j)) };
        j += 1;
    }
    gains
}

/// The held elements of a row, and the partial sum of squares of threads below 256.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// As for [`exchange::take`].
#[inline(always)]
pub(super) unsafe fn take<const HELD: usize, const BOTH: usize>(
    source: *const u32,
    k: Shared<u32>,
    waits: bool,
) -> ([f32; HELD], f32) {
    const { assert!(BOTH == 2 * HELD) };
    const ALL: usize = THREADS as usize;
    const HALF: usize = PARTIALS as usize;
    if thread_idx_x() >= PARTIALS {
        // SAFETY: the caller's promise.
        let held = unsafe { exchange::take::<HELD, ALL>(source, thread_idx_x(), k, waits) };
        return (held, 0.0);
    }
    // SAFETY: the caller's promise.
    let both = unsafe { exchange::take::<BOTH, HALF>(source, thread_idx_x(), k, waits) };
    let mut held = [0.0; HELD];
    let mut squares = 0.0;
    let mut j = 0;
    while j < BOTH {
        // Past the end this adds the square of zero to a sum that is not below zero.
        squares = fma(both[j], both[j], squares);
        if j % 2 == 0 {
            held[j / 2] = both[j];
        }
        j += 1;
    }
    (held, squares)
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
    squares: f32,
    gains: [f32; HELD],
    norm: bool,
    k: u32,
    eps: f32,
    memory: Memory,
) -> Quantised {
    if norm {
        // SAFETY: 256 words of the scratch, for this call.
        let r = inv_rms(unsafe { sum_partials(memory.scratch, squares) }, k, eps);
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
    let words = memory.scratch.cast::<u32>().add(PARTIALS);
    // SAFETY: a word of each warp behind the partials, for this call.
    let tops = unsafe { gather(words, warp_max(top)) };
    let scale = act_scale(f32::from_bits(fold(tops, |a, b| a.max(b))));
    // In a row that is not finite every value is 0.
    if !is_ordinary(scale) {
        row = [0.0; HELD];
    }
    let by = if is_ordinary(scale) { scale } else { 0.0 };
    let padded = act_bytes(k as usize) as u32;
    let own = memory.acts.add(act_index(thread_idx_x() as usize) as u32);
    let mut sum = 0;
    let mut j = 0;
    while j < HELD {
        // The same for every thread: a padded row is a multiple of the block.
        if THREADS * (j as u32) < padded {
            let word = quantise_ordinary(row[j], by);
            // SAFETY: below act_bytes(k), and act_index maps each index to a byte of its own: that of the thread's
            // first element, moved by so many steps.
            unsafe { own.add((STEP * j) as u32).write_u8(word as u8) };
            sum += word.wrapping_sub(ORDINARY_ZERO) as i32;
        }
        j += 1;
    }
    // Its barrier also shows the row to the block.
    // SAFETY: a word of each warp behind those of the maximum, for this call.
    let sums = unsafe { gather(words.add(WARPS), warp_sum(sum) as u32) };
    Quantised { scale, sum: fold(sums, u32::wrapping_add) as i32 }
}

/// The sum of the partials of the first 256 threads, in every thread.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// `scratch` starts 256 words that no thread accesses between the barrier before this call and the one after it.
#[inline(always)]
unsafe fn sum_partials(scratch: Shared<f32>, partial: f32) -> f32 {
    if thread_idx_x() < PARTIALS {
        // SAFETY: a word of this thread.
        unsafe { scratch.add(thread_idx_x()).write(partial) };
    }
    sync_threads();
    let mut column = [0.0; 8];
    let mut i = 0;
    while i < 8 {
        // SAFETY: below 256, written before the barrier.
        column[i] = unsafe { scratch.add(lane_id() + LANES * i as u32).read() };
        i += 1;
    }
    // Distances 128, 64, 32 of the tree are 4, 2, 1 warps.
    warp_tree(tree8(column))
}

/// One word from each warp, in every thread.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// As for [`sum_partials`], of a word for each warp.
#[inline(always)]
unsafe fn gather(scratch: Shared<u32>, of_warp: u32) -> [[u32; 4]; 4] {
    if lane_id() == 0 {
        // SAFETY: a word of this warp.
        unsafe { scratch.add(warp_id()).write(of_warp) };
    }
    sync_threads();
    // SAFETY: 16 words, written before the barrier.
    [0, 1, 2, 3].map(|i| unsafe { scratch.add(4 * i).read_x4() })
}

/// All words as one.
#[inline(always)]
fn fold([a, b, c, d]: [[u32; 4]; 4], join: impl Fn(u32, u32) -> u32) -> u32 {
    let four = |[a, b, c, d]: [u32; 4]| join(join(a, b), join(c, d));
    join(join(four(a), four(b)), join(four(c), four(d)))
}

const _: () = {
    assert!(WARPS == 16);
    let mut i = 0;
    while i < THREADS as usize {
        let mut j = 0;
        while j < 5 {
            assert!(act_index(i + THREADS as usize * j) == act_index(i) + STEP * j);
            j += 1;
        }
        i += 1;
    }
};
