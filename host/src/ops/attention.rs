//! Host side of [`contract::attention`].

use contract::attention::MAX_HEAD_DIM;
use contract::w2a8::MAX_ROWS;

use super::error::{at_least, dimension};
use super::kv_append::{Heads, KvCache};
use super::{Backend, Math, OpError, RowType, Tensor};

const OP: &str = "attention";
/// From so many blocks a multiprocessor on, were each to take one query and head, blocks take 64 of them: one that does needs
/// three times as long for a block of keys, and the device a seventh of the time for all.
#[cfg(feature = "cuda")]
const MANY_ROWS: usize = 16;

/// Causal attention of `m` queries at positions `start..start + m`.
///
/// [`Math::TensorCore`] needs a bf16 cache. Queries and exponentials are then rounded to bf16 (from sm_80; the CPU and
/// older devices compute as for [`Math::Exact`]): a result is within [`contract::attention::fast_bound`] of the exact value for the
/// rounded queries, and a key or value that is not finite may reach rows up to 63 positions before it.
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
    /// How scores and values are summed.
    pub math: Math,
    /// Whether a block of a GPU kernel takes many rows: exact ones can with heads of up to 128 elements, with the same
    /// bits, those on tensor cores always do. `None`: the measured choice.
    pub tiled: Option<bool>,
}

/// Refuses a cache that `math` does not take.
///
/// # Errors
/// [`Math::TensorCore`] and a cache that is not of bf16.
pub fn check_math(math: Math, cache: RowType) -> Result<(), OpError> {
    match (math, cache) {
        (Math::Exact, _) | (Math::TensorCore, RowType::Bf16) => Ok(()),
        (Math::TensorCore, found) => {
            let allowed =
                "tensor cores take a bf16 cache (2 bytes an element); use that, or exact attention";
            Err(OpError::Dimension { op: OP, what: "cache element", found: found.bytes(), allowed })
        }
    }
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
        check_math(self.math, self.cache.element)?;
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
        use contract::attention::{Args, AttentionBf16, AttentionF32, RowTile, grid};
        use contract::launch::DevPtr;
        self.check()?;
        let scale = self.scale();
        let Self { qkv, cache, out, start, start_at, m, heads, math, tiled } = self;
        let stream = cuda.stream();
        let args = Args {
            q: qkv.dev_ptr(stream),
            k_cache: cache.k.dev_ptr(stream),
            v_cache: cache.v.dev_ptr(stream),
            out: out.dev_ptr(stream),
            start: super::cuda::at(start.dev_ptr(stream), start_at),
            tiles: DevPtr::NULL,
            m: m as u32,
            heads: heads.heads as u32,
            kv_heads: heads.kv_heads as u32,
            head_dim: heads.head_dim as u32,
            q_stride: heads.qkv_len() as u32,
            capacity: cache.capacity as u32,
            scale,
        };
        if math == Math::Exact && tiled == Some(true) && heads.head_dim > 128 {
            let (found, allowed) = (heads.head_dim, "1 to 128; use None");
            return Err(OpError::Dimension { op: OP, what: "tiled head_dim", found, allowed });
        }
        // SAFETY: `check` compared `qkv` and `out` with `m` rows and the caches with their capacity, past
        // which the kernels read nothing; `out` is borrowed exclusively.
        unsafe {
            if tiled.unwrap_or_else(|| takes_many(cuda, math, m, heads)) {
                let tile = RowTile::of(args.head_dim);
                let tiles = tile.tiles(args.m, args.heads / args.kv_heads);
                return launch_many(cuda, math, cache.element, tiles, args);
            }
            let grid = grid(args.m, args.heads);
            match cache.element {
                RowType::F32 => cuda.launch::<AttentionF32>(grid, args),
                _ => cuda.launch::<AttentionBf16>(grid, args),
            }
        }
    }
}

/// Whether `m` rows run by a kernel that takes many, where that is not asked for or refused.
#[cfg(feature = "cuda")]
pub(super) fn takes_many(cuda: &super::CudaBackend, math: Math, m: usize, heads: Heads) -> bool {
    use contract::attention::{AttentionFastD128, AttentionRowsBf16D128};
    let blocks = MANY_ROWS * cuda.cuda().device().info().sm_count as usize;
    let many = m * heads.heads >= blocks && heads.head_dim <= 128;
    many && cuda.has::<AttentionRowsBf16D128>()
        || math == Math::TensorCore && cuda.has::<AttentionFastD128>()
}

/// Launches the kernel that takes many rows, for so many tiles: on tensor cores where `math` says so and the device has it.
///
/// # Safety
/// As [`crate::driver::KernelHandle::launch`]; exact heads have at most 128 elements; `tiles` are those of `args`.
#[cfg(feature = "cuda")]
pub(super) unsafe fn launch_many(
    cuda: &super::CudaBackend,
    math: Math,
    element: RowType,
    tiles: u32,
    args: contract::attention::Args,
) -> Result<(), OpError> {
    use contract::attention::{
        AttentionFastD64, AttentionFastD128, AttentionFastD256, AttentionRowsBf16D64,
        AttentionRowsBf16D128, AttentionRowsF32D64, AttentionRowsF32D128, RowTile,
    };
    let grid = RowTile::of(args.head_dim).grid(tiles, args.kv_heads);
    // SAFETY: by the caller.
    unsafe {
        match (math, element, args.head_dim) {
            (Math::TensorCore, _, ..=64) => cuda.launch::<AttentionFastD64>(grid, args),
            (Math::TensorCore, _, ..=128) => cuda.launch::<AttentionFastD128>(grid, args),
            (Math::TensorCore, ..) => cuda.launch::<AttentionFastD256>(grid, args),
            (_, RowType::F32, ..=64) => cuda.launch::<AttentionRowsF32D64>(grid, args),
            (_, RowType::F32, _) => cuda.launch::<AttentionRowsF32D128>(grid, args),
            (_, _, ..=64) => cuda.launch::<AttentionRowsBf16D64>(grid, args),
            _ => cuda.launch::<AttentionRowsBf16D128>(grid, args),
        }
    }
}
