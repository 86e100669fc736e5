//! [`contract::attention_paged`] on a GPU: a step of several sequences over pages.

use std::process::ExitCode;

use anyhow::ensure;
use bitnet_benches::{Case, bf16_bytes, bits, blank, run, same_bits, uniform, upload};
use bitnet_gpu::cpu::{CpuBackend, CpuOptions};
use bitnet_gpu::ops::attention_paged::{
    AttentionPaged, PagedCache, PagedRows, PagedScratch, PagedStep,
};
use bitnet_gpu::ops::kv_append::Heads;
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, Math, OpError, RowType, RowWords, Tensor};
use bitnet_gpu::reference::attention_paged::{BENCH_SHAPES, Row, fast_bounds};
use bitnet_gpu::reference::kv_append::Cache;
use contract::attention_paged::PAGE;

struct Step {
    heads: Heads,
    m: usize,
    position: u32,
    math: Math,
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

    fn variant(&self) -> String {
        match self.math {
            Math::Exact => "exact".into(),
            Math::TensorCore => "tensor cores".into(),
        }
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
            math: self.math,
            rows: PagedRows::Step(PagedStep {
                scratch,
                reach: capacity,
                settled: true,
                share: None,
                next: None,
            }),
        })
    }

    /// Every eighth row of those on tensor cores, against the contract's bound.
    fn compare(&self, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
        if self.math == Math::Exact {
            return same_bits(&self.variant(), found, expected);
        }
        let (heads, m, capacity) = (self.heads, self.m, self.capacity());
        let cpu = CpuBackend::open(CpuOptions::default())?;
        let mut t = self.tensors(&cpu)?;
        self.run(&cpu, &mut t)?;
        let widened = |bytes: &[u8]| -> Vec<f32> {
            let pairs = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            pairs.map(contract::num::bf16_to_f32).collect()
        };
        let (k, v) = (widened(t.cache.k.as_slice()), widened(t.cache.v.as_slice()));
        let pool = Cache { k, v, capacity: PAGE };
        let tables = (t.rope.cos.as_slice(), t.rope.sin.as_slice());
        for row in (0..m).step_by(8) {
            let table = &t.tables.as_slice()[row * self.width()..][..self.width()];
            let rows = [Row { position: self.position, table: table.to_vec() }];
            let qkv = &t.qkv.as_slice()[row * heads.qkv_len()..][..heads.qkv_len()];
            let pages = t.cache.pages;
            let bounds =
                fast_bounds(qkv, &pool, pages, RowType::Bf16, tables, &rows, capacity, heads);
            let own = row * heads.q_len()..(row + 1) * heads.q_len();
            let outputs = found[own.clone()].iter().zip(&expected[own]).zip(bounds);
            for ((&f, &e), bound) in outputs {
                let (f, e) = (f32::from_bits(f), f32::from_bits(e));
                ensure!((f - e).abs() <= bound, "row {row}: {f} and {e}, at most {bound} apart");
            }
        }
        Ok(())
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.out)
    }
}

fn main() -> ExitCode {
    run("attention_paged", |suite| {
        for &(heads, kv_heads, head_dim, m, position) in BENCH_SHAPES {
            let heads = Heads { heads, kv_heads, head_dim };
            for math in [Math::Exact, Math::TensorCore] {
                suite.measure(&Step { heads, m, position, math })?;
            }
        }
        suite.report().notes.push(
            "cases are sequences x query heads / kv heads x head size, over positions".into(),
        );
        Ok(())
    })
}
