//! What is told of the tokens of sequences, and added to their logits.

use contract::logprobs::{ENTRY_WORDS, LIST, LOGPROB, MAX_TOP, RANK, STEP};
use contract::sample::{BIASED, SEEN, SampleParams};

use crate::ops::logprobs::{LogprobScratch, Logprobs};
use crate::ops::sample::{STATE_STEP, STATE_TOKEN, STATE_WORDS, SampleState};
use crate::ops::{Backend, OpError, RowWords, TokenLog};

/// Entries of a sequence: tokens that may be on their way, and more.
const RING: usize = 16;

/// What is told of a token: probabilities of the model, before any penalty, temperature or filter.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TokenLogprobs {
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// 1 and the number of tokens that are more likely.
    pub rank: u32,
    /// The most likely tokens with theirs, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// What a sequence is asked for beside its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// Added to the logits of tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tells the text's tokens, and so many of the most likely ones of each place, up to [`MAX_TOP`].
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt, from the second on.
    pub prompt_logprobs: Option<u32>,
}

/// How the next tokens of a step are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// Some tokens have a bias.
    pub(super) bias: bool,
    /// Some are told.
    pub(super) logprobs: bool,
    /// By the stored head, where there is another.
    pub(super) stored: bool,
}

impl Way {
    /// Whether some need every logit as it is.
    pub(super) fn every(self) -> bool {
        self.bias || self.logprobs
    }

    /// That of a sequence alone, to which the int8 head gives nothing then.
    pub(super) fn of(params: &SampleParams, extras: &Extras) -> Self {
        let bias = params.lowers() || !extras.logit_bias.is_empty();
        let logprobs = extras.logprobs.is_some();
        Self { bias, logprobs, stored: bias || logprobs }
    }

    /// That of sequences side by side. `beside(n)` says whether the int8 head pays where `n` of them need every logit.
    pub(super) fn of_all(ways: impl Iterator<Item = Self>, beside: impl Fn(usize) -> bool) -> Self {
        let (mut all, mut needing) = (Self::default(), 0);
        for way in ways.filter(|way| way.every()) {
            all.bias |= way.bias;
            all.logprobs |= way.logprobs;
            needing += 1;
        }
        Self { stored: needing > 0 && !beside(needing), ..all }
    }
}

/// What is asked for, as the kernel takes it.
pub(super) fn wanted(top: Option<u32>) -> u32 {
    top.map_or(0, |top| 1 + top.min(MAX_TOP))
}

/// The same parameters where tokens have a bias or every logit is needed: the sampler looks for the sign, the int8 head for that.
pub(super) fn under_bias(params: &SampleParams) -> SampleParams {
    SampleParams { repetition_penalty: -params.repetition_penalty.abs(), every: 1, ..*params }
}

/// Marks and bias of each token of a sequence that goes on behind `seen`.
pub(super) fn biased(
    vocab: usize,
    seen: &[u32],
    logit_bias: &[(u32, f32)],
) -> Result<(Vec<u8>, Vec<f32>), OpError> {
    let (mut marks, mut bias) = (vec![0; vocab], vec![0.0; vocab]);
    for &id in seen {
        marks.get_mut(id as usize).into_iter().for_each(|mark| *mark = SEEN);
    }
    for &(id, value) in logit_bias {
        let (what, found, allowed) = ("logit_bias", id as usize, "ids of tokens are allowed");
        let refused = OpError::Dimension { op: "sequence", what, found, allowed };
        *marks.get_mut(id as usize).ok_or(refused)? |= BIASED;
        bias[id as usize] = value;
    }
    Ok((marks, bias))
}

