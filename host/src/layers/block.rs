//! One transformer block: norm, attention, norm, feed-forward.
//!
//! The residual add of a projection is done by the norm that follows it, so a block takes the
//! previous block's `delta` and leaves its own. A single row takes five fused operations instead, and
//! leaves nothing to add.

use super::activations::{Activations, Past};
use super::{AttentionLayer, Mlp};
use crate::ops::act_quant::{ActQuant, Source};
use crate::ops::decode_layers::{Layer, Linear};
use crate::ops::rope::RopeTable;
use crate::ops::{Backend, OpError};

/// Weights of one block.
pub struct Block<B: Backend> {
    /// Gain of the norm in front of attention.
    pub input_norm: B::Buf<f32>,
    /// Attention.
    pub attention: AttentionLayer<B>,
    /// Gain of the norm in front of the feed-forward part.
    pub post_attention_norm: B::Buf<f32>,
    /// Feed-forward part.
    pub mlp: Mlp<B>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Added to the mean square of the norms.
    pub eps: f32,
}

impl<B: Backend> Block<B> {
    /// Runs `m` rows through the block. `pending`: there is an `x.delta` to add first. Says whether there is
    /// one afterwards.
    ///
    /// # Errors
    /// Shapes that do not fit; a failed launch.
    pub fn forward(
        &self,
        backend: &B,
        x: &mut Activations<B>,
        past: Past<'_, B>,
        rope: &RopeTable<B>,
        m: usize,
        pending: bool,
    ) -> Result<bool, OpError> {
        if x.fused(m) && !pending {
            self.attention.step(backend, x, &self.input_norm, past, rope)?;
            self.mlp.step(backend, x, &self.post_attention_norm)?;
            return Ok(false);
        }
        let behind = past.behind_mlp();
        self.norm(backend, x, &self.input_norm, m, pending)?;
        self.attention.forward(backend, x, past, rope, m)?;
        self.norm(backend, x, &self.post_attention_norm, m, true)?;
        self.mlp.forward(backend, x, m, behind)?;
        Ok(true)
    }

    /// Its linear layers, each with the norm in front of it.
    pub fn linears(&self) -> Layer<'_, B> {
        let Self { attention, mlp, .. } = self;
        [
            Linear { w: &attention.qkv, norm: Some(&self.input_norm) },
            Linear { w: &attention.o, norm: attention.sub_norm.as_ref() },
            Linear { w: &mlp.gate_up, norm: Some(&self.post_attention_norm) },
            Linear { w: &mlp.down, norm: mlp.sub_norm.as_ref() },
        ]
    }

    fn norm(
        &self,
        backend: &B,
        x: &mut Activations<B>,
        weight: &B::Buf<f32>,
        m: usize,
        add: bool,
    ) -> Result<(), OpError> {
        let source =
            Source::RmsNorm { x: &mut x.h, delta: add.then_some(&x.delta), weight, eps: self.eps };
        backend.act_quant(ActQuant { source, out: &mut x.acts, m, k: self.hidden })
    }
}
