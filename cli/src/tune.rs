//! `bitnet tune`: measures which kernel variants are the fastest for a model on this GPU, and keeps the result.
//!
//! The weights are not read: shapes decide. Sessions take the choices from the record by themselves.

use crate::failure::Failure;
use crate::locate;
use crate::output::{Output, human_seconds};
use crate::progress::Progress;
use bitnet_gpu::checkpoint::synth::NamedConfig;
use bitnet_gpu::checkpoint::{Checkpoint, ModelConfig, OpenOptions};
use bitnet_gpu::device_choice::{Backend, BackendChoice, cuda_count};
use bitnet_gpu::tune::{self, Entry, Options, Report, TuneError};
use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct TuneArgs {
    /// Folder, file, hub name, or a configuration that `bitnet synth` knows, such as 2b4t; the demo model when not given
    #[arg(short, long, env = "BITNET_MODEL", value_name = "NAME|PATH")]
    model: Option<String>,
    /// auto, cuda or cuda:N
    #[arg(short, long, env = "BITNET_DEVICE", default_value = "auto")]
    device: BackendChoice,
    /// Rows of the largest step to measure: longer ones keep the default
    #[arg(long, env = "BITNET_MAX_ROWS", value_name = "ROWS", default_value_t = 768,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    max_rows: u16,
    /// Begin nothing new after so many seconds
    #[arg(long, env = "BITNET_SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// Measure again what was measured before
    #[arg(long, env = "BITNET_AGAIN", value_parser = FalseyValueParser::new())]
    again: bool,
    /// Where records stand [default: bitnet-gpu/tune in the user's cache folder]
    #[arg(long, env = "BITNET_TUNE_DIR", value_name = "DIR")]
    tune_dir: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    device: &'a str,
    path: String,
    measured: usize,
    kept: usize,
    left: usize,
    seconds: f64,
    notes: &'a [String],
    entries: Vec<&'a Entry>,
}

pub(crate) fn run(args: TuneArgs, output: &Output) -> Result<(), Failure> {
    let config = config(args.model.as_deref(), output)?;
    let ordinal = match args.device.resolve() {
        Ok(Backend::Cuda(ordinal)) => ordinal,
        Ok(Backend::Cpu) if args.device == BackendChoice::Auto => {
            let why = cuda_count().err().map_or("no device was found".into(), |e| e.to_string());
            let (cause, advice) =
                why.split_once("; try: ").unwrap_or((&why, "look at bitnet doctor"));
            return Err(Failure::new("there is no GPU to tune for", cause, advice));
        }
        Ok(Backend::Cpu) => {
            return Err(Failure::new(
                "there is nothing to tune on the CPU",
                "its vectors and threads are chosen when the program starts",
                "choose a GPU with --device cuda",
            )
            .usage());
        }
        Err(error) => return Err(Failure::from_error(&error, "look at bitnet doctor")),
    };
    let options = Options {
        ordinal,
        max_rows: args.max_rows.into(),
        again: args.again,
        budget: Duration::from_secs(args.seconds.into()),
        folder: args.tune_dir,
    };
    let mut bar = Progress::new(output);
    let report = tune::tune(&tune::shapes(&config), &options, &mut |at| {
        bar.set(&at.problem.to_string(), at.done as u64, at.total as u64);
    })?;
    drop(bar);
    let entries: Vec<&Entry> = report
        .problems
        .iter()
        .filter_map(|p| report.record.entries.iter().find(|e| e.problem() == Some(*p)))
        .collect();
    if output.json {
        let Report { record, path, measured, kept, left, seconds, notes, .. } = &report;
        output.document(&Document {
            device: &record.device.name,
            path: path.display().to_string(),
            measured: *measured,
            kept: *kept,
            left: *left,
            seconds: *seconds,
            notes,
            entries,
        })?;
        return Ok(());
    }
    report.notes.iter().for_each(|note| output.note(note));
    output.stream(&table(&entries))?;
    output.line(&summary(&report))?;
    Ok(())
}

/// A named configuration, or that of a checkpoint.
fn config(given: Option<&str>, output: &Output) -> Result<ModelConfig, Failure> {
    if let Some(name) = given.filter(|name| !Path::new(name).exists())
        && let Some(named) = NamedConfig::all().find(|named| named.name == name)
    {
        return Ok(named.config);
    }
    let path = locate::model(given, output)?;
    Ok(Checkpoint::open(&path, &OpenOptions::default())?.config().clone())
}

/// One line for each problem.
fn table(entries: &[&Entry]) -> String {
    let mut out = format!(
        "{:<11} {:>13} {:>6} {:>11} {:>11} {:>6}  chosen\n",
        "family", "shape", "rows", "default us", "chosen us", "gain"
    );
    for entry in entries {
        let us = |us: Option<f64>| us.map_or("-".into(), |us| format!("{us:.2}"));
        let gain = match (entry.default_us(), entry.chosen_us()) {
            (Some(default), Some(chosen)) => format!("{:.2}x", default / chosen),
            _ => "-".into(),
        };
        let short = |name: &str| {
            name.trim_start_matches(entry.family.name()).trim_start_matches('_').to_owned()
        };
        let chosen = match &entry.chosen {
            None => "none passed its check".into(),
            Some(name) if *name == entry.default => format!("{} (default)", short(name)),
            Some(name) => format!("{} instead of {}", short(name), short(&entry.default)),
        };
        let failed = entry.tried.iter().filter(|tried| tried.failed.is_some()).count();
        let failed = if failed > 0 { format!(", {failed} FAILED") } else { String::new() };
        out += &format!(
            "{:<11} {:>13} {:>6} {:>11} {:>11} {gain:>6}  {chosen}{failed}\n",
            entry.family.name(),
            format!("{}x{}", entry.n, entry.k),
            entry.m,
            us(entry.default_us()),
            us(entry.chosen_us()),
        );
    }
    out
}

fn summary(report: &Report) -> String {
    let Report { path, measured, kept, left, seconds, .. } = report;
    let left = if *left > 0 { format!(", {left} left for lack of time") } else { String::new() };
    let time = human_seconds(*seconds);
    format!("{measured} measured, {kept} known before{left}, in {time}: {}", path.display())
}

impl From<TuneError> for Failure {
    fn from(error: TuneError) -> Self {
        Self::from_error(&error, "look at bitnet doctor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_gains_defaults_and_failures() {
        let entry = |chosen: Option<&str>| {
            let document = serde_json::json!({
                "family": "w2a8_gemv", "m": 1, "n": 2560, "k": 6912, "date": "2026-11-20",
                "default": "w2a8_gemv_l32r2u2", "chosen": chosen,
                "tried": [
                    {"variant": "w2a8_gemv_l32r2u2", "us": 4.0},
                    {"variant": "w2a8_gemv_l32r4u2", "us": 2.0},
                    {"variant": "w2a8_gemv_l16r4u1", "failed": "other bits"},
                ],
            });
            serde_json::from_value::<Entry>(document).unwrap()
        };
        let (better, same, none) =
            (entry(Some("w2a8_gemv_l32r4u2")), entry(Some("w2a8_gemv_l32r2u2")), entry(None));
        let table = table(&[&better, &same, &none]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].contains("2560x6912") && lines[1].contains(" 4.00 "));
        assert!(lines[1].ends_with("2.00x  l32r4u2 instead of l32r2u2, 1 FAILED"), "{}", lines[1]);
        assert!(lines[2].ends_with("1.00x  l32r2u2 (default), 1 FAILED"), "{}", lines[2]);
        assert!(lines[3].ends_with("-  none passed its check, 1 FAILED"), "{}", lines[3]);
    }
}
