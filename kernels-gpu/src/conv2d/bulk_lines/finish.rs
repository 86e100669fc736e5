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
    const QUADS: u32 = CHANNELS / 4;
    let first = block_idx_x() % CLUSTER - part;
    let mut i = rows[0] * QUADS + thread_idx_x() % 128;
    while i < rows[1] * QUADS {
        let here = sums.add(i / QUADS * PITCH + i % QUADS * 4);
        // SAFETY: the caller's promise.
        let (mut total, mut block): ([u32; 4], u32) = (unsafe { read_x4_of(first, here) }, 1);
        while block < walk.splits {
            // SAFETY: the caller's promise.
            let more: [u32; 4] = unsafe { read_x4_of(first + block, here) };
            total = core::array::from_fn(|c| F::add(total[c], more[c]));
            block += 1;
        }
        // SAFETY: as above.
        unsafe { here.write_x4(total) };
        i += 128;
    }
}
