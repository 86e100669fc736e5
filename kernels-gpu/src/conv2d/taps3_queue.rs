//! The lines of a thread of [`super::taps3`], some ahead of the one that it uses.
//!
//! From sm_80 they come by `cp.async` to places of the thread's own in shared memory: no registers, no
//! barrier, and as many bytes under way as memory wants. Below, the next line of halves waits in
//! registers.

use contract::conv2d::Args;
#[cfg(level_sm_80)]
use contract::conv2d::{TAPS_THREADS, TAPS3_SLOTS, taps3_queue_bytes};

use super::value::Value;
#[cfg(level_sm_80)]
use crate::arch::async_copy::{commit_group, copy_x8, copy_x16_l1, wait_group};
#[cfg(level_sm_80)]
use crate::arch::shared::{Shared, dynamic_shared_mem};
#[cfg(level_sm_80)]
use crate::arch::thread::thread_idx_x;

/// Where a thread reads: an image at its channels, and the column of its first tap.
pub(super) struct Input<'a, T> {
    pub(super) args: &'a Args,
    pub(super) x: *const T,
    pub(super) column: i32,
}

impl<T: Value> Input<'_, T> {
    /// Where column `j` of line `h` is; and whether it is inside of the image.
    #[inline(always)]
    pub(super) fn at(&self, h: i32, j: usize) -> (*const T, bool) {
        let g = &self.args.geometry;
        let row = self.x.wrapping_add((h as u32).wrapping_mul(g.x_step[0]) as usize);
        let column = (self.column + j as i32) as u32;
        let at = row.wrapping_add(column.wrapping_mul(g.x_step[1]) as usize);
        (at, (h as u32) < g.edges[0].len as u32 && column < g.edges[1].len as u32)
    }
}

/// Lines of `columns` columns that a thread has places for; one of them is the one that it uses.
#[cfg(level_sm_80)]
pub(super) const fn lines(bytes: usize, columns: usize) -> u32 {
    taps3_queue_bytes(bytes as u32) / (columns * 4 * bytes) as u32
}

/// Lines, in order, the next ones under way.
#[cfg(level_sm_80)]
pub(super) struct Queue<T, const COLUMNS: usize, const LINES: u32> {
    /// The thread's first place.
    own: Shared<T>,
    /// The place of the line that comes next, and of the one that was used last.
    next: u32,
    free: u32,
    /// The line that is asked for next, and how many there are to ask for.
    h: i32,
    left: u32,
}

#[cfg(level_sm_80)]
impl<T: Value, const COLUMNS: usize, const LINES: u32> Queue<T, COLUMNS, LINES> {
    /// The `count` lines from `top` on.
    ///
    /// # Safety
    ///
    /// `input` is an image at four channels of it, aligned; the places are not used otherwise.
    #[inline(always)]
    pub(super) unsafe fn new(input: &Input<'_, T>, top: i32, count: u32) -> Self {
        let own = dynamic_shared_mem::<u8>().add(TAPS3_SLOTS).cast::<T>().add(4 * thread_idx_x());
        let mut queue = Self { own, next: 0, free: 0, h: top, left: count };
        while queue.free < LINES - 1 {
            // SAFETY: the caller's promise.
            unsafe { queue.ask(input) };
            queue.free += 1;
        }
        queue
    }

    #[inline(always)]
    fn place(&self, line: u32, j: usize) -> Shared<T> {
        self.own.add((line * COLUMNS as u32 + j as u32) * 4 * TAPS_THREADS)
    }

    /// Asks for a line, into the free place; zeros outside of the image.
    ///
    /// # Safety
    ///
    /// As for [`Queue::new`].
    #[inline(always)]
    unsafe fn ask(&mut self, input: &Input<'_, T>) {
        let mut j = 0;
        while j < COLUMNS && self.left > 0 {
            let (from, inside) = input.at(self.h, j);
            let to = self.place(self.free, j);
            // SAFETY: four channels of a pixel of the image; a place of this thread, whose line was used a
            // turn ago.
            unsafe {
                if size_of::<T>() == 4 {
                    copy_x16_l1(to, from, inside);
                } else {
                    copy_x8(to, from, inside);
                }
            }
            j += 1;
        }
        commit_group();
        self.h += 1;
        self.left = self.left.saturating_sub(1);
    }

    /// The next line; the one behind those under way is asked for.
    ///
    /// # Safety
    ///
    /// As for [`Queue::new`].
    #[inline(always)]
    pub(super) unsafe fn turn(&mut self, input: &Input<'_, T>) -> [[f32; 4]; COLUMNS] {
        const { assert!(LINES >= 3 && LINES <= 5) };
        match LINES {
            3 => wait_group::<1>(),
            4 => wait_group::<2>(),
            _ => wait_group::<3>(),
        }
        // SAFETY: the line came, to this thread.
        let line = core::array::from_fn(|j| unsafe {
            T::read_four(input.args.element, self.place(self.next, j))
        });
        // SAFETY: the caller's promise.
        unsafe { self.ask(input) };
        (self.free, self.next) =
            (self.next, if self.next + 1 == LINES { 0 } else { self.next + 1 });
        line
    }
}

#[cfg(not(level_sm_80))]
pub(super) const fn lines(_bytes: usize, _columns: usize) -> u32 {
    1
}

/// Lines, in order; the next one of halves is under way.
#[cfg(not(level_sm_80))]
pub(super) struct Queue<T: Value, const COLUMNS: usize, const LINES: u32> {
    next: [T::Four; COLUMNS],
    h: i32,
    left: u32,
}

#[cfg(not(level_sm_80))]
impl<T: Value, const COLUMNS: usize, const LINES: u32> Queue<T, COLUMNS, LINES> {
    /// Whether a line is asked for before the one in front of it is used: two of `f32` would not leave room
    /// for the sums.
    const AHEAD: bool = size_of::<T>() == 2;

    /// The `count` lines from `top` on.
    ///
    /// # Safety
    ///
    /// `input` is an image at four channels of it, aligned.
    #[inline(always)]
    pub(super) unsafe fn new(input: &Input<'_, T>, top: i32, count: u32) -> Self {
        // SAFETY: the caller's promise.
        let next = unsafe { Self::line(input, top, Self::AHEAD && count > 0) };
        Self { next, h: top, left: count }
    }

    /// # Safety
    ///
    /// As for [`Queue::new`].
    #[inline(always)]
    unsafe fn line(input: &Input<'_, T>, h: i32, wanted: bool) -> [T::Four; COLUMNS] {
        core::array::from_fn(|j| {
            let (at, inside) = input.at(h, j);
            // SAFETY: four channels of a pixel of the image.
            unsafe { T::load_four(wanted && inside, at) }
        })
    }

    /// The next line; the one behind it is asked for.
    ///
    /// # Safety
    ///
    /// As for [`Queue::new`].
    #[inline(always)]
    pub(super) unsafe fn turn(&mut self, input: &Input<'_, T>) -> [[f32; 4]; COLUMNS] {
        if !Self::AHEAD {
            // SAFETY: the caller's promise.
            self.next = unsafe { Self::line(input, self.h, self.left > 0) };
        }
        let line = self.next;
        (self.h, self.left) = (self.h + 1, self.left.saturating_sub(1));
        if Self::AHEAD {
            // SAFETY: the caller's promise.
            self.next = unsafe { Self::line(input, self.h, self.left > 0) };
        }
        line.map(|four| T::widen_four(input.args.element, four))
    }
}
