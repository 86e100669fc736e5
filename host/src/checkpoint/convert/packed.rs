//! Writing folders: Hugging Face's packed bytes, and the published int2 form.

use std::path::Path;

use half::bf16;

use super::{Target, TokenizerOutcome, tokenizer};
use crate::{
    checkpoint::{
        Checkpoint, CheckpointError, DenseSlot, FloatType, LinearClass, LinearSlot, NormSlot, Proj,
        StoredType, TernaryRows,
        rows::RowPlace,
        slots::Names,
        write::{
            self, NewFile, ProgressFn, config_json,
            safetensors::{Planned, write_folder},
        },
    },
    pack::{hf, int2},
};

/// Byte rows packed at once.
const STEP: usize = 64;
/// Bytes of a dense matrix copied at once.
const PIECE: usize = 1 << 20;

#[derive(Clone, Debug)]
enum Content {
    Packed(LinearSlot),
    Scale(LinearSlot),
    /// The projections fused in one int2 tensor.
    Fused(Vec<LinearSlot>),
    FusedScales(Vec<LinearSlot>),
    Norm(NormSlot),
    Dense(DenseSlot),
}

pub(super) fn write(
    source: &Checkpoint,
    folder: &Path,
    target: Target,
    progress: ProgressFn<'_>,
) -> Result<TokenizerOutcome, CheckpointError> {
    let config = source.config();
    let class = Some(LinearClass::AutoBitLinear);
    let float = source.dense(DenseSlot::Embedding)?.dtype;
    write::json_file(&folder.join("config.json"), &config_json::config(config, class, float))?;
    write::json_file(&folder.join("generation_config.json"), &config_json::generation(config))?;
    let outcome = tokenizer::to_folder(source, folder)?;
    let plan = match target {
        Target::Int2 => plan_int2(source)?,
        _ => plan_hf(source)?,
    };
    write_folder(folder, plan, 1, |tensor, file| emit(source, tensor, file), progress)?;
    Ok(outcome)
}

/// Tensors in front of and between the projections, with their stored types.
fn plain(
    source: &Checkpoint,
    names: Names,
    plan: &mut Vec<Planned<Content>>,
) -> Result<(), CheckpointError> {
    let config = source.config();
    let mut dense = vec![DenseSlot::Embedding];
    // The published form always has the head, even where it is the embedding.
    if !config.tie_word_embeddings || names == Names::Int2 {
        dense.push(DenseSlot::Head);
    }
    for slot in dense {
        let view = source.dense(slot)?;
        plan.push(Planned {
            name: names.dense(slot).to_owned(),
            stored: stored(view.dtype),
            shape: vec![view.rows, view.cols],
            content: Content::Dense(slot),
        });
    }
    for slot in source.norm_slots() {
        plan.push(Planned {
            name: names.norm(slot).swap_remove(0),
            stored: stored(source.norm_type(slot)?),
            shape: vec![source.norm(slot)?.len()],
            content: Content::Norm(slot),
        });
    }
    Ok(())
}

fn plan_hf(source: &Checkpoint) -> Result<Vec<Planned<Content>>, CheckpointError> {
    let names = Names::HuggingFace;
    let mut plan = Vec::new();
    plain(source, names, &mut plan)?;
    for slot in source.linear_slots() {
        let (n, k) = source.config().linear_shape(slot.proj);
        let base = names.linear(slot);
        plan.push(Planned {
            name: format!("{base}.weight"),
            stored: StoredType::U8,
            shape: vec![hf::packed_rows(n), k],
            content: Content::Packed(slot),
        });
        // bf16 as published where that is exact, f32 where it is not.
        let g = source.linear(slot)?.scale();
        let exact = bf16::from_f32(g).to_f32() == g;
        plan.push(Planned {
            name: format!("{base}.weight_scale"),
            stored: if exact { StoredType::Bf16 } else { StoredType::F32 },
            shape: vec![1],
            content: Content::Scale(slot),
        });
    }
    Ok(plan)
}

fn plan_int2(source: &Checkpoint) -> Result<Vec<Planned<Content>>, CheckpointError> {
    let names = Names::Int2;
    let mut plan = Vec::new();
    plain(source, names, &mut plan)?;
    let groups: [&[Proj]; 4] =
        [&[Proj::Q, Proj::K, Proj::V], &[Proj::O], &[Proj::Gate, Proj::Up], &[Proj::Down]];
    for layer in 0..source.config().num_layers {
        for group in groups {
            let slots: Vec<_> = group.iter().map(|&proj| LinearSlot { layer, proj }).collect();
            let base = names.linear(slots[0]);
            let (_, k) = source.config().linear_shape(group[0]);
            let rows = names.fused(source.config(), group[0]).rows;
            plan.push(Planned {
                name: format!("{base}.weight"),
                stored: StoredType::I8,
                shape: vec![rows, k / 4],
                content: Content::Fused(slots.clone()),
            });
            plan.push(Planned {
                name: format!("{base}.weight_scale"),
                stored: StoredType::Bf16,
                shape: vec![int2::SCALES],
                content: Content::FusedScales(slots),
            });
        }
    }
    Ok(plan)
}

