//! Typed device memory.
//!
//! A [`DeviceBuffer`] owns its range alone; [`DeviceSlice`] and [`DeviceSliceMut`] are borrowed
//! parts of one, and are what wrappers take. Enqueueing work that writes needs an exclusive borrow,
//! so that two outputs of one launch cannot be the same memory by mistake.
//!
//! An address is handed out for a stream ([`DeviceSlice::dev_ptr`]). This is where the buffer
//! notices that it is used outside its own stream, which delays its reuse, and that the stream is
//! being captured, which lets the graph keep it.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex};

use contract::launch::DevPtr;

use super::pinned::PinnedBuffer;
use super::pool::Lease;
use super::{Element, MemoryError, Pool};
use crate::driver::{DriverError, Event, Stream, lock};

/// What the address of borrowed memory is a multiple of, as that of every buffer.
pub const BORROWED_ALIGN: u64 = 256;

/// A range of the pool, with what is needed to give it back safely.
struct Block {
    /// Shared only with the block that takes over in `drop`.
    lease: Arc<Lease>,
    /// Other streams that were given the address.
    foreign: Mutex<Vec<Stream>>,
}

/// Device memory of `len` elements, 256-byte aligned.
pub struct DeviceBuffer<T> {
    block: Arc<Block>,
    addr: u64,
    len: usize,
    label: &'static str,
    elem: PhantomData<fn() -> T>,
}

/// A borrowed part of a [`DeviceBuffer`].
pub struct DeviceSlice<'b, T> {
    block: &'b Arc<Block>,
    addr: u64,
    len: usize,
    label: &'static str,
    elem: PhantomData<fn() -> T>,
}

/// An exclusively borrowed part of a [`DeviceBuffer`].
///
/// Two parts that do not overlap come from [`DeviceSliceMut::split_at`]:
///
/// ```
/// use bitnet_gpu::memory::{DeviceBuffer, DeviceSliceMut, MemoryError};
///
/// fn halves(x: &mut DeviceBuffer<f32>) -> Result<[DeviceSliceMut<'_, f32>; 2], MemoryError> {
///     let at = x.len() / 2;
///     let (a, b) = x.as_slice_mut().split_at(at)?;
///     Ok([a, b])
/// }
/// ```
///
/// Two that might overlap do not compile:
///
/// ```compile_fail
/// use bitnet_gpu::memory::{DeviceBuffer, DeviceSliceMut, MemoryError};
///
/// fn halves(x: &mut DeviceBuffer<f32>) -> Result<[DeviceSliceMut<'_, f32>; 2], MemoryError> {
///     Ok([x.slice_mut(..10)?, x.slice_mut(5..)?])
/// }
/// ```
pub struct DeviceSliceMut<'b, T> {
    slice: DeviceSlice<'b, T>,
    exclusive: PhantomData<&'b mut T>,
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<'_, T> {}

impl<T> std::fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBuffer({:?}, {} elements at {:#x})", self.label, self.len, self.addr)
    }
}

impl<T> std::fmt::Debug for DeviceSlice<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceSlice({:?}, {} elements at {:#x})", self.label, self.len, self.addr)
    }
}

impl<T> std::fmt::Debug for DeviceSliceMut<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.slice.fmt(f)
    }
}

impl<T: Element> DeviceBuffer<T> {
    pub(super) fn new(lease: Lease, len: usize, label: &'static str) -> Self {
        let addr = lease.addr;
        let block = Arc::new(Block { lease: Arc::new(lease), foreign: Mutex::default() });
        Self { block, addr, len, label, elem: PhantomData }
    }

