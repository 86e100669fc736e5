//! A batch on one backend, with the backend's type forgotten.

use std::time::{Duration, Instant};

use super::guide::{Guide, MakeGuide};
use super::held::Held;
use super::lookup::Guesser;
use super::wish::{Told, Wish};
use super::{Finish, SessionError};
use crate::checkpoint::ModelConfig;
use crate::memory::MemoryUsage;
use crate::model::{Batch, BatchOptions, Model, PageUsage};
use crate::ops::{Backend, TokenLog};
use crate::profile::Profile;

/// Steps of a batch that are queued ahead at most: the prompt of a new request waits for them. With four 64 clients that ask again and again have their first
/// token after 11.9 ms, with two after 8.4, with one after 6.9, at 26,200, 25,700 and 25,500 tokens/s (H200).
const AHEAD: usize = 2;
/// How long the host sleeps before it looks at tokens again.
const LOOK: Duration = Duration::from_micros(20);
/// The longest that it sleeps.
const LONG: Duration = Duration::from_millis(10);

/// What an engine needs of a model and its batch, whatever they run on.
pub(super) trait Batched: Send {
    /// What runs it, a line for people each.
    fn devices(&self) -> Vec<String>;
    fn config(&self) -> &ModelConfig;
    fn options(&self) -> BatchOptions;
    fn pages(&self) -> PageUsage;
    fn memory(&self) -> MemoryUsage;
    fn profile(&self) -> Result<Option<Profile>, SessionError>;

    /// Adds a sequence, which what `guide` makes holds to its grammar; returns its slot.
    fn admit(
        &mut self,
        prompt: &[u32],
        wish: &Wish,
        guide: MakeGuide<'_>,
    ) -> Result<usize, SessionError>;

    /// Says what the text of a sequence may hold.
    fn predict(&mut self, _slot: usize, _expected: &[u32]) {}

    /// Takes a sequence out.
    fn remove(&mut self, slot: usize) -> Result<(), SessionError>;

    /// Queues steps until the next token of every sequence whose prompt has run is on its way, and some more. Prompts run beside these steps.
    /// Several devices do that by themselves: waits until one of them has made a step.
    fn queue(&mut self) -> Result<(), SessionError>;

    /// What comes next of a sequence. Waits for it, if it is on its way by [`Batched::queue`] and the sequence has no grammar.
    fn next(&mut self, slot: usize) -> Result<Next, SessionError>;

    /// Whether more of a sequence has come with the step that gave its last token.
    fn has_more(&self, _slot: usize) -> bool {
        false
    }

    /// What is counted of a sequence, from its first token on.
    fn counts(&self, slot: usize) -> Counts;
}

/// What is counted of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Tokens of its prompt whose pages were there.
    pub(super) cached: usize,
    /// Tokens that were guessed.
    pub(super) drafted: usize,
    /// Those of them that were its next ones.
    pub(super) accepted: usize,
}

/// What comes next of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// A token.
    Token {
        /// Its id.
        token: u32,
        /// What is told of it, and with the first one of the prompt.
        told: Option<Box<Told>>,
        /// Why none can follow, if that is so.
        end: Option<End>,
    },
    /// Nothing: the text has ended before.
    Ended,
    /// Nothing in this step: its prompt has not run to its end, its device is still at it, or nobody knows yet what may follow.
    NotYet,
}

/// Why a token is the last that there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What was asked for, or the context.
    Limit,
    /// What became of the grammar: [`Finish::Grammar`] or [`Finish::GrammarLimit`].
    Grammar(Finish),
}

impl End {
    /// Why the text ends, where a grammar says so.
    pub(super) fn of_grammar(self) -> Option<Finish> {
        match self {
            Self::Limit => None,
            Self::Grammar(finish) => Some(finish),
        }
    }
}

/// A model with its batch.
pub(super) struct BatchRunner<B: Backend> {
    model: Model<B>,
    batch: Batch<B>,
    record: bool,
    /// Tokens that the host has read, of each slot with a sequence.
    read: Vec<Option<usize>>,
    /// What guesses tokens.
    lookup: Option<Guesser>,
    /// What holds sequences to grammars.
    held: Held,
    /// When a step was queued while there were such.
    stepped: Instant,
}

