//! A tile whose sum over k the blocks of a cluster share out among them: each makes a part of it, parks it in its shared
//! memory, and then adds up and writes some of the rows of all. Only where the order of a sum is free.

use contract::bmm::Args;

use super::target::Target;
use super::write::write;
use crate::arch::cluster::{read_x4_of, sync_cluster};
use crate::arch::hint::opaque;
use crate::arch::shared::Shared;
use crate::arch::thread::{block_idx_x, sync_threads};
use crate::arch::warp::Register;

/// Side of such a tile of `wgmma`.
pub(super) const SIDE: u32 = 64;
/// Words from one row of a parked tile to the next.
pub(super) const PARKED: u32 = SIDE + 4;

/// Which part of a tile this block makes, and which tile.
#[inline(always)]
pub(super) fn rank_and_block(args: &Args) -> (u32, u32) {
    (block_idx_x() & (1 << args.split) - 1, block_idx_x() >> args.split)
}

/// The same where parts are blocks by themselves, of so many tiles of each matrix.
#[inline(always)]
pub(super) fn part_and_block(args: &Args, tiles: u32) -> (u32, u32) {
    let blocks = tiles * args.batch;
    (block_idx_x() / blocks, block_idx_x() % blocks)
}

/// The slices of a part of `slices`: the first one, and how many; at least one, where there are as many slices as parts.
#[inline(always)]
pub(super) fn part_of(args: &Args, rank: u32, slices: u32) -> (u32, u32) {
    let first = (slices * rank) >> args.split;
    (first, (slices * (rank + 1) >> args.split) - first)
}

/// Adds up the tiles of `SIDE` that the blocks of this cluster have parked, rows `PITCH` words apart, and writes the rows that are
/// this block's.
///
/// *Convergence*: all threads of the cluster call it.
///
/// # Safety
///
/// As for [`write`]; `parked` is the same in each block, whose threads have written all of its tile there.
#[inline(always)]
pub(super) unsafe fn add_up<C: Target, const SIDE: u32, const PITCH: u32>(
    args: &Args,
    element: C,
    (batch, row0, column0): (u32, u32, u32),
    parked: Shared<C::Sum>,
    add: impl Fn(C::Sum, C::Sum) -> C::Sum,
    (t, threads): (u32, u32),
) {
    sync_cluster();
    let (rank, _) = rank_and_block(args);
    let rows = SIDE >> args.split;
    let mine = parked.add(rank * rows * PITCH);
    let mut index = t;
    while index < rows * (SIDE / 4) {
        let at = mine.add(index / (SIDE / 4) * PITCH + 4 * (index % (SIDE / 4)));
        let mut sum = [C::Sum::from_word(0); 4];
        let mut other = 0;
        while other < 1 << args.split {
            // SAFETY: parked before the barrier; that block ends after the one below.
            let part = unsafe { read_x4_of(other, at) };
            let mut i = 0;
            while i < 4 {
                sum[i] = add(sum[i], part[i]);
                i += 1;
            }
            other += 1;
        }
        // SAFETY: of this block's tile nobody but this thread accesses these four before the barrier.
        unsafe { at.write_x4(sum) };
        index += threads;
    }
    sync_threads();
    let at = (row0 + rank * rows, column0);
    // SAFETY: the caller's promise.
    unsafe {
        let shape = (rows, SIDE, PITCH);
        write(args, element, batch, at, (args.m, args.n), mine, shape, (t, threads));
    }
    sync_cluster();
}

/// Adds the sums of `count` chunks from `start` on to four totals, first to last; the first of all is where totals begin. `part`
/// reads one, and several are on their way at a time.
#[inline(always)]
pub(super) fn add_chunks(
    mut total: [f32; 4],
    (start, count): (u32, u32),
    part: impl Fn(u32) -> [f32; 4],
) -> [f32; 4] {
    const AT_ONCE: usize = 4;
    let mut c = opaque(0);
    while c < count {
        let parts: [[f32; 4]; AT_ONCE] =
            core::array::from_fn(|p| part((c + p as u32).min(count - 1)));
        let mut p = 0;
        while p < AT_ONCE {
            if c + (p as u32) < count {
                let first = start + c + p as u32 == 0;
                total =
                    core::array::from_fn(
                        |j| {
                            if first { parts[p][j] } else { total[j] + parts[p][j] }
                        },
                    );
            }
            p += 1;
        }
        c = opaque(c + AT_ONCE as u32);
    }
    total
}
