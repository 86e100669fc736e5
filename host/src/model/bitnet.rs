//! The forward pass of BitNet b1.58 models and their relatives.
//!
//! ```text
//! h = E[token]
//! per block: h += Wo . quant(sub_norm(attention(rope(Wqkv . quant(norm(h))))))
//!            h += Wdown . quant(sub_norm(act(gate) * up)),  gate, up = Wgu . quant(norm(h))
//! logits = norm(h) . head
//! ```
//! The sub-norms, the activation (relu^2 or SiLU) and a tied head come from the configuration.
//! Prefill and decode run the same operations on the same buffers, and give the same bits, unless attention on tensor
//! cores is asked for.

use contract::w2a8::row_words;

use super::sequence::Sequence;
use super::{HeadKind, LEAST_PREFILL_ROWS, ModelError, PAGE_SIZE, part};
use crate::checkpoint::ModelConfig;
use crate::layers::activations::Widths;
use crate::layers::{Activations, Block, Past};
use crate::ops::decode_layers::{DecodeLayers, Layer};
use crate::ops::embed::Embed;
use crate::ops::kv_append::Heads;
use crate::ops::lm_head::LmHead;
use crate::ops::lm_head_int8::{HeadNorm, Int8Table, LmHeadInt8};
use crate::ops::rmsnorm::RmsNorm;
use crate::ops::sample::{STATE_POS, STATE_TOKEN, Sample, SampleState};
use crate::ops::{Backend, Dense, Math, OpError, WeightLayout};

/// Steps are recorded for contexts of at least this many positions.
pub(super) const SMALLEST_RECORDING: usize = 256;

/// The weights of a model on a backend.
pub struct Model<B: Backend> {
    pub(super) backend: B,
    pub(super) config: ModelConfig,
    pub(super) embedding: Dense<B>,
    /// Absent when tied to the embedding.
    pub(super) head: Option<Dense<B>>,
    /// The int8 copy of the head, when decode steps go by it.
    pub(super) int8: Option<Int8Table<B>>,
    pub(super) blocks: Vec<Block<B>>,
    pub(super) final_norm: B::Buf<f32>,
    pub(super) layout: WeightLayout,
}

/// The smallest int8 copy of a head that is made without being asked for: smaller tables come from a cache.
const WORTH_BYTES: usize = 8 << 20;
/// Device memory that such a copy leaves free: for recorded steps and other programs.
const SPARE_BYTES: usize = 1 << 30;

/// Where the rows of a step come from.
#[derive(Clone, Copy)]
enum Input {
    /// `Sequence::ids`, at the position in `Sequence::start`.
    Ids,
    /// The token and position of the sampler's state.
    State,
}

/// What a step by way of the int8 copy of the head writes.
pub(super) struct Next<'a, B: Backend> {
    pub(super) input: &'a mut B::Buf<u32>,
    pub(super) sampler: &'a mut SampleState<B>,
    /// The first sampler.
    pub(super) row: usize,
    pub(super) bounds: &'a mut B::Buf<f32>,
    /// [`LmHeadInt8::every`].
    pub(super) every: bool,
    pub(super) out: &'a mut B::TokenLog,
}

impl<B: Backend> Model<B> {
    /// The backend the weights are on.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Chooses how decode steps find the next token; the tokens are the same. A model is loaded with
    /// [`HeadKind::Stored`]. Sequences are made after this.
    ///
    /// # Errors
    /// A head with rows of more than 2^17 elements; out of memory.
    pub fn with_head(mut self, kind: HeadKind) -> Result<Self, OpError> {
        self.int8 = match kind {
            HeadKind::Stored => None,
            HeadKind::Int8 => Some(Int8Table::new(&self.backend, self.head())?),
        };
        Ok(self)
    }

