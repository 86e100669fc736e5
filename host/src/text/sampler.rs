//! What a caller may ask of sampling and of stopping, and the ranges.
//!
//! The arithmetic is the `sample` kernel family's; this is only its input, checked before a model
//! runs. Order of application: repetition penalty, bias with presence and frequency penalties, temperature, top-k, top-p, min-p. Random numbers
//! are counter-based, so one `seed` gives one text on every device.

use super::{Grammar, TextError};
use serde::Serialize;

/// Most tokens that one call may ask for.
pub const MAX_TOKENS: usize = 1 << 20;
/// Most stop strings.
pub const MAX_STOPS: usize = 32;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most tokens with a bias.
pub const MAX_BIASES: usize = 1024;
/// Most tokens that are listed with their log probabilities at each place.
pub const MAX_LOGPROBS: u32 = contract::logprobs::MAX_TOP;

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
    /// Taken off the logits of tokens that the text has given, the prompt not counted, `-2..=2`.
    pub presence_penalty: f32,
    /// Taken off the logit of a token for each time that the text has given it, `-2..=2`.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens, each at most once, `-100..=100`; at most [`MAX_BIASES`].
    pub logit_bias: Vec<(u32, f32)>,
    /// Tells the log probability of each token of the text, and so many of the most likely ones in its place, up to [`MAX_LOGPROBS`]. They are those of
    /// the model: what is penalised, added, forbidden or filtered does not count, nor the temperature.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt but the first. Of a [`BatchEngine`](crate::session::BatchEngine); the prompt runs from its beginning, whatever the cache has of it.
    pub prompt_logprobs: Option<u32>,
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
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
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
        for (name, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            real(name, value, (-2.0..=2.0).contains(&value), "-2 to 2")?;
        }
        for &(_, bias) in &self.logit_bias {
            real("logit_bias", bias, (-100.0..=100.0).contains(&bias), "-100 to 100")?;
        }
        let count = |name, value: usize, ok: bool, allowed| match ok {
            true => Ok(()),
            false => Err(TextError::Setting { name, found: value.to_string(), allowed }),
        };
        let max = self.max_tokens;
        count("max_tokens", max, (1..=MAX_TOKENS).contains(&max), "1 to 1048576")?;
        let biases = self.logit_bias.len();
        count("logit_bias", biases, biases <= MAX_BIASES, "at most 1024 tokens")?;
        let mut ids: Vec<u32> = self.logit_bias.iter().map(|bias| bias.0).collect();
        ids.sort_unstable();
        for twice in ids.windows(2).filter(|two| two[0] == two[1]) {
            count("logit_bias", twice[0] as usize, false, "each token once")?;
        }
        for (name, asked) in
            [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)]
        {
            let asked = asked.unwrap_or(0);
            count(name, asked as usize, asked <= MAX_LOGPROBS, "up to 20 tokens")?;
        }
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
        for bad in [-2.01, 2.5, f32::NAN] {
            assert_eq!(refused(|p| p.presence_penalty = bad), "presence_penalty");
            assert_eq!(refused(|p| p.frequency_penalty = bad), "frequency_penalty");
            assert_eq!(refused(|p| p.logit_bias = vec![(1, 0.0), (2, 50.0 * bad)]), "logit_bias");
        }
        assert_eq!(refused(|p| p.logit_bias = vec![(1, 0.0), (2, 1.0), (1, 2.0)]), "logit_bias");
        let many = (0..=MAX_BIASES as u32).map(|id| (id, 1.0)).collect::<Vec<_>>();
        assert_eq!(refused(|p| p.logit_bias = many.clone()), "logit_bias");
        assert_eq!(refused(|p| p.logprobs = Some(MAX_LOGPROBS + 1)), "logprobs");
        assert_eq!(refused(|p| p.prompt_logprobs = Some(u32::MAX)), "prompt_logprobs");
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
            presence_penalty: -2.0,
            frequency_penalty: 2.0,
            logit_bias: vec![(0, -100.0), (u32::MAX, 100.0)],
            logprobs: Some(MAX_LOGPROBS),
            prompt_logprobs: Some(0),
            max_tokens: MAX_TOKENS,
            stop: vec!["x".repeat(MAX_STOP_BYTES); MAX_STOPS],
            ..Default::default()
        };
        params.validate().unwrap();
        assert!(params.is_greedy());
    }
}
