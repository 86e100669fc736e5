//! One step of attention, `M = 1`: rotation of q and k, append to the cache, attention over it, in one
//! kernel.
//!
//! | tensor       | element     | shape                           | layout                       |
//! |--------------|-------------|---------------------------------|------------------------------|
//! | `qkv`        | `f32`       | `[(heads + 2 kv_heads) * head_dim]` | q heads, k heads, v heads; not changed |
//! | caches       | bf16 or f32 | `[kv_heads, capacity, kv_stride(head_dim)]` | see [`crate::kv_append`] |
//! | `cos`, `sin` | `f32`       | `[capacity, head_dim / 2]`      | see [`crate::rope`]          |
//! | `start`      | `u32`       | `[1]`                           | position of the row          |
//! | `out`        | `f32`       | `[heads * head_dim]`            |                              |
//!
//! [`crate::kv_append`] with rotation, then [`crate::attention`], with their bits. A row at or past the
//! capacity is neither rotated nor stored and sees the whole cache, as there.
//!
//! Block `(j, b)` takes key block `b` of head `j`, rotates the query of that head for itself and leaves
//! its result in `partial`; the last block of a head to finish combines them. The block with the row's
//! own position makes the new key and value for itself too; that of the first head of a group stores them.
//! A grid for fewer positions than there are gives NaN.

use crate::launch::{DevPtr, Kernel, LaunchSpec};

pub use crate::attention::{KEY_BLOCK, MAX_HEAD_DIM, THREADS};

/// Shared memory in bytes: that of [`crate::attention`], and the new key.
pub const SMEM_BYTES: u32 = crate::attention::SMEM_BYTES + 4 * MAX_HEAD_DIM;

/// Elements one key block of one head leaves in `partial`: maximum, sum, weighted values.
pub const fn partial_len(head_dim: usize) -> usize {
    2 + head_dim
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Fused projections.
    pub qkv: DevPtr<f32>,
    /// Key cache in the kernel's element type.
    pub k_cache: DevPtr<u8>,
    /// Value cache in the kernel's element type.
    pub v_cache: DevPtr<u8>,
    /// Cosines.
    pub cos: DevPtr<f32>,
    /// Sines.
    pub sin: DevPtr<f32>,
    /// Position of the row.
    pub start: DevPtr<u32>,
    /// Output.
    pub out: DevPtr<f32>,
    /// `[heads, key_blocks, partial_len(head_dim)]`.
    pub partial: DevPtr<f32>,
    /// `[heads]`, zero before and after every launch.
    pub counters: DevPtr<u32>,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements of a head: even, at most [`MAX_HEAD_DIM`].
    pub head_dim: u32,
    /// Positions of the caches.
    pub capacity: u32,
    /// Key blocks of the grid: at least `ceil((start + 1) / KEY_BLOCK)`.
    pub key_blocks: u32,
    /// Multiplier of the scores, `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// Blocks: key blocks within heads. More than a grid can have saturate, and are refused by the launch.
pub const fn grid(heads: u32, key_blocks: u32) -> [u32; 3] {
    [heads.saturating_mul(key_blocks), 1, 1]
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $doc:literal;)*) => { $(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            // One block is enough: what a thread has in flight counts, not how many threads.
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, THREADS)
                .with_smem(SMEM_BYTES)
                .with_min_blocks(1)
                .with_all_shared();
        }
    )* };
}

kernels! {
    AttentionStepBf16 "attention_step_bf16" "A bf16 cache.";
    AttentionStepF32 "attention_step_f32" "An f32 cache.";
}