    /// Whether an int8 copy of the head, made now, is worth its memory: the table is so large that reading it takes
    /// most of the time of a head, and the device has room for the copy and [`SPARE_BYTES`] more.
    ///
    /// # Errors
    /// A failed device.
    pub(crate) fn int8_pays(&self) -> Result<bool, OpError> {
        let size = Int8Table::size(self.head()).filter(|&bytes| bytes >= WORTH_BYTES);
        let Some(needed) = size.and_then(|bytes| bytes.checked_add(SPARE_BYTES)) else {
            return Ok(false);
        };
        Ok(self.backend.room_for_copies()? >= needed)
    }

    /// How decode steps find the next token.
    pub fn head_kind(&self) -> HeadKind {
        if self.int8.is_some() { HeadKind::Int8 } else { HeadKind::Stored }
    }

    /// Chooses how attention of a prefill is summed, and of steps of a [`super::Batch`] that run as kernels. A model is loaded with [`Math::Exact`]; with
    /// [`Math::TensorCore`] both are faster, and their bits are no longer those of one text's decode steps (see
    /// [`crate::ops::attention::Attention`] and [`crate::ops::attention_paged::AttentionPaged`]).
    #[must_use]
    pub fn with_attention(mut self, math: Math) -> Self {
        for block in &mut self.blocks {
            block.attention.math = math;
        }
        self
    }

    /// How attention is summed there.
    pub fn attention(&self) -> Math {
        self.blocks.first().map_or(Math::Exact, |block| block.attention.math)
    }

    /// How the ternaries lie on the device.
    pub fn layout(&self) -> WeightLayout {
        self.layout
    }

    /// The sizes that activations are made for.
    pub(super) fn widths(&self) -> Widths {
        let (config, heads) = (&self.config, self.heads());
        let matrices = self.blocks.iter().flat_map(Block::linears);
        let words = matrices.map(|linear| linear.w.n() * row_words(linear.w.k())).max();
        let unpacked = match self.layout {
            WeightLayout::Bits2 => 0,
            WeightLayout::Trits => words.unwrap_or(0),
        };
        Widths { hidden: config.hidden_size, ffn: config.intermediate_size, heads, unpacked }
    }

    /// Rows of a prefill step that take a twentieth of what the weights and `cache_bytes` of keys and values take, and with [`HeadKind::Int8`], which
    /// takes memory for speed, as much as the copy of the head more; 768 at least, and no more than are of use. Many are faster: their attention fills the device.
    pub fn prefill_rows(&self, cache_bytes: usize) -> usize {
        let room = self.backend.memory().in_use_bytes.saturating_add(cache_bytes) / 20;
        let copy = self.int8.as_ref().and_then(|_| Int8Table::<B>::size(self.head())).unwrap_or(0);
        let rows = (room + copy) / self.widths().row_bytes();
        (rows - rows % PAGE_SIZE).clamp(LEAST_PREFILL_ROWS, B::MOST_PREFILL_ROWS)
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The linear layers of every block.
    pub(super) fn linears(&self) -> Vec<Layer<'_, B>> {
        self.blocks.iter().map(Block::linears).collect()
    }

    /// Heads of every attention layer.
    pub fn heads(&self) -> Heads {
        heads(&self.config)
    }

    /// Runs `tokens` at positions `start..`, filling the cache. Afterwards the sequence's logits
    /// are those of the last token.
    ///
    /// # Errors
    /// No tokens, ids outside of the vocabulary, more positions than the context has, a failed
    /// launch.
    pub fn prefill(
        &self,
        sequence: &mut Sequence<B>,
        tokens: &[u32],
        start: usize,
    ) -> Result<(), ModelError> {
        self.check(sequence, tokens, start)?;
        let part = part(tokens.len(), sequence.options().chunk);
        for (i, ids) in tokens.chunks(part).enumerate() {
            self.prefill_chunk(sequence, ids, start + i * part)?;
        }
        let last = (tokens.len() - 1) % part;
        Ok(self.head_row(sequence, last)?)
    }

    /// Runs `tokens` at positions `start..` and hands the logits of each to `each`, in order.
    ///
    /// # Errors
    /// As [`Model::prefill`].
    pub fn logits(
        &self,
        sequence: &mut Sequence<B>,
        tokens: &[u32],
        start: usize,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), ModelError> {
        self.check(sequence, tokens, start)?;
        let part = part(tokens.len(), sequence.options().chunk);
        for (i, ids) in tokens.chunks(part).enumerate() {
            self.prefill_chunk(sequence, ids, start + i * part)?;
            for row in 0..ids.len() {
                self.head_row(sequence, row)?;
                each(&sequence.read_logits(&self.backend)?);
            }
        }
        Ok(())
    }

