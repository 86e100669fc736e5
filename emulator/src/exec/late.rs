//! What the hardware does on its own time: barriers in shared memory, bulk copies, remote stores.

use super::group::{Bad, Group, failed};
use super::race::{Asked, By, Done, How, Proxy};
use super::warp::Warp;
use super::{FAILED, Fault};
use crate::tensor::tma;

/// An `mbarrier` that was initialised.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    expected: u32,
    /// Arrivals that this phase still wants.
    missing: u32,
    /// Bytes that it still wants.
    bytes: i64,
    phase: u64,
}

/// Something that was asked for and not done.
pub(super) struct Late {
    /// Who asked: block, thread, instruction.
    by: (usize, u32, u32),
    asked: Asked,
    what: What,
    /// Where its bytes are counted: a block's shared memory.
    bar: (usize, u32),
}

pub(super) enum What {
    /// A word for a block's shared memory.
    Word {
        block: usize,
        to: u32,
        value: u32,
    },
    Bulk {
        to: u32,
        from: u64,
        bytes: u32,
    },
    Tensor {
        to: u32,
        map: u64,
        at: Vec<i32>,
        offsets: Option<Vec<u16>>,
    },
}

impl<'a> Group<'a> {
    /// The barrier at `address`.
    fn opened(&mut self, lane: usize, (block, address): (usize, u32)) -> Result<&mut Opened, Bad> {
        match self.blocks[block].opened.get_mut(&address) {
            Some(bar) => Ok(bar),
            None => failed(lane, format!("no mbarrier was initialised at {address}")),
        }
    }

    pub(super) fn bar_init(
        &mut self,
        by: By,
        lane: usize,
        block: usize,
        address: u64,
        count: u32,
    ) -> Result<(), Bad> {
        let (block, at) = self.shared(block, lane, address, 8, false)?;
        if count == 0 {
            return failed(lane, "an mbarrier of nobody");
        }
        let bar = Opened { expected: count, missing: count, bytes: 0, phase: 0 };
        self.race.bar_init(by, lane, (block, at as u32))?;
        self.blocks[block].opened.insert(at as u32, bar);
        self.turned += 1;
        Ok(())
    }

    pub(super) fn bar_inval(
        &mut self,
        by: By,
        lane: usize,
        block: usize,
        address: u64,
    ) -> Result<(), Bad> {
        self.opened(lane, (block, address as u32))?;
        self.race.touch(How::Write, by, lane, block, (address as usize, 8))?;
        self.blocks[block].opened.remove(&(address as u32));
        self.turned += 1;
        Ok(())
    }

    /// One arrival, after `expect` more bytes.
    pub(super) fn bar_arrive(
        &mut self,
        lane: usize,
        block: usize,
        address: u64,
        expect: u32,
    ) -> Result<(), Bad> {
        let bar = self.opened(lane, (block, address as u32))?;
        if bar.missing == 0 {
            return failed(lane, "an arrival too many");
        }
        bar.bytes += i64::from(expect);
        bar.missing -= 1;
        if bar.turn() {
            self.turned += 1;
            self.race.bar_turn((block, address as u32));
        }
        Ok(())
    }

    /// Whether the phase of this parity is over.
    pub(super) fn bar_test(
        &mut self,
        lane: usize,
        block: usize,
        address: u64,
        parity: u32,
    ) -> Result<bool, Bad> {
        let bar = self.opened(lane, (block, address as u32))?;
        Ok(bar.phase & 1 != u64::from(parity & 1))
    }

    /// Keeps `what` for later.
    pub(super) fn ask(
        &mut self,
        warp: &Warp,
        asked: &Asked,
        lane: usize,
        what: What,
        bar: (usize, u32),
    ) -> Result<(), Bad> {
        self.opened(lane, bar)?;
        self.late.push_back(Late {
            by: (warp.block, warp.number * 32 + lane as u32, asked.pc),
            asked: asked.clone(),
            what,
            bar,
        });
        Ok(())
    }

    /// Does the oldest of what is late. False: nothing is.
    pub(super) fn perform_one(&mut self) -> Result<bool, Fault> {
        let Some(late) = self.late.pop_front() else { return Ok(false) };
        let (block, thread, pc) = late.by;
        self.perform(block, &late).map_err(|(_, code, why)| Fault {
            code,
            message: format!(
                "{}: block {:?}, thread {thread}: {why}\n  asked for by instruction {pc}: {}",
                self.launch.kernel.name,
                self.blocks[block].index,
                self.launch.kernel.text[pc as usize]
            ),
        })?;
        Ok(true)
    }

