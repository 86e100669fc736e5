//! Events: points in the work of a stream.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::code::Code;
use super::device::{Device, current, working};
use super::graph::{Capture, Seen};
use super::handles::{Handle, Table};
use super::{Out, entries, lock};

/// Live events.
pub(super) static EVENTS: Table<Event> = Table::new();

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;

/// An event.
pub(super) struct Event {
    pub(super) device: &'static Device,
    timing: bool,
    state: Mutex<State>,
    reached: Condvar,
}

#[derive(Default)]
struct State {
    /// How often it was recorded.
    recorded: u64,
    /// Which of these records streams have come to.
    done: u64,
    /// When they did.
    at: Option<Instant>,
    /// The last record was in a capture.
    captured: Option<(Arc<Capture>, Seen)>,
}

/// What an event marks.
pub(super) enum Mark {
    Nothing,
    /// The record of this number.
    Serial(u64),
    /// These nodes of a graph.
    Captured(Arc<Capture>, Seen),
}

impl Event {
    /// Marks what is queued next to its stream; gives the number of the record.
    pub(super) fn mark(&self) -> u64 {
        let mut state = lock(&self.state);
        state.captured = None;
        state.recorded += 1;
        state.recorded
    }

    /// Marks nodes of a graph.
    pub(super) fn mark_captured(&self, capture: &Arc<Capture>, seen: Seen) {
        lock(&self.state).captured = Some((capture.clone(), seen));
    }

    /// What it marks.
    pub(super) fn marked(&self) -> Mark {
        let state = lock(&self.state);
        match (&state.captured, state.recorded) {
            (Some((capture, seen)), _) => Mark::Captured(capture.clone(), seen.clone()),
            (None, 0) => Mark::Nothing,
            (None, serial) => Mark::Serial(serial),
        }
    }

    /// A stream has come to record `serial`.
    pub(super) fn reach(&self, serial: u64) {
        let mut state = lock(&self.state);
        if serial > state.done {
            state.done = serial;
            state.at = Some(Instant::now());
        }
        self.reached.notify_all();
    }

    /// Waits until a stream has come to record `serial`.
    pub(super) fn wait(&self, serial: u64) {
        let state = lock(&self.state);
        let done = self.reached.wait_while(state, |state| state.done < serial);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }

    /// When it was reached; `None`: never recorded.
    fn time(&self) -> Result<Option<Instant>, Code> {
        let state = lock(&self.state);
        if state.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        if state.done < state.recorded { Err(Code::NOT_READY) } else { Ok(state.at) }
    }
}

entries! {
    /// A new event.
    fn cuEventCreate(to: Out<Handle>, flags: u32) {
        let device = working()?;
        if flags > 3 {
            return Err(Code::INVALID_VALUE);
        }
        let timing = flags & DISABLE_TIMING == 0;
        let (state, reached) = (Mutex::default(), Condvar::new());
        to.put(EVENTS.insert(Arc::new(Event { device, timing, state, reached })))
    }

    /// Forgets an event. Streams that wait for it do so nevertheless.
    fn cuEventDestroy_v2(of: Handle) {
        EVENTS.remove(of)?;
        current()?.state()
    }

    /// Whether the marked work is done.
    fn cuEventQuery(of: Handle) {
        let event = EVENTS.get(of)?;
        event.device.state()?;
        event.time()?;
        event.device.state()
    }

    /// Waits until the marked work is done.
    fn cuEventSynchronize(of: Handle) {
        let event = EVENTS.get(of)?;
        match event.marked() {
            Mark::Captured(..) => return Err(Code::CAPTURED_EVENT),
            Mark::Serial(serial) => event.wait(serial),
            Mark::Nothing => {}
        }
        event.device.state()
    }

    /// Milliseconds from one event to another.
    fn cuEventElapsedTime(to: Out<f32>, start: Handle, end: Handle) {
        let (start, end) = (EVENTS.get(start)?, EVENTS.get(end)?);
        working()?;
        if !start.timing || !end.timing {
            return Err(Code::INVALID_HANDLE);
        }
        let (start, end) = (start.time()?, end.time()?);
        let (Some(start), Some(end)) = (start, end) else { return Err(Code::INVALID_HANDLE) };
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        to.put(if end >= start { ms(start, end) } else { -ms(end, start) } as f32)
    }
}
