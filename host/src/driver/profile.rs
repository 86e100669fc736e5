//! Time per kernel, measured on the device.
//!
//! With a profiler on ([`super::Device::enable_profiler`]), every launch stands between two timing
//! events. That costs a few microseconds for each launch and keeps kernels from overlapping, so
//! totals are of kernels alone; a replayed graph is one entry. [`Profiler::report`] waits for all of
//! them. Times of the trace are chained from event to event of one stream, because the driver's
//! `f32` milliseconds lose microseconds over longer spans.

use std::collections::HashMap;
use std::sync::Mutex;

use super::error::DriverError;
use super::event::Event;
use super::stream::{Stream, lock};
use crate::profile::{Profile, Sample};

/// Samples whose events are held before they are read off; bounds the number of live events.
const PENDING_MAX: usize = 4096;

/// Collects the time of every launch of a device.
#[derive(Default)]
pub struct Profiler {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: Vec<Pending>,
    done: Vec<Sample>,
    clocks: HashMap<u64, Clock>,
}

struct Pending {
    name: &'static str,
    stream: u64,
    start: Event,
    end: Event,
}

/// The last start of a stream, as an event and in microseconds since the stream's first one.
struct Clock {
    last: Event,
    at_us: f64,
}

impl std::fmt::Debug for Profiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        write!(f, "Profiler({} samples)", state.pending.len() + state.done.len())
    }
}

impl Profiler {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Runs `launch` between two events of `stream`.
    pub(super) fn timed<E>(
        &self,
        name: &'static str,
        stream: &Stream,
        launch: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        // A profiler that fails must not fail the work: without events the launch is not timed.
        let start = Event::with_timing(stream.device()).ok();
        let start = start.filter(|event| event.record(stream).is_ok());
        launch()?;
        let end = Event::with_timing(stream.device()).ok();
        let end = end.filter(|event| event.record(stream).is_ok());
        if let (Some(start), Some(end)) = (start, end) {
            let mut state = lock(&self.state);
            state.pending.push(Pending { name, stream: stream.id(), start, end });
            if state.pending.len() >= PENDING_MAX {
                let _ = state.read_off();
            }
        }
        Ok(())
    }

    /// Waits for all timed launches and sums them up.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn report(&self) -> Result<Profile, DriverError> {
        let mut state = lock(&self.state);
        state.read_off()?;
        Ok(Profile::of(state.done.clone()))
    }

    /// Forgets everything measured so far.
    pub fn reset(&self) {
        *lock(&self.state) = State::default();
    }
}

impl State {
    fn read_off(&mut self) -> Result<(), DriverError> {
        for Pending { name, stream, start, end } in std::mem::take(&mut self.pending) {
            let elapsed_us = end.elapsed_us(&start)?;
            let start_us = match self.clocks.get(&stream) {
                Some(clock) => clock.at_us + start.elapsed_us(&clock.last)?,
                None => 0.0,
            };
            self.clocks.insert(stream, Clock { last: start, at_us: start_us });
            self.done.push(Sample { name, stream, start_us, elapsed_us });
        }
        Ok(())
    }
}
