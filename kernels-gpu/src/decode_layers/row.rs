//! The input row of a linear layer: normed, quantised, in shared memory.
//!
//! The arithmetic of `crate::bit_linear`, of rows that stay in registers whole.

use contract::decode_layers::{ACT_GROUP_BYTES, THREADS, WARPS};
use contract::num::{
    ABSMAX_FLOOR, ORDINARY_ZERO, abs_bits, act_scale, is_middling, is_ordinary, quantise_ordinary,
    quotient, recip_sqrt_middling, reciprocal,
};
use contract::rmsnorm::{inv_rms, normalise};

use super::exchange::squares;
use super::product::index;
use super::{Memory, TEAM_BARRIER};
use crate::arch::block;
use crate::arch::hint::opaque_here;
use crate::arch::mem::ld_if;
use crate::arch::thread::{sync_some, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, warp_id, warp_sum};

/// The number of this thread among the [`THREADS`] ones that have its row: the first ones of a block, or one of `TEAMS` teams.
#[inline(always)]
pub(super) fn own<const TEAMS: usize>() -> u32 {
    if TEAMS == 1 { thread_idx_x() } else { thread_idx_x() % THREADS }
}

/// The number of its warp among theirs.
#[inline(always)]
fn warp<const TEAMS: usize>() -> u32 {
    if TEAMS == 1 { warp_id() } else { own::<TEAMS>() / LANES }
}

/// Waits for the threads that have this thread's row.
///
/// *Convergence*: each of them calls it.
#[inline(always)]
pub(super) fn sync<const TEAMS: usize>() {
    let team = if TEAMS == 1 { 0 } else { thread_idx_x() / THREADS };
    sync_some(TEAM_BARRIER + team, THREADS);
}

/// The gains of the held elements, zeros past the end or where there are none.
///
/// # Safety
///
/// `norm` is null or starts `k` elements that nobody writes.
#[inline(always)]
pub(super) unsafe fn gains<const HELD: usize, const TEAMS: usize>(
    norm: *const f32,
    k: u32,
) -> [f32; HELD] {
    let mut gains = [0.0; HELD];
    let from = norm.wrapping_add(own::<TEAMS>() as usize);
    let mut j = 0;
    while j < HELD {
        let there = own::<TEAMS>() + THREADS * (j as u32) < k;
        // SAFETY: an element of the gain.
        gains[j] =
            unsafe { ld_if(!norm.is_null() && there, from.wrapping_add(THREADS as usize * j)) };
        j += 1;
    }
    gains
}

/// This thread's elements of the row of `k` that a launch starts with, zeros past its end, and the sum of their squares.
///
/// # Safety
///
/// `h` starts `k` elements that nobody writes meanwhile.
#[inline(always)]
pub(super) unsafe fn start<const HELD: usize, const TEAMS: usize>(
    h: *const f32,
    k: u32,
) -> ([f32; HELD], f32) {
    let mut row = [0.0; HELD];
    let mut j = 0;
    while j < HELD {
        let at = own::<TEAMS>() + THREADS * j as u32;
        // SAFETY: an element of the row.
        row[j] = unsafe { ld_if(at < k, h.wrapping_add(at as usize)) };
        j += 1;
    }
    (row, squares(row))
}

