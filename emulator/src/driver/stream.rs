//! Streams: work in order, each by a thread of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::code::Code;
use super::device::{Device, current, working};
use super::event::{EVENTS, Event, Mark};
use super::graph::Capture;
use super::handles::{Handle, Table};
use super::work::Work;
use super::{Out, complain, entries, lock};

/// How long a thread without work waits for more.
const LINGER: Duration = Duration::from_millis(50);

/// Live streams.
static STREAMS: Table<Stream> = Table::new();

/// A stream.
pub(super) struct Stream {
    pub(super) device: &'static Device,
    /// No other stream has it.
    pub(super) number: u64,
    queue: Mutex<Queue>,
    /// There is work.
    arrived: Condvar,
    /// There is none left.
    drained: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// How much of the work is not done, with what runs.
    pending: usize,
    /// Whether there is a thread.
    served: bool,
    /// The capture that it takes part in.
    capture: Option<Arc<Capture>>,
}

/// The stream of a handle, if it can be used: the current context has to be its own, without fault.
pub(super) fn stream(handle: Handle) -> Result<Arc<Stream>, Code> {
    let device = working()?;
    let stream = any_stream(handle)?;
    if stream.device.ordinal == device.ordinal { Ok(stream) } else { Err(Code::INVALID_HANDLE) }
}

/// The stream of a handle, also when its context is lost.
fn any_stream(handle: Handle) -> Result<Arc<Stream>, Code> {
    if handle.0 <= 2 {
        complain("the default streams (handles 0 to 2) are not emulated; make one");
        return Err(Code::NOT_SUPPORTED);
    }
    STREAMS.get(handle)
}

impl Stream {
    pub(super) fn new(device: &'static Device) -> Arc<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let stream = Arc::new(Self {
            device,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            drained: Condvar::new(),
        });
        device.adopt(&stream);
        stream
    }

    /// Queues work, or makes it a node of the graph that is captured.
    pub(super) fn submit(self: &Arc<Self>, work: Work) -> Result<(), Code> {
        let queue = lock(&self.queue);
        match &queue.capture {
            Some(capture) => capture.add(self, work),
            None => self.push(queue, work),
        }
    }

    fn push(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>, work: Work) -> Result<(), Code> {
        queue.waiting.push_back(work);
        queue.pending += 1;
        if !queue.served {
            let stream = self.clone();
            let name = format!("stream {}", self.number);
            let thread = std::thread::Builder::new().name(name).spawn(move || stream.serve());
            if thread.is_err() {
                queue.waiting.pop_back();
                queue.pending -= 1;
                return Err(Code::OUT_OF_MEMORY);
            }
            queue.served = true;
        }
        self.arrived.notify_all();
        drop(queue);
        if self.device.blocking {
            self.wait();
            return self.device.state();
        }
        Ok(())
    }

    /// What the stream's thread does.
    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                drop(queue);
                work.run(self.device);
                queue = lock(&self.queue);
                queue.pending -= 1;
                // With the lock held: who sees the event finds the stream done, and the other way round.
                if let Work::Record { event, serial } = &work {
                    event.reach(*serial);
                }
                if queue.pending == 0 {
                    self.drained.notify_all();
                }
                continue;
            }
            let waited = self.arrived.wait_timeout(queue, LINGER);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = again;
            if timeout.timed_out() && queue.waiting.is_empty() {
                queue.served = false;
                return;
            }
        }
    }

    /// Waits until all work is done.
    pub(super) fn wait(&self) {
        let queue = lock(&self.queue);
        let done = self.drained.wait_while(queue, |queue| queue.pending > 0);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }

    /// The capture that it takes part in.
    pub(super) fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.queue).capture.clone()
    }

    /// Takes part in `capture` from now on, unless in one already.
    pub(super) fn join(&self, capture: &Arc<Capture>) -> bool {
        let mut queue = lock(&self.queue);
        let free = queue.capture.is_none();
        if free {
            queue.capture = Some(capture.clone());
        }
        free
    }

    /// Takes part in `capture` no more.
    pub(super) fn leave(&self, capture: &Arc<Capture>) {
        let mut queue = lock(&self.queue);
        if queue.capture.as_ref().is_some_and(|of| Arc::ptr_eq(of, capture)) {
            queue.capture = None;
        }
    }

    /// Lets `event` mark the work so far.
    fn record(self: &Arc<Self>, event: &Arc<Event>) -> Result<(), Code> {
        let queue = lock(&self.queue);
        match &queue.capture {
            Some(capture) => {
                event.mark_captured(capture, capture.seen_by(self)?);
                Ok(())
            }
            None => {
                let serial = event.mark();
                self.push(queue, Work::Record { event: event.clone(), serial })
            }
        }
    }

    /// Lets later work wait for what `event` marks.
    fn wait_event(self: &Arc<Self>, event: &Arc<Event>) -> Result<(), Code> {
        match (event.marked(), self.capture()) {
            (Mark::Nothing, _) => Ok(()),
            (Mark::Serial(_), Some(capture)) => {
                capture.spoil();
                Err(Code::STREAM_CAPTURE_ISOLATION)
            }
            (Mark::Serial(serial), None) => {
                let queue = lock(&self.queue);
                self.push(queue, Work::Wait { event: event.clone(), serial })
            }
            (Mark::Captured(of, seen), own) => {
                if own.is_some_and(|own| !Arc::ptr_eq(&own, &of)) {
                    of.spoil();
                    return Err(Code::STREAM_CAPTURE_MERGE);
                }
                of.wait(self, &seen)
            }
        }
    }

    /// Refuses to be asked while it is captured, which ends the capture.
    fn outside_capture(&self) -> Result<(), Code> {
        match self.capture() {
            Some(capture) => {
                capture.spoil();
                Err(Code::STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }
}

entries! {
    /// A new stream. Priorities change nothing.
    fn cuStreamCreateWithPriority(to: Out<Handle>, flags: u32, _priority: i32) {
        let device = working()?;
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        to.put(STREAMS.insert(Stream::new(device)))
    }

    /// Forgets a stream. What it has to do is done nevertheless.
    fn cuStreamDestroy_v2(of: Handle) {
        let stream = STREAMS.remove(of)?;
        if let Some(capture) = stream.capture() {
            capture.spoil();
        }
        current()?.state()
    }

    /// Waits until a stream is done.
    fn cuStreamSynchronize(of: Handle) {
        let stream = any_stream(of)?;
        stream.outside_capture()?;
        stream.wait();
        stream.device.state()
    }

    /// Whether a stream is done.
    fn cuStreamQuery(of: Handle) {
        let stream = any_stream(of)?;
        stream.outside_capture()?;
        stream.device.state()?;
        if lock(&stream.queue).pending == 0 { stream.device.state() } else { Err(Code::NOT_READY) }
    }

    /// Lets a stream wait for an event.
    fn cuStreamWaitEvent(of: Handle, event: Handle, _flags: u32) {
        let waits = stream(of)?;
        waits.wait_event(&EVENTS.get(event)?)
    }

    /// Lets an event mark the work of a stream so far.
    fn cuEventRecord(event: Handle, of: Handle) {
        let event = EVENTS.get(event)?;
        let stream = stream(of)?;
        if stream.device.ordinal != event.device.ordinal {
            return Err(Code::INVALID_HANDLE);
        }
        stream.record(&event)
    }
}
