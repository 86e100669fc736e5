//! `cargo xtask check`: what CI runs besides the tests. Quick rules first; every step runs, and the
//! end lists the steps that failed and those that could not run.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::ptx::build::{self, Rebuild};
use crate::ptx::levels::LEVELS;
use crate::ptx::{audit, ptxas::Ptxas};
use crate::wheel::Wheel;
use crate::{process, tidy, workspace};

/// How a step ended well.
enum Step {
    Passed,
    NotRun(String),
}

/// A name and what to do.
type Named = (&'static str, fn() -> Result<Step>);

/// Runs every step.
pub(crate) fn run() -> Result<()> {
    let steps: [Named; 9] = [
        ("format", || cargo("fmt --all -- --check", &[])),
        ("tidy", || tidy::run().map(|()| Step::Passed)),
        ("python", python),
        ("clippy", || {
            // Release mode throughout: build scripts and macros are those of the tests.
            cargo(
                "clippy --release --workspace --all-targets --test gpu --all-features -- -D warnings",
                &[],
            )
        }),
        ("clippy without cuda", || {
            let packages = "-p bitnet-gpu -p bitnet-cli -p bitnet-benches";
            cargo(
                &format!(
                    "clippy --release {packages} --no-default-features --lib --bins -- -D warnings"
                ),
                &[],
            )
        }),
        ("documentation", || {
            let warnings = [("RUSTDOCFLAGS", "-D warnings")];
            cargo("doc --release --workspace --no-deps --all-features", &warnings)
        }),
        ("PTX is fresh", || {
            println!("{}", build::check(&LEVELS.iter().collect::<Vec<_>>(), Rebuild::IfPossible)?);
            Ok(Step::Passed)
        }),
        ("PTX audit", ptx_audit),
        ("dependencies", deny),
    ];
    let mut failed = Vec::new();
    let mut ended = Vec::new();
    for (name, step) in steps {
        println!("== {name}");
        let start = Instant::now();
        let how = match step() {
            Ok(Step::Passed) => "passed".to_owned(),
            Ok(Step::NotRun(why)) => format!("did not run: {why}"),
            Err(why) => {
                eprintln!("{why:#}");
                failed.push(name);
                "FAILED".to_owned()
            }
        };
        ended.push(format!("{name:20} {how} ({:.0} s)", start.elapsed().as_secs_f64()));
    }
    println!("\n== steps\n{}", ended.join("\n"));
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn cargo(args: &str, env: &[(&str, &str)]) -> Result<Step> {
    let mut cargo = process::cargo();
    cargo.args(args.split(' ')).envs(env.iter().copied());
    process::run(&mut cargo)?;
    Ok(Step::Passed)
}

/// The scripts of tools/ run on GPU machines only, and so does most of python/; a name that a merge lost is found here.
fn python() -> Result<Step> {
    const PYFLAKES: Wheel =
        Wheel { package: "pyflakes", version: "3.2.0", path: "pyflakes/__main__.py" };
    let program = match PYFLAKES.install("pyflakes") {
        Ok(program) => program,
        Err(why) => return Ok(Step::NotRun(format!("no pyflakes: {why:#}"))),
    };
    let Some(folder) = program.ancestors().nth(2) else { bail!("{}", program.display()) };
    let mut python = process::foreign("python3");
    python.env("PYTHONPATH", folder).args(["-m", "pyflakes", "tools", "python"]);
    process::run(python.current_dir(workspace::root()))?;
    Ok(Step::Passed)
}

fn ptx_audit() -> Result<Step> {
    if let Err(why) = Ptxas::install() {
        return Ok(Step::NotRun(format!("no ptxas: {why:#}")));
    }
    println!("{}", audit::committed()?);
    Ok(Step::Passed)
}

/// cargo-deny takes ten minutes to build on two cores, so it is used when it is there.
fn deny() -> Result<Step> {
    if !process::works("cargo-deny", &["--version"]) {
        let how = "no cargo-deny; get it with: cargo install --locked cargo-deny";
        return Ok(Step::NotRun(how.into()));
    }
    let mut deny = Command::new("cargo-deny");
    deny.current_dir(workspace::root()).args(["check", "licenses", "bans", "sources"]);
    process::run(&mut deny)?;
    Ok(Step::Passed)
}
