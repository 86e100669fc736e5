//! Windows of the usual sizes in planes, rows innermost: a thread makes 16 bytes of neighbouring outputs of many rows.

use super::{Args, PLANES_BEHIND, PLANES_SMEM, PlanesArgs};
use crate::conv2d::Divisor;
use crate::launch::{Kernel, LaunchSpec};

/// Threads of a block.
pub const STRIPS_THREADS: u32 = 64;

/// Bytes of shared memory of a multiprocessor, less what each block takes besides.
const SHARED: u32 = 227 * 1024;

/// See [`PlanesArgs::ahead`], in bytes of the image: more than some 16 MB would be gone again.
const STRIPS_AHEAD: u32 = 10 << 20;

/// Shared memory in front of rows that lie one behind the other: what is outside of the image, as much as a thread reads of a row.
pub const STRIPS_OUTSIDE: u32 = 96;

/// Whether the kernels have a form for windows of `side` by `side`, `step` apart.
pub const fn strips_form(average: u32, side: u32, step: u32) -> bool {
    match (side, step) {
        (2 | 4 | 6, 2) | (4, 4) | (3 | 5 | 7, 1 | 2) => true,
        (9 | 13, 1) => average == 0,
        _ => false,
    }
}

/// Where the first window of windows of `side` starts in a row of shared memory, in elements of which 16 bytes have `size`: so that the
/// row itself starts at a multiple of 16 bytes where the padding is half a window, or, of `bare` ones, none.
pub const fn strips_first(side: u32, size: u32, bare: bool) -> u32 {
    let padding = if bare { 0 } else { (side - 1) / 2 };
    padding.next_multiple_of(size) - padding
}

/// Whether windows are those of 3 by 3 in steps of 2 without padding across.
pub const fn strips_bare(args: &Args) -> bool {
    let w = &args.w;
    w.kernel == 3 && w.stride == 2 && w.padding == 0
}

/// Rows that a thread reads for `run` rows of outputs.
const fn read(args: &Args, run: u32) -> u32 {
    (run - 1) * args.h.stride + args.h.kernel
}

/// What a tile takes.
#[derive(Clone, Copy)]
struct Sizes {
    runs: u32,
    pieces: u32,
    /// Lines of a plane, and bytes of one.
    lines: u32,
    pitch: u32,
    gap: u32,
    /// Whether rows come as they are, in pieces of 16 bytes.
    even: bool,
    direct: bool,
    tops: u64,
    outputs: u64,
    smem: u64,
}

/// What a tile of `planes` planes of `rows` rows of outputs takes, `run` a thread, lines `more` bytes longer than they have to be.
const fn sizes(args: &Args, bytes: u32, planes: u32, rows: u32, run: u32, more: u32) -> Sizes {
    let (h, w) = (&args.h, &args.w);
    let size = 16 / bytes;
    let runs = rows.div_ceil(run);
    let pieces = w.out.div_ceil(size);
    // What the last thread reads; of several planes all rows of the image are brought.
    let lines = (runs - 1) * run * h.stride + read(args, run);
    let whole = h.len + h.padding;
    let lines = if planes > 1 && lines < whole { whole } else { lines };
    // So that windows start where the kernel has them.
    let gap = (strips_first(w.kernel, size, strips_bare(args)) + w.padding) * bytes;
    let row = w.len * bytes;
    let direct = (w.out * bytes).is_multiple_of(16) && args.y.addr().is_multiple_of(16);
    let even = (row | gap).is_multiple_of(16) && args.x.addr().is_multiple_of(16) && (direct || w.stride > 1);
    // Beside a row there is room for what its windows read outside of the image.
    let end = (w.out - 1) * w.stride + w.kernel - w.padding;
    let beside = if end > w.len { (end - w.len) * bytes } else { 0 };
    let pitch = (row + if beside > gap { beside } else { gap }).next_multiple_of(16) + more;
    // The last pieces of a line may end behind it.
    let line = ((pieces * size - 1) * w.stride + w.kernel) * bytes + gap;
    let over = PLANES_BEHIND + line.saturating_sub(pitch).next_multiple_of(16);
    // Other rows lie one behind the other, as they do in memory.
    let there = if planes > 1 || lines > h.len { h.len } else { lines };
    let packed = (planes * there * row).next_multiple_of(16) + STRIPS_OUTSIDE + 16 + PLANES_BEHIND;
    let tops = if even { planes as u64 * lines as u64 * pitch as u64 + over as u64 } else { packed as u64 };
    let table = if args.average == 1 { (8 * w.kernel * w.kernel).next_multiple_of(16) } else { 0 };
    let waiting = if direct { 0 } else { planes as u64 * rows as u64 * (w.out * bytes) as u64 + 32 };
    let outputs = tops + table as u64;
    Sizes {
        runs,
        pieces,
        lines,
        pitch: if even { pitch } else { row },
        gap,
        even,
        direct,
        tops,
        outputs,
        smem: outputs + waiting,
    }
}

