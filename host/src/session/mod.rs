//! A loaded model that turns prompts into text, on whichever backend was chosen.
//!
//! The host never stands in the token loop: on a GPU one launch makes one token, and tokens are
//! read from memory that the sampler writes while later steps already run. A stop id ends the text
//! on the device; a stop string, the callback or the limit ends it on the host, and what ran ahead
//! is dropped.
//!
//! A [`Session`] makes one text at a time, a [`BatchEngine`] several, on one device or on several GPUs.

mod answer;
mod batch;
mod builder;
mod engine;
mod error;
mod grammars;
mod group;
mod guide;
mod held;
mod lookup;
mod runner;
mod solo;
mod stats;
mod wish;

pub use crate::model::{HeadKind, PAGE_SIZE, PageUsage, TokenLogprobs};
pub use crate::ops::{Math, WeightLayout};
pub use batch::{BatchEngine, RequestId, StepOutput};
pub use builder::{Head, KvType, Progress, SessionBuilder, Weights};
pub use error::SessionError;
pub use grammars::Grammars;
pub use lookup::Lookup;
pub use stats::{GenerateStats, LoadStats};

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use contract::sample::{MAX_STOP_IDS, ONE_WEIGHT, SampleParams};

use crate::checkpoint::ModelConfig;
use crate::memory::MemoryUsage;
use crate::text::{ChatTemplate, Message, SamplingParams, Tokenizer};
use answer::Answer;
use engine::Engine;
use guide::Guide;
use wish::Wish;

/// A model, its tokenizer and one sequence.
///
/// A prompt that begins as the last text did reuses its cache, so that a chat only pays for what
/// is new.
pub struct Session {
    engine: Box<dyn Engine>,
    tokenizer: Option<Arc<Tokenizer>>,
    /// Compiled when it is first asked for.
    template: OnceLock<ChatTemplate>,
    grammars: Grammars,
    load: LoadStats,
}

/// One token of a text, and the characters that became complete with it.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The token.
    pub token: u32,
    /// New text; empty while a character or a possible stop string is unfinished, and for models
    /// without a tokenizer.
    pub text: &'a str,
    /// What is told of the token, if that was asked for.
    pub logprobs: Option<&'a TokenLogprobs>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended it.
    StopToken,
    /// A stop string.
    StopString,
    /// The number of tokens that was asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The callback.
    Cancelled,
    /// The grammar: nothing may follow.
    Grammar,
    /// The grammar allows nothing that can follow, such as a stop token in the middle of it, or telling what it allows took more than the limits on work.
    GrammarLimit,
}

/// A finished text.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Every token that was picked, a stop token included.
    pub tokens: Vec<u32>,
    /// The text, without stop token and stop string; empty for models without a tokenizer.
    pub text: String,
    /// What is told of each token, if that was asked for ([`SamplingParams::logprobs`]).
    pub logprobs: Vec<TokenLogprobs>,
    /// And of the tokens of the prompt, from the second on ([`SamplingParams::prompt_logprobs`]).
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Why it ended.
    pub finish: Finish,
    /// What it took.
    pub stats: GenerateStats,
}

/// A model's chat template, compiled when it is first asked for.
fn compiled<'a>(
    template: &'a OnceLock<ChatTemplate>,
    tokenizer: Option<&Tokenizer>,
    config: &ModelConfig,
) -> Result<&'a ChatTemplate, SessionError> {
    if let Some(template) = template.get() {
        return Ok(template);
    }
    let tokenizer = tokenizer.ok_or(SessionError::NoTokenizer)?;
    let made = ChatTemplate::for_model(tokenizer, &config.model_type)?;
    Ok(template.get_or_init(|| made))
}

impl Session {
    /// Settings for a new session.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    /// One line for people: the device and what it runs.
    pub fn device(&self) -> String {
        self.engine.device()
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        self.engine.config()
    }

    /// Positions of the context.
    pub fn context(&self) -> usize {
        self.engine.capacity()
    }

