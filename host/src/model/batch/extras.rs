//! What a sequence of a batch is asked for beside its tokens, and what holds it to a grammar.

use std::ops::Range;

use contract::logprobs::ENTRY_WORDS;

use super::Batch;
use super::prompts::Part;
use crate::model::Model;
use crate::model::logprobs::{Extras, TokenLogprobs, Way, biased, entry, under_bias, wanted};
use crate::ops::lm_head::LmHead;
use crate::ops::logprobs::{LogprobScratch, Logprobs};
use crate::ops::sample::{PARAM_WORDS, param_words};
use crate::ops::{Backend, OpError, RowWords, TokenLog};

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
    /// How the next tokens of `slots` are found, those whose prompts end with this step included.
    pub(super) fn way_of(&self, slots: Range<usize>) -> Way {
        let ways = self.slots[slots].iter().flatten().map(|slot| slot.way());
        ways.fold(Way::default(), Way::and)
    }

    /// Whether tokens of a prompt are told behind one of `parts`.
    pub(super) fn tells(&self, parts: &[Part]) -> bool {
        let asks = |part: &Part| self.slots[part.slot].as_ref()?.extras.prompt_logprobs;
        parts.iter().any(|part| asks(part).is_some())
    }

    /// Whether every sequence can be [guessed](Model::verify) for: none has marks or extras.
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
        if Way::of(&of_slot.params, extras).bias {
            let (marks, bias) = biased(*vocab, &of_slot.prompt, &extras.logit_bias)?;
            let rows = match &mut sampler.bias {
                Some(rows) => rows,
                None => sampler.bias.insert(backend.alloc("sampler", options.max_batch * *vocab)?),
            };
            backend.write(rows, slot * *vocab, &bias)?;
            backend.write(&mut sampler.marks, slot * *vocab, &marks)?;
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

    /// Tells the sampler of the sequence in `slot` what is known of each token, `[vocab]`: [`contract::sample::SEEN`] and
    /// [`contract::sample::FORBIDDEN`], which count from the next step that is queued on, and unless [`contract::sample::SampleParams::repetition_penalty`] is 1.
    ///
    /// # Errors
    /// Another number of marks, a slot without a sequence; a failed copy.
    pub fn mark(&mut self, backend: &B, slot: usize, marks: &[u8]) -> Result<(), OpError> {
        let dimension =
            |what, found, allowed| OpError::Dimension { op: "batch", what, found, allowed };
        if marks.len() != self.vocab {
            return Err(dimension("marks", marks.len(), "one for each token is allowed"));
        }
        let Some(marked) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return Err(dimension("slot of marks", slot, "slots with a sequence are allowed"));
        };
        marked.marked = true;
        backend.write(&mut self.sampler.marks, slot * self.vocab, marks)
    }
}
