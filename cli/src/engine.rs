//! From options to a loaded [`Session`], and from a session to figures: the one place where the
//! program meets the library's engine.

use crate::args::{AttentionChoice, EngineArgs, HeadChoice, KvChoice, WeightsChoice};
use crate::failure::Failure;
use crate::output::{Output, human_bytes, human_seconds};
use crate::progress::Progress;
use bitnet_gpu::profile::Profile;
use bitnet_gpu::session::{
    BatchEngine, GenerateStats, Head, HeadKind, KvType, LoadStats, Lookup, Math, Session,
    SessionBuilder, WeightLayout, Weights,
};
use bitnet_gpu::tune::Tuning;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Loads `model` as `args` say, with `lookup` where they say nothing of it.
pub(crate) fn open(
    model: &Path,
    args: &EngineArgs,
    lookup: Lookup,
    output: &Output,
) -> Result<Session, Failure> {
    let mut progress = Progress::new(output);
    let builder = builder(model, args, lookup);
    Ok(builder.build_with(&mut |at| progress.set("loading weights", at.done, at.total))?)
}

/// Loads `model` for several texts at once, as `batch` says, with `lookup` where `args` say nothing of it.
pub(crate) fn open_batch(
    model: &Path,
    args: &EngineArgs,
    lookup: Lookup,
    batch: impl FnOnce(SessionBuilder) -> SessionBuilder,
    output: &Output,
) -> Result<BatchEngine, Failure> {
    let mut progress = Progress::new(output);
    let builder = batch(builder(model, args, lookup));
    Ok(builder.build_batch_with(&mut |at| progress.set("loading weights", at.done, at.total))?)
}

/// The settings that `args` stand for.
fn builder(model: &Path, args: &EngineArgs, lookup: Lookup) -> SessionBuilder {
    let mut builder = Session::builder()
        .model(model)
        .backend(args.device.clone())
        .mmap(!args.no_mmap)
        .graph(!args.no_graph)
        .pdl(!args.no_pdl)
        .tuning(match (&args.tune_file, args.no_tune) {
            (Some(file), _) => Tuning::File(file.clone()),
            (None, true) => Tuning::Off,
            (None, false) => Tuning::Auto,
        })
        .one_kernel(!args.no_one_kernel)
        .profile(args.profile.is_some())
        .lookup(args.lookup.map_or(lookup, |tokens| Lookup::UpTo(tokens.into())))
        .kv(match args.kv {
            KvChoice::Bf16 => KvType::Bf16,
            KvChoice::F32 => KvType::F32,
            KvChoice::Int8 => KvType::Int8,
        })
        .attention(match args.attention {
            AttentionChoice::Exact => Math::Exact,
            AttentionChoice::Fast => Math::TensorCore,
        })
        .weights(match args.weights {
            WeightsChoice::Auto => Weights::Auto,
            WeightsChoice::Bits2 => Weights::In(WeightLayout::Bits2),
            WeightsChoice::Trits => Weights::In(WeightLayout::Trits),
        })
        .head(match args.head {
            HeadChoice::Auto => Head::Auto,
            HeadChoice::Stored => Head::By(HeadKind::Stored),
            HeadChoice::Int8 => Head::By(HeadKind::Int8),
        });
    if let Some(threads) = args.threads {
        builder = builder.threads(threads.into());
    }
    if let Some(positions) = args.ctx {
        builder = builder.context(positions as usize);
    }
    if let Some(bytes) = args.pool_cap {
        // A cap beyond the address space is no cap.
        builder = builder.pool_cap(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    builder
}

/// Figures of a loaded model and of one text.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stats {
    /// The device and what it runs.
    pub(crate) device: String,
    pub(crate) load: LoadStats,
    pub(crate) generate: GenerateStats,
    /// `None` when nothing was prefilled.
    pub(crate) prefill_tokens_per_second: Option<f64>,
    /// `None` for fewer than two tokens.
    pub(crate) decode_tokens_per_second: Option<f64>,
    /// Weights, cache and activations where the model runs, in bytes.
    pub(crate) memory_bytes: usize,
    pub(crate) memory_peak_bytes: usize,
    /// Largest resident memory of the process, where the system tells.
    pub(crate) host_peak_bytes: Option<u64>,
}

impl Stats {
    pub(crate) fn of(session: &Session, generate: &GenerateStats) -> Self {
        let memory = session.memory();
        let rate = |rate: f64| (rate > 0.0).then_some(rate);
        Self {
            device: session.device(),
            load: session.load_stats().clone(),
            prefill_tokens_per_second: rate(generate.prefill_rate()),
            decode_tokens_per_second: rate(generate.decode_rate()),
            generate: generate.clone(),
            memory_bytes: memory.in_use_bytes,
            memory_peak_bytes: memory.peak_bytes,
            host_peak_bytes: host_peak_bytes(),
        }
    }

    /// The lines for standard error.
    pub(crate) fn lines(&self) -> Vec<String> {
        let rate = |rate: Option<f64>| rate.map_or(String::new(), |r| format!(", {r:.1} tok/s"));
        let cached = match self.generate.cached_tokens {
            0 => String::new(),
            n => format!(" ({n} cached)"),
        };
        let guessed = match self.generate.drafted_tokens {
            0 => String::new(),
            n => format!(", {} of {n} guesses right", self.generate.accepted_tokens),
        };
        let load = human_seconds(self.load.seconds);
        let file = human_bytes(self.load.file_bytes);
        let tuning = &self.load.tuning;
        let mut lines: Vec<_> =
            tuning.notes.iter().map(|note| format!("tuning   {note}")).collect();
        if tuning.choices > 0 {
            let from = tuning.sources.join(", ");
            lines.push(format!("tuning   {} choices: {from}", tuning.choices));
        }
        lines.extend([
            format!("load     {file} in {load} on {}", self.device),
            format!(
                "prefill  {} tokens{cached} in {}{}",
                self.generate.prompt_tokens,
                human_seconds(self.generate.prefill_seconds),
                rate(self.prefill_tokens_per_second)
            ),
            format!(
                "decode   {} tokens in {}{}{guessed}",
                self.generate.generated_tokens,
                human_seconds(self.generate.decode_seconds),
                rate(self.decode_tokens_per_second)
            ),
            format!(
                "memory   {} for the model (peak {})",
                human_bytes(self.memory_bytes as u64),
                human_bytes(self.memory_peak_bytes as u64)
            ),
        ]);
        if let (Some(line), Some(peak)) = (lines.last_mut(), self.host_peak_bytes) {
            *line += &format!(", {} of host memory at most", human_bytes(peak));
        }
        lines
    }
}

/// Refuses a `--profile` that could not be kept, before the text it would be of: `profile` is what there is so far.
pub(crate) fn expect_profile(
    profile: Option<Profile>,
    device: &str,
    file: &Path,
) -> Result<(), Failure> {
    if profile.is_none() {
        return Err(Failure::new(
            format!("there can be no profile in {}", file.display()),
            format!("kernels are timed on a GPU only, and this runs on {device}"),
            "leave --profile out, or choose a GPU with --device cuda",
        ));
    }
    let kept = File::options().write(true).create(true).truncate(false).open(file);
    kept.map(drop).map_err(|error| unwritable(file, &error))
}

/// A trace that cannot be written.
fn unwritable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        format!("cannot write the trace to {}", file.display()),
        error.to_string(),
        "give --profile a file in a folder that exists",
    )
}

