//! `cargo xtask test`: everything this machine can test, in lanes.
//!
//! A lane passes, fails, or did not run and says why; the last never looks like the first. The CPU
//! lane is tested in release mode, so that its dependencies are those of `cargo run --release`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::ptx::build::{self, Rebuild};
use crate::ptx::levels::{self, LEVELS};
use crate::ptx::{audit, manifest, ptxas::Ptxas, text::Module};
use crate::{emulator, gpu, process};

/// `cargo xtask test`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run these lanes only
    #[arg(long, value_enum, value_name = "LANE")]
    lane: Vec<Lane>,
    /// Passed to the test programs: names to run, --nocapture, ...
    #[arg(last = true)]
    args: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Lane {
    /// Every test that needs no GPU
    Cpu,
    /// The committed PTX: fresh, as the contract says, each text assembled
    Ptx,
    /// The kernels of every level on an emulated GPU against the reference
    Emulated,
    /// The kernels on the GPU against the reference
    Gpu,
}

/// The same in every lane: the library is built once. Downloads are tested too, from a hub on the loopback address.
pub(crate) const FEATURES: &str = "bitnet-gpu/cuda,bitnet-gpu/hub";

/// Generated cases of each generator.
const CASES: &str = "BITNET_TEST_CASES";

/// How a lane ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Ran; the counts say how it went.
    Ran(Counts),
    /// Could not run on this machine.
    NotRun(String),
}

/// Sums of `test result:` lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs the lanes and says how each ended.
pub(crate) fn run(options: &Options) -> Result<()> {
    let all = [Lane::Cpu, Lane::Ptx, Lane::Emulated, Lane::Gpu];
    let asked = all.iter().filter(|lane| options.lane.is_empty() || options.lane.contains(lane));
    let asked: Vec<_> = asked.copied().collect();
    let mut ended = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        // Beside the first lane: there a core often waits for the other one, at the end of a build or of a test program.
        let audit = asked.contains(&Lane::Ptx).then(|| scope.spawn(ptx));
        let mut audit = audit.into_iter();
        for lane in asked {
            println!("== {}", title(lane));
            let start = Instant::now();
            let outcome = match lane {
                Lane::Cpu => cpu(&options.args)?,
                Lane::Ptx => {
                    let Some(Ok((said, outcome))) = audit.next().map(|thread| thread.join()) else {
                        bail!("the audit ended early")
                    };
                    println!("{said}");
                    outcome
                }
                Lane::Emulated => emulated(&options.args, options.lane.contains(&Lane::Emulated))?,
                Lane::Gpu => gpu(&options.args, options.lane.contains(&Lane::Gpu))?,
            };
            ended.push((lane, outcome, start.elapsed()));
        }
        Ok(())
    })?;
    println!("\n== lanes");
    let mut total = Counts::default();
    for (lane, outcome, took) in &ended {
        println!("{:10} {} ({:.0} s)", title(*lane), describe(outcome), took.as_secs_f64());
        if let Outcome::Ran(counts) = outcome {
            total.add(*counts);
        }
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 || total.passed == 0 {
        bail!("tests failed");
    }
    Ok(())
}

fn title(lane: Lane) -> &'static str {
    match lane {
        Lane::Cpu => "CPU",
        Lane::Ptx => "PTX audit",
        Lane::Emulated => "emulated",
        Lane::Gpu => "GPU",
    }
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::NotRun(why) => format!("did not run: {why}"),
        Outcome::Ran(counts) => {
            let word = if counts.failed == 0 { "passed" } else { "FAILED" };
            let Counts { passed, failed, ignored } = counts;
            format!("{word}: {passed} passed, {failed} failed, {ignored} ignored")
        }
    }
}

fn cpu(args: &[String]) -> Result<Outcome> {
    let mut cargo = process::cargo();
    cargo.args("test --release --workspace --no-fail-fast".split(' '));
    cargo.args(["--features", FEATURES, "--"]).args(args);
    // The same generators run on a GPU, all cases.
    if std::env::var_os(CASES).is_none() {
        cargo.env(CASES, "64");
    }
    counted(&mut cargo, std::io::stdout()).map(Outcome::Ran)
}

fn gpu(args: &[String], asked: bool) -> Result<Outcome> {
    match gpu::present() {
        Ok(list) => println!("{list}"),
        // Asked for by name: a machine without a GPU is a failure, and the tests say so.
        Err(_) if asked => {}
        Err(why) => {
            println!("{why}");
            return Ok(Outcome::NotRun(why));
        }
    }
    counted(kernel_tests().args(args), std::io::stdout()).map(Outcome::Ran)
}

