//! Host side of [`contract::sample`].

use contract::sample::{MAX_SAMPLERS, SampleParams, StepState, adjusted_len, groups};
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
/// Index of the number of tokens that were picked.
pub const STATE_STEP: usize = 2;

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
    words[10..26].copy_from_slice(&params.stop_ids);
    words[26] = params.presence_penalty.to_bits();
    words[27] = params.frequency_penalty.to_bits();
    words[28] = params.rests;
    words[29] = params.every;
    words
}

/// Inverse of [`param_words`].
pub fn params_of(words: &[u32; PARAM_WORDS]) -> SampleParams {
    let mut stop_ids = [0; contract::sample::MAX_STOP_IDS];
    stop_ids.copy_from_slice(&words[10..26]);
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
        presence_penalty: f32::from_bits(words[26]),
        frequency_penalty: f32::from_bits(words[27]),
        rests: words[28],
        every: words[29],
    }
}

/// What the samplers of one or more sequences, a row each, keep between steps.
pub struct SampleState<B: Backend> {
    /// `[rows]` of [`StepState`], as words.
    pub state: B::Buf<u32>,
    /// `[rows]` of [`SampleParams`], as words; 8-byte aligned.
    pub params: B::Buf<u32>,
    /// `[rows, vocab]`: [`contract::sample::SEEN`] for tokens of prompt and text, [`contract::sample::FORBIDDEN`] for those not to be picked.
    pub marks: B::Buf<u8>,
    /// Of the first rows, `[rows, vocab]`: what is added to the logits of [`contract::sample::BIASED`] tokens. Rows without it have no such tokens, and no
    /// presence and frequency penalties.
    pub bias: Option<B::Buf<f32>>,
    /// Scratch `[rows, adjusted_len(vocab)]`.
    pub adjusted: B::Buf<f32>,
    /// Scratch `[rows, groups(vocab)]`.
    pub tops: B::Buf<u32>,
    /// Scratch `[rows]`; zero between steps.
    pub best: B::Buf<u64>,
    /// Sequences.
    pub rows: usize,
}

impl<B: Backend> SampleState<B> {
    /// Reserves the state of `rows` sequences; position 0, nothing seen.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc(backend: &B, vocab: usize, rows: usize) -> Result<Self, OpError> {
        dimension(OP, "vocab", vocab, MAX_ROWS, "1 to 2^24 tokens are allowed")?;
        dimension(OP, "rows", rows, MAX_SAMPLERS, "1 to 65,535 sequences are allowed")?;
        let adjusted = adjusted_len(vocab as u32) as usize;
        let mut sampler = Self {
            state: backend.alloc("sampler", rows * STATE_WORDS)?,
            params: backend.alloc("sampler", rows * PARAM_WORDS)?,
            marks: backend.alloc("sampler", rows * vocab)?,
            bias: None,
            adjusted: backend.alloc("sampler", rows * adjusted)?,
            tops: backend.alloc("sampler", rows * groups(vocab as u32) as usize)?,
            best: backend.alloc("sampler", rows)?,
            rows,
        };
        backend.fill(&mut sampler.state, 0)?;
        backend.fill(&mut sampler.params, 0)?;
        backend.fill(&mut sampler.marks, 0)?;
        // Its padding is loaded with the last logits, and not looked at.
        backend.fill(&mut sampler.adjusted, 0)?;
        backend.fill(&mut sampler.best, 0)?;
        Ok(sampler)
    }

    /// Compares the state with the contract, for `rows` rows from `row` on.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub(super) fn check(
        &self,
        op: &'static str,
        vocab: usize,
        row: usize,
        rows: usize,
    ) -> Result<(), OpError> {
        let all = self.rows;
        dimension(op, "rows of the sampler", all, MAX_SAMPLERS, "1 to 65,535 are allowed")?;
        dimension(op, "rows", rows, all, "1 to those of the sampler are allowed")?;
        at_least(op, "rows of the sampler", all, row.saturating_add(rows))?;
        at_least(op, "marks", self.marks.len(), all * vocab)?;
        if let Some(bias) = self.bias.as_ref().filter(|bias| row * vocab < bias.len()) {
            at_least(op, "bias", bias.len(), (row + rows) * vocab)?;
        }
        at_least(op, "adjusted", self.adjusted.len(), all * adjusted_len(vocab as u32) as usize)?;
        at_least(op, "tops", self.tops.len(), all * groups(vocab as u32) as usize)?;
        at_least(op, "state", self.state.len(), all * STATE_WORDS)?;
        at_least(op, "params", self.params.len(), all * PARAM_WORDS)?;
        at_least(op, "best", self.best.len(), all)
    }
}

#[cfg(feature = "cuda")]
impl SampleState<super::CudaBackend> {
    /// The kernels' argument for the rows from `row` on, whose logits stand at `logits`.
    pub(super) fn args(
        &self,
        stream: &crate::driver::Stream,
        logits: contract::launch::DevPtr<f32>,
        vocab: usize,
        row: usize,
        out: &mut <super::CudaBackend as Backend>::TokenLog,
    ) -> contract::sample::Args {
        let first = contract::sample::Args {
            logits,
            adjusted: self.adjusted.dev_ptr(stream),
            tops: self.tops.dev_ptr(stream),
            marks: self.marks.dev_ptr(stream),
            bias: match &self.bias {
                Some(bias) if row * vocab < bias.len() => bias.dev_ptr(stream),
                _ => contract::launch::DevPtr::from_addr(0),
            },
            best: self.best.dev_ptr(stream),
            params: self.params.dev_ptr(stream).cast(),
            state: self.state.dev_ptr(stream).cast(),
            out: out.dev_ptr(stream),
            out_len: (super::TokenLog::len(out) / self.rows) as u32,
            vocab: vocab as u32,
        };
        // The logits are those of the first row; everything else starts at row 0.
        contract::sample::Args { logits, ..first.of_row(row as u32) }
    }
}

