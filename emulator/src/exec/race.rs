//! Data races on shared memory: two accesses, one of them a write, that nothing orders.
//!
//! Every warp has a clock, and knows how much of the others' time is before its own: what it learned at barriers. An
//! access that comes after one of a time that it does not know of races with it. Lanes of one warp are taken as
//! ordered, but a lane reads what another one wrote only after an instruction that the warp executes together.
//!
//! What the hardware does late has the knowledge of when it was asked for, and is known to who waited for it: a copy
//! of `cp.async` to its own warp, others (and those that `cp.async.mbarrier.arrive` tracks) to who has waited for the
//! barrier that counts them. `wgmma` reads from when it is asked for until it is waited for.
//!
//! Bulk copies and `wgmma` go by the asynchronous proxy: what threads did before comes before it only where a `fence.proxy.async` stands between,
//! of who did it or of who learned of it.

mod shadow;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::rc::Rc;

use super::group::{BARRIERS, Bad, failed};
use super::step::RANK_SHIFT;
use super::warp::{Warp, lanes};
use crate::ptx::Kernel;
use crate::ptx::op::{Inst, Op, Space};
use shadow::{Access, Knows, Shadow};

/// What an access does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum How {
    #[default]
    Read,
    Write,
    /// A write of what is there: it does not race with writes.
    Same,
    /// Atomics do not race with each other.
    Atomic,
}

/// Whose way an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    /// That of threads.
    Generic,
    /// That of bulk copies and `wgmma`.
    Async,
}

/// How much of the time of each warp of a cluster, and of each of its `mbarrier`s, is known.
#[derive(Clone, Default)]
struct Known {
    times: Vec<u32>,
    /// The same in front of a proxy fence.
    shown: Vec<u32>,
}

/// A warp at an instruction.
#[derive(Clone, Copy)]
pub(super) struct By {
    /// Its number among those of all blocks.
    warp: usize,
    pc: u32,
}

/// An instruction that finishes late.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) pc: u32,
    /// What its warp knew.
    known: Rc<Known>,
}

/// Where a late copy is known when it is done.
#[derive(Clone, Copy)]
pub(super) enum Done {
    /// To its warp.
    Warp,
    /// To who waits for this `mbarrier` of a block.
    Bar((usize, u32)),
    /// To nobody: it was never waited for.
    Never,
}

/// Warps that are at a barrier of a block.
#[derive(Clone, Default)]
struct Meeting {
    waiting: Vec<usize>,
    /// What those knew that arrived and went on.
    arrived: Known,
}

/// An `mbarrier`.
struct Bar {
    /// Its place in what is known.
    number: usize,
    /// Its phases.
    clock: u32,
    /// What those know that have arrived in this phase.
    arrived: Known,
    /// The same of phases that are over.
    over: Known,
}

pub(super) struct Race<'a> {
    kernel: &'a Kernel,
    /// Warps of a block, of a cluster.
    warps: usize,
    together: usize,
    /// Blocks of a cluster.
    cluster_size: usize,
    shadow: Shadow,
    /// The last time of the blocks that were in the place of these: all of it is over.
    base: u32,
    /// Whether an access has a time that is never over.
    endless: bool,
    /// By warp.
    known: Vec<Known>,
    /// Each barrier of each block.
    meetings: Vec<[Meeting; BARRIERS]>,
    /// Of each cluster's barrier: what those know that have arrived, and of the phases before.
    clusters: Vec<(Known, Known)>,
    /// By block and address.
    bars: BTreeMap<(usize, u32), Bar>,
}

/// The later of two times of each.
fn join(to: &mut Vec<u32>, from: &[u32]) {
    if to.len() < from.len() {
        to.resize(from.len(), 0);
    }
    to.iter_mut().zip(from).for_each(|(to, from)| *to = (*to).max(*from));
}

impl Known {
    /// Learns what `from` knows.
    fn join(&mut self, from: &Self) {
        join(&mut self.times, &from.times);
        join(&mut self.shown, &from.shown);
    }

    /// What an access of this proxy knows of the others before it.
    #[inline(always)]
    fn of(&self, proxy: Proxy, base: u32) -> Knows<'_> {
        let generic = if proxy == Proxy::Async { &self.shown } else { &self.times };
        Knows { generic, asynchronous: &self.times, base }
    }
}

/// Bytes of the smallest write of shared memory, as a power of two.
fn smallest(code: &[Inst]) -> u32 {
    let bytes = |inst: &Inst| match inst.op {
        Op::Store { space: Space::Shared | Space::Cluster, element, n, .. } => {
            element.bytes() as u32 * u32::from(n)
        }
        Op::AtomAdd { shared: true, .. } | Op::StoreAsync { .. } => 4,
        Op::BarInit { .. } => 8,
        Op::CopyAsync { bytes, .. } => bytes,
        _ => 16,
    };
    code.iter().map(bytes).min().unwrap_or(16).trailing_zeros()
}

