//! Runs of [`crate::ops::attention_paged`].

use contract::attention_paged::{
    ABSENT, AppendBf16, AppendF32, AppendInt8, FAST_HEAD_DIM, FastBf16, FastInt8, Gather,
    GatherInt8, PAGE, RowsBf16, RowsF32, RowsInt8, SplitBf16, StepBf16, WalkBf16, counters_len,
    int8_part_bytes, int8_stride, partial_len, step_takes,
};
use contract::kv_append::kv_stride;
use contract::launch::Kernel;
use contract::num::MX_BLOCK;

use super::kv_append::{Cache, Unpadded};
use super::rope::Angles;
use super::{Bed, Output, Run, RunError};
use crate::ops::attention_paged::{
    AttentionPaged, CopyPages, PageCopies, PageType, PagedCache, PagedRows, PagedRun, PagedRuns,
    PagedScratch, PagedSplit, PagedStep,
};
use crate::ops::kv_append::{Heads, KvCache};
use crate::ops::{Backend, Math, RowType, RowWords};
use crate::reference::Inputs as Seeded;

pub use crate::reference::attention_paged::Row;
use crate::reference::attention_paged::{attention_paged, fast_bounds, kept, mxint8, run_bounds};

/// Words between the positions of two rows.
const POSITION_STRIDE: usize = 3;

/// Inputs of one run.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Heads of the layer.
    pub heads: Heads,
    /// Rows `[rows, heads.qkv_len()]`.
    pub qkv: Vec<f32>,
    /// The pool before: [`Inputs::pool_heads`] heads of [`PAGE`] positions. What 8 bits hold stands there as f32.
    pub pool: Cache,
    /// What pages keep of a number.
    pub element: PageType,
    /// Pages of the pool.
    pub pages: usize,
    /// Angles.
    pub angles: Angles,
    /// Where the rows stand; tables of [`Inputs::width`] pages.
    pub rows: Vec<Row>,
    /// Rows of each run of neighbours; empty: every row has a sequence of its own.
    pub runs: Vec<usize>,
    /// Positions of a table.
    pub capacity: usize,
    /// How a step is summed.
    pub math: Math,
    /// Run as a step that reaches so many positions, or as runs where there are any.
    pub reach: Option<usize>,
    /// With [`PagedStep::settled`].
    pub settled: bool,
    /// [`PagedStep::share`].
    pub share: Option<usize>,
    /// [`PagedRuns::split`].
    pub split: Option<bool>,
    /// As few rows that reach [`Inputs::reach`], neighbours or not, of which half have room at once.
    pub few: bool,
}

impl Inputs {
    /// A pool is a cache with the heads of all pages.
    pub fn pool_heads(heads: Heads, pages: usize) -> Heads {
        let kv_heads = heads.kv_heads * pages;
        Heads { heads: kv_heads, kv_heads, head_dim: heads.head_dim }
    }

    /// Pages of a table.
    pub fn width(&self) -> usize {
        self.capacity.div_ceil(PAGE)
    }

    /// Rows at `positions`, each with a sequence of its own, whose pages are scattered over a pool with a
    /// few to spare. Places that no row sees hold NaN.
    pub fn scattered(
        element: impl Into<PageType>,
        heads: Heads,
        positions: &[u32],
        seeded: &mut Seeded,
    ) -> Self {
        let element = element.into();
        let last = positions.iter().filter(|&&p| p != ABSENT).max().copied().unwrap_or(0);
        let capacity = last as usize + 1 + seeded.below(90);
        let width = capacity.div_ceil(PAGE);
        let pages = positions.len() * width + 3;
        let mut order: Vec<u32> = (0..pages as u32).collect();
        for i in (1..pages).rev() {
            order.swap(i, seeded.below(i + 1));
        }
        let float = match element {
            PageType::Float(element) => element,
            PageType::Int8 => RowType::F32,
        };
        let mut pool = Cache::random(float, Self::pool_heads(heads, pages), PAGE, seeded);
        pool.padding = 5.0;
        let rows: Vec<Row> = positions
            .iter()
            .zip(order.chunks(width))
            .map(|(&position, table)| Row { position, table: table.to_vec() })
            .collect();
        let mut seen = vec![false; pages * PAGE];
        for row in rows.iter().filter(|row| row.position != ABSENT) {
            for p in 0..row.position as usize {
                seen[row.table[p / PAGE] as usize * PAGE + p % PAGE] = true;
            }
        }
        for side in [&mut pool.values.k, &mut pool.values.v] {
            for (i, head) in side.chunks_exact_mut(PAGE * heads.head_dim).enumerate() {
                for (place, values) in head.chunks_exact_mut(heads.head_dim).enumerate() {
                    if !seen[i / heads.kv_heads * PAGE + place] {
                        values.fill(f32::NAN);
                    }
                    values.copy_from_slice(&kept(element, values));
                }
            }
        }
        // Angles may cover more positions than a table.
        let angles = Angles::new(capacity + 3, heads.head_dim, 500_000.0);
        let qkv = seeded.floats(positions.len() * heads.qkv_len(), 2.0);
        Self {
            heads,
            qkv,
            pool,
            element,
            pages,
            angles,
            rows,
            runs: Vec::new(),
            capacity,
            math: Math::Exact,
            reach: None,
            settled: false,
            share: None,
            split: None,
            few: false,
        }
    }

