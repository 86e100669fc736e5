//! Maxima of windows of any size in planes, rows innermost.

use super::Args;
use crate::conv2d::Divisor;
use crate::launch::{Kernel, LaunchSpec};

/// Threads of a block that makes a tile of outputs of planes: [`PlanesArgs`].
pub const PLANES_THREADS: u32 = 256;

/// Rows of maxima of a thread there.
pub const PLANES_ROWS: u32 = 4;

/// Most bytes of shared memory of such a block.
pub const PLANES_SMEM: u32 = 96 * 1024;

/// Bytes of it that a tile is made to fill.
const PLANES_FILL: u32 = 55 * 1024 + 512;

/// See [`PlanesArgs::ahead`]: about as many blocks as run at once.
const PLANES_AHEAD: u32 = 528;

/// Most bytes of a row of a tile, where there are more columns.
const PLANES_WIDE: u32 = 4096;

/// Shared memory behind what a tile reads, which is read and not used.
pub(super) const PLANES_BEHIND: u32 = 128;

/// The parameter of the kernels that make maxima of windows of any size in planes, and windows in strips, rows innermost, passed by value.
///
/// What a tile of outputs reads comes to shared memory at once, each row so that the first window of the tile starts at a
/// multiple of 16 bytes (of 16-bit elements: there or one behind), with what is outside of the image beside it. The maxima of a
/// window are those of its rows, which go through shared memory again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanesArgs {
    /// Tensors and windows.
    pub pool: Args,
    /// Planes, rows and columns of outputs of a tile: of several planes it has all rows and columns.
    pub planes: u32,
    /// See `planes`.
    pub rows: u32,
    /// See `planes`.
    pub columns: u32,
    /// Rows of a plane that a tile reads, those outside of the image too.
    pub lines: u32,
    /// Words of a row that are copied, how many of them at once, and of how many rows.
    pub words: u32,
    /// See `words`.
    pub words_at_once: u32,
    /// See `words`.
    pub lines_at_once: u32,
    /// Bytes of shared memory from one to the next.
    pub pitch: u32,
    /// The same of maxima of rows.
    pub top_pitch: u32,
    /// Where maxima of rows start in shared memory, and where outputs do that go through it.
    pub tops: u32,
    /// See `tops`.
    pub outputs: u32,
    /// Bytes of it in all.
    pub smem: u32,
    /// Where a thread writes outputs: 2 to memory, 16 bytes at a time; 1 one by one; 0, of a tile with all columns, to shared
    /// memory, where they wait for aligned pieces. Of strips 1 is there too, a word at a time.
    pub direct: u32,
    /// Rows whose maxima are made at once.
    pub tops_at_once: u32,
    /// 1 where all averages have as many taps.
    pub whole: u32,
    /// Threads' worth of work of a row that is read, and of all outputs.
    pub pieces: u32,
    /// See `pieces`.
    pub tasks: u32,
    /// Of strips: rows of outputs of a thread; 1 where rows come to their places at once, in whole pieces of 16 bytes; bytes in front
    /// of a row.
    pub run: u32,
    /// See `run`.
    pub even: u32,
    /// See `run`.
    pub gap: u32,
    /// Tiles: columns fastest, then rows, then planes.
    pub blocks: u32,
    /// A block asks the second-level cache for what the tile so many behind its own reads; 0: for nothing.
    pub ahead: u32,
    /// By `words_at_once`.
    pub by_words: Divisor,
    /// By the rows of a plane.
    pub by_height: Divisor,
    /// By the threads of a row of maxima; of strips, by the lines of a plane.
    pub by_pieces: Divisor,
    /// By the threads of a row of outputs.
    pub by_columns: Divisor,
    /// By the threads of a column of outputs.
    pub by_rows: Divisor,
    /// By the tiles of a row.
    pub by_across: Divisor,
    /// By the tiles of a column.
    pub by_down: Divisor,
}

