//! W2A8 GEMM, `M > 1`: `y[m, n] = dequantise(sum_k q[m, k] * t[n, k])`.
//!
//! Layout, tensors and formula: [`crate::w2a8`]; `acts` has one row of `act_bytes(K)` per token and
//! `y` is `[M, N]`, contiguous. Integer sums: the bits equal those of [`crate::w2a8_gemv`] on each
//! row, and every kernel here has the same.
//!
//! | kernels | on | a block makes |
//! |---------|----|---------------|
//! | [`W2a8Gemm`] | `dp4a`, every GPU | [`ROWS_PER_BLOCK`] output features of [`TOKENS`] tokens |
//! | [`Mma`]      | `mma.sync`, sm_80 and up | see [`VARIANTS`]; codes are the left factor, tokens the right one |
//! | [`Hopper`]   | `wgmma`, sm_90a | the same |
//!
//! All take any M, N and K. The choice among them is the host's.

use crate::launch::{DevPtr, Kernel, LaunchSpec, TensorMap};
use crate::w2a8::{ActStats, Segments};

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Tokens of a block.
pub const TOKENS: u32 = 8;
/// Lanes that share one output feature.
pub const LANES: u32 = 8;
/// Output features of one lane group.
pub const ROWS: u32 = 2;
/// Output features of a block.
pub const ROWS_PER_BLOCK: u32 = THREADS / LANES * ROWS;

/// Blocks along y; what is more goes along z. Either has 65,535 at most, and y times z covers every
/// `n` without a division in the kernel.
pub const GRID_Y: u32 = 1 << 15;

/// Blocks for an `m` by `n` output: tokens along x.
pub const fn grid(m: u32, n: u32) -> [u32; 3] {
    let blocks = n.div_ceil(ROWS_PER_BLOCK);
    let y = if blocks < GRID_Y { blocks } else { GRID_Y };
    [m.div_ceil(TOKENS), y, blocks.div_ceil(GRID_Y)]
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Packed weights `[n, 4 * chunks]`.
    pub w: DevPtr<u32>,
    /// Quantised activations, `m` rows.
    pub acts: DevPtr<u32>,
    /// Scale and sum of each row.
    pub stats: DevPtr<ActStats>,
    /// Output `[m, n]`.
    pub y: DevPtr<f32>,
    /// Output features.
    pub n: u32,
    /// 16-byte chunks of a weight row.
    pub chunks: u32,
    /// Tokens.
    pub m: u32,
    /// 16-byte pieces of an activation row: `act_bytes(K) / 16`.
    pub act_pieces: u32,
    /// Weight scales.
    pub segments: Segments,
    /// Whether a kernel on `mma.sync` lets the next one in at once: 1, else 0.
    pub lets_in: u32,
    /// Shared memory that a block of a kernel on `mma.sync` asks for at least, in bytes: [`PAIR_BYTES`] or [`LET_IN_BYTES`] where no more than two blocks
    /// should share a multiprocessor, else 0.
    pub room: u32,
}

/// Bytes of keys that a thread asks for at once, see [`Ahead`].
pub const AHEAD_BYTES: u32 = 16 * 1024;

/// Keys that attention behind reads, and that a kernel on `wgmma` brings into the second-level cache when the last of its own codes are asked for: of each
/// row those of one page of its table, where the row's position lies behind them. Changes no result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Pages of keys.
    pub keys: DevPtr<u8>,
    /// Position of row 0.
    pub positions: DevPtr<u32>,
    /// Table of row 0.
    pub tables: DevPtr<u32>,
    /// Rows; 0: nothing is asked for.
    pub rows: u32,
    /// Elements between the positions of two rows.
    pub position_stride: u32,
    /// Elements between the tables of two rows.
    pub table_stride: u32,
    /// Pages that there are.
    pub pages: u32,
    /// Bytes of a page, a multiple of 16.
    pub page_bytes: u32,
    /// Which page of a row.
    pub block: u32,
}

impl Ahead {
    /// Nothing.
    pub const NOTHING: Self = Self {
        keys: DevPtr::NULL,
        positions: DevPtr::NULL,
        tables: DevPtr::NULL,
        rows: 0,
        position_stride: 0,
        table_stride: 0,
        pages: 0,
        page_bytes: 0,
        block: 0,
    };
}

