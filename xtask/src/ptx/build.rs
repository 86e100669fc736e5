//! `cargo xtask build-ptx`: sources in, audited PTX out.
//!
//! Release PTX is written to the target folder first and reaches `kernels-gpu/ptx/` only when the
//! audit passed. What the kernels depend on is built once, in a target folder named by compiler and
//! flags, so that output of other flags can never be taken for it; then rustc compiles the kernels
//! for each level, side by side.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use contract::launch::KernelInfo;

use super::compiler::{self, Compiler};
use super::flags::{self, Profile};
use super::levels::{self, Level};
use super::manifest::{self, Built, Manifest};
use super::text::Module;
use super::{audit, convergence};
use crate::kernels::kernels;
use crate::{process, workspace};

/// `cargo xtask build-ptx`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Levels to build, separated by commas [default: all]
    #[arg(long, value_name = "LIST")]
    arch: Option<String>,
    /// Fail when the committed PTX is not what the sources give; write nothing
    #[arg(long)]
    check: bool,
    /// What the PTX is for; only release is written to kernels-gpu/ptx
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Take the counts of barriers, shuffles and mma found now as the expected ones
    #[arg(long, conflicts_with = "check")]
    record: bool,
    /// Accept that kernels of the contract are not written yet; the audit still fails for them
    #[arg(long, conflicts_with = "check")]
    partial: bool,
}

/// Whether a check may run the compiler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rebuild {
    /// Compare bytes too, with the compiler that built the PTX where it can be had.
    IfPossible,
    /// Compare hashes only.
    Never,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let levels = levels::select(options.arch.as_deref())?;
    if options.check {
        println!("{}", check(&levels, Rebuild::IfPossible)?);
        return Ok(());
    }
    let compiler = compiler::find_or_install()?;
    println!("device compiler: {} ({})", compiler.version, compiler.origin);
    let start = Instant::now();
    let texts = build(&compiler, &levels, options.profile)?;
    println!("built {} levels in {:.0} s", levels.len(), start.elapsed().as_secs_f64());

    let dir = workspace::target().join("ptx").join(options.profile.name());
    std::fs::create_dir_all(&dir)?;
    for (level, text) in levels.iter().zip(&texts) {
        std::fs::write(dir.join(format!("{}.ptx", level.name)), text)?;
    }
    if options.profile != Profile::Release {
        println!("wrote {}", dir.display());
        return Ok(());
    }
    let written = written(&texts)?;
    let asked = if options.partial { &written } else { kernels() };
    let counts = if options.record { audit::Counts::New } else { audit::Counts::Recorded };
    let report = audit::audit(&levels, &dir, asked, counts, audit::Gpus::All)?;
    print!("{}", report.table());
    println!(
        "{}",
        report.verdict().with_context(|| {
            format!("the PTX stays in {}; kernels-gpu/ptx is as it was", dir.display())
        })?
    );
    commit(&compiler, &levels, &texts, &written)?;
    if options.record {
        convergence::record(report.counts)?;
    }
    println!("wrote {}", workspace::relative(&workspace::ptx()));
    Ok(())
}

/// Kernels of the contract that stand in some level.
fn written(texts: &[String]) -> Result<Vec<KernelInfo>> {
    let modules = texts.iter().map(|text| Module::parse(text)).collect::<Result<Vec<_>>>()?;
    let is_in = |module: &Module, symbol| module.entries.iter().any(|e| e.name == symbol);
    let kernels = kernels().iter().copied();
    Ok(kernels.filter(|k| modules.iter().any(|module| is_in(module, k.spec.symbol))).collect())
}

fn commit(
    compiler: &Compiler,
    levels: &[&Level],
    texts: &[String],
    written: &[KernelInfo],
) -> Result<()> {
    let dir = workspace::ptx();
    std::fs::create_dir_all(&dir)?;
    let mut built = Vec::new();
    for (level, text) in levels.iter().zip(texts) {
        let source = manifest::source_sha256(level)?;
        built.push(Built::new(level, written, compiler, &source, text)?);
    }
    let texts = levels.iter().map(|level| level.name).zip(texts.iter().map(String::as_str));
    manifest::pack(&texts.collect(), &dir)?;
    Manifest::read()?.update(built, &dir)
}

