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
//! [`MANY_INPUTS`] logits of each row at a time, so that the table is read from memory once; from sm_90 tiles of
//! [`TILE_ROWS`] rows by [`TILE_INPUTS`] inputs are made instead, where [`tile_grid`] has a grid for them. These kernels
//! also make the logits of those inputs of [`crate::lm_head_int8`] that need every one ([`Only`]).

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num::PARTIALS;
use crate::sample::{SampleParams, StepState};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Rows of the table that one warp computes.
pub const ROWS_PER_WARP: u32 = 2;
/// Rows of the table that one block computes.
pub const ROWS_PER_BLOCK: u32 = THREADS / 32 * ROWS_PER_WARP;

/// Inputs that a warp takes at once where there are several; before sm_75, for want of registers, half of them.
pub const MANY_INPUTS: u32 = 4;

/// Fewest inputs that tiles pay for.
pub const TILE_MIN_INPUTS: u32 = 2;
/// Threads of a block that makes tiles.
pub const TILE_THREADS: u32 = 256;
/// Rows and inputs of a tile.
pub const TILE_ROWS: u32 = 8;
/// See [`TILE_ROWS`].
pub const TILE_INPUTS: u32 = 8;
/// Warps that share a tile.
pub const TILE_WARPS: u32 = 4;
/// Rows of a tile that a warp gives to another at once.
pub const TILE_GIVEN: u32 = 2;
/// Shared memory of a block that makes tiles, at most.
pub const TILE_SMEM_BYTES: u32 = 227 * 1024;
/// Of that, what warps give each other.
const TILE_ROOM_BYTES: u32 = TILE_THREADS * TILE_GIVEN * TILE_INPUTS * 2 * 4;
/// Words of it in front of all else: which inputs the block has, and how many there are.
pub const TILE_LIST: u32 = 32;
/// Fewest inputs of [`Only`] that tiles pay for, where nobody asks for what they leave: the last kernel of [`crate::lm_head_int8`] takes a third as long for one alone.
pub const TILE_LEAST: u32 = 3;

/// Bytes of `inputs` inputs of `k` elements in shared memory, padded to whole steps of 256.
const fn tile_bytes(inputs: u32, k: u32) -> u32 {
    k.div_ceil(PARTIALS as u32).saturating_mul(4 * PARTIALS as u32 * inputs)
}

/// Inputs that a block keeps in shared memory: those of both of its tiles, where they fit; of one; none: there
/// are no tiles for rows of `k`.
pub const fn tile_inputs(m: u32, k: u32) -> u32 {
    let room = TILE_SMEM_BYTES - TILE_ROOM_BYTES - 4 * TILE_LIST;
    if m > TILE_INPUTS && tile_bytes(2 * TILE_INPUTS, k) <= room {
        2 * TILE_INPUTS
    } else if tile_bytes(TILE_INPUTS, k) <= room {
        TILE_INPUTS
    } else {
        0
    }
}

/// Blocks on `sms` multiprocessors: one on each, which goes through the table by steps of as many as have the same inputs;
/// side by side those of the same rows and other inputs. `None` where tiles do not pay or do not fit.
pub const fn tile_grid(m: u32, vocab: u32, k: u32, sms: u32) -> Option<[u32; 3]> {
    let inputs = tile_inputs(m, k);
    if m < TILE_MIN_INPUTS || vocab < TILE_ROWS || inputs == 0 {
        return None;
    }
    let tiles = m.div_ceil(inputs);
    let units = vocab.div_ceil(TILE_ROWS * if inputs == TILE_INPUTS { 2 } else { 1 });
    let streams = if sms > tiles { sms / tiles } else { 1 };
    let streams = if streams < units { streams } else { units };
    // No product is above `sms` or 2^24 inputs.
    Some([tiles * streams, 1, 1])
}

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

/// Which inputs tiles are made of: all, where `params` is null, or those of a [`crate::lm_head_int8`] that need every logit,
/// where these are `least` at least ([`crate::lm_head_int8::EVERY`] then says so of each; if fewer, nothing is made).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Only {
    /// What was asked for each input.
    pub params: DevPtr<SampleParams>,
    /// Where its sequence stands.
    pub state: DevPtr<StepState>,
    /// Its statistics, [`crate::lm_head_int8::input_words`] words from one to the next.
    pub input: DevPtr<u32>,
    /// Fewest that are made.
    pub least: u32,
}

impl Only {
    /// All.
    pub const ALL: Self =
        Self { params: DevPtr::NULL, state: DevPtr::NULL, input: DevPtr::NULL, least: 0 };
}

/// The parameter of the kernels that make tiles.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TileArgs {
    /// Tensors and shape.
    pub base: Args,
    /// Which inputs.
    pub only: Only,
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

macro_rules! tiles {
    ($($name:ident $symbol:literal $doc:literal;)*) => { $(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = TileArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, TILE_THREADS)
                .with_min_sm(90)
                .with_smem(TILE_SMEM_BYTES)
                .with_min_blocks(1);

            fn smem_bytes(args: &TileArgs) -> u32 {
                let Args { m, k, .. } = args.base;
                4 * TILE_LIST + tile_bytes(tile_inputs(m, k), k) + TILE_ROOM_BYTES
            }
        }
    )* };
}

tiles! {
    LmHeadTileBf16 "lm_head_tile_bf16" "Reads a bf16 table, inputs in shared memory.";
    LmHeadTileF16 "lm_head_tile_f16" "Reads an f16 table, inputs in shared memory.";
    LmHeadTileF32 "lm_head_tile_f32" "Reads an f32 table, inputs in shared memory.";
}
