//! `bitnet`: runs BitNet b1.58 models.
//!
//! Parsing and printing only; the work is `bitnet_gpu`'s. Results go to standard output, statistics,
//! progress and errors to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped
//! by Ctrl-C. A closed pipe ends the program in silence with 0.

mod args;
mod chat;
mod completions;
mod convert;
mod doctor;
mod engine;
mod failure;
mod generate;
mod inspect;
mod interrupt;
mod locate;
mod output;
mod progress;
mod synth;

use args::{Cli, Command};
use clap::Parser;
use failure::Failure;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.json, cli.quiet);
    match run(cli.command, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&output),
    }
}

fn run(command: Command, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Generate(args) => generate::run(args, output),
        Command::Chat(args) => chat::run(args, output),
        Command::Inspect(args) => inspect::run(args, output),
        Command::Convert(args) => convert::run(args, output),
        Command::Synth(args) => synth::run(args, output),
        Command::Doctor(args) => doctor::run(args, output),
        Command::Completions(args) => completions::run(args, output),
    }
}
