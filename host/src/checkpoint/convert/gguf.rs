//! Writing GGUF files.
//!
//! The architecture follows from the model: `bitnet-b1.58` with sub-norms and relu2 (bitnet.cpp),
//! `bitnet` with sub-norms and SiLU, `llama` without sub-norms and SiLU, whose q and k rows every
//! reader expects with rotary pairs side by side. The function on the gate is written where it is not SiLU.

use std::path::Path;

use half::f16;

use super::{Target, TokenizerOutcome, packed, tokenizer};
use crate::{
    checkpoint::{
        Activation, Checkpoint, CheckpointError, DenseSlot, LinearKind, LinearSlot, NormSlot, Proj,
        StoredType,
        rows::RowPlace,
        slots::Names,
        write::{
            NewFile, ProgressFn,
            gguf::{Metadata, PlannedGguf, write_file},
        },
    },
    pack::i2_s,
};

/// Rows encoded at once where they are in order.
const STEP: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Content {
    Linear(LinearSlot),
    Norm(NormSlot),
    Dense(DenseSlot),
}

pub(super) fn write(
    source: &Checkpoint,
    path: &Path,
    target: Target,
    kind: LinearKind,
    progress: ProgressFn<'_>,
) -> Result<TokenizerOutcome, CheckpointError> {
    let config = source.config();
    let refuse = |why: String| CheckpointError::Target { target: target.to_string(), why };
    let arch = match (config.sub_norms, config.activation) {
        (true, Activation::Relu2) => "bitnet-b1.58",
        (true, Activation::Silu) => "bitnet",
        (false, Activation::Silu) => "llama",
        (false, Activation::Relu2) => {
            return Err(refuse("no architecture has relu2 without sub-norms".into()));
        }
    };
    if config.eos_token_ids.len() > 3 {
        let ids = &config.eos_token_ids;
        return Err(refuse(format!("it has keys for 3 ids that end text, the model has {ids:?}")));
    }
    let file_type = match kind {
        LinearKind::Tq1_0 => 36,
        LinearKind::Tq2_0 => 37,
        _ => 40,
    };
    let mut meta = Metadata::default();
    meta.text("general.architecture", arch);
    meta.uint("general.file_type", file_type);
    meta.uint("general.quantization_version", 2);
    for (name, value) in [
        ("vocab_size", config.vocab_size),
        ("context_length", config.max_positions),
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_layers),
        ("feed_forward_length", config.intermediate_size),
        ("rope.dimension_count", config.head_dim),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
    ] {
        // Validated sizes are far below 2^32.
        meta.uint(&format!("{arch}.{name}"), value as u32);
    }
    meta.float(&format!("{arch}.attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    if f64::from(config.rope_theta as f32) != config.rope_theta {
        return Err(refuse(format!("rope_theta {} is no f32", config.rope_theta)));
    }
    meta.float(&format!("{arch}.rope.freq_base"), config.rope_theta as f32);
    // SiLU is what every reader takes when the key is absent; some know the name for another function.
    if config.activation == Activation::Relu2 {
        meta.text(&format!("{arch}.hidden_activation"), "relu2");
    }
    if let Some(bos) = config.bos_token_id {
        meta.uint("tokenizer.ggml.bos_token_id", bos);
    }
    for (name, &id) in ["eos", "eot", "eom"].iter().zip(&config.eos_token_ids) {
        meta.uint(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    let outcome = tokenizer::to_gguf(source, &mut meta)?;
    let plan = plan(source, kind)?;
    let emit = |tensor: &PlannedGguf<Content>, file: &mut NewFile| match tensor.content {
        Content::Linear(slot) => linear(source, slot, kind, arch == "llama", file),
        Content::Norm(slot) => {
            let gains = source.norm(slot)?;
            let bytes: Vec<u8> = gains.iter().flat_map(|v| v.to_le_bytes()).collect();
            file.put(&bytes)
        }
        Content::Dense(slot) => packed::copy_dense(source, slot, file),
    };
    write_file(path, &meta, &plan, emit, progress)?;
    Ok(outcome)
}

fn plan(
    source: &Checkpoint,
    kind: LinearKind,
) -> Result<Vec<PlannedGguf<Content>>, CheckpointError> {
    let config = source.config();
    let names = Names::Gguf;
    let mut plan = Vec::new();
    let mut dense = vec![DenseSlot::Embedding];
    if !config.tie_word_embeddings {
        dense.push(DenseSlot::Head);
    }
    for slot in dense {
        let view = source.dense(slot)?;
        plan.push(PlannedGguf {
            name: names.dense(slot).to_owned(),
            stored: packed::stored(view.dtype),
            shape: vec![view.rows, view.cols],
            content: Content::Dense(slot),
        });
    }
    for slot in source.norm_slots() {
        // Readers of the format expect gains as f32, which holds every stored type exactly.
        plan.push(PlannedGguf {
            name: names.norm(slot).swap_remove(0),
            stored: StoredType::F32,
            shape: vec![source.norm(slot)?.len()],
            content: Content::Norm(slot),
        });
    }
    for slot in source.linear_slots() {
        let (n, k) = config.linear_shape(slot.proj);
        plan.push(PlannedGguf {
            name: format!("{}.weight", names.linear(slot)),
            stored: match kind {
                LinearKind::Tq1_0 => StoredType::Tq1_0,
                LinearKind::Tq2_0 => StoredType::Tq2_0,
                _ => StoredType::I2S,
            },
            shape: vec![n, k],
            content: Content::Linear(slot),
        });
    }
    Ok(plan)
}

fn linear(
    source: &Checkpoint,
    slot: LinearSlot,
    kind: LinearKind,
    interleave: bool,
    file: &mut NewFile,
) -> Result<(), CheckpointError> {
    let rows = source.linear(slot)?;
    let (n, k, width) = (rows.n(), rows.k(), rows.words_per_row());
    let g = rows.scale();
    let block_scale = f16::from_f32(g);
    let blocks = kind.blocks();
    if let Some(blocks) = blocks.filter(|_| !(block_scale.is_finite() && block_scale > f16::ZERO)) {
        return Err(CheckpointError::Target {
            target: blocks.name().into(),
            why: format!("the scale {g} of {} is outside f16", rows.name()),
        });
    }
    let rotary = interleave && matches!(slot.proj, Proj::Q | Proj::K);
    let place = RowPlace { first: 0, interleaved: rotary.then_some(source.config().head_dim) };
    let step = if rotary { 1 } else { STEP };
    let mut words = vec![0; step * width];
    let mut line = vec![0; blocks.map_or_else(|| i2_s::row_bytes(k), |blocks| blocks.row_bytes(k))];
    for first in (0..n).step_by(step) {
        let count = step.min(n - first);
        let start = place.logical(first);
        let words = &mut words[..count * width];
        rows.rows_into(start..start + count, words)?;
        for row in words.chunks_exact(width) {
            match blocks {
                Some(blocks) => blocks.encode_row(row, block_scale, &mut line),
                None => i2_s::encode_row(row, &mut line),
            }
            file.put(&line)?;
        }
    }
    if blocks.is_none() { file.put(&i2_s::tail(g)) } else { Ok(()) }
}
