//! The epilogue of ternary weights in lines: from sums in shared memory, which are there 64 times, to `y`.

use contract::conv2d::int8::Args;
use contract::conv2d::lines::CHANNELS;
use contract::conv2d::{ABSENT, Activation, finish as finish_one, finish_cheap};
use contract::num::{RowType, quotient};
use contract::w2a8::dequantise;

use super::int8_value::{is_f32, residual, store};
use super::value::{Half, Value};
use crate::arch::cluster::read_x4_of;
use crate::arch::half::{pack_bf16, pack_f16};
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_nc, ld_x4};
use crate::arch::mem_if::{st_x2_if, st_x4_if};
use crate::arch::shared::Shared;

/// Words from an output's sums to the next one's: four more than channels, so that lanes touch every bank.
pub(super) const PITCH: u32 = CHANNELS + 4;

/// Where the sums of a few neighbouring channels are.
pub(super) trait Sums: Copy {
    /// Four sums of an output.
    ///
    /// # Safety
    ///
    /// They are written and shown.
    unsafe fn four(&self, row: u32) -> [i32; 4];
}

/// In `PARTS` parts in this block, so many words apart.
#[derive(Clone, Copy)]
pub(super) struct Here<const PARTS: usize>(pub(super) Shared<i32>, pub(super) u32);

impl<const PARTS: usize> Sums for Here<PARTS> {
    #[inline(always)]
    unsafe fn four(&self, row: u32) -> [i32; 4] {
        let here = self.0.add(row * PITCH);
        // SAFETY: the caller's promise.
        let parts: [[i32; 4]; PARTS] =
            core::array::from_fn(|part| unsafe { here.add(part as u32 * self.1).read_x4() });
        let (mut sums, mut part) = (parts[0], 1);
        while part < PARTS {
            sums = core::array::from_fn(|c| sums[c] + parts[part][c]);
            part += 1;
        }
        sums
    }
}

/// In the blocks of a cluster from one on.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// In each of them.
    pub(super) sums: Shared<i32>,
    /// The first, and how many.
    pub(super) first: u32,
    /// See `first`.
    pub(super) count: u32,
}

impl Sums for Blocks {
    #[inline(always)]
    unsafe fn four(&self, row: u32) -> [i32; 4] {
        let (mut sums, mut i) = ([0; 4], 0);
        while i < self.count {
            // SAFETY: the caller's promise.
            let more: [i32; 4] = unsafe { read_x4_of(self.first + i, self.sums.add(row * PITCH)) };
            sums = core::array::from_fn(|c| sums[c] + more[c]);
            i += 1;
        }
        sums
    }
}

/// An element of `y`.
trait Out: Value {
    /// Rounds and writes four neighbours where `enabled` holds.
    ///
    /// # Safety
    ///
    /// When `enabled`: they are this thread's, and aligned to their size.
    unsafe fn write4(enabled: bool, kind: RowType, p: *mut Self, values: [f32; 4]);
}

impl Out for f32 {
    #[inline(always)]
    unsafe fn write4(enabled: bool, _: RowType, p: *mut Self, values: [f32; 4]) {
        // SAFETY: the caller's promise.
        unsafe { st_x4_if(enabled, p.cast(), values.map(f32::to_bits)) };
    }
}

impl Out for Half {
    #[inline(always)]
    unsafe fn write4(enabled: bool, kind: RowType, p: *mut Self, [a, b, c, d]: [f32; 4]) {
        // Both, and one is taken: less than a branch.
        let bf16 = matches!(kind, RowType::Bf16);
        let [f, g] = [pack_f16(a, b), pack_f16(c, d)];
        let [h, i] = [pack_bf16(a, b), pack_bf16(c, d)];
        let words = if bf16 { [h, i] } else { [f, g] };
        // SAFETY: the caller's promise.
        unsafe { st_x2_if(enabled, p.cast(), words) };
    }
}

/// A few neighbouring channels of a tile, as one thread writes them.
#[derive(Clone, Copy)]
pub(super) struct Column<S> {
    /// First channel of all, and how many there are.
    pub(super) channel: u32,
    /// See `channel`.
    pub(super) count: u32,
    /// Its sums.
    pub(super) sums: S,
    /// The table of outputs: what divides them, and the pixel.
    pub(super) head: Shared<u32>,
    /// The multipliers of its channels.
    pub(super) weight_scales: [f32; 4],
    /// First of its outputs, and the end of all.
    pub(super) rows: [u32; 2],
    /// From one of its outputs to the next.
    pub(super) down: u32,
}

impl<S> Column<S> {
    /// The same with sums elsewhere.
    #[inline(always)]
    pub(super) fn with<T>(&self, sums: T) -> Column<T> {
        let &Self { channel, count, head, weight_scales, rows, down, .. } = self;
        Column { channel, count, sums, head, weight_scales, rows, down }
    }
}

