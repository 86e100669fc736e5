//! The server over sockets, with the demo model on the CPU. Clients are written out: what goes over the wire is what is tested.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitnet_gpu::device_choice::BackendChoice;
use bitnet_gpu::session::{Session, SessionBuilder};
use bitnet_gpu::text::{Message, SamplingParams};
use bitnet_server::{Settings, serve};
use serde_json::{Value, json};

mod told;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo")
}

fn builder(model: &Path) -> SessionBuilder {
    Session::builder().model(model).backend(BackendChoice::Cpu).threads(1)
}

/// A server that ends with the test.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(model: &Path, max_batch: usize, settings: Settings) -> Self {
        Self::of(builder(model).max_batch(max_batch), settings)
    }

    fn of(builder: SessionBuilder, settings: Settings) -> Self {
        let engine = builder.build_batch().expect("the demo model");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            serve(engine, listener, settings, move || asked.load(Ordering::Relaxed))
                .expect("served");
        });
        Self { address, stop, thread: Some(thread) }
    }

    fn demo(max_batch: usize) -> Self {
        Self::start(&demo(), max_batch, Settings::new("demo"))
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
        socket
    }

    /// Status and body of one request on a connection of its own.
    fn send(&self, head: &str, body: &str) -> (u16, String) {
        let mut socket = self.connect();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).expect("sent");
        answer(&mut socket)
    }

    fn post(&self, path: &str, document: &Value) -> (u16, String) {
        let body = document.to_string();
        self.raw(path, "Content-Type: application/json\r\n", &body)
    }

    fn raw(&self, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut socket = self.connect();
        let request = post(path, &format!("Connection: close\r\n{headers}"), body);
        // A server may answer before it has read all.
        let _ = socket.write_all(request.as_bytes());
        answer(&mut socket)
    }

    /// Waits until something is so.
    fn until(&self, so: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !so(self) {
            assert!(started.elapsed() < Duration::from_secs(60), "it did not come to that");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.send("GET /metrics", "");
        assert_eq!(status, 200);
        let line = text.lines().find(|line| line.starts_with(&format!("bitnet_{name} ")));
        let value = line.and_then(|line| line.split(' ').nth(1)).expect(name);
        value.parse().expect(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("a thread").join();
        if !std::thread::panicking() {
            ended.expect("the server ended");
        }
    }
}

/// A request as it goes over the wire.
fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
}

/// Reads an answer to its end.
fn answer(socket: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    // A connection that is cut off with something unread gives an error behind the answer.
    let _ = socket.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let status = head[9..12].parse().expect("a status");
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_owned(),
    };
    (status, body)
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a length");
        if length == 0 {
            break;
        }
        text += &rest[..length];
        body = &rest[length + 2..];
    }
    text
}

fn document(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body:?}"))
}

/// The documents of a stream, whose last event says that it is done.
fn events(body: &str) -> Vec<Value> {
    let mut events: Vec<&str> = body.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert_eq!(events.pop(), Some("data: [DONE]"));
    events.into_iter().map(|event| document(event.strip_prefix("data: ").expect("data"))).collect()
}

fn params(seed: u64) -> SamplingParams {
    SamplingParams { seed, max_tokens: 12, temperature: 0.8, ..SamplingParams::default() }
}

/// What the library writes by itself.
fn alone(prompt: &str, params: &SamplingParams) -> String {
    let mut session = builder(&demo()).build().expect("the demo model");
    let ids = session.encode(prompt).expect("ids");
    session.generate(&ids, params, |_| ControlFlow::Continue(())).expect("a text").text
}

fn asked(prompt: &Value, seed: u64) -> Value {
    json!({"model": "demo", "prompt": prompt, "max_tokens": 12, "temperature": 0.8, "seed": seed})
}

const PROMPT: &str = "fn main() {";

#[test]
fn what_was_asked_before_is_not_computed_again() {
    let server = Server::demo(2);
    let ids: Vec<u32> = (0..150).map(|i| 100 + i * i % 89).collect();
    let ask = |ids: &[u32]| {
        let (status, body) = server.post("/v1/completions", &asked(&json!(ids), 1));
        assert_eq!(status, 200, "{body}");
        let answer = document(&body);
        let details = &answer["usage"]["prompt_tokens_details"];
        (answer["choices"][0]["text"].clone(), details["cached_tokens"].clone())
    };
    let (text, cached) = ask(&ids);
    assert_eq!(cached, 0);
    assert_eq!(ask(&ids), (text, json!(128)));
    assert_eq!(ask(&ids[1..]).1, 0, "another beginning");
    assert_eq!(server.metric("prompt_tokens_cached_total"), 128.0);
}

