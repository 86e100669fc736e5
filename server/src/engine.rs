//! The thread that has the engine: adds requests between steps, and hands out what each step gave.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use bitnet_gpu::model::ModelError;
use bitnet_gpu::session::{BatchEngine, Finish, Grammars, RequestId, SessionError, TokenLogprobs};
use bitnet_gpu::text::{Constraint, SamplingParams, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use crate::Settings;
use crate::api::{Prompt, Usage};
use crate::logprobs::Entry;
use crate::metrics::{Metrics, add};
use crate::reply::Refusal;

/// What a request gets.
#[derive(Debug)]
pub(crate) enum Event {
    /// More text; may be empty. And what is told of its token, if that was asked for.
    Piece(String, Option<Entry>),
    /// The end, behind the last piece.
    End { finish: Finish, usage: Usage, echo: Option<Echo> },
    /// Nothing, or nothing more.
    Refused(Refusal),
}

/// A prompt as it is given back, and what is told of it.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) text: String,
    pub(crate) entries: Vec<Entry>,
}

/// One text that is asked for.
pub(crate) struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) params: SamplingParams,
    /// What its grammar was compiled to, until it has a place.
    pub(crate) constraint: Option<Constraint>,
    pub(crate) echo: bool,
    pub(crate) reply: UnboundedSender<Event>,
}

/// A request that waits for its place.
struct Job {
    request: Request,
    prediction: Option<String>,
    since: Instant,
}

/// A request in the batch.
struct Running {
    id: RequestId,
    /// Its prompt, where that is given back.
    echo: Option<Vec<u32>>,
    reply: UnboundedSender<Event>,
}

/// What both sides look at.
pub(crate) struct Common {
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    waiting: AtomicUsize,
}

/// The way to the engine. When the last one is gone the thread ends, after what it still has.
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) grammars: Grammars,
    jobs: Sender<Job>,
}

impl Common {
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Queues requests that belong together, or none of them.
    pub(crate) fn submit(
        &self,
        requests: Vec<Request>,
        prediction: Option<&str>,
    ) -> Result<(), Refusal> {
        let (count, most) = (requests.len(), self.common.settings.queue);
        let room = |waiting: usize| Some(waiting + count).filter(|&all| all <= most);
        let waiting = &self.common.waiting;
        if waiting.try_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return Err(Refusal::busy(format!("{most} requests are waiting already; try again")));
        }
        for request in requests {
            let prediction = prediction.map(str::to_owned);
            let job = Job { request, prediction, since: Instant::now() };
            if self.jobs.send(job).is_err() {
                return Err(Refusal::failed("the engine has ended; start the server again"));
            }
        }
        Ok(())
    }
}

/// Starts the thread.
pub(crate) fn start(engine: BatchEngine, settings: Settings) -> (JoinHandle<()>, Arc<Shared>) {
    let common =
        Arc::new(Common { settings, metrics: Metrics::default(), waiting: AtomicUsize::new(0) });
    let (jobs, queued) = channel();
    let grammars = engine.grammars();
    let shared = Arc::new(Shared { common: Arc::clone(&common), grammars, jobs });
    let work = Work { engine, common, waiting: VecDeque::new(), running: Vec::new() };
    (std::thread::spawn(move || work.run(&queued)), shared)
}

struct Work {
    engine: BatchEngine,
    common: Arc<Common>,
    waiting: VecDeque<Job>,
    running: Vec<Running>,
}

