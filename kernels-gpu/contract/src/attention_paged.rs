//! Attention of rows of several sequences over a cache of pages: rotation of q and k, append to the
//! pages, attention over them.
//!
//! | tensor       | element     | shape                               | layout                           |
//! |--------------|-------------|-------------------------------------|----------------------------------|
//! | `qkv`        | `f32`       | `[M, (heads + 2 kv_heads) * head_dim]` | q heads, k heads, v heads; not changed |
//! | pages        | bf16 or f32 | `[pages, kv_heads, PAGE, kv_stride(head_dim)]` | keys; values likewise |
//! | or pages     | `u8`        | `[pages, kv_heads, int8_part_bytes(head_dim)]` | keys; values likewise: codes `i8[PAGE, int8_stride(head_dim)]`, zeros behind a head, then scales `u8[PAGE, int8_scales(head_dim)]` |
//! | `cos`, `sin` | `f32`       | `[capacity, head_dim / 2]`          | see [`crate::rope`]              |
//! | `positions`  | `u32`       | `[M]`                               | position of each row, `position_stride` apart |
//! | `tables`     | `u32`       | `[M, ceil(capacity / PAGE)]`        | pages of each row's sequence, `table_stride` apart; 0: all rows are of one |
//! | `out`        | `f32`       | `[M, heads * head_dim]`             | contiguous                       |
//! | `partial`    | `f32`       | `[pages, heads, partial_len(head_dim)]` | scratch of a step; of a split of rows by row and page |
//! | `counters`   | `u32`       | `[`[`counters_len`]`]`              | scratch of a step, zero before and after |
//!
//! Position `p` of a sequence is place `p % PAGE` of page `tables[p / PAGE]`. First every row's key
//! (rotated) and value are stored at its position, then row `m` attends to positions `0 ..= positions[m]`
//! of its sequence. The arithmetic is that of [`crate::attention`] behind [`crate::kv_append`] with
//! rotation, and gives their bits: a page is one key block. Nothing a row gives depends on other
//! sequences.
//!
//! Pages of 8 bits are MXINT8 (OCP Microscaling Formats specification 1.0; [`crate::num::mx_value`]): elements `32 b ..` of a head, 32 of them or what is left, are
//! `codes[d] * 2^-6 * 2^(scales[b] - 127)`, exactly a bf16, and every kernel works on that number. A key is quantised behind its rotation; the row that brings it
//! sees what is kept. So attention over such pages is attention over pages of bf16 that hold the same numbers, bit for bit where it is exact.
//!
//! A row whose position is [`ABSENT`] is not there: nothing is stored, its output is zeros. A row at
//! or past `capacity`, or whose table names a page that is not there, gives NaN, and its key is not
//! stored.
//!
//! `attention_paged_append_*` stores, then `attention_paged_rows_*` walks over the pages of a row, one block
//! for each of its heads; or, of runs of neighbours, `attention_paged_gather` brings the pages of their sequences together and the kernels of
//! [`crate::attention`] for many rows attend, with the same bits; or, of a few rows behind many keys, `attention_paged_split_*` takes a page of a
//! row to a block, as a step does. Where every row has a sequence of its own, with pages of its own, a step is
//! one kernel, `attention_paged_step_*`: block `(m, kv head, b)` takes page `b` for up to [`STEP_HEADS`]
//! heads that share a kv head, from shared memory; the block with the row's own position makes and stores
//! its key. In `attention_paged_walk_*`, for many pages, it takes several, one behind the other; the first ones of a row, combined, leave one result in the
//! place of page 0. With `settled` a block asks for its page before the kernel in front has ended. Results meet in `partial`, a place for each page; the last block of the heads to finish combines
//! them first to last. A grid for fewer positions than a row has gives NaN, and does not store its key.
//!
//! `attention_paged_copy` copies pages of all layers: what a sequence takes over from another one.

use crate::kv_append::kv_stride;
use crate::launch::{DevPtr, Kernel, LaunchSpec};

pub use crate::attention::{MAX_HEAD_DIM, SMEM_BYTES, THREADS};
use crate::num::{KEY_BLOCK, MX_BLOCK};

/// Positions of a page: a key block.
pub const PAGE: usize = KEY_BLOCK;
/// The position of a row that is not there.
pub const ABSENT: u32 = u32::MAX;
/// A page that no pool has.
pub const NO_PAGE: u32 = u32::MAX;
/// Threads of a block that appends.
pub const APPEND_THREADS: u32 = 64;

