//! Holds a text to its grammar: which tokens may come next, for its sampler.

use super::{Finish, SessionError};
use crate::ops::sample::mask_words;
use crate::text::{Constraint, TextError};

/// Makes a guide for a text that has found a place, if it has a grammar.
pub(super) type MakeGuide<'a> = &'a mut dyn FnMut() -> Result<Option<Guide>, SessionError>;

/// A text under way that has a grammar.
pub(super) struct Guide {
    constraint: Constraint,
    /// Tokens that end the text where it may end.
    stops: Vec<u32>,
    /// What may come next, a bit for each token of the model.
    allowed: Vec<u32>,
    vocab: usize,
    /// Tokens that were taken.
    taken: usize,
    /// As many as that when the sampler was told what may come next.
    told: Option<usize>,
    /// Whether nothing comes behind the tokens that were taken.
    ended: bool,
    /// Why the text ended, and behind how many tokens, where the grammar says so.
    end: Option<(usize, Finish)>,
}

impl Guide {
    /// For a text of a model with `vocab` tokens, which `stops` end.
    pub(super) fn new(
        constraint: Constraint,
        vocab: usize,
        stops: &[u32],
    ) -> Result<Self, SessionError> {
        if constraint.vocab() != vocab {
            let reason = format!("it was made for {} tokens, not for {vocab}", constraint.vocab());
            return Err(TextError::Grammar { reason }.into());
        }
        let (stops, allowed) = (stops.to_vec(), vec![0; mask_words(vocab)]);
        let (taken, told, ended, end) = (0, None, false, None);
        let mut guide = Self { constraint, stops, allowed, vocab, taken, told, ended, end };
        if guide.constraint.is_complete() || !guide.look() {
            let reason = "it allows no token at all".to_owned();
            return Err(TextError::Grammar { reason }.into());
        }
        Ok(guide)
    }

    /// What may come next, unless the sampler was told it before or nothing comes.
    pub(super) fn news(&mut self) -> Option<&[u32]> {
        if !self.has_news() {
            return None;
        }
        self.told = Some(self.taken);
        Some(&self.allowed)
    }

    /// Whether there is something to [tell](Guide::news).
    pub(super) fn has_news(&self) -> bool {
        !self.ended && self.told != Some(self.taken)
    }

    /// Tokens of the text that were taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Whether nothing comes behind them.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Why the text ends behind the token `index`, if a grammar says so.
    pub(super) fn end_at(&self, index: usize) -> Option<Finish> {
        self.end.filter(|end| end.0 == index + 1).map(|end| end.1)
    }

    /// Takes the next token of the text.
    pub(super) fn push(&mut self, token: u32) {
        self.taken += 1;
        if self.ended {
            return;
        }
        if self.stops.contains(&token) {
            self.ended = true;
            self.end =
                Some((self.taken, Finish::GrammarLimit)).filter(|_| !self.constraint.may_end());
        } else if self.constraint.push(token).is_err() {
            self.give_up();
        } else if self.constraint.is_complete() {
            self.ended = true;
            self.end = Some((self.taken, Finish::Grammar));
        } else if !self.look() {
            self.give_up();
        }
    }

    /// Ends the text behind the tokens that were taken.
    pub(super) fn give_up(&mut self) {
        self.ended = true;
        self.end = Some((self.taken, Finish::GrammarLimit));
    }

    /// Finds what may come next. Says whether anything may.
    fn look(&mut self) -> bool {
        let words = self.constraint.words();
        let there = words.len().min(self.allowed.len());
        self.allowed[..there].copy_from_slice(&words[..there]);
        self.allowed[there..].fill(0);
        if let (Some(last), used @ 1..) = (self.allowed.last_mut(), self.vocab % 32) {
            *last &= (1 << used) - 1;
        }
        // They end the text, also where they would be a part of it.
        let may_end = self.constraint.may_end();
        for &token in self.stops.iter().filter(|&&token| (token as usize) < self.vocab) {
            let (word, bit) = (&mut self.allowed[token as usize / 32], 1 << (token % 32));
            *word = if may_end { *word | bit } else { *word & !bit };
        }
        self.allowed.iter().any(|&word| word != 0)
    }
}
