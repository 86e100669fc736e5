//! Maxima and sums over the warps of a block.

use contract::num::{order_key, order_value, tree8};

use crate::arch::shared::Shared;
use crate::arch::warp::{LANES, lane_id, warp_id, warp_max, warp_tree};

/// An order of `f32` as one of numbers: the NaN of `arch::float::maximum` is positive, and above infinity.
#[inline(always)]
pub fn key(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// [`super::block::Block::max`] of so many warps, which wait for each other by `wait`.
///
/// *Convergence*: every thread of these warps calls it.
///
/// # Safety
///
/// `scratch` has a word for each of them, for this call.
#[inline(always)]
pub unsafe fn max_of_warps(scratch: Shared<u32>, warps: u32, value: f32, wait: impl Fn()) -> f32 {
    let key = warp_max(key(value));
    // SAFETY: a word of each warp for this call.
    unsafe {
        if lane_id() == 0 {
            scratch.add(warp_id() % warps).write(key);
        }
        wait();
        let key = if lane_id() < warps { scratch.add(lane_id()).read() } else { 0 };
        order_value(warp_max(key))
    }
}

/// The tree over the partials that lie in shared memory, in every thread.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The partials are there, behind a barrier.
#[inline(always)]
pub unsafe fn tree_of_warps(partials: Shared<f32>) -> f32 {
    // Distances 128, 64, 32 of the tree are 4, 2, 1 warps.
    // SAFETY: the caller's promise.
    let row = |i: usize| unsafe { partials.add(lane_id() + LANES * i as u32).read() };
    warp_tree(tree8(core::array::from_fn(row)))
}

const _: () = assert!(order_key(f32::INFINITY) == 0xff80_0000 && order_value(u32::MAX).is_nan());
