//! Device side of [`contract::lm_head_int8`]: [`pack`] makes the copy of the table and the digits of an
//! input, [`scan`] the bounds of every row (`scan_rows` and `scan_wide` those of several inputs), [`rescore`] the logits of those that can
//! win, for the sampler.

pub mod pack;
#[cfg(level_sm_90)]
pub mod pick;
pub mod rescore;
pub mod scan;
#[cfg(level_sm_80)]
pub mod scan_rows;
#[cfg(level_sm_90a)]
pub mod scan_wide;

#[cfg(level_sm_90)]
use contract::lm_head::Only;
use contract::lm_head_int8::{Args, Asked, BARRED, LIST_HEAD, LIST_ROWS, has_bounds};
#[cfg(level_sm_90)]
use contract::lm_head_int8::{in_clusters, input_words};
use contract::sample::{SampleParams, StepState};

use crate::arch::atomic::{add_relaxed, max_u64_relaxed};
use crate::arch::mem::{ld, ld_relaxed, ld_x2, ld_x4, st_x2};

/// What the sampler asks for.
///
/// # Safety
///
/// `params` covers the contract's table.
#[inline(always)]
unsafe fn asked(params: *const SampleParams) -> Asked {
    // SAFETY: fields of the one element.
    unsafe {
        Asked {
            temperature: ld(&raw const (*params).temperature),
            penalty: ld(&raw const (*params).repetition_penalty),
            top_k: ld(&raw const (*params).top_k),
            whole: ld(&raw const (*params).every) != 0,
            least: Asked::least(
                ld(&raw const (*params).min_weight),
                // Its low half does not matter.
                u64::from(ld_x2((&raw const (*params).top_p_q32).cast::<[u32; 2]>())[1]) << 32,
            ),
        }
    }
}

/// Whether the row's text has ended: then nobody asks for its logits.
///
/// # Safety
///
/// `state` covers the contract's table.
#[inline(always)]
unsafe fn ended(state: *const StepState) -> bool {
    // SAFETY: a field of the one element.
    unsafe { ld(&raw const (*state).done) != 0 }
}

/// What is kept of the input.
///
/// # Safety
///
/// `input` covers the contract's table.
#[inline(always)]
unsafe fn input_stats(input: *const u32) -> [f32; 4] {
    // SAFETY: the first words; the tensor is aligned to 16.
    unsafe { ld_x4(input.cast()) }
}

/// Whether input `row` of `only` needs every logit.
///
/// # Safety
///
/// The pointers of `only` cover the contract's table for that input, of `k` values, and `vocab` rows.
#[cfg(level_sm_90)]
#[inline(always)]
pub(crate) unsafe fn needs_every(only: &Only, row: u32, k: u32, vocab: u32) -> bool {
    let (at, words) = (row as usize, input_words(k as usize, vocab));
    // SAFETY: the elements of this input.
    let (asked, ended, stats) = unsafe {
        (
            asked(only.params.as_ptr().cast_const().wrapping_add(at)),
            ended(only.state.as_ptr().cast_const().wrapping_add(at)),
            input_stats(only.input.as_ptr().cast_const().wrapping_add(at * words)),
        )
    };
    !ended && asked.every(stats, vocab)
}

/// How many of the best logits decide, or the best that others are weighed by; 0 when every one is computed.
#[inline(always)]
fn wanted(asked: &Asked, input: [f32; 4], vocab: u32) -> u32 {
    if has_bounds(input) { asked.wanted(vocab) } else { 0 }
}

/// Whether `lm_head_int8_pick` computes the logits that can win: they are few, and the list that starts with `head` has them all, where there is one.
#[cfg(level_sm_90)]
#[inline(always)]
fn listed(args: &Args, asked: &Asked, wanted: u32, head: [u32; 4]) -> bool {
    in_clusters(args.m, args.k)
        && wanted != 0
        && !asked.weighs(args.vocab)
        && !(asked.alone(args.vocab) && (head[2] == 0 || head[2] > LIST_ROWS))
}

/// The largest lower bound so far of an input that has a list, as a key.
///
/// # Safety
///
/// `input` covers the contract's table.
#[inline(always)]
unsafe fn known_floor(args: &Args) -> u32 {
    // SAFETY: the low half of a key that others change as a whole.
    unsafe { ld_relaxed(args.scratch().as_ptr().cast_const()) }
}

/// Tells others of a lower bound, as a key.
///
/// # Safety
///
/// As for [`known_floor`].
#[inline(always)]
unsafe fn raise_floor(args: &Args, key: u32) {
    // SAFETY: 64 bits of a row that is aligned to 16, changed by this instruction alone.
    unsafe { max_u64_relaxed(args.scratch().as_ptr().cast(), u64::from(key)) };
}

/// Lists a row, with the key of its upper bound, unless it is forbidden.
///
/// # Safety
///
/// As for [`known_floor`].
#[inline(always)]
unsafe fn enlist(args: &Args, row: u32, key: u32) {
    if key <= BARRED {
        return;
    }
    let scratch = args.scratch().as_ptr();
    // SAFETY: the count, changed by this instruction alone; a place for this row alone.
    unsafe {
        let at = add_relaxed(scratch.wrapping_add(2), 1);
        if at < LIST_ROWS {
            st_x2(scratch.wrapping_add((LIST_HEAD + 2 * at) as usize).cast(), [row, key]);
        }
    }
}
