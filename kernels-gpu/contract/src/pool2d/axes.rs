//! Windows of any kind, one axis after the other.

use super::{Args, Axis};
use crate::conv2d::Divisor;
use crate::launch::{Kernel, LaunchSpec};

/// Threads of a block.
pub const AXES_THREADS: u32 = 256;

/// Most bytes of shared memory of a block.
pub const AXES_SMEM: u32 = 96 * 1024;

/// Bytes of it that a tile is made to fill: three blocks a multiprocessor.
const FILL: u32 = 72 * 1024;

/// Neighbouring maxima of a thread, where windows share most of their taps.
pub const AXES_RUN: u32 = 4;

/// Words of channels of a tile, where they are innermost, at most.
pub const AXES_WORDS: u32 = 64;

/// Words of them that make whole lines of memory.
const LINE: u32 = 16;

/// The parameter of the kernels that make windows of any kind, one axis after the other, passed by value.
///
/// What a tile of outputs reads of the images comes to shared memory as it lies in memory: whole rows, or with channels innermost
/// some words of them of each pixel. The maxima or sums of the rows of windows go through shared memory again, and those of them are the
/// windows'.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AxesArgs {
    /// Tensors and windows.
    pub pool: Args,
    /// Planes of a tile, each whole where there are several; with channels innermost 1.
    pub planes: u32,
    /// Words of channels of a tile, a power of two, where they are innermost, or 1.
    pub words: u32,
    /// Rows and columns of outputs of a tile.
    pub rows: u32,
    /// See `rows`.
    pub columns: u32,
    /// Neighbouring rows of windows, and windows below each other, of a thread: [`AXES_RUN`], or 1.
    pub across: u32,
    /// See `across`.
    pub down: u32,
    /// Where the rows of windows start in shared memory.
    pub tops: u32,
    /// Bytes of it in all.
    pub smem: u32,
    /// Tiles: words of channels fastest, then columns, then rows, then planes or images.
    pub blocks: u32,
    /// By the tiles of the words of channels.
    pub by_words: Divisor,
    /// By the tiles of a row.
    pub by_across: Divisor,
    /// By the tiles of a column.
    pub by_down: Divisor,
    /// By the outputs of a row of a tile, and by the runs of them.
    pub by_columns: Divisor,
    /// See `by_columns`.
    pub by_runs: Divisor,
    /// By the runs of rows of outputs of a tile.
    pub by_rows: Divisor,
}

/// Neighbours of a thread along an axis.
const fn run(args: &Args, axis: &Axis) -> u32 {
    let near = axis.stride == 1 && axis.dilation == 1 && axis.kernel > 3;
    if near && args.channels_last == 1 && args.average == 0 { AXES_RUN } else { 1 }
}

/// Taps that `outputs` windows read, of an axis of `len`.
const fn read(stride: u32, reach: u32, outputs: u32, len: u32) -> u32 {
    let all = (outputs as u64 - 1) * stride as u64 + reach as u64;
    if all > len as u64 { len } else { all as u32 }
}

/// A tile of `planes` planes of `rows` by `columns` outputs, of `words` words of channels where they are innermost; `None` where shared memory
/// has no room for it.
pub const fn axes_of(args: &Args, bytes: u32, [planes, words, rows, columns]: [u32; 4]) -> Option<AxesArgs> {
    let (h, w) = (&args.h, &args.w);
    let last = args.channels_last == 1;
    let lines = if planes > 1 { h.len } else { read(h.stride, h.dilation * (h.kernel - 1) + 1, rows, h.len) };
    let (input, top, tiles) = if last {
        let wide = read(w.stride, w.dilation * (w.kernel - 1) + 1, columns, w.len);
        // Sums of 16-bit elements are twice as wide.
        let top = words * if args.average == 1 { 8 / bytes * 2 } else { 4 };
        (lines as u64 * (wide * words * 4) as u64, top, (args.channels * bytes / 4).div_ceil(words))
    } else {
        ((planes * lines) as u64 * (w.len * bytes) as u64 + 32, 4, 1)
    };
    let tops = input.next_multiple_of(16);
    let smem = tops + (planes * lines) as u64 * (columns * top) as u64;
    let (right, down) = (w.out.div_ceil(columns), h.out.div_ceil(rows));
    let all = args.images as u64 * if last { 1 } else { args.channels as u64 };
    let blocks = all.div_ceil(planes as u64) * tiles as u64 * right as u64 * down as u64;
    if smem > AXES_SMEM as u64 || blocks >= 1 << 31 {
        return None;
    }
    Some(AxesArgs {
        pool: *args,
        planes,
        words,
        rows,
        columns,
        across: run(args, w),
        down: run(args, h),
        tops: tops as u32,
        smem: smem as u32,
        blocks: blocks as u32,
        by_words: Divisor::new(tiles),
        by_across: Divisor::new(right),
        by_down: Divisor::new(down),
        by_columns: Divisor::new(columns),
        by_runs: Divisor::new(columns.div_ceil(run(args, w))),
        by_rows: Divisor::new(rows.div_ceil(run(args, h))),
    })
}

