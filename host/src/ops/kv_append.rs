//! Host side of [`contract::kv_append`].

use contract::kv_append::kv_stride;
use contract::num::RowType;
use contract::w2a8::{MAX_K, MAX_ROWS};

use super::error::{at_least, dimension, same};
use super::rope::RopeTable;
use super::{Backend, OpError, Tensor};

const OP: &str = "kv_append";

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl Heads {
    /// Elements of a row of the fused projections: q, k and v.
    pub const fn qkv_len(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of a row of attention outputs.
    pub const fn q_len(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(crate) fn check(&self, op: &'static str) -> Result<(), OpError> {
        let allowed = "1 to 2^20 are allowed";
        dimension(op, "heads", self.heads, MAX_K, allowed)?;
        dimension(op, "kv_heads", self.kv_heads, MAX_K, allowed)?;
        dimension(op, "head_dim", self.head_dim, MAX_K, allowed)?;
        dimension(op, "row of q, k and v", self.qkv_len(), MAX_K, allowed)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let allowed = "it has to divide the number of query heads";
            let found = self.kv_heads;
            return Err(OpError::Dimension { op, what: "kv_heads", found, allowed });
        }
        Ok(())
    }
}

/// Keys and values of one layer: `[kv_heads, capacity, kv_stride(head_dim)]` each.
pub struct KvCache<B: Backend> {
    /// Keys, rotated.
    pub k: B::Buf<u8>,
    /// Values.
    pub v: B::Buf<u8>,
    /// bf16 or f32.
    pub element: RowType,
    /// Positions.
    pub capacity: usize,
}

impl<B: Backend> KvCache<B> {
    /// Reserves a cache for `capacity` positions.
    ///
    /// # Errors
    /// A dimension that is not allowed, f16 elements, out of memory.
    pub fn alloc(
        backend: &B,
        heads: Heads,
        capacity: usize,
        element: RowType,
    ) -> Result<Self, OpError> {
        heads.check(OP)?;
        dimension(OP, "capacity", capacity, MAX_ROWS, "1 to 2^24 positions are allowed")?;
        let bytes = heads.kv_heads * capacity * kv_stride(heads.head_dim) * element.bytes();
        let (k, v) = (backend.alloc("kv cache", bytes)?, backend.alloc("kv cache", bytes)?);
        let cache = Self { k, v, element, capacity };
        cache.check(OP, heads)?;
        Ok(cache)
    }

    pub(crate) fn check(&self, op: &'static str, heads: Heads) -> Result<(), OpError> {
        if self.element == RowType::F16 {
            let allowed = "a cache holds bf16 or f32";
            return Err(OpError::Dimension {
                op,
                what: "bits of an f16 cache",
                found: 16,
                allowed,
            });
        }
        let bytes =
            heads.kv_heads * self.capacity * kv_stride(heads.head_dim) * self.element.bytes();
        at_least(op, "k_cache", self.k.len(), bytes)?;
        at_least(op, "v_cache", self.v.len(), bytes)
    }
}

/// Stores k and v of `m` rows at positions `start..start + m`; with a table, rotates q (in place)
/// and k first.
///
/// Positions past the capacity are not stored: the caller bounds the context.
pub struct KvAppend<'a, B: Backend> {
    /// Rows `[m, heads.qkv_len()]`.
    pub qkv: &'a mut B::Buf<f32>,
    /// The layer's cache.
    pub cache: &'a mut KvCache<B>,
    /// Angles for at least `cache.capacity` positions, to rotate q and k.
    pub rope: Option<&'a RopeTable<B>>,
    /// Holds the position of row 0 at `start_at`.
    pub start: &'a B::Buf<u32>,
    /// Where in `start`.
    pub start_at: usize,
    /// Rows.
    pub m: usize,
    /// Heads of the layer.
    pub heads: Heads,
}

impl<B: Backend> KvAppend<'_, B> {
    /// Compares the tensors with the contract.
    ///
    /// # Errors
    /// The tensor or dimension that does not fit.
    pub fn check(&self) -> Result<(), OpError> {
        self.heads.check(OP)?;
        dimension(OP, "m", self.m, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        self.cache.check(OP, self.heads)?;
        at_least(OP, "qkv", self.qkv.len(), self.m * self.heads.qkv_len())?;
        at_least(OP, "start", self.start.len(), self.start_at.saturating_add(1))?;
        if let Some(table) = self.rope {
            same(OP, "head_dim", table.head_dim, self.heads.head_dim)?;
            at_least(OP, "positions", table.positions, self.cache.capacity)?;
            table.check(OP)?;
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl KvAppend<'_, super::CudaBackend> {
    pub(super) fn launch(self, cuda: &super::CudaBackend) -> Result<(), OpError> {
        use contract::kv_append::{Args, grid, rope_grid};
        use contract::launch::DevPtr;
        self.check()?;
        let Self { qkv, cache, rope, start, start_at, m, heads } = self;
        let stream = cuda.stream();
        let args = Args {
            qkv: qkv.dev_ptr(stream),
            k_cache: cache.k.dev_ptr(stream),
            v_cache: cache.v.dev_ptr(stream),
            cos: rope.map_or(DevPtr::NULL, |table| table.cos.dev_ptr(stream)),
            sin: rope.map_or(DevPtr::NULL, |table| table.sin.dev_ptr(stream)),
            start: super::cuda::at(start.dev_ptr(stream), start_at),
            m: m as u32,
            heads: heads.heads as u32,
            kv_heads: heads.kv_heads as u32,
            head_dim: heads.head_dim as u32,
            capacity: cache.capacity as u32,
        };
        let plain = grid(args.m, args.kv_heads, args.head_dim);
        let rotate = rope_grid(args.m, args.heads, args.kv_heads, args.head_dim);
        // SAFETY: `check` compared `qkv` with `m` rows, the caches with their capacity (past which
        // the kernel stores nothing) and the tables with that capacity; what the kernel writes is
        // borrowed exclusively.
        unsafe {
            match (cache.element, rope) {
                (RowType::F32, None) => {
                    cuda.launch::<contract::kv_append::KvAppendF32>(plain, args)?
                }
                (_, None) => cuda.launch::<contract::kv_append::KvAppendBf16>(plain, args)?,
                (RowType::F32, Some(_)) => {
                    cuda.launch::<contract::kv_append::KvAppendRopeF32>(rotate, args)?;
                }
                (_, Some(_)) => {
                    cuda.launch::<contract::kv_append::KvAppendRopeBf16>(rotate, args)?
                }
            }
        }
        Ok(())
    }
}
