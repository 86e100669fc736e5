//! [`contract::attention`] on a GPU: prefill, and few rows over a long context; exact, and on tensor cores, which are held
//! against the contract's bound in every 64th row instead of bits.

use std::process::ExitCode;

use anyhow::ensure;
use bitnet_benches::{Case, bf16_bytes, bits, blank, run, same_bits, uniform, upload};
use bitnet_gpu::ops::attention::Attention;
use bitnet_gpu::ops::kv_append::{Heads, KvCache};
use bitnet_gpu::ops::{Backend, Math, OpError, RowType};
use bitnet_gpu::reference::attention::{BENCH_SHAPES, fast_bounds};
use bitnet_gpu::reference::kv_append::Cache;
use contract::kv_append::kv_stride;
use contract::num::bf16_to_f32;

#[derive(Clone, Copy)]
struct Attend {
    m: usize,
    heads: Heads,
    start: usize,
    math: Math,
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

    fn qkv(&self) -> Vec<f32> {
        uniform(1, self.m * self.heads.qkv_len(), 1.0)
    }

    /// Keys and values, of heads without padding.
    fn cache_bytes(&self) -> [Vec<u8>; 2] {
        let len = self.heads.kv_heads * self.positions() * kv_stride(self.heads.head_dim);
        [bf16_bytes(4, len), bf16_bytes(5, len)]
    }
}

impl Case for Attend {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        format!("{}x{heads}/{kv_heads}x{head_dim} over {}", self.m, self.positions())
    }

    fn variant(&self) -> String {
        match self.math {
            Math::Exact => "exact".into(),
            Math::TensorCore => "tensor cores".into(),
        }
    }

    fn bytes(&self) -> u64 {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let cache = 2 * 2 * kv_heads * head_dim * self.positions();
        (cache + 8 * self.m * self.heads.q_len()) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let positions = self.positions();
        let mut cache = KvCache::alloc(backend, self.heads, positions, RowType::Bf16)?;
        let [k, v] = self.cache_bytes();
        backend.write(&mut cache.k, 0, &k)?;
        backend.write(&mut cache.v, 0, &v)?;
        Ok(Tensors {
            qkv: upload(backend, &self.qkv())?,
            cache,
            out: blank(backend, self.m * self.heads.q_len())?,
            start: upload(backend, &[self.start as u32])?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { qkv, cache, out, start } = t;
        let (m, heads) = (self.m, self.heads);
        backend.attention(Attention {
            qkv,
            cache,
            out,
            start,
            start_at: 0,
            m,
            heads,
            math: self.math,
            tiled: None,
        })
    }

    fn compare(&self, found: &[u32], expected: &[u32]) -> anyhow::Result<()> {
        if self.math == Math::Exact {
            return same_bits(&self.variant(), found, expected);
        }
        let (heads, len, qkv) = (self.heads, self.heads.qkv_len(), self.qkv());
        let wide = |bytes: Vec<u8>| -> Vec<f32> {
            let halves = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
            halves.map(bf16_to_f32).collect()
        };
        let [k, v] = self.cache_bytes().map(wide);
        let cache = Cache { k, v, capacity: self.positions() };
        for row in (0..self.m).step_by(64) {
            let outputs = row * heads.q_len()..(row + 1) * heads.q_len();
            let [found, expected] = [found, expected].map(|words| -> Vec<f32> {
                words[outputs.clone()].iter().map(|&bits| f32::from_bits(bits)).collect()
            });
            let qkv = &qkv[row * len..][..len];
            let bounds = fast_bounds(qkv, &cache, self.start + row, 1, heads, &expected);
            for ((f, e), bound) in found.iter().zip(&expected).zip(bounds) {
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
    run("attention", |suite| {
        for &(m, heads, kv_heads, head_dim, start) in BENCH_SHAPES {
            let heads = Heads { heads, kv_heads, head_dim };
            for math in [Math::Exact, Math::TensorCore] {
                suite.measure(&Attend { m, heads, start, math })?;
            }
        }
        let note = "cases are queries x query heads / kv heads x head size, over positions";
        suite.report().notes.push(note.into());
        Ok(())
    })
}