/// The only parameter of the kernels on `wgmma`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BulkArgs {
    /// The codes: rows of bytes, by boxes of [`GROUP_BYTES`] of the rows of a tile.
    pub codes: TensorMap,
    /// The activations: rows of bytes, by boxes of [`GROUP_BYTES`] of the tokens of a tile.
    pub acts: TensorMap,
    /// Tensors and shape.
    pub base: Args,
    /// Blocks of a cluster, which share the k of a tile.
    pub split: u32,
    /// Nothing.
    pub zero: u32,
    /// What attention behind reads.
    pub ahead: Ahead,
}

/// Names this kernel in `KernelHandle<W2a8Gemm>`.
pub enum W2a8Gemm {}

impl Kernel for W2a8Gemm {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("w2a8_gemm", THREADS);
}

/// Words between two tokens of a tile's sums in shared memory, beyond its rows.
pub const SUM_PAD: u32 = 4;
/// Bytes of a row of codes, and quarter of the bytes of a row of activations, in a group of chunks.
pub const GROUP_BYTES: u32 = 128;

/// A kernel of the family: a block makes `rows` output features of `tokens` tokens, or its part of k
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The launch rules of its kernel.
    pub spec: LaunchSpec,
    /// What it is called: its kernel, and how many blocks share a tile where that kernel leaves it to the launch.
    pub name: &'static str,
    /// Output features of a tile.
    pub rows: u32,
    /// Tokens of a tile.
    pub tokens: u32,
    /// Blocks of a cluster, which share the k of one tile.
    pub split: u32,
    /// Whether all tiles, or their clusters, stand along x.
    pub in_a_row: bool,
    /// Whether a block makes one tile after the other; such tiles stand in a row.
    pub looped: bool,
}

/// Shared memory of a block, in bytes, of which two find room on a multiprocessor of 228 KB and three do not.
pub const PAIR_BYTES: u32 = 80 * 1024;

/// The same where the next kernel, attention, is let in at once: beside two of them none of its blocks finds room.
pub const LET_IN_BYTES: u32 = 96 * 1024;

/// Token tiles that stand side by side before the next feature tile begins.
pub const BAND: u32 = 8;

impl Variant {
    /// The grid for an `m` by `n` output on `sms` multiprocessors; `None` where a launch cannot have
    /// that many blocks.
    ///
    /// Token tiles of a band along x, a cluster for each; feature tiles along y; bands along z.
    /// Kernels on `wgmma` have all tiles in this order along x, one block for each multiprocessor at
    /// most where a block makes several. [`W2a8Gemm`] has [`grid`].
    pub const fn grid(&self, m: u32, n: u32, sms: u32) -> Option<[u32; 3]> {
        if !self.tensor() {
            return Some(grid(m, n));
        }
        let tiles = m.div_ceil(self.tokens);
        if self.in_a_row {
            let tiles = tiles as u64 * n.div_ceil(self.rows) as u64;
            if tiles * self.split as u64 > i32::MAX as u64 {
                return None;
            }
            let (tiles, room) = (tiles as u32, sms);
            let x = if self.looped && tiles > room { room } else { tiles };
            return Some([x * self.split, 1, 1]);
        }
        let x = if tiles < BAND { tiles } else { BAND };
        let (y, z) = (n.div_ceil(self.rows), tiles.div_ceil(BAND));
        if y > 65_535 || z > 65_535 {
            return None;
        }
        Some([x * self.split, y, z])
    }

    /// Whether it runs on tensor cores.
    pub const fn tensor(&self) -> bool {
        self.spec.min_sm >= 80
    }

    /// Whether [`Args::room`] counts: of kernels on `mma.sync` whose blocks run in threes.
    pub const fn takes_room(&self) -> bool {
        self.tensor() && !self.in_a_row && self.split == 1 && self.tokens > TOKENS
    }
}

/// How a kernel on `mma.sync` cuts its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mma {
    /// Blocks of 16 output features of a warp.
    pub row_blocks: u32,
    /// Blocks of 8 tokens.
    pub token_blocks: u32,
    /// Warps side by side over the output features.
    pub row_warps: u32,
    /// Warps side by side over k.
    pub k_warps: u32,
    /// Groups of chunks of a slice.
    pub groups: u32,
    /// Slices in shared memory.
    pub stages: u32,
    /// Blocks side by side over k.
    pub split: u32,
}

