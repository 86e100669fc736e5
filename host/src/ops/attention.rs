//! Host side of [`contract::attention`].

use contract::attention::MAX_HEAD_DIM;
use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::kv_append::{Heads, KvCache};
use super::{Backend, OpError, Tensor};

const OP: &str = "attention";

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
        at_least(OP, "start", self.start.len(), self.start_at.saturating_add(1))
    }

    /// Multiplier of the scores: `1 / sqrt(head_dim)`, rounded once.
    pub fn scale(&self) -> f32 {
        scale(self.heads.head_dim)
    }
}

/// Multiplier of the scores of heads of `head_dim` elements.
pub(super) fn scale(head_dim: usize) -> f32 {
    (1.0 / (head_dim as f64).sqrt()) as f32
}

#[cfg(feature = "cuda")]
impl Attention<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::attention::{Args, AttentionBf16, AttentionF32, grid};
        use contract::num::RowType;
        self.check()?;
        let scale = self.scale();
        let Self { qkv, cache, out, start, start_at, m, heads } = self;
        let stream = cuda.stream();
        let args = Args {
            q: qkv.dev_ptr(stream),
            k_cache: cache.k.dev_ptr(stream),
            v_cache: cache.v.dev_ptr(stream),
            out: out.dev_ptr(stream),
            start: super::cuda::at(start.dev_ptr(stream), start_at),
            m: m as u32,
            heads: heads.heads as u32,
            kv_heads: heads.kv_heads as u32,
            head_dim: heads.head_dim as u32,
            q_stride: heads.qkv_len() as u32,
            capacity: cache.capacity as u32,
            scale,
        };
        let grid = grid(args.m, args.heads);
        // SAFETY: `check` compared `qkv` and `out` with `m` rows and the caches with their capacity, past
        // which the kernel reads nothing; `out` is borrowed exclusively.
        unsafe {
            match cache.element {
                RowType::F32 => cuda.launch::<AttentionF32>(grid, args),
                _ => cuda.launch::<AttentionBf16>(grid, args),
            }
        }
    }
}
