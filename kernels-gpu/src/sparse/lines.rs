//! Convolution on a Hopper GPU: bitmaps expanded to dense weights in shared memory, a step of
//! [`crate::conv2d::bulk_lines`] at a time.
//!
//! Each of four warps expands 16 rows by the 64 columns of a step, a quarter of a tile of the bitmap: the
//! masks of the step after next, and the units of the next one, are under way meanwhile.

use contract::conv2d::Geometry;
use contract::conv2d::bulk_lines::{CHANNELS, PITCH, WEIGHT_STAGES, Walk};
use contract::launch::Kernel;
use contract::sparse::{
    ALIGN, BLOCK, LinesArgs, PERIOD, ROWS, SparseConv2dLines, SparseConv2dLinesPair,
    SparseConv2dLinesSplit, WAYS, groups, steps,
};

use crate::arch::mbarrier;
use crate::arch::mem::{ld_if, ld_nc_if, ld_x2_if, st, st_x4};
use crate::arch::shared::Shared;
use crate::arch::tensor::parameter_address;
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{LANES, lane_id, shuffle_up};
use crate::arch::wgmma::{self, Descriptor, swizzle};
use crate::conv2d::bulk_lines::{Form, Part, Room, Tile, Turn, run};

/// Columns of a step.
const DEPTH: u32 = 64;
/// Units of a lane in one row of a step.
const UNITS: usize = 8;

/// The form.
struct Pruned;

/// What a lane owns of a tile of the bitmap, and which quarter is wanted.
#[derive(Clone, Copy)]
struct Masks {
    words: [u32; 2],
    start: u32,
    quarter: u32,
}

/// The way of a warp through the masks.
struct Ask<'a> {
    args: &'a LinesArgs,
    room: Room,
    part: Part,
    warp: u32,
    index: u32,
    round: u32,
    step: u32,
    left: u32,
}

impl Ask<'_> {
    /// Turns to a tile of outputs.
    #[inline(always)]
    fn start(&mut self, index: u32) {
        let (begins, round) = (self.part.begins, self.args.walk.round);
        self.index = index;
        (self.round, self.step) = (begins / round, begins % round);
        self.left = self.part.ends - begins;
    }

    /// Asks for the masks of the next step; nothing where there is none.
    ///
    /// # Safety
    ///
    /// The kernel's contract.
    #[inline(always)]
    unsafe fn next(&mut self) -> Masks {
        let (linear, walk) = (&self.args.linear, &self.args.walk);
        let there = self.index < self.part.end && self.left > 0;
        let tile = Tile::of(walk, if there { self.index } else { 0 }, 0);
        // SAFETY: a step of the table.
        let [_, tap] = unsafe { self.room.step(self.step) };
        let column = (tap * self.args.geometry.c + self.round * DEPTH) as usize;
        let group = tile.column0 as usize / ROWS + self.warp as usize;
        let there = there && group < groups(linear.n as usize);
        let stream = group * WAYS + column % PERIOD / BLOCK;
        let at = stream * steps(linear.k as usize, 2) + column / PERIOD;
        let masks = linear.masks.as_ptr().cast_const().wrapping_add(at * 64);
        let masks = masks.wrapping_add(2 * lane_id() as usize);
        // SAFETY: a tile of the bitmap.
        let (words, start) = unsafe {
            let words: [u32; 2] = ld_x2_if(there, masks.cast());
            (words, ld_nc_if(there, linear.starts.as_ptr().cast_const().wrapping_add(at)))
        };
        let words = if there { words } else { [0; 2] };
        let quarter = (column % BLOCK) as u32 / DEPTH;
        self.step += 1;
        if self.step == walk.round {
            (self.round, self.step) = (self.round + 1, 0);
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.start(self.index + self.part.step);
        }
        Masks { words, start, quarter }
    }
}

/// Asks for the units of a lane in a quarter of a tile, 0 where none is stored.
///
/// *Convergence*: the whole warp.
///
/// # Safety
///
/// The masks are those of a tile of `args`, or empty.
#[inline(always)]
unsafe fn units(args: &LinesArgs, masks: Masks) -> [[u32; UNITS]; 2] {
    let counts = masks.words.map(u32::count_ones);
    let mut sum = counts[0] + counts[1];
    let mut distance = 1;
    while distance < LANES {
        let lower = shuffle_up(sum, distance);
        sum += if lane_id() >= distance { lower } else { 0 };
        distance *= 2;
    }
    let before = masks.start * ALIGN as u32 + sum - counts[0] - counts[1];
    let values = args.linear.values.as_ptr().cast::<u32>().cast_const();
    let skipped = UNITS as u32 * masks.quarter;
    let mut all = [[0; UNITS]; 2];
    let mut half = 0;
    while half < 2 {
        let word = masks.words[half];
        let front = if half == 0 { before } else { before + counts[0] };
        let mut at = front + (word & !(u32::MAX >> skipped)).count_ones();
        let word = word << skipped;
        let mut i = 0;
        while i < UNITS {
            let stored = word >> (31 - i) & 1;
            // SAFETY: a stored unit of the lane.
            all[half][i] = unsafe { ld_if(stored != 0, values.wrapping_add(at as usize)) };
            at += stored;
            i += 1;
        }
        half += 1;
    }
    all
}

