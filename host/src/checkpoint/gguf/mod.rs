//! GGUF checkpoints: what their metadata means for the model.
//!
//! Architectures `bitnet-b1.58`, `bitnet-25`, `bitnet` and `llama`. The function on the gate is taken
//! from `hidden_activation` where the file has it; without it the first two are relu2 and the others
//! SiLU, as their own programs read them. Writers of `llama` files store the rows of q and k with
//! rotary pairs side by side; rows are always given out half-split. Float projections are refused:
//! such files hold already rounded weights, and their mean is not the scale.

mod blocks;
pub(crate) mod reader;
mod tokenizer;

use std::{collections::BTreeMap, path::Path};

pub(crate) use self::reader::{Header, Value};
pub use self::{blocks::BlockType, tokenizer::GgufTokenizer};
use super::{
    Activation, CheckpointError, Draft, ModelConfig, OpenOptions, bytes::FileBytes,
    config::Quantization, slots::Names,
};

const ARCHITECTURES: [&str; 4] = ["bitnet-b1.58", "bitnet-25", "bitnet", "llama"];

/// Opens a GGUF file.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Draft, CheckpointError> {
    let file = FileBytes::open(path, options.mmap)?;
    let Header { metadata, tensors } = reader::read_header(&file)?;
    let keys = Keys { path, metadata: &metadata };
    let config = model_config(&keys)?;
    config.validate(path)?;
    let interleaved_qk = config.model_type == "llama";
    Ok(Draft {
        path: path.to_owned(),
        config_file: path.to_owned(),
        files: vec![file],
        tensors,
        config,
        tie: None,
        quantization: Quantization { linear_class: None, declared: true, online: false },
        names: Names::Gguf,
        interleaved_qk,
        metadata: Some(metadata),
    })
}

/// Metadata with typed access.
pub(crate) struct Keys<'a> {
    pub(crate) path: &'a Path,
    pub(crate) metadata: &'a BTreeMap<String, Value>,
}

