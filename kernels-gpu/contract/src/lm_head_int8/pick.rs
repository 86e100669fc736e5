//! The kernel that computes the logits that can win and picks from them, in a cluster of blocks for each input. From sm_90.

use super::Args;
use crate::launch::{Kernel, LaunchSpec};
use crate::sample::{self, PICK_SMEM_BYTES, PICK_THREADS, SHORT_LIST};

/// Threads of a block.
pub const CLUSTER_THREADS: u32 = PICK_THREADS;
/// Rows that a block can take into its list: where more reach the floor, all of them go through memory.
pub const CANDIDATES: u32 = 4096;
/// Longest input that a block keeps.
pub const PICK_K: u32 = 8192;
/// Words behind what the sampler takes of shared memory: candidates and their keys, those of them that are computed, keys of all blocks, keys and rows
/// of the short list, counters, the input.
const WORDS: u32 = 3 * CANDIDATES + 4 * SHORT_LIST + 80 + PICK_K;

/// Whether the kernel computes the logits of `m` inputs of `k` values that can win. Of fewer, `lm_head_int8_rescore_*` spreads them over more blocks.
#[inline(always)]
pub const fn in_clusters(m: u32, k: u32) -> bool {
    m > 32 && k <= PICK_K
}

/// Blocks of a cluster for `m` inputs: together about as many as there are multiprocessors.
#[inline(always)]
pub const fn pick_blocks(m: u32) -> u32 {
    if m <= 66 { 2 } else { 1 }
}

/// Of the best `wanted` logits, those that a block computes first, by their upper bounds: from all blocks together a few more.
#[inline(always)]
pub const fn first_rows(wanted: u32, blocks: u32) -> u32 {
    (wanted + wanted / 4) / blocks + 4
}

/// Parameter of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PickArgs {
    /// Those of the scan.
    pub head: Args,
    /// Those of the sampler.
    pub sample: sample::Args,
}

macro_rules! picks {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal;)*) => { $(
        $(#[$doc])*
        pub enum $name {}

        impl Kernel for $name {
            type Args = PickArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, CLUSTER_THREADS)
                .with_min_sm(90)
                .with_smem(PICK_SMEM_BYTES + 4 * WORDS)
                .with_min_blocks(1);

            fn cluster(args: &PickArgs) -> u32 {
                pick_blocks(args.head.m)
            }
        }
    )* };
}

picks! {
    /// The next token, from a bf16 table; grid `[pick_blocks(m), m, 1]`.
    PickBf16: "lm_head_int8_pick_bf16";
    /// The same from an f16 table.
    PickF16: "lm_head_int8_pick_f16";
    /// The same from an f32 table.
    PickF32: "lm_head_int8_pick_f32";
}
