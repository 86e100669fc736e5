//! Draws one token by integer weights.

use contract::num::order_key;
use contract::sample::{Args, PICK_THREADS, random, scale_random, top_p_target, weight};

use super::field;
use super::scan::{WARPS, message, over_threads, over_warps};
use super::select::{for_each, select};
use crate::arch::mem::{ld, ld_x2};
use crate::arch::thread::{sync_threads, thread_idx_x};
use crate::arch::warp::{LANES, ballot, lane_id, shuffle_idx_u64, shuffle_xor_u64, warp_id};

/// What top-k, top-p and min-p leave.
struct Kept {
    /// The logit that weighs one.
    best: f32,
    /// Lowest key.
    key: u32,
    /// Lowest weight.
    weight: u32,
}

impl Kept {
    /// The weight of a logit, 0 when it is not kept.
    #[inline(always)]
    fn weight(&self, x: f32) -> u64 {
        let w = weight(x, self.best);
        if order_key(x) >= self.key && w >= self.weight { u64::from(w) } else { 0 }
    }
}

/// The token of this step: steps 3 to 6 of the contract. Ends behind a barrier.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, the logits are adjusted, `best_index` is that
/// of the largest; the block has `PICK_SMEM_BYTES` of shared memory.
#[inline(always)]
pub(super) unsafe fn draw(args: &Args, best_index: u32) -> u32 {
    let (vocab, adjusted) = (args.vocab, args.adjusted.as_ptr().cast_const());
    // SAFETY: best_index < vocab.
    let best = unsafe { ld(adjusted.wrapping_add(best_index as usize)) };

    let top_k = field!(args.params -> top_k);
    let mut key = 0;
    if top_k != 0 && top_k < vocab {
        // SAFETY: the caller's promise.
        key = unsafe { select(adjusted, vocab, 0, |_| 1, |_| u64::from(top_k)) };
    }
    // SAFETY: one element, aligned to 8.
    let [low, high]: [u32; 2] =
        unsafe { ld_x2((&raw const (*args.params.as_ptr()).top_p_q32).cast()) };
    let top_p = u64::from(low) | u64::from(high) << 32;
    if top_p >> 32 == 0 {
        let own = |x| weight(x, best);
        // SAFETY: the caller's promise.
        let c = unsafe { select(adjusted, vocab, key, own, |total| top_p_target(total, top_p)) };
        key = key.max(c);
    }
    let kept = Kept { best, key, weight: field!(args.params -> min_weight) };

    // Each warp weighs a stretch of the vocabulary; then the block walks through the one stretch
    // that the random number falls into.
    let stretch = vocab.div_ceil(WARPS);
    let first = warp_id() * stretch;
    let end = (first + stretch).min(vocab);
    let mut sum = 0u64;
    // SAFETY: end <= vocab.
    unsafe { for_each(adjusted, first + lane_id(), LANES, end, |x| sum += kept.weight(x)) };
    let mut distance = LANES / 2;
    while distance > 0 {
        sum += shuffle_xor_u64(sum, distance);
        distance /= 2;
    }
    // SAFETY: one element, aligned to 8.
    let [low, high]: [u32; 2] = unsafe { ld_x2((&raw const (*args.params.as_ptr()).seed).cast()) };
    let random = random(u64::from(low) | u64::from(high) << 32, field!(args.state -> step));
    let (through, before, total) = over_warps(sum);
    if total == 0 {
        return best_index; // every thread; only when each logit is NaN
    }
    let point = scale_random(random, total);
    let warp = ballot(through > point).trailing_zeros();
    let rest = point - shuffle_idx_u64(before, warp);
    sync_threads();

    let first = warp * stretch;
    let end = (first + stretch).min(vocab);
    let share = stretch.div_ceil(PICK_THREADS); // neighbours, in index order
    let first = first + thread_idx_x() * share;
    let end = (first + share).min(end);
    let mut sum = 0u64;
    let mut i = first;
    while i < end {
        // SAFETY: i < vocab.
        sum += kept.weight(unsafe { ld(adjusted.wrapping_add(i as usize)) });
        i += 1;
    }
    let (before, _) = over_threads(sum);
    if before <= rest && rest < before + sum {
        let mut running = before;
        let mut i = first;
        while i < end {
            // SAFETY: i < vocab.
            running += kept.weight(unsafe { ld(adjusted.wrapping_add(i as usize)) });
            if running > rest {
                // SAFETY: exactly one thread is here; the others read behind the barrier.
                unsafe { message().write_u64(u64::from(i)) };
                break;
            }
            i += 1;
        }
    }
    sync_threads();
    // SAFETY: written before the barrier: the kept weigh more than `point`.
    unsafe { message().read_u64() as u32 }
}
