//! Every block of a model on up to [`MAX_ROWS`] rows of a sequence each, in one kernel whose blocks all run at once.
//!
//! | tensor      | element | shape                                | meaning                                |
//! |-------------|---------|--------------------------------------|----------------------------------------|
//! | `linears`   | [`Linear`](super::Linear) | `[layers, 4]`      | as for one row                         |
//! | `caches`    | address | `[layers, 2]`                        | pages of keys and values, as [`crate::attention_paged`] |
//! | `h`         | `f32`   | `[M, hidden]`                        | residual streams, updated in place     |
//! | `positions` | `u32`   | `[M]`                                | as [`crate::attention_paged`]          |
//! | `tables`    | `u32`   | `[M, ceil(capacity / PAGE)]`         | as [`crate::attention_paged`]          |
//! | `exchange`  | `u32`   | `[RING, slot_words(tiles)]`          | rows on their way between blocks       |
//! | `acts`      | `u32`   | `[RING, act_words]`                  | quantised rows on their way            |
//! | `partial`   | `u64`   | `[tiles.rows(), heads, key_blocks, partial_len]` | results of key blocks      |
//!
//! The functions are those of [`crate::act_quant`], [`crate::w2a8_gemm`] and [`crate::attention_paged`], so the bits are.
//!
//! Eight rows are a [tile](Tiles), the columns of a product; there is a kernel for one tile and one for two. One block norms and quantises
//! a row of each tile and hands them on; all blocks make their outputs of all rows. A word of `exchange` is
//! [`EMPTY`](super::EMPTY) until its value is there, one of `acts` is [`NO_ACTS`]. Layers take the [`RING`] sets of words in turn, on
//! over all launches; a set is emptied two layers after it was used.

use super::{
    ALIGN, LINEARS, MAX_FFN, MAX_HEAD_DIM, SMEM_BYTES, Shape, THREADS, UNIT_HEADS, row_bytes, spec,
};
use crate::attention::KEY_BLOCK;
use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::w2a8::MAX_SEGMENTS;

pub use super::{ACT_GROUP_BYTES, KEY_BYTES, KV_SLOT_BYTES, KV_SLOTS, VALUE_BYTES};

/// Rows of a tile: the columns of a product.
pub const TILE_ROWS: u32 = 8;
/// Most tiles of a launch: there is a kernel for each number.
pub const MAX_TILES: u32 = 2;
/// Most rows.
pub const MAX_ROWS: u32 = TILE_ROWS * MAX_TILES;
/// Groups of warps that attend, a unit each.
pub const GROUPS: u32 = KV_SLOTS + 1;
/// Warps of a group.
pub const GROUP_WARPS: u32 = 4;
/// Threads of a group.
pub const GROUP_THREADS: u32 = 32 * GROUP_WARPS;
/// Warps that make products: the groups, and two more.
pub const WORK_WARPS: u32 = GROUPS * GROUP_WARPS + 2;
/// Threads that make products.
pub const WORK_THREADS: u32 = 32 * WORK_WARPS;
/// Threads besides them, which ask for weights, keys and values.
pub const ASK_THREADS: u32 = 64;
/// Threads of a block.
pub const BLOCK_THREADS: u32 = WORK_THREADS + ASK_THREADS;
/// Sets of words that layers take in turn.
pub const RING: u32 = 4;
/// Four activations that nobody has written: none is -128.
pub const NO_ACTS: u32 = 0x8080_8080;
/// Words of 256 activations of a tile of rows.
pub const TILE_WORDS: u32 = 256 / 4 * TILE_ROWS;
/// Added to the sum of a quantised row: no word of it is empty.
pub const SUM_BIAS: u32 = 1 << 24;
/// Most outputs of a thread in a linear layer.
pub const ROUNDS: u32 = 2;
/// Words of a linear layer's share of a block, in shared memory.
pub const SHARE_WORDS: u32 = 12;

/// Words of a group's queries, scores, weights and maxima.
pub const UNIT_WORDS: u32 = UNIT_HEADS * (MAX_HEAD_DIM + 2 * KEY_BLOCK + 1) as u32;
/// Bytes of a row that a block quantises: its partial sums, and the row.
const ROW_BYTES: u32 =
    4 * (THREADS + 2 * THREADS / 32) + MAX_FFN as u32 / 256 * ACT_GROUP_BYTES;

/// Sizes that follow from the tiles of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles(pub u32);

impl Tiles {
    /// Those of `m` rows.
    #[inline(always)]
    pub const fn of(m: u32) -> Self {
        Self(m.div_ceil(TILE_ROWS))
    }

    /// Rows.
    #[inline(always)]
    pub const fn rows(self) -> u32 {
        TILE_ROWS * self.0
    }

    /// Words of 256 activations of all rows.
    #[inline(always)]
    pub const fn group_words(self) -> u32 {
        TILE_WORDS * self.0
    }

