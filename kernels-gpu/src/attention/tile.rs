//! Which rows a block takes that shares keys and values between rows and the heads of a group.

use contract::attention::{Args, KEY_BLOCK, RowTile, TILE_WORDS, Tile};
use contract::kv_append::kv_stride;

use crate::arch::mem::ld;
use crate::arch::thread::block_idx_x;

/// The rows of a block.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    group: u32,
    kv_head: u32,
    /// The run.
    run: Tile,
    /// The first row's number in the run.
    first: u32,
    /// Rows of the kv head in the run.
    total: u32,
    capacity: u32,
}

impl Rows {
    /// The rows of this block.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table; the grid is the tile's.
    #[inline(always)]
    pub(super) unsafe fn of_block(args: &Args, tile: RowTile) -> Self {
        let group = args.heads / args.kv_heads;
        let index = block_idx_x() / args.kv_heads;
        let run = if args.tiles.is_null() {
            let last = (args.m * group).div_ceil(tile.rows) - 1;
            // SAFETY: one element, there by the contract.
            let start = unsafe { ld(args.start.as_ptr().cast_const()) };
            // The last rows see the most keys: they go first.
            Tile { row: 0, rows: args.m, start, block: 0, index: last - index }
        } else {
            let at = args.tiles.as_ptr().cast_const().wrapping_add(index as usize * TILE_WORDS);
            // SAFETY: the words of a tile, there by the contract.
            Tile::of_words(core::array::from_fn(|i| unsafe { ld(at.wrapping_add(i)) }))
        };
        Self {
            group,
            kv_head: block_idx_x() % args.kv_heads,
            first: run.index * tile.rows,
            total: run.rows * group,
            capacity: args.capacity,
            run,
        }
    }

    /// Whether row `row` of the block exists.
    #[inline(always)]
    pub(super) fn exists(&self, row: u32) -> bool {
        self.first + row < self.total
    }

    /// Row of the run and head of row `row`, or of the last one that exists.
    #[inline(always)]
    fn place(&self, row: u32) -> (u32, u32) {
        let index = (self.first + row).min(self.total - 1);
        (index / self.group, self.kv_head * self.group + index % self.group)
    }

    /// Keys that row `row` sees; rows that do not exist see what the last one does.
    #[inline(always)]
    pub(super) fn visible(&self, row: u32) -> u32 {
        self.run.start.saturating_add(self.place(row).0).saturating_add(1).min(self.capacity)
    }

    /// The query of row `row`.
    #[inline(always)]
    pub(super) fn query(&self, args: &Args, row: u32) -> *const f32 {
        let (m, head) = self.place(row);
        let m = self.run.row + m;
        let at = m as usize * args.q_stride as usize + (head * args.head_dim) as usize;
        args.q.as_ptr().cast_const().wrapping_add(at)
    }

    /// The output of row `row`.
    #[inline(always)]
    pub(super) fn out(&self, args: &Args, row: u32) -> *mut f32 {
        let (m, head) = self.place(row);
        let m = self.run.row + m;
        let at = (m as usize * args.heads as usize + head as usize) * args.head_dim as usize;
        args.out.as_ptr().wrapping_add(at)
    }

    /// Elements from position to position of the caches, and the element at which position 0 of the run stands for this kv head.
    #[inline(always)]
    pub(super) fn cache(&self, args: &Args) -> (usize, usize) {
        let stride = kv_stride(args.head_dim as usize);
        let first = self.run.block as usize * KEY_BLOCK;
        (stride, (self.kv_head as usize * args.capacity as usize + first) * stride)
    }
}
