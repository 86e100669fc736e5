//! Time per kernel, measured on the device.
//!
//! With a profiler on ([`super::Device::enable_profiler`]), every launch stands between two timing
//! events. That costs a few microseconds for each launch and keeps kernels from overlapping, so
//! totals are of kernels alone; a replayed graph is one entry. [`Profiler::report`] waits for all of
//! them. Times of the trace are chained from event to event of one stream, because the driver's
//! `f32` milliseconds lose microseconds over longer spans.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Mutex;

use serde::Serialize;

use super::error::DriverError;
use super::event::Event;
use super::stream::{Stream, lock};

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

/// One timed launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Sample {
    /// The kernel's symbol, or `graph`.
    pub name: &'static str,
    /// [`Stream::id`] of its stream.
    pub stream: u64,
    /// Microseconds after the stream's first sample.
    pub start_us: f64,
    /// Microseconds on the device.
    pub elapsed_us: f64,
}

/// All launches of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProfileRow {
    /// The kernel's symbol, or `graph`.
    pub name: &'static str,
    /// Launches.
    pub calls: u64,
    /// Sum, in microseconds.
    pub total_us: f64,
    /// Mean, in microseconds.
    pub mean_us: f64,
    /// Shortest, in microseconds.
    pub min_us: f64,
    /// Longest, in microseconds.
    pub max_us: f64,
    /// Part of the sum over all kernels, 0 to 1.
    pub share: f64,
}

/// What was measured: one row for each kernel, longest total first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Profile {
    /// One row for each kernel.
    pub rows: Vec<ProfileRow>,
    /// Every launch, in the order in which it was enqueued.
    pub samples: Vec<Sample>,
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

impl Profile {
    fn of(samples: Vec<Sample>) -> Self {
        let mut rows: BTreeMap<&'static str, ProfileRow> = BTreeMap::new();
        for sample in &samples {
            let row = rows.entry(sample.name).or_insert(ProfileRow {
                name: sample.name,
                calls: 0,
                total_us: 0.0,
                mean_us: 0.0,
                min_us: f64::INFINITY,
                max_us: 0.0,
                share: 0.0,
            });
            row.calls += 1;
            row.total_us += sample.elapsed_us;
            row.min_us = row.min_us.min(sample.elapsed_us);
            row.max_us = row.max_us.max(sample.elapsed_us);
        }
        let all: f64 = rows.values().map(|row| row.total_us).sum();
        let mut rows: Vec<_> = rows.into_values().collect();
        for row in &mut rows {
            row.mean_us = row.total_us / row.calls as f64;
            row.share = if all > 0.0 { row.total_us / all } else { 0.0 };
        }
        rows.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
        Self { rows, samples }
    }

    /// Writes the launches in the Chrome trace format (`chrome://tracing`, Perfetto): one track for
    /// each stream.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome_trace(&self, out: impl io::Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Entry<'a> {
            name: &'a str,
            cat: &'static str,
            ph: &'static str,
            ts: f64,
            dur: f64,
            pid: u32,
            tid: u64,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Trace<'a> {
            trace_events: Vec<Entry<'a>>,
            display_time_unit: &'static str,
        }
        let trace_events = self
            .samples
            .iter()
            .map(|s| Entry {
                name: s.name,
                cat: "kernel",
                ph: "X",
                ts: s.start_us,
                dur: s.elapsed_us,
                pid: 0,
                tid: s.stream,
            })
            .collect();
        serde_json::to_writer(out, &Trace { trace_events, display_time_unit: "ns" })
            .map_err(io::Error::from)
    }
}

impl std::fmt::Display for Profile {
    /// A table for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(6);
        writeln!(
            f,
            "{:width$} {:>8} {:>12} {:>10} {:>10} {:>10} {:>6}",
            "kernel", "calls", "total ms", "mean us", "min us", "max us", "share"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:width$} {:>8} {:>12.3} {:>10.2} {:>10.2} {:>10.2} {:>5.1}%",
                row.name,
                row.calls,
                row.total_us / 1e3,
                row.mean_us,
                row.min_us,
                row.max_us,
                100.0 * row.share
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Sample> {
        [("a", 1, 0.0, 2.0), ("b", 1, 2.0, 9.0), ("a", 2, 1.0, 4.0)]
            .map(|(name, stream, start_us, elapsed_us)| Sample {
                name,
                stream,
                start_us,
                elapsed_us,
            })
            .into()
    }

    #[test]
    fn rows_sum_up_their_samples_longest_first() {
        let profile = Profile::of(samples());
        assert_eq!(profile.rows.iter().map(|r| r.name).collect::<Vec<_>>(), ["b", "a"]);
        let a = &profile.rows[1];
        assert_eq!((a.calls, a.total_us, a.mean_us), (2, 6.0, 3.0));
        assert_eq!((a.min_us, a.max_us, a.share), (2.0, 4.0, 0.4));
        assert_eq!(profile.to_string().lines().count(), 3);
        assert_eq!(Profile::of(Vec::new()).rows, []);
    }

    #[test]
    fn the_trace_is_json_with_one_event_per_launch() {
        let mut text = Vec::new();
        Profile::of(samples()).write_chrome_trace(&mut text).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 3);
        assert_eq!(events[2]["tid"], 2);
        assert_eq!(events[1]["dur"], 9.0);
    }
}