    /// Memory that somebody else holds, a PyTorch tensor for one, as a buffer for use on `stream`. It is not counted in
    /// `pool`, and not freed.
    ///
    /// # Errors
    /// A stream of another device; an address that is no multiple of [`BORROWED_ALIGN`].
    ///
    /// # Safety
    /// `addr` is the start of `len` elements of device memory of the pool's device. They live, and nobody else writes
    /// them (or, where this buffer is written, touches them), until what is queued with this buffer has run; with work
    /// of other streams the caller has ordered it.
    pub unsafe fn borrowed(
        pool: &Pool,
        stream: &Stream,
        addr: u64,
        len: usize,
        label: &'static str,
    ) -> Result<Self, MemoryError> {
        if stream.device() != pool.device() {
            return Err(MemoryError::WrongDevice {
                memory_device: pool.device().ordinal(),
                stream_device: stream.device().ordinal(),
            });
        }
        if addr == 0 || !addr.is_multiple_of(BORROWED_ALIGN) {
            return Err(MemoryError::Misaligned { label, addr, allowed: BORROWED_ALIGN });
        }
        let lease = Lease { addr, pool: pool.clone(), stream: stream.clone(), borrowed: true };
        Ok(Self::new(lease, len, label))
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    pub fn len_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// What it was allocated as.
    pub fn label(&self) -> &'static str {
        self.label
    }

    /// All of it.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice {
            block: &self.block,
            addr: self.addr,
            len: self.len,
            label: self.label,
            elem: PhantomData,
        }
    }

    /// All of it, to be written.
    pub fn as_slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut { slice: self.as_slice(), exclusive: PhantomData }
    }

    /// A part of it.
    ///
    /// # Errors
    /// A range beyond the end, or one that ends before it starts.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>, MemoryError> {
        self.as_slice().slice(range)
    }

    /// A part of it, to be written.
    ///
    /// # Errors
    /// As [`DeviceBuffer::slice`].
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceSliceMut<'_, T>, MemoryError> {
        self.as_slice_mut().slice_mut(range)
    }

    /// The address, for work on `stream`; see [`DeviceSlice::dev_ptr`].
    pub fn dev_ptr(&self, stream: &Stream) -> DevPtr<T> {
        self.as_slice().dev_ptr(stream)
    }

    /// Copies `data` into it; see [`DeviceSliceMut::upload`].
    ///
    /// # Errors
    /// As there.
    pub fn upload(&mut self, stream: &Stream, data: &[T]) -> Result<(), MemoryError> {
        self.as_slice_mut().upload(stream, data)
    }

    /// Copies it to the host; see [`DeviceSlice::download`].
    ///
    /// # Errors
    /// As there.
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>, MemoryError> {
        self.as_slice().download(stream)
    }

    /// Sets every byte; see [`DeviceSliceMut::fill_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn fill_bytes(&mut self, stream: &Stream, byte: u8) -> Result<(), MemoryError> {
        self.as_slice_mut().fill_bytes(stream, byte)
    }
}

