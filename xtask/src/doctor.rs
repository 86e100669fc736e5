//! `cargo xtask doctor`: what a developer's machine has, and what it lacks for which command.
//! (`bitnet doctor` is the one for users.) Installs nothing.

use anyhow::Result;

use crate::ptx::build::{self, Rebuild};
use crate::ptx::levels::LEVELS;
use crate::ptx::{compiler, ptxas::Ptxas};
use crate::{gpu, process};

/// Prints one line for each thing.
pub(crate) fn run() -> Result<()> {
    let host = process::stdout(process::cargo().args(["--version"]))?;
    line("host cargo", Ok(host));
    let device = compiler::find()
        .map(|c| format!("{}, LLVM {} ({}: {})", c.version, c.llvm, c.origin, c.rustc.display()));
    line("device compiler", device.map_err(|why| format!("{why:#}")));
    let missing = "not installed; `cargo xtask audit` puts it into the target folder";
    let ptxas = Ptxas::installed().ok_or(missing);
    line("ptxas", ptxas.map(|_| "in the target folder".into()).map_err(str::to_owned));
    let levels: Vec<_> = LEVELS.iter().collect();
    let fresh = build::check(&levels, Rebuild::Never);
    line("committed PTX", fresh.map_err(|why| format!("{why:#}")));
    let deny = process::works("cargo-deny", &["--version"]);
    line("cargo-deny", if deny { Ok("found".into()) } else { Err("not installed".into()) });
    line("GPU", gpu::present());
    Ok(())
}

fn line(what: &str, found: Result<String, String>) {
    match found {
        Ok(found) => println!("[ok] {what}: {found}"),
        Err(why) => println!("[--] {what}: {}", why.replace('\n', "\n       ")),
    }
}
