//! A batch on each of several devices, side by side.
//!
//! Each device has a thread that runs its batch as fast as it goes and puts every step on the board; whoever steps
//! the group takes them from there. Orders go the other way. The group keeps count of slots and pages itself, so that
//! a request is refused, or given to a device, without asking one; orders of a device are carried out in turn, so
//! what the count says is free is free when its turn comes. It keeps books of what pages hold as a batch does, too, and gives a prompt to the
//! device that has its beginning, unless that one has much less room; what a batch has in truth only decides what it copies.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use super::SessionError;
use super::guide::{Guide, MakeGuide};
use super::runner::{Batched, Counts, Next};
use super::wish::Wish;
use crate::checkpoint::ModelConfig;
use crate::memory::MemoryUsage;
use crate::model::{BatchOptions, ModelError, Needs, PagePool, PageUsage};
use crate::profile::Profile;

/// A prompt goes to the device that has its beginning while others have no more free slots than that one and one of so many parts of a batch.
const BESIDE: usize = 4;

/// Steps that a device may be ahead of what was taken from the board.
const LEAD: usize = 8;

/// What a device's thread is told. Sequences go by their key in the group.
enum Order {
    Admit { key: usize, prompt: Vec<u32>, asked: Box<(Wish, Option<Guide>)> },
    Predict { key: usize, expected: Vec<u32> },
    Remove { key: usize },
    Memory(mpsc::Sender<MemoryUsage>),
    Stop,
}

/// What a step gave: [`Next::Token`] or [`Next::Ended`], by sequence, and what [`Batched::counts`] says of that. Of one sequence there may be several.
type Step = Vec<(usize, Next, Counts)>;

/// What lies on the board for one device, and from it.
#[derive(Default)]
struct Desk {
    orders: VecDeque<Order>,
    steps: VecDeque<Step>,
    /// Its thread is gone, or about to be.
    ended: bool,
}

/// Where the threads meet.
struct Board {
    desks: Mutex<Vec<Desk>>,
    /// A step was put down, or a thread has ended.
    news: Condvar,
    /// For each device: an order, or a step that was taken.
    wakes: Vec<Condvar>,
}

impl Board {
    fn desks(&self) -> MutexGuard<'_, Vec<Desk>> {
        // What a panicking thread leaves is whole: nothing is half done under the lock.
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order; one for a thread that has ended is dropped.
    fn order(&self, device: usize, order: Order) {
        let desk = &mut self.desks()[device];
        if !desk.ended {
            desk.orders.push_back(order);
            self.wakes[device].notify_one();
        }
    }

    /// What `device` is told. Waits for it, unless there is a step to make (`runs`) and room for one.
    fn orders(&self, device: usize, runs: bool) -> VecDeque<Order> {
        let mut desks = self.desks();
        loop {
            let desk = &mut desks[device];
            if !desk.orders.is_empty() || runs && desk.steps.len() < LEAD {
                return std::mem::take(&mut desk.orders);
            }
            desks = self.wakes[device].wait(desks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&self, device: usize, step: Step) {
        self.desks()[device].steps.push_back(step);
        self.news.notify_one();
    }
}

/// Says that a thread has ended, however it did.
struct Leaves<'a> {
    board: &'a Board,
    device: usize,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let desk = &mut self.board.desks()[self.device];
        desk.ended = true;
        // Whoever waits for an answer hears that there is none.
        desk.orders.clear();
        self.board.news.notify_one();
    }
}

/// A sequence on a device's own thread.
struct Run {
    key: usize,
    slot: usize,
    stops: Vec<u32>,
    /// Whether there is more to come.
    runs: bool,
}