    fn perform(&mut self, block: usize, late: &Late) -> Result<(), Bad> {
        let lane = 0;
        let bytes = match &late.what {
            What::Word { block, to, value } => {
                let (block, to) = self.shared(*block, lane, u64::from(*to), 4, true)?;
                self.blocks[block].shared[to..to + 4].copy_from_slice(&value.to_le_bytes());
                4
            }
            What::Bulk { to, from, bytes } => {
                if !bytes.is_multiple_of(16) || !from.is_multiple_of(16) || !to.is_multiple_of(16) {
                    return failed(
                        lane,
                        format!("a bulk copy of {bytes} bytes from {from:#x} to {to}"),
                    );
                }
                for at in (0..*bytes).step_by(16) {
                    let from = (lane, from.wrapping_add(u64::from(at)));
                    self.copy_in(block, from, to.wrapping_add(at), [16, 16])?;
                }
                *bytes
            }
            What::Tensor { to, map, at, offsets } => {
                let bad = |why| (lane, FAILED, why);
                let map = self.map(lane, *map)?;
                let memory = self.memory;
                let read = |address: u64, to: &mut [u8]| {
                    memory.check(address, to.len() as u64)?;
                    // SAFETY: just checked: as many bytes of a live allocation.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            address as *const u8,
                            to.as_mut_ptr(),
                            to.len(),
                        )
                    };
                    Ok(())
                };
                let shared = &mut self.blocks[block].shared;
                match offsets {
                    None => tma::load_tiled(&map, at, read, shared, *to),
                    Some(offsets) => tma::load_im2col(&map, at, offsets, read, shared, *to),
                }
                .map_err(bad)?
            }
        };
        let (proxy, place) = match late.what {
            What::Word { block, to, .. } => (Proxy::Generic, (block, (to as usize, 4))),
            What::Bulk { to, .. } | What::Tensor { to, .. } => {
                (Proxy::Async, (block, (to as usize, bytes as usize)))
            }
        };
        self.race.copied(&late.asked, proxy, late.by.1 as usize % 32, late.bar, place)?;
        let bar = self.opened(lane, late.bar)?;
        bar.bytes -= i64::from(bytes);
        if bar.turn() {
            self.turned += 1;
            self.race.bar_turn(late.bar);
        }
        Ok(())
    }

    /// The tensor map at `address`.
    fn map(&self, lane: usize, address: u64) -> Result<tma::Map, Bad> {
        let mut words = [0_u64; 16];
        if !self.is_parameter(address, 128)
            && let Err(why) = self.memory.check(address, 128)
        {
            return failed(lane, format!("a tensor map that is none: {why}"));
        }
        // SAFETY: 128 bytes of a live allocation or of the parameters, checked above.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, words.as_mut_ptr().cast(), 128)
        };
        tma::decode(&words).map_err(|why| (lane, FAILED, why))
    }

    /// Does the stores of these lanes, but for those of their `left` newest groups.
    pub(super) fn stores(&mut self, warp: &mut Warp<'a>, mask: u32, left: u32) -> Result<(), Bad> {
        for store in std::mem::take(&mut warp.stores) {
            let lane = usize::from(store.lane);
            let closed = warp.store_groups[lane].saturating_sub(left);
            if mask >> lane & 1 == 0 || store.group >= closed {
                warp.stores.push_back(store);
                continue;
            }
            let (map, memory) = (self.map(lane, store.map)?, self.memory);
            let write = |address: u64, from: &[u8]| {
                memory.check(address, from.len() as u64)?;
                // SAFETY: just checked: as many bytes of a live allocation.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, from.len())
                };
                Ok(())
            };
            let shared = &self.blocks[warp.block].shared;
            let bytes = tma::store_tiled(&map, &store.at, write, shared, store.from)
                .map_err(|why| (lane, FAILED, why))?;
            self.shown += 1;
            let place = (warp.block, (store.from as usize, bytes as usize));
            let how = (How::Read, Proxy::Async);
            self.race.touch_late(how, warp, &store.asked, lane, Done::Warp, place)?;
        }
        Ok(())
    }

    /// Whether these bytes are of the launch's parameters.
    fn is_parameter(&self, address: u64, bytes: u64) -> bool {
        let params = self.launch.params.as_ptr_range();
        address >= params.start as u64
            && address.checked_add(bytes).is_some_and(|end| end <= params.end as u64)
    }
}

impl Opened {
    /// The next phase, when nothing is missing in this one; whether it is.
    fn turn(&mut self) -> bool {
        let over = self.missing == 0 && self.bytes == 0;
        if over {
            self.missing = self.expected;
            self.phase += 1;
        }
        over
    }
}
