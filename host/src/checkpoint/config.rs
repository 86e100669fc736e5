//! What a model is made of, checked as a whole before anything is allocated or read by it.
//!
//! [`ModelConfig`] is what every later part takes its sizes from, so [`ModelConfig::validate`] holds
//! all products and divisibilities, in `u64`: whatever passes cannot index out of a tensor whose
//! shape was compared with it. Fields that would change the arithmetic and are not supported are
//! refused by name, never ignored.

use std::path::Path;

use contract::w2a8::{MAX_K, MAX_ROWS};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CheckpointError, Proj};

/// The function on the gate in the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `max(x, 0)^2`.
    Relu2,
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// Sizes and constants of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// As the checkpoint names its family: `bitnet`, `llama`, or a GGUF architecture.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward block.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; even. `num_heads * head_dim` need not be `hidden_size`.
    pub head_dim: usize,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Longest context the model was made for.
    pub max_positions: usize,
    /// Base of the rotary angles. Pairs are always half-split: (d, d + head_dim / 2).
    pub rope_theta: f64,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f32,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Function on the gate.
    pub activation: Activation,
    /// Whether an RMSNorm stands before the output and the down projection.
    pub sub_norms: bool,
    /// Token put in front of a prompt.
    pub bos_token_id: Option<u32>,
    /// Tokens that end generation.
    pub eos_token_ids: Vec<u32>,
}

/// Largest head the attention kernels take.
pub const MAX_HEAD_DIM: usize = 256;
/// Most transformer blocks.
pub const MAX_LAYERS: usize = 1 << 12;
/// Longest context.
pub const MAX_POSITIONS: usize = 1 << 24;

impl ModelConfig {
    /// Rows of the query projection.
    pub fn q_rows(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Rows of the key and of the value projection.
    pub fn kv_rows(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// (N, K) of a projection.
    pub fn linear_shape(&self, proj: Proj) -> (usize, usize) {
        let (hidden, ffn) = (self.hidden_size, self.intermediate_size);
        match proj {
            Proj::Q => (self.q_rows(), hidden),
            Proj::K | Proj::V => (self.kv_rows(), hidden),
            Proj::O => (hidden, self.q_rows()),
            Proj::Gate | Proj::Up => (ffn, hidden),
            Proj::Down => (hidden, ffn),
        }
    }

    /// Ternary weights of the whole model.
    pub fn ternary_weights(&self) -> u64 {
        let layer: u64 = Proj::ALL
            .iter()
            .map(|&proj| {
                let (n, k) = self.linear_shape(proj);
                n as u64 * k as u64
            })
            .sum();
        layer * self.num_layers as u64
    }

    /// Checks every bound and product; `file` is named in errors.
    pub fn validate(&self, file: &Path) -> Result<(), CheckpointError> {
        let field = |field: &str, value: String, allowed: String| CheckpointError::Field {
            file: file.to_owned(),
            field: field.into(),
            value,
            allowed,
        };
        let bounds = [
            ("hidden_size", self.hidden_size, MAX_K),
            ("intermediate_size", self.intermediate_size, MAX_K),
            ("num_hidden_layers", self.num_layers, MAX_LAYERS),
            ("num_attention_heads", self.num_heads, MAX_K),
            ("num_key_value_heads", self.num_kv_heads, MAX_K),
            ("head_dim", self.head_dim, MAX_HEAD_DIM),
            ("vocab_size", self.vocab_size, MAX_ROWS),
            ("max_position_embeddings", self.max_positions, MAX_POSITIONS),
        ];
        for (name, value, most) in bounds {
            if value == 0 || value > most {
                return Err(field(name, value.to_string(), format!("1 to {most}")));
            }
        }
        if !self.head_dim.is_multiple_of(2) {
            let value = self.head_dim.to_string();
            return Err(field("head_dim", value, "an even number (rotary pairs)".into()));
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let allowed = format!("a divisor of num_attention_heads = {}", self.num_heads);
            return Err(field("num_key_value_heads", self.num_kv_heads.to_string(), allowed));
        }
        // All factors are at most 2^24, so these products stay far below 2^64.
        let q_rows = self.num_heads as u64 * self.head_dim as u64;
        if q_rows > MAX_K as u64 {
            let allowed = format!("at most {MAX_K} (it is the K of the output projection)");
            return Err(field("num_attention_heads * head_dim", q_rows.to_string(), allowed));
        }
        let fused = q_rows + 2 * self.num_kv_heads as u64 * self.head_dim as u64;
        if fused > MAX_ROWS as u64 {
            let allowed = format!("at most {MAX_ROWS} rows of q, k and v");
            return Err(field("num_key_value_heads * head_dim", fused.to_string(), allowed));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta >= 1.0) {
            return Err(field("rope_theta", self.rope_theta.to_string(), "1 or more".into()));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            let value = self.rms_norm_eps.to_string();
            return Err(field("rms_norm_eps", value, "above 0 and below 1".into()));
        }
        let below_vocab = |id: u32| (id as usize) < self.vocab_size;
        for (name, id) in self
            .bos_token_id
            .map(|id| ("bos_token_id", id))
            .into_iter()
            .chain(self.eos_token_ids.iter().map(|&id| ("eos_token_id", id)))
        {
            if !below_vocab(id) {
                let allowed = format!("below vocab_size = {}", self.vocab_size);
                return Err(field(name, id.to_string(), allowed));
            }
        }
        Ok(())
    }
}

/// How a packed Hugging Face checkpoint means its `weight_scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinearClass {
    /// `weight_scale` is the divisor of the result: g is its reciprocal.
    BitLinear,
    /// `weight_scale` multiplies the result: g itself.
    AutoBitLinear,
}

/// What a configuration says about quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantization {
    /// Absent when the file has no `quantization_config`.
    pub(crate) linear_class: Option<LinearClass>,
    /// Whether anything declares the float weights to be BitNet masters.
    pub(crate) declared: bool,
    pub(crate) online: bool,
}