impl<B: Backend> BatchRunner<B> {
    /// `drafts`: tokens of a sequence that are guessed at once at most.
    pub(super) fn new(model: Model<B>, batch: Batch<B>, record: bool, drafts: usize) -> Self {
        let BatchOptions { max_batch, draft_rows, .. } = batch.options();
        let lookup = (drafts > 0 && draft_rows > 1).then(|| Guesser::new(drafts, max_batch));
        let (read, held, stepped) = (vec![None; max_batch], Held::new(max_batch), Instant::now());
        Self { model, batch, record, read, lookup, held, stepped }
    }

    /// Hands the tokens that have come to what holds their sequences to a grammar, and takes back what is known of those before. Says whether anything came.
    fn follow(&mut self) -> bool {
        let came = |(slot, guide): (usize, &Guide)| {
            let index = guide.taken();
            let queued = !guide.has_ended() && index < self.batch.queued(slot);
            let token = queued.then(|| self.batch.token(slot, index))?;
            (token != <B::TokenLog as TokenLog>::EMPTY).then_some((slot, token))
        };
        let tokens: Vec<_> = self.held.here().filter_map(came).collect();
        self.held.push(&tokens);
        self.held.collect(Duration::ZERO) || !tokens.is_empty()
    }

    /// A sequence with a grammar whose next token is on its way.
    fn expected(&self) -> Option<(usize, usize)> {
        let goes_on = self.held.here().filter(|(_, guide)| !guide.has_ended());
        let mut next = goes_on.map(|(slot, guide)| (slot, guide.taken()));
        next.find(|&(slot, index)| index < self.batch.queued(slot))
    }

    /// Waits for what sequences with a grammar may give next, up to `linger` where some are known, and tells their samplers.
    fn allow(&mut self, linger: Duration) -> Result<(), SessionError> {
        let until = Instant::now() + linger;
        while self.held.is_away() || self.expected().is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !self.follow() {
                self.held.collect(left.min(LOOK));
            }
        }
        let Self { held, batch, model, .. } = self;
        let open = held.here_mut().filter(|(slot, _)| batch.queued(*slot) < batch.limit(*slot));
        let news = open.filter_map(|(slot, guide)| Some((slot, guide.news()?)));
        let masks: Vec<(usize, &[u32])> = news.collect();
        Ok(batch.allow(model.backend(), &masks)?)
    }

    /// Whether a sequence with a grammar could have a step.
    fn is_ready(&self) -> bool {
        let mut here = self.held.here();
        here.any(|(i, guide)| guide.has_news() && self.batch.queued(i) < self.batch.limit(i))
    }

    /// Waits until something is known of a sequence with a grammar, where nothing else is to be done. Says whether there is any to wait for.
    fn wait(&mut self) -> Result<bool, SessionError> {
        if let Some((slot, index)) = self.expected() {
            if self.batch.wait(self.model.backend(), slot, index)?.is_none() {
                // Nothing is queued and nothing came: the text ended before.
                self.held.release(slot);
            }
            return Ok(true);
        }
        let away = self.held.is_away();
        self.held.collect(LONG);
        Ok(away)
    }

    /// What the model runs on.
    pub(super) fn backend(&self) -> &B {
        self.model.backend()
    }
}

