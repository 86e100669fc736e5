//! How the families that reduce rows spread them over threads: softmax, layernorm, rmsnorm.
//!
//! Rows of up to [`SHORT`] elements belong to a warp each, eight to a block; longer ones to a block
//! of [`THREADS`]. Thread `t` of a warp or block of `T` takes elements `t, t + T, ...`, so every
//! partial of the 256-partial sum ([`crate::num`]) lies in one thread, in order. Neither the choice
//! nor the batch shows in a bit.

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

/// Shared memory of a block in bytes: two times 256 partials, then a word of each warp.
pub const SMEM_BYTES: u32 = 4 * (2 * THREADS + THREADS / 32);

/// Blocks of a launch over `m` rows of `k`.
pub const fn grid(m: u32, k: u32) -> [u32; 3] {
    [if k <= SHORT { m.div_ceil(ROWS_PER_BLOCK) } else { m }, 1, 1]
}