impl<'b, T: Element> DeviceSlice<'b, T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    pub fn len_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The label of the buffer.
    pub fn label(&self) -> &'static str {
        self.label
    }

    /// A part of it.
    ///
    /// # Errors
    /// A range beyond the end, or one that ends before it starts.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self, MemoryError> {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n.saturating_add(1),
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            let Self { len, label, .. } = self;
            return Err(MemoryError::OutOfRange { start, end, len, label });
        }
        Ok(Self { addr: self.addr + (start * size_of::<T>()) as u64, len: end - start, ..self })
    }

    /// The address, for work that is enqueued on `stream` while the borrow lasts.
    ///
    /// Takes note of the stream: the memory is not reused before the work that `stream` has been
    /// given by the time the buffer is dropped; and while `stream` is captured, the graph keeps the
    /// memory.
    pub fn dev_ptr(&self, stream: &Stream) -> DevPtr<T> {
        self.block.touch(stream);
        DevPtr::from_addr(self.addr)
    }

    /// Copies it to the host, and waits for that and all earlier work of `stream`.
    ///
    /// # Errors
    /// A captured stream or one of another device, or a driver failure.
    pub fn download(&self, stream: &Stream) -> Result<Vec<T>, MemoryError> {
        // SAFETY: all zero bytes are a valid `Element`.
        let mut data = vec![unsafe { std::mem::zeroed::<T>() }; self.len];
        self.download_into(stream, &mut data)?;
        Ok(data)
    }

    /// As [`DeviceSlice::download`], into memory of the caller.
    ///
    /// # Errors
    /// As there, and `data` of another length.
    pub fn download_into(&self, stream: &Stream, data: &mut [T]) -> Result<(), MemoryError> {
        check_len("download", data.len(), self.len)?;
        self.check(stream, "download")?;
        let addr = self.dev_ptr(stream).addr();
        self.pool()
            .with_staging(|staging| staging.download(stream, addr, bytemuck::cast_slice_mut(data)))
    }

    /// Enqueues a copy into pinned memory; reading that waits for the copy.
    ///
    /// # Errors
    /// A captured stream or one of another device, a `to` of another length, or a driver failure.
    pub fn copy_to_pinned(
        &self,
        stream: &Stream,
        to: &mut PinnedBuffer<T>,
    ) -> Result<(), MemoryError> {
        check_len("copy_to_pinned", to.len(), self.len)?;
        self.check(stream, "copy_to_pinned")?;
        to.copy_in(stream, self.dev_ptr(stream).addr())
    }

    fn pool(&self) -> &'b Pool {
        &self.block.lease.pool
    }

    fn check(&self, stream: &Stream, what: &'static str) -> Result<(), MemoryError> {
        self.check_device(stream)?;
        if stream.is_capturing() { Err(MemoryError::Capturing { what }) } else { Ok(()) }
    }

    fn check_device(&self, stream: &Stream) -> Result<(), MemoryError> {
        let device = self.pool().device();
        if stream.device() == device {
            return Ok(());
        }
        Err(MemoryError::WrongDevice {
            memory_device: device.ordinal(),
            stream_device: stream.device().ordinal(),
        })
    }
}

impl<'b, T: Element> DeviceSliceMut<'b, T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.slice.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.slice.len == 0
    }

    /// The label of the buffer.
    pub fn label(&self) -> &'static str {
        self.slice.label
    }

    /// The same part, to be read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.slice
    }

    /// The same part, for a shorter time.
    pub fn reborrow(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut { slice: self.slice, exclusive: PhantomData }
    }

    /// A part of it.
    ///
    /// # Errors
    /// A range beyond the end, or one that ends before it starts.
    pub fn slice_mut(self, range: impl RangeBounds<usize>) -> Result<Self, MemoryError> {
        Ok(Self { slice: self.slice.slice(range)?, exclusive: PhantomData })
    }

    /// The first `at` elements and the rest.
    ///
    /// # Errors
    /// `at` beyond the end.
    pub fn split_at(self, at: usize) -> Result<(Self, Self), MemoryError> {
        Ok((
            Self { slice: self.slice.slice(..at)?, exclusive: PhantomData },
            Self { slice: self.slice.slice(at..)?, exclusive: PhantomData },
        ))
    }

    /// The address, for work on `stream`; see [`DeviceSlice::dev_ptr`].
    pub fn dev_ptr(&self, stream: &Stream) -> DevPtr<T> {
        self.slice.dev_ptr(stream)
    }

    /// Copies `data` into it through pinned staging memory. When this returns, `data` has been
    /// read; the copy to the device is ordered on `stream` and may still be on its way.
    ///
    /// # Errors
    /// `data` of another length, a captured stream or one of another device, or a driver failure.
    pub fn upload(&mut self, stream: &Stream, data: &[T]) -> Result<(), MemoryError> {
        check_len("upload", self.slice.len, data.len())?;
        self.slice.check(stream, "upload")?;
        let addr = self.dev_ptr(stream).addr();
        self.slice
            .pool()
            .with_staging(|staging| staging.upload(stream, addr, bytemuck::cast_slice(data)))
    }

    /// Enqueues a copy from pinned memory; writing to that, or dropping it, waits for the copy.
    ///
    /// # Errors
    /// `from` of another length, a captured stream or one of another device, or a driver failure.
    pub fn copy_from_pinned(
        &mut self,
        stream: &Stream,
        from: &mut PinnedBuffer<T>,
    ) -> Result<(), MemoryError> {
        check_len("copy_from_pinned", self.slice.len, from.len())?;
        self.slice.check(stream, "copy_from_pinned")?;
        from.copy_out(stream, self.dev_ptr(stream).addr())
    }

    /// Enqueues a copy from other device memory. May be captured.
    ///
    /// # Errors
    /// `from` of another length or device, or a driver failure.
    pub fn copy_from(
        &mut self,
        stream: &Stream,
        from: DeviceSlice<'_, T>,
    ) -> Result<(), MemoryError> {
        check_len("copy_from", self.slice.len, from.len)?;
        self.slice.check_device(stream)?;
        from.check_device(stream)?;
        let (to, from) = (self.dev_ptr(stream).addr(), from.dev_ptr(stream).addr());
        if self.is_empty() {
            return Ok(());
        }
        let api = stream.device().bind()?;
        // SAFETY: both ranges are of one length and alive in stream order; the exclusive borrow of
        // the destination means that they do not overlap.
        let code = unsafe { (api.copy_on_device)(to, from, self.slice.len_bytes(), stream.raw()) };
        Ok(api.check(code, "cuMemcpyDtoDAsync")?)
    }

    /// Enqueues setting every byte to `byte`. May be captured.
    ///
    /// # Errors
    /// A stream of another device, or a driver failure.
    pub fn fill_bytes(&mut self, stream: &Stream, byte: u8) -> Result<(), MemoryError> {
        self.slice.check_device(stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let addr = self.dev_ptr(stream).addr();
        let api = stream.device().bind()?;
        // SAFETY: the range is alive in stream order and borrowed exclusively.
        let code = unsafe { (api.fill_u8)(addr, byte, self.slice.len_bytes(), stream.raw()) };
        Ok(api.check(code, "cuMemsetD8Async")?)
    }
}

