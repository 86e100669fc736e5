//! `bitnet completions SHELL`.

use crate::args::command;
use crate::failure::Failure;
use crate::output::Output;
use clap::Args;
use clap_complete::Shell;

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to write for
    shell: Shell,
}

pub(crate) fn run(args: CompletionsArgs, output: &Output) -> Result<(), Failure> {
    // Into memory first: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "bitnet", &mut script);
    Ok(output.stream(&String::from_utf8_lossy(&script))?)
}