/// The thread of one device, until it is told to stop or something fails.
fn work(mut engine: Box<dyn Batched>, board: &Board, device: usize) -> Result<(), SessionError> {
    let mut sequences: Vec<Run> = Vec::new();
    loop {
        let orders = board.orders(device, sequences.iter().any(|run| run.runs));
        if orders.is_empty() {
            engine.queue()?;
            let mut step = Step::with_capacity(sequences.len());
            for run in sequences.iter_mut().filter(|run| run.runs) {
                loop {
                    let next = engine.next(run.slot)?;
                    match &next {
                        Next::Token { token, end, .. } => {
                            // Not asked for what is behind a stop: the answer would take until all is idle.
                            run.runs = end.is_none() && !run.stops.contains(token);
                        }
                        Next::Ended => run.runs = false,
                        Next::NotYet => break,
                    }
                    step.push((run.key, next, engine.counts(run.slot)));
                    if !(run.runs && engine.has_more(run.slot)) {
                        break;
                    }
                }
            }
            board.put(device, step);
        }
        for order in orders {
            match order {
                Order::Admit { key, prompt, asked } => {
                    let (wish, guide) = *asked;
                    let mut guide = Some(guide);
                    let mut guide = || Ok(guide.take().flatten());
                    let slot = engine.admit(&prompt, &wish, &mut guide)?;
                    let Wish { params, .. } = wish;
                    let stops = params.stop_ids[..params.stop_len as usize].to_vec();
                    sequences.push(Run { key, slot, stops, runs: true });
                }
                Order::Predict { key, expected } => {
                    if let Some(run) = sequences.iter().find(|run| run.key == key) {
                        engine.predict(run.slot, &expected);
                    }
                }
                Order::Remove { key } => {
                    if let Some(at) = sequences.iter().position(|run| run.key == key) {
                        engine.remove(sequences.remove(at).slot)?;
                    }
                }
                // Nobody may be waiting any more.
                Order::Memory(to) => drop(to.send(engine.memory())),
                Order::Stop => return Ok(()),
            }
        }
    }
}

/// What the group knows of a device.
struct Member {
    /// Such as `cuda:1`.
    name: String,
    /// For people.
    line: String,
    /// `None`: it has ended, and that was told.
    thread: Option<JoinHandle<Result<(), SessionError>>>,
    free_slots: usize,
    /// The pages that its batch has given away, if not by their numbers, and what it remembers of them.
    pool: PagePool,
}

/// A sequence, from outside.
struct Ticket {
    device: usize,
    /// Of [`Member::pool`].
    pages: Vec<u32>,
    /// Its prompt, of so many tokens, and those that it gave so far.
    text: Vec<u32>,
    prompt: usize,
    /// What the step at hand gave it.
    next: VecDeque<Next>,
    counts: Counts,
}

impl Ticket {
    /// Has `pool` remember what its pages hold: all but the last token, if its prompt has run.
    fn remember_in(&self, options: &BatchOptions, pool: &mut PagePool) {
        if options.prefix_cache && self.text.len() > self.prompt {
            pool.remember(&self.pages, &self.text[..self.text.len() - 1]);
        }
    }
}

/// Batches on several devices, as one.
pub(super) struct Group {
    board: Arc<Board>,
    members: Vec<Member>,
    config: ModelConfig,
    /// Of each device.
    options: BatchOptions,
    peak_pages: usize,
    tickets: BTreeMap<usize, Ticket>,
    next_key: usize,
}

impl Group {
    /// Starts a thread for each of `engines`, which are alike, under its device's name.
    ///
    /// # Errors
    /// A thread that the system refuses.
    pub(super) fn start(engines: Vec<(String, Box<dyn Batched>)>) -> Result<Self, SessionError> {
        let (_, first) =
            engines.first().ok_or(SessionError::NoDeviceLeft { devices: "0".into() })?;
        let (config, options) = (first.config().clone(), first.options());
        let board = Arc::new(Board {
            desks: Mutex::new(engines.iter().map(|_| Desk::default()).collect()),
            news: Condvar::new(),
            wakes: engines.iter().map(|_| Condvar::new()).collect(),
        });
        // Made before the threads: those that run are stopped when one cannot be started.
        let mut group = Self {
            board,
            members: Vec::new(),
            config,
            options,
            peak_pages: 0,
            tickets: BTreeMap::new(),
            next_key: 0,
        };
        for (device, (name, engine)) in engines.into_iter().enumerate() {
            let line = engine.devices().join(", ");
            let board = group.board.clone();
            let thread = thread::Builder::new().name(name.clone()).spawn(move || {
                let _leaves = Leaves { board: &board, device };
                work(engine, &board, device)
            });
            let thread = match thread {
                Ok(thread) => Some(thread),
                Err(source) => return Err(SessionError::Start { device: name, source }),
            };
            let (free_slots, pool) = (options.max_batch, PagePool::new(options.pages));
            group.members.push(Member { name, line, thread, free_slots, pool });
        }
        Ok(group)
    }

