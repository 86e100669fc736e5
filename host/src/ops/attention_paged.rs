//! Host side of [`contract::attention_paged`].

mod copies;
mod runs;
#[cfg(feature = "cuda")]
mod split;
#[cfg(feature = "cuda")]
pub(super) use split::is_there as splits;

use contract::attention_paged::{
    MAX_HEAD_DIM, PAGE, counters_len, int8_part_bytes, page_len, partial_len, step_comes_early,
    step_grid, step_takes,
};
use contract::num::RowType;
use contract::w2a8::MAX_ROWS;

use super::attention::{check_math, scale};
#[cfg(feature = "cuda")]
use super::attention::{launch_many, takes_many};
use super::error::{at_least, dimension, elements, same};
use super::kv_append::Heads;
use super::rope::RopeTable;
use super::tensor::RowWords;
use super::{Backend, Math, OpError, Tensor};

pub use copies::{CopyPages, PageCopies};
pub use runs::{PagedRun, PagedRuns};

const OP: &str = "attention_paged";

/// Rows of which the product in front leaves room for the step, where it lets it in at once ([`contract::w2a8_gemm::LET_IN_BYTES`]).
const EARLY_ROWS: std::ops::RangeInclusive<usize> = 33..=64;

/// What pages keep of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageType {
    /// The nearest bf16 or f32.
    Float(RowType),
    /// MXINT8: 32 elements of a head share a power of two, of which each has so many 64ths (see [`contract::num::mx_value`]). A step reads half of the
    /// bytes of bf16, and attention over such a cache gives what it gives over one of bf16 with the same numbers.
    Int8,
}

impl From<RowType> for PageType {
    fn from(element: RowType) -> Self {
        Self::Float(element)
    }
}

impl PartialEq<RowType> for PageType {
    fn eq(&self, element: &RowType) -> bool {
        *self == Self::Float(*element)
    }
}

impl PageType {
    /// Bytes of a kv head's keys, or values, in a page.
    pub const fn part_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::Float(element) => page_len(1, head_dim) * element.bytes(),
            Self::Int8 => int8_part_bytes(head_dim),
        }
    }

    /// Bits of an element, without a share of what it has in common with others.
    pub const fn bits(self) -> usize {
        match self {
            Self::Float(element) => 8 * element.bytes(),
            Self::Int8 => 8,
        }
    }

    /// The field's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(element) => element.name(),
            Self::Int8 => "mxint8",
        }
    }

    /// Whether attention over such pages can be summed like this.
    ///
    /// # Errors
    /// [`Math::TensorCore`] over f32 or f16.
    pub fn check_math(self, math: Math) -> Result<(), OpError> {
        match self {
            Self::Float(element) => check_math(math, element),
            Self::Int8 => Ok(()),
        }
    }
}

/// Keys and values of one layer in pages, as [`contract::attention_paged`] says: [`PageType::part_bytes`] for each kv head of each page.
pub struct PagedCache<B: Backend> {
    /// Keys, rotated.
    pub k: B::Buf<u8>,
    /// Values.
    pub v: B::Buf<u8>,
    /// What it keeps of a number.
    pub element: PageType,
    /// Pages of [`PAGE`] positions.
    pub pages: usize,
}

impl<B: Backend> PagedCache<B> {
    /// Reserves `pages` pages.
    ///
    /// # Errors
    /// A dimension that is not allowed, f16 elements, out of memory.
    pub fn alloc(
        backend: &B,
        heads: Heads,
        pages: usize,
        element: impl Into<PageType>,
    ) -> Result<Self, OpError> {
        heads.check(OP)?;
        let element = element.into();
        let bytes = Self::side_bytes(heads, pages, element)?;
        let (k, v) = (backend.alloc("kv pages", bytes)?, backend.alloc("kv pages", bytes)?);
        Ok(Self { k, v, element, pages })
    }

