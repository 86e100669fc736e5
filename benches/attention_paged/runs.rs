//! Runs of neighbours, as in prompts, behind what their sequences have already.

use bitnet_benches::{Case, bf16_bytes, bits, blank, uniform, upload};
use bitnet_gpu::ops::attention_paged::{
    AttentionPaged, PagedCache, PagedRows, PagedRun, PagedRuns,
};
use bitnet_gpu::ops::kv_append::Heads;
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, Math, OpError, RowType, Tensor};
use contract::attention_paged::PAGE;

pub(super) struct Runs {
    pub(super) heads: Heads,
    pub(super) count: usize,
    /// Rows of each.
    pub(super) m: usize,
    /// Position of the first.
    pub(super) start: usize,
    pub(super) split: Option<bool>,
}

pub(super) struct Tensors<B: Backend> {
    qkv: B::Buf<f32>,
    cache: PagedCache<B>,
    out: B::Buf<f32>,
    rope: RopeTable<B>,
    runs: PagedRuns<B>,
}

impl Runs {
    /// Positions of a sequence.
    fn positions(&self) -> usize {
        self.start + self.m
    }

    fn rows(&self) -> usize {
        self.count * self.m
    }
}

impl Case for Runs {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let (Self { count, m, .. }, positions) = (self, self.positions());
        format!("{count} runs of {m} x {heads}/{kv_heads}x{head_dim} over {positions}")
    }

    fn variant(&self) -> String {
        match self.split {
            None => "exact".into(),
            Some(true) => "exact, split".into(),
            Some(false) => "exact, not split".into(),
        }
    }

    fn bytes(&self) -> u64 {
        let cache = 4 * self.heads.kv_heads * self.heads.head_dim * self.positions();
        let row = 4 * (self.heads.qkv_len() + self.heads.q_len());
        (self.count * (cache + self.m * row)) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let (heads, rows, width) = (self.heads, self.rows(), self.positions().div_ceil(PAGE));
        let mut cache = PagedCache::alloc(backend, heads, self.count * width, RowType::Bf16)?;
        let (k, v) = (cache.k.len(), cache.v.len());
        backend.write(&mut cache.k, 0, &bf16_bytes(4, k / 2))?;
        backend.write(&mut cache.v, 0, &bf16_bytes(5, v / 2))?;
        // Page `b` of sequence `i` stands behind those of all others: nothing is in order.
        let pages = |i| (0..width).map(move |b| (b * self.count + i) as u32).collect();
        let pages: Vec<Vec<u32>> = (0..self.count).map(pages).collect();
        let run = |pages| PagedRun { start: self.start, m: self.m, pages };
        let places: Vec<_> = pages.iter().map(|pages| run(pages)).collect();
        let mut runs = PagedRuns::alloc(backend, heads, rows, self.positions())?;
        runs.write(backend, &places)?;
        runs.split = self.split;
        Ok(Tensors {
            qkv: upload(backend, &uniform(1, rows * heads.qkv_len(), 1.0))?,
            cache,
            out: blank(backend, rows * heads.q_len())?,
            rope: RopeTable::new(backend, self.positions(), heads.head_dim, 500_000.0)?,
            runs,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { qkv, cache, out, rope, runs } = t;
        backend.attention_paged(AttentionPaged {
            qkv,
            cache,
            rope,
            out,
            first: 0,
            positions: runs.positions(),
            tables: runs.tables(),
            capacity: runs.reach(),
            m: runs.m(),
            heads: self.heads,
            math: Math::Exact,
            rows: PagedRows::Runs(runs),
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.out)
    }
}