/// Picks the next token of `rows` sequences, each from its own logits, and moves them on.
pub struct Sample<'a, B: Backend> {
    /// Logits `[logits_at.., rows, vocab]`.
    pub logits: &'a B::Buf<f32>,
    /// First logit.
    pub logits_at: usize,
    /// Number of logits.
    pub vocab: usize,
    /// Samplers and sequences.
    pub sampler: &'a mut SampleState<B>,
    /// Row of the sampler that takes the first logits.
    pub row: usize,
    /// Sequences.
    pub rows: usize,
    /// Receives the tokens: the log divided among the rows of the sampler.
    pub out: &'a mut B::TokenLog,
}

impl<B: Backend> Sample<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "vocab", self.vocab, MAX_ROWS, "1 to 2^24 tokens are allowed")?;
        let logits = self.logits_at.saturating_add(self.rows * self.vocab);
        at_least(OP, "logits", self.logits.len(), logits)?;
        self.sampler.check(OP, self.vocab, self.row, self.rows)
    }
}

/// Says which tokens sequences may pick next ([`contract::sample::FORBIDDEN`] for the others); one that rests goes on
/// ([`SampleParams::rests`]). Marks count unless [`SampleParams::repetition_penalty`] is 1.
pub struct Allow<'a, B: Backend> {
    /// Their sampler.
    pub sampler: &'a mut SampleState<B>,
    /// The row of each mask, `[masks]`, each once; one that the sampler does not have is left out.
    pub rows: &'a B::Buf<u32>,
    /// `[masks, words]`: bit `i` of word `w` is set where token `32 w + i` may be picked.
    pub allowed: &'a B::Buf<u32>,
    /// Tokens.
    pub vocab: usize,
    /// Masks.
    pub masks: usize,
}

/// Words of a mask of [`Allow`].
pub const fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(u32::BITS as usize)
}

impl<B: Backend> Allow<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        const OP: &str = "allow";
        dimension(OP, "vocab", self.vocab, MAX_ROWS, "1 to 2^24 tokens are allowed")?;
        dimension(OP, "masks", self.masks, MAX_SAMPLERS, "1 to 65,535 masks are allowed")?;
        let words = self.masks * mask_words(self.vocab);
        at_least(OP, "rows", self.rows.len(), self.masks)?;
        at_least(OP, "allowed", self.allowed.len(), words)?;
        let SampleState { marks, state, rows, .. } = &*self.sampler;
        dimension(OP, "rows of the sampler", *rows, MAX_SAMPLERS, "1 to 65,535 are allowed")?;
        at_least(OP, "marks", marks.len(), rows * self.vocab)?;
        at_least(OP, "state", state.len(), rows * STATE_WORDS)
    }
}

#[cfg(feature = "cuda")]
impl Allow<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::sample::{AllowArgs, SampleAllow, allow_grid};
        self.check()?;
        let Self { sampler, rows, allowed, vocab, masks } = self;
        let stream = cuda.stream();
        let args = AllowArgs {
            marks: sampler.marks.dev_ptr(stream),
            state: sampler.state.dev_ptr(stream).cast(),
            rows: rows.dev_ptr(stream),
            allowed: allowed.dev_ptr(stream),
            limit: sampler.rows as u32,
            vocab: vocab as u32,
            words: mask_words(vocab) as u32,
        };
        // SAFETY: `check` compared the tensors with the rows of the sampler and with the masks; allocations are 256-byte aligned; the
        // sampler is borrowed exclusively.
        unsafe { cuda.launch::<SampleAllow>(allow_grid(args.vocab, masks as u32), args) }
    }
}

#[cfg(feature = "cuda")]
impl Sample<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::sample::prepare_grid;
        self.check()?;
        let Self { logits, logits_at, vocab, sampler, row, rows, out } = self;
        let stream = cuda.stream();
        let logits = super::cuda::at(logits.dev_ptr(stream), logits_at);
        let args = sampler.args(stream, logits, vocab, row, out);
        let rows = rows as u32;
        // SAFETY: `check` compared the logits and every part of the sampler with `vocab` and with
        // the sizes of its structs; allocations are 256-byte aligned; all that the kernels write is
        // borrowed exclusively.
        unsafe {
            let grid = prepare_grid(args.vocab, rows);
            cuda.launch::<contract::sample::SamplePrepare>(grid, args)?;
            pick(cuda, args, rows)
        }
    }
}

/// Launches the last kernel of a step, for `rows` rows.
///
/// # Safety
///
/// The pointers of `args` cover the contract's table for so many rows; all that is written is borrowed exclusively.
#[cfg(feature = "cuda")]
pub(super) unsafe fn pick(
    cuda: &super::CudaBackend,
    args: contract::sample::Args,
    rows: u32,
) -> Result<(), OpError> {
    use contract::sample::{SamplePick, SamplePickWide, WIDE_BLOCKS, WIDE_ROWS};
    // SAFETY: by the caller.
    unsafe {
        if rows <= WIDE_ROWS && cuda.has::<SamplePickWide>() {
            cuda.launch::<SamplePickWide>([WIDE_BLOCKS, rows, 1], args)
        } else {
            cuda.launch::<SamplePick>([1, rows, 1], args)
        }
    }
}
