//! How sequences come into a batch: their prompts run between the steps of those that are there.

use contract::sample::{SampleParams, StepState};

use super::{Batch, BatchOptions, Needs, Rows, Slot};
use crate::model::{Model, ModelError};
use crate::ops::lm_head::LmHead;
use crate::ops::sample::{PARAM_WORDS, STATE_WORDS, param_words, state_words};
use crate::ops::{Backend, OpError, TokenLog};

/// What a prefill step counts as at least, in tokens of [`BatchOptions::prompt_share`]: fewer rows take about as long.
const SHORT_PROMPT: usize = 64;

impl<B: Backend> Model<B> {
    /// Adds a sequence to the batch: takes a free slot and pages for `prompt` and at most
    /// `params.max_steps` more tokens. Returns the slot. The prompt runs in front of the next steps
    /// ([`Model::decode_batch`]). Waits for what is queued.
    ///
    /// # Errors
    /// An empty prompt, ids outside of the vocabulary, a prompt longer than the context; no slot
    /// ([`ModelError::BatchFull`]) or too few pages ([`ModelError::PagesFull`]), and then nothing has
    /// changed; a failed copy.
    pub fn admit(
        &self,
        batch: &mut Batch<B>,
        prompt: &[u32],
        params: &SampleParams,
    ) -> Result<usize, ModelError> {
        let BatchOptions { capacity, max_batch, .. } = batch.options;
        let Needs { limit, pages: needed } =
            Needs::of(self.config.vocab_size, capacity, prompt, params)?;
        let free = batch.slots.iter().position(Option::is_none);
        let slot = free.ok_or(ModelError::BatchFull { max_batch })?;
        let usage = batch.pool.usage();
        let pages = batch.pool.take(needed).ok_or(ModelError::PagesFull {
            needed,
            free: usage.total - usage.in_use,
            total: usage.total,
        })?;
        // The device ends the text where the context does.
        let params = SampleParams { max_steps: limit as u32, ..*params };
        match batch.begin(self.backend(), slot, prompt, &params, &pages) {
            Ok(()) => {
                let prompt = prompt.to_vec();
                batch.slots[slot] = Some(Slot { pages, prompt, ran: 0, queued: 0, limit });
                batch.waiting.push_back(slot);
                Ok(slot)
            }
            Err(error) => {
                batch.pool.give_back(pages);
                Err(error.into())
            }
        }
    }

    /// Runs prompts that wait, up to [`BatchOptions::prompt_share`] tokens of them, and queues the first token of those that have run to
    /// their end.
    pub(super) fn run_prompts(&self, batch: &mut Batch<B>) -> Result<(), OpError> {
        let BatchOptions { chunk, prompt_share, .. } = batch.options;
        let (backend, mut counted) = (self.backend(), 0);
        while let Some(&slot) = batch.waiting.front() {
            let Some(Slot { prompt, ran, .. }) = &batch.slots[slot] else { break };
            let (first, len) = (*ran, prompt.len());
            let m = chunk.min(len - first);
            let counts = m.max(SHORT_PROMPT);
            if counted > 0 && counts > prompt_share.saturating_sub(counted) {
                break;
            }
            counted += counts;
            let reach = first + m;
            let positions: Vec<u32> = (first as u32..reach as u32).collect();
            backend.write(&mut batch.ids, 0, &prompt[first..reach])?;
            backend.write(&mut batch.positions, 0, &positions)?;
            let pending = self.run_rows(batch, Rows::Prompt { slot, m, reach })?;
            let ended = reach == len;
            if ended {
                self.last_norm(&mut batch.x, m, pending)?;
                self.first_token(batch, slot, len, m - 1)?;
                batch.waiting.pop_front();
            }
            if let Some(of_slot) = &mut batch.slots[slot] {
                (of_slot.ran, of_slot.queued) = (reach, usize::from(ended));
            }
        }
        Ok(())
    }

    /// Queues the first token of the sequence in `slot`, whose prompt has `len` tokens, from row `row` of the last prefill step. From then on
    /// its row is there.
    fn first_token(
        &self,
        batch: &mut Batch<B>,
        slot: usize,
        len: usize,
        row: usize,
    ) -> Result<(), OpError> {
        let backend = self.backend();
        let state = StepState { pos: len as u32 - 1, ..StepState::default() };
        backend.write(&mut batch.sampler.state, slot * STATE_WORDS, &state_words(&state))?;
        backend.lm_head(LmHead {
            x: &batch.x.wide,
            x_at: row * self.config.hidden_size,
            w: self.head(),
            logits: &mut batch.logits,
            m: 1,
        })?;
        batch.logits_of = slot..slot + 1;
        self.sample_rows(batch, slot, 1)
    }
}

impl<B: Backend> Batch<B> {
    /// Prepares the sampler, the pages and the tokens of the sequence in `slot`, whose row is not there yet.
    fn begin(
        &mut self,
        backend: &B,
        slot: usize,
        prompt: &[u32],
        params: &SampleParams,
        pages: &[u32],
    ) -> Result<(), OpError> {
        // Steps that are queued may still write the tokens of the slot's last sequence.
        backend.synchronize()?;
        let log = slot * self.options.capacity;
        self.tokens.clear_part(log..log + self.options.capacity);
        let mut marks = vec![0u8; self.vocab];
        prompt.iter().for_each(|&id| marks[id as usize] = 1);
        let width = self.width();
        backend.write(&mut self.sampler.seen, slot * self.vocab, &marks)?;
        backend.write(&mut self.sampler.params, slot * PARAM_WORDS, &param_words(params))?;
        backend.write(&mut self.tables, slot * width, pages)
    }
}