    /// Runs of neighbours: for each the position of the first row, and rows.
    pub fn runs(
        element: impl Into<PageType>,
        heads: Heads,
        runs: &[(u32, u32)],
        seeded: &mut Seeded,
    ) -> Self {
        let ends: Vec<u32> = runs.iter().map(|(start, m)| start + m - 1).collect();
        let of_ends = Self::scattered(element, heads, &ends, seeded);
        let of_run = |(row, &(start, m)): (&Row, &(u32, u32))| {
            let table = row.table.clone();
            (start..start + m).map(move |position| Row { position, table: table.clone() })
        };
        let rows: Vec<Row> = of_ends.rows.iter().zip(runs).flat_map(of_run).collect();
        let qkv = seeded.floats(rows.len() * heads.qkv_len(), 2.0);
        let runs = runs.iter().map(|&(_, m)| m as usize).collect();
        Self { qkv, rows, runs, ..of_ends }
    }

    /// The rows of each run, and the first one's number.
    fn rows_of_runs(&self) -> impl Iterator<Item = (usize, &[Row])> {
        let ends = self.runs.iter().scan(0, |end, m| {
            *end += m;
            Some(*end)
        });
        self.runs.iter().zip(ends).map(|(m, end)| (end - m, &self.rows[end - m..end]))
    }

    /// The outputs, as the math of these inputs promises them: `out` with its bound. `pool` is that after the run.
    pub fn output(&self, out: &[f32], pool: &crate::reference::kv_append::Cache) -> Output {
        let Self { heads, qkv, element, pages, angles, rows, capacity, .. } = self;
        let output = Output::floats("out", &[rows.len(), heads.q_len()], out);
        match self.math {
            Math::Exact => output,
            Math::TensorCore if !self.runs.is_empty() => {
                let tables = (&angles.cos[..], &angles.sin[..]);
                let bounds = self.rows_of_runs().flat_map(|(first, rows)| {
                    let qkv = &qkv[first * heads.qkv_len()..][..rows.len() * heads.qkv_len()];
                    let out = &out[first * heads.q_len()..][..rows.len() * heads.q_len()];
                    run_bounds(qkv, pool, tables, rows, *heads, out)
                });
                output.within(bounds.collect())
            }
            Math::TensorCore => {
                let tables = (&angles.cos[..], &angles.sin[..]);
                output.within(fast_bounds(
                    qkv, pool, *pages, *element, tables, rows, *capacity, *heads,
                ))
            }
        }
    }

    /// The pool when all rows have left their keys and values.
    fn pool_after(&self) -> crate::reference::kv_append::Cache {
        let Self { heads, qkv, pages, angles, rows, capacity, .. } = self;
        let mut pool = self.pool.values.clone();
        if self.math == Math::TensorCore {
            let tables = (&angles.cos[..], &angles.sin[..]);
            let element = self.element;
            attention_paged(qkv, &mut pool, *pages, element, tables, rows, *capacity, *heads);
        }
        pool
    }

