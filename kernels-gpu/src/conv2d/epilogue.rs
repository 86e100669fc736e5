//! The epilogue: sums from shared memory to `y`, neighbours in memory by neighbouring threads.

use contract::conv2d::{ABSENT, Activation, Args, finish, finish_cheap};

use super::value::Value;
use crate::arch::hint::opaque_here;
use crate::arch::mem::{ld_nc_if, ld_or_zero_x4, st, st_x4};
use crate::arch::shared::Shared;

/// A part of a tile in shared memory, `[pixel][channel]`.
pub(super) struct Staging {
    pub(super) smem: Shared<f32>,
    /// Elements between two pixels.
    pub(super) pitch: u32,
    /// First output pixel.
    pub(super) pixel0: u32,
    /// First output channel of the group.
    pub(super) column0: u32,
    pub(super) group: u32,
    pub(super) split: u32,
    /// Whether these are the sums of the first chunk: else `y` holds those before, as `f32`.
    pub(super) first: bool,
    /// Whether nothing follows: else `y` takes the sum, as `f32`.
    pub(super) last: bool,
}

/// Writes `PIXELS` by `CHANNELS` outputs, where they exist.
///
/// # Safety
///
/// The staging area is written and a barrier passed; `y`, `bias` and `residual` cover the contract's
/// table; the outputs belong to this block. `first` and `last` hold unless `T` is `f32`.
#[inline(always)]
pub(super) unsafe fn finish_rows<T: Value, const PIXELS: u32, const CHANNELS: u32>(
    args: &Args,
    part: &Staging,
    thread: u32,
    threads: u32,
) {
    let g = &args.geometry;
    // The dimension whose neighbours are neighbours in memory runs over the threads.
    let channels_first = g.y_step[1] == 1;
    let mut i = thread;
    while i < PIXELS * CHANNELS {
        let (row, column) =
            if channels_first { (i / CHANNELS, i % CHANNELS) } else { (i % PIXELS, i / PIXELS) };
        let (pixel, of_group) = (part.pixel0 + row, part.column0 + column);
        if pixel < g.pixels && of_group < g.k {
            // SAFETY: inside the staging area.
            let mut sum = unsafe { part.smem.add(row * part.pitch + column).read() };
            let channel = part.group * g.k + of_group;
            if args.splits > 1 {
                let at = split_at(args, part.split, pixel, channel);
                // SAFETY: partial[split, pixel, channel] belongs to this thread.
                unsafe { st(args.partial.as_ptr().wrapping_add(at), sum) };
                i += threads;
                continue;
            }
            let at = g.output(pixel, channel) as usize;
            let y = args.y.as_ptr().cast::<T>().wrapping_add(at);
            if !part.first {
                // SAFETY: written by this thread for the chunk before.
                sum = unsafe { T::load(args.element, true, y) } + sum;
            }
            if part.last {
                // SAFETY: as large as y.
                let residual = unsafe { residual::<T>(args, at) };
                // SAFETY: an output channel.
                let bias = unsafe { bias(args, channel) };
                sum = finish(
                    sum,
                    bias,
                    residual,
                    Activation::from_u32(opaque_here(args.activation as u32)),
                );
            }
            // SAFETY: y[pixel, channel] belongs to this thread.
            unsafe { T::store(args.element, y, sum) };
        }
        i += threads;
    }
}

