//! Running other programs: a failure always names the program, its arguments and what it said.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// What cargo and rustup tell a child about *this* build, and what a user's shell may say about
/// host builds. A nested cargo of another toolchain must see none of it.
const HOST_BUILD: &[&str] = &[
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_TARGET_DIR",
    "CARGO_INCREMENTAL",
    "CARGO_PROFILE_RELEASE_LTO",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTUP_TOOLCHAIN",
    "RUSTC",
    "CARGO",
    "LD_LIBRARY_PATH",
];

/// A command that starts without the host build's environment.
pub(crate) fn foreign(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in HOST_BUILD {
        command.env_remove(name);
    }
    command
}

/// The workspace's own cargo, in the workspace root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::workspace::root());
    command
}

/// Runs with inherited output; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    let status = command.status().with_context(|| format!("could not start: {line}"))?;
    if !status.success() {
        bail!("{status} from: {line}");
    }
    Ok(())
}

/// Runs and returns what came out; an exit code other than 0 is an error with its stderr.
pub(crate) fn capture(command: &mut Command) -> Result<Output> {
    let line = shown(command);
    let out = command.output().with_context(|| format!("could not start: {line}"))?;
    if !out.status.success() {
        bail!("{} from: {line}\n{}", out.status, String::from_utf8_lossy(&out.stderr).trim_end());
    }
    Ok(out)
}

/// Standard output of a command, trimmed.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&capture(command)?.stdout).trim().to_owned())
}

/// Whether `program` starts at all with `args`.
pub(crate) fn works(program: impl AsRef<OsStr>, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|out| out.status.success())
}

/// Whether this process may install Debian packages.
pub(crate) fn can_apt() -> bool {
    Path::new("/usr/bin/apt-get").exists()
        && stdout(Command::new("id").arg("-u")).is_ok_and(|id| id == "0")
}

fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
