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
//! `attention_bf16`, `attention_f32`: block `(j, m)` walks over the key blocks; any head. A single row does
//! better with [`crate::attention_step`].
//!
//! `attention_rows_*`: the same bits for many rows, heads up to 128. Rows and the heads of a group are numbered
//! together, `row = m * group + j % group`; a block takes [`RowTile::rows`] of them, and brings each key and value once. With `tiles`
//! the rows are runs of several sequences, whose keys stand one behind the other in the cache, each from a key block on: a [`Tile`] says which
//! rows of which run a block takes.
//!
//! `attention_fast_*`: the same for bf16 caches on tensor cores (`mma.sync`), whose sums have an order of the
//! hardware's. Queries and exponentials are rounded to bf16. [`fast_bound`] says how far a result may be from the exact
//! one. A value that is not finite may reach up to [`RowTile::rows`] rows before it.

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
    /// Position of query row 0; not read with `tiles`.
    pub start: DevPtr<u32>,
    /// `[tiles, TILE_WORDS]`, a [`Tile`] for each index of a block; null: all rows are one run from `start` on. Of the kernels for many rows.
    pub tiles: DevPtr<u32>,
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

/// A kernel that takes rows and the heads of a group together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowTile {
    /// Rows of a block.
    pub rows: u32,
    /// Largest head.
    pub head_dim: u32,
}

/// Which rows a block takes of a cache with several runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// First row of the run, in `q` and `out`.
    pub row: u32,
    /// Rows of the run.
    pub rows: u32,
    /// Position of its first row.
    pub start: u32,
    /// Key block of the cache at which its position 0 stands. It ends in front of the next run's.
    pub block: u32,
    /// Which [`RowTile::rows`] of the run's rows and heads.
    pub index: u32,
}

/// Words of a [`Tile`].
pub const TILE_WORDS: usize = 5;

impl Tile {
    /// Its words, in the order of the fields.
    pub const fn words(self) -> [u32; TILE_WORDS] {
        [self.row, self.rows, self.start, self.block, self.index]
    }

    /// The tile of such words.
    pub const fn of_words([row, rows, start, block, index]: [u32; TILE_WORDS]) -> Self {
        Self { row, rows, start, block, index }
    }
}

/// Threads of a block that takes many rows.
pub const TILE_THREADS: u32 = 128;

impl RowTile {
    /// The tile for heads of up to `head_dim` elements.
    pub const fn of(head_dim: u32) -> Self {
        Self { rows: 64, head_dim }
    }

    /// Words from row to row in shared memory of the exact kernels.
    pub const fn pitch(self) -> u32 {
        self.head_dim + 4
    }

    /// Queries, keys or values, exponentials, sums that wait, and four words for each row: at most 99 KiB.
    const fn exact_smem(self) -> u32 {
        let keys = KEY_BLOCK as u32;
        4 * ((self.rows + keys) * self.pitch() + self.rows * (2 * keys + 4))
    }

    /// Queries, keys, values, of bf16.
    const fn fast_smem(self) -> u32 {
        2 * (self.rows + 2 * KEY_BLOCK as u32) * self.head_dim
    }

    /// Tiles of `m` rows with `group` heads each that share a kv head. More than a word holds saturate.
    pub const fn tiles(self, m: u32, group: u32) -> u32 {
        let tiles = (m as u64 * group as u64).div_ceil(self.rows as u64);
        if tiles > u32::MAX as u64 { u32::MAX } else { tiles as u32 }
    }

    /// Blocks: kv heads within row tiles, the last rows first. More than a grid can have saturate.
    pub const fn grid(self, tiles: u32, kv_heads: u32) -> [u32; 3] {
        [tiles.saturating_mul(kv_heads), 1, 1]
    }
}

/// How far an output of the fast kernels may be from the exact value for queries that were rounded to bf16, of
/// `keys` keys: `magnitude` is the weighted sum of `|v|`, `reach` the largest `scale * sum |q k|`. The exponentials are rounded to
/// bf16 (2^-9), sums are in f32.
pub fn fast_bound(keys: usize, magnitude: f64, reach: f64) -> f64 {
    const UNIT: f64 = 1.0 / (1 << 20) as f64;
    magnitude * (1.0 / 256.0 + UNIT * (keys as f64 + 8.0 * reach))
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

macro_rules! tiles {
    ($($name:ident $symbol:literal $head_dim:literal $smem:ident $blocks:literal $sm:literal;)*) => { $(
        #[doc = concat!("Many rows, heads up to ", $head_dim, " elements: `", $symbol, "`.")]
        pub enum $name {}

        impl $name {
            /// Its tile.
            pub const TILE: RowTile = RowTile::of($head_dim);
        }

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, TILE_THREADS)
                .with_smem(Self::TILE.$smem())
                .with_min_blocks($blocks)
                .with_min_sm($sm);
        }
    )* };
}

tiles! {
    AttentionRowsBf16D64 "attention_rows_bf16_64" 64 exact_smem 2 80;
    AttentionRowsBf16D128 "attention_rows_bf16_128" 128 exact_smem 2 80;
    AttentionRowsF32D64 "attention_rows_f32_64" 64 exact_smem 2 80;
    AttentionRowsF32D128 "attention_rows_f32_128" 128 exact_smem 2 80;
    AttentionFastD64 "attention_fast_64" 64 fast_smem 3 80;
    AttentionFastD128 "attention_fast_128" 128 fast_smem 3 80;
    AttentionFastD256 "attention_fast_256" 256 fast_smem 1 80;
}
