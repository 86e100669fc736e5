//! Rows that follow each other, as they come and go.

use crate::arch::async_copy::{copy_x16, copy_x16_part};
use crate::arch::mem::st_x4;
use crate::arch::shared::Shared;
use crate::arch::thread::opaque;
use crate::arch::warp::{LANES, lane_id};
use crate::float::Float;
use crate::row::take;

/// Every 32nd piece from that at `on` bytes of `end` on, which are at `here` and `there`: `each(here, there)`.
#[inline(always)]
unsafe fn pieces(
    here: Shared<u32>,
    there: *mut u8,
    end: u32,
    on: u32,
    each: impl Fn(Shared<u32>, *mut u8),
) {
    const STEP: u32 = 16 * LANES;
    let (mut here, mut there, mut on) = (here, there, on);
    while on + 3 * STEP < end {
        let mut i = 0;
        while i < 4 {
            each(here.byte_add(i * STEP), there.wrapping_add((i * STEP) as usize));
            i += 1;
        }
        here = here.byte_add(4 * STEP);
        there = there.wrapping_add(4 * STEP as usize);
        on = opaque(on + 4 * STEP);
    }
    let mut i = 0;
    while i < 3 {
        if on + i * STEP < end {
            each(here.byte_add(i * STEP), there.wrapping_add((i * STEP) as usize));
        }
        i += 1;
    }
}

/// Rows of a tensor that follow each other, as they lie in pieces.
#[derive(Clone, Copy)]
pub(super) struct Together {
    /// How many there are.
    pub(super) count: u32,
    /// Bytes of the tensor in front of the piece that they begin in.
    start: usize,
    /// Where in the pieces they begin and end.
    pub(super) odd: u32,
    pub(super) end: u32,
    /// Whether the last piece ends in the tensor for sure.
    whole: bool,
}

impl Together {
    /// Those from `first` on of `rows` of so many bytes, up to `most`.
    #[inline(always)]
    pub(super) fn new(first: u32, [rows, most]: [u32; 2], bytes: u32) -> Self {
        let left = rows.saturating_sub(first);
        let count = if left < most { left } else { most };
        let start = first as usize * bytes as usize;
        let odd = start as u32 % 16;
        Self {
            count,
            start: start - odd as usize,
            odd,
            end: odd + count * bytes,
            whole: left > most + 16,
        }
    }

    /// Asks for them.
    #[inline(always)]
    pub(super) unsafe fn ask(&self, to: Shared<u32>, from: *const u8) {
        let mut on = 16 * opaque(lane_id());
        let from = from.wrapping_add(self.start);
        // SAFETY: pieces of the tensor, as far as it goes.
        unsafe {
            if self.whole {
                let from = from.wrapping_add(on as usize);
                pieces(to.byte_add(on), from.cast_mut(), self.end, on, |to, from| {
                    copy_x16(to, from.cast_const(), true);
                });
            } else {
                while on < self.end {
                    let left = if self.end - on < 16 { self.end - on } else { 16 };
                    copy_x16_part(to.byte_add(on), from.wrapping_add(on as usize), left);
                    on = opaque(on + 16 * LANES);
                }
            }
        }
    }

    /// Writes them.
    #[inline(always)]
    pub(super) unsafe fn write<E: Float>(&self, from: Shared<u32>, to: *mut u8) {
        let to = to.wrapping_add(self.start);
        let whole = self.end & !15;
        let lane = opaque(lane_id());
        let mut on = 16 * lane;
        let width = 16 / E::PIECE as u32;
        // SAFETY: pieces of these rows, and at both ends elements.
        unsafe {
            if self.odd > 0 && on < 16 {
                on += 16 * LANES;
            }
            pieces(from.byte_add(on), to.wrapping_add(on as usize), whole, on, |from, to| {
                st_x4(to.cast(), from.read_x4());
            });
            if self.odd > 0 || whole < self.end {
                // Some lanes have the elements of the first piece, some those of the last one.
                let last = lane >= E::PIECE as u32;
                let at = lane % E::PIECE as u32 * width + if last { whole } else { 0 };
                let own = if last { whole > 0 || self.odd == 0 } else { self.odd > 0 };
                let own = own && lane < 2 * E::PIECE as u32;
                if own && self.odd <= at && at < self.end {
                    let to = to.wrapping_add(at as usize).cast::<E>();
                    let at = from.byte_add(at);
                    E::store_bits(to, take::<E>(at));
                }
            }
        }
    }
}
