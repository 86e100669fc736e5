//! Whole runs of the program on the CPU, with the demo model of this repository.

use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PROMPT: &str = "fn main() {";

/// The program with nothing in its environment that could change a run.
fn bitnet(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bitnet"));
    command.args(args).env_clear().stdin(Stdio::null()).current_dir(ROOT);
    // One thread each: tests run side by side, and waiting threads spin.
    command.env("BITNET_DEVICE", "cpu").env("BITNET_THREADS", "1").env("HF_HUB_OFFLINE", "1");
    for name in ["PATH", "SystemRoot", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn finished(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

/// Eight tokens after [`PROMPT`], as the text on standard output.
fn eight(more: &[&str]) -> String {
    let args = [&["generate", "--quiet", "-n", "8", "--prompt", PROMPT], more].concat();
    let output = finished(bitnet(&args));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).to_owned()
}

fn document(more: &[&str]) -> Value {
    let args = [&["--json", "generate", "-n", "8", "--prompt", PROMPT], more].concat();
    serde_json::from_slice(&finished(bitnet(&args)).stdout).unwrap()
}

#[test]
fn the_demo_model_is_found_and_writes_something() {
    let said = eight(&["--temperature", "0"]);
    assert!(said.trim().len() > 8 && said.ends_with('\n'), "{said:?}");
    let by_path = eight(&["--temperature", "0", "--model", "models/demo"]);
    assert_eq!(said, by_path);
}

#[test]
fn a_seed_gives_one_text_whatever_the_threads_and_the_way_of_reading() {
    let said = eight(&["--seed", "1"]);
    assert_eq!(said, eight(&["--seed", "1", "--threads", "2"]));
    assert_eq!(said, eight(&["--seed", "1", "--threads", "3", "--no-mmap"]));
    let others: Vec<String> = (2..5).map(|s| eight(&["--seed", &s.to_string()])).collect();
    assert!(others.iter().any(|other| *other != said), "every seed gave one text: {said:?}");
}

#[test]
fn either_head_gives_the_same_text() {
    for how in [&["--temperature", "0"][..], &["--seed", "3"], &["--seed", "3", "--top-k", "0"]] {
        let int8 = [how, &["--head", "int8"]].concat();
        assert_eq!(eight(how), eight(&int8));
    }
    let more = |head| {
        let document = document(&["--temperature", "0", "--head", head]);
        document["stats"]["memory_bytes"].as_u64().unwrap()
    };
    assert!(more("int8") > more("stored"), "the copy takes memory");
}

#[test]
fn guesses_do_not_change_the_text() {
    let prompt = "let mut total = 0;\n".repeat(12);
    let made = |more: &[&str]| -> Value {
        let how = ["--json", "generate", "-n", "60", "--temperature", "0", "--ignore-eos", "-p"];
        let args = [&how[..], &[&prompt], more].concat();
        serde_json::from_slice(&finished(bitnet(&args)).stdout).unwrap()
    };
    let (plain, guessed) = (made(&[]), made(&["--lookup", "15"]));
    assert_eq!((&plain["text"], &plain["tokens"]), (&guessed["text"], &guessed["tokens"]));
    let right = |made: &Value| made["stats"]["generate"]["accepted_tokens"].as_u64().unwrap();
    assert!(right(&plain) == 0 && right(&guessed) > 10, "{}", guessed["stats"]);
    let both = ["generate", "-p", PROMPT, "--lookup", "3", "--logits", "a file"];
    let output = bitnet(&both).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn a_text_is_what_it_has_to_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let (schema, grammar) = (folder.path().join("schema.json"), folder.path().join("grammar.lark"));
    std::fs::write(&schema, r#"{"enum": [[true], [true, 7]]}"#).unwrap();
    std::fs::write(&grammar, "start: \"let\" /[a-z]/\n").unwrap();
    let [schema, grammar] = [&schema, &grammar].map(|path| path.to_str().expect("UTF-8"));
    let made = document(&["--json-schema", schema, "--temperature", "0"]);
    let text = made["text"].as_str().expect("a text");
    assert!(
        ["[true]", "[true,7]"].contains(&&*text.split_whitespace().collect::<String>()),
        "{text}"
    );
    let made = document(&["--grammar", grammar]);
    assert_eq!(made["finish"], "grammar");
    let text = made["text"].as_str().expect("a text");
    assert!(text.len() == 4 && text.starts_with("let"), "{text}");
    assert!(["ab", "ba"].contains(&document(&["--regex", "ab|ba"])["text"].as_str().expect("one")));
    for wrong in [
        &["--regex", "("][..],
        &["--json-schema", grammar],
        &["--grammar", "no such file"],
        &["--regex", "a", "--json-schema", schema],
    ] {
        let output = bitnet(&[&["generate", "--prompt", PROMPT], wrong].concat()).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{wrong:?}");
    }
}

/// The library's numbers, and penalties and biases that count.
#[test]
fn log_probabilities_penalties_and_biases() {
    let made = document(&["--logprobs", "2", "--temperature", "0"]);
    let (tokens, told) = (made["tokens"].as_array().unwrap(), made["logprobs"].as_array().unwrap());
    assert_eq!(tokens.len(), told.len());
    for (token, told) in tokens.iter().zip(told) {
        assert_eq!((&told["rank"], &told["top"][0][0]), (&serde_json::json!(1), token));
        assert_eq!(told["top"][0][1], told["logprob"]);
        assert_eq!(told["top"].as_array().unwrap().len(), 2);
    }
    assert!(document(&["--temperature", "0"])["logprobs"].is_null());
    let bias = format!("{}=-100", tokens[0]);
    let other =
        document(&["--temperature", "0", "--logit-bias", &bias, "--frequency-penalty", "2"]);
    let other = other["tokens"].as_array().unwrap();
    assert!(!other.contains(&tokens[0]) && !other.is_empty(), "{other:?}");
    for wrong in [
        &["--logit-bias", "7"][..],
        &["--logit-bias", "x=1"],
        &["--logit-bias", "7=101"],
        &["--logit-bias", "99999999=1"],
        &["--presence-penalty", "2.5"],
        &["--logprobs", "21"],
    ] {
        let output = bitnet(&[&["generate", "--prompt", PROMPT], wrong].concat()).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{wrong:?}");
    }
}

/// By the log probabilities of `generate`'s library, window by window.
#[test]
fn perplexity_is_that_of_the_log_probabilities() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("text");
    let words_of = "pub fn new(x: u32) -> Self {\n    Self { x }\n}\n".repeat(20);
    std::fs::write(&file, &words_of).unwrap();
    let file = file.to_str().expect("UTF-8");
    let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    let mut engine = bitnet_gpu::session::Session::builder()
        .model(&demo)
        .backend(bitnet_gpu::device_choice::BackendChoice::Cpu)
        .max_batch(2)
        .build_batch()
        .expect("the demo model");
    let ids = engine.encode(&words_of).expect("ids");
    let begin = engine.tokenizer().filter(|t| t.adds_bos()).and_then(|t| t.bos());
    for (window, skip) in [(40, None), (64, Some(0)), (33, Some(31))] {
        let windows: Vec<Vec<u32>> = ids.chunks_exact(window).map(<[u32]>::to_vec).collect();
        let windows: Vec<Vec<u32>> = windows
            .into_iter()
            .map(|mut ids| {
                ids[0] = begin.unwrap_or(ids[0]);
                ids
            })
            .collect();
        let told =
            engine.score(&windows, 0, |_| std::ops::ControlFlow::Continue(())).expect("told");
        let from = skip.unwrap_or(window / 2);
        let counted: Vec<f64> = told
            .iter()
            .flat_map(|told| &told[from..])
            .map(|told| f64::from(told.logprob))
            .collect();
        let wanted = (-counted.iter().sum::<f64>() / counted.len() as f64).exp();
        let (window_text, skip_text) = (window.to_string(), from.to_string());
        let mut words = vec!["perplexity", "--json", "--file", file, "--window", &window_text];
        if skip.is_some() {
            words.extend(["--skip", &skip_text]);
        }
        let output = bitnet(&words).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["tokens"], counted.len());
        let perplexity = found["perplexity"].as_f64().unwrap();
        assert!((perplexity / wanted - 1.0).abs() < 1e-9, "{perplexity} {wanted}");
        assert!(found["bits_per_byte"].as_f64().is_some_and(|bits| bits > 0.0 && bits < 20.0));
    }
    for wrong in
        [&["--window", "40", "--skip", "39"][..], &["--window", "100000"], &["--window", "1"]]
    {
        let output = bitnet(&[&["perplexity", "--file", file], wrong].concat()).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{wrong:?}");
    }
    let output = bitnet(&["perplexity", "--file", "no such file"]).output().unwrap();
    assert!(text(&output.stderr).contains("no such file"));
}

#[test]
fn the_document_holds_what_was_streamed() {
    let said = eight(&["--seed", "4"]);
    let document = document(&["--seed", "4"]);
    assert_eq!(format!("{}\n", document["text"].as_str().unwrap()), said);
    assert_eq!(document["params"]["seed"], 4);
    let tokens = document["tokens"].as_array().unwrap().len();
    assert_eq!(document["stats"]["generate"]["generated_tokens"], tokens);
    assert!(document["stats"]["memory_bytes"].as_u64().unwrap() > 1 << 20);
    let finish = document["finish"].as_str().unwrap();
    assert_eq!(finish, if tokens == 8 { "max_tokens" } else { "stop_token" });
}

#[test]
fn statistics_go_to_standard_error() {
    let args = ["generate", "-n", "4", "--prompt", PROMPT];
    let output = finished(bitnet(&args));
    for line in ["load ", "prefill ", "decode ", "memory ", "seed "] {
        let found = text(&output.stderr).lines().any(|l| l.starts_with(line));
        assert!(found, "{line}: {}", text(&output.stderr));
    }
    assert!(!text(&output.stdout).contains("tok/s"));
}

#[test]
fn a_stop_string_cuts_the_text_where_it_starts() {
    let whole = document(&["--temperature", "0"]);
    let whole = whole["text"].as_str().unwrap();
    let middle: Vec<char> = whole.chars().skip(6).take(3).collect();
    let stop: String = middle.into_iter().collect();
    let cut = document(&["--temperature", "0", "--stop", &stop]);
    assert_eq!(cut["finish"], "stop_string");
    assert_eq!(cut["text"].as_str().unwrap(), &whole[..whole.find(&stop).unwrap()]);
}

#[test]
fn a_prompt_may_come_from_a_file_or_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    std::fs::write(&file, PROMPT).unwrap();
    let expected = eight(&["--temperature", "0"]);
    let args = ["generate", "--quiet", "-n", "8", "--temperature", "0"];
    let from_file = bitnet(&[&args[..], &["-f", file.to_str().unwrap()]].concat());
    assert_eq!(text(&finished(from_file).stdout), expected);
    let mut from_pipe = bitnet(&[&args[..], &["-p", "-"]].concat());
    from_pipe.stdin(std::fs::File::open(&file).unwrap());
    assert_eq!(text(&finished(from_pipe).stdout), expected);
}

