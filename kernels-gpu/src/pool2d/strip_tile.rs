//! The way of a tile of strips into shared memory, and of its outputs out of it ([`contract::pool2d::strips_of`]).

use contract::pool2d::STRIPS_OUTSIDE;

use super::plane_tile::{Tile, behind, bring_lines, size};
use crate::arch::async_copy::{commit_group, copy_x16, wait_group};
use crate::arch::dot::permute;
use crate::arch::hint::{opaque, opaque_here, rolled};
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;
use crate::float::Float;

impl Tile<'_> {
    /// Whether line `i` of a plane is a row of the image that comes.
    #[inline(always)]
    fn comes(&self, i: u32) -> bool {
        let front = (self.i0 as i32 - self.top) as u32;
        let there = if self.args.planes > 1 { self.args.pool.h.len } else { self.lines };
        i >= front && i - front < there
    }

    /// Brings whole rows. Those of whole pieces of 16 bytes come each to the place that it has among all lines of its plane, `args.gap`
    /// bytes behind its start, and `nothing` beside and between them. Other threads see it behind a barrier.
    ///
    /// # Safety
    ///
    /// The arguments are those of the contract, and nobody uses shared memory.
    #[inline(always)]
    pub(super) unsafe fn bring_rows<E: Float>(
        &self,
        held: Shared<u32>,
        threads: u32,
        nothing: u32,
    ) {
        let (args, pool) = (self.args, &self.args.pool);
        let row = pool.w.len * size::<E>();
        let front = (self.i0 as i32 - self.top) as u32;
        let start = self.plane * u64::from(pool.h.len) + u64::from(self.i0);
        let x = pool.x.as_ptr().cast_const().wrapping_add((start * u64::from(row)) as usize);
        let all = self.planes * args.lines;
        if args.even == 1 {
            let (line, part) = args.by_words.div_rem(thread_idx_x());
            let step = args.lines_at_once;
            let mut part = if line < step { part } else { args.words };
            let first = held.byte_add(front * args.pitch + args.gap);
            while part < args.words {
                let mut l = line;
                let mut from = x.wrapping_add((l * row + part * 16) as usize);
                let mut to = first.byte_add(l * args.pitch + part * 16);
                while l < self.lines {
                    rolled();
                    if opaque_here(args.planes) > 1 {
                        let (plane, i) = args.by_height.div_rem(l);
                        to = first.byte_add((plane * args.lines + i) * args.pitch + part * 16);
                    }
                    // SAFETY: a piece of a row; a place of this block.
                    unsafe { copy_x16(to, from, true) };
                    l += step;
                    from = from.wrapping_add((step * row) as usize);
                    to = to.byte_add(step * args.pitch);
                }
                part += args.words_at_once;
            }
            commit_group();
            // What is between the rows of the image, or all of a line, and what is in front of the first one.
            let mut l = thread_idx_x();
            while l <= all {
                // One line less: the last thread has what is in front.
                let line = if l == all { 0 } else { l };
                let (_, i) = args.by_pieces.div_rem(line);
                let (mut at, end) = match (l == all, self.comes(i)) {
                    (true, _) => (0, args.gap),
                    (_, true) => (args.gap + row, args.pitch + args.gap),
                    _ => (args.gap, args.pitch + args.gap),
                };
                while at < end {
                    rolled();
                    // SAFETY: a place outside of the image, of this thread.
                    unsafe { held.byte_add(line * args.pitch + at).write_x4([nothing; 4]) };
                    at += 16;
                }
                l += threads;
            }
            self.ask_ahead::<E>(threads);
            wait_group::<0>();
            return;
        }
        // Rows that are no whole pieces come one behind the other.
        // SAFETY: handed on.
        unsafe {
            let raw = held.byte_add(STRIPS_OUTSIDE);
            bring_lines::<E>(pool, [start, u64::from(self.lines)], raw, threads);
        }
        commit_group();
        // What rows outside of the image are read from.
        let own = thread_idx_x();
        if own < STRIPS_OUTSIDE / 16 {
            // SAFETY: a place of this thread.
            unsafe { held.byte_add(own * 16).write_x4([nothing; 4]) };
        }
        self.ask_ahead::<E>(threads);
        wait_group::<0>();
    }

    /// Where the first row that has come is, of those that lie one behind the other.
    #[inline(always)]
    pub(super) fn packed<E: Float>(&self, held: Shared<u32>) -> Shared<u32> {
        let pool = &self.args.pool;
        let first = self.plane * u64::from(pool.h.len) + u64::from(self.i0);
        held.byte_add(STRIPS_OUTSIDE + behind::<E>(pool, first))
    }

    /// The first output of a tile that has all columns.
    #[inline(always)]
    pub(super) fn y<E>(&self) -> *mut E {
        self.args.pool.y.cast::<E>().as_ptr().wrapping_add(self.first() as usize)
    }
}

/// The words from byte `behind` on, less than 16 and whole elements; the last ones are any.
#[inline(always)]
pub(super) fn shifted<E: Float, const N: usize>(words: [u32; N], behind: u32) -> [u32; N] {
    let words = later::<N, 1>(later::<N, 2>(words, behind & 8), behind & 4);
    if E::PIECE == 4 {
        return words;
    }
    let selector = 0x3210 + 0x1111 * (behind & 2);
    core::array::from_fn(|i| permute(words[i], words[(i + 1) % N], selector))
}

/// The words `BY` further, unless `by` is zero.
#[inline(always)]
fn later<const N: usize, const BY: usize>(words: [u32; N], by: u32) -> [u32; N] {
    // Opaque: as a choice between two places of an array it would be one in memory.
    let chosen = opaque(if by == 0 { 0 } else { u32::MAX });
    let mut out = words;
    let mut i = 0;
    while i + BY < N {
        out[i] = words[i + BY] & chosen | words[i] & !chosen;
        i += 1;
    }
    out
}