#[test]
fn guesses_are_counted_and_change_no_text() {
    let prompt = "let mut total = 0;\n".repeat(12);
    let ask = |server: &Server| {
        let mut request = asked(&json!(prompt), 1);
        (request["max_tokens"], request["temperature"]) = (json!(60), json!(0));
        request["ignore_eos"] = json!(true);
        let (status, body) = server.post("/v1/completions", &request);
        assert_eq!(status, 200, "{body}");
        let answer = document(&body);
        let details = &answer["usage"]["completion_tokens_details"];
        let counts = ["accepted", "rejected"]
            .map(|which| details[format!("{which}_prediction_tokens")].as_u64().expect("a number"));
        (answer["choices"][0]["text"].clone(), counts)
    };
    let (text, counts) = ask(&Server::demo(2));
    assert_eq!(counts, [0, 0]);
    let server = Server::of(builder(&demo()).max_batch(2).lookup(15), Settings::new("demo"));
    let (found, [accepted, rejected]) = ask(&server);
    assert!(found == text && accepted > 10, "{accepted} {rejected}: {found}");
    assert_eq!(server.metric("accepted_tokens_total"), accepted as f64);
    assert_eq!(server.metric("drafted_tokens_total"), (accepted + rejected) as f64);
}

/// What a client thinks that the answer holds is guessed from, as the prompt is.
#[test]
fn a_prediction_is_guessed_from() {
    let folder = templated();
    let server = Server::of(builder(folder.path()).max_batch(2).lookup(15), Settings::new("demo"));
    let ask = |prediction: Value| {
        let request = json!({
            "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 80, "temperature": 0.7, "seed": 4,
            "ignore_eos": true, "prediction": prediction,
        });
        let (status, body) = server.post("/v1/chat/completions", &request);
        assert_eq!(status, 200, "{body}");
        let answer = document(&body);
        let details = &answer["usage"]["completion_tokens_details"];
        let text = answer["choices"][0]["message"]["content"].clone();
        (text, details["accepted_prediction_tokens"].as_u64().expect("a number"))
    };
    let (text, few) = ask(Value::Null);
    let (found, many) = ask(json!({"type": "content", "content": text}));
    assert_eq!(found, text);
    assert!(many > few + 20, "{few} and {many} guesses were right");
}

#[test]
fn a_completion_is_the_librarys_text_whole_or_streamed() {
    let server = Server::demo(2);
    let wanted = alone(PROMPT, &params(1));
    let (status, body) = server.post("/v1/completions", &asked(&json!(PROMPT), 1));
    let answer = document(&body);
    assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!(wanted)), "{body}");
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    let prompt_tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(answer["usage"]["total_tokens"], prompt_tokens + 12);

    let mut request = asked(&json!(PROMPT), 1);
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let (status, body) = server.post("/v1/completions", &request);
    let mut all = events(&body);
    let usage = all.pop().expect("usage");
    assert_eq!((status, &usage["usage"], &usage["choices"]), (200, &answer["usage"], &json!([])));
    let last = all.last().expect("an end");
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    let text: String =
        all.iter().map(|e| e["choices"][0]["text"].as_str().expect("text")).collect();
    assert_eq!(text, wanted);
    assert!(all.iter().all(|event| event["id"] == all[0]["id"]));

    // By ids, and several at once; more than there are places.
    let session = builder(&demo()).build().expect("the demo model");
    let ids = session.encode(PROMPT).expect("ids");
    let (_, body) = server.post("/v1/completions", &asked(&json!(ids), 1));
    assert_eq!(document(&body)["choices"][0]["text"], json!(wanted));
    let prompts = [PROMPT, "use std::", "impl", PROMPT, "// The"];
    let mut request = asked(&json!(prompts), 3);
    let (_, body) = server.post("/v1/completions", &request);
    let several = document(&body);
    for (i, prompt) in prompts.iter().enumerate() {
        let choice = &several["choices"][i];
        assert_eq!(
            (&choice["index"], &choice["text"]),
            (&json!(i), &json!(alone(prompt, &params(3))))
        );
    }
    assert_eq!(several["usage"]["completion_tokens"], 60);
    request["stream"] = json!(true);
    let (_, body) = server.post("/v1/completions", &request);
    let all = events(&body);
    for i in 0..prompts.len() {
        let of = all.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == i);
        let text: String = of.map(|choice| choice["text"].as_str().expect("text")).collect();
        assert_eq!(json!(text), several["choices"][i]["text"]);
    }
    assert_eq!(server.metric("texts_finished_total"), 13.0);
    assert_eq!(server.metric("generated_tokens_total"), 156.0);
    assert_eq!(server.metric("texts_running") + server.metric("cache_pages_used"), 0.0);
}