#[test]
fn a_reader_that_leaves_is_not_a_failure() {
    let args = ["generate", "--quiet", "-n", "64", "--ignore-eos", "--prompt", PROMPT];
    let mut child = bitnet(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn contexts_that_do_not_fit_are_refused() {
    let run = |ctx: &str| {
        let args = ["generate", "--prompt", PROMPT, "--ctx", ctx];
        bitnet(&args).output().unwrap()
    };
    let too_long = run("1025");
    assert_eq!(too_long.status.code(), Some(2));
    assert!(text(&too_long.stderr).contains("1024"), "{}", text(&too_long.stderr));
    let too_short = run("2");
    assert_eq!(too_short.status.code(), Some(1));
    assert!(text(&too_short.stderr).starts_with("error: "), "{}", text(&too_short.stderr));
}

#[test]
fn a_profile_of_the_cpu_is_refused_and_not_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let args = ["generate", "-n", "2", "-p", PROMPT, "--profile", trace.to_str().unwrap()];
    let output = bitnet(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("on a GPU only"), "{}", text(&output.stderr));
    assert!(!trace.exists());
    assert!(output.stdout.is_empty(), "it was generated first: {}", text(&output.stdout));
}

/// It would be replaced by a file, and waited for before.
#[cfg(unix)]
#[test]
fn logits_do_not_take_the_place_of_a_pipe() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = bitnet(&["generate", "-n", "1", "-p", PROMPT, "--logits"]);
    let output = command.arg(&pipe).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("this is not a regular file"));
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
}

