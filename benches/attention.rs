//! [`contract::attention`] on a GPU: prefill, and few rows over a long context.

use std::process::ExitCode;

use bitnet_benches::{Case, bf16_bytes, bits, blank, run, uniform, upload};
use bitnet_gpu::ops::attention::Attention;
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::{Backend, OpError, RowType, Tensor};
use bitnet_gpu::reference::attention::BENCH_SHAPES;

#[derive(Clone, Copy)]
struct Attend {
    m: usize,
    heads: Heads,
    start: usize,
}

struct Tensors<B: Backend> {
    qkv: B::Buf<f32>,
    cache: KvCache<B>,
    out: B::Buf<f32>,
    start: B::Buf<u32>,
}

impl Attend {
    fn positions(&self) -> usize {
        self.start + self.m
    }
}

impl Case for Attend {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        format!("{}x{heads}/{kv_heads}x{head_dim} over {}", self.m, self.positions())
    }

    fn bytes(&self) -> u64 {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let cache = 2 * 2 * kv_heads * head_dim * self.positions();
        (cache + 8 * self.m * self.heads.q_len()) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let positions = self.positions();
        let mut cache = KvCache::alloc(backend, self.heads, positions, RowType::Bf16)?;
        let (k, v) = (cache.k.len(), cache.v.len());
        backend.write(&mut cache.k, 0, &bf16_bytes(4, k / 2))?;
        backend.write(&mut cache.v, 0, &bf16_bytes(5, v / 2))?;
        Ok(Tensors {
            qkv: upload(backend, &uniform(1, self.m * self.heads.qkv_len(), 1.0))?,
            cache,
            out: blank(backend, self.m * self.heads.q_len())?,
            start: upload(backend, &[self.start as u32])?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { qkv, cache, out, start } = t;
        let (m, heads) = (self.m, self.heads);
        backend.attention(Attention { qkv, cache, out, start, start_at: 0, m, heads })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        bits(backend, &t.out)
    }
}

fn main() -> ExitCode {
    run("attention", |suite| {
        for &(m, heads, kv_heads, head_dim, start) in BENCH_SHAPES {
            let heads = Heads { heads, kv_heads, head_dim };
            suite.measure(&Attend { m, heads, start })?;
        }
        let note = "cases are queries x query heads / kv heads x head size, over positions";
        suite.report().notes.push(note.into());
        Ok(())
    })
}
