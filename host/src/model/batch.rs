//! Several sequences that decode together, a row each.
//!
//! The cache is a pool of pages; a sequence has a table of its own pages. Slot `r` of the batch is row
//! `r` of every step. A sequence takes the pages for all of its positions when it is added, so that no
//! step waits for one, and gives them back when it is removed. Its prompt runs beside the steps of the others, some tokens with
//! each; pages that hold its beginning already, of a sequence that began alike, are taken over or copied instead. Bits of a sequence are those that it has
//! alone: no operation sees another row. With attention on tensor cores they are within its bound, and depend on how many rows a step has.

mod drafts;
mod extras;
mod prompts;
mod slot;

use std::collections::VecDeque;
use std::ops::Range;

use contract::attention_paged::{ABSENT, NO_PAGE, PAGE};
use contract::sample::StepState;

use super::bitnet::Next;
use super::logprobs::{LogprobLog, Way};
use super::pages::PagePool;
use super::{Model, PageUsage};
use crate::layers::{Activations, PagedPart, Past};
use crate::ops::attention_paged::{
    PageCopies, PageType, PagedCache, PagedRows, PagedRuns, PagedScratch, PagedSplit, PagedStep,
};
use crate::ops::decode_layers::rows::{DecodeRows, RowsKernel, RowsTable};
use crate::ops::decode_layers::shape;
use crate::ops::embed::Embed;
use crate::ops::lm_head::LmHead;
use crate::ops::rope::RopeTable;
use crate::ops::sample::{STATE_POS, STATE_TOKEN, STATE_WORDS, Sample, SampleState, state_words};
use crate::ops::{Backend, OpError, RowType, RowWords, TokenLog, WeightLayout};

/// Positions of a page.
pub const PAGE_SIZE: usize = PAGE;
/// Most sequences of a batch.
pub const MAX_BATCH: usize = 1024;
/// Most rows of a step of drafts.
pub const MAX_DRAFT_ROWS: usize = 256;
/// Looks at the token log between two questions to the driver.
const LOOKS: u32 = 256;

pub use drafts::Draft;
use extras::{Masks, PromptLog};
pub(crate) use slot::Needs;
use slot::{Size, Slot, class, reach};

/// What a batch is made for.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Sequences at once, at most [`MAX_BATCH`].
    pub max_batch: usize,
    /// Positions of the longest sequence: prompt and text together.
    pub capacity: usize,
    /// Pages of [`PAGE_SIZE`] positions that all sequences share.
    pub pages: usize,
    /// What the cache keeps of a number.
    pub kv: PageType,
    /// Rows of the largest prefill step.
    pub chunk: usize,
    /// Tokens of prompts that run with a step at most, so that long ones do not hold up the sequences that are there; 64 where it is less. Those beyond
    /// `chunk` run in front of it.
    pub prompt_share: usize,
    /// Whether a prompt that begins like a text that is or was there has the pages of that beginning, copied or taken over, without running it. The tokens are the same; with attention on tensor
    /// cores they are those that this beginning gave then.
    pub prefix_cache: bool,
    /// Whether steps of few rows run through all layers in one kernel, where the backend can.
    pub one_kernel: bool,
    /// Rows that [`Model::verify`] runs at once at most, up to [`MAX_DRAFT_ROWS`] and `chunk`; 0 for who has no drafts.
    pub draft_rows: usize,
}