/// Threads of a block that gathers.
pub const GATHER_THREADS: u32 = 256;

/// Threads of a block of a step.
pub const STEP_THREADS: u32 = 128;
/// Heads that a block of a step takes.
pub const STEP_HEADS: u32 = 4;
/// Largest head of a step: a multiple of 8.
pub const STEP_HEAD_DIM: u32 = 128;
/// Bytes from key to key in shared memory: a piece of 16 more than a key, so that eight lie in all banks.
pub const STEP_KEY_BYTES: u32 = 2 * STEP_HEAD_DIM + 16;
/// Bytes from value to value in shared memory.
pub const STEP_VALUE_BYTES: u32 = 2 * STEP_HEAD_DIM;
/// Shared memory of a step: keys, values, queries, scores, then maximum and sum of each head and a ticket.
pub const STEP_SMEM_BYTES: u32 = PAGE as u32 * (STEP_KEY_BYTES + STEP_VALUE_BYTES)
    + 4 * STEP_HEADS * (STEP_HEAD_DIM + PAGE as u32)
    + 8 * STEP_HEADS
    + 16;

/// The same of a walk: what five blocks of a Hopper multiprocessor can have. With less the GPU puts six on some multiprocessors and four on
/// others.
pub const WALK_SMEM_BYTES: u32 = 45_056;

/// Elements of a head on tensor cores, as many as a thread carries two of.
pub const FAST_HEAD_DIM: u32 = STEP_HEAD_DIM;
/// Words that a warp of `attention_paged_fast_*` leaves of a head in shared memory: maximum, sum, two that are not used, weighted values.
pub const FAST_RESULT_LEN: u32 = 4 + STEP_HEAD_DIM;
/// Shared memory of `attention_paged_fast_*`: queries, the row's own key and value, what four warps leave, the queries as factors, a ticket.
pub const FAST_SMEM_BYTES: u32 = 4
    * (STEP_HEADS * STEP_HEAD_DIM
        + STEP_HEAD_DIM
        + 4 * STEP_HEADS * FAST_RESULT_LEN
        + 4 * STEP_HEAD_DIM
        + 4);
/// Its blocks on a multiprocessor.
const FAST_BLOCKS: u32 = 3;

/// Whether a step takes heads of this size, in bf16.
pub const fn step_takes(head_dim: usize) -> bool {
    head_dim > 0 && head_dim <= STEP_HEAD_DIM as usize && head_dim.is_multiple_of(8)
}

/// Blocks that share the `group` heads of one kv head.
pub const fn step_parts(group: u32) -> u32 {
    group.div_ceil(STEP_HEADS)
}

/// Elements of `counters` for `m` rows.
pub const fn counters_len(m: usize, heads: usize, kv_heads: usize) -> usize {
    m * kv_heads * step_parts((heads / kv_heads) as u32) as usize
}

/// Elements that one page of one head leaves in `partial`: maximum, sum, weighted values.
pub const fn partial_len(head_dim: usize) -> usize {
    2 + head_dim
}

/// Blocks of a step: parts of heads within kv heads, rows, pages. `None` where a grid cannot have so many.
///
/// Pages come last: those behind a row's end, which a grid for longer rows has, are the last to start, so that
/// the others lie evenly on the multiprocessors.
pub const fn step_grid(m: u32, heads: u32, kv_heads: u32, key_blocks: u32) -> Option<[u32; 3]> {
    let units = kv_heads.saturating_mul(step_parts(heads / kv_heads));
    if m <= 65_535 && key_blocks <= 65_535 { Some([units, m, key_blocks]) } else { None }
}

/// Blocks of a step that 128 multiprocessors hold.
const HELD_BLOCKS: u32 = 128 * 6;

/// Whether the kernel in front of a step of so many blocks, which may read before its wait, should let it in at once: all of them
/// find a place, so that none takes that of another.
pub const fn step_comes_early([units, m, key_blocks]: [u32; 3]) -> bool {
    units.saturating_mul(m).saturating_mul(key_blocks) <= HELD_BLOCKS
}

/// Blocks of a walk that a Hopper multiprocessor holds.
const WALK_BLOCKS: u64 = 5;

