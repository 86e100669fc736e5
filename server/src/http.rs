//! Connections: HTTP/1.1 by hyper, with limits on everything that a client can make long.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bitnet_gpu::text::{Constraint, SamplingParams};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::api::{Answer, Asked, Prompt, Usage, reason};
use crate::engine::{Echo, Event, Request as Job, Shared, refusal};
use crate::logprobs::Entry;
use crate::metrics::add;
use crate::reply::Refusal;

/// Most bytes of a request's body, and of its headers.
const BODY_MOST: usize = 1 << 20;
const HEADERS_MOST: usize = 1 << 16;
/// How long headers and a body may take to come.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// Connections at once; later ones wait to be accepted.
const CONNECTIONS: usize = 1024;
/// How often it is looked whether to stop, and how long requests then have.
const LOOK: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_secs(30);

type Reply = Response<Either<Full<Bytes>, Events>>;

/// Accepts connections until `stop` says so.
pub(crate) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    stop: impl Fn() -> bool,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (places, connections) = (Arc::new(Semaphore::new(CONNECTIONS)), GracefulShutdown::new());
    while !stop() {
        let Ok(place) = tokio::time::timeout(LOOK, Arc::clone(&places).acquire_owned()).await
        else {
            continue;
        };
        let socket = match tokio::time::timeout(LOOK, listener.accept()).await {
            Ok(Ok((socket, _))) => socket,
            // Of one connection, or for want of file handles: others end.
            Ok(Err(_)) => {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(_) => continue,
        };
        let shared = Arc::clone(&shared);
        let service = service_fn(move |request| {
            let shared = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(answered(request, &shared).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .max_buf_size(HEADERS_MOST)
            .serve_connection(TokioIo::new(socket), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // What is wrong with a connection ends it.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    // What takes longer is cut off.
    let _ = tokio::time::timeout(GRACE, connections.shutdown()).await;
    Ok(())
}

async fn answered(request: Request<Incoming>, shared: &Shared) -> Reply {
    route(request, shared).await.unwrap_or_else(|refusal| {
        add(&shared.common.metrics.refused, 1);
        let mut reply = document(&refusal.document());
        *reply.status_mut() = refusal.status;
        if refusal.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            reply.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        }
        if refusal.status == StatusCode::SERVICE_UNAVAILABLE {
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        reply
    })
}

async fn route(request: Request<Incoming>, shared: &Shared) -> Result<Reply, Refusal> {
    let settings = &shared.common.settings;
    let path = request.uri().path();
    if path != "/health" {
        authorise(&request, settings.key.as_deref())?;
    }
    match (request.method(), path) {
        (&Method::GET, "/health") => Ok(words("text/plain", "ok\n".to_owned())),
        (&Method::GET, "/metrics") => {
            let text = shared.common.metrics.text(shared.common.waiting());
            Ok(words("text/plain; version=0.0.4", text))
        }
        (&Method::GET, "/v1/models") => {
            let model = json!({"id": settings.model, "object": "model", "created": 0, "owned_by": "bitnet"});
            Ok(document(&json!({"object": "list", "data": [model]})))
        }
        (&Method::POST, "/v1/completions") => complete(request, shared, false).await,
        (&Method::POST, "/v1/chat/completions") => complete(request, shared, true).await,
        (method, "/health" | "/metrics" | "/v1/models") => Err(not_allowed(method, "GET")),
        (method, "/v1/completions" | "/v1/chat/completions") => Err(not_allowed(method, "POST")),
        _ => {
            let all = "/v1/completions, /v1/chat/completions, /v1/models, /health and /metrics";
            let status = StatusCode::NOT_FOUND;
            Err(Refusal::new(status, format!("there is no {path:?} here; there are {all}")))
        }
    }
}

fn not_allowed(method: &Method, allowed: &str) -> Refusal {
    let words = format!("{method} is not allowed here; use {allowed}");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, words)
}

/// Refuses a request without the key, in a time that does not depend on how much of it is right.
fn authorise(request: &Request<Incoming>, key: Option<&str>) -> Result<(), Refusal> {
    let Some(key) = key else { return Ok(()) };
    let given =
        request.headers().get(header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    let differ = given.iter().zip(key.as_bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    if given.len() == key.len() && std::hint::black_box(differ) == 0 {
        return Ok(());
    }
    let words = "the API key is missing or wrong; send it as Authorization: Bearer KEY";
    Err(Refusal::new(StatusCode::UNAUTHORIZED, words))
}

fn words(kind: &'static str, text: String) -> Reply {
    let mut reply = Response::new(Either::Left(Full::from(text)));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

fn document(document: &Value) -> Reply {
    words("application/json", document.to_string())
}

/// The body of a request, which says that it is JSON: a page of another site cannot say so unasked.
async fn body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let kind = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    if !kind.eq_ignore_ascii_case(b"application/json") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Refusal::new(status, "send the header Content-Type: application/json"));
    }
    let read = Limited::new(request.into_body(), BODY_MOST).collect();
    match tokio::time::timeout(BODY_WITHIN, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let words = format!("the body has more than {BODY_MOST} bytes");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, words))
        }
        Ok(Err(error)) => Err(Refusal::bad(format!("the body did not come: {error}"))),
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
    }
}

/// What the grammar of `params`, if there is one, is compiled to for each of `count` texts: aside, as it may take long.
async fn constraints(
    shared: &Shared,
    params: &SamplingParams,
    count: usize,
) -> Result<Vec<Constraint>, Refusal> {
    // More than can wait are refused anyway.
    let asked = params.grammar.clone().filter(|_| count <= shared.common.settings.queue);
    let Some(grammar) = asked else { return Ok(Vec::new()) };
    let grammars = shared.grammars.clone();
    let all = move || (0..count).map(|_| grammars.compile(&grammar)).collect::<Result<_, _>>();
    match tokio::task::spawn_blocking(all).await {
        Ok(made) => made.map_err(|error| refusal(&error)),
        Err(_) => Err(Refusal::failed("compiling the grammar ended early")),
    }
}

async fn complete(
    request: Request<Incoming>,
    shared: &Shared,
    chat: bool,
) -> Result<Reply, Refusal> {
    let settings = &shared.common.settings;
    let body = body(request).await?;
    let Asked { prompts, n, params, echo, nothing, prediction, stream, usage, chat } =
        Asked::read(&body, chat, settings)?;
    let told = params.logprobs.is_some();
    // Those of one prompt by seeds that follow each other.
    let each = |prompt: Prompt| (0..n as u64).map(move |i| (prompt.clone(), i));
    let count = prompts.len() * n;
    let mut constraints = constraints(shared, &params, count).await?.into_iter();
    let (requests, mut choices): (Vec<_>, Vec<_>) = prompts
        .into_iter()
        .flat_map(each)
        .map(|(prompt, i)| {
            let (reply, events) = unbounded_channel();
            let params = SamplingParams { seed: params.seed.wrapping_add(i), ..params.clone() };
            let choice = Choice { events, state: State::Begins, offset: 0 };
            let constraint = constraints.next();
            (Job { prompt, params, constraint, echo, reply }, choice)
        })
        .unzip();
    shared.submit(requests, prediction.as_deref())?;
    let answer = Answer {
        id: format!("{}-{:016x}", if chat { "chatcmpl" } else { "cmpl" }, number()),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        model: settings.model.clone(),
        chat,
    };
    if stream {
        // Not before it is known that there is something to stream.
        let first = choices[0].events.recv().await;
        let first = first.ok_or_else(|| Refusal::failed("the engine has ended"))?;
        if let Event::Refused(refusal) = first {
            return Err(refusal);
        }
        let events = Events {
            answer,
            choices,
            first: Some(first),
            usage,
            total: Usage::default(),
            at: 0,
            ended: false,
        };
        let mut reply = Response::new(Either::Right(events));
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        return Ok(reply);
    }
    let (mut texts, mut total) = (Vec::new(), Usage::default());
    for choice in &mut choices {
        let (mut text, mut entries) = (String::new(), Vec::new());
        let finish = loop {
            match choice.events.recv().await {
                Some(Event::Piece(..)) if nothing => {}
                Some(Event::Piece(piece, entry)) => {
                    text += &piece;
                    entries.extend(entry);
                }
                Some(Event::End { finish, usage, echo }) => {
                    let generated = if nothing { 0 } else { usage.generated };
                    total.add(Usage { generated, ..usage });
                    if let Some(Echo { text: prompt, entries: of_prompt }) = echo {
                        text.insert_str(0, &prompt);
                        entries.splice(0..0, of_prompt);
                    }
                    break finish;
                }
                Some(Event::Refused(refusal)) => return Err(refusal),
                None => return Err(Refusal::failed("the engine has ended")),
            }
        };
        let finish = if nothing { "length" } else { reason(finish) };
        texts.push((text, told.then_some(entries), finish));
    }
    Ok(document(&answer.whole(texts, total)))
}

/// Different for every answer of this process.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    (started as u64) ^ NEXT.fetch_add(1, Ordering::Relaxed).rotate_right(16)
}

