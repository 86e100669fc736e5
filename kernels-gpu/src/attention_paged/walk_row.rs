//! Which pages of a row a block takes that walks over several.

use contract::attention_paged::{walk_pages, walk_share};

use super::position;
use super::step_row::{Own, Step};
use super::tile::KEYS;
use crate::arch::grid::dependency_wait;
use crate::arch::thread::block_idx_z;

/// What a block that walks over several pages of a row takes.
pub(super) struct Walk {
    pub(super) first_page: u32,
    /// The one behind its last.
    pub(super) end: u32,
    /// Key blocks of the row.
    pub(super) blocks: u32,
    /// The page of the second one, where it is the row's.
    pub(super) next: u32,
}

impl Walk {
    /// Whether the row's own position is in its pages.
    #[inline(always)]
    pub(super) fn has_new(&self) -> bool {
        self.end == self.blocks
    }
}

impl Step<'_> {
    /// Reads the row's position and this block's first page, and says which pages it takes; refuses a row that cannot be, or for which the grid is too small.
    /// Behind the wait for the kernel in front, where the row is not `settled` or there is nothing to take.
    ///
    /// # Safety
    ///
    /// The pointers of `args` cover the contract's table; block and grid are those of a walk. When `settled`: no kernel that may still run writes positions
    /// or tables.
    #[inline(always)]
    pub(super) unsafe fn walk(&mut self, own: Own) -> Option<Walk> {
        let (args, share) = (self.args, walk_share(self.args));
        let first_page = block_idx_z() * share;
        if args.settled == 0 {
            dependency_wait();
        }
        // At once: none waits for another.
        // SAFETY: the grid has blocks for M rows and for pages below the capacity.
        let next = unsafe {
            self.page = self.page_beside(first_page);
            self.pos = position(args, self.m);
            self.page_beside(first_page + 1)
        };
        let blocks = self.pos / KEYS + 1;
        if self.pos >= args.capacity || blocks > walk_pages(args) {
            dependency_wait();
            if first_page == 0 {
                // SAFETY: no other block writes these heads.
                unsafe { self.refuse(own) };
            }
            return None;
        }
        // Past its end: the grid is made for a longer sequence.
        let end = (first_page + share).min(blocks);
        (first_page < blocks).then_some(Walk { first_page, end, blocks, next })
    }
}
