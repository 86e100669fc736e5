//! A batch on one backend, with the backend's type forgotten.

use contract::sample::SampleParams;

use super::SessionError;
use crate::checkpoint::ModelConfig;
use crate::memory::MemoryUsage;
use crate::model::{Batch, BatchOptions, Model, PageUsage};
use crate::ops::{Backend, TokenLog};
use crate::profile::Profile;

/// Steps of a batch that are queued ahead at most: the prompt of a new request waits for them. With four 64 clients that ask again and again have their first
/// token after 11.9 ms, with two after 8.4, with one after 6.9, at 26,200, 25,700 and 25,500 tokens/s (H200).
const AHEAD: usize = 2;

/// Looks at the token log between two questions to the driver.
const LOOKS: u32 = 256;

/// What an engine needs of a model and its batch, whatever they run on.
pub(super) trait Batched: Send {
    /// What runs it, a line for people each.
    fn devices(&self) -> Vec<String>;
    fn config(&self) -> &ModelConfig;
    fn options(&self) -> BatchOptions;
    fn pages(&self) -> PageUsage;
    fn memory(&self) -> MemoryUsage;
    fn profile(&self) -> Result<Option<Profile>, SessionError>;

    /// Adds a sequence; returns its slot.
    fn admit(&mut self, prompt: &[u32], params: &SampleParams) -> Result<usize, SessionError>;

    /// Takes a sequence out.
    fn remove(&mut self, slot: usize) -> Result<(), SessionError>;

    /// Queues steps until the next token of every sequence whose prompt has run is on its way, and some more. Prompts run beside these steps.
    /// Several devices do that by themselves: waits until one of them has made a step.
    fn queue(&mut self) -> Result<(), SessionError>;

    /// What comes next of a sequence. Waits for it, if it is on its way by [`Batched::queue`].
    fn next(&mut self, slot: usize) -> Result<Next, SessionError>;

    /// Tokens of a sequence's prompt whose pages were there, from its first token on.
    fn cached(&self, slot: usize) -> usize;
}

/// What comes next of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A token, and whether it is the last that there can be.
    Token {
        /// Its id.
        token: u32,
        /// Whether none can follow.
        is_last: bool,
    },
    /// Nothing: the text has ended before.
    Ended,
    /// Nothing in this step: its prompt has not run to its end, or its device is still at it.
    NotYet,
}

/// A model with its batch.
pub(super) struct BatchRunner<B: Backend> {
    model: Model<B>,
    batch: Batch<B>,
    record: bool,
    /// Tokens that the host has read, of each slot with a sequence.
    read: Vec<Option<usize>>,
}

impl<B: Backend> BatchRunner<B> {
    pub(super) fn new(model: Model<B>, batch: Batch<B>, record: bool) -> Self {
        let read = vec![None; batch.options().max_batch];
        Self { model, batch, record, read }
    }
}

impl<B: Backend> Batched for BatchRunner<B> {
    fn devices(&self) -> Vec<String> {
        vec![self.model.backend().describe()]
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn options(&self) -> BatchOptions {
        self.batch.options()
    }

    fn pages(&self) -> PageUsage {
        self.batch.pages()
    }

    fn memory(&self) -> MemoryUsage {
        self.model.backend().memory()
    }

    fn profile(&self) -> Result<Option<Profile>, SessionError> {
        Ok(self.model.backend().profile()?)
    }

    fn admit(&mut self, prompt: &[u32], params: &SampleParams) -> Result<usize, SessionError> {
        let slot = self.model.admit(&mut self.batch, prompt, params)?;
        self.read[slot] = Some(0);
        Ok(slot)
    }

    fn remove(&mut self, slot: usize) -> Result<(), SessionError> {
        self.read[slot] = None;
        self.batch.remove(self.model.backend(), slot)?;
        Ok(())
    }

    fn queue(&mut self) -> Result<(), SessionError> {
        loop {
            let (mut starves, mut more, mut ahead, mut prompts) = (false, false, 0, false);
            for (slot, read) in self.read.iter().enumerate() {
                let Some(read) = *read else { continue };
                let (queued, limit) = (self.batch.queued(slot), self.batch.limit(slot));
                let waits = self.batch.waits(slot);
                prompts |= waits;
                starves |= queued <= read && queued < limit && !waits;
                more |= queued < limit;
                ahead = ahead.max(queued - read.min(queued));
            }
            // With a part of a prompt in front of each, steps that are ahead hold up who reads the first.
            let most = 1 + if prompts { 0 } else { B::AHEAD.min(AHEAD) };
            if !(starves || more && ahead < most) {
                return Ok(());
            }
            self.model.decode_batch(&mut self.batch, self.record)?;
        }
    }

    fn next(&mut self, slot: usize) -> Result<Next, SessionError> {
        let Some(read) = self.read[slot] else { return Ok(Next::Ended) };
        if self.batch.waits(slot) {
            return Ok(Next::NotYet);
        }
        if read >= self.batch.queued(slot) {
            return Ok(Next::Ended);
        }
        loop {
            for _ in 0..LOOKS {
                let token = self.batch.token(slot, read);
                if token != B::TokenLog::EMPTY {
                    self.read[slot] = Some(read + 1);
                    let is_last = read + 1 == self.batch.limit(slot);
                    return Ok(Next::Token { token, is_last });
                }
                std::hint::spin_loop();
            }
            // Nothing is queued and nothing came: an earlier token ended the text.
            if self.model.backend().is_idle()? && self.batch.token(slot, read) == B::TokenLog::EMPTY
            {
                return Ok(Next::Ended);
            }
        }
    }

    fn cached(&self, slot: usize) -> usize {
        self.batch.cached(slot)
    }
}