    /// Words of the scales and sums of quantised rows, of a linear layer.
    #[inline(always)]
    pub const fn stat_words(self) -> u32 {
        2 * self.rows()
    }

    /// Rows that a block quantises, by threads of their own.
    #[inline(always)]
    pub const fn of_quantiser(self) -> u32 {
        self.0
    }

    /// Blocks that quantise `m` rows.
    #[inline(always)]
    pub const fn quantisers(self, m: u32) -> u32 {
        m.div_ceil(self.of_quantiser())
    }

    /// Most elements of the residual stream of a block: outputs of a row that are made at once.
    #[inline(always)]
    pub const fn max_own(self) -> u32 {
        WORK_THREADS / self.rows()
    }

    /// Most outputs of a block of a linear layer: a thread makes one of a row, or two.
    #[inline(always)]
    pub const fn max_outputs(self) -> u32 {
        let most = ROUNDS * self.max_own();
        if most < 96 { most } else { 96 }
    }

    /// Most rows of weights of a block in one linear layer.
    #[inline(always)]
    pub const fn max_weight_rows(self) -> u32 {
        let most = 2 * self.max_outputs();
        if most < 128 { most } else { 128 }
    }

    /// Sets of 16 rows of weights that a warp takes together.
    #[inline(always)]
    pub const fn sets(self) -> u32 {
        if self.0 == 1 { 2 } else { 1 }
    }

    /// Rows of weights of a linear layer that have sums, those of whole steps of sets: qkv's, those of the output projection and of down,
    /// and those of gate and up.
    #[inline(always)]
    pub const fn sum_rows(self, kind: u32) -> u32 {
        let rows = match kind {
            0 => self.max_outputs(),
            2 => self.max_weight_rows(),
            _ => self.max_own(),
        };
        rows.next_multiple_of(16 * self.sets())
    }

    /// Words of the sums of a linear layer.
    #[inline(always)]
    pub const fn sum_words(self, kind: u32) -> u32 {
        self.rows() * self.sum_rows(kind)
    }

    /// Words of sums that have a place of their own: those of gate and up of more than one tile stand where attention is in other parts.
    #[inline(always)]
    pub const fn own_sum_words(self) -> u32 {
        let own = self.sum_words(0) + self.sum_words(1);
        if self.0 == 1 { own + self.sum_words(2) } else { own }
    }

    /// Bytes of everything but weights, keys and values.
    #[inline(always)]
    pub const fn fixed_bytes(self) -> u32 {
        let bytes = 4 * GROUPS * UNIT_WORDS
            + 4 * self.own_sum_words()
            + 4 * LINEARS as u32 * SHARE_WORDS
            + 8 * (2 * LINEARS as u32 + 2 + 4 * GROUPS)
            + 4 * (self.rows() + 8 + 4 * GROUPS + 2 * self.stat_words())
            + LINEARS as u32 * (4 * MAX_SEGMENTS as u32 + self.max_outputs());
        bytes.next_multiple_of(ALIGN)
    }
}

const _: () = assert!(ROW_BYTES <= KV_SLOT_BYTES && KV_SLOTS == 2 && RING == 4 && GROUPS <= 4);
const _: () = assert!(Tiles(2).sum_words(2) <= GROUPS * UNIT_WORDS && MAX_TILES <= KV_SLOTS);

/// Steps of a row of `k`: 256 activations each.
#[inline(always)]
pub const fn groups(k: u32) -> u32 {
    k.div_ceil(256)
}

impl Shape {
    /// Where the scales and sums of the quantised rows of linear layer `kind` are in a set of `exchange`, of which that is the end
    /// for `LINEARS`.
    #[inline(always)]
    pub const fn stats_at(&self, tiles: Tiles, kind: u32) -> u32 {
        (tiles.rows() * self.exchange_len()).next_multiple_of(4) + kind * tiles.stat_words()
    }

    /// Words of a set of `exchange`.
    #[inline(always)]
    pub const fn slot_words(&self, tiles: Tiles) -> u32 {
        self.stats_at(tiles, LINEARS as u32)
    }

    /// Where the quantised rows of linear layer `kind` are in a set of `acts`; for `LINEARS`, words of a set.
    #[inline(always)]
    pub const fn acts_at(&self, tiles: Tiles, kind: u32) -> u32 {
        let mut groups_before = 0;
        let mut i = 0;
        while i < kind {
            groups_before += groups(self.linear(i as usize)[1]);
            i += 1;
        }
        groups_before * tiles.group_words()
    }

    /// By how many bytes odd rows of the weights of linear layer `kind` are turned in shared memory: rows of the largest one, gate and up,
    /// do not fall on the same banks.
    #[inline(always)]
    pub const fn row_turn(&self, kind: usize) -> u32 {
        if kind == 2 && row_bytes(self.linear(kind)[1]).is_multiple_of(128) { 64 } else { 0 }
    }