    /// Bytes of the keys, or of the values.
    fn side_bytes(heads: Heads, pages: usize, element: PageType) -> Result<usize, OpError> {
        dimension(OP, "pages", pages, MAX_ROWS, "1 to 2^24 pages are allowed")?;
        if element == RowType::F16 {
            let (what, allowed) = ("bits of an f16 cache", "a cache holds bf16, f32 or MXINT8");
            return Err(OpError::Dimension { op: OP, what, found: 16, allowed });
        }
        elements(OP, &[pages, heads.kv_heads, element.part_bytes(heads.head_dim)])
    }

    pub(super) fn check(&self, heads: Heads) -> Result<(), OpError> {
        let bytes = Self::side_bytes(heads, self.pages, self.element)?;
        at_least(OP, "k_pages", self.k.len(), bytes)?;
        at_least(OP, "v_pages", self.v.len(), bytes)
    }
}

/// Most bytes of results of a split at once.
const SPLIT_BYTES: usize = 64 << 20;

/// Room for the partial results of a [`PagedStep`] or a [`PagedSplit`].
pub struct PagedScratch<B: Backend> {
    /// `[pages, heads, partial_len(head_dim)]`; of a split there are pages for each row.
    pub partial: B::Buf<f32>,
    /// [`contract::attention_paged::counters_len`]; zero between operations.
    pub counters: B::Buf<u32>,
}

impl<B: Backend> PagedScratch<B> {
    /// Reserves room for steps of `rows` rows over `pages` pages.
    ///
    /// # Errors
    /// A dimension that is not allowed; out of memory.
    pub fn alloc(backend: &B, heads: Heads, rows: usize, pages: usize) -> Result<Self, OpError> {
        heads.check(OP)?;
        dimension(OP, "rows", rows, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "pages", pages, MAX_ROWS, "1 to 2^24 pages are allowed")?;
        let partial = backend.alloc("attention", Self::partial_total(heads, pages)?)?;
        let count = counters_len(rows, heads.heads, heads.kv_heads);
        let mut counters = backend.alloc("attention", count)?;
        backend.fill(&mut counters, 0)?;
        Ok(Self { partial, counters })
    }

    /// Reserves room for a split of `rows` rows that reach `positions` positions: for as many of them at once as 64 MiB hold, and one at least.
    ///
    /// # Errors
    /// A dimension that is not allowed; out of memory.
    pub fn of_split(
        backend: &B,
        heads: Heads,
        rows: usize,
        positions: usize,
    ) -> Result<Self, OpError> {
        heads.check(OP)?;
        let width = positions.div_ceil(PAGE);
        let at_once = SPLIT_BYTES / (4 * Self::partial_total(heads, width)?.max(1));
        Self::alloc(backend, heads, rows, width * rows.min(at_once.max(1)))
    }

    /// Compares its sizes with what `rows` rows take, with results of `pages` pages.
    fn check(&self, heads: Heads, rows: usize, pages: usize) -> Result<(), OpError> {
        at_least(OP, "partial", self.partial.len(), Self::partial_total(heads, pages)?)?;
        let counters = counters_len(rows, heads.heads, heads.kv_heads);
        at_least(OP, "counters", self.counters.len(), counters)
    }

    fn partial_total(heads: Heads, pages: usize) -> Result<usize, OpError> {
        elements(OP, &[pages, heads.heads, partial_len(heads.head_dim)])
    }
}

