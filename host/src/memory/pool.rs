//! A caching pool of device memory, in stream order.
//!
//! Pages come from plain `cuMemAlloc` and are split by [`super::ledger`]. The driver's own
//! stream-ordered allocator was not chosen: it is missing on some devices and on older drivers, its
//! blocks cannot be counted by label or capped before the fact, and what it allocates inside a graph
//! capture becomes a node of the graph. With own pages a captured address is an ordinary one.
//!
//! A request looks, in this order, at ranges freed in its own stream's order or belonging to
//! nobody; at ranges of other streams that are idle by now; at a new page; at ranges of busy
//! streams, which it then waits for on the device; and at everything, after waiting on the host.
//! Only then is it out of memory. Inside a capture only ranges that belong to nobody and new pages
//! are looked at, because a graph may be replayed beside any stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::ledger::{Ledger, Owner, kind_of, segment_sizes, size_class};
use super::staging::Staging;
use super::{DeviceBuffer, Element, MemoryError, MemoryUsage};
use crate::driver::{Api, Device, DriverError, Event, OUT_OF_MEMORY, Stream, lock};

/// Streams that the pool remembers before it waits for the old ones and forgets them.
const STREAMS_MAX: usize = 64;

/// What may be set for a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The most bytes taken from the driver; `None`: no cap.
    pub cap_bytes: Option<usize>,
}

impl PoolOptions {
    /// The same with a cap.
    pub fn cap_bytes(self, bytes: usize) -> Self {
        Self { cap_bytes: Some(bytes) }
    }
}

/// A counted handle of a memory pool.
#[derive(Clone)]
pub struct Pool(Arc<PoolInner>);

struct PoolInner {
    device: Device,
    options: PoolOptions,
    state: Mutex<State>,
    staging: Mutex<Option<Staging>>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    /// Streams that may own free ranges.
    streams: HashMap<u64, Stream>,
}

/// A range in use; given back when dropped.
pub(super) struct Lease {
    pub(super) addr: u64,
    pub(super) pool: Pool,
    /// In whose order it is given back.
    pub(super) stream: Stream,
    /// Whether it is somebody else's, and never was the pool's.
    pub(super) borrowed: bool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let usage = self.usage();
        write!(f, "Pool({} of {} bytes in use)", usage.in_use_bytes, usage.reserved_bytes)
    }
}

impl Pool {
    /// An empty pool; nothing is allocated yet.
    pub fn new(device: &Device, options: PoolOptions) -> Self {
        Self(Arc::new(PoolInner {
            device: device.clone(),
            options,
            state: Mutex::default(),
            staging: Mutex::default(),
        }))
    }

    /// The pool's device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// A buffer of `len` elements for use on `stream`, 256-byte aligned. Its content is whatever
    /// was there: write all of it before anything reads it.
    ///
    /// # Errors
    /// Out of memory, a stream of another device, or a driver failure.
    pub fn alloc<T: Element>(
        &self,
        stream: &Stream,
        len: usize,
        label: &'static str,
    ) -> Result<DeviceBuffer<T>, MemoryError> {
        let too_large = MemoryError::TooLarge { len, elem_bytes: size_of::<T>() };
        let class = len.checked_mul(size_of::<T>()).and_then(size_class).ok_or(too_large)?;
        let addr = self.take(stream, class, label)?;
        Ok(DeviceBuffer::new(
            Lease { addr, pool: self.clone(), stream: stream.clone(), borrowed: false },
            len,
            label,
        ))
    }