impl<'a> Race<'a> {
    /// For blocks of `warps` warps and `bytes` bytes of shared memory.
    pub(super) fn new(
        kernel: &'a Kernel,
        (blocks, cluster_size): (usize, usize),
        warps: usize,
        bytes: usize,
    ) -> Self {
        let together = cluster_size * warps;
        Self {
            kernel,
            warps,
            together,
            cluster_size,
            shadow: Shadow::new(smallest(&kernel.code), blocks, bytes, together),
            base: 0,
            endless: false,
            known: vec![Known::default(); blocks * warps],
            meetings: (0..blocks).map(|_| Default::default()).collect(),
            clusters: vec![Default::default(); blocks / cluster_size],
            bars: BTreeMap::new(),
        }
    }

    /// At the beginning of blocks.
    pub(super) fn start(&mut self) {
        // Time goes on, so that what the blocks before did need not be cleared.
        let warps = self.known.iter().enumerate();
        let times =
            warps.filter_map(|(warp, known)| known.times.get(warp % self.together).copied());
        let last = times.chain(self.bars.values().map(|bar| bar.clock)).max().unwrap_or(0);
        self.base = if self.endless || last > u32::MAX / 2 {
            self.shadow.clear();
            0
        } else {
            last
        };
        self.endless = false;
        for (warp, known) in self.known.iter_mut().enumerate() {
            known.times.clear();
            known.times.resize(self.together, 0);
            known.times[warp % self.together] = self.base + 1;
            known.shown.clear();
        }
        self.meetings.as_flattened_mut().fill_with(Meeting::default);
        self.clusters.fill(Default::default());
        self.bars.clear();
    }

    pub(super) fn by(&self, warp: &Warp, pc: u32) -> By {
        By { warp: warp.block * self.warps + warp.number as usize, pc }
    }

    /// What `by` does from now on comes after what it has let others know.
    pub(super) fn tick(&mut self, by: By) {
        self.known[by.warp].times[by.warp % self.together] += 1;
    }

    /// A proxy fence of a warp.
    pub(super) fn fence(&mut self, by: By) {
        let Known { times, shown } = &mut self.known[by.warp];
        join(shown, times);
        self.tick(by);
    }

    /// Lane `lane` of a warp touches bytes of a block.
    #[inline(always)]
    pub(super) fn touch(
        &mut self,
        how: How,
        by: By,
        lane: usize,
        block: usize,
        place: (usize, usize),
    ) -> Result<(), Bad> {
        let (who, known) = (by.warp % self.together, &self.known[by.warp]);
        let (clock, proxy) = (known.times[who], Proxy::Generic);
        let access = Access::new((clock, who as u16), lane, (how, proxy), by.pc);
        let known = known.of(proxy, self.base);
        match self.shadow.touch(access, known, block, place) {
            Ok(()) => Ok(()),
            Err(other) => self.found(block, place.0, access, other),
        }
    }

    /// The lanes of `mask` touch `bytes` bytes each, at addresses that were checked.
    #[inline(never)]
    pub(super) fn touch_all(
        &mut self,
        how: How,
        by: By,
        mask: u32,
        addresses: &[u64; 32],
        bytes: usize,
    ) -> Result<(), Bad> {
        let (own, who) = (by.warp / self.warps, by.warp % self.together);
        let (known, proxy) = (&self.known[by.warp], Proxy::Generic);
        let mut access = Access::new((known.times[who], who as u16), 0, (how, proxy), by.pc);
        let known = known.of(proxy, self.base);
        for lane in lanes(mask) {
            // Shared or generic, of this block or another one of its cluster.
            let low = addresses[lane] as u32 as usize;
            let block = match low >> RANK_SHIFT {
                0 => own,
                rank => by.warp / self.together * self.cluster_size + rank - 1,
            };
            access.set_lane(lane);
            let at = low & ((1 << RANK_SHIFT) - 1);
            if let Err(other) = self.shadow.touch(access, known, block, (at, bytes)) {
                return self.found(block, at, access, other);
            }
        }
        Ok(())
    }

    /// What a warp asks for now.
    pub(super) fn ask(&mut self, by: By) -> Asked {
        let known = Rc::new(self.known[by.warp].clone());
        self.tick(by);
        Asked { pc: by.pc, known }
    }

    /// What lane `lane` of `warp` asked for touches bytes of a block.
    pub(super) fn touch_late(
        &mut self,
        (how, proxy): (How, Proxy),
        warp: &Warp,
        asked: &Asked,
        lane: usize,
        done: Done,
        (block, place): (usize, (usize, usize)),
    ) -> Result<(), Bad> {
        let warp = self.by(warp, 0).warp;
        let own = warp % self.together;
        let (who, clock) = match done {
            Done::Warp => (own, self.known[warp].times[own]),
            Done::Never => {
                self.endless = true;
                (own, u32::MAX)
            }
            Done::Bar(at) => return self.copied(asked, proxy, lane, at, (block, place)),
        };
        let access = Access::new((clock, who as u16), lane, (how, proxy), asked.pc);
        let known = asked.known.of(proxy, self.base);
        match self.shadow.touch(access, known, block, place) {
            Ok(()) => Ok(()),
            Err(other) => self.found(block, place.0, access, other),
        }
    }

