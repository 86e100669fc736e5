//! An HTTP server over [`BatchEngine`]: the completions of the OpenAI API, for every client that speaks it.
//!
//! | request | |
//! |---|---|
//! | `POST /v1/completions`, `POST /v1/chat/completions` | one document, or with `"stream": true` server-sent events |
//! | `GET /v1/models` | the model that is served |
//! | `GET /health` | `ok`, without a key |
//! | `GET /metrics` | counters in Prometheus' text format |
//!
//! One thread has the engine (`engine`) and adds requests between its steps, so all that run share a batch; each gives the
//! text that it gives alone. The others (`http`) only wait for sockets. What a client may ask for is checked in `api`: a field that is
//! not supported is refused by its name, never left out in silence.

mod api;
mod engine;
mod http;
mod logprobs;
mod metrics;
mod reply;

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use bitnet_gpu::session::BatchEngine;
use bitnet_gpu::text::SamplingParams;

/// What is served, and to whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the model in requests and answers.
    pub model: String,
    /// What a request that does not say otherwise samples by.
    pub defaults: SamplingParams,
    /// The seed of requests that bring none; without it one is drawn for each.
    pub seed: Option<u64>,
    /// The key that requests have to bring (`Authorization: Bearer KEY`); none asks for none.
    pub key: Option<String>,
    /// Most requests that wait for a place in the batch; more are refused with 503.
    pub queue: usize,
    /// How long a request waits for its place before it is refused with 503.
    pub patience: Duration,
}

impl Settings {
    /// The defaults, for a model of this name: no key, 256 waiting requests, a minute of patience.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            defaults: SamplingParams::default(),
            seed: None,
            key: None,
            queue: 256,
            patience: Duration::from_secs(60),
        }
    }
}

/// Serves until `stop` says so, then lets the requests that run come to their end, for half a minute at most.
///
/// # Errors
/// A listener that cannot be used. What goes wrong with one connection ends that one.
pub fn serve(
    engine: BatchEngine,
    listener: TcpListener,
    settings: Settings,
    stop: impl Fn() -> bool,
) -> io::Result<()> {
    let (engine, shared) = engine::start(engine, settings);
    // Grammars are compiled aside.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let served = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(threads)
        .enable_io()
        .enable_time()
        .build()?
        .block_on(http::serve(listener, shared, || stop() || engine.is_finished()));
    // The way to it is gone: it ends with what it still has.
    engine.join().map_err(|_| io::Error::other("the thread of the engine ended with a panic"))?;
    served
}
