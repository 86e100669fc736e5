//! Holds a text to its grammar: marks of the tokens that may not come next, for its sampler.

use contract::sample::{BIASED, FORBIDDEN, GIVEN, SEEN};

use super::wish::Wish;
use super::{Finish, SessionError};
use crate::text::{Constraint, TextError};

/// Makes a guide for a text that has found a place, if it has a grammar.
pub(super) type MakeGuide<'a> = &'a mut dyn FnMut() -> Result<Option<Guide>, SessionError>;

/// A text under way that has a grammar.
pub(super) struct Guide {
    constraint: Constraint,
    /// Tokens that end the text where it may end.
    stops: Vec<u32>,
    /// Of each token, as the sampler takes them.
    marks: Vec<u8>,
    /// Of a token that the text gives.
    given: u8,
    /// Tokens that were taken.
    taken: usize,
    /// As many as that when the sampler was told the marks.
    told: Option<usize>,
    /// Why the text ended, and behind how many tokens.
    end: Option<(usize, Finish)>,
}

/// Texts that one thread follows: starting another takes as long as a mask or two.
const TEXTS_OF_THREAD: usize = 4;

/// Takes the next tokens of each text, on several threads where there are many.
pub(super) fn push_all(news: &mut [(&mut Guide, Vec<u32>)]) {
    let push = |news: &mut [(&mut Guide, Vec<u32>)]| {
        for (guide, tokens) in news {
            tokens.drain(..).for_each(|token| guide.push(token));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = news.len().div_ceil(threads).max(TEXTS_OF_THREAD);
    let (own, others) = news.split_at_mut(each.min(news.len()));
    std::thread::scope(|scope| {
        for part in others.chunks_mut(each) {
            // Where the system has no thread the part is left.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || push(part));
        }
        push(own);
    });
    push(news);
}

impl Guide {
    /// For the text behind `prompt`, of a model with `vocab` tokens.
    pub(super) fn new(
        constraint: Constraint,
        (vocab, prompt): (usize, &[u32]),
        (stops, Wish { params, extras }): (&[u32], &Wish),
    ) -> Result<Self, SessionError> {
        let mut marks = vec![0; vocab];
        for &token in prompt {
            // One beyond the vocabulary is refused with the prompt.
            marks.get_mut(token as usize).into_iter().for_each(|mark| *mark = SEEN);
        }
        for &(token, _) in &extras.logit_bias {
            marks.get_mut(token as usize).into_iter().for_each(|mark| *mark |= BIASED);
        }
        // What the sampler writes there itself.
        let given = if params.lowers() { SEEN | BIASED | GIVEN } else { SEEN };
        let (stops, told, end) = (stops.to_vec(), None, None);
        let mut guide = Self { constraint, stops, marks, given, taken: 0, told, end };
        if guide.constraint.is_complete() || !guide.forbid() {
            let reason = "it allows no token at all".to_owned();
            return Err(TextError::Grammar { reason }.into());
        }
        Ok(guide)
    }

    /// Of each token for the sampler of the next one, unless that was told before.
    pub(super) fn news(&mut self) -> Option<&[u8]> {
        let told = self.told.replace(self.taken);
        (told != self.told).then_some(&self.marks)
    }

    /// Tokens of the text that were taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Why the text ends behind the token `index`, if it does.
    pub(super) fn end_at(&self, index: usize) -> Option<Finish> {
        self.end.filter(|end| end.0 == index + 1).map(|end| end.1)
    }

    /// Takes the next token of the text.
    pub(super) fn push(&mut self, token: u32) {
        self.taken += 1;
        if self.end.is_some() {
            return;
        }
        let stuck = Some((self.taken, Finish::GrammarLimit));
        if self.stops.contains(&token) {
            self.end = stuck.filter(|_| !self.constraint.may_end());
            return;
        }
        if let Some(mark) = self.marks.get_mut(token as usize) {
            *mark |= self.given;
        }
        if self.constraint.push(token).is_err() {
            self.end = stuck;
        } else if self.constraint.is_complete() {
            self.end = Some((self.taken, Finish::Grammar));
        } else if !self.forbid() {
            self.end = stuck;
        }
    }

    /// Marks what may not come next. Says whether anything may.
    fn forbid(&mut self) -> bool {
        for (marks, word) in self.marks.chunks_mut(32).zip(self.constraint.words()) {
            for (i, mark) in marks.iter_mut().enumerate() {
                *mark = *mark & !FORBIDDEN | if word >> i & 1 == 0 { FORBIDDEN } else { 0 };
            }
        }
        // They end the text, also where they would be a part of it.
        let stop = if self.constraint.may_end() { 0 } else { FORBIDDEN };
        for &token in &self.stops {
            let mark = self.marks.get_mut(token as usize);
            mark.into_iter().for_each(|mark| *mark = *mark & !FORBIDDEN | stop);
        }
        self.marks.iter().any(|mark| mark & FORBIDDEN == 0)
    }
}
