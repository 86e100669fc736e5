//! [`contract::attention_step`] on a GPU: one row over three lengths of the context.

use std::process::ExitCode;

use bitnet_benches::{Case, bf16_bytes, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::attention_step::{AttentionScratch, AttentionStep};
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, OpError, RowType, Tensor};
use bitnet_gpu::reference::attention_step::BENCH_SHAPES;

struct Step {
    heads: Heads,
    start: usize,
}

struct Tensors<B: Backend> {
    qkv: B::Buf<f32>,
    cache: KvCache<B>,
    out: B::Buf<f32>,
    start: B::Buf<u32>,
    rope: RopeTable<B>,
    scratch: AttentionScratch<B>,
}

impl Case for Step {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        format!("{heads}/{kv_heads}x{head_dim} over {}", self.start + 1)
    }

    fn bytes(&self) -> u64 {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let cache = 2 * 2 * kv_heads * head_dim * (self.start + 1);
        (cache + 4 * (self.heads.qkv_len() + self.heads.q_len())) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let positions = self.start + 1;
        let mut cache = KvCache::alloc(backend, self.heads, positions, RowType::Bf16)?;
        let (k, v) = (cache.k.len(), cache.v.len());
        backend.write(&mut cache.k, 0, &bf16_bytes(4, k / 2))?;
        backend.write(&mut cache.v, 0, &bf16_bytes(5, v / 2))?;
        Ok(Tensors {
            qkv: upload(backend, &uniform(1, self.heads.qkv_len(), 1.0))?,
            cache,
            out: blank(backend, self.heads.q_len())?,
            start: upload(backend, &[self.start as u32])?,
            rope: RopeTable::new(backend, positions, self.heads.head_dim, 500_000.0)?,
            scratch: AttentionScratch::alloc(backend, self.heads, positions)?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { qkv, cache, out, start, rope, scratch } = t;
        let (heads, positions) = (self.heads, self.start + 1);
        let start_at = 0;
        backend.attention_step(AttentionStep {
            qkv,
            cache,
            rope,
            out,
            start,
            start_at,
            heads,
            scratch,
            positions,
        })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.out)
    }
}

fn main() -> ExitCode {
    run("attention_step", |suite| {
        for &(heads, kv_heads, head_dim, start) in BENCH_SHAPES {
            suite.measure(&Step { heads: Heads { heads, kv_heads, head_dim }, start })?;
        }
        suite
            .report()
            .notes
            .push("cases are query heads / kv heads x head size, over positions".into());
        Ok(())
    })
}
