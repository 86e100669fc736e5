//! Causal attention of grouped heads over the cache.
//!
//! | tensor   | element     | shape                    | layout                              |
//! |----------|-------------|--------------------------|-------------------------------------|
//! | `q`      | `f32`       | `[M, heads, head_dim]`   | rows of `q_stride` elements         |
//! | caches   | bf16 or f32 | `[kv_heads, capacity, kv_stride(head_dim)]` | see [`crate::kv_append`] |
//! | `start`  | `u32`       | `[1]`                    | position of query row 0             |
//! | `out`    | `f32`       | `[M, heads * head_dim]`  | contiguous                          |
//!
//! Query row `m` of head `j` sees positions `0 ..= start + m` of kv head `j / (heads / kv_heads)`.
//! Scores are `dot(q, k) * scale` with the 8-partial dot of [`crate::num`]; keys are taken in
//! blocks of [`KEY_BLOCK`], each block giving its maximum, the sum of its exponentials and its
//! weighted values, and the blocks are combined first to last ([`crate::num::BlockSum`], [`crate::num::Running`]). So
//! the bits do not depend on how blocks are spread over the GPU nor on M.
//!
//! Block `(j, m)` walks over the key blocks. A single row does better with
//! [`crate::attention_step`].

use crate::launch::{DevPtr, Kernel, LaunchSpec};

pub use crate::num::KEY_BLOCK;

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Largest head.
pub const MAX_HEAD_DIM: u32 = 256;
/// Shared memory in bytes: the query, the scores of a key block, their exponentials.
pub const SMEM_BYTES: u32 = 4 * (MAX_HEAD_DIM + 2 * KEY_BLOCK as u32);

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Rotated queries: head 0 of row 0.
    pub q: DevPtr<f32>,
    /// Key cache in the kernel's element type.
    pub k_cache: DevPtr<u8>,
    /// Value cache in the kernel's element type.
    pub v_cache: DevPtr<u8>,
    /// Output.
    pub out: DevPtr<f32>,
    /// Position of query row 0.
    pub start: DevPtr<u32>,
    /// Query rows.
    pub m: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements of a head, at most [`MAX_HEAD_DIM`].
    pub head_dim: u32,
    /// Elements between two rows of `q`.
    pub q_stride: u32,
    /// Positions of the caches.
    pub capacity: u32,
    /// Multiplier of the scores, `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// Blocks: heads within queries. More than a grid can have saturate, and are refused by the launch.
pub const fn grid(m: u32, heads: u32) -> [u32; 3] {
    [m.saturating_mul(heads), 1, 1]
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $doc:literal;)*) => { $(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            // One block is enough: what a thread has in flight counts, not how many threads.
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, THREADS).with_smem(SMEM_BYTES).with_min_blocks(1);
        }
    )* };
}

kernels! {
    AttentionBf16 "attention_bf16" "One block per query and head, bf16 cache.";
    AttentionF32 "attention_f32" "One block per query and head, f32 cache.";
}
