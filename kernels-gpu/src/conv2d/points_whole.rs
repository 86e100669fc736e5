//! Windows of one tap on a Hopper GPU, few tiles: all that a block reads asked for at once. See
//! [`contract::conv2d::points`].
//!
//! A block has a tile of 64 pixels by 64 output channels, or a part of its steps; each step has a place of its own
//! and a barrier. One thread has the copy engine bring weights, then, behind the kernel in front, pixels. The sums go
//! to shared memory, where the blocks of a cluster read each other's, each for some of the positions.

use contract::conv2d::points::{
    BARRIER_BYTES, PointsArgs, WHOLE_PITCH, WHOLE_SIDE, WHOLE_STEP, WHOLE_STEPS, WHOLE_THREADS,
};
use contract::conv2d::{ABSENT, Conv2dPointsWholeBf16, Conv2dPointsWholeF16};
use contract::launch::Kernel;

use super::half16::{BFloat, Half16, IeeeHalf, eight, eight_biases};
use crate::arch::cluster::{leave_cluster, read_x4_of, sync_cluster};
use crate::arch::grid::{dependency_wait, launch_dependents};
use crate::arch::hint::{opaque, rolled};
use crate::arch::mbarrier;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::tensor::{copy_pixels, copy_tile, parameter_address, prefetch_map};
use crate::arch::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::arch::wgmma::{self, ATOM_BYTES, Descriptor};
use crate::tile::hopper::{begin, park};

/// Threads, eight output channels each, of a position.
const ACROSS: u32 = WHOLE_SIDE / 8;

/// A block for each split of each tile.
///
/// # Safety
///
/// The launch obeys the kernel's `SPEC`, in clusters of the splits of a tile, the pointers of `args` cover the
/// contract's table, and the maps are the contract's; `map` is the address of the parameter, which starts with them.
#[inline(always)]
unsafe fn run<H: Half16>(args: &PointsArgs, map: u64) {
    begin::<WHOLE_SIDE>();
    let (base, walk, g) = (&args.base, &args.walk, &args.base.geometry);
    let thread = thread_idx_x();
    let barriers = dynamic_shared_mem::<u64>();
    let ring = barriers.cast::<u8>().add(BARRIER_BYTES);
    let ring = ring.add(ring.addr().wrapping_neg() % ATOM_BYTES);
    // A power of two.
    let splits = walk.splits;
    let (tile, part) = (block_idx_x() >> splits.trailing_zeros(), block_idx_x() & (splits - 1));
    let (rest, column) = walk.by_columns.div_rem(tile);
    let (group, position) = walk.by_positions.div_rem(rest);
    let (first, column0) = (position * WHOLE_SIDE, column * WHOLE_SIDE);
    let begins = (part * walk.share).min(walk.steps);
    let steps = (begins + walk.share).min(walk.steps) - begins;
    const { assert!(8 * WHOLE_STEPS <= BARRIER_BYTES) };
    if thread == 0 {
        // SAFETY: maps, barriers and places of this block, before its barrier; each is asked for once.
        unsafe {
            prefetch_map(map + 128);
            prefetch_map(map);
            let mut step = opaque(0);
            while step < steps {
                mbarrier::init(barriers.add(step), 1);
                step += opaque(1);
            }
            mbarrier::show_new();
            let (round0, tap0) = (begins / g.taps, begins % g.taps);
            let (mut channel, mut tap) = (round0 * 64, tap0);
            step = opaque(0);
            while step < steps {
                rolled();
                let (there, to) = (barriers.add(step), ring.add(step * WHOLE_STEP));
                mbarrier::arrive_expecting(there, WHOLE_STEP);
                copy_tile(to.add(WHOLE_STEP / 2), map + 128, [column0, channel, tap, group], there);
                tap += 1;
                if tap == g.taps {
                    (channel, tap) = (channel + 64, 0);
                }
                step += opaque(1);
            }
            let (line, column) = walk.by_line.div_rem(first);
            let (image, line) = walk.by_lines.div_rem(line);
            let [h, w] = [(line, 0), (column, 1)]
                .map(|(at, axis)| (at * g.stride[axis] as u32).wrapping_sub(g.pad[axis] as u32));
            dependency_wait();
            let (mut r, mut s) = (tap0 / g.s, tap0 % g.s);
            channel = group * g.c + round0 * 64;
            step = opaque(0);
            while step < steps {
                rolled();
                let (there, to) = (barriers.add(step), ring.add(step * WHOLE_STEP));
                let further =
                    [s * g.dilation[1] as u32, r * g.dilation[0] as u32].map(|at| at as u16);
                copy_pixels(to, map, [channel, w, h, image], further, there);
                s += 1;
                if s == g.s {
                    (r, s) = (r + 1, 0);
                }
                if r * g.s == g.taps {
                    (channel, r) = (channel + 64, 0);
                }
                step += opaque(1);
            }
        }
    }
    launch_dependents();
    dependency_wait();
    // Of the outputs that this thread will have, asked for while copies are under way.
    let of_group = column0 + thread % ACROSS * 8;
    let biases = if of_group < g.k {
        // SAFETY: output channels.
        unsafe { eight_biases(base, group * g.k + of_group) }
    } else {
        [ABSENT; 8]
    };
    sync_threads();

    let mut step = 0;
    while step < steps {
        rolled();
        // SAFETY: the barriers were made before the barrier of the block; they have one phase.
        unsafe { mbarrier::wait(barriers.add(step), 0) };
        let at = ring.add(step * WHOLE_STEP);
        let a = Descriptor::new(at, 0, ATOM_BYTES);
        let b = Descriptor::new(at.add(WHOLE_STEP / 2), 0, ATOM_BYTES);
        wgmma::fence();
        let mut k = 0;
        while k < 4 {
            // 16 terms further: 32 bytes of each row of a, 16 rows of b.
            // SAFETY: the step is there, and stays.
            unsafe { H::product_64(a.advance_inside(32 * k), b.advance_inside(2048 * k)) };
            k += 1;
        }
        wgmma::commit();
        step += 1;
    }
    wgmma::wait::<0>();
    // Nobody reads the steps any more.
    sync_threads();
    let (sums, tile) = (ring.cast::<f32>(), Tile { first, column0, group });
    // SAFETY: this block's place; what it holds is shown in all of the cluster, which stays.
    unsafe {
        park(sums, WHOLE_PITCH);
        if splits == 1 {
            sync_threads();
            return finish::<H, 1>(args, sums, &tile, 0, &biases);
        }
        sync_cluster();
        match splits {
            2 => finish::<H, 2>(args, sums, &tile, part, &biases),
            4 => finish::<H, 4>(args, sums, &tile, part, &biases),
            _ => finish::<H, 8>(args, sums, &tile, part, &biases),
        }
    }
    // The other blocks may still read from this one.
    leave_cluster();
}