/// Sequences on one backend that share pages, activations and steps.
pub struct Batch<B: Backend> {
    caches: Vec<PagedCache<B>>,
    /// For few rows through all layers at once, where that is how they run: by each of [`RowsKernel::ALL`].
    together: [Option<RowsTable<B>>; RowsKernel::ALL.len()],
    rope: RopeTable<B>,
    x: Activations<B>,
    scratch: PagedScratch<B>,
    /// For rows of drafts.
    split: Option<PagedScratch<B>>,
    /// Ids of a prefill step, and where they stand.
    ids: B::Buf<u32>,
    runs: PagedRuns<B>,
    copies: PageCopies<B>,
    /// `[max_batch + draft_rows, pages of a sequence]`.
    tables: B::Buf<u32>,
    /// `[max_batch or draft_rows, vocab]`.
    logits: B::Buf<f32>,
    /// The slots that `logits` are of.
    logits_of: Range<usize>,
    head_input: Option<B::Buf<u32>>,
    /// Of the slots, and behind them of the rows of drafts.
    sampler: SampleState<B>,
    /// `[max_batch + draft_rows, capacity]`.
    tokens: B::TokenLog,
    /// What is told of the tokens of slots.
    told: LogprobLog<B>,
    /// What prompts are told by, from the first one on that asks for it.
    prompts_told: Option<PromptLog<B>>,
    /// From the first one on that rests.
    masks: Option<Masks<B>>,
    /// Slots whose part of `tokens` a step that is queued may still write, though their sequences are gone.
    written: Vec<bool>,
    /// Steps recorded so far, by their size.
    recordings: Vec<(Size, B::Recording)>,
    pool: PagePool,
    slots: Vec<Option<Slot>>,
    /// Slots whose prompts have not run to their ends, in the order in which they came.
    waiting: VecDeque<usize>,
    options: BatchOptions,
    vocab: usize,
}

/// Positions that a step of more than eight rows reaches at most by one kernel for all layers: sixteen at 2,048 take it 66.5 us a layer and nine kernels 66.9; at 512 33.8 and 38.0 (H100).
const TWO_TILES_REACH: usize = 1024;

/// The least [`BatchOptions::prompt_share`]: fewer rows take about as long.
const LEAST_SHARE: usize = 64;

impl<B: Backend> Batch<B> {
    /// Reserves everything that a batch of sequences of `model` needs.
    ///
    /// # Errors
    /// Sizes that the kernels do not take; out of memory.
    pub fn new(model: &Model<B>, options: BatchOptions) -> Result<Self, OpError> {
        let (backend, config) = (model.backend(), model.config());
        let BatchOptions { max_batch, capacity, pages, kv, chunk, one_kernel, draft_rows, .. } =
            options;
        if draft_rows > chunk.min(MAX_DRAFT_ROWS) {
            let (what, allowed) = ("draft_rows", "0 to 256 and to chunk rows are allowed");
            return Err(OpError::Dimension { op: "batch", what, found: draft_rows, allowed });
        }
        if max_batch == 0 || max_batch > MAX_BATCH {
            let (what, allowed) = ("max_batch", "1 to 1,024 sequences are allowed");
            return Err(OpError::Dimension { op: "batch", what, found: max_batch, allowed });
        }
        kv.check_math(model.attention())?;
        let (heads, vocab) = (model.heads(), config.vocab_size);
        let caches = (0..config.num_layers)
            .map(|_| PagedCache::alloc(backend, heads, pages, kv))
            .collect::<Result<Vec<_>, _>>()?;
        let shape = shape(config.num_layers, config.hidden_size, config.intermediate_size, heads);
        // That kernel reads 2-bit weights and pages of bf16.
        let takes = kv == RowType::Bf16 && model.layout() == WeightLayout::Bits2;
        let table = |fewer: usize, kernel: RowsKernel| {
            let (wanted, rows) = (one_kernel && takes && max_batch > fewer, kernel.rows());
            (wanted && backend.runs_rows_together(&shape, rows))
                .then(|| RowsTable::new(backend, shape, &model.linears(), &caches, capacity, rows))
                .transpose()
        };
        let [one, few, more] = RowsKernel::ALL;
        let together = [table(0, one)?, table(one.rows(), few)?, table(few.rows(), more)?];
        let rows = chunk + max_batch;
        let (picked, samplers) = (max_batch.max(draft_rows), max_batch + draft_rows);
        let copies = PageCopies::new(backend, &caches, pages)?;
        let int8 = model.int8.as_ref();
        let mut batch = Self {
            caches,
            together,
            rope: RopeTable::new(backend, capacity, heads.head_dim, config.rope_theta)?,
            x: Activations::alloc(backend, model.widths(), rows, 1)?,
            scratch: PagedScratch::alloc(backend, heads, max_batch, pages)?,
            split: (draft_rows > 0)
                .then(|| PagedScratch::of_split(backend, heads, draft_rows, capacity))
                .transpose()?,
            ids: backend.alloc("activations", chunk)?,
            runs: PagedRuns::alloc(backend, heads, chunk, capacity)?,
            copies,
            tables: backend.alloc("page tables", samplers * capacity.div_ceil(PAGE))?,
            logits: backend.alloc("logits", picked * vocab)?,
            logits_of: 0..0,
            head_input: int8.map(|table| table.input(backend, picked)).transpose()?,
            sampler: SampleState::alloc(backend, vocab, samplers)?,
            tokens: backend.alloc_tokens(samplers * capacity)?,
            told: LogprobLog::alloc(backend, vocab, max_batch)?,
            prompts_told: None,
            masks: None,
            written: vec![false; max_batch],
            recordings: Vec::new(),
            pool: PagePool::new(pages),
            slots: (0..max_batch).map(|_| None).collect(),
            waiting: VecDeque::new(),
            options,
            vocab,
        };
        batch.tokens.clear();
        for slot in 0..samplers {
            batch.clear_slot(backend, slot)?;
        }
        Ok(batch)
    }

