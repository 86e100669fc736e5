//! Rows that are neighbours of each other, as in prompts: runs of several sequences in one operation.

use contract::attention::{RowTile, TILE_WORDS, Tile};
use contract::attention_paged::PAGE;
use contract::w2a8::MAX_ROWS;

use super::{Heads, OP};
use crate::ops::error::{at_least, dimension, elements};
use crate::ops::{Backend, OpError, RowWords};

/// Neighbours of one sequence: each row stands one position behind the one before.
#[derive(Clone, Copy, Debug)]
pub struct PagedRun<'a> {
    /// Position of the first row.
    pub start: usize,
    /// Rows.
    pub m: usize,
    /// Pages of the sequence, those up to the last row at least.
    pub pages: &'a [u32],
}

impl PagedRun<'_> {
    /// Positions that the last row sees.
    fn end(&self) -> usize {
        self.start.saturating_add(self.m)
    }

    /// Pages that it sees.
    fn width(&self) -> usize {
        self.end().div_ceil(PAGE)
    }
}

/// Runs on the device: the rows of an [`AttentionPaged`](super::AttentionPaged), run behind run.
pub struct PagedRuns<B: Backend> {
    /// Positions `[m]`, tables `[m, width]` or `[width]` of a single run, then what kernels are told of pages and tiles.
    words: B::Buf<u32>,
    heads: Heads,
    rows: usize,
    capacity: usize,
    set: Set,
    /// Whether a block takes one page of a row, where the device and the cache have that kernel and [`Math::Exact`](super::Math) is asked for; `None`: where it
    /// is faster. The bits are the same.
    pub split: Option<bool>,
}

/// What is on the device.
#[derive(Clone, Copy, Default)]
#[cfg_attr(
    not(feature = "cuda"),
    expect(dead_code, reason = "only kernels are told of pages and tiles")
)]
struct Set {
    m: usize,
    reach: usize,
    table_stride: usize,
    blocks_at: usize,
    blocks: usize,
    tiles: usize,
    /// Pages that all rows see, and all tiles.
    pages: (usize, usize),
}

impl<B: Backend> PagedRuns<B> {
    /// Reserves room for runs of `rows` rows together, of sequences of up to `capacity` positions.
    ///
    /// # Errors
    /// A dimension that is not allowed; out of memory.
    pub fn alloc(backend: &B, heads: Heads, rows: usize, capacity: usize) -> Result<Self, OpError> {
        heads.check(OP)?;
        dimension(OP, "rows", rows, MAX_ROWS, "1 to 2^24 rows are allowed")?;
        dimension(OP, "capacity", capacity, MAX_ROWS, "1 to 2^24 positions are allowed")?;
        // Each row may be a run with a table, pages and tiles of its own.
        let tile = RowTile::of(heads.head_dim as u32);
        let tiles = (heads.heads / heads.kv_heads).div_ceil(tile.rows as usize);
        let of_row = 1 + 3 * capacity.div_ceil(PAGE) + TILE_WORDS * tiles;
        let words = backend.alloc("page tables", elements(OP, &[rows, of_row])?)?;
        Ok(Self { words, heads, rows, capacity, set: Set::default(), split: None })
    }