/// A step of rows with a sequence each: where the device can, one kernel does it all.
pub struct PagedStep<'a, B: Backend> {
    /// Partial results.
    pub scratch: &'a mut PagedScratch<B>,
    /// Positions the launch has to reach: at least each row's plus one. In a recorded step, the most that
    /// its replays will see.
    pub reach: usize,
    /// Positions, tables and all stored keys are older than the last [`Embed`](super::embed::Embed), or operation like this
    /// one, that was queued before: a kernel may then read them while the operation in front still runs, because these two let the
    /// next one in only behind what they waited for themselves. With programmatic dependent launch only; a promise that does not
    /// hold gives results of old and new values.
    pub settled: bool,
    /// Pages that a block takes, where the device has the kernel for it ([`Backend::pages_of_block`]); `None`: one. The bits are the same. On tensor cores
    /// it says only what is brought nearer of [`PagedStep::next`].
    pub share: Option<usize>,
    /// The cache that the next operation like this one reads, of which a product between them may bring some nearer. Changes no result.
    pub next: Option<&'a PagedCache<B>>,
}

impl<B: Backend> PagedStep<'_, B> {
    /// Whether the product in front of this step of `m` rows should let it in at once ([`super::w2a8_gemm::Behind::LetsIn`]).
    pub fn comes_early(&self, cache: &PagedCache<B>, heads: Heads, m: usize) -> bool {
        self.settled
            && (cache.element == RowType::Bf16 || cache.element == PageType::Int8)
            && step_takes(heads.head_dim)
            && (self.share.is_some()
                || EARLY_ROWS.contains(&m)
                || self.grid(heads, m).is_some_and(step_comes_early))
    }

    /// Blocks of the kernel for `m` rows.
    fn grid(&self, heads: Heads, m: usize) -> Option<[u32; 3]> {
        let key_blocks = self.reach.div_ceil(PAGE) as u32;
        step_grid(m as u32, heads.heads as u32, heads.kv_heads as u32, key_blocks)
    }
}

/// Few rows that may be neighbours: where the device and the cache have that kernel, a page of a row to a block, as in a step, behind the store of all keys.
/// Exact under either [`Math`].
pub struct PagedSplit<'a, B: Backend> {
    /// Partial results, from [`PagedScratch::of_split`].
    pub scratch: &'a mut PagedScratch<B>,
    /// As [`PagedStep::reach`].
    pub reach: usize,
}

