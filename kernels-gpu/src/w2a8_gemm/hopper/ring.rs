//! Rings of places in shared memory, and the barriers at which those meet who fill and use them.

use crate::arch::mbarrier::{self, Barrier};
use crate::arch::shared::Shared;

/// A place of a ring of `STAGES`, and the parity of its barriers' phase.
#[derive(Clone, Copy)]
pub(super) struct Place<const STAGES: u32> {
    pub(super) stage: u32,
    pub(super) parity: u32,
}

impl<const STAGES: u32> Place<STAGES> {
    pub(super) const FIRST: Self = Self { stage: 0, parity: 0 };

    #[inline(always)]
    pub(super) fn next(self) -> Self {
        let last = self.stage + 1 == STAGES;
        let stage = if last { 0 } else { self.stage + 1 };
        Self { stage, parity: self.parity ^ u32::from(last) }
    }
}

/// A ring of `STAGES` places of `BYTES` bytes with two barriers each.
#[derive(Clone, Copy)]
pub(super) struct Ring<const STAGES: u32, const BYTES: u32> {
    pub(super) places: Shared<u8>,
    pub(super) barriers: Barrier,
}

impl<const STAGES: u32, const BYTES: u32> Ring<STAGES, BYTES> {
    #[inline(always)]
    pub(super) fn place(&self, place: Place<STAGES>) -> Shared<u8> {
        self.places.add(place.stage * BYTES)
    }

    /// The one that ends a phase when a place is filled.
    #[inline(always)]
    pub(super) fn full(&self, place: Place<STAGES>) -> Barrier {
        self.barriers.add(place.stage)
    }

    /// The one that ends a phase when all who use a place have given it back.
    #[inline(always)]
    pub(super) fn empty(&self, place: Place<STAGES>) -> Barrier {
        self.barriers.add(STAGES + place.stage)
    }

    /// Makes the barriers; `users` threads give a place back.
    ///
    /// # Safety
    ///
    /// One thread calls it; the ring is the block's.
    #[inline(always)]
    pub(super) unsafe fn init(&self, users: u32) {
        let mut stage = 0;
        while stage < STAGES {
            // SAFETY: the caller's promise.
            unsafe {
                mbarrier::init(self.barriers.add(stage), 1);
                mbarrier::init(self.barriers.add(STAGES + stage), users);
            }
            stage += 1;
        }
    }
}