impl Keys<'_> {
    fn refuse(&self, key: &str, value: &Value, allowed: &str) -> CheckpointError {
        CheckpointError::Field {
            file: self.path.to_owned(),
            field: key.to_owned(),
            value: value.kind(),
            allowed: allowed.to_owned(),
        }
    }

    fn read<T>(
        &self,
        key: &str,
        allowed: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, CheckpointError> {
        let value = self.metadata.get(key);
        value.map(|v| read(v).ok_or_else(|| self.refuse(key, v, allowed))).transpose()
    }

    pub(crate) fn uint(&self, key: &str) -> Result<Option<u64>, CheckpointError> {
        self.read(key, "a whole number from 0 to 2^32", |v| {
            match *v {
                Value::Uint(v) => Some(v),
                Value::Int(v) => u64::try_from(v).ok(),
                _ => None,
            }
            .filter(|&v| v <= 1 << 32)
        })
    }

    pub(crate) fn id(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        self.read(key, "a token id", |v| match *v {
            Value::Uint(v) => u32::try_from(v).ok(),
            Value::Int(v) => u32::try_from(v).ok(),
            _ => None,
        })
    }

    fn float(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        self.read(key, "a number", |v| match *v {
            Value::Float(v) => Some(v),
            _ => None,
        })
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.refuse(key, other, "a string")),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        self.read(key, "true or false", |v| match *v {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    fn need<T>(&self, key: &str, value: Option<T>) -> Result<T, CheckpointError> {
        value.ok_or_else(|| CheckpointError::MissingField {
            file: self.path.to_owned(),
            field: key.to_owned(),
        })
    }
}

fn model_config(keys: &Keys<'_>) -> Result<ModelConfig, CheckpointError> {
    let arch = keys.need("general.architecture", keys.text("general.architecture")?)?;
    if !ARCHITECTURES.contains(&arch) {
        let value = Value::Text(arch.to_owned());
        return Err(keys.refuse("general.architecture", &value, &ARCHITECTURES.join(", ")));
    }
    if let Some(parts) = keys.uint("split.count")?.filter(|&parts| parts > 1) {
        let allowed = "1 (join the parts with gguf-split --merge first)";
        return Err(keys.refuse("split.count", &Value::Uint(parts), allowed));
    }
    let key = |name: &str| format!("{arch}.{name}");
    let uint = |name: &str| -> Result<Option<usize>, CheckpointError> {
        Ok(keys.uint(&key(name))?.map(|v| v as usize))
    };
    let need = |name: &str| keys.need(&key(name), uint(name)?);

    let hidden_size = need("embedding_length")?;
    let num_heads = need("attention.head_count")?;
    let head_dim = match uint("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if num_heads > 0 && hidden_size % num_heads == 0 => hidden_size / num_heads,
        None => {
            let allowed = "a divisor of embedding_length, or an explicit attention.key_length";
            let value = Value::Uint(num_heads as u64);
            return Err(keys.refuse(&key("attention.head_count"), &value, allowed));
        }
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(found) = uint(name)?.filter(|&found| found != head_dim) {
            let allowed = format!("the head size, {head_dim}");
            return Err(keys.refuse(&key(name), &Value::Uint(found as u64), &allowed));
        }
    }
    let scaling = key("rope.scaling.type");
    match keys.text(&scaling)? {
        None | Some("none") => {}
        Some("linear") => {
            let name = key("rope.scaling.factor");
            if let Some(factor) = keys.float(&name)?.filter(|&f| f != 1.0) {
                return Err(keys.refuse(&name, &Value::Float(factor), "1"));
            }
        }
        Some(other) => {
            let value = Value::Text(other.to_owned());
            return Err(keys.refuse(&scaling, &value, "none, or linear with factor 1"));
        }
    }
    let tokens = match keys.metadata.get("tokenizer.ggml.tokens") {
        Some(Value::Array(place)) => Some(place.count as usize),
        _ => None,
    };
    let mut eos_token_ids: Vec<u32> = Vec::new();
    for name in ["eos", "eot", "eom"] {
        eos_token_ids.extend(keys.id(&format!("tokenizer.ggml.{name}_token_id"))?);
    }
    eos_token_ids.sort_unstable();
    eos_token_ids.dedup();
    Ok(ModelConfig {
        model_type: arch.to_owned(),
        hidden_size,
        intermediate_size: need("feed_forward_length")?,
        num_layers: need("block_count")?,
        num_heads,
        num_kv_heads: uint("attention.head_count_kv")?.unwrap_or(num_heads),
        head_dim,
        vocab_size: match uint("vocab_size")? {
            Some(size) => size,
            None => keys.need(&key("vocab_size"), tokens)?,
        },
        max_positions: need("context_length")?,
        // The base that every reader of the format takes when a file is silent.
        rope_theta: keys.float(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        rms_norm_eps: keys.need(
            &key("attention.layer_norm_rms_epsilon"),
            keys.float(&key("attention.layer_norm_rms_epsilon"))?,
        )? as f32,
        tie_word_embeddings: false,
        activation: activation(keys, arch)?,
        sub_norms: arch.starts_with("bitnet"),
        bos_token_id: keys.id("tokenizer.ggml.bos_token_id")?,
        eos_token_ids,
    })
}

fn activation(keys: &Keys<'_>, arch: &str) -> Result<Activation, CheckpointError> {
    for name in ["hidden_activation", "hidden_act"] {
        let key = format!("{arch}.{name}");
        match keys.text(&key)? {
            None => {}
            Some("relu2") => return Ok(Activation::Relu2),
            Some("silu" | "swish" | "swiglu") => return Ok(Activation::Silu),
            Some(other) => {
                let value = Value::Text(other.to_owned());
                return Err(keys.refuse(&key, &value, "relu2 or silu"));
            }
        }
    }
    Ok(match arch {
        "bitnet-b1.58" | "bitnet-25" => Activation::Relu2,
        _ => Activation::Silu,
    })
}