    /// Writes `runs` to the device, behind the operations that are queued.
    ///
    /// # Errors
    /// No run or one without a row, more rows or positions than there is room for, too few pages for a run; a failed copy. Then the runs are
    /// what they were.
    pub fn write(&mut self, backend: &B, runs: &[PagedRun<'_>]) -> Result<(), OpError> {
        let m = runs.iter().fold(0, |m: usize, run| m.saturating_add(run.m));
        dimension(OP, "rows of the runs", m, self.rows, "1 to what there is room for are allowed")?;
        for run in runs {
            dimension(OP, "rows of a run", run.m, self.rows, "1 and more are allowed")?;
            let allowed = "1 to the capacity are allowed";
            dimension(OP, "positions of a run", run.end(), self.capacity, allowed)?;
            at_least(OP, "pages of a run", run.pages.len(), run.width())?;
        }
        let blocks = runs.iter().map(PagedRun::width).sum::<usize>();
        let allowed = "1 to 2^18 pages are allowed";
        dimension(OP, "pages of the runs", blocks, MAX_ROWS / PAGE, allowed)?;
        let reach = runs.iter().map(PagedRun::end).max().unwrap_or(0);
        let width = reach.div_ceil(PAGE);

        let mut words: Vec<u32> =
            runs.iter().flat_map(|run| run.start as u32..run.end() as u32).collect();
        for run in runs {
            let pages = &run.pages[..run.pages.len().min(width)];
            for _ in 0..if runs.len() == 1 { 1 } else { run.m } {
                words.extend_from_slice(pages);
                // Nobody looks behind a row's own position.
                words.resize(words.len() + width - pages.len(), contract::attention_paged::NO_PAGE);
            }
        }
        let blocks_at = words.len();
        for run in runs {
            let counts = (0..run.width()).map(|page| PAGE.min(run.end() - page * PAGE));
            words.extend(run.pages.iter().zip(counts).flat_map(|(&page, n)| [page, n as u32]));
        }
        let tiles = self.tiles(runs);
        let set = Set {
            m,
            reach,
            table_stride: if runs.len() == 1 { 0 } else { width },
            blocks_at,
            blocks,
            tiles: tiles.len(),
            pages: (
                runs.iter().flat_map(|run| run.start..run.end()).map(|p| p / PAGE + 1).sum(),
                tiles.iter().map(|(keys, _)| keys.div_ceil(PAGE)).sum(),
            ),
        };
        words.extend(tiles.into_iter().flat_map(|(_, tile)| tile.words()));
        backend.write(&mut self.words, 0, &words)?;
        self.set = set;
        Ok(())
    }

    /// The tiles of `runs` and the keys that each sees, those with the most first: they take the longest.
    fn tiles(&self, runs: &[PagedRun<'_>]) -> Vec<(usize, Tile)> {
        let group = self.heads.heads / self.heads.kv_heads;
        let tile = RowTile::of(self.heads.head_dim as u32);
        let (mut row, mut block) = (0, 0);
        let mut tiles = Vec::new();
        for run in runs {
            let [rows, start] = [run.m as u32, run.start as u32];
            for index in 0..tile.tiles(rows, group as u32) {
                let last = ((index as usize + 1) * tile.rows as usize).div_ceil(group).min(run.m);
                tiles.push((run.start + last, Tile { row, rows, start, block, index }));
            }
            row += rows;
            block += run.width() as u32;
        }
        tiles.sort_by_key(|&(keys, _)| std::cmp::Reverse(keys));
        tiles
    }

    /// Position of each row.
    pub fn positions(&self) -> RowWords<'_, B> {
        RowWords { words: &self.words, at: 0, stride: 1 }
    }

    /// Pages of each row's sequence, for [`PagedRuns::reach`] positions.
    pub fn tables(&self) -> RowWords<'_, B> {
        RowWords { words: &self.words, at: self.set.m, stride: self.set.table_stride }
    }

    /// Rows of all runs.
    pub fn m(&self) -> usize {
        self.set.m
    }

    /// Positions that all rows lie in front of.
    pub fn reach(&self) -> usize {
        self.set.reach
    }

    /// Heads that they are made for.
    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// A page and how many of its positions are seen, of each page of each run: where in the words, and how many.
    #[cfg(feature = "cuda")]
    pub(super) fn blocks(&self) -> (usize, usize) {
        (self.set.blocks_at, self.set.blocks)
    }

    /// The same of each [`Tile`].
    #[cfg(feature = "cuda")]
    pub(super) fn tile_words(&self) -> (usize, usize) {
        (self.set.blocks_at + 2 * self.set.blocks, self.set.tiles)
    }

    /// Pages that all rows see, and all tiles.
    #[cfg(feature = "cuda")]
    pub(super) fn pages(&self) -> (usize, usize) {
        self.set.pages
    }

    /// All words.
    #[cfg(feature = "cuda")]
    pub(super) fn words(&self) -> &B::Buf<u32> {
        &self.words
    }
}
