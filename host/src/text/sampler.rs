//! What a caller may ask of sampling and of stopping, and the ranges.
//!
//! The arithmetic is the `sample` kernel family's; this is only its input, checked before a model
//! runs. Order of application: repetition penalty, temperature, top-k, top-p, min-p. Random numbers
//! are counter-based, so one `seed` gives one text on every device.

use super::{Grammar, TextError};
use serde::Serialize;

/// Most tokens that one call may ask for.
pub const MAX_TOKENS: usize = 1 << 20;
/// Most stop strings.
pub const MAX_STOPS: usize = 32;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// How tokens are chosen and when generation ends.
///
/// ```
/// use bitnet_gpu::text::SamplingParams;
/// let greedy = SamplingParams { temperature: 0.0, max_tokens: 64, ..Default::default() };
/// greedy.validate().unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SamplingParams {
    /// Divides the logits, `0..=100`. Zero takes the largest logit (greedy), whatever the rest says.
    pub temperature: f32,
    /// Keeps the `top_k` largest logits; zero keeps all.
    pub top_k: u32,
    /// Keeps the smallest set whose probability reaches `top_p`, `0 < top_p <= 1`; one keeps all.
    pub top_p: f32,
    /// Drops tokens below `min_p` times the largest probability, `0..=1`; zero keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens already present, `0.1..=10`; one
    /// leaves them.
    pub repetition_penalty: f32,
    /// Key of the counter-based random numbers.
    pub seed: u64,
    /// Tokens to generate at most, `1..=`[`MAX_TOKENS`].
    pub max_tokens: usize,
    /// Texts that end generation and are not part of the output; at most [`MAX_STOPS`] of at most
    /// [`MAX_STOP_BYTES`] bytes.
    pub stop: Vec<String>,
    /// Token ids that end generation, besides the tokenizer's own.
    pub stop_ids: Vec<u32>,
    /// Goes on after the model's end token (for measuring).
    pub ignore_eos: bool,
    /// What the text has to be. Tokens that it forbids are not drawn, and it ends the text where nothing may follow. Each token waits for the one
    /// before; nothing is [guessed](crate::session::Lookup) meanwhile.
    pub grammar: Option<Grammar>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            max_tokens: 256,
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            grammar: None,
        }
    }
}

impl SamplingParams {
    /// Checks every range.
    ///
    /// # Errors
    /// [`TextError::Setting`] names the first field that is out of range.
    pub fn validate(&self) -> Result<(), TextError> {
        let real = |name, value: f32, ok: bool, allowed| match ok {
            true => Ok(()),
            false => Err(TextError::Setting { name, found: value.to_string(), allowed }),
        };
        // A NaN is in no range, so it is refused by each of these.
        real(
            "temperature",
            self.temperature,
            (0.0..=100.0).contains(&self.temperature),
            "0 to 100",
        )?;
        real("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, up to 1")?;
        real("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1")?;
        let penalty = self.repetition_penalty;
        real("repetition_penalty", penalty, (0.1..=10.0).contains(&penalty), "0.1 to 10")?;
        let count = |name, value: usize, ok: bool, allowed| match ok {
            true => Ok(()),
            false => Err(TextError::Setting { name, found: value.to_string(), allowed }),
        };
        let max = self.max_tokens;
        count("max_tokens", max, (1..=MAX_TOKENS).contains(&max), "1 to 1048576")?;
        let stops = self.stop.len();
        count("stop", stops, stops <= MAX_STOPS, "at most 32 stop strings")?;
        for stop in &self.stop {
            let bytes = stop.len();
            count("stop", bytes, (1..=MAX_STOP_BYTES).contains(&bytes), "1 to 1024 bytes each")?;
        }
        Ok(())
    }

    /// Whether the largest logit is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl Fn(&mut SamplingParams)) -> &'static str {
        let mut params = SamplingParams::default();
        change(&mut params);
        match params.validate() {
            Err(TextError::Setting { name, .. }) => name,
            other => panic!("{params:?} gave {other:?}"),
        }
    }

    #[test]
    fn each_field_is_refused_by_its_own_name() {
        for bad in [-0.1, 100.5, f32::NAN, f32::INFINITY] {
            assert_eq!(refused(|p| p.temperature = bad), "temperature");
        }
        for bad in [0.0, -1.0, 1.01, f32::NAN] {
            assert_eq!(refused(|p| p.top_p = bad), "top_p");
        }
        for bad in [-0.1, 1.1, f32::NAN] {
            assert_eq!(refused(|p| p.min_p = bad), "min_p");
        }
        for bad in [0.0, 10.1, -2.0, f32::NAN] {
            assert_eq!(refused(|p| p.repetition_penalty = bad), "repetition_penalty");
        }
        assert_eq!(refused(|p| p.max_tokens = 0), "max_tokens");
        assert_eq!(refused(|p| p.max_tokens = MAX_TOKENS + 1), "max_tokens");
        assert_eq!(refused(|p| p.stop = vec![String::new()]), "stop");
        assert_eq!(refused(|p| p.stop = vec!["x".repeat(MAX_STOP_BYTES + 1)]), "stop");
        assert_eq!(refused(|p| p.stop = vec!["x".into(); MAX_STOPS + 1]), "stop");
    }

    #[test]
    fn the_ends_of_the_ranges_are_inside() {
        let params = SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 1.0,
            repetition_penalty: 10.0,
            max_tokens: MAX_TOKENS,
            stop: vec!["x".repeat(MAX_STOP_BYTES); MAX_STOPS],
            ..Default::default()
        };
        params.validate().unwrap();
        assert!(params.is_greedy());
    }
}
