//! From a checkpoint to weights on a backend, a few megabytes at a time.

use contract::num::RowType;
use contract::w2a8::{Segments, row_words};

use super::Model;
use super::bitnet::heads;
use crate::checkpoint::{
    Activation, Checkpoint, CheckpointError, DenseSlot, FloatType, LinearSlot, NormSlot, Proj,
    TernaryRows,
};
use crate::layers::{AttentionLayer, Block, Mlp};
use crate::ops::act_quant::Gate;
use crate::ops::{Backend, Dense, Math, OpError, PackedLinear, WeightLayout};

/// Bytes that are decoded and copied at once.
const PIECE_BYTES: usize = 4 << 20;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Projections that do not make one matrix.
    #[error(
        "the projections of layer {layer} cannot be fused: {rows} rows; the kernels take at most 2^24"
    )]
    Fuse {
        /// Transformer block.
        layer: usize,
        /// Rows together.
        rows: usize,
    },
}

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Weights on the device: ternaries and table elements.
    pub done: u64,
    /// Weights of the model.
    pub total: u64,
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    layout: WeightLayout,
    progress: &'a mut dyn FnMut(LoadProgress),
    done: u64,
    total: u64,
}

impl<B: Backend> Model<B> {
    /// Brings the weights of `checkpoint` to `backend`, ternaries at 2 bits.
    ///
    /// # Errors
    /// Tensors that are missing, damaged or of another shape; out of memory; a failed copy.
    pub fn load(
        backend: B,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        Self::load_in(backend, checkpoint, WeightLayout::Bits2, progress)
    }

    /// The same with ternaries in `layout`. The bits of what the model computes are the same.
    ///
    /// At 1.6 bits a decode step takes the operations one by one: the fused ones and the kernel of all layers read 2-bit
    /// weights.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_in(
        backend: B,
        checkpoint: &Checkpoint,
        layout: WeightLayout,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config().clone();
        let tables = if config.tie_word_embeddings { 1 } else { 2 };
        let total = config.ternary_weights()
            + tables * config.vocab_size as u64 * config.hidden_size as u64;
        let mut loader = Loader { backend: &backend, checkpoint, layout, progress, done: 0, total };
        let embedding = loader.dense(DenseSlot::Embedding, "embedding")?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(loader.dense(DenseSlot::Head, "head")?),
        };
        let blocks =
            (0..config.num_layers).map(|layer| loader.block(layer)).collect::<Result<_, _>>()?;
        let final_norm = loader.norm(NormSlot::Final)?;
        Ok(Self { backend, config, embedding, head, int8: None, blocks, final_norm, layout })
    }
}

impl<B: Backend> Loader<'_, B> {
    fn block(&mut self, layer: usize) -> Result<Block<B>, LoadError> {
        let config = self.checkpoint.config();
        let eps = config.rms_norm_eps;
        let gate = match config.activation {
            Activation::Relu2 => Gate::Relu2,
            Activation::Silu => Gate::Silu,
        };
        let sub_norm = |loader: &Self, slot| match config.sub_norms {
            true => loader.norm(slot).map(Some),
            false => Ok(None),
        };
        let attention = AttentionLayer {
            qkv: self.linear(layer, &[Proj::Q, Proj::K, Proj::V])?,
            sub_norm: sub_norm(self, NormSlot::AttnSub(layer))?,
            o: self.linear(layer, &[Proj::O])?,
            heads: heads(config),
            eps,
            math: Math::Exact,
        };
        let mlp = Mlp {
            gate_up: self.linear(layer, &[Proj::Gate, Proj::Up])?,
            gate,
            sub_norm: sub_norm(self, NormSlot::FfnSub(layer))?,
            down: self.linear(layer, &[Proj::Down])?,
            eps,
        };
        Ok(Block {
            input_norm: self.norm(NormSlot::Input(layer))?,
            attention,
            post_attention_norm: self.norm(NormSlot::PostAttention(layer))?,
            mlp,
            hidden: config.hidden_size,
            eps,
        })
    }

    /// One matrix of several projections, below each other, each with its own scale.
    fn linear(&mut self, layer: usize, projs: &[Proj]) -> Result<PackedLinear<B>, LoadError> {
        let slots = projs.iter().map(|&proj| self.checkpoint.linear(LinearSlot { layer, proj }));
        let parts = slots.collect::<Result<Vec<TernaryRows<'_>>, _>>()?;
        let scales: Vec<_> = parts.iter().map(|part| (part.n(), part.scale())).collect();
        let rows = scales.iter().map(|s| s.0).sum();
        let segments = Segments::new(&scales).ok_or(LoadError::Fuse { layer, rows })?;
        let k = parts[0].k();
        let mut matrix = PackedLinear::alloc_in(self.backend, "weights", k, segments, self.layout)?;
        let width = row_words(k);
        let step = (PIECE_BYTES / 4 / width).max(1);
        let mut words = Vec::new();
        let mut first = 0;
        for part in &parts {
            for row in (0..part.n()).step_by(step) {
                let count = step.min(part.n() - row);
                words.resize(count * width, 0);
                part.rows_into(row..row + count, &mut words)?;
                matrix.write_rows(self.backend, first, &words)?;
                first += count;
                self.advance(count * k);
            }
        }
        Ok(matrix)
    }

    fn dense(&mut self, slot: DenseSlot, label: &'static str) -> Result<Dense<B>, LoadError> {
        let view = self.checkpoint.dense(slot)?;
        let element = match view.dtype {
            FloatType::Bf16 => RowType::Bf16,
            FloatType::F16 => RowType::F16,
            FloatType::F32 => RowType::F32,
        };
        let mut table = Dense::alloc(self.backend, label, element, view.rows, view.cols)?;
        let step = (PIECE_BYTES / view.row_bytes()).max(1);
        for first in (0..view.rows).step_by(step) {
            let end = view.rows.min(first + step);
            table.write_rows(self.backend, first, &view.bytes(first..end)?)?;
            self.advance((end - first) * view.cols);
        }
        Ok(table)
    }

    fn norm(&self, slot: NormSlot) -> Result<B::Buf<f32>, LoadError> {
        let gain = self.checkpoint.norm(slot)?;
        let mut buf = self.backend.alloc("weights", gain.len())?;
        self.backend.write(&mut buf, 0, &gain)?;
        Ok(buf)
    }

    fn advance(&mut self, weights: usize) {
        self.done += weights as u64;
        (self.progress)(LoadProgress { done: self.done, total: self.total });
    }
}
