//! Convolution on a Hopper GPU: a bitmap is expanded to dense weights, which the products of
//! [`crate::conv2d::bulk_lines`] take.

use contract::conv2d::Geometry;
use contract::conv2d::bulk_lines::{CHANNELS, PITCH, WEIGHT_BYTES, WEIGHT_STAGES, Walk};
use contract::launch::Kernel;
use contract::sparse::{
    ALIGN, BLOCK, EXPAND_WARPS, ExpandArgs, LinesArgs, PERIOD, ROWS, SparseConv2dLines,
    SparseConv2dLinesPair, SparseConv2dLinesSplit, SparseExpand, THREADS, WAYS, steps,
};

use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::mbarrier;
use crate::arch::mem::{ld_if, ld_nc, ld_x2, st, st_x4};
use crate::arch::mem_if::st_x4_if;
use crate::arch::shared::Shared;
use crate::arch::tensor::{copy_tile, parameter_address};
use crate::arch::thread::{block_idx_x, thread_idx_x};
use crate::arch::warp::{LANES, lane_id, shuffle_up, warp_id};
use crate::arch::wgmma::{self, Descriptor};
use crate::conv2d::bulk_lines::{Form, Part, Room, Tile, Turn, run};

/// # Safety
///
/// The launch obeys `SparseExpand::SPEC` with [`EXPAND_WARPS`] warps for each tile; the pointers of `args`
/// cover the contract's table with bf16 values.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn sparse_expand(args: ExpandArgs) {
    let linear = &args.linear;
    let warp = block_idx_x() * (THREADS / LANES) + warp_id();
    // One of the eight 32 columns of a tile: the way of a warp is short, it is all that there is to wait for.
    let (tile, j) = (warp / EXPAND_WARPS, warp % EXPAND_WARPS);
    let here = tile.min(args.tiles - 1);
    let masks = linear.masks.as_ptr().cast_const().wrapping_add(here as usize * 64);
    // SAFETY: a tile of the bitmap.
    let (words, start): ([u32; 2], u32) = unsafe {
        let words = ld_x2(masks.wrapping_add(2 * lane_id() as usize).cast());
        (words, ld_nc(linear.starts.as_ptr().cast_const().wrapping_add(here as usize)))
    };
    launch_dependents();
    let counts = words.map(u32::count_ones);
    let mut sum = counts[0] + counts[1];
    let mut distance = 1;
    while distance < LANES {
        let lower = shuffle_up(sum, distance);
        sum += if lane_id() >= distance { lower } else { 0 };
        distance *= 2;
    }
    let values = linear.values.as_ptr().cast::<u32>().cast_const();
    let first = start * ALIGN as u32 + sum - counts[0] - counts[1];
    let mut pieces = [[0u32; 4]; 2];
    let mut half = 0;
    while half < 2 {
        // The word from its first unit of these columns on, and how many units stand before.
        let (rest, before) = (words[half] << (4 * j), !(u32::MAX >> (4 * j)) & words[half]);
        let mut at = first + before.count_ones() + if half == 1 { counts[0] } else { 0 };
        let mut i = 0;
        while i < 4 {
            let stored = rest >> (31 - i) & 1;
            // SAFETY: a stored unit of the lane.
            pieces[half][i] = unsafe { ld_if(stored != 0, values.wrapping_add(at as usize)) };
            at += stored;
            i += 1;
        }
        half += 1;
    }
    let steps = steps(linear.k as usize, 2) as u32;
    let (stream, period) = (here / steps, here % steps);
    let way = stream % WAYS as u32;
    let column = period * PERIOD as u32 + way * BLOCK as u32 + 32 * j + lane_id() % 4 * 8;
    let row0 = stream / WAYS as u32 * ROWS as u32 + lane_id() / 4;
    // Who reads the weights of the call before may still run.
    dependency_wait();
    let mut half = 0;
    while half < 2 {
        let row = row0 + 8 * half as u32;
        if tile < args.tiles && row < linear.n && column < linear.k {
            let at = row as usize * linear.k as usize + column as usize;
            // SAFETY: eight columns of a row, aligned since K is a multiple of 8.
            unsafe { st_x4(args.dense.as_ptr().wrapping_add(at).cast(), pieces[half]) };
        }
        half += 1;
    }
}