/// Pages that a block should take where `units` blocks take a page of each row, of rows with so many whole pages, on `sms` multiprocessors: as few
/// as let all blocks run at once, if they take four fifths of those places, else none. What is behind the whole pages does not count. Where a row has
/// two blocks of five pages or more, and they are nearly full, each leaves a page to a short third one, which works while the last of them end.
pub fn step_share(units: u32, whole: impl Iterator<Item = u32> + Clone, sms: u32) -> Option<u32> {
    let (units, places) = (u64::from(units), u64::from(sms) * WALK_BLOCKS);
    let blocks =
        |share: u32| units * whole.clone().map(|w| u64::from(w.div_ceil(share))).sum::<u64>();
    let longest = whole.clone().max().unwrap_or(0);
    // No fewer: places would have to take more pages than there are.
    let mut share = u32::try_from(blocks(1).div_ceil(places.max(1))).ok()?.max(2);
    while share <= longest {
        if blocks(share) <= places {
            let two = share > 4 && share < longest && 2 * share > longest;
            let full = 10 * blocks(1) >= 9 * blocks(share) * u64::from(share);
            let share_of_all = share - u32::from(two && full);
            return (5 * blocks(share) >= 4 * places).then_some(share_of_all);
        }
        share += 1;
    }
    None
}

/// Pages that a block of `attention_paged_fast_*` should take where `units` blocks take a page of each of `m` rows, of up to `key_blocks` pages,
/// on `sms` multiprocessors: as few as let all blocks run at once, two at least, and no more than [`walk_word`] holds.
pub fn fast_share(units: u32, m: u32, key_blocks: u32, sms: u32) -> u32 {
    let parts = sms.saturating_mul(FAST_BLOCKS) / units.saturating_mul(m).max(1);
    key_blocks.div_ceil(parts.max(1)).clamp(2, u32::from(u16::MAX))
}

/// How far an output of `attention_paged_fast_*` over `keys` keys may be from the exact one. `magnitude` is the weighted sum of `|v|`, `reach` the
/// largest `scale * sum |q k|` of its row.
///
/// Queries and exponentials are two bf16 each, which leave at most `2^-17` of them; a score that is off by `e` moves a weight by `e` of
/// it, below and above the line. Queries over pages of 8 bits are in fixed point, `2^-27` of a head's largest: there `reach` is that of queries with `2^-10` of the largest
/// more in each element. Sums of tensor cores lose up to `2^-20` of their terms' magnitudes, and `ex2.approx` `2^-22`.
pub fn fast_bound(keys: usize, magnitude: f64, reach: f64) -> f64 {
    const UNIT: f64 = 1.0 / (1 << 20) as f64;
    magnitude * UNIT * (32.0 + keys as f64 + 24.0 * reach)
}

/// Elements of a page: its keys, or its values.
pub const fn page_len(kv_heads: usize, head_dim: usize) -> usize {
    kv_heads * PAGE * kv_stride(head_dim)
}

/// Bytes from key to key, or value to value, of codes in a page of 8 bits.
pub const fn int8_stride(head_dim: usize) -> usize {
    head_dim.div_ceil(16) * 16
}

/// Scales of a key or value: one for each [`MX_BLOCK`] elements, the last of what is left.
pub const fn int8_scales(head_dim: usize) -> usize {
    head_dim.div_ceil(MX_BLOCK)
}

/// Bytes of a kv head's keys, or values, in a page of 8 bits: codes, then scales.
pub const fn int8_part_bytes(head_dim: usize) -> usize {
    PAGE * (int8_stride(head_dim) + int8_scales(head_dim))
}

/// The only parameter of all kernels, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Fused projections.
    pub qkv: DevPtr<f32>,
    /// Keys in the kernel's element type.
    pub k_pages: DevPtr<u8>,
    /// Values in the kernel's element type.
    pub v_pages: DevPtr<u8>,
    /// Cosines.
    pub cos: DevPtr<f32>,
    /// Sines.
    pub sin: DevPtr<f32>,
    /// Position of row 0.
    pub positions: DevPtr<u32>,
    /// Table of row 0.
    pub tables: DevPtr<u32>,
    /// Output.
    pub out: DevPtr<f32>,
    /// Scratch of a step or a split.
    pub partial: DevPtr<f32>,
    /// Scratch of a step or a split.
    pub counters: DevPtr<u32>,
    /// Rows.
    pub m: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Query heads of a key and value head.
    pub group: u32,
    /// Elements of a head: even, at most [`MAX_HEAD_DIM`].
    pub head_dim: u32,
    /// Elements between the positions of two rows.
    pub position_stride: u32,
    /// Elements between the tables of two rows.
    pub table_stride: u32,
    /// Pages that there are.
    pub pages: u32,
    /// Positions of a table.
    pub capacity: u32,
    /// Multiplier of the scores, `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Whether a step may read positions, tables and stored keys before the kernel in front has ended: 1, else 0.
    pub settled: u32,
    /// Of a walk, a split, and on tensor cores: [`walk_word`]. Else 0.
    pub walk: u32,
}