/// The kernel table on standard error and the trace in `file`, which [`expect_profile`] has looked at.
pub(crate) fn write_profile(
    profile: Option<Profile>,
    file: &Path,
    output: &Output,
) -> Result<(), Failure> {
    let Some(profile) = profile else { return Ok(()) };
    output.note(profile.to_string().trim_end());
    let written = File::create(file).and_then(|file| {
        let mut out = BufWriter::new(file);
        profile.write_chrome_trace(&mut out)?;
        out.flush()
    });
    written.map_err(|error| unwritable(file, &error))
}

/// Largest resident memory so far (`VmHWM` of Linux).
pub(crate) fn host_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_say_what_was_measured_and_no_more() {
        let mut stats = Stats {
            device: "cpu".into(),
            load: LoadStats { seconds: 0.5, file_bytes: 3 << 20, ..LoadStats::default() },
            generate: GenerateStats {
                prompt_tokens: 12,
                cached_tokens: 0,
                generated_tokens: 64,
                drafted_tokens: 0,
                accepted_tokens: 0,
                prefill_seconds: 0.012,
                decode_seconds: 2.0,
            },
            prefill_tokens_per_second: Some(1000.0),
            decode_tokens_per_second: Some(31.5),
            memory_bytes: 1 << 20,
            memory_peak_bytes: 1 << 21,
            host_peak_bytes: None,
        };
        assert_eq!(
            stats.lines(),
            [
                "load     3.00 MiB in 500.0 ms on cpu",
                "prefill  12 tokens in 12.0 ms, 1000.0 tok/s",
                "decode   64 tokens in 2.00 s, 31.5 tok/s",
                "memory   1.00 MiB for the model (peak 2.00 MiB)",
            ]
        );
        stats.generate.cached_tokens = 10;
        (stats.generate.drafted_tokens, stats.generate.accepted_tokens) = (40, 31);
        stats.decode_tokens_per_second = None;
        stats.host_peak_bytes = Some(1 << 30);
        let lines = stats.lines();
        assert_eq!(lines[1], "prefill  12 tokens (10 cached) in 12.0 ms, 1000.0 tok/s");
        assert_eq!(lines[2], "decode   64 tokens in 2.00 s, 31 of 40 guesses right");
        assert!(lines[3].ends_with(", 1.00 GiB of host memory at most"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_is_that_of_this_process() {
        assert!(host_peak_bytes().unwrap() > 1 << 16);
    }
}