    /// One side of a pool of 8 bits, as its bytes.
    fn int8_bytes(&self, side: &[f32]) -> Vec<u8> {
        let dim = self.heads.head_dim;
        let mut bytes = Vec::new();
        for part in side.chunks_exact(PAGE * dim) {
            let rows = || part.chunks_exact(dim);
            for row in rows() {
                let codes = row.chunks(MX_BLOCK).flat_map(|block| mxint8(block).1);
                bytes.extend(codes.map(|code| code as u8));
                bytes.resize(bytes.len() + int8_stride(dim) - dim, 0);
            }
            bytes.extend(rows().flat_map(|row| row.chunks(MX_BLOCK).map(|block| mxint8(block).0)));
        }
        bytes
    }

    /// Bytes of one side of the pool as an output.
    fn bytes_output(&self, tensor: &'static str, bytes: &[u8]) -> Output {
        let dims = [self.pages, self.heads.kv_heads, int8_part_bytes(self.heads.head_dim)];
        Output::words(tensor, &dims, bytes.iter().map(|&byte| byte.into()).collect())
    }

    /// One side of the pool as an output; the padding of places that took a row is zero.
    pub fn pool_output(&self, tensor: &'static str, side: &[f32]) -> Output {
        if self.element == PageType::Int8 {
            return self.bytes_output(tensor, &self.int8_bytes(side));
        }
        let (heads, stride) = (self.heads, kv_stride(self.heads.head_dim));
        let all = Self::pool_heads(heads, self.pages);
        let mut bits = self.pool.padded(all, side, |_| false);
        for row in &self.rows {
            let pos = row.position as usize;
            let Some(&page) = row.table.get(pos / PAGE).filter(|_| pos < self.capacity) else {
                continue;
            };
            if page as usize >= self.pages {
                continue;
            }
            for h in 0..heads.kv_heads {
                let at = ((page as usize * heads.kv_heads + h) * PAGE + pos % PAGE) * stride;
                bits[at + heads.head_dim..at + stride].fill(0);
            }
        }
        self.pool.output(tensor, all, bits)
    }
}

impl Run for Inputs {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let (heads, m, width) = (self.heads, self.rows.len(), self.width());
        // Rows in front, which are nobody's.
        let first = m % 3;
        let front = vec![f32::NAN; first * heads.qkv_len()];
        let qkv = bed.input(&[&front, &self.qkv[..]].concat())?;
        let all = Self::pool_heads(heads, self.pages);
        let element = self.element;
        let (k, v) = match element {
            PageType::Int8 => {
                let Unpadded { k, v, .. } = &self.pool.values;
                (bed.input(&self.int8_bytes(k))?, bed.input(&self.int8_bytes(v))?)
            }
            PageType::Float(_) => {
                let KvCache { k, v, .. } = self.pool.on(bed, all)?;
                (k, v)
            }
        };
        let mut cache = PagedCache::<B> { k, v, element, pages: self.pages };
        let rope = self.angles.on(bed)?;
        // Words that are nobody's stand in front of, between and behind.
        let mut words = vec![7; 2];
        words.extend(self.rows.iter().flat_map(|row| [row.position, 1, 2]));
        let positions = bed.input(&words)?;
        let of_one = self.runs.len() == 1;
        let mut words = vec![9; 5];
        for row in self.rows.iter().take(if of_one { 1 } else { m }) {
            words.extend_from_slice(&row.table);
            words.push(u32::MAX);
        }
        let tables = bed.input(&words)?;
        let mut out = bed.output((first + m) * heads.q_len())?;
        let (mut scratch, mut runs) = (None, None);
        match self.reach {
            Some(reach) if self.runs.is_empty() || self.few => {
                let pages =
                    if self.few { m.div_ceil(2) * reach.div_ceil(PAGE) } else { self.pages };
                scratch = Some(PagedScratch::<B> {
                    partial: bed.output(pages * heads.heads * partial_len(heads.head_dim))?,
                    counters: bed.input(&vec![0; counters_len(m, heads.heads, heads.kv_heads)])?,
                });
            }
            Some(_) => {
                let mut of_rows = PagedRuns::alloc(bed.backend(), heads, m, self.capacity)?;
                let run = |(_, rows): (usize, &'_ [Row])| {
                    (rows[0].position as usize, rows.len(), rows[0].table.clone())
                };
                let of_runs: Vec<_> = self.rows_of_runs().map(run).collect();
                let of_runs: Vec<_> = of_runs
                    .iter()
                    .map(|(start, m, pages)| PagedRun { start: *start, m: *m, pages })
                    .collect();
                of_rows.write(bed.backend(), &of_runs)?;
                of_rows.split = self.split;
                runs = Some(of_rows);
            }
            None => {}
        }
        let stride = if of_one { 0 } else { width + 1 };
        let mut op = AttentionPaged {
            qkv: &qkv,
            cache: &mut cache,
            rope: &rope,
            out: &mut out,
            first,
            positions: RowWords { words: &positions, at: 2, stride: POSITION_STRIDE },
            tables: RowWords { words: &tables, at: 5, stride },
            capacity: self.capacity,
            m,
            heads,
            math: self.math,
            rows: PagedRows::Any,
        };
        if let Some(runs) = &runs {
            (op.positions, op.tables) = (runs.positions(), runs.tables());
            (op.capacity, op.rows) = (runs.reach(), PagedRows::Runs(runs));
        }
        if let (Some(scratch), Some(reach)) = (scratch.as_mut(), self.reach) {
            let (settled, share) = (self.settled, self.share);
            op.rows = if self.few {
                PagedRows::Split(PagedSplit { scratch, reach })
            } else {
                PagedRows::Step(PagedStep { scratch, reach, settled, share, next: None })
            };
        }
        bed.backend().attention_paged(op)?;
        if let Some(step) = &scratch {
            bed.read("partial", &step.partial)?;
            let counters = bed.read("counters", &step.counters)?;
            bed.push(Output::words("counters", &[counters.len()], counters));
        }
        let out = bed.read_behind("out", &out, first * heads.q_len())?;
        bed.push(self.output(&out, &self.pool_after()));
        let qkv = bed.read("qkv", &qkv)?;
        bed.push(Output::floats("qkv", &[m, heads.qkv_len()], &qkv[front.len()..]));
        let PagedCache { k, v, .. } = cache;
        if let PageType::Float(element) = element {
            return bed.keep_cache(&self.pool, all, &KvCache { k, v, element, capacity: PAGE });
        }
        for (tensor, side) in [("k_cache", &k), ("v_cache", &v)] {
            let bytes = bed.read(tensor, side)?;
            bed.push(self.bytes_output(tensor, &bytes));
        }
        Ok(())
    }
}

