//! A warp: its registers, and the lanes that stand at one place.

use std::collections::VecDeque;

use super::race::Asked;
use crate::ptx::Kernel;
use crate::ptx::op::{R, Wgmma};

/// What a register holds before anything is written.
const POISON: u32 = 0xa5a5_a5a5;

/// What the lanes of a fragment wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing.
    Ready,
    /// The other lanes, for an instruction that they execute together.
    Lanes,
    /// The instruction is tried again when something has changed.
    Retry,
    /// A barrier of the block, by number, to leave this generation.
    Barrier(usize, u64),
}

/// Lanes at one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) pc: u32,
    pub(super) mask: u32,
    pub(super) wait: Wait,
}

/// A copy of `cp.async` that was asked for.
pub(super) struct Copy {
    pub(super) lane: u8,
    pub(super) group: u32,
    pub(super) to: u32,
    pub(super) from: u64,
    pub(super) bytes: u32,
    pub(super) read: u32,
    pub(super) asked: Asked,
}

/// A box of shared memory for a tensor that was asked for.
pub(super) struct Store {
    pub(super) lane: u8,
    pub(super) group: u32,
    pub(super) from: u32,
    pub(super) map: u64,
    pub(super) at: Vec<i32>,
    pub(super) asked: Asked,
}

/// A product of `wgmma` that was asked for, with what its registers held.
pub(super) struct Product<'a> {
    pub(super) group: u32,
    pub(super) what: &'a Wgmma,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) add: bool,
    pub(super) asked: Asked,
}

/// 32 lanes.
#[derive(Default)]
pub(super) struct Warp<'a> {
    pub(super) words: Vec<[u32; 32]>,
    pub(super) doubles: Vec<[u64; 32]>,
    pub(super) predicates: Vec<u32>,
    pub(super) fragments: Vec<Fragment>,
    /// Lanes that have not ended.
    pub(super) live: u32,
    pub(super) block: usize,
    /// Its number in the block.
    pub(super) number: u32,
    /// Lanes that have passed `griddepcontrol.wait`.
    pub(super) waited: u32,
    pub(super) copies: VecDeque<Copy>,
    /// Groups of copies that each lane has closed.
    pub(super) copy_groups: [u32; 32],
    pub(super) stores: VecDeque<Store>,
    /// Groups of stores that each lane has closed.
    pub(super) store_groups: [u32; 32],
    pub(super) products: VecDeque<Product<'a>>,
    pub(super) product_groups: u32,
    /// The phase of the cluster's barrier that it has to wait for, or 0: it has not arrived.
    pub(super) cluster_phase: u64,
    /// Whether a `fence.mbarrier_init` was met since the last arrival.
    pub(super) init_fence: bool,
    /// What had been shown in global memory when it polled last, and nothing else since.
    pub(super) seen: Option<u64>,
    /// How many barriers had turned when it looked at one last, in vain, and cannot do anything else.
    pub(super) looked: Option<u64>,
    /// The fragment that ran last, and whether it ran a whole turn.
    pub(super) last: usize,
    pub(super) tired: bool,
}

impl<'a> Warp<'a> {
    /// Registers for `kernel`.
    pub(super) fn new(kernel: &Kernel) -> Self {
        let [words, doubles, predicates] = kernel.registers;
        Self {
            words: vec![[0; 32]; words],
            doubles: vec![[0; 32]; doubles],
            predicates: vec![0; predicates],
            ..Self::default()
        }
    }

    /// At the kernel's beginning, with these lanes.
    pub(super) fn start(&mut self, block: usize, number: u32, live: u32) {
        (self.block, self.number, self.live) = (block, number, live);
        // Nothing may depend on what a register held before.
        self.words.fill([POISON; 32]);
        self.doubles.fill([u64::from(POISON) << 32 | u64::from(POISON); 32]);
        self.predicates.fill(POISON);
        self.fragments.clear();
        self.fragments.push(Fragment { pc: 0, mask: live, wait: Wait::Ready });
        self.waited = 0;
        self.copies.clear();
        self.copy_groups = [0; 32];
        self.stores.clear();
        self.store_groups = [0; 32];
        self.products.clear();
        self.product_groups = 0;
        self.cluster_phase = 0;
        self.init_fence = false;
        (self.seen, self.looked) = (None, None);
        (self.last, self.tired) = (usize::MAX, false);
    }

    #[inline(always)]
    pub(super) fn word<'s>(&'s self, kernel: &'s Kernel, r: R) -> &'s [u32; 32] {
        if r.0 & R::CONSTANT != 0 {
            &kernel.constants.0[(r.0 & !R::CONSTANT) as usize]
        } else {
            &self.words[r.0 as usize]
        }
    }

    #[inline(always)]
    pub(super) fn double<'s>(&'s self, kernel: &'s Kernel, r: R) -> &'s [u64; 32] {
        if r.0 & R::CONSTANT != 0 {
            &kernel.constants.1[(r.0 & !R::CONSTANT) as usize]
        } else {
            &self.doubles[r.0 as usize]
        }
    }

    #[inline(always)]
    pub(super) fn predicate(&self, r: R) -> u32 {
        match r.0 {
            c if c == R::CONSTANT => 0,
            c if c == R::CONSTANT | 1 => !0,
            at => self.predicates[at as usize],
        }
    }

    /// Sets the lanes of `mask` to those of `value`.
    #[inline(always)]
    pub(super) fn set_predicate(&mut self, r: R, value: u32, mask: u32) {
        let p = &mut self.predicates[r.0 as usize];
        *p = *p & !mask | value & mask;
    }
}

/// The lanes of a mask, lowest first.
#[inline(always)]
pub(super) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}
