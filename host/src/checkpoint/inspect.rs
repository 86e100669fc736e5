//! What a checkpoint holds and what it would take on the device.
//!
//! Reads every projection once, so it also proves that every ternary and every scale is valid.

use std::path::PathBuf;

use contract::attention_paged::{PAGE, int8_part_bytes};
use contract::lm_head_int8::row_bytes;
use contract::w2a8::row_words;
use contract::w2a8_trits;
use serde::Serialize;

use super::{
    Checkpoint, CheckpointError, DenseSlot, FloatType, LinearKind, ModelConfig, Proj, TensorEntry,
    write::ProgressFn,
};
use crate::pack::{TernarySource, w2::count_ternaries};

/// One projection of one block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinearReport {
    /// Its tensor.
    pub tensor: String,
    /// Transformer block.
    pub layer: usize,
    /// Which projection.
    pub proj: Proj,
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Dequantisation multiplier.
    pub scale: f32,
    /// Ternaries that are -1, 0 and 1.
    pub counts: [u64; 3],
}

impl LinearReport {
    /// Share of ternaries that are 0.
    pub fn zeros(&self) -> f64 {
        share(self.counts)
    }
}

fn share([minus, zero, plus]: [u64; 3]) -> f64 {
    zero as f64 / (minus + zero + plus).max(1) as f64
}

/// One kind of projection over all blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProjReport {
    /// Which projection.
    pub proj: Proj,
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Smallest scale.
    pub scale_min: f32,
    /// Largest scale.
    pub scale_max: f32,
    /// Share of ternaries that are 0, over all blocks.
    pub zeros: f64,
}

/// What a model takes on the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceBytes {
    /// Projections in the device layout of 2 bits a weight.
    pub projections: u64,
    /// Projections at 1.6 bits a weight instead.
    pub projections_trits: u64,
    /// Embedding, in its own type.
    pub embedding: u64,
    /// Head, in its own type; 0 when it is the embedding.
    pub head: u64,
    /// What an int8 copy of the head would take besides.
    pub head_int8: u64,
    /// Norm gains in f32.
    pub norms: u64,
    /// Keys and values of one position, in bf16.
    pub kv_per_token_bf16: u64,
    /// Keys and values of one position, in f32.
    pub kv_per_token_f32: u64,
    /// Keys and values of one position, in 8 bits with their scales.
    pub kv_per_token_int8: u64,
}

impl DeviceBytes {
    /// What every model size takes, from the configuration and the type of the dense matrices.
    pub fn of(config: &ModelConfig, dense: FloatType) -> Self {
        let words = |row_words: fn(usize) -> usize| -> usize {
            let shapes = Proj::ALL.iter().map(|&proj| config.linear_shape(proj));
            shapes.map(|(n, k)| n * row_words(k)).sum()
        };
        let layers = config.num_layers as u64;
        let matrix = config.vocab_size as u64 * config.hidden_size as u64 * dense.bytes() as u64;
        let sub = config.q_rows() + config.intermediate_size;
        let gains = 2 * config.hidden_size + if config.sub_norms { sub } else { 0 };
        let kv = 2 * layers * config.kv_rows() as u64;
        Self {
            projections: layers * words(row_words) as u64 * 4,
            projections_trits: layers * words(w2a8_trits::row_words) as u64 * 4,
            embedding: matrix,
            head: if config.tie_word_embeddings { 0 } else { matrix },
            head_int8: config.vocab_size as u64 * (row_bytes(config.hidden_size) as u64 + 16),
            norms: 4 * (layers * gains as u64 + config.hidden_size as u64),
            kv_per_token_bf16: 2 * kv,
            kv_per_token_f32: 4 * kv,
            kv_per_token_int8: 2
                * layers
                * (config.num_kv_heads * int8_part_bytes(config.head_dim) / PAGE) as u64,
        }
    }

    /// Weights without the cache and without an int8 copy of the head.
    pub fn weights(&self) -> u64 {
        self.projections + self.embedding + self.head + self.norms
    }
}

/// Everything `bitnet inspect` shows.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The path opened.
    pub path: PathBuf,
    /// How the projections are stored.
    pub kind: LinearKind,
    /// Sizes and constants.
    pub config: ModelConfig,
    /// Files with weights and their bytes.
    pub files: Vec<(PathBuf, u64)>,
    /// Ternary weights.
    pub ternaries: u64,
    /// Type of embedding and head.
    pub dense: FloatType,
    /// Each kind of projection.
    pub projections: Vec<ProjReport>,
    /// Each projection of each block.
    pub linears: Vec<LinearReport>,
    /// All stored tensors.
    pub tensors: Vec<TensorEntry>,
    /// What it takes on the device.
    pub device: DeviceBytes,
}

/// Reads all projections and reports. `progress` is told ternaries read and in all.
///
/// # Errors
/// The first invalid ternary or scale, and failed reads.
pub fn inspect(
    checkpoint: &Checkpoint,
    progress: ProgressFn<'_>,
) -> Result<Report, CheckpointError> {
    let config = checkpoint.config();
    let total = config.ternary_weights();
    let mut done = 0;
    let mut linears = Vec::new();
    for slot in checkpoint.linear_slots() {
        let rows = checkpoint.linear(slot)?;
        let mut counts = [0; 3];
        rows.for_each_piece::<CheckpointError>(|_, words| {
            for (count, more) in counts.iter_mut().zip(count_ternaries(words, rows.k())) {
                *count += more;
            }
            Ok(())
        })?;
        let (n, k, scale) = (rows.n(), rows.k(), rows.scale());
        done += n as u64 * k as u64;
        progress(done, total);
        let tensor = rows.name().to_owned();
        linears.push(LinearReport {
            tensor,
            layer: slot.layer,
            proj: slot.proj,
            n,
            k,
            scale,
            counts,
        });
    }
    let projections = Proj::ALL.into_iter().map(|proj| over_blocks(config, proj, &linears));
    let dense = checkpoint.dense(DenseSlot::Embedding)?.dtype;
    Ok(Report {
        path: checkpoint.path().to_owned(),
        kind: checkpoint.kind(),
        config: config.clone(),
        files: checkpoint.files.iter().map(|f| (f.path().to_owned(), f.len())).collect(),
        ternaries: total,
        dense,
        projections: projections.collect(),
        tensors: checkpoint.tensors().cloned().collect(),
        device: DeviceBytes::of(config, dense),
        linears,
    })
}

fn over_blocks(config: &ModelConfig, proj: Proj, linears: &[LinearReport]) -> ProjReport {
    let (n, k) = config.linear_shape(proj);
    let mine = || linears.iter().filter(move |linear| linear.proj == proj);
    let counts =
        mine().fold([0; 3], |sum, linear| std::array::from_fn(|i| sum[i] + linear.counts[i]));
    ProjReport {
        proj,
        n,
        k,
        scale_min: mine().map(|l| l.scale).fold(f32::INFINITY, f32::min),
        scale_max: mine().map(|l| l.scale).fold(0.0, f32::max),
        zeros: share(counts),
    }
}
