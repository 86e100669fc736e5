//! What loading and generating took.

use serde::Serialize;

use super::runner::Counts;
use crate::model::HeadKind;
use crate::tune::TuningState;

/// What it took to load a model.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadStats {
    /// Seconds from opening the file to weights on the device.
    pub seconds: f64,
    /// Bytes of the checkpoint's weights.
    pub file_bytes: u64,
    /// Seconds to open the device (driver, context, kernels).
    pub device_seconds: f64,
    /// Measured choices of kernel variants that are in force.
    pub tuning: TuningState,
    /// How steps find the next token; of several devices int8 where each has a copy.
    pub head: HeadKind,
}

/// What it took to generate a text.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GenerateStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, tokens that were still in the cache.
    pub cached_tokens: usize,
    /// Tokens of the text, the stop token included.
    pub generated_tokens: usize,
    /// Tokens that were guessed, and checked several at a time ([`super::SessionBuilder::lookup`]).
    pub drafted_tokens: usize,
    /// Those of them that were the next ones: tokens of the text that took no step of their own.
    pub accepted_tokens: usize,
    /// Seconds from the call to the first token.
    pub prefill_seconds: f64,
    /// Seconds from the first token to the last.
    pub decode_seconds: f64,
}

impl GenerateStats {
    pub(super) fn count(&mut self, counts: Counts) {
        let Counts { cached, drafted, accepted } = counts;
        (self.cached_tokens, self.drafted_tokens, self.accepted_tokens) =
            (cached, drafted, accepted);
    }

    /// Prompt tokens per second, of those that were not cached; 0 when nothing ran.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)
    }

    /// Decoded tokens per second after the first; 0 when there was only one.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode_seconds)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if count == 0 || seconds <= 0.0 { 0.0 } else { count as f64 / seconds }
}
