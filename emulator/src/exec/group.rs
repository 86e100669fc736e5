//! Blocks that run side by side, and the turns that their warps take.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::late::{Late, Opened};
use super::race::Race;
use super::warp::{Fragment, Wait, Warp};
use super::{FAILED, Fault, Launch, TIMEOUT};
use crate::memory::Memory;

/// What shared memory holds before anything is written.
const POISON: u8 = 0xa5;
/// Instructions of a warp's turn.
const TURN: u32 = 4096;
/// Instructions of all warps that a group may run.
const LIMIT: u64 = 100_000_000_000;
/// How often warps may look for words in vain, when none of them does anything else, before nothing can go on: more often than any of
/// them has words to look at one after another.
const LOOKS: u32 = if cfg!(test) { 100 } else { 10_000 };
/// And for how long: who writes them may run on another device.
const PATIENCE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(60) };
/// Groups that are too few for one more thread.
const FEW: usize = 4;
/// Barriers of a block.
pub(super) const BARRIERS: usize = 16;

/// A barrier of a block.
#[derive(Clone, Copy, Default)]
pub(super) struct Barrier {
    pub(super) generation: u64,
    pub(super) arrived: u32,
    /// Threads that it waits for; 0: all of the block.
    pub(super) expected: u32,
}

/// The barrier of a cluster.
#[derive(Clone, Copy, Default)]
pub(super) struct Cluster {
    pub(super) phase: u64,
    pub(super) arrived: u32,
    pub(super) live_warps: u32,
}

impl Cluster {
    /// The next phase, when every warp that has not ended has arrived; whether it is.
    pub(super) fn turn(&mut self) -> bool {
        let all = self.arrived > 0 && self.arrived >= self.live_warps;
        if all {
            (self.phase, self.arrived) = (self.phase + 1, 0);
        }
        all
    }
}

pub(super) struct Block {
    pub(super) index: [u32; 3],
    pub(super) rank: u32,
    pub(super) cluster: usize,
    pub(super) shared: Vec<u8>,
    pub(super) barriers: [Barrier; BARRIERS],
    /// By address.
    pub(super) opened: BTreeMap<u32, Opened>,
    pub(super) live_warps: u32,
}

pub(super) struct Group<'a> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) memory: &'a Memory,
    pub(super) blocks: Vec<Block>,
    pub(super) warps: Vec<Warp<'a>>,
    pub(super) clusters: Vec<Cluster>,
    pub(super) late: VecDeque<Late>,
    pub(super) race: Race<'a>,
    /// The allocation that each instruction touched last.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Instructions run in this turn that changed something.
    pub(super) ran: u64,
    /// Stores and atomics on global memory that others may wait for.
    pub(super) shown: u64,
    /// How often something happened to a barrier that warps poll: in shared memory, or a cluster's.
    pub(super) turned: u64,
    /// Blocks of a cluster.
    pub(super) cluster_size: usize,
}

