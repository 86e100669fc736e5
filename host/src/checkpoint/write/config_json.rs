//! `config.json` and `generation_config.json` as transformers reads them.

use serde_json::{Map, Value, json};

use crate::checkpoint::{Activation, FloatType, LinearClass, ModelConfig};

/// `config.json` of a model whose projections are packed (`Some(class)`) or float masters.
///
/// Models with sub-norms are transformers' `bitnet`, those without its `llama`.
pub(crate) fn config(model: &ModelConfig, packed: Option<LinearClass>, float: FloatType) -> Value {
    let (model_type, class) = match model.sub_norms {
        true => ("bitnet", "BitNetForCausalLM"),
        false => ("llama", "LlamaForCausalLM"),
    };
    let (linear_class, mode) = match packed {
        Some(LinearClass::BitLinear) => ("bitlinear", "offline"),
        Some(LinearClass::AutoBitLinear) => ("autobitlinear", "offline"),
        None => ("autobitlinear", "online"),
    };
    let mut config = json!({
        "architectures": [class],
        "attention_bias": false,
        "head_dim": model.head_dim,
        "hidden_act": match model.activation {
            Activation::Relu2 => "relu2",
            Activation::Silu => "silu",
        },
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_positions,
        "model_type": model_type,
        "num_attention_heads": model.num_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "quantization_config": {
            "linear_class": linear_class,
            "quant_method": "bitnet",
            "quantization_mode": mode,
        },
        "rms_norm_eps": shortest(model.rms_norm_eps),
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_word_embeddings,
        "torch_dtype": match float {
            FloatType::F32 => "float32",
            FloatType::F16 => "float16",
            FloatType::Bf16 => "bfloat16",
        },
        "vocab_size": model.vocab_size,
    });
    if let Value::Object(config) = &mut config {
        config.extend(ids(model));
    }
    config
}

/// `generation_config.json`: the ids alone.
pub(crate) fn generation(model: &ModelConfig) -> Value {
    Value::Object(ids(model))
}

fn ids(model: &ModelConfig) -> Map<String, Value> {
    let mut map = Map::new();
    if let Some(bos) = model.bos_token_id {
        map.insert("bos_token_id".into(), bos.into());
    }
    match model.eos_token_ids.as_slice() {
        [] => None,
        [one] => map.insert("eos_token_id".into(), (*one).into()),
        many => map.insert("eos_token_id".into(), many.into()),
    };
    map
}

/// The f64 that prints as the f32 does (1e-5, not 9.99999974737875e-6).
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