    /// [`Shape::areas`] of a launch for rows: keys and values stand where the weights of down are not needed.
    #[inline(always)]
    pub const fn row_areas(&self, blocks: u32) -> [u32; LINEARS + 1] {
        self.areas_with(blocks, KV_SLOT_BYTES)
    }

    /// Shared memory of a block of a launch of `blocks` blocks for rows.
    pub const fn rows_smem_bytes(&self, tiles: Tiles, blocks: u32) -> u32 {
        self.row_areas(blocks)[LINEARS]
            .saturating_add(tiles.fixed_bytes() + KV_SLOTS * KV_SLOT_BYTES)
    }

    /// Blocks of a launch of the kernel for so many tiles, for `m` rows, that make outputs on a GPU of so many multiprocessors: besides
    /// those that quantise. `None` for sizes that the kernel does not take.
    pub fn rows_blocks(&self, tiles: Tiles, multiprocessors: u32, m: u32) -> Option<u32> {
        if m == 0 || m > tiles.rows() || tiles.0 == 0 || tiles.0 > MAX_TILES {
            return None;
        }
        let blocks = self.blocks(multiprocessors.checked_sub(tiles.quantisers(m))?)?;
        let fits = |kind: usize| {
            let [n, _, rows] = self.linear(kind);
            let outputs = n.div_ceil(blocks);
            outputs * rows <= tiles.max_weight_rows()
                && outputs <= if kind % 2 == 1 { tiles.max_own() } else { tiles.max_outputs() }
        };
        let fits = (0..LINEARS).all(fits) && self.rows_smem_bytes(tiles, blocks) <= SMEM_BYTES;
        fits.then_some(blocks)
    }
}

const _: () = assert!(row_bytes(256) == 64);

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Ternary layers.
    pub linears: DevPtr<super::Linear>,
    /// Addresses of the pages.
    pub caches: DevPtr<[u64; 2]>,
    /// Residual streams.
    pub h: DevPtr<f32>,
    /// Cosines `[capacity, head_dim / 2]`.
    pub cos: DevPtr<f32>,
    /// Sines.
    pub sin: DevPtr<f32>,
    /// Position of row 0.
    pub positions: DevPtr<u32>,
    /// Table of row 0.
    pub tables: DevPtr<u32>,
    /// Rows between blocks.
    pub exchange: DevPtr<u32>,
    /// Quantised rows between blocks.
    pub acts: DevPtr<u32>,
    /// Results of key blocks.
    pub partial: DevPtr<u64>,
    /// Launches so far.
    pub epoch: DevPtr<u32>,
    /// Sizes.
    pub shape: Shape,
    /// Rows.
    pub m: u32,
    /// Query heads of a key and value head.
    pub group: u32,
    /// Elements between the positions of two rows.
    pub position_stride: u32,
    /// Elements between the tables of two rows.
    pub table_stride: u32,
    /// Pages that there are.
    pub pages: u32,
    /// Positions of a table.
    pub capacity: u32,
    /// Key blocks that `partial` has room for: those of the capacity.
    pub key_blocks: u32,
    /// [`crate::bit_linear::Finish`] of gate and up as a number.
    pub gate: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Multiplier of the scores.
    pub scale: f32,
    /// [`Shape::rows_smem_bytes`] of the launch.
    pub smem_bytes: u32,
}

/// Pages of bf16, up to eight rows.
pub enum DecodeLayersRows {}

/// Pages of bf16, up to sixteen rows.
pub enum DecodeLayersRows16 {}

impl Kernel for DecodeLayersRows {
    type Args = Args;
    const SPEC: LaunchSpec = spec("decode_layers_rows", BLOCK_THREADS);

    fn smem_bytes(args: &Args) -> u32 {
        args.smem_bytes
    }
}

impl Kernel for DecodeLayersRows16 {
    type Args = Args;
    const SPEC: LaunchSpec = spec("decode_layers_rows16", BLOCK_THREADS);

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
    fn the_model_fits_a_hopper() {
        assert_eq!(MODEL.rows_blocks(Tiles(1), 132, 8), Some(124));
        assert_eq!(MODEL.rows_blocks(Tiles(2), 132, 16), Some(124));
        assert_eq!(MODEL.rows_blocks(Tiles(2), 132, 17), None);
        assert_eq!(MODEL.rows_blocks(Tiles(1), 60, 8), None, "more weights than shared memory");
        assert_eq!(MODEL.acts_at(Tiles(1), 1), 10 * TILE_WORDS);
        assert_eq!(MODEL.acts_at(Tiles(2), 4), 57 * 2 * TILE_WORDS);
    }

    #[test]
    fn no_activation_is_an_empty_byte() {
        assert_eq!(NO_ACTS.to_ne_bytes(), [i8::MIN as u8; 4]);
    }
}
