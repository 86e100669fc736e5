//! The pinned chunks behind uploads and downloads.
//!
//! A copy from ordinary host memory is split into chunks. Each chunk is copied by the CPU into a
//! pinned slot and from there, asynchronously, to the device, so that the CPU fills one slot while
//! the device reads another. Short copies of one stream stand behind each other in a slot, so that many of them
//! queue without a wait. A slot is used again only after its event, which marks the last copy of its stream.

use std::ops::Range;

use super::MemoryError;
use super::pinned::HostMemory;
use crate::driver::{Device, Event, HOST_PORTABLE, Stream};

/// Bytes of a slot: long enough to reach full PCIe bandwidth.
const CHUNK_BYTES: usize = 4 << 20;
/// Slots: one being filled, one in flight, and slack for an uneven host.
const SLOTS: usize = 4;
/// What copies start at a multiple of.
const ALIGN: usize = 64;

pub(super) struct Staging {
    slots: Vec<Slot>,
    /// The slot that is filled, up to `used`, with copies of the stream of this number.
    at: usize,
    used: usize,
    stream: u64,
}

struct Slot {
    memory: HostMemory,
    /// Marks the last copy that reads or writes the slot.
    done: Event,
}

impl Staging {
    pub(super) fn new(device: &Device) -> Result<Self, MemoryError> {
        let slots = (0..SLOTS)
            .map(|_| {
                let memory = HostMemory::new(device, CHUNK_BYTES, HOST_PORTABLE)?;
                Ok(Slot { memory, done: Event::new(device)? })
            })
            .collect::<Result<_, MemoryError>>()?;
        Ok(Self { slots, at: 0, used: CHUNK_BYTES, stream: 0 })
    }

    /// A place of `len` bytes, at most a slot's, for a copy of `stream`: behind the last one's, or else in the next slot, after its last copy is done.
    fn place(&mut self, stream: &Stream, len: usize) -> Result<(usize, Range<usize>), MemoryError> {
        let from = self.used.next_multiple_of(ALIGN);
        if self.stream != stream.id() || from + len > CHUNK_BYTES {
            let next = (self.at + 1) % SLOTS;
            self.slots[next].done.synchronize()?;
            (self.at, self.used, self.stream) = (next, len, stream.id());
            return Ok((next, 0..len));
        }
        self.used = from + len;
        Ok((self.at, from..self.used))
    }

    /// Copies `data` to the device range at `addr`, which the caller has checked.
    pub(super) fn upload(
        &mut self,
        stream: &Stream,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemoryError> {
        let api = stream.device().bind()?;
        let mut to = addr;
        for chunk in data.chunks(CHUNK_BYTES) {
            let (slot, place) = self.place(stream, chunk.len())?;
            let slot = &mut self.slots[slot];
            let staged = slot.memory.part_mut(place);
            staged.copy_from_slice(chunk);
            // SAFETY: the place holds `chunk.len()` bytes and is left alone until `done`; the
            // destination is within a buffer that is alive in stream order.
            let code = unsafe {
                (api.copy_to_device)(to, staged.as_ptr().cast(), chunk.len(), stream.raw())
            };
            api.check(code, "cuMemcpyHtoDAsync")?;
            slot.done.record(stream)?;
            to += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies the device range at `addr`, which the caller has checked, into `data`, and waits.
    pub(super) fn download(
        &mut self,
        stream: &Stream,
        addr: u64,
        data: &mut [u8],
    ) -> Result<(), MemoryError> {
        let api = stream.device().bind()?;
        let mut from = addr;
        // One round fills slots, all but the one that others may have begun, then empties them in the same order.
        for round in data.chunks_mut(CHUNK_BYTES * (SLOTS - 1)) {
            let mut used = Vec::with_capacity(SLOTS);
            for chunk in round.chunks_mut(CHUNK_BYTES) {
                let (index, place) = self.place(stream, chunk.len())?;
                let slot = &mut self.slots[index];
                let staged = slot.memory.part_mut(place.clone());
                // SAFETY: as in `upload`, the other way round; nothing reads the place before
                // `done`.
                let code = unsafe {
                    (api.copy_to_host)(staged.as_mut_ptr().cast(), from, chunk.len(), stream.raw())
                };
                api.check(code, "cuMemcpyDtoHAsync")?;
                slot.done.record(stream)?;
                from += chunk.len() as u64;
                used.push((index, place, chunk));
            }
            for (index, place, chunk) in used {
                let slot = &mut self.slots[index];
                slot.done.synchronize()?;
                chunk.copy_from_slice(slot.memory.part_mut(place));
            }
        }
        if data.is_empty() {
            stream.synchronize()?;
        }
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The memory may not go before the copy that uses it. A failure means a lost context.
        let _ = self.done.synchronize();
    }
}
