//! Host memory that the device reaches.
//!
//! [`PinnedBuffer`] is for asynchronous copies: it knows its last copy, and every access of the host
//! waits for that. [`MappedBuffer`] is written by kernels while the host reads: words only, each
//! read and write atomic, so that there is no data race to speak of on the host's side. A kernel
//! that publishes data through it stores the data, then a system-wide fence, then a flag; the host
//! loads the flag ([`MappedBuffer::load`] acquires), then the data.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use contract::launch::DevPtr;

use super::Element;
use super::MemoryError;
use crate::driver::{Device, Event, HOST_DEVICEMAP, HOST_PORTABLE, Stream, lock};

/// Page-locked bytes.
pub(super) struct HostMemory {
    ptr: *mut u8,
    len_bytes: usize,
    device: Device,
}

// SAFETY: owned memory without thread affinity.
unsafe impl Send for HostMemory {}
// SAFETY: shared access only reads the address.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Zeroed bytes, at least one, page-aligned.
    pub(super) fn new(device: &Device, len_bytes: usize, flags: u32) -> Result<Self, MemoryError> {
        let api = device.bind()?;
        let len_bytes = len_bytes.max(1);
        let mut ptr = std::ptr::null_mut();
        // SAFETY: writes one address; the context is current.
        let code = unsafe { (api.mem_host_alloc)(&mut ptr, len_bytes, flags) };
        api.check(code, "cuMemHostAlloc")?;
        // SAFETY: the driver gave that many bytes.
        unsafe { ptr.cast::<u8>().write_bytes(0, len_bytes) };
        Ok(Self { ptr: ptr.cast(), len_bytes, device: device.clone() })
    }

    pub(super) fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// Bytes `place`, none where there are fewer. The caller knows that no copy of them is under way.
    pub(super) fn part_mut(&mut self, place: Range<usize>) -> &mut [u8] {
        if place.start > place.end || place.end > self.len_bytes {
            return &mut [];
        }
        // SAFETY: allocated with at least so many and initialised in `new`; borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(place.start), place.len()) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Ok(api) = self.device.bind() {
            // SAFETY: the owner has waited for every copy; the address came from `cuMemHostAlloc`.
            unsafe { (api.mem_host_free)(self.ptr.cast()) };
        }
    }
}

/// Page-locked host memory of `len` elements, for asynchronous copies.
pub struct PinnedBuffer<T> {
    memory: HostMemory,
    /// Marks the last copy.
    last: Event,
    len: usize,
    elem: PhantomData<T>,
}

impl<T> std::fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuffer({} elements)", self.len)
    }
}

impl<T: Element> PinnedBuffer<T> {
    /// `len` elements of zero bytes.
    ///
    /// # Errors
    /// A size beyond the address space, or a driver failure (the host may be short of memory that
    /// can be locked).
    pub fn new(device: &Device, len: usize) -> Result<Self, MemoryError> {
        let bytes = bytes_of::<T>(len)?;
        let memory = HostMemory::new(device, bytes, HOST_PORTABLE)?;
        Ok(Self { memory, last: Event::new(device)?, len, elem: PhantomData })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, after the last copy is done.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn as_slice(&self) -> Result<&[T], MemoryError> {
        self.last.synchronize()?;
        // SAFETY: page-aligned, initialised, `len` elements; no copy is under way, and starting one
        // takes an exclusive borrow.
        Ok(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len) })
    }

    /// The elements, to be written, after the last copy is done.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], MemoryError> {
        self.last.synchronize()?;
        // SAFETY: as in `as_slice`, borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), self.len) })
    }

    /// Whether the last copy is done.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn is_ready(&self) -> Result<bool, MemoryError> {
        Ok(self.last.is_done()?)
    }

    /// Enqueues a copy to the device range at `addr`, which the caller has checked.
    pub(super) fn copy_out(&mut self, stream: &Stream, addr: u64) -> Result<(), MemoryError> {
        // One event marks only the last copy: with another stream, wait for the one before.
        self.last.synchronize()?;
        if self.is_empty() {
            return Ok(());
        }
        let api = stream.device().bind()?;
        let bytes = self.len * size_of::<T>();
        // SAFETY: the memory holds `bytes` and is left alone until `last`.
        let code =
            unsafe { (api.copy_to_device)(addr, self.memory.as_ptr().cast(), bytes, stream.raw()) };
        api.check(code, "cuMemcpyHtoDAsync")?;
        self.mark(stream)
    }

    /// Enqueues a copy from the device range at `addr`, which the caller has checked.
    pub(super) fn copy_in(&mut self, stream: &Stream, addr: u64) -> Result<(), MemoryError> {
        self.last.synchronize()?;
        if self.is_empty() {
            return Ok(());
        }
        let api = stream.device().bind()?;
        let bytes = self.len * size_of::<T>();
        // SAFETY: as in `copy_out`, the other way round.
        let code = unsafe {
            (api.copy_to_host)(self.memory.as_mut_ptr().cast(), addr, bytes, stream.raw())
        };
        api.check(code, "cuMemcpyDtoHAsync")?;
        self.mark(stream)
    }

    fn mark(&self, stream: &Stream) -> Result<(), MemoryError> {
        if let Err(error) = self.last.record(stream) {
            // Unmarked, the copy must not outlive this call.
            let _ = stream.synchronize();
            return Err(error.into());
        }
        Ok(())
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // A failure means a lost context: no copy is under way then.
        let _ = self.last.synchronize();
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A word that host and device exchange atomically: `u32`, `i32` or `u64`.
pub trait MappedWord: Element + sealed::Sealed {
    #[doc(hidden)]
    /// # Safety
    /// `at` is valid and aligned, and is accessed atomically by everybody on the host.
    unsafe fn load(at: *mut Self) -> Self;
    #[doc(hidden)]
    /// # Safety
    /// As [`MappedWord::load`].
    unsafe fn store(at: *mut Self, value: Self);
}

macro_rules! mapped_words {
    ($($word:ty as $atomic:ty, $bits:ty;)*) => {$(
        impl sealed::Sealed for $word {}
        impl MappedWord for $word {
            unsafe fn load(at: *mut Self) -> Self {
                // SAFETY: by the caller.
                unsafe { <$atomic>::from_ptr(at.cast()) }.load(Ordering::Acquire) as $word
            }
            unsafe fn store(at: *mut Self, value: Self) {
                // SAFETY: by the caller.
                unsafe { <$atomic>::from_ptr(at.cast()) }.store(value as $bits, Ordering::Release);
            }
        }
    )*};
}

mapped_words! {
    u32 as AtomicU32, u32;
    i32 as AtomicU32, u32;
    u64 as AtomicU64, u64;
}

/// Host memory of `len` words that kernels read and write in place.
pub struct MappedBuffer<W> {
    shared: Arc<Shared>,
    len: usize,
    word: PhantomData<fn(W) -> W>,
}

struct Shared {
    memory: Arc<HostMemory>,
    device_addr: u64,
    users: Mutex<Vec<Stream>>,
}

impl<W> std::fmt::Debug for MappedBuffer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MappedBuffer({} words)", self.len)
    }
}