    /// What the batch was made for.
    pub fn options(&self) -> BatchOptions {
        self.options
    }

    /// Pages in use.
    pub fn pages(&self) -> PageUsage {
        self.pool.usage()
    }

    /// Sequences that are there.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Whether no sequence is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the prompt of the sequence in `slot` has yet to run to its end.
    pub fn waits(&self, slot: usize) -> bool {
        self.waiting.contains(&slot)
    }

    /// Tokens of the prompt of the sequence in `slot` that did not run because pages that hold them were there.
    pub fn cached(&self, slot: usize) -> usize {
        self.slots.get(slot).and_then(Option::as_ref).map_or(0, |slot| slot.cached)
    }

    /// Tokens of the sequence in `slot` that its sampler was asked for so far.
    pub fn queued(&self, slot: usize) -> usize {
        self.slots.get(slot).and_then(Option::as_ref).map_or(0, |slot| slot.queued)
    }

    /// Tokens that the sequence in `slot` gives at most: what was asked for, or what the context has room for.
    pub fn limit(&self, slot: usize) -> usize {
        self.slots.get(slot).and_then(Option::as_ref).map_or(0, |slot| slot.limit)
    }

    /// Token `index` of the sequence in `slot`; [`TokenLog::EMPTY`] as long as it is not there, or when the text ended before it.
    pub fn token(&self, slot: usize, index: usize) -> u32 {
        if slot >= self.slots.len() || index >= self.options.capacity {
            return B::TokenLog::EMPTY;
        }
        self.tokens.get(slot * self.options.capacity + index)
    }

    /// Whether `token` ends the sequence in `slot`.
    pub fn ends(&self, slot: usize, token: u32) -> bool {
        self.slots.get(slot).and_then(Option::as_ref).is_some_and(|slot| slot.stops(token))
    }

    /// Token `index` of the sequence in `slot`, which a step that is queued makes. Waits for it; `None` when the text ended before it.
    ///
    /// # Errors
    /// Whatever the queued operations failed with.
    pub fn wait(&self, backend: &B, slot: usize, index: usize) -> Result<Option<u32>, OpError> {
        self.wait_at(backend, slot * self.options.capacity + index)
    }

    /// Entry `at` of the tokens; `None` when nothing is queued and nothing came.
    fn wait_at(&self, backend: &B, at: usize) -> Result<Option<u32>, OpError> {
        loop {
            for _ in 0..LOOKS {
                let token = self.tokens.get(at);
                if token != B::TokenLog::EMPTY {
                    return Ok(Some(token));
                }
                std::hint::spin_loop();
            }
            if backend.is_idle()? {
                let token = self.tokens.get(at);
                return Ok((token != B::TokenLog::EMPTY).then_some(token));
            }
        }
    }

    /// The logits of the last step for the sequence in `slot`, `[vocab]`. Waits for it.
    ///
    /// # Errors
    /// [`OpError::NoLogits`] of a step by [`super::HeadKind::Int8`], or where the step had no row for it; whatever the queued operations failed with.
    pub fn read_logits(&self, backend: &B, slot: usize) -> Result<Vec<f32>, OpError> {
        if !self.logits_of.contains(&slot) {
            return Err(OpError::NoLogits { op: "read_logits" });
        }
        let mut logits = vec![0.0; self.vocab];
        backend.read(&self.logits, (slot - self.logits_of.start) * self.vocab, &mut logits)?;
        Ok(logits)
    }

