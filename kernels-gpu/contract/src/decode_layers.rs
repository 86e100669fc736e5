//! Every block of a model on one row, in one kernel whose blocks all run at once.
//!
//! | tensor     | element | shape                               | meaning                                |
//! |------------|---------|-------------------------------------|----------------------------------------|
//! | `linears`  | [`Linear`] | `[layers, 4]`                    | qkv, output, gate and up, down         |
//! | `caches`   | address | `[layers, 2]`                       | keys and values, as [`crate::attention_step`], or pages of them, as [`crate::attention_paged`] |
//! | `tables`   | `u32`   | `[ceil(capacity / KEY_BLOCK)]`      | pages of the sequence, for the kernels over pages |
//! | `h`        | `f32`   | `[hidden]`                          | residual stream, updated in place      |
//! | `exchange` | `u32`   | `[2, layers, exchange_len]`         | rows on their way between blocks       |
//! | `partial`  | `u64`   | `[heads, key_blocks, partial_len]`  | results of key blocks                  |
//!
//! Per layer: [`crate::bit_linear`] (`qkv`), [`crate::attention_step`], `bit_linear` (output, added to `h`),
//! `bit_linear` (gate and up), `bit_linear` (down, added to `h`); the same functions, so the same bits.
//!
//! No barrier stands between the parts. A word of `exchange` is [`EMPTY`] until its value is there, and whoever needs it reads
//! it until it is. There are two sets, taken in turn: a launch uses one and empties the other, which the launch before it used. A
//! word of `partial` carries the number of its launch and layer ([`tag`]) beside its value.

pub mod rows;

use crate::attention::KEY_BLOCK;
use crate::bit_linear::{LANES, SHORT_K};
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::{Segments, row_words};

pub use rows::{DecodeLayersRows, DecodeLayersRows16};

/// Threads of a block that have the row: one per partial sum.
pub const THREADS: u32 = crate::num::PARTIALS as u32;
/// Threads of a block besides them, which ask for weights, keys and values: a warpgroup, as it gives its registers to the others.
pub const ASKERS: u32 = 128;
/// Threads of a block.
pub const BLOCK_THREADS: u32 = THREADS + ASKERS;
/// Warps that have the row.
pub const WARPS: u32 = THREADS / 32;
/// Linear layers of a transformer block.
pub const LINEARS: usize = 4;
/// Longest row of qkv, of the output projection and of gate and up.
pub const MAX_HIDDEN: usize = SHORT_K;
/// Longest row of down: a thread holds 28 elements.
pub const MAX_FFN: usize = 28 * THREADS as usize;
/// Most elements of a head, in steps of [`HEAD_STEP`].
pub const MAX_HEAD_DIM: usize = 128;
/// What the elements of a head are a multiple of.
pub const HEAD_STEP: usize = 8;
/// Most outputs of a block in one linear layer: one for each thread.
pub const MAX_OUTPUTS: u32 = THREADS;
/// Key blocks of a block whose keys and values are on their way at once.
pub const KV_SLOTS: u32 = 2;
/// Most query heads that share the keys of a block; half as many where there are blocks enough.
pub const UNIT_HEADS: u32 = 4;

/// Elements of a head of [`DecodeLayersFast`].
pub const FAST_HEAD_DIM: u32 = MAX_HEAD_DIM as u32;

/// Bytes from key to key in shared memory: rows of a head do not fall on the same banks.
pub const KEY_BYTES: u32 = 2 * MAX_HEAD_DIM as u32 + 16;
/// Bytes from value to value.
pub const VALUE_BYTES: u32 = 2 * MAX_HEAD_DIM as u32;
/// Bytes of the keys and values of a key block.
pub const KV_SLOT_BYTES: u32 = KEY_BLOCK as u32 * (KEY_BYTES + VALUE_BYTES);
/// Bytes of the queries, the scores, the weights, the maxima, and of what a block has of attention.
pub const ATTENTION_BYTES: u32 =
    4 * UNIT_HEADS * (MAX_HEAD_DIM + 2 * KEY_BLOCK + 1) as u32 + 4 * OWN_WORDS;
