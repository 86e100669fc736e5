//! Host side of [`contract::attention_step`].

use contract::attention_step::{KEY_BLOCK, MAX_HEAD_DIM, partial_len};
use contract::w2a8::MAX_ROWS;

use super::attention::scale;
use super::error::{at_least, dimension, same};
use super::kv_append::{Heads, KvCache};
use super::rope::RopeTable;
use super::{Backend, OpError, Tensor};

const OP: &str = "attention_step";

/// Room for the partial results of [`AttentionStep`].
pub struct AttentionScratch<B: Backend> {
    /// `[heads, key_blocks, partial_len(head_dim)]`.
    pub partial: B::Buf<f32>,
    /// `[heads]`; zero between operations.
    pub counters: B::Buf<u32>,
}

impl<B: Backend> AttentionScratch<B> {
    /// Reserves room for steps over `positions` positions.
    ///
    /// # Errors
    /// A dimension that is not allowed; out of memory.
    pub fn alloc(backend: &B, heads: Heads, positions: usize) -> Result<Self, OpError> {
        heads.check(OP)?;
        dimension(OP, "positions", positions, MAX_ROWS, "1 to 2^24 positions are allowed")?;
        let partial = backend.alloc("attention", partial_total(heads, positions))?;
        let mut counters = backend.alloc("attention", heads.heads)?;
        backend.fill(&mut counters, 0)?;
        Ok(Self { partial, counters })
    }
}

fn partial_total(heads: Heads, positions: usize) -> usize {
    heads.heads * positions.div_ceil(KEY_BLOCK) * partial_len(heads.head_dim)
}

/// Rotates q and k of one row, stores k and v, and attends over the cache.
///
/// The bits are those of [`super::kv_append`] with a table and [`super::attention`].
pub struct AttentionStep<'a, B: Backend> {
    /// The row `[heads.qkv_len()]`.
    pub qkv: &'a B::Buf<f32>,
    /// The layer's cache.
    pub cache: &'a mut KvCache<B>,
    /// Angles for at least `cache.capacity` positions.
    pub rope: &'a RopeTable<B>,
    /// Output `[heads.q_len()]`.
    pub out: &'a mut B::Buf<f32>,
    /// Holds the position of the row at `start_at`.
    pub start: &'a B::Buf<u32>,
    /// Where in `start`.
    pub start_at: usize,
    /// Heads of the layer; of even size, at most 256.
    pub heads: Heads,
    /// Partial results.
    pub scratch: &'a mut AttentionScratch<B>,
    /// Positions the launch has to reach: at least the row's plus one. In a recorded step, the most that
    /// its replays will see.
    pub positions: usize,
}

impl<B: Backend> AttentionStep<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        let heads = self.heads;
        heads.check(OP)?;
        dimension(OP, "head_dim", heads.head_dim, MAX_HEAD_DIM as usize, "1 to 256 are allowed")?;
        self.cache.check(OP, heads)?;
        at_least(OP, "qkv", self.qkv.len(), heads.qkv_len())?;
        at_least(OP, "out", self.out.len(), heads.q_len())?;
        at_least(OP, "start", self.start.len(), self.start_at.saturating_add(1))?;
        same(OP, "head_dim", self.rope.head_dim, heads.head_dim)?;
        at_least(OP, "positions", self.rope.positions, self.cache.capacity)?;
        self.rope.check(OP)?;
        let allowed = "1 to the capacity of the cache are allowed";
        dimension(OP, "positions", self.positions, self.cache.capacity, allowed)?;
        let len = partial_total(heads, self.positions);
        at_least(OP, "partial", self.scratch.partial.len(), len)?;
        at_least(OP, "counters", self.scratch.counters.len(), heads.heads)
    }

    /// Multiplier of the scores: `1 / sqrt(head_dim)`, rounded once.
    pub fn scale(&self) -> f32 {
        scale(self.heads.head_dim)
    }
}

#[cfg(feature = "cuda")]
impl AttentionStep<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::attention_step::{Args, AttentionStepBf16, AttentionStepF32, grid};
        use contract::num::RowType;
        self.check()?;
        let scale = self.scale();
        let Self { qkv, cache, rope, out, start, start_at, heads, scratch, positions } = self;
        let stream = cuda.stream();
        let args = Args {
            qkv: qkv.dev_ptr(stream),
            k_cache: cache.k.dev_ptr(stream),
            v_cache: cache.v.dev_ptr(stream),
            cos: rope.cos.dev_ptr(stream),
            sin: rope.sin.dev_ptr(stream),
            start: super::cuda::at(start.dev_ptr(stream), start_at),
            out: out.dev_ptr(stream),
            partial: scratch.partial.dev_ptr(stream),
            counters: scratch.counters.dev_ptr(stream),
            heads: heads.heads as u32,
            kv_heads: heads.kv_heads as u32,
            head_dim: heads.head_dim as u32,
            capacity: cache.capacity as u32,
            key_blocks: positions.div_ceil(KEY_BLOCK) as u32,
            scale,
        };
        let grid = grid(args.heads, args.key_blocks);
        // SAFETY: `check` compared `qkv` and `out` with one row, the caches and tables with their capacity
        // (past which the kernel reads and stores nothing) and the scratch with `key_blocks`; what the
        // kernel writes is borrowed exclusively.
        unsafe {
            match cache.element {
                RowType::F32 => cuda.launch::<AttentionStepF32>(grid, args),
                _ => cuda.launch::<AttentionStepBf16>(grid, args),
            }
        }
    }
}
