//! The epilogue of [`super::lines`]: exact sums from shared memory, of one block or of those of a
//! cluster that shared a tile, to `y`.

use contract::conv2d::lines::{CHANNELS, CLUSTER, LinesArgs, THREADS};
use contract::conv2d::{ABSENT, Activation, finish as finish_one, finish_cheap};
use contract::w2a8::{Divisor, dequantise};

use super::lines::PITCH;
use crate::arch::cluster::read_x4_of;
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_if, ld_nc, ld_x4, st, st_x4};
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, thread_idx_x};

/// Threads, four channels each, of an output.
const ACROSS: u32 = CHANNELS / 4;
/// Outputs of a block of threads.
const DOWN: u32 = THREADS / ACROSS;

/// Four sums of an output, which are there 64 times.
///
/// # Safety
///
/// `here` is written in every block that has a part of the tile, and shown to this one.
#[inline(always)]
unsafe fn sums<const SPLIT: bool>(args: &LinesArgs, part: u32, here: Shared<i32>) -> [i32; 4] {
    if !SPLIT {
        // SAFETY: the caller's promise.
        return unsafe { here.read_x4() };
    }
    let first = block_idx_x() % CLUSTER - part;
    let (mut sums, mut i) = ([0; 4], 0);
    while i < args.splits {
        // SAFETY: the caller's promise.
        let more: [i32; 4] = unsafe { read_x4_of(first + i, here) };
        sums = core::array::from_fn(|c| sums[c] + more[c]);
        i += 1;
    }
    sums
}

/// A few neighbouring channels of the tile, as one thread writes them.
struct Column {
    /// First channel of all, and how many there are.
    channel: u32,
    count: u32,
    staging: Shared<i32>,
    part: u32,
}

/// Writes the outputs of the tile that are this part's: `DOWN` of every `DOWN * splits`.
///
/// # Safety
///
/// As for [`sums`]; `head` is the table of the block's outputs; the outputs are the tile's alone.
#[inline(always)]
pub(super) unsafe fn finish<const POSITIONS: u32, const SPLIT: bool>(
    args: &LinesArgs,
    head: Shared<u32>,
    staging: Shared<i32>,
    (column0, group): (u32, u32),
    part: u32,
) {
    let g = &args.base.geometry;
    let quad = thread_idx_x() % ACROSS * 4;
    let of_group = column0 + quad;
    if of_group >= g.k {
        return;
    }
    let (channel, count) = (group * g.k + of_group, (g.k - of_group).min(4));
    let column = Column { channel, count, staging: staging.add(quad), part };
    let row = DOWN * part + thread_idx_x() / ACROSS;
    // SAFETY: the caller's promise, for both.
    unsafe {
        let mut rest = true;
        if g.k % 4 == 0 && args.base.activation.is_cheap() {
            rest = fours::<POSITIONS, SPLIT>(args, head, row, &column);
        }
        if rest {
            singly::<POSITIONS, SPLIT>(args, head, row, &column);
        }
    }
}

/// The outputs of images with an ordinary scale, four channels at once. Whether there are others.
///
/// # Safety
///
/// As for [`finish`]; the channels are whole fours.
#[inline(always)]
unsafe fn fours<const POSITIONS: u32, const SPLIT: bool>(
    args: &LinesArgs,
    head: Shared<u32>,
    mut row: u32,
    column: &Column,
) -> bool {
    /// Outputs under way together.
    const ROWS: usize = 4;
    let (base, g) = (&args.base, &args.base.geometry);
    let mut weight_scales = [0.0f32; 4];
    let mut c = 0;
    while c < 4 {
        weight_scales[c] = base.segments.scale_of(column.channel + c as u32);
        c += 1;
    }
    let apart = if SPLIT { DOWN * args.splits } else { DOWN };
    let plain = base.bias.is_null() && base.residual.is_null();
    let plain = plain && matches!(base.activation, Activation::None);
    let mut others = false;
    while row < POSITIONS {
        let (mut heads, mut out) = ([[0u32; 4]; ROWS], [[0.0f32; 4]; ROWS]);
        let mut i = 0;
        while i < ROWS {
            // Past the last one: that one again.
            let here = (row + i as u32 * apart).min(POSITIONS - 1);
            // SAFETY: the table; sums of the staging area.
            let sums = unsafe {
                heads[i] = head.add(4 * here).read_x4();
                sums::<SPLIT>(args, column.part, column.staging.add(here * PITCH))
            };
            let [scale, reciprocal, ordinary, _] = heads[i];
            let divisor = Divisor::from_words([scale, reciprocal, ordinary]);
            let quotients = divisor.divide4_ordinary(sums);
            out[i] = core::array::from_fn(|c| quotients[c] * weight_scales[c]);
            i += 1;
        }
        let mut i = 0;
        while i < ROWS {
            let [_, _, ordinary, pixel] = heads[i];
            let at = u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(column.channel);
            if pixel != u32::MAX && row + (i as u32 * apart) < POSITIONS {
                if ordinary != 0 {
                    if !plain {
                        // SAFETY: four channels of an output of this thread.
                        out[i] = unsafe { extras(args, column.channel, at as usize, out[i]) };
                    }
                    let y = base.y.as_ptr().wrapping_add(at as usize);
                    // SAFETY: four outputs that belong to this thread.
                    unsafe { st_x4(y.cast(), out[i].map(f32::to_bits)) };
                }
                others |= ordinary == 0;
            }
            i += 1;
        }
        row += ROWS as u32 * apart;
    }
    others
}

