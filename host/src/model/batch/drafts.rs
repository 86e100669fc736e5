//! Tokens that are guessed, and checked together: as many as were guessed right come in the time of a step of several rows.

use contract::attention_paged::{ABSENT, NO_PAGE};
use contract::sample::{SampleParams, StepState};

use super::slot::{Size, reach};
use super::{Batch, BatchOptions};
use crate::model::logprobs::Way;
use crate::model::{Model, ModelError};
use crate::ops::sample::{PARAM_WORDS, STATE_WORDS, param_words, state_words};
use crate::ops::{Backend, OpError, TokenLog};

/// What a sequence may go on with.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Its slot.
    pub slot: usize,
    /// The tokens behind its last one; none is a step as every other.
    pub tokens: &'a [u32],
}

/// A sequence in a step of drafts.
struct Place {
    /// Its number among the drafts.
    index: usize,
    slot: usize,
    /// Its last token, and the drafted ones.
    ids: Vec<u32>,
    /// Position of the first of them.
    start: usize,
    /// Tokens that it has given.
    step: usize,
    params: SampleParams,
}

impl Place {
    /// Whether its sampler looks at what the text holds.
    fn penalises(&self) -> bool {
        self.params.repetition_penalty != 1.0
    }
}

/// Rows of a step of drafts that has `rows`: the next size that steps are recorded for. Fewer take as long.
fn draft_class(rows: usize, most: usize) -> usize {
    rows.next_power_of_two().max(8).min(most)
}

