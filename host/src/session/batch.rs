//! Several texts at once: requests come and go between steps, and a step gives each its next token.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::answer::Answer;
use super::grammars::Grammars;
use super::guide::Guide;
use super::runner::{Batched, End, Next};
use super::wish::Wish;
use super::{
    Finish, GenerateStats, Generated, LoadStats, SessionError, TokenLogprobs, compiled,
    device_params, stop_ids,
};
use crate::checkpoint::ModelConfig;
use crate::memory::MemoryUsage;
use crate::model::{PAGE_SIZE, PageUsage};
use crate::profile::Profile;
use crate::text::{ChatTemplate, Constraint, Message, SamplingParams, Tokenizer};

/// Names a request of a [`BatchEngine`]; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct RequestId(u64);

impl From<RequestId> for u64 {
    fn from(RequestId(number): RequestId) -> Self {
        number
    }
}

/// The request of a number that [`BatchEngine::add_request`] gave, kept where only numbers can be.
impl From<u64> for RequestId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

/// What a step gave a request.
#[derive(Clone, Debug)]
pub struct StepOutput {
    /// The request.
    pub id: RequestId,
    /// Its next token.
    pub token: u32,
    /// New text; empty while a character or a possible stop string is unfinished, and for models
    /// without a tokenizer.
    pub text: String,
    /// What is told of the token, if that was asked for.
    pub logprobs: Option<TokenLogprobs>,
    /// The whole text, when this was its last token. The request is gone then.
    pub finished: Option<Generated>,
}

/// A request under way.
struct Request {
    id: RequestId,
    slot: usize,
    params: SamplingParams,
    answer: Answer<Arc<Tokenizer>>,
    stats: GenerateStats,
    added: Instant,
    first: Option<Instant>,
}

/// A model, its tokenizer and a batch of sequences over a paged cache; of several GPUs, a replica of the model and
/// a batch on each.
///
/// Each request has its own prompt, sampling parameters and stop conditions, and gives the tokens that it
/// gives alone, whatever runs beside it and on whichever GPU.
pub struct BatchEngine {
    engine: Box<dyn Batched>,
    tokenizer: Option<Arc<Tokenizer>>,
    /// Compiled when it is first asked for.
    template: OnceLock<ChatTemplate>,
    grammars: Grammars,
    load: LoadStats,
    requests: Vec<Request>,
    next_id: u64,
}

impl BatchEngine {
    pub(super) fn new(
        engine: Box<dyn Batched>,
        tokenizer: Option<Tokenizer>,
        load: LoadStats,
    ) -> Self {
        let tokenizer = tokenizer.map(Arc::new);
        let grammars = Grammars::new(tokenizer.clone(), engine.config().vocab_size);
        let template = OnceLock::new();
        Self { engine, tokenizer, template, grammars, load, requests: Vec::new(), next_id: 0 }
    }

    /// One line for people: the device, or the devices, and what they run.
    pub fn device(&self) -> String {
        self.devices().join(", ")
    }

    /// The devices and what they run, a line for people each.
    pub fn devices(&self) -> Vec<String> {
        self.engine.devices()
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        self.engine.config()
    }

    /// Positions of the longest sequence, prompt and text together.
    pub fn context(&self) -> usize {
        self.engine.options().capacity
    }

    /// Requests that can run at once, on all devices together.
    pub fn max_batch(&self) -> usize {
        self.engine.options().max_batch
    }

    /// Pages of the cache, of [`super::PAGE_SIZE`] positions each, on all devices together.
    pub fn pages(&self) -> PageUsage {
        self.engine.pages()
    }

