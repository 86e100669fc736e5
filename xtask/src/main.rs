//! `cargo xtask`: builds, checks, tests, measures and packs bitnet-gpu. One file per command.

mod kernels;
mod process;
mod ptx;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Everything that is not `cargo build`.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
enum Command {
    /// Build the kernels to PTX, audit it, and put it into kernels-gpu/ptx
    BuildPtx(ptx::build::Options),
    /// Compare the committed PTX with the contract and assemble it for every GPU
    Audit(ptx::audit::Options),
    /// House rules: six rooms, asm! in its place, SAFETY arguments, file sizes
    Tidy,
}

fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::BuildPtx(options) => ptx::build::run(options),
        Command::Audit(options) => ptx::audit::run(options),
        Command::Tidy => tidy::run(),
    }
}

fn main() -> ExitCode {
    match run(&Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why:#}");
            ExitCode::FAILURE
        }
    }
}