    /// Takes the sequence out of `slot` from the next step on, and its pages back. Steps that are queued
    /// already still run it. Says whether there was one.
    ///
    /// # Errors
    /// A failed copy.
    pub fn remove(&mut self, backend: &B, slot: usize) -> Result<bool, OpError> {
        let Some(gone) = self.slots.get_mut(slot).and_then(Option::take) else {
            return Ok(false);
        };
        let tokens = (0..gone.queued).map(|index| self.token(slot, index));
        let tokens: Vec<_> = tokens.take_while(|&token| token != B::TokenLog::EMPTY).collect();
        let ended = tokens.last().is_some_and(|&token| gone.stops(token));
        // What is told of a token comes behind it.
        self.written[slot] = tokens.len() < gone.queued && !ended || self.told.tells(slot);
        if self.options.prefix_cache {
            // A token that is there was picked behind the step that stored the key of the one before.
            let mut text = [&gone.prompt[..gone.ran], &tokens].concat();
            text.truncate(gone.ran.max(text.len().saturating_sub(1)));
            self.pool.remember(&gone.pages, &text);
        }
        self.pool.give_back(gone.pages);
        self.waiting.retain(|&waiting| waiting != slot);
        self.clear_slot(backend, slot)?;
        Ok(true)
    }

    /// Makes the row of `slot` one that is not there, behind everything that is queued.
    fn clear_slot(&mut self, backend: &B, slot: usize) -> Result<(), OpError> {
        let gone = StepState { pos: ABSENT, done: 1, ..StepState::default() };
        let width = self.width();
        backend.write(&mut self.sampler.state, slot * STATE_WORDS, &state_words(&gone))?;
        backend.write(&mut self.tables, slot * width, &vec![NO_PAGE; width])
    }

    /// The table by which a step of `size` runs through all layers at once, if that is how it runs.
    fn table_of(&self, size: Size) -> Option<usize> {
        if size.first >= self.options.max_batch {
            // Rows of drafts see each other.
            return None;
        }
        let Size { m, reach, .. } = size;
        let kernel = RowsKernel::of(m);
        let at = RowsKernel::ALL.iter().position(|&other| other == kernel)?;
        let pays = at + 1 < RowsKernel::ALL.len() || reach <= TWO_TILES_REACH;
        (pays && self.together[at].is_some()).then_some(at)
    }

    /// Sequences whose prompts have run, with their slots.
    fn stepping(&self) -> impl Iterator<Item = (usize, &Slot)> + Clone {
        let slots = (0..).zip(&self.slots).filter_map(|(i, slot)| Some((i, slot.as_ref()?)));
        slots.filter(|(_, slot)| slot.queued > 0)
    }

    /// Those of them that a step gives a token.
    fn due(&self) -> impl Iterator<Item = usize> {
        self.stepping().filter(|(_, slot)| slot.is_due()).map(|(i, _)| i)
    }

    /// Pages of a table.
    fn width(&self) -> usize {
        self.options.capacity.div_ceil(PAGE)
    }
}

