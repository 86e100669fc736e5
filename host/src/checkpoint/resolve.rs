//! Holding a configuration against the tensors that are there.
//!
//! Every slot of the model is looked up once, its shape compared with the one that follows from the
//! configuration, its type with what can be read there. Tensors that no slot took are refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

use super::{
    Checkpoint, CheckpointError, DenseSlot, Draft, FloatType, LinearClass, LinearKind, LinearSlot,
    NormSlot, OpenOptions, Proj, TensorEntry, bytes::FileBytes, rows::RowPlace, slots::Names,
};
use crate::pack;

/// A projection's tensor and how to read it.
#[derive(Debug)]
pub(crate) struct LinearEntry {
    pub(crate) tensor: TensorEntry,
    pub(crate) kind: LinearKind,
    pub(crate) place: RowPlace,
    /// g, or the multiplier of the block scales; unused for masters.
    pub(crate) factor: f32,
    /// g of masters, once it was found.
    pub(crate) absmean: OnceLock<f32>,
}

/// All slots of a model.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) kind: LinearKind,
    pub(crate) linears: Vec<[LinearEntry; 7]>,
    pub(crate) norms: BTreeMap<NormSlot, (TensorEntry, FloatType)>,
    pub(crate) embedding: (TensorEntry, FloatType),
    pub(crate) head: Option<(TensorEntry, FloatType)>,
}

struct Resolver<'a> {
    draft: &'a Draft,
    taken: BTreeSet<&'a str>,
}

pub(crate) fn resolve(
    mut draft: Draft,
    options: &OpenOptions,
) -> Result<Checkpoint, CheckpointError> {
    let names = draft.names;
    let has = |name: &str| draft.tensors.contains_key(name);
    let sub_norms = draft.config.sub_norms
        || names.norm(NormSlot::AttnSub(0)).iter().any(|n| has(n))
        || names.norm(NormSlot::FfnSub(0)).iter().any(|n| has(n));
    let tie = draft.tie.unwrap_or(!has(names.dense(DenseSlot::Head)));
    draft.config.sub_norms = sub_norms;
    draft.config.tie_word_embeddings = tie;
    draft.config.validate(&draft.config_file)?;

    let mut resolver = Resolver { draft: &draft, taken: BTreeSet::new() };
    let resolved = resolver.all(options)?;
    resolver.nothing_left(options)?;
    let Draft { path, files, tensors, config, names, metadata, .. } = draft;
    Ok(Checkpoint { path, files, tensors, config, resolved, names, metadata })
}