/// Runs all blocks: how many instructions that took.
pub(super) fn run(launch: &Launch, memory: &Memory) -> Result<u64, Fault> {
    let blocks = launch.grid.iter().map(|n| *n as usize).product::<usize>();
    let cluster = launch.cluster.iter().map(|n| *n as usize).product::<usize>();
    let together = if launch.cooperative { blocks } else { cluster };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut group = Group::new(launch, memory, together, cluster);
        let mut ran = 0;
        loop {
            let first = next.fetch_add(together, Ordering::Relaxed);
            if first >= blocks {
                return Ok(ran);
            }
            // After a fault, the others end with the group that they are at.
            ran += group.blocks(first).inspect_err(|_| next.store(blocks, Ordering::Relaxed))?;
        }
    };
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(blocks / together / FEW);
    if threads < 2 {
        return work();
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        others.into_iter().fold(work(), |sum, other| match other.join() {
            Ok(ran) => Ok(sum? + ran?),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

impl<'a> Group<'a> {
    fn new(launch: &'a Launch, memory: &'a Memory, together: usize, cluster_size: usize) -> Self {
        let warps = launch.block.iter().product::<u32>().div_ceil(32) as usize;
        let bytes = launch.dynamic_shared as usize;
        let block = || Block {
            index: [0; 3],
            rank: 0,
            cluster: 0,
            shared: vec![0; bytes],
            barriers: [Barrier::default(); BARRIERS],
            opened: BTreeMap::new(),
            live_warps: 0,
        };
        Self {
            launch,
            memory,
            blocks: (0..together).map(|_| block()).collect(),
            warps: (0..together * warps).map(|_| Warp::new(launch.kernel)).collect(),
            clusters: vec![Cluster::default(); together / cluster_size],
            late: VecDeque::new(),
            race: Race::new(launch.kernel, (together, cluster_size), warps, bytes),
            ranges: vec![(0, 0); launch.kernel.code.len()],
            ran: 0,
            shown: 0,
            turned: 0,
            cluster_size,
        }
    }

    /// Runs as many blocks of the grid as it has places, from number `first` on.
    fn blocks(&mut self, first: usize) -> Result<u64, Fault> {
        let threads = self.launch.block.iter().product::<u32>();
        for at in 0..self.blocks.len() {
            self.start_block(at, first + at, threads);
        }
        let live_warps = threads.div_ceil(32) * self.cluster_size as u32;
        self.clusters.fill(Cluster { live_warps, ..Cluster::default() });
        self.race.start();
        self.run()
    }

    /// Puts block number `number` of the grid (cluster by cluster) into place `at`.
    fn start_block(&mut self, at: usize, number: usize, threads: u32) {
        let (grid, cluster) = (self.launch.grid, self.launch.cluster);
        let of = |n: usize, sides: [u32; 3]| {
            let (x, y) = (sides[0] as usize, sides[1] as usize);
            [(n % x) as u32, (n / x % y) as u32, (n / x / y) as u32]
        };
        let outer = std::array::from_fn(|i| grid[i] / cluster[i]);
        let (a, b) =
            (of(number / self.cluster_size, outer), of(number % self.cluster_size, cluster));
        let warps = threads.div_ceil(32);
        let block = &mut self.blocks[at];
        block.index = std::array::from_fn(|i| a[i] * cluster[i] + b[i]);
        block.rank = (number % self.cluster_size) as u32;
        block.cluster = at / self.cluster_size;
        block.shared.fill(POISON);
        block.barriers = [Barrier::default(); BARRIERS];
        block.opened.clear();
        block.live_warps = warps;
        for number in 0..warps {
            let lanes = (threads - number * 32).min(32);
            let live = if lanes == 32 { !0 } else { (1 << lanes) - 1 };
            self.warps[at * warps as usize + number as usize].start(at, number, live);
        }
    }

    fn run(&mut self) -> Result<u64, Fault> {
        let (mut total, mut idle) = (0, 0);
        // Warps that poll sleep until something is shown to them, nothing else can run, or others wait for long.
        let mut awake = false;
        // Passes in which they looked in vain and nothing else ran, and when those began.
        let mut vain: Option<(u32, Instant)> = None;
        loop {
            let (mut alive, mut waiting, mut moved) = (false, false, false);
            let shown = self.shown;
            self.ran = 0;
            for at in 0..self.warps.len() {
                if self.warps[at].live == 0 {
                    continue;
                }
                alive = true;
                if !awake && self.warps[at].seen == Some(self.shown) {
                    continue;
                }
                if self.warps[at].looked == Some(self.turned) {
                    waiting = true;
                    continue;
                }
                let mut warp = std::mem::take(&mut self.warps[at]);
                let (slept, ran) = (warp.seen.take().is_some(), self.ran);
                let ended = self.turn(&mut warp);
                // From one look to the next one is no way.
                moved |= if slept { warp.seen.is_none() } else { self.ran > ran };
                waiting |= warp.fragments.iter().any(|f| f.wait == Wait::Retry);
                // All of it waits for barriers in shared memory or the cluster's, and none has turned since.
                let waits = matches!(warp.fragments[..], [Fragment { wait: Wait::Retry, .. }]);
                warp.looked = waits.then_some(self.turned);
                self.warps[at] = warp;
                ended?;
            }
            if !alive {
                break;
            }
            total += self.ran;
            idle = if waiting { idle + 1 } else { 0 };
            if self.ran == 0 || idle > 8 || awake {
                idle = 0;
                let late = self.perform_one()?;
                let polling = self.warps.iter().any(|w| w.live != 0 && w.seen.is_some());
                if !late && !polling && self.ran == 0 {
                    return Err(self.stuck());
                }
                let old = polling && !late && shown == self.shown;
                if old && !moved {
                    let (looks, since) = vain.get_or_insert_with(|| (0, Instant::now()));
                    *looks += 1;
                    if *looks > LOOKS && since.elapsed() > PATIENCE {
                        return Err(self.stuck());
                    }
                    std::thread::yield_now();
                } else {
                    vain = None;
                }
                // Who looked in vain once leaves it to those who went on.
                awake = old && !(awake && moved);
            }
            if total > LIMIT {
                return Err(Fault {
                    code: TIMEOUT,
                    message: format!("{}: it does not end", self.launch.kernel.name),
                });
            }
        }
        while self.perform_one()? {}
        Ok(total)
    }

    /// Nothing can go on.
    fn stuck(&self) -> Fault {
        let mut message = format!("{}: nothing can go on", self.launch.kernel.name);
        for warp in self.warps.iter().filter(|warp| warp.live != 0).take(6) {
            for fragment in warp.fragments.iter().take(3) {
                // Past the barrier that it waits at.
                let past = matches!(fragment.wait, Wait::Barrier(..));
                let at = fragment.pc - u32::from(past);
                message += &format!(
                    "\n  block {:?}, warp {}, lanes {:#010x}: {:?} at {}",
                    self.blocks[warp.block].index,
                    warp.number,
                    fragment.mask,
                    fragment.wait,
                    self.launch.kernel.text[at as usize]
                );
            }
        }
        Fault { code: TIMEOUT, message }
    }

    /// Runs `warp` until it waits or its turn is over.
    fn turn(&mut self, warp: &mut Warp<'a>) -> Result<(), Fault> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi2")
        {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.turn_avx2(warp) };
        }
        self.turn_any(warp)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn turn_avx2(&mut self, warp: &mut Warp<'a>) -> Result<(), Fault> {
        self.turn_any(warp)
    }

    #[inline(always)]
    fn turn_any(&mut self, warp: &mut Warp<'a>) -> Result<(), Fault> {
        let mut left = TURN;
        while left > 0 && warp.live != 0 {
            for fragment in &mut warp.fragments {
                if let Wait::Barrier(id, generation) = fragment.wait
                    && self.blocks[warp.block].barriers[id].generation != generation
                {
                    fragment.wait = Wait::Ready;
                }
            }
            merge(&mut warp.fragments);
            let Some(at) = choose(&warp.fragments, warp.last, warp.tired) else { return Ok(()) };
            (warp.last, warp.tired) = (at, false);
            let retried = warp.fragments[at].wait == Wait::Retry;
            // Where it meets others, or passes them.
            let pc = warp.fragments[at].pc;
            let limit = warp
                .fragments
                .iter()
                .filter(|other| other.pc > pc && !matches!(other.wait, Wait::Barrier(..)))
                .map(|other| other.pc)
                .min()
                .unwrap_or(u32::MAX);
            warp.fragments[at].wait = Wait::Ready;
            let before = self.ran;
            self.straight(warp, at, limit, &mut left)?;
            if retried && before == self.ran {
                // As before: others first.
                let others = warp.fragments.iter().any(|f| f.wait == Wait::Ready);
                if !others {
                    return Ok(());
                }
            }
        }
        warp.tired = left == 0;
        Ok(())
    }

    /// Runs fragment `at` until it branches apart, waits, ends or meets `limit`.
    #[inline(always)]
    fn straight(
        &mut self,
        warp: &mut Warp<'a>,
        at: usize,
        limit: u32,
        left: &mut u32,
    ) -> Result<(), Fault> {
        let alone = warp.fragments.len() == 1;
        let kernel = self.launch.kernel;
        let mut fragment = warp.fragments[at];
        loop {
            if fragment.pc >= limit || *left == 0 {
                warp.fragments[at] = fragment;
                return Ok(());
            }
            let inst = &kernel.code[fragment.pc as usize];
            let mask = match inst.guard {
                None => fragment.mask,
                Some((p, negated)) => {
                    let p = warp.predicate(p);
                    fragment.mask & if negated { !p } else { p }
                }
            };
            match self.step(warp, &mut fragment, mask, &inst.op) {
                Ok(Next::Go) => {
                    fragment.pc += 1;
                    *left -= 1;
                    self.ran += 1;
                }
                Ok(Next::Turn) => {
                    fragment.pc += 1;
                    self.ran += 1;
                    *left = 0;
                    warp.fragments[at] = fragment;
                    return Ok(());
                }
                Ok(Next::Jump(to)) => {
                    *left -= 1;
                    self.ran += 1;
                    fragment.pc = to;
                    if !alone {
                        warp.fragments[at] = fragment;
                        return Ok(());
                    }
                }
                Ok(Next::Apart(other)) => {
                    *left -= 1;
                    self.ran += 1;
                    warp.fragments[at] = fragment;
                    warp.fragments.push(other);
                    return Ok(());
                }
                Ok(Next::Wait(wait)) => {
                    fragment.wait = wait;
                    if let Wait::Barrier(..) = wait {
                        fragment.pc += 1;
                        *left -= 1;
                        self.ran += 1;
                    }
                    warp.fragments[at] = fragment;
                    return Ok(());
                }
                Ok(Next::End(ended)) => {
                    *left -= 1;
                    self.ran += 1;
                    fragment.mask &= !ended;
                    fragment.pc += 1;
                    warp.live &= !ended;
                    warp.fragments[at] = fragment;
                    if warp.live == 0 {
                        self.leave(warp);
                    }
                    warp.fragments.retain(|f| f.mask != 0);
                    // Who waits for lanes may wait for fewer now.
                    for f in warp.fragments.iter_mut().filter(|f| f.wait == Wait::Lanes) {
                        f.wait = Wait::Ready;
                    }
                    return Ok(());
                }
                Err((lane, code, why)) => {
                    let message = format!(
                        "{}: block {:?}, thread {}: {why}\n  at instruction {}: {}",
                        kernel.name,
                        self.blocks[warp.block].index,
                        warp.number * 32 + lane as u32,
                        fragment.pc,
                        kernel.text[fragment.pc as usize],
                    );
                    return Err(Fault { code, message });
                }
            }
        }
    }
}

/// What follows an instruction.
pub(super) enum Next {
    Go,
    /// As `Go`, and then it is others' turn: it may be waiting for them.
    Turn,
    Jump(u32),
    /// The lanes that go another way.
    Apart(Fragment),
    Wait(Wait),
    /// These lanes have ended.
    End(u32),
}

/// A lane, a code, and what it did.
pub(super) type Bad = (usize, i32, String);

/// A lane did what it may not.
pub(super) fn failed<T>(lane: usize, why: impl Into<String>) -> Result<T, Bad> {
    Err((lane, FAILED, why.into()))
}

/// Fragments at the same place become one.
#[inline(always)]
fn merge(fragments: &mut Vec<Fragment>) {
    if fragments.len() < 2 {
        return;
    }
    let mut at = 0;
    while at < fragments.len() {
        let mut other = at + 1;
        while other < fragments.len() {
            let (a, b) = (fragments[at], fragments[other]);
            let bound = |f: Fragment| matches!(f.wait, Wait::Barrier(..));
            if a.pc == b.pc && !bound(a) && !bound(b) {
                fragments[at].mask |= b.mask;
                fragments[at].wait = Wait::Ready;
                fragments.swap_remove(other);
            } else {
                other += 1;
            }
        }
        at += 1;
    }
}

/// The lowest that is ready, or the highest after one that ran a whole turn; then one that tries again, another
/// than last time.
#[inline(always)]
fn choose(fragments: &[Fragment], last: usize, tired: bool) -> Option<usize> {
    if let [one] = fragments {
        return matches!(one.wait, Wait::Ready | Wait::Retry).then_some(0);
    }
    let with = |wait: Wait| (0..fragments.len()).filter(move |i| fragments[*i].wait == wait);
    let ready = if tired {
        with(Wait::Ready).max_by_key(|i| fragments[*i].pc)
    } else {
        with(Wait::Ready).min_by_key(|i| fragments[*i].pc)
    };
    ready
        .or_else(|| with(Wait::Retry).find(|i| *i > last || last == usize::MAX))
        .or_else(|| with(Wait::Retry).next())
}