impl<W: MappedWord> MappedBuffer<W> {
    /// `len` words of zero.
    ///
    /// # Errors
    /// A size beyond the address space, or a driver failure.
    pub fn new(device: &Device, len: usize) -> Result<Self, MemoryError> {
        let memory = HostMemory::new(device, bytes_of::<W>(len)?, HOST_PORTABLE | HOST_DEVICEMAP)?;
        let api = device.bind()?;
        let mut device_addr = 0;
        // SAFETY: writes one address; the memory was allocated as mapped.
        let code = unsafe {
            (api.mem_host_device_ptr)(&mut device_addr, memory.as_ptr().cast_mut().cast(), 0)
        };
        api.check(code, "cuMemHostGetDevicePointer")?;
        let memory = Arc::new(memory);
        let shared = Arc::new(Shared { memory, device_addr, users: Mutex::default() });
        Ok(Self { shared, len, word: PhantomData })
    }

    /// Words.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word at `index` as it is now (acquire); `None` beyond the end.
    pub fn load(&self, index: usize) -> Option<W> {
        // SAFETY: within the memory and aligned; the host accesses it only here and in `store`.
        self.at(index).map(|at| unsafe { W::load(at) })
    }

    /// Sets the word at `index` (release); false beyond the end.
    pub fn store(&self, index: usize, value: W) -> bool {
        // SAFETY: as in `load`.
        self.at(index).map(|at| unsafe { W::store(at, value) }).is_some()
    }

    /// The address on the device, for work on `stream`. The memory is kept until that work is done,
    /// and by the graph while `stream` is captured.
    pub fn dev_ptr(&self, stream: &Stream) -> DevPtr<W> {
        stream.keep(|| self.shared.clone());
        let mut users = lock(&self.shared.users);
        if !users.contains(stream) {
            users.push(stream.clone());
        }
        DevPtr::from_addr(self.shared.device_addr)
    }

    fn at(&self, index: usize) -> Option<*mut W> {
        let base = self.shared.memory.as_ptr().cast_mut().cast::<W>();
        (index < self.len).then(|| base.wrapping_add(index))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for stream in lock(&self.users).iter() {
            // A stream that is being captured cannot be waited for: its graph takes the memory.
            while !stream.keep(|| self.memory.clone()) {
                let waited = stream.with_capture_held(|capturing| {
                    if !capturing {
                        // A failure means a lost context: no work is under way then.
                        let _ = stream.synchronize();
                    }
                    !capturing
                });
                if waited {
                    break;
                }
            }
        }
    }
}

fn bytes_of<T>(len: usize) -> Result<usize, MemoryError> {
    len.checked_mul(size_of::<T>())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or(MemoryError::TooLarge { len, elem_bytes: size_of::<T>() })
}
