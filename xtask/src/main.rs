//! `cargo xtask`: builds, checks, tests, measures and packs bitnet-gpu. One file per command.

mod kernels;
mod process;
mod ptx;
mod workspace;

use clap::Parser;

/// Everything that is not `cargo build`.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
enum Command {
    /// Build the kernels to PTX, audit it, and put it into kernels-gpu/ptx
    BuildPtx(ptx::build::Options),
    /// Compare the committed PTX with the contract and assemble it for every GPU
    Audit(ptx::audit::Options),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::BuildPtx(options) => ptx::build::run(&options),
        Command::Audit(options) => ptx::audit::run(&options),
    }
}