    /// The checkpoint's tokenizer, where it has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_deref()
    }

    /// The chat template of the checkpoint, or the built-in one of its family.
    ///
    /// # Errors
    /// A model without a tokenizer or a template; a template that does not compile.
    pub fn template(&self) -> Result<&ChatTemplate, SessionError> {
        compiled(&self.template, self.tokenizer(), self.config())
    }

    /// What loading took.
    pub fn load_stats(&self) -> &LoadStats {
        &self.load
    }

    /// Memory of weights, cache and activations on the device.
    pub fn memory(&self) -> MemoryUsage {
        self.engine.memory()
    }

    /// Kernel times since the session was made; `None` unless built with
    /// [`SessionBuilder::profile`] on a GPU.
    ///
    /// # Errors
    /// A failed device.
    pub fn profile(&self) -> Result<Option<crate::profile::Profile>, SessionError> {
        self.engine.profile()
    }

    /// The ids of a text prompt, with the BOS token where the model wants one.
    ///
    /// # Errors
    /// A model without a tokenizer; text that its vocabulary cannot spell.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>, SessionError> {
        let tokenizer = self.tokenizer.as_ref().ok_or(SessionError::NoTokenizer)?;
        Ok(tokenizer.encode(prompt, true)?)
    }

    /// The ids of a conversation, ready for the model's answer.
    ///
    /// # Errors
    /// As [`Session::template`]; a template that refuses the messages.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, SessionError> {
        self.encode(&self.template()?.render(messages, true)?)
    }

    /// Continues `prompt` (token ids) until the model, a stop string, the callback or a limit ends
    /// the text. Each token goes to `each` as soon as it is known, also one that ends the text; the last one a second time where its end
    /// completes characters.
    ///
    /// # Errors
    /// Parameters out of range, [`SamplingParams::prompt_logprobs`], a grammar that is wrong, ids outside of the vocabulary, a prompt longer than the context, a
    /// failed device. After an error the session can be used again unless the device is lost.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        params: &SamplingParams,
        mut each: impl FnMut(Piece<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, SessionError> {
        let started = Instant::now();
        params.validate()?;
        if params.prompt_logprobs.is_some() {
            return Err(SessionError::PromptLogprobs);
        }
        let stop_ids = stop_ids(params, self.config(), self.tokenizer());
        let vocab = self.config().vocab_size;
        let grammar = params.grammar.as_ref();
        let wish = Wish::new(params, device_params(params, &stop_ids, grammar.is_some())?, vocab)?;
        let constraint = grammar.map(|grammar| self.grammars.compile(grammar)).transpose()?;
        let guide = constraint.map(|made| Guide::new(made, vocab, &stop_ids)).transpose()?;
        self.engine.begin(prompt, &wish, guide)?;
        let mut stats = GenerateStats { prompt_tokens: prompt.len(), ..Default::default() };
        let mut answer = Answer::new(self.tokenizer.as_deref(), &params.stop, stop_ids);
        let mut first = None;
        let finish = loop {
            let Some((token, end)) = self.engine.next()? else {
                break answer.limit(params);
            };
            let now = Instant::now();
            let first = *first.get_or_insert(now);
            stats.prefill_seconds = (first - started).as_secs_f64();
            stats.decode_seconds = (now - first).as_secs_f64();
            stats.count(self.engine.counts());
            let told = self.engine.logprobs()?;
            let (text, finish) = answer.push(token)?;
            answer.logprobs.extend(told);
            if end.or(finish) == Some(Finish::StopToken) {
                break Finish::StopToken;
            }
            let logprobs = params.logprobs.and_then(|_| answer.logprobs.last());
            let flow = each(Piece { token, text: &text, logprobs });
            if let Some(finish) = end.or(finish) {
                break finish;
            }
            if flow.is_break() {
                break Finish::Cancelled;
            }
        };
        self.engine.finish()?;
        stats.generated_tokens = answer.tokens.len();
        let tail = answer.end(finish);
        let stopped = finish == Finish::StopToken;
        if let (true, Some(&token)) = (stopped || !tail.is_empty(), answer.tokens.last()) {
            // The text is over: the answer to this last piece changes nothing.
            let _ = each(Piece { token, text: &tail, logprobs: None });
        }
        let Answer { tokens, text, logprobs, prompt_logprobs, .. } = answer;
        Ok(Generated { tokens, text, logprobs, prompt_logprobs, finish, stats })
    }

    /// Runs `tokens` from an empty context and hands the logits `[vocab]` of each to `each`.
    ///
    /// # Errors
    /// As [`Session::generate`]; a session with [`SessionBuilder::lookup`].
    pub fn logits(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), SessionError> {
        self.engine.logits(tokens, &mut each)
    }
}

/// Tokens that end a text.
fn stop_ids(
    params: &SamplingParams,
    config: &ModelConfig,
    tokenizer: Option<&Tokenizer>,
) -> Vec<u32> {
    let mut ids = params.stop_ids.clone();
    if !params.ignore_eos {
        ids.extend(&config.eos_token_ids);
        ids.extend(tokenizer.iter().flat_map(|t| t.stop_ids()));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The sampling parameters in the form that the kernel takes, of a text that may be held to a grammar.
fn device_params(
    params: &SamplingParams,
    stops: &[u32],
    held: bool,
) -> Result<SampleParams, SessionError> {
    let mut stop_ids = [0; MAX_STOP_IDS];
    match stop_ids.get_mut(..stops.len()) {
        Some(slots) => slots.copy_from_slice(stops),
        None => {
            let (found, allowed) = (stops.len(), MAX_STOP_IDS);
            return Err(SessionError::TooManyStopIds { found, allowed });
        }
    }
    Ok(SampleParams {
        seed: params.seed,
        top_p_q32: (f64::from(params.top_p) * 4_294_967_296.0) as u64,
        temperature: params.temperature,
        // Below 0 the marks of tokens are looked at.
        repetition_penalty: params.repetition_penalty * if held { -1.0 } else { 1.0 },
        top_k: params.top_k,
        min_weight: (f64::from(params.min_p) * f64::from(ONE_WEIGHT)) as u32,
        max_steps: params.max_tokens as u32,
        stop_len: stops.len() as u32,
        stop_ids,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        rests: u32::from(held),
        every: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_ranges_keep_everything() {
        let params = SamplingParams { top_p: 1.0, min_p: 1.0, ..Default::default() };
        let device = device_params(&params, &[7, 9], false).unwrap();
        assert_eq!(device.top_p_q32, 1 << 32);
        assert_eq!(device.min_weight, ONE_WEIGHT);
        assert_eq!((device.stop_len, &device.stop_ids[..3]), (2, &[7, 9, 0][..]));
    }

    #[test]
    fn too_many_stop_ids_are_refused() {
        let error =
            device_params(&SamplingParams::default(), &[1; MAX_STOP_IDS + 1], false).unwrap_err();
        assert!(matches!(error, SessionError::TooManyStopIds { found: 17, allowed: 16 }));
    }
}
