//! The places of a model that hold weights, and what each container calls them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ModelConfig;

/// A projection of a transformer block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proj {
    /// Query, `[heads * head_dim, hidden]`.
    Q,
    /// Key, `[kv_heads * head_dim, hidden]`.
    K,
    /// Value, `[kv_heads * head_dim, hidden]`.
    V,
    /// Attention output, `[hidden, heads * head_dim]`.
    O,
    /// Feed-forward gate, `[intermediate, hidden]`.
    Gate,
    /// Feed-forward up, `[intermediate, hidden]`.
    Up,
    /// Feed-forward down, `[hidden, intermediate]`.
    Down,
}

impl Proj {
    /// All of a block, in the order they are applied.
    pub const ALL: [Self; 7] =
        [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];
}

impl fmt::Display for Proj {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["q", "k", "v", "o", "gate", "up", "down"][*self as usize])
    }
}

/// A ternary matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinearSlot {
    /// Transformer block, from 0.
    pub layer: usize,
    /// Which projection.
    pub proj: Proj,
}

/// A vector of RMSNorm gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NormSlot {
    /// Before attention in block `.0`; width hidden.
    Input(usize),
    /// Before the feed-forward part of block `.0`; width hidden.
    PostAttention(usize),
    /// Before the output projection of block `.0`; width heads * head_dim. Only with sub-norms.
    AttnSub(usize),
    /// Before the down projection of block `.0`; width intermediate. Only with sub-norms.
    FfnSub(usize),
    /// Before the head; width hidden.
    Final,
}

/// A dense matrix `[vocab, hidden]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DenseSlot {
    /// Token embedding.
    Embedding,
    /// Output head; the embedding itself when tied.
    Head,
}

/// A container's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    HuggingFace,
    Gguf,
    /// The published GPU checkpoint: q, k, v and gate, up are one tensor each.
    Int2,
}

/// Where a projection stands in its tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fused {
    /// First row.
    pub(crate) first: usize,
    /// Rows of the whole tensor.
    pub(crate) rows: usize,
    /// Which of the tensor's scales.
    pub(crate) segment: usize,
}

impl Names {
    /// The projection's name without `.weight`.
    pub(crate) fn linear(self, slot: LinearSlot) -> String {
        let LinearSlot { layer, proj } = slot;
        match self {
            Self::HuggingFace => {
                let block = if proj <= Proj::O { "self_attn" } else { "mlp" };
                format!("model.layers.{layer}.{block}.{proj}_proj")
            }
            Self::Gguf => {
                let part = match proj {
                    Proj::Q => "attn_q",
                    Proj::K => "attn_k",
                    Proj::V => "attn_v",
                    Proj::O => "attn_output",
                    Proj::Gate => "ffn_gate",
                    Proj::Up => "ffn_up",
                    Proj::Down => "ffn_down",
                };
                format!("blk.{layer}.{part}")
            }
            Self::Int2 => {
                let part = match proj {
                    Proj::Q | Proj::K | Proj::V => "attention.wqkv",
                    Proj::O => "attention.wo",
                    Proj::Gate | Proj::Up => "feed_forward.w13",
                    Proj::Down => "feed_forward.w2",
                };
                format!("layers.{layer}.{part}")
            }
        }
    }

    /// Where the projection stands in the tensor of that name.
    pub(crate) fn fused(self, config: &ModelConfig, proj: Proj) -> Fused {
        let (n, _) = config.linear_shape(proj);
        let (q, kv, ffn) = (config.q_rows(), config.kv_rows(), config.intermediate_size);
        match (self, proj) {
            (Self::Int2, Proj::Q) => Fused { first: 0, rows: q + 2 * kv, segment: 0 },
            (Self::Int2, Proj::K) => Fused { first: q, rows: q + 2 * kv, segment: 1 },
            (Self::Int2, Proj::V) => Fused { first: q + kv, rows: q + 2 * kv, segment: 2 },
            (Self::Int2, Proj::Gate) => Fused { first: 0, rows: 2 * ffn, segment: 0 },
            (Self::Int2, Proj::Up) => Fused { first: ffn, rows: 2 * ffn, segment: 1 },
            _ => Fused { first: 0, rows: n, segment: 0 },
        }
    }

    /// Names the norm can have, the usual one first.
    pub(crate) fn norm(self, slot: NormSlot) -> Vec<String> {
        let (layer, parts): (_, &[&str]) = match (self, slot) {
            (Self::HuggingFace, NormSlot::Final) => return vec!["model.norm.weight".into()],
            (Self::Gguf, NormSlot::Final) => return vec!["output_norm.weight".into()],
            (Self::Int2, NormSlot::Final) => return vec!["norm.weight".into()],
            (Self::Int2, NormSlot::Input(l)) => (l, &["attention_norm"]),
            (Self::Int2, NormSlot::PostAttention(l)) => (l, &["ffn_norm"]),
            (Self::Int2, NormSlot::AttnSub(l)) => (l, &["attention.attn_sub_norm"]),
            (Self::Int2, NormSlot::FfnSub(l)) => (l, &["feed_forward.ffn_sub_norm"]),
            (Self::HuggingFace, NormSlot::Input(l)) => (l, &["input_layernorm"]),
            (Self::HuggingFace, NormSlot::PostAttention(l)) => (l, &["post_attention_layernorm"]),
            (Self::HuggingFace, NormSlot::AttnSub(l)) => {
                (l, &["self_attn.attn_sub_norm", "self_attn.inner_attn_ln"])
            }
            (Self::HuggingFace, NormSlot::FfnSub(l)) => {
                (l, &["mlp.ffn_sub_norm", "mlp.ffn_layernorm"])
            }
            (Self::Gguf, NormSlot::Input(l)) => (l, &["attn_norm"]),
            (Self::Gguf, NormSlot::PostAttention(l)) => (l, &["ffn_norm"]),
            (Self::Gguf, NormSlot::AttnSub(l)) => (l, &["attn_sub_norm"]),
            (Self::Gguf, NormSlot::FfnSub(l)) => (l, &["ffn_sub_norm"]),
        };
        let block = match self {
            Self::HuggingFace => "model.layers",
            Self::Gguf => "blk",
            Self::Int2 => "layers",
        };
        parts.iter().map(|part| format!("{block}.{layer}.{part}.weight")).collect()
    }

    pub(crate) fn dense(self, slot: DenseSlot) -> &'static str {
        match (self, slot) {
            (Self::HuggingFace, DenseSlot::Embedding) => "model.embed_tokens.weight",
            (Self::HuggingFace, DenseSlot::Head) => "lm_head.weight",
            (Self::Int2, DenseSlot::Embedding) => "tok_embeddings.weight",
            (Self::Int2, DenseSlot::Head) => "output.weight",
            (Self::Gguf, DenseSlot::Embedding) => "token_embd.weight",
            (Self::Gguf, DenseSlot::Head) => "output.weight",
        }
    }

    /// Tensors that carry nothing a forward pass needs.
    pub(crate) fn ignorable(self, name: &str) -> bool {
        self != Self::Gguf && name.ends_with(".rotary_emb.inv_freq")
    }
}
