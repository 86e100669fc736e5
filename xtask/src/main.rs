//! `cargo xtask`: builds, checks, tests, measures and packs bitnet-gpu. One file per command.

mod bench;
mod bundle;
mod check;
mod doctor;
mod emulator;
mod gpu;
mod kernels;
mod new_kernel;
mod plots;
mod process;
mod ptx;
mod test;
mod tidy;
mod wheel;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Everything that is not `cargo build`.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
enum Command {
    /// Build the kernels to PTX, audit it, and put it into kernels-gpu/ptx
    BuildPtx(ptx::build::Options),
    /// Compare the committed PTX with the contract and assemble it for every GPU
    Audit(ptx::audit::Options),
    /// Test everything this machine can test: CPU, PTX, the kernels on a GPU or an emulated one
    Test(test::Options),
    /// What CI runs besides the tests: format, tidy, clippy, documentation, PTX, dependencies
    Check,
    /// House rules: six rooms, asm! in its place, SAFETY arguments, file sizes
    Tidy,
    /// Run a command that finds an emulated GPU: slow, with every access checked
    Emulate(emulator::Options),
    /// Run the benchmarks on this machine's GPU
    Bench(bench::Options),
    /// Draw the results in benches/results as SVG
    Plots,
    /// Pack programs, tests, benchmarks, PTX and the demo model for a GPU machine without Rust
    Bundle(bundle::Options),
    /// Start a kernel family: six rooms, copied from one that works
    NewKernel(new_kernel::Options),
    /// Say which tools are here: device compiler, ptxas, PTX, GPU
    Doctor,
}

fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::BuildPtx(options) => ptx::build::run(options),
        Command::Audit(options) => ptx::audit::run(options),
        Command::Test(options) => test::run(options),
        Command::Check => check::run(),
        Command::Tidy => tidy::run(),
        Command::Emulate(options) => emulator::run(options),
        Command::Bench(options) => bench::run(options),
        Command::Plots => plots::run(),
        Command::Bundle(options) => bundle::run(options),
        Command::NewKernel(options) => new_kernel::run(options),
        Command::Doctor => doctor::run(),
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
