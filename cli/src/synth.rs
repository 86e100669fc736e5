//! `bitnet synth`: a checkpoint of seeded random weights.

use crate::failure::Failure;
use crate::output::Output;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
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
    /// Weights to store
    #[arg(long, env = "BITNET_WEIGHTS", default_value = "packed")]
    weights: Weights,
    /// Files to spread the weights over
    #[arg(long, env = "BITNET_SHARDS", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    shards: u16,
}

/// How projections are stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Weights {
    /// Four ternaries a byte
    Packed,
    /// bf16 masters
    Bf16,
    /// f16 masters
    F16,
    /// f32 masters
    F32,
}

pub(crate) fn run(args: SynthArgs, _: &Output) -> Result<(), Failure> {
    let _ = (args.config, args.out, args.seed, args.weights, args.shards);
    Err(Failure::new(
        "this build cannot write checkpoints",
        "it has no writer",
        "use a later commit",
    ))
}
