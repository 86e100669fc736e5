//! The built program as a user meets it: help, usage errors, error texts, exit codes, pipes.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const COMMANDS: [&str; 9] =
    ["generate", "chat", "serve", "inspect", "convert", "synth", "doctor", "tune", "completions"];

/// The program with nothing in its environment but a home folder of its own.
fn bitnet(args: &[&str]) -> Command {
    program(Path::new(env!("CARGO_BIN_EXE_bitnet")), args)
}

fn program(path: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(args).env_clear().stdin(Stdio::null());
    command.env("HOME", env!("CARGO_TARGET_TMPDIR")).env("HF_HUB_OFFLINE", "1");
    for name in ["PATH", "SystemRoot", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

fn run(args: &[&str]) -> Output {
    bitnet(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A copy of the program where no demo model is near.
fn lonely(folder: &Path) -> PathBuf {
    let copy = folder.join("bitnet");
    std::fs::copy(env!("CARGO_BIN_EXE_bitnet"), &copy).unwrap();
    copy
}

#[test]
fn every_command_has_help() {
    let all = run(&["--help"]);
    assert!(all.status.success());
    for command in COMMANDS {
        assert!(text(&all.stdout).contains(&format!("\n  {command} ")), "{command} is not listed");
        let help = run(&[command, "--help"]);
        assert!(help.status.success());
        assert!(text(&help.stdout).contains(&format!("Usage: bitnet {command}")), "{command}");
        assert!(help.stderr.is_empty());
    }
    assert_eq!(
        text(&run(&["--version"]).stdout),
        concat!("bitnet ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn wrong_usage_ends_with_2_and_names_the_argument() {
    let cases: [(&[&str], &str); 24] = [
        (&[], "Usage"),
        (&["fly"], "fly"),
        (&["generate"], "--prompt"),
        (&["generate", "--prompt", "a", "--prompt-file", "b"], "--prompt-file"),
        (&["generate", "--prompt", "a", "--fast"], "--fast"),
        (&["serve", "--host", "0.0.0.0"], "--api-key"),
        (&["serve", "--api-key", " "], "--api-key"),
        (&["serve", "--profile", "a"], "--profile"),
        (&["serve", "--temperature", "-1"], "temperature"),
        (&["generate", "--prompt", "a", "--device", "gpu"], "auto, cpu, cuda"),
        (&["generate", "--prompt", "a", "--threads", "0"], "--threads"),
        (&["generate", "--prompt", "a", "--kv", "f16"], "bf16"),
        (&["generate", "--prompt", "a", "--pool-cap", "much"], "--pool-cap"),
        (&["generate", "--prompt", "a", "--chat", "--raw"], "--raw"),
        (&["generate", "--prompt", "a", "--system", "b"], "--chat"),
        (&["generate", "--prompt", "a", "--temperature", "-1"], "temperature"),
        (&["generate", "--prompt", "a", "--max-tokens", "0"], "max_tokens"),
        (&["convert", "a"], "<OUT>"),
        (&["synth", "tiny"], "<OUT>"),
        (&["convert", "a", "b"], "--to"),
        (&["completions", "dos"], "bash"),
        (&["tune", "--device", "cpu"], "nothing to tune on the CPU"),
        (&["tune", "--max-rows", "4097"], "--max-rows"),
        (&["generate", "--prompt", "a", "--no-tune", "--tune-file", "b"], "--tune-file"),
    ];
    for (args, named) in cases {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(named), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_setting_out_of_range_is_explained() {
    let output = run(&["generate", "--prompt", "a", "--top-p", "1.5"]);
    assert_eq!(
        text(&output.stderr),
        "error: top_p = 1.5 is out of range; allowed: above 0, up to 1\n\
         try: choose a value inside the range\n"
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_model_that_is_not_there_is_explained() {
    let output = run(&["generate", "--prompt", "a", "--model", "/no/such/model"]);
    assert_eq!(
        text(&output.stderr),
        "error: there is no model at \"/no/such/model\"\n\
         because: nothing exists there, and it is not a hub name\n\
         try: give a folder with config.json and weights, a .gguf file, or ORG/NAME\n"
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_hub_name_is_looked_up_in_the_cache_of_the_environment() {
    let cache = tempfile::tempdir().unwrap();
    let output =
        bitnet(&["inspect", "someone/nothing"]).env("HF_HUB_CACHE", cache.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.starts_with("error: there is no file or folder \"someone/nothing\""), "{said}");
    let place =
        if cfg!(feature = "hub") { "HF_HUB_OFFLINE" } else { cache.path().to_str().unwrap() };
    assert!(said.contains(place), "{said}");
}

#[test]
fn without_a_demo_model_the_places_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let copy = lonely(folder.path());
    let output =
        program(&copy, &["generate", "--prompt", "a"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.starts_with("error: no model was given, and the demo model is not here\n"),
        "{said}"
    );
    assert!(
        said.contains("models/demo") && said.contains("\ntry: bitnet generate --model"),
        "{said}"
    );
}

#[test]
fn errors_are_json_when_json_is_asked_for() {
    let output = run(&["--json", "generate", "--prompt", "a", "--model", "/no/such/model"]);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"], "there is no model at \"/no/such/model\"");
    assert_eq!(error["because"].as_array().unwrap().len(), 1);
    assert!(error["try"].as_str().unwrap().contains("ORG/NAME"));
    assert!(output.stdout.is_empty());
}

#[test]
fn colours_are_off_in_a_pipe_unless_forced() {
    let args = ["generate", "--prompt", "a", "--model", "/no/such/model"];
    let colored = |vars: &[(&str, &str)]| {
        let output = bitnet(&args).envs(vars.iter().copied()).output().unwrap();
        output.stderr.contains(&0x1b)
    };
    assert!(!colored(&[]));
    assert!(colored(&[("CLICOLOR_FORCE", "1")]));
    assert!(!colored(&[("CLICOLOR_FORCE", "0")]));
    assert!(!colored(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}

#[test]
fn options_come_from_the_environment_and_the_command_line_wins() {
    let run = |device: &str, args: &[&str]| {
        bitnet(args).env("BITNET_DEVICE", device).env("BITNET_JSON", "1").output().unwrap()
    };
    let report = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let from_env = report(&run("cpu", &["doctor"]));
    assert_eq!(from_env["would_use"], "the CPU, as asked");
    let from_flag = report(&run("gpu", &["doctor", "--device", "cpu"]));
    assert_eq!(from_flag["would_use"], "the CPU, as asked");
    assert_eq!(run("gpu", &["doctor"]).status.code(), Some(2));
}

/// Found out without a GPU.
#[test]
fn lists_of_devices_that_make_no_sense_are_explained() {
    let cases: [(&str, &[&str], &str); 5] = [
        ("cpu,cuda:0", &["generate", "--prompts", "x"], "a list is of GPUs alone; try: cuda:0,1"),
        ("cuda:1,cuda:1", &["doctor"], "names cuda:1 twice"),
        ("cuda:0,x", &["generate", "-p", "hi"], "allowed: auto, cpu, cuda, cuda:N, cuda:N,M"),
        ("cuda:all", &["tune"], "one device is taken here and cuda:all asks for several"),
        ("cuda:0,1", &["generate", "-p", "hi"], "one device is taken here and cuda:0,1 asks for"),
    ];
    for (device, args, message) in cases {
        let output = bitnet(args).env_remove("BITNET_DEVICE").args(["--device", device]).output();
        let output = output.unwrap();
        let said = text(&output.stderr);
        assert!(said.contains(message), "{device}: {said}");
        assert_eq!(output.status.code(), Some(2), "{device}: {said}");
    }
}

#[test]
fn a_variable_does_not_stand_in_the_way_of_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    std::fs::write(&file, "fn main").unwrap();
    let file = file.to_str().unwrap();
    let spoken =
        ["synth", "tiny", folder.path().join("model").to_str().unwrap()].map(str::to_owned);
    assert!(bitnet(&spoken.each_ref().map(String::as_str)).output().unwrap().status.success());
    let logits = folder.path().join("logits");
    let cases: [(&str, &str, &[&str]); 8] = [
        ("BITNET_SYSTEM", "be brief", &["generate", "-p", "hi"]),
        ("BITNET_PROMPT", "x", &["generate", "--prompt-file", file]),
        ("BITNET_PROMPTS", "nowhere", &["generate", "-p", "hi"]),
        ("BITNET_LOGITS", logits.to_str().unwrap(), &["generate", "--prompts", file]),
        ("BITNET_RAW", "1", &["generate", "--chat", "-p", "hi", "--model", &spoken[2]]),
        ("BITNET_CHAT", "1", &["generate", "--raw", "-p", "hi"]),
        ("BITNET_TUNE_FILE", "nowhere", &["generate", "--no-tune", "-p", "hi"]),
        ("BITNET_KERNEL", "no such kernel", &["doctor", "--no-checks"]),
    ];
    for (name, value, args) in cases {
        let output = bitnet(args).env(name, value).env("BITNET_MAX_TOKENS", "1").output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
    }
    assert!(!logits.exists());
    // What the command line itself says twice is a mistake all the same.
    assert_eq!(run(&["generate", "--chat", "--raw", "-p", "hi"]).status.code(), Some(2));
    assert_eq!(run(&["generate", "--system", "x", "-p", "hi"]).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn doctor_is_content_without_a_driver_and_says_cpu() {
    // No device is visible to it, driver or not.
    let doctor = |args: &[&str]| bitnet(args).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let output = doctor(&["doctor", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("would use the CPU"), "{}", text(&output.stdout));
    let long = text(&output.stdout).lines().find(|line| line.len() > 200);
    assert_eq!(long, None, "a list that nobody reads");
    let output = doctor(&["doctor", "--json", "--no-checks"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["version", "system", "cpu", "would_use", "gpu", "settings", "self_test"] {
        assert!(report.get(key).is_some(), "{key}");
    }
}

#[test]
fn doctor_checks_the_kernels_it_is_asked_for() {
    let doctor = |name: &str| {
        bitnet(&["doctor", "--device", "cpu", "--json", "--kernel", name]).output().unwrap()
    };
    let output = doctor("w2a8_gemm_t8");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["self_test"]["checks"].as_array().unwrap();
    assert!(output.status.success() && !checks.is_empty());
    for check in checks {
        assert!(check["kernel"].as_str().unwrap().contains("w2a8_gemm_t8"), "{check}");
    }
    let output = doctor("no such kernel");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("no kernel here has `no such kernel` in its name"), "{said}");
    assert!(said.contains("lists") && !said.contains("; try:"), "{said}");
}

#[test]
fn doctor_says_where_a_setting_comes_from() {
    let output = bitnet(&["doctor", "--json", "--no-checks"])
        .env("BITNET_TOP_K", "3")
        .env("HF_HOME", "/somewhere")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let settings = report["settings"].as_array().unwrap();
    let find = |name: &str| settings.iter().find(|s| s["name"] == name).cloned();
    let top_k = find("BITNET_TOP_K").unwrap();
    assert_eq!(
        (top_k["value"].as_str(), top_k["source"].as_str()),
        (Some("3"), Some("environment"))
    );
    assert_eq!(find("hub cache").unwrap()["value"], "/somewhere/hub");
    assert_eq!(find("BITNET_TOP_P"), None);
    let source = |command: &mut Command| {
        let output = command.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["settings"][0]["source"].as_str().unwrap().to_owned()
    };
    let args = ["doctor", "--json", "--no-checks"];
    assert_eq!(source(&mut bitnet(&args)), "default");
    assert_eq!(source(bitnet(&args).env("BITNET_DEVICE", "cpu")), "environment");
    let mut flag = bitnet(&[&args[..], &["--device", "cpu"]].concat());
    assert_eq!(source(flag.env("BITNET_DEVICE", "auto")), "flag");
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        for word in ["generate", "max-tokens", "inspect"] {
            assert!(text(&output.stdout).contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let mut command = bitnet(&["completions", "bash"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn prompts_that_cannot_be_read_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    let path = file.to_str().unwrap();
    let said = || text(&run(&["generate", "--prompt-file", path]).stderr).to_owned();
    assert!(said().starts_with(&format!("error: cannot read the prompt file {path}\nbecause: ")));
    std::fs::write(&file, b"ab\xFF").unwrap();
    assert_eq!(
        said(),
        format!(
            "error: the prompt file {path} is not UTF-8\nbecause: byte 2 does not fit\n\
             try: convert the text to UTF-8\n"
        )
    );
    let mut command = bitnet(&["generate", "--prompt", "-"]);
    let output = command.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert!(text(&output.stderr).starts_with("error: the prompt on standard input is not UTF-8\n"));
}

#[test]
fn the_same_seed_writes_the_same_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, seed: &str| {
        let out = folder.path().join(name);
        let output = run(&["--json", "synth", "tiny", out.to_str().unwrap(), "--seed", seed]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (document["config"].as_str(), document["seed"].to_string()),
            (Some("tiny"), seed.into())
        );
        let weights = std::fs::read(out.join("model.safetensors")).unwrap();
        let tokenizer = bitnet_gpu::text::Tokenizer::from_folder(&out).unwrap();
        let ids = tokenizer.encode("synthetic \u{1F980}", true).unwrap();
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "synthetic \u{1F980}");
        weights
    };
    let first = write("a", "7");
    assert!(first == write("b", "7"));
    assert!(first != write("c", "8"));
    // A second time into the same folder: refused, nothing is overwritten.
    let out = folder.path().join("a");
    let output = run(&["synth", "tiny", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: "));
    let output = run(&["synth", "huge", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("2b4t"), "{}", text(&output.stderr));
}

#[test]
fn converting_there_and_back_keeps_every_ternary() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let synth = run(&["synth", "tiny-blocks", &path("source"), "--seed", "3"]);
    assert!(synth.status.success(), "{}", text(&synth.stderr));
    let convert = |from: &str, to: &str, form: &str| {
        let output = run(&["--json", "convert", &path(from), &path(to), "--to", form]);
        assert!(output.status.success(), "{form}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["ternaries"].as_u64().unwrap() > 0);
        report["ternary_sha256"].as_str().unwrap().to_owned()
    };
    let first = convert("source", "i2_s.gguf", "gguf-i2_s");
    assert_eq!(first, convert("i2_s.gguf", "tq1_0.gguf", "gguf-tq1_0"));
    assert_eq!(first, convert("tq1_0.gguf", "tq2_0.gguf", "gguf-tq2_0"));
    assert_eq!(first, convert("tq2_0.gguf", "back", "hf"));
    let again = run(&["convert", &path("source"), &path("back"), "--to", "hf"]);
    assert_eq!(again.status.code(), Some(1), "an existing folder was overwritten");
    let unknown = run(&["convert", &path("source"), &path("x"), "--to", "q4"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("gguf-tq1_0"));
}

#[test]
fn inspect_counts_what_synth_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model");
    let out = out.to_str().unwrap();
    assert!(run(&["synth", "tiny", out, "--seed", "5"]).status.success());
    let output = run(&["--json", "inspect", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts = report["linears"].as_array().unwrap().iter();
    let counted: u64 =
        counts.flat_map(|l| l["counts"].as_array().unwrap()).map(|c| c.as_u64().unwrap()).sum();
    assert_eq!(report["ternaries"].as_u64(), Some(counted));
    assert_eq!(report["tokenizer"]["ids"], report["config"]["vocab_size"]);

    let plain = run(&["inspect", out]);
    assert!(text(&plain.stdout).contains("% zeros"));
    let long = run(&["inspect", out, "--tensors"]);
    for tensor in report["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        assert!(text(&long.stdout).contains(name), "{name}");
    }
    // A file that is cut short is refused, in one error.
    let weights = folder.path().join("model/model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    let cut = run(&["inspect", out]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stderr).starts_with("error: ") && cut.stdout.is_empty());
}
