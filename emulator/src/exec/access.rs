//! Accesses to memory, checked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::group::{Bad, Group, failed};
use super::race::How;
use super::step::RANK_SHIFT;
use super::warp::{Warp, lanes};
use super::{FAILED, ILLEGAL_ADDRESS, MISALIGNED};
use crate::ptx::op::{Address, Element, R, Space};

impl<'a> Group<'a> {
    /// The address of each lane.
    #[inline(always)]
    pub(super) fn addresses(&self, warp: &Warp, at: &Address) -> [u64; 32] {
        let kernel = self.launch.kernel;
        match at.base {
            None => [at.offset as u64; 32],
            Some((r, true)) => {
                warp.double(kernel, r).map(|base| base.wrapping_add(at.offset as u64))
            }
            Some((r, false)) => {
                warp.word(kernel, r).map(|base| u64::from(base.wrapping_add(at.offset as u32)))
            }
        }
    }

    /// A place in global memory for `bytes` bytes, checked.
    #[inline(always)]
    pub(super) fn global(
        &mut self,
        pc: u32,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<*mut u8, Bad> {
        if !address.is_multiple_of(bytes) {
            return Err((
                lane,
                MISALIGNED,
                format!("{bytes} bytes at {address:#x}, which is no multiple"),
            ));
        }
        self.bytes(pc, lane, address, bytes)
    }

    /// As [`Self::global`], aligned or not.
    #[inline(always)]
    pub(super) fn bytes(
        &mut self,
        pc: u32,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> Result<*mut u8, Bad> {
        let (base, end) = self.ranges[pc as usize];
        if address < base || address.saturating_add(bytes) > end {
            if let Err(why) = self.memory.check(address, bytes) {
                return Err((lane, ILLEGAL_ADDRESS, why));
            }
            if let Some(range) = self.memory.find(address) {
                self.ranges[pc as usize] = range;
            }
        }
        Ok(address as *mut u8)
    }

    /// The block and offset of `bytes` bytes of shared memory, checked.
    #[inline(always)]
    pub(super) fn shared(
        &self,
        block: usize,
        lane: usize,
        address: u64,
        bytes: usize,
        remote: bool,
    ) -> Result<(usize, usize), Bad> {
        let (rank, at) =
            ((address >> RANK_SHIFT) as usize, (address & ((1 << RANK_SHIFT) - 1)) as usize);
        let (block, here) = match rank {
            0 => (block, true),
            rank => (self.blocks[block].cluster * self.cluster_size + rank - 1, false),
        };
        if !here && !remote {
            return failed(lane, format!("address {address:#x} is another block's"));
        }
        let Some(owner) = self.blocks.get(block) else {
            return failed(lane, format!("address {address:#x} is nobody's"));
        };
        if owner.live_warps == 0 {
            return failed(lane, format!("address {address:#x} is of a block that has ended"));
        }
        if at + bytes > owner.shared.len() {
            let why =
                format!("{bytes} bytes at {at} of {} bytes of shared memory", owner.shared.len());
            return Err((lane, ILLEGAL_ADDRESS, why));
        }
        if !at.is_multiple_of(bytes.min(16)) {
            return Err((lane, MISALIGNED, format!("{bytes} bytes at {at} of shared memory")));
        }
        Ok((block, at))
    }

    /// Loads what `space` holds into `d`, element by element.
    #[inline(always)]
    pub(super) fn load(
        &mut self,
        warp: &mut Warp<'a>,
        pc: u32,
        mask: u32,
        (space, element, wide): (Space, Element, bool),
        d: &[R],
        at: &Address,
    ) -> Result<(), Bad> {
        let addresses = self.addresses(warp, at);
        let size = element.bytes() as usize;
        let bytes = size * d.len();
        for lane in lanes(mask) {
            let address = addresses[lane];
            let mut buffer = [0_u8; 16];
            match space {
                Space::Global => {
                    let from = self.global(pc, lane, address, bytes as u64)?;
                    if bytes == 4 {
                        // Others may write it meanwhile.
                        // SAFETY: checked by `global`: four bytes of a live allocation, aligned.
                        let value =
                            unsafe { AtomicU32::from_ptr(from.cast()) }.load(Ordering::Relaxed);
                        buffer[..4].copy_from_slice(&value.to_le_bytes());
                    } else {
                        // SAFETY: checked by `global`: `bytes` bytes, at most 16, of a live allocation.
                        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), bytes) };
                    }
                }
                Space::Shared | Space::Cluster => {
                    let remote = space == Space::Cluster;
                    let (block, from) = self.shared(warp.block, lane, address, bytes, remote)?;
                    buffer[..bytes].copy_from_slice(&self.blocks[block].shared[from..from + bytes]);
                }
                Space::Param => {
                    let base =
                        if at.base.is_some() { self.launch.params.as_ptr() as u64 } else { 0 };
                    let from = address.wrapping_sub(base) as usize;
                    let Some(params) = self.launch.params.get(from..from.saturating_add(bytes))
                    else {
                        return failed(lane, "outside of the parameters");
                    };
                    buffer[..bytes].copy_from_slice(params);
                }
            }
            for (part, d) in buffer.chunks_exact(size).zip(d).filter(|(_, d)| **d != R::SINK) {
                let half = || u16::from_le_bytes([part[0], part[1]]);
                let value = match element {
                    Element::U8 => u32::from(part[0]),
                    Element::S8 => part[0] as i8 as u32,
                    Element::S8Half => u32::from(part[0] as i8 as u16),
                    Element::U16 => u32::from(half()),
                    Element::S16 => half() as i16 as u32,
                    Element::B32 | Element::S32 => {
                        u32::from_le_bytes([part[0], part[1], part[2], part[3]])
                    }
                    Element::B64 => {
                        let value = u64::from_le_bytes(part.try_into().unwrap_or_default());
                        warp.doubles[d.0 as usize][lane] = value;
                        continue;
                    }
                };
                if wide {
                    let signed = matches!(element, Element::S8 | Element::S16 | Element::S32);
                    warp.doubles[d.0 as usize][lane] =
                        if signed { i64::from(value as i32) as u64 } else { u64::from(value) };
                    continue;
                }
                warp.words[d.0 as usize][lane] = value;
            }
        }
        if matches!(space, Space::Shared | Space::Cluster) {
            self.race.touch_all(How::Read, self.race.by(warp, pc), mask, &addresses, bytes)?;
        }
        Ok(())
    }

    /// Stores `s` where `space` is, element by element.
    #[inline(always)]
    pub(super) fn store(
        &mut self,
        warp: &mut Warp<'a>,
        pc: u32,
        mask: u32,
        (space, element): (Space, Element),
        s: &[R],
        at: &Address,
    ) -> Result<(), Bad> {
        let kernel = self.launch.kernel;
        let addresses = self.addresses(warp, at);
        let size = element.bytes() as usize;
        let bytes = size * s.len();
        if space == Space::Global && kernel.waits && mask & !warp.waited != 0 {
            let lane = (mask & !warp.waited).trailing_zeros() as usize;
            return failed(lane, "writes before griddepcontrol.wait");
        }
        // Lanes that write what is there.
        let mut same = 0;
        let mut values = [[0_u64; 32]; 4];
        for (values, s) in values.iter_mut().zip(s) {
            *values = match element {
                Element::B64 => warp.double(kernel, *s),
                _ => warp.word(kernel, *s).map(u64::from),
            };
        }
        for lane in lanes(mask) {
            let mut buffer = [0_u8; 16];
            for (part, values) in buffer.chunks_exact_mut(size).zip(&values[..s.len()]) {
                part.copy_from_slice(&values[lane].to_le_bytes()[..size]);
            }
            let address = addresses[lane];
            match space {
                Space::Global => {
                    let to = self.global(pc, lane, address, bytes as u64)?;
                    if bytes == 4 {
                        let value =
                            u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                        // SAFETY: checked by `global`: four bytes of a live allocation, aligned.
                        unsafe { AtomicU32::from_ptr(to.cast()) }.store(value, Ordering::Relaxed);
                    } else {
                        // SAFETY: checked by `global`: `bytes` bytes, at most 16, of a live allocation.
                        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), to, bytes) };
                    }
                }
                Space::Shared | Space::Cluster => {
                    let remote = space == Space::Cluster;
                    let (block, to) = self.shared(warp.block, lane, address, bytes, remote)?;
                    let place = &mut self.blocks[block].shared[to..to + bytes];
                    same |= u32::from(*place == buffer[..bytes]) << lane;
                    place.copy_from_slice(&buffer[..bytes]);
                }
                Space::Param => return failed(lane, "parameters are not written"),
            }
        }
        if matches!(space, Space::Shared | Space::Cluster) {
            let by = self.race.by(warp, pc);
            self.race.touch_all(How::Write, by, mask & !same, &addresses, bytes)?;
            self.race.touch_all(How::Same, by, mask & same, &addresses, bytes)?;
        }
        Ok(())
    }

    /// `atom.add.u32`: the value before.
    pub(super) fn atom_add(
        &mut self,
        warp: &Warp,
        pc: u32,
        lane: usize,
        shared: bool,
        (address, value): (u64, u32),
    ) -> Result<u32, Bad> {
        if shared {
            let (block, at) = self.shared(warp.block, lane, address, 4, false)?;
            self.race.touch(How::Atomic, self.race.by(warp, pc), lane, block, (at, 4))?;
            let place = &mut self.blocks[block].shared[at..at + 4];
            let before = u32::from_le_bytes([place[0], place[1], place[2], place[3]]);
            place.copy_from_slice(&before.wrapping_add(value).to_le_bytes());
            return Ok(before);
        }
        let place = self.global(pc, lane, address, 4)?;
        // SAFETY: checked by `global`: four bytes of a live allocation, aligned.
        Ok(unsafe { AtomicU32::from_ptr(place.cast()) }.fetch_add(value, Ordering::SeqCst))
    }

    /// `red.global.max.u64`.
    pub(super) fn red_max(
        &mut self,
        pc: u32,
        lane: usize,
        address: u64,
        value: u64,
    ) -> Result<(), Bad> {
        let place = self.global(pc, lane, address, 8)?;
        // SAFETY: checked by `global`: eight bytes of a live allocation, aligned.
        unsafe { AtomicU64::from_ptr(place.cast()) }.fetch_max(value, Ordering::SeqCst);
        Ok(())
    }

    /// Copies `read` bytes of global memory, and zeros up to `bytes`, to shared memory.
    pub(super) fn copy_in(
        &mut self,
        block: usize,
        (lane, address): (usize, u64),
        to: u32,
        [bytes, read]: [u32; 2],
    ) -> Result<(), Bad> {
        if read > bytes {
            return Err((lane, FAILED, format!("{read} of {bytes} bytes are read")));
        }
        let (block, to) = self.shared(block, lane, u64::from(to), bytes as usize, false)?;
        let place = &mut self.blocks[block].shared[to..to + bytes as usize];
        place.fill(0);
        if read > 0 {
            if let Err(why) = self.memory.check(address, u64::from(read)) {
                return Err((lane, ILLEGAL_ADDRESS, why));
            }
            // SAFETY: just checked: `read` bytes of a live allocation.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    address as *const u8,
                    place.as_mut_ptr(),
                    read as usize,
                )
            };
        }
        Ok(())
    }
}