/// A tile of `planes` planes of `rows` by `columns` outputs; `None` where shared memory has no room for it.
pub const fn planes_of(args: &Args, bytes: u32, planes: u32, rows: u32, columns: u32) -> Option<PlanesArgs> {
    let (h, w) = (&args.h, &args.w);
    let size = 16 / bytes;
    let reach = [(h.kernel - 1) as u64 * h.dilation as u64, (w.kernel - 1) as u64 * w.dilation as u64];
    let lines = (rows - 1) as u64 * h.stride as u64 + reach[0] + 1;
    // Of several planes all rows of the image are brought.
    let all = (h.len + h.padding) as u64;
    let lines = if planes > 1 && lines < all { all } else { lines };
    let pieces = columns.div_ceil(size);
    // One more, which the first may be behind.
    let line = (pieces as u64 * size as u64 - 1) * w.stride as u64 + reach[1] + 2;
    let pitch = (line * bytes as u64).next_multiple_of(16);
    // Those of the image, of several planes all.
    let there = if planes > 1 || lines > h.len as u64 {
        h.len as u64
    } else {
        lines
    };
    let input = planes as u64 * there * pitch + PLANES_BEHIND as u64;
    let tops = planes as u64 * lines * pieces as u64 * 16;
    let direct = if (w.out * bytes).is_multiple_of(16) && args.y.addr().is_multiple_of(16) {
        2
    } else if columns < w.out {
        1
    } else {
        0
    };
    // Maxima take the place of what was read.
    let outputs = if direct > 0 { 0 } else { planes as u64 * rows as u64 * columns as u64 * bytes as u64 + 32 };
    let first = if outputs > input { input + tops } else { 0 };
    let smem = if first == 0 { input + tops } else { first + outputs };
    let all = args.images as u64 * args.channels as u64;
    let (across, down) = (w.out.div_ceil(columns), h.out.div_ceil(rows));
    let blocks = all.div_ceil(planes as u64) * across as u64 * down as u64;
    if smem > PLANES_SMEM as u64 || blocks >= 1 << 31 {
        return None;
    }
    let groups = rows.div_ceil(PLANES_ROWS);
    // Of 16-bit elements the first and the last may be half a word.
    let whole = if columns == w.out && (w.len as u64) < line { w.len } else { line as u32 };
    let words = if bytes == 4 { whole } else { whole / 2 + 1 };
    let block = PLANES_THREADS;
    let at_once = if words < block { words } else { block };
    if pieces > block {
        return None;
    }
    Some(PlanesArgs {
        pool: *args,
        planes,
        rows,
        columns,
        lines: lines as u32,
        words,
        words_at_once: at_once,
        // An even number, so that the rows of a thread start at the same half of a word.
        lines_at_once: if block / at_once < 2 { 1 } else { block / at_once / 2 * 2 },
        pitch: pitch as u32,
        top_pitch: pieces * 16,
        tops: input as u32,
        outputs: first as u32,
        smem: smem as u32,
        direct,
        tops_at_once: block / pieces,
        whole: 0,
        pieces,
        tasks: planes * groups * pieces,
        run: 0,
        even: 0,
        gap: 0,
        blocks: blocks as u32,
        ahead: if columns == w.out { PLANES_AHEAD } else { 0 },
        by_words: Divisor::new(at_once),
        by_height: Divisor::new(h.len),
        by_pieces: Divisor::new(pieces),
        by_columns: Divisor::new(pieces),
        by_rows: Divisor::new(groups),
        by_across: Divisor::new(across),
        by_down: Divisor::new(down),
    })
}

/// The tile that windows in planes are made in; `None` where these kernels do not take them.
pub const fn planes(args: &Args, bytes: u32) -> Option<PlanesArgs> {
    let (h, w) = (&args.h, &args.w);
    let sides = [h.len as u64 * w.len as u64, h.out as u64 * w.out as u64];
    let reach = [(h.kernel - 1) as u64 * h.dilation as u64, (w.kernel - 1) as u64 * w.dilation as u64];
    let large = sides[0] >= 1 << 28 || sides[1] >= 1 << 28 || reach[0] >= 1 << 10 || reach[1] >= 1 << 10;
    // Of 32 bits the taps of small windows that share few come one by one faster, as do those of windows further apart.
    let small = bytes == 4 && args.square() && w.stride > 1;
    if args.channels_last == 1 || args.average == 1 || large || small || h.stride > 2 || w.stride > 2 || !args.x.addr().is_multiple_of(4) {
        return None;
    }
    let size = 16 / bytes;
    let most = PLANES_WIDE / bytes / w.stride;
    let columns = if w.out <= most { w.out } else { w.out.div_ceil(w.out.div_ceil(most)).next_multiple_of(size) };
    let pieces = columns.div_ceil(size);
    let line = (pieces * size - 1) * w.stride + reach[1] as u32 + 2;
    // What a row that is read takes.
    let each = (line * bytes).next_multiple_of(16) + pieces * 16;
    let fit = PLANES_FILL / each;
    let group = PLANES_ROWS;
    let least = reach[0] as u32 + 1 + (group - 1) * h.stride;
    let rows = if fit > least { (fit - reach[0] as u32 - 1) / h.stride + 1 } else { group };
    let rows = if rows >= h.out { h.out } else { h.out.div_ceil(h.out.div_ceil(rows)).next_multiple_of(group) };
    let mut many = 1;
    if rows >= h.out && columns == w.out {
        let lines = (rows.next_multiple_of(group) - 1) * h.stride + reach[0] as u32 + 1;
        let lines = if lines < h.len + h.padding { h.len + h.padding } else { lines };
        many = fit / lines;
        // So that few threads have nothing to do in the last round.
        let each = rows.div_ceil(group) * pieces;
        if many * each > PLANES_THREADS {
            many = many * each / PLANES_THREADS * PLANES_THREADS / each;
        }
        let all = args.images as u64 * args.channels as u64;
        // Enough blocks for all multiprocessors, of which there are up to some 150.
        let share = all / 600;
        many = if many as u64 > share { share as u32 } else { many };
        many = if many == 0 { 1 } else { many };
    }
    planes_of(args, bytes, many, rows, columns)
}

macro_rules! planes {
    ($($name:ident $symbol:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        pub enum $name {}

        impl Kernel for $name {
            type Args = PlanesArgs;
            const SPEC: LaunchSpec = LaunchSpec::new($symbol, PLANES_THREADS)
                .with_min_blocks(4)
                .with_smem(PLANES_SMEM)
                .with_min_sm(80);

            fn smem_bytes(args: &PlanesArgs) -> u32 {
                args.smem
            }
        }
    )*};
}

planes! {
    PlanesMaxF32 "pool2d_planes_max_f32" "Maxima of windows over planes of `f32`: [`PlanesArgs`].";
    PlanesMaxF16 "pool2d_planes_max_f16" "The same of f16.";
    PlanesMaxBf16 "pool2d_planes_max_bf16" "The same of bf16.";
}