/// Words of what a block has of attention: where its key blocks are, the pages of the first ones, and whether one is not there.
pub const OWN_WORDS: u32 = 8 + OWN_PAGES + 4;
/// Key blocks of a block whose pages are in shared memory.
pub const OWN_PAGES: u32 = 32;
/// Bytes of 256 activations of the quantised row: the same places of two neighbours do not fall on the same banks.
pub const ACT_GROUP_BYTES: u32 = 256 + 64;
/// Bytes of the quantised row.
pub const ACTS_BYTES: u32 = MAX_FFN as u32 / 256 * ACT_GROUP_BYTES;
/// Words of a linear layer's share of a block, in shared memory.
pub const SHARE_WORDS: u32 = 12 + 4 * WARPS;
/// Where weights, keys and values begin in shared memory: bulk copies to other places are slower.
pub const ALIGN: u32 = 128;
/// Bytes of everything but weights, keys and values.
pub const FIXED_BYTES: u32 = (4 * (THREADS + 2 * WARPS + 2 * MAX_OUTPUTS)
    + ACTS_BYTES
    + 4 * LINEARS as u32 * SHARE_WORDS
    + ATTENTION_BYTES
    + 8 * KV_SLOTS
    + 8 * 2 * LINEARS as u32)
    .next_multiple_of(ALIGN);
/// Most shared memory of a block.
pub const SMEM_BYTES: u32 = 232_448;

const _: () = assert!(LANES == 4 && KV_SLOT_BYTES.is_multiple_of(ALIGN) && UNIT_HEADS == 4);
const _: () = assert!(KEY_BLOCK == crate::attention_paged::PAGE, "a page is a key block");

/// Bytes of a row of weights of `k` codes.
#[inline(always)]
pub const fn row_bytes(k: u32) -> u32 {
    4 * row_words(k as usize) as u32
}

/// A word of `exchange` that nobody has written: a NaN that no value is stored as.
pub const EMPTY: u32 = u32::MAX;

/// A value as a word of `exchange`.
#[inline(always)]
pub const fn word(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits == EMPTY { 0x7fff_ffff } else { bits }
}

/// What marks the partial results of layer `layer` of launch `epoch`.
#[inline(always)]
pub const fn tag(epoch: u32, layers: u32, layer: u32) -> u32 {
    epoch.wrapping_mul(layers).wrapping_add(layer).wrapping_add(1)
}

/// Words of `partial` that a key block of a head takes: maximum, sum, weighted values.
pub const fn partial_len(head_dim: usize) -> usize {
    2 + head_dim
}

/// One ternary layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Packed weights.
    pub w: DevPtr<u32>,
    /// Gain of the norm in front, or null.
    pub norm: DevPtr<f32>,
    /// Weight scales.
    pub segments: Segments,
}

/// Sizes of a model.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the gated product.
    pub ffn: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
}