impl<B: Backend> Model<B> {
    /// Queues what comes next: one step of all sequences whose prompts have run, and beside it the next tokens of prompts, up to
    /// [`BatchOptions::prompt_share`] in the order in which they came, with short ones in the place that another leaves. In a step the token of each
    /// sequence runs through the model at its position, and the next one is picked; the end of a prompt gives its first token. Sequences that have given
    /// all their tokens, or that ended, stay as they are. Where no sequence waits for its next token, prompts run alone, as many tokens together as there
    /// is room for.
    /// A sequence that [rests](contract::sample::SampleParams::rests) has a token where [`Batch::allow`] has said which it may be, and stays as it is
    /// otherwise. With `record`, a backend that can replays a recording of a step without prompts.
    ///
    /// # Errors
    /// A failed launch.
    pub fn decode_batch(&self, batch: &mut Batch<B>, record: bool) -> Result<(), OpError> {
        let BatchOptions { chunk, prompt_share, .. } = batch.options;
        if batch.due().next().is_none() && !batch.waiting.is_empty() {
            self.run_prompts(batch, chunk)?;
        }
        let mut share = prompt_share.max(LEAST_SHARE);
        while share > chunk && !batch.waiting.is_empty() {
            share -= self.run_prompts(batch, chunk)?;
        }
        let due: Vec<usize> = batch.due().collect();
        let Some(size) = self.size_of(batch).filter(|_| !due.is_empty()) else { return Ok(()) };
        if !batch.waiting.is_empty() {
            self.run_both(batch, size, share.min(chunk))?;
        } else {
            self.queue_step(batch, size, record)?;
        }
        for slot in due {
            if let Some(slot) = &mut batch.slots[slot] {
                slot.queued = slot.limit.min(slot.queued + 1);
                slot.allowed = false;
            }
        }
        Ok(())
    }

    /// Queues a step without prompts.
    fn queue_step(&self, batch: &mut Batch<B>, size: Size, record: bool) -> Result<(), OpError> {
        let has_logits = size.way.stored || self.int8.is_none();
        batch.logits_of = if has_logits { size.first..size.first + size.m } else { 0..0 };
        if record && !batch.recordings.iter().any(|r| r.0 == size) {
            let recording = self.backend.record(|| self.step_rows(batch, size))?;
            batch.recordings.extend(recording.map(|r| (size, r)));
        }
        match batch.recordings.iter().find(|r| record && r.0 == size) {
            Some((_, recording)) => self.backend.replay(recording),
            None => self.step_rows(batch, size),
        }
    }

    /// The size of a step of all sequences whose prompts have run, if there are any.
    fn size_of(&self, batch: &Batch<B>) -> Option<Size> {
        let BatchOptions { max_batch, capacity, .. } = batch.options;
        let (last, _) = batch.stepping().last()?;
        // A sequence that is alone needs no rows for the slots in front of it.
        let alone = batch.stepping().count() == 1;
        let (first, m) = if alone { (last, 1) } else { (0, class(last + 1, max_batch)) };
        let positions = batch.stepping().map(|(_, slot)| slot.prompt.len() + slot.queued);
        let reach = reach(positions.clone().max().unwrap_or(1), capacity);
        let positions: Vec<usize> = positions.map(|needed| needed.saturating_sub(1)).collect();
        let way = self.way_of(batch, 0..max_batch, m);
        let size = Size { first, m, reach, share: None, way };
        let together = batch.waiting.is_empty() && batch.table_of(size).is_some();
        let share = (!together && batch.options.kv != RowType::F32).then_some(&positions[..]);
        let share = share.and_then(|p| self.backend.pages_of_block(self.heads(), p));
        Some(Size { share, ..size })
    }

    fn step_rows(&self, batch: &mut Batch<B>, size: Size) -> Result<(), OpError> {
        let Size { first, m, way, .. } = size;
        let pending = self.run_rows(batch, Some(size), false)?;
        let Batch { x, head_input, sampler, logits, tokens, .. } = &mut *batch;
        let int8 = self.int8.as_ref().filter(|_| !way.stored);
        if let (Some(table), Some(input)) = (int8, head_input) {
            let (row, every) = (first, way.every());
            let next = Next { input, sampler, row, bounds: logits, every, out: tokens };
            self.next_tokens(table, x, m, pending, next)?;
            return self.tell_rows(batch, first, m, way);
        }
        self.last_norm(x, m, pending)?;
        self.backend.lm_head(LmHead { x: &x.wide, x_at: 0, w: self.head(), logits, m })?;
        self.sample_rows(batch, first, m, way)
    }