fn check_len(what: &'static str, need: usize, have: usize) -> Result<(), MemoryError> {
    if need == have { Ok(()) } else { Err(MemoryError::Length { what, need, have }) }
}

impl Block {
    fn touch(self: &Arc<Self>, stream: &Stream) {
        stream.keep(|| self.clone());
        if self.lease.stream != *stream {
            let mut foreign = lock(&self.foreign);
            if !foreign.contains(stream) {
                foreign.push(stream.clone());
            }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut foreign = std::mem::take(&mut *lock(&self.foreign));
        while let Some(stream) = foreign.last() {
            match order_after(&self.lease.stream, stream) {
                Ok(None) => {
                    foreign.pop();
                }
                Ok(Some(captured)) => {
                    // No order can be made with a stream that is being captured: its graph takes
                    // the range over, and this is tried again when the graph is dropped.
                    let captured = captured.clone();
                    let lease = self.lease.clone();
                    let block = Arc::new(Block { lease, foreign: Mutex::new(foreign) });
                    captured.keep(|| block);
                    return;
                }
                // The context is lost: no work will touch the range again.
                Err(_) => break,
            }
        }
    }
}

/// Lets `owner` wait for the work that `other` has so far. When one of the two is being captured,
/// nothing is done and that one is returned.
fn order_after<'s>(
    owner: &'s Stream,
    other: &'s Stream,
) -> Result<Option<&'s Stream>, DriverError> {
    let event = Event::new(other.device())?;
    let captured =
        |stream: &'s Stream, step: &dyn Fn() -> Result<(), DriverError>| {
            stream.with_capture_held(|capturing| {
                if capturing { Ok(Some(stream)) } else { step().map(|()| None) }
            })
        };
    if let Some(captured) = captured(other, &|| event.record(other))? {
        return Ok(Some(captured));
    }
    captured(owner, &|| owner.wait_event(&event))
}