impl Shape {
    /// Elements of the fused projections.
    #[inline(always)]
    pub const fn qkv_len(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of the attention output.
    #[inline(always)]
    pub const fn q_len(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Outputs, input elements and rows of weights for an output of linear layer `kind`.
    #[inline(always)]
    pub const fn linear(&self, kind: usize) -> [u32; 3] {
        match kind {
            0 => [self.qkv_len(), self.hidden, 1],
            1 => [self.hidden, self.q_len(), 1],
            2 => [self.ffn, self.hidden, 2],
            _ => [self.hidden, self.ffn, 1],
        }
    }

    /// Where the input row of linear layer `kind` stands in the words of a layer; that of the next layer's first
    /// at `input(LINEARS)`. Behind the fused projections are the attention output, the residual stream after
    /// attention, the gated product, and the residual stream after it.
    #[inline(always)]
    pub const fn input(&self, kind: usize) -> u32 {
        let attention = self.qkv_len();
        match kind {
            0 => 0,
            1 => attention,
            2 => attention + self.q_len(),
            3 => attention + self.q_len() + self.hidden,
            _ => attention + self.q_len() + self.hidden + self.ffn,
        }
    }

    /// Words of `exchange` for a layer.
    #[inline(always)]
    pub const fn exchange_len(&self) -> u32 {
        self.input(LINEARS) + self.hidden
    }

    /// Where the weights of each linear layer begin, of a launch of `blocks` blocks, and where those of the last one end.
    #[inline(always)]
    pub const fn areas(&self, blocks: u32) -> [u32; LINEARS + 1] {
        self.areas_with(blocks, 0)
    }

    /// The same where the last one takes at least so many bytes.
    #[inline(always)]
    const fn areas_with(&self, blocks: u32, last: u32) -> [u32; LINEARS + 1] {
        let mut ends = [0u32; LINEARS + 1];
        let mut kind = 0;
        while kind < LINEARS {
            let [n, k, rows] = self.linear(kind);
            let bytes = n.div_ceil(blocks).saturating_mul(rows).saturating_mul(row_bytes(k));
            // Lanes read 64 bytes at a time, also those behind the last row.
            let mut bytes = bytes.saturating_add(64).div_ceil(ALIGN).saturating_mul(ALIGN);
            if kind == LINEARS - 1 && bytes < last {
                bytes = last;
            }
            ends[kind + 1] = ends[kind].saturating_add(bytes);
            kind += 1;
        }
        ends
    }

    /// Shared memory of a block of a launch of `blocks` blocks.
    pub const fn smem_bytes(&self, blocks: u32) -> u32 {
        self.areas(blocks)[LINEARS].saturating_add(FIXED_BYTES + KV_SLOTS * KV_SLOT_BYTES)
    }

    /// Blocks on a GPU of so many multiprocessors: each has outputs of every linear layer. `None` for sizes that the kernel
    /// does not take.
    pub fn blocks(&self, multiprocessors: u32) -> Option<u32> {
        let sizes = self.layers >= 1
            && self.hidden >= 1
            && self.hidden as usize <= MAX_HIDDEN
            && self.kv_heads >= 1
            && self.heads >= 1
            && self.heads.is_multiple_of(self.kv_heads)
            && self.head_dim as usize <= MAX_HEAD_DIM
            && self.head_dim >= 1
            && (self.head_dim as usize).is_multiple_of(HEAD_STEP)
            && self.heads as usize * self.head_dim as usize <= MAX_HIDDEN
            && self.ffn >= 1
            && self.ffn as usize <= MAX_FFN;
        if !sizes {
            return None;
        }
        // The areas are larger the fewer blocks there are.
        let blocks = multiprocessors.min(self.hidden).min(self.ffn).min(self.qkv_len()).max(1);
        let fits = |kind| self.linear(kind)[0].div_ceil(blocks) <= MAX_OUTPUTS;
        ((0..LINEARS).all(fits) && self.smem_bytes(blocks) <= SMEM_BYTES).then_some(blocks)
    }
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Ternary layers.
    pub linears: DevPtr<Linear>,
    /// Addresses of the caches.
    pub caches: DevPtr<[u64; 2]>,
    /// Residual stream.
    pub h: DevPtr<f32>,
    /// Cosines `[capacity, head_dim / 2]`.
    pub cos: DevPtr<f32>,
    /// Sines.
    pub sin: DevPtr<f32>,
    /// Position of the row. Over pages [`crate::attention_paged::ABSENT`] and positions past the capacity are what they are there.
    pub start: DevPtr<u32>,
    /// Pages of the sequence, where the caches have pages.
    pub tables: DevPtr<u32>,
    /// Rows between blocks.
    pub exchange: DevPtr<u32>,
    /// Results of key blocks.
    pub partial: DevPtr<u64>,
    /// Launches so far.
    pub epoch: DevPtr<u32>,
    /// Sizes.
    pub shape: Shape,
    /// Query heads of a key and value head.
    pub group: u32,
    /// Positions of the caches, or of the pages in `tables`.
    pub capacity: u32,
    /// Key blocks that `partial` has room for: those of the capacity.
    pub key_blocks: u32,
    /// Pages of a layer's cache, where it has pages. Of all heads there are less than 2^32 positions.
    pub pages: u32,
    /// [`crate::bit_linear::Finish`] of gate and up as a number.
    pub gate: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Multiplier of the scores.
    pub scale: f32,
    /// [`Shape::smem_bytes`] of the launch.
    pub smem_bytes: u32,
}

/// One block for each multiprocessor, all at once, with all of its shared memory.
const fn spec(symbol: &'static str, threads: u32) -> LaunchSpec {
    LaunchSpec::new(symbol, threads)
        .only_on(90)
        .with_smem(SMEM_BYTES)
        .with_min_blocks(1)
        .with_all_shared()
        .all_at_once()
}

/// A bf16 cache.
pub enum DecodeLayers {}

impl Kernel for DecodeLayers {
    type Args = Args;
    const SPEC: LaunchSpec = spec("decode_layers", BLOCK_THREADS);

    fn smem_bytes(args: &Args) -> u32 {
        args.smem_bytes
    }
}

/// The same with attention on tensor cores, heads of [`FAST_HEAD_DIM`] elements: what it makes of a row of the caches has the bound of
/// [`crate::attention_paged::fast_bound`].
pub enum DecodeLayersFast {}

impl Kernel for DecodeLayersFast {
    type Args = Args;
    const SPEC: LaunchSpec = spec("decode_layers_fast", BLOCK_THREADS);

    fn smem_bytes(args: &Args) -> u32 {
        args.smem_bytes
    }
}

/// [`DecodeLayers`] over pages, as [`crate::attention_paged`].
pub enum DecodeLayersPaged {}

impl Kernel for DecodeLayersPaged {
    type Args = Args;
    const SPEC: LaunchSpec = spec("decode_layers_paged", BLOCK_THREADS);

    fn smem_bytes(args: &Args) -> u32 {
        args.smem_bytes
    }
}

/// [`DecodeLayersFast`] over pages.
pub enum DecodeLayersPagedFast {}

impl Kernel for DecodeLayersPagedFast {
    type Args = Args;
    const SPEC: LaunchSpec = spec("decode_layers_paged_fast", BLOCK_THREADS);

    fn smem_bytes(args: &Args) -> u32 {
        args.smem_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Shape =
        Shape { layers: 30, hidden: 2560, ffn: 6912, heads: 20, kv_heads: 5, head_dim: 128 };

    #[test]
    fn the_parts_of_a_layer_follow_each_other() {
        assert_eq!(MODEL.input(1), 3840);
        assert_eq!(MODEL.input(2), 3840 + 2560);
        assert_eq!(MODEL.exchange_len(), 3840 + 3 * 2560 + 6912);
    }

    #[test]
    fn every_block_has_outputs() {
        assert_eq!(MODEL.blocks(132), Some(132));
        let small = Shape { layers: 2, hidden: 64, ffn: 96, heads: 4, kv_heads: 2, head_dim: 16 };
        assert_eq!(small.blocks(132), Some(64));
        assert_eq!(MODEL.blocks(10), None, "more outputs than threads");
        for wrong in [
            Shape { hidden: 2561, ..MODEL },
            Shape { ffn: 7169, ..MODEL },
            Shape { head_dim: 136, ..MODEL },
            Shape { head_dim: 20, ..MODEL },
            Shape { heads: 21, kv_heads: 7, ..MODEL },
            Shape { kv_heads: 3, ..MODEL },
            Shape { layers: 0, ..MODEL },
        ] {
            assert_eq!(wrong.blocks(132), None, "{wrong:?}");
        }
    }

    #[test]
    fn no_value_is_an_empty_word() {
        assert_eq!(word(f32::from_bits(EMPTY)), 0x7fff_ffff);
        assert_eq!(word(-0.0), 0x8000_0000);
        assert_ne!(tag(0, 30, 0), 0);
        assert_eq!(tag(0, 30, 29) + 1, tag(1, 30, 0));
    }
}
