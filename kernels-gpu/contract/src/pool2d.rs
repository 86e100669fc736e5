//! Maximum and average over windows of images, and over whole images.
//!
//! | tensor | element          | shape                                     |
//! |--------|------------------|-------------------------------------------|
//! | `x`    | f32, f16 or bf16 | `[N, C, H, W]`, or `[N, H, W, C]` when `channels_last` |
//! | `y`    | the same         | `[N, C, OH, OW]`, or `[N, OH, OW, C]`     |
//!
//! Output `(i, j)` covers taps `(i * stride - padding + a * dilation, ...)` for `a < kernel`, row by row.
//! Taps outside of the image are left out.
//!
//! ```text
//! max      the largest tap, +0 above -0; NaN if one is NaN; minus infinity where no tap is inside
//! average  sums of two and two taps of a row, from left to right, then of two and two rows, from top to bottom (what is left over is
//!          alone); [`Share::take`], dilation 1
//! count    taps inside of the image (count_include_pad: of the padded image)
//! OH       floor((H + 2 padding - dilation (kernel - 1) - 1) / stride) + 1; `ceil_mode` rounds up, but no
//!          window starts behind the image and its padding in front
//! ```
//! as in PyTorch. A window that is a whole image ([`Axis::covered`] on both axes) has another sum: 8 partials, tap `t` in partial
//! `t % 8`, [`num::tree8`] of them / count. In `f32`, rounded to the element once.

mod average;
mod axes;
mod planes;
mod strips;
mod tiles;

pub use average::*;
pub use axes::*;
pub use planes::*;
pub use strips::*;
pub use tiles::*;

use crate::launch::{DevPtr, Kernel, LaunchSpec};
use crate::num;

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Outputs of a thread, one below the other.
pub const ROWS: u32 = 4;

/// Shared memory that the images of a block come through, in bytes: [`Args::staged`].
pub const STAGE_BYTES: u32 = 40 * 1024;

/// Shared memory behind them, which is read and not used.
const BEHIND: u32 = 32 * 4;

/// Bytes of the images of a warp that come through shared memory at a time, where they are too large for it: [`Args::ringed`].
pub const RING_SLICE: u32 = 1024;

/// Those with gaps between images, against bank conflicts.
pub const RING_STAGE: u32 = RING_SLICE + 4 * 32;

/// Slices of a warp: all but one are on their way.
pub const RING: u32 = 4;

/// Most images of eight lanes that come through it.
pub const STAGE_TIMES: u32 = 8;

/// Threads of a block that makes whole images with channels last, or many.
pub const WHOLE_THREADS: u32 = 128;

/// Most taps of a whole image that is made as a window is, where channels are innermost.
pub const SMALL: usize = 9;

/// Bytes of each of many images that come through shared memory at a time: [`Args::streamed`].
pub const SLICE: u32 = 128;

/// A slice of 32 images, in bytes.
pub const STAGE: u32 = 32 * SLICE;

/// Stages of a warp: all but one are on their way.
pub const DEPTH: u32 = 3;

/// Blocks of a multiprocessor whose images come so.
pub const STREAMS: u32 = 4;

/// Their shared memory, in bytes.
const STREAM_BYTES: u32 = WHOLE_THREADS / 32 * DEPTH * STAGE;

/// Words of channels of a thread that come at a time, and how many times they do before the first ones are needed: as many as are under way where a thread has one.
pub const DRIP: u32 = 8;
/// See [`DRIP`].
pub const DRIPS: u32 = 12;

/// Shared memory that the partials of a block's pieces of channels go through: eight words a thread, and a gap.
const EXCHANGE_BYTES: u32 = WHOLE_THREADS * 8 * 4 + 64;

/// Most elements along each dimension, so that coordinates fit 32 bits with room for padding.
pub const MAX_SIDE: usize = 1 << 24;

/// One axis of the windows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Elements of the image.
    pub len: u32,
    /// Outputs.
    pub out: u32,
    /// Taps of a window.
    pub kernel: u32,
    /// From window to window.
    pub stride: u32,
    /// Elements in front of the image.
    pub padding: u32,
    /// From tap to tap.
    pub dilation: u32,
}

impl Axis {
    /// Outputs that PyTorch's rule gives; `None` when not even one window fits.
    pub const fn outputs(&self, ceil_mode: bool) -> Option<u32> {
        let reach = self.dilation as u64 * (self.kernel as u64 - 1) + 1;
        let padded = self.len as u64 + 2 * self.padding as u64;
        if padded < reach {
            return None;
        }
        let room = padded - reach;
        let stride = self.stride as u64;
        let mut out = room / stride + 1;
        if ceil_mode && !room.is_multiple_of(stride) && out * stride < self.len as u64 + self.padding as u64 {
            out += 1;
        }
        Some(out as u32)
    }

    /// Where tap `tap` of output `out` lies; negative or past the end in the padding.
    #[inline(always)]
    pub const fn at(&self, out: u32, tap: u32) -> i32 {
        (out * self.stride) as i32 - self.padding as i32 + (tap * self.dilation) as i32
    }