    /// Picks a token from the sequence's logits, on the device, and tells what it is [asked](Sequence::ask) to.
    ///
    /// # Errors
    /// A failed launch.
    pub fn sample(&self, sequence: &mut Sequence<B>) -> Result<(), OpError> {
        self.backend.sample(Sample {
            logits: &sequence.logits,
            logits_at: 0,
            vocab: self.config.vocab_size,
            sampler: &mut sequence.sampler,
            row: 0,
            rows: 1,
            out: &mut sequence.tokens,
        })?;
        let (rows, vocab) = ((0, 1), self.config.vocab_size);
        let Sequence { told, logits, sampler, way, .. } = sequence;
        match way.logprobs {
            true => told.tell(&self.backend, logits, sampler, rows, vocab),
            false => Ok(()),
        }
    }

    /// Queues one decode step: the sampler's token runs through the model at the sampler's
    /// position, and the next one is picked. `pos` is that position, or any later one. With
    /// `record`, a backend that can replays a recording of the step.
    ///
    /// # Errors
    /// No room left in the context; a failed launch.
    pub fn decode(
        &self,
        sequence: &mut Sequence<B>,
        pos: usize,
        record: bool,
    ) -> Result<(), ModelError> {
        let capacity = sequence.options().capacity;
        if pos >= capacity {
            return Err(ModelError::ContextFull { needed: pos + 1, capacity });
        }
        let reach = (pos + 1).next_power_of_two().max(SMALLEST_RECORDING).min(capacity);
        let of = (reach, sequence.way);
        if record && !sequence.recordings.iter().any(|r| r.0 == of) {
            let recording = self.backend.record(|| self.step(sequence, reach))?;
            sequence.recordings.extend(recording.map(|r| (of, r)));
        }
        match sequence.recordings.iter().find(|r| record && r.0 == of) {
            Some((_, recording)) => self.backend.replay(recording)?,
            None => self.step(sequence, reach)?,
        }
        sequence.has_logits = self.int8.is_none() || sequence.way.stored;
        Ok(())
    }

    fn step(&self, sequence: &mut Sequence<B>, reach: usize) -> Result<(), OpError> {
        let pending = self.run(sequence, Input::State, 1, reach)?;
        let Sequence { x, head_input, sampler, logits, tokens, way, .. } = &mut *sequence;
        let int8 = self.int8.as_ref().filter(|_| !way.stored);
        if let (Some(table), Some(input)) = (int8, head_input) {
            let next = Next { input, sampler, row: 0, bounds: logits, every: false, out: tokens };
            return self.next_tokens(table, x, 1, pending, next);
        }
        self.last_norm(&mut sequence.x, 1, pending)?;
        self.head_row(sequence, 0)?;
        self.sample(sequence)
    }

    /// The next tokens of `m` rows by way of the int8 copy of the head, from the residual stream on. `pending`: there is an `x.delta` to
    /// add first.
    pub(super) fn next_tokens(
        &self,
        table: &Int8Table<B>,
        x: &mut Activations<B>,
        m: usize,
        pending: bool,
        next: Next<'_, B>,
    ) -> Result<(), OpError> {
        let Next { input, sampler, row, bounds, every, out } = next;
        let norm = HeadNorm {
            h: &mut x.h,
            delta: pending.then_some(&x.delta),
            weight: &self.final_norm,
            eps: self.config.rms_norm_eps,
        };
        self.backend.lm_head_int8(LmHeadInt8 {
            norm: Some(norm),
            x: &mut x.wide,
            x_at: 0,
            w: self.head(),
            table,
            input,
            sampler,
            row,
            bounds,
            every,
            out,
            m,
        })
    }