/// Compares the committed PTX with the sources; the text says what was compared.
pub(crate) fn check(levels: &[&'static Level], rebuild: Rebuild) -> Result<String> {
    let manifest = Manifest::read()?;
    let mut stale = Vec::new();
    let mut texts = Vec::new();
    for level in levels {
        let Some(built) = manifest.level(level.name) else {
            stale.push(format!("{}: not in the manifest", level.name));
            continue;
        };
        if built.source_sha256 != manifest::source_sha256(level)? {
            stale.push(format!("{}: built from other sources or flags", level.name));
        }
        if built.serves != level.serves {
            stale.push(format!("{}: audited for other GPUs than it serves", level.name));
        }
        let text = manifest::committed(level)?;
        if built.sha256 != manifest::sha256(text.as_bytes()) {
            stale.push(format!("{}: {} has another text than was built", level.name, built.file));
        }
        texts.push((*level, built, text));
    }
    if !stale.is_empty() {
        bail!("the committed PTX is stale:\n  {}\ntry: cargo xtask build-ptx", stale.join("\n  "));
    }
    let hashes = format!("source and file hashes of {} levels agree", levels.len());
    if rebuild == Rebuild::Never {
        return Ok(hashes);
    }
    let compiler = match compiler::find_or_install() {
        Ok(compiler) => compiler,
        Err(why) => return Ok(format!("{hashes}; bytes not compared: {why:#}")),
    };
    let same: Vec<_> = texts.iter().filter(|(_, b, _)| b.rustc == compiler.version).collect();
    if same.len() < texts.len() {
        return Ok(format!(
            "{hashes}; bytes not compared: the PTX is from another compiler than {}",
            compiler.version
        ));
    }
    let again = build(&compiler, levels, Profile::Release)?;
    for ((level, _, committed), again) in texts.iter().zip(&again) {
        if committed != again {
            let line = committed.lines().zip(again.lines()).position(|(a, b)| a != b);
            stale.push(format!(
                "{}: first difference in line {}",
                level.name,
                line.unwrap_or(0) + 1
            ));
        }
    }
    if !stale.is_empty() {
        bail!("a rebuild gives other PTX:\n  {}\ntry: cargo xtask build-ptx", stale.join("\n  "));
    }
    Ok(format!("{hashes}; a rebuild with {} gives the same bytes", compiler.version))
}

/// Builds levels side by side and finishes their text.
pub(crate) fn build(
    compiler: &Compiler,
    levels: &[&'static Level],
    profile: Profile,
) -> Result<Vec<String>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let dependencies = dependencies(compiler, profile)?;
    // A later level has more kernels and takes longer: begun first, so that no core waits at the end.
    let left = Mutex::new((0..levels.len()).collect::<Vec<_>>());
    let done: Mutex<Vec<Option<Result<String>>>> =
        Mutex::new(levels.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..cores.min(levels.len()) {
            scope.spawn(|| {
                loop {
                    let Some(i) = left.lock().unwrap_or_else(PoisonError::into_inner).pop() else {
                        break;
                    };
                    let text = build_level(compiler, levels[i], profile, &dependencies)
                        .and_then(|raw| finish(levels[i], kernels(), profile, &raw));
                    done.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(text);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter()
        .zip(levels)
        .map(|(text, level)| {
            text.unwrap_or_else(|| Err(anyhow!("was not built")))
                .with_context(|| format!("level {}", level.name))
        })
        .collect()
}

/// What rustc wrote for one level.
fn build_level(
    compiler: &Compiler,
    level: &Level,
    profile: Profile,
    dependencies: &[OsString],
) -> Result<String> {
    let dir = workspace::target().join("device").join(profile.name());
    let asm = dir.join(format!("{}.s", level.name));
    let mut rustc = compiler.rustc();
    rustc.current_dir(workspace::root()).arg("kernels-gpu/src/lib.rs").arg("-o").arg(&asm);
    // A warning ends the build. It changes no PTX, so it is none of the recorded flags.
    rustc.args(flags::kernels(level, profile)).args(dependencies).arg("-Dwarnings");
    let out = process::capture(&mut rustc)?;
    for warning in warnings(&String::from_utf8_lossy(&out.stderr)) {
        eprintln!("{}: {warning}\n", level.name);
    }
    Ok(std::fs::read_to_string(asm)?)
}

/// What cargo says about an artifact it built.
#[derive(serde::Deserialize)]
struct Artifact {
    target: Target,
    filenames: Vec<PathBuf>,
}

#[derive(serde::Deserialize)]
struct Target {
    name: String,
}

/// What rustc says about one.
#[derive(serde::Deserialize)]
struct Said {
    target: Target,
    message: Message,
}

#[derive(serde::Deserialize)]
struct Message {
    /// A lint or an error; other remarks have none.
    code: Option<serde_json::Value>,
    rendered: String,
}

/// What rustc finds wrong with the contract, in what cargo wrote.
fn wrong(out: &str) -> Option<String> {
    let said = out.lines().filter_map(|line| serde_json::from_str::<Said>(line).ok());
    let mut wrong = said.filter(|s| s.target.name == "contract" && s.message.code.is_some());
    wrong.next().map(|said| said.message.rendered)
}

/// Builds what the kernels depend on, once for all levels: arguments that tell rustc where it is.
fn dependencies(compiler: &Compiler, profile: Profile) -> Result<Vec<OsString>> {
    let rustflags = flags::dependencies(profile);
    let target = target_dir(compiler, profile, &rustflags)?;
    let mut cargo = compiler.cargo();
    cargo.current_dir(workspace::root()).args(flags::CARGO).arg("--target-dir").arg(&target);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\x1f"));
    let out = process::stdout(&mut cargo)?;
    if let Some(wrong) = wrong(&out) {
        bail!("the contract compiles with warnings:\n{wrong}");
    }
    let mut arguments = Vec::new();
    for folder in [target.join("nvptx64-nvidia-cuda/release/deps"), target.join("release/deps")] {
        arguments.push("-L".into());
        arguments.push(joined("dependency=", &folder));
    }
    // Lines of other kinds have no file names.
    for artifact in out.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok()) {
        let how = match artifact.target.name.as_str() {
            "contract" => "",
            // As cargo names the parts of the standard library that it built itself.
            "core" | "compiler_builtins" => "noprelude,nounused:",
            _ => continue,
        };
        for file in artifact.filenames.iter().filter(|f| f.extension().is_some_and(|e| e == "rlib"))
        {
            arguments.push("--extern".into());
            arguments.push(joined(&format!("{how}{}=", artifact.target.name), file));
        }
    }
    Ok(arguments)
}

fn joined(name: &str, path: &Path) -> OsString {
    let mut joined = OsString::from(name);
    joined.push(path);
    joined
}

/// The target folder of the dependencies; folders of other flags or compilers are removed.
fn target_dir(compiler: &Compiler, profile: Profile, rustflags: &[String]) -> Result<PathBuf> {
    let parent = workspace::target().join("device").join(profile.name());
    let key = format!("{}\n{}", compiler.version, rustflags.join("\n"));
    let name = format!("dependencies-{}", &manifest::sha256(key.as_bytes())[..8]);
    std::fs::create_dir_all(&parent)?;
    for entry in std::fs::read_dir(&parent)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name() != name.as_str() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(parent.join(name))
}

/// Cleans the text, and refuses release PTX that names this machine.
fn finish(level: &Level, kernels: &[KernelInfo], profile: Profile, raw: &str) -> Result<String> {
    let mut module = Module::parse(raw)?;
    module.finish(kernels, 10 * level.sm + u32::from(level.name.ends_with('a')));
    let text = module.to_string();
    if profile == Profile::Release {
        let home = std::env::var("HOME").unwrap_or_default();
        let places = [workspace::root().to_string_lossy().into_owned(), home];
        if let Some(place) = places.iter().find(|p| p.len() > 1 && text.contains(p.as_str())) {
            bail!("the PTX of {} names the machine path {place}", level.name);
        }
    }
    Ok(text)
}

/// Warnings worth showing: not the one that every raised ISA causes, not rustc's count of them.
fn warnings(stderr: &str) -> Vec<&str> {
    stderr
        .split("\n\n")
        .map(str::trim)
        .filter(|block| block.starts_with("warning") || block.starts_with("error"))
        .filter(|block| !block.contains("unstable feature specified for `-Ctarget-feature`"))
        .filter(|block| !(block.ends_with(" emitted") && block.lines().count() == 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_contract_are_found() {
        let said = |target: &str, code: &str| {
            format!(
                r#"{{"reason":"compiler-message","target":{{"name":"{target}"}},"message":{{"code":{code},"rendered":"unused"}}}}"#
            )
        };
        let lint = r#"{"code":"dead_code","explanation":null}"#;
        let artifact =
            r#"{"reason":"compiler-artifact","target":{"name":"contract"},"filenames":[]}"#;
        let clean = [artifact.to_owned(), said("half", lint), said("contract", "null")].join("\n");
        assert_eq!(wrong(&clean), None);
        assert_eq!(wrong(&format!("{clean}\n{}", said("contract", lint))), Some("unused".into()));
    }
}
