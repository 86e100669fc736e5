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

/// Neighbouring outputs of a thread, where windows share most of their taps.
pub const AXES_RUN: u32 = 4;

/// How the threads of a block go through lines: each has an item of a line, or some of them, and goes from line to line.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// Items of a line that threads have at a time, and of how many lines.
    pub at_once: u32,
    /// See `at_once`.
    pub lines: u32,
    /// By `at_once`.
    pub by: Divisor,
}

impl Walk {
    /// The items of a line at a time, lines at a time and rounds: of as few as there can be for so many lines of so many items.
    const fn rounds(items: u32, lines: u32) -> [u32; 3] {
        let mut best = [1, 1, u32::MAX];
        let least = items.div_ceil(AXES_THREADS);
        let mut parts = least;
        while parts < least + 4 && parts <= items {
            let at_once = items.div_ceil(parts);
            let there = AXES_THREADS / at_once;
            let rounds = parts * lines.div_ceil(there);
            if rounds < best[2] {
                best = [at_once, there, rounds];
            }
            parts += 1;
        }
        best
    }

    const fn new(items: u32, lines: u32) -> Self {
        let [at_once, there, _] = Self::rounds(items, lines);
        Self { at_once, lines: there, by: Divisor::new(at_once) }
    }
}

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
    /// The ways through what is read (with channels innermost), through rows of windows, and through windows.
    pub bring: Walk,
    /// See `bring`.
    pub first: Walk,
    /// See `bring`.
    pub second: Walk,
    /// Bytes from a line of rows of windows to the next.
    pub pitch: u32,
    /// By the tiles of the words of channels.
    pub by_words: Divisor,
    /// By the tiles of a row.
    pub by_across: Divisor,
    /// By the tiles of a column.
    pub by_down: Divisor,
    /// By the runs of rows of outputs of a tile.
    pub by_rows: Divisor,
}

/// Neighbours of a thread along an axis.
const fn run(args: &Args, axis: &Axis) -> u32 {
    let most = match (axis.stride, args.average) {
        (1, 1) => 1,
        (1 | 2, _) => 3,
        _ => return 1,
    };
    if axis.dilation == 1 && axis.kernel > most { AXES_RUN } else { 1 }
}

/// Words of channels of a thread, where they are innermost: four sums, or 16 bytes of maxima.
pub const fn axes_item(average: u32, bytes: u32) -> u32 {
    if average == 1 && bytes == 2 { 2 } else { 4 }
}

/// Taps that `outputs` windows read, of an axis of `len`.
const fn read(stride: u32, reach: u32, outputs: u32, len: u32) -> u32 {
    let all = (outputs as u64 - 1) * stride as u64 + reach as u64;
    if all > len as u64 { len } else { all as u32 }
}

/// What a tile takes.
#[derive(Clone, Copy)]
struct Sizes {
    /// Rows of windows of all planes, and bytes from one to the next.
    lines: u32,
    pitch: u32,
    /// Pieces of 16 bytes of a line that is read, of channels innermost.
    pieces: u32,
    /// Items of a row of windows, and of a row of windows' outputs.
    items: [u32; 2],
    /// Rows of outputs that threads go through.
    runs: u32,
    tops: u64,
    smem: u64,
}

/// What a tile of `planes` planes of `rows` by `columns` outputs takes, of `words` words of channels where they are innermost.
const fn sizes(args: &Args, bytes: u32, [planes, words, rows, columns]: [u32; 4]) -> Sizes {
    let (h, w) = (&args.h, &args.w);
    let last = args.channels_last == 1;
    let lines = if planes > 1 { h.len } else { read(h.stride, h.dilation * (h.kernel - 1) + 1, rows, h.len) };
    let wide = read(w.stride, w.dilation * (w.kernel - 1) + 1, columns, w.len);
    let (input, top, each) = if last {
        // Sums of 16-bit elements are twice as wide.
        let top = words * if args.average == 1 { 16 / bytes } else { 4 };
        (lines as u64 * (wide * words * 4) as u64, top, words / axes_item(args.average, bytes))
    } else {
        ((planes * lines) as u64 * (w.len * bytes) as u64 + 32, 4, 1)
    };
    let tops = input.next_multiple_of(16);
    let (across, below) = (run(args, w), run(args, h));
    // So that the sums of a thread are written at once.
    let pitch = columns.next_multiple_of(across) * top;
    Sizes {
        lines: planes * lines,
        pitch,
        pieces: if last { wide * words / 4 } else { 1 },
        items: [columns.div_ceil(across) * each, columns * each],
        runs: planes * rows.div_ceil(below),
        tops,
        smem: tops + (planes * lines) as u64 * pitch as u64,
    }
}