/// A choice of a stream.
struct Choice {
    events: UnboundedReceiver<Event>,
    state: State,
    /// Characters of the tokens that were told.
    offset: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A conversation's first event names the role.
    Begins,
    Runs,
    Ended,
}

/// A stream of server-sent events. When the client leaves it is dropped, and the engine finds its requests abandoned.
pub(crate) struct Events {
    answer: Answer,
    choices: Vec<Choice>,
    /// Of the first choice.
    first: Option<Event>,
    usage: bool,
    total: Usage,
    /// Where to look first: choices take turns.
    at: usize,
    ended: bool,
}

impl Events {
    /// The documents that an event of a choice becomes.
    fn take(&mut self, index: usize, event: Event, out: &mut String) {
        let choice = &mut self.choices[index];
        if choice.state == State::Begins {
            choice.state = State::Runs;
            if self.answer.chat {
                push(out, &self.answer.role(index));
            }
        }
        match event {
            // Half a character, or what may be a stop string.
            Event::Piece(text, None) if text.is_empty() => {}
            Event::Piece(text, entry) => {
                let told = (entry.as_ref(), choice.offset);
                choice.offset += entry.as_ref().map_or(0, Entry::chars);
                push(out, &self.answer.piece(index, &text, told, None));
            }
            Event::End { finish, usage, .. } => {
                choice.state = State::Ended;
                self.total.add(usage);
                push(out, &self.answer.piece(index, "", (None, 0), Some(reason(finish))));
            }
            // The status is out already.
            Event::Refused(refusal) => {
                choice.state = State::Ended;
                push(out, &refusal.document());
            }
        }
    }
}

