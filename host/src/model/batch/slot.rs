//! What a batch knows of a sequence, and what its steps are recorded for.

use contract::attention_paged::PAGE;
use contract::sample::SampleParams;

use crate::model::ModelError;
use crate::model::bitnet::{SMALLEST_RECORDING, check_tokens};
use crate::model::logprobs::{Extras, TokenLogprobs, Way};

/// A sequence in its slot.
pub(super) struct Slot {
    pub(super) pages: Vec<u32>,
    pub(super) prompt: Vec<u32>,
    /// Tokens of the prompt that have run.
    pub(super) ran: usize,
    /// Those of them whose pages were there.
    pub(super) cached: usize,
    /// Tokens that the sampler was asked for: none before all of the prompt has run.
    pub(super) queued: usize,
    /// Tokens that it gives at most.
    pub(super) limit: usize,
    pub(super) params: SampleParams,
    /// Whether its sampler was told what the next token may be, where it has to be.
    pub(super) allowed: bool,
    /// What is told of its tokens, and added to their logits.
    pub(super) extras: Extras,
    /// What was told of its prompt so far.
    pub(super) prompt_told: Vec<TokenLogprobs>,
}

impl Slot {
    /// Whether `token` ends it.
    pub(super) fn stops(&self, token: u32) -> bool {
        self.params.stop_ids[..self.params.stop_len as usize].contains(&token)
    }

    /// How its next tokens are found.
    pub(super) fn way(&self) -> Way {
        Way::of(&self.params, &self.extras)
    }

    /// Whether it can be guessed for: it never rests and has no extras.
    pub(super) fn is_plain(&self) -> bool {
        self.params.rests == 0 && self.way() == Way::default()
    }

    /// Whether a step gives it a token, if its prompt has run.
    pub(super) fn is_due(&self) -> bool {
        self.params.rests == 0 || self.allowed
    }
}

/// What a sequence takes, known before it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Tokens that it gives at most.
    pub(crate) limit: usize,
    /// Pages for the prompt and all of them.
    pub(crate) pages: usize,
}

impl Needs {
    /// What `prompt` and `params` take of a batch of a model with `vocab` tokens.
    ///
    /// # Errors
    /// A prompt that is empty or does not fit the context, ids outside of the vocabulary.
    pub(crate) fn of(
        vocab: usize,
        capacity: usize,
        prompt: &[u32],
        params: &SampleParams,
    ) -> Result<Self, ModelError> {
        check_tokens(vocab, prompt, 0, capacity)?;
        // The last token that is picked is not run.
        let limit = (capacity - prompt.len() + 1).min(params.max_steps.max(1) as usize);
        Ok(Self { limit, pages: (prompt.len() + limit - 1).div_ceil(PAGE) })
    }
}

/// What a step is recorded for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// The slot of the first row: that of a lone sequence, else 0; of rows of drafts, which come behind the slots, their number.
    pub(super) first: usize,
    /// Rows.
    pub(super) m: usize,
    /// Positions that it reaches.
    pub(super) reach: usize,
    /// [`PagedStep::share`].
    pub(super) share: Option<usize>,
    /// How next tokens are found.
    pub(super) way: Way,
}

/// Rows of a step in which the first `rows` slots take part: the next size that steps are recorded for.
pub(super) fn class(rows: usize, max_batch: usize) -> usize {
    let size = match rows {
        ..=8 => rows.next_power_of_two(),
        9..=16 => rows.next_multiple_of(4),
        _ => rows.next_multiple_of(8),
    };
    size.min(max_batch)
}

/// Positions that a step is recorded for which has to reach `needed`.
pub(super) fn reach(needed: usize, capacity: usize) -> usize {
    // Blocks of an attention step that have no page still take a place each.
    let step = (needed.next_power_of_two() / 8).max(SMALLEST_RECORDING);
    needed.next_multiple_of(step).min(capacity)
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn a_step_has_room_for_all_and_few_sizes() {
        let mut sizes: Vec<_> = (1..=100).map(|rows| class(rows, 100)).collect();
        assert!((1..=100).zip(&sizes).all(|(rows, &size)| (rows..=100).contains(&size)));
        sizes.dedup();
        assert_eq!(sizes[..7], [1, 2, 4, 8, 12, 16, 24]);
        assert_eq!(sizes.last(), Some(&100));
    }
}
