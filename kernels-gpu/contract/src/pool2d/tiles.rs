//! Windows that share taps, channels last: bands of images, from the top to the bottom.

use super::Args;
use crate::conv2d::Divisor;
use crate::launch::{Kernel, LaunchSpec};

/// Threads of a block that makes bands of outputs: [`TilesArgs`].
pub const TILES_THREADS: u32 = 128;

/// Neighbouring outputs of a thread there, of a word of channels.
pub const TILES_OUTPUTS: u32 = 4;

/// Most bytes of shared memory of such a block.
pub const TILES_SMEM: u32 = 64 * 1024;

/// Bytes of it that leave room for four blocks a multiprocessor.
const FILL: u32 = 55 * 1024;

/// Blocks that run at a time, about.
const AT_ONCE: u64 = 528;

/// The parameter of the kernels that make bands of windows, where channels are innermost, passed by value.
///
/// A block walks down some bands of columns: a turn of lines of pixels after the other comes to shared memory while it works on the one before.
/// A thread has a word of channels of [`TILES_OUTPUTS`] neighbouring outputs, and makes the maxima or sums of a line once for all windows
/// that it is part of.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TilesArgs {
    /// Tensors and windows.
    pub pool: Args,
    /// Bytes of channels of a band, 128 or 64.
    pub wide: u32,
    /// Columns of outputs of a band, and bands of a block.
    pub columns: u32,
    /// See `columns`.
    pub bands: u32,
    /// Rows of outputs of a band.
    pub rows: u32,
    /// Pixels of a line of a band.
    pub line: u32,
    /// Bytes of shared memory from a line of one band to that of the next, and of all bands to the next line.
    pub band: u32,
    /// See `band`.
    pub pitch: u32,
    /// Turns of lines that are there or come.
    pub stages: u32,
    /// Turns in all.
    pub turns: u32,
    /// Bytes of shared memory in all.
    pub smem: u32,
    /// Blocks: `wide` bytes of channels fastest, then bands: columns fastest, then rows, then images.
    pub blocks: u32,
    /// By the pixels of a line.
    pub by_line: Divisor,
    /// By the threads of a line of a band, of a word.
    pub by_group: Divisor,
    /// By the tiles of channels.
    pub by_channels: Divisor,
    /// By the bands of a row.
    pub by_columns: Divisor,
    /// By the bands of a column.
    pub by_down: Divisor,
}

/// Whether the kernels have a form for windows of `side` by `side`, `step` apart.
pub const fn tiles_form(average: u32, side: u32, step: u32) -> bool {
    match (side, step) {
        (3, 1) | (5 | 7, 1 | 2) | (4 | 6, 2) | (4, 4) => true,
        (9 | 13, 1) => average == 0,
        _ => false,
    }
}

/// Lines of a turn: each place of registers has been that of each age, or of a block of maxima.
pub const fn tiles_turn(average: u32, side: u32, step: u32) -> u32 {
    let turn = if average == 0 && step == 1 { side - 1 } else { side.div_ceil(step) * step };
    if turn < 4 { turn * (6 / turn) } else { turn }
}

