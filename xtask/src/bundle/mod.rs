//! `cargo xtask bundle DIR`: everything a GPU machine without Rust needs to run, test and measure.
//!
//! The folder holds stripped programs (dynamically linked: they run on this machine's glibc and on
//! newer ones), the PTX, the demo model and `run.sh`. Programs are found through cargo's messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::test::FEATURES;
use crate::{process, workspace};

const RUN: &str = include_str!("run.sh");

/// One build of the whole workspace, so that everything is shared with `xtask test`.
const BUILD: &str = "build --release --workspace --bins --test gpu --benches --features";

/// More than this is worth a warning: bundles travel.
const LARGE_BYTES: u64 = 40 << 20;

/// `cargo xtask bundle`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where to put it; a folder that holds something else is left alone
    dir: PathBuf,
    /// Write DIR.tar.xz as well: a tenth of the size, because every program embeds the same PTX
    #[arg(long)]
    archive: bool,
}

/// The messages of `cargo --message-format=json` that name a program.
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    /// `bin`, `test`, `bench`, ...
    kind: Vec<String>,
}

/// How it was built. A program is built twice: as itself, and as the harness of its unit tests.
#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds everything and fills the folder.
pub(crate) fn run(options: &Options) -> Result<()> {
    let dir = std::path::absolute(&options.dir)?;
    if dir.exists() && !dir.join("run.sh").exists() && dir.read_dir()?.next().is_some() {
        bail!("{} holds something that is not a bundle; name another folder", dir.display());
    }
    // A folder of an older bundle: nothing of it may be taken for new.
    for old in ["bin", "benches", "host", "ptx", "models"] {
        let _ = std::fs::remove_dir_all(dir.join(old));
    }
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin)?;
    // First, because it marks the folder as a bundle when a build fails.
    std::fs::write(dir.join("run.sh"), RUN)?;
    executable(&dir.join("run.sh"))?;
    // Tests and benchmarks run in folders that stand where their packages stand.
    std::fs::create_dir_all(dir.join("host"))?;
    std::fs::create_dir_all(dir.join("benches/results"))?;

    let programs = built(&format!("{BUILD} {FEATURES}"))?;
    for (name, path) in &programs {
        let to = bin.join(name);
        std::fs::copy(path, &to).with_context(|| format!("copying {}", path.display()))?;
        if !process::works("strip", &["-s", &to.to_string_lossy()]) {
            println!("{name} is not stripped: there is no `strip` here");
        }
    }
    copy(&workspace::ptx(), &dir.join("ptx"))?;
    copy(&workspace::root().join("models/demo"), &dir.join("models/demo"))?;

    let mut total = 0;
    for path in workspace::files(&dir, &[""])? {
        let bytes = path.metadata()?.len();
        total += bytes;
        if bytes >= 1 << 20 {
            let name = path.strip_prefix(&dir).unwrap_or(&path).display().to_string();
            println!("{:>8.1} MB  {name}", bytes as f64 / 1e6);
        }
    }
    println!("{:>8.1} MB  {} programs in {}", total as f64 / 1e6, programs.len(), dir.display());
    if options.archive {
        total = archive(&dir)?;
    }
    if total > LARGE_BYTES {
        println!("warning: more than {} MB; --archive makes it smaller", LARGE_BYTES >> 20);
    }
    println!("on the GPU machine: {}/run.sh", options.dir.display());
    Ok(())
}

/// Packs the folder and returns the size of the archive.
fn archive(dir: &Path) -> Result<u64> {
    let mut name = dir.as_os_str().to_owned();
    name.push(".tar.xz");
    let mut tar = Command::new("tar");
    tar.arg("-cJf").arg(&name).arg("-C").arg(dir.parent().unwrap_or(dir));
    tar.arg(dir.file_name().unwrap_or(dir.as_os_str()));
    // A window over several programs finds what they share; a low preset keeps it quick.
    tar.env("XZ_OPT", "--lzma2=preset=2,dict=64MiB");
    process::run(&mut tar)?;
    let bytes = std::fs::metadata(&name)?.len();
    println!("{:>8.1} MB  {}", bytes as f64 / 1e6, Path::new(&name).display());
    Ok(bytes)
}

/// Runs cargo and returns the programs it made, by the name they have in the bundle.
fn built(args: &str) -> Result<Vec<(String, PathBuf)>> {
    println!("cargo {args}");
    let mut cargo = process::cargo();
    cargo.args(args.split_whitespace()).arg("--message-format=json-render-diagnostics");
    // Diagnostics and progress go to stderr, where they are seen.
    let out = cargo.stderr(Stdio::inherit()).output()?;
    if !out.status.success() {
        bail!("{} from: cargo {args}", out.status);
    }
    let programs = programs(&String::from_utf8_lossy(&out.stdout));
    for needed in ["bitnet", "gpu-tests"] {
        if !programs.iter().any(|(name, _)| name == needed) {
            bail!("cargo {args} made no `{needed}`");
        }
    }
    Ok(programs)
}

fn programs(messages: &str) -> Vec<(String, PathBuf)> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.reason == "compiler-artifact")
        .filter_map(|message| Some((message.target?, message.executable?, message.profile?.test)))
        .filter_map(|(target, path, test)| {
            let name = match target.kind.first().map(String::as_str) {
                Some("bin") if target.name == "bitnet" && !test => target.name,
                Some("test") => format!("{}-tests", target.name),
                Some("bench") => format!("bench-{}", target.name),
                _ => return None,
            };
            Some((name, path))
        })
        .collect()
}

/// Copies a folder of files; one that is not there is left out, and said so.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let files = workspace::files(from, &[""])?;
    if files.is_empty() {
        println!("{} is not there and not in the bundle", workspace::relative(from));
    }
    for file in files {
        let to = to.join(file.strip_prefix(from)?);
        std::fs::create_dir_all(to.parent().unwrap_or(&to))?;
        std::fs::copy(&file, &to).with_context(|| format!("copying {}", file.display()))?;
    }
    Ok(())
}

fn executable(path: &Path) -> Result<()> {
    if cfg!(unix) {
        process::run(Command::new("chmod").arg("+x").arg(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_messages() {
        let artifact = |kind: &str, name: &str, executable: &str, test: bool| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"executable\":{executable},\
                 \"target\":{{\"name\":\"{name}\",\"kind\":[\"{kind}\"]}},\
                 \"profile\":{{\"test\":{test}}}}}\n"
            )
        };
        let messages = artifact("lib", "serde", "null", false)
            + &artifact("bin", "bitnet", "\"/t/bitnet\"", false)
            // The harness of the program's unit tests is no program.
            + &artifact("bin", "bitnet", "\"/t/deps/bitnet-2\"", true)
            + &artifact("bin", "xtask", "\"/t/xtask\"", false)
            + &artifact("test", "gpu", "\"/t/gpu-1\"", true)
            + &artifact("bench", "rope", "\"/t/rope-1\"", true)
            + "not json\n{\"reason\":\"build-finished\",\"success\":true}\n";
        let found = programs(&messages);
        let named: Vec<_> = found.iter().map(|(n, p)| (n.as_str(), p.to_str().unwrap())).collect();
        let wanted =
            [("bitnet", "/t/bitnet"), ("gpu-tests", "/t/gpu-1"), ("bench-rope", "/t/rope-1")];
        assert_eq!(named, wanted);
    }

    #[test]
    fn the_script_is_a_shell_script_that_parses() {
        assert!(process::works("bash", &["-n", "-c", RUN]));
        assert!(!process::works("bash", &["-n", "-c", "if then"]));
    }
}
