//! `bitnet convert`: another packed form of the same ternaries.

use crate::failure::Failure;
use crate::locate;
use crate::output::Output;
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct ConvertArgs {
    /// Checkpoint to read: folder, file, or hub name
    #[arg(value_name = "PATH|ORG/NAME")]
    model: String,
    /// Folder or file to write; must not exist yet
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Form to write
    #[arg(long, env = "BITNET_TO", value_name = "FORM")]
    to: Form,
    /// Read the weights instead of mapping the file
    #[arg(long, env = "BITNET_NO_MMAP", value_parser = FalseyValueParser::new())]
    no_mmap: bool,
}

/// A stored form of ternaries.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Hugging Face folder with packed U8 weights
    #[value(name = "hf")]
    HuggingFace,
    /// GGUF file, I2_S
    #[value(name = "i2_s")]
    I2S,
    /// GGUF file, TQ1_0
    #[value(name = "tq1_0")]
    Tq1,
    /// GGUF file, TQ2_0
    #[value(name = "tq2_0")]
    Tq2,
}

pub(crate) fn run(args: ConvertArgs, output: &Output) -> Result<(), Failure> {
    let path = locate::model(Some(&args.model), output)?;
    let _ = (path, args.out, args.to, args.no_mmap);
    Err(Failure::new("this build cannot convert", "it has no reader", "use a later commit"))
}