/// Accesses that the first warp needs for one load of 16 bytes a thread, 4 at least.
const fn meetings(args: &Args, tile: &Sizes, run: u32) -> u32 {
    let mut all = 0;
    let mut quarter = 0;
    while quarter < 4 {
        let mut banks = [0; 8];
        let mut most = 0;
        let mut lane = 0;
        while lane < 8 {
            let task = quarter * 8 + lane;
            let (rest, piece) = (task / tile.pieces, task % tile.pieces);
            let line = rest / tile.runs * tile.lines + rest % tile.runs * run * args.h.stride;
            let bank = (line * (tile.pitch / 16) + piece * args.h.stride) as usize % 8;
            banks[bank] += 1;
            if banks[bank] > most {
                most = banks[bank];
            }
            lane += 1;
        }
        all += most;
        quarter += 1;
    }
    all
}

/// A tile of `planes` planes of `rows` rows of outputs, `run` a thread; `None` where shared memory has no room for it, or these
/// kernels do not take the windows.
pub const fn strips_of(
    args: &Args,
    bytes: u32,
    planes: u32,
    rows: u32,
    run: u32,
) -> Option<PlanesArgs> {
    let (h, w) = (&args.h, &args.w);
    let square = h.kernel == w.kernel && h.stride == w.stride && h.dilation == 1 && w.dilation == 1;
    if !square
        || !strips_form(args.average, w.kernel, w.stride)
        || args.channels_last == 1
        || w.len * bytes > 1 << 14
    {
        return None;
    }
    // Lines so long that the threads of a warp seldom meet in the banks of shared memory.
    let mut made = sizes(args, bytes, planes, rows, run, 0);
    let mut least = meetings(args, &made, run);
    let mut more = 16;
    while made.even && more < 64 && least > 4 {
        let other = sizes(args, bytes, planes, rows, run, more);
        let count = meetings(args, &other, run);
        if count < least {
            (least, made) = (count, other);
        }
        more += 16;
    }
    let Sizes { runs, pieces, lines, pitch, gap, even, direct, tops, outputs, smem } = made;
    let all = args.images as u64 * args.channels as u64;
    let down = h.out.div_ceil(rows);
    let blocks = all.div_ceil(planes as u64) * down as u64;
    if smem > PLANES_SMEM as u64 || blocks >= 1 << 31 || planes > 1 && down > 1 {
        return None;
    }
    // Whether rows of outputs start at words.
    let words = ((w.out * bytes) | args.y.addr() as u32).is_multiple_of(4);
    // Pieces of a row that come.
    let come = if even { w.len * bytes / 16 } else { 1 };
    let at_once = if come < STRIPS_THREADS { come } else { STRIPS_THREADS };
    let ends = [
        (h.out - 1) * h.stride + h.kernel <= h.len + 2 * h.padding,
        (w.out - 1) * w.stride + w.kernel <= w.len + 2 * w.padding,
    ];
    let same =
        ends[0] && ends[1] && (args.count_include_pad == 1 || h.padding == 0 && w.padding == 0);
    Some(PlanesArgs {
        pool: *args,
        planes,
        rows,
        columns: w.out,
        lines,
        words: come,
        words_at_once: at_once,
        lines_at_once: STRIPS_THREADS / at_once,
        pitch,
        top_pitch: 0,
        tops: tops as u32,
        outputs: outputs as u32,
        smem: smem as u32,
        direct: if direct { 2 } else { words as u32 },
        tops_at_once: 1,
        whole: same as u32,
        pieces,
        tasks: planes * runs * pieces,
        run,
        even: even as u32,
        gap,
        blocks: blocks as u32,
        ahead: STRIPS_AHEAD / (planes * rows * h.stride * w.len * bytes) + 1,
        by_words: Divisor::new(at_once),
        by_height: Divisor::new(h.len),
        by_pieces: Divisor::new(lines),
        by_columns: Divisor::new(pieces),
        by_rows: Divisor::new(runs),
        by_across: Divisor::new(1),
        by_down: Divisor::new(down),
    })
}

