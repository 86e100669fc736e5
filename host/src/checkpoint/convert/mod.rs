//! Converting a checkpoint from any readable form to any packed one.
//!
//! Ternaries are moved exactly, and that is proved: the result is opened again and, projection by
//! projection, its ternary hash compared with the source's; a difference is an error. After an error
//! nothing is left of the result. Dense tensors keep their type and bytes. Scales: `Hugging Face` and I2_S hold any g exactly;
//! TQ1_0 and TQ2_0 hold an f16, the int2 form a bf16, so a g that does not fit is rounded, and the
//! report says how many were and by how much. Everything streams; memory does not grow with the model.

mod gguf;
mod packed;
mod tokenizer;

use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{
    Checkpoint, CheckpointError, LinearKind, LinearSlot, OpenOptions,
    write::{self, ProgressFn},
};
use crate::pack::{self, TernaryHasher, TernarySource};

/// What to convert to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// A Hugging Face folder with packed bytes.
    HfPacked,
    /// A GGUF file with I2_S projections. K must be a multiple of 128.
    GgufI2S,
    /// A GGUF file with TQ1_0 projections. K must be a multiple of 256.
    GgufTq1,
    /// A GGUF file with TQ2_0 projections. K must be a multiple of 256.
    GgufTq2,
    /// A folder in the names and the permuted int2 layout of the published GPU checkpoint, as
    /// safetensors. Fused N must be a multiple of 16, K of 32.
    Int2,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::HfPacked, Self::GgufI2S, Self::GgufTq1, Self::GgufTq2, Self::Int2];

    /// Whether the result is a single file (`.gguf`) or a folder.
    pub fn is_file(self) -> bool {
        self.gguf_kind().is_some()
    }

    fn gguf_kind(self) -> Option<LinearKind> {
        match self {
            Self::GgufI2S => Some(LinearKind::I2S),
            Self::GgufTq1 => Some(LinearKind::Tq1_0),
            Self::GgufTq2 => Some(LinearKind::Tq2_0),
            Self::HfPacked | Self::Int2 => None,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::HfPacked => "hf",
            Self::GgufI2S => "gguf-i2_s",
            Self::GgufTq1 => "gguf-tq1_0",
            Self::GgufTq2 => "gguf-tq2_0",
            Self::Int2 => "int2",
        })
    }
}

impl std::str::FromStr for Target {
    type Err = CheckpointError;

    fn from_str(name: &str) -> Result<Self, CheckpointError> {
        Self::ALL.into_iter().find(|target| target.to_string() == name).ok_or_else(|| {
            CheckpointError::Target {
                target: name.chars().take(100).collect(),
                why: format!("known targets are {}", Self::ALL.map(|t| t.to_string()).join(", ")),
            }
        })
    }
}

/// What became of the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerOutcome {
    /// Carried over whole.
    Kept,
    /// Only the embedded `tokenizer.json` was carried over: its kind has no GGUF form here.
    JsonOnly,
    /// The source has none that the target can hold; put `tokenizer.json` beside the result.
    Missing,
}

/// What a conversion did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConvertReport {
    /// The form written.
    pub target: Target,
    /// Projections converted.
    pub projections: usize,
    /// Ternaries in them.
    pub ternaries: u64,
    /// SHA-256 over the ternary hashes of all projections in order: equal for equal models in any
    /// form.
    pub ternary_sha256: String,
    /// Scales that the target could not hold exactly.
    pub scales_rounded: usize,
    /// Largest relative change of a scale.
    pub scale_error: f32,
    /// What became of the tokenizer.
    pub tokenizer: TokenizerOutcome,
}

/// Converts `source` to `target` at `path`, which must not exist (a folder may exist empty).
///
/// # Errors
/// Shapes that the target cannot hold ([`CheckpointError::Target`]), failed reads and writes, and
/// [`CheckpointError::Changed`] when the proof fails.
pub fn convert(
    source: &Checkpoint,
    path: &Path,
    target: Target,
    progress: ProgressFn<'_>,
) -> Result<ConvertReport, CheckpointError> {
    check_shapes(source, target)?;
    // Writing is the first half of the work, proving the second.
    let mut half = |done: u64, all: u64| progress(done, 2 * all);
    let tokenizer = match target.gguf_kind() {
        Some(kind) => gguf::write(source, path, target, kind, &mut half)?,
        None => write::new_folder(path, || packed::write(source, path, target, &mut half))?,
    };
    let proved = prove(source, path, target, tokenizer, progress);
    if proved.is_err() {
        // Best effort: the error is what matters.
        let _ = match target.is_file() {
            true => std::fs::remove_file(path),
            false => std::fs::remove_dir_all(path),
        };
    }
    proved
}

fn check_shapes(source: &Checkpoint, target: Target) -> Result<(), CheckpointError> {
    let config = source.config();
    for slot in source.linear_slots().take(7) {
        let (_, k) = config.linear_shape(slot.proj);
        let fused = super::slots::Names::Int2.fused(config, slot.proj);
        match target {
            Target::HfPacked => Ok(()),
            Target::GgufI2S => pack::i2_s::check_k(k),
            Target::GgufTq1 => pack::tq::TQ1_0.check_k(k),
            Target::GgufTq2 => pack::tq::TQ2_0.check_k(k),
            Target::Int2 => pack::int2::check(fused.rows, k),
        }
        .map_err(|e| CheckpointError::Target {
            target: target.to_string(),
            why: format!("projection {}: {e}", slot.proj),
        })?;
    }
    Ok(())
}

/// Opens the result and compares every projection's ternaries and scale with the source's.
fn prove(
    source: &Checkpoint,
    path: &Path,
    target: Target,
    tokenizer: TokenizerOutcome,
    progress: ProgressFn<'_>,
) -> Result<ConvertReport, CheckpointError> {
    let result = Checkpoint::open(path, &OpenOptions::default())?;
    let total = source.config().ternary_weights();
    let mut report = ConvertReport {
        target,
        projections: 0,
        ternaries: 0,
        ternary_sha256: String::new(),
        scales_rounded: 0,
        scale_error: 0.0,
        tokenizer,
    };
    let mut all = Sha256::new();
    for slot in source.linear_slots() {
        let (before, old_scale) = hash(source, slot)?;
        let (after, new_scale) = hash(&result, slot)?;
        if before != after {
            let tensor = source.linear(slot)?.name().to_owned();
            return Err(CheckpointError::Changed { tensor, before, after });
        }
        if old_scale.to_bits() != new_scale.to_bits() {
            report.scales_rounded += 1;
            let error = ((new_scale - old_scale) / old_scale).abs();
            report.scale_error = report.scale_error.max(error);
        }
        let (n, k) = source.config().linear_shape(slot.proj);
        report.projections += 1;
        report.ternaries += n as u64 * k as u64;
        all.update(before.as_bytes());
        progress(total + report.ternaries, 2 * total);
    }
    report.ternary_sha256 = all.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(report)
}

fn hash(checkpoint: &Checkpoint, slot: LinearSlot) -> Result<(String, f32), CheckpointError> {
    let rows = checkpoint.linear(slot)?;
    let mut hasher = TernaryHasher::new(rows.n(), rows.k());
    rows.for_each_piece::<CheckpointError>(|_, words| {
        hasher.update(words);
        Ok(())
    })?;
    Ok((hasher.finish(), rows.scale()))
}
