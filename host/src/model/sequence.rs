//! What one sequence needs on the device: its cache, its activations, its sampler.

use contract::sample::{SEEN, SampleParams, StepState};

use super::logprobs::{LogprobLog, Way, biased, under_bias};
use super::{Extras, Model, ModelError, TokenLogprobs};
use crate::layers::Activations;
use crate::ops::attention::check_math;
use crate::ops::decode_layers::{DecodeTable, shape};
use crate::ops::kv_append::KvCache;
use crate::ops::rope::RopeTable;
use crate::ops::sample::{Allow, SampleState, mask_words, param_words, state_words};
use crate::ops::{Backend, OpError, RowType, TokenLog, WeightLayout};

/// What a sequence is made for.
#[derive(Clone, Copy, Debug)]
pub struct SequenceOptions {
    /// Positions: prompt and text together.
    pub capacity: usize,
    /// Element type of the cache: bf16 or f32.
    pub kv: RowType,
    /// Rows of the largest prefill step.
    pub chunk: usize,
    /// Whether one row runs through all layers in one kernel, where the backend can.
    pub one_kernel: bool,
}

/// One sequence on one backend.
pub struct Sequence<B: Backend> {
    pub(super) caches: Vec<KvCache<B>>,
    /// For one row through all layers at once, where that is how it runs.
    pub(super) together: Option<DecodeTable<B>>,
    pub(super) rope: RopeTable<B>,
    pub(super) x: Activations<B>,
    /// Ids of a prefill step.
    pub(super) ids: B::Buf<u32>,
    /// Position of the first row of a prefill step.
    pub(super) start: B::Buf<u32>,
    pub(super) logits: B::Buf<f32>,
    /// Whether the last step left logits there.
    pub(super) has_logits: bool,
    /// Scratch of a head by way of int8.
    pub(super) head_input: Option<B::Buf<u32>>,
    pub(super) sampler: SampleState<B>,
    pub(super) tokens: B::TokenLog,
    /// How its next tokens are found.
    pub(super) way: Way,
    pub(super) told: LogprobLog<B>,
    /// A zero, and what may come next, of a text that rests.
    mask: Option<(B::Buf<u32>, B::Buf<u32>)>,
    /// Decode steps recorded so far, by the positions they reach and how they find the next token.
    pub(super) recordings: Vec<((usize, Way), B::Recording)>,
    options: SequenceOptions,
    vocab: usize,
}

impl<B: Backend> Sequence<B> {
    /// Reserves everything a sequence of `model` needs.
    ///
    /// # Errors
    /// Sizes that the kernels do not take; a cache that the model's attention does not take; out of memory.
    pub fn new(model: &Model<B>, options: SequenceOptions) -> Result<Self, OpError> {
        let (backend, config) = (model.backend(), model.config());
        let SequenceOptions { capacity, kv, chunk, one_kernel } = options;
        check_math(model.attention(), kv)?;
        let heads = model.heads();
        let caches = (0..config.num_layers)
            .map(|_| KvCache::alloc(backend, heads, capacity, kv))
            .collect::<Result<Vec<_>, _>>()?;
        let shape = shape(config.num_layers, config.hidden_size, config.intermediate_size, heads);
        // That kernel reads 2-bit weights and a cache of bf16.
        let takes = kv == RowType::Bf16 && model.layout() == WeightLayout::Bits2;
        let together = one_kernel && takes && backend.runs_together(&shape);
        let together = together
            .then(|| DecodeTable::new(backend, shape, &model.linears(), &caches))
            .transpose()?;
        Ok(Self {
            caches,
            together,
            rope: RopeTable::new(backend, capacity, heads.head_dim, config.rope_theta)?,
            x: Activations::alloc(backend, model.widths(), chunk, capacity)?,
            ids: backend.alloc("activations", chunk)?,
            start: backend.alloc("activations", 1)?,
            logits: backend.alloc("logits", config.vocab_size)?,
            has_logits: true,
            head_input: model.int8.as_ref().map(|table| table.input(backend, 1)).transpose()?,
            sampler: SampleState::alloc(backend, config.vocab_size, 1)?,
            tokens: backend.alloc_tokens(capacity)?,
            way: Way::default(),
            told: LogprobLog::alloc(backend, config.vocab_size, 1)?,
            mask: None,
            recordings: Vec::new(),
            options,
            vocab: config.vocab_size,
        })
    }

    /// What the sequence was made for.
    pub fn options(&self) -> SequenceOptions {
        self.options
    }

