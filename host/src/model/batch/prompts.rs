//! How sequences come into a batch: their prompts run beside the steps of those that are there.

use contract::attention_paged::PAGE;
use contract::sample::{SEEN, SampleParams, StepState};

use super::slot::{Size, Slot, class};
use super::{Batch, BatchOptions, Needs};
use crate::model::logprobs::Extras;
use crate::model::{Model, ModelError, part};
use crate::ops::attention_paged::{CopyPages, PagedRun};
use crate::ops::lm_head::LmHead;
use crate::ops::lm_head_int8::LmHeadInt8;
use crate::ops::sample::{PARAM_WORDS, STATE_WORDS, param_words, state_words};
use crate::ops::{Backend, OpError, TokenLog};

impl<B: Backend> Model<B> {
    /// Adds a sequence to the batch: takes a free slot and pages for `prompt` and at most
    /// `params.max_steps` more tokens. Returns the slot. The prompt runs with the next steps
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
        let usage = batch.pool.usage();
        // The last token runs in any case.
        let pages =
            batch.pool.take(&prompt[..prompt.len() - 1], needed).ok_or(ModelError::PagesFull {
                needed,
                free: usage.total - usage.in_use,
                total: usage.total,
            })?;
        // The device ends the text where the context does.
        let params = SampleParams { max_steps: limit as u32, ..*params };
        match batch.begin(self.backend(), slot, prompt, &params, &pages) {
            Ok(()) => {
                let prompt = prompt.to_vec();
                batch.slots[slot] = Some(Slot {
                    pages,
                    prompt,
                    ran: 0,
                    cached: 0,
                    queued: 0,
                    limit,
                    params,
                    allowed: false,
                    extras: Extras::default(),
                    prompt_told: Vec::new(),
                });
                batch.waiting.push_back(slot);
                if params.lowers()
                    && let Err(error) = batch.ask(self.backend(), slot, &Extras::default())
                {
                    batch.remove(self.backend(), slot)?;
                    return Err(error.into());
                }
                Ok(slot)
            }
            Err(error) => {
                batch.pool.give_back(pages);
                Err(error.into())
            }
        }
    }

    /// Runs the next tokens of prompts that wait, `room` at most, and queues the first token of those that end with them. Says how many they were.
    pub(super) fn run_prompts(&self, batch: &mut Batch<B>, room: usize) -> Result<usize, OpError> {
        let parts = batch.next_parts(self.backend(), room)?;
        let pending = self.run_rows(batch, None, true)?;
        let mut slots: Vec<usize> = ended(&parts).map(|part| part.slot).collect();
        let rows = batch.runs.m();
        let tells = batch.tells(&parts);
        if !slots.is_empty() || tells {
            self.last_norm(&mut batch.x, rows, pending)?;
        }
        if tells {
            self.tell_prompts(batch, &parts, 0)?;
        }
        if !slots.is_empty() {
            slots.sort_unstable();
            // Behind the rows that are there: all of them may yet be copied.
            self.begin_texts(batch, &parts, 0, (rows, slots[0]))?;
        }
        // Slots between them may have sequences, whose next tokens are not due.
        for run in slots.chunk_by(|a, b| a + 1 == *b) {
            self.pick(batch, rows + run[0] - slots[0], run[0], run.len())?;
        }
        batch.count(&parts);
        Ok(rows)
    }

    /// A step of what `size` is of, and beside it the next tokens of prompts, `room` at most: the weights of the linear layers are read once for both.
    pub(super) fn run_both(
        &self,
        batch: &mut Batch<B>,
        size: Size,
        room: usize,
    ) -> Result<(), OpError> {
        let max_batch = batch.options.max_batch;
        let parts = batch.next_parts(self.backend(), room)?;
        let ended = ended(&parts).map(|part| part.slot);
        let slots = ended.chain(batch.stepping().map(|(slot, _)| slot)).max();
        // With a row for each slot up to the last one that gets a token.
        let m = class(slots.map_or(1, |last| last + 1), max_batch);
        let pending = self.run_rows(batch, Some(Size { first: 0, m, ..size }), true)?;
        let rows = m + batch.runs.m();
        self.last_norm(&mut batch.x, rows, pending)?;
        if batch.tells(&parts) {
            self.tell_prompts(batch, &parts, m)?;
        }
        self.begin_texts(batch, &parts, m, (0, 0))?;
        self.pick(batch, 0, 0, m)?;
        batch.count(&parts);
        Ok(())
    }

    /// Makes the sequences whose prompts end with `parts` ones that are there, and copies their last rows of the last norm, `from` rows behind the first
    /// one, to where those of the slots stand: that of slot `first` at row `to`.
    fn begin_texts(
        &self,
        batch: &mut Batch<B>,
        parts: &[Part],
        from: usize,
        (to, first): (usize, usize),
    ) -> Result<(), OpError> {
        let (backend, hidden) = (self.backend(), self.config.hidden_size);
        for part in ended(parts) {
            let (from, to) = (from + part.last_row, to + part.slot - first);
            backend.copy_within(&mut batch.x.wide, from * hidden, to * hidden, hidden)?;
            let pos = part.reach as u32 - 1;
            let state = state_words(&StepState { pos, ..StepState::default() });
            backend.write(&mut batch.sampler.state, part.slot * STATE_WORDS, &state)?;
        }
        Ok(())
    }

    /// Picks the next token of `m` slots from slot `slot` on, whose rows of the last norm begin at row `at`.
    pub(super) fn pick(
        &self,
        batch: &mut Batch<B>,
        at: usize,
        slot: usize,
        m: usize,
    ) -> Result<(), OpError> {
        let x_at = at * self.config.hidden_size;
        let way = self.way_of(batch, slot..slot + m, m);
        let Batch { x, head_input, sampler, logits, tokens, .. } = &mut *batch;
        let w = self.head();
        let int8 = self.int8.as_ref().filter(|_| !way.stored);
        if let (Some(table), Some(input)) = (int8, head_input) {
            self.backend.lm_head_int8(LmHeadInt8 {
                norm: None,
                x: &mut x.wide,
                x_at,
                w,
                table,
                input,
                sampler,
                row: slot,
                bounds: logits,
                every: way.every(),
                out: tokens,
                m,
            })?;
            batch.logits_of = 0..0;
            return self.tell_rows(batch, slot, m, way);
        }
        self.backend.lm_head(LmHead { x: &x.wide, x_at, w, logits, m })?;
        batch.logits_of = slot..slot + m;
        self.sample_rows(batch, slot, m, way)
    }
}

