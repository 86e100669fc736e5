//! What a sequence of a batch is asked for beside its tokens, and what holds it to a grammar.

use std::ops::Range;

use contract::lm_head::TILE_INPUTS;
use contract::logprobs::ENTRY_WORDS;

use super::Batch;
use super::prompts::Part;
use crate::model::Model;
use crate::model::logprobs::{Extras, TokenLogprobs, Way, biased, entry, under_bias, wanted};
use crate::ops::lm_head::LmHead;
use crate::ops::logprobs::{LogprobScratch, Logprobs};
use crate::ops::sample::{Allow, PARAM_WORDS, mask_words, param_words};
use crate::ops::{Backend, OpError, RowWords, TokenLog};

/// What sequences may give next, on its way to the sampler.
pub(super) struct Masks<B: Backend> {
    /// `[max_batch]`.
    rows: B::Buf<u32>,
    /// `[max_batch, words]`.
    allowed: B::Buf<u32>,
}

/// By what the tokens of prompts are told, of one prefill step.
pub(super) struct PromptLog<B: Backend> {
    /// `[chunk]`: the tokens behind those that run.
    ids: B::Buf<u32>,
    /// `[chunk]`: how many likely ones of each, as the kernel takes it.
    wanted: B::Buf<u32>,
    /// `[chunk]`.
    last: B::Buf<u32>,
    /// The number of each: 1.
    one: B::Buf<u32>,
    /// Of so many rows at a time.
    logits: B::Buf<f32>,
    scratch: LogprobScratch<B>,
    log: B::TokenLog,
}

/// Rows that go through the head at once.
const HEAD_ROWS: usize = 64;

impl<B: Backend> PromptLog<B> {
    fn alloc(backend: &B, chunk: usize, vocab: usize) -> Result<Self, OpError> {
        let mut one = backend.alloc("sampler", 1)?;
        backend.write(&mut one, 0, &[1])?;
        Ok(Self {
            ids: backend.alloc("sampler", chunk)?,
            wanted: backend.alloc("sampler", chunk)?,
            last: backend.alloc("sampler", chunk)?,
            one,
            logits: backend.alloc("logits", HEAD_ROWS.min(chunk) * vocab)?,
            scratch: LogprobScratch::alloc(backend, vocab, HEAD_ROWS.min(chunk))?,
            log: backend.alloc_tokens(chunk * ENTRY_WORDS)?,
        })
    }
}

impl<B: Backend> Model<B> {
    /// How the next tokens of `m` rows are found, those of `slots` among them, also where their prompts end with this step.
    pub(super) fn way_of(&self, batch: &Batch<B>, slots: Range<usize>, m: usize) -> Way {
        // As many of them as fill a tile take the time of one.
        let pays = |needing: usize| needing.next_multiple_of(TILE_INPUTS as usize) < m;
        let beside = |needing| pays(needing) && self.backend().keeps_logits(self.head(), m);
        Way::of_all(batch.slots[slots].iter().flatten().map(|slot| slot.way()), beside)
    }

    /// Tells the tokens of prompts that ask for it behind the rows of `parts`, whose last norm stands from row `from` on. Waits for it.
    pub(super) fn tell_prompts(
        &self,
        batch: &mut Batch<B>,
        parts: &[Part],
        from: usize,
    ) -> Result<(), OpError> {
        let (backend, hidden, vocab) =
            (self.backend(), self.config().hidden_size, self.config().vocab_size);
        let chunk = batch.options.chunk;
        let Batch { slots, x, prompts_told, .. } = batch;
        let prompt_log = match prompts_told {
            Some(log) => log,
            None => prompts_told.insert(PromptLog::alloc(backend, chunk, vocab)?),
        };
        let PromptLog { ids, wanted: words, last, one, logits, scratch, log } = prompt_log;
        // Nothing that writes there is queued: every call waits for its own.
        log.clear();
        backend.fill(last, 0)?;
        let mut told = Vec::new();
        for &Part { slot, first, reach, last_row, .. } in parts {
            let Some(of_slot) = &slots[slot] else { continue };
            let Some(top) = of_slot.extras.prompt_logprobs else { continue };
            let targets = &of_slot.prompt[first + 1..(reach + 1).min(of_slot.prompt.len())];
            let at = last_row + 1 - (reach - first);
            backend.write(ids, at, targets)?;
            backend.write(words, at, &vec![wanted(Some(top)); targets.len()])?;
            for (i, rows) in targets.chunks(HEAD_ROWS).map(<[u32]>::len).enumerate() {
                let at = at + i * HEAD_ROWS;
                let (x_at, w) = ((from + at) * hidden, self.head());
                backend.lm_head(LmHead { x: &x.wide, x_at, w, logits, m: rows })?;
                backend.logprobs(Logprobs {
                    logits,
                    vocab,
                    ids: RowWords { words: ids, at, stride: 1 },
                    steps: RowWords { words: one, at: 0, stride: 0 },
                    wanted: RowWords { words, at, stride: 1 },
                    last,
                    out: log,
                    scratch,
                    first: at,
                    rows,
                    ring: 1,
                })?;
            }
            told.push((slot, at, targets.len(), top));
        }
        backend.synchronize()?;
        for (slot, at, rows, top) in told {
            let entries = (at..at + rows).filter_map(|row| entry(log, row, 1, top, vocab));
            if let Some(of_slot) = &mut slots[slot] {
                of_slot.prompt_told.extend(entries);
            }
        }
        Ok(())
    }
}