/// What is known of the rows of an operation. The bits are the same, but on tensor cores.
pub enum PagedRows<'a, B: Backend> {
    /// Nothing: they stand anywhere in any sequence.
    Any,
    /// They are few.
    Split(PagedSplit<'a, B>),
    /// Runs of neighbours, as in prompts. Positions and tables are theirs ([`PagedRuns::positions`], [`PagedRuns::tables`]).
    Runs(&'a PagedRuns<B>),
    /// Every row has a sequence of its own, with pages of its own.
    Step(PagedStep<'a, B>),
}

/// Rotates q and k of `m` rows of any sequences, stores k and v in their pages, and attends.
///
/// What a row gives is what [`super::kv_append`] with a table and [`super::attention`] give for its
/// sequence alone. `qkv` is not changed.
pub struct AttentionPaged<'a, B: Backend> {
    /// Rows `[first + m, heads.qkv_len()]`.
    pub qkv: &'a B::Buf<f32>,
    /// The layer's pages.
    pub cache: &'a mut PagedCache<B>,
    /// Angles for at least `capacity` positions.
    pub rope: &'a RopeTable<B>,
    /// Output `[first + m, heads.q_len()]`.
    pub out: &'a mut B::Buf<f32>,
    /// First row of `qkv` and `out`; those in front are left alone.
    pub first: usize,
    /// Position of each row; [`contract::attention_paged::ABSENT`] for one that is not there.
    pub positions: RowWords<'a, B>,
    /// Pages of each row's sequence. A stride of 0: all rows are of one sequence.
    pub tables: RowWords<'a, B>,
    /// Positions that a table covers.
    pub capacity: usize,
    /// Rows.
    pub m: usize,
    /// Heads of the layer; of even size, at most 256.
    pub heads: Heads,
    /// How scores and values are summed. [`Math::TensorCore`] takes a cache of bf16 or 8 bits and needs sm_80. A step of heads of 128 elements then gives results
    /// within [`contract::attention_paged::fast_bound`], which depend on how many rows it has and on its reach; a run what
    /// [`super::attention::Attention`] says. Other heads of a step, rows of which nothing is known, older devices and the CPU compute as for
    /// [`Math::Exact`]. What is stored is the same.
    pub math: Math,
    /// What is known of the rows.
    pub rows: PagedRows<'a, B>,
}

impl<B: Backend> AttentionPaged<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let heads = self.heads;
        heads.check(OP)?;
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "head_dim", heads.head_dim, MAX_HEAD_DIM as usize, "1 to 256 are allowed")?;
        let allowed = "1 to 2^24 positions are allowed";
        dimension(OP, "capacity", self.capacity, MAX_ROWS, allowed)?;
        self.cache.check(heads)?;
        self.cache.element.check_math(self.math)?;
        let end = self.first.saturating_add(self.m);
        dimension(OP, "first + m", end, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        at_least(OP, "qkv", self.qkv.len(), elements(OP, &[end, heads.qkv_len()])?)?;
        at_least(OP, "out", self.out.len(), elements(OP, &[end, heads.q_len()])?)?;
        self.positions.check(OP, "positions", self.m, 1)?;
        self.tables.check(OP, "tables", self.m, self.capacity.div_ceil(PAGE))?;
        same(OP, "head_dim", self.rope.head_dim, heads.head_dim)?;
        at_least(OP, "angles", self.rope.positions, self.capacity)?;
        self.rope.check(OP)?;
        let reaches = |reach: usize| {
            let allowed = "1 to the positions of a table are allowed";
            dimension(OP, "reach", reach, self.capacity, allowed)
        };
        if let PagedRows::Runs(runs) = self.rows {
            same(OP, "rows of the runs", runs.m(), self.m)?;
            let group = |heads: Heads| heads.heads / heads.kv_heads;
            same(OP, "heads of a kv head of the runs", group(runs.heads()), group(heads))?;
            reaches(runs.reach())?;
        }
        if let PagedRows::Step(PagedStep { scratch, reach, share, .. }) = &self.rows {
            reaches(*reach)?;
            let allowed = "1 to 65,535 pages are allowed";
            dimension(OP, "share", share.unwrap_or(1), usize::from(u16::MAX), allowed)?;
            scratch.check(heads, self.m, self.cache.pages)?;
        }
        if let PagedRows::Split(PagedSplit { scratch, reach }) = &self.rows {
            reaches(*reach)?;
            scratch.check(heads, self.m, reach.div_ceil(PAGE))?;
        }
        Ok(())
    }

    /// Multiplier of the scores: `1 / sqrt(head_dim)`, rounded once.
    pub fn scale(&self) -> f32 {
        scale(self.heads.head_dim)
    }
}