/// A JSON object whose fields are read with their bounds.
pub(crate) struct Fields<'a> {
    file: &'a Path,
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(file: &'a Path, value: &'a Value) -> Result<Self, CheckpointError> {
        Self::nested(file, "", value)
    }

    fn nested(
        file: &'a Path,
        prefix: &'static str,
        value: &'a Value,
    ) -> Result<Self, CheckpointError> {
        let map = value.as_object().ok_or_else(|| CheckpointError::Field {
            file: file.to_owned(),
            field: if prefix.is_empty() { "the whole".into() } else { prefix.into() },
            value: kind_of(value).into(),
            allowed: "an object".into(),
        })?;
        Ok(Self { file, prefix, map })
    }

    fn refuse(&self, field: &str, value: &Value, allowed: &str) -> CheckpointError {
        let mut text = value.to_string();
        if text.len() > 120 {
            text = format!("{}...", text.chars().take(100).collect::<String>());
        }
        CheckpointError::Field {
            file: self.file.to_owned(),
            field: format!("{}{field}", self.prefix),
            value: text,
            allowed: allowed.into(),
        }
    }

    fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    fn need<T>(&self, field: &str, value: Option<T>) -> Result<T, CheckpointError> {
        value.ok_or_else(|| CheckpointError::MissingField {
            file: self.file.to_owned(),
            field: format!("{}{field}", self.prefix),
        })
    }

    fn read<T>(
        &self,
        field: &str,
        allowed: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, CheckpointError> {
        self.get(field).map(|v| read(v).ok_or_else(|| self.refuse(field, v, allowed))).transpose()
    }

    fn uint(&self, field: &str) -> Result<Option<usize>, CheckpointError> {
        self.read(field, "a whole number from 0 to 2^32", |v| {
            v.as_u64().filter(|&n| n <= 1 << 32).map(|n| n as usize)
        })
    }

    fn float(&self, field: &str) -> Result<Option<f64>, CheckpointError> {
        self.read(field, "a number", Value::as_f64)
    }

    fn text(&self, field: &str) -> Result<Option<&'a str>, CheckpointError> {
        self.read(field, "a string", Value::as_str)
    }

    fn flag(&self, field: &str) -> Result<Option<bool>, CheckpointError> {
        self.read(field, "true or false", Value::as_bool)
    }

    fn must_be_false(&self, field: &str) -> Result<(), CheckpointError> {
        match self.flag(field)? {
            Some(true) => Err(self.refuse(field, &Value::Bool(true), "false")),
            _ => Ok(()),
        }
    }

    fn token(&self, field: &str) -> Result<Vec<u32>, CheckpointError> {
        let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = self.read(field, "a token id, or a list of at most 64", |v| match v {
            Value::Array(ids) if ids.len() <= 64 => ids.iter().map(id).collect(),
            v => id(v).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Reads `config.json` (and `generation_config.json`). `sub_norms` is a guess from the family until
/// the tensors are seen, and `tie_word_embeddings` is `None` when the file does not say.
pub(crate) fn from_hugging_face(
    file: &Path,
    config: &Value,
    generation: Option<(&Path, &Value)>,
) -> Result<(ModelConfig, Option<bool>, Quantization), CheckpointError> {
    let c = Fields::of(file, config)?;
    let model_type = c.need("model_type", c.text("model_type")?)?;
    if !["bitnet", "llama"].contains(&model_type) {
        return Err(c.refuse("model_type", &config["model_type"], "bitnet or llama"));
    }
    for field in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        c.must_be_false(field)?;
    }
    if let Some(window) = c.get("sliding_window") {
        return Err(c.refuse("sliding_window", window, "absent"));
    }
    if let Some(factor) = c.get("partial_rotary_factor").filter(|v| v.as_f64() != Some(1.0)) {
        return Err(c.refuse("partial_rotary_factor", factor, "1"));
    }
    let rope = rope_theta(&c)?;
    let need_uint = |field| c.need(field, c.uint(field)?);
    let hidden_size = need_uint("hidden_size")?;
    let num_heads = need_uint("num_attention_heads")?;
    let head_dim = match c.uint("head_dim")? {
        Some(head_dim) => head_dim,
        None if num_heads > 0 && hidden_size % num_heads == 0 => hidden_size / num_heads,
        None => {
            let allowed = "a divisor of hidden_size, or an explicit head_dim";
            return Err(c.refuse("num_attention_heads", &num_heads.into(), allowed));
        }
    };
    let activation = match c.text("hidden_act")? {
        Some("relu2") => Activation::Relu2,
        Some("silu" | "swish") => Activation::Silu,
        None if model_type == "bitnet" => Activation::Relu2,
        None => Activation::Silu,
        Some(other) => return Err(c.refuse("hidden_act", &other.into(), "relu2 or silu")),
    };
    let mut eos_token_ids = c.token("eos_token_id")?;
    if let Some((file, generation)) = generation {
        eos_token_ids.extend(Fields::of(file, generation)?.token("eos_token_id")?);
    }
    eos_token_ids.sort_unstable();
    eos_token_ids.dedup();
    let tie = c.flag("tie_word_embeddings")?;
    let model = ModelConfig {
        model_type: model_type.into(),
        hidden_size,
        intermediate_size: need_uint("intermediate_size")?,
        num_layers: need_uint("num_hidden_layers")?,
        num_heads,
        num_kv_heads: c.uint("num_key_value_heads")?.unwrap_or(num_heads),
        head_dim,
        vocab_size: need_uint("vocab_size")?,
        max_positions: need_uint("max_position_embeddings")?,
        rope_theta: rope,
        rms_norm_eps: c.need("rms_norm_eps", c.float("rms_norm_eps")?)? as f32,
        tie_word_embeddings: tie.unwrap_or(false),
        activation,
        sub_norms: model_type == "bitnet",
        bos_token_id: c.token("bos_token_id")?.first().copied(),
        eos_token_ids,
    };
    model.validate(file)?;
    Ok((model, tie, quantization(file, &c)?))
}

fn rope_theta(c: &Fields<'_>) -> Result<f64, CheckpointError> {
    let plain = |fields: &Fields<'_>| -> Result<(), CheckpointError> {
        for name in ["rope_type", "type"] {
            if let Some(kind) = fields.get(name).filter(|v| v.as_str() != Some("default")) {
                return Err(fields.refuse(name, kind, "default (no scaling of positions)"));
            }
        }
        Ok(())
    };
    if let Some(scaling) = c.get("rope_scaling") {
        plain(&Fields::nested(c.file, "rope_scaling.", scaling)?)?;
    }
    let Some(parameters) = c.get("rope_parameters") else {
        return c.need("rope_theta", c.float("rope_theta")?);
    };
    let parameters = Fields::nested(c.file, "rope_parameters.", parameters)?;
    plain(&parameters)?;
    match parameters.float("rope_theta")? {
        Some(theta) => Ok(theta),
        None => c.need("rope_theta", c.float("rope_theta")?),
    }
}

fn quantization(file: &Path, c: &Fields<'_>) -> Result<Quantization, CheckpointError> {
    let bits = c.uint("weight_bits")?;
    if let Some(bits) = bits.filter(|&bits| bits != 1) {
        return Err(c.refuse("weight_bits", &bits.into(), "1"));
    }
    if let Some(bits) = c.uint("input_bits")?.filter(|&bits| bits != 8) {
        return Err(c.refuse("input_bits", &bits.into(), "8"));
    }
    let Some(value) = c.get("quantization_config") else {
        let declared = bits == Some(1) || c.text("model_type")? == Some("bitnet");
        return Ok(Quantization { linear_class: None, declared, online: false });
    };
    let q = Fields::nested(file, "quantization_config.", value)?;
    match q.need("quant_method", q.text("quant_method")?)? {
        "bitnet" => {}
        other => return Err(q.refuse("quant_method", &other.into(), "bitnet")),
    }
    q.must_be_false("use_rms_norm")?;
    let linear_class = match q.text("linear_class")? {
        Some("autobitlinear") => LinearClass::AutoBitLinear,
        Some("bitlinear") | None => LinearClass::BitLinear,
        Some(other) => {
            return Err(q.refuse("linear_class", &other.into(), "bitlinear or autobitlinear"));
        }
    };
    let online = match q.text("quantization_mode")? {
        Some("online") => true,
        Some("offline") | None => false,
        Some(other) => {
            return Err(q.refuse("quantization_mode", &other.into(), "offline or online"));
        }
    };
    Ok(Quantization { linear_class: Some(linear_class), declared: true, online })
}
