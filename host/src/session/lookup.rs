//! Guesses of what comes next, by what came behind the same tokens before (prompt lookup decoding).
//!
//! A text that repeats what it or its prompt has said, as an edit of a program, a summary with quotes or an answer about a document does, is
//! guessed for many tokens at a time, and these are checked together ([`Model::verify`]). The tokens are those of one step after the other,
//! greedy or drawn: a number is drawn by its step, and a row's bits do not depend on its neighbours.

use std::collections::HashMap;

use crate::model::{Batch, Draft, Model, ModelError};
use crate::ops::{Backend, TokenLog};

/// Tokens that a guess has to agree with at least, behind one that came right.
const LEAST: usize = 3;
/// Most that it has to agree with, behind many that did not.
const MOST: usize = 24;
/// Earlier places that are looked at.
const PLACES: usize = 64;
/// Tokens of a first guess; of one behind a guess that came right as a whole twice as many, and one more.
const FIRST: usize = 7;
/// Most tokens of a guess where no number is asked for.
const AUTO: usize = 31;
/// What a step of drafts takes more than another one, in tokens: of one text, and for each text beside it, whose next token comes later.
const COST: [f32; 2] = [1.0, 0.75];

/// How many tokens of a text are guessed at once, and checked together. The tokens are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Up to 31 on a GPU whose steps of few rows attend page by page (from sm_80 on, a cache of bf16 and heads of a multiple of 8 elements up to 128), where attention is exact; none elsewhere.
    Auto,
    /// Up to so many, 255 at most; 0 for none, the default.
    UpTo(usize),
}

impl Default for Lookup {
    fn default() -> Self {
        Self::UpTo(0)
    }
}

impl From<usize> for Lookup {
    fn from(tokens: usize) -> Self {
        Self::UpTo(tokens)
    }
}

impl Lookup {
    /// Tokens at once; `pays`: where steps of few rows are fast and attention is exact.
    pub(super) fn tokens(self, pays: bool) -> usize {
        match self {
            Self::Auto if pays => AUTO,
            Self::Auto => 0,
            Self::UpTo(tokens) => tokens,
        }
    }
}

/// What one sequence has said, found by three tokens.
#[derive(Debug, Default)]
struct Text {
    tokens: Vec<u32>,
    /// Where three tokens stood last: the place behind them.
    last: HashMap<[u32; LEAST], usize>,
    /// Where those in front of each place stood before that; 0 for nowhere.
    before: Vec<usize>,
    /// Tokens in front of the first that the sequence gives.
    prompt: usize,
    /// Tokens that a guess has to agree with.
    need: usize,
    /// Tokens of the next guess.
    len: usize,
    /// Tokens of it that come right, by the last ones.
    hope: f32,
    /// Tokens that the host knows of, behind a step of drafts.
    came: usize,
    drafted: usize,
    accepted: usize,
}

impl Text {
    fn new(prompt: &[u32]) -> Self {
        let mut text = Self {
            need: LEAST,
            len: FIRST,
            hope: FIRST as f32 / 2.0,
            prompt: prompt.len(),
            ..Self::default()
        };
        prompt.iter().for_each(|&token| text.push(token));
        text
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let key = self.tokens.last_chunk::<LEAST>();
        let before = key.and_then(|&key| self.last.insert(key, self.tokens.len()));
        self.before.push(before.unwrap_or(0));
    }

    /// Up to `most` tokens that may come next: what stood behind the longest end of the text that was there before, at the last of such places.
    fn guess(&self, most: usize) -> Vec<u32> {
        let end = self.tokens.len();
        let (mut best, mut behind) = (0, 0);
        let mut at = self.before.last().copied().unwrap_or(0);
        for _ in 0..PLACES {
            if at == 0 || best == MOST {
                break;
            }
            let pairs = self.tokens[..at].iter().rev().zip(self.tokens.iter().rev());
            let alike = pairs.take(MOST).take_while(|(a, b)| a == b).count();
            if alike > best {
                (best, behind) = (alike, at);
            }
            at = self.before[at - 1];
        }
        if best < self.need {
            return Vec::new();
        }
        // Behind the end of the text the guess goes on with itself.
        (0..most.min(self.len)).map(|i| self.tokens[behind + i % (end - behind)]).collect()
    }