/// The word that says how many pages a block of a walk takes, and how many a row may have.
pub const fn walk_word(share: u16, key_blocks: u16) -> u32 {
    share as u32 | (key_blocks as u32) << 16
}

/// Pages that a block of a walk takes.
pub const fn walk_share(args: &Args) -> u32 {
    args.walk & 0xffff
}

/// Pages that a row may have.
pub const fn walk_pages(args: &Args) -> u32 {
    args.walk >> 16
}

/// Blocks that append: k heads and v heads within rows. More than a grid can have saturate, and are
/// refused by the launch.
pub const fn append_grid(m: u32, kv_heads: u32) -> [u32; 3] {
    [m.saturating_mul(kv_heads.saturating_mul(2)), 1, 1]
}

/// Blocks that attend: heads within rows.
pub const fn grid(m: u32, heads: u32) -> [u32; 3] {
    [m.saturating_mul(heads), 1, 1]
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $threads:ident $smem:expr, $doc:literal;)*) => { $(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, $threads).with_smem($smem).with_min_blocks(1);
        }
    )* };
}

/// The only parameter of `attention_paged_gather`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatherArgs {
    /// Fused projections, as in [`Args`].
    pub qkv: DevPtr<f32>,
    /// Pages of keys, then of values.
    pub pages: [DevPtr<u8>; 2],
    /// Cosines.
    pub cos: DevPtr<f32>,
    /// Sines.
    pub sin: DevPtr<f32>,
    /// Position of row 0.
    pub positions: DevPtr<u32>,
    /// `[key_blocks, 2]`: a page, and how many of its positions are brought.
    pub blocks: DevPtr<u32>,
    /// Rotated queries, `[m, heads, head_dim]`.
    pub q: DevPtr<f32>,
    /// Keys, then values, `[kv_heads, PAGE * key_blocks, kv_stride(head_dim)]`.
    pub to: [DevPtr<u8>; 2],
    /// Rows.
    pub m: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Bytes from position to position of a cache: a multiple of 16.
    pub position_bytes: u32,
    /// Pages that there are.
    pub page_count: u32,
    /// Pages that are brought together.
    pub key_blocks: u32,
    /// Elements between the positions of two rows.
    pub position_stride: u32,
    /// Positions of a table.
    pub capacity: u32,
}

/// Brings the pages of the sequences of some runs together for [`crate::attention`], and rotates the queries of all rows. A page that is not
/// there becomes NaN, and so do queries past the table.
pub enum Gather {}

impl Kernel for Gather {
    type Args = GatherArgs;
    const SPEC: LaunchSpec =
        LaunchSpec::new("attention_paged_gather", GATHER_THREADS).with_min_sm(80);
}

/// The same of pages of 8 bits, which become bf16.
pub enum GatherInt8 {}

impl Kernel for GatherInt8 {
    type Args = GatherArgs;
    const SPEC: LaunchSpec =
        LaunchSpec::new("attention_paged_gather_int8", GATHER_THREADS).with_min_sm(80);
}

/// Blocks that gather: keys and values of kv heads within pages, then rows. More than a grid can have saturate, and are refused by the
/// launch.
pub const fn gather_grid(m: u32, kv_heads: u32, key_blocks: u32) -> [u32; 3] {
    [kv_heads.saturating_mul(2).saturating_mul(key_blocks).saturating_add(m), 1, 1]
}

/// Threads of a block that copies a page.
pub const COPY_THREADS: u32 = 256;

/// The only parameter of `attention_paged_copy`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyArgs {
    /// `[sides, 2]`: the address of the keys or the values of a layer, its low word first. All have pages of one size.
    pub sides: DevPtr<u32>,
    /// `[pairs, 2]`: a page, and the page that becomes like it. None of these is among the first, nor there twice.
    pub pairs: DevPtr<u32>,
    /// Bytes of a page: a multiple of 16.
    pub page_bytes: u64,
    /// Pages that there are; a pair with another is left out.
    pub pages: u32,
}

/// Copies pages of all layers.
pub enum CopyPages {}

impl Kernel for CopyPages {
    type Args = CopyArgs;
    const SPEC: LaunchSpec = LaunchSpec::new("attention_paged_copy", COPY_THREADS);
}