#[test]
fn an_answer_is_what_it_has_to_be() {
    let server = Server::demo(2);
    let schema = json!({
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
    for stream in [false, true] {
        let asked = json!({
            "prompt": ["fn main() {", "use std::"], "max_tokens": 60, "temperature": 0, "response_format": format, "stream": stream,
        });
        let (status, body) = server.post("/v1/completions", &asked);
        assert_eq!(status, 200, "{body}");
        for choice in 0..2 {
            let mut text = String::new();
            let mut finish = Value::Null;
            let all = if stream { events(&body) } else { vec![document(&body)] };
            for found in
                all.iter().flat_map(|event| event["choices"].as_array().into_iter().flatten())
            {
                if found["index"] == choice {
                    text += found["text"].as_str().expect("a text");
                    finish = found["finish_reason"].clone();
                }
            }
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert!(value["n"].as_u64().is_some_and(|n| n <= 99), "{text}");
            assert_eq!(finish, "stop");
        }
    }
    let asked = json!({"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}});
    let (_, body) = server.post("/v1/completions", &asked);
    let body = document(&body);
    assert!(
        ["yes", "no"].contains(&body["choices"][0]["text"].as_str().expect("a text")),
        "{body}"
    );
    let asked = json!({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}});
    let (status, body) = server.post("/v1/completions", &asked);
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("the grammar cannot be used"), "{body}");
}

#[test]
fn clients_side_by_side_do_not_change_each_other() {
    let server = Server::demo(3);
    let wanted: Vec<String> = (0..3).map(|seed| alone(PROMPT, &params(seed))).collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..9)
            .map(|i| {
                let server = &server;
                scope.spawn(move || server.post("/v1/completions", &asked(&json!(PROMPT), i % 3)))
            })
            .collect();
        for (i, client) in clients.into_iter().enumerate() {
            let (status, body) = client.join().expect("a client");
            assert_eq!(status, 200, "{body}");
            assert_eq!(document(&body)["choices"][0]["text"], json!(wanted[i % 3]));
        }
    });
}

/// The demo model with a template for conversations.
fn templated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(demo()).expect("the demo model") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
    }
    let file = folder.path().join("tokenizer_config.json");
    let mut config = document(&std::fs::read_to_string(&file).expect("a file"));
    config["chat_template"] = json!(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}<a>"
    );
    std::fs::write(&file, config.to_string()).expect("written");
    folder
}

#[test]
fn conversations_go_by_the_models_template() {
    let folder = templated();
    let mut session = builder(folder.path()).build().expect("a model");
    let messages = [Message::new("system", "be brief"), Message::new("user", "hello")];
    let ids = session.encode_chat(&messages).expect("ids");
    let wanted =
        session.generate(&ids, &params(1), |_| ControlFlow::Continue(())).expect("a text").text;

    let server = Server::start(folder.path(), 2, Settings::new("demo"));
    let parts = json!([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]);
    let said =
        json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]);
    let mut request =
        json!({"messages": said, "max_completion_tokens": 12, "temperature": 0.8, "seed": 1});
    let (status, body) = server.post("/v1/chat/completions", &request);
    let answer = document(&body);
    assert_eq!(status, 200, "{body}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"], json!({"role": "assistant", "content": wanted}));
    request["stream"] = json!(true);
    let (_, body) = server.post("/v1/chat/completions", &request);
    let all = events(&body);
    assert_eq!(all[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(all[0]["object"], "chat.completion.chunk");
    let text: String =
        all.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, wanted);
    assert_eq!(all.last().expect("an end")["choices"][0]["finish_reason"], "length");
    // What the template refuses is the client's.
    let (status, body) = server
        .post("/v1/chat/completions", &json!({"messages": [{"role": "tool", "content": "x"}]}));
    assert!(status == 400 && body.contains("no tools"), "{status}: {body}");
    // The demo model itself has none.
    let plain = Server::demo(1);
    let (status, body) = plain.post("/v1/chat/completions", &json!({"messages": said}));
    assert!(status == 400 && body.contains("template"), "{status}: {body}");
}

