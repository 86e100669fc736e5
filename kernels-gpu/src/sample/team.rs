//! The blocks that draw a token together: one, or those of a cluster, which share what goes through all logits.

#[cfg(level_sm_90)]
use super::scan::message;
use super::select::BINS;
#[cfg(level_sm_90)]
use crate::arch::cluster::{cluster_rank, read_of, read_x4_of, sync_cluster};
use crate::arch::shared::Shared;
use crate::arch::thread::sync_threads;
#[cfg(level_sm_90)]
use crate::arch::thread::thread_idx_x;

/// How blocks share the work.
pub(crate) trait Team: Copy {
    /// This block, counted from 0.
    fn rank(self) -> u32;

    /// Number of blocks.
    fn blocks(self) -> u32;

    /// Waits for all threads of all blocks.
    ///
    /// *Convergence*: every thread of every block calls it.
    fn sync(self);

    /// The same, where one block alone has nothing to wait for.
    ///
    /// *Convergence*: as for [`Team::sync`].
    fn part(self);

    /// The sums over the blocks of bin `high` of a histogram and of those below it.
    ///
    /// # Safety
    ///
    /// There are so many; they were counted before a [`Team::sync`], and are not written again before a [`Team::part`].
    unsafe fn bins(self, histogram: Shared<u64>, high: u32) -> [u64; BINS as usize];

    /// The sum of `value`, which all threads of a block agree on, over the blocks before this one, and over all.
    ///
    /// *Convergence*: as for [`Team::sync`]; nobody uses the message.
    fn sums(self, value: u64) -> (u64, u64);

    /// What the first block says.
    ///
    /// *Convergence*: as for [`Team::sync`]; only the first block has used the message.
    fn first_says(self, said: bool) -> bool;
}

/// One block.
#[derive(Clone, Copy)]
pub(crate) struct Alone;

impl Team for Alone {
    #[inline(always)]
    fn rank(self) -> u32 {
        0
    }

    #[inline(always)]
    fn blocks(self) -> u32 {
        1
    }

    #[inline(always)]
    fn sync(self) {
        sync_threads();
    }

    #[inline(always)]
    fn part(self) {}

    #[inline(always)]
    unsafe fn bins(self, histogram: Shared<u64>, high: u32) -> [u64; BINS as usize] {
        // SAFETY: the caller's promise.
        core::array::from_fn(|i| unsafe { histogram.add(high - i as u32).read_u64() })
    }

    #[inline(always)]
    fn sums(self, value: u64) -> (u64, u64) {
        (0, value)
    }

    #[inline(always)]
    fn first_says(self, said: bool) -> bool {
        said
    }
}

/// The blocks of a cluster, so many.
#[cfg(level_sm_90)]
#[derive(Clone, Copy)]
pub(crate) struct Cluster(pub(crate) u32);

#[cfg(level_sm_90)]
impl Team for Cluster {
    #[inline(always)]
    fn rank(self) -> u32 {
        cluster_rank()
    }

    #[inline(always)]
    fn blocks(self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn sync(self) {
        sync_cluster();
    }

    #[inline(always)]
    fn part(self) {
        sync_cluster();
    }

    #[inline(always)]
    unsafe fn bins(self, histogram: Shared<u64>, high: u32) -> [u64; BINS as usize] {
        let (mut sums, mut rank) = ([0; BINS as usize], 0);
        while rank < self.0 {
            let mut i = 0;
            while i < BINS as usize {
                let pair = histogram.add(high - 1 - i as u32).cast();
                // SAFETY: the caller's promise; a thread's bins begin on 16 bytes.
                let words: [u32; 4] = unsafe { read_x4_of(rank, pair) };
                sums[i + 1] += u64::from(words[0]) | u64::from(words[1]) << 32;
                sums[i] += u64::from(words[2]) | u64::from(words[3]) << 32;
                i += 2;
            }
            rank += 1;
        }
        sums
    }

    #[inline(always)]
    fn sums(self, value: u64) -> (u64, u64) {
        if thread_idx_x() == 0 {
            // SAFETY: nobody uses the message, by the rule above.
            unsafe { message().write_u64(value) };
        }
        sync_cluster();
        let words: Shared<u32> = message().cast();
        let (mut before, mut total, mut rank) = (0, 0, 0);
        while rank < self.0 {
            // SAFETY: written before the barrier; the block stays until the next.
            let of = unsafe {
                u64::from(read_of(rank, words)) | u64::from(read_of(rank, words.add(1))) << 32
            };
            before += if rank < self.rank() { of } else { 0 };
            total += of;
            rank += 1;
        }
        sync_cluster();
        (before, total)
    }

    #[inline(always)]
    fn first_says(self, said: bool) -> bool {
        let word: Shared<u32> = message().cast();
        if self.rank() == 0 {
            sync_threads();
            if thread_idx_x() == 0 {
                // SAFETY: all have read what the message was.
                unsafe { word.write(u32::from(said)) };
            }
        }
        // Behind it all blocks have started, and the first one has written; it stays until the next.
        sync_cluster();
        // SAFETY: so.
        let said = unsafe { read_of(0, word) != 0 };
        sync_cluster();
        said
    }
}
