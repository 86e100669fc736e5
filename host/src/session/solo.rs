//! One text at a time by a batch of one, which can check guesses.

use super::engine::Engine;
use super::guide::Guide;
use super::runner::{BatchRunner, Batched, Counts, End, Next};
use super::wish::Wish;
use super::{Finish, SessionError};
use crate::checkpoint::ModelConfig;
use crate::memory::MemoryUsage;
use crate::model::TokenLogprobs;
use crate::ops::Backend;
use crate::profile::Profile;

/// A batch with one slot.
pub(super) struct Solo<B: Backend> {
    runner: BatchRunner<B>,
    /// Of the text under way.
    slot: Option<usize>,
    /// Whether it has given its last token.
    is_over: bool,
    counts: Counts,
    /// What is told of the token that was given last.
    told: Option<TokenLogprobs>,
}

impl<B: Backend> Solo<B> {
    pub(super) fn new(runner: BatchRunner<B>) -> Self {
        Self { runner, slot: None, is_over: true, counts: Counts::default(), told: None }
    }

    /// Takes the text under way out: its pages stay as they are for one that begins alike.
    fn close(&mut self) -> Result<(), SessionError> {
        self.is_over = true;
        match self.slot.take() {
            Some(slot) => self.runner.remove(slot),
            None => Ok(()),
        }
    }

    fn try_next(&mut self, slot: usize) -> Result<Option<(u32, Option<Finish>)>, SessionError> {
        loop {
            if !self.runner.has_more(slot) {
                self.runner.queue()?;
            }
            match self.runner.next(slot)? {
                Next::Token { token, told, end } => {
                    self.told = told.and_then(|told| told.token);
                    self.is_over = end.is_some();
                    self.counts = self.runner.counts(slot);
                    return Ok(Some((token, end.and_then(End::of_grammar))));
                }
                Next::Ended => {
                    self.is_over = true;
                    return Ok(None);
                }
                Next::NotYet => {}
            }
        }
    }
}

impl<B: Backend> Engine for Solo<B> {
    fn device(&self) -> String {
        self.runner.backend().describe()
    }

    fn config(&self) -> &ModelConfig {
        self.runner.config()
    }

    fn capacity(&self) -> usize {
        self.runner.options().capacity
    }

    fn memory(&self) -> MemoryUsage {
        self.runner.memory()
    }

    fn profile(&self) -> Result<Option<Profile>, SessionError> {
        self.runner.profile()
    }

    fn begin(
        &mut self,
        prompt: &[u32],
        wish: &Wish,
        mut guide: Option<Guide>,
    ) -> Result<(), SessionError> {
        self.close()?;
        self.slot = Some(self.runner.admit(prompt, wish, &mut || Ok(guide.take()))?);
        (self.is_over, self.counts) = (false, Counts::default());
        self.runner.queue()
    }

    fn next(&mut self) -> Result<Option<(u32, Option<Finish>)>, SessionError> {
        match self.slot.filter(|_| !self.is_over) {
            Some(slot) => self.try_next(slot),
            None => Ok(None),
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn logprobs(&mut self) -> Result<Option<TokenLogprobs>, SessionError> {
        Ok(self.told.take())
    }

    fn finish(&mut self) -> Result<(), SessionError> {
        let waited = self.runner.backend().synchronize().map_err(SessionError::from);
        waited.and(self.close())
    }

    fn logits(&mut self, _: &[u32], _: &mut dyn FnMut(&[f32])) -> Result<(), SessionError> {
        Err(SessionError::LogitsOfLookup)
    }
}