/// Entry `at` of `log`, if it is that of token `number` of its text.
pub(super) fn entry(
    log: &impl TokenLog,
    at: usize,
    number: u32,
    top: u32,
    vocab: usize,
) -> Option<TokenLogprobs> {
    let word = |word: usize| log.get(at * ENTRY_WORDS + word);
    // Written last, and read first.
    if word(STEP) != number {
        return None;
    }
    let count = (top.min(MAX_TOP) as usize).min(vocab);
    let pair = |j| (word(LIST + 2 * j), f32::from_bits(word(LIST + 2 * j + 1)));
    let top = (0..count).map(pair).collect();
    Some(TokenLogprobs { logprob: f32::from_bits(word(LOGPROB)), rank: word(RANK), top })
}

/// What is told of the tokens of sequences, a row each.
pub(super) struct LogprobLog<B: Backend> {
    wanted: B::Buf<u32>,
    last: B::Buf<u32>,
    /// `[rows, RING]` entries.
    log: B::TokenLog,
    scratch: LogprobScratch<B>,
    /// What each row was asked for.
    asked: Vec<Option<u32>>,
}

impl<B: Backend> LogprobLog<B> {
    pub(super) fn alloc(backend: &B, vocab: usize, rows: usize) -> Result<Self, OpError> {
        let mut log = Self {
            wanted: backend.alloc("sampler", rows)?,
            last: backend.alloc("sampler", rows)?,
            log: backend.alloc_tokens(rows * RING * ENTRY_WORDS)?,
            scratch: LogprobScratch::alloc(backend, vocab, rows)?,
            asked: vec![None; rows],
        };
        backend.fill(&mut log.wanted, 0)?;
        backend.fill(&mut log.last, 0)?;
        Ok(log)
    }

    /// Says what is told of `row` from now on, whose next token is the first of a text. Nothing that tells it may be queued.
    pub(super) fn ask(&mut self, backend: &B, row: usize, top: Option<u32>) -> Result<(), OpError> {
        if self.asked[row].is_none() && top.is_none() {
            return Ok(());
        }
        self.asked[row] = top;
        self.log.clear_part(row * RING * ENTRY_WORDS..(row + 1) * RING * ENTRY_WORDS);
        backend.write(&mut self.last, row, &[0])?;
        backend.write(&mut self.wanted, row, &[wanted(top)])
    }

    /// Whether something is told of `row`.
    pub(super) fn tells(&self, row: usize) -> bool {
        self.asked[row].is_some()
    }

    /// Queues what is told of the tokens that the samplers of `rows` rows from `first` on have just picked, by the logits `[rows, vocab]`.
    pub(super) fn tell(
        &mut self,
        backend: &B,
        logits: &B::Buf<f32>,
        sampler: &SampleState<B>,
        (first, rows): (usize, usize),
        vocab: usize,
    ) -> Result<(), OpError> {
        let state = |at| {
            let at = first * STATE_WORDS + at;
            RowWords { words: &sampler.state, at, stride: STATE_WORDS }
        };
        backend.logprobs(Logprobs {
            logits,
            vocab,
            ids: state(STATE_TOKEN),
            steps: state(STATE_STEP),
            wanted: RowWords { words: &self.wanted, at: first, stride: 1 },
            last: &mut self.last,
            out: &mut self.log,
            scratch: &mut self.scratch,
            first,
            rows,
            ring: RING,
        })
    }

    /// What is told of token `index` of `row`, which is there; `None` where nothing is, or no more. Waits for it.
    pub(super) fn wait(
        &self,
        backend: &B,
        row: usize,
        index: usize,
        vocab: usize,
    ) -> Result<Option<TokenLogprobs>, OpError> {
        let Some(top) = self.asked.get(row).copied().flatten() else { return Ok(None) };
        let (at, number) = (row * RING + index % RING, index as u32 + 1);
        loop {
            let found = entry(&self.log, at, number, top, vocab);
            // It comes within microseconds of its token.
            if found.is_some() || backend.is_idle()? {
                return Ok(found.or_else(|| entry(&self.log, at, number, top, vocab)));
            }
            std::hint::spin_loop();
        }
    }
}
