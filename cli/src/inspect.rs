//! `bitnet inspect`: what is in a checkpoint.

use crate::failure::Failure;
use crate::locate;
use crate::output::Output;
use clap::Args;
use clap::builder::FalseyValueParser;

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// Folder, file, or hub name ORG/NAME[@REVISION]; the demo model when not given
    #[arg(env = "BITNET_MODEL", value_name = "PATH|ORG/NAME")]
    model: Option<String>,
    /// List every tensor
    #[arg(long, env = "BITNET_TENSORS", value_parser = FalseyValueParser::new())]
    tensors: bool,
    /// Read the weights instead of mapping the file
    #[arg(long, env = "BITNET_NO_MMAP", value_parser = FalseyValueParser::new())]
    no_mmap: bool,
}

pub(crate) fn run(args: InspectArgs, output: &Output) -> Result<(), Failure> {
    let path = locate::model(args.model.as_deref(), output)?;
    let _ = (path, args.tensors, args.no_mmap);
    Err(Failure::new(
        "this build cannot read checkpoints",
        "it has no reader",
        "use a later commit",
    ))
}