impl Mma {
    /// From the seven numbers in their order.
    pub const fn new(v: [u32; 7]) -> Self {
        let [row_blocks, token_blocks, row_warps, k_warps, groups, stages, split] = v;
        Self { row_blocks, token_blocks, row_warps, k_warps, groups, stages, split }
    }

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        32 * self.row_warps * self.k_warps
    }

    /// Output features of a block.
    pub const fn rows(&self) -> u32 {
        16 * self.row_blocks * self.row_warps
    }

    /// Tokens of a block.
    pub const fn tokens(&self) -> u32 {
        8 * self.token_blocks
    }

    /// Bytes of a slice: the codes, then the activations.
    pub const fn slice_bytes(&self) -> u32 {
        (self.rows() + 4 * self.tokens()) * GROUP_BYTES * self.groups
    }

    /// Shared memory of a block: what it needs, or more where [`Args::room`] says so.
    const fn smem_bytes(&self, room: u32) -> u32 {
        let ring = self.stages * self.slice_bytes();
        let needed = block_bytes(ring, self.k_warps, self.rows(), self.tokens());
        if self.pairs() && room > needed { room } else { needed }
    }

    /// Whether [`Args::room`] counts: of kernels whose blocks run in threes.
    const fn pairs(&self) -> bool {
        self.token_blocks > 1 && self.split == 1
    }

    const fn variant(&self, symbol: &'static str, blocks_per_sm: u32) -> Variant {
        let (rows, tokens) = (self.rows(), self.tokens());
        let bytes = self.smem_bytes(LET_IN_BYTES);
        let spec = LaunchSpec::new(symbol, self.threads()).with_smem(bytes);
        let spec = spec.with_min_sm(if self.split > 1 { 90 } else { 80 }).in_clusters(self.split);
        let spec = spec.with_min_blocks(blocks_per_sm);
        Variant { spec, name: symbol, rows, tokens, split: self.split, in_a_row: false, looped: false }
    }
}

/// How a kernel on `wgmma` cuts its work. Two warpgroups multiply, two threads of a third one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hopper {
    /// Tokens of a tile.
    pub tokens: u32,
    /// Steps of activations in shared memory.
    pub act_stages: u32,
    /// Groups of codes in shared memory.
    pub code_stages: u32,
    /// Slices of a step, each a quarter of a group.
    pub step: u32,
    /// Registers of a thread at its start: with fewer than [`Self::ALL_REGISTERS`] blocks of other kernels find a place beside one.
    pub registers: u32,
}

impl Hopper {
    /// Threads of a block.
    pub const THREADS: u32 = 384;
    /// Registers of a thread where a block takes all of a multiprocessor's.
    pub const ALL_REGISTERS: u32 = 168;

    /// From the five numbers in their order.
    pub const fn new(v: [u32; 5]) -> Self {
        let [tokens, act_stages, code_stages, step, registers] = v;
        Self { tokens, act_stages, code_stages, step, registers }
    }

    /// Registers of a thread that copies, or has nothing to do.
    pub const fn few_registers(&self) -> u32 {
        if self.registers == Self::ALL_REGISTERS { 40 } else { 32 }
    }

    /// Registers of a thread that multiplies: what the others leave.
    pub const fn many_registers(&self) -> u32 {
        (3 * self.registers - self.few_registers()) / 2 / 8 * 8
    }

    /// Output features of a tile.
    pub const fn rows(&self) -> u32 {
        2 * 64
    }

    /// Bytes of a step of activations.
    pub const fn step_bytes(&self) -> u32 {
        self.step * self.tokens * GROUP_BYTES
    }

    /// Bytes of a group of codes.
    pub const fn group_bytes(&self) -> u32 {
        self.rows() * GROUP_BYTES
    }

    const fn spec(&self, symbol: &'static str) -> LaunchSpec {
        let (rows, tokens) = (self.rows(), self.tokens);
        let ring = self.act_stages * self.step_bytes() + self.code_stages * self.group_bytes();
        let ring = ring + TURN_WARPS * TURN_BYTES;
        // A second head, two barriers for each place, and the ring is aligned to 1,024 bytes.
        let barriers = 16 * (self.act_stages + self.code_stages);
        let bytes = block_bytes(ring, 1, rows, tokens) + head_bytes(rows, tokens) + barriers;
        let spec = LaunchSpec::new(symbol, Self::THREADS).with_smem(bytes + 1024 - 16);
        let spec = spec.only_on(90).with_min_blocks(1).with_tensor_maps();
        if self.registers == Self::ALL_REGISTERS { spec } else { spec.with_max_registers(self.registers) }
    }

