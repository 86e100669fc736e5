//! Host side of [`contract::lm_head_int8`].

use contract::lm_head_int8::{MAX_K, input_words, row_bytes};
use contract::sample::MAX_SAMPLERS;

use super::error::{at_least, dimension, same};
use super::sample::SampleState;
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

    /// Bytes that the copy of `w` takes; `None` where there can be none.
    pub fn size(w: &Dense<B>) -> Option<usize> {
        let row = (w.width() <= MAX_K).then(|| row_bytes(w.width()) + 4 * size_of::<f32>());
        row.and_then(|row| row.checked_mul(w.rows()))
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
        backend.alloc("head int8", m * input_words(self.k, self.vocab as u32))
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

/// The norm in front of a head: `x = rmsnorm(h + delta) * weight`.
pub struct HeadNorm<'a, B: Backend> {
    /// Rows `[m, k]`; scratch afterwards.
    pub h: &'a mut B::Buf<f32>,
    /// Rows added to `h` first.
    pub delta: Option<&'a B::Buf<f32>>,
    /// Gain `[k]`.
    pub weight: &'a B::Buf<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// The next tokens of `m` sequences: what [`super::sample::Sample`] picks from the logits of [`super::lm_head::LmHead`]. Those of a
/// sequence that has ended are left as they are.
pub struct LmHeadInt8<'a, B: Backend> {
    /// Makes `x`, where it is not given.
    pub norm: Option<HeadNorm<'a, B>>,
    /// Values `[x_at.., m, k]`.
    pub x: &'a mut B::Buf<f32>,
    /// First element in `x`; 0 behind a norm.
    pub x_at: usize,
    /// Table `[vocab, k]`.
    pub w: &'a Dense<B>,
    /// Its copy.
    pub table: &'a Int8Table<B>,
    /// Scratch, from [`Int8Table::input`].
    pub input: &'a mut B::Buf<u32>,
    /// The sampler that picks.
    pub sampler: &'a mut SampleState<B>,
    /// Row of the sampler that takes the first input.
    pub row: usize,
    /// Scratch `[m, vocab]`.
    pub bounds: &'a mut B::Buf<f32>,
    /// Whether inputs that need every logit ([`contract::lm_head_int8::Asked::every`]) leave them there, as they are, and have the sampler's bias. [`Backend::keeps_logits`] says where that can be asked for. Without, the sampler is one that has no bias.
    pub every: bool,
    /// Receives the tokens: the log divided among the rows of the sampler.
    pub out: &'a mut B::TokenLog,
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
        at_least(OP, "input", self.input.len(), self.m * input_words(k, vocab as u32))?;
        if let Some(norm) = &self.norm {
            if self.x_at != 0 {
                let (what, allowed) = ("x_at", "behind a norm 0 is allowed");
                return Err(OpError::Dimension { op: OP, what, found: self.x_at, allowed });
            }
            at_least(OP, "h", norm.h.len(), self.m * k)?;
            if let Some(delta) = norm.delta {
                at_least(OP, "delta", delta.len(), self.m * k)?;
            }
            at_least(OP, "weight", norm.weight.len(), k)?;
        }
        self.sampler.check(OP, vocab, self.row, self.m)?;
        at_least(OP, "bounds", self.bounds.len(), self.m * vocab)
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
        use super::cuda::at;
        use super::rmsnorm::RmsNorm;
        use contract::launch::DevPtr;
        use contract::lm_head_int8::{
            Args, FEW, Input, InputArgs, MANY, PickArgs, PickBf16, PickF16, PickF32, RescoreBf16,
            RescoreF16, RescoreF32, SOME, Scan, ScanFew, ScanMany, ScanSome, ScanWide,
            ScanWideSome, WIDE, WIDE_SOME, groups, in_clusters, pick_blocks, rescore_grid,
        };
        use contract::num::RowType;
        use contract::rmsnorm::WHOLE;
        self.check()?;
        let Self { mut norm, x, x_at, w, table, input, sampler, row, bounds, every, out, m } = self;
        if every && !cuda.keeps_logits(w, m) {
            let allowed =
                "with every logit in memory, 2 to 65,535 rows that tiles take are allowed";
            return Err(OpError::Dimension { op: OP, what: "m", found: m, allowed });
        }
        let (stream, vocab) = (cuda.stream(), w.rows());
        let eps = norm.as_ref().map_or(0.0, |norm| norm.eps);
        if let Some(HeadNorm { h, delta, weight, eps }) =
            norm.take_if(|_| w.width() > WHOLE as usize)
        {
            // Such rows have more than one sum.
            let (m, k) = (m, w.width());
            cuda.rmsnorm(RmsNorm { x: h, delta, weight, y: &mut *x, m, k, eps })?;
        }
        let mut picks = sampler.args(stream, DevPtr::NULL, vocab, row, out);
        if !every {
            picks.bias = DevPtr::NULL;
        }
        let args = Args {
            x: at(x.dev_ptr(stream), x_at),
            w: w.data().dev_ptr(stream),
            bytes: table.bytes.dev_ptr(stream),
            rows: table.rows.dev_ptr(stream),
            input: input.dev_ptr(stream),
            marks: picks.marks,
            bias: picks.bias,
            params: picks.params,
            state: picks.state,
            bounds: bounds.dev_ptr(stream),
            adjusted: picks.adjusted,
            tops: picks.tops,
            best: picks.best,
            vocab: vocab as u32,
            k: w.width() as u32,
            stride: w.stride() as u32,
            m: m as u32,
        };
        let all = rescore_grid(args.vocab, args.m);
        let sms = cuda.cuda().device().sm_count();
        let [h, delta, weight] = match &norm {
            Some(norm) => [Some(&*norm.h), norm.delta, Some(norm.weight)],
            None => [None; 3],
        }
        .map(|buf| buf.map_or(DevPtr::NULL, |buf| buf.dev_ptr(stream)));
        let (x, input, k, vocab) = (args.x, args.input, args.k, args.vocab);
        let one = InputArgs { h, delta, weight, x, input, k, vocab, eps };
        let wide = match args.m {
            9..=32 if cuda.has::<ScanWideSome>() => wide(args, &WIDE_SOME),
            33.. if cuda.has::<ScanWide>() => wide(args, &WIDE),
            _ => None,
        };
        // SAFETY: `check` compared every tensor with the table and `m`; the copy was made for a table of
        // these sizes, and waited for; all that the kernels write is borrowed exclusively.
        unsafe {
            cuda.launch::<Input>([args.m, 1, 1], one)?;
            // A scan for more inputs than there are, or for fewer, is the next best.
            match (args.m, wide) {
                (2..=8, _) if cuda.has::<ScanFew>() => {
                    cuda.launch::<ScanFew>(FEW.grid(args.vocab, args.m), args)?;
                }
                (0..=32, Some(wide)) => {
                    let grid = WIDE_SOME.looped_grid(args.vocab, args.m, sms);
                    cuda.launch::<ScanWideSome>(grid, wide)?;
                }
                (_, Some(wide)) => {
                    cuda.launch::<ScanWide>(WIDE.looped_grid(args.vocab, args.m, sms), wide)?;
                }
                (33.., _) if cuda.has::<ScanMany>() => {
                    cuda.launch::<ScanMany>(MANY.grid(args.vocab, args.m), args)?;
                }
                (2.., _) if cuda.has::<ScanSome>() => {
                    cuda.launch::<ScanSome>(SOME.grid(args.vocab, args.m), args)?;
                }
                (2.., _) if cuda.has::<ScanFew>() => {
                    cuda.launch::<ScanFew>(FEW.grid(args.vocab, args.m), args)?;
                }
                _ => cuda.launch::<Scan>([groups(args.vocab), args.m, 1], args)?,
            }
            // Inputs that need every logit, as tiles; the kernel behind takes them over.
            if let Some((grid, args)) = of_every(cuda, &args, every, sms) {
                super::lm_head::launch_tiles(cuda, w.element(), grid, args)?;
            }
            match w.element() {
                RowType::Bf16 => cuda.launch::<RescoreBf16>(all, args)?,
                RowType::F16 => cuda.launch::<RescoreF16>(all, args)?,
                RowType::F32 => cuda.launch::<RescoreF32>(all, args)?,
            }
            let (one, picks) =
                ([pick_blocks(args.m), args.m, 1], PickArgs { head: args, sample: picks });
            match w.element() {
                _ if !in_clusters(args.m, args.k) || !cuda.has::<PickBf16>() => {
                    super::sample::pick(cuda, picks.sample, args.m)?
                }
                RowType::Bf16 => cuda.launch::<PickBf16>(one, picks)?,
                RowType::F16 => cuda.launch::<PickF16>(one, picks)?,
                RowType::F32 => cuda.launch::<PickF32>(one, picks)?,
            }
        }
        Ok(())
    }
}

