//! How sequences come into a batch: their prompts run between the steps of those that are there.

use contract::attention_paged::PAGE;
use contract::sample::{SampleParams, StepState};

use super::{Batch, BatchOptions, Needs, Rows, Slot};
use crate::model::{Model, ModelError, part};
use crate::ops::attention_paged::{CopyPages, PagedRun};
use crate::ops::lm_head::LmHead;
use crate::ops::lm_head_int8::LmHeadInt8;
use crate::ops::sample::{PARAM_WORDS, STATE_WORDS, param_words, state_words};
use crate::ops::{Backend, OpError, TokenLog};

/// The least [`BatchOptions::prompt_share`]: fewer rows take about as long.
const LEAST_SHARE: usize = 64;

impl<B: Backend> Model<B> {
    /// Adds a sequence to the batch: takes a free slot and pages for `prompt` and at most
    /// `params.max_steps` more tokens. Returns the slot. The prompt runs in front of the next steps
    /// ([`Model::decode_batch`]). Waits for what is queued only where the slot's last sequence was taken out while its next token was on its way.
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
        // What it can copy counts as used then, so that it is not the first to make room.
        batch.pool.find(&prompt[..prompt.len() - 1]);
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
                let stops = params.stop_ids.iter().take(params.stop_len as usize);
                let stops = stops.copied().collect();
                batch.slots[slot] =
                    Some(Slot { pages, prompt, ran: 0, cached: 0, queued: 0, limit, stops });
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
        let chunk = batch.options.chunk;
        let mut left = batch.options.prompt_share.max(LEAST_SHARE);
        if batch.slots.iter().flatten().all(|slot| slot.queued == 0) {
            // Nobody waits for a next token.
            left = left.max(chunk);
        }
        let step = chunk.min(left);
        while !batch.waiting.is_empty() {
            left -= self.prefill_step(batch, step, left.min(step))?;
            // A prompt takes no step more than it would take alone.
            let next = batch.waiting.front().and_then(|&slot| batch.slots[slot].as_ref());
            let next = next.map_or(0, |slot| step.min(slot.prompt.len() - slot.ran));
            if left == 0 || next > left {
                break;
            }
        }
        Ok(())
    }

    /// One prefill step of the prompts that came first, of `room` tokens at most, where others have `step`. Says how many they were.
    fn prefill_step(
        &self,
        batch: &mut Batch<B>,
        step: usize,
        room: usize,
    ) -> Result<usize, OpError> {
        let parts = batch.next_parts(self.backend(), step, room)?;
        let m = batch.runs.m();
        let pending = self.run_rows(batch, Rows::Prompts)?;
        let (ended, others): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.ends);
        if !ended.is_empty() {
            self.last_norm(&mut batch.x, m, pending)?;
            self.first_tokens(batch, &ended)?;
        }
        for &Part { slot, reach, ends, .. } in ended.iter().chain(&others) {
            if let Some(of_slot) = &mut batch.slots[slot] {
                (of_slot.ran, of_slot.queued) = (reach, usize::from(ends));
                if batch.options.prefix_cache {
                    batch.pool.remember(&of_slot.pages, &of_slot.prompt[..reach]);
                }
            }
        }
        batch.waiting.retain(|&slot| ended.iter().all(|part| part.slot != slot));
        Ok(m)
    }

    /// Queues the first token of the sequences whose prompts end with `parts`, from the rows of the last norm. From then on their rows are there.
    fn first_tokens(&self, batch: &mut Batch<B>, parts: &[Part]) -> Result<(), OpError> {
        let (backend, hidden) = (self.backend(), self.config.hidden_size);
        batch.logits_of = 0..0;
        let mut at = 0;
        // Slots side by side, which are samplers side by side.
        for parts in parts.chunk_by(|a, b| a.slot + 1 == b.slot) {
            let (slot, m, x_at) = (parts[0].slot, parts.len(), at * hidden);
            let Batch { x, head_input, sampler, logits, tokens, .. } = &mut *batch;
            let mut states = Vec::with_capacity(m * STATE_WORDS);
            for part in parts {
                if at < part.last_row {
                    backend.copy_within(
                        &mut x.wide,
                        part.last_row * hidden,
                        at * hidden,
                        hidden,
                    )?;
                }
                let pos = part.reach as u32 - 1;
                states.extend(state_words(&StepState { pos, ..StepState::default() }));
                at += 1;
            }
            backend.write(&mut sampler.state, slot * STATE_WORDS, &states)?;
            let w = self.head();
            if let (Some(table), Some(input)) = (&self.int8, head_input) {
                backend.lm_head_int8(LmHeadInt8 {
                    norm: None,
                    x: &mut x.wide,
                    x_at,
                    w,
                    table,
                    input,
                    sampler,
                    row: slot,
                    bounds: logits,
                    out: tokens,
                    m,
                })?;
            } else {
                backend.lm_head(LmHead { x: &x.wide, x_at, w, logits, m })?;
                self.sample_rows(batch, slot, m)?;
            }
        }
        Ok(())
    }
}