#[test]
fn logits_are_refused_before_the_text_or_kept_for_everyone() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("no folder").join("logits");
    let args = |file: &Path| {
        let mut command = bitnet(&["generate", "-n", "2", "-p", PROMPT, "--logits"]);
        command.arg(file).output().unwrap()
    };
    let output = args(&nowhere);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write the logits"), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty(), "it was generated first: {}", text(&output.stdout));
    let (there, other) = (folder.path().join("logits"), folder.path().join("other"));
    assert!(args(&there).status.success());
    std::fs::write(&other, "").unwrap();
    let permissions = |file: &Path| std::fs::metadata(file).unwrap().permissions();
    assert_eq!(permissions(&there), permissions(&other));
}

#[test]
fn the_demo_model_has_no_chat_and_says_so() {
    for args in [&["chat"][..], &["generate", "--chat", "--prompt", "hi"]] {
        let output = bitnet(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = text(&output.stderr);
        assert!(said.contains("no chat template"), "{said}");
        // Each is told of what it has.
        assert_eq!(said.contains("--raw"), args[0] == "generate", "{said}");
    }
}

/// Lines of a conversation with a synthetic model that has a template.
fn talk(folder: &Path, lines: &str) -> Vec<Value> {
    let model = folder.join("model");
    let model = model.to_str().unwrap();
    if !Path::new(model).exists() {
        finished(bitnet(&["synth", "tiny", model, "--seed", "1"]));
    }
    let args = ["--json", "chat", "--model", model, "-n", "8", "--seed", "2"];
    let mut command = bitnet(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_conversation_reuses_its_history_until_it_is_reset() {
    let folder = tempfile::tempdir().unwrap();
    let turns =
        talk(folder.path(), "hello there\n\nand again\n/reset\nhello there\n/quit\nunheard\n");
    assert_eq!(turns.len(), 3);
    let cached = |turn: &Value| turn["stats"]["generate"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached(&turns[0]), 0);
    assert!(cached(&turns[1]) > 0, "{}", turns[1]);
    assert_eq!(turns[0]["text"], turns[2]["text"]);
}

#[test]
#[cfg(unix)]
fn ctrl_c_stops_between_two_tokens() {
    let args = ["generate", "-n", "1000", "--ignore-eos", "--prompt", PROMPT];
    let mut child = bitnet(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut first = [0];
    out.read_exact(&mut first).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(rest.ends_with('\n'));
    assert!(text(&output.stderr).contains("decode "), "the statistics are still printed");
}

/// Prompts of a file, side by side: each text is that of its prompt alone.
#[test]
fn prompts_of_a_file_give_the_texts_that_they_give_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    std::fs::write(&file, "fn main() {\n\nuse std::\nstruct Point\n").unwrap();
    let file = file.display().to_string();
    let args = ["--json", "generate", "-n", "8", "--seed", "3", "--batch", "2", "--prompts", &file];
    let found: Value = serde_json::from_slice(&finished(bitnet(&args)).stdout).unwrap();
    assert_eq!(found["generated_tokens"], 24);
    assert_eq!(found["devices"].as_array().unwrap().len(), 1);
    assert_eq!(found["devices"][0], found["device"]);
    let texts = found["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 3);
    for (text, prompt) in texts.iter().zip(["fn main() {", "use std::", "struct Point"]) {
        let args = ["--json", "generate", "-n", "8", "--seed", "3", "--prompt", prompt];
        let alone: Value = serde_json::from_slice(&finished(bitnet(&args)).stdout).unwrap();
        for part in ["prompt", "text", "tokens", "finish"] {
            assert_eq!(text[part], alone[part], "{part} of {prompt}");
        }
    }
    let plain = ["generate", "-q", "-n", "8", "--seed", "3", "--prompts", &file];
    let said = text(&finished(bitnet(&plain)).stdout).to_owned();
    assert!(
        said.starts_with("[1] fn main() {\n") && said.contains("\n[3] struct Point\n"),
        "{said}"
    );
}