#[test]
fn what_cannot_be_served_is_said() {
    let server = Server::demo(1);
    assert_eq!(server.send("GET /health", ""), (200, "ok\n".to_owned()));
    let (status, body) = server.send("GET /v1/models", "");
    assert_eq!((status, &document(&body)["data"][0]["id"]), (200, &json!("demo")));
    let long = "7 ".repeat(5000);
    let huge = format!("{{\"prompt\": \"{}\"}}", "a".repeat(1 << 20));
    let json = "Content-Type: application/json\r\n";
    for (sent, status, word) in [
        (server.send("GET /", ""), 404, "/v1/completions"),
        (server.send("GET /v1/completions", ""), 405, "POST"),
        (server.send("DELETE /v1/models", ""), 405, "GET"),
        (server.raw("/v1/completions", "", "{}"), 415, "application/json"),
        (
            server.raw("/v1/completions", "Content-Type: text/plain\r\n", "{}"),
            415,
            "application/json",
        ),
        (server.raw("/v1/completions", json, "{"), 400, "JSON"),
        (server.raw("/v1/completions", json, &huge), 413, "1048576"),
        (server.post("/v1/completions", &json!({"prompt": "a", "best_of": 3})), 400, "best_of = 3"),
        (server.post("/v1/completions", &json!({"prompt": "a", "model": "gpt"})), 404, "demo"),
        (server.post("/v1/completions", &json!({"prompt": long})), 400, "context"),
        (server.post("/v1/completions", &json!({"prompt": [1_000_000]})), 400, "1000000"),
        (server.post("/v1/completions", &json!({"prompt": long, "stream": true})), 400, "context"),
        (server.post("/v1/completions", &json!({"prompt": ["a", long]})), 400, "context"),
        (
            server.post("/v1/completions", &json!({"prompt": "a", "temperature": -1})),
            400,
            "temperature",
        ),
    ] {
        let (found, body) = sent;
        assert_eq!(found, status, "{body}");
        assert!(
            document(&body)["error"]["message"].as_str().expect("words").contains(word),
            "{body}"
        );
    }
    // And it still works, over one connection.
    let mut socket = server.connect();
    let body = asked(&json!(PROMPT), 1).to_string();
    for close in ["keep-alive", "close"] {
        let request = post("/v1/completions", &format!("Connection: {close}\r\n{json}"), &body);
        socket.write_all(request.as_bytes()).expect("sent");
    }
    let (status, rest) = answer(&mut socket);
    assert_eq!((status, rest.matches("\"text_completion\"").count()), (200, 2), "{rest}");
}

#[test]
fn a_key_is_asked_for() {
    let settings = Settings { key: Some("secret".to_owned()), ..Settings::new("demo") };
    let server = Server::start(&demo(), 1, settings);
    let json = "Content-Type: application/json\r\n";
    let body = asked(&json!(PROMPT), 1).to_string();
    for wrong in [
        "",
        "Authorization: Bearer secreT\r\n",
        "Authorization: Bearer secret1\r\n",
        "Authorization: secret\r\n",
    ] {
        let (status, body) = server.raw("/v1/completions", &format!("{json}{wrong}"), &body);
        assert_eq!(status, 401, "{body}");
    }
    assert_eq!(server.send("GET /metrics", "").0, 401);
    assert_eq!(server.send("GET /nothing", "").0, 401);
    assert_eq!(server.send("GET /health", "").0, 200);
    let right = format!("{json}Authorization: Bearer secret\r\n");
    assert_eq!(server.raw("/v1/completions", &right, &body).0, 200);
}

#[test]
fn who_leaves_makes_room_and_who_waits_too_long_is_told() {
    let settings =
        Settings { queue: 2, patience: Duration::from_millis(50), ..Settings::new("demo") };
    let server = Server::start(&demo(), 1, settings);
    let endless = json!({"prompt": PROMPT, "max_tokens": 900, "ignore_eos": true, "stream": true});
    let mut first = server.connect();
    let request =
        post("/v1/completions", "Content-Type: application/json\r\n", &endless.to_string());
    first.write_all(request.as_bytes()).expect("sent");
    let mut start = [0; 12];
    first.read_exact(&mut start).expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200");
    // More than may wait, at once; then one that waits too long.
    let (status, body) = server.post("/v1/completions", &json!({"prompt": ["a", "b", "c"]}));
    assert!(status == 503 && body.contains("waiting"), "{status}: {body}");
    let (status, body) = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert!(status == 503 && body.contains("no place"), "{status}: {body}");
    drop(first);
    let (status, body) = server.post("/v1/completions", &asked(&json!(PROMPT), 1));
    assert_eq!(status, 200, "{body}");
    assert_eq!(document(&body)["choices"][0]["text"], json!(alone(PROMPT, &params(1))));
    assert_eq!(server.metric("texts_abandoned_total"), 1.0);
    assert_eq!(server.metric("requests_refused_total"), 2.0);
    // One that is not streamed is found to be gone too.
    let (mut second, mut whole) = (server.connect(), endless);
    whole["stream"] = json!(false);
    let request = post("/v1/completions", "Content-Type: application/json\r\n", &whole.to_string());
    second.write_all(request.as_bytes()).expect("sent");
    server.until(|server| server.metric("texts_running") == 1.0);
    drop(second);
    server.until(|server| server.metric("texts_abandoned_total") == 2.0);
}