/// Tokens of a prompt in a prefill step.
struct Part {
    slot: usize,
    /// The first of them.
    first: usize,
    /// Tokens of the prompt that have run with them.
    reach: usize,
    /// Whether the prompt ends with them.
    ends: bool,
    /// Row of the last of them.
    last_row: usize,
}

impl<B: Backend> Batch<B> {
    /// Writes the next tokens of prompts that wait, `room` at most, and where they stand: of the one that came first, and in the place that it leaves of
    /// others that one step could take. A longer one does not begin there: the fewer its parts, the less often few rows go through many keys.
    fn next_parts(&mut self, backend: &B, step: usize, room: usize) -> Result<Vec<Part>, OpError> {
        let (mut parts, mut rows, mut copies) = (Vec::new(), 0, Vec::new());
        for at in 0..self.waiting.len() {
            let slot = self.waiting[at];
            if rows == room {
                break;
            }
            self.find_beginning(slot, &mut copies);
            let Some(Slot { prompt, ran, .. }) = &self.slots[slot] else { continue };
            let left = prompt.len() - ran;
            if rows > 0 && left > step {
                continue;
            }
            let m = part(left, step).min(left).min(room - rows);
            rows += m;
            let reach = ran + m;
            let ends = reach == prompt.len();
            parts.push(Part { slot, first: *ran, reach, ends, last_row: rows - 1 });
        }
        let Self { slots, ids, runs, caches, copies: table, .. } = self;
        if !copies.is_empty() {
            let heads = runs.heads();
            table.write(backend, &copies)?;
            backend.copy_pages(CopyPages { caches, heads, table })?;
        }
        let (mut tokens, mut places) = (Vec::with_capacity(rows), Vec::with_capacity(parts.len()));
        for &Part { slot, first, reach, .. } in &parts {
            let Some(Slot { prompt, pages, .. }) = &slots[slot] else { continue };
            tokens.extend_from_slice(&prompt[first..reach]);
            places.push(PagedRun { start: first, m: reach - first, pages });
        }
        backend.write(ids, 0, &tokens)?;
        runs.write(backend, &places)?;
        Ok(parts)
    }

    /// Finds what others have computed of the beginning of the prompt in `slot` and it has not, for `copies` to its pages. The prompt's last token runs
    /// in any case, for what comes behind it.
    fn find_beginning(&mut self, slot: usize, copies: &mut Vec<[u32; 2]>) {
        let Self { slots, pool, options, .. } = self;
        let Some(Slot { prompt, pages, ran, cached, .. }) = &mut slots[slot] else { return };
        if !options.prefix_cache {
            return;
        }
        let found = pool.find(&prompt[..prompt.len() - 1]);
        let reach = found.len() * PAGE;
        if reach > *ran {
            let pairs = found.iter().zip(pages.iter()).map(|(&from, &to)| [from, to]);
            copies.extend(pairs.skip(*ran / PAGE));
            *cached += reach - *ran;
            *ran = reach;
        }
    }

    /// Prepares the sampler, the pages and the tokens of the sequence in `slot`, whose row is not there yet.
    fn begin(
        &mut self,
        backend: &B,
        slot: usize,
        prompt: &[u32],
        params: &SampleParams,
        pages: &[u32],
    ) -> Result<(), OpError> {
        if self.written[slot] {
            backend.synchronize()?;
            self.written[slot] = false;
        }
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
