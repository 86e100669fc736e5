//! `bitnet synth`: a checkpoint of seeded random weights.

use crate::failure::Failure;
use crate::output::{Output, human_bytes, human_seconds};
use crate::progress::Progress;
use bitnet_gpu::checkpoint::FloatType;
use bitnet_gpu::checkpoint::synth::{self, NamedConfig, SynthOptions};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
#[command(after_help = configurations())]
pub(crate) struct SynthArgs {
    /// Named configuration, such as tiny or 2b4t
    #[arg(value_name = "CONFIG")]
    config: String,
    /// Folder to write; must be absent or empty
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// The same seed gives the same files
    #[arg(short, long, env = "BITNET_SEED", default_value_t = 0)]
    seed: u64,
    /// How the weights of projections are stored
    #[arg(long, env = "BITNET_FORM", default_value = "packed")]
    form: Form,
    /// Files to spread the weights over
    #[arg(long, env = "BITNET_SHARDS", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    shards: u16,
}

/// The list for the help text.
fn configurations() -> String {
    let mut text = String::from("Configurations:");
    for named in NamedConfig::all() {
        text += &format!("\n  {:<16} {}", named.name, named.about);
    }
    text
}

/// How projections are stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// Four ternaries a byte
    Packed,
    /// bf16 masters
    Bf16,
    /// f16 masters
    F16,
    /// f32 masters
    F32,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    config: &'a str,
    about: &'a str,
    out: String,
    seed: u64,
    bytes: u64,
    seconds: f64,
}

pub(crate) fn run(args: SynthArgs, output: &Output) -> Result<(), Failure> {
    let named = NamedConfig::find(&args.config).map_err(|e| Failure::from(e).usage())?;
    let masters = match args.form {
        Form::Packed => None,
        Form::Bf16 => Some(FloatType::Bf16),
        Form::F16 => Some(FloatType::F16),
        Form::F32 => Some(FloatType::F32),
    };
    let options = SynthOptions { masters, shards: args.shards.into() };
    let started = Instant::now();
    let mut progress = Progress::new(output);
    let mut bytes = 0;
    synth::write_with(&args.out, &named, args.seed, &options, &mut |done, total| {
        bytes = total;
        progress.set("writing", done, total);
    })?;
    drop(progress);
    let seconds = started.elapsed().as_secs_f64();
    let out = args.out.display().to_string();
    if output.json {
        let (config, about, seed) = (named.name, named.about, args.seed);
        output.document(&Document { config, about, out, seed, bytes, seconds })?;
    } else {
        let (size, time) = (human_bytes(bytes), human_seconds(seconds));
        output.line(&format!("{out}: {} with seed {}, {size} in {time}", named.name, args.seed))?;
    }
    Ok(())
}