    /// Takes the thread of a device that has ended before it was told to, and says why it has.
    fn lost(&mut self, device: usize) -> SessionError {
        let member = &mut self.members[device];
        let name = member.name.clone();
        match member.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(source))) => {
                SessionError::OnDevice { device: name, source: Box::new(source) }
            }
            Some(Err(panic)) => resume_unwind(panic),
            // A thread ends by an error, a panic or an order, and the order is given when the group is dropped.
            Some(Ok(Ok(()))) | None => SessionError::NoDeviceLeft { devices: name },
        }
    }

    /// Hands out what is on the board: a step of each device that has made one, or the device that has
    /// failed.
    fn take(&mut self) -> Result<(), usize> {
        let board = self.board.clone();
        let mut desks = board.desks();
        loop {
            let ended =
                |device: &usize| desks[*device].ended && self.members[*device].thread.is_some();
            if let Some(device) = (0..desks.len()).find(ended) {
                return Err(device);
            }
            let mut some = false;
            for (device, desk) in desks.iter_mut().enumerate() {
                let Some(step) = desk.steps.pop_front() else { continue };
                if desk.steps.len() + 1 == LEAD {
                    board.wakes[device].notify_one();
                }
                for (key, next, counts) in step {
                    // Sequences that were removed since are nobody's.
                    if let Some(ticket) = self.tickets.get_mut(&key) {
                        ticket.counts = counts;
                        if let Next::Token { token, .. } = next {
                            ticket.text.push(token);
                            if ticket.text.len() == ticket.prompt + 1 {
                                ticket.remember_in(&self.options, &mut self.members[device].pool);
                            }
                        }
                        ticket.next.push_back(next);
                        some = true;
                    }
                }
            }
            let waits = self.tickets.values().any(|t| self.members[t.device].thread.is_some());
            if some || !waits {
                return Ok(());
            }
            desks = board.news.wait(desks).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Batched for Group {
    fn devices(&self) -> Vec<String> {
        self.members.iter().map(|member| member.line.clone()).collect()
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn options(&self) -> BatchOptions {
        let living = self.members.iter().filter(|member| member.thread.is_some());
        let (count, options) = (living.count(), self.options);
        BatchOptions {
            max_batch: count * options.max_batch,
            pages: count.saturating_mul(options.pages),
            ..options
        }
    }

    fn pages(&self) -> PageUsage {
        let total = self.options().pages;
        let in_use = self.tickets.values().map(|ticket| ticket.pages.len()).sum();
        PageUsage { in_use, peak: self.peak_pages, total }
    }

    fn memory(&self) -> MemoryUsage {
        let asked: Vec<_> = (0..self.members.len())
            .map(|device| {
                let (to, answer) = mpsc::channel();
                self.board.order(device, Order::Memory(to));
                answer
            })
            .collect();
        let mut all = MemoryUsage::default();
        // One that has failed holds nothing any more.
        for usage in asked.iter().filter_map(|answer| answer.recv().ok()) {
            all.in_use_bytes += usage.in_use_bytes;
            all.reserved_bytes += usage.reserved_bytes;
            all.peak_bytes += usage.peak_bytes;
            for (label, bytes) in usage.per_label {
                *all.per_label.entry(label).or_default() += bytes;
            }
        }
        all
    }

    fn profile(&self) -> Result<Option<Profile>, SessionError> {
        // The builder refuses it.
        Ok(None)
    }

    fn admit(
        &mut self,
        prompt: &[u32],
        wish: &Wish,
        guide: MakeGuide<'_>,
    ) -> Result<usize, SessionError> {
        let BatchOptions { max_batch, capacity, pages: total, prefix_cache, .. } = self.options;
        let Needs { pages, .. } =
            Needs::of(self.config.vocab_size, capacity, prompt, &wish.params)?;
        let living = || self.members.iter().enumerate().filter(|(_, m)| m.thread.is_some());
        let names = || self.members.iter().map(|m| &*m.name).collect::<Vec<_>>().join(", ");
        let most = living().map(|(_, member)| member.free_slots).max();
        let most = most.ok_or_else(|| SessionError::NoDeviceLeft { devices: names() })?;
        if most == 0 {
            let max_batch = living().count() * max_batch;
            return Err(ModelError::BatchFull { max_batch }.into());
        }
        // The last token runs in any case.
        let begins = &prompt[..prompt.len() - 1];
        let found = |member: &Member| {
            let near = member.free_slots + (max_batch / BESIDE).max(1) >= most;
            if prefix_cache && near { member.pool.beginning(begins).len() } else { 0 }
        };
        // The one that has most of its beginning, then the first of those with the most room.
        let place = living()
            .filter(|(_, member)| member.free_slots > 0 && member.pool.left() >= pages)
            .max_by_key(|(i, member)| {
                (found(member), member.free_slots, member.pool.left(), usize::MAX - i)
            })
            .map(|(device, _)| device);
        let open = living().filter(|(_, member)| member.free_slots > 0);
        let free = open.map(|(_, member)| member.pool.left()).max().unwrap_or(0);
        let full = ModelError::PagesFull { needed: pages, free, total };
        let made = if place.is_some() { guide()? } else { None };
        let taken =
            place.and_then(|device| Some((device, self.members[device].pool.take(begins, pages)?)));
        let Some((device, pages)) = taken else { return Err(full.into()) };
        let key = self.next_key;
        self.next_key += 1;
        self.members[device].free_slots -= 1;
        let (text, prompt_len) = (prompt.to_vec(), prompt.len());
        let (next, counts) = (VecDeque::new(), Counts::default());
        let ticket = Ticket { device, pages, text, prompt: prompt_len, next, counts };
        self.tickets.insert(key, ticket);
        self.peak_pages = self.peak_pages.max(self.pages().in_use);
        let (prompt, asked) = (prompt.to_vec(), Box::new((wish.clone(), made)));
        self.board.order(device, Order::Admit { key, prompt, asked });
        Ok(key)
    }

    fn predict(&mut self, slot: usize, expected: &[u32]) {
        if let Some(ticket) = self.tickets.get(&slot) {
            let order = Order::Predict { key: slot, expected: expected.to_vec() };
            self.board.order(ticket.device, order);
        }
    }

    fn remove(&mut self, slot: usize) -> Result<(), SessionError> {
        if let Some(ticket) = self.tickets.remove(&slot) {
            let member = &mut self.members[ticket.device];
            member.free_slots += 1;
            ticket.remember_in(&self.options, &mut member.pool);
            member.pool.give_back(ticket.pages);
            self.board.order(ticket.device, Order::Remove { key: slot });
        }
        Ok(())
    }

    fn queue(&mut self) -> Result<(), SessionError> {
        self.take().map_err(|device| self.lost(device))
    }

    fn next(&mut self, slot: usize) -> Result<Next, SessionError> {
        let ticket = self.tickets.get_mut(&slot);
        Ok(ticket.map_or(Next::Ended, |ticket| ticket.next.pop_front().unwrap_or(Next::NotYet)))
    }

    fn has_more(&self, slot: usize) -> bool {
        self.tickets.get(&slot).is_some_and(|ticket| !ticket.next.is_empty())
    }

    fn counts(&self, slot: usize) -> Counts {
        self.tickets.get(&slot).map_or(Counts::default(), |ticket| ticket.counts)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for device in 0..self.members.len() {
            self.board.order(device, Order::Stop);
        }
        for thread in self.members.iter_mut().filter_map(|member| member.thread.take()) {
            // Its error or panic has nobody left to hear it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
