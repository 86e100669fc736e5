//! Host side of [`contract::logprobs`].

use contract::logprobs::{ENTRY_WORDS, MAX_ENTRIES, blocks, groups};
use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::tensor::RowWords;
use super::{Backend, OpError, Tensor, TokenLog};

const OP: &str = "logprobs";

/// What the kernels keep between them, for so many rows at once.
pub struct LogprobScratch<B: Backend> {
    /// `[rows, groups(vocab)]`.
    pub bests: B::Buf<u64>,
    /// `[rows, blocks(vocab), 2]`.
    pub parts: B::Buf<u64>,
    /// `[rows]`; zero between operations.
    pub tickets: B::Buf<u32>,
}

impl<B: Backend> LogprobScratch<B> {
    /// Reserves it.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc(backend: &B, vocab: usize, rows: usize) -> Result<Self, OpError> {
        dimension(OP, "vocab", vocab, MAX_ROWS, "1 to 2^24 tokens are allowed")?;
        dimension(OP, "rows", rows, MAX_ENTRIES, "1 to 65,535 rows are allowed")?;
        let vocab = vocab as u32;
        let mut scratch = Self {
            bests: backend.alloc("sampler", rows * groups(vocab) as usize)?,
            parts: backend.alloc("sampler", rows * 2 * blocks(vocab) as usize)?,
            tickets: backend.alloc("sampler", rows)?,
        };
        backend.fill(&mut scratch.tickets, 0)?;
        Ok(scratch)
    }
}

/// Tells the log probability of each row's token and the most likely tokens there, by the model's own logits. A token is told once.
pub struct Logprobs<'a, B: Backend> {
    /// Logits `[rows, vocab]`.
    pub logits: &'a B::Buf<f32>,
    /// Number of logits of a row.
    pub vocab: usize,
    /// Tokens.
    pub ids: RowWords<'a, B>,
    /// Number of each in its text, from 1 on; 0 for none.
    pub steps: RowWords<'a, B>,
    /// 0: nothing is told of the row; else 1 and the number of likely tokens, up to [`contract::logprobs::MAX_TOP`].
    pub wanted: RowWords<'a, B>,
    /// Number of the last token of each row that was told, from row `first` on; updated.
    pub last: &'a mut B::Buf<u32>,
    /// Receives entries of [`ENTRY_WORDS`]: `[first + rows, ring]` of them.
    pub out: &'a mut B::TokenLog,
    /// For `rows` rows.
    pub scratch: &'a mut LogprobScratch<B>,
    /// The row of `last` and `out` that belongs to the first logits.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// Entries of a row: token `n` goes to entry `(n - 1) % ring`.
    pub ring: usize,
}

impl<B: Backend> Logprobs<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        dimension(OP, "vocab", self.vocab, MAX_ROWS, "1 to 2^24 tokens are allowed")?;
        dimension(OP, "rows", self.rows, MAX_ENTRIES, "1 to 65,535 rows are allowed")?;
        dimension(OP, "ring", self.ring, MAX_ROWS, "1 to 2^24 entries are allowed")?;
        let end = self.first.saturating_add(self.rows);
        dimension(OP, "first + rows", end, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        at_least(OP, "logits", self.logits.len(), self.rows * self.vocab)?;
        self.ids.check(OP, "ids", self.rows, 1)?;
        self.steps.check(OP, "steps", self.rows, 1)?;
        self.wanted.check(OP, "wanted", self.rows, 1)?;
        let (vocab, LogprobScratch { bests, parts, tickets }) = (self.vocab as u32, &*self.scratch);
        at_least(OP, "bests", bests.len(), self.rows * groups(vocab) as usize)?;
        at_least(OP, "parts", parts.len(), self.rows * 2 * blocks(vocab) as usize)?;
        at_least(OP, "tickets", tickets.len(), self.rows)?;
        at_least(OP, "last", self.last.len(), end)?;
        at_least(OP, "out", self.out.len(), (end * self.ring).saturating_mul(ENTRY_WORDS))
    }
}

#[cfg(feature = "cuda")]
impl Logprobs<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::launch::DevPtr;
        use contract::logprobs::{Args, Groups, Tell};
        self.check()?;
        let Self { logits, vocab, ids, steps, wanted, last, out, scratch, first, rows, ring } =
            self;
        let stream = cuda.stream();
        let at = |words: RowWords<'_, super::CudaBackend>| -> DevPtr<u32> {
            super::cuda::at(words.words.dev_ptr(stream), words.at)
        };
        let args = Args {
            logits: logits.dev_ptr(stream),
            ids: at(ids),
            steps: at(steps),
            wanted: at(wanted),
            last: super::cuda::at(last.dev_ptr(stream), first),
            out: super::cuda::at(out.dev_ptr(stream), first * ring * ENTRY_WORDS),
            bests: scratch.bests.dev_ptr(stream),
            parts: scratch.parts.dev_ptr(stream),
            tickets: scratch.tickets.dev_ptr(stream),
            ids_stride: ids.stride as u32,
            steps_stride: steps.stride as u32,
            wanted_stride: wanted.stride as u32,
            ring: ring as u32,
            vocab: vocab as u32,
        };
        let grid = [blocks(args.vocab), rows as u32, 1];
        // SAFETY: `check` compared every tensor with `rows` rows; allocations are 256-byte aligned and entries are a multiple of 16 bytes; what is
        // written is borrowed exclusively.
        unsafe {
            cuda.launch::<Groups>(grid, args)?;
            cuda.launch::<Tell>(grid, args)
        }
    }
}
