//! Host side of [`contract::sample`].

use contract::sample::{SampleParams, StepState, adjusted_len, groups};
use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::{Backend, OpError, Tensor};

const OP: &str = "sample";

/// Words of a [`StepState`] in a buffer.
pub const STATE_WORDS: usize = size_of::<StepState>() / 4;
/// Words of a [`SampleParams`] in a buffer.
pub const PARAM_WORDS: usize = size_of::<SampleParams>() / 4;
/// Index of the position in a state buffer.
pub const STATE_POS: usize = 0;
/// Index of the token in a state buffer.
pub const STATE_TOKEN: usize = 1;

/// A state as the words of its buffer.
pub const fn state_words(state: &StepState) -> [u32; STATE_WORDS] {
    [state.pos, state.token, state.step, state.done]
}

/// Parameters as the words of their buffer.
pub fn param_words(params: &SampleParams) -> [u32; PARAM_WORDS] {
    let mut words = [0; PARAM_WORDS];
    words[..10].copy_from_slice(&[
        params.seed as u32,
        (params.seed >> 32) as u32,
        params.top_p_q32 as u32,
        (params.top_p_q32 >> 32) as u32,
        params.temperature.to_bits(),
        params.repetition_penalty.to_bits(),
        params.top_k,
        params.min_weight,
        params.max_steps,
        params.stop_len,
    ]);
    words[10..].copy_from_slice(&params.stop_ids);
    words
}

/// Inverse of [`param_words`].
pub fn params_of(words: &[u32; PARAM_WORDS]) -> SampleParams {
    let mut stop_ids = [0; contract::sample::MAX_STOP_IDS];
    stop_ids.copy_from_slice(&words[10..]);
    SampleParams {
        seed: u64::from(words[0]) | u64::from(words[1]) << 32,
        top_p_q32: u64::from(words[2]) | u64::from(words[3]) << 32,
        temperature: f32::from_bits(words[4]),
        repetition_penalty: f32::from_bits(words[5]),
        top_k: words[6],
        min_weight: words[7],
        max_steps: words[8],
        stop_len: words[9],
        stop_ids,
    }
}

/// What the sampler keeps between steps.
pub struct SampleState<B: Backend> {
    /// [`StepState`], as words.
    pub state: B::Buf<u32>,
    /// [`SampleParams`], as words; 8-byte aligned.
    pub params: B::Buf<u32>,
    /// `[vocab]`: 1 for tokens of prompt and text.
    pub seen: B::Buf<u8>,
    /// Scratch `[adjusted_len(vocab)]`.
    pub adjusted: B::Buf<f32>,
    /// Scratch `[groups(vocab)]`.
    pub tops: B::Buf<u32>,
    /// Scratch; zero between steps.
    pub best: B::Buf<u64>,
}

impl<B: Backend> SampleState<B> {
    /// Reserves the state of one sequence; position 0, nothing seen.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc(backend: &B, vocab: usize) -> Result<Self, OpError> {
        dimension(OP, "vocab", vocab, MAX_ROWS, "1 to 2^24 tokens are allowed")?;
        let mut sampler = Self {
            state: backend.alloc("sampler", STATE_WORDS)?,
            params: backend.alloc("sampler", PARAM_WORDS)?,
            seen: backend.alloc("sampler", vocab)?,
            adjusted: backend.alloc("sampler", adjusted_len(vocab as u32) as usize)?,
            tops: backend.alloc("sampler", groups(vocab as u32) as usize)?,
            best: backend.alloc("sampler", 1)?,
        };
        backend.fill(&mut sampler.state, 0)?;
        backend.fill(&mut sampler.params, 0)?;
        backend.fill(&mut sampler.seen, 0)?;
        // Its padding is loaded with the last logits, and not looked at.
        backend.fill(&mut sampler.adjusted, 0)?;
        backend.fill(&mut sampler.best, 0)?;
        Ok(sampler)
    }
}

/// Picks the next token from `logits[logits_at..]` and moves the sequence on.
pub struct Sample<'a, B: Backend> {
    /// Logits `[logits_at.., vocab]`.
    pub logits: &'a B::Buf<f32>,
    /// First logit.
    pub logits_at: usize,
    /// Number of logits.
    pub vocab: usize,
    /// Sampler and sequence.
    pub sampler: &'a mut SampleState<B>,
    /// Receives the token.
    pub out: &'a mut B::TokenLog,
}

impl<B: Backend> Sample<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "vocab", self.vocab, MAX_ROWS, "1 to 2^24 tokens are allowed")?;
        at_least(OP, "logits", self.logits.len(), self.logits_at.saturating_add(self.vocab))?;
        at_least(OP, "seen", self.sampler.seen.len(), self.vocab)?;
        let adjusted = adjusted_len(self.vocab as u32) as usize;
        at_least(OP, "adjusted", self.sampler.adjusted.len(), adjusted)?;
        at_least(OP, "tops", self.sampler.tops.len(), groups(self.vocab as u32) as usize)?;
        at_least(OP, "state", self.sampler.state.len(), STATE_WORDS)?;
        at_least(OP, "params", self.sampler.params.len(), PARAM_WORDS)?;
        at_least(OP, "best", self.sampler.best.len(), 1)
    }
}

#[cfg(feature = "cuda")]
impl Sample<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::sample::{Args, PREPARE_TILE};
        self.check()?;
        let Self { logits, logits_at, vocab, sampler, out } = self;
        let stream = cuda.stream();
        let args = Args {
            logits: super::cuda::at(logits.dev_ptr(stream), logits_at),
            adjusted: sampler.adjusted.dev_ptr(stream),
            tops: sampler.tops.dev_ptr(stream),
            seen: sampler.seen.dev_ptr(stream),
            best: sampler.best.dev_ptr(stream),
            params: sampler.params.dev_ptr(stream).cast(),
            state: sampler.state.dev_ptr(stream).cast(),
            out: out.dev_ptr(stream),
            out_len: super::TokenLog::len(out) as u32,
            vocab: vocab as u32,
        };
        let grid = [args.vocab.div_ceil(PREPARE_TILE), 1, 1];
        // SAFETY: `check` compared the logits and every part of the sampler with `vocab` and with
        // the sizes of its structs; allocations are 256-byte aligned; all that the kernels write is
        // borrowed exclusively.
        unsafe {
            cuda.launch::<contract::sample::SamplePrepare>(grid, args)?;
            cuda.launch::<contract::sample::SamplePick>([1, 1, 1], args)?;
        }
        Ok(())
    }
}
