//! `bitnet convert`: another packed form of the same ternaries, proved equal by their hash.

use crate::failure::Failure;
use crate::locate;
use crate::output::{Output, human_seconds};
use crate::progress::Progress;
use bitnet_gpu::checkpoint::{
    Checkpoint, ConvertReport, OpenOptions, Target, TokenizerOutcome, convert,
};
use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
pub(crate) struct ConvertArgs {
    /// Checkpoint to read: folder, file, or hub name
    #[arg(value_name = "PATH|ORG/NAME")]
    model: String,
    /// File (.gguf) or folder to write; must not exist, a folder may be empty
    #[arg(value_name = "OUT")]
    out: PathBuf,
    #[arg(long, env = "BITNET_TO", value_name = "FORM", help = forms())]
    to: Target,
    /// Round float weights to ternaries even when nothing says they were trained for it
    #[arg(long, env = "BITNET_TERNARISE_ANY", value_parser = FalseyValueParser::new())]
    ternarise_any: bool,
    /// Read the weights instead of mapping the file
    #[arg(long, env = "BITNET_NO_MMAP", value_parser = FalseyValueParser::new())]
    no_mmap: bool,
}

/// The help text with the library's names for its targets.
fn forms() -> String {
    format!("Form to write: {}", Target::ALL.map(|target| target.to_string()).join(", "))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    source: String,
    out: String,
    seconds: f64,
    #[serde(flatten)]
    report: ConvertReport,
}

pub(crate) fn run(args: ConvertArgs, output: &Output) -> Result<(), Failure> {
    let path = locate::model(Some(&args.model), output)?;
    let options = OpenOptions::default().mmap(!args.no_mmap).ternarise_any(args.ternarise_any);
    let started = Instant::now();
    let source = Checkpoint::open(&path, &options)?;
    let mut progress = Progress::new(output);
    let report = convert(&source, &args.out, args.to, &mut |done, total| {
        progress.set("writing and proving", done, total);
    })?;
    drop(progress);
    let seconds = started.elapsed().as_secs_f64();
    let out = args.out.display().to_string();
    if output.json {
        let source = path.display().to_string();
        output.document(&Document { source, out, seconds, report })?;
        return Ok(());
    }
    let (count, time) = (report.projections, human_seconds(seconds));
    output.line(&format!("{out}: {count} projections as {} in {time}", report.target))?;
    output.line(&format!(
        "  {} ternaries, unchanged: SHA-256 {}",
        report.ternaries, report.ternary_sha256
    ))?;
    if report.scales_rounded > 0 {
        output.line(&format!(
            "  {} scales rounded, by {:.2e} of their value at most: the form stores them in fewer bits",
            report.scales_rounded, report.scale_error
        ))?;
    }
    match report.tokenizer {
        TokenizerOutcome::Kept => {}
        TokenizerOutcome::JsonOnly => {
            output.note("  the tokenizer went along as an embedded tokenizer.json only");
        }
        TokenizerOutcome::Missing => {
            output.note("  no tokenizer went along: put tokenizer.json beside the result");
        }
    }
    Ok(())
}
