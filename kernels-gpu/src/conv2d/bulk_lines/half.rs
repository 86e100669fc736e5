//! f16 and bf16 in lines: weights as packed, an mn-major left factor.

use core::marker::PhantomData;

use contract::conv2d::bulk_lines::{CHANNELS, HalfLines, PITCH, WEIGHT_BYTES, WEIGHT_STAGES, Walk};
use contract::conv2d::{
    Args, Conv2dLinesBf16, Conv2dLinesF16, Conv2dLinesPairBf16, Conv2dLinesPairF16,
    Conv2dLinesSplitBf16, Conv2dLinesSplitF16, Geometry,
};
use contract::launch::Kernel;

use super::{Form, Part, Room, Tile, Turn, run};
use crate::arch::mbarrier;
use crate::arch::shared::Shared;
use crate::arch::tensor::{copy_tile, parameter_address};
use crate::arch::thread::thread_idx_x;
use crate::arch::warp::{lane_id, warp_id};
use crate::arch::wgmma::Descriptor;
use crate::conv2d::epilogue::{Staging, finish_rows};
use crate::conv2d::half16::{BFloat, Half16, IeeeHalf, eight, eight_biases};
use crate::conv2d::value::Half;

/// Outputs of a thread that are under way together.
const TOGETHER: usize = 4;

/// The form for element `H`.
struct Dense<H>(PhantomData<H>);

impl<H: Half16> Form for Dense<H> {
    type Args = HalfLines;
    const DEPTH: u32 = 64;
    const EXPANDED: bool = false;

    #[inline(always)]
    fn walk(args: &HalfLines) -> &Walk {
        &args.walk
    }

    #[inline(always)]
    fn geometry(args: &HalfLines) -> &Geometry {
        &args.base.geometry
    }

    #[inline(always)]
    unsafe fn weights(args: &HalfLines, map: u64, room: Room, part: Part, _: u32) {
        let walk = &args.walk;
        let mut turn = Turn::FIRST;
        let mut index = part.first;
        while index < part.end {
            let tile = Tile::of(walk, index, 0);
            let (mut round, mut step) = (part.begins / walk.round, part.begins % walk.round);
            let mut left = part.ends - part.begins;
            while left > 0 {
                // SAFETY: a step of the table; the barriers were made; once for each phase of the place,
                // which is free; weights past the last channel, or output channel, are zeros.
                unsafe {
                    let [_, tap] = room.step(step);
                    mbarrier::wait(room.weights_empty(turn), turn.parity ^ 1);
                    let full = room.weights_full(turn);
                    mbarrier::arrive_expecting(full, WEIGHT_BYTES);
                    let at = [tile.column0, round * Self::DEPTH, tap, tile.group];
                    copy_tile(room.weights(turn), map, at, full);
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
        // 16 terms further: 16 rows of 128 bytes, or 32 bytes of each row.
        // SAFETY: the caller's promise.
        unsafe { H::product_lines(weights.advance(k * 16 * 128), entries.advance(k * 32), add) }
    }

    #[inline(always)]
    fn add(a: u32, b: u32) -> u32 {
        (f32::from_bits(a) + f32::from_bits(b)).to_bits()
    }

    #[inline(always)]
    unsafe fn divisor(_: &HalfLines, _: u32) -> [u32; 3] {
        [0; 3]
    }

    #[inline(always)]
    unsafe fn finish(
        args: &HalfLines,
        sums: Shared<u32>,
        head: Shared<u32>,
        tile: Tile,
        rows: [u32; 2],
    ) {
        // SAFETY: the caller's promise.
        unsafe { finish::<H>(&args.base, sums.cast(), head, tile, rows) }
    }
}

/// Writes outputs `rows` of a warpgroup, in its 128 threads.
///
/// # Safety
///
/// `sums` and `head` are the warpgroup's, written and shown; the outputs are this block's.
#[inline(always)]
unsafe fn finish<H: Half16>(
    base: &Args,
    sums: Shared<f32>,
    head: Shared<u32>,
    tile: Tile,
    rows: [u32; 2],
) {
    let g = &base.geometry;
    // SAFETY: the table.
    let pixel_of = |row: u32| unsafe { head.add(4 * row + 3).read() };
    if g.k % 8 != 0 || !base.activation.is_cheap() {
        let mut row = rows[0] + warp_id() % 4;
        while row < rows[1] {
            let pixel = pixel_of(row);
            if pixel != u32::MAX {
                let staging = Staging {
                    smem: sums.add(row * PITCH),
                    pitch: PITCH,
                    pixel0: pixel,
                    column0: tile.column0,
                    group: tile.group,
                    split: 0,
                    first: true,
                    last: true,
                };
                // SAFETY: the sums of one output pixel; the caller's promise.
                unsafe { finish_rows::<Half, 1, CHANNELS>(base, &staging, lane_id(), 32) };
            }
            row += 4;
        }
        return;
    }
    const ACROSS: u32 = CHANNELS / 8;
    let thread = thread_idx_x() % 128;
    let column = thread % ACROSS * 8;
    if tile.column0 + column >= g.k {
        return;
    }
    let channel = tile.group * g.k + tile.column0 + column;
    // SAFETY: output channels.
    let biases = unsafe { eight_biases(base, channel) };
    let mut row = rows[0] + thread / ACROSS;
    while row < rows[1] {
        let (mut pixels, mut eights) = ([u32::MAX; TOGETHER], [[[0.0f32; 4]; 2]; TOGETHER]);
        let mut i = 0;
        while i < TOGETHER {
            let here = row + i as u32 * (128 / ACROSS);
            let from = sums.add(here.min(rows[1] - 1) * PITCH + column);
            pixels[i] = if here < rows[1] { pixel_of(here) } else { u32::MAX };
            // SAFETY: eight channels of an output, 16-byte aligned.
            eights[i] = unsafe { [from.read_x4(), from.add(4).read_x4()] };
            i += 1;
        }
        let mut i = 0;
        while i < TOGETHER {
            if pixels[i] != u32::MAX {
                let at = u64::from(pixels[i]) * u64::from(g.y_step[0]) + u64::from(channel);
                // SAFETY: eight channels of an output of this thread, aligned since k is a multiple of 8.
                unsafe { eight::<H>(base, at as usize, eights[i], &biases) };
            }
            i += 1;
        }
        row += TOGETHER as u32 * (128 / ACROSS);
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty: $cluster:literal $apart:literal;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $symbol(args: HalfLines) {
            const { assert!($kernel::SPEC.cluster == $cluster) };
            // SAFETY: the caller's promise.
            unsafe { run::<Dense<$ty>, $cluster, $apart>(&args, parameter_address!($symbol)) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dLinesBf16 conv2d_lines_bf16 BFloat: 1 false;
    Conv2dLinesPairBf16 conv2d_lines_pair_bf16 BFloat: 2 false;
    Conv2dLinesSplitBf16 conv2d_lines_split_bf16 BFloat: 8 false;
    Conv2dLinesF16 conv2d_lines_f16 IeeeHalf: 1 false;
    Conv2dLinesPairF16 conv2d_lines_pair_f16 IeeeHalf: 2 false;
    Conv2dLinesSplitF16 conv2d_lines_split_f16 IeeeHalf: 8 false;
}