    /// Whether the only window is the whole axis, and not more.
    pub const fn covered(&self) -> bool {
        self.out == 1 && self.padding == 0 && self.kernel == self.len && self.dilation == 1
    }

    /// Taps of output `out` inside of the image, or with `padded` of the padded image; for dilation 1.
    #[inline(always)]
    pub const fn taps(&self, out: u32, padded: bool) -> u32 {
        let start = self.at(out, 0);
        let end = start + self.kernel as i32;
        let (low, high) = if padded { (-(self.padding as i32), (self.len + self.padding) as i32) } else { (0, self.len as i32) };
        let start = if start < low { low } else { start };
        let end = if end > high { high } else { end };
        (end - start) as u32
    }
}

/// The larger of two taps, IEEE 754's `maximum`: NaN if either is NaN, and plus zero above minus zero.
#[inline(always)]
pub const fn max(a: f32, b: f32) -> f32 {
    let larger = if a > b { a } else { b };
    // Equal numbers differ at most in the sign of zero.
    let equal = f32::from_bits(a.to_bits() & b.to_bits());
    let number = if a == b { equal } else { larger };
    // A NaN in `b` is in `larger` already.
    if a.is_nan() { a } else { number }
}

/// The average of a whole image.
#[inline(always)]
pub fn average(partials: [f32; num::DOT_PARTIALS], count: u32) -> f32 {
    num::tree8(partials) / count as f32
}

/// The only kernel parameter, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// Images.
    pub x: DevPtr<u8>,
    /// Output.
    pub y: DevPtr<u8>,
    /// Images: N.
    pub images: u32,
    /// Channels: C.
    pub channels: u32,
    /// Rows of an image.
    pub h: Axis,
    /// Columns of an image.
    pub w: Axis,
    /// 1 for averages, 0 for maxima.
    pub average: u32,
    /// 1 when the count of an average includes the padding.
    pub count_include_pad: u32,
    /// 1 when channels are innermost.
    pub channels_last: u32,
    /// Channels that are loaded at once when they are innermost: as many as 16 bytes hold, or of 16-bit elements 4, of
    /// whole images 2, or 1.
    pub piece: u32,
}

impl Args {
    /// Whether the kernels for lines of images take these windows, of elements of `bytes`: rows innermost and in pieces of 16
    /// bytes; windows of 3 by 3 with a padding of 1 across, or 2 by 2 without, as far apart down as across, none of which ends a
    /// column behind that; or [`Args::apart`].
    pub const fn lines(&self, bytes: u32) -> bool {
        let (h, w) = (&self.h, &self.w);
        let known = matches!((w.kernel, w.stride, w.padding), (3, 1 | 2, 1) | (2, 2, 0));
        self.channels_last == 0
            && (known && w.out * w.stride <= w.len || self.apart(bytes))
            && h.kernel == w.kernel
            && h.stride == w.stride
            && h.dilation == 1
            && w.dilation == 1
            && (w.len * bytes).is_multiple_of(16)
            && self.x.addr().is_multiple_of(16)
            && self.y.addr().is_multiple_of(16)
    }

    /// Whether windows are side by side, 4 or 8 elements of `bytes`, and 16 bytes have all columns of one or two of them.
    #[inline(always)]
    pub const fn apart(&self, bytes: u32) -> bool {
        let (h, w) = (&self.h, &self.w);
        let side = w.kernel == 4 || w.kernel == 8 && bytes == 2;
        side && w.stride == w.kernel && h.padding == 0 && w.padding == 0
    }

    /// Threads of a plane of which [`Args::lines`] holds.
    pub const fn lines_threads(&self, bytes: u32) -> u64 {
        if self.apart(bytes) {
            self.h.out as u64 * (self.w.len * bytes / 16) as u64
        } else {
            self.h.out.div_ceil(ROWS) as u64 * self.w.out.div_ceil(16 / bytes) as u64
        }
    }

    /// How many times 32 whole images of elements of `bytes` a block has, which come through its shared memory side by side:
    /// channels first, and few enough taps. 0 where they do not.
    #[inline(always)]
    pub const fn staged(&self, bytes: u32) -> u32 {
        let image = self.h.len as u64 * self.w.len as u64 * (THREADS / 8 * bytes) as u64;
        if self.channels_last == 1 || image > STAGE_BYTES as u64 || !self.x.addr().is_multiple_of(16) {
            return 0;
        }
        let times = STAGE_BYTES / image as u32;
        if times < STAGE_TIMES { times } else { STAGE_TIMES }
    }

    /// Shared memory of a block that makes whole images of elements of `bytes`.
    const fn stage_bytes(&self, bytes: u32) -> u32 {
        match self.staged(bytes) {
            0 => THREADS / 32 * RING * RING_STAGE,
            times => self.h.len * self.w.len * (THREADS / 8 * bytes) * times + BEHIND,
        }
    }

    /// Images of a warp, eight lanes each, where they come through shared memory slice by slice: fewer where there are few.
    #[inline(always)]
    pub const fn ringed(&self) -> u32 {
        match self.images as u64 * self.channels as u64 {
            ..4096 => 1,
            4096..16384 => 2,
            _ => 4,
        }
    }

