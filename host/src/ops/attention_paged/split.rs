//! Few rows of runs behind many keys: a page of a row to a block, so that the keys of a row are worked on side by side.

use contract::attention_paged::{
    Args, PAGE, SplitBf16, step_grid, step_parts, step_takes, walk_word,
};
use contract::num::RowType;

use super::{Heads, OP, PageType, PagedRuns, PagedScratch};
use crate::ops::{CudaBackend, OpError, cuda::at};

/// Rows of a launch.
const MAX_ROWS: usize = 65_535;
/// What a launch takes at least, and what a page and a row take of a multiprocessor for the heads of a block, in ns: of heads of 128 elements on an H200, as
/// are those below.
const LEAST_NS: usize = 7_000;
const PAGE_NS: usize = 1_170;
const ROW_NS: usize = 300;
/// What a tile takes for a page where it has a multiprocessor to itself, and where two share one.
const ALONE_NS: usize = 13_200;
const SHARED_NS: usize = 16_500;

/// Whether a split is there for rows that reach `reach` positions.
pub(in crate::ops) fn is_there(
    cuda: &CudaBackend,
    (element, heads): (PageType, Heads),
    reach: usize,
) -> bool {
    element == RowType::Bf16
        && step_takes(heads.head_dim)
        && reach.div_ceil(PAGE) <= usize::from(u16::MAX)
        && cuda.has::<SplitBf16>()
}

/// Whether a split is there for `runs`, and either asked for or faster than their tiles; `tiled`: than those, which are there.
pub(super) fn takes(
    cuda: &CudaBackend,
    runs: &PagedRuns<CudaBackend>,
    (element, heads): (PageType, Heads),
    tiled: bool,
) -> bool {
    let pays = || {
        let sms = cuda.cuda().device().info().sm_count as usize;
        let (of_rows, of_tiles) = runs.pages();
        let units = heads.kv_heads * step_parts((heads.heads / heads.kv_heads) as u32) as usize;
        let split = LEAST_NS + (of_rows * PAGE_NS + runs.m() * ROW_NS) * units / sms;
        // A tile takes as long as a page to begin and to end. Those of the longest rows come first.
        let tiles = runs.tile_words().1 * heads.kv_heads;
        let width = runs.reach().div_ceil(PAGE);
        let pages = (of_tiles * heads.kv_heads + tiles).div_ceil(2 * sms).max(width + 1);
        !tiled || split < pages * if tiles <= sms { ALONE_NS } else { SHARED_NS }
    };
    is_there(cuda, (element, heads), runs.reach()) && runs.split.unwrap_or_else(pays)
}

/// Attends by pages, as many rows at once as their results have room.
///
/// # Safety
///
/// `args` are those of rows whose keys and values are stored, which [`super::AttentionPaged::check`] took; the split [`is_there`], nothing else uses
/// `scratch`, which [`PagedScratch::of_split`] made for so many positions at least.
pub(super) unsafe fn launch(
    cuda: &CudaBackend,
    args: &Args,
    (heads, reach): (Heads, usize),
    scratch: &PagedScratch<CudaBackend>,
) -> Result<(), OpError> {
    let (stream, width, all) = (cuda.stream(), reach.div_ceil(PAGE), args.m as usize);
    let of_row = PagedScratch::<CudaBackend>::partial_total(heads, width)?;
    let rows = (scratch.partial.len() / of_row).min(MAX_ROWS);
    debug_assert!(
        args.settled == 0 && rows > 0,
        "keys are stored right before, and a row has room"
    );
    for first in (0..all).step_by(rows) {
        let args = Args {
            qkv: at(args.qkv, first * heads.qkv_len()),
            positions: at(args.positions, first * args.position_stride as usize),
            tables: at(args.tables, first * args.table_stride as usize),
            out: at(args.out, first * heads.q_len()),
            partial: scratch.partial.dev_ptr(stream),
            counters: scratch.counters.dev_ptr(stream),
            m: rows.min(all - first) as u32,
            walk: walk_word(1, width as u16),
            ..*args
        };
        let grid = step_grid(args.m, args.heads, args.kv_heads, width as u32);
        let (what, allowed) = ("pages of a row", "1 to 65,535 pages are allowed");
        let grid = grid.ok_or(OpError::Dimension { op: OP, what, found: width, allowed })?;
        // SAFETY: the caller's promise, of these rows; results and counters are for so many, and the counters are zero between launches.
        unsafe { cuda.launch::<SplitBf16>(grid, args)? };
    }
    Ok(())
}
