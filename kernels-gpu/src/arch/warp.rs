//! The 32 threads of a warp: shuffles, votes and reductions.
//!
//! All of these name the full warp in their mask.
//!
//! *Convergence*, for every function here but [`lane_id`] and [`warp_id`]: all 32 lanes call it
//! together, from the same place. Kernels therefore keep lanes without work alive (they clamp
//! what they read and guard what they write) instead of returning early.

use super::thread::thread_idx_x;

/// Lanes of a warp.
pub const LANES: u32 = 32;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: i32, value: i32, lane_mask: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: i32, value: i32, lane: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: i32, value: i32, delta: i32, clamp: i32) -> i32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: i32, predicate: bool) -> i32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: i32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: i32);
    #[cfg(level_sm_80)]
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_add(value: i32, mask: i32) -> i32;
    #[cfg(level_sm_80)]
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_umax(value: i32, mask: i32) -> i32;
}

/// The whole warp, as a member mask.
const FULL: i32 = -1;
/// Shuffle operand: segments of 32 lanes.
const WHOLE_WARP: i32 = 31;

/// A value of one 32-bit register, which is what a shuffle moves.
pub trait Register: Copy {
    /// The bits.
    fn to_word(self) -> i32;
    /// The value of these bits.
    fn from_word(word: i32) -> Self;
}

impl Register for i32 {
    #[inline(always)]
    fn to_word(self) -> i32 {
        self
    }
    #[inline(always)]
    fn from_word(word: i32) -> Self {
        word
    }
}

impl Register for u32 {
    #[inline(always)]
    fn to_word(self) -> i32 {
        self as i32
    }
    #[inline(always)]
    fn from_word(word: i32) -> Self {
        word as u32
    }
}

impl Register for f32 {
    #[inline(always)]
    fn to_word(self) -> i32 {
        self.to_bits() as i32
    }
    #[inline(always)]
    fn from_word(word: i32) -> Self {
        f32::from_bits(word as u32)
    }
}

/// Position of the thread in its warp.
#[inline(always)]
pub fn lane_id() -> u32 {
    thread_idx_x() % LANES
}

/// Position of the warp in its block.
#[inline(always)]
pub fn warp_id() -> u32 {
    thread_idx_x() / LANES
}

/// The value of lane `lane_id() ^ lane_mask`. `shfl.sync.bfly.b32`
#[inline(always)]
pub fn shuffle_xor<T: Register>(value: T, lane_mask: u32) -> T {
    // SAFETY: exchanges registers; see the convergence rule of this module.
    T::from_word(unsafe { shfl_bfly(FULL, value.to_word(), lane_mask as i32, WHOLE_WARP) })
}

/// The value of lane `lane % 32`. `shfl.sync.idx.b32`
#[inline(always)]
pub fn shuffle_idx<T: Register>(value: T, lane: u32) -> T {
    // SAFETY: exchanges registers; see the convergence rule of this module.
    T::from_word(unsafe { shfl_idx(FULL, value.to_word(), lane as i32, WHOLE_WARP) })
}

/// The value of lane `lane_id() - delta`; below lane `delta`, the lane's own. `shfl.sync.up.b32`
#[inline(always)]
pub fn shuffle_up<T: Register>(value: T, delta: u32) -> T {
    // SAFETY: exchanges registers; see the convergence rule of this module.
    T::from_word(unsafe { shfl_up(FULL, value.to_word(), delta as i32, 0) })
}

/// [`shuffle_xor`] of 64 bits: two shuffles.
#[inline(always)]
pub fn shuffle_xor_u64(value: u64, lane_mask: u32) -> u64 {
    join(shuffle_xor(value as u32, lane_mask), shuffle_xor((value >> 32) as u32, lane_mask))
}

/// [`shuffle_idx`] of 64 bits: two shuffles.
#[inline(always)]
pub fn shuffle_idx_u64(value: u64, lane: u32) -> u64 {
    join(shuffle_idx(value as u32, lane), shuffle_idx((value >> 32) as u32, lane))
}

/// Two words as one number.
#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Sum of the values of lanes `0 ..= lane_id()`; wraps. Five pairs of `shfl.sync.up.b32`.
#[inline(always)]
pub fn running_sum_u64(value: u64) -> u64 {
    let mut sum = value;
    let mut distance = 1;
    while distance < LANES {
        let below =
            join(shuffle_up(sum as u32, distance), shuffle_up((sum >> 32) as u32, distance));
        sum = if lane_id() >= distance { sum.wrapping_add(below) } else { sum };
        distance *= 2;
    }
    sum
}

/// One bit per lane whose `predicate` holds. `vote.sync.ballot.b32`
#[inline(always)]
pub fn ballot(predicate: bool) -> u32 {
    // SAFETY: exchanges predicates; see the convergence rule of this module.
    unsafe { vote_ballot(FULL, predicate) as u32 }
}

/// Whether `predicate` holds for any lane. `vote.sync.any.pred`
#[inline(always)]
pub fn any(predicate: bool) -> bool {
    // SAFETY: exchanges predicates; see the convergence rule of this module.
    unsafe { vote_any(FULL, predicate) }
}

/// Waits for the warp; what its lanes wrote before is then visible to all of them.
/// `bar.warp.sync`
#[inline(always)]
pub fn sync_warp() {
    // SAFETY: a barrier touches no memory of its own; see the convergence rule of this module.
    unsafe { bar_warp_sync(FULL) }
}

/// Sum over each aligned group of `GROUP` lanes (a power of two), left in all of them; wraps.
///
/// A tree of `shfl.sync.bfly.b32`; one `redux.sync.add.s32` for whole warps from sm_80.
#[inline(always)]
pub fn group_sum<const GROUP: u32>(value: i32) -> i32 {
    const { assert!(GROUP.is_power_of_two() && GROUP <= LANES) };
    #[cfg(level_sm_80)]
    if GROUP == LANES {
        // SAFETY: exchanges registers; see the convergence rule of this module.
        return unsafe { redux_add(value, FULL) };
    }
    let mut sum = value;
    let mut distance = GROUP / 2;
    while distance > 0 {
        sum = sum.wrapping_add(shuffle_xor(sum, distance));
        distance /= 2;
    }
    sum
}

/// Sum over the warp, left in every lane; wraps.
#[inline(always)]
pub fn warp_sum(value: i32) -> i32 {
    group_sum::<LANES>(value)
}

/// The floating-point tree over the warp: distance 16 down to 1, left in every lane.
///
/// At distance `d` lane `i` takes lane `i + d`, and lane `i + d` the same two terms the other way
/// round, so all lanes end with the same bits.
#[inline(always)]
pub fn warp_tree(value: f32) -> f32 {
    let mut sum = value;
    let mut distance = LANES / 2;
    while distance > 0 {
        sum += shuffle_xor(sum, distance);
        distance /= 2;
    }
    sum
}

/// Largest value of the warp, left in every lane. `redux.sync.max.u32` from sm_80, else a tree of
/// `shfl.sync.bfly.b32`.
#[inline(always)]
pub fn warp_max(value: u32) -> u32 {
    #[cfg(level_sm_80)]
    // SAFETY: exchanges registers; see the convergence rule of this module.
    return unsafe { redux_umax(value as i32, FULL) as u32 };
    #[cfg(not(level_sm_80))]
    {
        let mut max = value;
        let mut distance = LANES / 2;
        while distance > 0 {
            max = max.max(shuffle_xor(max, distance));
            distance /= 2;
        }
        max
    }
}