/// The tile that windows are made in; `None` where these kernels do not take them, or where others are faster: where all taps of small
/// windows that share few, or of channels innermost any, are asked for at once.
pub const fn axes(args: &Args, bytes: u32) -> Option<AxesArgs> {
    let (h, w) = (&args.h, &args.w);
    let last = args.channels_last == 1;
    let apart = h.stride > 1 || w.stride > 1;
    let maxima = args.average == 0;
    let most = match (bytes, maxima) {
        (4, true) => 49,
        (4, false) | (_, true) => 25,
        _ => 0,
    };
    let few = (h.kernel as u64 * w.kernel as u64) < most;
    if args.square() && (last || apart) || last && few {
        return None;
    }
    let reach = [h.dilation as u64 * (h.kernel - 1) as u64, w.dilation as u64 * (w.kernel - 1) as u64];
    let deep = if last { args.channels as u64 } else { 1 };
    let areas = [h.len as u64 * w.len as u64 * deep, h.out as u64 * w.out as u64 * deep];
    let row = args.channels as u64 * bytes as u64;
    let aligned = if last {
        row.is_multiple_of(16) && args.x.addr().is_multiple_of(16) && args.y.addr().is_multiple_of(4)
    } else {
        args.x.addr().is_multiple_of(bytes as u64) && w.len * bytes <= 1 << 14
    };
    if !aligned || areas[0] >= 1 << 28 || areas[1] >= 1 << 28 || reach[0] >= 1 << 12 || reach[1] >= 1 << 12 {
        return None;
    }
    let all = args.images as u64 * if last { row.div_ceil(64) } else { args.channels as u64 };
    let mut best = [0; 4];
    let mut least = u64::MAX;
    // More where there are few outputs.
    let mut words = match (last, areas[1] / deep <= 16) {
        (true, true) => AXES_WORDS,
        (true, false) => LINE,
        _ => 1,
    };
    while words > 0 {
        let mut right = 1;
        while right <= 32 && right <= w.out && (last || right == 1) {
            let columns = w.out.div_ceil(right);
            let mut parts = 1;
            while parts <= 64 && parts <= h.out {
                let rows = h.out.div_ceil(parts);
                if let Some(one) = axes_of(args, bytes, [1, words, rows, columns]) {
                    let mut many = 1;
                    if parts == 1 && !last {
                        many = FILL / 2 / one.smem;
                        let share = all / 800;
                        many = if many as u64 > share { share as u32 } else { many };
                        many = if many == 0 { 1 } else { many };
                    }
                    let lines = if many > 1 { h.len } else { read(h.stride, reach[0] as u32 + 1, rows, h.len) };
                    let wide = if last { read(w.stride, reach[1] as u32 + 1, columns, w.len) } else { w.len };
                    // About as instructions, of all threads.
                    let made = rows as u64 * columns as u64;
                    let all = (lines * wide) as u64 * 4
                        + (lines * columns) as u64 * (12 + 4 * w.kernel / run(args, w)) as u64
                        + made * (12 + 4 * h.kernel / run(args, h)) as u64
                        + (8192 / words / many) as u64;
                    let mut cost = all * 64 / made;
                    // Two blocks and fewer wait for each other; short lines of memory take longer.
                    cost = if one.smem > FILL { cost * 4 / 3 } else { cost };
                    cost = if last && words < LINE { cost * (2 * LINE) as u64 / (words + LINE) as u64 } else { cost };
                    if cost < least {
                        (least, best) = (cost, [many, words, rows, columns]);
                    }
                }
                parts += if parts < 8 { 1 } else { parts / 4 };
            }
            right += if right < 8 { 1 } else { 4 };
        }
        words = if last && words > 4 { words / 2 } else { 0 };
    }
    if least == u64::MAX { None } else { axes_of(args, bytes, best) }
}

macro_rules! axes {
    ($($name:ident $symbol:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = AxesArgs;
            const SPEC: LaunchSpec =
                LaunchSpec::new($symbol, AXES_THREADS).with_min_blocks(4).with_smem(AXES_SMEM).with_min_sm(80);

            fn smem_bytes(args: &AxesArgs) -> u32 {
                args.smem
            }
        }
    )*};
}

axes! {
    AxesF32 "pool2d_axes_f32" "Windows of any kind over images of `f32`: [`AxesArgs`].";
    AxesF16 "pool2d_axes_f16" "The same of f16.";
    AxesBf16 "pool2d_axes_bf16" "The same of bf16.";
}
