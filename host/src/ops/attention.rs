//! Host side of [`contract::attention`].

use contract::attention::{KEY_BLOCK, MAX_HEAD_DIM, partial_len};
use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::kv_append::{Heads, KvCache};
use super::{Backend, OpError, Tensor};

const OP: &str = "attention";

/// Room for the partial results of [`Attention`] when the keys are spread over the GPU.
pub struct AttentionScratch<B: Backend> {
    /// `[m, heads, key_blocks, partial_len(head_dim)]`.
    pub partial: B::Buf<f32>,
    /// `[m, heads]`; zero between operations.
    pub counters: B::Buf<u32>,
}

impl<B: Backend> AttentionScratch<B> {
    /// Reserves room for `m` queries over `positions` positions.
    ///
    /// # Errors
    /// A dimension that is not allowed; out of memory.
    pub fn alloc(backend: &B, heads: Heads, m: usize, positions: usize) -> Result<Self, OpError> {
        heads.check(OP)?;
        dimension(OP, "m", m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "positions", positions, MAX_ROWS, "1 to 2^24 positions are allowed")?;
        let blocks = positions.div_ceil(KEY_BLOCK);
        let len = m * heads.heads * blocks * partial_len(heads.head_dim);
        let partial = backend.alloc("attention", len)?;
        let mut counters = backend.alloc("attention", m * heads.heads)?;
        backend.fill(&mut counters, 0)?;
        Ok(Self { partial, counters })
    }
}

/// How keys are spread over a GPU. The bits are the same.
pub enum Spread<'a, B: Backend> {
    /// One block per query and head: for many queries.
    Rows,
    /// One block per query, head and [`KEY_BLOCK`] keys: for few queries.
    Keys {
        /// Partial results.
        scratch: &'a mut AttentionScratch<B>,
        /// Positions the launch has to reach: at least `start + m`. In a recorded step, the most
        /// that its replays will see.
        positions: usize,
    },
}

/// Causal attention of `m` queries at positions `start..start + m`.
pub struct Attention<'a, B: Backend> {
    /// Rows `[m, heads.qkv_len()]`, q rotated.
    pub qkv: &'a B::Buf<f32>,
    /// The layer's cache, already holding the keys of these rows.
    pub cache: &'a KvCache<B>,
    /// Output `[m, heads.q_len()]`.
    pub out: &'a mut B::Buf<f32>,
    /// Holds the position of row 0 at `start_at`.
    pub start: &'a B::Buf<u32>,
    /// Where in `start`.
    pub start_at: usize,
    /// Rows.
    pub m: usize,
    /// Heads of the layer.
    pub heads: Heads,
    /// Spread over the GPU.
    pub spread: Spread<'a, B>,
}

impl<B: Backend> Attention<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let heads = self.heads;
        heads.check(OP)?;
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "head_dim", heads.head_dim, MAX_HEAD_DIM as usize, "1 to 256 are allowed")?;
        self.cache.check(OP, heads)?;
        at_least(OP, "qkv", self.qkv.len(), self.m * heads.qkv_len())?;
        at_least(OP, "out", self.out.len(), self.m * heads.q_len())?;
        at_least(OP, "start", self.start.len(), self.start_at.saturating_add(1))?;
        if let Spread::Keys { scratch, positions } = &self.spread {
            dimension(
                OP,
                "positions",
                *positions,
                self.cache.capacity,
                "1 to the capacity of the cache are allowed",
            )?;
            let blocks = positions.div_ceil(KEY_BLOCK);
            let len = self.m * heads.heads * blocks * partial_len(heads.head_dim);
            at_least(OP, "partial", scratch.partial.len(), len)?;
            at_least(OP, "counters", scratch.counters.len(), self.m * heads.heads)?;
        }
        Ok(())
    }

    /// Multiplier of the scores: `1 / sqrt(head_dim)`, rounded once.
    pub fn scale(&self) -> f32 {
        (1.0 / (self.heads.head_dim as f64).sqrt()) as f32
    }
}

#[cfg(feature = "cuda")]
impl Attention<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::attention::{Args, grid, split_grid};
        use contract::launch::DevPtr;
        use contract::num::RowType;
        self.check()?;
        let scale = self.scale();
        let Self { qkv, cache, out, start, start_at, m, heads, spread } = self;
        let stream = cuda.stream();
        let mut args = Args {
            q: qkv.dev_ptr(stream),
            k_cache: cache.k.dev_ptr(stream),
            v_cache: cache.v.dev_ptr(stream),
            out: out.dev_ptr(stream),
            start: super::cuda::at(start.dev_ptr(stream), start_at),
            partial: DevPtr::NULL,
            counters: DevPtr::NULL,
            m: m as u32,
            heads: heads.heads as u32,
            kv_heads: heads.kv_heads as u32,
            head_dim: heads.head_dim as u32,
            q_stride: heads.qkv_len() as u32,
            capacity: cache.capacity as u32,
            key_blocks: 0,
            scale,
        };
        let f32_cache = cache.element == RowType::F32;
        // SAFETY: `check` compared `qkv` and `out` with `m` rows, the caches with their capacity
        // (past which the kernels read nothing) and the scratch with `key_blocks`; what the kernel
        // writes is borrowed exclusively.
        unsafe {
            match spread {
                Spread::Rows => {
                    let grid = grid(args.m, args.heads);
                    match f32_cache {
                        true => cuda.launch::<contract::attention::AttentionF32>(grid, args)?,
                        false => cuda.launch::<contract::attention::AttentionBf16>(grid, args)?,
                    }
                }
                Spread::Keys { scratch, positions } => {
                    args.partial = scratch.partial.dev_ptr(stream);
                    args.counters = scratch.counters.dev_ptr(stream);
                    args.key_blocks = positions.div_ceil(KEY_BLOCK) as u32;
                    let grid = split_grid(args.m, args.heads, args.key_blocks);
                    match f32_cache {
                        true => {
                            cuda.launch::<contract::attention::AttentionSplitF32>(grid, args)?
                        }
                        false => {
                            cuda.launch::<contract::attention::AttentionSplitBf16>(grid, args)?
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
