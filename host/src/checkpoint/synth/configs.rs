//! The named configurations: published models, and tiny relatives of each family for tests.

use crate::checkpoint::{Activation, CheckpointError, LinearClass, ModelConfig};

/// A configuration that `synth` can write by name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedConfig {
    /// What it is asked for by.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Sizes and constants. The ids that begin and end text are those of the synthetic tokenizer.
    pub config: ModelConfig,
    /// What `weight_scale` means in its packed files.
    pub linear_class: LinearClass,
    /// Whether sub-norms have their older names (`inner_attn_ln`, `ffn_layernorm`).
    pub old_norm_names: bool,
}

/// Sizes as the tables list them: hidden, intermediate, layers, heads, kv heads, head size, vocabulary.
type Sizes = [usize; 7];

/// A family: model type, activation, sub-norms, tied, meaning of the scale, old names, rope base, context.
#[derive(Clone, Copy)]
struct Family {
    activation: Activation,
    sub_norms: bool,
    tied: bool,
    linear_class: LinearClass,
    old_norm_names: bool,
    rope_theta: f64,
    max_positions: usize,
}

const BITNET: Family = Family {
    activation: Activation::Relu2,
    sub_norms: true,
    tied: true,
    linear_class: LinearClass::AutoBitLinear,
    old_norm_names: false,
    rope_theta: 500_000.0,
    max_positions: 4096,
};

const ONE_BIT_LLM: Family = Family {
    activation: Activation::Silu,
    old_norm_names: true,
    rope_theta: 10_000.0,
    max_positions: 2048,
    ..BITNET
};

const LLAMA: Family = Family {
    activation: Activation::Silu,
    sub_norms: false,
    tied: false,
    linear_class: LinearClass::BitLinear,
    old_norm_names: false,
    rope_theta: 500_000.0,
    max_positions: 8192,
};

const FALCON3: Family = Family { rope_theta: 1_000_042.0, max_positions: 32_768, ..LLAMA };

const FALCON_E: Family = Family { tied: true, ..FALCON3 };

const TABLE: &[(&str, &str, Family, Sizes)] = &[
    (
        "tiny",
        "BitNet family at odd sizes: relu2, sub-norms, tied",
        BITNET,
        [192, 272, 3, 4, 2, 48, 517],
    ),
    (
        "tiny-blocks",
        "BitNet family, every size a multiple of 256: fits all packed forms",
        BITNET,
        [256, 768, 2, 4, 1, 64, 512],
    ),
    (
        "tiny-large",
        "1bitLLM family: SiLU, sub-norms by their old names, every head its own keys",
        ONE_BIT_LLM,
        [160, 344, 2, 4, 4, 40, 331],
    ),
    (
        "tiny-llama3",
        "Llama family: SiLU, no sub-norms, untied, row counts that are no multiple of 4",
        LLAMA,
        [96, 333, 2, 5, 1, 26, 389],
    ),
    (
        "tiny-falcon3",
        "Falcon3 family: heads wider than the residual stream",
        FALCON3,
        [128, 514, 2, 3, 1, 256, 301],
    ),
    (
        "tiny-falcon-e",
        "Falcon-E family: tied, eight query heads for each key head",
        FALCON_E,
        [256, 512, 2, 8, 1, 32, 288],
    ),
    ("2b4t", "microsoft/bitnet-b1.58-2B-4T", BITNET, [2560, 6912, 30, 20, 5, 128, 128_256]),
    ("large", "1bitLLM/bitnet_b1_58-large", ONE_BIT_LLM, [1536, 4096, 24, 16, 16, 96, 32_002]),
    ("3b", "1bitLLM/bitnet_b1_58-3B", ONE_BIT_LLM, [3200, 8640, 26, 32, 32, 100, 32_002]),
    (
        "llama3-8b",
        "HF1BitLLM/Llama3-8B-1.58-100B-tokens",
        LLAMA,
        [4096, 14_336, 32, 32, 8, 128, 128_256],
    ),
    ("falcon3-1b", "tiiuae/Falcon3-1B-1.58bit", FALCON3, [2048, 8192, 18, 8, 4, 256, 131_072]),
    ("falcon3-3b", "tiiuae/Falcon3-3B-1.58bit", FALCON3, [3072, 9216, 22, 12, 4, 256, 131_072]),
    ("falcon3-7b", "tiiuae/Falcon3-7B-1.58bit", FALCON3, [3072, 23_040, 28, 12, 4, 256, 131_072]),
    ("falcon3-10b", "tiiuae/Falcon3-10B-1.58bit", FALCON3, [3072, 23_040, 40, 12, 4, 256, 131_072]),
    ("falcon-e-1b", "tiiuae/Falcon-E-1B", FALCON_E, [2048, 9216, 24, 16, 2, 128, 32_768]),
    ("falcon-e-3b", "tiiuae/Falcon-E-3B", FALCON_E, [2048, 13_312, 32, 16, 2, 128, 32_768]),
];

impl NamedConfig {
    /// The configuration of this name.
    pub fn find(name: &str) -> Result<Self, CheckpointError> {
        Self::all().find(|named| named.name == name).ok_or_else(|| CheckpointError::UnknownConfig {
            name: name.chars().take(100).collect(),
            known: TABLE.iter().map(|row| row.0).collect::<Vec<_>>().join(", "),
        })
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|&(name, about, family, sizes)| {
            let [
                hidden_size,
                intermediate_size,
                num_layers,
                num_heads,
                num_kv_heads,
                head_dim,
                vocab_size,
            ] = sizes;
            let tiny = name.starts_with("tiny");
            Self {
                name,
                about,
                config: ModelConfig {
                    model_type: if family.sub_norms { "bitnet" } else { "llama" }.into(),
                    hidden_size,
                    intermediate_size,
                    num_layers,
                    num_heads,
                    num_kv_heads,
                    head_dim,
                    vocab_size,
                    max_positions: if tiny { 512 } else { family.max_positions },
                    rope_theta: family.rope_theta,
                    rms_norm_eps: 1e-5,
                    tie_word_embeddings: family.tied,
                    activation: family.activation,
                    sub_norms: family.sub_norms,
                    bos_token_id: Some(super::tokenizer::BOS),
                    eos_token_ids: vec![super::tokenizer::EOS, super::tokenizer::EOT],
                },
                linear_class: family.linear_class,
                old_norm_names: family.old_norm_names,
            }
        })
    }

    /// The same with another number of layers.
    pub fn with_layers(mut self, layers: usize) -> Self {
        self.config.num_layers = layers;
        self
    }
}