/// Blocks that copy: sides within pairs. More sides than a grid can have are refused by the launch.
pub const fn copy_grid(pairs: u32, sides: u32) -> [u32; 3] {
    [pairs, sides, 1]
}

kernels! {
    AppendBf16 "attention_paged_append_bf16" APPEND_THREADS 0, "Rotates k, stores k and v in bf16 pages.";
    AppendF32 "attention_paged_append_f32" APPEND_THREADS 0, "Rotates k, stores k and v in f32 pages.";
    AppendInt8 "attention_paged_append_int8" APPEND_THREADS 4 * MAX_HEAD_DIM, "Rotates k, stores k and v in pages of 8 bits.";
    RowsBf16 "attention_paged_rows_bf16" THREADS SMEM_BYTES, "One block per row and head, bf16 pages.";
    RowsF32 "attention_paged_rows_f32" THREADS SMEM_BYTES, "One block per row and head, f32 pages.";
    RowsInt8 "attention_paged_rows_int8" THREADS SMEM_BYTES, "One block per row and head, pages of 8 bits.";
}

/// A step over bf16 pages.
pub enum StepBf16 {}

impl Kernel for StepBf16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("attention_paged_step_bf16", STEP_THREADS)
        .with_min_sm(80)
        .with_smem(STEP_SMEM_BYTES)
        .with_min_blocks(6)
        .with_all_shared();
}

/// Rows over bf16 pages whose keys and values are stored, a page to a block as in a step. Rows may have pages in common: results stand in
/// `partial` by row and page of the row, `[M, walk_pages, heads, partial_len(head_dim)]`.
pub enum SplitBf16 {}

impl Kernel for SplitBf16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("attention_paged_split_bf16", STEP_THREADS)
        .with_min_sm(80)
        .with_smem(STEP_SMEM_BYTES)
        .with_min_blocks(6)
        .with_all_shared();
}

/// A step over bf16 pages in which a block walks over several of a row.
pub enum WalkBf16 {}

impl Kernel for WalkBf16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("attention_paged_walk_bf16", STEP_THREADS)
        .only_on(90)
        .with_smem(WALK_SMEM_BYTES)
        .with_min_blocks(6)
        .with_all_shared();
}

/// A step over bf16 pages on tensor cores, by name: its results have a bound, [`fast_bound`].
pub enum FastBf16 {}

impl Kernel for FastBf16 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("attention_paged_fast_bf16", STEP_THREADS)
        .with_min_sm(80)
        .with_smem(FAST_SMEM_BYTES)
        .with_min_blocks(FAST_BLOCKS);
}

/// A step over pages of 8 bits on tensor cores, by name, as [`FastBf16`] over what they decode to.
pub enum FastInt8 {}

impl Kernel for FastInt8 {
    type Args = Args;
    const SPEC: LaunchSpec = LaunchSpec::new("attention_paged_fast_int8", STEP_THREADS)
        .with_min_sm(80)
        .with_smem(FAST_SMEM_BYTES)
        .with_min_blocks(FAST_BLOCKS);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `rows` rows with so many whole pages, five kv heads, on 132 multiprocessors.
    fn share(rows: usize, whole: u32) -> Option<u32> {
        step_share(5, core::iter::repeat_n(whole, rows), 132)
    }

    #[test]
    fn blocks_walk_where_they_fill_the_gpu_at_once() {
        let filled = [
            (64, 8, 4),
            (32, 8, 2),
            (128, 8, 8),
            (64, 9, 4),
            (64, 11, 5),
            (64, 15, 7),
            (64, 16, 8),
            (64, 31, 15),
            (44, 8, 3),
            (32, 15, 4),
            (9, 39, 3),
            (40, 10, 4),
            (32, 10, 3),
        ];
        for (rows, whole, pages) in filled {
            assert_eq!(share(rows, whole), Some(pages), "{rows} rows of {whole}");
        }
        for (rows, whole) in [(0, 0), (1, 0), (16, 8), (24, 8), (48, 8), (12, 15), (200, 8), (8, 8)]
        {
            assert_eq!(share(rows, whole), None, "{rows} rows of {whole}");
        }
        // Rows of any length up to 15 pages.
        assert_eq!(step_share(5, (0..64).map(|row| row % 16), 132), Some(5));
        // Of 12 to 15.
        assert_eq!(step_share(5, (0..64).map(|row| 12 + row % 4), 132), Some(8));
    }

    #[test]
    fn the_word_of_a_walk_holds_both_numbers() {
        assert_eq!(walk_word(7, 65_535), 7 | 65_535 << 16);
    }
}