    /// Learns how many of so many guessed tokens were right.
    fn learn(&mut self, drafted: usize, right: usize) {
        self.drafted += drafted;
        self.accepted += right;
        self.hope = (3.0 * self.hope + right as f32) / 4.0;
        self.need = if right == 0 { (2 * self.need).min(MOST) } else { LEAST };
        self.len = if right == drafted { 2 * drafted + 1 } else { FIRST };
    }
}

/// What guesses for a batch.
pub(super) struct Guesser {
    /// Tokens of a guess at most.
    most: usize,
    texts: Vec<Option<Text>>,
}

impl Guesser {
    pub(super) fn new(most: usize, slots: usize) -> Self {
        Self { most, texts: (0..slots).map(|_| None).collect() }
    }

    pub(super) fn begin(&mut self, slot: usize, prompt: &[u32]) {
        self.texts[slot] = Some(Text::new(prompt));
    }

    /// Guesses for the text in `slot` from `expected` too, as if that stood in front of its prompt.
    pub(super) fn predict(&mut self, slot: usize, expected: &[u32]) {
        if let Some(text) = &mut self.texts[slot] {
            let Text { tokens, last, before, .. } =
                Text::new(&[expected, &text.tokens[..]].concat());
            let prompt = expected.len() + text.prompt;
            *text = Text { tokens, last, before, prompt, ..std::mem::take(text) };
        }
    }

    pub(super) fn end(&mut self, slot: usize) {
        self.texts[slot] = None;
    }

    /// Tokens of the sequence in `slot` that are there, as far as a step of drafts has made them.
    pub(super) fn came(&self, slot: usize) -> usize {
        self.texts[slot].as_ref().map_or(0, |text| text.came)
    }

    /// Tokens that were guessed of it, and those that came right.
    pub(super) fn drafts(&self, slot: usize) -> (usize, usize) {
        self.texts[slot].as_ref().map_or((0, 0), |text| (text.drafted, text.accepted))
    }

    /// Makes a step of drafts where there are guesses that pay for it. Says whether there was one.
    pub(super) fn step<B: Backend>(
        &mut self,
        model: &Model<B>,
        batch: &mut Batch<B>,
        record: bool,
    ) -> Result<bool, ModelError> {
        self.read(batch);
        if self.guesses(batch).is_none() {
            return Ok(false);
        }
        // What is queued comes first, and may say otherwise.
        for (slot, text) in self.texts.iter().enumerate() {
            let last = batch.queued(slot).checked_sub(1);
            if let (Some(last), Some(_)) = (last, text) {
                batch.wait(model.backend(), slot, last)?;
            }
        }
        self.read(batch);
        let Some(guesses) = self.guesses(batch) else { return Ok(false) };
        let drafts = guesses.iter().map(|(slot, tokens)| Draft { slot: *slot, tokens });
        let got = model.verify(batch, &drafts.collect::<Vec<_>>(), record)?;
        self.read(batch);
        for ((slot, tokens), got) in guesses.into_iter().zip(got) {
            let Some(text) = &mut self.texts[slot] else { continue };
            text.came = batch.queued(slot);
            if !tokens.is_empty() && got > 0 {
                text.learn(tokens.len(), got - 1);
            }
        }
        Ok(true)
    }

    /// Takes the tokens that have come.
    fn read<B: Backend>(&mut self, batch: &Batch<B>) {
        for (slot, text) in self.texts.iter_mut().enumerate() {
            let Some(text) = text else { continue };
            for index in text.tokens.len() - text.prompt..batch.queued(slot) {
                let token = batch.token(slot, index);
                if token == B::TokenLog::EMPTY {
                    break;
                }
                text.push(token);
            }
        }
    }