/// Bands of `columns` columns and `rows` rows of outputs and `wide` bytes of channels, of elements of `bytes`, `bands` of them a block; `None`
/// where these kernels do not take the windows or shared memory not the bands.
pub const fn tiles_of(args: &Args, bytes: u32, [wide, columns, rows, bands]: [u32; 4]) -> Option<TilesArgs> {
    let (h, w) = (&args.h, &args.w);
    let (side, step) = (w.kernel, w.stride);
    let square = h.kernel == side && h.stride == step && tiles_form(args.average, side, step);
    let row = args.channels as u64 * bytes as u64;
    let image = row * h.len as u64 * w.len as u64;
    let aligned = row.is_multiple_of(16) && args.x.addr().is_multiple_of(16) && args.y.addr().is_multiple_of(16);
    let dense = h.dilation == 1 && w.dilation == 1 && args.channels_last == 1;
    let outputs = row * h.out as u64 * w.out as u64;
    if !square || !dense || !aligned || image >= 1 << 31 || outputs >= 1 << 31 {
        return None;
    }
    let Sizes { line, band, stages, smem } = sizes(args, [wide, columns, bands]);
    let turn = tiles_turn(args.average, side, step);
    let lines = (rows - 1) * step + side;
    let channels = row.div_ceil(wide as u64);
    let (across, down) = (w.out.div_ceil(columns), h.out.div_ceil(rows));
    let all = across as u64 * down as u64 * args.images as u64;
    let blocks = channels * all.div_ceil(bands as u64);
    let groups = bands * columns / TILES_OUTPUTS;
    if smem > TILES_SMEM || blocks >= 1 << 31 || all >= 1 << 31 || groups * (wide / 4) > TILES_THREADS {
        return None;
    }
    Some(TilesArgs {
        pool: *args,
        wide,
        columns,
        bands,
        rows,
        line,
        band,
        pitch: bands * band,
        stages,
        turns: lines.div_ceil(turn),
        smem,
        blocks: blocks as u32,
        by_line: Divisor::new(line),
        by_group: Divisor::new(columns / TILES_OUTPUTS),
        by_channels: Divisor::new(channels as u32),
        by_columns: Divisor::new(across),
        by_down: Divisor::new(down),
    })
}

/// What the bands of a block take.
#[derive(Clone, Copy)]
struct Sizes {
    line: u32,
    band: u32,
    stages: u32,
    smem: u32,
}

const fn sizes(args: &Args, [wide, columns, bands]: [u32; 3]) -> Sizes {
    let (side, step) = (args.w.kernel, args.w.stride);
    let line = (columns - 1) * step + side;
    // Neighbouring pixels may change places.
    let band = line.next_multiple_of(2) * wide;
    let stage = tiles_turn(args.average, side, step) * bands * band;
    // Of averages what sums are divided by, for each number of rows and columns.
    let table = if args.average == 1 { 8 * side * side } else { 0 };
    let stages = if 3 * stage + table <= FILL { 3 } else { 2 };
    Sizes { line, band, stages, smem: stages * stage + table }
}

/// What a line of all images costs in such bands, about in instructions of warps.
const fn cost(args: &Args, bytes: u32, [wide, columns, bands]: [u32; 3]) -> u64 {
    let side = args.w.kernel;
    let Sizes { line, stages, smem, .. } = sizes(args, [wide, columns, bands]);
    let warps = (bands * (columns / TILES_OUTPUTS) * (wide / 4)).div_ceil(32);
    let each = 60 + side * if args.average == 1 { 16 } else { 6 };
    let block = warps * each + bands * line * wide / 16 + 60;
    let parts = args.channels as u64 * bytes as u64;
    let parts = parts.div_ceil(wide as u64) * args.w.out.div_ceil(columns) as u64;
    let all = parts * (block * 64 / bands) as u64;
    // Halves of lines of memory, less on its way, and fewer blocks beside each other take longer.
    let all = if wide < 128 { all * 9 / 8 } else { all };
    let all = if stages < 3 { all * 17 / 16 } else { all };
    if smem > FILL { all * 5 / 4 } else { all }
}

