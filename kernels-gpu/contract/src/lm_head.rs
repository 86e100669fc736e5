//! The head: logits from dense rows, `logits[m, v] = dot(x[m], w[v])`.
//!
//! | tensor   | element        | shape        | layout                     |
//! |----------|----------------|--------------|----------------------------|
//! | `x`      | `f32`          | `[M, K]`     | contiguous                 |
//! | `w`      | bf16, f16, f32 | `[vocab, K]` | rows of `stride` elements, 16-byte aligned |
//! | `logits` | `f32`          | `[M, vocab]` | contiguous                 |
//!
//! Each dot is a 256-partial sum of fused multiply-adds (`num::sum`), the weight widened exactly.
//! A warp makes one row: lane `l` holds partials `8 l .. 8 l + 8`.

use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Rows of the table that one warp computes.
pub const ROWS_PER_WARP: u32 = 2;
/// Rows of the table that one block computes.
pub const ROWS_PER_BLOCK: u32 = THREADS / 32 * ROWS_PER_WARP;

/// Blocks for `m` inputs and `vocab` rows: those of the first input, then those of the next. More
/// than a grid can have saturate, and are refused by the launch.
pub const fn grid(m: u32, vocab: u32) -> [u32; 3] {
    [m.saturating_mul(vocab.div_ceil(ROWS_PER_BLOCK)), 1, 1]
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Input rows.
    pub x: DevPtr<f32>,
    /// Table in the kernel's element type.
    pub w: DevPtr<u8>,
    /// Output.
    pub logits: DevPtr<f32>,
    /// Rows of the table.
    pub vocab: u32,
    /// Elements of a row.
    pub k: u32,
    /// Elements between two rows of the table.
    pub stride: u32,
}

/// Reads a bf16 table.
pub enum LmHeadBf16 {}
/// Reads an f16 table.
pub enum LmHeadF16 {}
/// Reads an f32 table.
pub enum LmHeadF32 {}

impl Kernel for LmHeadBf16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("lm_head_bf16", THREADS).with_min_blocks(1);
}

impl Kernel for LmHeadF16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("lm_head_f16", THREADS).with_min_blocks(1);
}

impl Kernel for LmHeadF32 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("lm_head_f32", THREADS).with_min_blocks(1);
}