    /// A launch of it in which `split` blocks share the k of a tile. Where nobody does, a block makes several
    /// tiles.
    const fn variant(
        &self,
        symbol: &'static str,
        name: &'static str,
        split: u32,
    ) -> Variant {
        let (spec, rows, tokens) = (self.spec(symbol), self.rows(), self.tokens);
        Variant { spec, name, rows, tokens, split, in_a_row: true, looped: split == 1 }
    }
}

/// Words from one token to the next where a warp of a kernel on `wgmma` turns its sums, 16 rows of 16 tokens.
pub const TURN_PITCH: u32 = 16 + SUM_PAD;
/// Bytes of that place, behind the ring, and warps that have one.
pub const TURN_BYTES: u32 = 16 * TURN_PITCH * 4;
const TURN_WARPS: u32 = 8;

/// A kernel on `wgmma`.
pub trait Bulk: Kernel<Args = BulkArgs> {
    /// How it cuts its work.
    const CUT: Hopper;
}

/// Shared memory of a block: its head, then the ring, in whose place the sums of each part of k stand
/// at the end.
const fn block_bytes(ring: u32, parts: u32, rows: u32, tokens: u32) -> u32 {
    let sums = parts * tokens * (rows + SUM_PAD) * 4;
    head_bytes(rows, tokens) + if ring > sums { ring } else { sums }
}

/// Bytes of a token in the head: scale, sum, and what makes dividing by the scale fast.
pub const TOKEN_BYTES: u32 = 16;

/// Bytes before the ring, a multiple of 128: the tokens, then the scales of the features.
pub const fn head_bytes(rows: u32, tokens: u32) -> u32 {
    (TOKEN_BYTES * tokens + 4 * rows).next_multiple_of(128)
}

macro_rules! variants {
    (
        mma { $($mma:ident $mma_symbol:literal [$($m:literal),*] $mma_blocks:literal;)* }
        split { $($split:ident $split_symbol:literal [$($s:literal),*] $split_blocks:literal;)* }
        hopper { $($hopper:ident $hopper_symbol:ident [$($h:literal),*] { $($parts:literal $name:literal)* })* }
    ) => {
        $(
            #[doc = concat!("Kernel `", $mma_symbol, "`.")]
            pub enum $mma {}

            impl Kernel for $mma {
                type Args = Args;
                const SPEC: LaunchSpec =
                    Mma::new([$($m),*]).variant($mma_symbol, $mma_blocks).spec;

                fn smem_bytes(args: &Args) -> u32 {
                    const { Mma::new([$($m),*]) }.smem_bytes(args.room)
                }
            }
        )*
        $(
            #[doc = concat!("Kernel `", $split_symbol, "`.")]
            pub enum $split {}

            impl Kernel for $split {
                type Args = Args;
                const SPEC: LaunchSpec =
                    Mma::new([$($s),*]).variant($split_symbol, $split_blocks).spec;
            }
        )*
        $(
            #[doc = concat!("Kernel `", stringify!($hopper_symbol), "`.")]
            pub enum $hopper {}

            impl Bulk for $hopper {
                const CUT: Hopper = Hopper::new([$($h),*]);
            }

            impl Kernel for $hopper {
                type Args = BulkArgs;
                const SPEC: LaunchSpec = Self::CUT.spec(stringify!($hopper_symbol));

                fn cluster(args: &BulkArgs) -> u32 {
                    args.split
                }
            }
        )*

        /// Every kernel, and every number of blocks that share a tile; the first one is [`W2a8Gemm`], which
        /// every GPU has.
        pub const VARIANTS: &[Variant] = &[
            Variant {
                spec: W2a8Gemm::SPEC,
                name: W2a8Gemm::SPEC.symbol,
                rows: ROWS_PER_BLOCK,
                tokens: TOKENS,
                split: 1,
                in_a_row: false,
                looped: false,
            },
            $(Mma::new([$($m),*]).variant($mma_symbol, $mma_blocks),)*
            $(Mma::new([$($s),*]).variant($split_symbol, $split_blocks),)*
            $($(<$hopper as Bulk>::CUT.variant(stringify!($hopper_symbol), $name, $parts),)*)*
        ];

        /// Calls `$mac! { { Name; ... } { Name split; ... } }` with the kernel of each of [`VARIANTS`], in their
        /// order: first those that take [`Args`], then those that take [`BulkArgs`].
        #[macro_export]
        macro_rules! for_each_w2a8_gemm {
            ($mac:ident) => {
                $mac! {
                    { W2a8Gemm; $($mma;)* $($split;)* }
                    { $($($hopper $parts;)*)* }
                }
            };
        }

        /// Calls `$mac! { Name "symbol" [numbers of Mma]; ... }` with every kernel on `mma.sync`
        /// whose blocks share nothing.
        #[macro_export]
        macro_rules! for_each_w2a8_gemm_mma {
            ($mac:ident) => { $mac! { $($mma $mma_symbol [$($m),*];)* } };
        }

        /// The same with the kernels on `mma.sync` that run in clusters.
        #[macro_export]
        macro_rules! for_each_w2a8_gemm_split {
            ($mac:ident) => { $mac! { $($split $split_symbol [$($s),*];)* } };
        }

        /// Calls `$mac! { Name symbol [numbers of Hopper]; ... }` with every kernel on `wgmma`.
        #[macro_export]
        macro_rules! for_each_w2a8_gemm_hopper {
            ($mac:ident) => { $mac! { $($hopper $hopper_symbol [$($h),*];)* } };
        }
    };
}