/// Copies of pages.
#[derive(Clone, Debug)]
pub struct Copies {
    /// Heads of every layer.
    pub heads: Heads,
    /// What pages keep of a number.
    pub element: PageType,
    /// Pages of each layer.
    pub pages: usize,
    /// Bytes of keys, then of values, of each layer.
    pub sides: Vec<Vec<u8>>,
    /// A page, and the one that becomes like it.
    pub pairs: Vec<[u32; 2]>,
}

impl Copies {
    /// Layers of seeded bytes.
    pub fn random(
        heads: Heads,
        element: impl Into<PageType>,
        (layers, pages): (usize, usize),
        pairs: &[[u32; 2]],
        seeded: &mut Seeded,
    ) -> Self {
        let element = element.into();
        let len = pages * heads.kv_heads * element.part_bytes(heads.head_dim);
        let mut side = || (0..len).map(|_| seeded.below(256) as u8).collect();
        let sides = (0..2 * layers).map(|_| side()).collect();
        Self { heads, element, pages, sides, pairs: pairs.to_vec() }
    }

    /// All sides afterwards.
    pub fn expected(&self) -> Vec<Output> {
        let after = |side: &Vec<u8>| {
            let page = side.len() / self.pages;
            let mut after = side.clone();
            for &[from, to] in &self.pairs {
                let from = &side[from as usize * page..][..page];
                after[to as usize * page..][..page].copy_from_slice(from);
            }
            self.output(&after)
        };
        self.sides.iter().map(after).collect()
    }

    fn output(&self, bytes: &[u8]) -> Output {
        let dims = [self.pages, bytes.len() / self.pages];
        Output::words("pages", &dims, bytes.iter().map(|&byte| byte.into()).collect())
    }
}

impl Run for Copies {
    fn run<B: Backend>(&self, bed: &mut Bed<'_, B>) -> Result<(), RunError> {
        let Self { heads, element, pages, .. } = *self;
        let mut caches = Vec::new();
        for sides in self.sides.chunks_exact(2) {
            let (k, v) = (bed.input(&sides[0])?, bed.input(&sides[1])?);
            caches.push(PagedCache::<B> { k, v, element, pages });
        }
        let mut table = PageCopies::new(bed.backend(), &caches, self.pairs.len())?;
        table.write(bed.backend(), &self.pairs)?;
        bed.backend().copy_pages(CopyPages { caches: &mut caches, heads, table: &table })?;
        for side in caches.iter().flat_map(|cache| [&cache.k, &cache.v]) {
            let bytes = bed.read("pages", side)?;
            bed.push(self.output(&bytes));
        }
        Ok(())
    }
}

