//! From a factor in memory, by way of a thread's registers, to a slice in shared memory.

use contract::bmm::{Matrix, row_words};

use super::source::{Source, Word};
use crate::arch::shared::Shared;

/// The part of one factor that a thread carries from memory to shared memory: in each slice `Q`
/// groups of four words.
pub(super) struct Part<E, const Q: usize> {
    element: E,
    /// Group 0 of the next slice.
    p: *const u8,
    /// Bytes from one row of memory to the next, one group to the next, one slice to the next.
    ld: u64,
    group: u64,
    slice: u64,
    /// Rows of `A` (columns of `B`) that are left from group 0 on; lost from one group to the next.
    beside: i32,
    side_step: i32,
    /// Elements of k that are left from group 0 of the next slice on; lost from one group to the
    /// next.
    k_left: i32,
    depth_step: i32,
    /// Word of group 0 in a slice in shared memory, words from one group to the next.
    at: u32,
    at_step: u32,
    /// Whether neighbours in memory are neighbours in k.
    along: bool,
    /// Whether groups of four are whole and aligned.
    pub(super) fast: bool,
}

impl<E: Source, const Q: usize> Part<E, Q> {
    /// For thread `t` of `threads`: a tile of `rows` from `first` on, slices of `depth` words, in
    /// shared memory `row_words(rows)` from one k to the next.
    #[inline(always)]
    pub(super) fn new(
        element: E,
        (matrix, along, batch): (&Matrix, bool, u32),
        (first, side_len, rows): (u32, u32, u32),
        (k, depth): (u32, u32),
        (t, threads): (u32, u32),
    ) -> Self {
        let bytes = u64::from(element.bytes());
        let (ld, base) = (matrix.ld * bytes, matrix.addr.as_ptr().cast_const());
        let base = base.wrapping_add((u64::from(batch) * matrix.stride * bytes) as usize);
        let (side, side_step, word, depth_step, near, far, group, slice);
        if along {
            let groups = depth / 4;
            (side, side_step) = (t / groups, threads / groups);
            (word, depth_step) = (4 * (t % groups), 0);
            (far, near) = (first + side, word * E::PER_WORD);
            (group, slice) = (u64::from(side_step) * ld, u64::from(depth * E::PER_WORD) * bytes);
        } else {
            let groups = rows / 4;
            (side, side_step) = (4 * (t % groups), 0);
            (word, depth_step) = (t / groups, threads / groups);
            (far, near) = (word * E::PER_WORD, first + side);
            let lines = |words: u32| u64::from(words * E::PER_WORD) * ld;
            (group, slice) = (lines(depth_step), lines(depth));
        }
        Self {
            element,
            p: base.wrapping_add((u64::from(far) * ld + u64::from(near) * bytes) as usize),
            ld,
            group,
            slice,
            beside: side_len.wrapping_sub(first + side) as i32,
            side_step: side_step as i32,
            k_left: k as i32 - (word * E::PER_WORD) as i32,
            depth_step: (depth_step * E::PER_WORD) as i32,
            at: word * row_words(rows) + side,
            at_step: depth_step * row_words(rows) + side_step,
            along,
            fast: matrix.unit >= 4 * element.bytes(),
        }
    }

    /// The groups of the next slice of `DEPTH` words; what is not there is `pad`.
    ///
    /// # Safety
    ///
    /// The matrix covers what its contract says, and no thread writes it.
    #[inline(always)]
    pub(super) unsafe fn load<const DEPTH: u32>(&mut self, pad: Word<E>) -> [[Word<E>; 4]; Q] {
        let mut groups = [[pad; 4]; Q];
        let mut q = 0;
        while q < Q {
            let p = self.p.wrapping_add(q * self.group as usize);
            let beside = self.beside - q as i32 * self.side_step;
            let k = self.k_left - q as i32 * self.depth_step;
            // SAFETY: `count` and `rows` end where the matrix does; the caller's promise.
            groups[q] = unsafe {
                if self.along || E::PER_WORD == 1 {
                    let (count, other) = if self.along { (k, beside) } else { (beside, k) };
                    self.element.along(p, if other > 0 { count } else { 0 }, self.fast, pad)
                } else {
                    self.element.across(p, self.ld, k, beside)
                }
            };
            q += 1;
        }
        self.p = self.p.wrapping_add(self.slice as usize);
        self.k_left -= (DEPTH * E::PER_WORD) as i32;
        groups
    }

    /// Puts them into the slice at `to`, `ld` words from one k to the next.
    ///
    /// # Safety
    ///
    /// A slice of shared memory, aligned to 16, that no other thread accesses without a barrier
    /// between, but to write its own part.
    #[inline(always)]
    pub(super) unsafe fn store(&self, to: Shared<Word<E>>, ld: u32, groups: [[Word<E>; 4]; Q]) {
        let mut q = 0;
        while q < Q {
            let at = to.add(self.at + q as u32 * self.at_step);
            // SAFETY: inside the slice; in the second form `at` is a multiple of 4.
            unsafe {
                if self.along {
                    let mut i = 0;
                    while i < 4 {
                        at.add(i * ld).write(groups[q][i as usize]);
                        i += 1;
                    }
                } else {
                    at.write_x4(groups[q]);
                }
            }
            q += 1;
        }
    }
}
