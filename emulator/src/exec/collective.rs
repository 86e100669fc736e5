//! Instructions that lanes, warps or blocks execute together, and those that finish late.

use super::FAILED;
use super::alu::set;
use super::group::{Bad, Group, Next, failed};
use super::late::What;
use super::race::{Done, How, Proxy};
use super::step::GENERIC_SHARED;
use super::warp::{Copy, Fragment, Product, Store, Wait, Warp, lanes};
use crate::ptx::op::{Op, R, Shuffle};
use crate::tensor::{
    ldmatrix::{ldmatrix, movmatrix, stmatrix},
    mma::mma,
    wgmma,
};

impl<'a> Group<'a> {
    pub(super) fn collective(
        &mut self,
        warp: &mut Warp<'a>,
        fragment: &mut Fragment,
        mask: u32,
        op: &'a Op,
    ) -> Result<Next, Bad> {
        let kernel = self.launch.kernel;
        let pc = fragment.pc;
        let block = warp.block;
        let by = self.race.by(warp, pc);
        let first = mask.trailing_zeros() as usize % 32;
        // Who has to be here: the named lanes, or all.
        let members = |warp: &Warp, r: &R| -> Result<u32, Bad> {
            let named = warp.word(kernel, *r);
            match lanes(mask)
                .find(|lane| named[*lane] != named[first] || named[first] >> lane & 1 == 0)
            {
                Some(lane) if named[lane] == named[first] => {
                    failed(lane, "a lane that its own mask does not name")
                }
                Some(lane) => failed(lane, "another mask than that of the first lane"),
                None => Ok(named[first] & warp.live),
            }
        };
        if mask == 0 {
            return Ok(Next::Go);
        }
        macro_rules! together {
            ($members:expr) => {
                if $members & !mask != 0 {
                    return Ok(Next::Wait(Wait::Lanes));
                }
                self.race.tick(by);
            };
        }
        match op {
            Op::Shfl { how, d, a, b, c, members: m } => {
                let all = members(warp, m)?;
                together!(all);
                let (a, b, c) =
                    (warp.word(kernel, *a), warp.word(kernel, *b), warp.word(kernel, *c));
                let mut out = [0; 32];
                for lane in lanes(mask) {
                    let from = source(*how, lane as u32, b[lane], c[lane]);
                    // What an ended lane or a stranger holds is not defined.
                    if mask >> from & 1 == 0 {
                        return failed(lane, format!("lane {from} is not here"));
                    }
                    out[lane] = a[from as usize];
                }
                set(&mut warp.words[d.0 as usize], mask, &out);
            }
            Op::VoteAny { d, a, members: m } => {
                let all = members(warp, m)?;
                together!(all);
                let any = if warp.predicate(*a) & mask != 0 { !0 } else { 0 };
                warp.set_predicate(*d, any, mask);
            }
            Op::Ballot { d, a, members: m } => {
                let all = members(warp, m)?;
                together!(all);
                let votes = warp.predicate(*a) & all;
                set(&mut warp.words[d.0 as usize], mask, &[votes; 32]);
            }
            Op::ReduxAdd { d, a, members: m } | Op::ReduxMax { d, a, members: m } => {
                let all = members(warp, m)?;
                together!(all);
                let a = warp.word(kernel, *a);
                let add = matches!(op, Op::ReduxAdd { .. });
                let join = |x: u32, y: u32| if add { x.wrapping_add(y) } else { x.max(y) };
                let value = lanes(all).map(|lane| a[lane]).reduce(join).unwrap_or(0);
                set(&mut warp.words[d.0 as usize], mask, &[value; 32]);
            }
            Op::WarpBarrier { members: m } => {
                let all = members(warp, m)?;
                together!(all);
            }
            Op::Barrier { id, threads, waits } => {
                together!(warp.live);
                let id = warp.word(kernel, *id)[first] as usize;
                let threads = threads.map(|r| warp.word(kernel, r)[first]);
                if threads == Some(0) {
                    return failed(first, "a barrier of nobody");
                }
                let threads = threads.unwrap_or(0);
                return self.barrier(warp, first, id, threads, *waits);
            }
            Op::InitFence => warp.init_fence = true,
            Op::ProxyFence => self.race.fence(by),
            Op::ClusterArrive { relaxed } => {
                together!(warp.live);
                if warp.cluster_phase != 0 {
                    return failed(first, "arrives again without a wait");
                }
                let number = self.blocks[block].cluster;
                let cluster = &mut self.clusters[number];
                (warp.cluster_phase, cluster.arrived) = (cluster.phase + 1, cluster.arrived + 1);
                if std::mem::take(&mut warp.init_fence) || !relaxed {
                    self.race.cluster_arrive(by);
                }
                if cluster.turn() {
                    self.turned += 1;
                    self.race.cluster_turn(number);
                }
            }
            Op::ClusterWait => {
                together!(warp.live);
                if warp.cluster_phase == 0 {
                    return failed(first, "waits without an arrival");
                }
                if self.clusters[self.blocks[block].cluster].phase < warp.cluster_phase {
                    return Ok(Next::Wait(Wait::Retry));
                }
                warp.cluster_phase = 0;
                self.race.cluster_wait(by);
            }
            Op::AtomAdd { shared, d, at, a } => {
                self.shown += u64::from(!shared);
                self.has_waited(warp, mask, !shared)?;
                let (at, a) = (self.addresses(warp, at), *warp.word(kernel, *a));
                for lane in lanes(mask) {
                    let before = self.atom_add(warp, pc, lane, *shared, (at[lane], a[lane]))?;
                    warp.words[d.0 as usize][lane] = before;
                }
            }
            Op::RedMax64 { at, a } => {
                self.shown += 1;
                self.has_waited(warp, mask, true)?;
                let (at, a) = (self.addresses(warp, at), warp.double(kernel, *a));
                for lane in lanes(mask) {
                    self.red_max(pc, lane, at[lane], a[lane])?;
                }
            }
            Op::CopyAsync { to, from, bytes, read } => {
                let (to, from) = (self.addresses(warp, to), self.addresses(warp, from));
                let read = read.map_or([*bytes; 32], |r| *warp.word(kernel, r));
                let asked = self.race.ask(by);
                for lane in lanes(mask) {
                    let group = warp.copy_groups[lane];
                    let (_, to) = self.shared(block, lane, to[lane], *bytes as usize, false)?;
                    let (to, from, read) = (to as u32, from[lane], read[lane]);
                    if !from.is_multiple_of(u64::from(*bytes)) {
                        return failed(lane, format!("a copy of {bytes} bytes from {from:#x}"));
                    }
                    warp.copies.push_back(Copy {
                        lane: lane as u8,
                        group,
                        to,
                        from,
                        bytes: *bytes,
                        read,
                        asked: asked.clone(),
                    });
                }
            }
            Op::CopyCommit => lanes(mask).for_each(|lane| warp.copy_groups[lane] += 1),
            Op::CopyWait { left } => {
                let closed = warp.copy_groups;
                self.copies(warp, |copy| {
                    let lane = copy.lane as usize;
                    (mask >> lane & 1 != 0 && copy.group < closed[lane].saturating_sub(*left))
                        .then_some(Done::Warp)
                })?;
            }
            Op::CopyArrive { bar } => {
                let bar = self.addresses(warp, bar);
                self.copies(warp, |copy| {
                    let bar = (block, bar[copy.lane as usize] as u32);
                    (mask >> copy.lane & 1 != 0).then_some(Done::Bar(bar))
                })?;
                for lane in lanes(mask) {
                    self.bar_arrive(lane, block, bar[lane], 0)?;
                }
            }
            Op::BarInit { bar, count } => {
                let (bar, count) = (self.addresses(warp, bar), warp.word(kernel, *count));
                for lane in lanes(mask) {
                    self.bar_init(by, lane, block, bar[lane], count[lane])?;
                }
            }
            Op::BarInval { bar } => {
                let bar = self.addresses(warp, bar);
                for lane in lanes(mask) {
                    self.bar_inval(by, lane, block, bar[lane])?;
                }
            }
            Op::BarArrive { bar, expect } => {
                let bar = self.addresses(warp, bar);
                let expect = expect.map_or([0; 32], |r| *warp.word(kernel, r));
                for lane in lanes(mask) {
                    self.race.bar_arrive(by, lane, (block, bar[lane] as u32))?;
                    self.bar_arrive(lane, block, bar[lane], expect[lane])?;
                }
                self.race.tick(by);
            }
            Op::BarTest { d, bar, parity } => {
                let (bar, parity) = (self.addresses(warp, bar), warp.word(kernel, *parity));
                let (mut over, mut last) = (0, None);
                for lane in lanes(mask) {
                    // Mostly all lanes wait for the same.
                    let asks = (bar[lane], parity[lane]);
                    let is_over = match last {
                        Some((asked, is_over)) if asked == asks => is_over,
                        _ => self.bar_test(lane, block, asks.0, asks.1)?,
                    };
                    over |= u32::from(is_over) << lane;
                    last = Some((asks, is_over));
                }
                if over == 0 && mask != 0 {
                    return Ok(Next::Wait(Wait::Retry));
                }
                for lane in lanes(over) {
                    self.race.bar_wait(by, lane, (block, bar[lane] as u32))?;
                }
                warp.set_predicate(*d, !0, over);
                if over != mask {
                    // Each lane waits for its own barrier: what others wait for may be up to who goes on.
                    let left = mask & !over;
                    fragment.mask &= !left;
                    fragment.pc += 1;
                    return Ok(Next::Apart(Fragment { pc, mask: left, wait: Wait::Retry }));
                }
            }
            Op::StoreAsync { to, a, bar } => {
                let (to, bar) = (self.addresses(warp, to), self.addresses(warp, bar));
                let a = warp.word(kernel, *a);
                let asked = self.race.ask(by);
                for lane in lanes(mask) {
                    let (block, to) = self.shared(block, lane, to[lane], 4, true)?;
                    let bar = self.shared(warp.block, lane, bar[lane], 8, true)?;
                    let what = What::Word { block, to: to as u32, value: a[lane] };
                    self.ask(warp, &asked, lane, what, (bar.0, bar.1 as u32))?;
                }
            }
            Op::BulkCopy { to, from, bytes, bar } => {
                let (to, from) = (self.addresses(warp, to), self.addresses(warp, from));
                let (bytes, bar) = (warp.word(kernel, *bytes), self.addresses(warp, bar));
                let asked = self.race.ask(by);
                for lane in lanes(mask) {
                    let what =
                        What::Bulk { to: to[lane] as u32, from: from[lane], bytes: bytes[lane] };
                    self.ask(warp, &asked, lane, what, (block, bar[lane] as u32))?;
                }
            }
            Op::TensorCopy { to, map, at, bar, offsets } => {
                let (to, bar) = (self.addresses(warp, to), self.addresses(warp, bar));
                let map = warp.double(kernel, *map);
                let asked = self.race.ask(by);
                for lane in lanes(mask) {
                    let word = |r: &R| warp.word(kernel, *r)[lane];
                    let at = at.iter().map(|r| word(r) as i32).collect();
                    let offsets =
                        offsets.as_ref().map(|list| list.iter().map(|r| word(r) as u16).collect());
                    let what = What::Tensor { to: to[lane] as u32, map: map[lane], at, offsets };
                    self.ask(warp, &asked, lane, what, (block, bar[lane] as u32))?;
                }
            }
            Op::TensorStore { map, at, from } => {
                self.has_waited(warp, mask, true)?;
                let (from, map) = (self.addresses(warp, from), *warp.double(kernel, *map));
                let asked = self.race.ask(by);
                for lane in lanes(mask) {
                    let at = at.iter().map(|r| warp.word(kernel, *r)[lane] as i32).collect();
                    warp.stores.push_back(Store {
                        lane: lane as u8,
                        group: warp.store_groups[lane],
                        from: from[lane] as u32,
                        map: map[lane],
                        at,
                        asked: asked.clone(),
                    });
                }
            }
            Op::StoreCommit => lanes(mask).for_each(|lane| warp.store_groups[lane] += 1),
            Op::StoreWait { left } => self.stores(warp, mask, *left)?,
            Op::Ldmatrix { trans, d, at } => {
                together!(warp.live);
                let at = self.addresses(warp, at);
                let mut rows = [[0; 16]; 32];
                for lane in lanes(mask) {
                    // Without a space in its name it takes a generic address.
                    let Some(at) = at[lane].checked_sub(GENERIC_SHARED) else {
                        return failed(lane, format!("{:#x} is no generic address", at[lane]));
                    };
                    let (block, from) = self.shared(block, lane, at, 16, false)?;
                    rows[lane].copy_from_slice(&self.blocks[block].shared[from..from + 16]);
                }
                self.race.touch_all(How::Read, by, mask, &at, 16)?;
                for (d, value) in d.iter().zip(ldmatrix(&rows, *trans)) {
                    warp.words[d.0 as usize] = value;
                }
            }
            Op::Movmatrix { d, a } => {
                together!(!0);
                warp.words[d.0 as usize] = movmatrix(warp.word(kernel, *a));
            }
            Op::Stmatrix { a, at } => {
                together!(!0);
                let at = self.addresses(warp, at);
                let rows = stmatrix(&a.each_ref().map(|r| *warp.word(kernel, *r)));
                for lane in lanes(mask) {
                    let (block, to) = self.shared(block, lane, at[lane], 16, false)?;
                    self.blocks[block].shared[to..to + 16].copy_from_slice(&rows[lane]);
                }
                self.race.touch_all(How::Write, by, mask, &at, 16)?;
            }
            Op::Mma { kind, d, a, b, c } => {
                together!(!0);
                let get = |r: &R| *warp.word(kernel, *r);
                let value = mma(
                    *kind,
                    &a.each_ref().map(get),
                    &b.each_ref().map(get),
                    &c.each_ref().map(get),
                );
                for (d, value) in d.iter().zip(value) {
                    warp.words[d.0 as usize] = value;
                }
            }
            Op::Wgmma(what) => {
                together!(!0);
                let a = what.a.map_or_else(|r| warp.double(kernel, r)[first], |_| 0);
                let b = warp.double(kernel, what.b)[first];
                let add = warp.predicate(what.add) & 1 != 0;
                let (group, asked) = (warp.product_groups, self.race.ask(by));
                warp.products.push_back(Product { group, what, a, b, add, asked });
            }
            Op::WgmmaCommit => {
                together!(!0);
                warp.product_groups += 1;
            }
            Op::WgmmaWait { left } => {
                together!(!0);
                let closed = warp.product_groups;
                while warp
                    .products
                    .front()
                    .is_some_and(|product| product.group < closed.saturating_sub(*left))
                {
                    self.product(warp, first)?;
                }
            }
            other => return failed(first, format!("{other:?} is not known here")),
        }
        Ok(Next::Go)
    }