/// The same, four channels at once, where channels are side by side in fours and the activation is cheap.
/// Whether that is so.
///
/// # Safety
///
/// As for [`finish_rows`].
#[inline(always)]
pub(super) unsafe fn finish_fours<T: Value, const PIXELS: u32, const CHANNELS: u32>(
    args: &Args,
    part: &Staging,
    thread: u32,
    threads: u32,
) -> bool {
    let (g, across) = (&args.geometry, CHANNELS / 4);
    if g.y_step[1] != 1 || g.k % 4 != 0 || !args.activation.is_cheap() {
        return false;
    }
    // Opaque, because LLVM would copy all of the loop for every kind of epilogue.
    let activation = Activation::from_u32(opaque_here(args.activation as u32));
    let [has_bias, has_residual, shared] =
        [!args.bias.is_null(), !args.residual.is_null(), args.splits > 1]
            .map(|has| opaque_here(u32::from(has)) != 0);
    let mut i = thread;
    while i < PIXELS * across {
        let (row, column) = (i / across, i % across * 4);
        i += threads;
        let (pixel, of_group) = (part.pixel0 + row, part.column0 + column);
        if pixel >= g.pixels || of_group >= g.k {
            continue;
        }
        let channel = part.group * g.k + of_group;
        // SAFETY: inside the staging area, a multiple of four from its start.
        let mut sums = unsafe { part.smem.add(row * part.pitch + column).read_x4() };
        if shared {
            let at = split_at(args, part.split, pixel, channel);
            let to = args.partial.as_ptr().wrapping_add(at);
            // SAFETY: partial[split, pixel, channel..channel + 4] belongs to this thread.
            unsafe { st_x4(to.cast(), sums.map(f32::to_bits)) };
            continue;
        }
        // Channels are side by side: so are pixels, and images.
        let at = (u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel)) as usize;
        let y = args.y.as_ptr().cast::<T>().wrapping_add(at);
        if !part.first {
            // SAFETY: written by this thread for the chunk before.
            let before = unsafe { T::load4(args.element, true, y) };
            sums = core::array::from_fn(|c| before[c] + sums[c]);
        }
        if part.last {
            let bias = args.bias.as_ptr().cast_const().wrapping_add(channel as usize);
            let residual = args.residual.as_ptr().cast::<T>().cast_const().wrapping_add(at);
            // SAFETY: output channels; as large as y; channels and elements are multiples of four.
            let (bias, residual) = unsafe {
                let bias: [u32; 4] = ld_or_zero_x4(has_bias, bias.cast());
                (bias.map(f32::from_bits), T::load4(args.element, has_residual, residual))
            };
            sums = core::array::from_fn(|c| {
                let bias = if has_bias { bias[c] } else { ABSENT };
                let residual = if has_residual { residual[c] } else { ABSENT };
                finish_cheap(sums[c], bias, residual, activation)
            });
        }
        // SAFETY: four channels of an output of this thread.
        unsafe { T::store4(args.element, y, sums) };
    }
    true
}

/// Where a split's sum stands in `partial`.
#[inline(always)]
pub(super) fn split_at(args: &Args, split: u32, pixel: u32, channel: u32) -> usize {
    let g = &args.geometry;
    let row = u64::from(split) * u64::from(g.pixels) + u64::from(pixel);
    (row * u64::from(g.k * g.groups) + u64::from(channel)) as usize
}

/// The bias of an output channel, or what stands for none.
///
/// # Safety
///
/// `bias` is null or has that channel.
#[inline(always)]
pub(super) unsafe fn bias(args: &Args, channel: u32) -> f32 {
    let p = args.bias.as_ptr().cast_const().wrapping_add(channel as usize);
    let has = opaque_here(u32::from(!args.bias.is_null())) != 0;
    // SAFETY: the caller's promise.
    let value = unsafe { ld_nc_if(has, p) };
    if has { value } else { ABSENT }
}

/// The residual at `at`, or what stands for none.
///
/// # Safety
///
/// `residual` is null or has that element.
#[inline(always)]
pub(super) unsafe fn residual<T: Value>(args: &Args, at: usize) -> f32 {
    let p = args.residual.as_ptr().cast::<T>().cast_const().wrapping_add(at);
    let has = opaque_here(u32::from(!args.residual.is_null())) != 0;
    // SAFETY: the caller's promise.
    let value = unsafe { T::load(args.element, has, p) };
    if has { value } else { ABSENT }
}
