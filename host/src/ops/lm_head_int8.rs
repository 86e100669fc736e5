//! Host side of [`contract::lm_head_int8`].

use contract::lm_head_int8::{MAX_K, groups, input_words, row_bytes};
use contract::sample::MAX_SAMPLERS;

use super::error::{at_least, dimension, same};
use super::sample::{PARAM_WORDS, STATE_WORDS, SampleState};
use super::{Backend, Dense, OpError, Tensor};

const OP: &str = "lm_head_int8";

/// The int8 copy of a table `[vocab, k]`, with what is known of each row.
pub struct Int8Table<B: Backend> {
    pub(crate) bytes: B::Buf<u8>,
    pub(crate) rows: B::Buf<f32>,
    vocab: usize,
    k: usize,
}

impl<B: Backend> Int8Table<B> {
    /// Copies `w`, and waits for it. Its memory is counted as `head int8`: `k` bytes a row, rounded up to 16, and 16 more.
    ///
    /// # Errors
    /// Rows of more than 2^17 elements; out of memory; a failed launch.
    pub fn new(backend: &B, w: &Dense<B>) -> Result<Self, OpError> {
        let (vocab, k) = (w.rows(), w.width());
        dimension(
            OP,
            "k",
            k,
            MAX_K,
            "rows of 1 to 2^17 elements are allowed; use the stored head",
        )?;
        let bytes = backend.alloc("head int8", vocab * row_bytes(k))?;
        Self::over(backend, w, bytes, backend.alloc("head int8", 4 * vocab)?)
    }

    /// [`Int8Table::new`] in buffers that are large enough.
    pub(crate) fn over(
        backend: &B,
        w: &Dense<B>,
        bytes: B::Buf<u8>,
        rows: B::Buf<f32>,
    ) -> Result<Self, OpError> {
        let mut table = Self { bytes, rows, vocab: w.rows(), k: w.width() };
        backend.lm_head_int8_pack(Pack { w, table: &mut table })?;
        // Kernels read the copy before they wait for those in front of them.
        backend.synchronize()?;
        Ok(table)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.vocab
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.k
    }

    /// Reserves what `m` inputs need.
    ///
    /// # Errors
    /// Out of memory.
    pub fn input(&self, backend: &B, m: usize) -> Result<B::Buf<u32>, OpError> {
        backend.alloc("head int8", m * input_words(self.k))
    }

    /// The int8 rows, padded with zeros to 16 bytes.
    pub fn bytes(&self) -> &B::Buf<u8> {
        &self.bytes
    }

    /// Scale, bounds of error and norm, and 0, of each row.
    pub fn stats(&self) -> &B::Buf<f32> {
        &self.rows
    }
}

/// Makes the copy; see [`Int8Table::new`].
pub struct Pack<'a, B: Backend> {
    pub(crate) w: &'a Dense<B>,
    pub(crate) table: &'a mut Int8Table<B>,
}

/// The logits that can decide the next tokens of `m` sequences; minus infinity for the others. Those of a
/// sequence that has ended are left as they are.
pub struct LmHeadInt8<'a, B: Backend> {
    /// Values `[x_at.., m, k]`.
    pub x: &'a B::Buf<f32>,
    /// First element in `x`.
    pub x_at: usize,
    /// Table `[vocab, k]`.
    pub w: &'a Dense<B>,
    /// Its copy.
    pub table: &'a Int8Table<B>,
    /// Scratch, from [`Int8Table::input`].
    pub input: &'a mut B::Buf<u32>,
    /// The sampler that takes the logits: what it asks for, what it has seen. Its `tops` are scratch.
    pub sampler: &'a mut SampleState<B>,
    /// Row of the sampler that takes the first logits.
    pub row: usize,
    /// Output `[m, vocab]`.
    pub logits: &'a mut B::Buf<f32>,
    /// Sequences.
    pub m: usize,
}

impl<B: Backend> LmHeadInt8<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let (vocab, k) = (self.w.rows(), self.w.width());
        same(OP, "vocab", self.table.vocab, vocab)?;
        same(OP, "k", self.table.k, k)?;
        dimension(OP, "m", self.m, MAX_SAMPLERS, "1 to 65,535 rows are allowed")?;
        at_least(OP, "x", self.x.len(), self.x_at.saturating_add(self.m * k))?;
        at_least(OP, "input", self.input.len(), self.m * input_words(k))?;
        let rows = self.row.saturating_add(self.m);
        at_least(OP, "rows of the sampler", self.sampler.rows, rows)?;
        at_least(OP, "seen", self.sampler.seen.len(), rows * vocab)?;
        at_least(OP, "tops", self.sampler.tops.len(), rows * groups(vocab as u32) as usize)?;
        at_least(OP, "params", self.sampler.params.len(), rows * PARAM_WORDS)?;
        at_least(OP, "state", self.sampler.state.len(), rows * STATE_WORDS)?;
        at_least(OP, "logits", self.logits.len(), self.m * vocab)
    }
}

