//! The emulated GPU: `bitnet-emulator` in the place of the driver's library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{process, workspace};

/// `cargo xtask emulate`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Compute capability of the GPU, without the point
    #[arg(long, value_name = "SM", default_value_t = 90)]
    sm: u32,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs a command that finds an emulated GPU.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Some((program, arguments)) = options.command.split_first() else { bail!("no command") };
    let mut command = Command::new(program);
    command.args(arguments);
    emulate(&mut command, &build()?, options.sm)?;
    process::run(&mut command)
}

/// Builds the emulator; the folder where the driver's library is looked for.
pub(crate) fn build() -> Result<PathBuf> {
    process::run(process::cargo().args("build --release --package bitnet-emulator".split(' ')))?;
    let folder = workspace::target().join("emulator");
    std::fs::create_dir_all(&folder)?;
    install(&workspace::target().join("release/libemulator.so"), &folder)?;
    Ok(folder)
}

/// Puts `built` into `folder` as the driver's library.
fn install(built: &Path, folder: &Path) -> Result<()> {
    // Under another name first: a program that runs keeps the one that it has loaded. A name of its own, because
    // two may do this at once.
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let fresh = folder.join(format!("fresh-{process}-{thread:?}"));
    std::fs::copy(built, &fresh).with_context(|| format!("no {}", built.display()))?;
    std::fs::rename(&fresh, folder.join("libcuda.so.1"))?;
    Ok(())
}

/// Lets `command` find the emulator as a GPU of compute capability `sm`.
pub(crate) fn emulate(command: &mut Command, folder: &Path, sm: u32) -> Result<()> {
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let paths = std::iter::once(folder.to_path_buf()).chain(std::env::split_paths(&before));
    command.env("LD_LIBRARY_PATH", std::env::join_paths(paths)?);
    command.env("BITNET_EMULATED_SM", sm.to_string());
    // Every launch takes megabytes for registers and shared memory, and gives them back: kept by the C library, they are not
    // mapped anew each time, which took half as long as some tests.
    let tunables = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296";
    command.env("GLIBC_TUNABLES", tunables);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_install_at_once() {
        let folder = std::env::temp_dir().join(format!("emulator-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("made");
        let built = folder.join("built");
        let bytes = vec![7; 1 << 20];
        std::fs::write(&built, &bytes).expect("written");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        install(&built, &folder).expect("installed");
                        let found = std::fs::read(folder.join("libcuda.so.1")).expect("read");
                        assert!(found == bytes, "a part of the library");
                    }
                });
            }
        });
        let left = std::fs::read_dir(&folder).expect("listed").count();
        assert_eq!(left, 2, "the library and what it is a copy of");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