impl<B: Backend> Batched for BatchRunner<B> {
    fn devices(&self) -> Vec<String> {
        vec![self.model.backend().describe()]
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn options(&self) -> BatchOptions {
        self.batch.options()
    }

    fn pages(&self) -> PageUsage {
        self.batch.pages()
    }

    fn memory(&self) -> MemoryUsage {
        self.model.backend().memory()
    }

    fn profile(&self) -> Result<Option<Profile>, SessionError> {
        Ok(self.model.backend().profile()?)
    }

    fn admit(
        &mut self,
        prompt: &[u32],
        wish: &Wish,
        guide: MakeGuide<'_>,
    ) -> Result<usize, SessionError> {
        let slot = self.model.admit(&mut self.batch, prompt, &wish.params)?;
        let asked = self.batch.ask(self.model.backend(), slot, &wish.extras);
        match asked.map_err(SessionError::from).and_then(|()| guide()) {
            Ok(guide) => self.held.hold(slot, guide),
            Err(error) => {
                self.batch.remove(self.model.backend(), slot)?;
                return Err(error);
            }
        }
        self.read[slot] = Some(0);
        if let Some(lookup) = &mut self.lookup {
            lookup.begin(slot, prompt);
        }
        Ok(slot)
    }

    fn predict(&mut self, slot: usize, expected: &[u32]) {
        if let Some(lookup) = &mut self.lookup {
            lookup.predict(slot, expected);
        }
    }

    fn remove(&mut self, slot: usize) -> Result<(), SessionError> {
        self.read[slot] = None;
        self.held.release(slot);
        if let Some(lookup) = &mut self.lookup {
            lookup.end(slot);
        }
        self.batch.remove(self.model.backend(), slot)?;
        Ok(())
    }

    fn queue(&mut self) -> Result<(), SessionError> {
        let guided = self.held.any();
        // The samplers of rows that are guessed know nothing of grammars and biases, and tell nothing.
        let plain = !guided && self.batch.is_plain();
        let Self { model, batch, record, lookup, .. } = &mut *self;
        let guessed =
            lookup.as_mut().filter(|_| plain).map(|lookup| lookup.step(model, batch, *record));
        if guessed.transpose()?.unwrap_or(false) {
            return Ok(());
        }
        loop {
            let (mut starves, mut more, mut ahead, mut prompts) = (false, false, 0, false);
            let (mut alone, mut known) = (true, false);
            for (slot, read) in self.read.iter().enumerate() {
                let Some(read) = *read else { continue };
                let waits = self.batch.waits(slot);
                // One with a grammar goes along as soon as it can.
                if !waits && self.held.holds(slot) {
                    known |= self.held.guide(slot).is_some_and(|guide| guide.taken() > read);
                    continue;
                }
                alone = false;
                let (queued, limit) = (self.batch.queued(slot), self.batch.limit(slot));
                prompts |= waits;
                starves |= queued <= read && queued < limit && !waits;
                more |= queued < limit;
                ahead = ahead.max(queued - read.min(queued));
            }
            // With a part of a prompt in front of each, steps that are ahead hold up who reads the first; and those with a grammar go along with the next one.
            let most = 1 + if prompts || guided { 0 } else { B::AHEAD.min(AHEAD) };
            let mut steps = starves || more && ahead < most;
            if guided {
                self.follow();
                steps |= alone && self.is_ready();
                if steps {
                    let since = self.stepped.elapsed().min(LONG);
                    self.allow(if alone { since / 2 } else { since / 16 })?;
                    self.stepped = Instant::now();
                } else if alone && !known && self.wait()? {
                    continue;
                }
            }
            if !steps {
                return Ok(());
            }
            self.model.decode_batch(&mut self.batch, self.record)?;
        }
    }

    fn next(&mut self, slot: usize) -> Result<Next, SessionError> {
        let Some(read) = self.read[slot] else { return Ok(Next::Ended) };
        if self.batch.waits(slot) {
            return Ok(Next::NotYet);
        }
        let mut grammar = None;
        if self.held.holds(slot) {
            // A token is handed out when it is known whether the text ends with it.
            match self.held.guide(slot).filter(|guide| guide.taken() > read) {
                Some(guide) => grammar = guide.end_at(read),
                None if self.held.guide(slot).is_some_and(Guide::has_ended) => {
                    return Ok(Next::Ended);
                }
                None => return Ok(Next::NotYet),
            }
        }
        if read >= self.batch.queued(slot) {
            return Ok(Next::Ended);
        }
        // Nothing is queued and nothing came: an earlier token ended the text.
        let Some(token) = self.batch.wait(self.model.backend(), slot, read)? else {
            return Ok(Next::Ended);
        };
        self.read[slot] = Some(read + 1);
        let limit = (read + 1 == self.batch.limit(slot)).then_some(End::Limit);
        let logprobs = self.batch.logprobs(self.model.backend(), slot, read)?;
        let prompt = if read == 0 { self.batch.take_prompt_logprobs(slot) } else { Vec::new() };
        let told = Told::new(logprobs, prompt).map(Box::new);
        Ok(Next::Token { token, told, end: grammar.map(End::Grammar).or(limit) })
    }

    fn has_more(&self, slot: usize) -> bool {
        let came = self.lookup.as_ref().map_or(0, |lookup| lookup.came(slot));
        self.read[slot].is_some_and(|read| read < came)
    }

    fn counts(&self, slot: usize) -> Counts {
        let cached = self.batch.cached(slot);
        let Some(lookup) = &self.lookup else { return Counts { cached, ..Counts::default() } };
        let ((drafted, accepted), read) = (lookup.drafts(slot), self.read[slot].unwrap_or(0));
        // Of a step of drafts the last token was no guess. Those that nobody has read yet do not count.
        let unread = lookup.came(slot).saturating_sub(read + 1);
        Counts { cached, drafted, accepted: accepted.saturating_sub(unread) }
    }
}