/// Whether `m` inputs of the head `w` can leave every logit in memory.
#[cfg(feature = "cuda")]
pub(super) fn keeps_logits(
    cuda: &super::CudaBackend,
    w: &Dense<super::CudaBackend>,
    m: usize,
) -> bool {
    use contract::lm_head::{LmHeadTileBf16, tile_grid};
    let (vocab, k, sms) = (w.rows() as u32, w.width() as u32, cuda.cuda().device().sm_count());
    m <= MAX_SAMPLERS
        && cuda.has::<LmHeadTileBf16>()
        && tile_grid(m as u32, vocab, k, sms).is_some()
}

/// Grid and argument of the tiles of those inputs that need every logit, of one already where it `stays`; `None` where there are never enough of them, or no tiles.
#[cfg(feature = "cuda")]
fn of_every(
    cuda: &super::CudaBackend,
    head: &contract::lm_head_int8::Args,
    stays: bool,
    sms: u32,
) -> Option<([u32; 3], contract::lm_head::TileArgs)> {
    use contract::lm_head::{Args, LmHeadTileBf16, Only, TILE_LEAST, TileArgs, tile_grid};
    let contract::lm_head_int8::Args { x, w, vocab, k, stride, m, .. } = *head;
    // The last kernel has few blocks for each of more.
    let least = if stays || m > TILE_LEAST { 1 } else { TILE_LEAST };
    if m < least || !cuda.has::<LmHeadTileBf16>() {
        return None;
    }
    let base = Args { x, w, logits: head.bounds, vocab, k, stride, m };
    let only = Only { params: head.params, state: head.state, input: head.input, least };
    Some((tile_grid(m, vocab, k, sms)?, TileArgs { base, only }))
}

