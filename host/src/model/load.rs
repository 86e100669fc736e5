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
    /// One of several devices.
    #[error("{device}: {source}")]
    Device {
        /// Which one.
        device: String,
        /// What failed there.
        source: Box<OpError>,
    },
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
    /// Each with the layout that its ternaries get.
    backends: &'a [(B, WeightLayout)],
    checkpoint: &'a Checkpoint,
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
        let mut models = Self::load_each(vec![(backend, layout)], checkpoint, progress)?;
        Ok(models.remove(0))
    }

    /// Brings the weights of `checkpoint` to each of `backends`, in the layout beside it. The checkpoint is read and
    /// decoded once.
    ///
    /// # Errors
    /// As [`Model::load`]; of several backends, [`LoadError::Device`] names the one that failed.
    pub fn load_each(
        backends: Vec<(B, WeightLayout)>,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Vec<Self>, LoadError> {
        let config = checkpoint.config().clone();
        let tables = if config.tie_word_embeddings { 1 } else { 2 };
        let total = config.ternary_weights()
            + tables * config.vocab_size as u64 * config.hidden_size as u64;
        let mut loader = Loader { backends: &backends, checkpoint, progress, done: 0, total };
        let embedding = loader.dense(DenseSlot::Embedding, "embedding")?;
        let head = match config.tie_word_embeddings {
            true => backends.iter().map(|_| None).collect(),
            false => loader.dense(DenseSlot::Head, "head")?.into_iter().map(Some).collect(),
        };
        let layers: Vec<Vec<Block<B>>> =
            (0..config.num_layers).map(|layer| loader.block(layer)).collect::<Result<_, _>>()?;
        let final_norm = loader.norm(NormSlot::Final)?;
        let head: Vec<_> = head;
        let tables = embedding.into_iter().zip(head).zip(final_norm);
        let mut models: Vec<Self> = backends
            .into_iter()
            .zip(tables)
            .map(|((backend, layout), ((embedding, head), final_norm))| {
                let (config, int8, blocks) = (config.clone(), None, Vec::new());
                Self { backend, config, embedding, head, int8, blocks, final_norm, layout }
            })
            .collect();
        for layer in layers {
            models.iter_mut().zip(layer).for_each(|(model, block)| model.blocks.push(block));
        }
        Ok(models)
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Block `layer` on each backend.
    fn block(&mut self, layer: usize) -> Result<Vec<Block<B>>, LoadError> {
        let config = self.checkpoint.config();
        let (eps, hidden, heads) = (config.rms_norm_eps, config.hidden_size, heads(config));
        let gate = match config.activation {
            Activation::Relu2 => Gate::Relu2,
            Activation::Silu => Gate::Silu,
        };
        let attention = self
            .linear(layer, &[Proj::Q, Proj::K, Proj::V])?
            .into_iter()
            .zip(self.sub_norm(NormSlot::AttnSub(layer))?)
            .zip(self.linear(layer, &[Proj::O])?)
            .map(|((qkv, sub_norm), o)| {
                let math = Math::Exact;
                AttentionLayer { qkv, sub_norm, o, heads, eps, math }
            });
        let mlp = self
            .linear(layer, &[Proj::Gate, Proj::Up])?
            .into_iter()
            .zip(self.sub_norm(NormSlot::FfnSub(layer))?)
            .zip(self.linear(layer, &[Proj::Down])?)
            .map(|((gate_up, sub_norm), down)| Mlp { gate_up, gate, sub_norm, down, eps });
        let input = self.norm(NormSlot::Input(layer))?;
        let norms = input.into_iter().zip(self.norm(NormSlot::PostAttention(layer))?);
        let parts = norms.zip(attention.zip(mlp));
        let block = |((input_norm, post_attention_norm), (attention, mlp))| Block {
            input_norm,
            attention,
            post_attention_norm,
            mlp,
            hidden,
            eps,
        };
        Ok(parts.map(block).collect())
    }

    /// Gains of a norm that not every model has.
    fn sub_norm(&self, slot: NormSlot) -> Result<Vec<Option<B::Buf<f32>>>, LoadError> {
        match self.checkpoint.config().sub_norms {
            true => Ok(self.norm(slot)?.into_iter().map(Some).collect()),
            false => Ok(self.backends.iter().map(|_| None).collect()),
        }
    }

    /// What `make` makes on each backend, for its layout.
    fn each<T>(
        &self,
        mut make: impl FnMut(usize, &B, WeightLayout) -> Result<T, OpError>,
    ) -> Result<Vec<T>, LoadError> {
        let made = self.backends.iter().enumerate().map(|(i, (backend, layout))| {
            make(i, backend, *layout).map_err(|source| match self.backends.len() {
                1 => source.into(),
                _ => LoadError::Device { device: backend.describe(), source: Box::new(source) },
            })
        });
        made.collect()
    }

    /// One matrix of several projections, below each other, each with its own scale.
    fn linear(&mut self, layer: usize, projs: &[Proj]) -> Result<Vec<PackedLinear<B>>, LoadError> {
        let slots = projs.iter().map(|&proj| self.checkpoint.linear(LinearSlot { layer, proj }));
        let parts = slots.collect::<Result<Vec<TernaryRows<'_>>, _>>()?;
        let scales: Vec<_> = parts.iter().map(|part| (part.n(), part.scale())).collect();
        let rows = scales.iter().map(|s| s.0).sum();
        let segments = Segments::new(&scales).ok_or(LoadError::Fuse { layer, rows })?;
        let k = parts[0].k();
        let mut matrices = self.each(|_, backend, layout| {
            PackedLinear::alloc_in(backend, "weights", k, segments, layout)
        })?;
        let width = row_words(k);
        let step = (PIECE_BYTES / 4 / width).max(1);
        let mut words = Vec::new();
        let mut first = 0;
        for part in &parts {
            for row in (0..part.n()).step_by(step) {
                let count = step.min(part.n() - row);
                words.resize(count * width, 0);
                part.rows_into(row..row + count, &mut words)?;
                // Packed once, for however many have them at 1.6 bits.
                let mut trits = None;
                self.each(|i, backend, layout| {
                    let rows = match layout {
                        WeightLayout::Bits2 => &words,
                        layout => trits.get_or_insert_with(|| layout.rows_of(&words, k)),
                    };
                    matrices[i].write_packed_rows(backend, first, rows)
                })?;
                first += count;
                self.advance(count * k);
            }
        }
        Ok(matrices)
    }

    fn dense(&mut self, slot: DenseSlot, label: &'static str) -> Result<Vec<Dense<B>>, LoadError> {
        let view = self.checkpoint.dense(slot)?;
        let element = match view.dtype {
            FloatType::Bf16 => RowType::Bf16,
            FloatType::F16 => RowType::F16,
            FloatType::F32 => RowType::F32,
        };
        let mut tables =
            self.each(|_, backend, _| Dense::alloc(backend, label, element, view.rows, view.cols))?;
        let step = (PIECE_BYTES / view.row_bytes()).max(1);
        for first in (0..view.rows).step_by(step) {
            let end = view.rows.min(first + step);
            let bytes = view.bytes(first..end)?;
            self.each(|i, backend, _| tables[i].write_rows(backend, first, &bytes))?;
            self.advance((end - first) * view.cols);
        }
        Ok(tables)
    }

    fn norm(&self, slot: NormSlot) -> Result<Vec<B::Buf<f32>>, LoadError> {
        let gain = self.checkpoint.norm(slot)?;
        self.each(|_, backend, _| {
            let mut buf = backend.alloc("weights", gain.len())?;
            backend.write(&mut buf, 0, &gain)?;
            Ok(buf)
        })
    }

    fn advance(&mut self, weights: usize) {
        self.done += weights as u64;
        (self.progress)(LoadProgress { done: self.done, total: self.total });
    }
}
