//! What is told of parts: by the warps of a block to its last one, and by that one to other blocks of the row.

use contract::num::{fma, tree8};
use contract::softmax::{EXCHANGE_HEAD, PART, PartArgs, SETS, closing, factor};

use super::segment::largest;
use super::walk::Walk;
use crate::arch::atomic::{add_relaxed, ld_relaxed_x4, st_relaxed, st_relaxed_u64_x2};
use crate::arch::float::maximum;
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::ld;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{grid_dim_x, opaque, sync_threads};
use crate::arch::warp::{LANES, any, lane_id, shuffle_xor, warp_id, warp_tree};

/// What the warps of a block tell each other: maximum and sum of each segment of a part, maximum and closing of its row, in one of [`SETS`].
#[derive(Clone, Copy)]
pub(super) struct Told(Shared<f32>);

impl Told {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self(dynamic_shared_mem::<f32>().kept())
    }

    /// Of segment `n` of a part.
    #[inline(always)]
    pub(super) fn segment(self, set: u32, n: u32) -> Shared<f32> {
        self.0.add(2 * (PART * set + n))
    }

    /// Of the row.
    #[inline(always)]
    pub(super) fn row(self, set: u32) -> Shared<f32> {
        self.0.add(2 * (SETS * PART + set))
    }

    /// Has a phase for each turn of the set: over when every segment is told.
    #[inline(always)]
    pub(super) fn segments_there(self, set: u32) -> Barrier {
        self.0.add(2 * (SETS * (PART + 1) + set)).cast()
    }

    /// The same of the row.
    #[inline(always)]
    pub(super) fn row_there(self, set: u32) -> Barrier {
        self.0.add(2 * (SETS * (PART + 2) + set)).cast()
    }

    /// Makes the barriers.
    ///
    /// *Convergence*: every thread of the block calls it.
    ///
    /// # Safety
    ///
    /// The block has the shared memory.
    #[inline(always)]
    pub(super) unsafe fn start(self) {
        if warp_id() == PART && lane_id() < SETS {
            // SAFETY: words of the block, which others use behind the barrier.
            unsafe {
                mbarrier::init(self.segments_there(lane_id()), PART);
                mbarrier::init(self.row_there(lane_id()), 1);
            }
        }
        sync_threads();
    }
}

/// Maximum and sum of up to 32 parts, one in a lane. Nothing where there is no part.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The slots are those of the exchange.
#[inline(always)]
unsafe fn hear_one(row: *const u32, count: u32, flag: u32) -> [f32; 2] {
    let mut words = [f32::NEG_INFINITY.to_bits(), flag, 0, flag];
    loop {
        if lane_id() < count {
            // SAFETY: the caller's promise.
            words = unsafe { ld_relaxed_x4(row.wrapping_add(4 * lane_id() as usize)) };
        }
        if !any(words[1] != flag || words[3] != flag) {
            return [f32::from_bits(words[0]), f32::from_bits(words[2])];
        }
    }
}

/// Maxima and sums of up to 256 parts from `part` on, eight in a lane: 32 apart. Nothing where there is no part.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The slots are those of the exchange.
#[inline(always)]
unsafe fn hear_some(row: *const u32, part: u32, count: u32, flag: u32) -> [[f32; 2]; 8] {
    let mut heard = [[f32::NEG_INFINITY, 0.0]; 8];
    let own = part + lane_id();
    let slot = row.wrapping_add(4 * own as usize);
    loop {
        let mut late = false;
        let mut i = 0;
        while i < 8 {
            if part + LANES * i < count {
                let mut words = [f32::NEG_INFINITY.to_bits(), flag, 0, flag];
                if own + LANES * i < count {
                    // SAFETY: the caller's promise.
                    words = unsafe { ld_relaxed_x4(slot.wrapping_add((4 * LANES * i) as usize)) };
                }
                late |= words[1] != flag || words[3] != flag;
                heard[i as usize] = [f32::from_bits(words[0]), f32::from_bits(words[2])];
            }
            i += 1;
        }
        if !any(late) {
            return heard;
        }
    }
}

/// Maximum and sum of a row of `count` parts, in every lane.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The slots are those of the exchange.
#[inline(always)]
unsafe fn hear(row: *const u32, count: u32, flag: u32) -> [f32; 2] {
    let top = |heard: &[[f32; 2]; 8]| {
        let mut top = f32::NEG_INFINITY;
        let mut i = 0;
        while i < 8 {
            top = maximum(top, heard[i][0]);
            i += 1;
        }
        top
    };
    // SAFETY: handed on.
    unsafe {
        if count <= LANES {
            let [top, sum] = hear_one(row, count, flag);
            let max = largest(top);
            return [max, warp_tree(sum * factor(top, max))];
        }
        let mut heard = hear_some(row, 0, count, flag);
        let mut max = top(&heard);
        let mut part = 8 * LANES;
        while part < count {
            max = maximum(max, top(&hear_some(row, part, count, flag)));
            part = opaque(part + 8 * LANES);
        }
        let max = largest(max);
        let mut p = [0.0; 8];
        let mut part = 0;
        loop {
            let mut i = 0;
            while i < 8 {
                p[i] = fma(heard[i][1], factor(heard[i][0], max), p[i]);
                i += 1;
            }
            part = opaque(part + 8 * LANES);
            if part >= count {
                return [max, warp_tree(tree8(p))];
            }
            heard = hear_some(row, part, count, flag);
        }
    }
}

/// The warp that tells other blocks of the row, and hears them.
///
/// # Safety
///
/// As for the entry.
#[inline(always)]
pub(super) unsafe fn talk(args: &PartArgs) {
    let (walk, told) = (Walk::new(args), Told::new());
    let head = args.exchange.as_ptr();
    // SAFETY: words of the exchange; the last block changes the number of launches, when all have read it.
    unsafe {
        let launches = ld(head);
        let flag = launches.wrapping_mul(2) | 1;
        let slots = head.wrapping_add(EXCHANGE_HEAD as usize);
        let mut turn = walk.first();
        let mut n = 0;
        while walk.there(turn) {
            let set = n % SETS;
            mbarrier::wait(told.segments_there(set), n / SETS % 2);
            let own = if lane_id() < PART {
                told.segment(set, lane_id()).read_x2()
            } else {
                [f32::NEG_INFINITY, 0.0]
            };
            let max = largest(own[0]);
            let mut sum = own[1] * factor(own[0], max);
            let mut distance = PART / 2;
            while distance > 0 {
                sum += shuffle_xor(sum, distance);
                distance /= 2;
            }
            let row = slots.wrapping_add(4 * (walk.row(turn) * walk.parts.count) as usize);
            if lane_id() == 0 {
                let word = |v: f32| u64::from(v.to_bits()) | u64::from(flag) << 32;
                let slot = row.wrapping_add(4 * turn.part as usize);
                st_relaxed_u64_x2(slot.cast(), [word(max), word(sum)]);
            }
            let mut both = [0.0; 2];
            if walk.last(turn) {
                let [max, sum] = hear(row, walk.parts.count, flag);
                both = [max, closing(sum, max, args.rows.log == 1)];
            }
            if lane_id() == 0 {
                told.row(set).write_x2(both);
                mbarrier::arrive(told.row_there(set));
            }
            turn = walk.next(turn);
            n = opaque(n + 1);
        }
        if lane_id() == 0 && add_relaxed(head.wrapping_add(1), 1) == grid_dim_x() - 1 {
            st_relaxed(head.wrapping_add(1), 0);
            st_relaxed(head, launches.wrapping_add(1));
        }
    }
}
