//! Accesses to memory, checked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::alu::{all, set};
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
                let base = warp.double(kernel, r);
                all(|lane| base[lane].wrapping_add(at.offset as u64))
            }
            Some((r, false)) => {
                let base = warp.word(kernel, r);
                all(|lane| u64::from(base[lane].wrapping_add(at.offset as u32)))
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
        // Powers of two.
        if address & (bytes - 1) != 0 {
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
        if at & (bytes.min(16) - 1) != 0 {
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
        what: (Space, Element, bool),
        d: &[R],
        at: &Address,
    ) -> Result<(), Bad> {
        match what.1.bytes() as usize * d.len() {
            1 => self.load_bytes::<1>(warp, pc, mask, what, d, at),
            2 => self.load_bytes::<2>(warp, pc, mask, what, d, at),
            4 => self.load_bytes::<4>(warp, pc, mask, what, d, at),
            8 => self.load_bytes::<8>(warp, pc, mask, what, d, at),
            _ => self.load_bytes::<16>(warp, pc, mask, what, d, at),
        }
    }

    /// [`Self::load`] of `N` bytes a lane.
    #[inline(always)]
    fn load_bytes<const N: usize>(
        &mut self,
        warp: &mut Warp<'a>,
        pc: u32,
        mask: u32,
        (space, element, wide): (Space, Element, bool),
        d: &[R],
        at: &Address,
    ) -> Result<(), Bad> {
        let addresses = self.addresses(warp, at);
        let mut values = [[0; N]; 32];
        match space {
            Space::Global => {
                for lane in lanes(mask) {
                    let from = self.global(pc, lane, addresses[lane], N as u64)?;
                    if N == 4 {
                        // Others may write it meanwhile.
                        // SAFETY: checked by `global`: four bytes of a live allocation, aligned.
                        let from = unsafe { AtomicU32::from_ptr(from.cast()) };
                        let word = from.load(Ordering::Relaxed).to_le_bytes();
                        values[lane] = std::array::from_fn(|i| word[i]);
                    } else {
                        // SAFETY: checked by `global`: `N` bytes of a live allocation.
                        values[lane] = unsafe { from.cast::<[u8; N]>().read() };
                    }
                }
            }
            Space::Shared | Space::Cluster => {
                let remote = space == Space::Cluster;
                for lane in lanes(mask) {
                    let (block, from) =
                        self.shared(warp.block, lane, addresses[lane], N, remote)?;
                    values[lane] = *first(&self.blocks[block].shared[from..]);
                }
                self.race.touch_all(How::Read, self.race.by(warp, pc), mask, &addresses, N)?;
            }
            Space::Param => {
                let base = if at.base.is_some() { self.launch.params.as_ptr() as u64 } else { 0 };
                for lane in lanes(mask) {
                    let from = addresses[lane].wrapping_sub(base) as usize;
                    let params = self.launch.params.get(from..).and_then(<[u8]>::first_chunk);
                    let Some(value) = params else {
                        return failed(lane, "outside of the parameters");
                    };
                    values[lane] = *value;
                }
            }
        }
        for (i, d) in d.iter().enumerate().filter(|(_, d)| **d != R::SINK) {
            // What is `B` bytes wide, lane by lane.
            macro_rules! set {
                ($b:literal, |$bytes:ident| $value:expr) => {{
                    let of = |lane: usize| {
                        let $bytes = values[lane].as_chunks::<$b>().0[i];
                        $value as u64
                    };
                    if wide {
                        set(&mut warp.doubles[d.0 as usize], mask, &all(of));
                    } else {
                        set(&mut warp.words[d.0 as usize], mask, &all(|lane| of(lane) as u32));
                    }
                }};
            }
            match element {
                Element::U8 => set!(1, |b| b[0]),
                Element::S8 => set!(1, |b| b[0] as i8),
                Element::S8Half => set!(1, |b| b[0] as i8 as u16),
                Element::U16 => set!(2, |b| u16::from_le_bytes(b)),
                Element::S16 => set!(2, |b| i16::from_le_bytes(b)),
                Element::B32 => set!(4, |b| u32::from_le_bytes(b)),
                Element::S32 => set!(4, |b| i32::from_le_bytes(b)),
                Element::B64 => set!(8, |b| u64::from_le_bytes(b)),
            }
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
        what: (Space, Element),
        s: &[R],
        at: &Address,
    ) -> Result<(), Bad> {
        match what.1.bytes() as usize * s.len() {
            1 => self.store_bytes::<1>(warp, pc, mask, what, s, at),
            2 => self.store_bytes::<2>(warp, pc, mask, what, s, at),
            4 => self.store_bytes::<4>(warp, pc, mask, what, s, at),
            8 => self.store_bytes::<8>(warp, pc, mask, what, s, at),
            _ => self.store_bytes::<16>(warp, pc, mask, what, s, at),
        }
    }

    /// [`Self::store`] of `N` bytes a lane.
    #[inline(always)]
    fn store_bytes<const N: usize>(
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
        if space == Space::Global && kernel.waits && mask & !warp.waited != 0 {
            let lane = (mask & !warp.waited).trailing_zeros() as usize;
            return failed(lane, "writes before griddepcontrol.wait");
        }
        let mut values = [[0_u8; N]; 32];
        for (i, s) in s.iter().enumerate() {
            // What is `B` bytes wide, lane by lane.
            macro_rules! get {
                ($b:literal, $from:expr, $as:ty) => {
                    for (value, from) in values.iter_mut().zip($from) {
                        value.as_chunks_mut::<$b>().0[i] = (*from as $as).to_le_bytes();
                    }
                };
            }
            match element.bytes() {
                1 => get!(1, warp.word(kernel, *s), u8),
                2 => get!(2, warp.word(kernel, *s), u16),
                4 => get!(4, warp.word(kernel, *s), u32),
                _ => get!(8, warp.double(kernel, *s), u64),
            }
        }
        match space {
            Space::Global => {
                for lane in lanes(mask) {
                    let to = self.global(pc, lane, addresses[lane], N as u64)?;
                    let value = values[lane];
                    if let Some(word) = value.first_chunk().filter(|_| N == 4) {
                        // SAFETY: checked by `global`: four bytes of a live allocation, aligned.
                        let to = unsafe { AtomicU32::from_ptr(to.cast()) };
                        to.store(u32::from_le_bytes(*word), Ordering::Relaxed);
                    } else {
                        // SAFETY: checked by `global`: `N` bytes of a live allocation.
                        unsafe { to.cast::<[u8; N]>().write(value) };
                    }
                }
            }
            Space::Shared | Space::Cluster => {
                let remote = space == Space::Cluster;
                // Lanes that write what is there.
                let mut same = 0;
                for lane in lanes(mask) {
                    let (block, to) = self.shared(warp.block, lane, addresses[lane], N, remote)?;
                    let place = first_mut(&mut self.blocks[block].shared[to..]);
                    same |= u32::from(*place == values[lane]) << lane;
                    *place = values[lane];
                }
                let by = self.race.by(warp, pc);
                self.race.touch_all(How::Write, by, mask & !same, &addresses, N)?;
                self.race.touch_all(How::Same, by, mask & same, &addresses, N)?;
            }
            Space::Param => {
                if let Some(lane) = lanes(mask).next() {
                    return failed(lane, "parameters are not written");
                }
            }
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

/// The first bytes: `shared` has found that they are there.
#[inline(always)]
fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("an access that was checked")
}

/// As [`first`].
#[inline(always)]
fn first_mut<const N: usize>(bytes: &mut [u8]) -> &mut [u8; N] {
    bytes.first_chunk_mut().expect("an access that was checked")
}