/// The multipliers of four channels.
#[inline(always)]
pub(super) fn weight_scales(base: &Args, channel: u32) -> [f32; 4] {
    let (mut scales, mut c) = ([0.0f32; 4], 0);
    while c < 4 {
        scales[c] = base.segments.scale_of(channel + c as u32);
        c += 1;
    }
    scales
}

/// Writes outputs, `TOGETHER` at a time.
///
/// # Safety
///
/// Sums and table are written and shown; the outputs are this thread's; the kernel's contract.
#[inline(always)]
pub(super) unsafe fn finish<S: Sums, const TOGETHER: usize>(base: &Args, column: &Column<S>) {
    // SAFETY: the caller's promise, for both.
    unsafe {
        let mut rest = true;
        if base.geometry.k % 4 == 0 && base.activation.is_cheap() {
            // Loops of their own: a branch where an output is written costs up to 7 %.
            rest = if is_f32(base) {
                fours::<S, f32, TOGETHER>(base, column)
            } else {
                fours::<S, Half, TOGETHER>(base, column)
            };
        }
        if rest {
            singly(base, column);
        }
    }
}

/// The outputs of images with an ordinary scale, four channels at once. Whether there are others.
///
/// # Safety
///
/// As for [`finish`]; the channels are whole fours.
#[inline(always)]
unsafe fn fours<S: Sums, T: Out, const TOGETHER: usize>(base: &Args, column: &Column<S>) -> bool {
    let g = &base.geometry;
    let plain = base.bias.is_null() && base.residual.is_null();
    let plain = plain && matches!(base.activation, Activation::None);
    let (mut row, end, mut others) = (column.rows[0], column.rows[1], false);
    while row < end {
        // Past the last one: that one again.
        let here = |i: usize| (row + i as u32 * column.down).min(end - 1);
        // SAFETY: the table.
        let heads: [[u32; 4]; TOGETHER] =
            core::array::from_fn(|i| unsafe { column.head.add(4 * here(i)).read_x4() });
        // SAFETY: sums of an output.
        let sums: [[i32; 4]; TOGETHER] =
            core::array::from_fn(|i| unsafe { column.sums.four(here(i)) });
        let (mut out, mut i) = ([[0.0f32; 4]; TOGETHER], 0);
        while i < TOGETHER {
            let [scale, reciprocal] = [heads[i][0], heads[i][1]].map(f32::from_bits);
            out[i] = core::array::from_fn(|c| {
                quotient(sums[i][c] as f32, scale, reciprocal) * column.weight_scales[c]
            });
            i += 1;
        }
        let there = |i: usize| heads[i][3] != u32::MAX && row + (i as u32 * column.down) < end;
        let at =
            |i: usize| u64::from(heads[i][3]) * u64::from(g.y_step[0]) + u64::from(column.channel);
        let mut i = 0;
        while !plain && i < TOGETHER {
            if there(i) {
                // SAFETY: four channels of an output of this thread.
                out[i] = unsafe { extras::<T>(base, column.channel, at(i) as usize, out[i]) };
            }
            i += 1;
        }
        // Without a branch for each: what is worked out behind one would wait for the output before.
        let mut i = 0;
        while i < TOGETHER {
            let ordinary = heads[i][2] != 0;
            let y = base.y.as_ptr().cast::<T>().wrapping_add(at(i) as usize);
            // SAFETY: four outputs that belong to this thread, where there are any.
            unsafe { T::write4(there(i) && ordinary, base.element, y, out[i]) };
            others |= there(i) && !ordinary;
            i += 1;
        }
        row += TOGETHER as u32 * column.down;
    }
    others
}

/// What follows the scales, for four channels from `channel` on.
///
/// # Safety
///
/// They are channels of output `at`.
#[inline(always)]
unsafe fn extras<T: Out>(base: &Args, channel: u32, at: usize, mut values: [f32; 4]) -> [f32; 4] {
    let (mut bias, mut residual) = ([ABSENT; 4], [ABSENT; 4]);
    if opaque_here(u32::from(!base.bias.is_null())) != 0 {
        let from = base.bias.as_ptr().cast_const().wrapping_add(channel as usize);
        // SAFETY: a number for each output channel; the buffer and the channel are multiples of 4.
        bias = unsafe { ld_x4(from.cast()) };
    }
    if opaque_here(u32::from(!base.residual.is_null())) != 0 {
        let from = base.residual.as_ptr().cast_const().cast::<T>();
        // SAFETY: as large as y.
        residual = unsafe { T::load4(base.element, true, from.wrapping_add(at)) };
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
pub(super) unsafe fn singly<S: Sums>(base: &Args, column: &Column<S>) {
    let g = &base.geometry;
    let [mut row, end] = column.rows;
    while row < end {
        // SAFETY: the table.
        let pixel = unsafe { column.head.add(4 * row + 3).read() };
        // SAFETY: the caller's promise.
        let sums = unsafe { column.sums.four(row) };
        row += column.down;
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
                let r = if has { residual(base, has, at as usize) } else { ABSENT };
                store(base, at as usize, finish_one(value, bias, r, base.activation));
            }
            c += 1;
        }
    }
}