#[cfg(feature = "cuda")]
impl AttentionPaged<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use super::cuda::at;
        use contract::attention_paged::{
            AppendBf16, AppendF32, AppendInt8, Args, FAST_HEAD_DIM, FastBf16, FastInt8, RowsBf16,
            RowsF32, RowsInt8, StepBf16, WalkBf16, append_grid, fast_share, grid, walk_word,
        };
        use contract::launch::DevPtr;
        self.check()?;
        let scale = self.scale();
        let Self { qkv, cache, rope, out, first, positions, tables, capacity, m, .. } = self;
        let Self { heads, math, rows, .. } = self;
        let of_step = |s: &PagedStep<'_, _>| s.grid(heads, m);
        let (step, split, runs) = match rows {
            PagedRows::Any => (None, None, None),
            PagedRows::Runs(runs) => (None, None, Some(runs)),
            PagedRows::Split(split) => (None, Some(split), None),
            PagedRows::Step(step) => (Some(step), None, None),
        };
        let int8 = cache.element == PageType::Int8;
        let fast = math == Math::TensorCore
            && heads.head_dim == FAST_HEAD_DIM as usize
            && if int8 { cuda.has::<FastInt8>() } else { cuda.has::<FastBf16>() };
        // Exact steps over 8 bits append and walk over rows.
        let step = step.filter(|step| {
            (cache.element == RowType::Bf16 || int8 && fast)
                && step_takes(heads.head_dim)
                && of_step(step).is_some()
                && cuda.has::<StepBf16>()
        });
        let stream = cuda.stream();
        // `check` and the grid bound both numbers.
        let walk = step.as_ref().and_then(|s| {
            let [units, rows, pages] = of_step(s)?;
            let share = if fast {
                fast_share(units, rows, pages, cuda.cuda().device().info().sm_count)
            } else {
                s.share.filter(|_| cuda.has::<WalkBf16>())? as u32
            };
            let grid = [units, rows, pages.div_ceil(share)];
            Some((grid, walk_word(share as u16, pages as u16)))
        });
        let args = Args {
            qkv: at(qkv.dev_ptr(stream), first * heads.qkv_len()),
            k_pages: cache.k.dev_ptr(stream),
            v_pages: cache.v.dev_ptr(stream),
            cos: rope.cos.dev_ptr(stream),
            sin: rope.sin.dev_ptr(stream),
            positions: at(positions.words.dev_ptr(stream), positions.at),
            tables: at(tables.words.dev_ptr(stream), tables.at),
            out: at(out.dev_ptr(stream), first * heads.q_len()),
            partial: step.as_ref().map_or(DevPtr::NULL, |s| s.scratch.partial.dev_ptr(stream)),
            counters: step.as_ref().map_or(DevPtr::NULL, |s| s.scratch.counters.dev_ptr(stream)),
            m: m as u32,
            heads: heads.heads as u32,
            kv_heads: heads.kv_heads as u32,
            group: (heads.heads / heads.kv_heads) as u32,
            head_dim: heads.head_dim as u32,
            position_stride: positions.stride as u32,
            table_stride: tables.stride as u32,
            pages: cache.pages as u32,
            capacity: capacity as u32,
            scale,
            settled: step.as_ref().map_or(0, |s| u32::from(s.settled)),
            walk: walk.map_or(0, |(_, word)| word),
        };
        let (append, attend) = (append_grid(args.m, args.kv_heads), grid(args.m, args.heads));
        if let Some(grid) = step.as_ref().and_then(of_step) {
            // SAFETY: as below; `check` compared the scratch, which is borrowed exclusively, with the rows
            // and the pages; `settled` is the caller's word, and what it is about is read in its bounds either way.
            return unsafe {
                match walk {
                    Some((grid, _)) if fast && int8 => cuda.launch::<FastInt8>(grid, args),
                    Some((grid, _)) if fast => cuda.launch::<FastBf16>(grid, args),
                    Some((grid, _)) => cuda.launch::<WalkBf16>(grid, args),
                    None => cuda.launch::<StepBf16>(grid, args),
                }
            };
        }
        // SAFETY: `check` compared `qkv` and `out` with `m` rows, positions and tables with their strides,
        // the angles with the capacity (past which a row reads and stores nothing) and the cache with
        // its number of pages (past which a page is not looked at); what is written is borrowed
        // exclusively.
        unsafe {
            match cache.element {
                PageType::Float(RowType::F32) => cuda.launch::<AppendF32>(append, args)?,
                PageType::Float(_) => cuda.launch::<AppendBf16>(append, args)?,
                PageType::Int8 => cuda.launch::<AppendInt8>(append, args)?,
            }
            let there =
                |of: &PagedSplit<'_, _>| split::is_there(cuda, (cache.element, heads), of.reach);
            if let Some(PagedSplit { scratch, reach }) = split.filter(there) {
                return split::launch(cuda, &args, (heads, reach), scratch);
            }
            if let Some(runs) = runs {
                let tiled = takes_many(cuda, math, m, heads);
                let exact = math == Math::Exact;
                if exact && split::takes(cuda, runs, (cache.element, heads), tiled) {
                    let scratch = PagedScratch::of_split(cuda, heads, runs.m(), runs.reach())?;
                    return split::launch(cuda, &args, (heads, runs.reach()), &scratch);
                }
                if tiled {
                    return launch_runs(cuda, &args, cache, (math, heads), runs);
                }
            }
            match cache.element {
                PageType::Float(RowType::F32) => cuda.launch::<RowsF32>(attend, args),
                PageType::Float(_) => cuda.launch::<RowsBf16>(attend, args),
                PageType::Int8 => cuda.launch::<RowsInt8>(attend, args),
            }
        }
    }
}

