//! [`contract::attention_paged`] on a GPU: a step of several sequences over pages.

use std::process::ExitCode;

use bitnet_benches::{Case, bf16_bytes, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::attention_paged::{AttentionPaged, PagedCache, PagedScratch, PagedStep};
use bitnet_gpu::ops::kv_append::Heads;
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, OpError, RowType, RowWords, Tensor};
use bitnet_gpu::reference::attention_paged::BENCH_SHAPES;
use contract::attention_paged::PAGE;

struct Step {
    heads: Heads,
    m: usize,
    position: u32,
}

struct Tensors<B: Backend> {
    qkv: B::Buf<f32>,
    cache: PagedCache<B>,
    out: B::Buf<f32>,
    positions: B::Buf<u32>,
    tables: B::Buf<u32>,
    rope: RopeTable<B>,
    scratch: PagedScratch<B>,
}

impl Step {
    fn capacity(&self) -> usize {
        self.position as usize + 1
    }

    /// Pages of a sequence.
    fn width(&self) -> usize {
        self.capacity().div_ceil(PAGE)
    }
}

impl Case for Step {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        format!("{} x {heads}/{kv_heads}x{head_dim} over {}", self.m, self.capacity())
    }

    fn bytes(&self) -> u64 {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let cache = 2 * 2 * kv_heads * head_dim * self.capacity();
        (self.m * (cache + 4 * (self.heads.qkv_len() + self.heads.q_len()))) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let (heads, m, width) = (self.heads, self.m, self.width());
        let pages = m * width;
        let mut cache = PagedCache::alloc(backend, heads, pages, RowType::Bf16)?;
        let (k, v) = (cache.k.len(), cache.v.len());
        backend.write(&mut cache.k, 0, &bf16_bytes(4, k / 2))?;
        backend.write(&mut cache.v, 0, &bf16_bytes(5, v / 2))?;
        // Page `b` of sequence `i` stands behind those of all others: nothing is in order.
        let tables: Vec<_> = (0..m).flat_map(|i| (0..width).map(move |b| b * m + i)).collect();
        let tables: Vec<_> = tables.into_iter().map(|page| page as u32).collect();
        Ok(Tensors {
            qkv: upload(backend, &uniform(1, m * heads.qkv_len(), 1.0))?,
            cache,
            out: blank(backend, m * heads.q_len())?,
            positions: upload(backend, &vec![self.position; m])?,
            tables: upload(backend, &tables)?,
            rope: RopeTable::new(backend, self.capacity(), heads.head_dim, 500_000.0)?,
            scratch: PagedScratch::alloc(backend, heads, m, pages)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { qkv, cache, out, positions, tables, rope, scratch } = t;
        let capacity = self.capacity();
        backend.attention_paged(AttentionPaged {
            qkv,
            cache,
            rope,
            out,
            positions: RowWords { words: positions, at: 0, stride: 1 },
            tables: RowWords { words: tables, at: 0, stride: self.width() },
            capacity,
            m: self.m,
            heads: self.heads,
            step: Some(PagedStep {
                scratch,
                reach: capacity,
                settled: true,
                share: None,
                next: None,
            }),
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.out)
    }
}

fn main() -> ExitCode {
    run("attention_paged", |suite| {
        for &(heads, kv_heads, head_dim, m, position) in BENCH_SHAPES {
            let heads = Heads { heads, kv_heads, head_dim };
            suite.measure(&Step { heads, m, position })?;
        }
        suite.report().notes.push(
            "cases are sequences x query heads / kv heads x head size, over positions".into(),
        );
        Ok(())
    })
}
