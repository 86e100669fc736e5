//! How the families that reduce rows spread them over threads: softmax, layernorm, rmsnorm.
//!
//! Rows of up to [`SHORT`] elements belong to a warp each, eight to a block; longer ones to a block of
//! [`THREADS`]. The first [`HELD`] elements of a row wait in shared memory, as `f32`, and are read from
//! global memory once; those behind are read again in every pass. Thread `t` of a warp or block of `T`
//! sums elements `t, t + T, ...`, so every partial of the 256-partial sum ([`crate::num`]) lies in one
//! thread, in order. None of this shows in a bit, and neither does the batch.

/// Threads of a block: one for each partial of a sum.
pub const THREADS: u32 = 256;

/// Rows of a block where a row belongs to a warp.
pub const ROWS_PER_BLOCK: u32 = THREADS / 32;

/// Longest row that belongs to a warp.
pub const SHORT: u32 = 1024;

/// Most elements of a row.
pub const MAX_LEN: usize = 1 << 30;

/// Most rows.
pub const MAX_ROWS: usize = (1 << 31) - 1;

/// Elements of a row of a block that wait in shared memory; eight warps have the same together.
pub const HELD: u32 = 8192;

/// Shared memory of a block in bytes: the held elements, two times 256 partials, a word of each warp.
pub const SMEM_BYTES: u32 = 4 * (HELD + 2 * THREADS + THREADS / 32);

/// Blocks of a launch over `m` rows of `k`.
pub const fn grid(m: u32, k: u32) -> [u32; 3] {
    [if k <= SHORT { m.div_ceil(ROWS_PER_BLOCK) } else { m }, 1, 1]
}