impl<'a> Resolver<'a> {
    fn all(&mut self, options: &OpenOptions) -> Result<Resolved, CheckpointError> {
        let draft = self.draft;
        let config = &draft.config;
        let mut linears = Vec::new();
        let mut kind = None;
        for layer in 0..config.num_layers {
            let mut entries = Vec::with_capacity(7);
            for proj in Proj::ALL {
                let entry = self.linear(LinearSlot { layer, proj })?;
                let first = *kind.get_or_insert(entry.kind);
                if first != entry.kind {
                    return Err(CheckpointError::StoredType {
                        tensor: entry.tensor.name,
                        found: entry.tensor.stored.to_string(),
                        allowed: "the type of the other projections",
                    });
                }
                entries.push(entry);
            }
            // Seven pushes make seven entries.
            if let Ok(entries) = entries.try_into() {
                linears.push(entries);
            }
        }
        let kind = kind.ok_or(CheckpointError::Absent { what: "layer" })?;
        if matches!(kind, LinearKind::Master(_))
            && !(draft.quantization.declared || options.ternarise_any)
        {
            return Err(CheckpointError::NotBitNet {
                path: draft.path.clone(),
                model_type: config.model_type.clone(),
            });
        }
        let mut norms = BTreeMap::new();
        let (hidden, q_rows) = (config.hidden_size, config.q_rows());
        for l in 0..config.num_layers {
            for (slot, width) in
                [(NormSlot::Input(l), hidden), (NormSlot::PostAttention(l), hidden)]
            {
                norms.insert(slot, self.norm(slot, width)?);
            }
            if config.sub_norms {
                let ffn = config.intermediate_size;
                for (slot, width) in [(NormSlot::AttnSub(l), q_rows), (NormSlot::FfnSub(l), ffn)] {
                    norms.insert(slot, self.norm(slot, width)?);
                }
            }
        }
        norms.insert(NormSlot::Final, self.norm(NormSlot::Final, hidden)?);
        let embedding = self.dense(DenseSlot::Embedding)?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(self.dense(DenseSlot::Head)?),
        };
        Ok(Resolved { kind, linears, norms, embedding, head })
    }

    fn nothing_left(&self, options: &OpenOptions) -> Result<(), CheckpointError> {
        let draft = self.draft;
        let head = draft.names.dense(DenseSlot::Head);
        let extra = draft.tensors.keys().find(|name| {
            // A tied model may carry a copy of its head; like everywhere else the embedding is used.
            let spare_head = draft.config.tie_word_embeddings && name.as_str() == head;
            let known = self.taken.contains(name.as_str()) || draft.names.ignorable(name);
            !known && !spare_head
        });
        match extra {
            Some(name) if !options.allow_extra_tensors => Err(CheckpointError::UnexpectedTensor {
                tensor: name.clone(),
                model_type: draft.config.model_type.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn find(&mut self, name: &str) -> Option<&'a TensorEntry> {
        let (name, tensor) = self.draft.tensors.get_key_value(name)?;
        self.taken.insert(name);
        Some(tensor)
    }

    fn need(&mut self, name: &str) -> Result<&'a TensorEntry, CheckpointError> {
        self.find(name).ok_or_else(|| CheckpointError::MissingTensor {
            tensor: name.to_owned(),
            near: nearest(name, self.draft.tensors.keys()),
        })
    }

    fn linear(&mut self, slot: LinearSlot) -> Result<LinearEntry, CheckpointError> {
        let draft = self.draft;
        let (n, k) = draft.config.linear_shape(slot.proj);
        let base = draft.names.linear(slot);
        let tensor = self.need(&format!("{base}.weight"))?;
        let kind = LinearKind::of(&tensor.stored).filter(|kind| match draft.names {
            Names::HuggingFace => matches!(kind, LinearKind::HfPacked | LinearKind::Master(_)),
            Names::Gguf => {
                matches!(kind, LinearKind::I2S | LinearKind::Tq1_0 | LinearKind::Tq2_0)
            }
            Names::Int2 => *kind == LinearKind::Int2,
        });
        let kind = kind.ok_or_else(|| CheckpointError::StoredType {
            tensor: tensor.name.clone(),
            found: tensor.stored.to_string(),
            allowed: match draft.names {
                Names::Int2 => "I8",
                Names::HuggingFace => "U8 (packed), or F32, F16, BF16 (masters)",
                Names::Gguf => "I2_S, TQ1_0, TQ2_0 (float projections of a GGUF file are already rounded, their mean is not the scale)",
            },
        })?;
        let fused = draft.names.fused(&draft.config, slot.proj);
        match kind {
            LinearKind::I2S => pack::i2_s::check_k(k),
            LinearKind::Tq1_0 => pack::tq::TQ1_0.check_k(k),
            LinearKind::Tq2_0 => pack::tq::TQ2_0.check_k(k),
            LinearKind::Int2 => pack::int2::check(fused.rows, k),
            _ => Ok(()),
        }
        .map_err(CheckpointError::tensor(&tensor.name))?;
        match kind {
            LinearKind::HfPacked => expect_shape(tensor, &[pack::hf::packed_rows(n), k]),
            LinearKind::Int2 => expect_shape(tensor, &[fused.rows, k / 4]),
            _ => expect_shape(tensor, &[n, k]),
        }?;

        let rotary = matches!(slot.proj, Proj::Q | Proj::K) && draft.interleaved_qk;
        let place =
            RowPlace { first: fused.first, interleaved: rotary.then_some(draft.config.head_dim) };
        let factor = self.factor(kind, tensor, &base, fused.segment)?;
        pack::w2::check_scales(&[(n, factor)]).map_err(CheckpointError::tensor(&tensor.name))?;
        Ok(LinearEntry { tensor: tensor.clone(), kind, place, factor, absmean: OnceLock::new() })
    }

    /// The scale that stands outside the codes: beside them, or behind them.
    fn factor(
        &mut self,
        kind: LinearKind,
        tensor: &TensorEntry,
        base: &str,
        segment: usize,
    ) -> Result<f32, CheckpointError> {
        let file = &self.draft.files[tensor.file];
        match kind {
            LinearKind::HfPacked => {
                let scale = self.need(&format!("{base}.weight_scale"))?;
                let scale = self.scalar(scale)?;
                let quantization = self.draft.quantization;
                if quantization.online {
                    return Err(CheckpointError::Field {
                        file: self.draft.config_file.clone(),
                        field: "quantization_config.quantization_mode".into(),
                        value: "online".into(),
                        allowed: "offline, since the weights are packed".into(),
                    });
                }
                match quantization.linear_class {
                    Some(LinearClass::AutoBitLinear) => Ok(scale),
                    Some(LinearClass::BitLinear) => Ok(1.0 / scale),
                    None => Err(CheckpointError::MissingField {
                        file: self.draft.config_file.clone(),
                        field: "quantization_config (it says what weight_scale means)".into(),
                    }),
                }
            }
            LinearKind::I2S => {
                let tail = pack::i2_s::TAIL_BYTES as u64;
                let bytes = file.read(tensor.offset + tensor.bytes - tail, 4)?;
                let inside = f32::from_le_bytes(bytes.as_ref().try_into().unwrap_or([0; 4]));
                Ok(inside * self.outside_scale(base)?)
            }
            LinearKind::Tq1_0 | LinearKind::Tq2_0 => self.outside_scale(base),
            LinearKind::Int2 => {
                let tensor = self.need(&format!("{base}.weight_scale"))?;
                expect_shape(tensor, &[pack::int2::SCALES])?;
                let mut scales = [0.0; pack::int2::SCALES];
                self.values(tensor, &mut scales)?;
                Ok(scales[segment])
            }
            LinearKind::Master(_) => Ok(1.0),
        }
    }

    /// Some GGUF writers keep the scale, or a factor of it, in a tensor of its own.
    fn outside_scale(&mut self, base: &str) -> Result<f32, CheckpointError> {
        match self.find(&format!("{base}.scale")) {
            Some(tensor) => self.scalar(tensor),
            None => Ok(1.0),
        }
    }

    fn scalar(&self, tensor: &TensorEntry) -> Result<f32, CheckpointError> {
        if tensor.shape.iter().any(|&d| d != 1) {
            return Err(CheckpointError::Shape {
                tensor: tensor.name.clone(),
                found: tensor.shape.clone(),
                expected: vec![1],
            });
        }
        let mut value = [0.0];
        self.values(tensor, &mut value)?;
        Ok(value[0])
    }

    /// Reads all of a small float tensor whose shape was checked.
    fn values(&self, tensor: &TensorEntry, out: &mut [f32]) -> Result<(), CheckpointError> {
        let float = float_type(tensor)?;
        let file: &FileBytes = &self.draft.files[tensor.file];
        float.decode(&file.read(tensor.offset, out.len() * float.bytes())?, out);
        Ok(())
    }

    fn norm(
        &mut self,
        slot: NormSlot,
        width: usize,
    ) -> Result<(TensorEntry, FloatType), CheckpointError> {
        let names = self.draft.names.norm(slot);
        let present = names.iter().find(|name| self.draft.tensors.contains_key(*name));
        let tensor = self.need(present.unwrap_or(&names[0]))?;
        expect_shape(tensor, &[width])?;
        Ok((tensor.clone(), float_type(tensor)?))
    }

    fn dense(&mut self, slot: DenseSlot) -> Result<(TensorEntry, FloatType), CheckpointError> {
        let config = &self.draft.config;
        let shape = [config.vocab_size, config.hidden_size];
        let tensor = self.need(self.draft.names.dense(slot))?;
        expect_shape(tensor, &shape)?;
        let read_as = tensor.stored.dense().ok_or_else(|| CheckpointError::StoredType {
            tensor: tensor.name.clone(),
            found: tensor.stored.to_string(),
            allowed: "F32, F16, BF16, Q8_0, Q4_K or Q6_K",
        })?;
        Ok((tensor.clone(), read_as))
    }
}

fn float_type(tensor: &TensorEntry) -> Result<FloatType, CheckpointError> {
    tensor.stored.float().ok_or_else(|| CheckpointError::StoredType {
        tensor: tensor.name.clone(),
        found: tensor.stored.to_string(),
        allowed: "F32, F16 or BF16",
    })
}

fn expect_shape(tensor: &TensorEntry, expected: &[usize]) -> Result<(), CheckpointError> {
    let expected: Vec<u64> = expected.iter().map(|&d| d as u64).collect();
    if tensor.shape != expected {
        return Err(CheckpointError::Shape {
            tensor: tensor.name.clone(),
            found: tensor.shape.clone(),
            expected,
        });
    }
    Ok(())
}

/// The present name with the longest common start and end, if most of it agrees.
fn nearest<'a>(name: &str, present: impl Iterator<Item = &'a String>) -> Option<String> {
    let common = |other: &str| {
        let start = name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let end = name.bytes().rev().zip(other.bytes().rev()).take_while(|(a, b)| a == b).count();
        (start + end, start)
    };
    present
        .map(|other| (common(other), other))
        .max_by_key(|((both, start), other)| (2 * *both as i64 - other.len() as i64, *start))
        .filter(|((both, _), other)| 4 * both >= 3 * name.len().max(other.len()))
        .map(|(_, other)| other.clone())
}
