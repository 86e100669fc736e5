//! [`contract::kv_append`] on a GPU: rotates q and k and stores k and v, as a layer does it.

use std::process::ExitCode;

use bitnet_benches::{Case, bits, run, uniform, upload};
use bitnet_gpu::ops::kv_append::{Heads, KvAppend, KvCache};
use bitnet_gpu::ops::rope::RopeTable;
use bitnet_gpu::ops::{Backend, OpError, RowType, Tensor};
use bitnet_gpu::reference::kv_append::BENCH_SHAPES;

struct Append {
    m: usize,
    heads: Heads,
    capacity: usize,
    start: usize,
}

struct Tensors<B: Backend> {
    qkv: B::Buf<f32>,
    cache: KvCache<B>,
    rope: RopeTable<B>,
    start: B::Buf<u32>,
}

impl Case for Append {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        format!("{}x{heads}/{kv_heads}x{head_dim} from {}", self.m, self.start)
    }

    fn bytes(&self) -> u64 {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        // q and k are read and written, v read; k and v go to the cache in bf16.
        let row = 8 * (self.heads.qkv_len() - kv_heads * head_dim) + 4 * kv_heads * head_dim;
        (self.m * (row + 2 * 2 * kv_heads * head_dim + 4 * head_dim)) as u64
    }

    /// The rows always come from the product before.
    fn rotates(&self) -> bool {
        false
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let mut cache = KvCache::alloc(backend, self.heads, self.capacity, RowType::Bf16)?;
        backend.fill(&mut cache.k, 0)?;
        backend.fill(&mut cache.v, 0)?;
        Ok(Tensors {
            qkv: upload(backend, &uniform(1, self.m * self.heads.qkv_len(), 3.0))?,
            cache,
            rope: RopeTable::new(backend, self.capacity, self.heads.head_dim, 500_000.0)?,
            start: upload(backend, &[self.start as u32])?,
        })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { qkv, cache, rope, start } = t;
        let (rope, m, heads) = (Some(&*rope), self.m, self.heads);
        backend.kv_append(KvAppend { qkv, cache, rope, start, start_at: 0, m, heads })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        let mut cache = vec![0u8; t.cache.k.len() + t.cache.v.len()];
        let (k, v) = cache.split_at_mut(t.cache.k.len());
        backend.read(&t.cache.k, 0, k)?;
        backend.read(&t.cache.v, 0, v)?;
        let cache = cache.into_iter().map(u32::from).collect();
        Ok([bits(backend, &t.qkv)?, cache].concat())
    }
}

fn main() -> ExitCode {
    run("kv_append", |suite| {
        for &(m, heads, kv_heads, head_dim, capacity, start) in BENCH_SHAPES {
            let heads = Heads { heads, kv_heads, head_dim };
            suite.measure(&Append { m, heads, capacity, start })?;
        }
        Ok(())
    })
}