    /// The checkpoint's tokenizer, where it has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_deref()
    }

    /// What loading took.
    pub fn load_stats(&self) -> &LoadStats {
        &self.load
    }

    /// Memory of weights, cache and activations on the device; the sum of several.
    pub fn memory(&self) -> MemoryUsage {
        self.engine.memory()
    }

    /// Kernel times since the engine was made; see [`super::SessionBuilder::profile`].
    ///
    /// # Errors
    /// A failed device.
    pub fn profile(&self) -> Result<Option<Profile>, SessionError> {
        self.engine.profile()
    }

    /// The ids of a text prompt, with the BOS token where the model wants one.
    ///
    /// # Errors
    /// A model without a tokenizer; text that its vocabulary cannot spell.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>, SessionError> {
        let tokenizer = self.tokenizer.as_ref().ok_or(SessionError::NoTokenizer)?;
        Ok(tokenizer.encode(prompt, true)?)
    }

    /// The chat template of the checkpoint, or the built-in one of its family.
    ///
    /// # Errors
    /// As [`super::Session::template`].
    pub fn template(&self) -> Result<&ChatTemplate, SessionError> {
        compiled(&self.template, self.tokenizer(), self.config())
    }

    /// The ids of a conversation, ready for the model's answer.
    ///
    /// # Errors
    /// As [`BatchEngine::template`]; a template that refuses the messages.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, SessionError> {
        self.encode(&self.template()?.render(messages, true)?)
    }

    /// Runs batches of one text and more, up to the largest, a few tokens each, so that the first requests do not wait for the
    /// driver to compile kernels, which it does once for a GPU, nor for their steps to be recorded. Nothing of it stays that an answer could show. For an
    /// engine without requests: what others give meanwhile is lost.
    ///
    /// # Errors
    /// A failed device.
    pub fn warm_up(&mut self) -> Result<(), SessionError> {
        /// Positions of a short prompt and of a long one, and tokens behind it.
        const SHORT: usize = 24;
        const LONG: usize = 300;
        const TOKENS: usize = 4;
        let room = self.context().min(self.pages().total * PAGE_SIZE);
        let most = self.max_batch();
        let max_tokens = TOKENS.min(room - 1).max(1);
        let mut run = |count, len: usize, temperature, logprobs| {
            let prompt = vec![0; len.min(room.saturating_sub(max_tokens)).max(1)];
            let ignore_eos = true;
            let params = SamplingParams {
                max_tokens,
                temperature,
                ignore_eos,
                logprobs,
                ..Default::default()
            };
            let (prompts, params) = (vec![prompt; count], vec![params; count]);
            self.generate(&prompts, &params, |_, _| ControlFlow::Continue(())).map(drop)
        };
        let mut count = 1;
        while count < most {
            run(count, SHORT, 0.0, None)?;
            run(count, SHORT, 0.8, None)?;
            count *= 2;
        }
        run(most, LONG, 0.0, None)?;
        run(most, SHORT, 0.8, None)?;
        run(1, SHORT, 0.8, Some(0))
    }

    /// Requests under way.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether no request is under way.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request that continues `prompt` (token ids). The prompt runs in the steps that follow, in parts beside the
    /// tokens of the others ([`super::SessionBuilder::prompt_share`]). The pages for prompt and `max_tokens` are taken at once, so
    /// that a request that was added can run to its end. Of several devices the one that has most of the prompt's beginning
    /// takes it unless others have much more room, else the one with the most room; a failure of that one is the next step's.
    ///
    /// # Errors
    /// Parameters out of range, a grammar that is wrong, ids outside of the vocabulary, a prompt longer than the context;
    /// [`crate::model::ModelError::BatchFull`] and [`crate::model::ModelError::PagesFull`] while others have the place (see
    /// [`SessionError::is_full`]); a failed device.
    pub fn add_request(
        &mut self,
        prompt: &[u32],
        params: &SamplingParams,
    ) -> Result<RequestId, SessionError> {
        self.add_constrained(prompt, params, &mut None)
    }

    /// Compiles grammars for [`BatchEngine::add_constrained`], on other threads too.
    pub fn grammars(&self) -> Grammars {
        self.grammars.clone()
    }

    /// [`BatchEngine::add_request`], held to what was compiled of its grammar before ([`BatchEngine::grammars`]), in the place of [`SamplingParams::grammar`]: that takes
    /// a millisecond and more, in which no step is queued. It is taken when the request has a place.
    ///
    /// # Errors
    /// As [`BatchEngine::add_request`]; what was compiled for another number of tokens.
    pub fn add_constrained(
        &mut self,
        prompt: &[u32],
        params: &SamplingParams,
        constraint: &mut Option<Constraint>,
    ) -> Result<RequestId, SessionError> {
        let added = Instant::now();
        params.validate()?;
        let ids = stop_ids(params, self.engine.config(), self.tokenizer.as_deref());
        let held = constraint.is_some() || params.grammar.is_some();
        let vocab = self.engine.config().vocab_size;
        let wish = Wish::new(params, device_params(params, &ids, held)?, vocab)?;
        let grammars = &self.grammars;
        let mut guide = || {
            let made = match (constraint.take(), &params.grammar) {
                (None, None) => return Ok(None),
                (None, Some(grammar)) => grammars.compile(grammar)?,
                (Some(made), _) => made,
            };
            Guide::new(made, vocab, &ids).map(Some)
        };
        let slot = self.engine.admit(prompt, &wish, &mut guide)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.requests.push(Request {
            id,
            slot,
            params: params.clone(),
            answer: Answer::new(self.tokenizer.clone(), &params.stop, ids),
            stats: GenerateStats { prompt_tokens: prompt.len(), ..Default::default() },
            added,
            first: None,
        });
        Ok(id)
    }

    /// Says what the text of a request may hold, such as the file that it is to change, for [`super::SessionBuilder::lookup`] to guess from as from its prompt:
    /// as many tokens as the context has, the first ones of more. The text is the same; without lookup, or of a request that is not there, nothing changes.
    pub fn predict(&mut self, id: RequestId, expected: &[u32]) {
        let expected = &expected[..expected.len().min(self.context())];
        if let Some(request) = self.requests.iter().find(|request| request.id == id) {
            self.engine.predict(request.slot, expected);
        }
    }

    /// Takes a request out before its end and returns what it has given; `None` when it is not there. Its
    /// pages are free for the next one.
    ///
    /// # Errors
    /// A failed device.
    pub fn remove_request(&mut self, id: RequestId) -> Result<Option<Generated>, SessionError> {
        let Some(at) = self.requests.iter().position(|request| request.id == id) else {
            return Ok(None);
        };
        let request = self.requests.remove(at);
        self.engine.remove(request.slot)?;
        Ok(Some(request.end(Finish::Cancelled).0))
    }

    /// Gives every request whose prompt has run its next token, in the order in which they were added, and with
    /// [`super::SessionBuilder::lookup`] several behind each other. On a GPU later steps already run while the tokens are handed out. One with a grammar has none
    /// in a step that others could make before it was known what may follow its last token.
    ///
    /// Several devices do not wait for each other: a step is one of each device that has made one by now, at
    /// least one, in the order in which the requests were added. Which ones come together is not said; what each
    /// request gives is.
    ///
    /// # Errors
    /// A failed device, by its name ([`SessionError::OnDevice`]) where there are several; a token that the tokenizer
    /// does not have. All requests are taken out then. What is added afterwards runs on the devices that are left.
    pub fn step(&mut self) -> Result<Vec<StepOutput>, SessionError> {
        let result = self.try_step();
        if result.is_err() {
            for request in self.requests.drain(..) {
                // The first error is the one to report.
                let _ = self.engine.remove(request.slot);
            }
        }
        result
    }

    fn try_step(&mut self) -> Result<Vec<StepOutput>, SessionError> {
        self.engine.queue()?;
        let mut outputs = Vec::with_capacity(self.requests.len());
        let mut left = Vec::with_capacity(self.requests.len());
        let mut requests = VecDeque::from(std::mem::take(&mut self.requests));
        while let Some(mut request) = requests.pop_front() {
            match request.take(self.engine.as_mut(), &mut outputs) {
                Ok(None) => left.push(request),
                Ok(Some(finish)) => {
                    self.engine.remove(request.slot)?;
                    let id = request.id;
                    let (generated, tail) = request.end(finish);
                    if let Some(last) = outputs.last_mut().filter(|output| output.id == id) {
                        last.text += &tail;
                        last.finished = Some(generated);
                    }
                }
                Err(error) => {
                    left.push(request);
                    left.extend(requests);
                    self.requests = left;
                    return Err(error);
                }
            }
        }
        self.requests = left;
        Ok(outputs)
    }

    /// Continues each of `prompts`, as many at once as there is room for, and returns the texts in the
    /// same order. `each` sees every output, with the index of its prompt, and may end all of them.
    ///
    /// # Errors
    /// As [`BatchEngine::add_request`] for a prompt that does not fit when it is alone, and
    /// [`BatchEngine::step`]; all requests are taken out then. Requests that were added before run along,
    /// and their outputs are lost.
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        params: &[SamplingParams],
        mut each: impl FnMut(usize, &StepOutput) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, SessionError> {
        if prompts.len() != params.len() {
            let (prompts, params) = (prompts.len(), params.len());
            return Err(SessionError::ParamsCount { prompts, params });
        }
        let mut waiting: VecDeque<usize> = (0..prompts.len()).collect();
        let mut ids: Vec<(RequestId, usize)> = Vec::new();
        let mut texts: Vec<Option<Generated>> = prompts.iter().map(|_| None).collect();
        let mut flow = ControlFlow::Continue(());
        while flow.is_continue() && !(waiting.is_empty() && self.is_empty()) {
            while let Some(&next) = waiting.front() {
                match self.add_request(&prompts[next], &params[next]) {
                    Ok(id) => ids.push((id, next)),
                    Err(error) if error.is_full() && !self.is_empty() => break,
                    Err(error) => {
                        for (id, _) in ids {
                            self.remove_request(id)?;
                        }
                        return Err(error);
                    }
                }
                waiting.pop_front();
            }
            for mut output in self.step()? {
                // Ids grow.
                let Ok(at) = ids.binary_search_by_key(&output.id, |(id, _)| *id) else {
                    continue;
                };
                let index = ids[at].1;
                if flow.is_continue() {
                    flow = each(index, &output);
                }
                if let Some(text) = output.finished.take() {
                    texts[index] = Some(text);
                }
            }
        }
        // What was ended has what it has given so far; what had to wait has nothing.
        for (id, index) in ids {
            if let Some(text) = self.remove_request(id)? {
                texts[index] = Some(text);
            }
        }
        let none = |len: usize| Generated {
            tokens: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: Finish::Cancelled,
            stats: GenerateStats { prompt_tokens: len, ..Default::default() },
        };
        let texts = texts.into_iter().zip(prompts);
        Ok(texts.map(|(text, prompt)| text.unwrap_or_else(|| none(prompt.len()))).collect())
    }

    /// What is told of the tokens of each of `texts` (ids) but the first, with the `top` most likely ones of each place: how well the model knows them. `each` sees
    /// the index of every text that is done, and may end all of them: those that are not done then have nothing. For an engine without requests: what others give
    /// meanwhile is lost.
    ///
    /// # Errors
    /// As [`BatchEngine::generate`].
    pub fn score(
        &mut self,
        texts: &[Vec<u32>],
        top: u32,
        mut each: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<TokenLogprobs>>, SessionError> {
        let params = SamplingParams {
            prompt_logprobs: Some(top),
            temperature: 0.0,
            max_tokens: 1,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let params = vec![params; texts.len()];
        let told = self.generate(texts, &params, |index, _| each(index))?;
        Ok(told.into_iter().map(|text| text.prompt_logprobs).collect())
    }
}

impl Request {
    /// Takes from the engine what the step gave: the next token, or several that were guessed right. A text may end without one.
    fn take(
        &mut self,
        engine: &mut dyn Batched,
        outputs: &mut Vec<StepOutput>,
    ) -> Result<Option<Finish>, SessionError> {
        loop {
            let (token, told, end) = match engine.next(self.slot)? {
                Next::Token { token, told, end } => (token, told, end),
                Next::Ended => return Ok(Some(self.answer.limit(&self.params))),
                Next::NotYet => return Ok(None),
            };
            let now = Instant::now();
            self.stats.count(engine.counts(self.slot));
            let first = *self.first.get_or_insert(now);
            self.stats.prefill_seconds = (first - self.added).as_secs_f64();
            self.stats.decode_seconds = (now - first).as_secs_f64();
            let (text, finish) = self.answer.push(token)?;
            let mut logprobs = None;
            if let Some(told) = told {
                self.answer.prompt_logprobs.extend(told.prompt);
                self.answer.logprobs.extend(told.token.clone());
                logprobs = told.token;
            }
            let finish = end.and_then(End::of_grammar).or(finish);
            let finish = finish.or_else(|| end.map(|_| self.answer.limit(&self.params)));
            outputs.push(StepOutput { id: self.id, token, text, logprobs, finished: None });
            if finish.is_some() || !engine.has_more(self.slot) {
                return Ok(finish);
            }
        }
    }

    /// The whole text, and the part of it that was held back.
    fn end(mut self, finish: Finish) -> (Generated, String) {
        let tail = self.answer.end(finish);
        self.stats.generated_tokens = self.answer.tokens.len();
        let Answer { tokens, text, logprobs, prompt_logprobs, .. } = self.answer;
        let stats = self.stats;
        (Generated { tokens, text, logprobs, prompt_logprobs, finish, stats }, tail)
    }
}