/// Norms and quantises the held elements of a row of `k`, with the sum of their squares, into shared memory.
///
/// *Convergence*: every thread that has the row calls it.
///
/// # Safety
///
/// Elements past the end are zeros; nobody uses the scratch or the quantised row before it since the last barrier.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "a maximum that is not a number, too")]
pub(super) unsafe fn quantise<const HELD: usize, const TEAMS: usize>(
    (mut row, squares): ([f32; HELD], f32),
    gains: [f32; HELD],
    norm: bool,
    [k, of_k]: [u32; 2],
    eps: f32,
    memory: Memory,
) -> Scale {
    if norm {
        // SAFETY: 256 words of the scratch, for this call.
        let squares = unsafe {
            if TEAMS == 1 {
                block::sum_partials_by(memory.scratch, squares, sync::<1>)
            } else {
                block::sum_partials_of(memory.scratch, own::<TEAMS>(), squares, sync::<TEAMS>)
            }
        };
        let r = factor(squares, k, of_k, eps);
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
    let top = f32::from_bits(unsafe {
        if TEAMS == 1 {
            block::max_by(words, top, sync::<1>)
        } else {
            block::max_of(words, warp::<TEAMS>(), top, sync::<TEAMS>)
        }
    });
    let mut scale = quick_scale(top);
    let mut by = scale;
    if !(top < LARGE) {
        scale = act_scale(top);
        by = if is_ordinary(scale) { scale } else { 0.0 };
        // In a row that is not finite every value is 0.
        if !is_ordinary(scale) {
            row = [0.0; HELD];
        }
    }
    let at = memory.acts.add(index(own::<TEAMS>() as usize) as u32);
    let mut sum = 0u32;
    let mut j = 0;
    while j < HELD {
        let word = quantise_ordinary(row[j], by);
        // Zeros past the end of the row: no condition is cheaper than fewer of them.
        // SAFETY: one of MAX_FFN elements, and each has a byte of its own.
        unsafe { at.add(ACT_GROUP_BYTES * j as u32).write_low_byte(word) };
        sum = sum.wrapping_add(word);
        j += 1;
    }
    let sum = warp_sum(sum.wrapping_sub((HELD as u32).wrapping_mul(ORDINARY_ZERO)) as i32);
    if lane_id() == 0 {
        // SAFETY: a word of each warp behind those of the maximum, which nobody has read since a barrier.
        unsafe { words.add(WARPS + warp::<TEAMS>()).write(sum as u32) };
    }
    let reciprocal = reciprocal(scale);
    // Shows row and sums to the block.
    sync::<TEAMS>();
    Scale { value: scale, reciprocal, quick: top < LARGE }
}

/// The scale of a quantised row, for what is divided by it.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) value: f32,
    reciprocal: f32,
    /// Whether it came from [`quick_scale`]: neither tiny nor huge.
    quick: bool,
}

impl Scale {
    /// `acc / scale` of each, the same bits: a sum of products is 0 or neither tiny nor huge.
    #[inline(always)]
    pub(super) fn divide(&self, acc: [i32; 2]) -> [f32; 2] {
        if self.quick {
            acc.map(|acc| quotient(acc as f32, self.value, self.reciprocal))
        } else {
            acc.map(|acc| f32::from_bits(opaque_here((acc as f32).to_bits())) / self.value)
        }
    }
}

/// `1 / k`, for [`quantise`].
#[inline(always)]
pub(super) fn of_k(k: u32) -> u32 {
    opaque_here(reciprocal(k as f32).to_bits())
}

/// [`inv_rms`], with `1 / k`.
#[inline(always)]
fn factor(squares: f32, k: u32, of_k: u32, eps: f32) -> f32 {
    let mean = quotient(squares, k as f32, f32::from_bits(of_k)) + eps;
    // Made before it is known whether it counts: a branch would wait for the conditions.
    let quick = f32::from_bits(opaque_here(recip_sqrt_middling(mean).to_bits()));
    if is_middling(squares) & is_middling(mean) { quick } else { inv_rms(squares, k, eps) }
}

/// Largest elements from here on are not for [`quick_scale`].
const LARGE: f32 = (1u128 << 64) as f32;

/// [`act_scale`] without its branch.
#[inline(always)]
fn quick_scale(top: f32) -> f32 {
    let top = if top < ABSMAX_FLOOR { ABSMAX_FLOOR } else { top };
    quotient(127.0, top, reciprocal(top))
}

/// The sum of the row that was quantised.
///
/// # Safety
///
/// Between [`quantise`] and this there is no barrier of another call's.
#[inline(always)]
pub(super) unsafe fn sum(memory: Memory) -> i32 {
    let words = memory.scratch.cast::<u32>().add(THREADS + WARPS);
    // SAFETY: the caller's promise: a word of each warp.
    let [a, b] = unsafe { [words.read_x4(), words.add(4).read_x4()] };
    let mut sum = 0u32;
    let mut i = 0;
    while i < 4 {
        sum = sum.wrapping_add(a[i]).wrapping_add(b[i]);
        i += 1;
    }
    sum as i32
}

const _: () = assert!(WARPS == block::WARPS && THREADS == block::THREADS && THREADS == 256);