/// The bands that windows are made in; `None` where these kernels do not take them.
pub const fn tiles(args: &Args, bytes: u32) -> Option<TilesArgs> {
    let (h, w) = (&args.h, &args.w);
    // Turns of as many lines as a window of 13 has are too many for a short column.
    let short = w.kernel == 13 && h.out < 20;
    if args.channels_last == 0 || short || !tiles_form(args.average, w.kernel, w.stride) {
        return None;
    }
    let mut best = [0; 3];
    let mut least = u64::MAX;
    let mut wide = 128;
    while wide >= 64 {
        let most = TILES_THREADS / (wide / 4);
        let mut groups = 1;
        while groups <= most {
            // Bands of about one size.
            let across = w.out.div_ceil(groups * TILES_OUTPUTS);
            let columns = w.out.div_ceil(across).next_multiple_of(TILES_OUTPUTS);
            let mut bands = most * TILES_OUTPUTS / columns;
            while bands > 0 {
                let cost = cost(args, bytes, [wide, columns, bands]);
                if cost < least && sizes(args, [wide, columns, bands]).smem <= TILES_SMEM {
                    (least, best) = (cost, [wide, columns, bands]);
                }
                bands -= 1;
            }
            groups += 1;
        }
        wide /= 2;
    }
    let [wide, columns, bands] = best;
    if wide == 0 {
        return None;
    }
    let channels = (args.channels as u64 * bytes as u64).div_ceil(wide as u64);
    let one = channels * w.out.div_ceil(columns) as u64 * args.images as u64;
    let (mut rows, mut least, mut parts) = (h.out, u64::MAX, 1);
    // Parts of a column, so that blocks end one after the other.
    while parts <= 32 && parts <= h.out {
        let some = h.out.div_ceil(parts);
        let lines = (some as u64 - 1) * h.stride as u64 + h.kernel as u64;
        let blocks = one.div_ceil(bands as u64) * parts as u64;
        // In steps of one as many are written as read, and long columns take longer, more of which are open at a time.
        let cost = if h.stride > 1 {
            blocks.div_ceil(AT_ONCE) * (lines + 12) * 8
        } else {
            let blocks = if blocks < AT_ONCE / 2 { AT_ONCE / 2 } else { blocks };
            (blocks * 5 + AT_ONCE * 3) * (lines + 6)
        };
        if cost < least {
            (least, rows) = (cost, some);
        }
        parts += 1;
    }
    tiles_of(args, bytes, [wide, columns, rows, bands])
}

macro_rules! tiles {
    ($($name:ident $symbol:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = TilesArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, TILES_THREADS)
                .with_min_blocks(4)
                .with_smem(TILES_SMEM)
                .with_min_sm(80);

            fn smem_bytes(args: &TilesArgs) -> u32 {
                args.smem
            }
        }
    )*};
}

tiles! {
    TilesF32 "pool2d_tiles_f32" "Windows of [`tiles_form`] over images of `f32`, channels last: [`TilesArgs`].";
    TilesF16 "pool2d_tiles_f16" "The same of f16.";
    TilesBf16 "pool2d_tiles_bf16" "The same of bf16.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::DevPtr;
    use crate::pool2d::Axis;

    #[test]
    fn bands_cover_all_outputs_and_fit() {
        for (side, stride) in [(3, 1), (4, 2), (4, 4), (5, 1), (5, 2), (6, 2), (7, 1), (7, 2), (9, 1), (13, 1), (3, 2), (8, 8)] {
            for len in (side..230).step_by(9) {
                for (average, bytes, channels, images) in [(0, 4, 4, 1), (0, 2, 64, 64), (1, 4, 200, 3), (1, 2, 24, 500)] {
                    let axis = Axis { len, out: 1, kernel: side, stride, padding: side / 2, dilation: 1 };
                    let axis = Axis { out: axis.outputs(false).unwrap(), ..axis };
                    let args = Args {
                        x: DevPtr::from_addr(1 << 20),
                        y: DevPtr::from_addr(1 << 30),
                        images,
                        channels,
                        h: axis,
                        w: axis,
                        average,
                        count_include_pad: 1,
                        channels_last: 1,
                        piece: 1,
                    };
                    assert!(tiles(&Args { channels_last: 0, ..args }, bytes).is_none());
                    let Some(tile) = tiles(&args, bytes) else {
                        let taken = tiles_form(average, side, stride) && (side < 13 || axis.out >= 20);
                        assert!(!taken, "{args:?}");
                        continue;
                    };
                    let parts = (channels * bytes).div_ceil(tile.wide);
                    let bands = axis.out.div_ceil(tile.columns) * axis.out.div_ceil(tile.rows) * images;
                    assert_eq!(tile.blocks, parts * bands.div_ceil(tile.bands), "{args:?}");
                    let threads = tile.bands * tile.columns / TILES_OUTPUTS * (tile.wide / 4);
                    assert!(tile.columns.is_multiple_of(TILES_OUTPUTS) && threads <= TILES_THREADS, "{args:?}");
                    let lines = (tile.rows - 1) * stride + side;
                    assert!(tile.turns * tiles_turn(average, side, stride) >= lines && tile.smem <= TILES_SMEM, "{args:?}");
                }
            }
        }
    }
}