    /// Bytes of channels of a thread that makes whole images of elements of `bytes`, where channels are innermost, 16 or 4 of which pieces are
    /// aligned: words where 16 bytes make too few threads to have enough under way.
    pub const fn whole_piece(&self, bytes: u32, sms: u32) -> u32 {
        let threads = self.images as u64 * self.channels as u64 * bytes as u64 / 2;
        if threads < sms as u64 * 96 { 4 } else { 16 }
    }

    /// Whether whole images of elements of `bytes` come through shared memory a lane each: channels first, many, and too large for
    /// [`Args::staged`], or of 16-bit elements and so long that those of a warp would meet in the same banks there.
    #[inline(always)]
    pub const fn streamed(&self, bytes: u32) -> bool {
        let image = self.h.len as u64 * self.w.len as u64 * bytes as u64;
        let many = self.images as u64 * self.channels as u64 >= 1 << 15 && image <= 1 << 20;
        let better = self.staged(bytes) == 0 || bytes == 2 && image.is_multiple_of(128);
        self.channels_last == 0 && many && better && self.x.addr().is_multiple_of(16)
    }

    /// Whether windows are taps side by side, few enough for all of a window to wait in registers.
    #[inline(always)]
    pub const fn square(&self) -> bool {
        let (h, w) = (&self.h, &self.w);
        h.kernel == w.kernel && h.kernel <= 3 && (h.kernel == 1 || h.dilation == 1 && w.dilation == 1)
    }
}

macro_rules! kernels {
    ($($name:ident $symbol:literal $blocks:literal $([$from:literal, $more:literal])? $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, THREADS).with_min_blocks($blocks)$(.with_min_blocks_from($from, $more))?;
        }
    )*};
}

kernels! {
    WindowF32 "pool2d_f32" 4 "Windows over images of `f32`, one channel a thread.";
    WindowF16 "pool2d_f16" 3 "Windows over images of f16, up to four channels a thread.";
    WindowBf16 "pool2d_bf16" 3 "Windows over images of bf16, up to four channels a thread.";
    PiecesF32 "pool2d_pieces_f32" 2 "The same, 16 bytes of channels a thread: channels are innermost.";
    PiecesF16 "pool2d_pieces_f16" 2 [901, 3] "The same, 16 bytes of channels a thread: channels are innermost.";
    PiecesBf16 "pool2d_pieces_bf16" 2 [901, 3] "The same, 16 bytes of channels a thread: channels are innermost.";
    LinesF32 "pool2d_lines_f32" 3 "Windows over images of `f32`, 16 bytes of columns a thread: [`Args::lines`].";
    LinesF16 "pool2d_lines_f16" 3 "The same of f16.";
    LinesBf16 "pool2d_lines_bf16" 3 "The same of bf16.";
}

macro_rules! global {
    ($($name:ident $symbol:literal $bytes:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, THREADS).with_min_blocks(2).with_smem(STAGE_BYTES + BEHIND);

            fn smem_bytes(args: &Args) -> u32 {
                args.stage_bytes($bytes)
            }
        }
    )*};
}

global! {
    GlobalF32 "pool2d_global_f32" 4 "Whole images of `f32`, channels first.";
    GlobalF16 "pool2d_global_f16" 2 "Whole images of f16, channels first.";
    GlobalBf16 "pool2d_global_bf16" 2 "Whole images of bf16, channels first.";
}

macro_rules! whole {
    ($($name:ident $symbol:literal $bytes:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = Args;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, WHOLE_THREADS).with_min_blocks(8).with_smem(STREAM_BYTES);

            fn smem_bytes(args: &Args) -> u32 {
                match (args.channels_last, args.piece * $bytes) {
                    (1, 4) => WHOLE_THREADS * DRIP * DRIPS * 4,
                    (1, _) => EXCHANGE_BYTES,
                    _ => STREAM_BYTES,
                }
            }
        }
    )*};
}

whole! {
    WholeF32 "pool2d_whole_f32" 4 "Whole images of `f32`, channels last, or [`Args::streamed`].";
    WholeF16 "pool2d_whole_f16" 2 "Whole images of f16, channels last, or [`Args::streamed`].";
    WholeBf16 "pool2d_whole_bf16" 2 "Whole images of bf16, channels last, or [`Args::streamed`].";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_of_the_odd_ones() {
        assert!(max(f32::NAN, 1.0).is_nan() && max(1.0, f32::NAN).is_nan());
        assert_eq!((max(0.0, -0.0).to_bits(), max(-0.0, 0.0).to_bits()), (0, 0));
        assert_eq!(max(-0.0, -0.0).to_bits(), 1 << 31);
        assert_eq!((max(1.0, 2.0), max(2.0, -3.0), max(2.0, 2.0)), (2.0, 2.0, 2.0));
        assert_eq!(max(f32::NEG_INFINITY, f32::NEG_INFINITY), f32::NEG_INFINITY);
    }
}
