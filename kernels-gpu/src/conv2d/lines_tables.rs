//! The tables in shared memory that [`super::lines`] reads instead of dividing.

use contract::conv2d::lines::{ENTRY_BYTES, LinesArgs, MOST_STEPS, PAIR, THREADS, taps_on};
use contract::w2a8::Divisor;

use super::lines::PAIR_WORDS;
use crate::arch::mem::ld_nc;
use crate::arch::shared::Shared;
use crate::arch::thread::thread_idx_x;

/// Writes the steps of a round: for either pair, bytes from the start of the stage to its first entry,
/// and words from the start of the round's channels to its codes. Beside the first distance, in bits that
/// are 0 there: whether the step starts a stage (1), and its plane (2, 4); beside the second, whether there
/// is a second pair (1).
///
/// # Safety
///
/// `table` starts [`MOST_STEPS`] steps of shared memory.
#[inline(always)]
pub(super) unsafe fn write_steps(args: &LinesArgs, table: Shared<u32>) {
    let g = &args.base.geometry;
    let step = thread_idx_x() / 2;
    let [planes_down, planes_across] = args.planes;
    let (mut plane, mut before) = (0, 0);
    while plane < planes_down * planes_across {
        let (a, b) = (plane >> (planes_across - 1), plane & (planes_across - 1));
        let down = taps_on(g.taps / g.s, g.stride[0] as u32, a);
        let across = taps_on(g.s, g.stride[1] as u32, b);
        let all = down * across * args.pairs;
        let pair = 2 * step.wrapping_sub(before) + thread_idx_x() % 2;
        let steps = all.div_ceil(2);
        if step >= before && step < before + steps {
            // One that is not there reads what the one before it does.
            let of = pair.min(all - 1);
            let (tap, k) = (of >> (args.pairs - 1), of & (args.pairs - 1));
            let (r, s) = (tap / across, tap % across);
            let distance = r * g.dilation[0] as u32 * args.line + s * g.dilation[1] as u32;
            let tap = (r * g.stride[0] as u32 + a) * g.s + s * g.stride[1] as u32 + b;
            let word = (tap * (g.c / PAIR) + k) * PAIR_WORDS;
            let first = thread_idx_x() % 2 == 0;
            let flags =
                if first { 2 * plane | u32::from(step == before) } else { u32::from(pair < all) };
            let distance = distance * ENTRY_BYTES + k * PAIR;
            // SAFETY: pair of the step of this thread.
            unsafe { table.add(2 * thread_idx_x()).write_x2([distance | flags, word]) };
        }
        before += steps;
        plane += 1;
    }
    const { assert!(2 * MOST_STEPS == THREADS) };
}

/// Writes where the entries of the block are in the input, by 16 bytes, and which planes have them (bit
/// `2 a + b`).
///
/// # Safety
///
/// `rows` starts the table in shared memory.
#[inline(always)]
pub(super) unsafe fn write_rows(args: &LinesArgs, first: u32, rows: Shared<u32>) {
    let g = &args.base.geometry;
    let mut e = thread_idx_x();
    while e < args.entries {
        let (line, column) = args.by_line.div_rem(first + e);
        let (image, line) = args.by_lines.div_rem(line);
        let h = (line * g.stride[0] as u32).wrapping_sub(g.pad[0] as u32);
        let w = (column * g.stride[1] as u32).wrapping_sub(g.pad[1] as u32);
        let at = h.wrapping_mul(g.x_step[0] / 16).wrapping_add(w.wrapping_mul(g.x_step[1] / 16));
        let at = at.wrapping_add(image.wrapping_mul((g.x_image / 16) as u32));
        let there = |at: u32, len: i32| u32::from(at < len as u32);
        let [height, width] = [g.edges[0].len, g.edges[1].len];
        let down = [there(h, height), there(h.wrapping_add(1), height)];
        let across = there(w, width) | there(w.wrapping_add(1), width) << 1;
        let planes = down[0] * across | down[1] * across << 2;
        let planes = if image < args.images { planes } else { 0 };
        // SAFETY: entry e of the table.
        unsafe { rows.add(2 * e).write_x2([at, planes]) };
        e += THREADS;
    }
}

/// Writes what the epilogue of the block's outputs wants: a divisor by 64 times the scale of the image,
/// which gives the quotient of the sum by the scale, and the pixel, all ones where there is none.
///
/// # Safety
///
/// `head` starts the table in shared memory; the scales are written.
#[inline(always)]
pub(super) unsafe fn write_head(
    args: &LinesArgs,
    (first, positions): (u32, u32),
    head: Shared<u32>,
) {
    let g = &args.base.geometry;
    let mut e = thread_idx_x();
    while e < positions {
        let (line, column) = args.by_line.div_rem(first + e);
        let (image, line) = args.by_lines.div_rem(line);
        let there = image < args.images && line < g.out[0] && column < g.out[1];
        let pixel = (image * g.out[0] + line) * g.out[1] + column;
        let scales = args.base.scales.as_ptr().cast_const();
        let scale = scales.wrapping_add(image.min(args.images - 1) as usize);
        // SAFETY: a number for each image; output e of the table.
        unsafe {
            let [scale, reciprocal, ordinary] = Divisor::new(64.0 * ld_nc(scale)).words();
            let pixel = if there { pixel } else { u32::MAX };
            head.add(4 * e).write_x4([scale, reciprocal, ordinary, pixel]);
        }
        e += THREADS;
    }
}