#[cfg(feature = "cuda")]
impl Pack<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::lm_head_int8::{PackArgs, PackBf16, PackF16, PackF32};
        use contract::num::RowType;
        let Self { w, table } = self;
        let stream = cuda.stream();
        let args = PackArgs {
            w: w.data().dev_ptr(stream),
            bytes: table.bytes.dev_ptr(stream),
            rows: table.rows.dev_ptr(stream),
            k: w.width() as u32,
            stride: w.stride() as u32,
        };
        let grid = [w.rows() as u32, 1, 1];
        // SAFETY: `Int8Table::new` made the copy for this table; allocations are 256-byte aligned; the
        // copy is borrowed exclusively.
        unsafe {
            match w.element() {
                RowType::Bf16 => cuda.launch::<PackBf16>(grid, args),
                RowType::F16 => cuda.launch::<PackF16>(grid, args),
                RowType::F32 => cuda.launch::<PackF32>(grid, args),
            }
        }
    }
}

#[cfg(feature = "cuda")]
impl LmHeadInt8<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::lm_head_int8::{
            Args, FEW, Input, InputArgs, MANY, RescoreBf16, RescoreF16, RescoreF32, SOME, Scan,
            ScanFew, ScanMany, ScanSome, ScanWide, ScanWideSome, WIDE, WIDE_SOME, rescore_grid,
        };
        use contract::num::RowType;
        self.check()?;
        use super::cuda::at;
        let Self { x, x_at, w, table, input, sampler, row, logits, m } = self;
        let (stream, vocab) = (cuda.stream(), w.rows());
        let args = Args {
            x: at(x.dev_ptr(stream), x_at),
            w: w.data().dev_ptr(stream),
            bytes: table.bytes.dev_ptr(stream),
            rows: table.rows.dev_ptr(stream),
            input: input.dev_ptr(stream),
            tops: at(sampler.tops.dev_ptr(stream), row * groups(vocab as u32) as usize),
            seen: at(sampler.seen.dev_ptr(stream), row * vocab),
            params: at(sampler.params.dev_ptr(stream), row * PARAM_WORDS).cast(),
            state: at(sampler.state.dev_ptr(stream), row * STATE_WORDS).cast(),
            logits: logits.dev_ptr(stream),
            vocab: vocab as u32,
            k: w.width() as u32,
            stride: w.stride() as u32,
            m: m as u32,
        };
        let all = rescore_grid(args.vocab, args.m);
        let sms = cuda.cuda().device().sm_count();
        let one = InputArgs { x: args.x, input: args.input, k: args.k };
        // SAFETY: `check` compared every tensor with the table and `m`; the copy was made for a table of
        // these sizes, and waited for; all that the kernels write is borrowed exclusively.
        unsafe {
            cuda.launch::<Input>([args.m, 1, 1], one)?;
            // A scan for more inputs than there are, or for fewer, is the next best.
            match args.m {
                2..=8 if cuda.has::<ScanFew>() => {
                    cuda.launch::<ScanFew>(FEW.grid(args.vocab, args.m), args)?;
                }
                9..=32 if cuda.has::<ScanWideSome>() => {
                    let grid = WIDE_SOME.looped_grid(args.vocab, args.m, sms);
                    cuda.launch::<ScanWideSome>(grid, args)?;
                }
                9.. if cuda.has::<ScanWide>() => {
                    cuda.launch::<ScanWide>(WIDE.looped_grid(args.vocab, args.m, sms), args)?;
                }
                33.. if cuda.has::<ScanMany>() => {
                    cuda.launch::<ScanMany>(MANY.grid(args.vocab, args.m), args)?;
                }
                2.. if cuda.has::<ScanSome>() => {
                    cuda.launch::<ScanSome>(SOME.grid(args.vocab, args.m), args)?;
                }
                _ => cuda.launch::<Scan>([groups(args.vocab), args.m, 1], args)?,
            }
            match w.element() {
                RowType::Bf16 => cuda.launch::<RescoreBf16>(all, args)?,
                RowType::F16 => cuda.launch::<RescoreF16>(all, args)?,
                RowType::F32 => cuda.launch::<RescoreF32>(all, args)?,
            }
        }
        Ok(())
    }
}
