//! Counters since the start.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted; gauges are set by the thread of the engine.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) finished: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) abandoned: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) drafted_tokens: AtomicU64,
    pub(crate) accepted_tokens: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) step_nanos: AtomicU64,
    pub(crate) running: AtomicU64,
    pub(crate) pages_used: AtomicU64,
    pub(crate) pages: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Metrics {
    /// Prometheus' text format; `waiting` texts have no place yet.
    pub(crate) fn text(&self, waiting: usize) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = of(&self.step_nanos) as f64 / 1e9;
        let rows = [
            (
                "texts_finished_total",
                "counter",
                "Texts that came to their end",
                of(&self.finished) as f64,
            ),
            (
                "requests_refused_total",
                "counter",
                "Requests that were refused, or failed before their answer began",
                of(&self.refused) as f64,
            ),
            (
                "texts_abandoned_total",
                "counter",
                "Texts whose client left",
                of(&self.abandoned) as f64,
            ),
            ("prompt_tokens_total", "counter", "Tokens of prompts", of(&self.prompt_tokens) as f64),
            (
                "prompt_tokens_cached_total",
                "counter",
                "Tokens of prompts of finished texts whose keys were in the cache",
                of(&self.cached_tokens) as f64,
            ),
            (
                "generated_tokens_total",
                "counter",
                "Tokens that were generated",
                of(&self.generated_tokens) as f64,
            ),
            (
                "drafted_tokens_total",
                "counter",
                "Tokens of finished texts that were guessed, by --lookup",
                of(&self.drafted_tokens) as f64,
            ),
            (
                "accepted_tokens_total",
                "counter",
                "Guesses of finished texts that were right",
                of(&self.accepted_tokens) as f64,
            ),
            ("steps_total", "counter", "Steps of the batch", of(&self.steps) as f64),
            ("step_seconds_total", "counter", "Time of these steps", seconds),
            ("texts_running", "gauge", "Texts in the batch", of(&self.running) as f64),
            ("texts_waiting", "gauge", "Texts that wait for a place", waiting as f64),
            ("cache_pages_used", "gauge", "Pages of the cache in use", of(&self.pages_used) as f64),
            ("cache_pages", "gauge", "Pages of the cache", of(&self.pages) as f64),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in rows {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "# HELP bitnet_{name} {help}.\n# TYPE bitnet_{name} {kind}\nbitnet_{name} {value}\n"
            );
        }
        text
    }
}
