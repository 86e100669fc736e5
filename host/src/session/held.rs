//! Texts that are held to grammars. What may follow a token is worked out on threads of their own, while others go on: a text rests until it is known.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::guide::Guide;

/// Most threads: masks of more texts wait for each other.
const MOST_THREADS: usize = 32;

/// What holds the texts of a batch.
pub(super) struct Held {
    /// Of each slot.
    slots: Vec<Option<Text>>,
    /// Texts so far.
    texts: u64,
    team: Option<Team>,
}

struct Text {
    /// Tells it from others that had the slot.
    number: u64,
    /// None while a thread has it.
    guide: Option<Box<Guide>>,
}

/// A token on its way to what follows it, and back.
struct Job {
    slot: usize,
    number: u64,
    guide: Box<Guide>,
    token: u32,
}

impl Job {
    fn run(&mut self) {
        let Self { guide, token, .. } = self;
        if catch_unwind(AssertUnwindSafe(|| guide.push(*token))).is_err() {
            guide.give_up();
        }
    }
}

impl Held {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| None).collect(), texts: 0, team: None }
    }

    /// Makes `guide` what holds the text in `slot`, if it has a grammar.
    pub(super) fn hold(&mut self, slot: usize, guide: Option<Guide>) {
        self.texts += 1;
        let number = self.texts;
        self.slots[slot] = guide.map(|guide| Text { number, guide: Some(Box::new(guide)) });
    }

    /// Forgets the text in `slot`.
    pub(super) fn release(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    /// Whether there is any.
    pub(super) fn any(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Whether the text in `slot` is one.
    pub(super) fn holds(&self, slot: usize) -> bool {
        self.slots[slot].is_some()
    }

    /// What holds the text in `slot`, unless a thread has it.
    pub(super) fn guide(&self, slot: usize) -> Option<&Guide> {
        self.slots[slot].as_ref()?.guide.as_deref()
    }

    /// Those that no thread has, with their slots.
    pub(super) fn here(&self) -> impl Iterator<Item = (usize, &Guide)> {
        (0..self.slots.len()).filter_map(|slot| Some((slot, self.guide(slot)?)))
    }

    /// The same, to be told from.
    pub(super) fn here_mut(&mut self) -> impl Iterator<Item = (usize, &mut Guide)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(slot, text)| Some((slot, text.as_mut()?.guide.as_deref_mut()?)))
    }

    /// Whether a thread has one.
    pub(super) fn is_away(&self) -> bool {
        self.slots.iter().flatten().any(|text| text.guide.is_none())
    }

    /// Hands tokens to what follows them, by their slots: on threads, unless there is one text alone.
    pub(super) fn push(&mut self, tokens: &[(usize, u32)]) {
        let here = self.slots.iter().flatten().count() == 1;
        for &(slot, token) in tokens {
            let Some(text) = &mut self.slots[slot] else { continue };
            let Some(guide) = text.guide.take() else { continue };
            let mut job = Job { slot, number: text.number, guide, token };
            if !here {
                let team = self.team.get_or_insert_with(Team::new);
                match team.send(job) {
                    Ok(()) => continue,
                    Err(back) => job = back,
                }
            }
            job.run();
            self.take_back(job);
        }
    }

    /// Takes back what threads are done with. Waits for one of them up to `wait`, and says whether there was any.
    pub(super) fn collect(&mut self, wait: Duration) -> bool {
        if !self.is_away() {
            return false;
        }
        let Some(team) = &self.team else { return false };
        let first = match wait.is_zero() {
            true => team.results.try_recv().ok(),
            false => team.results.recv_timeout(wait).ok(),
        };
        let jobs: Vec<Job> = first.into_iter().chain(team.results.try_iter()).collect();
        let any = !jobs.is_empty();
        jobs.into_iter().for_each(|job| self.take_back(job));
        any
    }

    fn take_back(&mut self, job: Job) {
        let text = self.slots[job.slot].as_mut().filter(|text| text.number == job.number);
        // Of a text that is gone nobody wants it.
        if let Some(text) = text {
            text.guide = Some(job.guide);
        }
    }
}

/// Threads that follow texts.
struct Team {
    jobs: Option<Sender<Job>>,
    results: Receiver<Job>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    fn new() -> Self {
        let (jobs, queue) = channel::<Job>();
        let (done, results) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let start = |_| {
            let (queue, done) = (Arc::clone(&queue), done.clone());
            let follow = move || {
                loop {
                    // The lock is held while nothing is there: the others wait for it instead.
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(mut job) = next else { return };
                    job.run();
                    if done.send(job).is_err() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name("grammar".into()).spawn(follow).ok()
        };
        Self { jobs: Some(jobs), results, threads: (0..count).filter_map(start).collect() }
    }

    /// Gives `job` to a thread, or back where the system had none.
    fn send(&self, job: Job) -> Result<(), Job> {
        match &self.jobs {
            Some(jobs) if !self.threads.is_empty() => jobs.send(job).map_err(|error| error.0),
            _ => Err(job),
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // They end when nobody can send.
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
