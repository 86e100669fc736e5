//! Memory of the CPU backend: zeroed, aligned to cache lines, on huge pages where it is large.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;

use crate::memory::MemoryUsage;
use crate::ops::{Element, OpError, Tensor, TokenLog};

/// Buffers from here on are mapped of their own, and ask for huge pages: weights are read once per
/// token from end to end, and small pages would cost a table walk every 4 KiB.
const MAPPED_BYTES: usize = 4 << 20;

#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Line([u8; 64]);

enum Memory {
    Lines(Box<[Line]>),
    Mapped(MmapMut),
}

/// What the buffers of one backend take.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<MemoryUsage>);

impl Ledger {
    pub(super) fn usage(&self) -> MemoryUsage {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, label: &'static str, change: impl Fn(&mut usize)) {
        let mut usage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(usage.per_label.entry(label).or_default());
        change(&mut usage.in_use_bytes);
        usage.reserved_bytes = usage.in_use_bytes;
        usage.peak_bytes = usage.peak_bytes.max(usage.in_use_bytes);
    }
}

/// An entry of the ledger, taken back when the buffer goes.
struct Entry {
    ledger: Arc<Ledger>,
    label: &'static str,
    bytes: usize,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.ledger.change(self.label, |held| *held -= self.bytes);
    }
}

/// `len` elements of `T`.
pub struct Buffer<T> {
    memory: Memory,
    len: usize,
    entry: Option<Entry>,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Reserves `len` zeroed elements.
    ///
    /// # Errors
    /// The system has no such amount.
    pub fn zeroed(label: &'static str, len: usize) -> Result<Self, OpError> {
        const { assert!(align_of::<T>() <= align_of::<Line>()) };
        let refused = || OpError::HostMemory { label, bytes: len.saturating_mul(size_of::<T>()) };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(refused)?;
        let memory = if bytes < MAPPED_BYTES {
            let lines = bytemuck::allocation::try_zeroed_slice_box(bytes.div_ceil(64));
            Memory::Lines(lines.map_err(|()| refused())?)
        } else {
            let map = MmapMut::map_anon(bytes).map_err(|_| refused())?;
            // A system without huge pages refuses; small ones serve as well.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            Memory::Mapped(map)
        };
        Ok(Self { memory, len, entry: None, element: PhantomData })
    }

    /// The same, counted in `ledger` as long as it lives.
    pub(super) fn counted(
        label: &'static str,
        len: usize,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, OpError> {
        let mut buffer = Self::zeroed(label, len)?;
        let bytes = len * size_of::<T>();
        ledger.change(label, |held| *held += bytes);
        buffer.entry = Some(Entry { ledger: Arc::clone(ledger), label, bytes });
        Ok(buffer)
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        let start = match &self.memory {
            Memory::Lines(lines) => lines.as_ptr().cast::<T>(),
            Memory::Mapped(map) => map.as_ptr().cast::<T>(),
        };
        // SAFETY: the memory holds at least `len * size_of::<T>()` initialised bytes, starts at a
        // cache line or a page (aligned for `T`, see `zeroed`), and any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }

    /// The elements, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        let start = match &mut self.memory {
            Memory::Lines(lines) => lines.as_mut_ptr().cast::<T>(),
            Memory::Mapped(map) => map.as_mut_ptr().cast::<T>(),
        };
        // SAFETY: as in `as_slice`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

impl<T: Element> Tensor for Buffer<T> {
    fn len(&self) -> usize {
        self.len
    }
}

/// Tokens as the sampler wrote them: it has run when its call returns.
pub struct CpuTokens(pub(super) Vec<u32>);

impl TokenLog for CpuTokens {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, step: usize) -> u32 {
        self.0.get(step).copied().unwrap_or(Self::EMPTY)
    }

    fn put(&mut self, step: usize, token: u32) {
        if let Some(entry) = self.0.get_mut(step) {
            *entry = token;
        }
    }

    fn clear_part(&mut self, range: std::ops::Range<usize>) {
        self.0[range].fill(Self::EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_aligned() {
        for len in [0, 1, 63, 4096, MAPPED_BYTES / 4, MAPPED_BYTES / 4 + 1] {
            let mut buffer = Buffer::<u32>::zeroed("test", len).expect("memory");
            assert_eq!(buffer.as_slice().len(), len);
            assert!(buffer.as_slice().iter().all(|&v| v == 0));
            assert_eq!(buffer.as_slice().as_ptr().align_offset(64), 0);
            buffer.as_mut_slice().fill(7);
            assert!(buffer.as_slice().iter().all(|&v| v == 7));
        }
    }

    #[test]
    fn too_much_is_refused_with_its_size() {
        for len in [usize::MAX, usize::MAX / 8] {
            let refused = Buffer::<u64>::zeroed("weights", len).err().map(|e| e.to_string());
            assert!(refused.is_some_and(|e| e.contains("weights")), "{len}");
        }
    }
}
