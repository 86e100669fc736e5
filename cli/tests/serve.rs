//! `bitnet serve` as a user starts and ends it; what goes over the wire is tested where the server is.

#![cfg(all(unix, feature = "server"))]

use serde_json::{Value, json};
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PROMPT: &str = "fn main() {";

fn bitnet(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
    command.args(args).env_clear().current_dir(ROOT).stdin(Stdio::null());
    command.env("BITNET_DEVICE", "cpu").env("BITNET_THREADS", "1").env("HF_HUB_OFFLINE", "1");
    command
}

#[test]
fn it_says_where_it_is_serves_and_ends() {
    let args = ["--json", "serve", "--port", "0", "-n", "8", "--seed", "1", "--batch", "2"];
    let mut server =
        bitnet(&args).env("BITNET_API_KEY", "k").stdout(Stdio::piped()).spawn().unwrap();
    // The document is the first of this stream, which goes on.
    let out = BufReader::new(server.stdout.take().unwrap());
    let said: Value =
        serde_json::Deserializer::from_reader(out).into_iter().next().unwrap().unwrap();
    assert_eq!((&said["model"], &said["max_batch"]), (&json!("demo"), &json!(2)));
    let address = said["address"].as_str().unwrap();

    let mut socket = TcpStream::connect(address).unwrap();
    let body = json!({"model": "demo", "prompt": PROMPT}).to_string();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer k\r\nContent-Type: application/json";
    write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    let body: Value = serde_json::from_str(body).unwrap();
    // The options are what a request gets that says nothing.
    let alone = bitnet(&["--json", "generate", "-n", "8", "--seed", "1", "--prompt", PROMPT])
        .output()
        .unwrap();
    let alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
    assert_eq!(body["choices"][0]["text"], alone["text"]);

    // The port is taken.
    let port = address.rsplit(':').next().unwrap();
    let second = bitnet(&["serve", "--port", port]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8(second.stderr).unwrap().contains("--port 0"));

    assert!(
        Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(server.wait().unwrap().code(), Some(0));
}