    /// A buffer of `len` elements with all bytes zero.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_zeroed<T: Element>(
        &self,
        stream: &Stream,
        len: usize,
        label: &'static str,
    ) -> Result<DeviceBuffer<T>, MemoryError> {
        let mut buffer = self.alloc(stream, len, label)?;
        buffer.fill_bytes(stream, 0)?;
        Ok(buffer)
    }

    /// A buffer with a copy of `data`, which may be dropped when this returns.
    ///
    /// # Errors
    /// As [`Pool::alloc`], and those of [`DeviceBuffer::upload`].
    pub fn from_slice<T: Element>(
        &self,
        stream: &Stream,
        data: &[T],
        label: &'static str,
    ) -> Result<DeviceBuffer<T>, MemoryError> {
        let mut buffer = self.alloc(stream, data.len(), label)?;
        buffer.upload(stream, data)?;
        Ok(buffer)
    }

    /// Bytes in use, reserved, at the peak, and by label.
    pub fn usage(&self) -> MemoryUsage {
        lock(&self.0.state).ledger.usage().clone()
    }

    /// Bytes that buffers could still take: what is kept for reuse and what the device has free now, within the cap.
    ///
    /// # Errors
    /// A driver failure.
    pub fn room(&self) -> Result<usize, DriverError> {
        let (free, _) = self.0.device.memory_info()?;
        let usage = self.usage();
        let room = free.saturating_add(usage.reserved_bytes.saturating_sub(usage.in_use_bytes));
        let cap = self.0.options.cap_bytes.unwrap_or(usize::MAX);
        Ok(room.min(cap.saturating_sub(usage.in_use_bytes)))
    }

    /// Waits for all streams that freed memory and returns unused pages to the driver. Streams that
    /// are being captured are left alone. Gives the bytes returned.
    ///
    /// # Errors
    /// A driver failure, or one of earlier asynchronous work.
    pub fn trim(&self) -> Result<usize, DriverError> {
        let api = self.0.device.bind()?;
        let mut state = lock(&self.0.state);
        let before = state.ledger.usage().reserved_bytes;
        state.settle_on_host()?;
        state.forget_streams();
        state.return_pages(api)?;
        Ok(before - state.ledger.usage().reserved_bytes)
    }

    fn take(&self, stream: &Stream, class: usize, label: &'static str) -> Result<u64, MemoryError> {
        if *stream.device() != self.0.device {
            return Err(MemoryError::WrongDevice {
                memory_device: self.0.device.ordinal(),
                stream_device: stream.device().ordinal(),
            });
        }
        let api = self.0.device.bind()?;
        let capturing = stream.is_capturing();
        let both = [Some(stream.id()), None];
        let owners: &[Owner] = if capturing { &[None] } else { &both };

        let mut state = lock(&self.0.state);
        if let Some(addr) = state.ledger.take(class, owners, label) {
            return Ok(addr);
        }
        state.settle_idle()?;
        if let Some(addr) = state.ledger.take(class, owners, label) {
            return Ok(addr);
        }
        if state.grow(api, class, self.0.options.cap_bytes)?
            && let Some(addr) = state.ledger.take(class, owners, label)
        {
            return Ok(addr);
        }
        if !capturing {
            state.adopt(stream)?;
            if let Some(addr) = state.ledger.take(class, owners, label) {
                return Ok(addr);
            }
        }
        // Give everything that is free back to the driver, so that it can be cut anew.
        state.settle_on_host()?;
        if let Some(addr) = state.ledger.take(class, owners, label) {
            return Ok(addr);
        }
        state.return_pages(api)?;
        if state.grow(api, class, self.0.options.cap_bytes)?
            && let Some(addr) = state.ledger.take(class, owners, label)
        {
            return Ok(addr);
        }
        let usage = state.ledger.usage();
        Err(MemoryError::OutOfMemory {
            asked: class,
            label,
            free: self.0.device.memory_info().map_or(0, |(free, _)| free),
            cap: self.0.options.cap_bytes,
            in_use: usage.in_use_bytes,
            reserved: usage.reserved_bytes,
            largest: usage.largest(3),
        })
    }

    /// Runs `f` with the pool's pinned staging ring.
    pub(super) fn with_staging<R>(
        &self,
        f: impl FnOnce(&mut Staging) -> Result<R, MemoryError>,
    ) -> Result<R, MemoryError> {
        let mut staging = lock(&self.0.staging);
        match &mut *staging {
            Some(staging) => f(staging),
            empty => f(empty.insert(Staging::new(&self.0.device)?)),
        }
    }
}