/// Tokens of a prompt in a prefill step.
pub(super) struct Part {
    pub(super) slot: usize,
    /// The first of them.
    pub(super) first: usize,
    /// Tokens of the prompt that have run with them.
    pub(super) reach: usize,
    /// Whether the prompt ends with them.
    ends: bool,
    /// Row of the last of them.
    pub(super) last_row: usize,
}

/// Those that end their prompts.
fn ended(parts: &[Part]) -> impl Iterator<Item = &Part> {
    parts.iter().filter(|part| part.ends)
}

impl<B: Backend> Batch<B> {
    /// Writes the next tokens of prompts that wait, `room` at most, and where they stand: of the one that came first, and in the place that it leaves of
    /// others that fit a step. A longer one does not begin there: the fewer its parts, the less often few rows go through many keys.
    fn next_parts(&mut self, backend: &B, room: usize) -> Result<Vec<Part>, OpError> {
        let (mut parts, mut rows, mut copies) = (Vec::new(), 0, Vec::new());
        for at in 0..self.waiting.len() {
            let slot = self.waiting[at];
            if rows == room {
                break;
            }
            self.find_beginning(slot, &mut copies);
            let Some(Slot { prompt, ran, .. }) = &self.slots[slot] else { continue };
            let left = prompt.len() - ran;
            if rows > 0 && left > room {
                continue;
            }
            let m = part(left, room).min(left).min(room - rows);
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

    /// Counts what has run, and who is done with it.
    fn count(&mut self, parts: &[Part]) {
        for &Part { slot, reach, ends, .. } in parts {
            let Some(of_slot) = &mut self.slots[slot] else { continue };
            (of_slot.ran, of_slot.queued) = (reach, usize::from(ends));
            of_slot.allowed &= !ends;
            if self.options.prefix_cache {
                self.pool.remember(&of_slot.pages, &of_slot.prompt[..reach]);
            }
        }
        self.waiting.retain(|&slot| parts.iter().all(|part| part.slot != slot || !part.ends));
    }

    /// Finds what others have computed of the beginning of the prompt in `slot` and it has not, for `copies` to its pages. The prompt's last token runs
    /// in any case, for what comes behind it.
    fn find_beginning(&mut self, slot: usize, copies: &mut Vec<[u32; 2]>) {
        let Self { slots, pool, options, .. } = self;
        let Some(Slot { prompt, pages, ran, cached, extras, .. }) = &mut slots[slot] else {
            return;
        };
        // What is told of a prompt comes of its rows.
        if !options.prefix_cache || extras.prompt_logprobs.is_some() {
            return;
        }
        let found = pool.find(&prompt[..prompt.len() - 1]);
        let reach = found.len() * PAGE;
        if reach > *ran {
            let pairs = found.iter().zip(pages.iter()).map(|(&from, &to)| [from, to]);
            // Some it took as they are.
            copies.extend(pairs.skip(*ran / PAGE).filter(|[from, to]| from != to));
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
        prompt.iter().for_each(|&id| marks[id as usize] = SEEN);
        let width = self.width();
        self.told.ask(backend, slot, None)?;
        backend.write(&mut self.sampler.marks, slot * self.vocab, &marks)?;
        backend.write(&mut self.sampler.params, slot * PARAM_WORDS, &param_words(params))?;
        backend.write(&mut self.tables, slot * width, pages)
    }
}
