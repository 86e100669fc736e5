//! Reductions over a block of 256 threads, through shared memory.
//!
//! The floating-point sum is the tree of `contract::num::tree` with partial `p` in thread `p`:
//! its first three levels join warps, the last five join the lanes of one warp.

use contract::num::{PARTIALS, tree8};

use super::shared::Shared;
use super::thread::{sync_threads, thread_idx_x};
use super::warp::{LANES, lane_id, warp_id, warp_max, warp_sum, warp_tree};

/// Threads of the block.
pub const THREADS: u32 = PARTIALS as u32;
/// Warps of the block.
pub const WARPS: u32 = THREADS / LANES;

/// The sum of the 256 partials, in every thread. Needs 256 words at `scratch`.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// `scratch` starts 256 words of shared memory, aligned to 4, that no thread accesses between the
/// barrier before this call and the one after it.
#[inline(always)]
pub unsafe fn sum_partials(scratch: Shared<f32>, partial: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { sum_partials_by(scratch, partial, sync_threads) }
}

/// The same of the first 256 threads of a larger block, which `sync` is a barrier of.
///
/// *Convergence*: each of them calls it.
///
/// # Safety
///
/// As for [`sum_partials`].
#[inline(always)]
pub unsafe fn sum_partials_by(scratch: Shared<f32>, partial: f32, sync: impl Fn()) -> f32 {
    // SAFETY: thread_idx_x() < 256.
    unsafe { scratch.add(thread_idx_x()).write(partial) };
    sync();
    // SAFETY: written before the barrier.
    unsafe { sum_of(scratch) }
}

/// The same of any 256 threads, of which this is number `own`.
///
/// *Convergence*: each of them calls it.
///
/// # Safety
///
/// As for [`sum_partials`].
#[inline(always)]
pub unsafe fn sum_partials_of(
    scratch: Shared<f32>,
    own: u32,
    partial: f32,
    sync: impl Fn(),
) -> f32 {
    // SAFETY: own < 256.
    unsafe { scratch.add(own).write(partial) };
    sync();
    // SAFETY: written before the barrier.
    unsafe { sum_of(scratch) }
}

/// The sum of 256 partials.
///
/// # Safety
///
/// They are at `scratch`.
#[inline(always)]
unsafe fn sum_of(scratch: Shared<f32>) -> f32 {
    let mut column = [0.0; WARPS as usize];
    let mut warp = 0;
    while warp < WARPS {
        // SAFETY: lane + 32 * warp < 256, written before the barrier.
        column[warp as usize] = unsafe { scratch.add(lane_id() + LANES * warp).read() };
        warp += 1;
    }
    // Distances 128, 64, 32 of the tree are 4, 2, 1 warps.
    warp_tree(tree8(column))
}

/// The largest value of the block, in every thread. Needs 8 words at `scratch`.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// As for [`sum_partials`], of 8 words aligned to 16 bytes.
#[inline(always)]
pub unsafe fn max(scratch: Shared<u32>, value: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { max_by(scratch, value, sync_threads) }
}

/// The same of the first 256 threads of a larger block, which `sync` is a barrier of.
///
/// *Convergence*: each of them calls it.
///
/// # Safety
///
/// As for [`max`].
#[inline(always)]
pub unsafe fn max_by(scratch: Shared<u32>, value: u32, sync: impl Fn()) -> u32 {
    // SAFETY: the caller's promise.
    let [a, b] = unsafe { gather(scratch, warp_max(value), sync) };
    let mut max = 0;
    let mut i = 0;
    while i < 4 {
        max = max.max(a[i]).max(b[i]);
        i += 1;
    }
    max
}

/// The same of any 8 warps, of which this is number `warp`.
///
/// *Convergence*: each of their threads calls it.
///
/// # Safety
///
/// As for [`max`].
#[inline(always)]
pub unsafe fn max_of(scratch: Shared<u32>, warp: u32, value: u32, sync: impl Fn()) -> u32 {
    let of_warp = warp_max(value);
    if lane_id() == 0 {
        // SAFETY: warp < 8.
        unsafe { scratch.add(warp).write(of_warp) };
    }
    sync();
    // SAFETY: 8 words, written before the barrier.
    let [a, b] = unsafe { [scratch.read_x4(), scratch.add(4).read_x4()] };
    let mut max = 0;
    let mut i = 0;
    while i < 4 {
        max = max.max(a[i]).max(b[i]);
        i += 1;
    }
    max
}

/// The sum over the block, in every thread; wraps. Needs 8 words at `scratch`.
///
/// *Convergence*: every thread of the block calls it.
///
/// # Safety
///
/// As for [`max`].
#[inline(always)]
pub unsafe fn sum(scratch: Shared<u32>, value: i32) -> i32 {
    // SAFETY: the caller's promise.
    let [a, b] = unsafe { gather(scratch, warp_sum(value) as u32, sync_threads) };
    let mut sum = 0i32;
    let mut i = 0;
    while i < 4 {
        sum = sum.wrapping_add(a[i] as i32).wrapping_add(b[i] as i32);
        i += 1;
    }
    sum
}

/// One word from each of the 8 warps, in every thread.
///
/// # Safety
///
/// As for [`max`].
#[inline(always)]
unsafe fn gather(scratch: Shared<u32>, of_warp: u32, sync: impl Fn()) -> [[u32; 4]; 2] {
    if lane_id() == 0 {
        // SAFETY: warp_id() < 8.
        unsafe { scratch.add(warp_id()).write(of_warp) };
    }
    sync();
    // SAFETY: 8 words, written before the barrier.
    unsafe { [scratch.read_x4(), scratch.add(4).read_x4()] }
}
