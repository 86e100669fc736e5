//! Draws one token by integer weights.

use contract::num::order_key;
use contract::sample::{
    Args, PICK_THREADS, random, scale_random, top_p_target, weight, weight_floor,
};

use super::scan::{WARPS, message, over_threads, over_warps};
use super::select::{for_each, select};
use super::team::Team;
use super::{field, list, long_field};
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
        // Most logits end here, before the exponential.
        if order_key(x) < self.key {
            return 0;
        }
        let w = weight(x, self.best);
        if w >= self.weight { u64::from(w) } else { 0 }
    }
}

/// What the step asks for, and its random number.
pub(crate) struct Asked {
    /// The logit that weighs one.
    pub(super) best: f32,
    /// 0 keeps all.
    pub(super) top_k: u32,
    /// 2^32 keeps all.
    pub(super) top_p: u64,
    /// Lowest weight.
    pub(super) min_weight: u32,
    /// 64 random bits.
    pub(super) random: u64,
}

impl Asked {
    /// What `args` asks for, beside the best logit.
    ///
    /// # Safety
    ///
    /// `params` and `state` cover the contract's table.
    #[inline(always)]
    pub(crate) unsafe fn of(args: &Args, best: f32) -> Self {
        let top_k = field!(args.params -> top_k);
        Self {
            best,
            top_k: if top_k < args.vocab { top_k } else { 0 },
            top_p: long_field!(args.params -> top_p_q32),
            min_weight: field!(args.params -> min_weight),
            random: random(long_field!(args.params -> seed), field!(args.state -> step)),
        }
    }

    /// Whether top-p can drop a token.
    #[inline(always)]
    pub(super) fn has_top_p(&self) -> bool {
        self.top_p >> 32 == 0
    }
}

/// The token of this step, in one block of the team: steps 3 to 6 of the contract. Ends behind a barrier.
///
/// *Convergence*: every thread of the team calls it.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table, the logits are adjusted, `best_index` is that
/// of the largest; the block has `PICK_SMEM_BYTES` of shared memory.
#[inline(always)]
pub(super) unsafe fn draw(team: impl Team, args: &Args, best_index: u32) -> Option<u32> {
    // SAFETY: best_index < vocab; the caller's promise.
    unsafe {
        let best = ld(args.adjusted.as_ptr().cast_const().wrapping_add(best_index as usize));
        let asked = Asked::of(args, best);
        // With top-k the first block needs no other for it.
        let shared = asked.top_k == 0;
        let token = if shared || team.rank() == 0 {
            list::draw(team, args, best_index, &asked)
        } else {
            None
        };
        if !shared && team.first_says(token.is_some()) {
            return token;
        }
        let token = match token {
            Some(token) => (team.rank() == 0).then_some(token),
            None => from_all(team, args, best_index, &asked),
        };
        team.part(); // all have read what changes
        token
    }
}

/// [`draw`] from all logits.
///
/// # Safety
///
/// As for [`draw`].
#[inline(always)]
unsafe fn from_all(team: impl Team, args: &Args, best_index: u32, asked: &Asked) -> Option<u32> {
    let (vocab, adjusted) = (args.vocab, args.adjusted.as_ptr().cast_const());
    let (best, mut key) = (asked.best, weight_floor(asked.best));
    if asked.top_k != 0 {
        // SAFETY: the caller's promise.
        let k = unsafe { select(team, (adjusted, vocab), key, |_| 1, |_| u64::from(asked.top_k)) };
        key = key.max(k);
    }
    if asked.has_top_p() {
        let own = |x| weight(x, best);
        let target = |total| top_p_target(total, asked.top_p);
        // SAFETY: the caller's promise.
        let c = unsafe { select(team, (adjusted, vocab), key, own, target) };
        key = key.max(c);
    }
    let kept = Kept { best, key, weight: asked.min_weight };

    // Each warp weighs a stretch of the vocabulary; then its block walks through the one stretch
    // that the random number falls into.
    let stretch = vocab.div_ceil(4 * WARPS * team.blocks()) * 4;
    let warps = WARPS * team.rank();
    let first = (warps + warp_id()) * stretch;
    let end = (first + stretch).min(vocab);
    let mut sum = 0u64;
    // SAFETY: end <= vocab.
    unsafe { for_each(adjusted, first + 4 * lane_id(), 4 * LANES, end, |x| sum += kept.weight(x)) };
    let mut distance = LANES / 2;
    while distance > 0 {
        sum += shuffle_xor_u64(sum, distance);
        distance /= 2;
    }
    let (through, before, of_block) = over_warps(sum);
    let (of_others, total) = team.sums(of_block);
    if total == 0 {
        return (team.rank() == 0).then_some(best_index); // every thread; only when each logit is NaN
    }
    let point = scale_random(asked.random, total).wrapping_sub(of_others);
    if team.blocks() > 1 && point >= of_block {
        return None; // every thread of the block
    }
    let warp = ballot(through > point).trailing_zeros();
    let rest = point - shuffle_idx_u64(before, warp);
    sync_threads();

    let first = (warps + warp) * stretch;
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
    Some(unsafe { message().read_u64() as u32 })
}
