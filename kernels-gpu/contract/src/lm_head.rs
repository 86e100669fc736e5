//! The head: logits from dense rows, `logits[m, v] = dot(x[m], w[v])`.
//!
//! | tensor   | element        | shape        | layout                     |
//! |----------|----------------|--------------|----------------------------|
//! | `x`      | `f32`          | `[M, K]`     | contiguous                 |
//! | `w`      | bf16, f16, f32 | `[vocab, K]` | rows of `stride` elements, 16-byte aligned |
//! | `logits` | `f32`          | `[M, vocab]` | contiguous                 |
//!
//! Each dot is a 256-partial sum of fused multiply-adds (`num::sum`), the weight widened exactly.
//! A warp makes two rows: lane `l` holds partials `8 l .. 8 l + 8` of each. For several inputs it makes
//! [`MANY_INPUTS`] logits of each row at a time, so that the table is read from memory once.

use crate::launch::{DevPtr, Kernel, LaunchSpec};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Rows of the table that one warp computes.
pub const ROWS_PER_WARP: u32 = 2;
/// Rows of the table that one block computes.
pub const ROWS_PER_BLOCK: u32 = THREADS / 32 * ROWS_PER_WARP;

/// Inputs that a warp takes at once where there are several; before sm_75, for want of registers, half of them.
pub const MANY_INPUTS: u32 = 4;

/// Blocks for `vocab` rows, whatever the number of inputs.
pub const fn grid(vocab: u32) -> [u32; 3] {
    [vocab.div_ceil(ROWS_PER_BLOCK), 1, 1]
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
    /// Inputs.
    pub m: u32,
}

/// Reads a bf16 table, for one input.
pub enum LmHeadBf16 {}
/// Reads an f16 table, for one input.
pub enum LmHeadF16 {}
/// Reads an f32 table, for one input.
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

macro_rules! many {
    ($($name:ident $symbol:literal $doc:literal;)*) => { $(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, THREADS).with_min_blocks(1);
        }
    )* };
}

many! {
    LmHeadManyBf16 "lm_head_many_bf16" "Reads a bf16 table, for several inputs.";
    LmHeadManyF16 "lm_head_many_f16" "Reads an f16 table, for several inputs.";
    LmHeadManyF32 "lm_head_many_f32" "Reads an f32 table, for several inputs.";
}