    /// Writes wait for the kernel before.
    fn has_waited(&self, warp: &Warp, mask: u32, global: bool) -> Result<(), Bad> {
        let early = mask & !warp.waited;
        if global && self.launch.kernel.waits && early != 0 {
            return failed(early.trailing_zeros() as usize, "writes before griddepcontrol.wait");
        }
        Ok(())
    }

    /// A whole warp arrives at barrier `id` of its block, which `threads` threads use (0: all), and may wait there.
    fn barrier(
        &mut self,
        warp: &Warp,
        lane: usize,
        id: usize,
        threads: u32,
        waits: bool,
    ) -> Result<Next, Bad> {
        let block = &mut self.blocks[warp.block];
        let live = block.live_warps * 32;
        let Some(bar) = block.barriers.get_mut(id) else {
            return failed(lane, format!("barrier {id}"));
        };
        if !threads.is_multiple_of(32) {
            return failed(lane, format!("a barrier for {threads} threads"));
        }
        if bar.arrived != 0 && bar.expected != threads {
            return failed(
                lane,
                format!("barrier {id} of {threads} threads, and of {}", bar.expected),
            );
        }
        (bar.arrived, bar.expected) = (bar.arrived + 32, threads);
        let generation = bar.generation;
        self.race.meet(warp, id, waits);
        if bar.arrived >= if threads == 0 { live } else { threads } {
            (bar.arrived, bar.generation) = (0, generation + 1);
            self.race.open(warp.block, id);
        }
        Ok(if waits { Next::Wait(Wait::Barrier(id, generation)) } else { Next::Go })
    }