impl Work {
    fn run(mut self, queued: &Receiver<Job>) {
        self.gauges();
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                match queued.recv() {
                    Ok(job) => self.waiting.push_back(job),
                    Err(_) => return,
                }
            }
            self.waiting.extend(queued.try_iter());
            self.forget_who_left();
            self.admit();
            self.gauges();
            if !self.running.is_empty() {
                self.step();
            }
        }
    }

    fn gauges(&self) {
        let (metrics, pages) = (&self.common.metrics, self.engine.pages());
        let set = |gauge: &std::sync::atomic::AtomicU64, value: usize| {
            gauge.store(value as u64, Ordering::Relaxed);
        };
        set(&metrics.running, self.running.len());
        set(&metrics.pages_used, pages.in_use);
        set(&metrics.pages, pages.total);
    }

    /// A request that is no longer waiting: it has a place, or an answer.
    fn leaves(&self) {
        self.common.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes out the requests of clients that have closed their connection.
    fn forget_who_left(&mut self) {
        let (common, waiting) = (&self.common, &mut self.waiting);
        waiting.retain(|job| {
            let stays = !job.request.reply.is_closed();
            if !stays {
                add(&common.metrics.abandoned, 1);
                common.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
        let mut running = std::mem::take(&mut self.running);
        let mut failed = None;
        running.retain(|request| {
            if !request.reply.is_closed() {
                return true;
            }
            add(&self.common.metrics.abandoned, 1);
            failed = failed.take().or(self.engine.remove_request(request.id).err());
            false
        });
        self.running = running;
        if let Some(error) = failed {
            self.fail_all(&error);
        }
    }

    /// Adds who waits, in the order of arrival, while there is room.
    fn admit(&mut self) {
        while let Some(mut job) = self.waiting.pop_front() {
            match self.add(&mut job) {
                Ok((id, ids)) => {
                    self.leaves();
                    let Request { echo, reply, .. } = job.request;
                    self.running.push(Running { id, echo: echo.then_some(ids), reply });
                }
                // What has no place in an empty batch never has one.
                Err(error) if error.is_full() && !self.running.is_empty() => {
                    self.waiting.push_front(job);
                    break;
                }
                Err(error) => {
                    self.leaves();
                    refuse(&job.request.reply, refusal(&error));
                }
            }
        }
        let patience = self.common.settings.patience;
        while self.waiting.front().is_some_and(|job| job.since.elapsed() > patience) {
            let Some(job) = self.waiting.pop_front() else { break };
            self.leaves();
            let words = format!("no place was free for {} s; try again", patience.as_secs());
            refuse(&job.request.reply, Refusal::busy(words));
        }
    }

    /// Adds a request; returns its prompt too.
    fn add(&mut self, job: &mut Job) -> Result<(RequestId, Vec<u32>), SessionError> {
        let ids = match &job.request.prompt {
            Prompt::Text(text) => self.engine.encode(text)?,
            Prompt::Chat(messages) => self.engine.encode_chat(messages)?,
            Prompt::Ids(ids) => ids.clone(),
        };
        let expected =
            job.prediction.as_deref().map(|text| self.engine.encode(text)).transpose()?;
        let Request { params, constraint, .. } = &mut job.request;
        let id = self.engine.add_constrained(&ids, params, constraint)?;
        if let Some(expected) = expected {
            self.engine.predict(id, &expected);
        }
        add(&self.common.metrics.prompt_tokens, ids.len() as u64);
        Ok((id, ids))
    }

    fn step(&mut self) {
        let started = Instant::now();
        let outputs = match self.engine.step() {
            Ok(outputs) => outputs,
            Err(error) => return self.fail_all(&error),
        };
        let metrics = &self.common.metrics;
        add(&metrics.steps, 1);
        add(&metrics.step_nanos, started.elapsed().as_nanos() as u64);
        add(&metrics.generated_tokens, outputs.len() as u64);
        let mut ends = Vec::new();
        for output in outputs {
            // Ids grow.
            let at = self.running.binary_search_by_key(&output.id, |request| request.id);
            let Ok(at) = at else { continue };
            // Who has left is found before the next step.
            let tokenizer = self.engine.tokenizer();
            let told = output.logprobs.map(|told| Entry::new(tokenizer, output.token, Some(&told)));
            let _ = self.running[at].reply.send(Event::Piece(output.text, told));
            if let Some(made) = output.finished {
                add(&metrics.finished, 1);
                add(&metrics.cached_tokens, made.stats.cached_tokens as u64);
                add(&metrics.drafted_tokens, made.stats.drafted_tokens as u64);
                add(&metrics.accepted_tokens, made.stats.accepted_tokens as u64);
                let usage = Usage {
                    prompt: made.stats.prompt_tokens,
                    cached: made.stats.cached_tokens,
                    generated: made.stats.generated_tokens,
                    accepted: made.stats.accepted_tokens,
                    drafted: made.stats.drafted_tokens,
                };
                let Running { echo, reply, .. } = self.running.remove(at);
                let echo = echo.map(|ids| Echo::new(tokenizer, &ids, &made.prompt_logprobs));
                ends.push((reply, Event::End { finish: made.finish, usage, echo }));
            }
        }
        // Who hears of an end finds it counted.
        self.gauges();
        for (reply, end) in ends {
            let _ = reply.send(end);
        }
    }

    /// Nothing in the batch goes on. What is added afterwards runs where a device is left.
    fn fail_all(&mut self, error: &SessionError) {
        let refusal = Refusal::failed(error.to_string());
        for request in std::mem::take(&mut self.running) {
            // One that is gone already is not there: no error.
            let _ = self.engine.remove_request(request.id);
            refuse(&request.reply, refusal.clone());
        }
    }
}

impl Echo {
    fn new(tokenizer: Option<&Tokenizer>, ids: &[u32], told: &[TokenLogprobs]) -> Self {
        let text = tokenizer.and_then(|tokenizer| tokenizer.decode(ids, true).ok());
        // Nothing is told of the first one.
        let told = std::iter::once(None).chain(told.iter().map(Some));
        let entries = ids.iter().zip(told).map(|(&id, told)| Entry::new(tokenizer, id, told));
        Self { text: text.unwrap_or_default(), entries: entries.collect() }
    }
}

fn refuse(reply: &UnboundedSender<Event>, refusal: Refusal) {
    // Who has left needs no answer.
    let _ = reply.send(Event::Refused(refusal));
}

/// What the client is told: its own fault, or that of a device.
pub(crate) fn refusal(error: &SessionError) -> Refusal {
    let theirs = matches!(
        error,
        SessionError::Text(_)
            | SessionError::NoTokenizer
            | SessionError::TooManyStopIds { .. }
            | SessionError::Model(
                ModelError::TokenOutOfVocabulary { .. }
                    | ModelError::EmptyInput
                    | ModelError::ContextFull { .. }
                    | ModelError::PagesFull { .. }
            )
    );
    if theirs { Refusal::bad(error.to_string()) } else { Refusal::failed(error.to_string()) }
}