    fn check(
        &self,
        sequence: &Sequence<B>,
        tokens: &[u32],
        start: usize,
    ) -> Result<(), ModelError> {
        check_tokens(self.config.vocab_size, tokens, start, sequence.options().capacity)
    }

    fn prefill_chunk(
        &self,
        sequence: &mut Sequence<B>,
        ids: &[u32],
        start: usize,
    ) -> Result<(), OpError> {
        self.backend.write(&mut sequence.ids, 0, ids)?;
        self.backend.write(&mut sequence.start, 0, &[start as u32])?;
        let pending = self.run(sequence, Input::Ids, ids.len(), start + ids.len())?;
        self.last_norm(&mut sequence.x, ids.len(), pending)
    }

    /// Embedding and blocks for `m` rows. Says whether there is an `x.delta` left to add.
    fn run(
        &self,
        sequence: &mut Sequence<B>,
        input: Input,
        m: usize,
        reach: usize,
    ) -> Result<bool, OpError> {
        let Sequence { x, caches, together, rope, ids, start, sampler, .. } = sequence;
        let (ids, ids_at, start, start_at) = match input {
            Input::Ids => (&*ids, 0, &*start, 0),
            Input::State => (&sampler.state, STATE_TOKEN, &sampler.state, STATE_POS),
        };
        let (ids_stride, table) = (1, &self.embedding);
        self.backend.embed(Embed { ids, ids_at, ids_stride, table, out: &mut x.h, first: 0, m })?;
        let mut pending = false;
        if let (1, Some(table), Some(first)) = (m, together, self.blocks.first()) {
            self.backend.decode_layers(DecodeLayers {
                layers: &self.linears(),
                caches,
                table,
                rope,
                h: &mut x.h,
                start,
                start_at,
                gate: first.mlp.gate,
                eps: self.config.rms_norm_eps,
                math: first.attention.math,
            })?;
        } else {
            for (block, cache) in self.blocks.iter().zip(caches) {
                let past = Past::Run { cache, start, start_at, reach };
                pending = block.forward(&self.backend, x, past, rope, m, pending)?;
            }
        }
        Ok(pending)
    }

    /// The norm in front of the head, for `m` rows, into `x.wide`. `pending`: there is an `x.delta` to add first.
    pub(super) fn last_norm(
        &self,
        x: &mut Activations<B>,
        m: usize,
        pending: bool,
    ) -> Result<(), OpError> {
        self.backend.rmsnorm(RmsNorm {
            x: &mut x.h,
            delta: pending.then_some(&x.delta),
            weight: &self.final_norm,
            y: &mut x.wide,
            m,
            k: self.config.hidden_size,
            eps: self.config.rms_norm_eps,
        })
    }

    /// The head as the checkpoint stores it.
    pub(super) fn head(&self) -> &Dense<B> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Logits of row `row` of the last step.
    fn head_row(&self, sequence: &mut Sequence<B>, row: usize) -> Result<(), OpError> {
        sequence.has_logits = true;
        self.backend.lm_head(LmHead {
            x: &sequence.x.wide,
            x_at: row * self.config.hidden_size,
            w: self.head(),
            logits: &mut sequence.logits,
            m: 1,
        })
    }
}

/// The attention heads that `config` asks for.
pub(crate) fn heads(config: &ModelConfig) -> Heads {
    Heads { heads: config.num_heads, kv_heads: config.num_kv_heads, head_dim: config.head_dim }
}

/// Refuses tokens that a context of `capacity` positions cannot take from `start` on.
pub(super) fn check_tokens(
    vocab: usize,
    tokens: &[u32],
    start: usize,
    capacity: usize,
) -> Result<(), ModelError> {
    if tokens.is_empty() {
        return Err(ModelError::EmptyInput);
    }
    let needed = start.saturating_add(tokens.len());
    if needed > capacity {
        return Err(ModelError::ContextFull { needed, capacity });
    }
    match tokens.iter().position(|&id| id as usize >= vocab) {
        Some(index) => Err(ModelError::TokenOutOfVocabulary { id: tokens[index], index, vocab }),
        None => Ok(()),
    }
}
