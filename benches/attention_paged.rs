//! [`contract::attention_paged`] on a GPU: a step of several sequences over pages, runs of neighbours, copies of pages.

#[path = "attention_paged/copies.rs"]
mod copies;
#[path = "attention_paged/runs.rs"]
mod runs;

use std::process::ExitCode;

use anyhow::ensure;
use bitnet_benches::{Case, bf16_bytes, bits, blank, run, same_bits, uniform, upload};
use bitnet_gpu::cpu::{CpuBackend, CpuOptions};
use bitnet_gpu::ops::attention_paged::{
    AttentionPaged, PageType, PagedCache, PagedRows, PagedScratch, PagedStep,
};
use bitnet_gpu::ops::kv_append::Heads;
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, Math, OpError, RowType, RowWords, Tensor};
use bitnet_gpu::reference::attention_paged::{BENCH_SHAPES, Row, fast_bounds};
use bitnet_gpu::reference::kv_append::Cache;
use contract::attention_paged::{PAGE, int8_part_bytes};
use contract::num::{MX_BLOCK, mx_value};

use copies::Copies;
use runs::Runs;

struct Step {
    heads: Heads,
    m: usize,
    position: u32,
    math: Math,
    element: PageType,
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

/// Pages of 8 bits, of heads that are a multiple of 32 long: any codes, scales around one.
fn int8_bytes(seed: u64, len: usize, head_dim: usize) -> Vec<u8> {
    let codes = uniform(seed, len, 127.0).into_iter().map(|v| v as i8 as u8);
    let part = int8_part_bytes(head_dim);
    codes
        .enumerate()
        .map(|(i, code)| if i % part < PAGE * head_dim { code } else { 124 + code % 4 })
        .collect()
}

/// What they hold.
fn int8_values(bytes: &[u8], head_dim: usize) -> Vec<f32> {
    let parts = bytes.chunks_exact(int8_part_bytes(head_dim));
    parts
        .flat_map(|part| {
            let (codes, scales) = part.split_at(PAGE * head_dim);
            codes
                .iter()
                .enumerate()
                .map(|(i, &code)| mx_value(code as i8, scales[i / MX_BLOCK]))
                .collect::<Vec<_>>()
        })
        .collect()
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
        match (self.math, self.element) {
            (Math::Exact, _) => "exact".into(),
            (Math::TensorCore, PageType::Float(_)) => "tensor cores".into(),
            (Math::TensorCore, PageType::Int8) => "tensor cores, 8 bits".into(),
        }
    }

    fn bytes(&self) -> u64 {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let cache = 2 * kv_heads * self.element.part_bytes(head_dim) * self.capacity() / PAGE;
        (self.m * (cache + 4 * (self.heads.qkv_len() + self.heads.q_len()))) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let (heads, m, width) = (self.heads, self.m, self.width());
        let pages = m * width;
        let mut cache = PagedCache::alloc(backend, heads, pages, self.element)?;
        let (k, v) = (cache.k.len(), cache.v.len());
        let bytes = |seed, len: usize| match self.element {
            PageType::Float(_) => bf16_bytes(seed, len / 2),
            PageType::Int8 => int8_bytes(seed, len, heads.head_dim),
        };
        backend.write(&mut cache.k, 0, &bytes(4, k))?;
        backend.write(&mut cache.v, 0, &bytes(5, v))?;
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
            first: 0,
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
            if self.element == PageType::Int8 {
                return int8_values(bytes, heads.head_dim);
            }
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
                fast_bounds(qkv, &pool, pages, self.element, tables, &rows, capacity, heads);
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

/// Sequences, rows of each, and the position of the first: next turns of one text and of several, part of a long prompt, short prompts.
const RUNS: [(usize, usize, usize); 6] =
    [(1, 16, 2000), (1, 76, 2000), (1, 256, 2000), (8, 40, 1000), (1, 512, 1536), (8, 112, 0)];

fn main() -> ExitCode {
    run("attention_paged", |suite| {
        for &(heads, kv_heads, head_dim, m, position) in BENCH_SHAPES {
            let heads = Heads { heads, kv_heads, head_dim };
            let bf16 = PageType::Float(RowType::Bf16);
            for (math, element) in
                [(Math::Exact, bf16), (Math::TensorCore, bf16), (Math::TensorCore, PageType::Int8)]
            {
                suite.measure(&Step { heads, m, position, math, element })?;
            }
        }
        let heads = Heads { heads: 20, kv_heads: 5, head_dim: 128 };
        for (count, m, start) in RUNS {
            for split in [None, Some(true), Some(false)] {
                suite.measure(&Runs { heads, count, m, start, split })?;
            }
        }
        for pages in [2, 31] {
            suite.measure(&Copies { heads, layers: 30, pages })?;
        }
        suite.report().notes.push(
            "cases are sequences x query heads / kv heads x head size, over positions; runs of so many rows at the end of them; pages copied x layers x kv \
             heads x head size"
                .into(),
        );
        Ok(())
    })
}
