//! What is told of parts of rows: by the warps of a block to its last two, of which one tells other blocks of the row, and one hears them and
//! tells the warps of the block. From sm_90. The two are apart so that a part is told while others are waited for.
//!
//! A slot of the exchange has two numbers of a part, each with the number of the launch for a flag. All blocks run at once, and each tells a part
//! before it waits for those of the row: what it waits for never comes after that.

use contract::launch::DevPtr;
use contract::parts::{EXCHANGE_HEAD, PART};

use crate::arch::atomic::{add_relaxed, ld_relaxed_x4, st_relaxed, st_relaxed_u64_x2};
use crate::arch::mbarrier::{self, Barrier};
use crate::arch::mem::ld;
use crate::arch::shared::{Shared, dynamic_shared_mem};
use crate::arch::thread::{grid_dim_x, sync_threads};
use crate::arch::warp::{LANES, any, lane_id, warp_id};

/// What the warps of a block tell each other: two numbers of each segment of a part, and two of its row, in one of so many sets.
#[derive(Clone, Copy)]
pub struct Told<const SETS: u32>(Shared<f32>);

impl<const SETS: u32> Told<SETS> {
    /// Those of the block.
    #[inline(always)]
    pub fn new() -> Self {
        Self(dynamic_shared_mem::<f32>().kept())
    }

    /// Of segment `n` of a part.
    #[inline(always)]
    pub fn segment(self, set: u32, n: u32) -> Shared<f32> {
        self.0.add(2 * (PART * set + n))
    }

    /// Of the row.
    #[inline(always)]
    pub fn row(self, set: u32) -> Shared<f32> {
        self.0.add(2 * (SETS * PART + set))
    }

    /// Has a phase for each turn of the set: over when every segment is told.
    #[inline(always)]
    pub fn segments_there(self, set: u32) -> Barrier {
        self.0.add(2 * (SETS * (PART + 1) + set)).cast()
    }

    /// The same of the row: over when the part is told to other blocks, and the row to this one.
    #[inline(always)]
    pub fn row_there(self, set: u32) -> Barrier {
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
    pub unsafe fn start(self) {
        if warp_id() == PART && lane_id() < SETS {
            // SAFETY: words of the block, which others use behind the barrier.
            unsafe {
                mbarrier::init(self.segments_there(lane_id()), PART);
                mbarrier::init(self.row_there(lane_id()), 2);
            }
        }
        sync_threads();
    }
}

/// The numbers of up to 32 parts, one in a lane; `nothing` and zero where there is no part.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The slots are those of the exchange.
#[inline(always)]
pub unsafe fn hear_one(row: *const u32, count: u32, flag: u32, nothing: f32) -> [f32; 2] {
    let mut words = [nothing.to_bits(), flag, 0, flag];
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

/// The numbers of up to 256 parts from `part` on, eight in a lane: 32 apart; `nothing` and zero where there is no part.
///
/// *Convergence*: every lane of the warp calls it.
///
/// # Safety
///
/// The slots are those of the exchange.
#[inline(always)]
pub unsafe fn hear_some(
    row: *const u32,
    part: u32,
    count: u32,
    flag: u32,
    nothing: f32,
) -> [[f32; 2]; 8] {
    let mut heard = [[nothing, 0.0]; 8];
    let own = part + lane_id();
    let slot = row.wrapping_add(4 * own as usize);
    loop {
        let mut late = false;
        let mut i = 0;
        while i < 8 {
            if part + LANES * i < count {
                let mut words = [nothing.to_bits(), flag, 0, flag];
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

/// A warp of a block that tells other blocks of rows, or hears them.
pub struct Speaker {
    head: *mut u32,
    launches: u32,
    /// What the words of this launch are known by.
    pub flag: u32,
}

impl Speaker {
    /// That of a launch with such an exchange.
    ///
    /// # Safety
    ///
    /// The exchange is one of the contract's; the warp that hears calls [`Speaker::end`].
    #[inline(always)]
    pub unsafe fn new(exchange: DevPtr<u32>) -> Self {
        let head = exchange.as_ptr();
        // SAFETY: the last block changes the number of launches, when all have read it.
        let launches = unsafe { ld(head) };
        Self { head, launches, flag: launches.wrapping_mul(2) | 1 }
    }

    /// The slots of the parts of a row of the launch.
    #[inline(always)]
    pub fn row(&self, row: u32, parts: u32) -> *mut u32 {
        self.head.wrapping_add((EXCHANGE_HEAD + 4 * row * parts) as usize)
    }

    /// Tells the numbers of a part of a row with such slots.
    ///
    /// # Safety
    ///
    /// The slot is this block's.
    #[inline(always)]
    pub unsafe fn tell(&self, row: *mut u32, part: u32, numbers: [f32; 2]) {
        if lane_id() == 0 {
            let word = |v: f32| u64::from(v.to_bits()) | u64::from(self.flag) << 32;
            let slot = row.wrapping_add(4 * part as usize);
            // SAFETY: the caller's promise.
            unsafe { st_relaxed_u64_x2(slot.cast(), numbers.map(word)) };
        }
    }

    /// Nothing more is told or heard.
    ///
    /// # Safety
    ///
    /// One warp of every block calls it, once, when it heard all that the block tells.
    #[inline(always)]
    pub unsafe fn end(self) {
        let (head, ended) = (self.head, self.head.wrapping_add(1));
        // SAFETY: the words of the exchange, which the last block sets for the next launch.
        unsafe {
            if lane_id() == 0 && add_relaxed(ended, 1) == grid_dim_x() - 1 {
                st_relaxed(ended, 0);
                st_relaxed(head, self.launches.wrapping_add(1));
            }
        }
    }
}