/// The tile that windows in planes are made in; `None` where these kernels do not take them.
pub const fn strips(args: &Args, bytes: u32) -> Option<PlanesArgs> {
    let (h, w) = (&args.h, &args.w);
    let areas = [h.len as u64 * w.len as u64, h.out as u64 * w.out as u64];
    let large = areas[0] >= 1 << 28 || areas[1] >= 1 << 28;
    if args.channels_last == 1 || large || !args.x.addr().is_multiple_of(bytes as u64) {
        return None;
    }
    // Of `f32` the taps of small windows that share few come one by one faster.
    let small = bytes == 4 && w.kernel <= 3 && w.stride > 1;
    // As do those of rows in whole pieces, in and out.
    let lines = args.lines(bytes) && (w.stride == 2 && (w.out * bytes).is_multiple_of(16) || args.apart(bytes));
    // Most of a piece would be none of so few outputs.
    let short = w.stride == 4 && w.out * bytes < 8;
    if small || short || lines || !strips_form(args.average, w.kernel, w.stride) || w.len * bytes > 1 << 14 {
        return None;
    }
    let all = args.images as u64 * args.channels as u64;
    let size = 16 / bytes;
    let pieces = w.out.div_ceil(size);
    let mut best = [0, 0, 0];
    let mut least = u64::MAX;
    let mut parts = 1;
    // Parts of a plane, and of those as many runs of rows.
    while parts <= 32 && parts <= h.out {
        let rows = h.out.div_ceil(parts);
        let mut runs = 1;
        while runs <= 16 && runs <= rows {
            let run = rows.div_ceil(runs);
            // Of whole planes as many as make whole rounds of all threads, or one; of a part of a plane there is one.
            let most = if parts == 1 { 4 } else { 0 };
            let mut rounds = 0;
            while rounds <= most {
                let planes =
                    if rounds == 0 { 1 } else { rounds * STRIPS_THREADS / (runs * pieces) };
                let enough = planes <= 1 || all / planes as u64 >= 1200;
                if planes > 0 && enough && (rounds == 0 || planes > 1) {
                    let made = sizes(args, bytes, planes, rows, run, 0);
                    let blocks = SHARED as u64 / (made.smem + 1024);
                    if made.smem <= PLANES_SMEM as u64 && blocks > 1 {
                        let rounds = (planes * runs * pieces).div_ceil(STRIPS_THREADS) as u64;
                        // Lines of all threads, what comes and goes, and what a block takes besides, about as instructions.
                        let line = 48 + if args.average == 1 { 8 * h.kernel } else { 0 };
                        let line = line + if made.even { 0 } else { 32 };
                        let lines = rounds * (read(args, run) * line) as u64;
                        let come = planes * made.lines * made.pitch / 16;
                        let go = planes * rows * pieces;
                        // What a tile takes besides is little where rows come and go as they are, and small ones overlap better.
                        let fine = made.even && made.direct;
                        let through = (come * 8 + go * if made.direct { 8 } else { 28 }) as u64;
                        let cost = (lines + through / 64 + if fine { 45 } else { 400 })
                            * parts as u64
                            * 64
                            / planes as u64;
                        // Fewer blocks wait longer for each other.
                        let few = args.average == 1 && bytes == 2 && (!made.even || w.kernel > 6);
                        let most = if few { 6 } else { 14 };
                        let there = if blocks < most { blocks } else { most };
                        let cost = cost * (if fine { 40 } else { 96 } - there) / 40;
                        let cost = if there < most && blocks < 7 { cost * (15 - blocks) / 8 } else { cost };
                        if cost < least {
                            (least, best) = (cost, [planes, rows, run]);
                        }
                    }
                }
                rounds += 1;
            }
            runs += 1;
        }
        parts += if parts < 8 { 1 } else { 4 };
    }
    if least == u64::MAX { None } else { strips_of(args, bytes, best[0], best[1], best[2]) }
}

