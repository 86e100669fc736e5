//! One sequence on one backend, with the backend's type forgotten.

use super::guide::Guide;
use super::runner::Counts;
use super::wish::Wish;
use super::{Finish, SessionError};
use crate::checkpoint::ModelConfig;
use crate::memory::MemoryUsage;
use crate::model::{Model, ModelError, Sequence, TokenLogprobs};
use crate::ops::{Backend, TokenLog};
use crate::profile::Profile;

/// Looks at the token log between two questions to the driver.
const LOOKS: u32 = 256;

/// What a session needs of a model, whatever it runs on.
pub(super) trait Engine: Send {
    fn device(&self) -> String;
    fn config(&self) -> &ModelConfig;
    fn capacity(&self) -> usize;
    fn memory(&self) -> MemoryUsage;
    fn profile(&self) -> Result<Option<Profile>, SessionError>;

    /// Prefills `prompt` and queues the first token of a text that `guide` holds to its grammar.
    fn begin(
        &mut self,
        prompt: &[u32],
        wish: &Wish,
        guide: Option<Guide>,
    ) -> Result<(), SessionError>;

    /// The next token, and why the text ends with it where a grammar says so; `None` when the text has ended on the device or at the limit.
    fn next(&mut self) -> Result<Option<(u32, Option<Finish>)>, SessionError>;

    /// What is counted of the text, from its first token on.
    fn counts(&self) -> Counts;

    /// What is told of the token that came last, if that was asked for.
    fn logprobs(&mut self) -> Result<Option<TokenLogprobs>, SessionError>;

    /// Waits for what is still queued.
    fn finish(&mut self) -> Result<(), SessionError>;

    /// Hands the logits of each of `tokens` to `each`.
    fn logits(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<(), SessionError>;
}

/// A model with its one sequence.
pub(super) struct Runner<B: Backend> {
    model: Model<B>,
    sequence: Sequence<B>,
    record: bool,
    /// Tokens whose keys and values are in the cache.
    cached: Vec<u32>,
    /// The prompt of the text under way, then its tokens as they are read.
    text: Vec<u32>,
    prompt_len: usize,
    /// Tokens of the prompt that were in the cache.
    reused: usize,
    /// Tokens the sampler was asked for.
    queued: usize,
    /// Tokens the host has read.
    read: usize,
    limit: usize,
    guide: Option<Guide>,
}

impl<B: Backend> Runner<B> {
    pub(super) fn new(model: Model<B>, sequence: Sequence<B>, record: bool) -> Self {
        Self {
            model,
            sequence,
            record,
            cached: Vec::new(),
            text: Vec::new(),
            prompt_len: 0,
            reused: 0,
            queued: 0,
            read: 0,
            limit: 0,
            guide: None,
        }
    }

    fn try_begin(
        &mut self,
        prompt: &[u32],
        wish: &Wish,
        guide: Option<Guide>,
    ) -> Result<(), SessionError> {
        let last = prompt.len().checked_sub(1).ok_or(ModelError::EmptyInput)?;
        self.settle();
        let common = self.cached.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last prompt token always runs, because its logits are needed.
        let reused = common.min(last);
        self.cached.clear();
        let Wish { params, extras } = wish;
        self.sequence.begin(self.model.backend(), prompt, params)?;
        self.sequence.ask(self.model.backend(), prompt, params, extras)?;
        self.guide = guide;
        self.allow()?;
        self.model.prefill(&mut self.sequence, &prompt[reused..], reused)?;
        self.model.sample(&mut self.sequence)?;
        self.text = prompt.to_vec();
        (self.prompt_len, self.reused) = (prompt.len(), reused);
        self.queued = 1;
        self.read = 0;
        let room = self.sequence.options().capacity - prompt.len() + 1;
        self.limit = room.min(params.max_steps as usize);
        Ok(())
    }

    /// Notes which tokens of the last text are in the cache: token `j` is processed by the step
    /// that picks token `j + 1`.
    fn settle(&mut self) {
        if self.queued > 0 {
            let processed = self.prompt_len + self.read.min(self.queued - 1);
            self.text.truncate(processed);
            self.cached = std::mem::take(&mut self.text);
            self.queued = 0;
        }
    }

    /// Tells the sampler what the grammar allows next.
    fn allow(&mut self) -> Result<(), SessionError> {
        if let Some(words) = self.guide.as_mut().and_then(Guide::news) {
            self.sequence.allow(self.model.backend(), words)?;
        }
        Ok(())
    }

    fn try_next(&mut self) -> Result<Option<(u32, Option<Finish>)>, SessionError> {
        if self.read == self.limit {
            return Ok(None);
        }
        // What a grammar allows is known when the token before is.
        let ahead = if self.guide.is_some() { 0 } else { B::AHEAD };
        while self.queued < (self.read + 1 + ahead).min(self.limit) {
            self.allow()?;
            let pos = self.prompt_len + self.queued - 1;
            self.model.decode(&mut self.sequence, pos, self.record)?;
            self.queued += 1;
        }
        loop {
            for _ in 0..LOOKS {
                let token = self.sequence.tokens().get(self.read);
                if token != B::TokenLog::EMPTY {
                    self.read += 1;
                    self.text.push(token);
                    let Some(guide) = &mut self.guide else { return Ok(Some((token, None))) };
                    guide.push(token);
                    return Ok(Some((token, guide.end_at(self.read - 1))));
                }
                std::hint::spin_loop();
            }
            // Nothing is queued and nothing came: an earlier token ended the text.
            if self.model.backend().is_idle()?
                && self.sequence.tokens().get(self.read) == B::TokenLog::EMPTY
            {
                return Ok(None);
            }
        }
    }

    /// Forgets the cache when `result` is an error: what the device holds is unknown.
    fn guard<T>(&mut self, result: Result<T, SessionError>) -> Result<T, SessionError> {
        if result.is_err() {
            self.cached.clear();
            self.queued = 0;
            self.limit = 0;
            self.read = 0;
        }
        result
    }
}

impl<B: Backend> Engine for Runner<B> {
    fn device(&self) -> String {
        self.model.backend().describe()
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn capacity(&self) -> usize {
        self.sequence.options().capacity
    }

    fn memory(&self) -> MemoryUsage {
        self.model.backend().memory()
    }

    fn profile(&self) -> Result<Option<Profile>, SessionError> {
        Ok(self.model.backend().profile()?)
    }

    fn begin(
        &mut self,
        prompt: &[u32],
        wish: &Wish,
        guide: Option<Guide>,
    ) -> Result<(), SessionError> {
        let result = self.try_begin(prompt, wish, guide);
        self.guard(result)
    }

    fn next(&mut self) -> Result<Option<(u32, Option<Finish>)>, SessionError> {
        let result = self.try_next();
        self.guard(result)
    }

    fn counts(&self) -> Counts {
        Counts { cached: self.reused, ..Counts::default() }
    }

    fn logprobs(&mut self) -> Result<Option<TokenLogprobs>, SessionError> {
        let Some(last) = self.read.checked_sub(1) else { return Ok(None) };
        let result = self.sequence.logprobs(self.model.backend(), last);
        self.guard(result.map_err(SessionError::from))
    }

    fn finish(&mut self) -> Result<(), SessionError> {
        let result = self.model.backend().synchronize().map_err(SessionError::from);
        self.guard(result)
    }

    fn logits(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<(), SessionError> {
        self.settle();
        self.cached.clear();
        let result = self.model.logits(&mut self.sequence, tokens, 0, each);
        let result = self.guard(result.map_err(SessionError::from));
        if result.is_ok() {
            self.cached = tokens.to_vec();
        }
        result
    }
}