    /// What each sequence may go on with, if it pays to check that: not while prompts wait, and not for few of many.
    fn guesses<B: Backend>(&self, batch: &Batch<B>) -> Option<Vec<(usize, Vec<u32>)>> {
        let there =
            || self.texts.iter().enumerate().filter_map(|(i, text)| Some((i, text.as_ref()?)));
        if there().any(|(slot, _)| batch.waits(slot)) {
            return None;
        }
        let room = |slot: usize, text: &Text| {
            let given = &text.tokens[text.prompt..];
            let is_over = given.last().is_some_and(|&token| batch.ends(slot, token));
            if is_over { 0 } else { batch.limit(slot).saturating_sub(given.len()) }
        };
        let mut guesses: Vec<(usize, Vec<u32>)> = there()
            .filter(|(slot, text)| room(*slot, text) > 0)
            .map(|(slot, text)| (slot, text.guess(self.most.min(room(slot, text) - 1))))
            .collect();
        let spare = batch.options().draft_rows.checked_sub(guesses.len())?;
        let guessed = guesses.iter().filter(|(_, tokens)| !tokens.is_empty()).count();
        let each = spare.checked_div(guessed)?;
        let mut gain = 0.0;
        for (slot, tokens) in &mut guesses {
            tokens.truncate(each);
            if let (Some(text), false) = (&self.texts[*slot], tokens.is_empty()) {
                gain += text.hope.max(2.0).min(tokens.len() as f32);
            }
        }
        let [alone, beside] = COST;
        (gain >= alone + beside * guesses.len() as f32).then_some(guesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: &[u32]) -> Text {
        Text::new(tokens)
    }

    #[test]
    fn what_stood_behind_the_longest_end_is_guessed() {
        // 1 2 3 stands there twice; 9 1 2 3 once.
        let seen = text(&[9, 1, 2, 3, 4, 5, 6, 1, 2, 3, 7, 8, 9, 1, 2, 3]);
        assert_eq!(seen.guess(4), [4, 5, 6, 1]);
        assert!(seen.guess(0).is_empty());
        // Of places that are alike the last.
        let seen = text(&[1, 2, 3, 4, 0, 1, 2, 3, 5, 6, 1, 2, 3]);
        assert_eq!(seen.guess(2), [5, 6]);
        // Two are too few.
        for few in [&[1, 2, 7, 5, 1, 2][..], &[1, 2, 3], &[]] {
            assert!(text(few).guess(4).is_empty());
        }
    }

    #[test]
    fn what_is_predicted_stands_in_front() {
        let mut lookup = Guesser::new(7, 2);
        lookup.begin(1, &[1, 2, 3]);
        lookup.predict(0, &[1, 2, 3, 4]);
        lookup.predict(1, &[7, 1, 2, 3, 4, 5]);
        assert!(lookup.texts[0].is_none());
        let Some(text) = &lookup.texts[1] else { panic!("it is there") };
        assert_eq!((text.guess(2), text.prompt, text.need), (vec![4, 5], 9, LEAST));
    }

    #[test]
    fn a_guess_goes_on_with_itself() {
        let seen = text(&[5, 1, 2, 3, 1, 2, 3]);
        assert_eq!(seen.guess(7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(text(&[4; 9]).guess(5), [4; 5]);
    }

    #[test]
    fn who_guesses_wrong_has_to_be_surer() {
        let mut seen = text(&[1, 2, 3, 4, 1, 2, 3]);
        assert_eq!(seen.guess(100).len(), FIRST);
        seen.learn(FIRST, FIRST);
        assert_eq!(seen.guess(100).len(), 2 * FIRST + 1);
        seen.learn(15, 0);
        assert_eq!((seen.guess(100).len(), seen.need), (0, 6));
        (0..10).for_each(|_| seen.learn(7, 0));
        assert_eq!(seen.need, MOST);
        seen.learn(7, 1);
        assert_eq!((seen.need, seen.guess(100).len()), (LEAST, FIRST));
        assert_eq!((seen.drafted, seen.accepted), (7 + 15 + 70 + 7, 7 + 1));
    }

    #[test]
    fn guesses_are_those_of_a_plain_search() {
        let mut seeded = crate::reference::Inputs::new(5);
        for _ in 0..200 {
            let len = seeded.below(120);
            let tokens: Vec<u32> = (0..len).map(|_| seeded.below(3) as u32).collect();
            let seen = text(&tokens);
            let alike = |at: usize| {
                (0..MOST.min(at)).take_while(|i| tokens[at - 1 - i] == tokens[len - 1 - i]).count()
            };
            // As many places as are looked at.
            let places = (1..len).rev().filter(|&at| alike(at) >= LEAST).take(PLACES);
            let best = places.max_by_key(|&at| (alike(at), at));
            let mut expected = Vec::new();
            if let Some(at) = best {
                let mut all = tokens.clone();
                (0..FIRST).for_each(|i| all.push(all[at + i]));
                expected = all[len..].to_vec();
            }
            assert_eq!(seen.guess(100), expected, "{tokens:?}");
        }
    }
}