/// What follows the scales, for four channels from `channel` on.
///
/// # Safety
///
/// They are channels of output `at`.
#[inline(always)]
unsafe fn extras(args: &LinesArgs, channel: u32, at: usize, mut values: [f32; 4]) -> [f32; 4] {
    let base = &args.base;
    let (mut bias, mut residual) = ([ABSENT; 4], [ABSENT; 4]);
    if opaque_here(u32::from(!base.bias.is_null())) != 0 {
        let from = base.bias.as_ptr().cast_const().wrapping_add(channel as usize);
        // SAFETY: a number for each output channel; the buffer and the channel are multiples of 4.
        bias = unsafe { ld_x4(from.cast()) };
    }
    if opaque_here(u32::from(!base.residual.is_null())) != 0 {
        let from = base.residual.as_ptr().cast_const().wrapping_add(at);
        // SAFETY: as large as y.
        residual = unsafe { ld_x4(from.cast()) };
    }
    let mut c = 0;
    while c < 4 {
        values[c] = finish_cheap(values[c], bias[c], residual[c], Activation::None);
        c += 1;
    }
    let activation = Activation::from_u32(opaque_here(base.activation as u32));
    match activation {
        Activation::Relu => values.map(|value| Activation::Relu.apply_cheap(value)),
        Activation::Relu2 => values.map(|value| Activation::Relu2.apply_cheap(value)),
        _ => values,
    }
}

/// All outputs, one channel at a time: one copy of the activations.
///
/// # Safety
///
/// As for [`finish`].
#[inline(always)]
unsafe fn singly<const POSITIONS: u32, const SPLIT: bool>(
    args: &LinesArgs,
    head: Shared<u32>,
    mut row: u32,
    column: &Column,
) {
    let (base, g) = (&args.base, &args.base.geometry);
    while row < POSITIONS {
        // SAFETY: the table, and four sums of the staging area.
        let ([_, _, _, pixel], sums) = unsafe {
            let sums = sums::<SPLIT>(args, column.part, column.staging.add(row * PITCH));
            (head.add(4 * row).read_x4(), sums)
        };
        row += if SPLIT { DOWN * args.splits } else { DOWN };
        if pixel == u32::MAX {
            continue;
        }
        let scales = base.scales.as_ptr().cast_const();
        let image = g.by_image.div_rem(pixel).0;
        // SAFETY: a number for each image.
        let scale: f32 = unsafe { ld_nc(scales.wrapping_add(image as usize)) };
        let (count, mut c) = (opaque_here(column.count), 0);
        while c < count {
            let channel = column.channel + c;
            let at = u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel);
            let residual = base.residual.as_ptr().cast_const().wrapping_add(at as usize);
            let bias = base.bias.as_ptr().cast_const().wrapping_add(channel as usize);
            let (has_bias, has) = (!base.bias.is_null(), !base.residual.is_null());
            let mut sum = sums[0];
            let mut i = 1;
            while i < 4 {
                sum = if i == c { sums[i as usize] } else { sum };
                i += 1;
            }
            let value = dequantise(sum >> 6, scale, base.segments.scale_of(channel));
            // SAFETY: a number for each output channel; as large as y; an output of this thread.
            unsafe {
                let bias = if has_bias { ld_nc(bias) } else { ABSENT };
                let r = if has { ld_if(has, residual) } else { ABSENT };
                let value = finish_one(value, bias, r, base.activation);
                st(base.y.as_ptr().wrapping_add(at as usize), value.to_bits());
            }
            c += 1;
        }
    }
}
