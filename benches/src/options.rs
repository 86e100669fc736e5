//! Command line of every benchmark program.
//!
//! All programs take the same options, because `cargo bench` and the bundle's script hand one line
//! to all of them; what an option is about stands in its help.

use std::path::PathBuf;

use clap::Parser;

/// Benchmarks of bitnet-gpu. Each case is first compared with the CPU backend, bit for bit.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub struct Options {
    /// Only cases whose name contains this
    pub filter: Option<String>,
    /// Only the Nth of so many parts of the cases, as `1/3`: for runs whose time is short. On a GPU each part has a result
    /// of its own
    #[arg(long, value_name = "N/PARTS", value_parser = part)]
    pub part: Option<(usize, usize)>,
    /// Only compare: nothing is timed and nothing written
    #[arg(long)]
    pub check: bool,
    /// Where the JSON and Markdown files go, relative to the current folder (cargo and the bundle's
    /// script both run these programs in benches/)
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub out: PathBuf,
    /// GPU to measure, after CUDA_VISIBLE_DEVICES
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: u32,
    /// Samples of each case and regime
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub samples: u32,
    /// Megabytes (10^6 bytes) of distinct tensors that the cold regime rotates over
    #[arg(long, value_name = "MB", default_value_t = 512)]
    pub cold_mb: u64,
    /// Programmatic dependent launch: a kernel may start before its predecessor has ended
    #[arg(long)]
    pub pdl: bool,
    /// w2a8_gemv: every compiled variant, and the best for each shape
    #[arg(long)]
    pub variants: bool,
    /// The peers in PyTorch as well, by python3 in the same run (tools/peers.py)
    #[arg(long, env = "BITNET_BENCH_PEERS", value_parser = clap::builder::FalseyValueParser::new())]
    pub peers: bool,
    /// w2a8_gemv, with --peers: a build of the published `bitlinear_int8xint2` (a shared library)
    #[arg(long, value_name = "PATH", env = "BITNET_BENCH_MS_KERNEL")]
    pub ms_kernel: Option<PathBuf>,
    /// w2a8_gemv: PTX that nvcc made of benches/cuda/w2a8_gemv.cu, timed beside ours
    #[arg(long, value_name = "FILE", env = "BITNET_BENCH_NVCC_PTX")]
    pub nvcc_ptx: Option<PathBuf>,
    /// tokens_per_second: checkpoint folder or file, instead of a synthetic one
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// tokens_per_second: leave out what `bitnet tune` has measured
    #[arg(long)]
    pub no_tune: bool,
    /// tokens_per_second: named configuration to synthesise
    #[arg(long, value_name = "CONFIG", default_value = "2b4t")]
    pub config: String,
    /// Passed by `cargo bench`; changes nothing
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Options {
    /// Whether a case of this name was asked for.
    pub fn wants(&self, case: &str) -> bool {
        // By its name, so that a case is in the same part whatever else is asked for.
        let hash = case
            .bytes()
            .fold(7, |hash: usize, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        self.filter.as_ref().is_none_or(|filter| case.contains(filter.as_str()))
            && self.part.is_none_or(|(part, parts)| hash % parts == part - 1)
    }
}

/// Reads `1/3`.
fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').map(|(part, parts)| (part.parse(), parts.parse()));
    match numbers {
        Some((Ok(part), Ok(parts))) if 1 <= part && part <= parts => Ok((part, parts)),
        _ => Err("1/3 is the first of three parts".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_cargo_xtask_and_the_bundle_are_taken() {
        let of = |line: &str| Options::try_parse_from(line.split(' '));
        let options = of("gemv --bench 3840x2560 --out there").unwrap();
        assert!(options.wants("3840x2560") && !options.wants("2560x2560"));
        assert_eq!(options.out, PathBuf::from("there"));
        assert!(of("gemv --bench").unwrap().wants("anything"));
        assert!(of("gemv --variants --bench").unwrap().variants);
        assert!(of("gemv --samples 9").is_err());
        assert!(of("gemv --nonsense").is_err());
    }

    #[test]
    fn every_case_is_in_one_part() {
        let of = |part: &str| Options::try_parse_from(["gemv", "--part", part]);
        let parts = ["1/3", "2/3", "3/3"].map(|part| of(part).unwrap());
        let cases: Vec<String> = (1..100).map(|i| format!("f32 1x{i}x7")).collect();
        for case in &cases {
            assert_eq!(parts.iter().filter(|part| part.wants(case)).count(), 1, "{case}");
        }
        for part in &parts {
            assert!(cases.iter().filter(|case| part.wants(case)).count() > 20);
        }
        for bad in ["", "1", "0/3", "4/3", "1/0", "1/x"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