/// A tile of `planes` planes of `rows` by `columns` outputs, of `words` words of channels where they are innermost; `None` where shared memory
/// has no room for it.
pub const fn axes_of(args: &Args, bytes: u32, [planes, words, rows, columns]: [u32; 4]) -> Option<AxesArgs> {
    let (h, w) = (&args.h, &args.w);
    let last = args.channels_last == 1;
    let tile = sizes(args, bytes, [planes, words, rows, columns]);
    let tiles = if last { (args.channels * bytes / 4).div_ceil(words) } else { 1 };
    let (right, down) = (w.out.div_ceil(columns), h.out.div_ceil(rows));
    let all = args.images as u64 * if last { 1 } else { args.channels as u64 };
    let blocks = all.div_ceil(planes as u64) * tiles as u64 * right as u64 * down as u64;
    if tile.smem > AXES_SMEM as u64 || blocks >= 1 << 31 {
        return None;
    }
    let below = run(args, h);
    Some(AxesArgs {
        pool: *args,
        planes,
        words,
        rows,
        columns,
        across: run(args, w),
        down: below,
        bring: Walk::new(tile.pieces, tile.lines),
        first: Walk::new(tile.items[0], tile.lines),
        second: Walk::new(tile.items[1], tile.runs),
        pitch: tile.pitch,
        tops: tile.tops as u32,
        smem: tile.smem as u32,
        blocks: blocks as u32,
        by_words: Divisor::new(tiles),
        by_across: Divisor::new(right),
        by_down: Divisor::new(down),
        by_rows: Divisor::new(rows.div_ceil(below)),
    })
}

/// About the instructions of a thread for the neighbours that it makes at a time, of `lanes` elements and so many instructions a tap.
const fn turn(args: &Args, axis: &Axis, lanes: u32, tap: u32) -> u32 {
    let near = run(args, axis);
    let all = 16 + (axis.kernel + (near - 1) * axis.stride) * (1 + tap);
    match (near, axis.stride, args.average) {
        (1, ..) => all,
        (_, 1, 1) => all + 2 * axis.kernel * lanes + (axis.kernel + 3) * 2,
        (_, 2, _) => all + 2 * axis.kernel * lanes + (axis.kernel + 6) * 2,
        _ => all + 20 + 8 * lanes,
    }
}

/// What a tile costs, about in instructions of a thread.
const fn cost(args: &Args, bytes: u32, tile: &Sizes) -> u64 {
    let last = args.channels_last == 1;
    let average = args.average == 1;
    let lanes = if last { 4 } else { 1 };
    // Of a tap of a row: from 16 bits to 32.
    let widen = if average && bytes == 2 { lanes } else { 0 };
    let first = Walk::rounds(tile.items[0], tile.lines)[2] * turn(args, &args.w, lanes, lanes + widen);
    let second = Walk::rounds(tile.items[1], tile.runs)[2] * turn(args, &args.h, lanes, lanes);
    let bring = if last { Walk::rounds(tile.pieces, tile.lines)[2] * 8 } else { (tile.tops as u32).div_ceil(16 * AXES_THREADS) * 14 };
    (first + second + bring + 400) as u64
}

/// What tiles of `words` words of channels cost beside their work, in 64ths: short lines of memory take longer, and there may be fewer channels.
const fn lines_of(args: &Args, bytes: u32, words: u32) -> u64 {
    let all = args.channels * bytes / 4;
    let made = (all.next_multiple_of(words) as u64 * 64).div_ceil(all as u64);
    if words < LINE { made * (2 * LINE) as u64 / (words + LINE) as u64 } else { made }
}

/// The tile that windows are made in; `None` where these kernels do not take them, or where others are faster: where all taps of small
/// windows that share few, or of channels innermost, are asked for at once.
pub const fn axes(args: &Args, bytes: u32) -> Option<AxesArgs> {
    let apart = args.h.stride > 1 || args.w.stride > 1;
    if args.square() && (args.channels_last == 1 || apart) { None } else { axes_tile(args, bytes) }
}