/// Cases of the doctor: shape, inputs.
pub(super) fn copy_cases() -> Vec<(String, Copies)> {
    let mut seeded = Seeded::new(32);
    let elements = [RowType::Bf16.into(), RowType::F32.into(), PageType::Int8];
    let of_element = |(element, head_dim): (PageType, usize)| {
        let heads = Heads { heads: 4, kv_heads: 2, head_dim };
        let pairs = [[0, 3], [4, 1], [4, 2]];
        let copies = Copies::random(heads, element, (3, 5), &pairs, &mut seeded);
        (format!("{heads:?} {} pages {pairs:?} of three layers", element.name()), copies)
    };
    elements.into_iter().zip([128, 2, 50]).map(of_element).collect()
}

/// Cases of the doctor: symbol, shape, inputs.
pub(super) fn cases() -> Vec<(&'static str, String, Inputs)> {
    let mut seeded = Seeded::new(31);
    let mut cases = Vec::new();
    for (heads, kv_heads, head_dim, positions) in [
        (1, 1, 2, &[0][..]),
        (4, 2, 50, &[62, 3, ABSENT, 130]),
        (20, 5, 128, &[128, 0]),
        (2, 2, 256, &[200]),
    ] {
        let heads = Heads { heads, kv_heads, head_dim };
        for (element, kernels) in [
            (RowType::Bf16.into(), [AppendBf16::SPEC.symbol, RowsBf16::SPEC.symbol]),
            (RowType::F32.into(), [AppendF32::SPEC.symbol, RowsF32::SPEC.symbol]),
            (PageType::Int8, [AppendInt8::SPEC.symbol, RowsInt8::SPEC.symbol]),
        ] {
            let rows = Inputs::scattered(element, heads, positions, &mut seeded);
            let prompt = Inputs::runs(element, heads, &[(60, 7), (0, 3)], &mut seeded);
            if element == RowType::Bf16 && step_takes(head_dim) {
                let step = Inputs { reach: Some(rows.capacity), settled: true, ..rows.clone() };
                let what = format!("{heads:?} at {positions:?}");
                let walk = Inputs { share: Some(2), ..step.clone() };
                cases.push((StepBf16::SPEC.symbol, what.clone(), step));
                cases.push((WalkBf16::SPEC.symbol, what, walk));
            }
            let of_bf16 = match element {
                PageType::Int8 => Some((FastInt8::SPEC.symbol, GatherInt8::SPEC.symbol)),
                PageType::Float(RowType::Bf16) => {
                    Some((FastBf16::SPEC.symbol, Gather::SPEC.symbol))
                }
                PageType::Float(_) => None,
            };
            if element == RowType::Bf16 && step_takes(head_dim) {
                let run = Inputs { reach: Some(67), split: Some(true), ..prompt.clone() };
                let what = format!("{heads:?} at 60 to 66 and 0 to 2, runs");
                cases.push((SplitBf16::SPEC.symbol, what, run));
                let few = Inputs { reach: Some(67), few: true, ..prompt.clone() };
                let what = format!("{heads:?} at 60 to 66 and 0 to 2, few");
                cases.push((SplitBf16::SPEC.symbol, what, few));
            }
            if let Some((fast, gather)) = of_bf16 {
                if head_dim == FAST_HEAD_DIM as usize {
                    let step = Inputs { math: Math::TensorCore, ..rows.clone() };
                    let step = Inputs { reach: Some(rows.capacity), settled: true, ..step };
                    cases.push((fast, format!("{heads:?} at {positions:?}"), step));
                }
                let run = Inputs { math: Math::TensorCore, reach: Some(67), ..prompt.clone() };
                cases.push((gather, format!("{heads:?} at 60 to 66 and 0 to 2, runs"), run));
            }
            for kernel in kernels {
                let what = format!("{heads:?} at {positions:?}");
                cases.push((kernel, what, rows.clone()));
                cases.push((kernel, format!("{heads:?} at 60 to 66 and 0 to 2"), prompt.clone()));
            }
        }
    }
    cases
}