fn emit(
    source: &Checkpoint,
    tensor: &Planned<Content>,
    file: &mut NewFile,
) -> Result<(), CheckpointError> {
    match &tensor.content {
        Content::Packed(slot) => packed_rows(&source.linear(*slot)?, file),
        Content::Scale(slot) => {
            let g = source.linear(*slot)?.scale();
            match tensor.stored {
                StoredType::Bf16 => file.put(&bf16::from_f32(g).to_le_bytes()),
                _ => file.put(&g.to_le_bytes()),
            }
        }
        Content::Fused(slots) => fused_rows(source, slots, file),
        Content::FusedScales(slots) => {
            let mut scales = [bf16::ZERO; int2::SCALES];
            for (scale, &slot) in scales.iter_mut().zip(slots) {
                *scale = bf16::from_f32(source.linear(slot)?.scale());
            }
            scales.iter().try_for_each(|scale| file.put(&scale.to_le_bytes()))
        }
        Content::Norm(slot) => file.put(&source.norm_bytes(*slot)?),
        Content::Dense(slot) => copy_dense(source, *slot, file),
    }
}

pub(super) fn copy_dense(
    source: &Checkpoint,
    slot: DenseSlot,
    file: &mut NewFile,
) -> Result<(), CheckpointError> {
    let view = source.dense(slot)?;
    let step = (PIECE / view.row_bytes()).max(1);
    for first in (0..view.rows).step_by(step) {
        file.put(&view.bytes(first..(first + step).min(view.rows))?)?;
    }
    Ok(())
}

pub(super) fn stored(float: FloatType) -> StoredType {
    match float {
        FloatType::F32 => StoredType::F32,
        FloatType::F16 => StoredType::F16,
        FloatType::Bf16 => StoredType::Bf16,
    }
}

fn packed_rows(rows: &TernaryRows<'_>, file: &mut NewFile) -> Result<(), CheckpointError> {
    let (n, k, width) = (rows.n(), rows.k(), rows.words_per_row());
    let quarter = hf::packed_rows(n);
    let mut words: [Vec<u32>; 4] = std::array::from_fn(|_| vec![0; STEP * width]);
    let mut line = vec![0; k];
    for first in (0..quarter).step_by(STEP) {
        let count = STEP.min(quarter - first);
        let mut held = [0; 4];
        for (q, words) in words.iter_mut().enumerate() {
            let start = (first + q * quarter).min(n);
            // The last quarter may have fewer rows.
            let end = (start + count).min(n);
            held[q] = end - start;
            rows.rows_into(start..end, &mut words[..held[q] * width])?;
        }
        for i in 0..count {
            let shared: Vec<&[u32]> = words
                .iter()
                .zip(held)
                .take_while(|(_, held)| i < *held)
                .map(|(words, _)| &words[i * width..(i + 1) * width])
                .collect();
            hf::encode_row(&shared, &mut line);
            file.put(&line)?;
        }
    }
    Ok(())
}

fn fused_rows(
    source: &Checkpoint,
    slots: &[LinearSlot],
    file: &mut NewFile,
) -> Result<(), CheckpointError> {
    let config = source.config();
    let mut parts = Vec::new();
    for &slot in slots {
        let first = Names::Int2.fused(config, slot.proj).first;
        let rotary = matches!(slot.proj, Proj::Q | Proj::K).then_some(config.head_dim);
        parts.push((source.linear(slot)?, RowPlace { first, interleaved: rotary }));
    }
    let (k, width) = (parts[0].0.k(), parts[0].0.words_per_row());
    let total: usize = parts.iter().map(|(rows, _)| rows.n()).sum();
    let mut band = vec![0; int2::BAND * width];
    let mut words = vec![0; k];
    let mut bytes = Vec::with_capacity(4 * k);
    for first in (0..total).step_by(int2::BAND) {
        for (row, out) in (first..).zip(band.chunks_exact_mut(width)) {
            let part = parts.iter().rev().find(|(_, place)| place.first <= row);
            let Some((rows, place)) = part else { continue };
            let logical = place.logical(row);
            rows.rows_into(logical..logical + 1, out)?;
        }
        int2::encode_band(&band, k, &mut words);
        bytes.clear();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        file.put(&bytes)?;
    }
    Ok(())
}