macro_rules! strips {
    ($($name:ident $symbol:literal $blocks:literal $($steps:ident)? $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = PlanesArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, STRIPS_THREADS)
                .with_min_blocks($blocks)
                $(.$steps())?
                .with_smem(PLANES_SMEM)
                .with_min_sm(80);

            fn smem_bytes(args: &PlanesArgs) -> u32 {
                args.smem
            }
        }
    )*};
}

impl LaunchSpec {
    /// Eight blocks spill on GPUs after Hopper, which take the PTX of sm_90.
    const fn fewer_after_hopper(self) -> Self {
        self.with_min_blocks_from(900, 6).with_min_blocks_from(901, self.min_blocks_per_sm)
    }
}

strips! {
    StripsMaxF32 "pool2d_strips_max_f32" 8 fewer_after_hopper "Maxima of windows of [`strips_form`] over planes of `f32`: [`PlanesArgs`].";
    StripsMaxF16 "pool2d_strips_max_f16" 8 "The same of f16.";
    StripsMaxBf16 "pool2d_strips_max_bf16" 8 "The same of bf16.";
    StripsAvgF32 "pool2d_strips_avg_f32" 8 "Averages of such windows over planes of `f32`.";
    StripsAvgF16 "pool2d_strips_avg_f16" 6 "The same of f16.";
    StripsAvgBf16 "pool2d_strips_avg_bf16" 6 "The same of bf16.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::DevPtr;
    use crate::pool2d::Axis;

    #[test]
    fn strips_cover_all_outputs_of_planes_and_take_no_others() {
        for (side, stride) in [(2, 2), (3, 1), (3, 2), (5, 1), (7, 2), (9, 1), (13, 1)] {
            for len in (side..200).step_by(7) {
                for (average, bytes, images) in [(0, 4, 1), (0, 2, 64), (1, 4, 64), (1, 2, 1)] {
                    let axis = Axis { len, out: 1, kernel: side, stride, padding: side / 2, dilation: 1 };
                    let axis = Axis { out: axis.outputs(false).unwrap(), ..axis };
                    let args = Args {
                        x: DevPtr::from_addr(1 << 20),
                        y: DevPtr::from_addr(1 << 30),
                        images,
                        channels: 96,
                        h: axis,
                        w: axis,
                        average,
                        count_include_pad: 1,
                        channels_last: 0,
                        piece: 1,
                    };
                    assert!(strips(&Args { channels_last: 1, ..args }, bytes).is_none());
                    let Some(tile) = strips(&args, bytes) else { continue };
                    let down = axis.out.div_ceil(tile.rows);
                    assert_eq!(tile.blocks, (images * 96).div_ceil(tile.planes) * down, "{args:?}");
                    assert!(tile.planes == 1 || down == 1 && tile.rows == axis.out, "{args:?}");
                    assert!(tile.smem <= PLANES_SMEM && tile.run >= 1 && tile.run <= tile.rows, "{args:?}");
                }
            }
        }
    }
}
