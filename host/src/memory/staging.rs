//! The pinned chunks behind uploads and downloads.
//!
//! A copy from ordinary host memory is split into chunks. Each chunk is copied by the CPU into a
//! pinned slot and from there, asynchronously, to the device, so that the CPU fills one slot while
//! the device reads another. A slot is used again only after its event.

use super::MemoryError;
use super::pinned::HostMemory;
use crate::driver::{Device, Event, HOST_PORTABLE, Stream};

/// Bytes of a slot: long enough to reach full PCIe bandwidth.
const CHUNK_BYTES: usize = 4 << 20;
/// Slots: one being filled, one in flight, and slack for an uneven host.
const SLOTS: usize = 4;

pub(super) struct Staging {
    slots: Vec<Slot>,
    next: usize,
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
        Ok(Self { slots, next: 0 })
    }

    /// The next slot, after its last copy is done.
    fn slot(&mut self) -> Result<&mut Slot, MemoryError> {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        slot.done.synchronize()?;
        Ok(slot)
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
            let slot = self.slot()?;
            slot.memory.bytes_mut()[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: the slot holds `chunk.len()` bytes and is left alone until `done`; the
            // destination is within a buffer that is alive in stream order.
            let code = unsafe {
                (api.copy_to_device)(to, slot.memory.as_ptr().cast(), chunk.len(), stream.raw())
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
        // One round fills every slot, then empties them in the same order.
        for round in data.chunks_mut(CHUNK_BYTES * SLOTS) {
            let mut used = Vec::with_capacity(SLOTS);
            for chunk in round.chunks_mut(CHUNK_BYTES) {
                let index = self.next;
                let slot = self.slot()?;
                // SAFETY: as in `upload`, the other way round; nothing reads the slot before
                // `done`.
                let code = unsafe {
                    (api.copy_to_host)(
                        slot.memory.as_mut_ptr().cast(),
                        from,
                        chunk.len(),
                        stream.raw(),
                    )
                };
                api.check(code, "cuMemcpyDtoHAsync")?;
                slot.done.record(stream)?;
                from += chunk.len() as u64;
                used.push((index, chunk));
            }
            for (index, chunk) in used {
                let slot = &mut self.slots[index];
                slot.done.synchronize()?;
                chunk.copy_from_slice(&slot.memory.bytes_mut()[..chunk.len()]);
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
