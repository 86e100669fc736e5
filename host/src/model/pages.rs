//! The pages of a batch's cache: who has which, and how many are left.

/// Pages in use, in total and at most so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PageUsage {
    /// Pages that sequences have.
    pub in_use: usize,
    /// The most that they had at once.
    pub peak: usize,
    /// Pages that there are.
    pub total: usize,
}

/// Pages by number. A page has one owner, which gives it back.
#[derive(Debug)]
pub(super) struct PagePool {
    /// Pages that nobody has; the last one is given away next.
    free: Vec<u32>,
    total: usize,
    peak: usize,
}

impl PagePool {
    /// All of `total` pages free.
    pub(super) fn new(total: usize) -> Self {
        // The lowest first, so that a short batch stays in few pages of memory.
        Self { free: (0..total as u32).rev().collect(), total, peak: 0 }
    }

    pub(super) fn usage(&self) -> PageUsage {
        PageUsage { in_use: self.total - self.free.len(), peak: self.peak, total: self.total }
    }

    /// `count` pages; `None`, and none taken, when there are fewer.
    pub(super) fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        let left = self.free.len().checked_sub(count)?;
        let mut pages = self.free.split_off(left);
        pages.reverse();
        self.peak = self.peak.max(self.total - left);
        Some(pages)
    }

    /// Takes back what [`PagePool::take`] gave.
    pub(super) fn give_back(&mut self, pages: Vec<u32>) {
        self.free.extend(pages.into_iter().rev());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_once_and_come_back() {
        let mut pool = PagePool::new(5);
        let a = pool.take(2).expect("two of five");
        let b = pool.take(3).expect("three of three");
        let mut all = [&a[..], &b[..]].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        assert_eq!(pool.take(1), None);
        pool.give_back(b);
        assert_eq!(pool.take(4), None, "nothing is taken when it is not enough");
        assert_eq!(pool.usage(), PageUsage { in_use: 2, peak: 5, total: 5 });
        assert_eq!(pool.take(3).map(|pages| pages.len()), Some(3));
        assert_eq!(pool.take(0), Some(vec![]));
        pool.give_back(a);
        assert_eq!(pool.usage().in_use, 3);
    }
}
