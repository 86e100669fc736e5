//! Pages of all layers that become like others.

use bitnet_benches::{Case, bf16_bytes};
use bitnet_gpu::ops::attention_paged::{CopyPages, PageCopies, PagedCache};
use bitnet_gpu::ops::kv_append::Heads;
use bitnet_gpu::ops::{Backend, OpError, RowType, Tensor};
use contract::attention_paged::page_len;

pub(super) struct Copies {
    pub(super) heads: Heads,
    pub(super) layers: usize,
    /// Pages that are copied.
    pub(super) pages: usize,
}

pub(super) struct Tensors<B: Backend> {
    caches: Vec<PagedCache<B>>,
    table: PageCopies<B>,
}

impl Case for Copies {
    type Tensors<B: Backend> = Tensors<B>;

    fn name(&self) -> String {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        format!("copy of {} pages x {}x{kv_heads}x{head_dim}", self.pages, self.layers)
    }

    /// Each page is read and written.
    fn bytes(&self) -> u64 {
        let page = 2 * page_len(self.heads.kv_heads, self.heads.head_dim);
        (2 * self.pages * 2 * self.layers * page) as u64
    }

    fn tensors<B: Backend>(&self, backend: &B) -> Result<Tensors<B>, OpError> {
        let mut caches = Vec::new();
        for layer in 0..self.layers as u64 {
            let mut cache = PagedCache::alloc(backend, self.heads, 2 * self.pages, RowType::Bf16)?;
            let (k, v) = (cache.k.len(), cache.v.len());
            backend.write(&mut cache.k, 0, &bf16_bytes(2 * layer, k / 2))?;
            backend.write(&mut cache.v, 0, &bf16_bytes(2 * layer + 1, v / 2))?;
            caches.push(cache);
        }
        let mut table = PageCopies::new(backend, &caches, self.pages)?;
        // Every other page, from the last one on.
        let pairs = |i: usize| [2 * i as u32, 2 * (self.pages - 1 - i) as u32 + 1];
        table.write(backend, &(0..self.pages).map(pairs).collect::<Vec<_>>())?;
        Ok(Tensors { caches, table })
    }

    fn run<B: Backend>(&self, backend: &B, t: &mut Tensors<B>) -> Result<(), OpError> {
        let Tensors { caches, table } = t;
        backend.copy_pages(CopyPages { caches, heads: self.heads, table })
    }

    fn output<B: Backend>(&self, backend: &B, t: &Tensors<B>) -> Result<Vec<u32>, OpError> {
        let mut words = Vec::new();
        for side in t.caches.iter().flat_map(|cache| [&cache.k, &cache.v]) {
            let mut bytes = vec![0; side.len()];
            backend.read(side, 0, &mut bytes)?;
            words.extend(
                bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            );
        }
        Ok(words)
    }
}
