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
            let value = match space {
                Space::Global => {
                    let from = self.global(pc, lane, address, bytes as u64)?;
                    if bytes == 4 {
                        // Others may write it meanwhile.
                        // SAFETY: checked by `global`: four bytes of a live allocation, aligned.
                        let from = unsafe { AtomicU32::from_ptr(from.cast()) };
                        u128::from(from.load(Ordering::Relaxed))
                    } else {
                        // SAFETY: checked by `global`: `bytes` bytes of a live allocation.
                        get(unsafe { std::slice::from_raw_parts(from, bytes) })
                    }
                }
                Space::Shared | Space::Cluster => {
                    let remote = space == Space::Cluster;
                    let (block, from) = self.shared(warp.block, lane, address, bytes, remote)?;
                    get(&self.blocks[block].shared[from..from + bytes])
                }
                Space::Param => {
                    let base =
                        if at.base.is_some() { self.launch.params.as_ptr() as u64 } else { 0 };
                    let from = address.wrapping_sub(base) as usize;
                    match self.launch.params.get(from..from.saturating_add(bytes)) {
                        Some(params) => get(params),
                        None => return failed(lane, "outside of the parameters"),
                    }
                }
            };
            for (i, d) in d.iter().enumerate().filter(|(_, d)| **d != R::SINK) {
                let part = (value >> (8 * size * i)) as u64;
                let part = match element {
                    Element::U8 => u64::from(part as u8),
                    Element::S8 => part as i8 as u64,
                    Element::S8Half => u64::from(part as i8 as u16),
                    Element::U16 => u64::from(part as u16),
                    Element::S16 => part as i16 as u64,
                    Element::B32 => u64::from(part as u32),
                    Element::S32 => part as i32 as u64,
                    Element::B64 => part,
                };
                if wide {
                    warp.doubles[d.0 as usize][lane] = part;
                } else {
                    warp.words[d.0 as usize][lane] = part as u32;
                }
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
            let mut value = 0;
            for (i, values) in values[..s.len()].iter().enumerate() {
                let part = values[lane] & (!0 >> (64 - 8 * size));
                value |= u128::from(part) << (8 * size * i);
            }
            let address = addresses[lane];
            match space {
                Space::Global => {
                    let to = self.global(pc, lane, address, bytes as u64)?;
                    if bytes == 4 {
                        // SAFETY: checked by `global`: four bytes of a live allocation, aligned.
                        let to = unsafe { AtomicU32::from_ptr(to.cast()) };
                        to.store(value as u32, Ordering::Relaxed);
                    } else {
                        // SAFETY: checked by `global`: `bytes` bytes of a live allocation.
                        put(unsafe { std::slice::from_raw_parts_mut(to, bytes) }, value);
                    }
                }
                Space::Shared | Space::Cluster => {
                    let remote = space == Space::Cluster;
                    let (block, to) = self.shared(warp.block, lane, address, bytes, remote)?;
                    let place = &mut self.blocks[block].shared[to..to + bytes];
                    same |= u32::from(get(place) == value) << lane;
                    put(place, value);
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

/// What 1, 2, 4, 8 or 16 bytes hold, the first lowest.
#[inline(always)]
fn get(bytes: &[u8]) -> u128 {
    if let Ok(bytes) = <[u8; 16]>::try_from(bytes) {
        u128::from_le_bytes(bytes)
    } else if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        u32::from_le_bytes(bytes).into()
    } else if let Ok(bytes) = <[u8; 8]>::try_from(bytes) {
        u64::from_le_bytes(bytes).into()
    } else {
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte))
    }
}

/// As [`get`].
#[inline(always)]
fn put(bytes: &mut [u8], value: u128) {
    if let Ok(bytes) = <&mut [u8; 16]>::try_from(&mut *bytes) {
        *bytes = value.to_le_bytes();
    } else if let Ok(bytes) = <&mut [u8; 4]>::try_from(&mut *bytes) {
        *bytes = (value as u32).to_le_bytes();
    } else if let Ok(bytes) = <&mut [u8; 8]>::try_from(&mut *bytes) {
        *bytes = (value as u64).to_le_bytes();
    } else {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (value >> (8 * i)) as u8;
        }
    }
}
