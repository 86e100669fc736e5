//! `cargo xtask bench`: runs the benchmarks of `benches/` on the GPU of this machine. They check
//! each result before they time it, and write JSON and Markdown to `benches/results/` themselves; the plots
//! are drawn from those.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::{gpu, plots, process};

/// `cargo xtask bench`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measure the peers that are installed as well
    #[arg(long)]
    peers: bool,
    /// With --peers: a build of the published `bitlinear_int8xint2`, a shared library
    #[arg(long, value_name = "PATH", requires = "peers")]
    ms_kernel: Option<PathBuf>,
    /// Benchmark to run (a file of benches/) [default: all]
    #[arg(long, value_name = "NAME")]
    bench: Vec<String>,
    /// Cases to run
    filter: Option<String>,
    /// Passed to the benchmark programs
    #[arg(last = true)]
    args: Vec<String>,
}

/// Set for the benchmark programs by `--peers`.
const PEERS: &str = "BITNET_BENCH_PEERS";
/// Set for them by `--ms-kernel`.
const MS_KERNEL: &str = "BITNET_BENCH_MS_KERNEL";

/// Builds and runs the benchmarks.
pub(crate) fn run(options: &Options) -> Result<()> {
    match gpu::present() {
        Ok(list) => println!("{list}"),
        Err(why) => bail!(
            "the benchmarks time kernels on a GPU: {why}\n\
             try: cargo xtask bundle DIR, and DIR/run.sh bench on a machine that has one"
        ),
    }
    let mut cargo = process::cargo();
    cargo.args(["bench", "-p", "bitnet-benches"]);
    match &options.bench[..] {
        [] => cargo.arg("--benches"),
        names => cargo.args(names.iter().flat_map(|name| ["--bench", name.as_str()])),
    };
    if options.peers {
        cargo.env(PEERS, "1");
    }
    if let Some(library) = &options.ms_kernel {
        cargo.env(MS_KERNEL, library.canonicalize().context("--ms-kernel")?);
    }
    cargo.arg("--").args(&options.filter).args(&options.args);
    process::run(&mut cargo)?;
    plots::run()
}