    /// A warp of `warp`'s block has ended: who waits for all waits for one less.
    pub(super) fn leave(&mut self, warp: &Warp) {
        let block = &mut self.blocks[warp.block];
        let cluster = &mut self.clusters[block.cluster];
        cluster.live_warps -= 1;
        // It counts as ended, no longer as one that has arrived.
        cluster.arrived -= u32::from(warp.cluster_phase > cluster.phase);
        if cluster.turn() {
            self.turned += 1;
            self.race.cluster_turn(block.cluster);
        }
        block.live_warps -= 1;
        let live = block.live_warps * 32;
        for (id, bar) in block.barriers.iter_mut().enumerate() {
            if bar.arrived > 0 && bar.expected == 0 && bar.arrived >= live {
                (bar.arrived, bar.generation) = (0, bar.generation + 1);
                self.race.open(warp.block, id);
            }
        }
    }

    /// Does the copies that `which` has a place for.
    fn copies(
        &mut self,
        warp: &mut Warp<'a>,
        which: impl Fn(&Copy) -> Option<Done>,
    ) -> Result<(), Bad> {
        let mut kept = std::collections::VecDeque::new();
        while let Some(copy) = warp.copies.pop_front() {
            if let Some(done) = which(&copy) {
                let lane = copy.lane as usize;
                let place = (copy.to as usize, copy.bytes as usize);
                self.race.touch_late(
                    (How::Write, Proxy::Generic),
                    warp,
                    &copy.asked,
                    lane,
                    done,
                    (warp.block, place),
                )?;
                self.copy_in(warp.block, (lane, copy.from), copy.to, [copy.bytes, copy.read])
                    .map_err(|(lane, code, why)| (lane, code, format!("cp.async: {why}")))?;
            } else {
                kept.push_back(copy);
            }
        }
        warp.copies = kept;
        Ok(())
    }

