//! The copies of entries, and the fence for weights that were expanded.

use contract::conv2d::bulk_lines::{ENTRY_BYTES, WEIGHT_STAGES};

use super::{Form, Part, Room, Tile, Turn};
use crate::arch::mbarrier;
use crate::arch::tensor::copy_pixels;
use crate::arch::wgmma::proxy_fence;

/// Brings the entries of the block's stages.
///
/// # Safety
///
/// As for the kernel, after the wait for the one in front, in one thread; `map` is that of the entries.
#[inline(always)]
pub(super) unsafe fn copy_entries<F: Form>(args: &F::Args, map: u64, room: Room, part: Part) {
    let (walk, g) = (F::walk(args), F::geometry(args));
    let mut turn = Turn::FIRST;
    let mut index = part.first;
    while index < part.end {
        let tile = Tile::of(walk, index, 0);
        let (line, column) = walk.by_line.div_rem(tile.first);
        let (image, line) = walk.by_lines.div_rem(line);
        let [h, w] = [(line, 0), (column, 1)]
            .map(|(at, axis)| (at * g.stride[axis] as u32).wrapping_sub(g.pad[axis] as u32));
        let (mut round, mut step) = (part.begins / walk.round, part.begins % walk.round);
        let mut left = part.ends - part.begins;
        while left > 0 {
            // SAFETY: a step of the table.
            let plane = unsafe { room.step(step) }[0] / 4 % 4;
            let (a, b) = (plane >> (walk.planes[1] - 1), plane & (walk.planes[1] - 1));
            let channel = tile.group * g.c + round * F::DEPTH;
            // SAFETY: the barriers were made; once for each phase of the place, which is free.
            unsafe {
                mbarrier::wait(room.entries_empty(turn), turn.parity ^ 1);
                let full = room.entries_full(turn);
                mbarrier::arrive_expecting(full, walk.entries * ENTRY_BYTES);
                let to = room.entries(walk, turn);
                copy_pixels(to, map, [channel, w, h, image], [b as u16, a as u16], full);
            }
            turn = turn.next(walk.stages);
            // On to the next stage.
            let mut last = false;
            while !last {
                // SAFETY: a step of the table.
                last = unsafe { room.step(step) }[0] & 2 != 0 || left == 1;
                step += 1;
                left -= 1;
            }
            if step == walk.round {
                (round, step) = (round + 1, 0);
            }
        }
        index += part.step;
    }
}

/// Shows the weights of the block's steps to the async proxy.
///
/// # Safety
///
/// As for the kernel, in one thread.
#[inline(always)]
pub(super) unsafe fn show(room: Room, part: Part) {
    let mut turn = Turn::FIRST;
    let mut index = part.first;
    while index < part.end {
        let mut left = part.ends - part.begins;
        while left > 0 {
            // SAFETY: the barriers were made; once for each phase.
            unsafe {
                mbarrier::wait(room.weights_full(turn), turn.parity);
                proxy_fence();
                mbarrier::arrive(room.weights_shown(turn));
            }
            turn = turn.next(WEIGHT_STAGES);
            left -= 1;
        }
        index += part.step;
    }
}