/// Brings the pages of runs together and attends as [`super::attention`] does for many rows.
///
/// # Safety
///
/// `args` are those of rows whose keys and values are stored, which [`AttentionPaged::check`] took with `runs`; their heads take that kernel.
#[cfg(feature = "cuda")]
unsafe fn launch_runs(
    cuda: &super::CudaBackend,
    args: &contract::attention_paged::Args,
    cache: &PagedCache<super::CudaBackend>,
    (math, heads): (Math, Heads),
    runs: &PagedRuns<super::CudaBackend>,
) -> Result<(), OpError> {
    use super::cuda::at;
    use contract::attention_paged::{Gather, GatherArgs, GatherInt8, gather_grid};
    use contract::kv_append::kv_stride;
    use contract::launch::DevPtr;
    let (stream, m) = (cuda.stream(), args.m);
    let (blocks_at, key_blocks) = runs.blocks();
    let (tiles_at, tiles) = runs.tile_words();
    // What 8 bits decode to is bf16.
    let (int8, element) = match cache.element {
        PageType::Float(element) => (false, element),
        PageType::Int8 => (true, RowType::Bf16),
    };
    let position_bytes = kv_stride(heads.head_dim) * element.bytes();
    let side = elements(OP, &[heads.kv_heads, key_blocks * PAGE, position_bytes])?;
    let q = cuda.alloc::<f32>("attention", elements(OP, &[m as usize, heads.q_len()])?)?;
    let (k, v) = (cuda.alloc::<u8>("attention", side)?, cuda.alloc::<u8>("attention", side)?);
    let (q, to) = (q.dev_ptr(stream), [k.dev_ptr(stream), v.dev_ptr(stream)]);
    let words = runs.words().dev_ptr(stream);
    let gather = GatherArgs {
        qkv: args.qkv,
        pages: [args.k_pages, args.v_pages],
        cos: args.cos,
        sin: args.sin,
        positions: args.positions,
        blocks: at(words, blocks_at),
        q,
        to,
        m,
        heads: args.heads,
        kv_heads: args.kv_heads,
        head_dim: args.head_dim,
        position_bytes: position_bytes as u32,
        page_count: args.pages,
        key_blocks: key_blocks as u32,
        position_stride: args.position_stride,
        capacity: args.capacity,
    };
    let rows = contract::attention::Args {
        q,
        k_cache: to[0],
        v_cache: to[1],
        out: args.out,
        start: DevPtr::NULL,
        tiles: at(words, tiles_at),
        m,
        heads: args.heads,
        kv_heads: args.kv_heads,
        head_dim: args.head_dim,
        q_stride: heads.q_len() as u32,
        capacity: (key_blocks * PAGE) as u32,
        scale: args.scale,
    };
    // SAFETY: the caller's promise; what is written was made for so many rows and pages. `PagedRuns::write` made the words: pages are told apart from
    // those that are not there, tiles are of rows below `m`, and all positions that they see are written.
    unsafe {
        let grid = gather_grid(m, args.kv_heads, key_blocks as u32);
        if int8 {
            cuda.launch::<GatherInt8>(grid, gather)?;
        } else {
            cuda.launch::<Gather>(grid, gather)?;
        }
        launch_many(cuda, math, element, tiles as u32, rows)
    }
}
