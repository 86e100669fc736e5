//! The one place where the program meets the generation engine.
//!
//! [`Engine`] is what the commands need of a loaded model; [`open`] makes one from the command line's
//! options. Text goes out through `on_text` in order, whole characters, stop strings already cut.

use crate::args::{EngineArgs, KvChoice};
use crate::failure::Failure;
use crate::output::{Output, human_bytes, human_seconds};
use bitnet_gpu::text::{ChatTemplate, SamplingParams, Tokenizer};
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::Path;

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    /// `max_tokens`, or the end of the context.
    Length,
    /// A stop string.
    Stop,
    /// The model's own end token.
    EndToken,
    /// The caller: Ctrl-C or a closed pipe.
    Interrupted,
}

/// Device memory in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) in_use: u64,
    pub(crate) peak: u64,
    pub(crate) reserved: u64,
}

/// Figures of a loaded model and of its last generation.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stats {
    /// Such as `cuda:0 NVIDIA H200` or `cpu (16 threads, avx512-vnni)`.
    pub(crate) device: String,
    pub(crate) load_seconds: f64,
    /// Tokens of the prompt, those found in the cache included.
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt whose keys and values were still there from the turn before.
    pub(crate) reused_tokens: usize,
    pub(crate) prefill_seconds: f64,
    pub(crate) generated_tokens: usize,
    pub(crate) decode_seconds: f64,
    pub(crate) prefill_tokens_per_second: Option<f64>,
    pub(crate) decode_tokens_per_second: Option<f64>,
    /// `None` on the CPU.
    pub(crate) device_memory: Option<Memory>,
    /// Largest resident memory of the process in bytes, where the system tells.
    pub(crate) host_memory_peak: Option<u64>,
}

/// Per-kernel times of a run with `--profile`.
pub(crate) struct Profile {
    /// For people.
    pub(crate) table: String,
    /// Chrome trace format.
    pub(crate) trace: String,
}

/// A loaded model.
pub(crate) trait Engine {
    /// The checkpoint's tokenizer.
    fn tokenizer(&self) -> &Tokenizer;

    /// The chat template to use with it.
    fn template(&self) -> Result<ChatTemplate, Failure>;

    /// Continues `prompt`; `on_text` may end it early.
    fn generate(
        &mut self,
        prompt: &[u32],
        params: &SamplingParams,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Finish, Failure>;

    /// Figures so far.
    fn stats(&self) -> Stats;

    /// Times of the kernels, when they were asked for.
    fn profile(&self) -> Option<Profile>;
}

/// Loads `model` as `args` say.
pub(crate) fn open(
    model: &Path,
    args: &EngineArgs,
    output: &Output,
) -> Result<Box<dyn Engine>, Failure> {
    let _ = (model, output, args.device, args.threads, args.ctx, args.pool_cap);
    let _ = (&args.profile, args.no_mmap, args.no_graph, args.kv == KvChoice::F32);
    Err(Failure::new(
        "this build cannot run a model",
        "it has no generation engine",
        "use a build of a later commit",
    ))
}

impl Stats {
    /// The lines for standard error.
    pub(crate) fn lines(&self) -> Vec<String> {
        let rate = |rate: Option<f64>| rate.map_or(String::new(), |r| format!(", {r:.1} tok/s"));
        let reused = match self.reused_tokens {
            0 => String::new(),
            n => format!(" ({n} reused)"),
        };
        let mut lines = vec![
            format!("load     {} on {}", human_seconds(self.load_seconds), self.device),
            format!(
                "prefill  {} tokens{reused} in {}{}",
                self.prompt_tokens,
                human_seconds(self.prefill_seconds),
                rate(self.prefill_tokens_per_second)
            ),
            format!(
                "decode   {} tokens in {}{}",
                self.generated_tokens,
                human_seconds(self.decode_seconds),
                rate(self.decode_tokens_per_second)
            ),
        ];
        let device = self
            .device_memory
            .map(|m| format!("device {} (peak {})", human_bytes(m.in_use), human_bytes(m.peak)));
        let host = self.host_memory_peak.map(|peak| format!("host peak {}", human_bytes(peak)));
        let memory: Vec<String> = device.into_iter().chain(host).collect();
        if !memory.is_empty() {
            lines.push(format!("memory   {}", memory.join(", ")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_say_what_was_measured_and_no_more() {
        let mut stats = Stats {
            device: "cpu".into(),
            load_seconds: 0.5,
            prompt_tokens: 12,
            reused_tokens: 0,
            prefill_seconds: 0.012,
            generated_tokens: 64,
            decode_seconds: 2.0,
            prefill_tokens_per_second: Some(1000.0),
            decode_tokens_per_second: Some(32.0),
            device_memory: None,
            host_memory_peak: None,
        };
        assert_eq!(
            stats.lines(),
            [
                "load     500.0 ms on cpu",
                "prefill  12 tokens in 12.0 ms, 1000.0 tok/s",
                "decode   64 tokens in 2.00 s, 32.0 tok/s",
            ]
        );
        stats.reused_tokens = 10;
        stats.decode_tokens_per_second = None;
        stats.device_memory = Some(Memory { in_use: 1 << 20, peak: 1 << 21, reserved: 1 << 25 });
        let lines = stats.lines();
        assert_eq!(lines[1], "prefill  12 tokens (10 reused) in 12.0 ms, 1000.0 tok/s");
        assert_eq!(lines[2], "decode   64 tokens in 2.00 s");
        assert_eq!(lines[3], "memory   device 1.00 MiB (peak 2.00 MiB)");
    }
}