/// The argument of a scan on `wgmma`; `None` where the driver makes no maps.
#[cfg(feature = "cuda")]
fn wide(
    scan: contract::lm_head_int8::Args,
    cut: &contract::lm_head_int8::Many,
) -> Option<contract::lm_head_int8::WideArgs> {
    use crate::driver::{MapElement, Mapped};
    use contract::lm_head_int8::{MANY_SLICE, STATS_WORDS, WideArgs};
    let row = row_bytes(scan.k as usize) as u64;
    let (element, vocab, m) = (MapElement::U8, u64::from(scan.vocab), u64::from(scan.m));
    let of_input = 4 * input_words(scan.k as usize, scan.vocab) as u64;
    let table = Mapped {
        element,
        address: scan.bytes.addr(),
        sizes: [row, vocab, 1, 1],
        strides: [row, row * vocab, row * vocab],
    };
    let digits = Mapped {
        element,
        address: scan.input.addr() + 4 * STATS_WORDS as u64,
        sizes: [row, 2, m, 1],
        strides: [row, of_input, of_input * m],
    };
    Some(WideArgs {
        table: table.tiles([MANY_SLICE, cut.rows, 1, 1])?,
        digits: digits.tiles([MANY_SLICE, 2, cut.inputs, 1])?,
        scan,
    })
}
