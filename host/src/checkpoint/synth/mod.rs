//! Checkpoints of seeded random weights, in the real layouts and at the real sizes.
//!
//! For testing and measuring without a download: the files are what a published model's files are,
//! only the numbers mean nothing. Everything is a function of the seed, the tensor's name and the row,
//! so it is the same for every storage: a packed model and its float masters hold the same ternaries.
//! Scales are those of a healthy network: a projection keeps the size of what it is given, so
//! activations stay of order one at any depth. Writing is streamed; memory does not grow with the
//! model.

mod configs;
mod random;
mod tokenizer;

use std::path::Path;

pub use self::configs::NamedConfig;
use self::random::{Stream, byte_row};
use super::{
    CheckpointError, DenseSlot, FloatType, LinearClass, LinearSlot, ModelConfig, NormSlot, Proj,
    StoredType,
    slots::Names,
    write::{self, NewFile, ProgressFn, safetensors::Planned},
};
use crate::pack::hf::packed_rows;

/// How a synthetic checkpoint is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthOptions {
    /// Packed bytes (`None`), or float masters of this type.
    pub masters: Option<FloatType>,
    /// Number of `.safetensors` files, at least 1.
    pub shards: usize,
}

impl Default for SynthOptions {
    fn default() -> Self {
        Self { masters: None, shards: 1 }
    }
}

/// Writes a packed checkpoint of `named` into `folder`, which must be absent or empty.
///
/// Same seed, same files. `progress` is told bytes done and bytes in all.
pub fn write(
    folder: &Path,
    named: &NamedConfig,
    seed: u64,
    progress: ProgressFn<'_>,
) -> Result<(), CheckpointError> {
    write_with(folder, named, seed, &SynthOptions::default(), progress)
}

/// The same with another storage.
pub fn write_with(
    folder: &Path,
    named: &NamedConfig,
    seed: u64,
    options: &SynthOptions,
    progress: ProgressFn<'_>,
) -> Result<(), CheckpointError> {
    let config = &named.config;
    config.validate(Path::new(named.name))?;
    write::new_folder(folder, || {
        let packed = match options.masters {
            None => Some(named.linear_class),
            Some(_) => None,
        };
        let float = options.masters.unwrap_or(FloatType::Bf16);
        let json = write::config_json::config(config, packed, float);
        write::json_file(&folder.join("config.json"), &json)?;
        let json = write::config_json::generation(config);
        write::json_file(&folder.join("generation_config.json"), &json)?;
        tokenizer::write(folder, config)?;
        let model = Synth { named, seed, options };
        write::safetensors::write_folder(
            folder,
            model.plan(),
            options.shards,
            |tensor, file| model.emit(tensor, file),
            progress,
        )
    })
}

#[derive(Clone, Copy, Debug)]
enum Content {
    Linear(LinearSlot),
    Scale(LinearSlot),
    Norm,
    Dense,
}

struct Synth<'a> {
    named: &'a NamedConfig,
    seed: u64,
    options: &'a SynthOptions,
}