const _: unsafe extern "ptx-kernel" fn(<SparseExpand as Kernel>::Args) = sparse_expand;

/// The form: dense weights, a k-major left factor.
struct Expanded;

impl Form for Expanded {
    type Args = LinesArgs;
    const DEPTH: u32 = 64;
    const EXPANDED: bool = false;

    #[inline(always)]
    fn walk(args: &LinesArgs) -> &Walk {
        &args.walk
    }

    #[inline(always)]
    fn geometry(args: &LinesArgs) -> &Geometry {
        &args.geometry
    }

    #[inline(always)]
    unsafe fn weights(args: &LinesArgs, map: u64, room: Room, part: Part, _: u32) {
        let walk = &args.walk;
        // The kernel in front made them.
        dependency_wait();
        let mut turn = Turn::FIRST;
        let mut index = part.first;
        while index < part.end {
            let tile = Tile::of(walk, index, 0);
            let (mut round, mut step) = (part.begins / walk.round, part.begins % walk.round);
            let mut left = part.ends - part.begins;
            while left > 0 {
                // SAFETY: a step of the table; the barriers were made; once for each phase of the place,
                // which is free; weights past the last row are zeros.
                unsafe {
                    let [_, tap] = room.step(step);
                    mbarrier::wait(room.weights_empty(turn), turn.parity ^ 1);
                    let full = room.weights_full(turn);
                    mbarrier::arrive_expecting(full, WEIGHT_BYTES);
                    let column = tap * args.geometry.c + round * Self::DEPTH;
                    copy_tile(room.weights(turn), map, [column, tile.column0, 0, 0], full);
                }
                turn = turn.next(WEIGHT_STAGES);
                step += 1;
                if step == walk.round {
                    (round, step) = (round + 1, 0);
                }
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
        const DOWN: u32 = 128 / ACROSS;
        /// Outputs of a thread that are under way together.
        const TOGETHER: usize = 4;
        let (n, quad) = (args.linear.n, thread_idx_x() % ACROSS * 4);
        let channel = tile.column0 + quad;
        let y = args.linear.y.as_ptr().cast::<u32>().wrapping_add(channel as usize);
        let mut row = rows[0] + thread_idx_x() % 128 / ACROSS;
        while row < rows[1] && channel < n {
            let (mut pixels, mut values) = ([0u32; TOGETHER], [[0u32; 4]; TOGETHER]);
            let mut i = 0;
            while i < TOGETHER {
                // Past the last one: that one again.
                let here = (row + i as u32 * DOWN).min(rows[1] - 1);
                // SAFETY: the table, and sums of an output.
                unsafe {
                    pixels[i] = head.add(4 * here + 3).read();
                    values[i] = sums.add(here * PITCH + quad).read_x4();
                }
                i += 1;
            }
            let mut i = 0;
            while i < TOGETHER {
                let there = pixels[i] != u32::MAX && row + (i as u32 * DOWN) < rows[1];
                let y = y.wrapping_add(pixels[i] as usize * n as usize);
                // SAFETY: four outputs of this thread, aligned since n is a multiple of 4.
                unsafe { st_x4_if(there && n % 4 == 0, y.cast(), values[i]) };
                let mut c = 0;
                while there && n % 4 != 0 && c < 4 {
                    if channel + (c as u32) < n {
                        // SAFETY: an output of this thread.
                        unsafe { st(y.wrapping_add(c), values[i][c]) };
                    }
                    c += 1;
                }
                i += 1;
            }
            row += TOGETHER as u32 * DOWN;
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
            unsafe { run::<Expanded, $cluster, false>(&args, parameter_address!($symbol)) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    SparseConv2dLines sparse_conv2d_lines: 1;
    SparseConv2dLinesPair sparse_conv2d_lines_pair: 2;
    SparseConv2dLinesSplit sparse_conv2d_lines_split: 8;
}
