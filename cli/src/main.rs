//! `bitnet`: runs BitNet b1.58 models.
//!
//! Parsing and printing only; the work is `bitnet_gpu`'s. Results go to standard output, statistics,
//! progress and errors to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped
//! by Ctrl-C. A closed pipe ends the program in silence with 0.

mod args;
mod batch;
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
mod logits;
mod output;
mod perplexity;
mod progress;
#[cfg(feature = "server")]
mod serve;
mod synth;
mod tune;

use args::{Cli, Command};
use clap::{ArgMatches, FromArgMatches};
use failure::Failure;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = args::parse(std::env::args_os().collect());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let output = Output::new(cli.json, cli.quiet);
    // Doctor tells where its settings come from.
    let given = matches.subcommand().map(|(_, matches)| matches);
    match run(cli.command, given, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&output),
    }
}

fn run(command: Command, given: Option<&ArgMatches>, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Generate(args) => generate::run(args, output),
        Command::Chat(args) => chat::run(args, output),
        #[cfg(feature = "server")]
        Command::Serve(args) => serve::run(args, output),
        Command::Perplexity(args) => perplexity::run(args, output),
        Command::Inspect(args) => inspect::run(args, output),
        Command::Convert(args) => convert::run(args, output),
        Command::Synth(args) => synth::run(args, output),
        Command::Doctor(args) => doctor::run(args, given, output),
        Command::Tune(args) => tune::run(args, output),
        Command::Completions(args) => completions::run(args, output),
    }
}
