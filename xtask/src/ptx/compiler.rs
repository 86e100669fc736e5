//! The device compiler: a rustc that can build `core` for NVPTX, with its library sources and cargo.
//!
//! It is one release of rustup's. `BITNET_DEVICE_RUSTC` names another one; an override that does not work is an error,
//! never a reason to look further.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::levels::LEVELS;
use crate::process;

/// Names a rustc whose sysroot has library sources and whose cargo stands beside it.
pub(crate) const OVERRIDE: &str = "BITNET_DEVICE_RUSTC";

/// `-C panic=immediate-abort` came with 1.93 nightlies.
const OLDEST: (u32, u32) = (1, 93);

/// The last release that compiles for GPUs before sm_70. As rustup has it: one of a distribution writes the same PTX in
/// three times the time, as its LLVM was not built with profiles.
const RELEASE: &str = "1.96.0";

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
        // A stable release, and some flags of the device build are unstable ones.
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

/// Finds the compiler; the error says how to get it.
pub(crate) fn find() -> Result<Compiler> {
    if let Some(rustc) = std::env::var_os(OVERRIDE) {
        return Compiler::at(Path::new(&rustc), OVERRIDE)
            .with_context(|| format!("{OVERRIDE} names a compiler that cannot be used"));
    }
    let mut which = process::foreign("rustup");
    which.args(["which", "--toolchain", RELEASE, "rustc"]);
    process::stdout(&mut which)
        .and_then(|rustc| Compiler::at(Path::new(&rustc), "rustup"))
        .with_context(|| {
            format!(
                "no device compiler: building PTX needs a rustc for NVPTX with library sources\n\
                 try: rustup {}\nor set {OVERRIDE} to a rustc that has them",
                install().join(" ")
            )
        })
}

/// What rustup is asked for.
fn install() -> Vec<&'static str> {
    let mut install = vec!["toolchain", "install", RELEASE];
    install.extend(["--profile", "minimal", "--component", "rust-src", "--no-self-update"]);
    install
}

/// Finds the compiler, or installs it through rustup.
pub(crate) fn find_or_install() -> Result<Compiler> {
    let missing = match find() {
        Ok(compiler) => return Ok(compiler),
        Err(why) if std::env::var_os(OVERRIDE).is_some() => return Err(why),
        Err(why) => why,
    };
    println!("installing rustc {RELEASE} with rust-src through rustup");
    process::run(process::foreign("rustup").args(install()))
        .and_then(|()| find())
        .map_err(|why| missing.context(format!("rustup: {why:#}")))
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
