//! Downloads, from a hub of this test's own on the loopback address: the demo model arrives whole,
//! once, with the token; what the hub refuses or cuts short is an error and leaves no model behind.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bitnet_gpu::checkpoint::{Checkpoint, OpenOptions};
use bitnet_gpu::hub::{DownloadEvent, HubError, HubName, HubSettings, download, find_cached};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Files of the demo model, as a hub lists them, and one that is not fetched.
const FILES: [&str; 4] = ["config.json", "model.safetensors", "tokenizer.json", "README.md"];

/// What the hub does to the weights.
#[derive(Clone, Copy, PartialEq)]
enum Weights {
    Whole,
    CutShort,
    Gated,
}

struct Hub {
    endpoint: String,
    /// Request line and `Authorization` of every request.
    requests: Arc<Mutex<Vec<(String, String)>>>,
}

impl Hub {
    fn start(weights: Weights) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let log = log.clone();
                // A client may keep one connection open beside another.
                std::thread::spawn(move || while serve(&stream, weights, &log).is_some() {});
            }
        });
        Self { endpoint, requests }
    }

    fn settings(&self, cache: &Path, token: Option<&str>) -> HubSettings {
        HubSettings {
            cache: cache.to_owned(),
            token: token.map(str::to_owned),
            endpoint: self.endpoint.clone(),
            offline: false,
        }
    }

    fn requests(&self) -> Vec<(String, String)> {
        self.requests.lock().expect("the log").clone()
    }
}

/// Answers one request; `None` when the connection is at its end.
fn serve(stream: &TcpStream, weights: Weights, log: &Mutex<Vec<(String, String)>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let authorization = headers.get("authorization").cloned().unwrap_or_default();
    log.lock().expect("the log").push((path.clone(), authorization));

    let answer = |status: &str, extra: &str, body: &[u8], announced: usize| {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {announced}\r\nx-repo-commit: {COMMIT}\r\n{extra}\r\n"
        );
        let mut out = stream;
        out.write_all(head.as_bytes()).ok()?;
        out.write_all(body).ok()?;
        out.flush().ok()
    };
    if path.starts_with("/api/models/org/demo/revision/main") {
        let siblings = FILES.map(|f| format!("{{\"rfilename\":\"{f}\"}}")).join(",");
        let body = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{siblings}]}}");
        return answer("200 OK", "Content-Type: application/json\r\n", body.as_bytes(), body.len());
    }
    let name = path.strip_prefix("/org/demo/resolve/main/").filter(|name| FILES.contains(name));
    let Some(name) = name else { return answer("404 Not Found", "", b"", 0) };
    let is_weights = name == "model.safetensors";
    if is_weights && weights == Weights::Gated {
        return answer("403 Forbidden", "", b"", 0);
    }
    let mut file = std::fs::File::open(Path::new("../models/demo").join(name)).ok()?;
    let mut body = Vec::new();
    file.read_to_end(&mut body).ok()?;
    let size = body.len();
    let range = headers.get("range")?.strip_prefix("bytes=")?.to_owned();
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse().unwrap_or(size - 1));
    let part = body.get(first..=last)?;
    let extra = format!("Content-Range: bytes {first}-{last}/{size}\r\nETag: \"{name}-1\"\r\n");
    if is_weights && weights == Weights::CutShort && part.len() > 1 {
        answer("206 Partial Content", &extra, &part[..part.len() / 2], part.len());
        stream.shutdown(std::net::Shutdown::Both).ok();
        return None;
    }
    answer("206 Partial Content", &extra, part, part.len())
}

fn name() -> HubName {
    HubName::parse("org/demo").expect("a good name")
}

#[test]
fn a_model_arrives_whole_and_once() {
    let hub = Hub::start(Weights::Whole);
    let cache = tempfile::tempdir().expect("a folder");
    let settings = hub.settings(cache.path(), Some("hf_secret"));
    assert!(matches!(find_cached(&name(), &settings), Err(HubError::NotCached { .. })));

    let (mut files, mut bytes) = (Vec::new(), 0);
    let folder = download(&name(), &settings, &mut |event| match event {
        DownloadEvent::File { name, bytes } => files.push((name.to_owned(), bytes)),
        DownloadEvent::Bytes(more) => bytes += more,
        _ => {}
    })
    .expect("a download");
    assert_eq!(files.len(), 3, "{files:?}: the README is not fetched");
    assert_eq!(bytes, files.iter().map(|file| file.1).sum::<u64>());
    for name in &FILES[..3] {
        let ours = std::fs::read(folder.join(name)).expect("a file");
        assert!(ours == std::fs::read(Path::new("../models/demo").join(name)).unwrap(), "{name}");
    }
    Checkpoint::open(&folder, &OpenOptions::default()).expect("the model opens");

    let before = hub.requests();
    assert!(before.iter().all(|(_, token)| token == "Bearer hf_secret"), "{before:?}");
    assert_eq!(download(&name(), &settings, &mut |_| {}).expect("from the cache"), folder);
    assert_eq!(hub.requests().len(), before.len(), "a cached model makes no request");
}

#[test]
fn what_the_hub_refuses_is_an_error_that_names_the_file() {
    let hub = Hub::start(Weights::Gated);
    let cache = tempfile::tempdir().expect("a folder");
    let settings = hub.settings(cache.path(), None);
    let refused = download(&name(), &settings, &mut |_| {});
    let named =
        matches!(&refused, Err(HubError::Transfer { what, .. }) if what == "model.safetensors");
    assert!(named, "{refused:?}");
    assert!(hub.requests().iter().all(|(_, token)| token.is_empty()), "no token was given");
    assert!(find_cached(&name(), &settings).is_err(), "half a model is no model");
    let unknown = HubName::parse("org/other").expect("a good name");
    let missing = download(&unknown, &settings, &mut |_| {});
    assert!(matches!(missing, Err(HubError::Transfer { .. })), "{missing:?}");
}

#[test]
fn weights_that_are_cut_short_are_no_model() {
    let hub = Hub::start(Weights::CutShort);
    let cache = tempfile::tempdir().expect("a folder");
    let settings = hub.settings(cache.path(), None);
    let cut = download(&name(), &settings, &mut |_| {});
    assert!(matches!(cut, Err(HubError::Transfer { .. })), "{cut:?}");
    assert!(find_cached(&name(), &settings).is_err(), "half a model is no model");
}