    /// A late copy, which the `mbarrier` at `bar` counts, writes bytes of a block.
    pub(super) fn copied(
        &mut self,
        asked: &Asked,
        proxy: Proxy,
        lane: usize,
        bar: (usize, u32),
        (block, place): (usize, (usize, usize)),
    ) -> Result<(), Bad> {
        let Some(Bar { number, clock, .. }) = self.bars.get(&bar) else { return Ok(()) };
        let by = (*clock, *number as u16);
        let access = Access::new(by, lane, (How::Write, proxy), asked.pc);
        let known = asked.known.of(proxy, self.base);
        match self.shadow.touch(access, known, block, place) {
            Ok(()) => Ok(()),
            Err(other) => self.found(block, place.0, access, other),
        }
    }

    #[cold]
    fn found(&self, block: usize, at: usize, new: Access, old: Access) -> Result<(), Bad> {
        let name = |access: Access| {
            let how = match access.how {
                How::Read => "reads",
                How::Write | How::Same => "writes",
                How::Atomic => "changes",
            };
            let text = &self.kernel.text[access.pc as usize];
            let (warp, lane) = (usize::from(access.who), access.lane() as u32);
            let who = if warp < self.together {
                let thread = (warp % self.warps) as u32 * 32 + lane;
                format!("thread {thread} of block {}", warp / self.warps)
            } else {
                format!("a late copy that lane {lane} asked for")
            };
            format!("\n  {who} {how} it at instruction {}: {text}", access.pc)
        };
        let rank = block % self.cluster_size;
        failed(
            new.lane(),
            format!(
                "a race on address {at} of the shared memory of block {rank} of the cluster{}{}",
                name(old),
                name(new)
            ),
        )
    }

    /// A warp arrives at barrier `id` of its block, and waits or goes on.
    pub(super) fn meet(&mut self, warp: &Warp, id: usize, waits: bool) {
        let by = self.by(warp, 0);
        let meeting = &mut self.meetings[warp.block][id];
        if waits {
            meeting.waiting.push(by.warp);
        } else {
            meeting.arrived.join(&self.known[by.warp]);
            self.tick(by);
        }
    }

    /// Barrier `id` of a block opens: who waits knows what each knew.
    pub(super) fn open(&mut self, block: usize, id: usize) {
        let Meeting { waiting, arrived: mut all } = std::mem::take(&mut self.meetings[block][id]);
        waiting.iter().for_each(|warp| all.join(&self.known[*warp]));
        for warp in waiting {
            self.known[warp].clone_from(&all);
            self.known[warp].times[warp % self.together] += 1;
        }
    }

    pub(super) fn cluster_arrive(&mut self, by: By) {
        self.clusters[by.warp / self.together].0.join(&self.known[by.warp]);
        self.tick(by);
    }

    /// A cluster's barrier opens.
    pub(super) fn cluster_turn(&mut self, cluster: usize) {
        let (arrived, over) = &mut self.clusters[cluster];
        *over = std::mem::take(arrived);
    }

    pub(super) fn cluster_wait(&mut self, by: By) {
        self.known[by.warp].join(&self.clusters[by.warp / self.together].1);
    }

    /// An `mbarrier` begins.
    pub(super) fn bar_init(&mut self, by: By, lane: usize, at: (usize, u32)) -> Result<(), Bad> {
        self.touch(How::Write, by, lane, at.0, (at.1 as usize, 8))?;
        let number = self.together + self.bars.len();
        let (clock, known) = (self.base + 1, Known::default());
        let bar = Bar { number, clock, arrived: known.clone(), over: known };
        // One that was there before keeps its time.
        self.bars.entry(at).or_insert(bar);
        Ok(())
    }

    /// A lane arrives at an `mbarrier`; [`Self::tick`] follows.
    pub(super) fn bar_arrive(&mut self, by: By, lane: usize, at: (usize, u32)) -> Result<(), Bad> {
        self.touch(How::Atomic, by, lane, at.0, (at.1 as usize, 8))?;
        if let Some(bar) = self.bars.get_mut(&at) {
            bar.arrived.join(&self.known[by.warp]);
        }
        Ok(())
    }

    /// A phase of an `mbarrier` is over.
    pub(super) fn bar_turn(&mut self, at: (usize, u32)) {
        if let Some(bar) = self.bars.get_mut(&at) {
            bar.over.join(&bar.arrived);
            let times = &mut bar.over.times;
            times.resize(times.len().max(bar.number + 1), 0);
            times[bar.number] = bar.clock;
            bar.clock += 1;
        }
    }

    /// A lane has waited for a phase of an `mbarrier`.
    pub(super) fn bar_wait(&mut self, by: By, lane: usize, at: (usize, u32)) -> Result<(), Bad> {
        self.touch(How::Atomic, by, lane, at.0, (at.1 as usize, 8))?;
        if let Some(bar) = self.bars.get(&at) {
            self.known[by.warp].join(&bar.over);
        }
        Ok(())
    }
}