/// Appends an event.
fn push(out: &mut String, document: &Value) {
    out.push_str("data: ");
    out.push_str(&document.to_string());
    out.push_str("\n\n");
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut out = String::new();
        if let Some(first) = self.first.take() {
            self.take(0, first, &mut out);
        }
        let count = self.choices.len();
        for turn in 0..count {
            let index = (self.at + turn) % count;
            while self.choices[index].state != State::Ended {
                match self.choices[index].events.poll_recv(context) {
                    Poll::Ready(Some(event)) => self.take(index, event, &mut out),
                    Poll::Ready(None) => {
                        let refusal = Refusal::failed("the engine has ended");
                        self.take(index, Event::Refused(refusal), &mut out);
                    }
                    Poll::Pending => break,
                }
            }
        }
        self.at = (self.at + 1) % count;
        if self.choices.iter().all(|choice| choice.state == State::Ended) {
            self.ended = true;
            if self.usage {
                let total = self.total;
                push(&mut out, &self.answer.usage(total));
            }
            out.push_str("data: [DONE]\n\n");
        }
        match out.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(Some(Ok(Frame::data(Bytes::from(out))))),
        }
    }
}

/// Futures of one connection stay on the runtime's thread, but its bodies are sent.
const _: () = {
    const fn sent<T: Send>() {}
    sent::<Events>();
};