impl Synth<'_> {
    fn plan(&self) -> Vec<Planned<Content>> {
        let config = &self.named.config;
        let float = stored(self.options.masters.unwrap_or(FloatType::Bf16));
        let mut plan = Vec::new();
        let mut push = |name: String, stored, shape: Vec<usize>, content| {
            plan.push(Planned { name, stored, shape, content });
        };
        let names = Names::HuggingFace;
        let dense = vec![config.vocab_size, config.hidden_size];
        let embedding = names.dense(DenseSlot::Embedding);
        push(embedding.into(), float.clone(), dense.clone(), Content::Dense);
        for layer in 0..config.num_layers {
            for proj in Proj::ALL {
                let slot = LinearSlot { layer, proj };
                let (n, k) = config.linear_shape(proj);
                let base = names.linear(slot);
                let weight = format!("{base}.weight");
                if self.options.masters.is_some() {
                    push(weight, float.clone(), vec![n, k], Content::Linear(slot));
                } else {
                    push(weight, StoredType::U8, vec![packed_rows(n), k], Content::Linear(slot));
                    let scale = format!("{base}.weight_scale");
                    push(scale, StoredType::Bf16, vec![1], Content::Scale(slot));
                }
            }
            let (hidden, ffn) = (config.hidden_size, config.intermediate_size);
            let mut norms =
                vec![(NormSlot::Input(layer), hidden), (NormSlot::PostAttention(layer), hidden)];
            if config.sub_norms {
                norms.push((NormSlot::AttnSub(layer), config.q_rows()));
                norms.push((NormSlot::FfnSub(layer), ffn));
            }
            for (slot, width) in norms {
                let name = self.norm_name(slot);
                push(name, float.clone(), vec![width], Content::Norm);
            }
        }
        push(
            self.norm_name(NormSlot::Final),
            float.clone(),
            vec![config.hidden_size],
            Content::Norm,
        );
        if !config.tie_word_embeddings {
            push(names.dense(DenseSlot::Head).into(), float, dense, Content::Dense);
        }
        plan
    }

    fn norm_name(&self, slot: NormSlot) -> String {
        let mut names = Names::HuggingFace.norm(slot);
        match self.named.old_norm_names {
            true => names.pop().unwrap_or_default(),
            false => names.swap_remove(0),
        }
    }

    fn emit(&self, tensor: &Planned<Content>, file: &mut NewFile) -> Result<(), CheckpointError> {
        let config = &self.named.config;
        match tensor.content {
            Content::Linear(slot) => match self.options.masters {
                None => {
                    let (n, k) = config.linear_shape(slot.proj);
                    let quarter = packed_rows(n);
                    let mut row = vec![0; k];
                    for r in 0..quarter {
                        byte_row(self.seed, &tensor.name, r, &mut row);
                        // Pairs of rows that do not exist stay zero.
                        let rows = (r..n).step_by(quarter).len();
                        let mask = (1u16 << (2 * rows)).wrapping_sub(1) as u8;
                        row.iter_mut().for_each(|byte| *byte &= mask);
                        file.put(&row)?;
                    }
                    Ok(())
                }
                Some(float) => self.masters(slot, &tensor.name, float, file),
            },
            Content::Scale(slot) => {
                let g = gain(config, slot.proj);
                let stored = match self.named.linear_class {
                    LinearClass::AutoBitLinear => g,
                    LinearClass::BitLinear => 1.0 / g,
                };
                file.put(&half::bf16::from_f32(stored).to_le_bytes())
            }
            Content::Norm => self.floats(tensor, file, |stream| 1.0 + 0.1 * stream.symmetric()),
            Content::Dense => {
                // Logits come out with a standard deviation of about 2.
                let width = 2.0 * (3.0 / config.hidden_size as f32).sqrt();
                self.floats(tensor, file, |stream| width * stream.symmetric())
            }
        }
    }

    fn floats(
        &self,
        tensor: &Planned<Content>,
        file: &mut NewFile,
        mut value: impl FnMut(&mut Stream) -> f32,
    ) -> Result<(), CheckpointError> {
        let cols = tensor.shape.last().copied().unwrap_or(1);
        let rows: usize = tensor.shape.iter().product::<usize>() / cols.max(1);
        let mut bytes = Vec::new();
        for row in 0..rows {
            let mut stream = Stream::of(self.seed, &tensor.name, row);
            bytes.clear();
            for _ in 0..cols {
                encode(&tensor.stored, value(&mut stream), &mut bytes);
            }
            file.put(&bytes)?;
        }
        Ok(())
    }

    /// Master weights that round to the packed model's ternaries: `g (t + noise)` with noise below a
    /// quarter, far from the threshold of half the mean absolute value.
    fn masters(
        &self,
        slot: LinearSlot,
        name: &str,
        float: FloatType,
        file: &mut NewFile,
    ) -> Result<(), CheckpointError> {
        let (n, k) = self.named.config.linear_shape(slot.proj);
        let g = gain(&self.named.config, slot.proj);
        let quarter = packed_rows(n);
        let mut row = vec![0; k];
        let mut bytes = Vec::new();
        for r in 0..n {
            byte_row(self.seed, name, r % quarter, &mut row);
            let mut noise = Stream::of(self.seed ^ 1, name, r);
            bytes.clear();
            for byte in &row {
                let t = f32::from((byte >> (2 * (r / quarter))) & 3) - 1.0;
                encode(&stored(float), g * (t + 0.25 * noise.symmetric()), &mut bytes);
            }
            file.put(&bytes)?;
        }
        Ok(())
    }
}

fn stored(float: FloatType) -> StoredType {
    match float {
        FloatType::F32 => StoredType::F32,
        FloatType::F16 => StoredType::F16,
        FloatType::Bf16 => StoredType::Bf16,
    }
}

fn encode(stored: &StoredType, value: f32, out: &mut Vec<u8>) {
    match stored {
        StoredType::F16 => out.extend(half::f16::from_f32(value).to_le_bytes()),
        StoredType::Bf16 => out.extend(half::bf16::from_f32(value).to_le_bytes()),
        _ => out.extend(value.to_le_bytes()),
    }
}

/// g that keeps the root mean square: two thirds of the ternaries are not zero. What is added to the
/// residual stream is made smaller by the number of additions.
fn gain(config: &ModelConfig, proj: Proj) -> f32 {
    let (_, k) = config.linear_shape(proj);
    let keep = (1.5 / k as f32).sqrt();
    match proj {
        Proj::O | Proj::Down => keep / (2.0 * config.num_layers as f32).sqrt(),
        _ => keep,
    }
}
