//! The device compiler: a rustc that can build `core` for NVPTX, with its library sources and cargo.
//!
//! `BITNET_DEVICE_RUSTC` names one; an override that does not work is an error, never a reason to
//! look further. Else a rustup nightly with `rust-src` or Debian's rustc-web: the one that built the
//! committed PTX when it is here, or the first that can build every level.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::levels::LEVELS;
use super::manifest::Manifest;
use crate::process;

/// Names a rustc whose sysroot has library sources and whose cargo stands beside it.
pub(crate) const OVERRIDE: &str = "BITNET_DEVICE_RUSTC";

/// `-C panic=immediate-abort` came with 1.93 nightlies.
const OLDEST: (u32, u32) = (1, 93);

/// The last release that compiles for GPUs before sm_70; rustup has its nightlies by date.
const NIGHTLY: &str = "nightly-2026-04-05";

const DEBIAN: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// A compiler that can build the kernels.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    /// The rustc binary.
    pub(crate) rustc: PathBuf,
    cargo: PathBuf,
    /// How it was found.
    pub(crate) origin: String,
    /// `rustc --version`.
    pub(crate) version: String,
    /// Its LLVM.
    pub(crate) llvm: String,
}

impl Compiler {
    fn at(rustc: &Path, origin: &str) -> Result<Self> {
        let verbose = process::stdout(process::foreign(rustc).arg("-vV"))?;
        let field = |name: &str| verbose.lines().find_map(|line| line.strip_prefix(name));
        let version = verbose.lines().next().unwrap_or_default().to_owned();
        let release = field("release: ").unwrap_or_default();
        let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if found < OLDEST {
            bail!("{} is {version}; {}.{} or newer is needed", rustc.display(), OLDEST.0, OLDEST.1);
        }
        let target = "--print target-cpus --target nvptx64-nvidia-cuda";
        let cpus = process::stdout(process::foreign(rustc).args(target.split(' ')))?;
        if let Some(level) = LEVELS.iter().find(|level| !lists(&cpus, level.name)) {
            bail!("{} is {version}, which compiles no more for {}", rustc.display(), level.name);
        }
        let sysroot = process::stdout(process::foreign(rustc).args(["--print", "sysroot"]))?;
        let source = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/src/lib.rs");
        if !source.exists() {
            bail!("{} has no library sources ({} is missing)", rustc.display(), source.display());
        }
        let cargo = rustc.with_file_name("cargo");
        if !cargo.exists() {
            bail!("{} has no cargo beside it", rustc.display());
        }
        Ok(Self {
            rustc: rustc.to_path_buf(),
            cargo,
            origin: origin.to_owned(),
            version,
            llvm: field("LLVM version: ").unwrap_or("unknown").to_owned(),
        })
    }

    /// It, with nothing of the host build in the environment.
    pub(crate) fn rustc(&self) -> Command {
        let mut command = process::foreign(&self.rustc);
        // Debian's compiler is a stable release; the flags of the device build are unstable ones.
        command.env("RUSTC_BOOTSTRAP", "1");
        command
    }

    /// Its cargo, likewise.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = process::foreign(&self.cargo);
        command.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        command
    }
}

/// Whether `cpu` is one of the lines of `rustc --print target-cpus`.
fn lists(cpus: &str, cpu: &str) -> bool {
    cpus.lines().any(|line| line.split_whitespace().next() == Some(cpu))
}

/// Finds a compiler; the error says what was tried and the two ways to get one.
pub(crate) fn find() -> Result<Compiler> {
    if let Some(rustc) = std::env::var_os(OVERRIDE) {
        return Compiler::at(Path::new(&rustc), OVERRIDE)
            .with_context(|| format!("{OVERRIDE} names a compiler that cannot be used"));
    }
    let (mut found, mut tried) = (Vec::new(), Vec::new());
    for (rustc, origin) in candidates() {
        match Compiler::at(&rustc, &origin) {
            Ok(compiler) => found.push(compiler),
            Err(why) => tried.push(format!("  {origin}: {why:#}")),
        }
    }
    let committed = Manifest::read().map(|m| m.levels.into_iter().map(|l| l.rustc).collect());
    let committed: Vec<String> = committed.unwrap_or_default();
    let same = found.iter().position(|c| committed.contains(&c.version)).unwrap_or(0);
    if same < found.len() {
        return Ok(found.swap_remove(same));
    }
    if tried.is_empty() {
        tried.push("  no rustup nightly and no /usr/bin/rustc".into());
    }
    bail!(
        "no device compiler: building PTX needs a rustc for NVPTX with library sources\n{}\n\
         try one of:\n  \
         rustup toolchain install {NIGHTLY} --profile minimal --component rust-src\n  \
         apt-get install --no-install-recommends {}      (Debian 12 or newer, as root)\n\
         or set {OVERRIDE} to a rustc that has them",
        tried.join("\n"),
        DEBIAN.join(" ")
    )
}

/// Finds a compiler, installing one when this process may: Debian packages as root, otherwise
/// through rustup.
pub(crate) fn find_or_install() -> Result<Compiler> {
    let missing = match find() {
        Ok(compiler) => return Ok(compiler),
        Err(why) if std::env::var_os(OVERRIDE).is_some() => return Err(why),
        Err(why) => why,
    };
    let mut failed = Vec::new();
    if process::can_apt() {
        match apt().and_then(|()| find()) {
            Ok(compiler) => return Ok(compiler),
            Err(why) => failed.push(format!("apt-get: {why:#}")),
        }
    }
    if process::works("rustup", &["--version"]) {
        println!("installing {NIGHTLY} with rust-src through rustup");
        let args = format!("toolchain install {NIGHTLY} --profile minimal --component rust-src");
        let install = process::run(process::foreign("rustup").args(args.split(' ')));
        match install.and_then(|()| find()) {
            Ok(compiler) => return Ok(compiler),
            Err(why) => failed.push(format!("rustup: {why:#}")),
        }
    }
    match failed.is_empty() {
        true => Err(missing),
        false => Err(missing.context(failed.join("\n"))),
    }
}

fn apt() -> Result<()> {
    println!("installing {} with apt-get", DEBIAN.join(", "));
    let install = || {
        let mut apt = process::foreign("apt-get");
        apt.args(["install", "-y", "-qq", "--no-install-recommends"]).args(DEBIAN);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        process::capture(&mut apt)
    };
    if install().is_err() {
        // A fresh image has no package lists.
        process::capture(process::foreign("apt-get").args(["update", "-qq"]))?;
        install()?;
    }
    Ok(())
}

fn candidates() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let listed = process::stdout(process::foreign("rustup").args(["toolchain", "list", "-q"]));
    for line in listed.unwrap_or_default().lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if !name.starts_with("nightly") {
            continue;
        }
        let which =
            process::foreign("rustup").args(["which", "--toolchain", name, "rustc"]).output();
        if let Ok(out) = which
            && out.status.success()
        {
            let path = String::from_utf8_lossy(&out.stdout).trim().into();
            found.push((path, format!("rustup {name}")));
        }
    }
    let system = PathBuf::from("/usr/bin/rustc");
    if system.exists() {
        found.push((system, "Debian rustc-web".into()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_gpu_is_told_from_one_that_begins_alike() {
        let cpus = "Available CPUs for this target:\n    sm_90a\n    sm_70   - This is the default";
        assert!(lists(cpus, "sm_70") && lists(cpus, "sm_90a"));
        assert!(!lists(cpus, "sm_90") && !lists(cpus, "sm_7"));
    }
}