    /// Embedding and blocks of the rows of a step, if it is of `step`, and behind them of [`Batch::runs`] with `prompts`. Says whether there is an
    /// `x.delta` left to add.
    fn run_rows(
        &self,
        batch: &mut Batch<B>,
        step: Option<Size>,
        prompts: bool,
    ) -> Result<bool, OpError> {
        let (width, capacity) = (batch.width(), batch.options.capacity);
        let of_tiles = step.filter(|_| !prompts).and_then(|step| batch.table_of(step));
        let Batch { x, caches, together, rope, scratch, split, options, .. } = batch;
        let (ids, runs, tables, sampler) = (&batch.ids, &batch.runs, &batch.tables, &batch.sampler);
        let state = |slot, at| {
            let at = slot * STATE_WORDS + at;
            RowWords { words: &sampler.state, at, stride: STATE_WORDS }
        };
        let (of_step, of_prompts) =
            (step.map_or(0, |step| step.m), runs.m() * usize::from(prompts));
        let first = step.map_or(0, |step| step.first);
        let positions = state(first, STATE_POS);
        let tables = RowWords { words: tables, at: first * width, stride: width };
        let prompt_ids = RowWords { words: ids, at: 0, stride: 1 };
        let parts = [(state(first, STATE_TOKEN), 0, of_step), (prompt_ids, of_step, of_prompts)];
        for (RowWords { words: ids, at: ids_at, stride: ids_stride }, first, m) in parts {
            if m > 0 {
                let (table, out) = (&self.embedding, &mut x.h);
                self.backend.embed(Embed { ids, ids_at, ids_stride, table, out, first, m })?;
            }
        }
        let mut pending = false;
        let table = of_tiles.and_then(|tiles| together[tiles].as_mut());
        if let (Some(table), Some(first)) = (table, self.blocks.first()) {
            self.backend.decode_rows(DecodeRows {
                layers: &self.linears(),
                caches,
                table,
                rope,
                h: &mut x.h,
                positions,
                tables,
                m: of_step,
                gate: first.mlp.gate,
                eps: self.config.rms_norm_eps,
                math: first.attention.math,
            })?;
            return Ok(pending);
        }
        let mut caches = caches.as_mut_slice();
        for block in &self.blocks {
            let Some((cache, behind)) = std::mem::take(&mut caches).split_first_mut() else {
                break;
            };
            // The step before wrote positions and keys, and the embedding stands behind it.
            let step = step.map(|Size { first, m, reach, share, .. }| {
                let next = behind.first().filter(|_| !prompts);
                let (settled, scratch) = (!prompts, &mut *scratch);
                let rows = match split.as_mut().filter(|_| first >= options.max_batch) {
                    // Of drafts.
                    Some(scratch) => PagedRows::Split(PagedSplit { scratch, reach }),
                    None => PagedRows::Step(PagedStep { scratch, reach, settled, share, next }),
                };
                PagedPart { m, positions, tables, capacity, rows }
            });
            let prompts = prompts.then(|| PagedPart {
                m: of_prompts,
                positions: runs.positions(),
                tables: runs.tables(),
                capacity: runs.reach(),
                rows: PagedRows::Runs(runs),
            });
            let past = Past::Paged { cache, step, prompts };
            let m = of_step + of_prompts;
            pending = block.forward(&self.backend, x, past, rope, m, pending)?;
            caches = behind;
        }
        Ok(pending)
    }

    /// The next token of `rows` sequences from slot `first` on, whose logits stand in front, and what is told of it.
    fn sample_rows(
        &self,
        batch: &mut Batch<B>,
        first: usize,
        rows: usize,
        way: Way,
    ) -> Result<(), OpError> {
        self.backend.sample(Sample {
            logits: &batch.logits,
            logits_at: 0,
            vocab: self.config.vocab_size,
            sampler: &mut batch.sampler,
            row: first,
            rows,
            out: &mut batch.tokens,
        })?;
        self.tell_rows(batch, first, rows, way)
    }

    /// What is told of the tokens that were just picked of `rows` sequences from slot `first` on, by the logits in front.
    pub(super) fn tell_rows(
        &self,
        batch: &mut Batch<B>,
        first: usize,
        rows: usize,
        way: Way,
    ) -> Result<(), OpError> {
        let Batch { told, logits, sampler, .. } = batch;
        let vocab = self.config.vocab_size;
        match way.logprobs {
            true => told.tell(&self.backend, logits, sampler, (first, rows), vocab),
            false => Ok(()),
        }
    }
}