/// What a tile is of.
struct Tile {
    first: u32,
    column0: u32,
    group: u32,
}

/// Adds the sums of the blocks of a cluster, in order, and writes the outputs of this one's share of the positions.
///
/// # Safety
///
/// As for [`run`]; the sums are written and shown in each of the blocks.
#[inline(always)]
unsafe fn finish<H: Half16, const SPLITS: u32>(
    args: &PointsArgs,
    sums: Shared<f32>,
    tile: &Tile,
    part: u32,
    biases: &[f32; 8],
) {
    const DOWN: u32 = WHOLE_THREADS / ACROSS;
    let (base, g) = (&args.base, &args.base.geometry);
    let thread = thread_idx_x();
    let of_group = tile.column0 + thread % ACROSS * 8;
    let channel = tile.group * g.k + of_group;
    let rows = WHOLE_SIDE / SPLITS;
    if of_group >= g.k || thread / ACROSS >= rows {
        return;
    }
    // Of up to four positions all that a cluster has, asked for together.
    let mut down = 0;
    while down < rows {
        let row = part * rows + thread / ACROSS + down;
        let from = sums.add(row * WHOLE_PITCH + thread % ACROSS * 8);
        let parts: [[[f32; 4]; 2]; 8] = core::array::from_fn(|block| {
            if block as u32 >= SPLITS {
                return [[0.0; 4]; 2];
            }
            // SAFETY: written and shown.
            [0, 4].map(|c| unsafe {
                if SPLITS == 1 {
                    from.add(c).read_x4()
                } else {
                    read_x4_of(block as u32, from.add(c))
                }
            })
        });
        let mut totals = parts[0];
        let mut block = 1;
        while block < SPLITS as usize {
            totals = core::array::from_fn(|i| {
                core::array::from_fn(|c| totals[i][c] + parts[block][i][c])
            });
            block += 1;
        }
        let pixel = tile.first + row;
        if pixel < g.pixels {
            let at = u64::from(pixel) * u64::from(g.y_step[0]) + u64::from(channel);
            // SAFETY: eight channels of an output of this thread, aligned since k is a multiple of 8.
            unsafe { eight::<H>(base, at as usize, totals, biases) };
        }
        down += DOWN;
    }
}

macro_rules! kernels {
    ($($kernel:ident $symbol:ident $ty:ty;)*) => { $(
        /// # Safety
        ///
        /// As for [`run`].
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $symbol(args: PointsArgs) {
            // SAFETY: the caller's promise.
            unsafe { run::<$ty>(&args, parameter_address!($symbol)) }
        }

        const _: unsafe extern "ptx-kernel" fn(<$kernel as Kernel>::Args) = $symbol;
    )* };
}

kernels! {
    Conv2dPointsWholeBf16 conv2d_points_whole_bf16 BFloat;
    Conv2dPointsWholeF16 conv2d_points_whole_f16 IeeeHalf;
}
