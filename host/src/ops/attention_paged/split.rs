//! Few rows of runs behind many keys: a page of a row to a block, so that the keys of a row are worked on side by side.

use contract::attention_paged::{
    Args, PAGE, SplitBf16, counters_len, step_grid, step_takes, walk_word,
};
use contract::num::RowType;

use super::{Heads, OP, PageType, PagedRuns, PagedScratch};
use crate::ops::error::elements;
use crate::ops::{Backend, CudaBackend, OpError, cuda::at};

/// Most bytes of results at once.
const RESULT_BYTES: usize = 64 << 20;
/// Rows of a launch.
const MAX_ROWS: usize = 65_535;

/// Whether a split is asked for, and there for `runs`.
pub(super) fn takes(
    cuda: &CudaBackend,
    runs: &PagedRuns<CudaBackend>,
    element: PageType,
    heads: Heads,
) -> bool {
    runs.split
        && element == RowType::Bf16
        && step_takes(heads.head_dim)
        && runs.reach().div_ceil(PAGE) <= usize::from(u16::MAX)
        && cuda.has::<SplitBf16>()
}

/// Attends by pages, as many rows at once as their results have room.
///
/// # Safety
///
/// `args` are those of rows whose keys and values are stored, which [`super::AttentionPaged::check`] took with `runs`, which [`takes`].
pub(super) unsafe fn launch(
    cuda: &CudaBackend,
    args: &Args,
    heads: Heads,
    runs: &PagedRuns<CudaBackend>,
) -> Result<(), OpError> {
    let (stream, width) = (cuda.stream(), runs.reach().div_ceil(PAGE));
    let of_row = PagedScratch::<CudaBackend>::partial_total(heads, width)?;
    let rows = (RESULT_BYTES / (4 * of_row)).clamp(1, MAX_ROWS).min(runs.m());
    let partial = cuda.alloc::<f32>("attention", elements(OP, &[rows, of_row])?)?;
    let counters = counters_len(rows, heads.heads, heads.kv_heads);
    let mut counters = cuda.alloc::<u32>("attention", counters)?;
    cuda.fill(&mut counters, 0)?;
    for first in (0..runs.m()).step_by(rows) {
        let m = rows.min(runs.m() - first);
        let args = Args {
            qkv: at(args.qkv, first * heads.qkv_len()),
            positions: at(args.positions, first * args.position_stride as usize),
            tables: at(args.tables, first * args.table_stride as usize),
            out: at(args.out, first * heads.q_len()),
            partial: partial.dev_ptr(stream),
            counters: counters.dev_ptr(stream),
            m: m as u32,
            walk: walk_word(1, width as u16),
            ..*args
        };
        let grid = step_grid(args.m, args.heads, args.kv_heads, width as u32);
        let (what, allowed) = ("pages of a run", "1 to 65,535 pages are allowed");
        let grid = grid.ok_or(OpError::Dimension { op: OP, what, found: width, allowed })?;
        // Behind the zeros, which no kernel wrote: not before they are there.
        stream.in_full_order(|| {
            // SAFETY: the caller's promise, of these rows; results and counters were made for so many, and the counters are zero between launches.
            unsafe { cuda.launch::<SplitBf16>(grid, args) }
        })?;
    }
    Ok(())
}
