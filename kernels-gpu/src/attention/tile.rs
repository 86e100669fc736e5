//! Which rows a block takes that shares keys and values between rows and the heads of a group.

use contract::attention::{Args, RowTile};
use contract::kv_append::kv_stride;

use crate::arch::mem::ld;
use crate::arch::thread::block_idx_x;

/// The rows of a block.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    group: u32,
    kv_head: u32,
    /// The first row's number.
    first: u32,
    /// Rows of the kv head.
    total: u32,
    start: u32,
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
        let total = args.m * group;
        let index = block_idx_x() / args.kv_heads;
        // The last rows see the most keys: they go first.
        let index = total.div_ceil(tile.rows) - 1 - index;
        Self {
            group,
            kv_head: block_idx_x() % args.kv_heads,
            first: index * tile.rows,
            total,
            // SAFETY: one element, there by the contract.
            start: unsafe { ld(args.start.as_ptr().cast_const()) },
            capacity: args.capacity,
        }
    }

    /// Whether row `row` of the block exists.
    #[inline(always)]
    pub(super) fn exists(&self, row: u32) -> bool {
        self.first + row < self.total
    }

    /// `m` and head of row `row`, or of the last one that exists.
    #[inline(always)]
    fn place(&self, row: u32) -> (u32, u32) {
        let index = (self.first + row).min(self.total - 1);
        (index / self.group, self.kv_head * self.group + index % self.group)
    }

    /// Keys that row `row` sees; rows that do not exist see what the last one does.
    #[inline(always)]
    pub(super) fn visible(&self, row: u32) -> u32 {
        self.start.saturating_add(self.place(row).0).saturating_add(1).min(self.capacity)
    }

    /// The query of row `row`.
    #[inline(always)]
    pub(super) fn query(&self, args: &Args, row: u32) -> *const f32 {
        let (m, head) = self.place(row);
        let at = m as usize * args.q_stride as usize + (head * args.head_dim) as usize;
        args.q.as_ptr().cast_const().wrapping_add(at)
    }

    /// The output of row `row`.
    #[inline(always)]
    pub(super) fn out(&self, args: &Args, row: u32) -> *mut f32 {
        let (m, head) = self.place(row);
        let at = (m as usize * args.heads as usize + head as usize) * args.head_dim as usize;
        args.out.as_ptr().wrapping_add(at)
    }

    /// Elements from position to position of the caches, and the element at which this kv head starts.
    #[inline(always)]
    pub(super) fn cache(&self, args: &Args) -> (usize, usize) {
        let stride = kv_stride(args.head_dim as usize);
        (stride, self.kv_head as usize * args.capacity as usize * stride)
    }
}
