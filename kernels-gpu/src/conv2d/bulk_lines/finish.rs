//! From sums in shared memory towards outputs: what every form does.

use contract::conv2d::bulk_lines::{CHANNELS, PITCH, Walk};

use super::{Form, HALF, Tile};
use crate::arch::cluster::read_x4_of;
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// Writes what the epilogue of a warpgroup's outputs wants: what divides their sums, and the pixel, all ones
/// where there is none.
///
/// # Safety
///
/// `head` is the warpgroup's; the kernel's contract.
#[inline(always)]
pub(super) unsafe fn write_head<F: Form>(args: &F::Args, tile: Tile, head: Shared<u32>) {
    const { assert!(HALF == 128) };
    let (walk, g) = (F::walk(args), F::geometry(args));
    let own = thread_idx_x() % 128;
    let (line, column) = walk.by_line.div_rem(tile.first + own);
    let (image, line) = walk.by_lines.div_rem(line);
    let there = image < walk.images && line < g.out[0] && column < g.out[1];
    let pixel = if there { (image * g.out[0] + line) * g.out[1] + column } else { u32::MAX };
    // SAFETY: an image; this thread's position of the table.
    unsafe {
        let [a, b, c] = F::divisor(args, image.min(walk.images - 1));
        head.add(4 * own).write_x4([a, b, c, pixel]);
    }
}

/// Adds the sums of every part of a tile, of outputs `rows` of a warpgroup, in order, where this block has
/// them.
///
/// # Safety
///
/// `sums` are the warpgroup's, written in every block that has a part of the tile and shown to this one;
/// nobody else reads these outputs in any block.
#[inline(always)]
pub(super) unsafe fn add_parts<F: Form, const CLUSTER: u32>(
    walk: &Walk,
    sums: Shared<u32>,
    part: u32,
    rows: [u32; 2],
) {
    // Of eight parts a thread has two fours, of two it has eight.
    // SAFETY: the caller's promise.
    unsafe {
        if CLUSTER > 2 {
            add_fours::<F, CLUSTER, 2>(walk, sums, part, rows);
        } else {
            add_fours::<F, CLUSTER, 4>(walk, sums, part, rows);
        }
    }
}

/// The same, by so many fours under way together.
///
/// # Safety
///
/// As for [`add_parts`].
#[inline(always)]
unsafe fn add_fours<F: Form, const CLUSTER: u32, const TOGETHER: usize>(
    walk: &Walk,
    sums: Shared<u32>,
    part: u32,
    rows: [u32; 2],
) {
    const QUADS: u32 = CHANNELS / 4;
    let (rank, end) = (block_idx_x() % CLUSTER - part, rows[1] * QUADS);
    let mut first = rows[0] * QUADS + thread_idx_x() % 128;
    while first < end {
        // Past the last one: that one again.
        let here: [Shared<u32>; TOGETHER] = core::array::from_fn(|i| {
            let at = (first + 128 * i as u32).min(end - 1);
            sums.add(at / QUADS * PITCH + at % QUADS * 4)
        });
        // SAFETY: the caller's promise, here and below.
        let mut totals: [[u32; 4]; TOGETHER] = here.map(|here| unsafe { read_x4_of(rank, here) });
        let mut block = 1;
        while block < walk.splits {
            // SAFETY: as above.
            let more: [[u32; 4]; TOGETHER] =
                here.map(|here| unsafe { read_x4_of(rank + block, here) });
            let mut i = 0;
            while i < TOGETHER {
                totals[i] = core::array::from_fn(|c| F::add(totals[i][c], more[i][c]));
                i += 1;
            }
            block += 1;
        }
        let mut i = 0;
        while i < TOGETHER {
            if first + 128 * (i as u32) < end {
                // SAFETY: as above.
                unsafe { here[i].write_x4(totals[i]) };
            }
            i += 1;
        }
        first += 128 * TOGETHER as u32;
    }
}