impl Form for Pruned {
    type Args = LinesArgs;
    const DEPTH: u32 = DEPTH;
    const EXPANDED: bool = true;

    #[inline(always)]
    fn walk(args: &LinesArgs) -> &Walk {
        &args.walk
    }

    #[inline(always)]
    fn geometry(args: &LinesArgs) -> &Geometry {
        &args.geometry
    }

    #[inline(always)]
    unsafe fn weights(args: &LinesArgs, _: u64, room: Room, part: Part, thread: u32) {
        let (warp, lane) = (thread / LANES, thread % LANES);
        let mut ask = Ask { args, room, part, warp, index: 0, round: 0, step: 0, left: 0 };
        ask.start(part.first);
        // SAFETY: the kernel's contract, here and below.
        let (mut next, mut masks) = unsafe {
            let first = ask.next();
            (units(args, first), ask.next())
        };
        let mut turn = Turn::FIRST;
        let mut index = part.first;
        while index < part.end {
            let mut left = part.ends - part.begins;
            while left > 0 {
                let now = next;
                // SAFETY: as above.
                (next, masks) = unsafe { (units(args, masks), ask.next()) };
                // SAFETY: the barriers were made; once for each phase of the place.
                unsafe { mbarrier::wait(room.weights_empty(turn), turn.parity ^ 1) };
                let to = room.weights(turn);
                let mut i = 0;
                while i < 4 {
                    let (half, four) = (i / 2, i % 2);
                    let row = 16 * warp + lane / 4 + 8 * half as u32;
                    let at = to.add(swizzle(row, 4 * four as u32 + lane % 4)).cast::<u32>();
                    let v = &now[half];
                    let piece = [v[4 * four], v[4 * four + 1], v[4 * four + 2], v[4 * four + 3]];
                    // SAFETY: a piece of this lane, in a place that is free.
                    unsafe { at.write_x4(piece) };
                    i += 1;
                }
                // SAFETY: as above.
                unsafe { mbarrier::arrive(room.weights_full(turn)) };
                turn = turn.next(WEIGHT_STAGES);
                left -= 1;
            }
            index += part.step;
        }
    }

    #[inline(always)]
    unsafe fn product(weights: Descriptor, entries: Descriptor, k: u32, add: bool) {
        let (a, b) = (weights.advance(k * 32), entries.advance(k * 32));
        // SAFETY: the caller's promise.
        unsafe { wgmma::bf16_n128::<0, 0>(a, b, add) }
    }

    #[inline(always)]
    fn add(a: u32, b: u32) -> u32 {
        (f32::from_bits(a) + f32::from_bits(b)).to_bits()
    }

    #[inline(always)]
    unsafe fn divisor(_: &LinesArgs, _: u32) -> [u32; 3] {
        [0; 3]
    }

    #[inline(always)]
    unsafe fn finish(
        args: &LinesArgs,
        sums: Shared<u32>,
        head: Shared<u32>,
        tile: Tile,
        rows: [u32; 2],
    ) {
        const ACROSS: u32 = CHANNELS / 4;
        let (n, quad) = (args.linear.n, thread_idx_x() % ACROSS * 4);
        let channel = tile.column0 + quad;
        let mut row = rows[0] + thread_idx_x() % 128 / ACROSS;
        while row < rows[1] && channel < n {
            // SAFETY: the table, and sums of an output.
            let (pixel, sums): (u32, [u32; 4]) =
                unsafe { (head.add(4 * row + 3).read(), sums.add(row * PITCH + quad).read_x4()) };
            let y = args.linear.y.as_ptr().cast::<u32>();
            let y = y.wrapping_add(pixel as usize * n as usize + channel as usize);
            if pixel != u32::MAX && n % 4 == 0 {
                // SAFETY: four outputs of this thread, aligned since n is a multiple of 4.
                unsafe { st_x4(y.cast(), sums) };
            } else if pixel != u32::MAX {
                let mut c = 0;
                while c < 4 {
                    if channel + (c as u32) < n {
                        // SAFETY: an output of this thread.
                        unsafe { st(y.wrapping_add(c), sums[c]) };
                    }
                    c += 1;
                }
            }
            row += 128 / ACROSS;
        }
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident: $cluster:literal;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $symbol(args: LinesArgs) {
            const { assert!($kernel::SPEC.cluster == $cluster) };
            // SAFETY: the caller's promise.
            unsafe { run::<Pruned, $cluster>(&args, parameter_address!($symbol)) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    SparseConv2dLines sparse_conv2d_lines: 1;
    SparseConv2dLinesPair sparse_conv2d_lines_pair: 2;
    SparseConv2dLinesSplit sparse_conv2d_lines_split: 8;
}