impl State {
    /// Frees the ranges of streams that are idle already. Waits for nothing.
    fn settle_idle(&mut self) -> Result<(), DriverError> {
        for owner in self.ledger.owners() {
            let idle = match self.streams.get(&owner) {
                // Asking a captured stream would break its capture.
                Some(stream) => {
                    stream.with_capture_held(|capturing| Ok(!capturing && stream.is_idle()?))?
                }
                None => true,
            };
            if idle {
                self.ledger.hand_over(owner, None);
            }
        }
        Ok(())
    }

    /// Lets `taker` wait on the device for the other streams, and gives it their free ranges.
    fn adopt(&mut self, taker: &Stream) -> Result<(), DriverError> {
        for owner in self.ledger.owners() {
            let Some(stream) = self.streams.get(&owner).filter(|stream| *stream != taker) else {
                continue;
            };
            let marked = stream.with_capture_held(|capturing| {
                if capturing {
                    return Ok(None);
                }
                let event = Event::new(stream.device())?;
                event.record(stream)?;
                Ok(Some(event))
            })?;
            let Some(event) = marked else { continue };
            let waits = taker.with_capture_held(|capturing| {
                if capturing { Ok(false) } else { taker.wait_event(&event).map(|()| true) }
            })?;
            if waits {
                self.ledger.hand_over(owner, Some(taker.id()));
                self.streams.entry(taker.id()).or_insert_with(|| taker.clone());
            }
        }
        Ok(())
    }

    /// Waits on the host for every stream that owns a free range and is not being captured.
    fn settle_on_host(&mut self) -> Result<(), DriverError> {
        for owner in self.ledger.owners() {
            let settled = match self.streams.get(&owner) {
                Some(stream) => stream.with_capture_held(|capturing| {
                    if capturing { Ok(false) } else { stream.synchronize().map(|()| true) }
                })?,
                None => true,
            };
            if settled {
                self.ledger.hand_over(owner, None);
            }
        }
        Ok(())
    }

    /// Forgets streams that own nothing.
    fn forget_streams(&mut self) {
        let owners = self.ledger.owners();
        self.streams.retain(|id, _| owners.contains(id));
    }

    /// Asks the driver for a page that holds `class`; false when cap or device refuse.
    fn grow(&mut self, api: &Api, class: usize, cap: Option<usize>) -> Result<bool, DriverError> {
        for len in segment_sizes(class) {
            let reserved = self.ledger.usage().reserved_bytes;
            if cap.is_some_and(|cap| reserved.saturating_add(len) > cap) {
                continue;
            }
            let mut base = 0;
            // SAFETY: writes one address; the context is current.
            match unsafe { (api.mem_alloc)(&mut base, len) } {
                OUT_OF_MEMORY => continue,
                code => api.check(code, "cuMemAlloc")?,
            }
            self.ledger.add_segment(base, len, kind_of(class));
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns pages that nobody uses or owns to the driver.
    fn return_pages(&mut self, api: &Api) -> Result<(), DriverError> {
        for base in self.ledger.remove_empty() {
            // SAFETY: the page came from `cuMemAlloc`, no buffer is in it, and no stream has work
            // on it: ranges with pending work have an owner.
            api.check(unsafe { (api.mem_free)(base) }, "cuMemFree")?;
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        let mut state = lock(&self.pool.0.state);
        let id = self.stream.id();
        state.ledger.give(self.addr, Some(id));
        state.streams.entry(id).or_insert_with(|| self.stream.clone());
        if state.streams.len() > STREAMS_MAX && state.settle_idle().is_ok() {
            state.forget_streams();
        }
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let Ok(api) = self.device.bind() else { return };
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = state.settle_on_host();
        if !state.ledger.owners().is_empty() {
            // A stream is being captured, or the context is lost. Pages with pending work are not
            // freed: with the context they go anyway.
            return;
        }
        for base in state.ledger.segments() {
            // SAFETY: every lease holds the pool, so no buffer is left; no stream has work on it.
            unsafe { (api.mem_free)(base) };
        }
    }
}