impl<B: Backend> Model<B> {
    /// Runs the last token of each sequence and the drafted ones behind it through the model at once, picks the token behind each, and keeps them up to the
    /// first that was not drafted: the tokens that as many steps give, one at least. Waits for the tokens that are queued and for these. Says how many each
    /// sequence got, in the order of `drafts`: none where it has ended. Such steps attend exactly. With `record`, a backend that can replays a recording.
    ///
    /// # Errors
    /// Ids outside of the vocabulary, more rows than [`BatchOptions::draft_rows`], a slot without a sequence whose prompt has run, one that [rests](contract::sample::SampleParams::rests) or has [extras](Batch::ask), one given twice; a failed
    /// launch.
    pub fn verify(
        &self,
        batch: &mut Batch<B>,
        drafts: &[Draft<'_>],
        record: bool,
    ) -> Result<Vec<usize>, ModelError> {
        let places = batch.places(self, drafts)?;
        let mut got = vec![0; drafts.len()];
        if places.is_empty() {
            return Ok(got);
        }
        let size = batch.write_drafts(self.backend(), &places)?;
        self.queue_step(batch, size, record)?;
        let mut row = size.first;
        for place in &places {
            got[place.index] = batch.accept(self.backend(), place, row)?;
            row += place.ids.len();
        }
        Ok(got)
    }
}

impl<B: Backend> Batch<B> {
    /// What runs of `drafts`: of sequences that have not ended, as much as they may yet give.
    fn places(&self, model: &Model<B>, drafts: &[Draft<'_>]) -> Result<Vec<Place>, ModelError> {
        let vocab = self.vocab;
        let (mut places, mut rows): (Vec<Place>, usize) = (Vec::new(), 0);
        for (index, &Draft { slot, tokens }) in drafts.iter().enumerate() {
            if let Some(at) = tokens.iter().position(|&id| id as usize >= vocab) {
                let (id, index) = (tokens[at], at);
                return Err(ModelError::TokenOutOfVocabulary { id, index, vocab });
            }
            let found = self.slots.get(slot).and_then(Option::as_ref);
            let twice = places.iter().any(|place| place.slot == slot);
            let Some(of_slot) =
                found.filter(|found| found.queued > 0 && found.is_plain() && !twice)
            else {
                let (what, found) = ("slot of a draft", slot);
                let allowed = "slots whose prompts have run, that never rest and have no extras, are allowed, each once";
                return Err(OpError::Dimension { op: "batch", what, found, allowed }.into());
            };
            let step = of_slot.queued;
            let last = self.wait(model.backend(), slot, step - 1)?;
            let Some(last) = last.filter(|&last| step < of_slot.limit && !of_slot.stops(last))
            else {
                continue;
            };
            let drafted = tokens.iter().take(of_slot.limit - step - 1).copied();
            let ids: Vec<u32> = std::iter::once(last).chain(drafted).collect();
            rows += ids.len();
            let (start, params) = (of_slot.prompt.len() + step - 1, of_slot.params);
            places.push(Place { index, slot, ids, start, step, params });
        }
        if rows > self.options.draft_rows {
            let (what, allowed) = ("rows of drafts", "up to draft_rows are allowed");
            return Err(OpError::Dimension { op: "batch", what, found: rows, allowed }.into());
        }
        Ok(places)
    }

    /// Writes what a step of `places` reads: for each row a sampler that stands where the sequence would, and its pages. Says what it is recorded for.
    fn write_drafts(&mut self, backend: &B, places: &[Place]) -> Result<Size, OpError> {
        let BatchOptions { max_batch: first, capacity, draft_rows, .. } = self.options;
        let (rows, width) = (places.iter().map(|place| place.ids.len()).sum(), self.width());
        let m = draft_class(rows, draft_rows);
        let Self { slots, sampler, tables, tokens, vocab, .. } = self;
        let gone = StepState { pos: ABSENT, done: 1, ..StepState::default() };
        let mut states: Vec<u32> = Vec::with_capacity(m * STATE_WORDS);
        let (mut params, mut pages) = (Vec::new(), Vec::with_capacity(rows * width));
        let (mut row, mut needed) = (first, 0);
        for place in places {
            for (i, &token) in place.ids.iter().enumerate() {
                let step = place.step + i;
                let pos = (place.start + i) as u32;
                let state = StepState { pos, token, step: step as u32, done: 0 };
                states.extend(state_words(&state));
                params.extend(param_words(&place.params));
                if let Some(slot) = &slots[place.slot] {
                    pages.extend_from_slice(&slot.pages);
                }
                pages.resize((row - first + 1) * width, NO_PAGE);
                tokens.clear_part(row * capacity + step..row * capacity + step + 1);
                if place.penalises() {
                    // The text of the row in front, and its own token.
                    let from = if i == 0 { place.slot } else { row - 1 };
                    backend.copy_within(&mut sampler.marks, from * *vocab, row * *vocab, *vocab)?;
                    backend.write(&mut sampler.marks, row * *vocab + token as usize, &[1])?;
                }
                row += 1;
            }
            needed = needed.max(place.start + place.ids.len());
        }
        states.extend((rows..m).flat_map(|_| state_words(&gone)));
        backend.write(&mut sampler.state, first * STATE_WORDS, &states)?;
        backend.write(&mut sampler.params, first * PARAM_WORDS, &params)?;
        backend.write(tables, first * width, &pages)?;
        Ok(Size { first, m, reach: reach(needed, capacity), share: None, way: Way::default() })
    }

    /// Takes the tokens of `place`, whose first row's sampler is `row`, up to the first that was not drafted or that ends the text. Says how many.
    fn accept(&mut self, backend: &B, place: &Place, row: usize) -> Result<usize, OpError> {
        let &Place { slot, start, step, .. } = place;
        let capacity = self.options.capacity;
        let (mut count, mut last, mut ended) = (0, 0, false);
        for i in 0..place.ids.len() {
            let Some(token) = self.wait_at(backend, (row + i) * capacity + step + i)? else {
                break;
            };
            self.tokens.put(slot * capacity + step + i, token);
            (count, last) = (i + 1, token);
            ended = self.slots[slot].as_ref().is_some_and(|slot| slot.stops(token));
            if ended || place.ids.get(count) != Some(&token) {
                break;
            }
        }
        let Some(of_slot) = self.slots[slot].as_mut().filter(|_| count > 0) else { return Ok(0) };
        of_slot.queued += count;
        let done = u32::from(ended || of_slot.queued >= of_slot.limit);
        let (pos, step) = ((start + count) as u32, (step + count) as u32);
        let state = state_words(&StepState { pos, token: last, step, done });
        backend.write(&mut self.sampler.state, slot * STATE_WORDS, &state)?;
        if place.penalises() {
            // The sampler of the last row has marked its token.
            let from = (row + count - 1) * self.vocab;
            backend.copy_within(&mut self.sampler.marks, from, slot * self.vocab, self.vocab)?;
        }
        Ok(count)
    }
}
