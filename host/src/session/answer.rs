//! A text as it grows: tokens to characters, and what ends it.

use std::ops::Deref;

use super::{Finish, SessionError, TokenLogprobs};
use crate::text::{SamplingParams, StopMatcher, TextStream, Tokenizer};

/// The tokens of a text so far, and its characters without those that a stop may still take.
pub(super) struct Answer<T> {
    pub(super) tokens: Vec<u32>,
    /// What was told of them, and of the prompt.
    pub(super) logprobs: Vec<TokenLogprobs>,
    pub(super) prompt_logprobs: Vec<TokenLogprobs>,
    pub(super) text: String,
    stream: Option<TextStream<T>>,
    stops: StopMatcher,
    stop_ids: Vec<u32>,
}

impl<T: Deref<Target = Tokenizer>> Answer<T> {
    pub(super) fn new(tokenizer: Option<T>, stop: &[String], stop_ids: Vec<u32>) -> Self {
        Self {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            text: String::new(),
            stream: tokenizer.map(TextStream::continuing),
            stops: StopMatcher::new(stop),
            stop_ids,
        }
    }

    /// Takes a token. Returns the characters that became certain with it, and why the text ends here, if
    /// it does.
    pub(super) fn push(&mut self, token: u32) -> Result<(String, Option<Finish>), SessionError> {
        self.tokens.push(token);
        if self.stop_ids.contains(&token) {
            return Ok((String::new(), Some(Finish::StopToken)));
        }
        let piece = match &mut self.stream {
            Some(stream) => stream.push(token)?.unwrap_or_default(),
            None => String::new(),
        };
        let step = self.stops.push(&piece);
        self.text.push_str(&step.text);
        Ok((step.text, step.stopped.map(|_| Finish::StopString)))
    }

    /// Why a text ends that has all the tokens it may have.
    pub(super) fn limit(&self, params: &SamplingParams) -> Finish {
        match self.tokens.len() < params.max_tokens {
            true => Finish::ContextFull,
            false => Finish::MaxTokens,
        }
    }

    /// Ends the text and returns the characters that were held back.
    pub(super) fn end(&mut self, finish: Finish) -> String {
        if finish == Finish::StopString {
            return String::new();
        }
        let rest = self.stream.as_mut().and_then(TextStream::finish).unwrap_or_default();
        let tail = self.stops.push(&rest).text + &self.stops.finish();
        self.text.push_str(&tail);
        tail
    }
}