impl<B: Backend> Batch<B> {
    /// Whether tokens of a prompt are told behind one of `parts`.
    pub(super) fn tells(&self, parts: &[Part]) -> bool {
        let asks = |part: &Part| self.slots[part.slot].as_ref()?.extras.prompt_logprobs;
        parts.iter().any(|part| asks(part).is_some())
    }

    /// Whether every sequence can be [guessed](Model::verify) for: none [rests](contract::sample::SampleParams::rests) or has extras.
    pub fn is_plain(&self) -> bool {
        self.slots.iter().flatten().all(|slot| slot.is_plain())
    }

    /// Asks for more of the sequence in `slot`, which was just added: before its prompt runs.
    ///
    /// # Errors
    /// A slot without a sequence, ids outside of the vocabulary; out of memory, a failed copy.
    pub fn ask(&mut self, backend: &B, slot: usize, extras: &Extras) -> Result<(), OpError> {
        let Self { slots, sampler, told, vocab, options, .. } = self;
        let Some(of_slot) = slots.get_mut(slot).and_then(Option::as_mut) else {
            let (what, found) = ("slot of extras", slot);
            let allowed = "slots with a sequence are allowed";
            return Err(OpError::Dimension { op: "batch", what, found, allowed });
        };
        let way = Way::of(&of_slot.params, extras);
        if way.bias {
            let (marks, bias) = biased(*vocab, &of_slot.prompt, &extras.logit_bias)?;
            let rows = match &mut sampler.bias {
                Some(rows) => rows,
                None => sampler.bias.insert(backend.alloc("sampler", options.max_batch * *vocab)?),
            };
            backend.write(rows, slot * *vocab, &bias)?;
            backend.write(&mut sampler.marks, slot * *vocab, &marks)?;
        }
        if way.every() {
            of_slot.params = under_bias(&of_slot.params);
            let words = param_words(&of_slot.params);
            backend.write(&mut sampler.params, slot * PARAM_WORDS, &words)?;
        }
        told.ask(backend, slot, extras.logprobs)?;
        of_slot.extras = extras.clone();
        Ok(())
    }

    /// What is told of token `index` of the sequence in `slot`, if that was asked for and [`Batch::token`] has it, not later than a dozen tokens behind it. Waits for it.
    ///
    /// # Errors
    /// Whatever the queued operations failed with.
    pub fn logprobs(
        &self,
        backend: &B,
        slot: usize,
        index: usize,
    ) -> Result<Option<TokenLogprobs>, OpError> {
        self.told.wait(backend, slot, index, self.vocab)
    }

    /// What was told of the prompt of the sequence in `slot` since this was asked: a token behind the other, from the second one on.
    pub fn take_prompt_logprobs(&mut self, slot: usize) -> Vec<TokenLogprobs> {
        let slot = self.slots.get_mut(slot).and_then(Option::as_mut);
        slot.map(|slot| std::mem::take(&mut slot.prompt_told)).unwrap_or_default()
    }

    /// Says which tokens sequences that [rest](contract::sample::SampleParams::rests) may give next, of each a bit for every token, 32 to a word from the lowest
    /// on; they take part in the next step that is queued then. In front of a prompt it is said for the first token.
    ///
    /// # Errors
    /// A mask of another length, a slot without such a sequence or given twice; out of memory, a failed copy or launch.
    pub fn allow(&mut self, backend: &B, masks: &[(usize, &[u32])]) -> Result<(), OpError> {
        let dimension =
            |what, found, allowed| OpError::Dimension { op: "batch", what, found, allowed };
        if masks.is_empty() {
            return Ok(());
        }
        let Self { slots, sampler, masks: buffers, vocab, options, .. } = self;
        let (mut rows, mut all) = (Vec::new(), Vec::new());
        for &(slot, words) in masks {
            if words.len() != mask_words(*vocab) {
                return Err(dimension(
                    "words of a mask",
                    words.len(),
                    "a bit for each token is allowed",
                ));
            }
            let rests =
                slots.get(slot).and_then(Option::as_ref).is_some_and(|of| of.params.rests != 0);
            if !rests || rows.contains(&(slot as u32)) {
                return Err(dimension(
                    "slot of a mask",
                    slot,
                    "slots of sequences that rest are allowed, each once",
                ));
            }
            rows.push(slot as u32);
            all.extend_from_slice(words);
        }
        let Masks { rows: to, allowed } = match buffers {
            Some(buffers) => buffers,
            None => buffers.insert(Masks {
                rows: backend.alloc("sampler", options.max_batch)?,
                allowed: backend.alloc("sampler", options.max_batch * mask_words(*vocab))?,
            }),
        };
        backend.write(to, 0, &rows)?;
        backend.write(allowed, 0, &all)?;
        let (vocab, masks) = (*vocab, rows.len());
        backend.allow(Allow { sampler, rows: to, allowed, vocab, masks })?;
        for row in rows {
            if let Some(slot) = &mut slots[row as usize] {
                slot.allowed = true;
            }
        }
        Ok(())
    }
}