/// The tile that windows are made in; `None` where these kernels do not take them.
pub const fn axes_tile(args: &Args, bytes: u32) -> Option<AxesArgs> {
    let (h, w) = (&args.h, &args.w);
    let last = args.channels_last == 1;
    let reach = [h.dilation as u64 * (h.kernel - 1) as u64, w.dilation as u64 * (w.kernel - 1) as u64];
    let deep = if last { args.channels as u64 } else { 1 };
    let areas = [h.len as u64 * w.len as u64 * deep, h.out as u64 * w.out as u64 * deep];
    let row = args.channels as u64 * bytes as u64;
    let aligned = if last {
        row.is_multiple_of(16) && args.x.addr().is_multiple_of(16) && args.y.addr().is_multiple_of(16)
    } else {
        args.x.addr().is_multiple_of(bytes as u64) && w.len * bytes <= 1 << 14
    };
    if !aligned || areas[0] >= 1 << 28 || areas[1] >= 1 << 28 || reach[0] >= 1 << 12 || reach[1] >= 1 << 12 {
        return None;
    }
    let all = args.images as u64 * if last { row.div_ceil(64) } else { args.channels as u64 };
    let mut best = [0; 4];
    let mut least = u64::MAX;
    // More where there are few outputs, no more than there are channels.
    let wide = (args.channels * bytes / 4).next_power_of_two();
    let mut words = match (last, areas[1] / deep <= 16) {
        (true, true) => AXES_WORDS,
        (true, false) => LINE,
        _ => 1,
    };
    words = if last && words > wide { wide } else { words };
    let half = words / 2;
    while words > 0 {
        let mut right = 1;
        while right <= 32 && right <= w.out && (last || right == 1) {
            let columns = w.out.div_ceil(right);
            let mut parts = 1;
            while parts <= 64 && parts <= h.out {
                let rows = h.out.div_ceil(parts);
                let one = sizes(args, bytes, [1, words, rows, columns]);
                let mut many = 1;
                if parts == 1 && !last && one.smem < FILL as u64 / 2 {
                    many = FILL / 2 / one.smem as u32;
                    let share = all / 800;
                    many = if many as u64 > share { share as u32 } else { many };
                    many = if many == 0 { 1 } else { many };
                }
                let tile = if many > 1 { sizes(args, bytes, [many, words, rows, columns]) } else { one };
                if tile.smem <= AXES_SMEM as u64 {
                    let made = many as u64 * words as u64 * rows as u64 * columns as u64;
                    let cost = (cost(args, bytes, &tile) << 12) / made;
                    // Fewer blocks wait for each other.
                    let cost = if tile.smem > FILL as u64 { cost * 4 / 3 } else { cost };
                    let cost = if last { cost * lines_of(args, bytes, words) } else { cost };
                    if cost < least {
                        (least, best) = (cost, [many, words, rows, columns]);
                    }
                }
                // Smaller ones take more besides.
                if one.smem < FILL as u64 / 8 {
                    break;
                }
                parts += if parts < 8 { 1 } else { parts / 4 };
            }
            right += if right < 8 { 1 } else { right / 2 };
        }
        // Fewer than half where nothing else fits.
        words = if last && words > 4 && (words > half || least == u64::MAX) { words / 2 } else { 0 };
    }
    if least == u64::MAX { None } else { axes_of(args, bytes, best) }
}

macro_rules! axes {
    ($($name:ident $symbol:literal $blocks:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = AxesArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, AXES_THREADS)
                .with_min_blocks($blocks)
                .with_smem(AXES_SMEM)
                .with_min_sm(80);

            fn smem_bytes(args: &AxesArgs) -> u32 {
                args.smem
            }
        }
    )*};
}

axes! {
    AxesF32 "pool2d_axes_f32" 5 "Windows of any kind over planes of `f32`: [`AxesArgs`].";
    AxesF16 "pool2d_axes_f16" 5 "The same of f16.";
    AxesBf16 "pool2d_axes_bf16" 5 "The same of bf16.";
    AxesLastF32 "pool2d_axes_last_f32" 3 "Windows of any kind over images of `f32`, channels last: [`AxesArgs`].";
    AxesLastF16 "pool2d_axes_last_f16" 3 "The same of f16.";
    AxesLastBf16 "pool2d_axes_last_bf16" 3 "The same of bf16.";
}