    /// Lanes of `warp` end: the copies that they have not waited for may be done whenever.
    pub(super) fn abandon(&mut self, warp: &Warp, mask: u32) -> Result<(), Bad> {
        if let Some(store) = warp.stores.iter().find(|store| mask >> store.lane & 1 != 0) {
            return failed(store.lane.into(), "ends before its shared memory was copied");
        }
        for copy in warp.copies.iter().filter(|copy| mask >> copy.lane & 1 != 0) {
            let place = (warp.block, (copy.to as usize, copy.bytes as usize));
            let lane = copy.lane as usize;
            let how = (How::Write, Proxy::Generic);
            self.race.touch_late(how, warp, &copy.asked, lane, Done::Never, place)?;
        }
        Ok(())
    }

    /// Does the oldest product of the warp.
    fn product(&mut self, warp: &mut Warp<'a>, lane: usize) -> Result<(), Bad> {
        let Some(Product { what, a, b, add, asked, .. }) = warp.products.pop_front() else {
            return Ok(());
        };
        let kernel = self.launch.kernel;
        let registers;
        let a = match what.a {
            Ok(list) => {
                registers = list.map(|r| *warp.word(kernel, r));
                wgmma::WgmmaLeft::Registers(&registers)
            }
            Err(_) => wgmma::WgmmaLeft::Shared(a),
        };
        let mut d: Vec<[u32; 32]> = what.d.iter().map(|r| warp.words[r.0 as usize]).collect();
        let instruction = wgmma::Wgmma {
            kind: what.kind,
            n: what.n,
            a,
            b,
            add,
            negated: what.negate,
            transposed: what.transpose,
        };
        let shared = &self.blocks[warp.block].shared;
        let pieces = instruction
            .run(shared, warp.number as usize % 4, &mut d)
            .map_err(|why| (lane, FAILED, why))?;
        for at in pieces {
            let place = (warp.block, (at as usize, 16));
            let how = (How::Read, Proxy::Async);
            self.race.touch_late(how, warp, &asked, lane, Done::Warp, place)?;
        }
        for (r, d) in what.d.iter().zip(d) {
            warp.words[r.0 as usize] = d;
        }
        Ok(())
    }
}

/// The lane that lane `lane` reads from ("shfl.sync").
fn source(how: Shuffle, lane: u32, b: u32, c: u32) -> u32 {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let (b, highest) = (b & 31, lane & segment | clamp & !segment);
    let lowest = lane & segment;
    let (from, inside) = match how {
        Shuffle::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= highest as i32),
        Shuffle::Down => (lane + b, lane + b <= highest),
        Shuffle::Bfly => (lane ^ b, lane ^ b <= highest),
        Shuffle::Idx => (lowest | b & !segment, lowest | b & !segment <= highest),
    };
    if inside { from } else { lane }
}