variants! {
    mma {
        T8A "w2a8_gemm_t8a" [1, 1, 2, 2, 1, 4, 1] 4;
        T8B "w2a8_gemm_t8b" [2, 1, 1, 4, 2, 3, 1] 4;
        T8C "w2a8_gemm_t8c" [2, 1, 4, 2, 1, 4, 1] 2;
        T16A "w2a8_gemm_t16a" [2, 2, 2, 2, 1, 4, 1] 3;
        T16B "w2a8_gemm_t16b" [2, 2, 1, 4, 2, 3, 1] 2;
        T16C "w2a8_gemm_t16c" [2, 2, 4, 2, 1, 4, 1] 1;
        T32A "w2a8_gemm_t32a" [2, 4, 2, 2, 1, 3, 1] 3;
        T32B "w2a8_gemm_t32b" [2, 4, 4, 2, 1, 3, 1] 1;
    }
    split {
        T8X3 "w2a8_gemm_t8x3" [2, 1, 2, 2, 1, 4, 3] 3;
        T32X2 "w2a8_gemm_t32x2" [2, 4, 2, 2, 1, 4, 2] 2;
    }
    hopper {
        H32 w2a8_gemm_h32 [32, 9, 3, 4, 168] { 1 "w2a8_gemm_h32" 2 "w2a8_gemm_h32x2" }
        H64 w2a8_gemm_h64 [64, 5, 3, 4, 168] { 1 "w2a8_gemm_h64" 2 "w2a8_gemm_h64x2" }
        H64S w2a8_gemm_h64s [64, 4, 3, 2, 112] { 1 "w2a8_gemm_h64s" 4 "w2a8_gemm_h64sx4" }
        H128 w2a8_gemm_h128 [128, 9, 4, 1, 168] { 1 "w2a8_gemm_h128" 2 "w2a8_gemm_h128x2" 4 "w2a8_gemm_h128x4" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_a_block_for_every_part_of_every_tile() {
        for variant in VARIANTS.iter().filter(|v| v.tensor()) {
            for (m, n) in [(1, 1), (8, 13_824), (65, 70), (4096, 130), (1 << 24, 1)] {
                let Some([x, y, z]) = variant.grid(m, n, 132) else {
                    assert!(m > 65_535 * BAND * variant.tokens, "{}", variant.spec.symbol);
                    continue;
                };
                assert!(x.is_multiple_of(variant.split));
                if variant.in_a_row {
                    let tiles = m.div_ceil(variant.tokens) * n.div_ceil(variant.rows);
                    let blocks = if variant.looped { tiles.min(132) } else { tiles };
                    assert_eq!([x / variant.split, y, z], [blocks, 1, 1]);
                    continue;
                }
                assert!(x * z / variant.split * variant.tokens >= m);
                assert!(y * variant.rows >= n);
                assert!(y <= 65_535 && z <= 65_535);
            }
            let (m, n) =
                if variant.in_a_row { (1 << 24, 1 << 24) } else { (1, 65_536 * variant.rows) };
            assert_eq!(variant.grid(m, n, 132), None);
        }
    }

    #[test]
    fn a_block_fits_its_gpu() {
        for variant in VARIANTS {
            let allowed = if variant.spec.arch_specific { 227 } else { 99 } * 1024;
            assert!(variant.spec.smem_bytes <= allowed, "{}", variant.spec.symbol);
        }
    }
}