    /// Tokens picked by the sampler since [`Sequence::begin`].
    pub fn tokens(&self) -> &B::TokenLog {
        &self.tokens
    }

    /// Prepares the sampler for a text that continues `seen`, whose last token stands at position
    /// `seen.len() - 1`. Waits for whatever is still queued.
    ///
    /// # Errors
    /// An empty input, ids outside of the vocabulary, a failed copy.
    pub fn begin(
        &mut self,
        backend: &B,
        seen: &[u32],
        params: &SampleParams,
    ) -> Result<(), ModelError> {
        backend.synchronize()?;
        self.tokens.clear();
        let last = seen.len().checked_sub(1).ok_or(ModelError::EmptyInput)?;
        let mut marks = vec![0u8; self.vocab];
        for (index, &id) in seen.iter().enumerate() {
            let vocab = self.vocab;
            let mark = marks.get_mut(id as usize);
            *mark.ok_or(ModelError::TokenOutOfVocabulary { id, index, vocab })? = SEEN;
        }
        let state = StepState { pos: last as u32, ..StepState::default() };
        backend.write(&mut self.sampler.marks, 0, &marks)?;
        backend.write(&mut self.sampler.params, 0, &param_words(params))?;
        backend.write(&mut self.sampler.state, 0, &state_words(&state))?;
        Ok(self.ask(backend, seen, params, &Extras::default())?)
    }

    /// Asks for more of a text that was just begun, behind the tokens `seen`: before its first token is queued. What its prompt is told is not asked for here.
    ///
    /// # Errors
    /// Ids outside of the vocabulary; out of memory, a failed copy.
    pub fn ask(
        &mut self,
        backend: &B,
        seen: &[u32],
        params: &SampleParams,
        extras: &Extras,
    ) -> Result<(), OpError> {
        self.way = Way::of(params, extras);
        if self.way.bias {
            let (marks, bias) = biased(self.vocab, seen, &extras.logit_bias)?;
            let of_sampler = match &mut self.sampler.bias {
                Some(bias) => bias,
                None => self.sampler.bias.insert(backend.alloc("sampler", self.vocab)?),
            };
            backend.write(of_sampler, 0, &bias)?;
            backend.write(&mut self.sampler.marks, 0, &marks)?;
            backend.write(&mut self.sampler.params, 0, &param_words(&under_bias(params)))?;
        }
        self.told.ask(backend, 0, extras.logprobs)
    }

    /// What is told of token `index` of the text, if that was asked for and [`Sequence::tokens`] has it, not later than a dozen tokens behind it. Waits for it.
    ///
    /// # Errors
    /// Whatever the queued operations failed with.
    pub fn logprobs(&self, backend: &B, index: usize) -> Result<Option<TokenLogprobs>, OpError> {
        self.told.wait(backend, 0, index, self.vocab)
    }

    /// Says which tokens a text that [rests](SampleParams::rests) may give next: a bit for every token, 32 to a word from the lowest on. It counts from the next
    /// step that is queued on.
    ///
    /// # Errors
    /// A mask of another length; out of memory, a failed copy or launch.
    pub fn allow(&mut self, backend: &B, words: &[u32]) -> Result<(), OpError> {
        let needed = mask_words(self.vocab);
        if words.len() != needed {
            let (what, allowed) = ("words of a mask", "a bit for each token is allowed");
            return Err(OpError::Dimension { op: "sequence", what, found: words.len(), allowed });
        }
        let (row, allowed) = match &mut self.mask {
            Some(mask) => mask,
            None => {
                self.mask.insert((backend.alloc("sampler", 1)?, backend.alloc("sampler", needed)?))
            }
        };
        backend.write(row, 0, &[0])?;
        backend.write(allowed, 0, words)?;
        let (sampler, vocab) = (&mut self.sampler, self.vocab);
        backend.allow(Allow { sampler, rows: row, allowed, vocab, masks: 1 })
    }

    /// The logits of the last step, `[vocab]`. Waits for it.
    ///
    /// # Errors
    /// [`OpError::NoLogits`] after a decode step by [`super::HeadKind::Int8`]; whatever the queued operations failed with.
    pub fn read_logits(&self, backend: &B) -> Result<Vec<f32>, OpError> {
        if !self.has_logits {
            return Err(OpError::NoLogits { op: "read_logits" });
        }
        let mut logits = vec![0.0; self.vocab];
        backend.read(&self.logits, 0, &mut logits)?;
        Ok(logits)
    }
}
