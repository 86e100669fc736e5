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

/// Most parts of a column of outputs.
const PARTS: u32 = 64;

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

/// Elements that a thread makes at a time, and what it takes to widen those of a tap of a row from 16 bits to 32.
const fn lanes(args: &Args, bytes: u32) -> (u32, u32) {
    let lanes = if args.channels_last == 1 { 4 } else { 1 };
    (lanes, if args.average == 1 && bytes == 2 { lanes } else { 0 })
}

/// What a tile costs, about in instructions of a thread.
const fn cost(args: &Args, bytes: u32, tile: &Sizes) -> u64 {
    let last = args.channels_last == 1;
    let (lanes, widen) = lanes(args, bytes);
    let first = Walk::rounds(tile.items[0], tile.lines)[2] * turn(args, &args.w, lanes, lanes + widen);
    let second = Walk::rounds(tile.items[1], tile.runs)[2] * turn(args, &args.h, lanes, lanes);
    let bring = if last { Walk::rounds(tile.pieces, tile.lines)[2] * 8 } else { (tile.tops as u32).div_ceil(16 * AXES_THREADS) * 14 };
    (first + second + bring + 400) as u64
}

/// What an output of the tile costs at least, in 4096ths, where channels are innermost: threads are never fuller than full. Of windows
/// that meet it does not fall where a tile has fewer rows.
const fn least_cost(args: &Args, bytes: u32, tile: &Sizes, rows: u32, made: u64) -> u64 {
    let (lanes, widen) = lanes(args, bytes);
    let (first, second) = (turn(args, &args.w, lanes, lanes + widen), turn(args, &args.h, lanes, lanes));
    let line = tile.items[0] as u64 * first as u64 + tile.pieces as u64 * 8;
    let row = tile.items[1] as u64 * second as u64;
    // Of all threads, times the rows of a run.
    let lines = (AXES_THREADS as u64 * 400 + tile.lines as u64 * line) * AXES_RUN as u64;
    let all = lines + rows as u64 * row * (AXES_RUN / run(args, &args.h)) as u64;
    (all << 12) / (made * (AXES_THREADS * AXES_RUN) as u64)
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
    let meet = h.dilation * (h.kernel - 1) + 1 >= h.stride;
    while words > 0 {
        let beside = if last { lines_of(args, bytes, words) } else { 1 };
        let mut right = 1;
        while right <= 32 && right <= w.out && (last || right == 1) {
            let columns = w.out.div_ceil(right);
            // Not even the tile of the fewest rows may fit.
            let fewest = sizes(args, bytes, [1, words, h.out.div_ceil(PARTS), columns]);
            let mut parts = if fewest.smem > AXES_SMEM as u64 { h.out + 1 } else { 1 };
            while parts <= PARTS && parts <= h.out {
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
                let made = many as u64 * words as u64 * rows as u64 * columns as u64;
                let fits = tile.smem <= AXES_SMEM as u64;
                let dear = last && fits && least_cost(args, bytes, &tile, rows, made) * beside >= least;
                if dear && meet {
                    break;
                }
                if fits && !dear {
                    let cost = (cost(args, bytes, &tile) << 12) / made;
                    // Fewer blocks wait for each other.
                    let cost = if tile.smem > FILL as u64 { cost * 4 / 3 } else { cost };
                    let cost = cost * beside;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::DevPtr;

    /// Numbers that are drawn.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, most: u32) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) % u64::from(most)) as u32
        }

        fn axis(&mut self) -> Option<Axis> {
            let (most, wide) = ([8, 30, 100, 1000][self.below(4) as usize], [4, 14, 40][self.below(3) as usize]);
            let [len, kernel, stride] = [1 + self.below(most), 1 + self.below(wide), 1 + self.below(5)];
            let dilation = 1 + self.below(2) * self.below(3);
            let reach = dilation * (kernel - 1) + 1;
            let padding = self.below(reach / 2 + 1);
            let axis = Axis { len, out: 1, kernel, stride, padding, dilation };
            Some(Axis { out: axis.outputs(self.below(2) == 0)?, ..axis })
        }

        fn args(&mut self) -> Option<Args> {
            let (h, w) = (self.axis()?, self.axis()?);
            let average = if h.dilation == 1 && w.dilation == 1 { self.below(2) } else { 0 };
            let channels = (1 + self.below(80)) * [1, 4, 8][self.below(3) as usize];
            Some(Args {
                x: DevPtr::from_addr(1 << 20),
                y: DevPtr::from_addr(1 << 30),
                images: 1 + self.below(64),
                channels,
                h,
                w,
                average,
                count_include_pad: 0,
                channels_last: self.below(2),
                piece: 1,
            })
        }
    }

    /// The first of least cost among all tiles of so many words of channels, without a look at what cannot be the least.
    fn cheapest(args: &Args, bytes: u32, words: u32, found: &mut (u64, [u32; 4])) {
        let last = args.channels_last == 1;
        let all = args.images as u64 * args.channels as u64;
        let mut right = 1;
        while right <= if last { 32 } else { 1 } && right <= args.w.out {
            let columns = args.w.out.div_ceil(right);
            let mut parts = 1;
            while parts <= PARTS && parts <= args.h.out {
                let rows = args.h.out.div_ceil(parts);
                let one = sizes(args, bytes, [1, words, rows, columns]);
                let several = !last && parts == 1 && one.smem < FILL as u64 / 2;
                let fit = if several { FILL as u64 / 2 / one.smem } else { 1 };
                let many = fit.min(all / 800).max(1) as u32;
                let tile = sizes(args, bytes, [many, words, rows, columns]);
                let made = u64::from(many * words) * u64::from(rows * columns);
                let full = if tile.smem > FILL as u64 { [4, 3] } else { [1, 1] };
                let beside = if last { lines_of(args, bytes, words) } else { 1 };
                let cost = (cost(args, bytes, &tile) << 12) / made * full[0] / full[1] * beside;
                if tile.smem <= AXES_SMEM as u64 && cost < found.0 {
                    *found = (cost, [many, words, rows, columns]);
                }
                if one.smem < FILL as u64 / 8 {
                    break;
                }
                parts += if parts < 8 { 1 } else { parts / 4 };
            }
            right += if right < 8 { 1 } else { right / 2 };
        }
    }

    #[test]
    fn what_is_left_out_is_never_the_cheapest() {
        let (mut draw, mut taken) = (Draw(7), [0; 2]);
        for _ in 0..20_000 {
            let Some(args) = draw.args() else { continue };
            let bytes = [2, 4][draw.below(2) as usize];
            let Some(tile) = axes_tile(&args, bytes) else { continue };
            let mut found = (u64::MAX, [0; 4]);
            if args.channels_last == 1 {
                let few = args.h.out * args.w.out <= 16;
                let wide = (args.channels * bytes / 4).next_power_of_two();
                let most = if few { AXES_WORDS } else { LINE }.min(wide);
                // Half as many too, and fewer where nothing else fits.
                for words in [most, most / 2, most / 4, most / 8, most / 16] {
                    if words >= 4 && (words >= most / 2 || found.0 == u64::MAX) {
                        cheapest(&args, bytes, words, &mut found);
                    }
                }
            } else {
                cheapest(&args, bytes, 1, &mut found);
            }
            assert_eq!([tile.planes, tile.words, tile.rows, tile.columns], found.1, "{args:?}, {bytes} bytes");
            taken[args.channels_last as usize] += 1;
        }
        assert!(taken.iter().all(|&count| count > 2000), "{taken:?}");
    }
}