/// The tests of the kernels, up to their own arguments.
fn kernel_tests() -> Command {
    let mut cargo = process::cargo();
    // The whole workspace, for the features of its dependencies; one test program.
    cargo.args("test --release --no-fail-fast --workspace --test gpu".split(' '));
    cargo.args(["--features", FEATURES, "--"]);
    cargo
}

/// The tests of the kernels with fewer generated cases and without those that take too long, whole models on a
/// small GPU, and each kernel once with each text. Where a GPU is, only when asked for.
fn emulated(args: &[String], asked: bool) -> Result<Outcome> {
    if !asked && gpu::present().is_ok() {
        return Ok(Outcome::NotRun("a GPU is here".into()));
    }
    let folder = emulator::build()?;
    if !args.is_empty() {
        let job = Job::new("kernels", 90, args.iter().map(String::as_str));
        return job.run(&folder, std::io::stdout()).map(Outcome::Ran);
    }
    let jobs = jobs()?;
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(Counts::default()));
    // The tests of one program take turns, with a core for what does not spread: two programs at a time.
    let work = || -> Result<()> {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut said = Vec::new();
            let found = job.run(&folder, &mut said)?;
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            counts.add(found);
            println!("-- {}", job.name);
            std::io::stdout().write_all(&said)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work().and(other.join().unwrap_or_else(|_| bail!("a lane ended early")))
    })?;
    Ok(Outcome::Ran(counts.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// Tests of the kernels on an emulated GPU, in one program.
struct Job {
    name: String,
    sm: u32,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Job {
    fn new<'a>(name: &str, sm: u32, args: impl IntoIterator<Item = &'a str>) -> Self {
        let args = args.into_iter().map(str::to_owned).collect();
        Self { name: name.to_owned(), sm, args, env: Vec::new() }
    }

    fn run(&self, folder: &Path, show: impl Write) -> Result<Counts> {
        let mut tests = kernel_tests();
        tests.args(&self.args);
        emulator::emulate(&mut tests, folder, self.sm)?;
        if std::env::var_os(CASES).is_none() {
            tests.env(CASES, "8");
        }
        tests.envs(self.env.iter().map(|(name, value)| (name, value)));
        counted(&mut tests, show)
    }
}

/// What the emulated lane runs, the longest first: each test once, and each kernel once for each text that it has.
fn jobs() -> Result<Vec<Job>> {
    let skip = |names: &[&'static str]| names.iter().flat_map(|name| ["--skip", name]).collect();
    let slow: Vec<&str> = skip(SLOW);
    let others: Vec<&str> = skip(&[HEAVY, ROWS, &[COVERAGE]].concat());
    let mut models = Job::new("models", 90, MODELS.iter().copied());
    models.env.push(("BITNET_EMULATED_SMS", "8".into()));
    models.env.push(("BITNET_EMULATED_DEVICES", "2".into()));
    let mut rows = Job::new("rows", 90, ROWS.iter().chain(&slow).copied());
    rows.env.push(("BITNET_EMULATED_SMS", "16".into()));
    let mut jobs = vec![
        Job::new("large families", 90, HEAVY.iter().chain(&slow).copied()),
        Job::new("other kernels", 90, slow.iter().chain(&others).copied()),
        models,
        rows,
    ];
    let mut run: Vec<Module> = Vec::new();
    let gpus = [
        (90, "sm_90a"),
        (53, "sm_53"),
        (61, "sm_61"),
        (75, "sm_75"),
        (80, "sm_80"),
        (100, "sm_90"),
    ];
    for (sm, level) in gpus {
        let mut job = Job::new(&format!("sm_{sm}"), sm, [COVERAGE]);
        // As few as all layers of its cases in one kernel can do with.
        job.env.push(("BITNET_EMULATED_SMS", "32".into()));
        let module = Module::parse(&manifest::committed(levels::select(Some(level))?[0])?)?;
        let same: BTreeSet<&str> = run.iter().flat_map(|m| module.shared_with(m)).collect();
        let (kernels, again) = (module.entries.len(), same.len());
        println!("{level}: {kernels} kernels, {again} of them run with the same text elsewhere");
        job.env.push(("BITNET_TEST_COVERED", same.into_iter().collect::<Vec<_>>().join(",")));
        run.push(module);
        jobs.push(job);
    }
    Ok(jobs)
}

/// Families whose tests run in a program of their own, for balance; all others run in another one.
const HEAVY: &[&str] = &["attention", "bmm::", "conv2d", "pool2d::", "sparse::"];

/// Each kernel once, on each GPU.
const COVERAGE: &str = "coverage::";

/// Families with rows that go round all multiprocessors of a GPU: on a small one fewer rows do.
const ROWS: &[&str] = &["layernorm::", "rmsnorm::", "softmax::"];

/// Tests that would take an emulated GPU more than about ten seconds each.
const SLOW: &[&str] = &[
    "attention::lane::many_rows",
    "attention_paged::lane::many_rows",
    "batch::",
    "bmm::lane::every_variant",
    "decode_layers::lane::listed_shapes",
    "decode_layers::lane::long_contexts",
    "decode_layers::lane::many_rows_on_one_table",
    "decode_layers::lane::many_steps_of_rows",
    // Hundreds of texts of a whole model: on the CPU lane, and on a GPU.
    "extras::prompts_are_told",
    "extras::texts_are_what_plain_logits_say",
    "grammar::texts_are_what_a_search_through_all_logits_picks",
    "grammar::texts_that_leave_are_forgotten",
    "image_quant::lane::listed_shapes",
    "kv_append::lane::listed_shapes",
    "lm_head::lane::listed_shapes",
    "lm_head_int8::lane::listed_shapes",
    "model::",
    "several::",
    "soak::",
    "sparse::lane::more_rows_than_a_grid_is_high",
    "sparse::lane::ternary_is_exact",
    "steady",
    "tune::what_is_tuned_is_kept_and_runs",
    "w2a8_gemm::lane::every_variant_at_the_edges_of_tiles",
    "w2a8_gemm::lane::listed_shapes",
];

/// Of the tests of whole models, those that GPUs of a few multiprocessors end in time.
const MODELS: &[&str] = &[
    "model::bitnet_family",
    "model::falcon3_family",
    "model::llama_family",
    "several::requests",
    "several::what",
    "steady",
];

/// One test for each level: fresh, as the contract says, and assembled. What there is to say, and how it ended.
fn ptx() -> (String, Outcome) {
    let failed = |why: anyhow::Error| {
        (format!("{why:#}"), Outcome::Ran(Counts { failed: 1, ..Counts::default() }))
    };
    let levels: Vec<_> = LEVELS.iter().collect();
    let fresh = match build::check(&levels, Rebuild::Never) {
        Ok(said) => said,
        Err(why) => return failed(why),
    };
    if let Err(why) = Ptxas::install() {
        let why = format!("no ptxas: {why:#}");
        let first = why.lines().next().unwrap_or("").to_owned();
        return (format!("{fresh}\n{why}"), Outcome::NotRun(first));
    }
    match audit::committed() {
        Ok(said) => {
            let passed = LEVELS.len() as u64;
            (format!("{fresh}\n{said}"), Outcome::Ran(Counts { passed, ..Counts::default() }))
        }
        Err(why) => failed(why),
    }
}

/// Runs cargo, shows what it says and sums the results. A build that fails counts as a failure.
fn counted(cargo: &mut Command, mut show: impl Write) -> Result<Counts> {
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("could not start cargo")?;
    let mut counts = Counts::default();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).split(b'\n') {
            let line = line?;
            counts.take(&String::from_utf8_lossy(&line));
            show.write_all(&[&line, &b"\n"[..]].concat())?;
        }
    }
    if !child.wait()?.success() && counts.failed == 0 {
        counts.failed = 1;
    }
    Ok(counts)
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds a line like `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn take(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        let number = |what: &str| {
            let before = rest.split(what).next().filter(|before| before.len() < rest.len())?;
            before.trim_end().rsplit(' ').next()?.parse().ok()
        };
        self.add(Self {
            passed: number(" passed").unwrap_or(0),
            failed: number(" failed").unwrap_or(0),
            ignored: number(" ignored").unwrap_or(0),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed() {
        let mut counts = Counts::default();
        for line in [
            "test a::b ... ok",
            "test result: ok. 20 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out",
        ] {
            counts.take(line);
        }
        assert_eq!(counts, Counts { passed: 23, failed: 2, ignored: 1 });
    }

    #[test]
    fn a_lane_that_did_not_run_does_not_say_passed() {
        assert!(!describe(&Outcome::NotRun("no GPU".into())).contains("pass"));
        let failed = Outcome::Ran(Counts { passed: 9, failed: 1, ignored: 0 });
        assert!(describe(&failed).starts_with("FAILED"));
    }

    #[test]
    fn a_build_that_fails_is_a_failure() {
        let counts = counted(Command::new("false").arg("x"), std::io::sink()).unwrap();
        assert_eq!(counts.failed, 1);
    }
}
